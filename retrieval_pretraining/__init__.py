"""Retrieval-oriented pre-training from raw text. Importing it lets the Auto classes load its models with no flag."""

from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining

from configuration_retromae import RetroMAEConfig
from modeling_retromae import RetroMAEForMaskedLM, RetroMAEForPreTraining, RetroMAEModel

__version__ = "0.1.0"

__all__ = ["RetroMAEConfig", "RetroMAEForMaskedLM", "RetroMAEForPreTraining", "RetroMAEModel"]

AutoConfig.register(RetroMAEConfig.model_type, RetroMAEConfig, exist_ok=True)
AutoModel.register(RetroMAEConfig, RetroMAEModel, exist_ok=True)
AutoModelForMaskedLM.register(RetroMAEConfig, RetroMAEForMaskedLM, exist_ok=True)
AutoModelForPreTraining.register(RetroMAEConfig, RetroMAEForPreTraining, exist_ok=True)
