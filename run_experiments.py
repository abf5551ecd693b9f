"""Experiments: arms that are compared, over seeds, and the tables and plots of what came of them.

    python run_experiments.py recipes/experiments/retromae_en.yaml --data_dir my_data
    python run_experiments.py recipes/experiments/*.yaml --data_dir my_data           # one after the other
    python run_experiments.py recipes/experiments/retromae_en.yaml --data_dir my_data --dry_run          # the commands
    python run_experiments.py recipes/experiments/retromae_en.yaml --data_dir my_data --arms retromae dupmae --seeds 0
    python run_experiments.py recipes/experiments/retromae_en.yaml --data_dir my_data --only_tables

The file of an experiment says what its arms are, `retrieval_pretraining/experiments.py` how it is written. Each run is
a command of one of the other doors, in a folder of its own below `outputs/experiments/<name>/<arm>/seed-N/`. What is
done is not done again: after Ctrl-C or a crash the same command goes on. `outputs/experiments/<name>/` then holds
`table.md`, `results.json`, `report.html` and `plots/`. `--help` lists what can be set.
"""

import itertools
import sys
from pathlib import Path

from retrieval_pretraining.arguments import parse_arguments
from retrieval_pretraining.door import exit_status
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.experiment_arguments import ExperimentArguments
from retrieval_pretraining.experiment_results import collect_results
from retrieval_pretraining.experiment_runs import Outcome, is_done, run_jobs
from retrieval_pretraining.experiment_tables import write_experiment
from retrieval_pretraining.experiments import Experiment, check_inputs, read_experiment


def run(args: ExperimentArguments) -> list[Outcome]:
    """All experiments, one after the other; how each went."""
    args.check()
    experiments = [
        read_experiment(
            path, data_dir=args.data_dir, output_dir=Path(args.output_dir) / Path(path).stem, seeds=args.seeds
        )
        for path in args.experiments
    ]
    wanted = [[] if args.only_tables else each.jobs_of(args.arms) for each in experiments]
    if args.dry_run:
        for experiment, jobs in zip(experiments, wanted, strict=True):
            by_folder = {job.folder: job for job in experiment.jobs}
            for job in jobs:
                print(f"# {job.what}{' (there already)' if is_done(job, by_folder) else ''}\n{job.command()}")
        return []
    # All that can be missing, before hours of work.
    for experiment, jobs in zip(experiments, wanted, strict=True):
        check_inputs(experiment, jobs, args.data_dir)
    outcomes = []
    for experiment, jobs in zip(experiments, wanted, strict=True):
        print(f"{experiment.name}: {experiment.title}", flush=True)
        if not args.only_tables:
            outcomes.append(run_jobs(jobs, experiment.jobs, delete_weights=args.delete_weights, say=_say))
            print(f"{experiment.name}: {outcomes[-1]}", flush=True)
        _write(experiment, Path(args.output_dir) / experiment.name)
    return outcomes


def _write(experiment: Experiment, folder: Path):
    results = collect_results(experiment)
    if results is None:
        print(f"{experiment.name}: there is nothing to make a table of yet.")
        return
    table = write_experiment(results, folder)
    print(f"\n{table.read_text(encoding='utf-8')}\nThe tables and plots are in {folder}.", flush=True)


def _say(message: str):
    print(message, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """The command line: returns the exit status, 1 where a run has failed."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    files = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    outcomes: list[Outcome] = []

    def work():
        if not files and not {"-h", "--help"} & set(words):
            raise InputError("Give the file of an experiment first, such as recipes/experiments/retromae_en.yaml.")
        flags = ["--experiments", *files] if files else []
        outcomes.extend(run(*parse_arguments([ExperimentArguments], [*flags, *words[len(files) :]])))

    status = exit_status(work, stopped="Stopped. What was finished is kept: the same command goes on from there.")
    return status or int(not all(outcome.complete for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
