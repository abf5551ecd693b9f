"""Batches: padded, masked, with nothing special touched, for any tokenizer; the same for a text in any batch."""

import copy
import pickle

import pytest
import torch
from tokenizers_for_tests import SENTENCES, bert_tokenizer, roberta_tokenizer, unigram_tokenizer
from toy_models import retromae_config

from modeling_retromae import RetroMAEForPreTraining
from retrieval_pretraining.collators import MaskedLMCollator, RetroMAECollator
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.passages import encode_documents

TOKENIZERS = {"wordpiece": bert_tokenizer, "bytes": roberta_tokenizer, "metaspace": unigram_tokenizer}


def features(tokenizer, texts=tuple(SENTENCES[:12]), length=32) -> list[dict]:
    encoded = encode_documents(list(texts), tokenizer, max_seq_length=length)
    return [
        {"input_ids": ids, "word_ids": words, "unused": "x"}
        for ids, words in zip(encoded["input_ids"], encoded["word_ids"])
    ]


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]()


def test_special_tokens_are_never_masked_hidden_or_predicted(tokenizer):
    collator = RetroMAECollator(tokenizer, retromae_config())
    rows = features(tokenizer)
    rate, hidden = [], []
    for epoch in range(40):
        collator.set_epoch(epoch)
        batch = collator(rows)
        original, real = batch["decoder_input_ids"], batch["attention_mask"].bool()
        special = torch.isin(original, torch.tensor(tokenizer.all_special_ids))
        assert (original[:, 0] == tokenizer.cls_token_id).all()
        assert torch.equal(batch["input_ids"][special], original[special])
        assert (batch["labels"][special] == -100).all() and (batch["decoder_labels"][special] == -100).all()
        labelled = batch["labels"] != -100
        assert torch.equal(batch["labels"][labelled], original[labelled])
        rate.append(labelled.sum() / (~special).sum())
        visible = batch["decoder_attention_mask"]
        assert visible[:, 1:, 0][real[:, 1:]].all()  # the sentence vector
        assert not visible.diagonal(dim1=1, dim2=2).any()
        assert not visible[~real[:, None].expand_as(visible)].any()
        pairs = (~special)[:, :, None] & (~special)[:, None] & ~torch.eye(special.shape[1], dtype=torch.bool)
        hidden.append(1 - visible[pairs].float().mean())
    assert torch.stack(rate).mean().item() == pytest.approx(0.3, abs=0.02)
    # A word's other pieces are hidden too, so that a little more than half of the positions is.
    assert 0.48 < torch.stack(hidden).mean().item() < 0.62


def test_a_text_has_the_same_masks_in_any_batch(tokenizer):
    collator = RetroMAECollator(tokenizer, retromae_config(bow_loss_weight=0.1))
    rows = features(tokenizer)
    together = collator(rows)
    alone = collator(rows[3:4])
    length = alone["input_ids"].shape[1]
    for name, value in alone.items():
        theirs = together[name][3:4]
        if name == "decoder_attention_mask":
            theirs = theirs[:, :length, :length]
        elif name != "bag_of_words":
            theirs = theirs[:, :length]
        assert torch.equal(theirs, value), name


def test_masks_change_from_epoch_to_epoch_and_with_the_seed():
    rows = features(bert_tokenizer())
    collator = MaskedLMCollator(bert_tokenizer(), seed=1)
    first = collator(rows)["labels"]
    assert torch.equal(collator(rows)["labels"], first)
    collator.set_epoch(1)
    assert not torch.equal(collator(rows)["labels"], first)
    assert not torch.equal(MaskedLMCollator(bert_tokenizer(), seed=2)(rows)["labels"], first)


def test_a_worker_hears_of_a_new_epoch():
    collator = MaskedLMCollator(bert_tokenizer())
    loader = torch.utils.data.DataLoader(
        features(bert_tokenizer()), batch_size=4, collate_fn=collator, num_workers=2, persistent_workers=True
    )
    first = [batch["labels"] for batch in loader]
    again = [batch["labels"] for batch in loader]
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    collator.set_epoch(1)
    assert not all(torch.equal(a, b.to(a.dtype)) for a, b in zip(first, [batch["labels"] for batch in loader]))


def test_a_collator_can_be_pickled():
    collator = RetroMAECollator(bert_tokenizer(), retromae_config())
    rows = features(bert_tokenizer())
    assert torch.equal(pickle.loads(pickle.dumps(collator))(rows)["labels"], collator(rows)["labels"])


def test_without_enhanced_decoding_the_decoder_predicts_its_masked_tokens():
    collator = RetroMAECollator(bert_tokenizer(), retromae_config(enhanced_decoding=False))
    batch = collator(features(bert_tokenizer()))
    assert "decoder_attention_mask" not in batch
    labelled = batch["decoder_labels"] != -100
    assert not torch.equal(labelled, batch["labels"] != -100)
    assert (batch["decoder_input_ids"][labelled] == bert_tokenizer().mask_token_id).float().mean() > 0.6


def test_added_tokens_are_masked_and_bagged_like_any_other():
    tokenizer = copy.deepcopy(bert_tokenizer())
    tokenizer.add_tokens(["sensorless"])
    new = len(tokenizer) - 1
    rows = features(tokenizer, texts=["Sensorless control of a motor."])
    collator = RetroMAECollator(tokenizer, retromae_config(bow_loss_weight=0.1), encoder_mlm_probability=1.0)
    batch = collator(rows)
    assert batch["bag_of_words"].shape == (1, len(tokenizer)) and batch["bag_of_words"][0, new] > 0
    assert (batch["labels"] == new).any()
    config = retromae_config(bow_loss_weight=0.1)
    config.vocab_size = len(bert_tokenizer())
    model = RetroMAEForPreTraining(config)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    assert torch.isfinite(model(**batch).loss)


def test_lengths_are_rounded_up_on_request():
    rows = features(bert_tokenizer(), texts=["The cat sat on the mat."])
    assert len(rows[0]["input_ids"]) % 16
    assert MaskedLMCollator(bert_tokenizer(), pad_to_multiple_of=16)(rows)["input_ids"].shape[1] % 16 == 0


def test_passages_without_word_ids_are_masked_token_by_token():
    rows = [{"input_ids": row["input_ids"]} for row in features(bert_tokenizer())]
    batch = MaskedLMCollator(bert_tokenizer())(rows)
    assert (batch["labels"] != -100).any() and (batch["labels"][:, 0] == -100).all()


def test_raw_text_is_refused_with_what_to_do():
    with pytest.raises(InputError, match="tokenise the dataset"):
        MaskedLMCollator(bert_tokenizer())([{"text": "a cat"}])


@pytest.mark.parametrize("name", ["encoder_mlm_probability", "decoder_mlm_probability"])
@pytest.mark.parametrize("value", [0.0, 1.5, -0.1])
def test_a_probability_out_of_range_is_refused(name, value):
    with pytest.raises(InputError, match=name):
        RetroMAECollator(bert_tokenizer(), retromae_config(), **{name: value})


def test_texts_of_one_token_give_finite_losses():
    tokenizer = bert_tokenizer()
    config = retromae_config(bow_loss_weight=0.1)
    config.vocab_size = len(tokenizer)
    model = RetroMAEForPreTraining(config).train()
    collator = RetroMAECollator(tokenizer, config, encoder_mlm_probability=0.15)
    for epoch in range(20):
        collator.set_epoch(epoch)
        for text in ("好", "ok"):
            batch = collator(features(tokenizer, texts=[text]))
            assert (batch["labels"] != -100).any()
            loss = model(**batch).loss
            loss.backward()
            assert torch.isfinite(loss)
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
