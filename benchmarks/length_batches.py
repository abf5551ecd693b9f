"""What batches of like lengths gain: padding and passages a second, beside random order, by turns.

    python benchmarks/length_batches.py                                        # SciFact of this checkout; some minutes
    python benchmarks/length_batches.py --quick                                # seconds, to see that it works
    python benchmarks/length_batches.py --train_file docs.jsonl more_docs/     # a row for each file or folder
    python benchmarks/length_batches.py --device cuda --dtype bfloat16 --hidden_size 768 --num_layers 12

Both sides train on the same passages. Time is the processor's on a CPU, so that a busy machine does not count. See
benchmarks/README.md.
"""

import argparse
import os
import platform
import statistics
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import BertConfig

from configuration_retromae import RetroMAEConfig
from modeling_retromae import RetroMAEForPreTraining
from retrieval_pretraining.collators import RetroMAECollator
from retrieval_pretraining.corpus import read_raw_documents, resolve_files
from retrieval_pretraining.length_batches import length_grouped_order, padding_share, random_order
from retrieval_pretraining.passages import encode_documents
from retrieval_pretraining.tokenizer_training import train_tokenizer

ROOT = Path(__file__).resolve().parent.parent
SCIFACT = ROOT / "examples" / "data" / "scifact"
SIZES = {"hidden_size": 128, "num_layers": 2, "vocab_size": 8000, "batch_size": 16, "batches": 40, "repeats": 3}
QUICK = {"hidden_size": 32, "num_layers": 1, "vocab_size": 1000, "batch_size": 4, "batches": 3, "repeats": 1}
LEGEND = """\
passages     of the whole text, cut into at most so many tokens; tokens: of a passage, on average
padding      share of the tokens of an epoch's batches that are padding
passages/s   collation, forward and backward pass of a RetroMAE step, without optimizer; a second of processor time
ratio        passages/s of like lengths divided by those of random order: above 1, like lengths are faster"""


def read_passages(source, length, args):
    """All texts of a file or folder, title included, as passages; and the tokenizer trained on them."""
    texts = [
        f"{document.title} {document.text}" if document.title else document.text
        for document in read_raw_documents(resolve_files(source), on_bad_line="skip")
    ]
    if args.quick:
        texts = texts[:100]
    tokenizer = train_tokenizer(texts[:5000], vocab_size=args.vocab_size)
    encoded = encode_documents(texts, tokenizer, max_seq_length=length)
    columns = ([np.array(row, dtype=np.int32) for row in encoded[name]] for name in ("input_ids", "word_ids"))
    return [dict(zip(("input_ids", "word_ids"), row)) for row in zip(*columns)], tokenizer


def make_model(tokenizer, length, args):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=args.hidden_size,
        num_hidden_layers=args.num_layers,
        num_attention_heads=max(1, args.hidden_size // 64),
        intermediate_size=4 * args.hidden_size,
        max_position_embeddings=length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return RetroMAEForPreTraining(RetroMAEConfig(encoder_config=config)).to(args.device).train()


def train_step(model, collator, passages, args):
    batch = {name: tensor.to(args.device) for name, tensor in collator(passages).items()}
    model.zero_grad(set_to_none=True)
    with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bfloat16"):
        loss = model(**batch)["loss"]
    loss.backward()
    if args.device == "cuda":
        torch.cuda.synchronize()


def measure(name, passages, tokenizer, length, args):
    """A row of the table."""
    size, lengths = args.batch_size, np.array([len(passage["input_ids"]) for passage in passages])
    grouped = length_grouped_order(lengths, size, seed=0, epoch=0)
    mixed = random_order(len(passages), seed=0, epoch=0)
    # The batches of an epoch are in random order, so the first of them stand for all; both sides have their passages.
    timed = grouped[: args.batches * size]
    orders = {"random": np.random.default_rng(0).permutation(timed), "like lengths": timed}
    model, collator = make_model(tokenizer, length, args), RetroMAECollator(tokenizer, RetroMAEConfig())
    clock = time.perf_counter if args.device == "cuda" else time.process_time
    seconds = {side: [] for side in orders}
    train_step(model, collator, [passages[place] for place in timed[:size]], args)
    for _ in range(args.repeats):
        spent = dict.fromkeys(orders, 0.0)
        for begin in range(0, len(timed), size):
            for side, order in orders.items():
                batch = [passages[place] for place in order[begin : begin + size]]
                start = clock()
                train_step(model, collator, batch, args)
                spent[side] += clock() - start
        for side, total in spent.items():
            seconds[side].append(total)
    speed = {side: len(timed) / statistics.median(totals) for side, totals in seconds.items()}
    return [
        f"{name}, {length} tokens",
        f"{len(passages):,}",
        f"{lengths.mean():.0f}",
        f"{padding_share(lengths[mixed], size):.1%}",
        f"{padding_share(lengths[grouped], size):.1%}",
        *(f"{speed[side]:.1f}" for side in orders),
        f"{speed['like lengths'] / speed['random']:.2f}",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", default=[str(SCIFACT)], help="files or folders, a row each")
    parser.add_argument("--max_seq_length", type=int, nargs="+", default=[128, 512], help="tokens of a passage")
    for name, default in {**SIZES, "threads": torch.get_num_threads()}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="bfloat16 is autocast")
    parser.add_argument("--quick", action="store_true", help="a toy size and one repeat: its numbers mean nothing")
    args = parser.parse_args()
    if args.quick:
        vars(args).update(QUICK)
    torch.set_num_threads(args.threads)

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    gpu = f", {torch.cuda.get_device_name()}" if args.device == "cuda" else ""
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{cpu}, {os.cpu_count()} cores{load}{gpu}; {args.threads} threads; {versions}; {time.strftime('%Y-%m-%d')}")
    print(f"hidden {args.hidden_size}, {args.num_layers} layers, {args.dtype}; batches of {args.batch_size};", end=" ")
    print(f"{args.batches} batches timed, by turns, the median of {args.repeats}\n")

    rows = [
        ["", "passages", "tokens", "padding, random", "like lengths", "passages/s, random", "like lengths", "ratio"]
    ]
    for source in args.train_file:
        for length in args.max_seq_length:
            rows.append(measure(Path(source).name, *read_passages(source, length, args), length, args))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for name, *cells in rows:
        print(name.ljust(widths[0]) + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:])))
    print(f"\n{LEGEND}")


if __name__ == "__main__":
    main()
