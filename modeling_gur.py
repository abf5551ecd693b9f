"""GUR for T5, T5 v1.1, mT5 and UMT5.

"Generate to Understand for Representation" (arXiv 2306.10056): one encoder-decoder learns to fill masked spans, as a
T5 does, and on the same masked inputs to bring two related sentences of one document together and others apart. Its
encoder then gives sentence vectors, and its decoder generates, both with no fine-tuning.

Every class keeps its parts under the names that T5 gives them: `shared`, `encoder`, `decoder`, `lm_head`, and beside
them `projection`, `token_weights`, `logit_scale` and `classifier`. There is no wrapper around the encoder, so that the
weights of any class load into any other, each taking what it has; `base_model` is a view, not a part.

This file travels to the Hub beside `configuration_gur.py` and `linear_cross_entropy.py`: it imports torch,
transformers, its siblings and the standard library only.

Shapes: B texts, L positions, H hidden size (`d_model`), E size of a sentence vector, V vocabulary, N pairs.
"""

import copy
import math
import os
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput
from transformers.models.t5.modeling_t5 import T5ForConditionalGeneration, T5LayerNorm, T5PreTrainedModel, T5Stack
from transformers.models.umt5.modeling_umt5 import UMT5Stack
from transformers.utils import ModelOutput, logging

try:
    from .configuration_gur import LOWEST_LEARNED_TEMPERATURE, GURConfig
    from .linear_cross_entropy import linear_cross_entropy
except ImportError:  # a top-level module of a checkout or of an installed package
    from configuration_gur import LOWEST_LEARNED_TEMPERATURE, GURConfig
    from linear_cross_entropy import linear_cross_entropy


logger = logging.get_logger(__name__)

IGNORED = -100

_SMALLEST_TOKEN_WEIGHT = 1e-4


@dataclass
class GUROutput(ModelOutput):
    """What pre-training returns. A loss that is left out is None.

    Args:
        loss (`torch.FloatTensor` of shape `()`): the sum of the named losses, each with its weight.
        lm_loss (`torch.FloatTensor` of shape `()`): mean over the labels, in nats.
        contrastive_loss (`torch.FloatTensor` of shape `()`): mean over the pairs and both directions, in nats.
        lm_accuracy (`torch.FloatTensor` of shape `()`): share of the labels that are ranked first.
        contrastive_accuracy (`torch.FloatTensor` of shape `()`): share of the texts whose partner is ranked first.
        sentence_embedding (`torch.FloatTensor` of shape `[B, E]`): sentence vectors of length 1.
        encoder_last_hidden_state (`torch.FloatTensor` of shape `[B, L, H]`): the encoder's states.
    """

    loss: torch.FloatTensor | None = None
    lm_loss: torch.FloatTensor | None = None
    contrastive_loss: torch.FloatTensor | None = None
    lm_accuracy: torch.FloatTensor | None = None
    contrastive_accuracy: torch.FloatTensor | None = None
    sentence_embedding: torch.FloatTensor | None = None
    encoder_last_hidden_state: torch.FloatTensor | None = None


# --- The contrastive loss --------------------------------------------------------------------------------------------


def contrastive_loss(
    embedding_NE: torch.Tensor,
    embedding_pair_NE: torch.Tensor,
    temperature: float | torch.Tensor,
    negatives_mask_NN: torch.Tensor | None = None,
) -> torch.Tensor:
    """Symmetric InfoNCE of N pairs (arXiv 2306.10056, as CLIP), shape `()`, in nats, always in fp32.

    With S[i, j] the cosine of text i and pair text j over the temperature, the mean of two cross-entropies: each row
    of S, and each column, must pick its diagonal. One pair has loss 0 and gradients of 0.

    Args:
        embedding_NE, embedding_pair_NE: the two sides of the pairs, of any length.
        temperature: a number, or a tensor of shape `()` that is learned.
        negatives_mask_NN: bool; where it is false, text i and pair text j are no negatives of each other, in neither
            direction. The diagonal always counts.
    """
    return _info_nce(_pair_logits(embedding_NE, embedding_pair_NE, temperature, negatives_mask_NN))


def _info_nce(logits_NN: torch.Tensor) -> torch.Tensor:
    return -0.5 * (logits_NN.log_softmax(1).diagonal() + logits_NN.log_softmax(0).diagonal()).mean()


def _pair_logits(embedding_NE, embedding_pair_NE, temperature, negatives_mask_NN):
    with torch.autocast(embedding_NE.device.type, enabled=False):
        rows_NE, columns_NE = (F.normalize(side.float(), dim=-1) for side in (embedding_NE, embedding_pair_NE))
        logits_NN = rows_NE @ columns_NE.t() / temperature
    if negatives_mask_NN is None:
        return logits_NN
    partner_NN = torch.eye(len(logits_NN), dtype=torch.bool, device=logits_NN.device)
    return logits_NN.masked_fill(~(negatives_mask_NN.bool() | partner_NN), float("-inf"))


def _pair_accuracy(logits_NN: torch.Tensor) -> torch.Tensor:
    partner_N = torch.arange(len(logits_NN), device=logits_NN.device)
    right = [logits_NN.argmax(dim) == partner_N for dim in (0, 1)]
    return torch.stack(right).float().mean()


# --- Parts -----------------------------------------------------------------------------------------------------------


class GURProjection(nn.Module):
    """From a state of the encoder to a sentence vector (arXiv 2306.10056): `RMSNorm(u + dropout(u))` with
    `u = wo(dropout(act(wi(state))))`, or `u = wo(dropout(act(wi_0(state)) * wi_1(state)))` where the layers are gated.

    The paper asks for a non-linear head, which it does not spell out; this is the authors' published one.
    """

    def __init__(self, config: GURConfig):
        super().__init__()
        self.names = ("wi_0", "wi_1") if config.is_gated_act else ("wi",)
        for name in self.names:
            setattr(self, name, nn.Linear(config.d_model, config.projection_hidden_dim, bias=False))
        self.wo = nn.Linear(config.projection_hidden_dim, config.projection_dim, bias=False)
        self.layer_norm = T5LayerNorm(config.projection_dim, eps=config.layer_norm_epsilon)
        self.activation = ACT2FN[config.dense_act_fn]
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """`[..., H]` to `[..., E]`."""
        first, *gate = (getattr(self, name)(states) for name in self.names)
        inner = self.activation(first) * gate[0] if gate else self.activation(first)
        # In fp16 the library keeps every `wo` of a T5 in fp32.
        projected = self.wo(self.dropout(inner).to(self.wo.weight.dtype))
        return self.layer_norm(projected + self.dropout(projected))


def _stack(config: GURConfig, *, is_decoder: bool) -> PreTrainedModel:
    """The layers of the encoder or the decoder; they get a configuration of their own, which they may change."""
    config = copy.deepcopy(config)
    config.is_decoder = is_decoder
    if is_decoder:
        config.num_layers = config.num_decoder_layers
    else:
        config.use_cache = False
    return (UMT5Stack if config.backbone_type == "umt5" else T5Stack)(config)  # those of mT5 are T5's


def _last_true(where_BL: torch.Tensor) -> torch.Tensor:
    """The last true position of each row, `[B]`; 0 where there is none."""
    return (where_BL * torch.arange(1, where_BL.shape[1] + 1, device=where_BL.device)).argmax(1)


def _last_token(config: GURConfig, input_ids_BL: torch.Tensor, real_BL: torch.Tensor) -> torch.Tensor:
    """The position of each text's last `</s>`, `[B]`, or of its last token: a text that was cut has no `</s>`, nor has
    any where the tokenizer adds none."""
    ids = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    is_eos_BL = torch.zeros_like(real_BL)
    for each in ids:  # `torch.isin` cannot be exported to ONNX
        if each is not None:
            is_eos_BL = is_eos_BL | (input_ids_BL == each)
    is_eos_BL = is_eos_BL & real_BL
    return torch.where(is_eos_BL.any(1), _last_true(is_eos_BL), _last_true(real_BL))


def _occurrences(input_ids_BL: torch.Tensor, real_BL: torch.Tensor) -> torch.Tensor:
    """How often the token of each position occurs in its text, `[B, L]` in fp32, 1 or more."""
    same_BLL = input_ids_BL[:, :, None] == input_ids_BL[:, None, :]
    return (same_BLL & real_BL[:, None, :]).sum(-1).clamp(min=1).float()


def pooling_weights(
    config: GURConfig,
    input_ids_BL: torch.Tensor,
    attention_mask_BL: torch.Tensor,
    log_weights_V: torch.Tensor | None = None,
) -> torch.Tensor:
    """How much each position counts in the sentence vector, `[B, L]` in fp32; the row of a text sums to 1.

    It is the same on whichever side the padding is, and whatever the rest of the batch holds. The row of a text
    without any token is 0.
    """
    real_BL = attention_mask_BL.bool()
    if config.pooling == "mean":
        weights_BL = real_BL.float()
    elif config.pooling == "weighted_mean":
        weights_BL = log_weights_V[input_ids_BL].float().exp() * real_BL
        if config.repeated_token_power != 1.0:
            weights_BL = weights_BL * _occurrences(input_ids_BL, real_BL) ** (config.repeated_token_power - 1.0)
    else:
        first = config.pooling == "first"
        position_B = real_BL.int().argmax(1) if first else _last_token(config, input_ids_BL, real_BL)
        # Compared, not `one_hot`, which would fix the length in an ONNX export.
        is_it_BL = torch.arange(real_BL.shape[1], device=real_BL.device) == position_B[:, None]
        weights_BL = is_it_BL * real_BL.float()
    return weights_BL / weights_BL.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)


# --- Models ----------------------------------------------------------------------------------------------------------


class GURPreTrainedModel(T5PreTrainedModel):
    """Token embeddings, encoder and projection, which every class has, and loading from a plain backbone."""

    config_class = GURConfig
    base_model_prefix = "gur"  # no class has a part of this name: see the head of this file
    accepts_loss_kwargs = False  # losses are means of this batch; the Trainer weighs them
    _no_split_modules = ["T5Block", "UMT5Block"]
    _tied_weights_keys = {"encoder.embed_tokens.weight": "shared.weight"}

    def __init__(self, config: GURConfig):
        super().__init__(config)
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = _stack(config, is_decoder=False)
        self.projection = GURProjection(config)
        if config.pooling == "weighted_mean":
            # Logarithms: positive weights, equal ones at 0, where weight decay pulls them.
            self.token_weights = nn.Embedding(config.vocab_size, 1)
        if config.learnable_temperature:
            self.logit_scale = nn.Parameter(torch.tensor(-math.log(config.contrastive_temperature)))

    def post_init(self):
        super().post_init()
        # Stored once, as `shared`; the Trainer then does not call the other names missing.
        self._keys_to_ignore_on_save = list(self.get_expanded_tied_weights_keys())

    @classmethod
    def is_custom_code(cls) -> bool:
        # The library skips what custom code wants for modules that only hold other modules, such as the projection and
        # T5's feed-forward layers, lest it overwrite loaded weights. `transformers.initialization` never does.
        return False

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        factor = self.config.initializer_factor
        if isinstance(module, GURProjection):
            for name in module.names:
                init.normal_(getattr(module, name).weight, std=factor * self.config.d_model**-0.5)
            init.normal_(module.wo.weight, std=factor * self.config.projection_hidden_dim**-0.5)
        elif isinstance(module, GURPreTrainedModel):
            module._init_own_weights(factor)

    def _init_own_weights(self, factor: float):
        init.normal_(self.shared.weight, std=factor)
        if hasattr(self, "token_weights"):
            init.zeros_(self.token_weights.weight)
        if hasattr(self, "logit_scale"):
            init.constant_(self.logit_scale, -math.log(self.config.contrastive_temperature))

    # --- Embeddings -----------------------------------------------------------------------------------------------

    def get_input_embeddings(self):
        return self.shared

    def set_input_embeddings(self, value):
        self.shared = value
        for stack in self._stacks():
            stack.set_input_embeddings(value)

    def _stacks(self) -> list[PreTrainedModel]:
        return [getattr(self, name) for name in ("encoder", "decoder") if hasattr(self, name)]

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # The library ties all or nothing. Here `tie_word_embeddings` is about the LM head alone: encoder and decoder
        # read `shared` in any case.
        return {name: "shared.weight" for name in self._tied_weights_keys if name != "lm_head.weight"} | (
            super().get_expanded_tied_weights_keys(all_submodels)
        )

    def resize_token_embeddings(self, new_num_tokens=None, pad_to_multiple_of=None, mean_resizing=True):
        """As in every model of the library; an LM head that is not tied stays so. New tokens get the mean weight."""
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        for stack in self._stacks():
            stack.config.vocab_size = self.config.vocab_size
        if hasattr(self, "token_weights"):
            old_V1 = self.token_weights.weight.data
            new_V1 = old_V1.mean().repeat(self.config.vocab_size, 1)
            kept = min(len(old_V1), len(new_V1))
            new_V1[:kept] = old_V1[:kept]
            self.token_weights = nn.Embedding.from_pretrained(new_V1, freeze=False)
        return embeddings

    # --- Sentence vectors -----------------------------------------------------------------------------------------

    @property
    def base_model(self) -> "GURModel":
        """Encoder and projection as a `GURModel`, which shares these weights."""
        if isinstance(self, GURModel):
            return self
        parts = ("shared", "encoder", "projection", "token_weights")
        view = copy.copy(self)
        view.__class__ = GURModel
        view.__dict__.pop("forward", None)  # accelerate's for bf16, which wraps the forward of the other class
        view._modules = {name: part for name, part in self._modules.items() if name in parts}
        return view

    def set_token_weights(self, weights_V: torch.Tensor):
        """Starts `pooling="weighted_mean"` from one weight a token id, such as the corpus' inverse document frequency.

        Only their ratios matter. Weights of 0 become a ten-thousandth, or they could not be trained.

        Raises `ValueError` for another pooling, another number of weights, or weights that are negative or not finite.
        """
        if not hasattr(self, "token_weights"):
            raise ValueError(f'Token weights belong to `pooling` "weighted_mean"; this is {self.config.pooling!r}.')
        weights_V = torch.as_tensor(weights_V, dtype=torch.float32)
        if weights_V.shape != (self.config.vocab_size,):
            raise ValueError(
                f"There must be one weight for each of the {self.config.vocab_size} token ids, not a tensor of shape "
                f"{tuple(weights_V.shape)}."
            )
        if not (weights_V.isfinite().all() and (weights_V >= 0.0).all()):
            raise ValueError("Token weights must be finite numbers of 0 or more.")
        with torch.no_grad():
            self.token_weights.weight.copy_(weights_V.clamp(min=_SMALLEST_TOKEN_WEIGHT).log()[:, None])

    def project(
        self, states_BLH: torch.Tensor, input_ids: torch.LongTensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Pools the encoder's states and projects them: the sentence vectors `[B, E]` before they get length 1."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        log_weights_V = self.token_weights.weight[:, 0] if hasattr(self, "token_weights") else None
        weights_BL = pooling_weights(self.config, input_ids, attention_mask, log_weights_V)
        with torch.autocast(states_BLH.device.type, enabled=False):  # a mean of many states in bf16 is a coarse one
            pooled_BH = torch.einsum("bl,blh->bh", weights_BL, states_BLH.float())
        return self.projection(pooled_BH.to(states_BLH.dtype))

    # --- From a backbone ------------------------------------------------------------------------------------------

    @classmethod
    def from_backbone(cls, name_or_path: str | os.PathLike, **config_changes):
        """A model around an existing T5, which keeps its weights.

        Args:
            name_or_path: a checkpoint of T5, T5 v1.1, mT5 or UMT5, with a decoder or without, or one of this package
                (then the projection is loaded as well).
            config_changes: fields of `GURConfig`, and `revision`, `token`, `cache_dir`, `local_files_only`,
                `subfolder`, `attn_implementation`, `dtype` (default `torch.float32`) for loading; with
                `use_safetensors=False` weights in a pickle (pytorch_model.bin) are read too. Code that comes with a
                backbone never runs.

        Returns a model whose `loading_report` says what was loaded and what was initialised.

        Raises `ValueError` for an unsupported backbone, an unknown field, weights in a pickle, or when nothing could
        be loaded.
        """
        hub_names = ("revision", "token", "cache_dir", "local_files_only", "subfolder", "force_download")
        hub = {name: config_changes.pop(name) for name in hub_names if name in config_changes}
        model = {"dtype": config_changes.pop("dtype", torch.float32)}
        if "attn_implementation" in config_changes:
            model["attn_implementation"] = config_changes.pop("attn_implementation")
        model["use_safetensors"] = config_changes.pop("use_safetensors", True)
        for name in config_changes.keys() - {*GURConfig.__dataclass_fields__, "num_labels"}:
            raise ValueError(f"`{name}` is not a field of GURConfig.")
        name_or_path = os.fspath(name_or_path)
        if model["use_safetensors"]:
            _refuse_pickle(os.path.join(name_or_path, hub.get("subfolder", "")))

        # Read as a dict first: one of ours is loaded by this very file, and never asks for `trust_remote_code`.
        fields = PretrainedConfig.get_config_dict(name_or_path, **hub)[0]
        if fields.get("model_type") == GURConfig.model_type:
            result, missing = cls._from_ours(name_or_path, config_changes, hub, model)
        else:
            result, missing = cls._from_plain(name_or_path, fields, config_changes, hub, model)
        result.loading_report = _report(result, missing, name_or_path)
        return result

    @classmethod
    def _from_ours(cls, name_or_path, config_changes, hub, model):
        config = GURConfig.from_pretrained(name_or_path, **hub)
        for name, value in config_changes.items():
            setattr(config, name, value)
        config.check_ranges()
        result, info = cls.from_pretrained(name_or_path, config=config, output_loading_info=True, **hub, **model)
        return result, set(info["missing_keys"])

    @classmethod
    def _from_plain(cls, name_or_path, fields, config_changes, hub, model):
        ours = {"scale_decoder_outputs": _scales_decoder_outputs(fields), **config_changes}
        config = GURConfig.from_backbone_config(
            AutoConfig.from_pretrained(name_or_path, trust_remote_code=False, **hub), **ours
        )
        source, info = AutoModelForSeq2SeqLM.from_pretrained(
            name_or_path,
            config=config.to_backbone_config(),
            output_loading_info=True,
            trust_remote_code=False,
            **hub,
            **model,
        )
        # Only the weights say whether the LM head is tied: the files of T5 v1.1 and mT5 are read as if it were.
        tied = source.lm_head.weight is source.shared.weight
        config.tie_word_embeddings = config_changes.get("tie_word_embeddings", tied)
        result = cls._from_config(config, **{name: model[name] for name in model if name != "use_safetensors"})
        wanted = result.state_dict().keys() - result.get_expanded_tied_weights_keys().keys()
        found = {name: value for name, value in source.state_dict().items() if name in wanted}
        result.load_state_dict(found, strict=False)
        if result.can_generate():
            result.generation_config = source.generation_config
        return result, set(info["missing_keys"]) | (wanted - found.keys())


def _refuse_pickle(folder: str):
    """Raises `ValueError` for a local folder whose weights are in a pickle alone."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    pickles = [name for name in names if name.startswith("pytorch_model") and name.endswith(".bin")]
    if pickles and not any(name.endswith(".safetensors") for name in names):
        raise ValueError(
            f"{folder} has its weights in a pickle ({pickles[0]}), which can run code when it is read: load it where "
            "you trust it and save it with `save_pretrained`, or pass `use_safetensors=False`."
        )


def _scales_decoder_outputs(fields: dict) -> bool:
    """Whether a plain checkpoint divides decoder states by the root of their size, from its config.json: before
    transformers 5, "tie_word_embeddings" said it, and mT5 never does since."""
    if fields.get("model_type") == "mt5":
        return False
    return fields.get("scale_decoder_outputs", fields.get("tie_word_embeddings") is not False)


def _report(model: GURPreTrainedModel, missing: set[str], source: str) -> str:
    names = model.state_dict().keys() - model.get_expanded_tied_weights_keys().keys()
    encoder = {name for name in names if name.startswith(("encoder.", "shared."))}
    share = 1.0 - len(encoder & missing) / len(encoder)
    if share == 0.0:
        raise ValueError(
            f"Not one weight of the encoder was found in {source}; is it a checkpoint of this architecture?"
        )
    said = [f"encoder {100 * share:.4g} %"]
    parts = {"decoder": "decoder", "lm_head": "LM head", "projection": "projection"}
    parts |= {"token_weights": "token weights", "logit_scale": "temperature", "classifier": "classifier"}
    for part, title in parts.items():
        own = {name for name in names if name.split(".")[0] == part}
        if own:
            said.append(f"{title} {'initialised' if own & missing else 'loaded'}")
    report = ", ".join(said)
    log = logger.info if share == 1.0 else logger.warning
    log(f"{source}: {report}")
    return report


class GURModel(GURPreTrainedModel):
    """Encoder and projection. `pooler_output` is the sentence vector, of length 1.

    Example:

    ```python
    >>> from modeling_gur import GURModel
    >>> model = GURModel.from_backbone("google/t5-v1_1-small", pooling="mean")
    >>> model.loading_report
    'encoder 100 %, projection initialised'
    ```
    """

    # A pre-training checkpoint holds more than this class wants.
    _keys_to_ignore_on_load_unexpected = [r"^decoder\.", r"^lm_head\.", r"^classifier\."]

    def __init__(self, config: GURConfig):
        super().__init__(config)
        self.post_init()

    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutputWithPooling | tuple:
        """`input_ids` and `attention_mask` are `[B, L]`, padded on either side; without a mask every id is a token."""
        more = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        outputs = self.encoder(input_ids, attention_mask, **{name: True for name, wanted in more.items() if wanted})
        result = BaseModelOutputWithPooling(
            last_hidden_state=outputs.last_hidden_state,
            pooler_output=_unit(self.project(outputs.last_hidden_state, input_ids, attention_mask)),
            hidden_states=outputs.get("hidden_states"),
            attentions=outputs.get("attentions"),
        )
        return result.to_tuple() if return_dict is False else result


def _unit(vectors_BE: torch.Tensor) -> torch.Tensor:
    """In fp32, whatever the model computes in: bf16 would leave lengths 0.4 % off."""
    return F.normalize(vectors_BE.float(), dim=-1)


class _WithDecoder(GURPreTrainedModel):
    _tied_weights_keys = {
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    }

    def __init__(self, config: GURConfig):
        super().__init__(config)
        self.decoder = _stack(config, is_decoder=True)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)

    def _init_own_weights(self, factor: float):
        super()._init_own_weights(factor)
        if not self.config.tie_word_embeddings:
            # Logits start with deviation 1: states have it, whether or not they are scaled on the way.
            scale = 1.0 if self.config.scale_decoder_outputs else self.config.d_model**-0.5
            init.normal_(self.lm_head.weight, std=factor * scale)

    def export_backbone(self, save_directory: str | os.PathLike, dtype: torch.dtype | None = None):
        """Writes encoder, decoder and LM head as a plain T5, mT5 or UMT5, without `auto_map` and our fields."""
        config = self.config
        plain = AutoModelForSeq2SeqLM.from_config(config.to_backbone_config()).to(dtype or self.dtype)
        if not config.tie_word_embeddings:
            plain.lm_head.weight = nn.Parameter(plain.lm_head.weight.detach().clone())
        plain.load_state_dict({name: value for name, value in self.state_dict().items() if name in plain.state_dict()})
        if not config.tie_word_embeddings and not config.scale_decoder_outputs:
            plain.config.tie_word_embeddings = False  # what transformers 4 goes by, for both
        if self.can_generate():
            plain.generation_config = copy.deepcopy(self.generation_config)
        plain.save_pretrained(save_directory)


class GURForConditionalGeneration(_WithDecoder, GenerationMixin):
    """Generates as the T5 inside does; the projection is kept, so that saving loses nothing."""

    def __init__(self, config: GURConfig):
        super().__init__(config)
        self.model_dim = config.d_model
        self.post_init()

    # T5's own, which reads nothing but the parts of the same names: it follows its library's names for the cache.
    forward = T5ForConditionalGeneration.forward
    prepare_decoder_input_ids_from_labels = T5ForConditionalGeneration.prepare_decoder_input_ids_from_labels


class GURForPreTraining(_WithDecoder):
    """Language modelling and contrastive learning on one batch (arXiv 2306.10056).

    Example:

    ```python
    >>> from modeling_gur import GURForPreTraining
    >>> model = GURForPreTraining.from_backbone("google/t5-v1_1-small", contrastive_temperature=0.05)
    >>> model.loading_report
    'encoder 100 %, decoder loaded, LM head loaded, projection initialised'
    ```
    """

    def __init__(self, config: GURConfig):
        super().__init__(config)
        self.post_init()

    @property
    def loss_weights(self) -> dict[str, float]:
        """`loss` is the sum of these losses with these weights."""
        weights = {"lm_loss": self.config.lm_loss_weight, "contrastive_loss": self.config.contrastive_loss_weight}
        return {name: weight for name, weight in weights.items() if weight > 0.0}

    @staticmethod
    def loss_item_counts(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """How many items each named loss is the mean of, shape `()` each; needs no forward pass."""
        ids = inputs["input_ids"]
        counts = {"contrastive_loss": torch.full((), len(ids) // 2, device=ids.device)}
        if inputs.get("labels") is not None:
            counts["lm_loss"] = (inputs["labels"] != IGNORED).sum()
        return counts

    @property
    def temperature(self) -> float | torch.Tensor:
        """What cosines are divided by: a number, or shape `()` where it is learned."""
        if not self.config.learnable_temperature:
            return self.config.contrastive_temperature
        with torch.no_grad():  # on the weight itself: a clamp in the graph lets no gradient back from beyond the bound
            self.logit_scale.clamp_(max=-math.log(LOWEST_LEARNED_TEMPERATURE))
        return (-self.logit_scale.float()).exp()

    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        negatives_mask: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_dict: bool | None = None,
    ) -> GUROutput | tuple:
        """Texts may be padded on either side.

        Args:
            input_ids: [B, L], with masked spans; rows 2k and 2k + 1 are a pair.
            attention_mask: [B, L], 1 at tokens, 0 at padding.
            labels: [B, T], what the decoder must write, padded with -100; without it there is no LM loss.
            negatives_mask: [B / 2, B / 2] bool, false where pairs i and j are no negatives of each other (see
                `contrastive_loss`).
            num_items_in_batch: labels of all the batches that make a step; the LM loss is this batch's share of their
                mean.

        Raises `ValueError` for an odd number of texts, and if the only loss wanted has no labels.
        """
        if labels is None and self.config.contrastive_loss_weight == 0.0:
            raise ValueError("`contrastive_loss_weight` is 0, so the model needs `labels` for the only loss left.")
        states_BLH = self.encoder(input_ids, attention_mask).last_hidden_state
        parts = {}
        # Before the decoder: random numbers are then drawn as by the encoder and its head alone, which lets a trainer
        # compute the vectors of a large batch first and replay it in pieces.
        if self.config.contrastive_loss_weight > 0.0:
            vectors_BE = _unit(self.project(states_BLH, input_ids, attention_mask))
            parts["contrastive_loss"], parts["contrastive_accuracy"] = self._contrast(vectors_BE, negatives_mask)
            parts["sentence_embedding"] = vectors_BE
        if labels is not None and self.config.lm_loss_weight > 0.0:
            loss, parts["lm_accuracy"] = self.lm_loss(states_BLH, attention_mask, labels)
            if num_items_in_batch is not None:
                loss = loss * (labels != IGNORED).sum() / num_items_in_batch
            parts["lm_loss"] = loss
        result = GUROutput(
            loss=sum(weight * parts[name] for name, weight in self.loss_weights.items() if name in parts),
            **parts,
            encoder_last_hidden_state=states_BLH,
        )
        return result.to_tuple() if return_dict is False else result

    def lm_loss(
        self, states_BLH: torch.Tensor, attention_mask: torch.Tensor | None, labels: torch.LongTensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean cross-entropy and accuracy of the decoder at the labels that are not -100, both of shape `()`."""
        decoded = self.decoder(
            self._shift_right(labels),
            encoder_hidden_states=states_BLH,
            encoder_attention_mask=attention_mask,
            use_cache=False,
        )
        labelled = labels != IGNORED
        hidden_NH = decoded.last_hidden_state[labelled]
        if self.config.scale_decoder_outputs:
            hidden_NH = hidden_NH * self.config.d_model**-0.5
        return linear_cross_entropy(hidden_NH, self.lm_head.weight, None, labels[labelled])

    def _contrast(self, vectors_BE, negatives_mask_NN):
        if len(vectors_BE) % 2:
            raise ValueError(f"Rows 2k and 2k + 1 are a pair, but there are {len(vectors_BE)} rows, an odd number.")
        logits_NN = _pair_logits(vectors_BE[0::2], vectors_BE[1::2], self.temperature, negatives_mask_NN)
        return _info_nce(logits_NN), _pair_accuracy(logits_NN.detach())


class GURForSequenceClassification(GURPreTrainedModel):
    """A linear classifier on the sentence vector before it gets length 1.

    It reads the projection and not the encoder's state: that is the space in which texts of one subject already lie
    together, where the nearest label is right without any training, and its few dimensions ask for few examples. Its
    RMS norm gives the classifier inputs of one scale.
    """

    _keys_to_ignore_on_load_unexpected = [r"^decoder\.", r"^lm_head\."]

    def __init__(self, config: GURConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.projection_dim, config.num_labels)
        self.post_init()

    def _init_own_weights(self, factor: float):
        super()._init_own_weights(factor)
        init.normal_(self.classifier.weight, std=factor * self.config.projection_dim**-0.5)

    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        return_dict: bool | None = None,
    ) -> SequenceClassifierOutput | tuple:
        """`labels` are [B] class ids; [B, num_labels] floats of 0 and 1 for several labels a text; or [B] numbers for
        a single label (regression). `config.problem_type` decides if it is set."""
        states_BLH = self.encoder(input_ids, attention_mask).last_hidden_state
        logits = self.classifier(self.dropout(self.project(states_BLH, input_ids, attention_mask)))
        loss = None if labels is None else self._loss(logits.float(), labels)
        result = SequenceClassifierOutput(loss=loss, logits=logits)
        return result.to_tuple() if return_dict is False else result

    def _loss(self, logits, labels):
        problem = self.config.problem_type
        if problem is None:
            whole = not labels.is_floating_point()
            several = "single_label_classification" if whole else "multi_label_classification"
            problem = "regression" if self.num_labels == 1 else several
        if problem == "regression":
            return F.mse_loss(logits.reshape(labels.shape), labels.float())
        if problem == "multi_label_classification":
            return F.binary_cross_entropy_with_logits(logits, labels.float())
        return F.cross_entropy(logits, labels.reshape(-1))


for _class, _auto in (
    (GURModel, "AutoModel"),
    (GURForPreTraining, "AutoModelForPreTraining"),
    (GURForConditionalGeneration, "AutoModelForSeq2SeqLM"),
    (GURForSequenceClassification, "AutoModelForSequenceClassification"),
):
    _class.register_for_auto_class(_auto)
