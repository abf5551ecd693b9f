"""Text that is read while training: each passage once a pass, like lengths together, resumable anywhere."""

import itertools
import json
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import IterableDataset
from fresh_process import run_script
from test_trainer import TESTS, history, toy_model, toy_text, toy_trainer
from tokenizers_for_tests import SENTENCES, bert_tokenizer
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from retrieval_pretraining.corpus import load_documents
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.length_batches import padding_share
from retrieval_pretraining.passages import encode_documents
from retrieval_pretraining.streaming import BLOCK, PassageStream, StreamBatches, stream_documents


def encode(texts: list[str]) -> dict[str, list]:
    """Numbers, five to a passage; "-" is a text without a passage."""
    columns = {"input_ids": [], "word_ids": [], "document": []}
    for document, text in enumerate(texts):
        ids = [int(word) for word in text.split() if word != "-"]
        for begin in range(0, len(ids), 5):
            columns["input_ids"].append(ids[begin : begin + 5])
            columns["word_ids"].append(ids[begin : begin + 5])
            columns["document"].append(document)
    return columns


def rows(texts):
    yield from ({"text": text} for text in texts)


def stream_of(texts: list[str], *, shuffle_buffer_size: int = 12, **changes) -> PassageStream:
    documents = IterableDataset.from_generator(partial(rows, texts))
    return PassageStream(documents, **{"encode": encode, "shuffle_buffer_size": shuffle_buffer_size, **changes})


def some_texts(count: int = 40, longest: int = 13) -> list[str]:
    """Texts of 0 to `longest` numbers, of which no two are equal."""
    generator, number, texts = np.random.default_rng(0), itertools.count(), []
    for length in generator.integers(0, longest + 1, count):
        texts.append(" ".join(str(next(number)) for _ in range(length)) or "-")
    return texts


def batches_of(stream, numbers, *, batch_size: int = 3, **options) -> list[list[tuple[int, ...]]]:
    batches = StreamBatches(stream, batch_size, **{"seed": 1, **options})
    return [[tuple(row["input_ids"].tolist()) for row in batches[number].passages] for number in numbers]


def passes_of(stream, passes: int, **options) -> list[list[tuple[int, ...]]]:
    """The passages of the first passes of all streams of all processes, a list for each pass, in order."""
    processes, streams = options.get("num_processes", 1), options.pop("num_streams", 1)
    found = [[] for _ in range(passes)]
    for process, number in itertools.product(range(processes), range(streams)):
        settings = {"batch_size": 3, "seed": 1, **options, "process_index": process, "num_streams": streams}
        batches = StreamBatches(stream, **settings)
        for batch in (batches[index] for index in itertools.count(number, streams)):
            if batch.block.epoch >= passes:
                break
            found[batch.block.epoch] += [tuple(row["input_ids"].tolist()) for row in batch.passages]
    return found


def all_passages(texts: list[str]) -> list[tuple[int, ...]]:
    return [tuple(ids) for ids in encode(texts)["input_ids"]]


# --- Each passage once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group_by_length", [True, False])
@pytest.mark.parametrize("processes, streams", [(1, 1), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize("buffer", [1, 12, 1000])
def test_each_passage_comes_once_a_pass(processes, streams, group_by_length, buffer):
    texts = some_texts()
    options = {"num_processes": processes, "num_streams": streams, "group_by_length": group_by_length}
    for found in passes_of(stream_of(texts, shuffle_buffer_size=buffer), 3, **options):
        assert Counter(found) == Counter(all_passages(texts))


@pytest.mark.parametrize("files", [1, 4])
def test_each_line_of_files_comes_once_in_another_order_each_pass(tmp_path, files):
    for file in range(files):
        lines = [f"{100 * file + line}" for line in range(24 // files)]
        (tmp_path / f"{file}.txt").write_text("\n".join(lines))
    documents, _ = load_documents(train_file=tmp_path, streaming=True)
    passes = passes_of(PassageStream(documents, encode, shuffle_buffer_size=6), 3)
    expected = sorted((100 * file + line,) for file in range(files) for line in range(24 // files))
    assert all(sorted(found) == expected for found in passes)
    assert passes[0] != passes[1]
    # What is read first is in the first block. With several files it depends on their order.
    assert (len({frozenset(found[:6]) for found in passes}) > 1) == (files > 1)


def test_a_buffer_of_one_keeps_the_order_of_the_text(tmp_path):
    texts = some_texts()
    in_order = all_passages(texts)
    for options in ({"shuffle_buffer_size": 1}, {}):
        batches = batches_of(stream_of(texts, **options), range(8), shuffle=not options == {})
        assert [passage for batch in batches for passage in batch] == in_order[:24]
    batches = batches_of(stream_of(texts), range(8))
    assert [passage for batch in batches for passage in batch] != in_order[:24]


def test_all_batches_are_whole_but_at_the_end_of_a_pass():
    stream = stream_of([str(number) for number in range(31)], shuffle_buffer_size=12)
    sizes = [len(batch) for batch in batches_of(stream, range(24), batch_size=4)]
    # 12, 12 and 7 passages; those 7 make two batches of nearly the same size.
    for begin in (0, 8, 16):
        assert sizes[begin : begin + 6] == [4] * 6 and sorted(sizes[begin + 6 : begin + 8]) == [3, 4]
    dropped = [len(batch) for batch in batches_of(stream, range(14), batch_size=4, drop_last=True)]
    assert dropped == [4] * 14


def test_a_seed_is_an_order():
    stream = stream_of(some_texts())
    assert batches_of(stream, range(10)) == batches_of(stream, range(10))
    assert batches_of(stream, range(10)) != batches_of(stream, range(10), seed=2)


def test_a_stream_of_passages_needs_no_encoder():
    texts = some_texts(10)
    encoded = encode(texts)
    made = [{"input_ids": ids, "word_ids": ids} for ids in encoded["input_ids"]]
    documents = IterableDataset.from_generator(lambda: iter(made)).with_format("numpy")
    (found,) = passes_of(PassageStream(documents), 1)
    assert sorted(found) == sorted(all_passages(texts))


def test_the_passages_are_those_of_the_tokenizer():
    documents = IterableDataset.from_generator(partial(rows, [*SENTENCES, " ".join(SENTENCES)]))
    stream = stream_documents(documents, bert_tokenizer(), max_seq_length=16)
    expected = encode_documents([*SENTENCES, " ".join(SENTENCES)], bert_tokenizer(), max_seq_length=16)
    for name in ("input_ids", "word_ids"):
        assert [row[name].tolist() for row in stream] == expected[name]


# --- Like lengths --------------------------------------------------------------------------------------------------


def long_texts(count: int = 3000) -> list[str]:
    """One passage each, of 1 to 100 tokens."""
    return [" ".join(["7"] * length) for length in np.random.default_rng(0).integers(1, 101, count)]


def whole(texts: list[str]) -> dict[str, list]:
    ids = [[int(word) for word in text.split()] for text in texts]
    return {"input_ids": ids, "word_ids": ids, "document": list(range(len(texts)))}


def lengths_of(numbers, **options) -> list[list[int]]:
    stream = stream_of(long_texts(), encode=whole, shuffle_buffer_size=options.pop("buffer", 400))
    return [[len(row) for row in batch] for batch in batches_of(stream, numbers, batch_size=8, **options)]


def test_a_batch_has_like_lengths_and_batches_are_in_random_order():
    grouped, mixed = (lengths_of(range(300), group_by_length=group) for group in (True, False))
    assert padding_share(np.concatenate(grouped), 8) < 0.03 < 0.3 < padding_share(np.concatenate(mixed), 8)
    means = np.array([np.mean(batch) for batch in grouped])
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.2


@pytest.mark.parametrize("streams", [1, 2])
def test_all_processes_compute_like_lengths_in_a_step(streams):
    first, second = (
        np.array([max(b) for b in lengths_of(range(400), num_processes=2, process_index=i, num_streams=streams)])
        for i in (0, 1)
    )
    assert np.corrcoef(first, second)[0, 1] > 0.95  # also in their second pass over the text
    assert not np.array_equal(first, second)


# --- Going on ------------------------------------------------------------------------------------------------------


def collated(batch) -> dict:
    """What the trainer gives to `note`."""
    return {BLOCK: torch.tensor([batch.stream, *batch.block])}


def stopped(batches: StreamBatches, stop: int, folder) -> None:
    """Saves where the text is after so many batches were trained on."""
    for number in range(stop):
        batches.note(collated(batches[number]))
    batches.save(folder)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("stop", [1, 4, 5, 13, 20, 38, 67])
def test_a_resumed_stream_has_the_batches_of_one_that_was_not_stopped(tmp_path, streams, stop):
    def batches():
        return StreamBatches(stream_of(some_texts()), 3, seed=1, num_streams=streams)

    def ids(source, numbers):
        return [[row["input_ids"].tolist() for row in source[number].passages] for number in numbers]

    numbers = range(stop, stop + 20)
    expected = ids(batches(), range(stop + 20))[stop:]
    stopped(batches(), stop, tmp_path)
    resumed = batches()
    resumed.load(tmp_path)
    assert len(resumed.blocks) == min(stop, streams) and ids(resumed, numbers) == expected
    # Without the file the same batches come, only later.
    (tmp_path / "stream_0.json").unlink()
    resumed = batches()
    resumed.load(tmp_path)
    assert not resumed.blocks and ids(resumed, numbers) == expected


def test_a_resumed_stream_tokenises_its_block_and_nothing_before_it(tmp_path):
    tokenised = []

    def remembering(texts):
        tokenised.extend(texts)
        return encode(texts)

    texts = [str(number) for number in range(1000)]

    def make():
        return StreamBatches(stream_of(texts, encode=remembering, shuffle_buffer_size=30), 3, seed=1)

    stopped(make(), 255, tmp_path)
    del tokenised[:]
    after = make()
    after.load(tmp_path)
    after[255]
    assert 750 <= min(map(int, tokenised)) and len(tokenised) < 100


def test_a_block_that_begins_within_a_document_is_found_again(tmp_path):
    texts = [" ".join(str(100 * document + i) for i in range(99)) for document in range(3)]  # 20 passages each
    stream = stream_of(texts, shuffle_buffer_size=6)
    straight = batches_of(stream, range(25))
    for stop in range(25):
        stopped(StreamBatches(stream, 3, seed=1), stop, tmp_path)
        after = StreamBatches(stream, 3, seed=1)
        after.load(tmp_path)
        assert [tuple(row["input_ids"].tolist()) for row in after[stop].passages] == straight[stop]


def test_another_division_of_the_text_is_said_and_starts_from_the_first_batch(tmp_path, caplog):
    before = StreamBatches(stream_of(some_texts()), 3, seed=1)
    stopped(before, 8, tmp_path)
    for change in ({"num_streams": 2}, {"num_processes": 2}, {"seed": 2}, {"batch_size": 4}):
        after = StreamBatches(stream_of(some_texts()), **{"batch_size": 3, "seed": 1, **change})
        caplog.clear()
        after.load(tmp_path)
        assert f"another {next(iter(change))}" in caplog.text and not after.blocks
    same = StreamBatches(stream_of(some_texts()), 3, seed=1)
    caplog.clear()
    same.load(tmp_path)
    assert not caplog.text and same.blocks == before.blocks


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_gives_the_batches_in_order_whatever_it_skips(workers):
    stream = stream_of(some_texts())
    expected = batches_of(stream, range(20), num_streams=max(1, workers))
    for skipped in (0, 1, 5):
        batches = StreamBatches(stream, 3, seed=1, num_streams=max(1, workers))
        loader = batches.dataloader(20, lambda rows: {"ids": [tuple(row["input_ids"].tolist()) for row in rows]})
        # As accelerate's `skip_first_batches` does.
        numbers = [[number] for number in range(skipped, 20)]
        rest = DataLoader(batches, batch_sampler=numbers, collate_fn=loader.collate_fn, num_workers=workers)
        assert [batch["ids"] for batch in rest] == expected[skipped:]


def test_too_few_passages_for_the_streams_are_named():
    batches = StreamBatches(stream_of(["1", "2"]), 3, seed=1, num_streams=3)
    with pytest.raises(InputError, match="too few passages for 3 processes and workers with batches of 3"):
        batches[2]
    with pytest.raises(InputError, match="too few passages"):
        StreamBatches(stream_of(["1", "2"]), 3, seed=1, drop_last=True)[0]


# --- In the trainer ------------------------------------------------------------------------------------------------


def toy_stream(count: int = 48) -> IterableDataset:
    return toy_text(count).to_iterable_dataset()


def test_a_run_resumed_in_any_pass_equals_one_that_was_not_stopped_bit_for_bit(tmp_path):
    # 20 texts in batches of 8 are 3 steps a pass.
    options = {"text": toy_stream(20), "max_steps": 14, "save_strategy": "steps", "save_steps": 2}
    options["train_sampling_strategy"] = "group_by_length"
    straight = toy_trainer(tmp_path, toy_model(dropout=0.1), **options)
    straight.train()
    for step in (2, 6, 10):
        rest = toy_trainer(tmp_path / f"from {step}", toy_model(dropout=0.1), **{**options, "save_strategy": "no"})
        rest.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert history(straight) == history(rest) and len(history(rest)) == 14
        assert history(straight, "epoch") == history(rest, "epoch")
        for name, value in straight.model.state_dict().items():
            assert torch.equal(value, rest.model.state_dict()[name]), name


def test_a_checkpoint_says_where_the_text_was(tmp_path):
    trainer = toy_trainer(tmp_path, text=toy_stream(20), max_steps=4, save_strategy="steps", save_steps=4)
    trainer.train()
    saved = json.loads((tmp_path / "checkpoint-4/stream_0.json").read_text())
    assert saved["blocks"] == {"0": {"batch": 3, "epoch": 1, "document": 0, "passage": 0}}


def test_data_that_is_not_to_be_skipped_starts_from_the_beginning(tmp_path):
    options = {"text": toy_stream(20), "max_steps": 8, "save_strategy": "steps", "save_steps": 4}
    toy_trainer(tmp_path, **{**options, "max_steps": 4}).train()
    seen = []
    trainer = toy_trainer(tmp_path, **options, ignore_data_skip=True)
    trainer.add_callback(_Watch(trainer, seen))
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert seen[0] == 0


def test_the_masks_are_those_of_the_pass(tmp_path):
    trainer = toy_trainer(tmp_path, text=toy_stream(16), max_steps=6)
    collator = trainer.data_collator
    batches = list(trainer.get_train_dataloader())
    numbered = StreamBatches(trainer.train_dataset, 8, seed=42, group_by_length=False)
    for number, batch in enumerate(batches):
        collator.set_epoch(number // 2)
        expected = collator(numbered[number].passages)
        assert all(torch.equal(batch[name], expected[name]) for name in expected)


def test_a_mistake_in_the_text_is_one_sentence_from_a_worker_too(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "The cat sat on the mat."}\n' * 30 + '{"text"\n')
    documents, _ = load_documents(train_file=tmp_path / "t.jsonl", streaming=True)
    trainer = toy_trainer(tmp_path / "out", text=documents, dataloader_num_workers=1, max_steps=20)
    with pytest.raises(InputError, match=r"^\S*t.jsonl.*line 31") as caught:
        trainer.train()
    assert "\n" not in str(caught.value)


def test_sixty_four_lines_are_trained_on_once_over_workers_and_processes(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        f"""
import sys
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
from test_streaming import *
for name, options in RUNS.items():
    once(name, {str(tmp_path)!r}, **options)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
    )
    result = run_script([script], tmp_path, processes=2)
    assert result.status == 0, result.err[-3000:]
    expected = Counter(tuple(ids) for ids in encode_documents(LINES, bert_tokenizer(), max_seq_length=32)["input_ids"])
    assert len(expected) == 64 == expected.total()
    for name in RUNS:
        found = Counter()
        for process in (0, 1):
            found.update(map(tuple, json.loads((tmp_path / f"{name}-{process}.json").read_text())))
        assert found == expected, name


# No two are equal, and each is one passage.
LINES = [f"The cat {'sat on the mat ' * (i % 3)}at number {i}." for i in range(64)]
# 64 lines are 4 on two processes in 8 steps; of a stream, 10 or 11 for each of six workers, 3 batches each.
RUNS = {
    "map": {"max_steps": 8, "train_sampling_strategy": "group_by_length"},
    "streaming": {"max_steps": 9, "train_sampling_strategy": "group_by_length"},
}


def once(name: str, folder: str, **options):
    """Trains for one pass and writes down the texts that this process saw."""
    (Path(folder) / f"{name}.txt").write_text("\n".join(LINES), encoding="utf-8")
    text, _ = load_documents(
        train_file=Path(folder) / f"{name}.txt", streaming=name == "streaming", cache_dir=f"{folder}/cache"
    )
    arguments = {"per_device_train_batch_size": 4, "dataloader_num_workers": 3, "ddp_backend": "gloo", **options}
    trainer = toy_trainer(f"{folder}/none", text=text, **arguments)
    assert trainer.accelerator.num_processes == 2
    seen, compute_loss = [], trainer.compute_loss

    def watching(model, inputs, **more):
        for ids, real in zip(inputs["decoder_input_ids"], inputs["attention_mask"]):
            seen.append(ids[real.bool()].tolist())
        return compute_loss(model, inputs, **more)

    trainer.compute_loss = watching
    trainer.train()
    (Path(folder) / f"{name}-{trainer.args.process_index}.json").write_text(json.dumps(seen))


class _Watch(TrainerCallback):
    """Notes the first batch of the block that each step is of."""

    def __init__(self, trainer, seen: list[int]):
        self.trainer, self.seen = trainer, seen

    def on_step_begin(self, args, state, control, **kwargs):
        self.seen.append(self.trainer._stream.blocks[0].batch)
