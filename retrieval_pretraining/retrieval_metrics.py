"""Retrieval metrics by ir-measures, for any system that gives a `Run`: nDCG, MRR, MAP, recall.

    retrieval_metrics(run, data.qrels, measures=ALL_MEASURES)

As in trec_eval: the gain of nDCG is the grade (below 0 counts as 0), the discount log2(1 + rank), the ideal ranking
that of all judged documents (Jaervelin and Kekaelaeinen 2002, "Cumulated gain-based evaluation of IR techniques"); for
every other measure a grade of 1 or more is relevant. `evaluate_metrics.py` has them as `evaluate.Metric`s. Needs the
extra `eval`.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.extras import import_extra
from retrieval_pretraining.retrieval_data import Run

DEFAULT_MEASURES = ("nDCG@10", "R@100", "RR@10")
ALL_MEASURES = ("nDCG@10", "RR@10", "AP", "R@1", "R@10", "R@100", "R@1000")

_KEYS = {"nDCG": "ndcg", "R": "recall", "RR": "mrr", "AP": "map", "P": "precision"}

logger = logging.getLogger(__name__)


def retrieval_metrics(
    run: Run,
    qrels: Mapping[str, Mapping[str, int]],
    *,
    measures: Sequence[str] = DEFAULT_MEASURES,
    per_query: bool = False,
) -> dict[str, Any]:
    """Means over all queries of `qrels`, `{"ndcg@10": 0.676, "recall@100": 0.913, "mrr@10": 0.641}`, from 0 to 1.

    Args:
        run: query id -> document id -> score, higher is better. Where equal, documents rank in the order of `run`.
        qrels: query id -> document id -> grade, a whole number. An id that is a number is taken as its digits, here
            and in `run`: 7 is "7".
        measures: names of ir-measures: "nDCG@10", "R@100", "RR@10", "AP", "P@5".
        per_query: each value is a dict query id -> value, in the order of `qrels`, whose mean the value is.

    A query of `qrels` that `run` lacks scores 0, and so does one without a relevant document; a query of `run` that
    nobody judged is left out. One warning counts them.

    Raises `InputError`: `qrels` are empty or share no query with `run`, an unknown measure, a score that is not a
    finite number, a grade that is not a whole one, an id that is there as a number and as text, or no extra `eval`.
    """
    keys = _parse(measures)
    run, qrels = _string_ids(run, "run"), _string_ids(qrels, "qrels")
    if not qrels:
        raise InputError("There are no judged queries; give the qrels at least one.")
    if not run.keys() & qrels.keys():
        raise InputError(f"The {len(run)} queries of the run and the {len(qrels)} of the qrels share no id; compare.")
    # trec_eval rounds scores to float32 and breaks ties by document id; ranks leave it no tie
    grades = {query: {document: _grade(grade) for document, grade in own.items()} for query, own in qrels.items()}
    _warn(run, grades)
    ranked = {
        query: {document: float(-rank) for rank, document in enumerate(_ranking(query, run[query]))}
        for query in qrels
        if query in run
    }
    values: dict[str, dict[str, float]] = {key: dict.fromkeys(qrels, 0.0) for key in keys.values()}
    for metric in import_extra("ir_measures").iter_calc(list(keys), grades, ranked):
        values[keys[metric.measure]][metric.query_id] = float(metric.value)
    return values if per_query else {key: sum(v.values()) / len(v) for key, v in values.items()}


def check_ids(ids: Sequence[str], count: int, what: str) -> None:
    """`InputError` unless there are `count` ids, each another; `what` they are of is named in the message."""
    if len(ids) != count:
        raise InputError(f"There are {len(ids)} ids for {count} {what}; give each one an id.")
    if len(set(ids)) != count:
        seen: set[str] = set()
        twice = next(each for each in ids if each in seen or seen.add(each))
        raise InputError(f'The id "{twice}" stands for several {what}; give each one an id of its own.')


def _parse(measures: Sequence[str]) -> dict[Any, str]:
    """Measures of ir-measures and the keys of their values."""
    ir_measures = import_extra("ir_measures")
    keys = {}
    for measure in measures:
        name, at, cutoff = measure.partition("@")
        try:
            if at and int(cutoff) < 1:
                raise ValueError
            keys[ir_measures.parse_measure(measure)] = _KEYS.get(name, name.lower()) + at + cutoff
        except (NameError, ValueError) as error:
            raise InputError(f'Unknown measure "{measure}"; write nDCG@10, R@100, RR@10, AP or P@5.') from error
    return keys


def _string_ids(table: Mapping[Any, Mapping[Any, Any]], what: str) -> dict[str, dict[str, Any]]:
    def strings(own: Mapping[Any, Any]) -> dict[str, Any]:
        result = {str(key): value for key, value in own.items()}
        if len(result) < len(own):
            raise InputError(f"An id of the {what} is there both as a number and as text; make all of them strings.")
        return result

    return {query: strings(own) for query, own in strings(table).items()}


def _ranking(query: str, scores: dict[str, float]) -> list[str]:
    """Documents, best first; equal scores in the order given."""
    try:
        values = np.array(list(scores.values()), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f'The run has a score for query "{query}" that is not a number; give numbers.') from error
    if not np.isfinite(values).all():
        raise InputError(f'The run has a score for query "{query}" that is not finite; has the model diverged?')
    documents = list(scores)
    return [documents[i] for i in np.argsort(-values, kind="stable")]


def _grade(grade: Any) -> int:
    try:
        if int(grade) == grade:
            return int(grade)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"A grade of the qrels is {grade!r}; give whole numbers.")


def _warn(run: Run, qrels: dict[str, dict[str, int]]) -> None:
    irrelevant = sum(max(grades.values(), default=0) < 1 for grades in qrels.values())
    counts = [
        (len(qrels.keys() - run.keys()), f"of {len(qrels)} judged queries are not in the run and score 0"),
        (irrelevant, f"of {len(qrels)} judged queries have no relevant document and score 0"),
        (len(run.keys() - qrels.keys()), f"of {len(run)} queries of the run are not judged and are left out"),
    ]
    if any(count for count, _ in counts):
        logger.warning("Retrieval metrics: %s.", "; ".join(f"{count} {what}" for count, what in counts if count))
    if not any(document in grades for query, grades in qrels.items() for document in run.get(query, ())):
        logger.warning("No query finds any of its judged documents; are the document ids of run and qrels the same?")
