"""What tokens know of whole documents: the directions in which a collection's documents differ most.

Latent semantic analysis (Deerwester, Dumais, Furnas, Landauer and Harshman 1990, "Indexing by latent semantic
analysis", JASIS 41) of the text that a model from scratch is trained on. As coordinates of the token vectors they let
a weighted sum of these keep what a bag of words says of a document, in far fewer numbers than it has words: of all
directions, these lose least. They say little where documents are titles of a few words, which share too few.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from .corpus_start import truncated_svd


def document_rows(
    sequences: Iterable[Sequence[int]],
    token_weights: np.ndarray,
    *,
    dimensions: int,
    repeated_token_power: float = 1.0,
    weight_power: float = 1.0,
    features: sparse.csr_matrix | None = None,
    seed: int = 0,
) -> np.ndarray:
    r"""Coordinates of each token along the main directions of the documents.

    A text is a sum of its tokens: one that occurs n times in it counts n^p w, with p = `repeated_token_power` and its
    w of `token_weights` [vocab_size]. For the directions the weights are w^r, r being `weight_power`: row d of the
    matrix A has n^p w^r of each token of document d, and length 1. With A ~ U S V^T truncated, a token's coordinates
    are w^(r - 1) times its row of V, so that the sum over a text is that of n^p w^r V. They come with a factor: were
    all tokens of a document of length 1 and unrelated, their sum would be as long as the sum of these coordinates is
    in the root mean square over the documents.

    r < 1 is for long texts, whose rare words are many.

    With `features` F [vocab_size, features] a document has these in place of its tokens: A is A F, its rows of length
    1 again, and V is F V (`spelling.py`).

    A row's length says how much of a token the directions hold: nothing of one that no document has in common with
    others, and it is 0 for tokens never seen.

    Returns: float32 [vocab_size, <= `dimensions`]; less where the documents have fewer directions.
    """
    rng = np.random.default_rng(seed)
    counts = _term_document_matrix(sequences, token_weights, repeated_token_power)
    if not counts.nnz:
        return np.zeros((len(token_weights), 0), dtype=np.float32)
    transposed = _weighted(counts, token_weights**weight_power)
    described = transposed if features is None else _described(transposed, features)
    directions, singular_values = truncated_svd(described, dimensions, rng)
    useful = singular_values > 1e-5 * singular_values.max()
    rows = directions[:, useful]
    rows = (rows if features is None else features @ rows).astype(np.float32)
    # Of a token that no text has, its spelling alone would say something.
    seen = np.diff(counts.indptr) > 0
    factors = np.zeros(len(rows), dtype=np.float32)
    factors[seen] = token_weights[seen] ** (weight_power - 1.0)
    rows *= factors[:, None]
    documents = _weighted(counts, token_weights).T @ rows
    return rows / np.sqrt(np.sum(documents**2) / len(documents))


def _described(transposed: sparse.csr_matrix, features: sparse.csr_matrix) -> LinearOperator:
    """[features, documents], columns of length 1; never made, as it has many more elements than its factors."""
    # Of a document with the counts c the length is that of F c: the root of c F F^T c.
    lengths = np.concatenate(
        [
            np.sqrt(np.asarray(part.multiply(part).sum(axis=0), dtype=np.float32).ravel())
            for part in (features.T @ transposed[:, at : at + 1000] for at in range(0, transposed.shape[1], 1000))
        ]
    )
    columns = (transposed @ sparse.diags(1.0 / np.maximum(lengths, 1e-12))).tocsr()
    return aslinearoperator(features.T.tocsr()) @ aslinearoperator(columns)


def _term_document_matrix(
    sequences: Iterable[Sequence[int]], token_weights: np.ndarray, repeated_token_power: float
) -> sparse.csr_matrix:
    """n^p of the tokens that weigh something, float32 [vocab_size, documents]; a document of none has no column."""
    columns, tokens, counts = [], [], []
    documents = 0
    for sequence in sequences:
        found, times = np.unique(np.asarray(sequence, dtype=np.int64), return_counts=True)
        found, times = (values[token_weights[found] > 0] for values in (found, times))
        if len(found):
            columns.append(np.full(len(found), documents))
            tokens.append(found)
            counts.append(times)
            documents += 1
    shape = (len(token_weights), documents)
    if not documents:
        return sparse.csr_matrix(shape, dtype=np.float32)
    values = (np.concatenate(counts) ** repeated_token_power).astype(np.float32)
    return sparse.csr_matrix((values, (np.concatenate(tokens), np.concatenate(columns))), shape=shape)


def _weighted(counts: sparse.csr_matrix, weights: np.ndarray) -> sparse.csr_matrix:
    """The rows times their weights, then columns of length 1."""
    matrix = sparse.diags(weights.astype(np.float32)) @ counts
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=0)).ravel())
    return (matrix @ sparse.diags(1.0 / lengths)).tocsr()
