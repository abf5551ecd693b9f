"""The plan of an experiment: which commands its arms and seeds are, and one sentence for what is wrong with a file."""

from dataclasses import fields
from pathlib import Path

import pytest
from experiment_doors import experiment, write_experiment_file

import mine_pairs
import run_evaluation
import run_pretrain
from retrieval_pretraining import experiments
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.experiments import check_inputs, read_experiment

ROOT = Path(__file__).parents[1]


def plan(folder: Path, *, data_dir=("data",), seeds=None, **changes):
    path = write_experiment_file(folder / "mine.yaml", **changes)
    return read_experiment(path, data_dir=list(data_dir), output_dir=folder / "out", seeds=seeds)


def flag(job, name: str) -> list[str]:
    """The values of a flag."""
    start = job.flags.index(f"--{name}") + 1
    end = next((i for i in range(start, len(job.flags)) if job.flags[i].startswith("--")), len(job.flags))
    return list(job.flags[start:end])


def stage_with(stage: str, **changes) -> dict:
    stages = experiment()["stages"]
    stages[stage] |= changes
    return {"stages": stages}


def test_arms_times_seeds_are_commands_that_feed_each_other(tmp_path):
    found = plan(tmp_path)
    assert [arm.label for arm in found.arms] == ["untouched", "short", "long"]
    # An untouched model is evaluated once, for all seeds; of the others all arms of a seed stand together.
    assert [job.what for job in found.jobs] == [
        "untouched, seed 0: evaluate",
        *(f"{arm}, seed 0: {stage}" for arm in ("short", "long") for stage in ("pretrain", "evaluate")),
        *(f"{arm}, seed 1: {stage}" for arm in ("short", "long") for stage in ("pretrain", "evaluate")),
    ]
    trained, measured = found.jobs[3:5]
    assert trained.folder == tmp_path / "out/long/seed-0/pretrain"
    assert flag(trained, "max_steps") == ["300"] and flag(trained, "seed") == ["0"]
    assert flag(trained, "train_file") == ["data/one"] and flag(trained, "model_name_or_path") == ["start"]
    assert flag(trained, "include_num_input_tokens_seen") == ["non_padding"]
    assert flag(measured, "model_name_or_path") == [str(trained.folder)] and flag(measured, "seed") == ["42"]
    assert flag(measured, "eval_retrieval_dir") == ["data/one", "data/other"]
    assert measured.needs == (trained.folder,) and trained.needs == ()
    assert found.runs["untouched"][0] == found.runs["untouched"][1]
    assert found.runs["long"][1]["pretrain"].folder != trained.folder
    assert trained.command().startswith("python run_pretrain.py --") and trained.command().endswith("/pretrain")


def test_a_recipe_gives_flags_that_stage_and_arm_override(tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        "max_steps: 7\nlearning_rate: 4.0e-3\nsave_strategy: no\nseed: 9\noutput_dir: elsewhere\n"
        "title_column_name: t\n"
    )
    changed = stage_with("pretrain", recipe=str(tmp_path / "recipe.yaml"), title_column_name=None)
    del changed["stages"]["pretrain"]["max_steps"]
    found = plan(tmp_path, seeds=[5], **changed)
    short, long = found.runs["short"][5]["pretrain"], found.runs["long"][5]["pretrain"]
    assert flag(short, "max_steps") == ["7"] and flag(long, "max_steps") == ["300"]
    assert flag(short, "learning_rate") == ["0.004"] and flag(short, "save_strategy") == ["no"]
    assert flag(short, "seed") == ["5"]  # not that of the recipe
    assert "--title_column_name" not in short.flags and "--output_dir" not in short.flags
    assert found.command.endswith("--seeds 5")


def test_for_makes_an_arm_of_each_value_where_it_is_used(tmp_path):
    stages = experiment()["stages"]
    stages["pretrain"]["unless"] = {"steps": 0}
    stages["pretrain"]["max_steps"] = "{steps}"
    arms = {
        "untouched": {"pretrain": None},
        "plain": {},
        "rates": {"for": {"rate": [1e-3, 2e-3]}, "pretrain": {"learning_rate": "{rate}"}},
    }
    more = {"for": {"steps": [0, 200]}, "control": "plain", "plot": "steps"}
    found = plan(tmp_path, stages=stages, arms=arms, **more)
    labels = [arm.label for arm in found.arms]
    assert labels[:3] == ["untouched", "plain, steps 0", "plain, steps 200"]
    assert labels[3:] == [f"rates, steps {s}, rate {r}" for s in (0, 200) for r in (0.001, 0.002)]
    assert found.arms[-1].values == {"steps": 200, "rate": 2e-3}
    assert flag(found.runs["rates, steps 200, rate 0.002"][0]["pretrain"], "learning_rate") == ["0.002"]
    # Without a step all of them are the untouched model, which is measured once.
    untouched = found.runs["untouched"][0]
    assert found.runs["plain, steps 0"][1] == found.runs["rates, steps 0, rate 0.001"][0] == untouched
    assert len(found.jobs) == 1 + 2 * 3 * 2
    controls = {arm.label: found.control_of(arm) for arm in found.arms}
    assert controls["plain, steps 0"] is None and controls["plain, steps 200"] is None
    assert controls["rates, steps 200, rate 0.001"].label == "plain, steps 200"
    assert controls["untouched"].label == "plain, steps 0"


def test_a_control_with_a_value_is_that_of_all_others(tmp_path):
    stages = experiment()["stages"]
    stages["pretrain"]["max_steps"] = "{steps}"
    found = plan(
        tmp_path, stages=stages, arms={"plain": {}}, **{"for": {"steps": [1, 2]}, "control": "plain, steps 1"}
    )
    one, two = found.arms
    assert found.control_of(two) is one and found.control_of(one) is None


def test_mined_pairs_are_shared_by_what_is_trained_on_them(tmp_path):
    mine = {"door": "mine_pairs.py", "train_file": ["{data}/one"], "strategy": "title", "seed": 1}
    stages = {"mine": mine, **experiment()["stages"]}
    stages["pretrain"]["train_file"] = ["{mine}/pairs.parquet"]
    found = plan(tmp_path, stages=stages, arms={"short": {}, "long": {"pretrain": {"max_steps": 300}}})
    mined = [job for job in found.jobs if job.stage == "mine"]
    assert len(mined) == 1  # its seed is one for all
    for jobs in (found.runs["short"][1], found.runs["long"][0]):
        assert flag(jobs["pretrain"], "train_file") == [f"{mined[0].folder}/pairs.parquet"]
        assert jobs["pretrain"].needs == (mined[0].folder,)
        assert flag(jobs["pretrain"], "model_name_or_path") == ["start"]  # mining makes no model
    with pytest.raises(InputError, match=r"short, pretrain has no {mine}"):
        plan(tmp_path, stages=stages, arms={"short": {"mine": None}})


def test_arms_share_what_is_the_same_and_a_list_fills_a_place(tmp_path):
    stages = experiment()["stages"]
    stages = {"pretrain": stages["pretrain"], "more": dict(stages["pretrain"]), "evaluate": stages["evaluate"]}
    stages["more"] |= {"max_steps": "{steps}", "train_file": "{files}"}
    more = {"for": {"steps": [20, 40], "files": [["{data}/one", "{data}/other"]]}, "control": None}
    found = plan(tmp_path, stages=stages, arms={"a": {}}, seeds=[0], **more)
    one, two = found.runs.values()
    assert one[0]["pretrain"] is two[0]["pretrain"] and one[0]["more"] is not two[0]["more"]
    assert flag(one[0]["more"], "model_name_or_path") == [str(one[0]["pretrain"].folder)]
    assert one[0]["more"].needs == (one[0]["pretrain"].folder,)
    assert "--train_file" in one[0]["more"].flags


def test_data_are_taken_from_the_first_folder_that_has_them(tmp_path):
    for name in ("a/one", "b/one", "b/other"):
        (tmp_path / name).mkdir(parents=True)
    folders = [str(tmp_path / "a"), str(tmp_path / "b")]
    found = plan(tmp_path, data_dir=folders)
    assert flag(found.jobs[0], "eval_retrieval_dir") == [str(tmp_path / "a/one"), str(tmp_path / "b/other")]
    (tmp_path / "b/other").rmdir()
    found = plan(tmp_path, data_dir=folders)
    with pytest.raises(InputError, match=r"a/other is not there; --data_dir says where the data lie"):
        check_inputs(found, found.jobs, folders)


def test_a_model_or_file_that_is_not_there_is_said_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data/one", "data/other", "models"):
        (tmp_path / name).mkdir(parents=True)
    found = plan(tmp_path, model="models/mine")
    with pytest.raises(InputError, match="models/mine, which untouched, seed 0: evaluate needs, is not there"):
        check_inputs(found, found.jobs, ["data"])
    (tmp_path / "models/mine").mkdir()
    check_inputs(found, found.jobs, ["data"])
    hub = plan(tmp_path, model="google-bert/bert-base-uncased")
    check_inputs(hub, hub.jobs, ["data"])


def test_arms_are_chosen_by_label_or_name(tmp_path):
    arms = {"plain": {}, "rates": {"for": {"rate": [1, 2]}, "pretrain": {"learning_rate": "{rate}"}}}
    found = plan(tmp_path, arms=arms, control=None, seeds=[0])
    assert len(found.jobs_of(None)) == 6 and len(found.jobs_of(["rates"])) == 4
    assert [job.what for job in found.jobs_of(["rates, rate 2", "plain"])] == [
        *("plain, seed 0: pretrain", "plain, seed 0: evaluate"),
        *("rates, rate 2, seed 0: pretrain", "rates, rate 2, seed 0: evaluate"),
    ]
    with pytest.raises(InputError, match="mine has no arm plane; did you mean plain"):
        found.jobs_of(["plane"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"titel": "x"}, "sets titel, which does not exist; did you mean title"),
        ({"stages": None}, "needs both stages and arms"),
        ({"arms": {"short": {"pretrian": {}}}}, "the arm short sets pretrian, .* did you mean pretrain"),
        ({"arms": {"short": {"pretrain": {"max_step": 1}}}}, "the arm short sets max_step, .* mean max_steps"),
        ({"arms": {"short": {"pretrain": 7}}}, "short, pretrain holds `name: value` lines, not 7"),
        (stage_with("pretrain", door="run.py"), "the door of stage pretrain is one of .*, not run.py"),
        (stage_with("pretrain", max_step=1), "the stage pretrain sets max_step"),
        (stage_with("pretrain", recipe="nowhere.yaml"), "There is no recipe nowhere.yaml"),
        (stage_with("evaluate", door="mine_pairs.py", bm25=None), "sets .*, which does not exist"),
        ({"stages": {"pretrain": experiment()["stages"]["pretrain"]}}, "the last stage, and no other, is a run_eval"),
        ({"model": None}, "untouched, evaluate has no model to start from"),
        (stage_with("pretrain", train_file="{date}/one"), r"short, pretrain has no {date}: there are seed"),
        ({"control": "shrt"}, "the control shrt is no arm; did you mean short"),
        ({"plot": "steps"}, "plot is a name of `for` or one of seconds, tokens, parameters"),
        ({"for": {"steps": 5}}, "gives steps a list of values, not 5"),
        ({"for": {"seed": [5]}}, "`for` cannot have seed"),
        ({"arms": {"short": {"for": {"x": [1]}}}}, "the arm short has `for` x but nothing with {x}"),
        ({"seeds": [-1]}, "seeds are numbers of 0 or more"),
        ({"arms": {"a b": {}, "a-b": {}}, "control": None}, "two arms would have the folder a-b"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(tmp_path, changes, message):
    with pytest.raises(InputError, match=message) as caught:
        plan(tmp_path, **changes)
    assert "\n" not in str(caught.value)


def test_the_plan_knows_the_flags_of_the_doors():
    assert set(experiments.DOORS["run_pretrain.py"]) == set(run_pretrain.ARGUMENTS)
    for door, module in (("mine_pairs.py", mine_pairs), ("run_evaluation.py", run_evaluation)):
        assert all(getattr(module, group.__name__) is group for group in experiments.DOORS[door])
    for door, groups in experiments.DOORS.items():
        assert experiments._DEFAULTS.get(door, {}).keys() <= {
            entry.name for group in groups for entry in fields(group)
        }


@pytest.mark.parametrize("path", sorted((ROOT / "recipes/experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_experiments_of_the_project_are_whole(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = read_experiment(path, data_dir=["data"], output_dir="outputs/x")
    assert found.title and found.question.endswith("?") and found.control
    assert len(found.seeds) >= 3 or path.stem.startswith("tuning")
    for job in found.jobs:
        # Nothing is chosen by what is reported: no checkpoint is, and the queries are for the last stage only.
        assert job.door == "run_evaluation.py" or "--eval_retrieval_dir" not in job.flags
        assert "--load_best_model_at_end" not in job.flags
    listed = (path.parent / "README.md").read_text(encoding="utf-8")
    assert f"`{path.name}`" in listed


def test_the_example_of_the_form_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    path = tmp_path / "example.yaml"
    path.write_text(experiments.__doc__.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    found = read_experiment(path, data_dir=["data"], output_dir="out")
    labels = [arm.label for arm in found.arms]
    assert labels == ["untouched", "mlm", "retromae, rate 0.3", "retromae, rate 0.5"]
    assert flag(found.runs[labels[3]][2]["pretrain"], "encoder_mlm_probability") == ["0.5"]
    assert found.plot == "rate" and len(found.jobs) == 1 + 3 * 3 * 2
