"""What a GUR checkpoint writes with no fine-tuning: filled-in masks, titles, expanded queries (arXiv 2306.10056).

    model = GURForConditionalGeneration.from_pretrained("outputs/gur")
    fill_in(model, tokenizer, ["The [MASK] sat on the mat."])  # masks in a text
    fill_in(model, tokenizer, [["motor", "sensor"]])  # keywords that are kept, with masks around and between them
    generate_titles(model, tokenizer, documents)
    expand_query(model, tokenizer, queries)

Pre-training taught the decoder to write what masked spans held, so all of it is one thing: a prompt with a sentinel
for each mask goes in, the output is cut at its sentinels, and the spans go where the masks were. The search is the
paper's: 4 beams and length penalty 0.6. What else guides it, such as `no_repeat_ngram_size`, is read from
`model.generation_config`, as always.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from retrieval_pretraining.encoding import check_texts, evaluation_mode, pad_right, progress_bar
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.mask_prompts import Prompt, keyword_prompts, prompt_ids, put_back, read_spans
from retrieval_pretraining.passages import check_pair_tokenizer, sentinel_ids

__all__ = ["BeamSearch", "Generated", "expand_query", "fill_in", "generate_titles"]

MASK = "[MASK]"


class Generated(NamedTuple):
    """`text`: the whole, with what was given. `score`: the log-probability of what was written over its length in
    tokens to the power of the length penalty; higher is better. `spans`: what stands where each mask was."""

    text: str
    score: float
    spans: tuple[str, ...]


@dataclass(frozen=True)
class BeamSearch:
    """How results are searched for, as in the paper by default.

    Args:
        num_results: at most so many for each text, and fewer where beams end in the same text.
        num_beams: the width of the search; `num_results` if that is more. 1 is greedy.
        length_penalty: above 0 favours long results.
        max_new_tokens: of all spans of a prompt together.
        max_seq_length: tokens of a prompt.
        batch_size: prompts at once; each needs memory for beams x new tokens x vocabulary.
        show_progress: None shows a bar for many prompts only.

    Raises `InputError` for a number below 1.
    """

    num_results: int = 1
    num_beams: int = 4
    length_penalty: float = 0.6
    max_new_tokens: int = 64
    max_seq_length: int = 512
    batch_size: int = 8
    show_progress: bool | None = None

    def __post_init__(self):
        _check_at_least_1(
            num_results=self.num_results,
            num_beams=self.num_beams,
            max_new_tokens=self.max_new_tokens,
            max_seq_length=self.max_seq_length,
            batch_size=self.batch_size,
        )

    @property
    def width(self) -> int:
        return max(self.num_beams, self.num_results)


def fill_in(
    model,
    tokenizer,
    texts: Sequence[str | Sequence[str]],
    *,
    mask: str = MASK,
    num_prompts: int = 1,
    seed: int = 0,
    num_results: int = 1,
    **beams,
) -> list[list[Generated]]:
    """Texts with `mask` where something is missing, or lists of keywords; for each the best completions, best first.

    Keywords stay in their order, with masks before, between and behind them; more than one prompt is made where
    `num_prompts` says so, each with masks at other random places. Text that spells a special token is text.

    Args:
        model, tokenizer: a `GURForConditionalGeneration`, with its tokenizer.
        seed: of the random places.
        num_results, beams: see `BeamSearch`.

    Returns a list for each text, whose texts all differ.

    Raises:
        InputError: a model without a decoder, a tokenizer without sentinels, no texts, a text without a mask, empty
            keywords, more masks than the tokenizer has sentinels, a prompt of more tokens than `max_seq_length`, or a
            number below 1.
    """
    if not mask:
        raise InputError('mask is empty; say what marks a gap, such as "[MASK]".')
    _check_at_least_1(num_prompts=num_prompts)
    if isinstance(texts, str) or not len(texts):
        check_texts(texts)
    prompts = []
    for number, text in enumerate(texts):
        if isinstance(text, str):
            if mask not in text:
                raise InputError(f"texts[{number}] has no {mask}; put it where something is to be filled in.")
            prompts.append([Prompt(tuple(text.split(mask)))])
        elif isinstance(text, list | tuple):
            prompts.append(keyword_prompts(text, num_prompts, seed, f"texts[{number}]"))
        else:
            raise InputError(f"texts[{number}] is of type {type(text).__name__}; give a text or a list of keywords.")
    written = _generate(model, tokenizer, prompts, BeamSearch(num_results, **beams))
    return [_best(results, num_results) for results in written]


def generate_titles(
    model,
    tokenizer,
    documents: Sequence[str],
    *,
    num_results: int = 3,
    keywords: Sequence[Sequence[str]] | None = None,
    num_prompts: int = 3,
    seed: int = 0,
    **beams,
) -> list[list[Generated]]:
    """Titles of documents, best first: what a mask before the document held.

    Args:
        documents: as much of each is read as `max_seq_length` tokens leave room for.
        keywords: for each document those that its titles keep, with masks around and between them, in `num_prompts`
            ways; without it (or with an empty list for a document) the whole title is written.

    For all else, what is returned and raised, see `fill_in`; empty documents, and lists of keywords that are not one a
    document, are an `InputError` as well. A document may get no title where the model writes nothing.
    """
    check_texts(documents, "documents")
    empty = [number for number, document in enumerate(documents) if not document.strip()]
    if empty:
        raise InputError(f"documents[{empty[0]}] is empty; leave it out, there is nothing to write a title from.")
    if keywords is not None and len(keywords) != len(documents):
        raise InputError(f"There are {len(documents)} documents and {len(keywords)} lists of keywords; give each one.")
    _check_at_least_1(num_prompts=num_prompts)
    prompts = []
    for number, document in enumerate(documents):
        ways = [Prompt(("", ""))]
        if keywords is not None and len(keywords[number]):
            ways = keyword_prompts(keywords[number], num_prompts, seed, f"keywords[{number}]")
        prompts.append([Prompt(way.pieces, document) for way in ways])
    written = _generate(model, tokenizer, prompts, BeamSearch(num_results, **beams))
    return [_best([title for title in titles if title.text], num_results) for titles in written]


def expand_query(model, tokenizer, queries: Sequence[str], *, num_results: int = 3, **beams) -> list[list[Generated]]:
    """Queries with more words than they had, best first: what masks before, behind, and on both sides of them held.

    The query stays as it is. For all else, what is returned and raised, see `fill_in`; empty queries are an
    `InputError` as well. A query may get no result where the model adds nothing.
    """
    check_texts(queries, "queries")
    prompts = [keyword_prompts([query], 3, 0, f"queries[{number}]") for number, query in enumerate(queries)]
    written = _generate(model, tokenizer, prompts, BeamSearch(num_results, **beams))
    return [_best([result for result in results if any(result.spans)], num_results) for results in written]


# --- Beams -----------------------------------------------------------------------------------------------------------


def _generate(model, tokenizer, prompts: list[list[Prompt]], beams: BeamSearch) -> list[list[Generated]]:
    """All that the beams hold for each item's prompts, in no order."""
    _check_generation(model, tokenizer)
    sentinels = sentinel_ids(tokenizer)
    rows = [(item, prompt) for item, own in enumerate(prompts) for prompt in own]
    sequences = [prompt_ids(prompt, tokenizer, sentinels, beams.max_seq_length) for _, prompt in rows]
    order = sorted(range(len(rows)), key=lambda row: len(sequences[row]), reverse=True)
    results: list[list[Generated]] = [[] for _ in prompts]
    bar = progress_bar(len(rows), "Writing", "prompt", beams.show_progress)
    with torch.no_grad(), evaluation_mode(model), bar:
        for start in range(0, len(order), beams.batch_size):
            batch = order[start : start + beams.batch_size]
            ids_BL, mask_BL = pad_right([sequences[row] for row in batch], tokenizer.pad_token_id, model.device)
            written, scores = _beam_search(model, ids_BL, mask_BL, beams)
            for number, (ids, score) in enumerate(zip(written, scores, strict=True)):
                item, prompt = rows[batch[number // beams.width]]
                spans = read_spans(ids, len(prompt.pieces) - 1, tokenizer, sentinels)
                results[item].append(Generated(put_back(prompt.pieces, spans), score, spans))
            bar.update(len(batch))
    return results


def _beam_search(model, ids_BL, mask_BL, beams: BeamSearch) -> tuple[list[list[int]], list[float]]:
    width = beams.width
    options = dict(num_beams=width, num_return_sequences=width, do_sample=False, max_new_tokens=beams.max_new_tokens)
    if width > 1:
        options["length_penalty"] = beams.length_penalty
    output = model.generate(
        input_ids=ids_BL, attention_mask=mask_BL, return_dict_in_generate=True, output_scores=True, **options
    )
    written = output.sequences[:, 1:]  # without the token that starts the decoder
    if width > 1:
        return written.tolist(), output.sequences_scores.tolist()
    steps = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    ends = torch.tensor(np.atleast_1d(model.generation_config.eos_token_id), device=written.device)
    is_end = torch.isin(written, ends)
    real = is_end.cumsum(1) - is_end.int() == 0  # up to the first eos
    scores = steps.masked_fill(~real, 0.0).sum(1) / real.sum(1) ** beams.length_penalty
    return written.tolist(), scores.tolist()


def _best(results: list[Generated], count: int) -> list[Generated]:
    """The best `count` with different texts; equal scores in the order of the texts."""
    best: dict[str, Generated] = {}
    for result in sorted(results, key=lambda result: (-result.score, result.text)):
        best.setdefault(result.text, result)
    return list(best.values())[:count]


def _check_generation(model, tokenizer):
    if not (getattr(model.config, "is_encoder_decoder", False) and model.can_generate()):
        raise InputError(
            f"{type(model).__name__} cannot write; load a checkpoint of GUR with GURForConditionalGeneration."
        )
    check_pair_tokenizer(tokenizer)
    known = model.get_input_embeddings().num_embeddings
    if max(sentinel_ids(tokenizer)) >= known:
        raise InputError(
            f"The tokenizer's sentinels are not among the {known} tokens of the model; load the tokenizer of the same "
            "checkpoint."
        )


def _check_at_least_1(**numbers: int):
    for name, number in numbers.items():
        if number < 1:
            raise InputError(f"{name} is {number}; use 1 or more.")
