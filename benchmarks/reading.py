"""How fast text is read and tokenised: MB/s and tokens/s, beside plain `datasets.map` on the same file, by turns.

    python benchmarks/reading.py                                       # SciFact of this checkout; a minute
    python benchmarks/reading.py --quick                               # seconds, to see that it works
    python benchmarks/reading.py --train_file docs.jsonl more_docs/    # a row for each file or folder
    python benchmarks/reading.py --tokenizer_name google-bert/bert-base-uncased

See benchmarks/README.md.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import datasets
import transformers
from transformers import AutoTokenizer

from retrieval_pretraining.corpus import load_documents, read_documents, resolve_files
from retrieval_pretraining.passages import tokenize_documents
from retrieval_pretraining.tokenizer_training import train_tokenizer

ROOT = Path(__file__).resolve().parent.parent
SCIFACT = ROOT / "examples" / "data" / "scifact" / "corpus.jsonl.xz"
LEGEND = """\
ours         load_documents and tokenize_documents: documents, checked and counted; passages, cut at the ends of
             sentences, with the word of each token
plain        load_dataset("json") and map(tokenizer): token ids and attention mask of each document, uncut
reading      file to Arrow file, MB/s of the text in UTF-8; tokenising: Arrow file to Arrow file, in so many processes
ratio        ours divided by plain, both steps together: above 1, ours is the faster
again        seconds that ours takes the second time, when both steps are found in the cache"""


def ours(file, tokenizer, length, workers, cache):
    start = time.perf_counter()
    documents, _ = load_documents(train_file=file, cache_dir=cache)
    read = time.perf_counter()
    passages = tokenize_documents(documents, tokenizer, max_seq_length=length, num_proc=workers)
    return read - start, time.perf_counter() - read, passages


def plain(file, tokenizer, length, workers, cache):
    start = time.perf_counter()
    documents = datasets.load_dataset("json", data_files=str(file), split="train", cache_dir=cache)
    read = time.perf_counter()
    encoded = documents.map(
        lambda batch: tokenizer(batch["text"], add_special_tokens=False, return_token_type_ids=False, verbose=False),
        batched=True,
        remove_columns=documents.column_names,
        num_proc=workers,
    )
    return read - start, time.perf_counter() - read, encoded


def measure(source, workers, args):
    """A row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        texts = list(read_documents(resolve_files(source), on_bad_line="skip"))
        if args.quick:
            texts = texts[:200]
        file = Path(folder, "documents.jsonl")
        file.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), "utf-8")
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        if args.tokenizer_name:
            tokenizer = AutoTokenizer.from_pretrained(args.tokenizer_name)
        else:
            tokenizer = train_tokenizer(texts[:5000], vocab_size=args.vocab_size)
        seconds = {"ours": [], "plain": []}
        for turn in range(args.repeats):
            for name, side in (("ours", ours), ("plain", plain)):
                cache = Path(folder, f"{name}-{turn}")
                *spent, made = side(file, tokenizer, args.max_seq_length, workers, str(cache))
                seconds[name].append(spent)
                if name == "plain":
                    tokens = sum(len(row) for row in made["input_ids"])
        again = sum(ours(file, tokenizer, args.max_seq_length, workers, str(Path(folder, "ours-0")))[:2])
    medians = {name: [statistics.median(step) for step in zip(*rows)] for name, rows in seconds.items()}
    cells = []
    for reading, tokenising in medians.values():
        both = reading + tokenising
        cells += [f"{megabytes / reading:.1f}", f"{tokens / tokenising / 1e3:.0f}", f"{megabytes / both:.2f}"]
    ratio = sum(medians["plain"]) / sum(medians["ours"])
    return [Path(source).name, f"{megabytes:.1f}", str(workers or 1), *cells, f"{ratio:.2f}", f"{again:.1f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", default=[str(SCIFACT)], help="files or folders, a row each")
    parser.add_argument("--tokenizer_name", help="a folder or a Hub name; without it one is trained on the text")
    parser.add_argument("--vocab_size", type=int, default=16_000, help="of a tokenizer that is trained")
    parser.add_argument("--max_seq_length", type=int, default=512, help="tokens of a passage")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="processes that tokenise")
    parser.add_argument("--repeats", type=int, default=3, help="the median of so many is taken")
    parser.add_argument("--quick", action="store_true", help="200 documents, once: its numbers mean nothing")
    args = parser.parse_args()
    if args.quick:
        args.repeats, args.workers = 1, [1]
    datasets.disable_progress_bars()
    transformers.utils.logging.set_verbosity_error()

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"{cpu}, {os.cpu_count()} cores{load}; datasets {datasets.__version__}; {time.strftime('%Y-%m-%d')}")
    print(f"passages of {args.max_seq_length} tokens, by turns, the median of {args.repeats}\n")
    steps = ["reading MB/s", "tokenising k tokens/s", "both MB/s"]
    heads = ["", "MB", "processes", *(f"{side}: {step}" for side in ("ours", "plain") for step in steps)]
    rows = [[*heads, "ratio", "again (s)"]]
    rows += [
        measure(source, None if workers == 1 else workers, args)
        for source in args.train_file
        for workers in args.workers
    ]
    for number, head in enumerate(rows[0]):
        width = max(len(row[number]) for row in rows[1:])
        print(f"{head:<32}" + "  ".join(f"{row[number]:>{max(width, 8)}}" for row in rows[1:]))
    print(f"\n{LEGEND}")


if __name__ == "__main__":
    main()
