"""Hybrid retrieval: the rankings of several systems, such as BM25 and a dense model, become one.

run = fuse([bm25_run(data), dense_run(queries, documents, data.query_ids, data.corpus_ids)])
retrieval_metrics(run, data.qrels)
"""

from collections.abc import Sequence

import numpy as np

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.retrieval_data import Run

FUSION_METHODS = ("z_score", "reciprocal_rank")
RANK_CONSTANT = 60  # Cormack, Clarke and Buettcher 2009, "Reciprocal Rank Fusion outperforms Condorcet ..."


def fuse(
    runs: Sequence[Run],
    *,
    method: str = "z_score",
    weights: Sequence[float] | None = None,
    top_k: int | None = 1000,
) -> Run:
    """The weighted sum of the runs' scores on a common scale, for each query that any of them has.

    - "z_score": `(score - mean) / deviation` over the documents that a run found for the query. A document that the
      run did not find gets the run's lowest score. Where all its scores are equal (or it is one document), they are 0,
      and so is a run's part where it found nothing.
    - "reciprocal_rank": `1 / (60 + rank)` with ranks from 1, by score and where equal in the run's order. A document
      that the run did not find gets 0, as in the paper.

    Args:
        runs: query id -> document id -> score, higher is better.
        weights: one a run, 0 or more. By default each is 1, BM25's too. Beside a dense run that is about as good, 0.5
            to 1 for BM25 did best on SciFact; beside a much weaker one, BM25 needs 2.
        top_k: how many documents of a query are kept; None keeps all.

    Returns a run, best first; equal scores are in the order in which the documents come first in the runs.

    Raises `InputError`: no runs, an unknown method, weights that are not one a run, or not finite numbers of 0 or more
    with one above 0, `top_k` below 1, or scores that are not finite.
    """
    if not runs:
        raise InputError("There are no runs to fuse; give at least one.")
    if method not in FUSION_METHODS:
        raise InputError(f'method is "{method}"; choose "z_score" or "reciprocal_rank".')
    weights = [1.0] * len(runs) if weights is None else list(weights)
    if len(weights) != len(runs):
        raise InputError(f"There are {len(runs)} runs and {len(weights)} weights; give each run one.")
    if not (np.isfinite(weights).all() and min(weights) >= 0 and max(weights) > 0):
        raise InputError(f"weights are {weights}; give finite numbers of 0 or more, at least one above 0.")
    if top_k is not None and top_k < 1:
        raise InputError(f"top_k is {top_k}; keep 1 document or more.")
    rescale = _z_scores if method == "z_score" else _reciprocal_ranks
    fused: Run = {}
    for query in dict.fromkeys(query for run in runs for query in run):
        total = dict.fromkeys((document for run in runs for document in run.get(query, ())), 0.0)
        for run, weight in zip(runs, weights, strict=True):
            scores, missing = rescale(run.get(query, {}))
            for document in total:
                total[document] += weight * scores.get(document, missing)
        best = sorted(total, key=total.__getitem__, reverse=True)[:top_k]
        fused[query] = {document: total[document] for document in best}
    return fused


def _z_scores(scores: dict[str, float]) -> tuple[dict[str, float], float]:
    """The documents' z-scores, and what any other document gets."""
    if not scores:
        return {}, 0.0
    values = np.array(list(scores.values()), dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError("Some scores of a run are not finite; a model that has diverged gives such.")
    spread = values.max() - values.min()
    z = (values - values.mean()) / values.std() if spread > 0 else np.zeros(len(values))
    return dict(zip(scores, z.tolist(), strict=True)), float(z.min())


def _reciprocal_ranks(scores: dict[str, float]) -> tuple[dict[str, float], float]:
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    return {document: 1.0 / (RANK_CONSTANT + rank) for rank, document in enumerate(ranked, start=1)}, 0.0
