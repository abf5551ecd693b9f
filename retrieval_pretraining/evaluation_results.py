"""What an evaluation found, collected: scores with intervals, comparisons, examples. `as_dict` is what is written.

The schema of that dict stands in `results_file.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retrieval_pretraining.results_file import write_whole
from retrieval_pretraining.retrieval_data import RetrievalData, Run
from retrieval_pretraining.retrieval_metrics import ALL_MEASURES, retrieval_metrics
from retrieval_pretraining.significance import bootstrap_interval, holm, paired_comparison

COMPARED = ("ndcg@10", "mrr@10", "recall@100")  # the others are in the scores
STATISTICS = {
    "test": "paired randomisation test over the queries, 100,000 permutations",
    "interval": "percentile bootstrap over the queries, 10,000 resamples",
    "level": 0.05,
}
SHOWN_METRIC = "ndcg@10"
SHOWN_QUERIES = 5  # gains, and as many losses
SHOWN_DOCUMENTS = 3
SHOWN_CHARACTERS = 400


class EvaluationResults:
    """Rows are added as they are measured; the comparisons are made when all of a dataset are there."""

    def __init__(self, *, seed: int):
        self.seed = seed
        self.datasets: list[dict] = []
        self.systems: list[dict] = []
        self.scores: list[dict] = []
        self.comparisons: list[dict] = []
        self.health: list[dict] = []
        self.training: list[dict] = []
        self.warnings: list[str] = []
        details = ("queries", "query_differences", "similarities", "map", "generated")
        self.details: dict[str, list] = {name: [] for name in details}
        self._per_query: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
        self._runs: dict[tuple[str, str], Run] = {}

    def add_system(self, name: str, **fields):
        if all(system["name"] != name for system in self.systems):
            self.systems.append({"name": name, **fields})

    def add_score(self, dataset: str, system: str, metric: str, value: float, **more):
        self.scores.append({"dataset": dataset, "system": system, "metric": metric, "value": float(value), **more})

    def add_run(self, dataset: str, system: str, run: Run, qrels: dict[str, dict[str, int]]):
        """All retrieval measures of a ranking, with 95 % intervals over the queries."""
        # A system that finds nothing for a query is no mistake of the user here: it scores 0.
        complete = {query: run.get(query, {}) for query in qrels}
        values = retrieval_metrics(complete, qrels, measures=ALL_MEASURES, per_query=True)
        self._per_query[dataset, system] = values
        self._runs[dataset, system] = run
        for metric, of_query in values.items():
            low, high = bootstrap_interval(list(of_query.values()), seed=self.seed)
            mean = sum(of_query.values()) / len(of_query)
            self.add_score(dataset, system, metric, mean, low=low, high=high, queries=len(of_query))

    def add_right(self, dataset: str, system: str, metric: str, right: Sequence[float]):
        """How often each text of a classification was given its label, from 0 to 1; `metric` is the mean of them."""
        values = {str(number): float(share) for number, share in enumerate(right)}
        self._per_query.setdefault((dataset, system), {})[metric] = values

    def run(self, dataset: str, system: str) -> Run:
        return self._runs[dataset, system]

    def compare(self, dataset: str, baselines: Sequence[str], data: RetrievalData):
        """Each system with each baseline, a pair of systems once; then the queries that differ most."""
        systems = [system for of, system in self._per_query if of == dataset]
        pairs: list[tuple[str, str]] = []
        for baseline in (name for name in dict.fromkeys(baselines) if name in systems):
            others = (system for system in systems if system != baseline and (baseline, system) not in pairs)
            pairs += [(system, baseline) for system in others]
        for metric in COMPARED:
            found = [
                paired_comparison(
                    self._per_query[dataset, system][metric],
                    self._per_query[dataset, baseline][metric],
                    seed=self.seed,
                )
                for system, baseline in pairs
            ]
            adjusted = holm([one.p_value for one in found]) if found else []
            for (system, baseline), one, p_holm in zip(pairs, found, adjusted, strict=True):
                row = {"dataset": dataset, "metric": metric, "system": system, "baseline": baseline}
                self.comparisons.append({**row, **asdict(one), "p_value_holm": p_holm})
        for system, baseline in pairs:
            self._show_queries(dataset, system, baseline, data)

    def _show_queries(self, dataset: str, system: str, baseline: str, data: RetrievalData):
        """The queries that gain and lose most, with what was found."""
        ours, theirs = (self._per_query[dataset, name][SHOWN_METRIC] for name in (system, baseline))
        difference = {query: ours[query] - theirs[query] for query in data.query_ids}
        order = sorted(difference, key=difference.__getitem__)
        same = {"dataset": dataset, "metric": SHOWN_METRIC, "system": system, "baseline": baseline}
        rounded = [round(value, 4) for value in difference.values()]
        self.details["query_differences"].append({**same, "query_ids": list(difference), "differences": rounded})
        gains = [query for query in order[::-1][:SHOWN_QUERIES] if difference[query] > 0]
        losses = [query for query in order[:SHOWN_QUERIES] if difference[query] < 0]
        text_of_query = dict(zip(data.query_ids, data.query_texts, strict=True))
        text_of_document = dict(zip(data.corpus_ids, data.corpus_texts, strict=True))
        for query in (*gains, *losses):
            shown = [
                [
                    {
                        "id": document,
                        "text": text_of_document[document][:SHOWN_CHARACTERS],
                        "relevant": data.qrels[query].get(document, 0) > 0,
                    }
                    for document in list(self._runs[dataset, name].get(query, {}))[:SHOWN_DOCUMENTS]
                ]
                for name in (system, baseline)
            ]
            self.details["queries"].append(
                {
                    **same,
                    "query_id": query,
                    "query": text_of_query[query][:SHOWN_CHARACTERS],
                    "value": ours[query],
                    "baseline_value": theirs[query],
                    "found": shown[0],
                    "baseline_found": shown[1],
                }
            )

    def write_runs(self, folder: Path) -> list[Path]:
        """All rankings as TREC run files, `dataset.system.trec`, for other tools."""
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for (dataset, system), run in self._runs.items():
            name = re.sub(r"[^\w.+-]+", "_", f"{dataset}.{system}")
            tag = re.sub(r"\s+", "_", system)
            lines = (
                f"{query} Q0 {document} {rank} {score:.9g} {tag}\n"
                for query, found in run.items()
                for rank, (document, score) in enumerate(found.items(), start=1)
            )
            files.append(folder / f"{name}.trec")
            files[-1].write_text("".join(lines), encoding="utf-8")
        return files

    def write_query_scores(self, path: Path) -> Path:
        """Dataset -> system -> measure -> query id, or number of a text -> value; as JSON."""
        scores: dict[str, dict[str, dict]] = {}
        for (dataset, system), values in self._per_query.items():
            scores.setdefault(dataset, {})[system] = values
        return write_whole(path, json.dumps(scores, ensure_ascii=False).encode("utf-8", errors="backslashreplace"))

    def as_dict(self, **fields) -> dict[str, Any]:
        """`fields` are what is known from outside: when and where it ran, and how it was asked for."""
        names = ("datasets", "systems", "scores", "comparisons", "health", "warnings", "training", "details")
        found = {name: getattr(self, name) for name in names}
        # What a number is measured against stands first, what is made of others last.
        found["systems"] = sorted(self.systems, key=_rank)
        return {"format": 1, **fields, "seed": self.seed, "statistics": STATISTICS, **found}


def describe_retrieval(data: RetrievalData, *, path: str, split: str, language: str, sampled: bool) -> dict:
    """The entry of a BEIR folder in `datasets`."""
    content = [data.corpus_ids, data.corpus_texts, data.query_ids, data.query_texts, data.qrels]
    return {
        "name": data.name,
        "kind": "retrieval",
        "path": path,
        "split": split,
        "documents": len(data.corpus_ids),
        "queries": len(data.query_ids),
        "judged": sum(map(len, data.qrels.values())),
        "language": language,
        "sampled": sampled,
        "sha256": content_hash(content),
    }


def content_hash(content) -> str:
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()


def _rank(system: dict) -> int:
    kinds = ("bm25", "random", "dense", "chunks", "lexical", "hybrid", "expansion")
    return kinds.index("random" if system.get("random_weights") else system["kind"])
