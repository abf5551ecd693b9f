"""The file of an experiment -> its arms -> the commands that it takes.

    experiment = read_experiment("recipes/experiments/retromae_en.yaml", data_dir=["data"], output_dir="outputs/x")
    for job in experiment.jobs:
        print(job.command())

```yaml
title: RetroMAE against MLM, zero-shot
question: Does a minute of RetroMAE make [CLS] a better vector than a minute of MLM?
seeds: [0, 1, 2]
control: mlm                           # what the other arms are compared with
model: examples/starter-en             # {model}, until a stage has trained one
stages:                                # in their order; each is a door of this project and its flags
  pretrain:
    door: run_pretrain.py
    recipe: recipes/demo_scifact.yaml  # flags that the others override
    model_name_or_path: "{model}"
    train_file: ["{data}/scifact"]
  evaluate:                            # the last one, which the tables are made of
    door: run_evaluation.py
    model_name_or_path: "{model}"
    eval_retrieval_dir: ["{data}/scifact"]
    seed: 42                           # else the seed of the run
arms:                                  # what an arm changes in the stages; null leaves out a flag or a stage
  untouched: {pretrain: null}
  mlm: {pretrain: {recipe: recipes/demo_scifact_mlm.yaml}}
  retromae:
    for: {rate: [0.3, 0.5]}            # one arm for each value (of several names, for each combination);
    pretrain: {encoder_mlm_probability: "{rate}"}  # `for` beside `arms` holds for every arm that uses its names
plot: rate                             # the x-axis of the curves: a name of `for`, or seconds, tokens, parameters
```

In braces: `{data}`, `{seed}`, `{model}` (the folder of the last stage that trained, or `model`, which an arm may set
too), the names of `for`, and the name of an earlier stage, which is its folder. `unless: {pairs: 0}` in a stage leaves
it out where the name has this value. Commands that are equal but for the folder are run once, whichever arms and seeds
need them.
"""

import difflib
import glob
import itertools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .arguments import (
    DataArguments,
    ModelArguments,
    PairArguments,
    PretrainingArguments,
    as_flag,
    check_name,
    read_recipe,
)
from .card_arguments import CardArguments
from .cleaning_settings import CleaningSettings
from .errors import InputError
from .evaluation_arguments import EvaluationArguments
from .finetune_arguments import ContrastiveArguments, FinetuneDataArguments, FinetuneModelArguments
from .gur_arguments import GURArguments
from .mining_settings import MiningSettings

EVALUATION = "run_evaluation.py"
TRAINING = ("run_pretrain.py", "run_finetune.py")
MEASURED = ("seconds", "tokens", "parameters")  # what a curve can be drawn over beside the names of `for`

DOORS: dict[str, tuple[type, ...]] = {  # what can be set at them
    "run_pretrain.py": (
        *(ModelArguments, DataArguments, PretrainingArguments, GURArguments, MiningSettings, CleaningSettings),
        CardArguments,
    ),
    # What sentence-transformers adds to the arguments of training is set by nobody here.
    "run_finetune.py": (
        *(FinetuneModelArguments, FinetuneDataArguments, PretrainingArguments, ContrastiveArguments, CardArguments),
    ),
    "mine_pairs.py": (PairArguments, MiningSettings, CleaningSettings),
    EVALUATION: (EvaluationArguments,),
}
# What the tables need and logs do not, unless the file says something else.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "run_pretrain.py": {"include_num_input_tokens_seen": "non_padding", "disable_tqdm": True, "save_strategy": "no"},
    "run_finetune.py": {"disable_tqdm": True, "save_strategy": "no"},
    EVALUATION: {"save_query_scores": True},
}
_KEYS = ("title", "question", "seeds", "control", "model", "for", "stages", "arms", "plot")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Job:
    """One command; what it writes lies in `folder`, what it needs of other commands in `needs`, folders too."""

    what: str  # "mlm, seed 0: pretrain"
    stage: str
    door: str
    flags: tuple[str, ...]
    folder: Path
    needs: tuple[Path, ...] = ()

    def words(self) -> list[str]:
        return [self.door, *self.flags, "--output_dir", str(self.folder)]

    def command(self) -> str:
        """The command line, to read and to copy."""
        return shlex.join(["python", *self.words()])


@dataclass(frozen=True)
class Arm:
    """`label` is its name and the values of `for` that it has."""

    label: str
    name: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Experiment:
    """`jobs` in the order in which they are run; `runs`: arm label -> seed -> stage -> its job."""

    name: str
    command: str  # that makes it again
    title: str
    question: str
    seeds: list[int]
    control: str | None
    plot: str | None
    arms: list[Arm]
    jobs: list[Job]
    runs: dict[str, dict[int, dict[str, Job]]]

    def control_of(self, arm: Arm) -> Arm | None:
        """The arm that this one is compared with: the one with the label `control`, or, of those with that name, the
        one with the same values where both have one; None for the control itself."""
        for other in self.arms:
            if other.label == self.control:
                return None if arm == other else other
        named = [other for other in self.arms if other.name == self.control]
        if arm in named:
            return None
        for other in named:
            if all(arm.values.get(name, value) == value for name, value in other.values.items()):
                return other
        return None

    def jobs_of(self, arms: Sequence[str] | None) -> list[Job]:
        """Those that these arms (labels or names, all by default) need. `InputError` for an arm that is not there."""
        known = {name for arm in self.arms for name in (arm.label, arm.name)}
        for name in arms or []:
            if name not in known:
                raise InputError(f"{self.name} has no arm {name}{_near(name, known)}")
        chosen = [arm for arm in self.arms if arms is None or {arm.label, arm.name} & set(arms)]
        wanted = {job.folder for arm in chosen for stages in self.runs[arm.label].values() for job in stages.values()}
        return [job for job in self.jobs if job.folder in wanted]


def read_experiment(
    path: str | Path, *, data_dir: Sequence[str], output_dir: str | Path, seeds: Sequence[int] | None = None
) -> Experiment:
    """What is run for the file of an experiment; `output_dir` is the folder of this experiment, `data_dir` are those
    of the data.

    Raises `InputError`, which names the file and the place, for what the form above does not have: an unknown key,
    door, flag, arm or name in braces, a recipe that is not there. Whether data are there: `check_inputs`.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no experiment {path}.")
    written = read_recipe(path)
    for key in written:
        check_name(str(key), list(_KEYS), f"{path} sets")
    stages, arms = (_mapping(written.get(key), f"{path}: {key}") for key in ("stages", "arms"))
    if not stages or not arms:
        raise InputError(f"{path} needs both stages and arms.")
    for name, stage in stages.items():
        _check_stage(name, _mapping(stage, f"{path}: stage {name}"), path)
    doors = [stage["door"] for stage in stages.values()]
    if EVALUATION not in doors or doors.index(EVALUATION) != len(doors) - 1:
        raise InputError(f"{path}: the last stage, and no other, is a {EVALUATION}.")
    plan = _Plan(path, written, Path(output_dir), list(data_dir))
    found = [arm for name, spec in arms.items() for arm in plan.expand(str(name), _mapping(spec, f"{path}: {name}"))]
    own_seeds = written.get("seeds", [0, 1, 2])
    words = ["python", "run_experiments.py", str(path), "--data_dir", *data_dir]
    words += ["--seeds", *map(str, seeds)] if seeds is not None and list(seeds) != own_seeds else []
    seeds = list(seeds if seeds is not None else own_seeds)
    if not seeds or not all(isinstance(seed, int) and seed >= 0 for seed in seeds):
        raise InputError(f"{path}: seeds are numbers of 0 or more, not {seeds}.")
    runs: dict[str, dict[int, dict[str, Job]]] = {arm.label: {} for arm in found}
    for seed in seeds:  # all arms of the first one come first: something can be seen early
        for arm in found:
            runs[arm.label][seed] = plan.run(arm, seed)
    experiment = Experiment(
        path.stem,
        shlex.join(words),
        str(written.get("title", path.stem)),
        str(written.get("question", "")),
        seeds,
        written.get("control"),
        written.get("plot"),
        found,
        list(plan.jobs.values()),
        runs,
    )
    _check_names(experiment, path)
    return experiment


def check_inputs(experiment: Experiment, jobs: Sequence[Job], data_dir: Sequence[str]):
    """Raises `InputError` if a job reads data that are in no `data_dir`, a model or a file that is not there."""
    made = [str(job.folder) for job in experiment.jobs]
    for job in jobs:
        for word in job.flags:
            if word.startswith("--") or any(word.startswith(folder) for folder in made) or _is_there(word):
                continue
            parts = Path(word).parts
            if any(Path(word).is_relative_to(folder) and Path(word) != Path(folder) for folder in data_dir):
                raise InputError(
                    f"{experiment.name}: {word} is not there; --data_dir says where the data lie "
                    "(what they are: recipes/experiments/README.md)."
                )
            if len(parts) > 1 and Path(parts[0]).is_dir() and not re.search(r"\s", word):
                raise InputError(f"{experiment.name}: {word}, which {job.what} needs, is not there.")


def _is_there(path: str) -> bool:
    return os.path.exists(path) or bool(glob.glob(path))


# --- From the file to the jobs ------------------------------------------------------------------------------------


class _Plan:
    """Collects the jobs of all arms and seeds; equal ones are one."""

    def __init__(self, path: Path, written: Mapping[str, Any], output_dir: Path, data_dir: list[str]):
        self.path, self.written, self.output_dir, self.data_dir = path, written, output_dir, data_dir
        self.stages: Mapping[str, dict] = written["stages"]
        self.specs: dict[str, Mapping] = {}
        self.jobs: dict[tuple, Job] = {}

    def expand(self, name: str, spec: Mapping[str, Any]) -> list[Arm]:
        """An arm for each combination of the values of `for` that it uses."""
        for key in spec:
            check_name(str(key), [*self.stages, "model", "for"], f"{self.path}: the arm {name} sets")
        for stage, changes in spec.items():
            if stage in self.stages:
                self._check_flags(stage, _mapping(changes, f"{self.path}: {name}, {stage}"), name)
        self.specs[name] = spec
        used = set()
        for stage in self.stages:
            settings = self._settings(name, stage)
            used |= set() if settings is None else _names_in(settings) | set(self.stages[stage].get("unless") or {})
        used |= _names_in(self._start(name))
        loops = {**_mapping(self.written.get("for"), "for"), **_mapping(spec.get("for"), "for")}
        for variable, values in loops.items():
            if not isinstance(values, list) or not values:
                raise InputError(f"{self.path}: `for` gives {variable} a list of values, not {values!r}.")
            if variable in ("data", "seed", "model", *self.stages):
                raise InputError(f"{self.path}: `for` cannot have {variable}, which means something else in braces.")
        unused = [variable for variable in _mapping(spec.get("for"), "for") if variable not in used]
        if unused:
            raise InputError(f"{self.path}: the arm {name} has `for` {unused[0]} but nothing with {{{unused[0]}}}.")
        loops = {variable: values for variable, values in loops.items() if variable in used}
        arms = []
        for values in itertools.product(*loops.values()):
            chosen = dict(zip(loops, values, strict=True))
            label = ", ".join([name, *(f"{variable} {_word(value)}" for variable, value in chosen.items())])
            arms.append(Arm(label, name, chosen))
        return arms

    def run(self, arm: Arm, seed: int) -> dict[str, Job]:
        """The jobs of an arm with a seed, by their stages."""
        known: dict[str, Any] = {"seed": seed, **arm.values}
        folders: dict[str, Path] = {}  # of the jobs, by what stands in commands
        start = self._start(arm.name)
        if start is not None:
            known["model"] = self._filled(start, known, f"{arm.label}, model")
        found: dict[str, Job] = {}
        for stage, spec in self.stages.items():
            settings = self._settings(arm.name, stage)
            skipped = any(arm.values.get(name) == value for name, value in (spec.get("unless") or {}).items())
            if settings is None or skipped:
                continue
            # The seed of a recipe is not meant for all seeds.
            settings = {**settings, "seed": settings.get("seed", "{seed}")}
            place = f"{arm.label}, {stage}"
            filled = {name: self._filled(value, known, place) for name, value in settings.items()}
            flags = [word for name, value in filled.items() for word in as_flag(name, value)]
            needs = {folder for text, folder in folders.items() if any(text in word for word in flags)}
            key = (spec["door"], *flags)
            if key not in self.jobs:
                folder = self.output_dir / _slug(arm.label) / f"seed-{seed}" / stage
                what = f"{arm.label}, seed {seed}: {stage}"
                self.jobs[key] = Job(what, stage, spec["door"], tuple(flags), folder, tuple(sorted(needs)))
            job = found[stage] = self.jobs[key]
            folders[str(job.folder)] = job.folder
            known[stage] = str(job.folder)
            if spec["door"] in TRAINING:
                known["model"] = str(job.folder)
        return found

    def _start(self, name: str) -> str | None:
        return self.specs[name].get("model", self.written.get("model"))

    def _settings(self, name: str, stage: str) -> dict[str, Any] | None:
        """The flags of a stage of an arm, before names in braces are filled in; None where it has none."""
        spec = self.specs[name]
        if stage in spec and spec[stage] is None:
            return None
        door = self.stages[stage]["door"]
        merged = {**self.stages[stage], **_mapping(spec.get(stage), stage)}
        settings = dict(_DEFAULTS.get(door, {}))
        recipe = merged.pop("recipe", None)
        if recipe is not None:
            settings |= {name: value for name, value in read_recipe(Path(recipe)).items() if name != "seed"}
            for each in settings:
                _check_flag(door, each, f"The recipe {recipe} sets")
        settings |= {name: value for name, value in merged.items() if name not in ("door", "unless")}
        settings.pop("output_dir", None)
        return {name: value for name, value in settings.items() if value is not None}

    def _check_flags(self, stage: str, changes: Mapping[str, Any], name: str):
        for flag in changes:
            if flag != "recipe":
                _check_flag(self.stages[stage]["door"], str(flag), f"{self.path}: the arm {name} sets")

    def _filled(self, value: Any, known: Mapping[str, Any], place: str) -> Any:
        if isinstance(value, list):
            return [self._filled(each, known, place) for each in value]
        if not isinstance(value, str):
            return value
        known = {**known, "data": "{data}"}  # last, when all that follows it is there
        for name in _PLACEHOLDER.findall(value):
            if name not in known:
                hint = "no model to start from" if name == "model" else f"no {{{name}}}: there are {', '.join(known)}"
                raise InputError(f"{self.path}: {place} has {hint}.")
        whole = _PLACEHOLDER.fullmatch(value)
        filled = known[whole[1]] if whole else _PLACEHOLDER.sub(lambda match: _word(known[match[1]]), value)
        if isinstance(filled, str) and "{data}" in filled:
            places = [filled.replace("{data}", folder) for folder in self.data_dir]
            return next((each for each in places if _is_there(each)), places[0])
        return filled


def _check_stage(name: str, stage: Mapping[str, Any], path: Path):
    door = stage.get("door")
    if door not in DOORS:
        raise InputError(f"{path}: the door of stage {name} is one of {', '.join(DOORS)}, not {door}.")
    for flag in stage:
        if flag not in ("door", "recipe", "unless"):
            _check_flag(door, str(flag), f"{path}: the stage {name} sets")
    if not re.fullmatch(r"\w+", str(name)) or name in ("data", "seed", "model", "for"):
        raise InputError(f"{path}: a stage cannot be called {name}; use one word, such as pretrain.")


def _check_flag(door: str, name: str, who: str):
    check_name(name, [entry.name for group in DOORS[door] for entry in fields(group) if entry.init], who)


def _check_names(experiment: Experiment, path: Path):
    labels = [arm.label for arm in experiment.arms]
    slugs = [_slug(label) for label in labels]
    twice = next((label for label, slug in zip(labels, slugs, strict=True) if slugs.count(slug) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: two arms would have the folder {_slug(twice)}; rename one.")
    control = experiment.control
    known = {*labels, *(arm.name for arm in experiment.arms)}
    if control is not None and control not in known:
        raise InputError(f"{path}: the control {control} is no arm{_near(str(control), known)}")
    variables = {variable for arm in experiment.arms for variable in arm.values}
    if experiment.plot is not None and experiment.plot not in (*variables, *MEASURED):
        raise InputError(f"{path}: plot is a name of `for` or one of {', '.join(MEASURED)}, not {experiment.plot}.")


def _mapping(value: Any, place: str) -> dict:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{place} holds `name: value` lines, not {value!r}.")
    return value


def _names_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return set().union(*map(_names_in, value))
    return set(_PLACEHOLDER.findall(value)) if isinstance(value, str) else set()


def _word(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _slug(label: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", label).strip("-.")


def _near(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else f": there are {', '.join(sorted(known))}."
