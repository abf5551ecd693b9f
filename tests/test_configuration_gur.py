"""The configuration: T5's names, ranges in whole sentences, and nothing lost on the way to a file and back."""

import json

import pytest
from toy_models import T5_KINDS, gur_config, toy_t5
from transformers import GPT2Config, T5Config

from configuration_gur import AUTO_MAP, GURConfig


def test_it_has_the_names_of_t5_without_being_one():
    config = gur_config()
    assert not isinstance(config, T5Config)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads, config.head_dim) == (32, 2, 4, 8)
    assert set(T5Config().to_dict()) - set(config.to_dict()) == {"dense_act_fn", "is_gated_act"}


def test_defaults_are_those_of_the_paper():
    config = GURConfig()
    assert (config.projection_dim, config.pooling, config.contrastive_temperature) == (128, "eos", 0.1)
    assert (config.contrastive_loss_weight, config.lm_loss_weight, config.learnable_temperature) == (1.0, 1.0, False)
    assert config.projection_hidden_dim == config.d_model and config.num_decoder_layers == config.num_layers


@pytest.mark.parametrize(
    "feed_forward_proj, gated, activation",
    [("relu", False, "relu"), ("gated-gelu", True, "gelu_new"), ("gated-silu", True, "silu"), ("gelu", False, "gelu")],
)
def test_the_activation_follows_from_its_name_as_in_t5(feed_forward_proj, gated, activation):
    config, theirs = gur_config(feed_forward_proj=feed_forward_proj), T5Config(feed_forward_proj=feed_forward_proj)
    assert (config.is_gated_act, config.dense_act_fn) == (gated, activation)
    assert (theirs.is_gated_act, theirs.dense_act_fn) == (gated, activation)


def test_the_fields_of_a_t5_file_are_taken_as_they_are():
    fields = T5Config(d_model=64, feed_forward_proj="gated-gelu").to_dict()
    config = GURConfig(**{name: value for name, value in fields.items() if name != "model_type"})
    assert config.d_model == 64 and config.is_gated_act and config.dense_act_fn == "gelu_new"
    config.feed_forward_proj = "relu"
    assert not config.is_gated_act and config.dense_act_fn == "relu"


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"backbone_type": "bart"}, "`backbone_type` is one of t5, mt5, umt5, not 'bart'"),
        ({"pooling": "cls"}, "`pooling` is one of eos, mean, first, weighted_mean, not 'cls'"),
        ({"pooling": "weighted_mean", "repeated_token_power": 1.5}, "`repeated_token_power` is between 0 and 1"),
        ({"repeated_token_power": 0.5}, '`repeated_token_power` belongs to `pooling` "weighted_mean"'),
        ({"projection_dim": 0}, "`projection_dim` is 1 or more"),
        ({"num_heads": 0}, "`num_heads` is 1 or more"),
        ({"dropout_rate": 1.0}, "`dropout_rate` is at least 0 and below 1"),
        ({"feed_forward_proj": "gated-silu-gelu"}, "`feed_forward_proj` is an activation"),
        ({"contrastive_temperature": 0.0}, "`contrastive_temperature` is above 0"),
        ({"contrastive_temperature": 0.001, "learnable_temperature": True}, "0.01 or more if it is learned"),
        ({"contrastive_loss_weight": -1.0}, "`contrastive_loss_weight` is 0 .* or more"),
        ({"lm_loss_weight": -1.0}, "`lm_loss_weight` is 0 .* or more"),
        ({"lm_loss_weight": 0.0, "contrastive_loss_weight": 0.0}, "both 0"),
        ({"backbone_type": "mt5", "scale_decoder_outputs": True}, "`scale_decoder_outputs` is False with"),
    ],
)
def test_a_field_out_of_range_is_refused_in_a_sentence(changes, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        gur_config(**changes)
    config = gur_config()
    for name, value in changes.items():
        setattr(config, name, value)
    with pytest.raises(ValueError, match=said):
        config.save_pretrained(tmp_path)


@pytest.mark.parametrize("kind", T5_KINDS)
def test_a_backbone_comes_back_as_it_was(kind):
    theirs = toy_t5(kind).config
    config = GURConfig.from_backbone_config(theirs)
    assert config.backbone_type == theirs.model_type
    back = config.to_backbone_config()
    assert type(back) is type(theirs)
    different = {name for name, value in theirs.to_dict().items() if back.to_dict().get(name) != value}
    assert different <= {"dtype", "architectures"}


def test_a_backbone_of_another_family_is_refused():
    with pytest.raises(ValueError, match="of type 'gpt2'; supported types: t5, mt5, umt5"):
        GURConfig.from_backbone_config(GPT2Config())


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}, {"eos_token_id": [1, 2]}, {"num_labels": 5}])
def test_a_file_gives_the_same_configuration(changes, tmp_path):
    config = gur_config(**changes)
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["auto_map"] == AUTO_MAP and saved["model_type"] == "gur"
    again = GURConfig.from_pretrained(tmp_path)
    again.auto_map = config.auto_map
    assert {**again.to_dict(), "_name_or_path": ""} == config.to_dict()


def test_a_plain_checkpoint_is_not_taken_for_one_of_ours(tmp_path):
    toy_t5().config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="from_backbone"):
        GURConfig.from_pretrained(tmp_path)
