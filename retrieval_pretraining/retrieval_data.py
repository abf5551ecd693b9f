"""Retrieval data in BEIR layout: a corpus, queries and relevance grades, read, checked and sampled."""

import gzip
import json
import logging
import lzma
import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from retrieval_pretraining.errors import InputError

logger = logging.getLogger(__name__)

_HALF_OF_A_PAIR = re.compile("[\ud800-\udfff]")

Run = dict[str, dict[str, float]]  # query id -> document id -> score, best first


@dataclass
class RetrievalData:
    """A corpus, queries and `qrels`: query id -> document id -> grade, for the queries of `query_ids`.

    Judged documents that the corpus lacks stay in `qrels`: nobody can find them, so they lower recall, as in every
    other evaluation of the same files. `titles`: document id -> the title that its text begins with, where the corpus
    has one apart from the text. `own`: query id -> the document that is the query itself, same id and same text, where
    there is one (ArguAna, Quora); no search finds it for this query, as in BEIR.
    """

    name: str
    corpus_ids: list[str]
    corpus_texts: list[str]
    query_ids: list[str]
    query_texts: list[str]
    qrels: dict[str, dict[str, int]]
    titles: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)

    def depth(self, top_k: int) -> int:
        """How deep to search, so that `top_k` are left `without_own`."""
        return top_k + bool(self.own)

    def without_own(self, run: Run, top_k: int) -> Run:
        """The best `top_k` of each query, without the query itself."""
        if not self.own:
            return run
        found = {
            query: [pair for pair in scores.items() if pair[0] != self.own.get(query)] for query, scores in run.items()
        }
        return {query: dict(pairs[:top_k]) for query, pairs in found.items()}


def load_retrieval_data(folder: str | Path, *, split: str = "test") -> RetrievalData:
    """Read a folder in BEIR layout; the text of a document is `title + " " + text`.

    `corpus.jsonl` (`_id` or `id`, `title`, `text`) and `queries.jsonl` (`_id` or `id`, `text`), plain, `.gz` or `.xz`;
    `qrels/<split>.tsv` (query id, document id, grade; header line optional). Queries without a relevant document
    (grade above 0) are left out. What does not fit together is counted in one warning. `InputError` if a file is
    missing, a line is broken, an id comes twice, or the grades share no query or no document with the other files.
    """
    folder = Path(folder)
    (corpus, titles), (queries, _) = _read_texts(folder, "corpus"), _read_texts(folder, "queries")
    path = folder / "qrels" / f"{split}.tsv"
    all_qrels = _read_qrels(path)
    answerable = {query for query, grades in all_qrels.items() if max(grades.values()) > 0}
    qrels = {query: all_qrels[query] for query in queries if query in answerable}
    judged = {document for grades in qrels.values() for document in grades}
    missing = len(judged - corpus.keys())
    if not qrels:
        raise InputError(f"{path}: no query with a grade above 0 is in {folder}/queries.jsonl; compare the ids.")
    if missing == len(judged):
        raise InputError(f"{path}: no document with a grade is in {folder}/corpus.jsonl; compare the ids.")
    counts = [
        (len(queries) - len(qrels), f"of {len(queries)} queries have no relevant document and are left out"),
        (len(answerable - queries.keys()), f"of {len(answerable)} judged queries have no text and are left out"),
        (missing, f"of {len(judged)} judged documents are not in the corpus and cannot be found"),
    ]
    if any(count for count, _ in counts):
        logger.warning("%s: %s.", path, "; ".join(f"{count} {what}" for count, what in counts if count))
    own = {query: query for query in qrels if query in corpus and _same(queries[query], query, corpus, titles)}
    if own:
        logger.warning("%s: %d queries are documents themselves, which do not find themselves.", path, len(own))
    query_texts = [queries[query] for query in qrels]
    name = folder.resolve().name
    return RetrievalData(name, list(corpus), list(corpus.values()), list(qrels), query_texts, qrels, titles, own)


def _same(query: str, document: str, corpus: dict[str, str], titles: dict[str, str]) -> bool:
    """Whether the query is the text of the document, its title included or not."""
    text = corpus[document]
    return query.split() in (text.split(), text[len(titles.get(document, "")) :].split())


def sample(
    data: RetrievalData, *, max_queries: int | None = None, max_documents: int | None = None, seed: int = 0
) -> RetrievalData:
    """A cheap subset: random queries, all their judged documents, and random others up to `max_documents`.

    The same seed gives the same subset. Judged documents stay even if they are more than `max_documents`. A smaller
    corpus is easier: compare the numbers only with numbers on the same subset.
    """
    generator = random.Random(seed)
    queries = dict(zip(data.query_ids, data.query_texts, strict=True))
    corpus = dict(zip(data.corpus_ids, data.corpus_texts, strict=True))
    if max_queries is not None and max_queries < len(queries):
        drawn = set(generator.sample(data.query_ids, max_queries))
        queries = {query: text for query, text in queries.items() if query in drawn}
    qrels = {query: data.qrels[query] for query in queries}
    judged = {document for grades in qrels.values() for document in grades}
    if max_documents is not None and max_documents < len(corpus):
        others = [document for document in corpus if document not in judged]
        room = max(0, max_documents - (len(corpus) - len(others)))
        kept = judged.union(generator.sample(others, room))
        corpus = {document: text for document, text in corpus.items() if document in kept}
    titles = {document: title for document, title in data.titles.items() if document in corpus}
    texts = list(corpus), list(corpus.values()), list(queries), list(queries.values())
    own = {query: document for query, document in data.own.items() if query in queries and document in corpus}
    return RetrievalData(data.name, *texts, qrels, titles, own)


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """(place for a message, text) of each line that is not blank."""
    number = 0
    try:
        with {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if text := line.decode("utf-8-sig" if number == 1 else "utf-8").strip():
                    yield f"{path}, line {number}", text
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, line {number}: not UTF-8; convert the file to UTF-8.") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{path}, after line {number}: cannot be read ({error}); get the file again.") from error


def _read_texts(folder: Path, stem: str) -> tuple[dict[str, str], dict[str, str]]:
    """Id -> text, a title before it; and id -> title, of those that have one."""
    paths = [folder / f"{stem}.jsonl{suffix}" for suffix in ("", ".gz", ".xz")]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise InputError(f"{folder}: there is no {stem}.jsonl (nor .gz, .xz); give a folder in BEIR layout.")
    texts: dict[str, str] = {}
    titles: dict[str, str] = {}
    for place, line in read_lines(path):
        try:
            record = json.loads(line)
            identifier = str(record["_id"] if "_id" in record else record["id"])
            text = " ".join(part for part in (record.get("title"), record["text"]) if part)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f'{place}: needs a JSON object with "_id" (or "id") and a string "text".') from error
        if _HALF_OF_A_PAIR.search(text):
            raise InputError(f"{place}: holds half of a \\uD800-\\uDFFF pair; repair the line, it has no UTF-8.")
        if identifier in texts:
            raise InputError(f'{place}: the id "{identifier}" came before; give each line an id of its own.')
        texts[identifier] = text
        if record.get("title"):
            titles[identifier] = record["title"]
    return texts, titles


def _read_qrels(path: Path) -> dict[str, dict[str, int]]:
    if not path.is_file():
        splits = ", ".join(sorted(other.stem for other in path.parent.glob("*.tsv"))) or "none"
        raise InputError(f"{path}: there is no such file; choose one of the splits in that folder: {splits}.")
    qrels: dict[str, dict[str, int]] = {}
    for index, (place, line) in enumerate(read_lines(path)):
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) == 3 and re.fullmatch(r"-?[0-9]+", fields[2]):
            qrels.setdefault(fields[0], {})[fields[1]] = int(fields[2])
        elif index > 0 or len(fields) != 3:  # a first line without a number is the header
            raise InputError(f"{place}: needs a query id, a document id and a whole number, split by tabs.")
    return qrels
