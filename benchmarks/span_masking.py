"""How many tokens a second span corruption masks on one core, beside the published law as loops, by turns.

    python benchmarks/span_masking.py             # half a minute
    python benchmarks/span_masking.py --quick     # a second, to see that it works

Both sides turn the same token ids into padded inputs, attention mask and targets. Time is that of the thread on its
core, so that a busy machine does not count. See benchmarks/README.md.
"""

import argparse
import importlib.util
import os
import platform
import random
import statistics
import time
from pathlib import Path

import numpy as np

from retrieval_pretraining.masking import TextGenerator
from retrieval_pretraining.span_masking import SPAN_LENGTHS, corrupt_spans, span_mask

ORACLE = Path(__file__).resolve().parent.parent / "tests" / "reference" / "span_masking_oracle.py"
LENGTHS = {"64": (64, 64), "128": (128, 128), "64 to 128": (64, 128)}
SENTINELS = np.arange(32099, 31999, -1)
EOS, PAD = 1, 0
LEGEND = """\
ours            TextGenerator, span_mask and corrupt_spans: numpy, the whole batch at once
span_mask       that part of ours alone, which says what is masked
published-like  tests/reference/span_masking_oracle.py: loops over texts, spans and tokens, as the published code has
ratio           ours divided by published-like"""


def load_oracle():
    """tests/reference is no part of the installed package, so it is loaded by its path."""
    spec = importlib.util.spec_from_file_location("span_masking_oracle", ORACLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


oracle = load_oracle()


def make_texts(shortest: int, longest: int, count: int):
    """Random ids that end with eos, padded; a word for each token; words of 1.7 tokens; what is not padding."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(shortest, longest + 1, count)
    position = np.arange(longest)
    real = position < lengths[:, None]
    ids = np.where(real, rng.integers(3, 32000, real.shape), PAD)
    ids[np.arange(count), lengths - 1] = EOS
    new_word = rng.random(real.shape) < 0.6
    words = np.where(position < lengths[:, None] - 1, new_word.cumsum(axis=1), -1)
    tokens = np.where(position < lengths[:, None] - 1, position, -1)
    return ids, tokens, words, real


def measure(name: str, *, whole_words: bool, rate: float, law: str, args) -> list[str]:
    ids, tokens, words, real = make_texts(*LENGTHS[name], args.batch_size)
    rows = [row[flags].tolist() for row, flags in zip(ids, real)]
    pmf = SPAN_LENGTHS[law].pmf.tolist()
    special = {"eos_token_id": EOS, "pad_token_id": PAD}

    def mask():
        generator = TextGenerator(ids, real)
        unit_ids = words if whole_words else tokens
        return span_mask(
            unit_ids, rate, SPAN_LENGTHS[law], generator, max_spans=len(SENTINELS), whole_words=whole_words
        )

    def ours():
        return corrupt_spans(ids, real, *mask(), sentinel_ids=SENTINELS, **special)

    def published_like():
        rng = random.Random(0)
        batch = oracle.collate_like_published(rows, rate, pmf, SENTINELS.tolist(), rng=rng, **special)
        return [np.array(array) for array in batch]

    sides = {"ours": (ours, 40), "span_mask": (mask, 40), "published-like": (published_like, 1)}
    seconds = {side: [] for side in sides}
    for _ in range(args.repeats):
        for side, (function, times) in sides.items():  # ours takes milliseconds, so it is timed several times a turn
            for _ in range(times):
                start = time.thread_time()
                function()
                seconds[side].append(time.thread_time() - start)
    speed = {side: real.sum() / 1e6 / statistics.median(taken) for side, taken in seconds.items()}
    unit = "words" if whole_words else "tokens"
    ratio = speed["ours"] / speed["published-like"]
    return [f"{name} tokens, {unit}, {rate:.0%}, {law}", *(f"{speed[side]:.2f}" for side in sides), f"{ratio:.0f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=512, help="texts")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a toy size and one repeat: its numbers mean nothing")
    args = parser.parse_args()
    if args.quick:
        args.batch_size, args.repeats = 16, 1

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(
        f"{cpu}{load}; numpy {np.__version__}; one core; {args.batch_size} texts a batch; {time.strftime('%Y-%m-%d')}"
    )
    common = {"rate": 0.15, "law": "hump_geometric", "whole_words": False}
    changes = [("64 to 128", {"whole_words": True}), ("64 to 128", {"rate": 0.3}), ("64 to 128", {"law": "uniform"})]
    table = [["million tokens a second", "ours", "span_mask", "published-like", "ratio"]]
    table += [measure(name, **common, args=args) for name in LENGTHS]
    table += [measure(name, **{**common, **change}, args=args) for name, change in changes]
    widths = [max(map(len, column)) for column in zip(*table)]
    for name, *cells in table:
        print(name.ljust(widths[0]) + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:])))
    print(f"\n{LEGEND}")


if __name__ == "__main__":
    main()
