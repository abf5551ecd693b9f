"""Negatives for each training pair: those that came with it, then hard ones that a search finds, then random ones.

    examples, counts = add_negatives(pairs, count=2, corpus=documents, rank=bm25_ranker(documents), ranks=(10, 100))

A hard negative is a document that a search ranks high for the query and that does not answer it. The very first ranks
hold answers that nobody has marked, so negatives are drawn from a window further down, as FlagEmbedding does. With
`margin` a document must also score clearly below the positive, at most positive - margin * |positive| (Moreira et al.
2024, "NV-Retriever", arXiv 2407.15831: TopK-PercPos). Never among them, wherever they rank: the query itself, all its
positives in whichever pair they stand, and texts that equal one of these but for white space. What is drawn depends on
the seed and the row alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from retrieval_pretraining.bm25 import BM25Index
from retrieval_pretraining.corpus_cache import cache_key
from retrieval_pretraining.encoding import progress_bar
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.relevance import NEGATIVE, Relevance, text_key
from retrieval_pretraining.search import search
from retrieval_pretraining.text_encoder import TextEncoder

if TYPE_CHECKING:
    from datasets import Dataset

_QUERIES_AT_ONCE = 1024
_DRAWS = 50  # of a random document, before all documents are gone through
_DEFAULT_MOST = 7  # of the negatives that pairs came with: FlagEmbedding's groups are of eight

# Queries and a number -> for each query the positions of so many documents and their scores, best first.
Rank = Callable[[Sequence[str], int], list[tuple[np.ndarray, np.ndarray]]]


class Corpus:
    """Documents in which negatives are looked for, each text once."""

    def __init__(self, texts: Sequence[str]):
        by_key = {text_key(text): text for text in texts}
        self.texts, self.keys = list(by_key.values()), list(by_key)

    @cached_property
    def position(self) -> dict[int, int]:
        return {key: position for position, key in enumerate(self.keys)}

    def __len__(self) -> int:
        return len(self.texts)


def bm25_ranker(corpus: Corpus, *, progress: bool | None = None) -> Rank:
    """By BM25; a document without a word of the query is not found."""
    index = BM25Index(corpus.texts, progress=progress)
    return lambda queries, count: index.search(queries, top_k=count)


def model_ranker(corpus: Corpus, encoder: TextEncoder, *, progress: bool | None = None) -> Rank:
    """By exact search with the vectors of a model, each side after its prompt."""
    documents_NH = encoder.encode_documents(corpus.texts, progress=progress)
    device = "cuda" if torch.cuda.is_available() else None

    def rank(queries: Sequence[str], count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        found: list[tuple[np.ndarray, np.ndarray]] = []
        vectors_QH = encoder.encode_queries(queries, progress=progress)
        with progress_bar(len(queries), "Searching", "query", progress) as bar:
            for start in range(0, len(queries), _QUERIES_AT_ONCE):
                part = vectors_QH[start : start + _QUERIES_AT_ONCE]
                found += zip(*search(part, documents_NH, count, device=device), strict=True)
                bar.update(len(part))
        return found

    return rank


@dataclass
class Mining:
    """How hard negatives are found. `ranks`: first and last of the window, among the documents that are no answers,
    counted from 1. `scores`: what gives the scores of (query, positive) pairs, which `margin` needs."""

    rank: Rank
    ranks: tuple[int, int] = (10, 100)
    margin: float | None = None
    scores: Callable[[Sequence[str], Sequence[str]], np.ndarray] | None = None


def default_count(pairs: Dataset) -> int:
    """How many negatives a pair gets where nobody says it: what half of the pairs came with, 1 to 7."""
    counts = [len(row) for batch in pairs.select_columns("negatives").iter(1000) for row in batch["negatives"]]
    return int(np.clip(np.median(counts), 1, _DEFAULT_MOST))


def add_negatives(
    pairs: Dataset, *, count: int, corpus: Corpus, mining: Mining | None = None, seed: int = 42
) -> tuple[Dataset, dict[str, int]]:
    """Training examples with the columns query, positive and negative_1 to negative_`count`; and how many of the
    negatives were `given`, `mined` and `random`, and how many given ones were `answers` and left out.

    Of more than `count` negatives some are drawn. Pairs that lack some get mined ones and, where the search finds too
    few, random documents that are no answers, which are what the other pairs of a batch are to it anyway.
    `InputError` if the corpus has no document that could be one.
    """
    relevance = Relevance.of(pairs)
    given = _given(pairs, relevance)
    rows = np.flatnonzero([len(own) < count for own, _ in given])
    candidates = _mine(pairs, rows, corpus, mining, relevance) if mining is not None and len(rows) else {}
    counts = Counter(given=0, mined=0, random=0, answers=sum(answers for _, answers in given))
    chosen: list[list[int]] = []  # positions in the corpus, of what the pair did not come with
    for row, (own, _) in enumerate(given):
        generator = np.random.default_rng([seed, row])
        taken = {key for key, _ in own}
        missing = max(0, count - len(own))
        mined = [position for position in candidates.get(row, ()) if corpus.keys[position] not in taken]
        drawn = generator.permutation(len(mined))[:missing]
        positions = [mined[i] for i in drawn]
        counts["given"] += min(count, len(own))
        counts["mined"] += len(positions)
        query = None
        while len(positions) < missing:
            query = text_key(pairs[row]["query"]) if query is None else query
            taken |= {corpus.keys[position] for position in positions}
            positions.append(_random_document(corpus, relevance.answers[query] | taken, generator, pairs, row))
            counts["random"] += 1
        chosen.append(positions)
    return _examples(pairs, given, chosen, corpus, count, seed), dict(counts)


def describe(counts: dict[str, int], *, pairs: int, how: str) -> str:
    """One line; `how` they were mined."""
    count = sum(counts[name] for name in ("given", "mined", "random")) // pairs
    parts = [f"{counts['given']:,} given"] * bool(counts["given"]) + [f"{counts['mined']:,} {how}"] * bool(how)
    if counts["random"]:
        parts.append(f"{counts['random']:,} random, where there were too few")
    line = f"negatives: {count} a pair: {', '.join(parts)}"
    if counts["answers"]:
        line += f"; {counts['answers']:,} given ones left out, which answer the same query in another pair"
    return line


def _given(pairs: Dataset, relevance: Relevance) -> list[tuple[list[tuple[int, int]], int]]:
    """Of each pair (key, place) of the negatives that it came with and that are no answers; and how many were."""
    found = []
    for batch in pairs.iter(1000):
        for query, negatives in zip(batch["query"], batch["negatives"], strict=True):
            answers = relevance.answers[text_key(query)]
            own = {text_key(text): place for place, text in reversed(list(enumerate(negatives)))}
            kept = sorted((place, key) for key, place in own.items() if key not in answers)
            found.append(([(key, place) for place, key in kept], len(own) - len(kept)))
    return found


def _mine(
    pairs: Dataset, rows: np.ndarray, corpus: Corpus, mining: Mining, relevance: Relevance
) -> dict[int, list[int]]:
    """Row -> positions in the window, best first."""
    wanted = pairs.select(rows)
    first, last = mining.ranks
    queries = {text_key(text): text for batch in wanted.iter(1000) for text in batch["query"]}
    # So deep that the window is whole when all answers stand before it: one query with thousands of them must not make
    # all others as deep. Few searches all the same: of queries with about as many answers.
    by_depth: dict[int, list[int]] = {}
    for query in queries:
        by_depth.setdefault(last + (1 << len(relevance.answers[query]).bit_length()), []).append(query)
    windows = {}
    for depth, own in by_depth.items():
        found = mining.rank([queries[query] for query in own], min(depth, len(corpus)))
        for query, (positions, scores) in zip(own, found, strict=True):
            answers = {corpus.position[key] for key in relevance.answers[query] if key in corpus.position}
            others = [
                (int(at), float(score)) for at, score in zip(positions, scores, strict=True) if at not in answers
            ]
            windows[query] = others[first - 1 : last]
    of_row = [text_key(text) for batch in wanted.iter(1000) for text in batch["query"]]
    if mining.margin is None:
        return {int(row): [at for at, _ in windows[query]] for row, query in zip(rows, of_row, strict=True)}
    scores = mining.scores(wanted["query"][:], wanted["positive"][:])
    highest = scores - mining.margin * np.abs(scores)
    return {
        int(row): [at for at, score in windows[query] if score <= limit]
        for row, query, limit in zip(rows, of_row, highest.tolist(), strict=True)
    }


def pair_scores(encoder: TextEncoder, *, progress: bool | None = None):
    """What gives the scores of (query, positive) pairs by a model, for `Mining.scores`."""

    def scores(queries: Sequence[str], positives: Sequence[str]) -> np.ndarray:
        vectors = []
        for texts, encode in ((queries, encoder.encode_queries), (positives, encoder.encode_documents)):
            place = {text: number for number, text in enumerate(dict.fromkeys(texts))}
            vectors.append(encode(list(place), progress=progress)[[place[text] for text in texts]])
        return np.einsum("nh,nh->n", *vectors)

    return scores


def _random_document(corpus: Corpus, excluded: set[int], generator, pairs: Dataset, row: int) -> int:
    for position in generator.integers(len(corpus), size=_DRAWS).tolist():
        if corpus.keys[position] not in excluded:
            return position
    left = [position for position, key in enumerate(corpus.keys) if key not in excluded]
    if not left:
        raise InputError(
            f"The query {pairs[row]['query'][:80]!r} has no further document that does not answer it, among "
            f"{len(corpus):,}: lower --num_hard_negatives, or give more documents with --corpus_file."
        )
    return left[int(generator.integers(len(left)))]


def _examples(pairs: Dataset, given, chosen: list[list[int]], corpus: Corpus, count: int, seed: int) -> Dataset:
    import datasets

    names = [f"{NEGATIVE}{number}" for number in range(1, count + 1)]

    def with_negatives(batch: dict[str, list[Any]], rows: list[int]) -> dict[str, list[str]]:
        texts = []
        for row, own in zip(rows, batch["negatives"], strict=True):
            kept = [place for _, place in given[row][0]]
            if len(kept) > count:
                kept = sorted(np.random.default_rng([seed, row]).permutation(kept)[:count].tolist())
            texts.append([own[place] for place in kept] + [corpus.texts[position] for position in chosen[row]])
        columns = {"query": batch["query"], "positive": batch["positive"]}
        return columns | {name: list(column) for name, column in zip(names, zip(*texts, strict=True), strict=True)}

    # The key of what is drawn: that of `datasets` would hash the whole corpus.
    drawn = cache_key([pairs._fingerprint, json.dumps(chosen)], {"count": count, "seed": seed})
    text = datasets.Value("string")
    return pairs.map(
        with_negatives,
        batched=True,
        with_indices=True,
        remove_columns=pairs.column_names,
        features=datasets.Features({name: text for name in ("query", "positive", *names)}),
        load_from_cache_file=False,
        new_fingerprint=drawn,
        desc="negatives",
    )
