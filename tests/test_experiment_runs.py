"""Jobs are run once, go on after a stop, and fail alone; with doors that take milliseconds."""

import json
import os
import signal
import time

import pytest
from experiment_doors import calls, experiment, write_doors, write_experiment_file

from retrieval_pretraining import experiment_runs
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.experiment_runs import is_done, jobs_to_run, read_record, run_jobs
from retrieval_pretraining.experiments import read_experiment


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with doors, data and an experiment."""
    monkeypatch.setattr(experiment_runs, "ROOT", write_doors(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(place, **changes):
    path = write_experiment_file(place / "mine.yaml", **changes)
    return read_experiment(path, data_dir=["data"], output_dir="out")


def run(found, wanted=None, **options):
    said = []
    outcome = run_jobs(found.jobs if wanted is None else wanted, found.jobs, say=said.append, **options)
    return outcome, "\n".join(said)


def test_what_is_done_is_not_done_again(place):
    found = plan(place)
    outcome, said = run(found)
    assert outcome.complete and outcome.done == 9 and outcome.done_before == 0
    assert len(calls(place)) == 9 and calls(place)[0] == "run_evaluation untouched/seed-0/evaluate"
    assert "[1 of 9] untouched, seed 0: evaluate\n" in said and "[9 of 9] long, seed 1: evaluate (about" in said
    record = read_record(found.jobs[1])
    assert record["status"] == 0 and record["command"].startswith("python run_pretrain.py --")
    assert record["seconds"] > 0
    assert (place / "out/short/seed-0/pretrain.log").read_text() == "training\n"
    outcome, said = run(plan(place))
    assert (outcome.done, outcome.done_before, said) == (0, 9, "") and len(calls(place)) == 9


def test_another_command_is_run_again_and_what_comes_after_it(place):
    run(plan(place))
    before = len(calls(place))
    arms = experiment()["arms"]
    arms["long"]["pretrain"]["max_steps"] = 301
    outcome, _ = run(plan(place, arms=arms))
    assert calls(place)[before:] == [
        f"run_{door} long/seed-{seed}/{stage}"
        for seed in (0, 1)
        for door, stage in (("pretrain", "pretrain"), ("evaluation", "evaluate"))
    ]
    assert outcome.done == 4 and outcome.done_before == 5


def test_a_later_stage_alone_is_run_again_when_only_it_has_changed(place):
    run(plan(place))
    before = len(calls(place))
    stages = experiment()["stages"]
    stages["evaluate"]["bm25"] = False
    run(plan(place, stages=stages))
    assert {call.split()[0] for call in calls(place)[before:]} == {"run_evaluation"}
    assert len(calls(place)) == before + 5


def test_a_stop_between_a_stage_and_the_next_leaves_nothing_old_behind(place):
    run(plan(place, seeds=[0]))
    stages = experiment()["stages"]
    arms = experiment()["arms"]
    arms["long"]["pretrain"]["max_steps"] = 301
    changed = plan(place, arms=arms, stages=stages, seeds=[0])
    trained, measured = changed.runs["long"][0].values()
    run(changed, [trained])
    by_folder = {job.folder: job for job in changed.jobs}
    # The same command as before, but of another model.
    assert is_done(trained, by_folder) and not is_done(measured, by_folder)
    outcome, _ = run(changed)
    assert outcome.done == 1 and calls(place)[-1] == "run_evaluation long/seed-0/evaluate"


def test_sigterm_stops_the_job_too(place, monkeypatch):
    found = plan(place, seeds=[0])
    before = signal.getsignal(signal.SIGTERM)
    original = experiment_runs.subprocess.Popen.wait

    def wait(process, *args):
        original(process, *args)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
        return 0

    monkeypatch.setattr(experiment_runs.subprocess.Popen, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        run(found)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_failing_arm_is_told_and_the_others_go_on(place):
    arms = experiment()["arms"]
    arms["unlucky"] = {"pretrain": {"max_steps": 13}}
    arms["last"] = {"pretrain": {"max_steps": 20}}
    found = plan(place, arms=arms, seeds=[0])
    outcome, said = run(found)
    assert not outcome.complete and outcome.done == 7
    assert outcome.failed == ["unlucky, seed 0: pretrain"] and outcome.left_out == ["unlucky, seed 0: evaluate"]
    assert "failed with status 3" in said and "    | error: thirteen brings bad luck" in said
    assert "out/unlucky/seed-0/pretrain.log" in said
    assert "run_evaluation last/seed-0/evaluate" in calls(place)
    assert "run_evaluation unlucky/seed-0/evaluate" not in calls(place)
    # The next time it is tried again, alone.
    before = len(calls(place))
    outcome, _ = run(found)
    assert outcome.failed and calls(place)[before:] == ["run_pretrain unlucky/seed-0/pretrain"]


def test_a_job_that_was_stopped_starts_anew_in_a_clean_folder(place, monkeypatch):
    found = plan(place, seeds=[0])
    waits = iter([None, None, KeyboardInterrupt()])
    original = experiment_runs.subprocess.Popen.wait

    def wait(process, *args):
        status = original(process, *args)  # so that it has left something
        problem = next(waits, None)
        if problem is not None:
            raise problem
        return status

    monkeypatch.setattr(experiment_runs.subprocess.Popen, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        run(found)
    assert len(calls(place)) == 3 and read_record(found.jobs[2])["status"] is None
    left = found.jobs[2].folder / "left.txt"
    left.write_text("half")
    outcome, _ = run(found)
    assert outcome.done == 3 and outcome.done_before == 2 and not left.exists()
    assert calls(place)[3:] == [
        *("run_evaluation short/seed-0/evaluate", "run_pretrain long/seed-0/pretrain"),
        "run_evaluation long/seed-0/evaluate",
    ]


def test_a_folder_that_is_not_ours_is_left_alone(place):
    found = plan(place, seeds=[0])
    (place / "out/short/seed-0/pretrain").mkdir(parents=True)
    (place / "out/short/seed-0/pretrain/precious.txt").write_text("mine")
    with pytest.raises(InputError, match="out/short/seed-0/pretrain is there, but no experiment made it"):
        run(found)
    assert (place / "out/short/seed-0/pretrain/precious.txt").exists()


def test_chosen_arms_take_along_what_they_need_only(place):
    found = plan(place)
    outcome, _ = run(found, found.jobs_of(["long"]))
    assert outcome.done == 4 and all(" long/" in call for call in calls(place))


def test_weights_are_removed_when_nobody_needs_them_and_made_again_for_who_does(place):
    found = plan(place, seeds=[0])
    outcome, _ = run(found, delete_weights=True)
    trained = next(job for job in found.jobs if job.what == "short, seed 0: pretrain")
    assert outcome.complete and not (trained.folder / "model.safetensors").exists()
    assert (trained.folder / "all_results.json").exists() and read_record(trained)["weights"] == "removed"
    by_folder = {job.folder: job for job in found.jobs}
    assert all(is_done(job, by_folder) for job in found.jobs) and jobs_to_run(found.jobs, found.jobs) == []
    before = len(calls(place))
    stages = experiment()["stages"]
    stages["evaluate"]["bm25"] = False  # the fake door fails without weights
    again = plan(place, seeds=[0], stages=stages)
    outcome, _ = run(again, again.jobs_of(["short"]))
    assert outcome.complete
    assert calls(place)[before:] == ["run_pretrain short/seed-0/pretrain", "run_evaluation short/seed-0/evaluate"]


def test_weights_stay_while_another_stage_waits_for_them(place):
    stages = experiment()["stages"]
    stages = {"pretrain": stages["pretrain"], "more": dict(stages["pretrain"]), "evaluate": stages["evaluate"]}
    stages["more"] |= {"max_steps": "{steps}", "unless": {"steps": 0}}
    more = {"for": {"steps": [0, 13, 20]}, "arms": {"a": {}}, "control": None, "seeds": [0]}
    found = plan(place, stages=stages, **more)
    first = found.jobs[0].folder / "model.safetensors"
    outcome, _ = run(found, delete_weights=True)
    assert outcome.failed == ["a, steps 13, seed 0: more"]
    assert first.exists()  # for the one that failed
    assert not (place / "out/a-steps-20/seed-0/more/model.safetensors").exists()


def test_the_time_that_is_left_is_guessed_by_stage(place):
    found = plan(place, seeds=[0])
    by_stage = {"pretrain": 600.0, "evaluate": 30.0}
    clock = experiment_runs._Clock([], [])
    assert clock.left(found.jobs) == ""
    for stage, seconds in by_stage.items():
        clock.add(next(job for job in found.jobs if job.stage == stage), seconds)
    assert clock.left(found.jobs) == " (about 22 min left)"  # 2 x 10 min and 3 x 30 s
    assert experiment_runs._duration(40) == "40 s" and experiment_runs._duration(9000) == "2.5 h"


def test_a_record_that_is_broken_counts_as_none(place):
    found = plan(place, seeds=[0])
    run(found)
    record = found.jobs[0].folder.with_name("evaluate.json")
    assert json.loads(record.read_text())["status"] == 0
    record.write_text('{"status"')
    assert read_record(found.jobs[0]) == {}
    outcome, _ = run(found)
    assert outcome.done == 1
