"""How fast pairs are mined, beside comparing every pair of sentences: one run, side by side, ratios printed.

    python benchmarks/pair_mining.py                                         # SciFact; some minutes on one core
    python benchmarks/pair_mining.py --max_sentences 10000 --rounds 1        # seconds, to see that it works
    python benchmarks/pair_mining.py --train_file docs.jsonl.xz more_docs/   # your text, a row for each file or folder

The run fails if the sides do not find the same pairs. See benchmarks/README.md for what is measured and how.
"""

import argparse
import importlib.util
import itertools
import json
import multiprocessing
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from retrieval_pretraining import pair_mining
from retrieval_pretraining.corpus import iterate_documents
from retrieval_pretraining.documents import Document
from retrieval_pretraining.mined_pairs import PART_CHARACTERS, mine_to_folder
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.pair_mining import mine_documents, split_blocks

ROOT = Path(__file__).resolve().parent.parent
SCIFACT = ROOT / "examples" / "data" / "scifact" / "corpus.jsonl.xz"
SETTINGS, UNCAPPED = MiningSettings(), MiningSettings(max_pairs_per_sentence=0)
SIZES = (1_000, 10_000, 100_000, 1_000_000)
LONG_DOCUMENT = 10_000
SAMPLED = (40, 50)  # so many sentences of the long document, each compared with so many others
ROOMS = {
    "splitting": ("_split_document",),
    "join": ("SentenceBlock", "_join_spans"),
    "selection": ("select_pairs",),
    "spans": ("heaviest_spans",),
}
LEGEND = f"""\
splitting         documents to sentences; join: minimal grams, their hashes, who shares one; selection: which pairs are
                  taken; spans: the heaviest span of each pair; texts: the rest
table, automaton  every pair of a document compared, tests/reference/pairwise_miners.py; equal: the same pairs and
                  weights, without a cap; ratio: the column before it divided by our CPU seconds
growth            mine_to_folder in parts of {PART_CHARACTERS:,} characters, in a fresh process; us: microseconds a
                  sentence; MB: the most that was resident, "at start" after 20 documents"""


def load_reference(name):
    """A module of tests/reference. They are no part of the installed package, so they are loaded by their path."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests" / "reference" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


oracle, pairwise = map(load_reference, ("pair_mining_oracle", "pairwise_miners"))
oracle.character_weight = cache(oracle.character_weight)  # in this copy of the module
REFERENCES = {"table": pairwise.Table, "automaton": pairwise.Automaton}


class Seconds(NamedTuple):
    wall: float
    cpu: float


def stopwatch(function):
    """(Seconds, what the function returned)."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu), result


def by_turns(functions, rounds):
    """{name: (median Seconds, what it returned)}; the functions take turns."""
    seconds, results = {name: [] for name in functions}, {}
    for turn in range(rounds):
        for name, function in functions.items():
            say(f"  round {turn + 1} of {rounds}: {name}")
            taken, results[name] = stopwatch(function)
            seconds[name].append(taken)
    return {name: (Seconds(*map(statistics.median, zip(*taken))), results[name]) for name, taken in seconds.items()}


def say(text):
    print(text, file=sys.stderr, flush=True)


def table(title, header, rows):
    lines = [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*lines)]
    print(f"\n{title}")
    for line in lines:
        print("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]), flush=True)


def number(value):
    digits = 0 if isinstance(value, int) or value >= 100 else 1 if value >= 10 else 3
    return f"{value:,.{digits}f}"


def read_splits(path, max_sentences):
    """The documents of a file or a folder, in their order, up to so many sentences."""
    splits, counts = [], Counter()
    for block in split_blocks(iterate_documents(train_file=path), SETTINGS, counts, seed=42):
        splits += block
        if counts["sentences"] >= max_sentences:
            break
    return splits


def mine_by_rooms(documents):
    """(counts, CPU seconds of each room)"""
    seconds = Counter()

    def timed(room, function, *args, **options):
        taken, result = stopwatch(partial(function, *args, **options))
        seconds[room] += taken.cpu
        return result

    with ExitStack() as stack:
        for room, names in ROOMS.items():
            for name in names:
                watched = partial(timed, room, getattr(pair_mining, name))
                stack.enter_context(patch.object(pair_mining, name, watched))
        whole, (_, counts) = stopwatch(partial(mine_documents, documents, SETTINGS))
    return counts, seconds | {"texts": whole.cpu - sum(seconds.values())}


def throughput(corpora, rounds):
    documents = {name: [split.document for split in splits] for name, splits in corpora.items()}
    found = by_turns({name: partial(mine_by_rooms, texts) for name, texts in documents.items()}, rounds)
    rows, rooms = [], []
    for name, (seconds, (counts, inside)) in found.items():
        body, both = counts["sentences"], counts["sentences"] + counts["titles"]
        megabytes = sum(len(document.text.encode(errors="replace")) for document in documents[name]) / 1e6
        speeds = [body / seconds.wall, both / seconds.wall, body / seconds.cpu, both / seconds.cpu]
        rows.append([name, counts["documents"], body, counts["pairs"], *speeds, megabytes / seconds.cpu])
        rooms.append([name, *(f"{inside[room] / sum(inside.values()):.0%}" for room in (*ROOMS, "texts"))])
    speeds = ["sentences/s, wall", "with titles", "sentences/s, CPU", "with titles", "MB/s, CPU"]
    table("Documents in memory to pairs, one core", ["", "documents", "sentences", "pairs", *speeds], rows)
    table("Where the time goes", ["", *ROOMS, "texts"], rooms)


def beside_every_pair(corpora, rounds, count):
    rows = []
    for name, splits in corpora.items():
        splits = [split for split in splits if len(split.sentences) > 1]
        splits = [splits[place] for place in np.linspace(0, len(splits) - 1, min(count, len(splits))).astype(int)]
        # Called by their number: the ids of a corpus may repeat.
        documents = [split.document._replace(document_id=place) for place, split in enumerate(splits)]
        sides = {"ours": partial(mine_documents, documents, UNCAPPED)}
        texts = [split.sentences for split in splits]
        sides |= {side: partial(pairwise.all_pairs, texts, kind, oracle) for side, kind in REFERENCES.items()}
        found = by_turns(sides, rounds)
        ours, (pairs, _) = found.pop("ours")
        weights = {(pair.document_id, *pair[:2]): oracle.weight(oracle.normalise(pair.shared_span)) for pair in pairs}
        equal = "yes" if all(theirs == weights for _, theirs in found.values()) else "NO"
        sizes = list(map(len, texts))
        compared = sum(size * (size - 1) // 2 for size in sizes)
        row = [name, len(splits), sum(sizes), compared, len(pairs), equal, ours.cpu]
        for seconds, _ in found.values():
            row += [seconds.cpu, seconds.cpu / ours.cpu]
        rows.append(row)
    header = ["", "documents", "sentences", "compared", "pairs", "equal", "ours"]
    table("Every pair of a document compared (CPU s)", [*header, "table", "ratio", "automaton", "ratio"], rows)
    return all("yes" in row for row in rows)


def seconds_for_all(sentences, kind):
    """CPU seconds that comparing every pair would take, from a sample of them."""
    rng = random.Random(0)
    ones, others = (
        [pairwise.Sentence(text, oracle) for text in rng.sample(sentences, min(count, len(sentences)))]
        for count in SAMPLED
    )
    building, indexes = stopwatch(lambda: [kind(one) for one in ones])  # once for all that it is compared with
    comparing, _ = stopwatch(lambda: [index.heaviest(other) for index in indexes for other in others])
    pairs = len(sentences) * (len(sentences) - 1) / 2
    return building.cpu / len(ones) * len(sentences) + comparing.cpu / (len(ones) * len(others)) * pairs


def long_document(corpora, rounds, max_sentences):
    rows = []
    for name, splits in corpora.items():
        distinct = {text.lower(): text for split in splits for text in split.sentences[split.title is not None :]}
        sentences = list(distinct.values())[: min(LONG_DOCUMENT, max_sentences)]
        texts = {"a sentence a line": "\n".join(sentences), "all on one line": " ".join(sentences)}
        sides = {side: partial(mine_documents, [Document(text, None, side)], SETTINGS) for side, text in texts.items()}
        slow = [seconds_for_all(sentences, kind) for kind in REFERENCES.values()]
        for side, (seconds, (pairs, counts)) in by_turns(sides, rounds).items():
            row = [f"{name}, {side}", counts["sentences"], len(pairs), *seconds]
            rows.append(row + [value for theirs in slow for value in (theirs, theirs / seconds.cpu)])
    header = ["", "sentences", "pairs", "wall", "CPU", "table, extrapolated", "ratio"]
    table("One long document (s)", [*header, "automaton, extrapolated", "ratio"], rows)


def write_numbered(splits, size, file):
    """Writes about `size` sentences: the documents again and again, with the turn's number amid each sentence."""
    with open(file, "w", encoding="utf-8", errors="replace") as lines:
        turns = ((turn, split) for turn in itertools.count() for split in splits)
        while size > 0:
            turn, split = next(turns)
            text = split.document.text
            borders = [0, *(sum(place) // 2 for place in split.places), len(text)]
            text = f" {turn} ".join(text[begin:end] for begin, end in itertools.pairwise(borders))
            title = split.title and f"{split.title} {turn}"
            lines.write(json.dumps({"title": title, "text": text}, ensure_ascii=False) + "\n")
            size -= len(split.sentences)


def peak_memory():
    """MB, the most that was resident so far; None where the system does not tell."""
    try:  # not getrusage: that counts what the parent had when it started this process
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024
    except OSError:
        return None


def grow(file, small, runs):
    """In a fresh process: (Seconds, sentences with titles, MB at start, MB at the peak, Seconds of two workers)."""
    multiprocessing.set_start_method(None, force=True)  # what the doors have, not what started this process

    def mine(source, num_workers):
        with tempfile.TemporaryDirectory() as folder:
            options = {"num_workers": num_workers, "show_progress": False}
            return mine_to_folder({"train_file": source}, folder, SETTINGS, **options).counts

    mine(small, 1)
    start = peak_memory()
    seconds, counts = by_turns({"one worker": partial(mine, file, 1)}, runs)["one worker"]
    peak = peak_memory()
    by_two, _ = by_turns({"two workers": partial(mine, file, 2)}, runs)["two workers"]
    return seconds, counts["sentences"] + counts["titles"], start, peak, by_two


def growth(corpora, rounds, max_sentences):
    rows, context = [], multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        file, small = Path(folder, "documents.jsonl"), Path(folder, "small.jsonl")
        for name, splits in corpora.items():
            write_numbered(splits[:20], sum(len(split.sentences) for split in splits[:20]), small)
            for size in [size for size in SIZES if size <= max_sentences]:
                write_numbered(splits, size, file)
                say(f"{name}, {size:,} sentences")
                with ProcessPoolExecutor(1, mp_context=context) as fresh:
                    runs = max(1, min(rounds, SIZES[-1] // (4 * size)))
                    seconds, sentences, *memory, by_two = fresh.submit(grow, str(file), str(small), runs).result()
                row = [name, sentences, file.stat().st_size / 1e6, *(1e6 * value / sentences for value in seconds)]
                row += ["-" if value is None else value for value in memory]
                rows.append([*row, 1e6 * by_two.wall / sentences, seconds.wall / by_two.wall])
    header = ["", "sentences, titles", "MB of text", "us, wall", "us, CPU", "MB at start", "MB at peak"]
    table("Growth", [*header, "us, 2 workers", "times as fast"], rows)


def machine():
    info = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(": ")[1] for line in info if line.startswith("model name")), platform.machine())
    load = f"load {os.getloadavg()[0]:.1f}, " if hasattr(os, "getloadavg") else ""
    return f"{cpu}, {os.cpu_count()} cores, {load}numpy {np.__version__}, {time.strftime('%Y-%m-%d')}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", default=[SCIFACT], help="files and folders, a row for each")
    parser.add_argument("--rounds", type=int, default=5, help="each time is the median of so many")
    parser.add_argument("--max_sentences", type=int, default=SIZES[-1], help="nothing larger is mined")
    parser.add_argument("--documents", type=int, default=60, help="those of which every pair is compared")
    args = parser.parse_args()

    corpora = {}
    for path in args.train_file:
        say(f"reading {path}")
        corpora["/".join(Path(path).resolve().parts[-2:])] = read_splits(path, args.max_sentences)
    mine_documents([Document("One. Two.", None, "")], SETTINGS)  # some tables are built once
    print(machine())
    throughput(corpora, args.rounds)
    equal = beside_every_pair(corpora, args.rounds, args.documents)
    long_document(corpora, args.rounds, args.max_sentences)
    growth(corpora, args.rounds, args.max_sentences)
    print(f"\n{LEGEND}")
    if not equal:
        sys.exit("The sides do not find the same pairs: see 'equal' above.")


if __name__ == "__main__":
    main()
