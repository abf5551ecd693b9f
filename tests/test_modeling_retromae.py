"""The model: equal to the published numbers and to the slow oracle, with every backbone, saved and loaded whole."""

import json
import math
import os
from pathlib import Path

import pytest
import torch
from reference.retromae_oracle import RetroMAEOracle
from safetensors.torch import load_file
from toy_models import BACKBONE_CONFIGS, encoder_config, retromae_config, toy_batch
from transformers import AutoModel, AutoModelForMaskedLM, BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from configuration_retromae import RetroMAEConfig
from linear_cross_entropy import linear_cross_entropy, rows_at_a_time
from modeling_retromae import RetroMAEForMaskedLM, RetroMAEForPreTraining, RetroMAEModel, bag_of_words_loss

GOLDEN = Path(__file__).parent / "golden"
VARIANTS = {"v1": "position", "fe": "embedding", "dup": "embedding"}
NINE = sorted(BACKBONE_CONFIGS)


def our_name(golden_name: str) -> str:
    for theirs, ours in (
        ("lm.bert.", "retromae.encoder."),
        ("lm.cls.predictions.transform.", "mlm_head."),
        ("lm.cls.predictions.bias", "mlm_head.decoder.bias"),
        ("lm.cls.predictions.decoder.", "mlm_head.decoder."),
        ("c_head.", "decoder.layer."),
    ):
        golden_name = golden_name.replace(theirs, ours)
    return golden_name


@pytest.fixture(scope="module")
def golden():
    losses = json.loads((GOLDEN / "golden_retromae.json").read_text())
    return load_file(GOLDEN / "golden_retromae.safetensors"), losses


def golden_model(tensors, variant: str) -> RetroMAEForPreTraining:
    encoder = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    weight = 0.1 if variant == "dup" else 0.0
    config = RetroMAEConfig(encoder_config=encoder, decoder_query=VARIANTS[variant], bow_loss_weight=weight)
    model = RetroMAEForPreTraining(config)
    weights = {our_name(name[7:]): value for name, value in tensors.items() if name.startswith("weight.")}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert missing == ["mlm_head.decoder.weight"] and not unexpected
    return model.train()


def golden_inputs(tensors, variant: str) -> dict:
    names = {
        "input_ids": "encoder_input_ids",
        "attention_mask": "encoder_attention_mask",
        "labels": "encoder_labels",
        **{name: name for name in ("decoder_input_ids", "decoder_attention_mask", "decoder_labels")},
    }
    inputs = {ours: tensors[f"input.{theirs}"] for ours, theirs in names.items()}
    if variant == "dup":
        inputs["bag_of_words"] = tensors["input.bag_word_weight"]
    return inputs


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_gradients_equal_the_published_ones(golden, variant):
    tensors, losses = golden
    model = golden_model(tensors, variant)
    output = model(**golden_inputs(tensors, variant))
    output.loss.backward()
    expected = losses[variant]
    assert output.loss.item() == pytest.approx(expected["loss_total"], abs=5e-6)
    assert output.encoder_mlm_loss.item() == pytest.approx(expected["loss_encoder_mlm"], abs=5e-6)
    assert output.decoder_mlm_loss.item() == pytest.approx(expected["loss_decoder"], abs=5e-6)
    if variant == "dup":
        assert output.bag_of_words_loss.item() == pytest.approx(expected["loss_bow_unweighted"], abs=5e-6)
    parameters = dict(model.named_parameters())
    compared = 0
    for name, gradient in tensors.items():
        if name.startswith(f"{variant}.grad."):
            torch.testing.assert_close(
                parameters[our_name(name[len(variant) + 6 :])].grad, gradient, atol=1e-6, rtol=0, msg=name
            )
            compared += 1
    assert compared == len(parameters) == 58


def oracle_of(model: RetroMAEForPreTraining) -> RetroMAEOracle:
    config = model.config
    oracle = RetroMAEOracle(
        BertForMaskedLM(config.encoder_config),
        decoder_query=config.decoder_query,
        enhanced_decoding=config.enhanced_decoding,
        bow_loss_weight=config.bow_loss_weight,
    )
    state = model.state_dict()
    theirs = {f"lm.{name}": name for name in oracle.lm.state_dict()}
    lm = {name: state[our_name(ours)] for ours, name in theirs.items() if our_name(ours) in state}
    missing, _ = oracle.lm.load_state_dict(lm, strict=False)
    assert set(missing) <= {"cls.predictions.decoder.bias"}
    oracle.decoder.layer.load_state_dict(
        {name[len("decoder.layer.") :]: value for name, value in state.items() if name.startswith("decoder.layer.")}
    )
    return oracle.eval()


@pytest.mark.parametrize("decoder_query", ["position", "embedding"])
@pytest.mark.parametrize("enhanced_decoding", [True, False])
def test_the_model_equals_the_slow_oracle(decoder_query, enhanced_decoding):
    torch.manual_seed(0)
    config = retromae_config(
        decoder_query=decoder_query, enhanced_decoding=enhanced_decoding, bow_loss_weight=0.3, initializer_range=0.3
    )
    config.encoder_config.initializer_range = 0.3
    model = RetroMAEForPreTraining(config).eval()
    batch = toy_batch(bag=True)
    if not enhanced_decoding:
        batch["decoder_labels"] = batch["labels"]
        batch["decoder_input_ids"] = batch["input_ids"]
    ours, theirs = model(**batch), oracle_of(model)(**batch)
    for name in ("loss", "encoder_mlm_loss", "decoder_mlm_loss", "bag_of_words_loss"):
        torch.testing.assert_close(ours[name], theirs[name], atol=5e-6, rtol=0)
    torch.testing.assert_close(ours.sentence_embedding, theirs["sentence_embedding"], atol=1e-5, rtol=0)


def test_a_decoder_that_predicts_a_share_computes_the_same_rows():
    torch.manual_seed(0)
    model = RetroMAEForPreTraining(retromae_config()).eval()
    batch = toy_batch()
    keep = torch.rand(batch["labels"].shape, generator=torch.Generator().manual_seed(1)) < 0.4
    batch["decoder_labels"] = batch["decoder_labels"].masked_fill(~keep, -100)
    every_row = model(**batch).decoder_mlm_loss
    model.config.decoder_prediction_rate = 0.4
    torch.testing.assert_close(model(**batch).decoder_mlm_loss, every_row, atol=1e-6, rtol=0)


@pytest.mark.parametrize("rows", [0, 1, 7, 200])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_cross_entropy_equals_full_logits(rows, with_bias, monkeypatch):
    monkeypatch.setattr("linear_cross_entropy._LOGITS_AT_A_TIME_CPU", 64 * 50)  # several chunks of 64 rows
    assert rows_at_a_time(50, torch.device("cpu")) == 64
    torch.manual_seed(0)
    hidden = torch.randn(rows, 8, requires_grad=True)
    weight = torch.randn(50, 8, requires_grad=True)
    bias = torch.randn(50, requires_grad=True) if with_bias else None
    labels = torch.randint(50, (rows,))
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]

    loss, accuracy = linear_cross_entropy(hidden, weight, bias, labels)
    gradients = torch.autograd.grad(3.0 * loss, leaves)
    logits = torch.nn.functional.linear(hidden, weight, bias)
    expected = torch.nn.functional.cross_entropy(logits, labels) if rows else 0.0 * logits.sum()
    wanted = torch.autograd.grad(3.0 * expected, leaves)
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(gradients, wanted):
        torch.testing.assert_close(ours, theirs)
    if rows:
        assert accuracy.item() == pytest.approx((logits.argmax(-1) == labels).float().mean().item())


def test_a_tie_is_no_correct_prediction():
    _, accuracy = linear_cross_entropy(torch.zeros(4, 8), torch.zeros(50, 8), None, torch.arange(1, 5))
    assert accuracy == 0.0


@pytest.mark.parametrize("at_a_time", [2**22, 1])  # the vocabulary whole, and in parts
def test_bag_of_words_gradients_equal_full_logits(at_a_time, monkeypatch):
    monkeypatch.setattr("linear_cross_entropy._LOGITS_AT_A_TIME_CPU", at_a_time)
    torch.manual_seed(0)
    hidden = torch.randn(3, 5, 8, requires_grad=True)
    weight, bias = torch.randn(150, 8, requires_grad=True), torch.randn(150, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]).bool()
    bag = torch.rand(3, 150)
    loss = bag_of_words_loss(hidden, weight, bias, mask, bag)
    gradients = torch.autograd.grad(loss, (hidden, weight, bias))
    logits = (hidden @ weight.T + bias).masked_fill(~mask[..., None], -1e9).amax(1)
    expected = -(bag * logits.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, (hidden, weight, bias))):
        torch.testing.assert_close(ours, theirs)


def test_no_tensor_of_tokens_times_vocabulary_is_made():
    # 4 x 64 tokens and 20,000 tokens of vocabulary: full logits would be 20 MB, a chunk of the loss is at most 16.8 MB
    # and the weights' gradients are 2.6 MB.
    config = retromae_config()
    config.encoder_config.vocab_size = 20_000
    model = RetroMAEForPreTraining(config)
    batch = toy_batch(lengths=(64, 64, 64, 64), vocab_size=20_000)
    sizes = []

    def note(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(**batch).loss.backward()
    assert max(sizes) == 20_000 * 32  # the embeddings


@pytest.mark.parametrize("model_type", NINE)
def test_two_steps_save_load_and_export_with_every_backbone(model_type, tmp_path):
    torch.manual_seed(0)
    source = AutoModelForMaskedLM.from_config(encoder_config(model_type))
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    source.eval().save_pretrained(tmp_path / "source")
    pad = source.config.pad_token_id
    batch = toy_batch(pad_token_id=pad, bag=True)
    seen = {name: batch[name] for name in ("input_ids", "attention_mask")}

    masked_lm = RetroMAEForMaskedLM.from_backbone(tmp_path / "source").eval()
    torch.testing.assert_close(masked_lm(**seen).logits, source(**seen).logits, atol=1e-5, rtol=0)

    model = RetroMAEForPreTraining.from_backbone(tmp_path / "source", bow_loss_weight=0.1).train()
    assert model.loading_report == "encoder 100 %, MLM head loaded, decoder initialised"
    assert model.mlm_head.decoder.weight is model.get_input_embeddings().weight
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(2):
        loss = model(**batch).loss
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[1] < losses[0]

    model.eval().save_pretrained(tmp_path / "ours")
    loaded = RetroMAEForPreTraining.from_pretrained(tmp_path / "ours")
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, dict(model.named_parameters())[name]), name
        assert not torch.equal(parameter, before[name]) or parameter.std() == 0, name
    vector = RetroMAEModel.from_pretrained(tmp_path / "ours").eval()(**seen).pooler_output
    torch.testing.assert_close(vector, model(**batch).sentence_embedding, atol=1e-6, rtol=0)

    model.export_encoder(tmp_path / "plain")
    plain, info = AutoModelForMaskedLM.from_pretrained(tmp_path / "plain", output_loading_info=True)
    assert type(plain) is type(source) and not info["missing_keys"] and not info["unexpected_keys"]
    assert "auto_map" not in json.loads((tmp_path / "plain/config.json").read_text())
    states = AutoModel.from_pretrained(tmp_path / "plain").eval()(**seen).last_hidden_state
    torch.testing.assert_close(states[:, 0], vector, atol=1e-6, rtol=0)


@pytest.mark.parametrize("model_type", NINE)
@pytest.mark.parametrize("decoder_query", ["position", "embedding"])
def test_padding_changes_no_loss_of_any_backbone(model_type, decoder_query):
    torch.manual_seed(0)
    model = RetroMAEForPreTraining(retromae_config(model_type, decoder_query=decoder_query)).eval()
    pad = model.config.encoder_config.pad_token_id
    batch = toy_batch(pad_token_id=pad)
    padded = {
        "input_ids": torch.nn.functional.pad(batch["input_ids"], (0, 5), value=pad),
        "decoder_input_ids": torch.nn.functional.pad(batch["decoder_input_ids"], (0, 5), value=pad),
        "attention_mask": torch.nn.functional.pad(batch["attention_mask"], (0, 5)),
        "labels": torch.nn.functional.pad(batch["labels"], (0, 5), value=-100),
        "decoder_labels": torch.nn.functional.pad(batch["decoder_labels"], (0, 5), value=-100),
        "decoder_attention_mask": torch.nn.functional.pad(batch["decoder_attention_mask"], (0, 5, 0, 5)),
    }
    torch.testing.assert_close(model(**padded).loss, model(**batch).loss, atol=1e-5, rtol=0)


def test_an_encoder_without_position_embeddings_gets_a_decoder_with_sinusoids():
    table = RetroMAEForPreTraining(retromae_config("modernbert")).decoder.position_embeddings.weight
    half = table.shape[1] // 2
    rate = torch.exp(torch.arange(half) * -2 * math.log(10000.0) / table.shape[1])
    angle = torch.arange(len(table))[:, None] * rate
    torch.testing.assert_close(table / table.max(), torch.cat([angle.sin(), angle.cos()], dim=1))


@pytest.mark.parametrize("model_type", ["bert", "modernbert", "deberta-v2"])
def test_head_stays_tied_after_resizing(model_type):
    model = RetroMAEForPreTraining(retromae_config(model_type))
    model.resize_token_embeddings(120, mean_resizing=False)
    assert model.mlm_head.decoder.weight is model.get_input_embeddings().weight
    assert model.mlm_head.decoder.weight.shape[0] == model.config.encoder_config.vocab_size == 120
    assert model.mlm_head.decoder.bias.shape == (120,)
    model(**toy_batch(vocab_size=120)).loss.backward()


def test_bag_of_words_reaches_added_vocabulary():
    model = RetroMAEForPreTraining(retromae_config(bow_loss_weight=0.1))
    model.resize_token_embeddings(104, mean_resizing=False)
    batch = toy_batch(vocab_size=104, bag=True)
    batch["bag_of_words"].zero_()[:, 103] = 1.0
    assert model(**batch).bag_of_words_loss > 0
    narrow = {**batch, "bag_of_words": batch["bag_of_words"][:, :99]}
    assert model(**narrow).bag_of_words_loss == 0


@pytest.mark.parametrize("untied", [False, True])
def test_untied_vocabulary_matrix_is_loaded_and_exported(untied, tmp_path):
    torch.manual_seed(0)
    source = BertForMaskedLM(encoder_config(tie_word_embeddings=not untied)).eval()
    if untied:
        torch.nn.init.normal_(source.cls.predictions.decoder.weight)
    source.save_pretrained(tmp_path / "source")
    model = RetroMAEForPreTraining.from_backbone(tmp_path / "source")
    assert (model.mlm_head.decoder.weight is model.get_input_embeddings().weight) is not untied
    model.save_pretrained(tmp_path / "ours")
    RetroMAEForMaskedLM.from_pretrained(tmp_path / "ours").export_encoder(tmp_path / "plain")
    ids = toy_batch()["input_ids"]
    plain = BertForMaskedLM.from_pretrained(tmp_path / "plain").eval()
    torch.testing.assert_close(plain(ids).logits, source(ids).logits, atol=1e-6, rtol=0)


def test_our_own_checkpoint_continues_with_its_decoder(tmp_path):
    torch.manual_seed(0)
    model = RetroMAEForPreTraining(retromae_config()).eval()
    model.save_pretrained(tmp_path)
    again = RetroMAEForPreTraining.from_backbone(tmp_path, decoder_prediction_rate=0.5, hidden_dropout_prob=0.2).eval()
    assert again.loading_report == "encoder 100 %, MLM head loaded, decoder loaded"
    assert again.config.decoder_prediction_rate == 0.5 and again.config.encoder_config.hidden_dropout_prob == 0.2
    assert torch.equal(again(**toy_batch()).loss, model(**toy_batch()).loss)


def test_a_plain_encoder_is_loaded_and_its_missing_head_is_reported(tmp_path):
    torch.manual_seed(0)
    source = AutoModel.from_config(encoder_config()).eval()
    source.save_pretrained(tmp_path)
    model = RetroMAEForPreTraining.from_backbone(tmp_path).eval()
    assert model.loading_report == "encoder 100 %, MLM head initialised, decoder initialised"
    ids = toy_batch()["input_ids"]
    assert torch.equal(model.retromae(ids).last_hidden_state, source(ids).last_hidden_state)


def test_a_sentence_transformers_folder_is_a_backbone(tmp_path):
    source = AutoModel.from_config(encoder_config())
    source.save_pretrained(tmp_path / "0_Transformer")
    (tmp_path / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "0_Transformer", "type": "x"}]))
    model = RetroMAEForPreTraining.from_backbone(tmp_path)
    assert torch.equal(model.get_input_embeddings().weight, source.get_input_embeddings().weight)


def test_a_backbone_whose_weights_do_not_fit_is_an_error(tmp_path):
    AutoModelForMaskedLM.from_config(encoder_config()).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    from safetensors.torch import save_file

    save_file(
        {f"other.{name}": value for name, value in weights.items()}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(ValueError, match="Not one weight of the encoder"):
        RetroMAEForPreTraining.from_backbone(tmp_path)


def test_an_unsupported_backbone_is_refused_with_the_list(tmp_path):
    GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=10)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"gpt2.*bert, roberta.*modernbert"):
        RetroMAEForPreTraining.from_backbone(tmp_path)


def test_a_plain_checkpoint_is_not_taken_for_one_of_ours(tmp_path):
    AutoModelForMaskedLM.from_config(encoder_config()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="from_backbone"):
        RetroMAEForPreTraining.from_pretrained(tmp_path)


def test_an_unknown_field_is_refused(tmp_path):
    AutoModelForMaskedLM.from_config(encoder_config()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="`decoder_qery` is a field neither"):
        RetroMAEForPreTraining.from_backbone(tmp_path, decoder_qery="position")


@pytest.mark.parametrize(
    "changes", [{"decoder_query": "x"}, {"decoder_prediction_rate": 0.0}, {"bow_loss_weight": -1.0}]
)
def test_a_configuration_out_of_range_is_refused(changes):
    with pytest.raises(Exception, match=next(iter(changes))):
        retromae_config(**changes)


def test_the_callers_encoder_configuration_is_left_alone():
    source = encoder_config()
    config = RetroMAEConfig(encoder_config=source)
    config.vocab_size = 120
    assert source.vocab_size == 99 and config.encoder_config.vocab_size == 120


@pytest.mark.parametrize("model_type", ["roberta", "mpnet"])
def test_full_length_fits_and_one_more_is_an_error_that_says_so(model_type):
    model = RetroMAEForPreTraining(retromae_config(model_type)).eval()
    assert model.config.max_position_embeddings == 64
    assert torch.isfinite(model(**toy_batch(lengths=(64, 3), pad_token_id=1)).loss)
    with pytest.raises(ValueError, match="takes up to 64"):
        model(**toy_batch(lengths=(65, 3), pad_token_id=1))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_loss_and_gradients_are_finite_whatever_is_masked(dtype):
    torch.manual_seed(0)
    batch = toy_batch(lengths=(60, 3), bag=True)
    nothing_labelled = {"labels": torch.full_like(batch["labels"], -100)}
    nothing_visible = {"decoder_attention_mask": torch.zeros_like(batch["decoder_attention_mask"])}
    nothing_decoded = {"decoder_labels": torch.full_like(batch["decoder_labels"], -100)}
    for changes in ({}, nothing_labelled, nothing_visible, nothing_decoded):
        for rate in (1.0, 0.4):
            model = RetroMAEForPreTraining(retromae_config(bow_loss_weight=0.1, decoder_prediction_rate=rate)).train()
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                loss = model(**{**batch, **changes}).loss
            loss.backward()
            assert torch.isfinite(loss)
            assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_a_short_text_has_its_own_loss_beside_a_long_one():
    torch.manual_seed(0)
    model = RetroMAEForPreTraining(retromae_config()).eval()
    both = toy_batch(lengths=(60, 3))
    alone = {name: value[1:, :3] for name, value in both.items()}
    alone["decoder_attention_mask"] = both["decoder_attention_mask"][1:, :3, :3]
    only = {name: both[name].clone() for name in both}
    only["labels"][0], only["decoder_labels"][0] = -100, -100
    torch.testing.assert_close(model(**only).loss, model(**alone).loss, atol=1e-4, rtol=0)


def test_autocast_stays_near_fp32():
    torch.manual_seed(0)
    model = RetroMAEForPreTraining(retromae_config(bow_loss_weight=0.1))
    batch = toy_batch(bag=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(**batch).loss
    assert half.item() == pytest.approx(model(**batch).loss.item(), rel=2e-2)


def test_activation_checkpointing_changes_no_gradient():
    torch.manual_seed(0)
    model = RetroMAEForPreTraining(retromae_config()).train()
    model(**toy_batch()).loss.backward()
    plain = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    assert model.decoder.layer.gradient_checkpointing
    calls = []
    hook = model.decoder.layer.intermediate["dense"].register_forward_hook(lambda *_: calls.append(1))
    model(**toy_batch()).loss.backward()
    hook.remove()
    assert len(calls) == 2  # computed again in the backward pass
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, plain[name], atol=1e-7, rtol=1e-5)


def test_the_first_token_is_found_behind_left_padding():
    model = RetroMAEModel(retromae_config("modernbert")).eval()
    ids = torch.tensor([[0, 0, 2, 20, 21, 3]])
    output = model(ids, (ids != 0).long())
    assert torch.equal(output.pooler_output[0], output.last_hidden_state[0, 2])


@pytest.mark.parametrize("model_type", NINE)
def test_buffers_are_right_after_loading(model_type, tmp_path):
    model = RetroMAEForPreTraining(retromae_config(model_type))
    model.save_pretrained(tmp_path)
    fresh = dict(model.named_buffers())
    for _ in range(3):
        junk = [torch.full((64,), 7) for _ in range(100)]
        for name, value in RetroMAEForPreTraining.from_pretrained(tmp_path).named_buffers():
            assert torch.equal(value, fresh[name]), name
        del junk


def test_a_saved_folder_holds_safetensors_and_every_file_of_code(tmp_path):
    RetroMAEForPreTraining(retromae_config()).save_pretrained(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [
        "config.json",
        "configuration_retromae.py",
        "linear_cross_entropy.py",
        "model.safetensors",
        "modeling_retromae.py",
    ]
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert set(auto_map) == {"AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoModelForPreTraining"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_cuda_gives_the_losses_of_the_cpu(dtype):
    torch.manual_seed(0)
    model = RetroMAEForPreTraining(retromae_config(bow_loss_weight=0.1)).eval()
    batch = toy_batch(bag=True)
    expected = model(**batch).loss.item()
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
        loss = model.cuda()(**{name: value.cuda() for name, value in batch.items()}).loss.item()
    assert loss == pytest.approx(expected, rel=2e-2 if dtype else 1e-4)
