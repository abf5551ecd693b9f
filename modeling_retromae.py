"""RetroMAE and DupMAE for any supported encoder.

RetroMAE (arXiv 2205.12035): the encoder reads a moderately masked text and its first state, `[CLS]`, is the sentence
vector; a one-layer decoder must rebuild the text from that vector and a heavily masked view of it. DupMAE (arXiv
2211.08769) adds a second job for the other states: their pooled MLM logits must predict the text's bag of words.

This file travels to the Hub beside `configuration_retromae.py` and `linear_cross_entropy.py`: it imports torch,
transformers, its siblings and the standard library only.

Shapes: B texts, L positions, H hidden size, E embedding size, V vocabulary, R decoder rows, N labelled positions.
"""

import copy
import json
import math
import os
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling, MaskedLMOutput
from transformers.utils import ModelOutput, logging

try:
    from .configuration_retromae import RetroMAEConfig
    from .linear_cross_entropy import compute_dtype, linear_cross_entropy, rows_at_a_time
except ImportError:  # a top-level module of a checkout or of an installed package
    from configuration_retromae import RetroMAEConfig
    from linear_cross_entropy import compute_dtype, linear_cross_entropy, rows_at_a_time


logger = logging.get_logger(__name__)

IGNORED = -100


class Backbone(NamedTuple):
    """Where a `...ForMaskedLM` keeps what pre-training needs. One row of `BACKBONES` is all that a backbone takes."""

    dense: str
    layer_norm: str
    bias: str
    activation: str = "gelu"  # a field of the configuration if it has one of that name, else the activation itself
    embedding_projection: str | None = None  # in the encoder, from embedding size to hidden size
    has_pooler: bool = False


_ROBERTA = Backbone("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", has_pooler=True)
_BERT_HEAD = ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias")

BACKBONES = {
    "bert": Backbone(*_BERT_HEAD, activation="hidden_act", has_pooler=True),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": Backbone("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", activation="activation"),
    "electra": Backbone(
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head.bias",
        embedding_projection="embeddings_project",
    ),
    "albert": Backbone(
        "predictions.dense",
        "predictions.LayerNorm",
        "predictions.bias",
        activation="hidden_act",
        embedding_projection="encoder.embedding_hidden_mapping_in",
        has_pooler=True,
    ),
    "deberta-v2": Backbone(*_BERT_HEAD, activation="hidden_act"),  # DeBERTa-v3 is of this type
    "mpnet": _ROBERTA,
    "modernbert": Backbone("head.dense", "head.norm", "decoder.bias", activation="classifier_activation"),
}


def backbone_of(encoder_config: PretrainedConfig) -> Backbone:
    """The row of `BACKBONES` for a configuration; a `ValueError` lists what is supported."""
    if encoder_config.model_type not in BACKBONES:
        raise ValueError(
            f"RetroMAE cannot use a backbone of type {encoder_config.model_type!r}; "
            f"supported types: {', '.join(BACKBONES)}."
        )
    row = BACKBONES[encoder_config.model_type]
    if encoder_config.model_type == "deberta-v2" and not getattr(encoder_config, "legacy", True):
        head = "lm_predictions.lm_head"
        row = row._replace(dense=f"{head}.dense", layer_norm=f"{head}.LayerNorm", bias=f"{head}.bias")
    return row


def _first_of(config, *names, default=None):
    return next((getattr(config, name) for name in names if getattr(config, name, None) is not None), default)


@dataclass
class RetroMAEOutput(ModelOutput):
    """What pre-training returns.

    Args:
        loss (`torch.FloatTensor` of shape `()`): the sum of the named losses, each with its weight.
        encoder_mlm_loss, decoder_mlm_loss (`torch.FloatTensor` of shape `()`): mean over labelled positions, in nats.
        bag_of_words_loss (`torch.FloatTensor` of shape `()`): mean over the texts, unweighted, in nats.
        encoder_mlm_accuracy, decoder_mlm_accuracy (`torch.FloatTensor` of shape `()`): share of labels ranked first.
        sentence_embedding (`torch.FloatTensor` of shape `[B, H]`): the first state of each text.
    """

    loss: torch.FloatTensor | None = None
    encoder_mlm_loss: torch.FloatTensor | None = None
    decoder_mlm_loss: torch.FloatTensor | None = None
    bag_of_words_loss: torch.FloatTensor | None = None
    encoder_mlm_accuracy: torch.FloatTensor | None = None
    decoder_mlm_accuracy: torch.FloatTensor | None = None
    sentence_embedding: torch.FloatTensor | None = None


# --- The bag of words ------------------------------------------------------------------------------------------------


class _MaxPooledLogits(torch.autograd.Function):
    """`max over positions of (hidden @ weight.T + bias)`, [B, V], a part of the vocabulary at a time.

    Only the winning position of each (text, token) is kept: the gradient of the maximum reaches no other.
    """

    @staticmethod
    def forward(ctx, hidden_BLE, weight_VE, bias_V, mask_BL):
        dtype = compute_dtype(hidden_BLE)
        hidden, weight = hidden_BLE.to(dtype), weight_VE.to(dtype)
        batch_size, length, _ = hidden.shape
        pooled = hidden.new_empty(batch_size, weight.shape[0], dtype=torch.float32)
        winner = torch.empty(batch_size, weight.shape[0], dtype=torch.int32, device=hidden.device)
        step = rows_at_a_time(batch_size * length, hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, weight.shape[0], step):
                tokens = slice(start, start + step)
                logits = F.linear(hidden, weight[tokens])
                logits.masked_fill_(~mask_BL[..., None], torch.finfo(dtype).min)
                values, positions = logits.max(1)
                pooled[:, tokens], winner[:, tokens] = values.float(), positions.int()
        if bias_V is not None:
            pooled += bias_V.float()
        ctx.save_for_backward(hidden_BLE, weight_VE, winner)
        ctx.has_bias = bias_V is not None
        return pooled

    @staticmethod
    def backward(ctx, grad_BV):
        hidden_BLE, weight_VE, winner_BV = ctx.saved_tensors
        batch_size, length, size = hidden_BLE.shape
        hidden = hidden_BLE.flatten(0, 1)
        grad_hidden, grad_weight = torch.zeros_like(hidden), torch.zeros_like(weight_VE)
        first_B1 = length * torch.arange(batch_size, device=hidden.device)[:, None]  # of each text, in `hidden`
        step = rows_at_a_time(batch_size * size, hidden.device)
        for start in range(0, weight_VE.shape[0], step):
            tokens = slice(start, start + step)
            rows = (winner_BV[:, tokens] + first_B1).flatten()
            grad = grad_BV[:, tokens, None]
            grad_hidden.index_add_(0, rows, (grad * weight_VE[tokens]).to(hidden.dtype).flatten(0, 1))
            grad_weight[tokens] = (grad * hidden[rows].unflatten(0, grad.shape[:2])).sum(0).to(weight_VE.dtype)
        return grad_hidden.view_as(hidden_BLE), grad_weight, grad_BV.sum(0) if ctx.has_bias else None, None


def bag_of_words_loss(
    hidden_BLE: torch.Tensor,
    weight_VE: torch.Tensor,
    bias_V: torch.Tensor | None,
    mask_BL: torch.Tensor,
    bag_of_words_BV: torch.Tensor,
) -> torch.Tensor:
    """DupMAE's second decoding job (arXiv 2211.08769, section 3.2), shape `()`, in nats.

    MLM logits are max-pooled over the positions where `mask_BL` is true; their log-softmax is scored against
    `bag_of_words_BV`, which holds 1/n for each distinct token of a text of n tokens. A bag narrower than the
    vocabulary (one padded to a round number) has no weight on the rest.
    """
    pooled_BV = _MaxPooledLogits.apply(hidden_BLE, weight_VE, bias_V, mask_BL)
    log_probabilities = pooled_BV.log_softmax(-1)[:, : bag_of_words_BV.shape[1]]
    return -(bag_of_words_BV.float() * log_probabilities).sum(-1).mean()


# --- Parts -----------------------------------------------------------------------------------------------------------


class RetroMAEMLMHead(nn.Module):
    """Dense, activation, layer norm, vocabulary: the MLM head of all supported backbones, under one set of names."""

    def __init__(self, config: RetroMAEConfig):
        super().__init__()
        encoder = config.encoder_config
        activation = backbone_of(encoder).activation
        embedding_size = _first_of(encoder, "embedding_size", "hidden_size")
        self.dense = nn.Linear(encoder.hidden_size, embedding_size, bias=getattr(encoder, "classifier_bias", True))
        self.activation = ACT2FN[getattr(encoder, activation, activation)]
        self.LayerNorm = nn.LayerNorm(
            embedding_size,
            eps=_first_of(encoder, "layer_norm_eps", "norm_eps", default=1e-12),
            bias=getattr(encoder, "norm_bias", True),
        )
        self.decoder = nn.Linear(embedding_size, encoder.vocab_size, bias=getattr(encoder, "decoder_bias", True))

    def transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.activation(self.dense(hidden_states)))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.transform(hidden_states))

    def loss(self, hidden_states_NH: torch.Tensor, labels_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean cross-entropy and accuracy at labelled positions, both of shape `()`."""
        return linear_cross_entropy(self.transform(hidden_states_NH), self.decoder.weight, self.decoder.bias, labels_N)


class RetroMAEDecoderLayer(GradientCheckpointingLayer):
    """One post-norm transformer layer whose queries and context differ; its parameters are named as BertLayer's."""

    def __init__(self, config: RetroMAEConfig):
        super().__init__()
        encoder = config.encoder_config
        size, inner_size = encoder.hidden_size, _first_of(encoder, "intermediate_size", "hidden_dim")
        eps = _first_of(encoder, "layer_norm_eps", "norm_eps", default=1e-12)
        self.num_heads = encoder.num_attention_heads

        def output(input_size):
            return nn.ModuleDict({"dense": nn.Linear(input_size, size), "LayerNorm": nn.LayerNorm(size, eps=eps)})

        projections = nn.ModuleDict({name: nn.Linear(size, size) for name in ("query", "key", "value")})
        self.attention = nn.ModuleDict({"self": projections, "output": output(size)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(size, inner_size)})
        self.output = output(inner_size)
        self.activation = ACT2FN[_first_of(encoder, "hidden_act", "activation", "hidden_activation", default="gelu")]
        self.dropout = nn.Dropout(_first_of(encoder, "hidden_dropout_prob", "dropout", "mlp_dropout", default=0.0))
        self.attention_dropout = _first_of(encoder, "attention_probs_dropout_prob", "attention_dropout", default=0.0)

    def forward(
        self,
        query_BRH: torch.Tensor,
        context_BLH: torch.Tensor,
        mask_B1RL: torch.Tensor,
        predicted_BR: torch.Tensor,
    ) -> torch.Tensor:
        """The layer's output at the predicted rows, `[N, H]`; `mask_B1RL` is true where a row sees a position."""

        def heads(states):
            return states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

        projections = self.attention["self"]
        attended = F.scaled_dot_product_attention(
            heads(projections["query"](query_BRH)),
            heads(projections["key"](context_BLH)),
            heads(projections["value"](context_BLH)),
            attn_mask=mask_B1RL,
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        # Rows are independent from here on: the rest runs on those that carry a label.
        attended_NH = attended.transpose(1, 2).flatten(2)[predicted_BR]

        def add_and_norm(output, inner, residual):
            return output["LayerNorm"](self.dropout(output["dense"](inner)) + residual)

        states_NH = add_and_norm(self.attention["output"], attended_NH, query_BRH[predicted_BR])
        inner = self.activation(self.intermediate["dense"](states_NH))
        return add_and_norm(self.output, inner, states_NH)


class RetroMAEDecoder(nn.Module):
    """The one-layer decoder, and a position table where the encoder has none (rotary and relative positions)."""

    def __init__(self, config: RetroMAEConfig, needs_positions: bool):
        super().__init__()
        self.layer = RetroMAEDecoderLayer(config)
        if needs_positions:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        else:
            self.position_embeddings = None


def _sinusoids(length: int, size: int) -> torch.Tensor:
    """Sines and cosines of the position (Vaswani et al. 2017, section 3.5), `[length, size]`."""
    position = torch.arange(length, dtype=torch.float32)[:, None]
    frequency = torch.exp(torch.arange(0, size, 2, dtype=torch.float32) * (-math.log(10000.0) / size))
    return torch.cat([torch.sin(position * frequency), torch.cos(position * frequency)], dim=1)[:, :size]


# --- Models ----------------------------------------------------------------------------------------------------------


class RetroMAEPreTrainedModel(PreTrainedModel):
    config_class = RetroMAEConfig
    base_model_prefix = "retromae"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False  # losses are means of this batch; the Trainer weighs them
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        # In custom code the library calls this only for modules that hold parameters themselves: not for the decoder.
        table = getattr(getattr(self, "decoder", None), "position_embeddings", None)
        if module is table and table is not None:
            # Sinusoids of the deviation that the other embeddings have.
            sinusoids = _sinusoids(*table.weight.shape)
            init.copy_(table.weight, sinusoids * math.sqrt(2.0) * self.config.initializer_range)

    def get_input_embeddings(self):
        return self.base_model.encoder.get_input_embeddings()

    def set_input_embeddings(self, value):
        self.base_model.encoder.set_input_embeddings(value)

    def get_output_embeddings(self):
        head = getattr(self, "mlm_head", None)
        return None if head is None else head.decoder

    def set_output_embeddings(self, new_embeddings):
        self.mlm_head.decoder = new_embeddings

    def _tie_vocabulary(self):
        """Declares that the MLM head's vocabulary matrix is the encoder's token embeddings, wherever they are."""
        encoder = self.base_model.encoder
        embeddings = encoder.get_input_embeddings()
        path = next(name for name, module in encoder.named_modules() if module is embeddings)
        self._tied_weights_keys = {"mlm_head.decoder.weight": f"retromae.encoder.{path}.weight"}
        if self.config.tie_word_embeddings:
            # Stored once, as the embeddings; the Trainer then does not call the second name missing.
            self._keys_to_ignore_on_save = ["mlm_head.decoder.weight"]

    @classmethod
    def from_backbone(cls, name_or_path: str | os.PathLike, **config_changes):
        """A model around an existing encoder, which keeps its weights and its MLM head.

        Args:
            name_or_path: a plain encoder or MLM checkpoint of a supported type, a sentence-transformers folder, or a
                checkpoint of this package (then the decoder is loaded as well).
            config_changes: fields of `RetroMAEConfig` or of the encoder's configuration (such as
                `hidden_dropout_prob`), and `revision`, `token`, `cache_dir`, `local_files_only`, `subfolder`,
                `attn_implementation`, `dtype` (default `torch.float32`) for loading; with `use_safetensors=False`
                weights in a pickle (pytorch_model.bin) are read too. Code that comes with a backbone never runs.

        Returns a model whose `loading_report` says what was loaded and what was initialised.

        Raises `ValueError` for an unsupported backbone, an unknown field, weights in a pickle, or when nothing could
        be loaded.
        """
        hub_names = ("revision", "token", "cache_dir", "local_files_only", "subfolder", "force_download")
        hub = {name: config_changes.pop(name) for name in hub_names if name in config_changes}
        model = {"dtype": config_changes.pop("dtype", torch.float32)}
        model["use_safetensors"] = config_changes.pop("use_safetensors", True)
        if "attn_implementation" in config_changes:
            model["attn_implementation"] = config_changes.pop("attn_implementation")
        name_or_path = os.fspath(name_or_path)
        folder = _transformer_folder(name_or_path)
        if model["use_safetensors"]:
            _refuse_pickle(os.path.join(folder, hub.get("subfolder", "")))

        # Read as a dict first: one of ours is loaded by this very file, and never asks for `trust_remote_code`.
        if PretrainedConfig.get_config_dict(folder, **hub)[0].get("model_type") == RetroMAEConfig.model_type:
            config = RetroMAEConfig.from_pretrained(folder, **hub)
            _change_config(config, config_changes)
            loaded, info = cls.from_pretrained(folder, config=config, output_loading_info=True, **hub, **model)
            missing = set(info["missing_keys"])
            parts = {
                "encoder": {name for name in loaded.state_dict() if name.startswith(("retromae.", "encoder."))},
                "MLM head": {name for name in loaded.state_dict() if name.startswith("mlm_head.")},
                "decoder": {name for name in loaded.state_dict() if name.startswith("decoder.")},
            }
            loaded.loading_report = _report(parts, missing, name_or_path)
            return loaded

        config = RetroMAEConfig(encoder_config=AutoConfig.from_pretrained(folder, trust_remote_code=False, **hub))
        row = backbone_of(config.encoder_config)
        _change_config(config, config_changes)
        source, info = AutoModelForMaskedLM.from_pretrained(
            folder,
            config=config.encoder_config,
            output_loading_info=True,
            trust_remote_code=False,
            **hub,
            **model,
        )
        result = cls(config).to(model["dtype"])
        encoder = result.base_model.encoder
        encoder.load_state_dict(source.base_model.state_dict())
        missing, prefix = set(info["missing_keys"]), source.base_model_prefix + "."
        parts = {"encoder": {name for name in source.state_dict() if name.startswith(prefix)}}
        if hasattr(result, "mlm_head"):
            for ours, theirs in _head_pairs(result.mlm_head, source, row):
                ours.data.copy_(theirs.data)
            parts["MLM head"] = {name for name in source.state_dict() if name.startswith((row.dense, row.layer_norm))}
        if hasattr(result, "decoder"):
            parts["decoder"] = {"decoder"}
            missing.add("decoder")
        result.loading_report = _report(parts, missing, name_or_path)
        return result


def _refuse_pickle(folder: str):
    """Raises `ValueError` for a local folder whose weights are in a pickle alone."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    pickles = [name for name in names if name.startswith("pytorch_model") and name.endswith(".bin")]
    if pickles and not any(name.endswith(".safetensors") for name in names):
        raise ValueError(
            f"{folder} has its weights in a pickle ({pickles[0]}), which can run code when it is read: load it where "
            "you trust it and save it with `save_pretrained`, or pass `use_safetensors=False`."
        )


def _transformer_folder(name_or_path: str) -> str:
    """Where the weights of a local sentence-transformers folder are; anything else is returned as it is."""
    listing = os.path.join(name_or_path, "modules.json")
    if os.path.isfile(listing):
        with open(listing, encoding="utf-8") as file:
            modules = json.load(file)
        return os.path.join(name_or_path, modules[0].get("path", "")) if modules else name_or_path
    return name_or_path


def _change_config(config: RetroMAEConfig, changes: dict):
    for name, value in changes.items():
        if name in RetroMAEConfig.__dataclass_fields__:
            setattr(config, name, value)
        elif hasattr(config.encoder_config, name):
            setattr(config.encoder_config, name, value)
        else:
            raise ValueError(
                f"`{name}` is a field neither of RetroMAEConfig nor of {type(config.encoder_config).__name__}."
            )
    config.check_ranges()


def _head_pairs(head: RetroMAEMLMHead, lm: PreTrainedModel, row: Backbone) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """The parameters of our MLM head, each with the backbone's own."""
    pairs = [
        (ours, lm.get_parameter(f"{theirs}.{name}"))
        for module, theirs in ((head.dense, row.dense), (head.LayerNorm, row.layer_norm))
        for name, ours in module.named_parameters()
    ]
    if head.decoder.bias is not None:
        pairs.append((head.decoder.bias, lm.get_parameter(row.bias)))
    if not head_is_tied(lm):
        pairs.append((head.decoder.weight, lm.get_output_embeddings().weight))
    return pairs


def head_is_tied(lm: PreTrainedModel) -> bool:
    """Whether the vocabulary matrix of a `...ForMaskedLM` is its token embeddings."""
    output, tokens = lm.get_output_embeddings(), lm.get_input_embeddings()
    # DeBERTa's newer head multiplies by the token embeddings itself and gives its transform as the output embeddings.
    return output is None or output.weight is tokens.weight or output.weight.shape != tokens.weight.shape


def _report(parts: dict[str, set[str]], missing: set[str], source: str) -> str:
    share = 1.0 - len(parts["encoder"] & missing) / max(1, len(parts["encoder"]))
    if share == 0.0:
        raise ValueError(
            f"Not one weight of the encoder was found in {source}; is it a checkpoint of this architecture?"
        )
    said = [f"encoder {100 * share:.4g} %"]
    for part, names in parts.items():
        if part != "encoder" and names:
            said.append(f"{part} {'initialised' if names & missing else 'loaded'}")
    report = ", ".join(said)
    log = logger.info if share == 1.0 else logger.warning
    log(f"{source}: {report}")
    return report


class RetroMAEModel(RetroMAEPreTrainedModel):
    """The encoder. `pooler_output` is the sentence vector, the state of the first token."""

    # A pre-training checkpoint holds more than this class wants.
    _keys_to_ignore_on_load_unexpected = [r"^decoder\.", r"^mlm_head\."]

    def __init__(self, config: RetroMAEConfig):
        super().__init__(config)
        row = backbone_of(config.encoder_config)
        self.encoder = AutoModel.from_config(
            config.encoder_config, **({"add_pooling_layer": False} if row.has_pooler else {})
        )
        self.post_init()

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutputWithPooling | tuple:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        if token_type_ids is not None and getattr(self.encoder.config, "type_vocab_size", 0) > 0:
            inputs["token_type_ids"] = token_type_ids
        length = (input_ids if input_ids is not None else inputs_embeds).shape[1]
        if length > self.config.max_position_embeddings:
            raise ValueError(
                f"A text of {length} tokens does not fit this encoder, which takes up to "
                f"{self.config.max_position_embeddings}: truncate or chunk it."
            )
        if output_attentions:
            inputs["output_attentions"] = True
        if output_hidden_states:
            inputs["output_hidden_states"] = True
        outputs = self.encoder(**inputs)
        states_BLH = outputs.last_hidden_state
        result = BaseModelOutputWithPooling(
            last_hidden_state=states_BLH,
            pooler_output=first_states(states_BLH, attention_mask),
            hidden_states=outputs.get("hidden_states"),
            attentions=outputs.get("attentions"),
        )
        return result.to_tuple() if return_dict is False else result


def first_states(states_BLH: torch.Tensor, attention_mask_BL: torch.Tensor | None) -> torch.Tensor:
    """The state of each text's first token, `[B, H]`, on whichever side the padding is."""
    if attention_mask_BL is None:
        return states_BLH[:, 0]
    first_B = attention_mask_BL.int().argmax(dim=1)
    return states_BLH.gather(1, first_B[:, None, None].expand(-1, 1, states_BLH.shape[2]))[:, 0]


class _WithMLMHead(RetroMAEPreTrainedModel):
    def __init__(self, config: RetroMAEConfig):
        super().__init__(config)
        self.retromae = RetroMAEModel(config)
        self.mlm_head = RetroMAEMLMHead(config)
        self._tie_vocabulary()

    def export_encoder(self, save_directory: str | os.PathLike, dtype: torch.dtype | None = None):
        """Writes encoder and MLM head as a plain checkpoint of the backbone's own class, without `auto_map`."""
        config = copy.deepcopy(self.config.encoder_config)
        plain = AutoModelForMaskedLM.from_config(config).to(dtype or self.dtype)
        plain.base_model.load_state_dict(self.retromae.encoder.state_dict())
        for ours, theirs in _head_pairs(self.mlm_head, plain, backbone_of(config)):
            theirs.data.copy_(ours.data)
        plain.save_pretrained(save_directory)


class RetroMAEForMaskedLM(_WithMLMHead):
    """The encoder with its MLM head: fill-mask, and plain MLM training (the control to compare with)."""

    _keys_to_ignore_on_load_unexpected = [r"^decoder\."]

    def __init__(self, config: RetroMAEConfig):
        super().__init__(config)
        self.post_init()

    @property
    def loss_weights(self) -> dict[str, float]:
        """`loss` is the sum of these losses with these weights."""
        return {"encoder_mlm_loss": 1.0}

    @staticmethod
    def loss_item_counts(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """How many items each named loss is the mean of, shape `()` each; needs no forward pass."""
        return {"encoder_mlm_loss": (inputs["labels"] != IGNORED).sum()}

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        labels: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        return_dict: bool | None = None,
    ) -> RetroMAEOutput | MaskedLMOutput | tuple:
        """With `labels` [B, L] (-100 is ignored): the loss, without vocabulary logits. Without: logits [B, L, V]."""
        outputs = self.retromae(input_ids, attention_mask, token_type_ids, inputs_embeds)
        if labels is None:
            result = MaskedLMOutput(logits=self.mlm_head(outputs.last_hidden_state))
        else:
            labelled = labels != IGNORED
            loss, accuracy = self.mlm_head.loss(outputs.last_hidden_state[labelled], labels[labelled])
            result = RetroMAEOutput(
                loss=loss,
                encoder_mlm_loss=loss,
                encoder_mlm_accuracy=accuracy,
                sentence_embedding=outputs.pooler_output,
            )
        return result.to_tuple() if return_dict is False else result


class RetroMAEForPreTraining(_WithMLMHead):
    """RetroMAE, and DupMAE where `config.bow_loss_weight` is above 0.

    Example:

    ```python
    >>> from modeling_retromae import RetroMAEForPreTraining
    >>> model = RetroMAEForPreTraining.from_backbone("google-bert/bert-base-uncased", decoder_query="embedding")
    >>> model.loading_report
    'encoder 100 %, MLM head loaded, decoder initialised'
    ```
    """

    def __init__(self, config: RetroMAEConfig):
        super().__init__(config)
        table = getattr(self.retromae.encoder.embeddings, "position_embeddings", None)
        self.decoder = RetroMAEDecoder(config, needs_positions=table is None)
        self.post_init()

    @property
    def loss_weights(self) -> dict[str, float]:
        """`loss` is the sum of these losses with these weights."""
        weights = {"encoder_mlm_loss": 1.0, "decoder_mlm_loss": 1.0}
        if self.config.bow_loss_weight > 0.0:
            weights["bag_of_words_loss"] = self.config.bow_loss_weight
        return weights

    @staticmethod
    def loss_item_counts(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """How many items each named loss is the mean of, shape `()` each; needs no forward pass."""
        counts = {
            "encoder_mlm_loss": (inputs["labels"] != IGNORED).sum(),
            "decoder_mlm_loss": (inputs["decoder_labels"] != IGNORED).sum(),
        }
        if inputs.get("bag_of_words") is not None:
            counts["bag_of_words_loss"] = torch.full((), len(inputs["labels"]), device=inputs["labels"].device)
        return counts

    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor,
        labels: torch.LongTensor,
        decoder_input_ids: torch.LongTensor,
        decoder_labels: torch.LongTensor,
        decoder_attention_mask: torch.Tensor | None = None,
        bag_of_words: torch.FloatTensor | None = None,
        return_dict: bool | None = None,
    ) -> RetroMAEOutput | tuple:
        """Texts are padded on the right.

        Args:
            input_ids: [B, L], masked for the encoder.
            attention_mask: [B, L], 1 at tokens, 0 at padding.
            labels: [B, L], the original ids at the encoder's masked positions, -100 elsewhere.
            decoder_input_ids: [B, L], unmasked with enhanced decoding, masked for the decoder without.
            decoder_labels: [B, L], the original ids at the positions that the decoder predicts, -100 elsewhere.
            decoder_attention_mask: [B, L, L] bool, row i true where position i may look; only with enhanced decoding.
                A row without any visible position sees position 0, the sentence vector.
            bag_of_words: [B, V], 1/n at each distinct token of a text of n tokens; needed if `bow_loss_weight` > 0.
        """
        config = self.config
        states_BLH = self.retromae(input_ids, attention_mask).last_hidden_state
        sentence_BH = states_BLH[:, 0]
        labelled = labels != IGNORED
        encoder_loss, encoder_accuracy = self.mlm_head.loss(states_BLH[labelled], labels[labelled])
        decoder_loss, decoder_accuracy = self.mlm_head.loss(
            *self._decode(sentence_BH, attention_mask, decoder_input_ids, decoder_labels, decoder_attention_mask)
        )
        losses = {"encoder_mlm_loss": encoder_loss, "decoder_mlm_loss": decoder_loss}
        if config.bow_loss_weight > 0.0:
            if bag_of_words is None:
                raise ValueError("`bow_loss_weight` is above 0: the model needs `bag_of_words` [B, V].")
            losses["bag_of_words_loss"] = bag_of_words_loss(
                self.mlm_head.transform(states_BLH[:, 1:]),
                self.mlm_head.decoder.weight,
                self.mlm_head.decoder.bias,
                attention_mask[:, 1:].bool(),
                bag_of_words,
            )
        result = RetroMAEOutput(
            loss=sum(weight * losses[name] for name, weight in self.loss_weights.items()),
            **losses,
            encoder_mlm_accuracy=encoder_accuracy,
            decoder_mlm_accuracy=decoder_accuracy,
            sentence_embedding=sentence_BH,
        )
        return result.to_tuple() if return_dict is False else result

    def _decode(self, sentence_BH, attention_mask_BL, input_ids_BL, labels_BL, visible_BLL):
        """The decoder's states where it predicts, [N, H], and their labels, [N]."""
        query_BLH, context_BLH = self._query_and_context(sentence_BH, input_ids_BL)
        if self.config.enhanced_decoding:
            if visible_BLL is None:
                raise ValueError("Enhanced decoding needs `decoder_attention_mask` [B, L, L].")
            # Column 0 is visible by construction wherever there is a label; here for the rows that see nothing at all,
            # whose softmax would be undefined.
            visible_BLL = visible_BLL.bool().clone(memory_format=torch.contiguous_format)  # ours is a transposed view
            visible_BLL[:, :, 0] = True
        else:
            query_BLH = context_BLH
            visible_BLL = attention_mask_BL.bool()[:, None]
        rows = labels_BL.shape[1]
        if not self.config.enhanced_decoding or self.config.decoder_prediction_rate < 1.0:
            rows = max(1, int((labels_BL != IGNORED).sum(1).max()))
        if rows < labels_BL.shape[1]:
            # Rows do not depend on each other: those that predict nothing are not computed.
            order_BR = (labels_BL != IGNORED).int().argsort(dim=1, descending=True, stable=True)[:, :rows]
            labels_BL = labels_BL.gather(1, order_BR)
            query_BLH = query_BLH.gather(1, order_BR[..., None].expand(-1, -1, query_BLH.shape[2]))
            if visible_BLL.shape[1] > 1:
                visible_BLL = visible_BLL.gather(1, order_BR[..., None].expand(-1, -1, visible_BLL.shape[2]))
        predicted = labels_BL != IGNORED
        return self.decoder.layer(query_BLH, context_BLH, visible_BLL[:, None], predicted), labels_BL[predicted]

    def _query_and_context(self, sentence_BH, input_ids_BL):
        """H1 and H2 of the paper (eq. 3 and 4), both [B, L, H]."""
        encoder, row = self.retromae.encoder, backbone_of(self.config.encoder_config)
        embed, table = encoder.embeddings, self.decoder.position_embeddings
        project = nn.Identity()
        if row.embedding_projection is not None and hasattr(encoder, row.embedding_projection.split(".")[0]):
            project = encoder.get_submodule(row.embedding_projection)
        elif getattr(embed, "embed_proj", None) is not None:
            project = embed.embed_proj  # DeBERTa projects inside its embedding module
        batch_size, length = input_ids_BL.shape
        positions = self._positions(input_ids_BL)
        where = {"position_ids": positions} if table is None else {}
        own_LH = 0.0 if table is None else table(positions)

        outside = project if row.embedding_projection is not None else nn.Identity()
        context = outside(embed(input_ids=input_ids_BL, **where)) + own_LH
        context = torch.cat([sentence_BH[:, None].to(context.dtype), context[:, 1:]], dim=1)

        if self.config.decoder_query == "position":
            at = own_LH if table is not None else project(embed.position_embeddings(positions))
            query = sentence_BH[:, None] + at
        elif isinstance(project, nn.Identity):
            tokens = sentence_BH[:, None].expand(-1, length, -1)
            query = embed(input_ids=None, inputs_embeds=tokens, **where) + own_LH
        else:
            # The vector is wider than a token embedding: it joins behind the projection.
            size = self.get_input_embeddings().embedding_dim
            nothing = sentence_BH.new_zeros(batch_size, length, size)
            query = sentence_BH[:, None] + outside(embed(input_ids=None, inputs_embeds=nothing, **where)) + own_LH
        return query, context

    def _positions(self, input_ids_BL):
        """The position ids that the encoder gives to these tokens."""
        embed = self.retromae.encoder.embeddings
        if hasattr(embed, "padding_idx"):  # RoBERTa's family counts from behind its padding id
            real = input_ids_BL.ne(embed.padding_idx).long()
            return real.cumsum(1) * real + embed.padding_idx
        return torch.arange(input_ids_BL.shape[1], device=input_ids_BL.device)[None]


for _class, _auto in (
    (RetroMAEModel, "AutoModel"),
    (RetroMAEForMaskedLM, "AutoModelForMaskedLM"),
    (RetroMAEForPreTraining, "AutoModelForPreTraining"),
):
    _class.register_for_auto_class(_auto)
