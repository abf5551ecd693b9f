"""The fine-tuning door: from any checkpoint and pairs to a folder that sentence-transformers loads; what it says."""

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fresh_process import in_fresh_process, run_script
from saved_models import save, sentence_transformers_folder
from tokenizers_for_tests import ENGLISH, SENTENCES

from retrieval_pretraining import finetuning
from retrieval_pretraining.card_metadata import check_card
from retrieval_pretraining.finetune_trainer import contrastive_loss
from retrieval_pretraining.hub_files import model_files
from retrieval_pretraining.retrieval_evaluation import load_retrieval_data, retrieval_metrics
from retrieval_pretraining.systems import load_encoder
from run_finetune import main

sentence_transformers = pytest.importorskip("sentence_transformers")
pytest.importorskip("bm25s")
pytest.importorskip("ir_measures")

ROOT = Path(__file__).parents[1]
VERSION = int(sentence_transformers.__version__.split(".")[0])
QUICK = ["--use_cpu", "True", "--disable_tqdm", "True", "--max_steps", "2", "--per_device_train_batch_size", "4"]
QUICK += ["--contrastive_mini_batch_size", "3", "--learning_rate", "1e-3", "--save_strategy", "no"]


def write_lines(path: Path, rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Models, pairs, triplets and a folder in BEIR layout with two splits."""
    root = tmp_path_factory.mktemp("finetune")
    models = {kind: save(kind, root / kind) for kind in ("bert", "retromae", "gur")}
    sentence_transformers_folder(models, root / "dense", dense=True, normalize=False)
    pairs = [{"text": " ".join(text.split()[:4]), "text_pair": text} for text in ENGLISH[:16]]
    write_lines(root / "pairs.jsonl", pairs)
    triplets = [
        {
            "anchor": row["text"],
            "positive": row["text_pair"],
            "negative_1": ENGLISH[-1 - i],
            "negative_2": SENTENCES[1],
        }
        for i, row in enumerate(pairs[:8])
    ]
    write_lines(root / "triplets.jsonl", triplets)
    write_lines(root / "beir/corpus.jsonl", ({"_id": f"d{i}", "text": text} for i, text in enumerate(SENTENCES)))
    queries = [{"_id": f"q{i}", "text": " ".join(ENGLISH[i].split()[1:5])} for i in range(20)]
    write_lines(root / "beir/queries.jsonl", queries)
    (root / "beir/qrels").mkdir()
    for split, numbers in (("train", range(12)), ("test", range(12, 20))):
        lines = "".join(f"q{i}\td{2 * i}\t1\n" for i in numbers)
        (root / f"beir/qrels/{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}", encoding="utf-8")
    return root


def door(place: Path, output: Path, *flags, model="retromae", data="pairs.jsonl") -> int:
    command = ["--model_name_or_path", place / model, "--train_file", place / data, "--output_dir", output, *QUICK]
    return main([str(word) for word in [*command, *flags]])


def results_of(output: Path) -> dict:
    return json.loads((output / "all_results.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tuned(place) -> Path:
    """A run with what most runs have."""
    flags = ["--query_prompt", "query: ", "--eval_retrieval_dir", place / "beir", "--hard_negatives", "bm25"]
    flags += ["--hard_negative_ranks", 1, 10, "--max_steps", 6, "--license", "mit", "--language", "en"]
    assert door(place, place / "tuned", *flags) == 0
    return place / "tuned"


# --- What comes out -----------------------------------------------------------------------------------------------

LOAD = """
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(folder)
print([round(float(x), 5) for x in model.encode_query(["the cat sat"])[0][:5]])
print([round(float(x), 5) for x in model.encode_document(["the cat sat"])[0][:5]])
"""


def test_the_folder_loads_with_sentence_transformers_alone_and_gives_the_vectors_that_were_measured(tuned, tmp_path):
    query, document = in_fresh_process(LOAD, tuned, tmp_path).splitlines()[-2:]
    encoder = load_encoder(tuned)
    assert encoder.query_prompt == "query: " and encoder.document_prompt == ""
    assert json.loads(query) == pytest.approx(encoder.encode_queries(["the cat sat"])[0][:5].tolist(), abs=2e-5)
    assert json.loads(document) == pytest.approx(encoder.encode_documents(["the cat sat"])[0][:5].tolist(), abs=2e-5)
    assert query != document
    config = json.loads((tuned / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["BertModel"] and "auto_map" not in config
    assert not list(tuned.rglob("*.bin")) and not list(tuned.glob("*.py"))
    assert not any("pooler" in name for name in weights(tuned))  # which nobody has trained


@pytest.mark.parametrize("model", ["bert", "gur", "dense"])
def test_any_model_is_a_start(place, tmp_path, model):
    before = load_encoder(place / model).encode(["the cat sat"])
    assert door(place, tmp_path / "out", model=model) == 0
    loaded = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    after = loaded.encode(["the cat sat"])
    assert after.shape == before.shape and np.linalg.norm(after) == pytest.approx(1, abs=1e-5)
    assert 1e-4 < np.abs(after - before).max()
    kinds = [type(module).__name__ for module in loaded]
    dense = {"bert": [], "gur": ["Dense", "Dense"], "dense": ["Dense"]}[model]
    assert kinds == ["Transformer", "Pooling", *dense, "Normalize"]


@pytest.mark.parametrize("model", ["bert", "retromae", "gur", "dense"])
def test_the_start_gives_the_vectors_of_the_checkpoint(place, tmp_path, model):
    assert door(place, tmp_path / "out", "--learning_rate", "1e-12", model=model) == 0
    texts = SENTENCES[:6]
    own, tuned = (load_encoder(folder, query_prompt="").encode(texts) for folder in (place / model, tmp_path / "out"))
    assert np.abs(own - tuned).max() < 1e-5


@pytest.mark.skipif(VERSION < 6, reason="sentence-transformers runs the code of a model's own head from 6 on")
def test_gur_with_a_gated_head_keeps_its_code(place, tmp_path):
    from tokenizers_for_tests import t5_tokenizer
    from toy_models import gur_config

    from modeling_gur import GURForPreTraining

    torch.manual_seed(0)
    config = gur_config(vocab_size=len(t5_tokenizer()), feed_forward_proj="gated-gelu", backbone_type="umt5")
    GURForPreTraining(config).save_pretrained(place / "gated")
    t5_tokenizer().save_pretrained(place / "gated")
    assert door(place, tmp_path / "out", model="gated") == 0
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert 'SentenceTransformer("out", trust_remote_code=True)' in card
    code = LOAD.replace("(folder)", "(folder, trust_remote_code=True)")
    assert len(in_fresh_process(code, tmp_path / "out", tmp_path).splitlines()) >= 2
    assert "modeling_gur.py" in model_files(tmp_path / "out")


_CUSTOM = """
from transformers import BertConfig, BertModel

class CustomConfig(BertConfig):
    model_type = "custom-bert"

class CustomModel(BertModel):
    config_class = CustomConfig
"""


def test_code_of_others_runs_only_if_it_is_trusted_and_stays_with_the_result(place, tmp_path, capsys):
    from saved_models import change, copy_to

    folder = copy_to(place / "bert", tmp_path / "custom")
    auto_map = {"AutoConfig": "modeling_custom.CustomConfig", "AutoModel": "modeling_custom.CustomModel"}
    change(folder / "config.json", model_type="custom-bert", architectures=["CustomModel"], auto_map=auto_map)
    (folder / "modeling_custom.py").write_text(_CUSTOM, encoding="utf-8")
    assert door(place, tmp_path / "refused", model=folder) == 2
    assert "trust_remote_code" in capsys.readouterr().err
    assert door(place, tmp_path / "out", "--trust_remote_code", "True", model=folder) == 0
    assert 'SentenceTransformer("out", trust_remote_code=True)' in (tmp_path / "out/README.md").read_text()
    assert load_encoder(tmp_path / "out", trust_remote_code=True).encode(["the cat sat"]).shape == (1, 32)
    assert "modeling_custom.py" in model_files(tmp_path / "out")


@pytest.mark.parametrize("pooling", ["mean", "eos"])
def test_a_pooling_that_is_named_is_that_of_a_plain_encoder(place, tmp_path, pooling):
    assert door(place, tmp_path / "out", "--pooling", pooling, "--learning_rate", "1e-12", model="bert") == 0
    own = load_encoder(place / "bert", pooling=pooling).encode(["the cat sat"])
    assert load_encoder(tmp_path / "out").pooling == pooling
    assert np.abs(load_encoder(tmp_path / "out").encode(["the cat sat"]) - own).max() < 1e-5


# --- The loss -----------------------------------------------------------------------------------------------------


def test_the_loss_is_the_cross_entropy_of_the_positive_among_all_texts_after_their_prompts(place, tmp_path):
    """By hand: all eight triplets are one batch, and nothing is learned before its loss is taken."""
    flags = ["--query_prompt", "ask ", "--document_prompt", "say ", "--temperature", "0.1", "--learning_rate", "1e-12"]
    flags += ["--max_steps", "1", "--per_device_train_batch_size", "8"]
    assert door(place, tmp_path / "out", *flags, data="triplets.jsonl") == 0
    rows = [json.loads(line) for line in (place / "triplets.jsonl").read_text(encoding="utf-8").splitlines()]
    encoder = load_encoder(place / "retromae")
    queries = encoder.encode([f"ask {row['anchor']}" for row in rows])
    columns = ("positive", "negative_1", "negative_2")
    documents = encoder.encode([f"say {row[name]}" for name in columns for row in rows])
    scores = torch.from_numpy(queries @ documents.T / 0.1)
    expected = torch.nn.functional.cross_entropy(scores, torch.arange(8)).item()
    assert results_of(tmp_path / "out")["train_loss"] == pytest.approx(expected, abs=2e-3)
    assert results_of(tmp_path / "out")["train_contrastive_loss"] == results_of(tmp_path / "out")["train_loss"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_the_mini_batch_changes_nothing_but_memory(place, tmp_path):
    for size in (1, 4):
        flags = ["--contrastive_mini_batch_size", size, "--optim", "sgd", "--learning_rate", "0.1"]
        assert door(place, tmp_path / str(size), *flags) == 0
    one, four, start = weights(tmp_path / "1"), weights(tmp_path / "4"), weights(place / "retromae")
    assert all(torch.allclose(one[name], four[name], atol=1e-5) for name in one)
    name = "embeddings.word_embeddings.weight"
    assert (one[name] - start[f"retromae.encoder.{name}"]).abs().max() > 1e-3


def test_two_processes_learn_what_one_does_from_the_batch_of_both(place, tmp_path):
    flags = ["--optim", "sgd", "--learning_rate", "0.1", "--max_steps", "6", "--hard_negatives", "bm25"]
    flags += ["--hard_negative_ranks", "1", "9", "--eval_retrieval_dir", str(place / "beir")]
    flags += ["--contrastive_mini_batch_size", "1"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert door(place, one, *flags, "--per_device_train_batch_size", "4") == 0
    command = [str(ROOT / "run_finetune.py"), "--model_name_or_path", str(place / "retromae"), *QUICK, *flags]
    command += ["--train_file", str(place / "pairs.jsonl"), "--output_dir", str(two), "--ddp_backend", "gloo"]
    done = run_script([*command, "--per_device_train_batch_size", "2"], tmp_path, processes=2)
    assert done.status == 0, done.err[-3000:]
    alone, together, start = weights(one), weights(two), weights(place / "retromae")
    assert all(torch.allclose(alone[name], together[name], atol=1e-5) for name in alone)
    name = "embeddings.word_embeddings.weight"
    assert (alone[name] - start[f"retromae.encoder.{name}"]).abs().max() > 1e-3
    assert done.out.count("after minus before") == 1 and not (two / "_start").exists()


def test_vectors_that_can_be_cut(place, tmp_path, monkeypatch):
    sizes = []

    def spy(*arguments, matryoshka_dims, **options):
        sizes.append(matryoshka_dims)
        return contrastive_loss(*arguments, matryoshka_dims=matryoshka_dims, **options)

    monkeypatch.setattr(finetuning, "contrastive_loss", spy)
    assert door(place, tmp_path / "out", "--matryoshka_dims", 32, 8) == 0
    assert "| vectors that can be cut | to 32, 8 (MatryoshkaLoss) |" in (tmp_path / "out/README.md").read_text()
    assert results_of(tmp_path / "out")["train_loss"] > 0
    assert door(place, tmp_path / "cut", "--matryoshka_dims", 8) == 0
    assert "| vectors that can be cut | to 8 (MatryoshkaLoss) |" in (tmp_path / "cut/README.md").read_text()
    assert sizes == [[32, 8], [32, 8]]  # the whole vector is trained as well


# --- Negatives ----------------------------------------------------------------------------------------------------


def test_triplets_are_taken_as_they_are_and_nothing_is_mined(place, tmp_path, capsys):
    flags = ["--hard_negatives", "bm25", "--num_hard_negatives", 2]
    assert door(place, tmp_path / "out", *flags, data="triplets.jsonl") == 0
    said = capsys.readouterr().out
    assert "no pair lacks negatives: nothing is mined" in said and "negatives: 2 a pair: 16 given" in said


@pytest.mark.parametrize("how", ["bm25", "model"])
def test_negatives_are_mined_in_the_documents_of_the_folder(place, tmp_path, capsys, how):
    flags = ["--hard_negatives", how, "--hard_negative_ranks", 2, 9, "--num_hard_negatives", 2]
    flags += ["--hard_negative_margin", "0.01"] if how == "model" else []
    assert door(place, tmp_path / "out", *flags, data="beir") == 0
    said = capsys.readouterr().out
    by = {"bm25": "BM25", "model": "the model"}[how]
    assert "pairs: 12 (judged in beir)" in said
    assert re.search(rf"negatives: 2 a pair: \d+ mined by {by} from ranks 2 to 9 of 60 documents", said)
    assert f"mined by {by}" in (tmp_path / "out/README.md").read_text(encoding="utf-8")


def test_negatives_are_mined_in_documents_that_are_given(place, tmp_path, capsys):
    write_lines(tmp_path / "docs.jsonl", ({"title": "of", "text": text} for text in ENGLISH[16:]))
    flags = ["--hard_negatives", "bm25", "--hard_negative_ranks", 1, 50, "--corpus_file", tmp_path / "docs.jsonl"]
    assert door(place, tmp_path / "out", *flags) == 0
    assert "from ranks 1 to 50 of 14 documents" in capsys.readouterr().out


# --- Before and after ---------------------------------------------------------------------------------------------


def test_what_is_reported_is_what_the_folders_reach(place, tuned):
    data = load_retrieval_data(place / "beir")
    measured = results_of(tuned)
    for when, folder in (("before", place / "retromae"), ("after", tuned)):
        encoder = load_encoder(folder)  # with the prompts of its own
        similarity = encoder.encode_queries(data.query_texts) @ encoder.encode_documents(data.corpus_texts).T
        run = {q: dict(zip(data.corpus_ids, row.tolist())) for q, row in zip(data.query_ids, similarity)}
        for name, value in retrieval_metrics(run, data.qrels).items():
            assert measured[f"retrieval_{when}_{name}"] == pytest.approx(value, abs=1e-6)
    difference = measured["retrieval_after_ndcg@10"] - measured["retrieval_before_ndcg@10"]
    assert measured["retrieval_after_minus_before_ndcg@10"] == pytest.approx(difference)
    assert 0 < measured["retrieval_after_minus_before_ndcg@10_p_value"] <= 1
    assert measured["retrieval_bm25_ndcg@10"] > 0.5


def test_the_comparison_is_said_with_its_uncertainty(place, tmp_path, capsys):
    assert door(place, tmp_path / "out", "--eval_retrieval_dir", place / "beir") == 0
    said = capsys.readouterr().out
    assert "| BM25 " in said and "| before " in said and "| after " in said
    for other in ("before", "BM25"):
        assert re.search(
            rf"after minus {other}: nDCG@10 \S+, 95 % interval \S+ to \S+, p [=<] \S+; better on \d", said
        )


def test_a_test_on_queries_that_were_trained_on_is_called_unfair(place, tmp_path, capsys, tuned):
    flags = ["--eval_retrieval_dir", place / "beir", "--train_split_name", "test", "--max_train_samples", 3]
    assert door(place, tmp_path / "out", *flags, data="beir") == 0
    warning = "Not a fair test: 3 of the 8 queries are among those that it was trained on."
    assert warning in capsys.readouterr().out and warning in (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert "Not a fair test" not in (tuned / "README.md").read_text(encoding="utf-8")


def test_evaluations_while_training_choose_the_best_checkpoint(place, tmp_path):
    flags = ["--eval_retrieval_dir", place / "beir", "--eval_strategy", "steps", "--eval_steps", 1]
    flags += ["--save_strategy", "steps", "--save_steps", 1, "--load_best_model_at_end", "True"]
    flags += ["--metric_for_best_model", "eval_retrieval_ndcg@10", "--max_steps", 3, "--learning_rate", "0.5"]
    assert door(place, tmp_path / "out", *flags) == 0
    state = json.loads((tmp_path / "out/trainer_state.json").read_text(encoding="utf-8"))
    seen = [row["eval_retrieval_ndcg@10"] for row in state["log_history"] if "eval_retrieval_ndcg@10" in row]
    assert len(seen) == 3 and state["best_metric"] == max(seen)
    best, last = weights(Path(state["best_model_checkpoint"])), weights(tmp_path / "out")
    assert all(torch.equal(best[name], last[name]) for name in best)
    assert not (tmp_path / "out/eval").exists()


def test_the_card_says_what_was_done_and_passes(tuned):
    card = (tuned / "README.md").read_text(encoding="utf-8")
    data = check_card(card)
    assert data["license"] == "mit" and data["language"] == ["en"] and "fine-tuning" in data["tags"]
    assert {metric["type"] for metric in data["model-index"][0]["results"][0]["metrics"]} >= {"ndcg@10"}
    facts = ("pairs | 16", "read from | pairs.jsonl", 'prompts | query: `"query: "`', "temperature | 0.05, which")
    for fact in (*facts, "pairs a batch | 4", "steps | 6", "start | retromae", "pooling | cls"):
        assert f"| {fact}" in card, fact
    assert "| before this training |" in card and "after minus before: nDCG@10" in card and "2101.06983" in card
    assert "pre-trained only" not in card and "mined by BM25 from ranks 1 to 10" in card


def test_the_snippets_of_the_card_run_without_this_project_and_agree(tuned, tmp_path):
    shutil.copytree(tuned, tmp_path / "tuned")
    card = (tuned / "README.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    code = f"{first}\n{second}\nassert abs(vectors[0].numpy() - queries[0]).max() < 1e-5\n"
    code += "assert abs(vectors[1].numpy() - documents[0]).max() < 1e-5\n"
    in_fresh_process(code, tuned, tmp_path)


# --- Going on -----------------------------------------------------------------------------------------------------


def test_three_steps_and_three_more_are_six(place, tmp_path):
    flags = ["--save_strategy", "steps", "--save_steps", 3, "--max_steps", 6, "--lr_scheduler_type", "constant"]
    assert door(place, tmp_path / "whole", *flags) == 0
    assert door(place, tmp_path / "parts", *flags, "--max_steps", 3) == 0
    shutil.copytree(tmp_path / "parts", tmp_path / "refused")
    assert door(place, tmp_path / "refused", *flags) == 2
    assert door(place, tmp_path / "parts", *flags, "--resume_from_checkpoint", "True") == 0
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert ", from step 3 on |" in (tmp_path / "parts/README.md").read_text(encoding="utf-8")
    checkpoint = tmp_path / "whole/checkpoint-3"
    assert not list(checkpoint.glob("training_args*")) and (checkpoint / "modules.json").is_file()


def test_each_epoch_has_an_order_of_its_own_also_one_that_is_resumed(place, tmp_path, monkeypatch):
    from retrieval_pretraining.finetune_batches import AnswerSafeBatches

    batches, seen = AnswerSafeBatches.__iter__, []

    def recorded(self):
        seen.append((self.epoch, list(batches(self))))
        return iter(seen[-1][1])

    monkeypatch.setattr(AnswerSafeBatches, "__iter__", recorded)
    flags = ["--save_strategy", "steps", "--save_steps", 6]
    assert door(place, tmp_path / "out", *flags, "--max_steps", 6) == 0
    assert [epoch for epoch, _ in seen] == [0, 1] and seen[0][1] != seen[1][1]
    assert door(place, tmp_path / "out", *flags, "--max_steps", 10, "--resume_from_checkpoint", "True") == 0
    assert [epoch for epoch, _ in seen] == [0, 1, 1, 2] and seen[2] == seen[1]


def test_ctrl_c_saves_and_prints_how_to_go_on(place, tmp_path, capsys, monkeypatch):
    from retrieval_pretraining.finetune_batches import AnswerSafeBatches

    monkeypatch.setattr(sys, "argv", ["run_finetune.py", "--output_dir", "x"])
    batches = AnswerSafeBatches.__iter__

    def interrupted(self):
        for number, batch in enumerate(batches(self)):
            if number == 2:
                os.kill(os.getpid(), signal.SIGINT)
            yield batch

    monkeypatch.setattr(AnswerSafeBatches, "__iter__", interrupted)
    with pytest.raises(SystemExit) as stop:
        door(place, tmp_path / "out", "--max_steps", 4)
    assert stop.value.code == 130
    assert re.search(
        r"To go on exactly from there:\n  python run_finetune.py .*--resume_from_checkpoint", capsys.readouterr().out
    )


# --- Mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model_name_or_path", "./nowhere"], "--model_name_or_path ./nowhere: there is no such folder"),
        (["--train_file", "nowhere.jsonl"], "nowhere.jsonl: no such file or folder"),
        (["--pooling", "max"], "--pooling: invalid choice"),
        (["--temperature", "0"], "--temperature is above 0"),
        (["--contrastive_mini_batch_size", "0"], "--contrastive_mini_batch_size is above 0"),
        (["--num_hard_negatives", "2"], "--num_hard_negatives: the pairs have no negatives"),
        (["--hard_negative_margin", "0.1"], "no effect without --hard_negatives bm25 or model"),
        (["--hard_negatives", "bm25", "--hard_negative_margin", "0.1"], "give --hard_negatives model"),
        (["--hard_negatives", "bm25", "--hard_negative_ranks", "9", "3"], "a first and a last rank, such as 10 100"),
        (["--hard_negatives", "bm25", "--corpus_file", "nowhere.txt"], "nowhere.txt"),
        (["--query_column_name", "q"], "Give both --query_column_name and --positive_column_name"),
        (
            ["--query_column_name", "q", "--positive_column_name", "p"],
            "no column 'q'; columns present: text, text_pair",
        ),
        (["--max_train_samples", "0"], "--max_train_samples is 1 or more"),
        (["--max_seq_length", "4"], "--max_seq_length 4 leaves no room"),
        (["--max_seq_length", "4000"], "4000"),
        (["--matryoshka_dims", "4000"], "--matryoshka_dims 4000 is more than the 32"),
        (["--eval_strategy", "steps"], "--eval_strategy needs data to search in"),
        (["--eval_retrieval_dir", "nowhere"], "nowhere"),
        (["--learning_rat", "1"], "did you mean --learning_rate?"),
        (["--num_train_epochs", "0", "--max_steps", "0"], "Nothing to train"),
        (["--hub_private_repo", "True"], "no effect without --push_to_hub"),
        (["--language", "English"], "--language English is no code"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_is_trained(place, tmp_path, capsys, flags, message):
    assert door(place, tmp_path / "out", *flags) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert not (tmp_path / "out/model.safetensors").exists()


def test_a_folder_that_holds_a_model_is_not_overwritten(place, tuned, tmp_path, capsys):
    assert door(place, tuned) == 2
    assert "holds the model of an earlier run" in capsys.readouterr().err
    assert door(place, place / "retromae") == 2
    assert "is --model_name_or_path too" in capsys.readouterr().err


def test_a_loss_that_is_no_number_ends_the_run_with_what_to_do(place, tmp_path, capsys):
    flags = ["--learning_rate", "1e30", "--max_steps", 4, "--logging_steps", 1, "--max_grad_norm", 0]
    assert door(place, tmp_path / "out", *flags) == 2
    assert "The loss is not finite at step" in capsys.readouterr().err
    assert not (tmp_path / "out/model.safetensors").exists()


def test_without_sentence_transformers_it_says_how_to_get_it(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    assert door(place, tmp_path / "out") == 2
    assert 'pip install "retromae-gur[sentence-transformers]"' in capsys.readouterr().err
