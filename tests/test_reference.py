"""The slow oracles agree with the published numbers (`tests/golden`) and with the rules they claim."""

import json
import random
from pathlib import Path

import pytest
import torch
from reference.masking_oracle import (
    bag_of_words,
    collate_like_published,
    decoder_visibility,
    group_words,
    whole_word_mask,
)
from reference.retromae_oracle import RetroMAEOracle
from safetensors.torch import load_file
from transformers import BertConfig, BertForMaskedLM

GOLDEN = Path(__file__).parent / "golden"
VARIANTS = {"v1": "position", "fe": "embedding", "dup": "embedding"}
LENGTHS = (16, 12, 9, 5)
WORD_IDS = [-1, 0, 1, 1, 2, 3, 3, 3, 4, 5, 6, 6, 7, -1]


@pytest.fixture(scope="module")
def golden_losses():
    return json.loads((GOLDEN / "golden_retromae.json").read_text())


@pytest.fixture(scope="module")
def golden():
    return load_file(GOLDEN / "golden_retromae.safetensors")


def make_oracle(golden, **kwargs):
    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    oracle = RetroMAEOracle(BertForMaskedLM(config), **kwargs)
    lm_weights = {name[len("weight.lm.") :]: w for name, w in golden.items() if name.startswith("weight.lm.")}
    layer_weights = {
        name[len("weight.c_head.") :]: w for name, w in golden.items() if name.startswith("weight.c_head.")
    }
    missing, unexpected = oracle.lm.load_state_dict(lm_weights, strict=False)
    assert not unexpected and all(name.startswith("cls.predictions.decoder.") for name in missing)
    oracle.decoder.layer.load_state_dict(layer_weights)
    return oracle.train()


def golden_batch(golden, with_bag=False):
    return {
        "input_ids": golden["input.encoder_input_ids"],
        "attention_mask": golden["input.encoder_attention_mask"],
        "labels": golden["input.encoder_labels"],
        "decoder_input_ids": golden["input.decoder_input_ids"],
        "decoder_attention_mask": golden["input.decoder_attention_mask"],
        "decoder_labels": golden["input.decoder_labels"],
        "bag_of_words": golden["input.bag_word_weight"] if with_bag else None,
    }


@pytest.fixture(scope="module", params=VARIANTS)
def run(request, golden):
    """One published variant, forward and backward: (variant, oracle, outputs)."""
    variant = request.param
    oracle = make_oracle(golden, decoder_query=VARIANTS[variant])
    outputs = oracle(**golden_batch(golden, with_bag=variant == "dup"))
    outputs["loss"].backward()
    return variant, oracle, outputs


def test_losses_are_the_published_ones(run, golden_losses):
    variant, _, outputs = run
    names = {"loss": "loss_total", "encoder_mlm_loss": "loss_encoder_mlm", "decoder_mlm_loss": "loss_decoder"}
    if variant == "dup":
        names["bag_of_words_loss"] = "loss_bow_unweighted"
    else:
        assert outputs["bag_of_words_loss"] is None
    for ours, theirs in names.items():
        assert outputs[ours].item() == pytest.approx(golden_losses[variant][theirs], rel=0, abs=5e-6), ours


def test_states_are_the_published_ones(run, golden):
    variant, _, outputs = run
    real = golden["input.encoder_attention_mask"].bool()
    pairs = {
        "sentence_embedding": golden[f"{variant}.encoder_last_hidden"][:, 0],
        "query": golden[f"{variant}.decoder_query_H1"],
        "context": golden[f"{variant}.decoder_kv_H2"],
    }
    for name, expected in pairs.items():
        torch.testing.assert_close(outputs[name], expected, rtol=0, atol=5e-6)
    decoded, expected = outputs["decoder_hidden_states"], golden[f"{variant}.decoder_out"]
    torch.testing.assert_close(decoded[real], expected[real], rtol=0, atol=5e-6)


def test_gradients_are_the_published_ones(run, golden):
    variant, oracle, _ = run
    prefix = f"{variant}.grad."
    compared = 0
    for name, expected in golden.items():
        if not name.startswith(prefix):
            continue
        name = name[len(prefix) :].replace("c_head.", "decoder.layer.")
        torch.testing.assert_close(oracle.get_parameter(name).grad, expected, rtol=0, atol=1e-6, msg=name)
        compared += 1
    assert compared == len({id(parameter) for parameter in oracle.parameters()})


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_row_0_and_the_type_of_the_mask_do_not_move_the_loss(golden, golden_losses, dtype):
    batch = golden_batch(golden)
    batch["decoder_attention_mask"] = batch["decoder_attention_mask"].clone()
    batch["decoder_attention_mask"][:, 0] = 1  # row 0 carries no label
    batch["decoder_attention_mask"] = batch["decoder_attention_mask"].to(dtype)
    loss = make_oracle(golden, decoder_query="position")(**batch)["loss"]
    assert loss.item() == pytest.approx(golden_losses["v1"]["loss_total"], rel=0, abs=5e-6)


def test_padding_does_not_move_the_losses(golden):
    oracle = make_oracle(golden)
    batch = golden_batch(golden, with_bag=True)
    alone = {name: value[3:, :5] for name, value in batch.items() if name != "decoder_attention_mask"}
    alone["decoder_attention_mask"] = batch["decoder_attention_mask"][3:, :5, :5]
    alone["bag_of_words"] = batch["bag_of_words"][3:]
    padded = oracle(**{name: value[3:] for name, value in batch.items()})
    for name in ("loss", "encoder_mlm_loss", "decoder_mlm_loss", "bag_of_words_loss"):
        torch.testing.assert_close(oracle(**alone)[name], padded[name], rtol=0, atol=5e-6)


def test_plain_decoding_is_berts_own_layer(golden):
    oracle = make_oracle(golden, enhanced_decoding=False).eval()
    batch = golden_batch(golden)
    batch["decoder_input_ids"] = batch["input_ids"]
    batch["decoder_attention_mask"] = None
    outputs = oracle(**batch)

    theirs = make_oracle(golden).lm.bert.eval()
    theirs.encoder.layer[0].load_state_dict(oracle.decoder.layer.state_dict())
    del theirs.encoder.layer[1]
    real = batch["attention_mask"].bool()
    # transformers' own encoder of one layer, given the spliced embeddings.
    mask = (1.0 - batch["attention_mask"][:, None, None, :].float()) * torch.finfo(torch.float32).min
    expected = theirs.encoder(outputs["context"], attention_mask=mask.expand(-1, 1, 16, -1)).last_hidden_state
    torch.testing.assert_close(outputs["decoder_hidden_states"][real], expected[real], rtol=0, atol=5e-6)
    torch.testing.assert_close(outputs["context"][:, 0], outputs["sentence_embedding"])
    assert outputs["loss"] == outputs["encoder_mlm_loss"] + outputs["decoder_mlm_loss"]


def test_golden_masks_follow_the_masking_rule(golden):
    """In the golden mask, words of one piece: each row hides the budget, counted with specials, and itself."""
    for visible, length in zip(golden["input.decoder_attention_mask"], LENGTHS, strict=True):
        assert visible[length:].sum() == 0 and visible[:, length:].sum() == 0
        for row in range(length):
            hidden = {column for column in range(length) if not visible[row, column]}
            assert row in hidden
            assert round(0.5 * length) in (len(hidden), len(hidden) - 1)
            assert hidden - {row} <= set(range(1, length - 1))


@pytest.mark.parametrize("probability", [0.15, 0.3, 0.5, 0.9])
def test_whole_word_mask(probability):
    rng = random.Random(0)
    seen = set()
    for _ in range(200):
        masked = whole_word_mask(WORD_IDS, probability, rng)
        assert len(masked) <= max(1, round(len(WORD_IDS) * probability))
        for pieces in group_words(WORD_IDS):
            assert set(pieces) <= masked or not set(pieces) & masked
        seen |= masked
    assert 0 not in seen and len(WORD_IDS) - 1 not in seen
    if probability >= 0.3:
        assert seen == set(range(1, len(WORD_IDS) - 1))


def test_decoder_visibility():
    count, length = len(WORD_IDS), len(WORD_IDS) + 3
    visible = torch.tensor(decoder_visibility(WORD_IDS, length, 0.5, random.Random(0)))
    assert visible.shape == (length, length)
    assert visible[count:].sum() == 0 and visible[:, count:].sum() == 0
    for row in range(count):
        assert visible[row, row] == 0
        for special in {0, count - 1} - {row}:
            assert visible[row, special] == 1
        for pieces in group_words(WORD_IDS):
            assert len(set(visible[row, pieces].tolist())) == 1
            assert row not in pieces or visible[row, pieces].sum() == 0
    assert len({tuple(line) for line in visible[:count].tolist()}) > 1


def test_golden_bag_of_words(golden):
    for ids, bag, length in zip(
        golden["input.decoder_input_ids"], golden["input.bag_word_weight"], LENGTHS, strict=True
    ):
        word_ids = [-1, *range(length - 2), -1]
        torch.testing.assert_close(torch.tensor(bag_of_words(ids[:length].tolist(), word_ids, 100)), bag)


def test_collate_like_published():
    features = [
        {"input_ids": [2, *range(10, 22), 3], "word_ids": WORD_IDS},
        {"input_ids": [2, 30, 31, 30, 3], "word_ids": [-1, 0, 0, 1, -1]},
    ]
    batch = collate_like_published(
        features,
        mask_token_id=4,
        pad_token_id=0,
        vocab_size=100,
        rng=random.Random(0),
        encoder_mlm_probability=0.5,
        with_bag_of_words=True,
    )
    assert batch["decoder_attention_mask"].shape == (2, 14, 14)
    assert all(value.dtype == torch.int64 for name, value in batch.items() if name != "bag_of_words")
    assert batch["attention_mask"].sum(-1).tolist() == [14, 5]
    assert batch["decoder_labels"][1].tolist() == [-100, 30, 31, 30] + [-100] * 10
    rebuilt = torch.where(batch["labels"] != -100, batch["labels"], batch["input_ids"])
    assert torch.equal(rebuilt, batch["decoder_input_ids"])
    assert torch.equal(batch["decoder_attention_mask"].diagonal(dim1=1, dim2=2), torch.zeros(2, 14, dtype=torch.int64))
    assert batch["bag_of_words"][1].nonzero().flatten().tolist() == [30, 31]
    assert batch["bag_of_words"][1].sum().item() == pytest.approx(2 / 3)


def test_replacement_is_80_10_10():
    features = [{"input_ids": [2] + [50] * 400 + [3], "word_ids": [-1, *range(400), -1]}] * 10
    batch = collate_like_published(
        features, mask_token_id=4, pad_token_id=0, vocab_size=1000, rng=random.Random(0), pool_size=1
    )
    masked = batch["labels"] != -100
    assert masked.sum() == 10 * round(402 * 0.3)
    ids = batch["input_ids"][masked]
    shares = [(ids == 4).float().mean(), (ids == 50).float().mean()]
    assert shares == pytest.approx([0.8, 0.1], abs=0.04)
