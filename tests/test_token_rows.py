"""A model gets another vocabulary: what it knew about the tokens that stay is what it knows afterwards."""

import copy

import numpy as np
import pytest
import torch
from test_added_terms import t5_of_ours
from tokenizers_for_tests import ENGLISH, SENTENCES, bert_tokenizer, roberta_tokenizer, t5_tokenizer
from toy_models import BACKBONE_CONFIGS, encoder_config, gur_config

from configuration_retromae import RetroMAEConfig
from modeling_gur import GURForPreTraining
from modeling_retromae import RetroMAEForMaskedLM, RetroMAEForPreTraining
from retrieval_pretraining.added_terms import add_terms, own_pieces
from retrieval_pretraining.corpus_start import cooccurrence_embeddings
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.passages import encode_documents, sentinel_ids
from retrieval_pretraining.token_rows import fit_vocabulary, move_rows
from retrieval_pretraining.tokenizer_training import train_tokenizer
from retrieval_pretraining.vocabulary import replacement_tokenizer, vocabulary_change

TEXT = "the cat and the motor"


def old_tokenizer(kind: str):
    return roberta_tokenizer() if BACKBONE_CONFIGS[kind]["pad_token_id"] else bert_tokenizer()


def retromae(kind: str = "bert", *, model_class=RetroMAEForPreTraining, tokenizer=None, **changes):
    size = len(tokenizer or old_tokenizer(kind))
    torch.manual_seed(0)
    model = model_class(RetroMAEConfig(encoder_config=encoder_config(kind, vocab_size=size, **changes)))
    with torch.no_grad():
        if model.mlm_head.decoder.bias is not None:
            model.mlm_head.decoder.bias.normal_()
    return model.eval()


def gur(tokenizer, **changes):
    torch.manual_seed(0)
    model = GURForPreTraining(gur_config(vocab_size=len(tokenizer), **changes))
    if hasattr(model, "token_weights"):
        torch.nn.init.normal_(model.token_weights.weight)
    return model.eval()


def replacement(old, kind: str = "bert"):
    # The words of TEXT are sure to be tokens.
    return replacement_tokenizer(old, [*ENGLISH, *[f"{TEXT} zebrafish"] * 20], vocab_size=900, kind=kind)


@torch.no_grad()
def vectors(model, tokenizer, text: str = TEXT):
    return model.base_model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).last_hidden_state


@torch.no_grad()
def assert_knows_the_same(model, before, old, new):
    """Vectors of a text whose words are tokens of both, and the rows, logits and biases of its words."""
    texts = {t: t.convert_ids_to_tokens(own_pieces(t, "motor")) for t in (old, new)}
    assert all(len(pieces) == 1 for pieces in texts.values()), texts
    torch.testing.assert_close(vectors(model, new), vectors(before, old))
    head_before, head = before.get_output_embeddings(), model.get_output_embeddings()
    for word in TEXT.split():
        was, now = own_pieces(old, word)[0], own_pieces(new, word)[0]
        assert torch.equal(model.get_input_embeddings().weight[now], before.get_input_embeddings().weight[was])
        assert torch.equal(head.weight[now], head_before.weight[was])
        assert getattr(head, "bias", None) is None or head.bias[now] == head_before.bias[was]


@pytest.mark.parametrize("kind", BACKBONE_CONFIGS)
def test_replaced_vocabulary_leaves_what_the_model_knows_of_the_tokens_that_stay(kind):
    old = train_tokenizer([*SENTENCES, *[TEXT] * 20], vocab_size=900)
    if BACKBONE_CONFIGS[kind]["pad_token_id"]:
        old = type(old)(vocab={token: number ^ 1 for token, number in old.get_vocab().items()})
    before = retromae(kind, tokenizer=old)
    new = replacement(old)
    model = copy.deepcopy(before)
    move_rows(model, vocabulary_change(old, new))
    assert_knows_the_same(model, before, old, new)
    assert model.config.vocab_size == model.get_output_embeddings().weight.shape[0] == len(new) != len(old)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    mask = [tokenizer.mask_token_id for tokenizer in (new, old)]
    rows = [m.get_input_embeddings().weight[number] for m, number in zip((model, before), mask, strict=True)]
    assert torch.equal(*rows)


def test_an_untied_head_follows_with_rows_of_its_own():
    old = bert_tokenizer()
    before = retromae(tie_word_embeddings=False)
    new = replacement(old)
    model = copy.deepcopy(before)
    move_rows(model, vocabulary_change(old, new))
    assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight
    number = own_pieces(new, "zebrafish")[0]
    assert not torch.equal(model.get_output_embeddings().weight[number], model.get_input_embeddings().weight[number])
    was, now = own_pieces(old, "the")[0], own_pieces(new, "the")[0]
    assert torch.equal(model.get_output_embeddings().weight[now], before.get_output_embeddings().weight[was])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("backbone_type", ["t5", "umt5"])
def test_a_t5_and_its_sentinels_and_token_weights_follow(tied, backbone_type):
    old, new = t5_tokenizer(), t5_of_ours()
    before = gur(old, tie_word_embeddings=tied, backbone_type=backbone_type, pooling="weighted_mean")
    model = copy.deepcopy(before)
    move_rows(model, vocabulary_change(old, new))
    assert len(model.shared.weight) == len(model.lm_head.weight) == len(model.token_weights.weight) == len(new)
    assert (model.lm_head.weight is model.shared.weight) == tied
    assert model.encoder.embed_tokens is model.shared is model.decoder.embed_tokens
    assert {model.config.vocab_size, model.encoder.config.vocab_size, model.decoder.config.vocab_size} == {len(new)}
    for was, now in [*zip(sentinel_ids(old), sentinel_ids(new)), (old.eos_token_id, new.eos_token_id)]:
        for name in ("shared", "lm_head", "token_weights"):
            assert torch.equal(getattr(model, name).weight[now], getattr(before, name).weight[was])
    text = "the of the"
    assert len(old(text)["input_ids"]) == len(new(text)["input_ids"]) == 4
    torch.testing.assert_close(vectors(model, new, text), vectors(before, old, text))


def test_a_term_counts_as_its_pieces_did():
    old = t5_tokenizer()
    new = add_terms(old, ["sensorless motor"]).tokenizer
    before = gur(old, pooling="weighted_mean")
    model = copy.deepcopy(before)
    move_rows(model, vocabulary_change(old, new))
    pieces = own_pieces(old, "sensorless motor")
    assert len(pieces) > 2 and len(model.shared.weight) == len(old) + 1
    weights = before.token_weights.weight[pieces].exp()
    torch.testing.assert_close(model.token_weights.weight[-1].exp(), weights.sum(0))
    torch.testing.assert_close(model.shared.weight[-1], before.shared.weight[pieces].mean(0))
    assert torch.equal(model.shared.weight[:-1], before.shared.weight)


@pytest.mark.parametrize("rows", [-20, 0, 1, 40])
def test_terms_find_room_in_a_model_with_fewer_or_more_rows_than_its_tokenizer_has_tokens(rows):
    old = t5_tokenizer()
    new = add_terms(old, ["sensorless motor", "heat wall"]).tokenizer
    before = GURForPreTraining(gur_config(vocab_size=len(old) + rows))
    model = copy.deepcopy(before)
    move_rows(model, vocabulary_change(old, new))
    assert model.config.vocab_size == max(len(new), len(old) + rows)
    known = min(len(old), len(old) + rows)
    assert torch.equal(model.shared.weight[:known], before.shared.weight[:known])
    assert torch.equal(model.shared.weight[len(new) :], before.shared.weight[len(new) :])
    pieces = [number for number in own_pieces(old, "heat wall") if number < known]
    torch.testing.assert_close(model.shared.weight[len(new) - 1], before.shared.weight[pieces].mean(0))


def test_ids_in_every_configuration_move_with_their_tokens():
    old = train_tokenizer(SENTENCES, vocab_size=700)
    old = type(old)(vocab={token: 699 - number for token, number in old.get_vocab().items()})
    ids = {"pad_token_id": 699, "bos_token_id": 697, "eos_token_id": [696, 5]}
    model = retromae(tokenizer=old, **ids)
    assert model.get_input_embeddings().padding_idx == 699
    new = replacement_tokenizer(old, ENGLISH, vocab_size=300, kind="bert")
    move_rows(model, vocabulary_change(old, new))
    for config in (model.config.encoder_config, model.retromae.encoder.config):
        assert config.pad_token_id == new.pad_token_id == model.get_input_embeddings().padding_idx != 699
        assert config.bos_token_id == new.cls_token_id and config.eos_token_id == [new.sep_token_id]


def test_an_encoder_that_counts_positions_from_its_padding_keeps_its_id():
    old = roberta_tokenizer()
    model = retromae("roberta")
    move_rows(model, vocabulary_change(old, replacement_tokenizer(old, ENGLISH, vocab_size=300, kind="bert")))
    assert model.config.pad_token_id == 1
    with pytest.raises(InputError, match="padding id"):
        move_rows(retromae("roberta"), vocabulary_change(old, train_tokenizer(ENGLISH, vocab_size=300)))


# --- Statistics of the text ---

TEXTS = [*SENTENCES, "sunmotor and endonucleases and sunmotor"] * 3


def started(init: str, *, texts=TEXTS, hidden_size: int = 16, **changes):
    """A model whose old rows are a turned copy of the text's own vectors, so that new ones can be told as well.

    Returns what was made of it, the text's vectors turned, the change and the counts, and what was said.
    """
    old, new = bert_tokenizer(), train_tokenizer(TEXTS, vocab_size=900)
    change = vocabulary_change(old, new)
    sequences = encode_documents(texts, new, max_seq_length=32)["input_ids"]
    vectors = cooccurrence_embeddings(
        sequences,
        vocab_size=len(new),
        hidden_size=hidden_size,
        excluded_ids=change.special_ids,
        standard_deviation=0.1,
        show_progress=False,
    )
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((hidden_size, hidden_size)))[0]
    truth = torch.tensor(vectors @ rotation + 0.05, dtype=torch.float32)
    counts = torch.bincount(torch.tensor(np.concatenate(sequences)), minlength=len(new))
    counts[change.special_ids] = 0
    model = retromae(model_class=RetroMAEForMaskedLM, hidden_size=hidden_size, **changes)
    seen = torch.tensor(change.kept_V >= 0) & (counts > 0)
    with torch.no_grad():
        rows = change.kept_V[seen.numpy()]
        for table in {model.get_input_embeddings().weight, model.get_output_embeddings().weight}:
            table[rows] = truth[seen]
        model.mlm_head.decoder.bias[rows] = torch.log(counts[seen] + 0.5)
    said = move_rows(model, change, sequences, init=init, show_progress=False)
    return model, truth, change, counts, said


def new_tokens(change, counts) -> torch.Tensor:
    new = torch.tensor(change.kept_V < 0) & (counts > 0)
    assert new.sum() > 50
    return new


@pytest.mark.parametrize("tie_word_embeddings", [True, False])
def test_rows_of_new_tokens_are_predicted_from_the_text(tie_word_embeddings):
    model, truth, change, counts, said = started("statistics", tie_word_embeddings=tie_word_embeddings)
    new = new_tokens(change, counts)
    assert "their pieces and its statistics" in said and f"the text has {new.sum()} of" in said
    centre = truth[torch.tensor(change.kept_V >= 0) & (counts > 0)].mean(0)
    for table in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
        predicted, expected = table[new].detach() - centre, truth[new] - centre
        assert torch.cosine_similarity(predicted, expected).mean() > 0.9
        torch.testing.assert_close(predicted.norm(dim=1).mean(), expected.norm(dim=1).mean(), rtol=0.1, atol=0)


def test_tokens_that_the_text_does_not_show_start_from_pieces():
    texts = TEXTS[:30]
    model, truth, change, counts, _ = started("statistics", texts=texts, hidden_size=8)
    plain, *_ = started("pieces", texts=texts, hidden_size=8)
    rows, of_pieces = model.get_input_embeddings().weight, plain.get_input_embeddings().weight
    unseen = torch.tensor(change.kept_V < 0) & (counts == 0)
    assert unseen.sum() > 20 and torch.equal(rows[unseen], of_pieces[unseen])
    kept = torch.tensor(change.kept_V >= 0)
    assert torch.equal(rows[kept], of_pieces[kept])
    assert torch.equal(rows[kept & (counts > 0)], truth[kept & (counts > 0)])


@pytest.mark.parametrize("init", ["statistics", "pieces"])
def test_output_biases_of_new_tokens_follow_from_their_counts(init):
    model, _, change, counts, _ = started(init)
    new = torch.tensor(change.kept_V < 0)
    expected = torch.log(counts[new] + 0.5)
    torch.testing.assert_close(model.mlm_head.decoder.bias[new], expected, atol=1e-3, rtol=0)


def test_without_text_new_tokens_are_rare_and_start_from_pieces():
    old, new = bert_tokenizer(), train_tokenizer(TEXTS, vocab_size=900)
    change = vocabulary_change(old, new)
    before = retromae(model_class=RetroMAEForMaskedLM)
    model = copy.deepcopy(before)
    assert move_rows(model, change) == "new tokens start from the mean of their pieces"
    number, pieces = new.get_vocab()["sunmotor"], own_pieces(old, "sunmotor")
    assert len(pieces) > 1 and change.kept_V[number] == -1
    torch.testing.assert_close(
        model.get_input_embeddings().weight[number], before.get_input_embeddings().weight[pieces].mean(0)
    )
    torch.testing.assert_close(model.mlm_head.decoder.bias[number], before.mlm_head.decoder.bias.quantile(0.25))


def test_a_text_that_shows_too_few_kept_tokens_leaves_the_pieces():
    model, _, _, _, said = started("statistics", texts=["sunmotor and the endonucleases"])
    assert "the mean of their pieces, as it has too few kept ones" in said
    assert model.get_input_embeddings().weight.isfinite().all()


# --- A run ---


def test_a_checkpoint_decides_rows_and_ids(tmp_path):
    old = roberta_tokenizer()
    new = train_tokenizer(ENGLISH, vocab_size=300)
    saved = retromae("bert", tokenizer=old, pad_token_id=1)
    move_rows(saved, vocabulary_change(old, new))
    saved.save_pretrained(tmp_path)
    model = retromae("bert", tokenizer=old, pad_token_id=1)
    fit_vocabulary(model, new, checkpoint=str(tmp_path))
    assert model.config.vocab_size == 300 and model.config.pad_token_id == 0
    assert model.get_input_embeddings().padding_idx == 0
    model.load_state_dict(saved.state_dict())


def test_a_tokenizer_with_more_tokens_than_a_model_of_unknown_tokenizer_makes_room():
    model = retromae()
    rows = model.get_input_embeddings().weight.clone()
    fit_vocabulary(model, add_terms(bert_tokenizer(), ["endonuclease"]).tokenizer)
    assert torch.equal(model.get_input_embeddings().weight[:-1], rows) and len(rows) + 1 == model.config.vocab_size
