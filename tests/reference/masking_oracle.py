"""The masking rules, as slow loops: what the fast masks are tested and timed against.

Sources, in our own words (no code is copied):

- RetroMAE, arXiv 2205.12035: a moderate and an aggressive mask; in "Enhanced Decoding" a sample for each row.
- DupMAE / RetroMAE-2, arXiv 2211.08769: the bag of words.
- BERT, arXiv 1810.04805, "Masked LM": 80/10/10.
- The collators of staoxiao/RetroMAE and FlagEmbedding.

A tokenised text is two lists of the same length: `input_ids`, special tokens included, and `word_ids`, the number of
the word each token is a piece of, -1 for a special token.
"""

import random

import torch

SPECIAL = -1
IGNORED = -100


def group_words(word_ids):
    """Positions of each word, as a list of lists in order of appearance; special tokens belong to none."""
    words = {}
    for position, word in enumerate(word_ids):
        if word != SPECIAL:
            words.setdefault(word, []).append(position)
    return list(words.values())


def whole_word_mask(word_ids, probability, rng: random.Random):
    """Positions to mask: shuffled words, taken while they fit in `max(1, round(n * probability))` tokens.

    `n` counts special tokens too, and `round` is Python's (half to even), as in the published collators. A word too
    long for what is left is skipped and a later, shorter one may be taken; so the set can stay below the budget, and
    is empty where every word is longer than the budget.
    """
    budget = max(1, round(len(word_ids) * probability))
    words = group_words(word_ids)
    rng.shuffle(words)
    masked = set()
    for pieces in words:
        if len(masked) + len(pieces) <= budget:
            masked.update(pieces)
    return masked


def decoder_visibility(word_ids, length, probability, rng: random.Random):
    """The decoder's mask of one text, [L, L] with `L = length`: 1 where row i may see column j.

    Each row hides a whole-word sample of its own (2205.12035, "Enhanced Decoding"), itself, and the other pieces of
    its own word. Special columns are visible except to themselves, so that row 0, which has no label, is the one
    row that does not see column 0. Padding is hidden, and padding rows see nothing.

    Hiding the whole own word is stricter than the published code, which hides the token alone: there, `play` may be
    visible where `##ing` is to be rebuilt. For words of one piece the two are the same.
    """
    matrix = []
    for row in range(length):
        if row >= len(word_ids):
            matrix.append([0] * length)
            continue
        sampled = whole_word_mask(word_ids, probability, rng)
        line = []
        for column in range(length):
            if column >= len(word_ids) or column == row:
                line.append(0)
            elif word_ids[column] == SPECIAL:
                line.append(1)
            elif column in sampled or word_ids[column] == word_ids[row]:
                line.append(0)
            else:
                line.append(1)
        matrix.append(line)
    return matrix


def replace_masked(input_ids, masked, *, mask_token_id, vocab_size, rng: random.Random):
    """BERT's 80/10/10: the mask token, a random id of the whole vocabulary, or the token as it is.

    Returns:
        (ids, labels): the corrupted ids, and the original id at each masked position, -100 elsewhere.
    """
    ids, labels = list(input_ids), [IGNORED] * len(input_ids)
    for position in sorted(masked):
        labels[position] = input_ids[position]
        draw = rng.random()
        if draw < 0.8:
            ids[position] = mask_token_id
        elif draw < 0.9:
            ids[position] = rng.randrange(vocab_size)
    return ids, labels


def pooled_visibility(word_ids, length, probability, rng: random.Random, pool_size=256):
    """The published shortcut for `decoder_visibility`: draw up to `pool_size` whole-word masks, let each row pick one.

    Of the row's own word only the token itself is hidden besides the mask that was picked.
    """
    count = len(word_ids)
    pool = [whole_word_mask(word_ids, probability, rng) for _ in range(min(count, pool_size))]
    matrix = []
    for row in range(count):
        hidden = pool[rng.randrange(len(pool))]
        line = [0 if column in hidden or column == row else 1 for column in range(count)]
        matrix.append(line + [0] * (length - count))
    matrix.extend([0] * length for _ in range(length - count))
    return matrix


def bag_of_words(input_ids, word_ids, vocab_size):
    """DupMAE's target, a list of `vocab_size`: 1/n for each distinct id among the n tokens that are not special.

    A repeated token counts once, so that the sum is below 1 where a text repeats itself.
    """
    content = [token for token, word in zip(input_ids, word_ids, strict=True) if word != SPECIAL]
    bag = [0.0] * vocab_size
    for token in content:
        bag[token] = 1 / len(content)
    return bag


def collate_like_published(
    features,
    *,
    mask_token_id,
    pad_token_id,
    vocab_size,
    rng: random.Random,
    encoder_mlm_probability=0.3,
    decoder_mlm_probability=0.5,
    pool_size=256,
    with_bag_of_words=False,
):
    """A batch built text by text and row by row from Python lists, as the published collators do.

    Args:
        features: dicts with `input_ids` and `word_ids`, special tokens included, already cut to the maximum length.
        pool_size: how many whole-word masks are drawn for the rows of one text at most.
        with_bag_of_words: add `bag_of_words`, float32 [B, V].

    Returns:
        dict of int64 tensors, padded to the longest text: `input_ids`, `attention_mask`, `labels`,
        `decoder_input_ids`, `decoder_labels` [B, L] and `decoder_attention_mask` [B, L, L].
    """
    length = max(len(feature["input_ids"]) for feature in features)
    batch = {
        name: []
        for name in (
            "input_ids",
            "attention_mask",
            "labels",
            "decoder_input_ids",
            "decoder_attention_mask",
            "decoder_labels",
        )
    }
    bags = []
    for feature in features:
        original, word_ids = list(feature["input_ids"]), list(feature["word_ids"])
        padding = length - len(original)
        masked = whole_word_mask(word_ids, encoder_mlm_probability, rng)
        ids, labels = replace_masked(original, masked, mask_token_id=mask_token_id, vocab_size=vocab_size, rng=rng)
        decoder_labels = [
            IGNORED if word == SPECIAL else token for token, word in zip(original, word_ids, strict=True)
        ]
        batch["input_ids"].append(ids + [pad_token_id] * padding)
        batch["attention_mask"].append([1] * len(original) + [0] * padding)
        batch["labels"].append(labels + [IGNORED] * padding)
        batch["decoder_input_ids"].append(original + [pad_token_id] * padding)
        batch["decoder_attention_mask"].append(
            pooled_visibility(word_ids, length, decoder_mlm_probability, rng, pool_size)
        )
        batch["decoder_labels"].append(decoder_labels + [IGNORED] * padding)
        bags.append(bag_of_words(original, word_ids, vocab_size) if with_bag_of_words else None)

    tensors = {name: torch.tensor(rows, dtype=torch.int64) for name, rows in batch.items()}
    if with_bag_of_words:
        tensors["bag_of_words"] = torch.tensor(bags, dtype=torch.float32)
    return tensors
