"""Runs the jobs of an experiment, each as a command of its own; what is there already is not run again.

Beside the folder of a job lie its log, `pretrain.log`, and its record, `pretrain.json`: the command, how it ended and
when, how many seconds it took, and which runs of the jobs it needs it has seen. A job is done if its record says that
the same command ended well and has seen what is there now. Everything else is run (again), from the start. Whether
the data or the code have changed is not looked at: remove the folder to have it run again.
"""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .errors import InputError
from .experiments import TRAINING, Job
from .results_file import write_whole

ROOT = Path(__file__).resolve().parents[1]  # where the doors are
SHOWN_LINES = 12  # of the log of a job that failed
_WEIGHTS = ("*.safetensors", "*.bin", "checkpoint-*", "encoder", "backbone", "best")


@dataclass
class Outcome:
    """How many jobs were there already, were run and failed; `failed` and `left_out` say which."""

    done_before: int = 0
    done: int = 0
    failed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not self.failed and not self.left_out

    def __str__(self) -> str:
        parts = [f"{self.done} run", f"{self.done_before} there already"] if self.done_before else [f"{self.done} run"]
        parts += [f"failed: {'; '.join(self.failed)}"] * bool(self.failed)
        parts += [f"not run, for want of these: {'; '.join(self.left_out)}"] * bool(self.left_out)
        return ", ".join(parts)


def read_record(job: Job) -> dict[str, Any]:
    """What is known of the last run of a job; empty where there was none."""
    try:
        record = json.loads(_record(job).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def is_done(job: Job, jobs: Mapping[Path, Job]) -> bool:
    """Whether its results are those of this command and of what the jobs it needs have made last."""
    record = read_record(job)
    same = record.get("status") == 0 and record.get("words") == job.words() and job.folder.is_dir()
    seen = record.get("needs", {})
    return same and all(
        is_done(jobs[need], jobs) and seen.get(str(need)) == read_record(jobs[need]).get("finished")
        for need in job.needs
    )


def jobs_to_run(wanted: Sequence[Job], jobs: Sequence[Job]) -> list[Job]:
    """Those of `wanted` that are not done, and what they need although its weights have been removed since.

    `jobs` are all of the experiment, in their order.
    """
    by_folder = {job.folder: job for job in jobs}
    chosen = {job.folder for job in wanted if not is_done(job, by_folder)}
    while True:
        again = {
            need
            for job in jobs
            if job.folder in chosen
            for need in job.needs
            if need not in chosen and read_record(by_folder[need]).get("weights") == "removed"
        }
        again |= {job.folder for job in wanted if job.folder not in chosen and chosen & set(job.needs)}
        if not again:
            return [job for job in jobs if job.folder in chosen]
        chosen |= again


def run_jobs(
    wanted: Sequence[Job],
    jobs: Sequence[Job],
    *,
    delete_weights: bool = False,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Runs what of `wanted` is not done. A job that fails takes along those that need it; the others go on.

    Args:
        jobs: all of the experiment: what others need is kept, and what `wanted` needs is among them.
        delete_weights: remove the weights of a trained model when all jobs that need it are done.

    Ctrl-C or SIGTERM stops the job in work and raises; the next call goes on with that job. Raises `InputError` for a
    folder that is there but was not made by this function.
    """
    with _terminated_as_interrupted():
        return _run_jobs(wanted, jobs, delete_weights, say)


def _run_jobs(wanted: Sequence[Job], jobs: Sequence[Job], delete_weights: bool, say) -> Outcome:
    todo = jobs_to_run(wanted, jobs)
    by_folder = {job.folder: job for job in jobs}
    clock = _Clock(jobs, todo)
    outcome = Outcome(done_before=len(wanted) - len([job for job in todo if job in wanted]))
    lost: set[Path] = set()
    for number, job in enumerate(todo, start=1):
        if lost & set(job.needs):
            lost.add(job.folder)
            outcome.left_out.append(job.what)
            continue
        say(f"[{number} of {len(todo)}] {job.what}{clock.left(todo[number - 1 :])}")
        status, seconds = _run(job, by_folder)
        clock.add(job, seconds)
        if status == 0:
            outcome.done += 1
            say(f"    {seconds:.0f} s")
            if delete_weights:
                _remove_weights(job, jobs, by_folder)
        else:
            lost.add(job.folder)
            outcome.failed.append(job.what)
            say(f"    failed with status {status} after {seconds:.0f} s; the end of {_log(job)}:")
            say("".join(f"    | {line}" for line in _end_of(_log(job))).rstrip("\n"))
    return outcome


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM as Ctrl-C, so that no job is left running by itself; only in the main thread, where signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number, frame):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run(job: Job, jobs: Mapping[Path, Job]) -> tuple[int, float]:
    _make_room(job)
    record = {
        "words": job.words(),
        "command": job.command(),
        "status": None,
        "started": _now(),
        "needs": {str(need): read_record(jobs[need]).get("finished") for need in job.needs},
    }
    _write(job, record)
    started = time.monotonic()
    command = [sys.executable, str(ROOT / job.door), *job.words()[1:]]
    with open(_log(job), "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            status = process.wait()
        except BaseException:  # Ctrl-C has reached it too, and it may be saving
            process.terminate()
            process.wait()
            raise
    seconds = time.monotonic() - started
    _write(job, {**record, "status": status, "finished": _now(), "seconds": round(seconds, 3)})
    return status, seconds


def _make_room(job: Job):
    """Removes what an earlier run of the job has left."""
    if job.folder.exists():
        if not _record(job).exists():
            raise InputError(f"{job.folder} is there, but no experiment made it: remove it, or change --output_dir.")
        shutil.rmtree(job.folder)
    job.folder.parent.mkdir(parents=True, exist_ok=True)


def _remove_weights(job: Job, jobs: Sequence[Job], by_folder: Mapping[Path, Job]):
    """Of the trained models that this job needs, and of its own, those that no job still waits for."""
    for folder in (*job.needs, job.folder):
        own = by_folder[folder]
        users = [other for other in jobs if folder in other.needs]
        if own.door not in TRAINING or not users or not all(is_done(user, by_folder) for user in users):
            continue
        for pattern in _WEIGHTS:
            for path in folder.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        _write(own, {**read_record(own), "weights": "removed"})


class _Clock:
    """Guesses the time that is left from what jobs of the same stage have taken, before or now."""

    def __init__(self, jobs: Sequence[Job], todo: Sequence[Job]):
        self.seconds: dict[str, list[float]] = {}
        for job in jobs:
            record = read_record(job)
            if job not in todo and record.get("status") == 0:
                self.add(job, record["seconds"])

    def add(self, job: Job, seconds: float):
        self.seconds.setdefault(job.stage, []).append(seconds)

    def left(self, todo: Sequence[Job]) -> str:
        every = [seconds for own in self.seconds.values() for seconds in own]
        if not every:
            return ""
        guesses = [self.seconds.get(job.stage, every) for job in todo]
        return f" (about {_duration(sum(sum(own) / len(own) for own in guesses))} left)"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _record(job: Job) -> Path:
    return job.folder.with_name(f"{job.stage}.json")


def _log(job: Job) -> Path:
    return job.folder.with_name(f"{job.stage}.log")


def _write(job: Job, record: Mapping[str, Any]):
    write_whole(_record(job), (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode("utf-8"))


def _end_of(log: Path) -> list[str]:
    with open(log, encoding="utf-8", errors="replace") as lines:
        last = deque((line for line in lines if line.strip()), SHOWN_LINES)
    return [line if line.endswith("\n") else f"{line}\n" for line in last]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")
