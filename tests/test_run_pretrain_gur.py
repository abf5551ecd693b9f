"""The front door with `--objective gur`: documents or pairs in, a folder out that searches and writes anywhere."""

import contextlib
import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from fresh_process import in_fresh_process
from gur_runs import (
    FROM_BACKBONE,
    PAIRS,
    TINY,
    assert_equal_weights,
    documents,
    gur,
    make_inputs,
    results_of,
    steps_of,
    weights_of,
    write_lines,
)
from transformers import AutoTokenizer, T5ForConditionalGeneration
from two_processes import run_two_processes

import run_pretrain
from modeling_gur import GURForConditionalGeneration, GURForPreTraining, GURModel
from retrieval_pretraining import gur_trainer, mined_pairs, objectives
from retrieval_pretraining.collators import PairCollator
from retrieval_pretraining.gur_start import inverse_document_frequency
from retrieval_pretraining.retrieval_data import load_retrieval_data
from retrieval_pretraining.retrieval_evaluation import evaluate_retrieval
from retrieval_pretraining.zero_shot import encode

ROOT = Path(__file__).parents[1]
START = {"init_weights": "corpus", "projection_init": "identity", "pooling": "weighted_mean"}
TEXTS = ["A good motor and the wing of number 3 are here.", "heat", "Nobody saw the sensor."]


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def finished(shared, tmp_path_factory):
    """A run with everything, from documents: its folder and what it printed."""
    output = tmp_path_factory.mktemp("runs") / "my gur"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = gur(
            shared,
            output,
            train_file=shared / "docs.jsonl",
            max_steps=4,
            eval_strategy="steps",
            eval_steps=2,
            validation_split_percentage=10,
            eval_retrieval_dir=shared / "toy_beir",
            encode_max_seq_length=48,
            learning_rate=1e-3,
            metric_for_best_model="retrieval_ndcg@10",
            **START,
        )
    assert status == 0
    return output, printed.getvalue()


# --- A whole run -----------------------------------------------------------------------------------------------------


def test_a_run_from_documents_writes_a_complete_folder(shared, finished):
    output, printed = finished
    files = {path.name for path in output.iterdir()}
    assert {"train_results.json", "eval_results.json", "all_results.json", "trainer_state.json", "README.md"} <= files
    assert {"model.safetensors", "config.json", "modeling_gur.py", "tokenizer.json", "modules.json"} <= files
    results = results_of(output)
    losses = ("lm_loss", "lm_accuracy", "contrastive_loss", "contrastive_accuracy")
    scores = [f"retrieval_{when}_{name}" for when in ("before", "after") for name in ("ndcg@10", "recall@100")]
    for name in [*(f"{when}_{loss}" for when in ("train", "eval") for loss in losses), *scores]:
        assert np.isfinite(results[name]), name
    steps = steps_of(output)
    assert len(steps) == 4
    for entry in steps:
        assert entry["loss"] == pytest.approx(entry["lm_loss"] + entry["contrastive_loss"], abs=1e-4)
        assert {*losses, "excluded_negatives"} <= set(entry)
    evaluations = json.loads((output / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in evaluations if "eval_retrieval_ndcg@10" in entry] == [2, 4]
    config = GURForPreTraining.from_pretrained(output).config
    assert config.pooling == "weighted_mean" and config.projection_dim == 32 and config.projection_hidden_dim == 64
    assert AutoTokenizer.from_pretrained(output).model_max_length == 48
    assert json.loads((output / "sentence_bert_config.json").read_text())["max_seq_length"] == 48
    for said in (
        " mined (",
        "held out for validation:",
        "training a tokenizer of at most 600",
        "gur from scratch",
        "Start from",
    ):
        assert printed.count(said) == 1, said
    table = printed[printed.index("toy_beir, cosine of the sentence vectors") :]
    assert "before" in table and "after" in table and "SentenceTransformer(" in table


def test_the_card_says_what_was_done_and_nothing_of_this_machine(shared, finished):
    output, _ = finished
    card = (output / "README.md").read_text(encoding="utf-8")
    _, header, text = card.split("---\n", 2)
    header = yaml.safe_load(header)
    assert header["library_name"] == "sentence-transformers" and "gur" in header["tags"]
    assert str(shared) not in card and str(output) not in card and "/tmp" not in card
    for fact in ("text | docs.jsonl", "losses | 1 x lm_loss, 1 x contrastive_loss", "temperature | 0.1", "steps | 4"):
        assert f"| {fact} |" in text, fact
    for fact in (
        "pooling | weighted_mean, then a projection",
        "dimensions | 32",
        "longest text | 48 tokens; the rest is",
    ):
        assert f"| {fact}" in text, fact
    results = results_of(output)
    assert f"| **this model** | {results['retrieval_after_ndcg@10']:.3f} |" in text
    assert re.search(rf"\| contrastive_loss \| \S+ \| {results['eval_contrastive_loss']:.4f} \|", text)
    assert set(re.findall(r'from_pretrained\("(.*?)"|Transformer\("(.*?)"', text)) == {("my gur", ""), ("", "my gur")}


def test_the_folder_loads_anywhere(finished, monkeypatch):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    with_sentence_transformers = int(sentence_transformers.__version__.split(".")[0]) >= 6
    output, _ = finished
    snippets = re.findall(r"```python\n(.*?)```", (output / "README.md").read_text(), flags=re.DOTALL)
    assert len(snippets) == 3
    tokenizer = AutoTokenizer.from_pretrained(output)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    first = (
        f"{snippets[0]}\nfirst = vectors\nours = model.encode({TEXTS!r}, batch_size=2)" * with_sentence_transformers
    )
    code = f"""
import json, torch
{first or "first = ours = None"}
{snippets[1]}
assert first is None or abs(vectors.detach().numpy() - first).max() < 1e-5
assert filled.shape[0] == 1
from transformers import AutoModelForSeq2SeqLM
inputs = tokenizer({TEXTS!r}, padding=True, return_tensors="pt")
print(json.dumps(None if ours is None else ours.tolist()))
print(json.dumps(model.eval()(**inputs).pooler_output.tolist()))
print(json.dumps(writer.eval().generate(**inputs, max_new_tokens=8, num_beams=2).tolist()))
plain, info = AutoModelForSeq2SeqLM.from_pretrained(folder + "/backbone", output_loading_info=True)
assert type(plain).__name__ == "T5ForConditionalGeneration" and not info["missing_keys"], info
ids = inputs["input_ids"]
inputs = AutoTokenizer.from_pretrained(folder + "/backbone")({TEXTS!r}, padding=True, return_tensors="pt")
assert torch.equal(ids, inputs["input_ids"])
print(json.dumps(plain.eval().generate(**inputs, max_new_tokens=8, num_beams=2).tolist()))
"""
    *vectors, text, plain_text = map(json.loads, in_fresh_process(code, output, output.parent).splitlines()[-4:])
    expected = encode(GURModel.from_pretrained(output), tokenizer, TEXTS)
    for found in vectors if with_sentence_transformers else vectors[1:]:
        assert np.abs(np.array(found) - expected).max() < 1e-5
    writer = GURForConditionalGeneration.from_pretrained(output).eval()
    assert text == plain_text == writer.generate(**inputs, max_new_tokens=8, num_beams=2).tolist()
    assert not any("auto_map" in path.read_text() for path in (output / "backbone").glob("*.json"))


def test_retrieval_reads_more_of_a_text_than_training_does(shared, finished):
    output, _ = finished
    data = load_retrieval_data(shared / "toy_beir")
    model, tokenizer = GURModel.from_pretrained(output), AutoTokenizer.from_pretrained(output)
    scores = [
        evaluate_retrieval(model, tokenizer, data, max_seq_length=length, pooling="pooler_output", progress=False)
        for length in (48, 16)
    ]
    results = results_of(output)
    assert {name: results[f"retrieval_after_{name}"] for name in scores[0]} == pytest.approx(scores[0])
    assert scores[0] != scores[1]  # documents that end within 16 tokens would show nothing


def test_the_start_counts_the_whole_documents_not_the_cut_texts_of_the_pairs(finished):
    output, printed = finished
    tokenizer = AutoTokenizer.from_pretrained(output)
    whole = [f"{row['title']} {row['text']}" for row in documents()]
    tokens = sum(len(ids) for ids in tokenizer(whole, add_special_tokens=False, truncation=False)["input_ids"])
    counted = int(re.search(r"Start from ([\d,]+) tokens", printed)[1].replace(",", ""))
    assert counted == pytest.approx(tokens * 27 / 30, rel=0.03)  # three documents are held out


def test_the_start_counts_what_is_trained_on_and_as_much_of_a_text_as_is_encoded(shared, tmp_path, monkeypatch):
    counted = []

    def start(model, sequences, **options):
        counted.extend(list(map(int, ids)) for ids in sequences)
        return "started"

    monkeypatch.setattr(objectives, "start_gur", start)
    rows = [{**row, "text": " ".join([row["text"]] * 12)} for row in documents()]
    text = write_lines(tmp_path / "long.jsonl", rows)
    flags = {**START, "train_file": text, "max_seq_length": 300, "max_steps": 1, "validation_split_percentage": 30}
    assert gur(shared, tmp_path / "out", **flags) == 0
    assert max(map(len, counted)) == 300
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    read = " ".join(tokenizer.decode(ids) for ids in counted)
    numbers = {number for number in range(30) if f"of number {number} " in read}
    assert len(numbers) == 21
    assert "| held out of these, to validate | 9 |" in (tmp_path / "out/README.md").read_text(encoding="utf-8")


def test_pairs_are_mined_with_the_strategies_that_are_asked_for(shared, tmp_path, capsys):
    assert gur(shared, tmp_path / "out", train_file=shared / "docs.jsonl", pair_strategies="random") == 0
    folder = Path(re.search(r"pairs: [\d,]+ mined \((.*)\)", capsys.readouterr().out)[1])
    assert json.loads((folder / "counts.json").read_text())["settings"]["strategy"] == "random"


def test_a_second_run_mines_nothing_and_gives_the_same_model(shared, tmp_path, monkeypatch, capsys):
    settings = {"train_file": shared / "docs.jsonl", "seed": 7, **START}
    assert gur(shared, tmp_path / "one", **settings) == 0
    assert " mined (" in capsys.readouterr().out
    monkeypatch.setattr(mined_pairs, "mine_documents", lambda *given, **named: pytest.fail("mined again"))
    assert gur(shared, tmp_path / "two", **settings) == 0
    assert "found in the cache, nothing was mined" in capsys.readouterr().out
    assert_equal_weights(tmp_path / "one", tmp_path / "two")


# --- Where pairs come from -------------------------------------------------------------------------------------------


def test_pairs_of_every_format_train_the_same_model(shared, tmp_path, capsys):
    table = {name: [row[name] for row in PAIRS] for name in PAIRS[0]}
    (tmp_path / "hub").mkdir()
    for name in ("p.parquet", "hub/train.parquet"):
        pq.write_table(pa.table(table), tmp_path / name)
    with open(tmp_path / "p.csv", "w", newline="") as file:
        csv.writer(file).writerows([list(table), *zip(*table.values())])
    sources = [{"train_file": tmp_path / "p.parquet"}, {"train_file": tmp_path / "p.csv"}]
    sources += [{"train_file": None, "dataset_name": tmp_path / "hub"}, {}]
    for number, source in enumerate(sources):
        assert gur(shared, tmp_path / f"out {number}", per_device_train_batch_size=12, **source) == 0
        assert "pairs: 24 of" in capsys.readouterr().out
        assert_equal_weights(tmp_path / f"out {number}", tmp_path / "out 0")
    card = (tmp_path / "out 2/README.md").read_text()
    assert "| text | hub |" in card and str(tmp_path) not in card

    without = write_lines(tmp_path / "w.jsonl", [{name: row[name] for name in ("text", "text_pair")} for row in PAIRS])
    assert gur(shared, tmp_path / "without", train_file=without, per_device_train_batch_size=12) == 0
    excluded = [
        sum(entry["excluded_negatives"] for entry in steps_of(tmp_path / name)) for name in ("out 0", "without")
    ]
    assert excluded[0] > excluded[1] == 0


def test_from_a_backbone_with_its_tokenizer(shared, tmp_path, capsys):
    out = tmp_path / "out"
    assert gur(shared, out, model_name_or_path=shared / "t5", learning_rate=1e-2, **FROM_BACKBONE) == 0
    assert "encoder 100 %, decoder loaded, projection initialised" in capsys.readouterr().out
    source, plain = (
        T5ForConditionalGeneration.from_pretrained(folder) for folder in (shared / "t5", out / "backbone")
    )
    assert plain.config.vocab_size == source.config.vocab_size
    assert GURForPreTraining.from_pretrained(out).config.pooling == "eos"
    for name, parameter in plain.named_parameters():
        if parameter.dim() > 1:
            assert not torch.equal(parameter, source.get_parameter(name)), name
    again = tmp_path / "again"
    assert gur(shared, again, model_name_or_path=out, mask_rate=0.3, **FROM_BACKBONE) == 0
    assert "projection loaded" in capsys.readouterr().out
    assert "mask_rate 0.3" in (again / "README.md").read_text()


def test_validation_holds_whole_documents_out_or_has_a_file(shared, tmp_path, monkeypatch, capsys):
    seen = {}
    tokenise = run_pretrain.OBJECTIVES["gur"].tokenise

    def spy(self, dataset, tokenizer, *, desc, **options):
        seen[desc] = dataset
        return tokenise(self, dataset, tokenizer, desc=desc, **options)

    monkeypatch.setattr(run_pretrain.OBJECTIVES["gur"], "tokenise", spy)
    settings = {"train_file": shared / "docs.jsonl", "max_steps": 1}
    assert gur(shared, tmp_path / "split", validation_split_percentage=20, max_eval_samples=5, **settings) == 0
    train, held = seen["tokenising training"], seen["tokenising validation"]
    assert not set(train["document_id"]) & set(held["document_id"]) and len(set(train["document_id"])) == 24
    assert len(held) == 5 and "held out for validation: 5 pairs" in capsys.readouterr().out
    assert gur(shared, tmp_path / "file", validation_file=shared / "pairs.jsonl", **settings) == 0
    assert seen["tokenising validation"].to_list() == PAIRS
    assert results_of(tmp_path / "file")["eval_contrastive_loss"] > 0


# --- What is trained -------------------------------------------------------------------------------------------------


def test_an_untrained_model_is_the_weighted_mean_of_its_token_vectors(shared, tmp_path):
    out = tmp_path / "out"
    frozen = {"learning_rate": 0, "weight_decay": 0, "max_steps": 1}
    assert gur(shared, out, **START, **frozen) == 0
    model, tokenizer = GURModel.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    texts = dict.fromkeys(row[side] for row in PAIRS for side in ("text", "text_pair"))
    ids = [tokenizer(text)["input_ids"] for text in texts]
    weights = inverse_document_frequency(ids, len(tokenizer), special_ids=tokenizer.all_special_ids)
    vectors = torch.nn.functional.normalize(model.shared.weight.detach(), dim=1).numpy()
    bags = np.stack([(weights[row][:, None] * vectors[row]).sum(0) for row in ids])
    bags /= np.linalg.norm(bags, axis=1, keepdims=True)
    cosines = (bags * encode(model, tokenizer, list(texts))).sum(1)
    assert cosines.min() > 0.98, cosines.min()
    # The head alone starts so with random embeddings as well.
    assert gur(shared, tmp_path / "head", projection_init="identity", **frozen) == 0
    wi = weights_of(tmp_path / "head")["projection.wi.weight"]
    assert (wi - torch.cat([torch.eye(32), -torch.eye(32)])).abs().max() < 0.05


def test_mini_batches_give_the_model_of_the_whole_batch(shared, tmp_path, monkeypatch):
    sizes = []

    class Spy(gur_trainer.CachedContrast):
        def __init__(self, encode, mini_batches, *others, **named):
            sizes.append([len(part["input_ids"]) for part in mini_batches])
            super().__init__(encode, mini_batches, *others, **named)

    monkeypatch.setattr(gur_trainer, "CachedContrast", Spy)
    settings = {"per_device_train_batch_size": 12, "learning_rate": 1e-3}
    assert gur(shared, tmp_path / "whole", **settings) == 0
    assert gur(shared, tmp_path / "parts", contrastive_mini_batch_size=5, **settings) == 0
    assert sizes == [[10, 10, 4]] * 2
    assert_equal_weights(tmp_path / "whole", tmp_path / "parts", atol=1e-4)
    first, second = (steps_of(tmp_path / name) for name in ("whole", "parts"))
    for one, other in zip(first, second, strict=True):
        assert one["contrastive_loss"] == pytest.approx(other["contrastive_loss"], abs=1e-4)


@pytest.mark.parametrize(("off", "on"), [("lm_loss", "contrastive_loss"), ("contrastive_loss", "lm_loss")])
def test_a_loss_of_weight_0_is_left_out(off, on, shared, tmp_path):
    out = tmp_path / "out"
    assert gur(shared, out, validation_file=shared / "pairs.jsonl", **{f"{off}_weight": 0}) == 0
    results = results_of(out)
    assert f"train_{on}" in results and f"eval_{on}" in results
    assert not any(off in name for name in [*results, *steps_of(out)[0]])
    card = (out / "README.md").read_text()
    assert f"| losses | 1 x {on} |" in card
    GURForConditionalGeneration.from_pretrained(out)


def test_other_settings_reach_the_model_and_the_masks(shared, tmp_path, monkeypatch):
    made = []

    def collator(*given, **named):
        made.append(PairCollator(*given, **named))
        return made[-1]

    monkeypatch.setattr(objectives, "PairCollator", collator)
    out = tmp_path / "out"
    changes = {"contrastive_temperature": 0.2, "learnable_temperature": True, "projection_dim": 24, "pooling": "mean"}
    changes |= {"lm_loss_weight": 0.5, "span_lengths": "geometric", "mask_whole_words": True, "mask_rate": 0.4}
    assert gur(shared, out, attn_implementation="eager", **changes) == 0
    config = GURForPreTraining.from_pretrained(out).config
    for name in ("contrastive_temperature", "learnable_temperature", "projection_dim", "pooling", "lm_loss_weight"):
        assert getattr(config, name) == changes[name], name
    assert (made[0].mask_rate, made[0].span_lengths, made[0].whole_words) == (0.4, "geometric", True)
    card = (out / "README.md").read_text()
    assert "0.5 x lm_loss" in card and "span_lengths geometric, whole_words True" in card and "(learned)" in card


def test_six_steps_are_three_and_three(shared, tmp_path, capsys):
    settings = {"lr_scheduler_type": "constant", "save_strategy": "steps", "save_steps": 3, "learning_rate": 1e-3}
    settings |= {"train_file": shared / "docs.jsonl", **START}
    assert gur(shared, tmp_path / "whole", max_steps=6, **settings) == 0
    assert gur(shared, tmp_path / "half", max_steps=3, **settings) == 0
    assert gur(shared, tmp_path / "half", max_steps=6, resume_from_checkpoint="True", **settings) == 0
    assert "warning: resumed" not in capsys.readouterr().out
    assert_equal_weights(tmp_path / "whole", tmp_path / "half")


def test_two_processes_make_one_model(shared, tmp_path):
    flags = ["--use_cpu", "--ddp_backend", "gloo", "--disable_tqdm", "True", "--objective", "gur"]
    flags += ["--config_name", "t5", "--config_overrides", TINY, "--tokenizer_vocab_size", "600", "--max_steps", "3"]
    flags += [
        "--train_file",
        str(shared / "docs.jsonl"),
        "--max_seq_length",
        "16",
        "--cache_dir",
        str(tmp_path / "new"),
    ]
    flags += [word for name, value in START.items() for word in (f"--{name}", value)]
    flags += ["--eval_retrieval_dir", str(shared / "toy_beir"), "--output_dir", str(tmp_path / "out")]
    # Not forked from one process: in two of their own, what depends on the order of a hash map would differ.
    result = run_two_processes([str(ROOT / "run_pretrain.py"), *flags], output=tmp_path / "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("The model is in") == 1 and result.stdout.count("pairs: ") == 1
    assert "| pairs a batch | 16 |" in (tmp_path / "out/README.md").read_text()
    GURModel.from_pretrained(tmp_path / "out")
