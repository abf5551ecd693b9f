"""Raw documents -> pairs of texts that belong together, with no label (GUR, arXiv 2306.10056, section 3.1).

    pairs, counts = mine_documents([Document(text, title, "d1"), ...], MiningSettings(strategy="lcs"))

A document becomes sentences (`sentences.py`); two that share a heavy span of text are a pair (`span_join.py`), as far
as each may be used (`pair_selection.py`). The other strategies make pairs to compare with. What a document gives
depends on its text, the settings and the seed alone, not on the documents around it: any cutting of a corpus into
chunks, on any number of processes, gives the same pairs. `mined_pairs.py` writes them to files.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from retrieval_pretraining.documents import Document
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.pair_selection import UNLIMITED, PairLists, Selection, select_pairs
from retrieval_pretraining.pair_texts import join_neighbours, random_crop, surroundings
from retrieval_pretraining.sentences import locate_sentences
from retrieval_pretraining.span_join import (
    SentenceBlock,
    SharedGrams,
    SpanRule,
    frequency_slot,
    heaviest_spans,
    shared_grams,
)

# Arrays of about this many characters stay in a core's cache, which is worth a factor of two.
BLOCK_CHARACTERS = 128_000
FREQUENCY_SLOTS = 2**24


class Pair(NamedTuple):
    """Two texts of a document. `shared_span` stands in `text` as it is, and in `text_pair` but for upper case."""

    text: str
    text_pair: str
    shared_span: str
    document_id: str
    strategy: str


class Pairs:
    """Many pairs as columns (lists of strings): a tuple for each would keep the garbage collector busy."""

    def __init__(self):
        self.columns: dict[str, list[str]] = {name: [] for name in Pair._fields}
        self._append = [column.append for column in self.columns.values()]

    def append(self, *values: str):
        for append, value in zip(self._append, values, strict=True):
            append(value)

    def __len__(self) -> int:
        return len(self.columns["text"])

    def __iter__(self) -> Iterator[Pair]:
        return map(Pair, *self.columns.values())


class SplitDocument(NamedTuple):
    """A document as sentences, no two of which are the same but for upper case.

    `places` are those of the sentences of the body in its text, `repeats` those where one of them, or the title,
    stands once more; `seed` is 64 bits made of the content.
    """

    document: Document
    title: str | None
    sentences: list[str]  # the title first, if there is one
    places: list[tuple[int, int]]
    repeats: list[tuple[int, int]]
    seed: int


def mine_documents(
    documents: Iterable[Document], settings: MiningSettings, *, seed: int = 42, frequent: np.ndarray | None = None
) -> tuple[Pairs, Counter]:
    """The pairs of some documents, and counts of all that was kept and dropped.

    The pairs of a document stand together, in the order of the text. `frequent`: a table of `FREQUENCY_SLOTS`
    booleans, True for grams that make no pair (`add_frequencies`).
    """
    settings.check()
    miner = _Miner(settings, frequent)
    mine_block = {
        "lcs": miner.mine_spans,
        "title": miner.mine_spans if settings.title_needs_span else miner.mine_any,
        "random": miner.mine_any,
        "inverse_cloze": miner.mine_inverse_cloze,
        "crop": miner.mine_crops,
    }[settings.strategy]
    for block in split_blocks(documents, settings, miner.counts, seed=seed):
        mine_block(block)
    miner.counts["pairs"] = len(miner.pairs)
    return miner.pairs, miner.counts


# --- Documents -> sentences ---------------------------------------------------------------------------------------


def split_blocks(
    documents: Iterable[Document], settings: MiningSettings, counts: Counter, *, seed: int
) -> Iterator[list[SplitDocument]]:
    """Documents with their sentences, in blocks of about `BLOCK_CHARACTERS`; without those that have none."""
    block, size = [], 0
    for document in documents:
        split = _split_document(document, settings, counts, seed)
        if split.sentences:
            block.append(split)
            size += len(document.text)
        if size >= BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


def _split_document(document: Document, settings: MiningSettings, counts: Counter, seed: int) -> SplitDocument:
    title = (document.title or "").strip()[: settings.max_sentence_length] or None
    places = locate_sentences(
        document.text,
        language=settings.sentence_language,
        min_length=settings.min_sentence_length,
        max_length=settings.max_sentence_length,
        counts=counts,
    )
    # Equal texts teach nothing as a pair, and as negatives of each other they teach what is wrong.
    first_places = {}
    for place in places:
        first_places.setdefault(document.text[place[0] : place[1]].lower(), place)
    if title is not None:
        first_places.pop(title.lower(), None)
    kept = list(first_places.values())
    repeats = [] if len(kept) == len(places) else sorted(set(places) - set(kept))
    counts["documents"] += 1
    counts["titles"] += title is not None
    counts["sentences"] += len(kept)
    counts["sentences repeated"] += len(places) - len(kept)
    sentences = [document.text[begin:end] for begin, end in kept]
    if title is not None:
        sentences.insert(0, title)
    content = f"{title or ''}\n{document.text}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(content, digest_size=8, key=str(seed).encode()).digest()
    return SplitDocument(document, title, sentences, kept, repeats, int.from_bytes(digest, "little"))


class _Sentences:
    """The sentences of a block, and how often each may be used."""

    def __init__(self, block: list[SplitDocument], settings: MiningSettings):
        self.texts = [sentence for split in block for sentence in split.sentences]
        size_D = np.array([len(split.sentences) for split in block])
        self.first_D = np.cumsum(size_D) - size_D
        self.document_S = np.repeat(np.arange(len(block)), size_D)
        self.seed_D = np.array([split.seed for split in block], dtype=np.uint64)
        is_title_S = np.zeros(len(self.texts), dtype=bool)
        is_title_S[self.first_D[[split.title is not None for split in block]]] = True
        uses = settings.max_pairs_per_sentence or UNLIMITED
        if settings.strategy == "title":
            self.leader_S = is_title_S
            self.uses_S = np.where(is_title_S, UNLIMITED, 1)
        else:
            self.leader_S = None
            self.uses_S = np.minimum(uses + is_title_S, UNLIMITED)
        self.uses_D = np.full(len(block), settings.max_pairs_per_document or UNLIMITED)

    def select(self, lists: PairLists) -> Selection:
        return select_pairs(
            lists, document_S=self.document_S, seed_D=self.seed_D, uses_S=self.uses_S, uses_D=self.uses_D
        )


# --- Sentences -> pairs -------------------------------------------------------------------------------------------


class _Miner:
    """The strategies. Each takes a block of documents and adds to `pairs` and `counts`."""

    def __init__(self, settings: MiningSettings, frequent: np.ndarray | None):
        self.settings, self.frequent = settings, frequent
        self.pairs, self.counts = Pairs(), Counter()

    def mine_spans(self, block: list[SplitDocument]):
        """Sentences that share a heavy span: any two, or the title and another."""
        sentences = _Sentences(block, self.settings)
        text = SentenceBlock(sentences.texts, sentences.document_S)
        heavy, light, lists = _join_spans(text, self.settings.span_rule, sentences.leader_S, self.frequent)
        selection = sentences.select(lists)
        start_P, length_P, weight_P = heaviest_spans(text, heavy, selection.one_P, selection.other_P)
        rest = np.flatnonzero(weight_P == 0)
        start_P[rest], length_P[rest], _ = heaviest_spans(text, light, selection.one_P[rest], selection.other_P[rest])
        begin_P = start_P - text.start_S[selection.one_P]
        places = zip(selection.one_P.tolist(), begin_P.tolist(), (begin_P + length_P).tolist(), strict=True)
        self._add(block, sentences, selection, [sentences.texts[one][begin:end] for one, begin, end in places])

    def mine_any(self, block: list[SplitDocument]):
        """Any two sentences of a document, or the title and any other."""
        sentences = _Sentences(block, self.settings)
        members = np.arange(len(sentences.texts))
        selection = sentences.select(PairLists.from_members(members, sentences.document_S, sentences.leader_S))
        self._add(block, sentences, selection, [""] * len(selection.one_P))

    def mine_inverse_cloze(self, block: list[SplitDocument]):
        """A sentence as the query and what stands around it as the document (Lee et al., 2019, arXiv 1906.00300)."""
        for split in block:
            chosen = range(split.title is not None, len(split.sentences))
            self.counts["candidates"] += len(chosen)
            limit = self.settings.max_pairs_per_document
            if limit and limit < len(chosen):
                self.counts["candidates over the document limit"] += len(chosen) - limit
                chosen = sorted(random.Random(split.seed).sample(chosen, limit))
            for sentence in chosen:
                if not self._add_surroundings(split, sentence):
                    self.counts["sentences left over"] += 1

    def mine_crops(self, block: list[SplitDocument]):
        """Two random pieces of a document, drawn apart from each other; as many pairs as its sentences might make."""
        lengths = {"min_length": self.settings.min_sentence_length, "max_length": self.settings.max_context_length}
        for split in block:
            generator = random.Random(split.seed)
            wanted = max(1, len(split.sentences) * (self.settings.max_pairs_per_sentence or 2) // 2)
            for _ in range(min(wanted, self.settings.max_pairs_per_document or wanted)):
                self.counts["candidates"] += 1
                one, other = (random_crop(split.document.text, generator, **lengths) for _ in range(2))
                if min(len(one), len(other)) >= lengths["min_length"] and one != other:
                    self.pairs.append(one, other, "", split.document.document_id, "crop")
                else:
                    self.counts["candidates too short"] += 1

    def _add(self, block, sentences: _Sentences, selection: Selection, spans: list[str]):
        """The texts of the selected pairs, document by document, and what is made of the sentences that are left."""
        self.counts["candidates"] += selection.candidates
        self.counts["candidates over the sentence limit"] += selection.over_sentence_cap
        self.counts["candidates over the document limit"] += selection.over_document_cap
        first_D = sentences.first_D.tolist()
        border_D = np.searchsorted(selection.one_P, [*first_D, len(sentences.texts)]).tolist()
        one_P, other_P = selection.one_P.tolist(), selection.other_P.tolist()
        append, strategy = self.pairs.append, self.settings.strategy
        for split, first, begin, end in zip(block, first_D, border_D[:-1], border_D[1:], strict=True):
            name, texts = split.document.document_id, split.sentences
            used = {sentence - first for side in (one_P, other_P) for sentence in side[begin:end]}
            left = len(texts) - len(used)
            self.counts["sentences left over"] += left
            if left and self.settings.leftover_strategy == "join":
                texts = self._joined_texts(split, used)
            for place in range(begin, end):
                append(texts[one_P[place] - first], texts[other_P[place] - first], spans[place], name, strategy)
            if left and self.settings.leftover_strategy in ("self", "inverse_cloze"):
                self._add_leftovers(split, used, end - begin)

    def _add_leftovers(self, split: SplitDocument, used: set[int], pairs: int):
        limit = self.settings.max_pairs_per_document
        left = [sentence for sentence in range(len(split.sentences)) if sentence not in used]
        for sentence in left[: max(limit - pairs, 0)] if limit else left:
            if self.settings.leftover_strategy == "self":
                text = split.sentences[sentence]
                self.pairs.append(text, text, text, split.document.document_id, "self")
                self.counts["pairs from left-over sentences"] += 1
            else:
                self.counts["pairs from left-over sentences"] += self._add_surroundings(split, sentence)

    def _add_surroundings(self, split: SplitDocument, sentence: int) -> bool:
        document, number = split.document, sentence - (split.title is not None)
        query, text = split.sentences[sentence], document.text
        around = surroundings(
            text,
            split.places,
            number,
            max_length=self.settings.max_context_length,
            without=[place for place in split.repeats if text[place[0] : place[1]].lower() == query.lower()],
        )
        if around:
            self.pairs.append(query, around, "", document.document_id, "inverse_cloze")
        return bool(around)

    def _joined_texts(self, split: SplitDocument, used: set[int]) -> list[str]:
        titles = int(split.title is not None)
        used = {sentence - titles for sentence in used if sentence >= titles}
        places, joined = join_neighbours(split.places, used, max_length=self.settings.max_context_length)
        self.counts["left-over sentences joined"] += len(joined)
        return split.sentences[:titles] + [split.document.text[begin:end] for begin, end in places]


def _join_spans(
    text: SentenceBlock, rule: SpanRule, leader_S: np.ndarray | None, frequent: np.ndarray | None
) -> tuple[SharedGrams, SharedGrams, PairLists]:
    """The grams of the full threshold, those that are enough beside a short sentence, and the lists of both."""
    short_S = text.weight_S <= rule.max_short_sentence_weight
    light_leader_S = short_S if leader_S is None else leader_S
    eligible_S = _in_document_with(text, short_S & light_leader_S)
    if leader_S is not None:
        # A long title goes with the short sentences of its document only.
        eligible_S |= _in_document_with(text, short_S) & (short_S | leader_S)
    heavy = shared_grams(text, rule.min_span_weight, leader_S=leader_S, frequent=frequent)
    light = shared_grams(
        text, rule.min_span_weight_short, eligible_S=eligible_S, leader_S=light_leader_S, frequent=frequent
    )
    lists = PairLists.joined(
        PairLists.from_grams(text, heavy, leader_S), PairLists.from_grams(text, light, light_leader_S)
    )
    return heavy, light, lists


def _in_document_with(text: SentenceBlock, some_S: np.ndarray) -> np.ndarray:
    """The sentences of the documents that have one of `some_S`."""
    has_D = np.zeros(int(text.document_S[-1]) + 1, dtype=bool)
    has_D[text.document_S[some_S]] = True
    return has_D[text.document_S]


# --- Boilerplate --------------------------------------------------------------------------------------------------


def gram_document_frequencies(
    documents: Iterable[Document], settings: MiningSettings
) -> tuple[np.ndarray, np.ndarray]:
    """(slots, counts): in how many of the documents each minimal gram is, by its place in a table.

    Counts of several parts of a corpus add up. Two grams share a place once in `FREQUENCY_SLOTS` times, so a gram is
    never counted too low, and too high only by what such a neighbour has.
    """
    seen = [np.zeros(0, dtype=np.int64)]
    for block in split_blocks(documents, settings, Counter(), seed=0):
        sentences = _Sentences(block, settings)
        text = SentenceBlock(sentences.texts, sentences.document_S)
        for threshold in {settings.min_span_weight, settings.min_span_weight_short}:
            fits_C, end_C = text.minimal_grams(threshold)
            slot = frequency_slot(text.gram_hashes(end_C), threshold, FREQUENCY_SLOTS)[fits_C]
            document = text.document_S[text.sentence_C[fits_C]]
            seen.append(np.unique(document * FREQUENCY_SLOTS + slot) % FREQUENCY_SLOTS)
    return np.unique(np.concatenate(seen), return_counts=True)


def add_frequencies(parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The table of document frequencies of a corpus, from the `gram_document_frequencies` of its parts."""
    table = np.zeros(FREQUENCY_SLOTS, dtype=np.uint32)
    for slots, counts in parts:
        table[slots] += counts.astype(np.uint32)
    return table
