"""Configuration of RetroMAE and DupMAE models.

This file travels to the Hub beside `modeling_retromae.py`: it imports transformers and the standard library only.
"""

import copy

from transformers import AutoConfig, PretrainedConfig

try:
    from transformers.configuration_utils import SubConfigSpec
except ImportError:  # transformers before 5.20 declares nested configurations as plain classes
    SubConfigSpec = None


AUTO_MAP = {
    "AutoConfig": "configuration_retromae.RetroMAEConfig",
    "AutoModel": "modeling_retromae.RetroMAEModel",
    "AutoModelForMaskedLM": "modeling_retromae.RetroMAEForMaskedLM",
    "AutoModelForPreTraining": "modeling_retromae.RetroMAEForPreTraining",
}

# What the rest of the world asks a configuration for (sentence-transformers, the Trainer, `resize_token_embeddings`),
# answered by the encoder's own configuration.
_ENCODER_FIELDS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "pad_token_id")

# Position ids of these backbones begin behind the padding id, which takes as many rows of their position table.
_POSITIONS_BEHIND_PADDING = ("roberta", "xlm-roberta", "mpnet")


class RetroMAEConfig(PretrainedConfig):
    r"""Configuration of a RetroMAE model: any supported encoder, and a one-layer decoder for pre-training.

    Args:
        encoder_config (`PretrainedConfig` or `dict`, *optional*):
            The backbone's own configuration; a dict needs `model_type`. Defaults to that of `bert-base-uncased`.
        decoder_query (`str`, *optional*, defaults to `"position"`):
            How the decoder's queries H1 are made of the sentence vector. `"position"`: the vector plus position
            embeddings (RetroMAE, arXiv 2205.12035, eq. 3). `"embedding"`: the vector goes through the embedding module
            in place of a token, which adds token type, layer norm and dropout (FlagEmbedding, DupMAE).
        enhanced_decoding (`bool`, *optional*, defaults to `True`):
            `True`: every token is predicted from its own sample of visible tokens (section 3.3). `False`: the
            ablation, a plain one-layer decoder over the masked input that predicts its masked tokens (section 3.2).
        decoder_prediction_rate (`float`, *optional*, defaults to 1.0):
            Share of the tokens that enhanced decoding predicts. The decoder computes no row that is not predicted.
        bow_loss_weight (`float`, *optional*, defaults to 0.0):
            Weight of DupMAE's bag-of-words loss (arXiv 2211.08769); 0 leaves it out.
        initializer_range (`float`, *optional*):
            Standard deviation of the decoder's initial weights. Defaults to the encoder's.

    Example:

    ```python
    >>> from transformers import BertConfig
    >>> from modeling_retromae import RetroMAEForPreTraining
    >>> config = RetroMAEConfig(encoder_config=BertConfig(num_hidden_layers=2), bow_loss_weight=0.1)
    >>> model = RetroMAEForPreTraining(config)
    ```
    """

    model_type = "retromae"
    if SubConfigSpec is not None:
        sub_configs_defaults = {"encoder_config": SubConfigSpec(AutoConfig, model_type="bert")}
    else:
        sub_configs = {"encoder_config": AutoConfig}

    encoder_config: dict | PretrainedConfig | None = None
    decoder_query: str = "position"
    enhanced_decoding: bool = True
    decoder_prediction_rate: float = 1.0
    bow_loss_weight: float = 0.0
    initializer_range: float | None = None
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs):
        if self.encoder_config is None:
            self.encoder_config = {"model_type": "bert"}
        if isinstance(self.encoder_config, dict):
            fields = dict(self.encoder_config)
            self.encoder_config = AutoConfig.for_model(fields.pop("model_type", "bert"), **fields)
        else:  # the caller's configuration is never changed by ours (attention, vocabulary)
            self.encoder_config = copy.deepcopy(self.encoder_config)
        super().__post_init__(**kwargs)
        self.tie_word_embeddings = getattr(self.encoder_config, "tie_word_embeddings", True)
        if self.initializer_range is None:
            self.initializer_range = getattr(self.encoder_config, "initializer_range", 0.02)
        self.check_ranges()

    def check_ranges(self):
        """Raises `ValueError` for a field out of its range; fields may have been set since the creation."""
        if self.decoder_query not in ("position", "embedding"):
            raise ValueError(f'`decoder_query` is "position" or "embedding", not {self.decoder_query!r}.')
        if not 0.0 < self.decoder_prediction_rate <= 1.0:
            raise ValueError(
                f"`decoder_prediction_rate` is above 0 and at most 1 (all tokens), not {self.decoder_prediction_rate}."
            )
        if self.bow_loss_weight < 0.0:
            raise ValueError(f"`bow_loss_weight` is 0 (no bag of words) or more, not {self.bow_loss_weight}.")

    def __getattr__(self, name):
        # Only reached for what this class has not.
        if name in _ENCODER_FIELDS and "encoder_config" in self.__dict__:
            return getattr(self.encoder_config, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name, value):
        if name in _ENCODER_FIELDS and "encoder_config" in self.__dict__:
            setattr(self.encoder_config, name, value)
        else:
            super().__setattr__(name, value)

    @property
    def max_position_embeddings(self) -> int:
        """The longest input in tokens, special tokens included."""
        size = self.encoder_config.max_position_embeddings
        if self.encoder_config.model_type in _POSITIONS_BEHIND_PADDING:
            # MPNet's padding id is the constant 1 whatever the tokenizer says.
            padding_id = 1 if self.encoder_config.model_type == "mpnet" else self.encoder_config.pad_token_id
            size -= padding_id + 1
        return size

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        model_type = config_dict.get("model_type", cls.model_type)
        if model_type != cls.model_type:
            raise ValueError(
                f"This is a checkpoint of type {model_type!r}, not of RetroMAE: use "
                "`RetroMAEForPreTraining.from_backbone`, which builds the model around it."
            )
        return super().from_dict(config_dict, **kwargs)

    def save_pretrained(self, save_directory, **kwargs):
        # Each save names every class, or `AutoModel` fails on a folder that `RetroMAEForPreTraining` wrote.
        self.check_ranges()
        self.auto_map = dict(AUTO_MAP)
        self.encoder_config._name_or_path = ""  # where the encoder lay on the machine that it was loaded on
        super().save_pretrained(save_directory, **kwargs)


RetroMAEConfig.register_for_auto_class()
