"""GUR from a plain backbone and back to one; saved, loaded by every class, resized, continued."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from toy_models import T5_KINDS, gur_batch, gur_config, toy_t5
from transformers import AutoModel, AutoModelForSeq2SeqLM, GPT2Config, GPT2LMHeadModel, T5EncoderModel

from modeling_gur import GURForConditionalGeneration, GURForPreTraining, GURForSequenceClassification, GURModel

CLASSES = (GURModel, GURForPreTraining, GURForConditionalGeneration, GURForSequenceClassification)


def logits_of(model, batch=None):
    return model.eval()(**(batch or gur_batch())).logits


def seen(batch):
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


# --- From a backbone and back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", T5_KINDS)
def test_a_backbone_writes_and_learns_as_before_and_is_exported_again(kind, tmp_path):
    source, untied = toy_t5(kind), T5_KINDS[kind]["untied"]
    source.generation_config.max_new_tokens = 7  # what else the source is set to do
    source.save_pretrained(tmp_path / "source")
    source = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "source").eval()
    batch = gur_batch()
    expected = logits_of(source)

    writer = GURForConditionalGeneration.from_backbone(tmp_path / "source").eval()
    torch.testing.assert_close(logits_of(writer), expected, atol=1e-6, rtol=0)
    for options in ({}, {"num_beams": 4, "length_penalty": 0.6}, {"use_cache": False}):
        written = writer.generate(**seen(batch), **options)
        assert torch.equal(written, source.generate(**seen(batch), **options)) and written.shape[1] <= 8
    assert (writer.lm_head.weight is writer.shared.weight) is not untied

    model = GURForPreTraining.from_backbone(tmp_path / "source", lm_loss_weight=0.5).eval()
    head = ", LM head loaded" if untied else ""
    assert model.loading_report == f"encoder 100 %, decoder loaded{head}, projection initialised"
    output = model(**batch)
    torch.testing.assert_close(output.lm_loss, source(**batch).loss, atol=1e-6, rtol=0)
    states = source.encoder(**seen(batch)).last_hidden_state
    torch.testing.assert_close(output.encoder_last_hidden_state, states, atol=1e-6, rtol=0)

    model.export_backbone(tmp_path / "plain")
    plain, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "plain", output_loading_info=True)
    assert type(plain) is type(source) and not info["missing_keys"] and not info["unexpected_keys"]
    torch.testing.assert_close(logits_of(plain), expected, atol=1e-6, rtol=0)
    fields = json.loads((tmp_path / "plain/config.json").read_text())
    assert not {"auto_map", "projection_dim", "pooling", "backbone_type", "lm_loss_weight"} & fields.keys()
    # transformers 4 ties and scales by this field alone.
    assert fields["tie_word_embeddings"] is (not untied or model.config.scale_decoder_outputs)
    assert sorted(os.listdir(tmp_path / "plain")) == ["config.json", "generation_config.json", "model.safetensors"]


def test_what_training_changed_is_what_is_exported(tmp_path):
    toy_t5("t5_v1_1").save_pretrained(tmp_path / "source")
    model = GURForPreTraining.from_backbone(tmp_path / "source").train()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model(**gur_batch()).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    optimizer.step()
    model.export_backbone(tmp_path / "plain")
    weights = load_file(tmp_path / "plain/model.safetensors")
    ours = {name: value for name, value in model.named_parameters() if not name.startswith("projection.")}
    assert weights.keys() == ours.keys()
    for name, value in ours.items():
        assert torch.equal(weights[name], value) and not torch.equal(value, before[name]), name


@pytest.mark.parametrize("untied", [True, False])
def test_files_of_transformers_4_are_read_as_they_were_meant(untied, tmp_path):
    source = toy_t5("t5_v1_1" if untied else "t5")
    source.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    del fields["scale_decoder_outputs"]
    (tmp_path / "config.json").write_text(json.dumps({**fields, "tie_word_embeddings": not untied}))
    model = GURForConditionalGeneration.from_backbone(tmp_path)
    assert model.config.scale_decoder_outputs is model.config.tie_word_embeddings is not untied
    torch.testing.assert_close(logits_of(model), logits_of(source), atol=1e-6, rtol=0)


def test_weights_in_a_bin_file_are_loaded_on_request_only(tmp_path):
    source = toy_t5()
    source.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(source.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"weights in a pickle .pytorch_model.bin., which can run code"):
        GURForConditionalGeneration.from_backbone(tmp_path)
    model = GURForConditionalGeneration.from_backbone(tmp_path, use_safetensors=False)
    assert model.loading_report == "encoder 100 %, decoder loaded, projection initialised"
    assert torch.equal(logits_of(model), logits_of(source))


def test_an_encoder_alone_is_a_backbone_whose_decoder_is_new(tmp_path):
    source = T5EncoderModel(toy_t5().config).eval()
    source.save_pretrained(tmp_path)
    model = GURForPreTraining.from_backbone(tmp_path).eval()
    assert model.loading_report == "encoder 100 %, decoder initialised, projection initialised"
    assert GURModel.from_backbone(tmp_path).loading_report == "encoder 100 %, projection initialised"
    ids = gur_batch()["input_ids"]
    torch.testing.assert_close(model.base_model(ids).last_hidden_state, source(ids).last_hidden_state)


def test_options_change_the_configuration_and_not_what_is_loaded(tmp_path):
    toy_t5().save_pretrained(tmp_path)
    options = {"dropout_rate": 0.2, "projection_dim": 8, "pooling": "weighted_mean", "num_decoder_layers": 1}
    model = GURForPreTraining.from_backbone(tmp_path, **options, attn_implementation="eager", dtype=torch.bfloat16)
    assert {name: getattr(model.config, name) for name in options} == options
    assert model.encoder.dropout.p == 0.2 and len(model.decoder.block) == 1
    assert model.loading_report == "encoder 100 %, decoder loaded, projection initialised, token weights initialised"
    assert model.encoder.config._attn_implementation == "eager" and model.dtype == torch.bfloat16
    classifier = GURForSequenceClassification.from_backbone(tmp_path, num_labels=5)
    assert classifier.loading_report == "encoder 100 %, projection initialised, classifier initialised"
    assert classifier(**seen(gur_batch())).logits.shape == (6, 5)
    untied = GURForPreTraining.from_backbone(tmp_path, tie_word_embeddings=False)
    assert untied.lm_head.weight is not untied.shared.weight and torch.equal(
        untied.lm_head.weight, untied.shared.weight
    )


def test_half_precision_weights_are_trained_in_fp32(tmp_path):
    toy_t5().half().save_pretrained(tmp_path)
    model = GURForPreTraining.from_backbone(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    model.export_backbone(tmp_path / "plain", dtype=torch.bfloat16)
    assert {value.dtype for value in load_file(tmp_path / "plain/model.safetensors").values()} == {torch.bfloat16}


def test_a_backbone_that_cannot_be_used_is_refused_in_a_sentence(tmp_path):
    GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=10)).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ValueError, match="of type 'gpt2'; supported types: t5, mt5, umt5"):
        GURForPreTraining.from_backbone(tmp_path / "gpt2")
    toy_t5().save_pretrained(tmp_path / "t5")
    with pytest.raises(ValueError, match="`poolin` is not a field of GURConfig"):
        GURForPreTraining.from_backbone(tmp_path / "t5", poolin="mean")
    with pytest.raises(ValueError, match="`pooling` is one of"):
        GURForPreTraining.from_backbone(tmp_path / "t5", pooling="cls")
    weights = {f"other.{name}": value for name, value in load_file(tmp_path / "t5/model.safetensors").items()}
    save_file(weights, tmp_path / "t5/model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="Not one weight of the encoder"):
        GURForPreTraining.from_backbone(tmp_path / "t5")


@pytest.mark.parametrize("tied", [True, False])
def test_our_own_checkpoint_continues_whole(tied, tmp_path):
    torch.manual_seed(0)
    config = gur_config(tie_word_embeddings=tied, pooling="weighted_mean", learnable_temperature=True)
    model = GURForPreTraining(config).eval()
    model.set_token_weights(torch.rand(99))
    with torch.no_grad():
        model.logit_scale.add_(0.5)
    model.save_pretrained(tmp_path)
    again = GURForPreTraining.from_backbone(tmp_path, dropout_rate=0.2).eval()
    head = "" if tied else "LM head loaded, "
    parts = f"decoder loaded, {head}projection loaded, token weights loaded, temperature loaded"
    assert again.loading_report == f"encoder 100 %, {parts}"
    assert again.config.dropout_rate == 0.2 and torch.equal(again(**gur_batch()).loss, model(**gur_batch()).loss)
    with pytest.raises(ValueError, match="`lm_loss_weight` is 0"):
        GURForPreTraining.from_backbone(tmp_path, lm_loss_weight=-1.0)


# --- Saved and loaded ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("saved_by", CLASSES)
def test_every_class_loads_what_any_other_wrote(saved_by, tied, tmp_path):
    torch.manual_seed(0)
    model = saved_by(gur_config(tie_word_embeddings=tied, backbone_type="umt5", feed_forward_proj="gated-gelu")).eval()
    model.save_pretrained(tmp_path)
    ours = model.state_dict()
    for cls in CLASSES:
        loaded, info = cls.from_pretrained(tmp_path, output_loading_info=True)
        tied_names = loaded.get_expanded_tied_weights_keys().keys()
        absent = loaded.state_dict().keys() - ours.keys() - tied_names
        assert set(info["missing_keys"]) == absent and {name.split(".")[0] for name in absent} <= {
            "decoder",
            "lm_head",
            "classifier",
        }
        kept_by_both = [name for name in loaded.state_dict() if name in ours]
        assert all(torch.equal(loaded.state_dict()[name], ours[name]) for name in kept_by_both)
        assert loaded.encoder.embed_tokens.weight is loaded.shared.weight
        if hasattr(loaded, "decoder"):
            assert loaded.decoder.embed_tokens.weight is loaded.shared.weight
            assert (loaded.lm_head.weight is loaded.shared.weight) is tied
        vectors = loaded.eval().base_model(**seen(gur_batch())).pooler_output
        assert torch.equal(vectors, model.base_model(**seen(gur_batch())).pooler_output)


def test_nothing_unexpected_is_reported_for_a_pre_training_checkpoint(tmp_path):
    GURForPreTraining(gur_config(tie_word_embeddings=False)).save_pretrained(tmp_path)
    for cls in CLASSES:
        _, info = cls.from_pretrained(tmp_path, output_loading_info=True)
        assert not info["unexpected_keys"], cls


def test_weights_are_stored_once_under_the_names_of_t5(tmp_path):
    model = GURForPreTraining(gur_config(pooling="weighted_mean", learnable_temperature=True))
    model.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert {name.split(".")[0] for name in names} == {
        "shared",
        "encoder",
        "decoder",
        "projection",
        "token_weights",
        "logit_scale",
    }
    assert {"projection.wi.weight", "projection.wo.weight", "projection.layer_norm.weight"} <= names
    assert not {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"} & names
    # What `Trainer` compares when it loads a checkpoint into a model that exists.
    result = model.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
    assert set(result.missing_keys) == set(model._keys_to_ignore_on_save)
    assert sorted(os.listdir(tmp_path)) == [
        "config.json",
        "configuration_gur.py",
        "linear_cross_entropy.py",
        "model.safetensors",
        "modeling_gur.py",
    ]


def test_text_is_the_same_after_training_saving_and_loading(tmp_path):
    torch.manual_seed(0)
    model = GURForPreTraining(gur_config(tie_word_embeddings=False)).eval()
    model.save_pretrained(tmp_path / "trained")
    writer = GURForConditionalGeneration.from_pretrained(tmp_path / "trained").eval()
    torch.testing.assert_close(writer(**gur_batch()).loss, model(**gur_batch()).lm_loss)
    writer.save_pretrained(tmp_path / "again")
    again = GURForConditionalGeneration.from_pretrained(tmp_path / "again").eval()
    options = {**seen(gur_batch()), "num_beams": 4, "max_new_tokens": 8}
    assert torch.equal(writer.generate(**options), again.generate(**options))
    whole = GURForPreTraining.from_pretrained(tmp_path / "again").eval()
    assert torch.equal(whole(**gur_batch()).loss, model(**gur_batch()).loss)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("size", [120, 90])
def test_resizing_leaves_the_head_tied_or_not(tied, size, tmp_path):
    torch.manual_seed(0)
    model = GURForPreTraining(gur_config(tie_word_embeddings=tied, pooling="weighted_mean"))
    model.set_token_weights(torch.arange(1.0, 100.0))
    head, weights = model.lm_head.weight.detach().clone(), model.token_weights.weight.detach().clone()
    model.resize_token_embeddings(size, mean_resizing=False)
    assert (model.lm_head.weight is model.shared.weight) is tied
    assert model.encoder.embed_tokens is model.decoder.embed_tokens is model.shared
    kept = min(size, 99)
    assert torch.equal(model.lm_head.weight[:kept], head[:kept])
    assert torch.equal(model.token_weights.weight[:kept], weights[:kept])
    assert torch.allclose(model.token_weights.weight[kept:], weights.mean())
    assert {size} == {len(table.weight) for table in (model.lm_head, model.shared, model.token_weights)}
    assert model.config.vocab_size == model.encoder.config.vocab_size == size
    batch = gur_batch()
    batch["input_ids"].clamp_(max=size - 1), batch["labels"].clamp_(max=size - 1)
    model.eval()(**batch).loss.backward()
    model.save_pretrained(tmp_path)
    loaded = GURForPreTraining.from_pretrained(tmp_path).eval()
    assert (loaded.lm_head.weight is loaded.shared.weight) is tied
    assert torch.equal(loaded(**batch).loss, model(**batch).loss)


def test_weights_start_as_in_t5_wherever_they_are_made(tmp_path):
    torch.manual_seed(0)
    config = gur_config(tie_word_embeddings=False, pooling="weighted_mean", learnable_temperature=True, num_labels=64)
    GURModel(config).save_pretrained(tmp_path)
    made = [GURForPreTraining(config), GURForPreTraining.from_pretrained(tmp_path)]  # its decoder is not in the file
    for model in made:
        layer = model.decoder.block[1]
        expected = {
            model.shared.weight: 1.0,
            model.lm_head.weight: 32**-0.5,
            model.projection.wi.weight: 32**-0.5,
            model.projection.wo.weight: 32**-0.5,
            layer.layer[0].SelfAttention.q.weight: (32 * 8) ** -0.5,
            layer.layer[1].EncDecAttention.v.weight: 32**-0.5,
            layer.layer[2].DenseReluDense.wi.weight: 32**-0.5,
            layer.layer[2].DenseReluDense.wo.weight: 48**-0.5,
        }
        for weight, deviation in expected.items():
            assert weight.std().item() == pytest.approx(deviation, rel=0.15)
        assert (model.token_weights.weight == 0.0).all() and (model.projection.layer_norm.weight == 1.0).all()
        assert model.temperature.item() == pytest.approx(0.1)
    classifier = GURForSequenceClassification.from_pretrained(tmp_path, num_labels=64)
    assert classifier.classifier.weight.std().item() == pytest.approx(16**-0.5, rel=0.15)
    assert (classifier.classifier.bias == 0.0).all()


@pytest.mark.parametrize("cls", CLASSES)
def test_the_base_model_is_a_view_of_encoder_and_projection(cls):
    torch.manual_seed(0)
    model = cls(gur_config(pooling="weighted_mean")).eval()
    base = model.base_model
    assert isinstance(base, GURModel) and base.encoder is model.encoder and base.base_model is base
    expected = GURModel(model.config)
    assert base.state_dict().keys() == expected.state_dict().keys()
    assert base.num_parameters() == expected.num_parameters()
    assert base.config is model.config and not hasattr(base, "decoder")
    model.train()
    assert model.base_model.training and model.base_model.encoder.training
    if hasattr(model, "decoder"):
        assert model.get_decoder() is model.decoder
    assert model.get_encoder() is model.encoder and model.get_input_embeddings() is model.shared


def test_the_stacks_have_configurations_of_their_own():
    config = gur_config()
    model = GURForPreTraining(config)
    assert config.use_cache and not config.is_decoder and config.num_layers == 2
    assert model.decoder.config.is_decoder and model.decoder.config is not model.encoder.config is not model.config


def test_auto_classes_know_the_models_once_the_package_is_imported(tmp_path):
    import retrieval_pretraining  # noqa: F401

    GURForPreTraining(gur_config()).save_pretrained(tmp_path)
    assert type(AutoModel.from_pretrained(tmp_path)) is GURModel
    assert type(AutoModelForSeq2SeqLM.from_pretrained(tmp_path)) is GURForConditionalGeneration
