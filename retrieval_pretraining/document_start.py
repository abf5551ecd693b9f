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
    singular_value_power: float = 0.25,
    features: sparse.csr_matrix | None = None,
    seed: int = 0,
) -> np.ndarray:
    r"""Coordinates of each token along the main directions of the documents.

    Row d of the matrix A has n^p w of each token of document d, which occurs n times in it and has the weight w in
    `token_weights` [vocab_size], p being `repeated_token_power`, and length 1. With A ~ U S V^T truncated, a token's
    coordinates are its row of V S^q, q being `singular_value_power`, times a factor for which the sum w V S^q over a
    document has length 1 in the root mean square over the documents.

    With `features` F [vocab_size, features] a document has these in place of its tokens: A is A F, its rows of length
    1 again, and a token's coordinates are its row of F V S^q (`spelling.py`).

    A row's length says how much of a token the directions hold: nothing of one that no document has in common with
    others, and it is 0 for tokens never seen.

    Returns: float32 [vocab_size, <= `dimensions`]; less where the documents have fewer directions.
    """
    rng = np.random.default_rng(seed)
    transposed = _term_document_matrix(sequences, token_weights, repeated_token_power)
    if not transposed.nnz:
        return np.zeros((len(token_weights), 0), dtype=np.float32)
    described = transposed if features is None else _described(transposed, features)
    directions, singular_values = truncated_svd(described, dimensions, rng)
    useful = singular_values > 1e-5 * singular_values.max()
    rows = directions[:, useful] * singular_values[useful] ** singular_value_power
    rows = (rows if features is None else features @ rows).astype(np.float32)
    rows[np.diff(transposed.indptr) == 0] = 0.0  # of a token that no text has, its spelling alone would say something
    documents = transposed.T @ rows
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
    """Weighted counts, float32 [vocab_size, documents], columns of length 1; a document of weight 0 has no column."""
    columns, tokens, counts = [], [], []
    for number, sequence in enumerate(sequences):
        found, times = np.unique(np.asarray(sequence, dtype=np.int64), return_counts=True)
        columns.append(np.full(len(found), number))
        tokens.append(found)
        counts.append(times)
    if not columns:
        return sparse.csr_matrix((len(token_weights), 0), dtype=np.float32)
    tokens = np.concatenate(tokens)
    values = np.concatenate(counts) ** repeated_token_power * token_weights[tokens]
    shape = (len(token_weights), len(columns))
    matrix = sparse.csc_matrix((values, (tokens, np.concatenate(columns))), shape=shape, dtype=np.float32)
    matrix.eliminate_zeros()
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=0)).ravel())
    return (matrix[:, lengths > 0] @ sparse.diags(1.0 / lengths[lengths > 0])).tocsr()
