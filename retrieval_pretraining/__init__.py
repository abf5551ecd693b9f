"""Retrieval-oriented pre-training from raw text. Importing it lets the Auto classes load its models with no flag."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from configuration_gur import GURConfig
from configuration_retromae import RetroMAEConfig
from modeling_gur import GURForConditionalGeneration, GURForPreTraining, GURForSequenceClassification, GURModel
from modeling_retromae import RetroMAEForMaskedLM, RetroMAEForPreTraining, RetroMAEModel

__version__ = "0.1.0"

__all__ = [
    "GURConfig",
    "GURForConditionalGeneration",
    "GURForPreTraining",
    "GURForSequenceClassification",
    "GURModel",
    "RetroMAEConfig",
    "RetroMAEForMaskedLM",
    "RetroMAEForPreTraining",
    "RetroMAEModel",
]

AutoConfig.register(RetroMAEConfig.model_type, RetroMAEConfig, exist_ok=True)
AutoModel.register(RetroMAEConfig, RetroMAEModel, exist_ok=True)
AutoModelForMaskedLM.register(RetroMAEConfig, RetroMAEForMaskedLM, exist_ok=True)
AutoModelForPreTraining.register(RetroMAEConfig, RetroMAEForPreTraining, exist_ok=True)

AutoConfig.register(GURConfig.model_type, GURConfig, exist_ok=True)
AutoModel.register(GURConfig, GURModel, exist_ok=True)
AutoModelForPreTraining.register(GURConfig, GURForPreTraining, exist_ok=True)
AutoModelForSeq2SeqLM.register(GURConfig, GURForConditionalGeneration, exist_ok=True)
AutoModelForSequenceClassification.register(GURConfig, GURForSequenceClassification, exist_ok=True)
