"""The retrieval metrics as `evaluate.Metric`s: made from a class, not by `evaluate.load`, so nothing is downloaded.

    predictions, references = metric_rows(run, data.qrels)
    RetrievalMetric().compute(predictions=predictions, references=references)   # {"ndcg@10": 0.676, ...}
    evaluate.combine([NDCG(), Recall(k=100), Recall(k=1000)]).compute(predictions=predictions, references=references)

A row is a query: what a system found for it, and what was judged. Rows may also be added one by one or in batches
(`add`, `add_batch`) and by several processes, as with every metric of `evaluate`. The values are those of
`retrieval_metrics`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import evaluate
from datasets import Features, Value
from datasets import Sequence as ListOf

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.retrieval_data import Run
from retrieval_pretraining.retrieval_metrics import ALL_MEASURES, retrieval_metrics

_INPUTS = """
    predictions: one dict a query of what was found, {"document_ids": ["d7", "d2"], "scores": [9.1, 8]}, in any order.
    references: one dict a query of what was judged, {"document_ids": ["d2", "d5"], "grades": [2, 1]}; 1 is relevant.
    Ids are strings, or numbers, which stand for their digits.
"""
_CITATION = """@inproceedings{macavaney2022irmeasures,
  title     = {Streamlining Evaluation with ir-measures},
  author    = {MacAvaney, Sean and Macdonald, Craig and Ounis, Iadh},
  booktitle = {Advances in Information Retrieval (ECIR)},
  year      = {2022}
}"""


def metric_rows(
    run: Run, qrels: Mapping[str, Mapping[str, int]]
) -> tuple[list[dict[str, list]], list[dict[str, list]]]:
    """A run and its qrels as the rows of a metric, one a query of `qrels`, in that order: predictions, references.

    A query that `run` lacks becomes one that found nothing.
    """
    found = [run.get(query, {}) for query in qrels]
    predictions = [{"document_ids": list(scores), "scores": list(scores.values())} for scores in found]
    references = [{"document_ids": list(own), "grades": list(own.values())} for own in qrels.values()]
    return predictions, references


class RetrievalMetric(evaluate.Metric):
    """Any measures of ir-measures at once, by default nDCG@10, MRR@10, MAP and recall@{1, 10, 100, 1000}.

    `measures` are names of ir-measures; everything else is an option of `evaluate.Metric`. `InputError` as
    `retrieval_metrics`.
    """

    def __init__(
        self, config_name: str | None = None, *, measures: Sequence[str] = ALL_MEASURES, **options: Any
    ) -> None:
        self.measures = tuple(measures)
        # the rows wait in a folder named after the configuration
        super().__init__(config_name or "_".join(self.measures).replace("@", "_at_"), **options)

    def _info(self) -> evaluate.MetricInfo:
        features = Features(
            {
                "predictions": {"document_ids": ListOf(Value("string")), "scores": ListOf(Value("float64"))},
                "references": {"document_ids": ListOf(Value("string")), "grades": ListOf(Value("float64"))},
            }
        )
        return evaluate.MetricInfo(
            description=f"{', '.join(self.measures)}: the mean over the queries, by ir-measures.",
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=features,
            homepage="https://ir-measur.es",
        )

    def add(self, *, prediction=None, reference=None, predictions=None, references=None) -> None:
        """Add one query: `prediction` and `reference`."""
        # `evaluate.combine` calls them by the plural
        found = predictions if prediction is None else prediction
        judged = references if reference is None else reference
        super().add(prediction=_row(found, "scores", "prediction"), reference=_row(judged, "grades", "reference"))

    def add_batch(self, *, predictions: Sequence[Mapping], references: Sequence[Mapping]) -> None:
        """Add several queries."""
        super().add_batch(
            predictions=[_row(row, "scores", f"predictions[{i}]") for i, row in enumerate(predictions)],
            references=[_row(row, "grades", f"references[{i}]") for i, row in enumerate(references)],
        )

    def _compute(self, predictions, references) -> dict[str, float]:
        run = {str(i): dict(zip(row["document_ids"], row["scores"])) for i, row in enumerate(predictions)}
        qrels = {str(i): dict(zip(row["document_ids"], row["grades"])) for i, row in enumerate(references)}
        return retrieval_metrics(run, qrels, measures=self.measures)


class _At(RetrievalMetric):
    """One measure with a cutoff."""

    measure: str

    def __init__(self, config_name: str | None = None, *, k: int, **options: Any) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise InputError(f"k is {k!r}; give a whole number of 1 or more.")
        self.k = k
        super().__init__(config_name, measures=[f"{self.measure}@{k}"], **options)


class NDCG(_At):
    """Normalised discounted cumulative gain of the first `k`, with graded relevance: `ndcg@10`."""

    measure = "nDCG"

    def __init__(self, config_name: str | None = None, *, k: int = 10, **options: Any) -> None:
        super().__init__(config_name, k=k, **options)


class MRR(_At):
    """One over the rank of the first relevant document, 0 if it is not among the first `k`: `mrr@10`."""

    measure = "RR"

    def __init__(self, config_name: str | None = None, *, k: int = 10, **options: Any) -> None:
        super().__init__(config_name, k=k, **options)


class Recall(_At):
    """The share of a query's relevant documents among the first `k`: `recall@100`."""

    measure = "R"

    def __init__(self, config_name: str | None = None, *, k: int = 100, **options: Any) -> None:
        super().__init__(config_name, k=k, **options)


class MAP(RetrievalMetric):
    """Average precision: the mean, over the relevant documents, of the precision where each is found: `map`."""

    def __init__(self, config_name: str | None = None, **options: Any) -> None:
        super().__init__(config_name, measures=["AP"], **options)


def _row(row: Any, value: str, place: str) -> dict[str, list]:
    """The row with ids as strings; `InputError` if it is none."""
    try:
        ids, values = list(map(str, row["document_ids"])), list(map(float, row[value]))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f'{place} is not a dict with lists of "document_ids" and of numbers, "{value}".') from error
    if len(ids) != len(values):
        raise InputError(f"{place} has {len(ids)} document_ids and {len(values)} {value}; give one for each.")
    if len(set(ids)) < len(ids):
        raise InputError(f"{place} names a document twice; name each one once.")
    return {"document_ids": ids, value: values}
