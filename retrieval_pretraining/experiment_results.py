"""What the runs of an experiment have measured, over seeds and queries, in the schema of `results_file.py`.

A system is an arm, or what its evaluation makes of it ("retromae + BM25"); BM25 itself is one system. Beside the keys
of the schema, `scores` have `seed_std` (deviation over the seeds, n - 1) and `runs` (trainings that differ),
`comparisons` `p_value_queries`, `systems` arm, values, runs, tokens, seconds and wall_seconds, and the whole has
`experiment`. Shapes: S seeds, Q queries, R resamples.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .errors import InputError
from .evaluation_retrieval import BM25
from .experiment_runs import is_done, read_record
from .experiments import EVALUATION, TRAINING, Arm, Experiment, Job
from .results_file import FORMAT, metric_order, provenance, read_results
from .significance import bootstrap_p_value, crossed_bootstrap, holm, paired_randomization_test

RESAMPLES = 5_000
STATISTICS = {
    "test": "the larger p of a paired randomisation test over the queries and of the bootstrap over seeds and queries",
    "interval": "crossed bootstrap over seeds and queries, 5,000 resamples",
    "level": 0.05,
}
METRICS = {"retrieval": ("ndcg@10", "mrr@10", "recall@100"), "reranking": ("ndcg@10", "mrr@10")}
# Means over test sets: the name, and the kind of its parts; both: a test set searched and reranked is one.
AVERAGES = {
    "average of retrieval": "retrieval",
    "average of reranking": "reranking",
    "average of retrieval and reranking": "both",
    "average of classification": "classification",
}


@dataclass
class _System:
    """`of_queries`: seed -> dataset -> metric -> query -> value; `values`: seed -> (dataset, metric) -> value.
    Seeds with the same run, which nothing random goes into, have the same `folders`."""

    name: str
    arm: Arm | None
    suffix: str  # of the name, behind that of the arm
    described: dict[str, Any]
    folders: dict[int, Path] = field(default_factory=dict)
    of_queries: dict[int, dict] = field(default_factory=dict)
    values: dict[int, dict[tuple[str, str], float]] = field(default_factory=dict)

    def matrix(self, parts: Sequence[str], metric: str, seeds: Sequence[int]) -> np.ndarray | None:
        """[S, Q]: the values of the same queries, one row a seed; their mean over `parts`, which share queries."""
        rows = []
        for seed in seeds:
            found = [self.of_queries[seed].get(part, {}).get(metric) for part in parts]
            if any(values is None for values in found):
                return None
            queries = sorted(found[0])
            if any(values.keys() != found[0].keys() for values in found) or (rows and queries != rows[0][0]):
                raise InputError(
                    f"{self.name} was measured on other queries of {parts[0]} with another seed: give the evaluation "
                    "a seed of its own in the file of the experiment, such as seed: 42."
                )
            rows.append((queries, np.mean([[values[query] for query in queries] for values in found], axis=0)))
        return np.stack([values for _, values in rows]) if rows else None


def collect_results(experiment: Experiment) -> dict[str, Any] | None:
    """The results of all evaluations that are there; None where there is none.

    Raises `InputError` where they do not fit together: other data under the same name, other queries.
    """
    jobs = {job.folder: job for job in experiment.jobs}
    systems: dict[str, _System] = {}
    datasets: dict[str, dict] = {}
    first: dict[str, Any] | None = None
    training: list[dict] = []
    for arm, seed, stages in _runs(experiment):
        job = next((job for job in stages.values() if job.door == EVALUATION), None)
        if job is None or not is_done(job, jobs):
            continue
        results = read_results(job.folder)
        first = first or results
        for dataset in results["datasets"]:
            known = datasets.setdefault(dataset["name"], dataset)
            if known.get("sha256") != dataset.get("sha256"):
                raise InputError(f"{job.folder} was measured on another {dataset['name']} than the runs before it.")
        _add(systems, results, _query_scores(job), arm, seed, job.folder)
        of_arm = [record for record in results["training"] if arm.label not in {t["system"] for t in training}]
        training += [{**record, "system": arm.label} for record in of_arm[:1]]
    if first is None:
        return None
    for system in systems.values():
        system.described |= _cost(system, experiment)
    tables = _Tables(list(systems.values()), list(datasets.values()))
    results = {
        "format": FORMAT,
        **provenance(),
        "command": experiment.command,
        "seed": 0,
        "environment": first["environment"],
        "statistics": STATISTICS,
        "datasets": tables.datasets,
        "systems": [system.described for system in systems.values()],
        "scores": list(tables.scores()),
        "comparisons": tables.comparisons(_pairs(experiment, systems)),
        "training": [record for record in training if record["system"] in systems],
    }
    named = {"name": experiment.name, "title": experiment.title, "question": experiment.question}
    missing = [
        f"{arm.label}, seed {seed}"
        for arm, seed, stages in _runs(experiment)
        if not all(is_done(job, jobs) for job in stages.values())
    ]
    results["experiment"] = {
        **named,
        "seeds": experiment.seeds,
        "control": experiment.control,
        "plot": experiment.plot,
        "missing": missing,
    }
    if missing:
        results["warnings"] = [f"Not all runs are there: {'; '.join(missing)}."]
    return results


# --- Reading ------------------------------------------------------------------------------------------------------


def _runs(experiment: Experiment) -> Iterator[tuple[Arm, int, dict[str, Job]]]:
    for arm in experiment.arms:
        for seed, stages in experiment.runs[arm.label].items():
            yield arm, seed, stages


def _query_scores(job: Job) -> dict[str, dict]:
    path = job.folder / "query_scores.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): remove {job.folder} and run it again.") from error


def _add(systems: dict[str, _System], results, query_scores, arm: Arm, seed: int, folder: Path):
    """The systems of an evaluation, under the name of their arm."""
    models = [s["name"] for s in results["systems"] if s["kind"] == "dense" and not s.get("random_weights")]
    for described in results["systems"]:
        own = described["name"]
        if own == BM25:
            name, suffix, of_arm = BM25, "", None
        elif described.get("random_weights"):
            name, suffix, of_arm = f"{arm.label}, random weights", ", random weights", arm
        else:
            model = max((m for m in models if own.startswith(m)), key=len)
            suffix = own.removeprefix(model) if len(models) == 1 else f": {own}"
            name, of_arm = arm.label + suffix, arm
        # of no regression: what it was trained from is another arm
        entry = {**described, "name": name, "started_from": "", "arm": arm.label if of_arm else None}
        if described.get("of"):
            entry["of"] = [part if part == BM25 else arm.label + part.removeprefix(models[0]) for part in entry["of"]]
        system = systems.setdefault(name, _System(name, of_arm, suffix, entry))
        if name == BM25 and system.folders:
            continue  # the same for all
        system.folders[seed] = folder
        system.of_queries[seed] = {dataset: scores[own] for dataset, scores in query_scores.items() if own in scores}
        system.values[seed] = {
            (score["dataset"], score["metric"]): score["value"]
            for score in results["scores"]
            if score["system"] == own and score["value"] is not None
        }


def _cost(system: _System, experiment: Experiment) -> dict[str, Any]:
    """Means over the seeds of what the stages of an arm have taken; all of it None or 0 where nothing was trained."""
    found: dict[str, list[float | None]] = {"tokens": [], "seconds": [], "wall_seconds": []}
    values = {} if system.arm is None else dict(system.arm.values)
    if system.arm is not None:
        for seed in system.folders:
            stages = experiment.runs[system.arm.label][seed].values()
            trained = [job for job in stages if job.door in TRAINING]
            of_stages = [(_tokens(job), _seconds(job), read_record(job).get("seconds")) for job in trained]
            for key, own in zip(found, zip(*of_stages, strict=True) if of_stages else [(0,)] * 3, strict=True):
                found[key].append(None if None in own else sum(own))
    means = {key: None if not own or None in own else sum(own) / len(own) for key, own in found.items()}
    return {"values": values, "runs": len(set(system.folders.values())), **means}


def _seconds(job: Job) -> float | None:
    return _json(job.folder / "all_results.json").get("train_runtime")


def _tokens(job: Job) -> int | None:
    """Without padding, as the Trainer counted them where `--include_num_input_tokens_seen` told it to."""
    return _json(job.folder / "trainer_state.json").get("num_input_tokens_seen") or None


def _json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


# --- Numbers ------------------------------------------------------------------------------------------------------


def _pairs(experiment: Experiment, systems: Mapping[str, _System]) -> list[tuple[_System, _System, str]]:
    """(system, what it is compared with, which comparisons are corrected together)."""
    pairs = []
    for system in systems.values():
        if system.arm is None or "random weights" in system.suffix:
            continue
        control = experiment.control_of(system.arm)
        if control is not None:
            name = control.label + system.suffix
            if not system.suffix and _is_bm25_alone(experiment, control):
                name = BM25  # has no system of its own name
            other = systems.get(name)
            pairs += [(system, other, "control")] if other is not None else []
        if system.described["kind"] in ("hybrid", "expansion") and BM25 in systems:
            pairs.append((system, systems[BM25], BM25))
    return pairs


def _is_bm25_alone(experiment: Experiment, arm: Arm) -> bool:
    jobs = [job for stages in experiment.runs[arm.label].values() for job in stages.values()]
    return not any("--model_name_or_path" in job.flags for job in jobs if job.door == EVALUATION)


class _Tables:
    """Scores and comparisons of the systems on each test set and on the averages of several."""

    def __init__(self, systems: Sequence[_System], datasets: Sequence[dict]):
        self.systems = systems
        kinds = {dataset["name"]: dataset["kind"] for dataset in datasets}
        # name of a column -> kind, and its test sets; each is one name, or two with the same queries
        self.columns: dict[str, tuple[str, list[tuple[str, ...]]]] = {n: (k, [(n,)]) for n, k in kinds.items()}
        self.datasets = [dict(dataset) for dataset in datasets]
        for name, kind in AVERAGES.items():
            parts = [(each,) for each, own in kinds.items() if own == kind]
            if kind == "both":
                searched = [each for each, own in kinds.items() if own == "retrieval"]
                pairs = [(s, r) for s in searched for r in kinds if r.startswith(f"{s} (reranked ")]
                parts = pairs if len(pairs) == len(searched) else []
            if len(parts) > 1 or (kind == "both" and parts):
                own_kind = "retrieval" if kind == "both" else kind
                self.columns[name] = (kind, parts)
                self.datasets.append({"name": name, "kind": own_kind, "of": ["; ".join(part) for part in parts]})

    def scores(self) -> Iterator[dict[str, Any]]:
        """The mean over seeds and queries of each system, with its interval."""
        for column, (kind, parts) in self.columns.items():
            for system in self.systems:
                seeds = _distinct(system)
                for metric in self._metrics(system, parts, kind):
                    matrices = _matrices(system, parts, metric, seeds)
                    if matrices is None:
                        continue
                    means_S = np.mean([matrix.mean(axis=1) for matrix in matrices], axis=0)
                    low, high = _interval(_bootstrap(matrices))
                    yield {
                        **{"dataset": column, "system": system.name, "metric": metric, "value": float(means_S.mean())},
                        **{"low": low, "high": high, "seed_std": _std(means_S), "runs": len(seeds)},
                        "queries": sum(matrix.shape[1] for matrix in matrices),
                    }
                yield from self._plain_scores(system, column, seeds)

    def _plain_scores(self, system: _System, column: str, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Measures that are no mean over texts, such as macro F1: no interval."""
        names = {metric for of in (system.values[s] for s in seeds) for dataset, metric in of if dataset == column}
        for metric in sorted(names, key=metric_order):
            if metric not in system.of_queries[seeds[0]].get(column, {}):
                values = np.array([system.values[seed].get((column, metric), np.nan) for seed in seeds])
                row = {"dataset": column, "system": system.name, "metric": metric, "value": float(values.mean())}
                yield {**row, "seed_std": _std(values), "runs": len(seeds)}

    def comparisons(self, pairs: Sequence[tuple[_System, _System, str]]) -> list[dict[str, Any]]:
        """Each pair on each column, seeds with the same number together; p corrected over the pairs of a family."""
        rows = []
        for column, (kind, parts) in self.columns.items():
            for family in dict.fromkeys(family for _, _, family in pairs):
                own = [(system, other) for system, other, of in pairs if of == family]
                metrics = {m for system, _ in own for m in self._metrics(system, parts, kind)}
                for metric in sorted(metrics, key=metric_order):
                    found = [_compare(system, other, parts, metric) for system, other in own]
                    kept = [
                        {"dataset": column, "metric": metric, "system": s.name, "baseline": o.name, **one}
                        for (s, o), one in zip(own, found, strict=True)
                        if one is not None
                    ]
                    adjusted = holm([row["p_value"] for row in kept]) if kept else []
                    rows += [{**row, "p_value_holm": p} for row, p in zip(kept, adjusted, strict=True)]
        return rows

    def _metrics(self, system: _System, parts: Sequence[tuple[str, ...]], kind: str) -> list[str]:
        """Those that each test set has of this system."""
        of_queries = system.of_queries[next(iter(system.of_queries))]
        sets = [set(of_queries.get(name, {})) for part in parts for name in part]
        wanted = METRICS.get("reranking" if kind == "both" else kind)
        common = set.intersection(*sets)
        return sorted(common if wanted is None else common & set(wanted), key=metric_order)


def _distinct(system: _System) -> list[int]:
    """One seed for each run."""
    first: dict[Path, int] = {}
    for seed, folder in system.folders.items():
        first.setdefault(folder, seed)
    return list(first.values())


def _matrices(system: _System, parts, metric: str, seeds: Sequence[int]) -> list[np.ndarray] | None:
    found = [system.matrix(part, metric, seeds) for part in parts]
    return None if any(matrix is None for matrix in found) else found


def _compare(system: _System, other: _System, parts, metric: str) -> dict[str, Any] | None:
    """System minus other. BM25, which has no seed, and whatever has one run only, stands beside every seed."""
    seeds = [seed for seed in system.folders if seed in other.folders]
    if len(set(other.folders.values())) == 1:
        seeds = list(system.folders)
    both: dict[tuple[Path, Path], tuple[int, int]] = {}
    for seed in seeds:
        of_other = seed if seed in other.folders else next(iter(other.folders))
        both.setdefault((system.folders[seed], other.folders[of_other]), (seed, of_other))
    if not both:
        return None
    ours = _matrices(system, parts, metric, [seed for seed, _ in both.values()])
    theirs = _matrices(other, parts, metric, [seed for _, seed in both.values()])
    if ours is None or theirs is None:
        return None
    if any(a.shape != b.shape for a, b in zip(ours, theirs, strict=True)):
        raise InputError(f"{system.name} and {other.name} were measured on different queries: run both again.")
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    of_queries = [np.where(np.isclose(d.mean(axis=0), 0, atol=1e-12), 0.0, d.mean(axis=0)) for d in differences]
    # each test set counts alike, however many queries it has
    weighted = np.concatenate([values / len(values) for values in of_queries])
    p_queries = paired_randomization_test(weighted, np.zeros_like(weighted))
    means_R = _bootstrap(differences)
    low, high = _interval(means_R)
    every = np.concatenate(of_queries)
    return {
        "difference": float(np.mean([values.mean() for values in of_queries])),
        "low": low,
        "high": high,
        "p_value": max(p_queries, bootstrap_p_value(means_R)),
        "p_value_queries": p_queries,
        "wins": int((every > 0).sum()),
        "losses": int((every < 0).sum()),
        "ties": int((every == 0).sum()),
        "runs": len(both),
    }


def _bootstrap(matrices: Sequence[np.ndarray]) -> np.ndarray:
    return crossed_bootstrap(matrices, resamples=RESAMPLES, generator=np.random.default_rng(0))


def _interval(means_R: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(means_R, [0.025, 0.975])
    return float(low), float(high)


def _std(values: np.ndarray) -> float | None:
    return float(values.std(ddof=1)) if len(values) > 1 else None
