"""Lexical search by an MLM head: vectors and ranking against slow loops, and the door that measures them."""

import json
import math
import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from saved_models import copy_to, save_all, sentence_transformers_folder, toy
from scipy import sparse
from test_run_evaluation import values, write_beir
from tokenizers_for_tests import ENGLISH, SENTENCES, bert_tokenizer, unigram_tokenizer
from toy_models import BACKBONE_CONFIGS, encoder_config
from transformers import AutoModelForMaskedLM

from modeling_retromae import RetroMAEForPreTraining
from retrieval_pretraining import encoding, lexical_search
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.hybrid import fuse
from retrieval_pretraining.lexical_search import keep_highest, lexical_weights, load_lexical_encoder
from retrieval_pretraining.systems import load_encoder
from run_evaluation import main

TEXTS = [*SENTENCES[:29], "", "的", " ".join(ENGLISH[:9])]
TOP_N = 20


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return save_all(tmp_path_factory.mktemp("models"))


def lexical_encoder(folder, *, top_n: int = TOP_N, **options):
    return load_lexical_encoder(load_encoder(folder, **options), top_n=top_n)


# --- The slow way -------------------------------------------------------------------------------------------------


def oracle_vector(kind: str, text: str, top_n: int) -> np.ndarray:
    """One text by itself, word by word, [V]."""
    model, tokenizer = toy(kind)
    words = tokenizer(text, truncation=True, max_length=64)["input_ids"]
    with torch.no_grad():
        states = model.base_model(input_ids=torch.tensor([words])).last_hidden_state[0]
        head = model.mlm_head if kind == "retromae" else model.cls
        logits = head(states[None])[0].double().tolist()
    logits = [row for row, word in zip(logits, words, strict=True) if word not in tokenizer.all_special_ids]
    vector = np.zeros(len(tokenizer))
    if not logits:
        return vector
    highest = [max(row[word] for row in logits) for word in range(len(tokenizer))]
    total = sum(math.exp(value) for value in highest)
    for word, value in enumerate(highest):
        if word not in tokenizer.all_special_ids:
            vector[word] = max(0.0, math.log(math.exp(value) / total * len(tokenizer)))
    for word in sorted(range(len(vector)), key=lambda word: (-vector[word], word))[top_n:]:
        vector[word] = 0.0
    return vector


def oracle_search(queries: np.ndarray, documents: np.ndarray, k: int) -> list[list[tuple[int, float]]]:
    found = []
    for query in queries:
        scores = [sum(float(a) * float(b) for a, b in zip(query, document, strict=True)) for document in documents]
        best = sorted(range(len(documents)), key=lambda number: (-np.float32(scores[number]), number))
        found.append([(number, scores[number]) for number in best if scores[number] > 0][:k])
    return found


# --- Vectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["retromae", "bert"])
def test_vectors_are_those_of_a_slow_loop(folders, kind):
    vectors = lexical_encoder(folders[kind]).encode(TEXTS)
    assert vectors.dtype == np.float32 and vectors.shape == (len(TEXTS), len(toy(kind)[1]))
    assert vectors.has_sorted_indices and (vectors.data > 0).all()
    expected = np.stack([oracle_vector(kind, text, TOP_N) for text in TEXTS])
    assert (expected > 0).sum(axis=1).max() == TOP_N and not expected[29].any()
    np.testing.assert_allclose(vectors.toarray(), expected, atol=1e-4)


def test_a_vector_does_not_depend_on_its_batch_or_padding(folders, monkeypatch):
    encoder = lexical_encoder(folders["retromae"])
    together = encoder.encode(TEXTS).toarray()
    places = random.Random(0).sample(range(len(TEXTS)), len(TEXTS))
    moved = encoder.encode([TEXTS[i] for i in places]).toarray()
    np.testing.assert_allclose(moved, together[places], atol=1e-5)
    alone = np.concatenate([encoder.encode([text]).toarray() for text in TEXTS])
    np.testing.assert_allclose(alone, together, atol=1e-5)
    monkeypatch.setattr(encoding, "_TOKENS_AT_ONCE_ON_CPU", 32)  # many batches, in threads
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    np.testing.assert_allclose(encoder.encode(TEXTS).toarray(), together, atol=1e-5)
    torch.set_num_threads(before)


def test_padding_and_special_tokens_predict_nothing():
    logits_BLV = torch.randn(2, 5, 30, generator=torch.Generator().manual_seed(0))
    logits_BLV[0, 0], logits_BLV[0, 4], logits_BLV[1, 2] = 9.0, torch.nan, 50.0
    ordinary_BL = torch.tensor([[False, True, True, True, False], [False, True, False, False, False]])
    whole = lexical_weights(logits_BLV.clone(), ordinary_BL)
    for row, kept in enumerate(([1, 2, 3], [1])):
        alone = lexical_weights(logits_BLV[row : row + 1, kept].clone(), torch.ones(1, len(kept), dtype=torch.bool))
        torch.testing.assert_close(whole[row], alone[0])


def test_padding_predicts_nothing_even_where_the_tokenizer_has_none(folders):
    encoder = lexical_encoder(folders["bert"])
    expected = encoder.encode(TEXTS)
    encoder.tokenizer.pad_token = None
    np.testing.assert_allclose(encoder.encode(TEXTS).toarray(), expected.toarray(), atol=1e-5)


def test_special_tokens_are_not_predicted(folders):
    """Not even by a head that predicts nothing else."""
    encoder = lexical_encoder(folders["bert"], top_n=1000)
    special = encoder.tokenizer.all_special_ids
    with torch.no_grad():
        encoder.model.cls.predictions.bias[special] += 3.0
    vectors = encoder.encode(TEXTS[:5])
    assert not vectors[:, special].nnz and vectors.getnnz(axis=1).min() > 1


def test_a_constant_on_all_logits_changes_nothing():
    """As pre-training does not see it either; a text that weighs no word above chance has none."""
    logits_BLV = torch.randn(2, 4, 30, generator=torch.Generator().manual_seed(0))
    ordinary_BL = torch.ones(2, 4, dtype=torch.bool)
    weights = lexical_weights(logits_BLV.clone(), ordinary_BL)
    torch.testing.assert_close(lexical_weights(logits_BLV - 40.0, ordinary_BL), weights, atol=1e-4, rtol=0)
    assert not lexical_weights(torch.full((1, 4, 30), 7.0), ordinary_BL[:1]).gt(1e-5).any()
    assert not lexical_weights(logits_BLV, ~ordinary_BL).any()


def test_the_highest_are_kept_and_of_equal_ones_the_first():
    kept = keep_highest(np.array([[1, 3, 3, 0, 3], [0, 0, 0, 0, 2], [0, 0, 0, 0, 0]], dtype=np.float32), 2)
    assert kept.toarray().tolist() == [[0, 3, 3, 0, 0], [0, 0, 0, 0, 2], [0, 0, 0, 0, 0]] and kept.nnz == 3


def test_prompts_and_length_are_those_of_the_encoder(folders):
    options = dict(query_prompt="The cat ", document_prompt="A dog ", max_seq_length=12)
    encoder, plain = lexical_encoder(folders["retromae"], **options), lexical_encoder(folders["retromae"])
    text = " ".join(ENGLISH[:3])
    cut = lexical_encoder(folders["retromae"], max_seq_length=12)
    assert abs(cut.encode([text]) - plain.encode([text])).max() > 0.01
    for found, prompted in (
        (encoder.encode_queries([text]), "The cat " + text),
        (encoder.encode_documents([text]), "A dog " + text),
    ):
        assert abs(found - cut.encode([prompted])).max() < 1e-5
        assert abs(found - cut.encode([text])).max() > 0.01


def test_few_logits_are_held_at_once(folders, monkeypatch):
    encoder = lexical_encoder(folders["bert"])
    whole = encoder.encode(TEXTS)
    sizes = []
    encoder.model.register_forward_hook(lambda module, args, output: sizes.append(output.logits.numel()))
    limit = 100 * len(encoder.tokenizer)
    monkeypatch.setattr(lexical_search, "_LOGITS_AT_ONCE_ON_CPU", limit)
    assert abs(encoder.encode(TEXTS) - whole).max() < 1e-5
    assert len(sizes) > 5 and max(sizes) <= limit  # a text has 64 tokens at most


def test_a_model_that_has_diverged_is_an_error(folders):
    encoder = lexical_encoder(folders["bert"])
    with torch.no_grad():
        encoder.model.cls.predictions.bias[7] = torch.nan
    with pytest.raises(InputError, match="logits of the MLM head are not finite"):
        encoder.encode(TEXTS[:3])


@pytest.mark.parametrize("texts", ["a string", [], [3]])
def test_what_is_no_list_of_texts_is_an_error(folders, texts):
    with pytest.raises(InputError):
        lexical_encoder(folders["bert"]).encode(texts)


# --- Loading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gur", "t5"])
def test_a_model_of_another_kind_has_no_head(folders, kind):
    with pytest.raises(InputError, match=f"{folders[kind]}: a model of type {kind} has no MLM head; give a folder"):
        lexical_encoder(folders[kind])


@pytest.mark.parametrize(
    ("kind", "weight"),
    [("retromae", "mlm_head.dense.weight"), ("bert", "cls.predictions.transform.dense.bias"), ("xlm-roberta", None)],
)
def test_a_checkpoint_that_lacks_the_head_is_an_error(folders, tmp_path, kind, weight):
    folder = copy_to(folders[kind], tmp_path / "model")
    if weight is not None:  # XLM-R was saved without
        weights = load_file(folder / "model.safetensors")
        del weights[weight]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    encoder = load_encoder(folder)
    with pytest.raises(InputError, match=f"{folder}: its files lack the MLM head .*{weight or 'lm_head'}"):
        load_lexical_encoder(encoder)


def test_a_sentence_transformers_folder_has_a_head_if_its_files_do(folders, tmp_path):
    sentence_transformers_folder(folders, tmp_path / "bare")
    with pytest.raises(InputError, match="bare: its files lack the MLM head"):
        lexical_encoder(tmp_path / "bare")
    sentence_transformers_folder(folders, tmp_path / "dense", dense=True)
    with pytest.raises(InputError, match="dense: modules of sentence-transformers make its vectors"):
        lexical_encoder(tmp_path / "dense")
    (tmp_path / "bare" / "model.safetensors").write_bytes((folders["bert"] / "model.safetensors").read_bytes())
    inside = tmp_path / "bare" / "0_Transformer"  # as older versions wrote it
    inside.mkdir()
    for file in [path for path in (tmp_path / "bare").iterdir() if path.is_file()]:
        if file.name not in ("modules.json", "config_sentence_transformers.json", "README.md"):
            file.rename(inside / file.name)
    modules = json.loads((tmp_path / "bare" / "modules.json").read_text(encoding="utf-8"))
    modules[0]["path"] = inside.name
    (tmp_path / "bare" / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    with_head = lexical_encoder(tmp_path / "bare")
    assert with_head.max_seq_length == 20
    np.testing.assert_allclose(
        with_head.encode(TEXTS[:2]).toarray(), lexical_encoder(folders["bert"]).encode(TEXTS[:2]).toarray(), atol=1e-5
    )


@pytest.mark.parametrize("kind", BACKBONE_CONFIGS)
def test_every_backbone_is_read_with_its_own_head_or_ours(tmp_path, kind):
    tokenizer = unigram_tokenizer() if kind in ("roberta", "xlm-roberta") else bert_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "initializer_range": 0.3}
    torch.manual_seed(0)
    plain = AutoModelForMaskedLM.from_config(encoder_config(kind, **sizes)).eval()
    plain.save_pretrained(tmp_path / "plain")
    RetroMAEForPreTraining.from_backbone(tmp_path / "plain").save_pretrained(tmp_path / "ours")
    for name in ("plain", "ours"):
        tokenizer.save_pretrained(tmp_path / name)
    words = tokenizer(ENGLISH[0], return_tensors="pt")
    with torch.no_grad():
        logits_BLV = plain(input_ids=words["input_ids"]).logits
    ordinary_BL = ~torch.isin(words["input_ids"], torch.tensor(tokenizer.all_special_ids))
    weights_BV = lexical_weights(logits_BLV, ordinary_BL)
    weights_BV[:, tokenizer.all_special_ids] = 0.0
    expected = keep_highest(weights_BV.numpy(), TOP_N).toarray()
    assert expected.any()
    for name in ("plain", "ours"):
        np.testing.assert_allclose(lexical_encoder(tmp_path / name).encode(ENGLISH[:1]).toarray(), expected, atol=1e-4)


# --- Search -------------------------------------------------------------------------------------------------------


def sparse_vectors(count: int, seed: int) -> np.ndarray:
    """Few small whole numbers, so that many scores tie and some are 0."""
    generator = np.random.default_rng(seed)
    return (generator.integers(0, 3, (count, 12)) * (generator.random((count, 12)) < 0.2)).astype(np.float32)


@pytest.mark.parametrize("k", [1, 4, 1000])
@pytest.mark.parametrize("block", [3, 1000])
def test_search_is_that_of_a_slow_loop(monkeypatch, k, block):
    monkeypatch.setattr(lexical_search, "_DOCUMENTS_AT_ONCE", block)
    monkeypatch.setattr(lexical_search, "_QUERIES_AT_ONCE", block + 1)
    queries, documents = sparse_vectors(9, 0), sparse_vectors(40, 1)
    found = lexical_search.lexical_search(sparse.csr_matrix(queries), sparse.csr_matrix(documents), k)
    expected = oracle_search(queries, documents, k)
    assert any(len(own) == 0 for own in expected) or k < 1000  # a query that finds nothing
    for (positions, scores), own in zip(found, expected, strict=True):
        assert positions.dtype == np.int64 and scores.dtype == np.float32
        assert positions.tolist() == [number for number, _ in own]
        np.testing.assert_allclose(scores, [score for _, score in own], rtol=1e-6)


def test_what_cannot_be_searched_is_an_error():
    vectors = sparse.csr_matrix(sparse_vectors(4, 0))
    for queries, documents, k, message in (
        (vectors, vectors, 0, "k is 0"),
        (vectors, vectors[:0], 1, "no document vectors"),
        (vectors[:, :5], vectors, 1, "sizes 5 and 12"),
    ):
        with pytest.raises(InputError, match=message):
            lexical_search.lexical_search(queries, documents, k)


# --- The door -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    pytest.importorskip("bm25s")
    pytest.importorskip("ir_measures")
    pytest.importorskip("matplotlib")
    return write_beir(tmp_path_factory.mktemp("data") / "tiny")


def read_run(path) -> dict[str, dict[str, float]]:
    run: dict[str, dict[str, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        query, _, document, _, score, _ = line.split()
        run.setdefault(query, {})[document] = float(score)
    return run


def test_one_flag_measures_each_model_by_its_words_and_both_together(folders, data, tmp_path):
    command = ["--eval_retrieval_dir", data, "--model_name_or_path", folders["retromae"], folders["bert"], "--bm25"]
    command += ["--lexical", "--lexical_top_n", TOP_N, "--hybrid", "none", "--save_runs", "--output_dir", tmp_path]
    assert main([str(word) for word in command]) == 0
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    systems = {system["name"]: system for system in results["systems"]}
    models = ("retromae", "bert")
    expected = {"BM25", *models, *(f"random weights ({model})" for model in models)}
    assert systems.keys() == expected | {f"{model}, {what}" for model in models for what in ("lexical", "joint")}
    assert values(results, "tiny", "ndcg@10").keys() == systems.keys()
    assert systems["bert, lexical"]["kind"] == "lexical" and systems["bert, lexical"]["top_n"] == TOP_N
    assert systems["bert, joint"]["of"] == ["bert", "bert, lexical"]
    files = [tmp_path / "runs" / f"tiny.bert{name}.trec" for name in ("", "_lexical", "_joint")]
    dense, lexical, joint = map(read_run, files)
    corpus = np.stack([oracle_vector("bert", text, TOP_N) for text in SENTENCES])
    queries = [json.loads(line) for line in (data / "queries.jsonl").read_text(encoding="utf-8").splitlines()]
    vectors = np.stack([oracle_vector("bert", query["text"], TOP_N) for query in queries])
    for query, own in zip(queries, oracle_search(vectors, corpus, 1000), strict=True):
        assert lexical[query["_id"]] == {f"d{number}": pytest.approx(score, abs=1e-3) for number, score in own}
    for query, own in fuse([dense, lexical]).items():
        assert joint[query] == {document: pytest.approx(score, abs=1e-3) for document, score in own.items()}


def test_without_the_flag_nothing_is_added(folders, data, tmp_path):
    command = ["--eval_retrieval_dir", data, "--model_name_or_path", folders["bert"], "--output_dir", tmp_path]
    assert main([str(word) for word in command]) == 0
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert {system["name"] for system in results["systems"]} == {"bert", "random weights"}


@pytest.mark.parametrize(
    ("models", "more", "message"),
    [
        (["bert", "xlm-roberta"], [], "xlm-roberta: its files lack the MLM head"),
        (["bert", "gur"], [], "gur: a model of type gur has no MLM head"),
        (["bert"], ["--lexical_top_n", "0"], "--lexical_top_n is 1 or more"),
        ([], ["--bm25"], "--lexical needs a model and texts to search"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_is_measured(folders, data, tmp_path, capsys, models, more, message):
    command = ["--eval_retrieval_dir", data, "--lexical", *more, "--output_dir", tmp_path / "report"]
    command += ["--model_name_or_path", *(folders[kind] for kind in models)] if models else []
    assert main([str(word) for word in command]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert "tiny: " not in printed.out and not (tmp_path / "report").exists()
