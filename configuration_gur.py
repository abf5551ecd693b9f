"""Configuration of GUR models.

This file travels to the Hub beside `modeling_gur.py`: it imports transformers and the standard library only.
"""

from transformers import AutoConfig, PretrainedConfig

AUTO_MAP = {
    "AutoConfig": "configuration_gur.GURConfig",
    "AutoModel": "modeling_gur.GURModel",
    "AutoModelForPreTraining": "modeling_gur.GURForPreTraining",
    "AutoModelForSeq2SeqLM": "modeling_gur.GURForConditionalGeneration",
    "AutoModelForSequenceClassification": "modeling_gur.GURForSequenceClassification",
}

BACKBONE_TYPES = ("t5", "mt5", "umt5")
POOLINGS = ("eos", "mean", "first", "weighted_mean")

# A learned temperature is clamped here, as CLIP does it (arXiv 2103.00020, section 2.5).
LOWEST_LEARNED_TEMPERATURE = 0.01

_SIZES = ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads")

# What a configuration of the T5 family and ours have in common, by the same names.
_BACKBONE_FIELDS = (
    *_SIZES,
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "dropout_rate",
    "classifier_dropout",
    "layer_norm_epsilon",
    "initializer_factor",
    "feed_forward_proj",
    "use_cache",
    "pad_token_id",
    "eos_token_id",
    "decoder_start_token_id",
)


class GURConfig(PretrainedConfig):
    r"""Configuration of a GUR model (arXiv 2306.10056): a T5, a projection of its encoder to sentence vectors, and the
    weights of its two losses.

    The fields of the T5 are flat and named as T5's. The class is not a `T5Config`: sentence-transformers would take it
    for a plain T5 encoder and drop the projection.

    Args:
        backbone_type (`str`, *optional*, defaults to `"t5"`):
            `"t5"` (T5 and T5 v1.1), `"mt5"`, or `"umt5"`, which has relative position biases in every layer.
        vocab_size, d_model, d_kv, d_ff, num_layers, num_decoder_layers, num_heads (`int`, *optional*):
            Sizes, as in `T5Config`; without `num_decoder_layers` the decoder is as deep as the encoder.
        relative_attention_num_buckets, relative_attention_max_distance (`int`, *optional*):
            Buckets of relative positions, and the distance in tokens from which on all share the last bucket.
        feed_forward_proj (`str`, *optional*, defaults to `"relu"`):
            An activation (T5), or `"gated-"` before one (T5 v1.1, mT5 and UMT5: `"gated-gelu"`); of the layers and of
            the projection.
        dropout_rate, classifier_dropout (`float`, *optional*):
            Dropout of the layers and the projection; dropout before the classifier.
        tie_word_embeddings (`bool`, *optional*, defaults to `True`):
            Whether the LM head's vocabulary matrix is the token embeddings (T5), or one of its own (T5 v1.1, mT5).
        scale_decoder_outputs (`bool`, *optional*):
            Whether decoder states are divided by the square root of `d_model` before the LM head. Defaults to whether
            the head is tied; never with `"mt5"`.
        projection_dim (`int`, *optional*, defaults to 128):
            Size of the sentence vectors.
        projection_hidden_dim (`int`, *optional*):
            Inner size of the projection. Defaults to `d_model`.
        pooling (`str`, *optional*, defaults to `"eos"`):
            Which encoder state goes into the projection. `"eos"`: that of the last `</s>`, or of the last token where
            a text has none; `"first"`: that of the first token (the paper); `"mean"` of all tokens; `"weighted_mean"`:
            each token counts by a trained weight of its id (`GURPreTrainedModel.set_token_weights`).
        repeated_token_power (`float`, *optional*, defaults to 1.0):
            With `"weighted_mean"`, a token that occurs n times in a text counts as n to this power in all: 1 as often
            as it occurs, 0.5 twice for four times. A word that a long text repeats then does not drown the others.
        contrastive_temperature (`float`, *optional*, defaults to 0.1):
            What cosines are divided by in the contrastive loss.
        learnable_temperature (`bool`, *optional*, defaults to `False`):
            Whether the temperature is trained, starting from `contrastive_temperature`; it stays at 0.01 or more.
        contrastive_loss_weight, lm_loss_weight (`float`, *optional*, defaults to 1.0):
            Weights of the two losses. 0 leaves a loss out, and what only it needs is not computed.

    Example:

    ```python
    >>> from configuration_gur import GURConfig
    >>> from modeling_gur import GURForPreTraining
    >>> model = GURForPreTraining(GURConfig(vocab_size=8000, d_model=256, feed_forward_proj="gated-gelu"))
    ```
    """

    model_type = "gur"
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    }
    keys_to_ignore_at_inference = ["past_key_values", "cache"]

    backbone_type: str = "t5"
    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_decoder_layers: int | None = None
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float | int = 0.1
    classifier_dropout: float | int = 0.0
    layer_norm_epsilon: float = 1e-6
    initializer_factor: float = 1.0
    feed_forward_proj: str = "relu"
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool | None = None
    is_encoder_decoder: bool = True
    is_decoder: bool = False
    use_cache: bool = True
    pad_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 1
    decoder_start_token_id: int | None = 0

    projection_dim: int = 128
    projection_hidden_dim: int | None = None
    pooling: str = "eos"
    repeated_token_power: float | int = 1.0
    contrastive_temperature: float | int = 0.1
    learnable_temperature: bool = False
    contrastive_loss_weight: float | int = 1.0
    lm_loss_weight: float | int = 1.0

    def __post_init__(self, **kwargs):
        for derived in ("dense_act_fn", "is_gated_act"):  # in the files of T5
            kwargs.pop(derived, None)
        if self.num_decoder_layers is None:
            self.num_decoder_layers = self.num_layers
        if self.projection_hidden_dim is None:
            self.projection_hidden_dim = self.d_model
        if self.scale_decoder_outputs is None:
            self.scale_decoder_outputs = self.tie_word_embeddings and self.backbone_type != "mt5"
        super().__post_init__(**kwargs)
        self.check_ranges()

    @property
    def is_gated_act(self) -> bool:
        return self.feed_forward_proj.startswith("gated-")

    @property
    def dense_act_fn(self) -> str:
        """T5's "gated-gelu" means the approximation by tanh, "gelu_new"."""
        return "gelu_new" if self.feed_forward_proj == "gated-gelu" else self.feed_forward_proj.removeprefix("gated-")

    def check_ranges(self):
        """Raises `ValueError` for a field out of its range; fields may have been set since the creation."""
        for name in (*_SIZES, "projection_dim", "projection_hidden_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` is 1 or more, not {getattr(self, name)}.")
        for name in ("dropout_rate", "classifier_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"`{name}` is at least 0 and below 1, not {getattr(self, name)}.")
        if "-" in self.feed_forward_proj.removeprefix("gated-"):
            raise ValueError(
                '`feed_forward_proj` is an activation such as "relu", or "gated-" and one, such as "gated-gelu", '
                f"not {self.feed_forward_proj!r}."
            )
        self._check_backbone()
        self._check_objective()

    def _check_backbone(self):
        if self.backbone_type not in BACKBONE_TYPES:
            raise ValueError(f"`backbone_type` is one of {', '.join(BACKBONE_TYPES)}, not {self.backbone_type!r}.")
        if self.backbone_type == "mt5" and self.scale_decoder_outputs:
            raise ValueError('`scale_decoder_outputs` is False with `backbone_type` "mt5", which has no such scale.')

    def _check_objective(self):
        if self.pooling not in POOLINGS:
            raise ValueError(f"`pooling` is one of {', '.join(POOLINGS)}, not {self.pooling!r}.")
        if not 0.0 <= self.repeated_token_power <= 1.0:
            raise ValueError(f"`repeated_token_power` is between 0 and 1, not {self.repeated_token_power}.")
        if self.repeated_token_power != 1.0 and self.pooling != "weighted_mean":
            raise ValueError(
                f'`repeated_token_power` belongs to `pooling` "weighted_mean"; this is {self.pooling!r}: leave it out.'
            )
        if self.contrastive_temperature <= 0.0:
            raise ValueError(f"`contrastive_temperature` is above 0, not {self.contrastive_temperature}.")
        if self.learnable_temperature and self.contrastive_temperature < LOWEST_LEARNED_TEMPERATURE:
            raise ValueError(
                f"`contrastive_temperature` is {LOWEST_LEARNED_TEMPERATURE} or more if it is learned, "
                f"not {self.contrastive_temperature}."
            )
        for name in ("contrastive_loss_weight", "lm_loss_weight"):
            if getattr(self, name) < 0.0:
                raise ValueError(f"`{name}` is 0 (that loss is left out) or more, not {getattr(self, name)}.")
        if self.contrastive_loss_weight == self.lm_loss_weight == 0.0:
            raise ValueError("`contrastive_loss_weight` and `lm_loss_weight` are both 0: one must be above 0.")

    @classmethod
    def from_backbone_config(cls, backbone: PretrainedConfig, **fields) -> "GURConfig":
        """The configuration around one of T5, mT5 or UMT5; `fields` are ours, and win where both have one.

        Raises `ValueError` for any other type.
        """
        if backbone.model_type not in BACKBONE_TYPES:
            raise ValueError(
                f"GUR cannot use a backbone of type {backbone.model_type!r}; supported types: "
                f"{', '.join(BACKBONE_TYPES)}."
            )
        names = (*_BACKBONE_FIELDS, "scale_decoder_outputs")
        shared = {name: getattr(backbone, name) for name in names if hasattr(backbone, name)}
        return cls(backbone_type=backbone.model_type, **{**shared, **fields})

    def to_backbone_config(self) -> PretrainedConfig:
        """The configuration of the plain T5, mT5 or UMT5 inside, without our fields."""
        return AutoConfig.for_model(
            self.backbone_type,
            **{name: getattr(self, name) for name in _BACKBONE_FIELDS},
            # To the classes of T5 and UMT5 this says whether decoder states are scaled.
            tie_word_embeddings=self.scale_decoder_outputs,
        )

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        model_type = config_dict.get("model_type", cls.model_type)
        if model_type != cls.model_type:
            raise ValueError(
                f"This is a checkpoint of type {model_type!r}, not of GUR: use "
                "`GURForPreTraining.from_backbone`, which builds the model around it."
            )
        return super().from_dict(config_dict, **kwargs)

    def save_pretrained(self, save_directory, **kwargs):
        # Each save names every class, or `AutoModel` fails on a folder that `GURForPreTraining` wrote.
        self.check_ranges()
        self.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, **kwargs)


GURConfig.register_for_auto_class()
