"""The pushes of a Trainer: each commit is a whole model, and one that fails while training does not end the training.

transformers' own pushes from a checkpoint copy configuration and weights alone, pickle the arguments, and upload the
output folder with whatever lies in it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from huggingface_hub import CommitInfo
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress, logging

from .errors import PushError
from .hub import HubRepository, open_repository
from .hub_files import Files, checkpoint_files, model_files

logger = logging.get_logger(__name__)

STAGING = "_push"  # `_`: belongs to the run, not to the model


def open_for_arguments(args, *, token: str | None = None, private: bool | None = None) -> HubRepository:
    """The repository that `TrainingArguments` name; by default it is called as the output folder is."""
    return open_repository(
        args.hub_model_id or Path(args.output_dir).absolute().name,
        token=token or args.hub_token,
        private=args.hub_private_repo if private is None else private,
        revision=args.hub_revision,
        create_pr=getattr(args, "hub_create_pr", False),
    )


class HubPushes:
    """Goes before `Trainer` among the base classes.

    hub_repository: where to push to; with `args.push_to_hub` it is opened if it was not given.
    complete_folder: writes into the folder of a checkpoint what makes it one to publish, such as the card; without it
        the card is that of the library.
    failed_pushes: (step, reason) of pushes while training that failed.
    """

    hub_repository: HubRepository | None = None
    complete_folder: Callable[[Path, TrainerState], None] | None = None

    def init_hf_repo(self, token: str | None = None, private: bool | None = None):
        self.failed_pushes: list[tuple[int, str]] = []
        self.push_in_progress = None
        if not self.is_world_process_zero():
            return
        if self.hub_repository is None:
            self.hub_repository = open_for_arguments(self.args, token=token, private=private)
        self.hub_model_id = self.hub_repository.name

    @cached_property
    def _uploads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="push")

    # --- While training -------------------------------------------------------------------------------------------

    def _push_from_checkpoint(self, checkpoint_folder: str):
        strategy = HubStrategy(self.args.hub_strategy)
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        running = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if running and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        step = self.state.global_step
        staged = self._staging_folder(step)
        try:
            _link_tree(Path(checkpoint_folder), staged)
            # Making the plain model draws random weights, which must not change those of the run.
            with torch.random.fork_rng(devices=[]):
                self._complete(staged)
            files = model_files(staged)
            if strategy != HubStrategy.ALL_CHECKPOINTS and strategy != HubStrategy.CHECKPOINT:
                extra: Files = {}
            else:
                place = "last-checkpoint" if strategy == HubStrategy.CHECKPOINT else Path(checkpoint_folder).name
                extra = checkpoint_files(staged, place)
            job = self._uploads.submit(self._push_staged, {**files, **extra}, staged, step)
        except Exception as error:  # whatever it is, the training matters more
            self._note_failure(step, error)
            shutil.rmtree(staged.parent, ignore_errors=True)
            return
        jobs = self.push_in_progress.jobs if running else []
        self.push_in_progress = PushInProgress([*jobs, job])

    def _staging_folder(self, step: int) -> Path:
        """Beside the checkpoint, which may be deleted before all of it is sent. The card names the folder."""
        output = Path(self.args.output_dir).absolute()
        return output / STAGING / f"step-{step}" / output.name

    def _complete(self, folder: Path):
        if self.complete_folder is not None:
            self.complete_folder(folder, self.state)
            return
        self.create_model_card(model_name=self.hub_model_id.split("/")[-1])
        shutil.copy(Path(self.args.output_dir) / "README.md", folder / "README.md")

    def _push_staged(self, files: Files, staged: Path, step: int):
        try:
            self.hub_repository.push(files, f"Training in progress, step {step}")
        except Exception as error:
            self._note_failure(step, error)
        finally:
            shutil.rmtree(staged.parent, ignore_errors=True)

    def _note_failure(self, step: int, error: Exception):
        if not self.failed_pushes:
            logger.warning(f"The push at step {step} failed, the training goes on: {error}")
        self.failed_pushes.append((step, str(error)))

    def failure_report(self) -> str | None:
        """One line on the pushes that failed while training, None if there were none."""
        if not getattr(self, "failed_pushes", None):
            return None
        step, reason = self.failed_pushes[0]
        number = len(self.failed_pushes)
        return f"warning: {number} of the pushes while training failed, the first at step {step}: {reason}"

    # --- At the end -----------------------------------------------------------------------------------------------

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **card_arguments,
    ) -> CommitInfo | Future | None:
        """Saves the model and pushes the output folder, with the card that is in it; as `Trainer.push_to_hub`.

        Raises `PushError`, whose `command` pushes the folder later.
        """
        self._open(token, private)
        self.save_model(_internal_call=True)
        if self.is_world_process_zero():
            name = card_arguments.pop("model_name", self.hub_model_id.split("/")[-1])
            self.create_model_card(model_name=name, **card_arguments)
        return self.push_output(commit_message, blocking=blocking, token=token, revision=revision)

    def push_output(
        self,
        commit_message: str | None = "End of training",
        *,
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
    ) -> CommitInfo | Future | None:
        """The same for an output folder that is finished: it is pushed as it is, by one process."""
        self._open(token, None)
        if not self.is_world_process_zero():
            return None
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self._finish_current_push()
        shutil.rmtree(Path(self.args.output_dir) / STAGING, ignore_errors=True)
        if revision is not None and revision != self.hub_repository.revision:
            self.hub_repository = open_repository(
                self.hub_model_id, token=token or self.hub_repository.token, revision=revision
            )
        elif token is not None:
            self.hub_repository = replace(self.hub_repository, token=token)
        if not blocking:
            return self._uploads.submit(self._push_output, commit_message)
        return self._push_output(commit_message)

    def _push_output(self, commit_message: str | None) -> CommitInfo:
        folder = Path(self.args.output_dir)
        try:
            return self.hub_repository.push(model_files(folder), commit_message or "End of training")
        except PushError as error:
            raise PushError(
                f"{self.hub_repository.name} was not pushed, but the model is whole in {folder}: {error}",
                self.hub_repository.retry_command(folder),
            ) from error

    def _open(self, token: str | None, private: bool | None):
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)

    def create_model_card(self, *args, **kwargs):
        """The library's card, where no other is: never over the one that `model_card.py` wrote."""
        if not (Path(self.args.output_dir) / "README.md").exists():
            super().create_model_card(*args, **kwargs)


def _link_tree(source: Path, target: Path):
    """The files of a folder under another name; they stay when the folder is deleted."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str):
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)
