"""GUR for tools that run no code of ours: its head as layers of sentence-transformers, and the plain T5 inside.

The head is `RMSNorm(u + u)` with `u = wo(act(wi(pooled)))`, and its vector gets length 1. The root mean square and the
2 are numbers of one text, which the length of 1 takes away again, so that the vector is that of `g * u`, where `g` is
the weight of the norm, a diagonal matrix before `wo`. Two dense layers are therefore the whole head:

    T5EncoderModel -> (WordWeights) -> Pooling -> Dense(wi, act) -> Dense(g * wo) -> Normalize

A gated head, `act(wi_0(x)) * wi_1(x)`, has no such form.
"""

from pathlib import Path

import torch
from transformers import AutoModelForTextEncoding

from modeling_gur import GURModel
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.extras import import_extra, sentence_transformers_part

_POOLINGS = {
    "eos": "lasttoken",
    "first": "cls",
    "mean": "mean",
    "weighted_mean": "mean",
}  # ours: sentence-transformers'


def why_no_plain_layers(model: GURModel, tokenizer) -> str | None:
    """Why the sentence vector cannot be made without code of ours; None if it can."""
    if model.config.is_gated_act:
        return f"its head is gated ({model.config.feed_forward_proj}), which no layer of sentence-transformers is"
    if model.config.repeated_token_power != 1.0:
        return (
            f"a repeated token counts less (repeated_token_power {model.config.repeated_token_power}), which no layer "
            "of sentence-transformers does"
        )
    if model.config.pooling == "eos" and not _ends_with_eos(model, tokenizer):
        return "it pools at </s>, which the tokenizer does not put at the end of a text"
    if model.config.pooling in ("eos", "first") and tokenizer.padding_side != "right":
        return "its tokenizer pads on the left"
    return None


def _ends_with_eos(model: GURModel, tokenizer) -> bool:
    """Also of a text that was cut."""
    last = tokenizer(["a", "a b c d e f g h"], truncation=True, max_length=4)["input_ids"]
    return all(ids[-1] == model.config.eos_token_id for ids in last)


def write_plain_layers(model: GURModel, tokenizer, folder: str | Path, *, max_seq_length: int):
    """Writes a folder that `SentenceTransformer(folder)` loads without `trust_remote_code`.

    Raises `InputError` for a model whose head has no such form, and where sentence-transformers is not installed.
    """
    reason = why_no_plain_layers(model, tokenizer)
    if reason is not None:
        raise InputError(f"This GUR model cannot be written without code of its own: {reason}.")
    sentence_transformers = import_extra("sentence_transformers", "sentence-transformers")
    modules = sentence_transformers_part("modules")
    folder = Path(folder)
    config = model.config
    encoder = AutoModelForTextEncoding.from_config(config.to_backbone_config()).to(model.dtype)
    # `shared` and the embeddings of the stack are one.
    weights = {f"encoder.{name}": value for name, value in model.encoder.state_dict().items()}
    encoder.load_state_dict({"shared.weight": model.shared.weight, **weights})
    encoder.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    head = model.projection
    sizes = config.d_model, config.projection_hidden_dim, config.projection_dim
    inner = modules.Dense(*sizes[:2], bias=False, activation_function=_torch_activation(config.dense_act_fn))
    outer = modules.Dense(*sizes[1:], bias=False, activation_function=torch.nn.Identity())
    with torch.no_grad():
        inner.linear.weight.copy_(head.wi.weight)
        outer.linear.weight.copy_(head.layer_norm.weight[:, None] * head.wo.weight)
    layers = [modules.Transformer(str(folder), max_seq_length=max_seq_length)]
    if config.pooling == "weighted_mean":
        layers.append(_word_weights(model, tokenizer, modules))
    layers += [modules.Pooling(config.d_model, _POOLINGS[config.pooling]), inner, outer, modules.Normalize()]
    sentence_transformers.SentenceTransformer(
        modules=layers, device="cpu", prompts={"query": "", "document": ""}, similarity_fn_name="cosine"
    ).save(str(folder), create_model_card=False)


def _word_weights(model: GURModel, tokenizer, modules):
    # One name for each row of the table; a row that no token has is never looked up.
    vocabulary = [f"unused {number}" for number in range(model.config.vocab_size)]
    for token, number in tokenizer.get_vocab().items():
        vocabulary[number] = token
    weights = model.token_weights.weight.detach()[:, 0].float().exp().tolist()
    return modules.WordWeights(vocabulary, dict(zip(vocabulary, weights, strict=True)))


def _torch_activation(name: str) -> torch.nn.Module:
    """A class of torch, which is all that sentence-transformers makes from a name without `trust_remote_code`."""
    known = {"relu": torch.nn.ReLU, "gelu": torch.nn.GELU, "silu": torch.nn.SiLU, "swish": torch.nn.SiLU}
    known |= {"tanh": torch.nn.Tanh, "sigmoid": torch.nn.Sigmoid}
    if name not in known:
        raise InputError(f"This GUR model cannot be written without code of its own: torch has no activation {name}.")
    return known[name]()
