"""Doors that take milliseconds, with the flags and the files of the real ones, and an experiment to run with them.

A model's quality is its steps / 1000 plus a part of its seed; a search finds each query with that quality plus a part
of the query. `calls.txt` beside the doors has a line for every call. 13 steps fail, as does a model without weights.
"""

from pathlib import Path

import yaml

_COMMON = """
import json, sys
from pathlib import Path
here = Path(__file__).parent
flags, name = {}, None
for word in sys.argv[1:]:
    if word.startswith("--"):
        name = word[2:]
        flags[name] = []
    else:
        flags[name].append(word)
one = {name: values[0] if values else True for name, values in flags.items()}
with open(here / "calls.txt", "a") as calls:
    calls.write(Path(__file__).stem + " " + one["output_dir"] + "\\n")
output = Path(one["output_dir"])
assert not (output / "model.safetensors").exists(), "holds the model of an earlier run"
output.mkdir(parents=True, exist_ok=True)
"""

_PRETRAIN = (
    _COMMON
    + """
steps, seed = int(one["max_steps"]), int(one["seed"])
print("training")
if steps == 13:
    print("error: thirteen brings bad luck", file=sys.stderr)
    sys.exit(3)
assert "train_file" in flags
(output / "model.safetensors").write_text(str(steps / 1000 + seed / 100))
(output / "all_results.json").write_text(json.dumps({"train_runtime": steps / 10}))
(output / "trainer_state.json").write_text(json.dumps({"num_input_tokens_seen": 50 * steps}))
"""
)

_EVALUATE = (
    _COMMON
    + """
assert "save_query_scores" in flags
systems, rows, of_queries, datasets = [], [], {}, []
if one.get("bm25") == "True":
    systems.append({"name": "BM25", "kind": "bm25"})
for model in flags.get("model_name_or_path", []):
    systems.append({"name": Path(model).name, "kind": "dense", "parameters": 7, "path": model})
    if one.get("hybrid") != "none" and one.get("bm25") == "True":
        systems.append({"name": Path(model).name + " + BM25", "kind": "hybrid", "of": ["BM25"], "path": model})
    if one.get("generation") == "True":
        own = Path(model).name
        expansion = {"kind": "expansion", "of": [own, "BM25"], "path": model}
        systems.append({"name": own + ", queries expanded for BM25", **expansion})
    if one.get("lexical") == "True":
        own = [Path(model).name, Path(model).name + ", lexical"]
        systems.append({"name": own[1], "kind": "lexical", "of": own[:1], "path": model})
        systems.append({"name": Path(model).name + ", joint", "kind": "hybrid", "of": own, "path": model})
for folder in flags["eval_retrieval_dir"]:
    data = Path(folder).name
    names = [data] + ([data + " (reranked BM25 100)"] if "rerank_candidates" in flags else [])
    for name in names:
        kind = "retrieval" if name == data else "reranking"
        datasets.append({"name": name, "kind": kind, "sha256": (Path(folder) / "hash").read_text()})
        of_queries[name] = {}
        for system in systems:
            if "path" in system:
                weights = Path(system["path"]) / "model.safetensors"
                quality = float(weights.read_text()) if weights.exists() else 0.05 * (system["path"] == "start")
                assert quality, "no weights in " + system["path"]
            else:
                quality = 0.4
            if system["kind"] in ("hybrid", "expansion") and name != data:
                continue
            shift = len(data) / 100 + (0.1 if name != data else 0)
            of_queries[name][system["name"]] = {
                metric: {f"q{i}": min(1.0, quality + shift + i / 40 * factor) for i in range(8)}
                for metric, factor in (("ndcg@10", 1), ("mrr@10", 2), ("recall@100", 3), ("map", 1))
            }
            for metric, values in of_queries[name][system["name"]].items():
                value = sum(values.values()) / len(values)
                rows.append({"dataset": name, "system": system["name"], "metric": metric, "value": value})
    if one.get("generation") == "True":
        datasets.append({"name": data + " (generation)", "kind": "generation"})
        written = [system["name"] for system in systems if system["kind"] == "dense"]
        score = {"dataset": data + " (generation)", "metric": "perplexity", "value": 90 + len(data)}
        rows += [{**score, "system": name} for name in written]
results = {"format": 1, "datasets": datasets, "systems": systems, "scores": rows, "environment": {"python": "3"}}
(output / "results.json").write_text(json.dumps(results))
(output / "query_scores.json").write_text(json.dumps(of_queries))
"""
)


def write_doors(folder: Path) -> Path:
    """The doors, and data for them, in a folder."""
    (folder / "run_pretrain.py").write_text(_PRETRAIN, encoding="utf-8")
    (folder / "run_evaluation.py").write_text(_EVALUATE, encoding="utf-8")
    for name in ("one", "other"):
        (folder / "data" / name).mkdir(parents=True)
        (folder / "data" / name / "hash").write_text(name, encoding="utf-8")
    return folder


def experiment(**changes) -> dict:
    """Three arms over two seeds; `None` leaves a key out."""
    written = {
        "title": "long against short",
        "question": "Is longer better?",
        "seeds": [0, 1],
        "control": "short",
        "model": "start",
        "stages": {
            "pretrain": {
                "door": "run_pretrain.py",
                "model_name_or_path": "{model}",
                "train_file": ["{data}/one"],
                "max_steps": 100,
            },
            "evaluate": {
                "door": "run_evaluation.py",
                "model_name_or_path": "{model}",
                "eval_retrieval_dir": ["{data}/one", "{data}/other"],
                "rerank_candidates": "bm25",
                "bm25": True,
                "hybrid": "none",
                "seed": 42,
            },
        },
        "arms": {"untouched": {"pretrain": None}, "short": {}, "long": {"pretrain": {"max_steps": 300}}},
        **changes,
    }
    return {name: value for name, value in written.items() if value is not None}


def write_experiment_file(path: Path, **changes) -> Path:
    path.write_text(yaml.safe_dump(experiment(**changes), sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def calls(folder: Path) -> list[str]:
    """What was called, in order: "run_pretrain long/seed-0/pretrain"."""
    path = folder / "calls.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pairs = [line.split(" ", 1) for line in lines]
    return [f"{door} {'/'.join(Path(output).parts[-3:])}" for door, output in pairs]
