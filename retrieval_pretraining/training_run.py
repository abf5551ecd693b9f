"""What every training run does the same way: it opens its folder and its repository, trains, and pushes.

    checkpoint, repository = open_run(model, data, args, others, say=say)
    results |= train(trainer, args, checkpoint, complete, card=card, say=say)
    push(trainer, say)

`args` are the `PretrainingArguments`, `model`, `data` and `others` groups of arguments beside them.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .co2 import CO2Tracker
from .hub import HubRepository
from .hub_pushes import open_for_arguments
from .run_folder import changed_settings, find_checkpoint, last_complete_checkpoint, prepare_output, resume_command
from .trainer import SaveOnSignal


def speaker(args) -> Callable[[str], None]:
    """Puts a line on the screen, from one process."""
    return functools.partial(print, flush=True) if args.process_index == 0 else lambda message: None


def bars(args) -> bool | None:
    """The `progress` of what takes long. None: a bar where it does."""
    return None if args.process_index == 0 and not args.disable_tqdm else False


def open_run(
    model, data, args, others: Sequence, *, say: Callable[[str], None]
) -> tuple[str | None, HubRepository | None]:
    """The checkpoint that the run goes on from, and the repository that it is pushed to, where it has them.

    Raises `InputError` for a folder that cannot be used and settings that a run cannot go on with.
    """
    prepare_output(model, args)
    checkpoint = find_checkpoint(args)
    repository = None
    if args.push_to_hub and args.process_index == 0:
        # Now, not after hours of training.
        repository = open_for_arguments(args)
        args.hub_model_id = repository.name  # the card says it
        say(f"will be pushed to {repository.url}")
    changed = changed_settings(model, data, args, *others, resumed=checkpoint is not None)
    for name, (before, now) in changed.items():
        say(f"warning: resumed with another {name}: {before} -> {now}")
    return checkpoint, repository


def train(
    trainer,
    args,
    checkpoint: str | None,
    complete: Callable[[Path, dict[str, Any]], None],
    *,
    card,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Trains, and returns what a card says of it: steps, seconds, train, log_history, co2_grams, resumed_at.

    Args:
        complete: writes what a checkpoint lacks to be published into its folder, with that much of the above.

    Ctrl-C and SIGTERM end in `SystemExit`, after a checkpoint and the command that goes on from it.
    """
    if not args.trains:
        trainer.save_state()
        return {"steps": 0, "train": {}, "log_history": []}
    started = time.time()

    def so_far(folder: Path, state):
        rows = {name: value for row in state.log_history for name, value in row.items()}
        now = {"steps": state.global_step, "seconds": time.time() - started}
        complete(folder, {**resumed, **now, "train": rows, "log_history": state.log_history})

    resumed = {}
    if checkpoint is not None:
        resumed["resumed_at"] = json.loads(Path(checkpoint, "trainer_state.json").read_text())["global_step"]
    trainer.complete_folder = so_far
    signals = SaveOnSignal()
    trainer.add_callback(signals)
    co2 = CO2Tracker(card.co2_country, say) if card.track_co2 and args.should_save else None
    outcome = trainer.train(resume_from_checkpoint=checkpoint)
    seconds, co2_grams = time.time() - started, co2.stop() if co2 is not None else None
    if signals.received is not None:
        saved = last_complete_checkpoint(args.output_dir)
        say(f"\nStopped after step {trainer.state.global_step}, saved in {saved}. To go on exactly from there:")
        say(f"  {resume_command(args, saved)}")
        raise SystemExit(128 + signals.received)
    trainer.log_metrics("train", outcome.metrics)
    trainer.save_metrics("train", outcome.metrics)
    trainer.save_state()
    measured = {"seconds": seconds, "co2_grams": co2_grams, "train": outcome.metrics}
    return {**resumed, **measured, "steps": trainer.state.global_step, "log_history": trainer.state.log_history}


def push(trainer, say: Callable[[str], None]):
    """Uploads the output folder, and says how it and the uploads during training went."""
    pushed = trainer.push_output()
    failures = trainer.failure_report()
    if failures is not None:
        say(f"{failures}; the last push holds the whole model")
    if pushed is not None:
        say(f"pushed: {pushed.pr_url or pushed.commit_url}")
