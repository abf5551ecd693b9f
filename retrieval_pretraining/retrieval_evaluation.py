"""Retrieval evaluation: BEIR folders, BM25, dense search, metrics and a table for the screen.

    data = load_retrieval_data("data/scifact")
    bm25 = retrieval_metrics(bm25_run(data), data.qrels)
    dense = evaluate_retrieval(model, tokenizer, data)
    print(format_table([{"system": "BM25", **bm25}, {"system": "model", **dense}], ["system", "ndcg@10"]))

Every system ends in a `Run`, so BM25 and all models are measured by the same code. BM25 and the metrics need the extra
`eval`; reading, encoding and searching do not.
"""

import importlib
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.retrieval_data import RetrievalData, load_retrieval_data, sample

__all__ = [
    "RetrievalData",
    "bm25_run",
    "dense_run",
    "detect_language",
    "encode_texts",
    "evaluate_retrieval",
    "format_table",
    "load_retrieval_data",
    "retrieval_metrics",
    "sample",
]

logger = logging.getLogger(__name__)

Run = dict[str, dict[str, float]]  # query id -> document id -> score, best first

DEFAULT_MEASURES = ("nDCG@10", "R@100", "RR@10")
MEASURE_KEYS = {"nDCG": "ndcg", "R": "recall", "RR": "mrr", "AP": "map", "P": "precision"}
HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
BM25_TOKENS = {"en": "English stems without stop words", "zh": "Chinese character bigrams and stemmed words"}
PROGRESS_BAR_FROM = 1000  # texts or queries; fewer are done in seconds


def detect_language(texts: Sequence[str]) -> str:
    """ "zh" if at least 5 % of the letters in a sample of the texts are Han characters, "en" otherwise."""
    # a low bar: the Chinese tokenisation of BM25 also handles English words, the English one no Chinese
    text = " ".join(texts[:: len(texts) // 2000 + 1])
    han = len(re.findall(f"[{HAN}]", text))
    return "zh" if han and han >= 0.05 * sum(map(str.isalpha, text)) else "en"


def bm25_run(
    data: RetrievalData, *, k1: float = 0.9, b: float = 0.4, language: str = "auto", top_k: int = 1000
) -> Run:
    """Rank the corpus by BM25 (bm25s, Lucene's variant); documents with a score above 0 only, ties in corpus order.

    `language`: "en" for stemmed words of two or more characters without stop words; "zh" for runs of Han characters as
    bigrams (a run of one as itself) and all other words lower-cased and stemmed; "auto" asks `detect_language`.
    A query may find nothing; if none finds anything, that is a warning. `InputError` without the extra `eval`.
    """
    bm25s = _import_extra("bm25s")
    stem = _import_extra("Stemmer").Stemmer("english").stemWord
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # on import it sets itself to DEBUG
    if language not in ("auto", *BM25_TOKENS):
        raise InputError(f'language is "{language}"; choose "auto", "en" or "zh".')
    language = detect_language(data.corpus_texts) if language == "auto" else language
    logger.info("BM25 (lucene, k1 %g, b %g) on %s: %s.", k1, b, data.name, BM25_TOKENS[language])
    pattern = re.compile(r"\w\w+" if language == "en" else f"[{HAN}]+|[^\\W{HAN}]+")
    is_han = re.compile(f"[{HAN}]").match

    def tokenize(text: str) -> Iterator[str]:
        for word in pattern.findall(text.lower()):
            if language == "zh" and is_han(word):
                yield from (word[i : i + 2] for i in range(max(1, len(word) - 1)))
            elif language == "zh" or word not in bm25s.stopwords.STOPWORDS_EN:
                yield stem(word)

    vocabulary: dict[str, int] = {}
    documents = [[vocabulary.setdefault(token, len(vocabulary)) for token in tokenize(t)] for t in data.corpus_texts]
    index = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
    if vocabulary:
        index.index((documents, vocabulary), show_progress=False)
    run: Run = {}
    with _progress_bar(len(data.query_ids), "BM25", "query", None) as bar:
        for query, text in zip(data.query_ids, data.query_texts, strict=True):
            tokens = [vocabulary[token] for token in tokenize(text) if token in vocabulary]
            # not `index.retrieve`: its order among ties is arbitrary
            scores = index.get_scores_from_ids(tokens) if tokens else np.zeros(0)
            run[query] = {data.corpus_ids[i]: float(scores[i]) for i in _best(scores, top_k) if scores[i] > 0}
            bar.update()
    if not any(run.values()):
        logger.warning("BM25 on %s: no query shares a token with a document (%s).", data.name, BM25_TOKENS[language])
    return run


@torch.no_grad()  # not inference_mode: what a module caches here must still serve the training that goes on
def encode_texts(
    model,
    tokenizer,
    texts: Sequence[str],
    *,
    max_seq_length: int | None = None,
    batch_size: int = 64,
    pooling: str = "cls",
    normalize: bool = True,
    device: str | torch.device | None = None,
    progress: bool | None = None,
) -> np.ndarray:
    """One vector a text, float32 [len(texts), hidden_size], in the order of `texts` whatever the batch size.

    `model` is any transformers encoder; of a model with a head, `model.base_model` is used. `pooling`: "cls" (first
    token), "mean" (over the attention mask) or "pooler_output" (the sentence vector of the models of this project).
    Texts are cut at `max_seq_length` tokens; by default at what model and tokenizer take, 512 at most. With `device`
    the model moves there; its training flags stay as they were. `progress` None shows a bar for many texts only.
    `InputError` if the pooling or the length does not suit the model.
    """
    encoder = model.base_model
    if pooling not in ("cls", "mean", "pooler_output"):
        raise InputError(f'pooling is "{pooling}"; choose "cls", "mean" or "pooler_output".')
    if pooling == "pooler_output" and type(encoder).__module__.startswith("transformers.models."):
        # theirs is a layer for next-sentence prediction, often not even in the checkpoint
        raise InputError(f'{type(encoder).__name__} pools no sentence vector; use pooling="cls" or "mean".')
    max_seq_length = _check_length(encoder, tokenizer, max_seq_length)
    if device is not None:
        model.to(device)
    device = next(encoder.parameters()).device

    # longest first: little padding, and too large a batch fails at once; bytes are nearer to tokens than characters
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].encode("utf-8", "replace")), reverse=True)
    vectors = np.empty((0, 0), dtype=np.float32)
    training = [module for module in encoder.modules() if module.training]
    encoder.eval()
    try:
        with _progress_bar(len(texts), "Encoding", "text", progress) as bar:
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                # right: "cls" reads position 0
                options = dict(padding=True, padding_side="right", truncation=True, max_length=max_seq_length)
                batch = tokenizer([texts[i] for i in rows], **options, return_tensors="pt").to(device)
                mask = batch["attention_mask"]
                # no token_type_ids: one text is one segment, the default, and not every backbone takes them
                pooled = _pool(encoder(input_ids=batch["input_ids"], attention_mask=mask), mask, pooling)
                if normalize:
                    pooled = torch.nn.functional.normalize(pooled, dim=-1)
                if start == 0:
                    vectors = np.empty((len(texts), pooled.shape[-1]), dtype=np.float32)
                vectors[rows] = pooled.cpu().numpy()
                bar.update(len(rows))
    finally:
        for module in training:
            module.training = True
    return vectors


def dense_run(
    query_vectors: np.ndarray,
    document_vectors: np.ndarray,
    query_ids: Sequence[str],
    document_ids: Sequence[str],
    *,
    top_k: int = 1000,
    chunk_size: int = 16384,
) -> Run:
    """Exact search by dot product (cosine for unit vectors) over all documents; ties in document order.

    `query_vectors` [Q, H], `document_vectors` [N, H]. At most 256 queries x `chunk_size` documents are scored at once.
    `InputError` if a vector is not finite.
    """
    if not (np.isfinite(query_vectors).all() and np.isfinite(document_vectors).all()):
        raise InputError("Some vectors are not finite: the model has diverged; train it with a lower learning rate.")
    run: Run = {}
    for first in range(0, len(query_ids), 256):
        # in float64, so that the rounding of a chunk cannot reorder equal documents
        queries_QH = query_vectors[first : first + 256].astype(np.float64)
        kept = [(np.empty(0, np.float32), np.empty(0, np.int64))] * len(queries_QH)  # scores and indices a query
        for start in range(0, len(document_ids), chunk_size):
            documents_NH = document_vectors[start : start + chunk_size].astype(np.float64)
            indices_N = np.arange(start, start + len(documents_NH))
            for row, scores_N in enumerate((queries_QH @ documents_NH.T).astype(np.float32)):
                # the kept ones are earlier documents and stand first: ties stay in document order
                scores, indices = np.append(kept[row][0], scores_N), np.append(kept[row][1], indices_N)
                best = _best(scores, top_k)
                kept[row] = scores[best], indices[best]
        for query, (scores, indices) in zip(query_ids[first : first + 256], kept, strict=True):
            run[query] = {document_ids[i]: score for i, score in zip(indices, scores.tolist(), strict=True)}
    return run


def retrieval_metrics(
    run: Run, qrels: dict[str, dict[str, int]], *, measures: Sequence[str] = DEFAULT_MEASURES, per_query: bool = False
) -> dict[str, Any]:
    """Means over all queries of `qrels`, `{"ndcg@10": 0.676, "recall@100": 0.913, "mrr@10": 0.641}`, from 0 to 1.

    `measures` are names of ir-measures ("nDCG@10", "R@100", "RR@10", "AP", "P@5"). A query that `run` lacks scores 0.
    Documents with equal scores rank in the order of `run`. With `per_query` each value is a dict query id -> value.
    `InputError` if `run` and `qrels` share no query, if a measure is unknown, or without the extra `eval`.
    """
    ir_measures = _import_extra("ir_measures")
    keys = {}
    for measure in measures:
        name, at, cutoff = measure.partition("@")
        try:
            keys[ir_measures.parse_measure(measure)] = MEASURE_KEYS.get(name, name.lower()) + at + cutoff
        except (NameError, ValueError) as error:
            raise InputError(f'Unknown measure "{measure}"; write nDCG@10, R@100, RR@10, AP or P@5.') from error
    if not run.keys() & qrels.keys():
        raise InputError(f"The {len(run)} queries of the run and the {len(qrels)} of the qrels share no id; compare.")
    if not any(document in grades for query, grades in qrels.items() for document in run.get(query, ())):
        logger.warning("No query finds any of its judged documents; are the document ids of run and qrels the same?")
    # trec_eval rounds scores to float32 and breaks ties by document id; ranks leave it no tie
    ranked = {
        query: {document: float(-rank) for rank, document in enumerate(sorted(scores, key=scores.get, reverse=True))}
        for query, scores in run.items()
    }
    values: dict[str, dict[str, float]] = {key: {} for key in keys.values()}
    for metric in ir_measures.iter_calc(list(keys), qrels, ranked):
        values[keys[metric.measure]][metric.query_id] = float(metric.value)
    return values if per_query else {key: sum(v.values()) / len(v) for key, v in values.items()}


def evaluate_retrieval(model, tokenizer, data: RetrievalData, **encoding) -> dict[str, float]:
    """The default measures of a dense model; `encoding` (pooling, max_seq_length, ...) goes to `encode_texts`."""
    queries = encode_texts(model, tokenizer, data.query_texts, **encoding)
    documents = encode_texts(model, tokenizer, data.corpus_texts, **encoding)
    run = dense_run(queries, documents, data.query_ids, data.corpus_ids, top_k=100)  # no default measure looks deeper
    return retrieval_metrics(run, data.qrels)


def format_table(rows: list[dict[str, Any]], columns: Sequence[str]) -> str:
    """Rows as an aligned Markdown table; numbers to the right, floats with 3 decimals, a missing value as "-"."""

    def cell(value: Any) -> str:
        return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value).replace("|", "\\|")

    padded = []
    for column in columns:
        values = [row.get(column) for row in rows]
        cells = [cell(column), *map(cell, values)]
        width = max(3, *map(len, cells))
        right = any(isinstance(value, (int, float)) for value in values)
        cells = [text.rjust(width) if right else text.ljust(width) for text in cells]
        padded.append([cells[0], "-" * (width - 1) + (":" if right else "-"), *cells[1:]])
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*padded, strict=True))


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the `k` highest of `scores` [N], highest first, equal ones by position."""
    candidates = np.arange(len(scores))
    if k < len(scores):
        # all that tie with the k-th stay in: which of them a partition keeps is arbitrary
        candidates = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
    return candidates[np.argsort(-scores[candidates], kind="stable")[:k]]


def _pool(output, mask_BL: torch.Tensor, pooling: str) -> torch.Tensor:
    if pooling == "pooler_output":
        if getattr(output, "pooler_output", None) is None:
            raise InputError('The model gives no pooler_output; use pooling="cls" or "mean".')
        return output.pooler_output.float()
    states_BLH = output.last_hidden_state.float()
    if pooling == "cls":
        return states_BLH[:, 0]
    mask_BL1 = mask_BL.unsqueeze(-1).float()
    return (states_BLH * mask_BL1).sum(dim=1) / mask_BL1.sum(dim=1).clamp(min=1)


def _check_length(encoder, tokenizer, max_seq_length: int | None) -> int:
    reach = []
    for name, table in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(table, torch.nn.Embedding):
            # RoBERTa and its kin count positions from padding_idx + 1
            reach.append(table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1))
    if max_seq_length is None:
        configured = getattr(encoder.config, "max_position_embeddings", None) or 512
        return min(tokenizer.model_max_length, configured, 512, *reach)
    if reach and max_seq_length > min(reach):
        raise InputError(f"max_seq_length is {max_seq_length}, but the model takes {min(reach)} at most; lower it.")
    return max_seq_length


def _progress_bar(total: int, description: str, unit: str, progress: bool | None) -> tqdm:
    shown = total >= PROGRESS_BAR_FROM if progress is None else progress
    return tqdm(total=total, desc=description, unit=unit, leave=False, disable=not shown)


def _import_extra(module: str):
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f'{module} is not installed; pip install "retromae-gur[eval]".') from error
