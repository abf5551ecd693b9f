"""A share of the start in the finished weights: training that keeps what a strong start has.

    remember_start(model, folder, checkpoint=None)   # before the training
    ...
    mix_with_start(model, folder, share=0.5)         # after it

Weights between those of the start and those of the end are often better than both: what the training damages first
heals faster on the way back than what it has learned is lost (Wortsman et al. 2022, "Robust fine-tuning of zero-shot
models", arXiv 2109.01903: WiSE-FT). Figures in docs/experiments.md.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from retrieval_pretraining.errors import InputError

FILE = "_start.safetensors"  # beside the checkpoints of a run; `_`: is not pushed


def remember_start(model, folder: str | Path, *, checkpoint: str | None = None):
    """Keeps the weights that a run starts from; of a run that goes on, those that its first part kept.

    `InputError` if it kept none.
    """
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    if checkpoint is None:
        save_file(_weights(model), path)
        return
    kept = Path(checkpoint).absolute().parent / FILE
    if not kept.is_file():
        raise InputError(
            f"--start_share: {kept} is not there, the weights that this run started from; leave out --start_share, or "
            "start anew."
        )
    if kept != path.absolute():
        shutil.copyfile(kept, path)


@torch.no_grad()
def mix_with_start(model, folder: str | Path, *, share: float):
    """Makes each weight `share` of the start and the rest of what it is."""
    start = load_file(Path(folder) / FILE)
    for name, weight in _weights(model).items():
        weight.lerp_(start[name].to(weight.device, weight.dtype), share)


def _weights(model) -> dict[str, torch.Tensor]:
    """All parameters, tied ones once."""
    return {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
