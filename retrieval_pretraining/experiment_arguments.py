"""What can be set for `run_experiments.py`; what is run stands in the files of the experiments."""

from dataclasses import dataclass, field
from pathlib import Path

from .arguments import _help
from .errors import InputError


@dataclass
class ExperimentArguments:
    """Which experiments, where their data lie, and what of them is run."""

    experiments: list[str] | None = field(
        default=None, metadata=_help("Files of experiments, such as recipes/experiments/retromae_en.yaml.")
    )
    output_dir: str = field(
        default="outputs/experiments", metadata=_help("Each experiment gets a folder in it, named as its file.")
    )
    data_dir: list[str] = field(
        default_factory=lambda: ["data"],
        metadata=_help("Folders where the data lie: {data} in the files is the first that has what follows it."),
    )
    arms: list[str] | None = field(default=None, metadata=_help("Run only these arms. [default: all]"))
    seeds: list[int] | None = field(default=None, metadata=_help("These seeds in place of those of the file."))
    dry_run: bool = field(default=False, metadata=_help("Print the commands and run nothing."))
    only_tables: bool = field(default=False, metadata=_help("Run nothing; tables and plots of what is there."))
    delete_weights: bool = field(
        default=False, metadata=_help("Remove the weights of a model when nothing that uses it is left to run.")
    )

    def check(self):
        if not self.experiments:
            raise InputError("Give the file of an experiment, such as recipes/experiments/retromae_en.yaml.")
        names = [Path(path).stem for path in self.experiments]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"Two experiments are called {name} and would share a folder: rename one file.")
        if self.dry_run and self.only_tables:
            raise InputError("--dry_run and --only_tables: both run nothing, and only one can be printed.")
        if self.seeds is not None and (min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds)):
            raise InputError("--seeds are different numbers of 0 or more.")
