"""Memory and time of a GUR step as the contrastive batch grows: in one piece, and in mini-batches of a fixed size.

    python benchmarks/contrastive_batch.py                  # some minutes on a CPU
    python benchmarks/contrastive_batch.py --quick          # seconds, to see that it works
    python benchmarks/contrastive_batch.py --device cuda --bf16 --d_model 512 --num_layers 8 --pairs 256 1024 4096

The run fails if both sides do not have the same loss and gradients. See benchmarks/README.md for what is measured.
"""

import argparse
import ctypes
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
from transformers import TrainingArguments

from configuration_gur import GURConfig
from modeling_gur import GURForPreTraining
from retrieval_pretraining.gur_trainer import GURTrainer

QUICK = {"d_model": 32, "num_layers": 1, "vocab_size": 500, "length": 16, "mini_batch": 4, "pairs": [16]}
SIDES = ("whole", "mini-batches")


def make_batch(pairs, args):
    """Random pairs with half as many texts as there are rows, so that some share a text; 15 % labels."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, args.vocab_size, (2 * pairs, args.length), generator=generator)
    labels = torch.randint(10, args.vocab_size, (2 * pairs, max(4, args.length // 4)), generator=generator)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    batch["text_keys"] = torch.randint(0, 2 * pairs, (2 * pairs,), generator=generator)
    batch["document_keys"] = torch.full((pairs,), -1)
    return {name: tensor.to(args.device) for name, tensor in batch.items()}


def make_step(side, args, folder):
    """A function that takes a batch and gives its loss and gradients, by the trainer's own code."""
    torch.manual_seed(0)
    config = GURConfig(
        **{"vocab_size": args.vocab_size, "d_model": args.d_model, "d_ff": 4 * args.d_model, "dropout_rate": 0.0},
        **{"num_layers": args.num_layers, "num_heads": max(1, args.d_model // 64)},
    )
    trainer = GURTrainer(
        GURForPreTraining(config),
        TrainingArguments(folder, use_cpu=args.device == "cpu", bf16=args.bf16, report_to="none"),
        data_collator=list,
        contrastive_mini_batch_size=args.mini_batch if side == SIDES[1] else None,
    )
    model = trainer.accelerator.prepare(trainer.model)

    def step(batch):
        model.zero_grad(set_to_none=True)
        loss = trainer.training_step(model, batch, trainer.model.loss_item_counts(batch)).item()
        return loss, [parameter.grad for parameter in model.parameters()]

    return step


def measure(side, pairs, args):
    """Prints what one step adds to the memory at its peak, in MB, and its seconds, those of the processor on a CPU.
    Runs in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        step, batch = make_step(side, args, folder), make_batch(pairs, args)
        step(make_batch(2, args))  # first, so that libraries and gradients are no part of the difference
        before = memory_mb(args.device, "VmRSS")
        clock = time.process_time if args.device == "cpu" else time.perf_counter  # the former where others work too
        start = clock()
        step(batch)
        seconds = clock() - start
        peak = memory_mb(args.device, "VmHWM")
        print(json.dumps([before and peak - before, seconds]))


def memory_mb(device, field):
    """What is in use ("VmRSS"), after which the peak starts again from there; or that peak ("VmHWM"). None where the
    system does not tell (not a Linux with glibc)."""
    if device == "cuda":
        if field == "VmHWM":
            return torch.cuda.max_memory_allocated() / 2**20
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**20
    try:
        if field == "VmRSS":
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
    except (OSError, AttributeError, TypeError):
        return None
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def in_a_process(side, pairs):
    command = [sys.executable, __file__, *sys.argv[1:], "--measure", side, str(pairs)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stderr)
    return json.loads(result.stdout.splitlines()[-1])


def check_equal(args, folder):
    """Loss and gradients of both sides, on a batch of several mini-batches."""
    batch = make_batch(3 * args.mini_batch - 1, args)
    (whole, first), (parts, second) = (make_step(side, args, folder)(batch) for side in SIDES)
    first, second = (torch.cat([gradient.flatten() for gradient in side]) for side in (first, second))
    apart = ((first - second).norm() / first.norm()).item()
    print(f"{len(batch['labels']) // 2} pairs: losses differ by {abs(whole - parts):.1e}, gradients by {apart:.1e}")
    tolerance = 5e-2 if args.bf16 else 1e-4
    return abs(whole - parts) <= tolerance and apart <= tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"d_model": 256, "num_layers": 4, "vocab_size": 8000, "length": 64, "mini_batch": 32}
    for name, default in {**sizes, "threads": torch.get_num_threads()}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--pairs", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a toy size: its numbers mean nothing")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        vars(args).update(QUICK)
    torch.set_num_threads(args.threads)
    if args.measure:
        return measure(args.measure[0], int(args.measure[1]), args)

    print(f"{platform.machine()}, {os.cpu_count()} cores, {args.device}; {args.threads} threads;", end=" ")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}; {time.strftime('%Y-%m-%d')}")
    print(
        f"d_model {args.d_model}, {args.num_layers} + {args.num_layers} layers, vocabulary {args.vocab_size}", end=""
    )
    print(f", {args.length} tokens a text, mini-batches of {args.mini_batch} pairs")
    with tempfile.TemporaryDirectory() as folder:
        equal = check_equal(args, folder)
    print(f"{'pairs':>8}{'whole MB':>12}{'parts MB':>12}{'ratio':>8}{'whole s':>12}{'parts s':>12}{'ratio':>8}")
    for pairs in args.pairs:
        (memory, seconds), (less_memory, more_seconds) = (in_a_process(side, pairs) for side in SIDES)
        known = memory is not None
        cells = [f"{memory:.0f}", f"{less_memory:.0f}", f"{memory / less_memory:.2f}"] if known else ["-"] * 3
        cells += [f"{seconds:.2f}", f"{more_seconds:.2f}", f"{seconds / more_seconds:.2f}"]
        print(f"{pairs:>8}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, (12, 12, 8) * 2)), flush=True)
    if not equal:
        sys.exit("The sides do not compute the same: see the differences above.")


if __name__ == "__main__":
    main()
