"""With no fine-tuning: vectors, search and classification that depend on nothing but the text."""

import copy
import random

import numpy as np
import pytest
import torch
from tokenizers_for_tests import CHINESE, ENGLISH, SENTENCES, bert_tokenizer, t5_tokenizer
from toy_models import gur_config, retromae_config, toy_t5

from modeling_gur import GURForConditionalGeneration, GURForPreTraining, GURModel
from modeling_retromae import RetroMAEForPreTraining
from retrieval_pretraining import zero_shot
from retrieval_pretraining.encoding import encode_texts, text_sequences
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.retrieval_data import RetrievalData
from retrieval_pretraining.retrieval_evaluation import evaluate_retrieval
from retrieval_pretraining.zero_shot import Searcher, classify, encode, encode_chunks

TEXTS = [*SENTENCES[:20], "", "的", " ".join(ENGLISH[:9])]
LABELS = ["motors", "language", "payment"]


@pytest.fixture(scope="module")
def tokenizer():
    return t5_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    return GURForPreTraining(gur_config(vocab_size=len(tokenizer), dropout_rate=0.1)).train()


# --- Vectors ---------------------------------------------------------------------------------------------------------


def test_vectors_are_those_of_the_model_and_have_length_1(model, tokenizer):
    vectors = encode(model, tokenizer, TEXTS)
    assert (vectors.shape, vectors.dtype) == ((23, 16), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    plain = GURModel(model.config).eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    batch = tokenizer(TEXTS[:5], padding=True, padding_side="left", return_tensors="pt")
    with torch.no_grad():
        expected = plain(batch["input_ids"], batch["attention_mask"]).pooler_output.numpy()
    np.testing.assert_allclose(vectors[:5], expected, atol=1e-5)


def test_a_vector_does_not_depend_on_its_batch_or_place(model, tokenizer):
    alone = encode(model, tokenizer, TEXTS, batch_size=1)
    places = random.Random(0).sample(range(23), 23)
    for batch_size in (8, 33):
        moved = encode(model, tokenizer, [TEXTS[i] for i in places], batch_size=batch_size)
        np.testing.assert_allclose(moved, alone[places], atol=1e-5)


def test_a_tokenizer_set_to_the_left_or_without_eos_changes_nothing(model, tokenizer):
    other = copy.deepcopy(tokenizer)
    other.padding_side, other.truncation_side = "left", "left"
    other.backend_tokenizer.post_processor = None
    assert other("的")["input_ids"][-1] != other.eos_token_id
    vectors = encode(model, tokenizer, TEXTS, max_seq_length=9)
    np.testing.assert_allclose(encode(model, other, TEXTS, max_seq_length=9), vectors, atol=1e-5)


@pytest.mark.parametrize("spelled", ["</s>", "<extra_id_0>", "<pad>"])
def test_text_that_spells_a_special_token_is_text(model, tokenizer, spelled):
    text = f"The cat {spelled} sat on the mat."
    [ids], _ = text_sequences([text], tokenizer, max_seq_length=64)
    assert not set(ids[:-1].tolist()) & set(tokenizer.all_special_ids) and ids[-1] == tokenizer.eos_token_id
    assert tokenizer(text)["input_ids"] != ids.tolist()  # what is guarded against
    vectors = encode(model, tokenizer, [text, ENGLISH[0], "cat", ENGLISH[0].lower()])
    np.testing.assert_allclose(vectors[1:2], encode(model, tokenizer, ENGLISH[:1]), atol=1e-5)
    np.testing.assert_allclose(vectors[:1], encode(model, tokenizer, [text], batch_size=1), atol=1e-5)


@pytest.mark.parametrize("pooling", ["eos", "mean", "first", "weighted_mean"])
def test_empty_texts_have_vectors(tokenizer, pooling):
    model = GURModel(gur_config(vocab_size=len(tokenizer), pooling=pooling))
    vectors = encode(model, tokenizer, ["", "  ", "\n", "cat"])
    assert np.isfinite(vectors).all() and np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(encode(model, tokenizer, [""]), vectors[:1], atol=1e-5)


def test_only_encoder_and_head_are_at_work_and_the_model_stays_as_it_was(model, tokenizer, monkeypatch):
    for part in ("decoder", "lm_head"):
        monkeypatch.setattr(getattr(model, part), "forward", None)
    model.projection.eval()
    flags = [module.training for module in model.modules()]
    first, second = (encode(model, tokenizer, TEXTS[:4]) for _ in range(2))
    assert [module.training for module in model.modules()] == flags
    np.testing.assert_array_equal(first, second)  # dropout is off
    model.projection.train()


def test_a_prompt_stands_before_each_text(model, tokenizer):
    prompted = encode(model, tokenizer, ["motor", "cat"], prompt="query: ")
    np.testing.assert_allclose(prompted, encode(model, tokenizer, ["query: motor", "query: cat"]), atol=1e-5)


def test_long_texts_are_cut_at_the_length(model, tokenizer):
    ids = tokenizer(TEXTS[-1])["input_ids"]
    vector = encode(model, tokenizer, TEXTS[-1:], max_seq_length=9)
    with torch.no_grad():
        expected = model.base_model.eval()(torch.tensor([[*ids[:8], 1]])).pooler_output
    model.train()
    np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)


def test_a_retromae_model_is_encoded_by_its_sentence_vector():
    torch.manual_seed(0)
    model, tokenizer = RetroMAEForPreTraining(retromae_config(vocab_size=700)), bert_tokenizer()
    vectors = encode(model, tokenizer, SENTENCES[:9], max_seq_length=32)
    expected = encode_texts(model, tokenizer, SENTENCES[:9], max_seq_length=32, pooling="cls")
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_retrieval_is_evaluated_with_these_vectors(model, tokenizer):
    texts = [*TEXTS, "The cat </s> sat"]
    vectors = encode_texts(model.base_model, tokenizer, texts, max_seq_length=32)
    np.testing.assert_array_equal(vectors, encode(model, tokenizer, texts, max_seq_length=32))
    ids = [str(number) for number in range(len(ENGLISH))]
    data = RetrievalData("toy", ids, ENGLISH, ids, ENGLISH, {number: {number: 1} for number in ids})
    assert evaluate_retrieval(model.base_model, tokenizer, data)["ndcg@10"] == pytest.approx(1.0)


# --- Chunks and search -----------------------------------------------------------------------------------------------


def test_chunks_hold_the_whole_of_one_document_each(tokenizer):
    documents = [" ".join(ENGLISH[:4]), "的", "", "".join(CHINESE[:5])]
    sequences, of_chunk = text_sequences(documents, tokenizer, max_seq_length=12, overflow="chunk")
    assert max(map(len, sequences)) == 12 and all(ids[-1] == tokenizer.eos_token_id for ids in sequences)
    for number, document in enumerate(documents):
        chunks = [ids[:-1] for ids, own in zip(sequences, of_chunk, strict=True) if own == number]
        assert np.concatenate(chunks).tolist() == tokenizer(document)["input_ids"][:-1]


def test_vectors_of_chunks_are_those_of_their_texts(model, tokenizer):
    documents = ["", SENTENCES[0], " ".join(ENGLISH[:9]), SENTENCES[1]]
    vectors, of_chunk = encode_chunks(model, tokenizer, documents, chunk_size=64, batch_size=3)
    assert of_chunk.tolist() == [0, 1, *[2] * (len(of_chunk) - 3), 3] and len(of_chunk) > 5
    starts = encode(model, tokenizer, documents, max_seq_length=64)
    np.testing.assert_allclose(vectors[np.searchsorted(of_chunk, range(4))], starts, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_a_searcher_finds_each_text_by_itself(model, tokenizer):
    searcher = Searcher(model, tokenizer, SENTENCES, max_seq_length=32)
    for number, hits in zip((3, 40), searcher.search([SENTENCES[3], SENTENCES[40]], k=4), strict=True):
        assert hits[0].document == number and hits[0].text == SENTENCES[number]
        assert hits[0].score == pytest.approx(1.0, abs=1e-5)
        scores = [hit.score for hit in hits]
        assert len(hits) == 4 and scores == sorted(scores, reverse=True)


def test_a_searcher_finds_what_stands_late_in_a_long_document_by_its_chunks(model, tokenizer):
    sentence = ENGLISH[7]
    length = len(tokenizer(sentence)["input_ids"])
    filler = tokenizer.decode(tokenizer(" ".join(ENGLISH[:3]))["input_ids"][: 2 * (length - 1)])
    documents = [*ENGLISH[8:20], f"{filler} {sentence}"]
    options = dict(chunk_size=length, chunk_score="max", max_seq_length=length)
    hit = Searcher(model, tokenizer, documents, **options)(sentence, k=1)[0]
    assert hit.document == 12 and hit.score == pytest.approx(1.0, abs=1e-4)
    assert Searcher(model, tokenizer, documents, max_seq_length=length)(sentence, k=1)[0].score < 0.999


def test_a_searcher_is_made_from_a_saved_folder(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    searcher = Searcher.from_pretrained(tmp_path, ENGLISH)
    assert searcher(ENGLISH[5], k=2)[0].text == ENGLISH[5]
    np.testing.assert_allclose(searcher.vectors, encode(model, tokenizer, ENGLISH), atol=1e-6)


# --- Classification --------------------------------------------------------------------------------------------------


def test_the_nearest_label_wins_with_the_softmax_of_cosines(model, tokenizer):
    result = classify(model, tokenizer, TEXTS, LABELS, template="A text about {}.", temperature=0.2)
    labels = encode(model, tokenizer, [f"A text about {label}." for label in LABELS]).astype(np.float64)
    cosines = encode(model, tokenizer, TEXTS).astype(np.float64) @ labels.T
    assert result.labels == [LABELS[i] for i in cosines.argmax(axis=1)]
    expected = np.exp(cosines / 0.2) / np.exp(cosines / 0.2).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(result.probabilities, expected, atol=1e-5)
    np.testing.assert_allclose(result.probabilities.sum(axis=1), 1.0, atol=1e-6)


def test_the_order_of_labels_and_the_size_of_batches_change_nothing(model, tokenizer):
    first = classify(model, tokenizer, TEXTS, LABELS, template="这是一条关于{}的文本", batch_size=1)
    order = [2, 0, 1]
    other = classify(
        model, tokenizer, TEXTS, [LABELS[i] for i in order], template="这是一条关于{}的文本", batch_size=7
    )
    assert other.labels == first.labels
    np.testing.assert_allclose(other.probabilities, first.probabilities[:, order], atol=1e-5)


def test_several_templates_are_averaged(model, tokenizer):
    both = classify(model, tokenizer, TEXTS, LABELS, template=["{}", "It is about {}."])
    means = sum(encode(model, tokenizer, [t.replace("{}", x) for x in LABELS]) for t in ("{}", "It is about {}."))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    logits = encode(model, tokenizer, TEXTS) @ means.T / 0.1  # the model's temperature
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(both.probabilities, expected, atol=1e-4)


@pytest.mark.parametrize("labels", [["motor ", "motor  x"], ["motor  x", "motor "]])
def test_labels_of_one_vector_tie_and_the_first_name_wins(tokenizer, labels):
    # "first" pools the first token, which both labels share; one layer with its attention switched off keeps it so.
    torch.manual_seed(0)
    model = GURModel(gur_config(vocab_size=len(tokenizer), pooling="first", num_layers=1))
    torch.nn.init.zeros_(model.encoder.block[0].layer[0].SelfAttention.o.weight)
    result = classify(model, tokenizer, ["cat", "A dog", "水在高山上"], labels, batch_size=2)
    assert result.labels == ["motor "] * 3
    np.testing.assert_allclose(result.probabilities, 0.5, atol=1e-5)


def test_what_only_rounding_parts_is_a_tie(model, tokenizer, monkeypatch):
    vectors = {"cat": [1.0, 0.0], "first": [0.5, 0.75**0.5], "second": [0.5 + 3e-7, 0.75**0.5]}

    def rounded(model, tokenizer, texts, **options):
        return np.array([vectors[text] for text in texts], dtype=np.float32)

    monkeypatch.setattr(zero_shot, "encode", rounded)
    assert classify(model, tokenizer, ["cat"], ["second", "first"]).labels == ["first"]


def test_braces_in_labels_and_templates_are_text(model, tokenizer):
    result = classify(model, tokenizer, ["cat"], ["{0}", "{}", "a{b"], template="{x} {} {")
    assert result.probabilities.shape == (1, 3)


def test_the_temperature_is_the_learned_one(tokenizer):
    torch.manual_seed(0)
    model = GURModel(gur_config(vocab_size=len(tokenizer), learnable_temperature=True))
    with torch.no_grad():
        model.logit_scale.fill_(-np.log(0.5))
    learned = classify(model, tokenizer, TEXTS, LABELS).probabilities
    np.testing.assert_allclose(
        learned, classify(model, tokenizer, TEXTS, LABELS, temperature=0.5).probabilities, atol=1e-5
    )


# --- Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "options", "said"),
    [
        (encode, {"texts": []}, "no texts; give at least one"),
        (encode, {"texts": "cat"}, "texts are one string"),
        (encode, {"texts": ["cat", None]}, r"texts\[1\] is of type NoneType"),
        (encode, {"texts": ["cat"], "batch_size": 0}, "batch_size is 0"),
        (encode, {"texts": ["cat"], "max_seq_length": 1}, "max_seq_length is 1"),
        (encode_chunks, {"documents": []}, "no documents"),
        (encode_chunks, {"documents": ["cat"], "chunk_size": 1}, "leaves no room"),
        (Searcher, {"documents": []}, "no documents"),
        (Searcher, {"documents": ["cat"], "chunk_size": 8, "chunk_score": "sum"}, "chunk_score"),
        (classify, {"texts": [], "labels": LABELS}, "no texts"),
        (classify, {"texts": ["cat"], "labels": []}, "no labels"),
        (classify, {"texts": ["cat"], "labels": ["a", " "]}, r"labels\[1\] is empty"),
        (classify, {"texts": ["cat"], "labels": ["a", "b", "a "]}, '"a" is given more than once'),
        (classify, {"texts": ["cat"], "labels": LABELS, "template": "about"}, "write {} where the label goes"),
        (classify, {"texts": ["cat"], "labels": LABELS, "template": []}, "write {} where the label goes"),
        (classify, {"texts": ["cat"], "labels": LABELS, "temperature": 0.0}, "temperature is 0.0"),
    ],
)
def test_bad_input_is_an_error_in_a_sentence(model, tokenizer, call, options, said):
    with pytest.raises(InputError, match=said):
        call(model, tokenizer, **options)


def test_models_and_tokenizers_that_do_not_fit_are_refused(model, tokenizer):
    with pytest.raises(InputError, match="T5ForConditionalGeneration gives no sentence vectors"):
        encode(toy_t5(), tokenizer, TEXTS)
    with pytest.raises(InputError, match="model knows 99 tokens; load the tokenizer of the same checkpoint"):
        encode(GURForConditionalGeneration(gur_config()), tokenizer, TEXTS)
    with pytest.raises(InputError, match="k is 0"):
        Searcher(model, tokenizer, TEXTS)("cat", k=0)
