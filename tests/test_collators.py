"""Batches: padded, masked, with nothing special touched, for any tokenizer; the same for a text in any batch."""

import copy
import pickle

import pytest
import torch
from reference.span_masking_oracle import restore
from tokenizers_for_tests import SENTENCES, bert_tokenizer, roberta_tokenizer, t5_tokenizer, unigram_tokenizer
from toy_models import gur_config, retromae_config

from modeling_gur import GURForPreTraining
from modeling_retromae import RetroMAEForPreTraining
from retrieval_pretraining.collators import MaskedLMCollator, PairCollator, RetroMAECollator
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.passages import encode_documents, sentinel_ids
from retrieval_pretraining.tokenizer_training import train_tokenizer

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


# --- Pairs --------------------------------------------------------------------------------------------------------

PAIRS = [(SENTENCES[i], SENTENCES[i + 2]) for i in range(0, 30, 2)] + [(SENTENCES[i], SENTENCES[i]) for i in (1, 3, 5)]


def pairs(tokenizer, texts=tuple(PAIRS), length=2000) -> list[dict]:
    rows = []
    for number, sides in enumerate(texts):
        first, second = features(tokenizer, sides, length)
        rows.append({**first, "input_ids_pair": second["input_ids"], "word_ids_pair": second["word_ids"]})
        rows[-1]["document_key"] = number // 2
    return rows


def rebuilt(batch, tokenizer) -> list[list[int]]:
    """The texts of a batch, from inputs and labels."""
    rows = []
    for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"]):
        rows.append(restore(ids[mask == 1].tolist(), labels[labels != -100].tolist(), sentinel_ids(tokenizer)))
    return rows


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("kind", ["unigram", "own"])
def test_a_batch_of_pairs_rebuilds_the_texts_row_by_row(kind, whole_words):
    tokenizer = t5_tokenizer() if kind == "unigram" else train_tokenizer(SENTENCES, vocab_size=900, kind="t5")
    rows = pairs(tokenizer)
    batch = PairCollator(tokenizer, mask_rate=0.3, whole_words=whole_words)(rows)
    assert {name: array.dtype for name, array in batch.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "labels", "text_keys", "document_keys"), torch.int64
    )
    expected = [row[name] for row in rows for name in ("input_ids", "input_ids_pair")]
    assert rebuilt(batch, tokenizer) == expected
    assert (batch["input_ids"][batch["attention_mask"] == 0] == tokenizer.pad_token_id).all()
    last = batch["attention_mask"].sum(1) - 1
    assert (batch["input_ids"].gather(1, last[:, None]) == tokenizer.eos_token_id).all()
    sentinels = torch.isin(batch["labels"], torch.tensor(sentinel_ids(tokenizer)))
    assert (batch["labels"][:, 0] == sentinel_ids(tokenizer)[0]).all() and sentinels.any(1).all()
    assert batch["document_keys"].tolist() == [number // 2 for number in range(len(rows))]
    # what is masked is as much as was asked for
    words = [word for row in rows for name in ("word_ids", "word_ids_pair") for word in row[name]]
    written = ((batch["labels"] != -100) & ~sentinels).sum() - len(expected)
    assert written / sum(word >= 0 for word in words) == pytest.approx(0.3, abs=0.06)


def test_the_texts_of_a_pair_have_masks_of_their_own_even_if_they_are_equal():
    tokenizer = t5_tokenizer()
    rows = pairs(tokenizer, texts=[(text, text) for text in SENTENCES])
    batch = PairCollator(tokenizer)(rows)
    first, second = batch["input_ids"][0::2], batch["input_ids"][1::2]
    assert (first != second).any(1).float().mean() > 0.9
    assert torch.equal(batch["text_keys"][0::2], batch["text_keys"][1::2])
    assert len(set(batch["text_keys"].tolist())) == len(SENTENCES)


def test_equal_texts_have_equal_keys_whatever_their_masks_and_batch():
    tokenizer = t5_tokenizer()
    collator = PairCollator(tokenizer)
    one = collator(pairs(tokenizer, texts=[("a cat", SENTENCES[0]), (SENTENCES[2], "a cat")]))["text_keys"].tolist()
    collator.set_epoch(3)
    other = collator(pairs(tokenizer, texts=[(SENTENCES[4], "a cat"), ("a dog", "a mat")]))["text_keys"].tolist()
    assert one[0] == one[3] == other[1] and len({*one, *other}) == 6


def test_documents_that_are_not_known_have_the_key_minus_one():
    tokenizer = t5_tokenizer()
    rows = pairs(tokenizer)[:3]
    rows[1]["document_key"] = None
    assert PairCollator(tokenizer)(rows)["document_keys"].tolist() == [0, -1, 1]
    rows[1]["document_key"] = float("nan")  # what numpy makes of None in a column of numbers
    assert PairCollator(tokenizer)(rows)["document_keys"].tolist() == [0, -1, 1]
    for row in rows:
        del row["document_key"]
    assert "document_keys" not in PairCollator(tokenizer)(rows)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_shuffling_odd_batches_and_workers_part_no_pair(num_workers):
    tokenizer = t5_tokenizer()
    rows = pairs(tokenizer)
    known = {(tuple(row["input_ids"]), tuple(row["input_ids_pair"])) for row in rows}
    loader = torch.utils.data.DataLoader(
        rows,
        batch_size=5,
        shuffle=True,
        collate_fn=PairCollator(tokenizer),
        num_workers=num_workers,
        generator=torch.Generator().manual_seed(0),
    )
    seen, masks = [], {}
    for batch in loader:
        texts = [tuple(row) for row in rebuilt(batch, tokenizer)]
        assert len(texts) == 2 * len(batch["document_keys"])
        seen += list(zip(texts[0::2], texts[1::2]))
        for place, text in enumerate(texts):
            masks[text, place % 2] = batch["labels"][place][batch["labels"][place] != -100].tolist()
    assert len(seen) == len(rows) and set(seen) == known
    # the same masks as in one batch, in order
    whole = PairCollator(tokenizer)(rows)
    for place, text in enumerate(rebuilt(whole, tokenizer)):
        labels = whole["labels"][place]
        assert masks[tuple(text), place % 2] == labels[labels != -100].tolist()


def test_masks_of_pairs_change_with_epoch_and_seed_and_a_pickled_collator_makes_the_same():
    rows = pairs(t5_tokenizer())
    collator = PairCollator(t5_tokenizer(), seed=1)
    first = collator(rows)["input_ids"]
    assert torch.equal(pickle.loads(pickle.dumps(collator))(rows)["input_ids"], first)
    collator.set_epoch(1)
    assert not torch.equal(collator(rows)["input_ids"][:, :4], first[:, :4])
    assert not torch.equal(PairCollator(t5_tokenizer(), seed=2)(rows)["input_ids"][:, :4], first[:, :4])


@pytest.mark.parametrize("law", ["hump_geometric", "geometric", "uniform"])
def test_texts_with_more_spans_than_sentinels(law):
    tokenizer = t5_tokenizer()
    long = " ".join(SENTENCES)
    rows = pairs(tokenizer, texts=[(long, long)])
    batch = PairCollator(tokenizer, mask_rate=0.5, span_lengths=law)(rows)
    assert rebuilt(batch, tokenizer) == [rows[0]["input_ids"]] * 2
    assert torch.isin(batch["labels"], torch.tensor(sentinel_ids(tokenizer))).sum(1).tolist() == [20, 20]


def test_pairs_of_one_token_texts_have_a_label_and_a_finite_loss():
    tokenizer = t5_tokenizer()
    model = GURForPreTraining(gur_config(vocab_size=len(tokenizer))).train()
    batch = PairCollator(tokenizer)(pairs(tokenizer, texts=[("好", "a"), ("a cat", "的")]))
    assert (batch["labels"] != -100).any(1).all()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    assert torch.isfinite(model(**inputs).loss)


def test_pair_lengths_are_rounded_up_on_request():
    batch = PairCollator(t5_tokenizer(), pad_to_multiple_of=8)(pairs(t5_tokenizer()))
    assert batch["input_ids"].shape[1] % 8 == batch["labels"].shape[1] % 8 == 0
    assert batch["attention_mask"].shape == batch["input_ids"].shape


def test_a_tokenizer_that_cannot_corrupt_spans_is_refused_with_what_to_do():
    with pytest.raises(InputError, match=r"no sentinels <extra_id_0>.*add"):
        PairCollator(unigram_tokenizer())
    with pytest.raises(InputError, match="no eos token and no sentinels"):
        PairCollator(bert_tokenizer())


@pytest.mark.parametrize("wrong", [{"mask_rate": 0.0}, {"mask_rate": 1.0}, {"span_lengths": "poisson"}])
def test_settings_of_spans_out_of_range_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        PairCollator(t5_tokenizer(), **wrong)


def test_single_passages_are_no_pairs():
    with pytest.raises(InputError, match=r"input_ids_pair.*tokenize_pairs"):
        PairCollator(t5_tokenizer())(features(t5_tokenizer()))
