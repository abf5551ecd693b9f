"""What can be set for `--objective gur` alone."""

from dataclasses import dataclass, field, fields

from .arguments import _check_choice, _help
from .errors import InputError
from .mining_settings import STRATEGIES
from .span_masking import SPAN_LENGTHS

POOLINGS = ("eos", "mean", "first", "weighted_mean")


@dataclass
class GURArguments:
    """GUR: the sentence vector, the two losses, the masked spans. All default to what the checkpoint or GUR has."""

    projection_dim: int | None = field(default=None, metadata=_help("Size of the sentence vector. [default: 128]"))
    projection_init: str | None = field(
        default=None,
        metadata=_help(
            "From scratch: random, or identity, a head that first does nothing.", choices=["random", "identity"]
        ),
    )
    pooling: str | None = field(
        default=None,
        metadata=_help(
            "The state that becomes the sentence vector: of </s> (eos, default), the mean, the first, or a mean "
            "weighted by trained weights of the tokens.",
            choices=list(POOLINGS),
        ),
    )
    repeated_token_power: float | None = field(
        default=None,
        metadata=_help(
            "With --pooling weighted_mean: a token that occurs n times in a text counts as n to this power. 0.5 suits "
            "long documents. [default: 1.0]"
        ),
    )
    contrastive_temperature: float | None = field(
        default=None, metadata=_help("What cosines are divided by. [default: 0.1]")
    )
    learnable_temperature: bool | None = field(default=None, metadata=_help("Train the temperature."))
    contrastive_loss_weight: float | None = field(
        default=None, metadata=_help("Weight of the contrastive loss; 0: the ablation without. [default: 1.0]")
    )
    lm_loss_weight: float | None = field(
        default=None, metadata=_help("Weight of the language model's loss; 0: the ablation without. [default: 1.0]")
    )
    pair_strategies: list[str] | None = field(
        default=None,
        metadata=_help("Mine with each of these, such as lcs title, and train on all pairs. [default: --strategy]"),
    )
    mask_rate: float | None = field(
        default=None, metadata=_help("Share of the tokens that is masked. [default: 0.15]")
    )
    span_lengths: str | None = field(
        default=None,
        metadata=_help("Law of the spans' lengths. [default: hump_geometric]", choices=list(SPAN_LENGTHS)),
    )
    mask_whole_words: bool | None = field(default=None, metadata=_help("Mask whole words, not tokens."))
    encode_max_seq_length: int | None = field(
        default=None,
        metadata=_help(
            "Tokens of a text that is encoded: in the evaluations, and later by default. Positions are relative, so "
            "documents may be longer than what is trained on. [default: 256, or --max_seq_length if that is more]"
        ),
    )
    contrastive_mini_batch_size: int | None = field(
        default=None,
        metadata=_help(
            "Pairs that go through the model at once; the batch, whose pairs are each other's negatives, may then be "
            "larger than memory."
        ),
    )

    def config_changes(self) -> dict:
        """The fields of `GURConfig` that were set."""
        names = (
            "projection_dim",
            "pooling",
            "repeated_token_power",
            "contrastive_temperature",
            "learnable_temperature",
            "contrastive_loss_weight",
            "lm_loss_weight",
        )
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def masking(self) -> dict:
        """The arguments of `PairCollator` that were set."""
        names = {"mask_rate": "mask_rate", "span_lengths": "span_lengths", "mask_whole_words": "whole_words"}
        return {theirs: getattr(self, ours) for ours, theirs in names.items() if getattr(self, ours) is not None}

    def check(self, *, objective: str, from_scratch: bool):
        if objective != "gur":
            useless = [f"--{entry.name}" for entry in fields(self) if getattr(self, entry.name) != entry.default]
            if useless:
                raise InputError(f"{', '.join(useless)}: only --objective gur has this; leave it out.")
            return
        _check_choice("pooling", self.pooling, (None, *POOLINGS))
        for strategy in self.pair_strategies or []:
            _check_choice("pair_strategies", strategy, STRATEGIES)
        _check_choice("span_lengths", self.span_lengths, (None, *SPAN_LENGTHS))
        _check_choice("projection_init", self.projection_init, (None, "random", "identity"))
        if self.projection_init == "identity" and not from_scratch:
            raise InputError("--projection_init identity is for models from scratch: give --config_name.")
        if self.contrastive_loss_weight == 0 and self.lm_loss_weight == 0:
            raise InputError("--contrastive_loss_weight and --lm_loss_weight are both 0: nothing would be trained.")
        for name in ("contrastive_loss_weight", "lm_loss_weight"):
            if (getattr(self, name) or 0.0) < 0.0:
                raise InputError(f"--{name} is 0 or more, not {getattr(self, name)}.")
        for name in ("projection_dim", "contrastive_temperature", "contrastive_mini_batch_size"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise InputError(f"--{name} is above 0, not {getattr(self, name)}.")
        if self.repeated_token_power is not None and not 0.0 <= self.repeated_token_power <= 1.0:
            raise InputError(f"--repeated_token_power is between 0 and 1, not {self.repeated_token_power}.")
        if self.encode_max_seq_length is not None and self.encode_max_seq_length < 8:
            raise InputError(f"--encode_max_seq_length is 8 or more, not {self.encode_max_seq_length}.")
        if self.mask_rate is not None and not 0.0 < self.mask_rate < 1.0:
            raise InputError(f"--mask_rate is above 0 and below 1, not {self.mask_rate}.")
