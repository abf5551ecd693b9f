"""results.json: what an evaluation found and what it takes to repeat it. This is the one place of its schema.

```
format          1
created         when, ISO 8601                      command   what was run           seed   a number
environment     name -> version or value
statistics      {test, interval, level}             which test and interval the numbers below are of, in words, and the
                                                    level of significance (0.05): optional
datasets        [{name, kind, path, split, documents, queries, judged, language, sampled, sha256, bm25,
                  vocabulary_sha256, hub_dataset, hub_task, hub_revision}]
                kind: retrieval, reranking, classification, similarity, generation. bm25: how BM25 read it, in words.
                vocabulary_sha256: of the tokens that a perplexity is of. hub_*: where the Hub has it, optional
systems         [{name, kind, description, of, method, weights, model_name_or_path, revision, started_from, model_type,
                  weights_sha256, pooling, query_prompt, document_prompt, max_seq_length, dtype, vector_size,
                  parameters, random_weights, chunk_size, chunk_score, top_n, batch_size}]
                kind: bm25, dense, hybrid, chunks, lexical, expansion (BM25 with what a model makes of the queries).
                of: the systems that one of the last four is made of. top_n: words of a text that a lexical one keeps.
                started_from: the name of the system whose weights it was trained from; to be worse than that one is a
                regression
scores          [{dataset, system, metric, value, low, high, std, seeds, queries}]
                low, high: 95 % interval; std over seeds of few-shot classification; all optional
comparisons     [{dataset, metric, system, baseline, difference, low, high, p_value, p_value_holm, wins, losses, ties}]
                paired: system minus baseline; wins: queries on which the system is better. p_value_holm: corrected for
                the number of comparisons, optional; where it is given, it decides what is significant
health          [{dataset, system, positive_cosine_mean, positive_cosine_std, random_cosine_mean, random_cosine_std,
                  auc, alignment, uniformity, isotropy, collapsed}]
warnings        [text]
training        [{system, log_history}]             of trainer_state.json
details         for the page; each list may be empty
  queries            [{dataset, metric, system, baseline, query_id, query, value, baseline_value,
                       found: [{id, text, relevant}], baseline_found: [the same]}]        the largest gains and losses
  query_differences  [{dataset, metric, system, baseline, query_ids, differences}]        of all queries, as they come
  similarities       [{dataset, system, related: [cosines], random: [cosines]}]
  map                [{dataset, system, points: [[x, y]], groups: [int], group_names: [text], texts: [text]}]
                     group_names[g] is the name of group g, optional
  generated          [{dataset, system, what, given, written}]      what: query or title; the first ones
```

`validate_results` puts all of it in one order (that of `datasets`, of `METRICS`, of `systems`), so that two runs of
the same evaluation differ only where their numbers do. A number that is not finite becomes null: such a score counts
as not measured, and the report says so. Keys of one's own are kept.
"""

import contextlib
import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retrieval_pretraining.errors import InputError

FORMAT = 1

METRICS = {  # as they are written in tables, in their order; of each dataset the first is the one that counts
    "ndcg@10": "nDCG@10",
    "mrr@10": "MRR@10",
    "map": "MAP",
    "recall@1": "recall@1",
    "recall@10": "recall@10",
    "recall@100": "recall@100",
    "recall@1000": "recall@1000",
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "zero_shot_accuracy": "zero-shot accuracy",
    "spearman": "Spearman",
    "perplexity": "perplexity",
    "query_words_kept": "queries: words kept",
    "queries_expanded": "queries: expanded",
    "query_distinct_1": "queries: distinct-1",
    "query_distinct_2": "queries: distinct-2",
    "titles_written": "titles: written",
    "title_words": "titles: words",
    "title_words_in_document": "titles: words in document",
    "title_distinct_1": "titles: distinct-1",
    "title_distinct_2": "titles: distinct-2",
    "title_rouge_1": "titles: ROUGE-1",
}
LOWER_IS_BETTER = ("perplexity",)
NEITHER_IS_BETTER = ("title_words",)

_DECIDING_PACKAGES = (
    *("retromae-gur", "torch", "transformers", "tokenizers", "sentence-transformers", "numpy", "scikit-learn"),
    *("bm25s", "PyStemmer", "rjieba", "ir_measures", "faiss-cpu"),
)
_KEYS = (
    *("format", "created", "command", "seed", "environment", "statistics", "datasets", "systems", "scores"),
    *("comparisons", "health", "warnings", "training", "details"),
)
_DETAILS = ("queries", "query_differences", "similarities", "map", "generated")
_OF_A_PAIR = ("dataset", "metric", "system", "baseline")
_REQUIRED = {
    "datasets": ("name", "kind"),
    "systems": ("name", "kind"),
    "scores": ("dataset", "system", "metric", "value"),
    "comparisons": (*_OF_A_PAIR, "difference", "p_value"),
    "health": ("dataset", "system"),
    "training": ("system", "log_history"),
    "details.queries": (*_OF_A_PAIR, "query_id", "query", "value", "baseline_value", "found", "baseline_found"),
    "details.query_differences": (*_OF_A_PAIR, "differences"),
    "details.similarities": ("dataset", "system", "related", "random"),
    "details.map": ("dataset", "system", "points", "groups", "texts"),
    "details.generated": ("dataset", "system", "what", "given", "written"),
}
_UNIQUE = {
    "datasets": ("name",),
    "systems": ("name",),
    "scores": ("dataset", "system", "metric"),
    "comparisons": _OF_A_PAIR,
    "health": ("dataset", "system"),
    "training": ("system",),
    "details.query_differences": _OF_A_PAIR,
    "details.similarities": ("dataset", "system"),
    "details.map": ("dataset", "system"),
}
_NUMBERS = {
    *(
        "value",
        "low",
        "high",
        "std",
        "difference",
        "p_value",
        "p_value_holm",
        "wins",
        "losses",
        "ties",
        "baseline_value",
    ),
    *("positive_cosine_mean", "positive_cosine_std", "random_cosine_mean", "random_cosine_std", "auc", "alignment"),
    *("uniformity", "isotropy", "documents", "queries", "judged"),
}


def metric_name(metric: str) -> str:
    """How a metric is written for people: "ndcg@10" is "nDCG@10", "accuracy@5" is "accuracy, 5 a class"."""
    name, at, number = metric.partition("@")
    if name == "accuracy" and at:
        return f"accuracy, {number} a class"
    return METRICS.get(metric, metric)


def best_value(metric: str, values: Iterable[float | None]) -> float | None:
    """The best of the values that were measured; None without any, or where neither more nor less is better."""
    known = [value for value in values if value is not None]
    if not known or metric in NEITHER_IS_BETTER:
        return None
    return min(known) if metric in LOWER_IS_BETTER else max(known)


def metric_order(metric: str) -> tuple:
    """Key to sort metrics by: those of `METRICS` first, the others by name, "accuracy@5" before "accuracy@10"."""
    name, _, number = metric.partition("@")
    known = list(METRICS)
    return (
        known.index(metric) if metric in METRICS else len(known),
        name,
        int(number) if number.isdecimal() else 0,
        metric,
    )


def provenance() -> dict[str, Any]:
    """`created`, `command` and `environment` of a run that starts now: the versions of what decides its numbers."""
    versions = {}
    for name in _DECIDING_PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    program = Path(sys.argv[0]).name
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join([*(["python"] if program.endswith(".py") else []), program, *sys.argv[1:]]),
        "environment": {
            "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}",
            "device": device,
            **versions,
        },
    }


def write_results(results: dict[str, Any], path: str | os.PathLike) -> Path:
    """Write `results`, validated and in order; one record a line. A reader never sees half a file.

    `InputError` where `validate_results` raises it, or if the file cannot be written.
    """
    # half of a surrogate pair has no UTF-8; JSON has an escape for it
    return write_whole(path, to_json(validate_results(results)).encode("utf-8", errors="backslashreplace"))


def write_whole(path: str | os.PathLike, content: bytes) -> Path:
    """Write a file, and its folder if need be, so that a reader finds all of it or what was there before."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise InputError(f"{path} cannot be written: {error.strerror}; choose another folder.") from error
    return path


def read_results(path: str | os.PathLike) -> dict[str, Any]:
    """The results of a file, or of `results.json` in a folder, validated. `InputError` says what is wrong with it."""
    path = Path(path)
    if path.is_dir():
        path /= "results.json"
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist; run_evaluation.py writes it.") from error
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is not a readable JSON file ({error}); write it again.") from error
    try:
        return validate_results(results)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def validate_results(results: dict[str, Any]) -> dict[str, Any]:
    """A copy of plain Python values, complete and in order; numbers that are not finite are None.

    NumPy scalars and arrays become numbers and lists. Missing lists become empty. `InputError` names the place of what
    does not fit the schema: another format, a missing key, a name that is used twice or not declared, a text where a
    number belongs, a value that JSON has no form for.
    """
    if not isinstance(results, dict) or "format" not in results:
        raise InputError('The results have no "format"; they must be a dict as run_evaluation.py writes it.')
    if results["format"] != FORMAT:
        raise InputError(f"The results have format {results['format']}, this version reads {FORMAT}; update it.")
    results = _plain(results, "results")
    for key in ("datasets", "systems", "scores", "comparisons", "health", "warnings", "training"):
        results.setdefault(key, [])
    results.setdefault("environment", {})
    details = results.setdefault("details", {})
    for key in _DETAILS:
        details.setdefault(key, [])
    for place, records in _record_lists(results):
        _check_records(place, records)
    datasets = {record["name"]: number for number, record in enumerate(results["datasets"])}
    systems = {record["name"]: number for number, record in enumerate(results["systems"])}
    for place, records in _record_lists(results):
        if place in ("datasets", "systems"):
            continue
        for number, record in enumerate(records):
            for key, home in (("dataset", "datasets"), ("system", "systems"), ("baseline", "systems")):
                if key in record and record[key] not in (datasets if home == "datasets" else systems):
                    raise InputError(f'{place}[{number}].{key} is "{record[key]}", but {home} has no such name.')
        records.sort(
            key=lambda record: (
                datasets.get(record.get("dataset"), -1),
                metric_order(record.get("metric", "")),
                systems[record["system"]],
                systems.get(record.get("baseline"), -1),
            )
        )
    _check_details(details)
    ordered = {key: results[key] for key in _KEYS if key in results}
    return ordered | {key: results[key] for key in sorted(results.keys() - ordered.keys())}


def to_json(results: dict[str, Any]) -> str:
    """JSON with one record a line, so that a difference between two files shows which numbers changed."""

    def lines(value: Any, depth: int, indent: str) -> str:
        if depth == 0 or not value or not isinstance(value, (dict, list)):
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        if isinstance(value, dict):
            # the lists of `details` lie one level deeper than the others
            inner = [
                json.dumps(key, ensure_ascii=False) + ": " + lines(item, depth - (key != "details"), indent + " ")
                for key, item in value.items()
            ]
        else:
            inner = [lines(item, depth - 1, indent + " ") for item in value]
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        return f"{opening}\n{indent} " + f",\n{indent} ".join(inner) + f"\n{indent}{closing}"

    return lines(results, 2, "") + "\n"


def _plain(value: Any, place: str) -> Any:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InputError(f"{place} has the key {key!r}; keys must be texts.")
        return {key: _plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{place}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (bool, int)):
        return value
    raise InputError(f"{place} is a {type(value).__name__}, for which JSON has no form; give text or numbers.")


def _record_lists(results: dict[str, Any]) -> Iterator[tuple[str, list]]:
    for place in _REQUIRED:
        owner, _, key = place.rpartition(".")
        yield place, results[owner][key] if owner else results[key]


def _check_records(place: str, records: Any):
    if not isinstance(records, list):
        raise InputError(f"{place} is a {type(records).__name__}; it must be a list.")
    seen = set()
    for number, record in enumerate(records):
        where = f"{place}[{number}]"
        if not isinstance(record, dict):
            raise InputError(f"{where} is a {type(record).__name__}; it must be a dict.")
        missing = [key for key in _REQUIRED[place] if key not in record]
        if missing:
            raise InputError(f'{where} lacks "{missing[0]}"; it needs {", ".join(_REQUIRED[place])}.')
        for key, value in record.items():
            if key in _NUMBERS and value is not None and (isinstance(value, (str, list, dict, bool))):
                raise InputError(f"{where}.{key} is {value!r}; it must be a number.")
            if key in ("name", "kind", "dataset", "system", "metric", "baseline") and not isinstance(value, str):
                raise InputError(f"{where}.{key} is {value!r}; it must be a text.")
        if place in _UNIQUE:
            key = tuple(record[key] for key in _UNIQUE[place])
            if key in seen:
                raise InputError(f"{where}: {', '.join(map(repr, key))} comes twice; keep one.")
            seen.add(key)


def _check_details(details: dict[str, Any]):
    for number, record in enumerate(details["map"]):
        sizes = {len(record[key]) for key in ("points", "groups", "texts")}
        if len(sizes) > 1:
            raise InputError(
                f"details.map[{number}] has points, groups and texts of different lengths; give one each."
            )
    for number, record in enumerate(details["query_differences"]):
        if len(record.get("query_ids", record["differences"])) != len(record["differences"]):
            raise InputError(f"details.query_differences[{number}] needs one query id for each difference.")
