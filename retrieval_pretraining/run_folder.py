"""The output folder of a run: nothing in it is overwritten by accident, and a run that was cut off goes on from it.

`args` are the `PretrainingArguments`, `model` and `data` the other two groups of `arguments.py`; `others` are groups
that an objective has of its own.
"""

import json
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from .errors import InputError

RUN_ARGUMENTS = "_run_arguments.json"  # `_`: is not pushed

_TOKENS = ("--token", "--hub_token")

_DECIDE_THE_MODEL = (
    *("objective", "config_name", "config_overrides", "decoder_query", "enhanced_decoding"),
    *("projection_dim", "projection_init", "pooling", "learnable_temperature"),
    *("tokenizer_vocab_size", "add_tokens", "new_token_init"),
)
# A checkpoint has them in it: they need not be said again.
_KNOWN_TO_THE_CHECKPOINT = ("tokenizer_vocab_size", "add_tokens", "new_token_init")


def prepare_output(model, args):
    """The folder exists, can be written to, and is not what the run reads."""
    output = Path(args.output_dir)
    try:
        output.mkdir(parents=True, exist_ok=True)
        probe = output / f".write_test_{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"--output_dir {output} cannot be written to: {error.strerror}.") from error
    source = model.model_name_or_path
    if source is not None and Path(source).exists() and Path(source).samefile(output):
        raise InputError(f"--output_dir {output} is --model_name_or_path too: the model would be overwritten.")


def find_checkpoint(args) -> str | None:
    """The checkpoint to resume from. An earlier run in the same folder is never overwritten by accident."""
    last = last_complete_checkpoint(args.output_dir)
    wanted = args.resume_from_checkpoint
    if wanted is None or wanted.lower() == "false":
        if last is not None:
            raise InputError(
                f"{args.output_dir} holds the checkpoint {last} of an earlier run: add --resume_from_checkpoint True "
                "to go on from it, or give another --output_dir."
            )
        if (Path(args.output_dir) / "model.safetensors").exists():
            raise InputError(f"{args.output_dir} holds the model of an earlier run: give another --output_dir.")
        return None
    if wanted.lower() == "true":
        wanted = last
        if wanted is None:
            raise InputError(f"--resume_from_checkpoint True: {args.output_dir} holds no complete checkpoint.")
    state = Path(wanted) / "trainer_state.json"
    if not state.is_file():
        raise InputError(f"--resume_from_checkpoint {wanted} is not a complete checkpoint.")
    if not (args.fsdp or args.deepspeed) and not (Path(wanted) / "optimizer.pt").is_file():
        raise InputError(
            f"--resume_from_checkpoint {wanted} was saved without the optimizer: start from its weights with "
            "--model_name_or_path and another --output_dir."
        )
    done = json.loads(state.read_text(encoding="utf-8"))
    finished = done["global_step"] >= args.max_steps > 0 or (
        args.max_steps <= 0 and done["epoch"] is not None and done["epoch"] >= args.num_train_epochs
    )
    if finished:
        raise InputError(
            f"{wanted} is the end of its run ({done['global_step']} steps): raise --max_steps or --num_train_epochs."
        )
    return wanted


def changed_settings(model, data, args, *others, resumed: bool) -> dict[str, tuple]:
    """Keeps what a run was started with in its folder; of a resumed one, what has another value than before.

    Raises `InputError` for a change that makes another model of it.
    """
    path = Path(args.output_dir) / RUN_ARGUMENTS
    settings = {name: value for group in (model, data, *others) for name, value in asdict(group).items()}
    settings.pop("token", None)
    settings["total batch"] = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    changed = {}
    if resumed and path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        for name in _KNOWN_TO_THE_CHECKPOINT:
            if settings.get(name) is None:
                settings[name] = before.get(name)
        changed = {name: (before.get(name), value) for name, value in settings.items() if before.get(name) != value}
        for name in _DECIDE_THE_MODEL:
            if name in changed:
                value = before.get(name)
                how = (
                    "without it and can only go on so"
                    if value is None
                    else f"with {value} and can only go on with that"
                )
                raise InputError(f"--{name}: this run was started {how}.")
    if args.process_index == 0:
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False), encoding="utf-8")
    return changed


def resume_command(args, checkpoint: str) -> str:
    """The command that goes on from a checkpoint. Of a flag that stands twice, the last one counts."""
    launcher = ["python"]
    if args.world_size > 1:
        launcher = ["torchrun", f"--nproc_per_node={os.environ.get('LOCAL_WORLD_SIZE', args.world_size)}"]
    return shlex.join([*launcher, *without_tokens(sys.argv), "--resume_from_checkpoint", checkpoint])


def without_tokens(words: list[str]) -> list[str]:
    """A command line that can be shown: without the access tokens that were given on it."""
    kept, skip = [], False
    for word in words:
        name = word.partition("=")[0]
        if not skip and name not in _TOKENS:
            kept.append(word)
        skip = not skip and word in _TOKENS
    return kept


def last_complete_checkpoint(output_dir: str | os.PathLike) -> str | None:
    """The newest `checkpoint-N` of a run that was written to its end: one that a crash cut short is passed over."""
    folders = [path for path in Path(output_dir).glob("checkpoint-*") if path.name.split("-")[-1].isdigit()]
    for folder in sorted(folders, key=lambda path: int(path.name.split("-")[-1]), reverse=True):
        # The state of the Trainer is written last.
        if (folder / "trainer_state.json").is_file() and any(folder.glob("*.safetensors")):
            return str(folder)
    return None
