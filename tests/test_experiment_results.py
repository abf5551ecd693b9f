"""From runs to numbers: means, intervals over seeds and queries, paired differences, averages, costs."""

import json

import numpy as np
import pytest
from experiment_doors import experiment, write_doors, write_experiment_file
from reference.bootstrap_oracle import every_crossed_mean, quantile

from retrieval_pretraining import experiment_results, experiment_runs
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.experiment_results import collect_results
from retrieval_pretraining.experiment_runs import run_jobs
from retrieval_pretraining.experiments import read_experiment
from retrieval_pretraining.results_file import validate_results
from retrieval_pretraining.significance import holm, paired_randomization_test


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment_runs, "ROOT", write_doors(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(place, **changes):
    path = write_experiment_file(place / "mine.yaml", **changes)
    return read_experiment(path, data_dir=["data"], output_dir="out/mine")


def results_of(place, **changes):
    found = plan(place, **changes)
    run_jobs(found.jobs, found.jobs, say=lambda message: None)
    return validate_results(collect_results(found))


def score(results, dataset, system, metric="ndcg@10"):
    rows = [s for s in results["scores"] if (s["dataset"], s["system"], s["metric"]) == (dataset, system, metric)]
    assert len(rows) == 1, (dataset, system, metric)
    return rows[0]


def comparison(results, dataset, system, metric="ndcg@10", baseline="short"):
    wanted = (dataset, system, metric, baseline)
    rows = [c for c in results["comparisons"] if (c["dataset"], c["system"], c["metric"], c["baseline"]) == wanted]
    assert len(rows) == 1, wanted
    return rows[0]


# what the doors measure: quality (steps / 1000 + seed / 100), a part of the dataset's name, one of the query
ONE = 0.03 + np.arange(8) / 40
OTHER = 0.05 + np.arange(8) / 40


def test_scores_are_means_over_seeds_and_queries(place):
    results = results_of(place)
    assert [system["name"] for system in results["systems"]] == ["BM25", "untouched", "short", "long"]
    long = score(results, "one", "long")
    assert long["value"] == pytest.approx(0.3 + 0.005 + ONE.mean())
    assert long["seed_std"] == pytest.approx(np.std([0.30, 0.31], ddof=1)) and long["runs"] == 2
    assert long["low"] < long["value"] < long["high"] and long["queries"] == 8
    untouched = score(results, "one", "untouched")
    assert untouched["value"] == pytest.approx(0.05 + ONE.mean())
    assert untouched["runs"] == 1 and untouched["seed_std"] is None
    assert score(results, "one", "BM25")["value"] == pytest.approx(0.4 + ONE.mean())
    assert {s["metric"] for s in results["scores"]} == {"ndcg@10", "mrr@10", "recall@100"}  # not MAP


def test_an_interval_is_that_of_every_draw_of_seeds_and_queries(place, monkeypatch):
    monkeypatch.setattr(experiment_results, "RESAMPLES", 20_000)
    stages = experiment()["stages"]
    del stages["evaluate"]["rerank_candidates"]
    stages["evaluate"]["eval_retrieval_dir"] = ["{data}/one"]
    found = plan(place, arms={"short": {}, "long": {"pretrain": {"max_steps": 300}}}, stages=stages)
    run_jobs(found.jobs, found.jobs, say=lambda message: None)
    for arm in ("short", "long"):
        for seed in (0, 1):  # 4 queries, so that all draws can be counted
            file = found.runs[arm][seed]["evaluate"].folder / "query_scores.json"
            scores = json.loads(file.read_text())
            for systems in scores.values():
                for metrics in systems.values():
                    for metric in metrics:
                        metrics[metric] = dict(list(metrics[metric].items())[:4])
            file.write_text(json.dumps(scores))
    results = collect_results(found)
    cells = [[0.3 + seed / 100 + value for value in ONE[:4]] for seed in (0, 1)]
    every = every_crossed_mean([cells])
    long = score(results, "one", "long")
    assert long["value"] == pytest.approx(np.mean(every))
    assert long["low"] == pytest.approx(quantile(every, 0.025), abs=0.004)
    assert long["high"] == pytest.approx(quantile(every, 0.975), abs=0.004)


def test_averages_are_over_test_sets_and_a_set_is_searched_and_reranked(place):
    results = results_of(place)
    names = [dataset["name"] for dataset in results["datasets"]]
    reranked = ["one (reranked BM25 100)", "other (reranked BM25 100)"]
    averages = ["average of retrieval", "average of reranking", "average of retrieval and reranking"]
    assert set(names) == {"one", "other", *reranked, *averages} and names[-3:] == averages
    retrieval = score(results, "average of retrieval", "long")["value"]
    reranking = score(results, "average of reranking", "long")["value"]
    assert retrieval == pytest.approx(0.305 + (ONE.mean() + OTHER.mean()) / 2)
    assert reranking == pytest.approx(np.mean([score(results, name, "long")["value"] for name in reranked]))
    both = score(results, "average of retrieval and reranking", "long")
    assert both["value"] == pytest.approx((retrieval + reranking) / 2)
    # A reranked set has the queries of the searched one: they are drawn together, and its interval is as wide.
    alone = score(results, "average of retrieval", "long")
    assert both["high"] - both["low"] == pytest.approx(alone["high"] - alone["low"], rel=0.05)
    assert all(s["dataset"] not in (*reranked, averages[1]) for s in results["scores"] if s["metric"] == "recall@100")


def test_differences_are_paired_by_seed_and_query(place):
    results = results_of(place)
    found = comparison(results, "one", "long")
    # The seeds' part is the same on both sides and falls out.
    assert found["difference"] == pytest.approx(0.2) and found["runs"] == 2
    assert found["low"] == pytest.approx(0.2) and found["high"] == pytest.approx(0.2)
    assert (found["wins"], found["losses"], found["ties"]) == (8, 0, 0)
    # All 8 queries on one side: 2 of 2^8 patterns.
    assert found["p_value_queries"] == 2 / 256 and found["p_value"] == 2 / 256
    others = [c["p_value"] for c in results["comparisons"] if (c["dataset"], c["metric"]) == ("one", "ndcg@10")]
    adjusted = [c["p_value_holm"] for c in results["comparisons"] if (c["dataset"], c["metric"]) == ("one", "ndcg@10")]
    assert adjusted == holm(others) and len(others) == 2
    # One run beside two: each of the two is compared with it.
    untouched = comparison(results, "one", "untouched")
    assert untouched["difference"] == pytest.approx(0.05 - 0.105) and untouched["runs"] == 2
    assert untouched["high"] - untouched["low"] == pytest.approx(0.01)  # of the seeds


def test_p_of_an_average_weighs_test_sets_alike(place):
    found = plan(place)
    run_jobs(found.jobs, found.jobs, say=lambda message: None)
    for arm, gains in (("short", [0.0] * 3), ("long", [0.3, -0.1, -0.1])):
        for seed in (0, 1):  # the other set has 3 queries
            file = found.runs[arm][seed]["evaluate"].folder / "query_scores.json"
            scores = json.loads(file.read_text())
            for dataset in ("other", "other (reranked BM25 100)"):
                for metrics in scores[dataset].values():
                    metrics["ndcg@10"] = {f"q{i}": 0.4 + gain for i, gain in enumerate(gains)}
            file.write_text(json.dumps(scores))
    run = found.runs["untouched"][0]["evaluate"].folder / "query_scores.json"
    run.write_text((found.runs["short"][0]["evaluate"].folder / "query_scores.json").read_text())
    scores = json.loads(run.read_text())
    for systems in scores.values():
        systems["start"] = systems.pop("pretrain")
    run.write_text(json.dumps(scores))
    one = comparison(collect_results(found), "average of retrieval", "long")
    assert one["difference"] == pytest.approx((0.2 + 0.1 / 3) / 2)
    weighted = [0.2 / 8] * 8 + [0.3 / 3, -0.1 / 3, -0.1 / 3]
    assert one["p_value_queries"] == pytest.approx(paired_randomization_test(weighted, [0.0] * 11))
    assert one["p_value_queries"] != pytest.approx(
        paired_randomization_test([0.2] * 8 + [0.3, -0.1, -0.1], [0.0] * 11)
    )


def test_seeds_that_disagree_are_not_significant_however_many_queries(place):
    # With seed 0 the arm is better on all queries, with seed 1 worse: over the queries alone it would be certain.
    found = plan(place)
    run_jobs(found.jobs, found.jobs, say=lambda message: None)
    for seed, shift in ((0, 0.30), (1, -0.20)):
        file = found.runs["long"][seed]["evaluate"].folder / "query_scores.json"
        base = json.loads((found.runs["short"][seed]["evaluate"].folder / "query_scores.json").read_text())
        for systems in base.values():
            systems["evaluate" if "evaluate" in systems else "pretrain"] = {
                metric: {query: value + shift for query, value in values.items()}
                for metric, values in systems["pretrain"].items()
            }
        file.write_text(json.dumps(base))
    found = comparison(collect_results(found), "one", "long")
    assert found["difference"] == pytest.approx(0.05)
    assert found["p_value_queries"] < 0.01
    assert found["p_value"] > 0.2 and found["low"] < 0 < found["high"]


def test_hybrids_are_compared_with_bm25_and_with_those_of_the_control(place):
    stages = experiment()["stages"]
    stages["evaluate"]["hybrid"] = "z_score"
    results = results_of(place, stages=stages)
    assert comparison(results, "one", "long + BM25", baseline="BM25")["difference"] == pytest.approx(-0.095)
    assert comparison(results, "one", "long + BM25", baseline="short + BM25")["difference"] == pytest.approx(0.2)
    system = next(s for s in results["systems"] if s["name"] == "long + BM25")
    assert system["of"] == ["BM25"] and system["kind"] == "hybrid"


def test_expanded_queries_are_compared_with_bm25_and_what_was_written_is_kept(place):
    stages = experiment()["stages"]
    stages["evaluate"]["generation"] = True
    results = results_of(place, stages=stages)
    name = "long, queries expanded for BM25"
    assert comparison(results, "one", name, baseline="BM25")["difference"] == pytest.approx(-0.095)
    assert next(s for s in results["systems"] if s["name"] == name)["of"] == ["long", "BM25"]
    assert score(results, "one (generation)", "long", "perplexity")["value"] == 93


def test_lexical_search_and_both_together_are_compared_with_those_of_the_control(place):
    stages = experiment()["stages"]
    stages["evaluate"]["lexical"] = True
    results = results_of(place, stages=stages)
    systems = {system["name"]: system for system in results["systems"]}
    assert systems["long, joint"]["of"] == ["long", "long, lexical"] and systems["long, lexical"]["runs"] == 2
    for what in ("lexical", "joint"):
        found = comparison(results, "one", f"long, {what}", baseline=f"short, {what}")
        assert found["difference"] == pytest.approx(0.2)


def test_an_arm_of_bm25_alone_can_be_the_control(place):
    arms = {"words": {"pretrain": None, "evaluate": {"model_name_or_path": None, "rerank_candidates": None}}}
    results = results_of(place, arms={**arms, "long": {}}, control="words")
    assert comparison(results, "one", "long", baseline="BM25")["runs"] == 2


def test_costs_are_summed_over_the_stages_and_averaged_over_the_seeds(place):
    stages = experiment()["stages"]
    stages = {"pretrain": stages["pretrain"], "more": dict(stages["pretrain"]), "evaluate": stages["evaluate"]}
    stages["more"]["max_steps"] = 50
    results = results_of(place, stages=stages, arms={"untouched": {"pretrain": None, "more": None}, "short": {}})
    cost = {system["name"]: (system["tokens"], system["seconds"]) for system in results["systems"]}
    assert cost["short"] == (50 * 150, 15.0) and cost["untouched"] == (0, 0)
    assert all(s["wall_seconds"] > 0 for s in results["systems"] if s["name"] == "short")


def test_what_is_missing_is_said_and_what_is_there_is_shown(place):
    found = plan(place)
    assert collect_results(found) is None
    wanted = [*found.jobs_of(["untouched"]), *found.runs["long"][0].values()]
    run_jobs(wanted, found.jobs, say=lambda message: None)
    results = validate_results(collect_results(found))
    assert results["experiment"]["missing"] == ["short, seed 0", "short, seed 1", "long, seed 1"]
    assert {system["name"] for system in results["systems"]} == {"BM25", "untouched", "long"}
    assert results["comparisons"] == []  # there is no control yet
    assert "Not all runs are there" in results["warnings"][0]


def test_runs_on_other_data_are_not_mixed(place):
    found = plan(place)
    run_jobs(found.jobs_of(["short"]), found.jobs, say=lambda message: None)
    (place / "data/one/hash").write_text("changed")
    run_jobs(found.jobs, found.jobs, say=lambda message: None)
    with pytest.raises(InputError, match="was measured on another one than the runs before it"):
        collect_results(found)
