"""Encoding in batches and threads: the same vectors, however the texts are spread."""

import copy
import random
import threading

import numpy as np
import pytest
import torch
from saved_models import toy
from tokenizers_for_tests import ENGLISH, SENTENCES, bert_tokenizer, t5_tokenizer
from toy_models import BACKBONE_CONFIGS, T5_KINDS, encoder_config, toy_t5
from transformers import AutoModel

from retrieval_pretraining import encoding
from retrieval_pretraining.encoding import encode_sequences, encode_texts, model_sequences
from retrieval_pretraining.errors import InputError


@pytest.fixture
def many_small_batches(monkeypatch):
    """So many that threads take them, though there are few texts."""
    monkeypatch.setattr(encoding, "_TOKENS_AT_ONCE_ON_CPU", 32)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def stock_model(kind: str):
    torch.manual_seed(0)
    if kind in T5_KINDS:
        return toy_t5(kind).encoder
    return AutoModel.from_config(encoder_config(kind, initializer_range=0.3)).eval()


def random_sequences(count: int = 30) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(10, 90, length).astype(np.int32) for length in generator.integers(1, 30, count)]


@pytest.mark.parametrize("kind", [*BACKBONE_CONFIGS, *T5_KINDS, "gur", "retromae"])
def test_threads_give_what_one_call_after_the_other_gives(kind, many_small_batches):
    model = toy(kind)[0] if kind in ("gur", "retromae") else stock_model(kind)
    assert model.base_model.config.model_type in encoding._STATELESS_MODELS
    used = set()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.register_forward_pre_hook(lambda *_: used.add(threading.get_ident()))
    options = dict(pad_token_id=1, pooling="mean")
    sequences = random_sequences()
    together = encode_sequences(model, sequences, **options)
    assert len(used) >= 2  # the main one, which takes the longest texts, and those of the pool
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    alone = np.concatenate([encode_sequences(model, [ids], **options) for ids in sequences])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_a_model_that_may_keep_state_is_called_by_one_thread(many_small_batches, monkeypatch):
    monkeypatch.setattr(encoding, "_STATELESS_MODELS", ())
    model = stock_model("bert")
    used = set()
    model.register_forward_pre_hook(lambda *_: used.add(threading.get_ident()))
    encode_sequences(model, random_sequences(), pad_token_id=0, pooling="cls")
    assert used == {threading.get_ident()}


def test_an_error_in_a_thread_is_raised_and_threads_are_as_before(many_small_batches):
    model = stock_model("bert")

    def fail(module, args, kwargs):
        if kwargs["input_ids"].shape[1] < 9:
            raise RuntimeError("too short")

    model.register_forward_pre_hook(fail, with_kwargs=True)
    with pytest.raises(RuntimeError, match="too short"):
        encode_sequences(model, random_sequences(), pad_token_id=0, pooling="cls")
    assert torch.get_num_threads() == 2


def test_a_batch_on_a_cpu_holds_few_long_texts_and_many_short_ones(monkeypatch):
    monkeypatch.setattr(encoding, "_TOKENS_AT_ONCE_ON_CPU", 100)
    model = stock_model("bert")
    shapes = []
    hook = lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape))  # noqa: E731
    model.register_forward_pre_hook(hook, with_kwargs=True)
    lengths = [60] * 3 + [20] * 10 + [2] * 100
    random.Random(0).shuffle(lengths)
    sequences = [np.full(length, 10, dtype=np.int32) for length in lengths]
    encode_sequences(model, sequences, pad_token_id=0, pooling="cls", batch_size=40)
    assert shapes[:3] == [(1, 60)] * 3 and shapes[3:5] == [(5, 20)] * 2
    assert shapes[5:] == [(40, 2), (40, 2), (20, 2)]


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_eos_is_the_last_token_of_each_text(kind):
    if kind == "bert":
        model, tokenizer = stock_model("bert"), bert_tokenizer()
        model.resize_token_embeddings(len(tokenizer))
    else:
        model, tokenizer = toy_t5().encoder, t5_tokenizer()
        model.resize_token_embeddings(len(tokenizer))
    texts = ["cat", *ENGLISH[:5], ""]
    vectors = encode_texts(model, tokenizer, texts, pooling="eos", normalize=False)
    for text, vector in zip(texts, vectors, strict=True):
        with torch.no_grad():
            states = model.eval()(input_ids=tokenizer(text, return_tensors="pt")["input_ids"]).last_hidden_state[0]
        np.testing.assert_allclose(vector, states[-1], atol=1e-5)


def test_texts_of_other_models_become_what_their_tokenizer_makes_of_them():
    model, tokenizer = stock_model("bert"), bert_tokenizer()
    texts = [*SENTENCES[:5], "", " ".join(ENGLISH[:9])]
    sequences, of_text = model_sequences(model, tokenizer, texts, max_seq_length=16)
    assert [ids.tolist() for ids in sequences] == tokenizer(texts, truncation=True, max_length=16)["input_ids"]
    assert of_text.tolist() == list(range(7))


def test_chunks_of_other_models_hold_each_token_once(monkeypatch):
    monkeypatch.setattr(encoding, "_TEXTS_AT_ONCE", 2)
    model, tokenizer = stock_model("bert"), bert_tokenizer()
    texts = [*SENTENCES[:5], "", " ".join(ENGLISH[:9])]
    sequences, of_text = model_sequences(model, tokenizer, texts, max_seq_length=16, overflow="chunk")
    assert max(map(len, sequences)) == 16
    for number, text in enumerate(texts):
        chunks = [ids[1:-1] for ids, own in zip(sequences, of_text, strict=True) if own == number]
        assert np.concatenate(chunks).tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("overflow", ["truncate", "chunk"])
def test_a_text_has_a_token_even_where_the_tokenizer_adds_none(overflow):
    tokenizer = copy.deepcopy(bert_tokenizer())
    tokenizer.backend_tokenizer.post_processor = None
    options = dict(max_seq_length=4, overflow=overflow)
    sequences, of_text = model_sequences(stock_model("bert"), tokenizer, ["", "cat", ""], **options)
    assert [len(ids) for ids in sequences] == [1, len(tokenizer("cat")["input_ids"]), 1]
    assert of_text.tolist() == [0, 1, 2]


def test_a_length_without_room_is_an_error():
    with pytest.raises(InputError, match="max_seq_length is 2, which leaves no room"):
        encode_texts(stock_model("bert"), bert_tokenizer(), ["cat"], max_seq_length=2)
