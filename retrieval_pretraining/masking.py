"""Masks of a batch of texts: pure functions of numpy arrays, an explicit generator, no loop over tokens or rows.

A text's masks are a function of (seed, epoch, the text) and of nothing else: not of the batch it is in, of its
padding, of the number of workers or processes, or of what was drawn before. So a resumed run, two processes, or twice
as many accumulation steps see the same masks, and an evaluation sees the same ones each time.

Shapes: B texts, L positions, W words of the longest text, V vocabulary. `word_ids_BL` says which word a token belongs
to, -1 for special tokens and padding, which are never masked and never predicted.
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORDS_IN_CACHE = 2**15  # 256 KB of uint64: the passes of `_mix` over it stay in a core's cache


def _mix(state: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014), in place: uint64 counters become uniform bits."""
    scratch = np.empty_like(state)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None)):
        np.right_shift(state, np.uint64(shift), out=scratch)
        state ^= scratch
        if factor is not None:
            state *= np.uint64(factor)
    return state


def _text_sums(input_ids_BL: np.ndarray, real_BL: np.ndarray) -> np.ndarray:
    """A hash of each text that does not see the padding at its end, uint64 `[B]`."""
    position = np.arange(input_ids_BL.shape[1], dtype=np.uint64)
    factors = _mix(position * _GOLDEN + np.uint64(1)) | np.uint64(1)
    return ((input_ids_BL.astype(np.uint64) + np.uint64(1)) * factors * real_BL).sum(axis=1, dtype=np.uint64)


def text_keys(input_ids_BL: np.ndarray, real_BL: np.ndarray) -> np.ndarray:
    """A number of 63 bits for each text, int64 `[B]`: equal for equal texts, whatever the padding after them."""
    return (_mix(_text_sums(input_ids_BL, real_BL)) >> np.uint64(1)).astype(np.int64)


class TextGenerator:
    """Random numbers for a batch of texts: a counter-based generator with a stream for each text.

    Each call opens a new set of streams, so draws are independent of each other; the number at an index does not
    depend on the shape that is asked for, so padding changes nothing.

    Args:
        input_ids_BL, real_BL: the texts, and which positions are not padding.
        seed, epoch: the same text gets other masks at another epoch or seed.
        copy_B: a number for each text; equal texts with another number get other masks. Without it all have 0.
    """

    def __init__(
        self,
        input_ids_BL: np.ndarray,
        real_BL: np.ndarray,
        *,
        seed: int = 0,
        epoch: int = 0,
        copy_B: np.ndarray | None = None,
    ):
        text = _text_sums(input_ids_BL, real_BL)
        if copy_B is not None:
            text ^= _mix(copy_B.astype(np.uint64) * _GOLDEN)
        origin = _mix(np.array([seed % 2**64, epoch + 1], dtype=np.uint64)) * np.array([1, _GOLDEN], dtype=np.uint64)
        self._keys = _mix(text ^ origin[0] ^ origin[1])
        self._draws = 0

    def _streams(self) -> np.ndarray:
        self._draws += 1
        return _mix(self._keys + np.uint64(self._draws * int(_GOLDEN) % 2**64))

    def integers(self, length: int) -> np.ndarray:
        """Uniform uint64, `[B, length]`."""
        return _mix(self._streams()[:, None] + _GOLDEN * np.arange(1, length + 1, dtype=np.uint64))

    def uniform(self, length: int) -> np.ndarray:
        """Uniform in [0, 1), float64, `[B, length]`."""
        return (self.integers(length) >> np.uint64(11)) * 2.0**-53

    def bernoulli(self, probability: float, rows: int, columns: int) -> np.ndarray:
        """True with the given probability, bool `[B, rows, columns]`, eight decisions from each 64 random bits."""
        if not 0.0 < probability < 1.0:
            return np.full((len(self._keys), rows, columns), probability >= 1.0)
        # A byte below 256 p. Where that is no whole number, each row rounds it up or down at random, so that the rate
        # is p and not its nearest multiple of 1/256.
        threshold = np.minimum(np.floor(256.0 * probability + self.uniform(rows)), 255.0).astype(np.uint8)
        keys = _mix(self._streams()[:, None] + _GOLDEN * np.arange(1, rows + 1, dtype=np.uint64)).reshape(-1)
        counters = _GOLDEN * np.arange(1, -(-columns // 8) + 1, dtype=np.uint64)
        bits = np.empty((len(keys), len(counters)), dtype=np.uint64)
        block = max(1, _WORDS_IN_CACHE // len(counters))
        for start in range(0, len(keys), block):
            part = bits[start : start + block]
            np.add(keys[start : start + block, None], counters, out=part)
            _mix(part)
        decisions = bits.view(np.uint8)[:, :columns] < threshold.reshape(-1, 1)
        return decisions.reshape(len(self._keys), rows, columns)


def word_numbers(word_ids_BL: np.ndarray) -> np.ndarray:
    """Numbers each text's words from 0 in the order of their tokens, int64 `[B, L]`; a special token or padding is a
    word of its own."""
    begins = np.ones(word_ids_BL.shape, dtype=bool)
    begins[:, 1:] = (word_ids_BL[:, 1:] != word_ids_BL[:, :-1]) | (word_ids_BL[:, 1:] < 0)
    return begins.cumsum(axis=1) - 1


def whole_word_mask(word_ids_BL: np.ndarray, probability: float, generator: TextGenerator) -> np.ndarray:
    """Which tokens are masked, bool `[B, L]`: whole words in random order until the share `probability` of the tokens
    is reached.

    The word that would cross the budget is taken with the probability that makes the expected number of masked tokens
    n p. At least one word of each text is masked, so that no text is without a prediction: where a word is more than
    n p tokens, the rate is above p. Source: BERT's whole-word masking, as used by RetroMAE (arXiv 2205.12035, section
    4.1); there the crossing word is skipped.
    """
    content_BL = word_ids_BL >= 0
    numbers_BL = word_numbers(word_ids_BL)
    batch_size = len(word_ids_BL)
    row = np.arange(batch_size)[:, None]
    words = int(numbers_BL.max(initial=0)) + 1
    tokens_BW = np.bincount((row * words + numbers_BL)[content_BL], minlength=batch_size * words)
    tokens_BW = tokens_BW.reshape(batch_size, words)

    # Words without content (special tokens, padding) are sorted to the end.
    order_BW = np.argsort(generator.uniform(words) + 2.0 * (tokens_BW == 0), axis=1)
    ordered_BW = np.take_along_axis(tokens_BW, order_BW, axis=1)
    before_BW = ordered_BW.cumsum(axis=1) - ordered_BW
    budget_B1 = probability * content_BL.sum(axis=1, keepdims=True)
    share_BW = (budget_B1 - before_BW) / np.maximum(ordered_BW, 1)
    taken_BW = (generator.uniform(1) < share_BW) & (ordered_BW > 0)
    if probability > 0.0:
        taken_BW[:, 0] = ordered_BW[:, 0] > 0

    masked_BW = np.zeros((batch_size, words), dtype=bool)
    np.put_along_axis(masked_BW, order_BW, taken_BW, axis=1)
    return np.take_along_axis(masked_BW, numbers_BL, axis=1) & content_BL


def replace_masked(
    input_ids_BL: np.ndarray,
    masked_BL: np.ndarray,
    generator: TextGenerator,
    *,
    mask_token_id: int,
    ordinary_ids: np.ndarray,
) -> np.ndarray:
    """The model's input: of the masked tokens 80 % become the mask token, 10 % a random ordinary one, 10 % stay (BERT,
    arXiv 1810.04805, section 3.1), `[B, L]`. `ordinary_ids` is the vocabulary without special tokens."""
    length = input_ids_BL.shape[1]
    fate_BL = generator.uniform(length)
    random_BL = ordinary_ids[generator.integers(length) % np.uint64(len(ordinary_ids))]
    replaced_BL = np.where(fate_BL < 0.8, mask_token_id, np.where(fate_BL < 0.9, random_BL, input_ids_BL))
    return np.where(masked_BL, replaced_BL, input_ids_BL)


def sample_positions(content_BL: np.ndarray, rate: float, generator: TextGenerator) -> np.ndarray:
    """A random share of each text's content positions, ceil(rate n) of n, bool `[B, L]`."""
    if rate >= 1.0:
        return content_BL
    keys_BL = np.where(content_BL, generator.uniform(content_BL.shape[1]), 2.0)
    rank_BL = keys_BL.argsort(axis=1).argsort(axis=1)
    return (rank_BL < np.ceil(rate * content_BL.sum(axis=1, keepdims=True))) & content_BL


def decoder_visibility(
    word_ids_BL: np.ndarray, real_BL: np.ndarray, probability: float, generator: TextGenerator
) -> np.ndarray:
    """Which positions each decoder row may see (RetroMAE, arXiv 2205.12035, section 3.3), bool `[B, L, L]`.

    Each row hides its own sample of the words, each word with `probability`, and always its own word with all its
    pieces, itself included. Position 0 (the sentence vector) and other special tokens are visible to every other row;
    padding to none. Rows of special tokens and padding predict nothing; what they see has no meaning.

    The result is a transposed view: what is drawn is a row of memory for each word, which all its pieces share.
    """
    numbers_BL = word_numbers(word_ids_BL)
    batch_size, length = word_ids_BL.shape
    row, position = np.arange(batch_size)[:, None], np.arange(length)
    words = int(numbers_BL.max(initial=0)) + 1
    # [b, w, i]: word w of text b is hidden from position i.
    hidden_BWL = generator.bernoulli(probability, words, length)
    special_BL = (word_ids_BL < 0) & real_BL
    for positions_BL, value in ((special_BL, False), (~real_BL, True)):
        text, where = positions_BL.nonzero()
        hidden_BWL[text, numbers_BL[text, where]] = value
    hidden_BWL[row, numbers_BL, position] = True
    visible = np.logical_not(hidden_BWL, out=hidden_BWL).reshape(batch_size * words, length)
    return visible.take((row * words + numbers_BL).reshape(-1), axis=0).reshape(-1, length, length).transpose(0, 2, 1)


def bag_of_words(input_ids_BL: np.ndarray, content_BL: np.ndarray, vocab_size: int) -> np.ndarray:
    """DupMAE's target (arXiv 2211.08769, section 3.2): 1/n at each distinct token of a text of n tokens, float32
    `[B, V]`. Repeats count once in the target and every time in n."""
    bag_BV = np.zeros((len(input_ids_BL), vocab_size), dtype=np.float32)
    text, position = content_BL.nonzero()
    bag_BV[text, input_ids_BL[text, position]] = (1.0 / np.maximum(content_BL.sum(axis=1), 1))[text]
    return bag_BV
