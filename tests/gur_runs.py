"""Tiny runs of `run_pretrain.py --objective gur`: what they read, and what they left."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers_for_tests import bert_tokenizer, t5_tokenizer
from transformers import T5Config, T5ForConditionalGeneration

import run_pretrain

TINY = "d_model=32,d_kv=8,num_heads=4,d_ff=48,num_layers=1,num_decoder_layers=1,dropout_rate=0.0"
WORDS = "motor sensor magnet control model heat wall wing vaccine protein garden kitchen".split()


def documents(count: int = 30) -> list[dict]:
    """Three sentences each, of which the neighbours share a span."""
    rows = []
    for i in range(count):
        one, two, three, four = (WORDS[(i * k + k) % len(WORDS)] for k in (1, 2, 3, 4))
        text = f"The {one} of number {i} needs a good {two}. A good {two} and the {three} of number {i} are here. "
        text += f"Nobody saw the {three} of number {i} in the {four}."
        rows.append({"_id": f"d{i}", "title": f"About the {one} of number {i}", "text": text})
    return rows


PAIRS = [
    {"text": f"the {word} of number {i}", "text_pair": f"number {i} needs a {word}", "document_id": f"d{i // 4}"}
    for i, word in enumerate(WORDS * 2)
]


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def make_inputs(folder: Path) -> Path:
    """Documents, pairs, a retrieval set, a backbone and a tokenizer without sentinels; the runs' cache is there."""
    write_lines(folder / "docs.jsonl", documents())
    write_lines(folder / "pairs.jsonl", PAIRS)
    # What tells the documents apart comes after more tokens than the runs train on.
    searched = [{**row, "title": "", "text": f"{'a good ' * 8}{row['text']}"} for row in documents(20)]
    write_lines(folder / "toy_beir/corpus.jsonl", searched)
    queries = [{"_id": f"q{i}", "text": f"number {i} in the {WORDS[4 * (i + 1) % 12]}"} for i in range(6)]
    write_lines(folder / "toy_beir/queries.jsonl", queries)
    (folder / "toy_beir/qrels").mkdir()
    qrels = "".join(f"q{i}\td{i}\t1\n" for i in range(6))
    (folder / "toy_beir/qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0}
    T5ForConditionalGeneration(T5Config(vocab_size=len(t5_tokenizer()), **sizes)).save_pretrained(folder / "t5")
    t5_tokenizer().save_pretrained(folder / "t5")
    bert_tokenizer().save_pretrained(folder / "bert")
    return folder


def gur(shared: Path, output: Path, **changes) -> int:
    """A run from scratch on the pairs, but for the changes; None leaves an option out."""
    settings = {
        "objective": "gur",
        "config_name": "t5",
        "config_overrides": TINY,
        "tokenizer_vocab_size": 600,
        "train_file": shared / "pairs.jsonl",
        "cache_dir": shared / "cache",
        "output_dir": output,
        "max_seq_length": 16,
        "max_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        **changes,
    }
    flags = [word for name, value in settings.items() if value is not None for word in (f"--{name}", str(value))]
    return run_pretrain.main([*flags, "--use_cpu", "--disable_tqdm", "True"])


FROM_BACKBONE = {"config_name": None, "config_overrides": None, "tokenizer_vocab_size": None}


def steps_of(output: Path) -> list[dict]:
    history = json.loads((output / "trainer_state.json").read_text())["log_history"]
    return [entry for entry in history if "loss" in entry]


def weights_of(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "model.safetensors")


def assert_equal_weights(first: Path, second: Path, atol: float = 0.0):
    first, second = weights_of(first), weights_of(second)
    assert first.keys() == second.keys()
    for name, weight in first.items():
        torch.testing.assert_close(weight, second[name], atol=atol, rtol=0, msg=name)


def results_of(output: Path) -> dict:
    return json.loads((output / "all_results.json").read_text())
