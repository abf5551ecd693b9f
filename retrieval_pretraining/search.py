"""Exact nearest neighbours by dot product, which for vectors of length 1 is the cosine, in chunks.

Shapes: Q queries, N documents, C vectors of documents (N of them, or one a chunk of a document), H size of a vector.
"""

from collections.abc import Iterator

import numpy as np
import torch

from retrieval_pretraining.errors import InputError

CHUNK_SCORES = ("max", "mean", "max+mean")

_QUERIES_AT_ONCE = 256
_QUERIES_AT_ONCE_ON_DEVICE = 1024
_LAST_DOCUMENT = 2**32 - 1  # that a key can hold, see `_keys`


def search(
    query_vectors: np.ndarray,
    document_vectors: np.ndarray,
    k: int,
    *,
    document_of_chunk: np.ndarray | None = None,
    chunk_score: str = "max",
    block_size: int = 16384,
    device: str | torch.device | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The `k` documents with the highest dot products for each query; equal ones in document order.

    Args:
        query_vectors, document_vectors: [Q, H] and [C, H]. At most 256 queries x `block_size` vectors are compared at
            once (more only where one document has more chunks); 1024 queries on another device than the CPU.
        document_of_chunk: [C], ascending, with every document from 0 to N - 1, if the vectors are of chunks of
            documents (`zero_shot.encode_chunks`); without it each vector is a document.
        chunk_score: how the chunks of a document make its score: their "max", "mean", or the sum of both, "max+mean".
        device: where torch compares them, such as "cuda", with the same result; by default the CPU, by numpy.

    Returns:
        documents: int64 [Q, min(k, N)], numbers of documents, best first.
        scores: float32, of the same shape.

    Raises:
        InputError: `k` below 1, no vectors, sizes that differ, vectors that are not finite, an unknown `chunk_score`,
            a `document_of_chunk` of another form, or a device that is not there.
    """
    check_vectors(query_vectors, document_vectors, k)
    check_chunk_score(chunk_score)
    whole = document_of_chunk is None
    bounds = np.arange(len(document_vectors) + 1) if whole else chunk_bounds(document_of_chunk, document_vectors)
    k = min(k, len(bounds) - 1)
    device = check_device(device)
    if device.type != "cpu":
        return _search_on(
            device, query_vectors, document_vectors, bounds, k, None if whole else chunk_score, block_size
        )
    found_QK = np.empty((len(query_vectors), k), dtype=np.int64)
    scores_QK = np.empty((len(query_vectors), k), dtype=np.float32)
    for first in range(0, len(query_vectors), _QUERIES_AT_ONCE):
        # in float64, so that the rounding of a block cannot reorder equal documents
        queries_QH = query_vectors[first : first + _QUERIES_AT_ONCE].astype(np.float64)
        kept = [(np.empty(0, np.float32), np.empty(0, np.int64))] * len(queries_QH)  # scores and documents a query
        for start, stop in _blocks(bounds, block_size):
            block_CH = document_vectors[bounds[start] : bounds[stop]].astype(np.float64)
            similarity_QC = queries_QH @ block_CH.T
            if not whole:
                similarity_QC = score_documents(similarity_QC, bounds[start : stop + 1] - bounds[start], chunk_score)
            documents_N = np.arange(start, stop)
            for row, scores_N in enumerate(similarity_QC.astype(np.float32)):
                # the kept ones are earlier documents and stand first: ties stay in document order
                scores, documents = np.append(kept[row][0], scores_N), np.append(kept[row][1], documents_N)
                best = best_positions(scores, k)
                kept[row] = scores[best], documents[best]
        for row, (scores, documents) in enumerate(kept, start=first):
            found_QK[row], scores_QK[row] = documents, scores
    return found_QK, scores_QK


def check_chunk_score(chunk_score: str) -> None:
    """`InputError` for a name that `search` does not know."""
    if chunk_score not in CHUNK_SCORES:
        raise InputError(f'chunk_score is "{chunk_score}"; choose "max", "mean" or "max+mean".')


def check_device(device: str | torch.device | None) -> torch.device:
    """The device, the CPU for None; `InputError` if torch does not know it or cannot use it here."""
    try:
        device = torch.device(device or "cpu")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f'device "{device}" cannot be used here; choose "cpu", or "cuda" where there is one.'
        ) from error
    return device


def best_positions(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the `k` highest of `scores` [N], highest first, equal ones by position."""
    candidates = np.arange(len(scores))
    if k < len(scores):
        # all that tie with the k-th stay in: which of them a partition keeps is arbitrary
        candidates = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
    return candidates[np.argsort(-scores[candidates], kind="stable")[:k]]


def check_vectors(query_vectors: np.ndarray, document_vectors: np.ndarray, k: int) -> None:
    """`InputError` for `k` below 1, no documents, sizes that differ, or vectors that are not finite."""
    if k < 1:
        raise InputError(f"k is {k}; ask for 1 document or more.")
    if not len(document_vectors):
        raise InputError("There are no document vectors to search; give at least one document.")
    if len(query_vectors) and query_vectors.shape[1] != document_vectors.shape[1]:
        sizes = f"{query_vectors.shape[1]} and {document_vectors.shape[1]}"
        raise InputError(f"Vectors of queries and documents have sizes {sizes}; encode both with the same model.")
    if not (np.isfinite(query_vectors).all() and np.isfinite(document_vectors).all()):
        raise InputError("Some vectors are not finite: the model has diverged; train it with a lower learning rate.")


def chunk_bounds(document_of_chunk, document_vectors) -> np.ndarray:
    """Document n has the vectors from bounds[n] to bounds[n + 1], [N + 1]."""
    document_of_chunk = np.asarray(document_of_chunk)
    steps = np.diff(document_of_chunk, prepend=-1)
    if len(document_of_chunk) != len(document_vectors) or not np.isin(steps, (0, 1)).all() or steps[0] != 1:
        raise InputError(
            "document_of_chunk must give each vector its document, 0 for the first, and rise by 0 or 1; take it from "
            "encode_chunks as it is."
        )
    return np.append(np.flatnonzero(steps), len(steps))


def _blocks(bounds: np.ndarray, block_size: int) -> Iterator[tuple[int, int]]:
    """Ranges of whole documents with at most `block_size` vectors, or of one document."""
    start, documents = 0, len(bounds) - 1
    while start < documents:
        stop = int(np.searchsorted(bounds, bounds[start] + block_size, side="right")) - 1
        stop = max(stop, start + 1)
        yield start, stop
        start = stop


def score_documents(similarity_QC: np.ndarray, bounds: np.ndarray, chunk_score: str) -> np.ndarray:
    """Similarities of chunks -> scores of documents, [Q, C] -> [Q, N]."""
    scores_QN = 0.0
    if "max" in chunk_score:
        scores_QN = np.maximum.reduceat(similarity_QC, bounds[:-1], axis=1)
    if "mean" in chunk_score:
        scores_QN = scores_QN + np.add.reduceat(similarity_QC, bounds[:-1], axis=1) / np.diff(bounds)
    return scores_QN


# --- On another device than the CPU ---


def _search_on(
    device: torch.device,
    query_vectors: np.ndarray,
    document_vectors: np.ndarray,
    bounds: np.ndarray,
    k: int,
    chunk_score: str | None,
    block_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """`search` by torch; `bounds` as of `chunk_bounds`, `chunk_score` None where each vector is a document."""
    if len(bounds) - 1 > _LAST_DOCUMENT:
        raise InputError(f"There are {len(bounds) - 1:,} documents; search in {_LAST_DOCUMENT:,} at most at once.")

    def moved(vectors: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(vectors)).to(device)
        return tensor if device.type == "mps" else tensor.double()  # which has no float64

    found, scores = [np.empty((0, k), np.int64)], [np.empty((0, k), np.float32)]
    for first in range(0, len(query_vectors), _QUERIES_AT_ONCE_ON_DEVICE):
        queries_QH = moved(query_vectors[first : first + _QUERIES_AT_ONCE_ON_DEVICE])
        kept_QK = torch.empty((len(queries_QH), 0), dtype=torch.int64, device=device)
        for start, stop in _blocks(bounds, block_size):
            scores_QN = queries_QH @ moved(document_vectors[bounds[start] : bounds[stop]]).T
            if chunk_score is not None:
                counts_N = torch.from_numpy(np.diff(bounds[start : stop + 1])).to(device)
                scores_QN = _score_documents_on_device(scores_QN, counts_N, chunk_score)
            best_QK = _keys(scores_QN.float(), start).topk(min(k, stop - start), dim=1).values
            kept_QK = torch.cat([kept_QK, best_QK], dim=1)
            kept_QK = kept_QK.topk(min(k, kept_QK.shape[1]), dim=1).values
        found.append((_LAST_DOCUMENT - (kept_QK & _LAST_DOCUMENT)).cpu().numpy())
        scores.append(_scores(kept_QK).cpu().numpy())
    return np.concatenate(found), np.concatenate(scores)


def _score_documents_on_device(similarity_QC: torch.Tensor, counts_N: torch.Tensor, chunk_score: str) -> torch.Tensor:
    """`score_documents`, of so many chunks each."""
    document_QC = torch.arange(len(counts_N), device=counts_N.device).repeat_interleave(counts_N)
    document_QC = document_QC.expand(similarity_QC.shape)
    scores_QN = similarity_QC.new_zeros(len(similarity_QC), len(counts_N))
    if "max" in chunk_score:
        scores_QN.scatter_reduce_(1, document_QC, similarity_QC, "amax", include_self=False)
    if "mean" in chunk_score:
        scores_QN += torch.zeros_like(scores_QN).scatter_add_(1, document_QC, similarity_QC) / counts_N
    return scores_QN


def _keys(scores_QN: torch.Tensor, first: int) -> torch.Tensor:
    """Integers in the order of the scores and, where these are equal, of the documents from the last to the first:
    the score in the upper 32 bits, how far the document is from the last possible one in the lower."""
    bits_QN = (scores_QN + 0.0).view(torch.int32)  # + 0.0: there is only one zero
    # Of negative floats, the bits of the greater one are the smaller integer.
    ordered_QN = torch.where(bits_QN < 0, bits_QN ^ 0x7FFFFFFF, bits_QN).to(torch.int64)
    documents_N = torch.arange(first, first + scores_QN.shape[1], device=scores_QN.device)
    return (ordered_QN << 32) | (_LAST_DOCUMENT - documents_N)


def _scores(keys_QK: torch.Tensor) -> torch.Tensor:
    """The scores in keys, float32."""
    ordered_QK = (keys_QK >> 32).to(torch.int32)
    return torch.where(ordered_QK < 0, ordered_QK ^ 0x7FFFFFFF, ordered_QK).contiguous().view(torch.float32)
