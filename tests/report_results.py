"""Small results in the schema of `results_file.py`, with one of everything that a report shows."""

import re
from typing import Any

import numpy as np

SYSTEMS = ("BM25", "random", "before", "after", "after + BM25")


def texts_of(svg: str) -> list[str]:
    """What is written in a panel."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def title_of(svg: str) -> str:
    """The bold text of a panel."""
    return re.search(r"<text[^>]*font-weight: 700[^>]*>([^<]*)</text>", svg).group(1)


def label_of(svg: str) -> str:
    """What a panel is to those who cannot see it."""
    return re.search('aria-label="([^"]*)"', svg).group(1)


def bm25_only() -> dict[str, Any]:
    """The least there is: one system, one dataset, one metric."""
    return {
        "format": 1,
        "created": "2026-11-30T02:00:00+00:00",
        "command": "python run_evaluation.py --bm25",
        "seed": 42,
        "environment": {"python": "3.11.7"},
        "datasets": [{"name": "scifact", "kind": "retrieval", "documents": 5183, "queries": 300}],
        "systems": [{"name": "BM25", "kind": "bm25", "description": "lucene, k1 0.9, b 0.4; English stems"}],
        "scores": [score("scifact", "BM25", "ndcg@10", 0.676, 0.63, 0.72)],
    }


def score(dataset: str, system: str, metric: str, value: float | None, low=None, high=None) -> dict[str, Any]:
    """A record of `scores`."""
    interval = {} if low is None else {"low": low, "high": high}
    return {"dataset": dataset, "system": system, "metric": metric, "value": value, **interval, "queries": 300}


def comparison(dataset, system, baseline, difference, *, p_value=0.0001, metric="ndcg@10") -> dict[str, Any]:
    """A record of `comparisons`."""
    return {
        **{"dataset": dataset, "metric": metric, "system": system, "baseline": baseline, "difference": difference},
        **{"low": difference - 0.03, "high": difference + 0.03, "p_value": p_value},
        **{"wins": 120, "losses": 60, "ties": 120},
    }


def full(queries: int = 40, points: int = 30, datasets: tuple = ("scifact", "中文问答")) -> dict[str, Any]:
    """Two datasets, English and Chinese, five systems, and every list filled; the same each time."""
    random = np.random.default_rng(0)
    results = bm25_only()
    results["statistics"] = {"test": "paired randomisation test", "interval": "bootstrap", "level": 0.05}
    results["datasets"] += [
        {"name": "中文问答", "kind": "retrieval", "documents": 4955, "queries": 1500, "language": "zh"}
    ]
    dense = {
        **{"kind": "dense", "model_name_or_path": "outputs/mine", "model_type": "retromae", "pooling": "cls"},
        **{"query_prompt": "query: ", "document_prompt": "", "max_seq_length": 256, "dtype": "float32"},
        **{"vector_size": 128, "parameters": 3_000_000, "weights_sha256": "ab" * 32},
    }
    results["systems"] += [
        {"name": "random", **dense, "random_weights": True},
        {"name": "before", **dense},
        {"name": "after", **dense, "started_from": "before"},
        {"name": "after + BM25", "kind": "hybrid", "of": ["after", "BM25"], "method": "z_score", "weights": [1, 1]},
    ]
    results["scores"] = []
    results["comparisons"], results["health"] = [], []
    details = results["details"] = {"queries": [], "query_differences": [], "similarities": [], "map": []}
    for dataset in datasets:
        for metric in ("ndcg@10", "recall@100", "mrr@10"):
            for system, value in zip(SYSTEMS, (0.676, 0.077, 0.212, 0.342, 0.694), strict=True):
                results["scores"].append(score(dataset, system, metric, value, value - 0.04, value + 0.04))
            for baseline, own in (("BM25", 0.676), ("before", 0.212)):
                results["comparisons"] += [
                    comparison(dataset, "after", baseline, 0.342 - own, metric=metric),
                    comparison(dataset, "after + BM25", baseline, 0.694 - own, p_value=0.3, metric=metric),
                ]
        pair = {"dataset": dataset, "metric": "ndcg@10", "system": "after", "baseline": "before"}
        differences = random.normal(0.1, 0.4, queries).clip(-1, 1).round(3)
        details["query_differences"].append({**pair, "differences": differences})
        for value, baseline_value in ((1.0, 0.0), (0.0, 0.63)):
            details["queries"].append(
                {
                    **pair,
                    **{"query_id": "q1", "query": "什么是<script>alert(1)</script>语言模型？"},
                    **{"value": value, "baseline_value": baseline_value},
                    "found": [{"id": "d1", "text": "语言模型预测下一个词。", "relevant": True}],
                    "baseline_found": [
                        {"id": "d2", "text": "Attack <img src=x onerror=alert(1)> & more", "relevant": False}
                    ],
                }
            )
        for system, apart in (("before", 0.05), ("after", 0.3)):
            cosines = {"related": random.normal(0.5 + apart, 0.1, 60), "random": random.normal(0.5, 0.1, 60)}
            details["similarities"].append({"dataset": dataset, "system": system, **cosines})
            results["health"].append(
                {
                    **{"dataset": dataset, "system": system, "positive_cosine_mean": 0.5 + apart, "auc": 0.5 + apart},
                    **{"positive_cosine_std": 0.1, "random_cosine_mean": 0.5, "random_cosine_std": 0.1},
                    **{"alignment": 0.8, "uniformity": -1.9, "isotropy": 0.1, "collapsed": False},
                }
            )
            details["map"].append(
                {
                    **{"dataset": dataset, "system": system, "points": random.normal(0, 1, (points, 2))},
                    **{"groups": np.arange(points) % 2, "group_names": ["queries", "documents"]},
                    "texts": [f"text {number} <b> 文本" for number in range(points)],
                }
            )
    history = [{"step": s, "loss": 12 - s / 20, "lm_loss": 10 - s / 20, "contrastive_loss": 2.0} for s in (10, 20, 30)]
    history += [{"step": s, "eval_lm_loss": 10 - s / 25, "eval_retrieval_ndcg@10": s / 100} for s in (10, 20, 30)]
    results["training"] = [{"system": "after", "log_history": [*history, {"step": 30, "train_loss": 11.0}]}]
    results["warnings"] = ["qrels of scifact: 3 of 339 judged documents are not in the corpus."]
    return results
