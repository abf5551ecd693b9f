"""How fast texts become vectors, beside `SentenceTransformer.encode` of the same model: by turns, ratios printed.

    python benchmarks/encoding.py                       # SciFact and the starter model of this checkout; a minute
    python benchmarks/encoding.py --quick               # seconds, to see that it works
    python benchmarks/encoding.py --eval_retrieval_dir my_data --model_name_or_path my_model --device cuda

Needs sentence-transformers. The run fails if the vectors of the two sides differ. See benchmarks/README.md.
"""

import argparse
import os
import platform
import random
import statistics
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import sentence_transformers
import torch
import transformers

from retrieval_pretraining.retrieval_data import load_retrieval_data
from retrieval_pretraining.systems import load_encoder

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-5
LEGEND = """\
ours                   TextEncoder.encode of retrieval_pretraining.systems
sentence-transformers  SentenceTransformer.encode: the same weights, pooling, length and batch size, both in float32
ratio                  sentence-transformers divided by ours: above 1, ours is the faster
wall, CPU              seconds by the clock, and of the processor over all threads; the latter is the steadier one on a
                       machine that others use too"""


def load_both(args):
    ours = load_encoder(
        args.model_name_or_path,
        pooling=args.pooling,
        max_seq_length=args.max_seq_length,
        batch_size=args.batch_size,
        device=args.device,
    )
    with warnings.catch_warnings():  # the modules moved in version 6
        warnings.simplefilter("ignore")
        from sentence_transformers.models import Normalize, Pooling, Transformer

    first = Transformer(args.model_name_or_path, max_seq_length=ours.max_seq_length)
    modules = [first, Pooling(ours.vector_size, args.pooling), Normalize()]
    return ours, sentence_transformers.SentenceTransformer(modules=modules, device=args.device).float().eval()


def measure(functions, repeats):
    """Median seconds by the clock and of the processor of each function; they take turns."""
    seconds = {name: [] for name in functions}
    for name in list(functions) * repeats:
        wall, cpu = time.perf_counter(), time.process_time()
        functions[name]()
        seconds[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {name: [statistics.median(column) for column in zip(*rows)] for name, rows in seconds.items()}


def compare(name, texts, ours, theirs, args):
    """Prints a row; returns how far the vectors are apart."""
    sides = {
        "ours": partial(ours.encode, texts, progress=False),
        "sentence-transformers": partial(theirs.encode, texts, batch_size=args.batch_size, show_progress_bar=False),
    }
    first, second = (side() for side in sides.values())
    tokens = sum(map(len, ours.tokenizer(texts, truncation=True, max_length=ours.max_seq_length)["input_ids"]))
    times = measure(sides, args.repeats)
    cells = [f"{values[column]:.2f}" for column in (0, 1) for values in times.values()]
    ratios = [f"{times['sentence-transformers'][column] / times['ours'][column]:.2f}" for column in (0, 1)]
    row = [name, len(texts), round(tokens / len(texts)), *cells[:2], ratios[0], *cells[2:], ratios[1]]
    print_row(row)
    return float(np.abs(first - second).max())


def print_row(cells):
    widths = (28, 7, 7, 9, 9, 6, 9, 9, 6)
    print(str(cells[0]).ljust(widths[0]) + "".join(str(c).rjust(w) for c, w in zip(cells[1:], widths[1:])), flush=True)


def machine(args):
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    gpu = f", {torch.cuda.get_device_name()}" if args.device.startswith("cuda") else ""
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, "
    versions += f"sentence-transformers {sentence_transformers.__version__}"
    return f"{cpu}, {os.cpu_count()} cores{load}{gpu}; {args.threads} threads; {versions}; {time.strftime('%Y-%m-%d')}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", default=str(ROOT / "examples" / "starter-en"))
    parser.add_argument("--eval_retrieval_dir", nargs="+", default=[str(ROOT / "examples" / "data" / "scifact")])
    parser.add_argument("--pooling", choices=["cls", "mean"], default="cls")
    parser.add_argument("--device", default="cpu")
    sizes = {"max_seq_length": 256, "batch_size": 64, "max_texts": 2000, "repeats": 5}
    for name, default in {**sizes, "threads": torch.get_num_threads()}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--quick", action="store_true", help="few texts and one repeat: its numbers mean nothing")
    args = parser.parse_args()
    if args.quick:
        args.max_texts, args.repeats, args.max_seq_length = 40, 1, 32
    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    ours, theirs = load_both(args)
    print(machine(args))
    print(f"{args.model_name_or_path}: {ours.parameters:,} parameters, {args.pooling}; batches of {args.batch_size}\n")
    print_row(["", "", "", "wall", "wall", "", "CPU", "CPU", ""])
    print_row(["", "texts", "tokens", "ours", "s-t", "ratio", "ours", "s-t", "ratio"])
    apart = []
    for folder in args.eval_retrieval_dir:
        data = load_retrieval_data(folder)
        for kind, texts in (("documents", data.corpus_texts), ("queries", data.query_texts)):
            texts = random.Random(0).sample(texts, min(len(texts), args.max_texts))
            apart.append(compare(f"{data.name}, {kind}", texts, ours, theirs, args))
    print(f"\nvectors differ by {max(apart):.1e}\n\n{LEGEND}")
    if max(apart) > TOLERANCE:
        sys.exit("The sides do not give the same vectors.")


if __name__ == "__main__":
    main()
