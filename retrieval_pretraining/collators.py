"""Tokenised passages in, padded and masked batches out.

A feature is a dict with `input_ids` and `word_ids` (one per token, -1 at special tokens) as `passages.py` makes them.
Other columns are ignored.
"""

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from . import masking
from .errors import InputError

logger = logging.get_logger(__name__)

IGNORED = -100


class MaskedLMCollator:
    """Batches for masked language modelling: `input_ids`, `attention_mask`, `labels`, all `[B, L]`.

    Args:
        tokenizer: gives the mask and padding tokens, and which ids are special.
        encoder_mlm_probability: share of the tokens that the encoder must predict.
        seed: of the masks. `set_epoch` changes them from epoch to epoch; an evaluation stays at 0.
        pad_to_multiple_of: rounds the length of a batch up.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        encoder_mlm_probability: float = 0.3,
        seed: int = 0,
        pad_to_multiple_of: int | None = None,
    ):
        _check_probability("encoder_mlm_probability", encoder_mlm_probability)
        self.encoder_mlm_probability = encoder_mlm_probability
        self.seed = seed
        self.pad_to_multiple_of = pad_to_multiple_of
        self.mask_token_id, self.pad_token_id = tokenizer.mask_token_id, tokenizer.pad_token_id
        special = np.array(sorted(set(tokenizer.all_special_ids)))
        self.vocab_size = len(tokenizer)
        self.ordinary_ids = np.setdiff1d(np.arange(self.vocab_size), special)
        self.special_ids = special
        # In shared memory, so that workers that outlive an epoch hear of the next one.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int):
        self._epoch.fill_(epoch)

    def __call__(self, features: list[dict]) -> dict[str, torch.Tensor]:
        input_ids, word_ids, real = self._pad(features)
        generator = masking.TextGenerator(input_ids, real, seed=self.seed, epoch=int(self._epoch))
        batch = self._masked(input_ids, word_ids, real, generator)
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def _masked(self, input_ids, word_ids, real, generator) -> dict[str, np.ndarray]:
        masked, labels = self._mask(input_ids, word_ids, self.encoder_mlm_probability, generator)
        return {"input_ids": masked, "attention_mask": real.astype(np.int64), "labels": labels}

    def _mask(self, input_ids, word_ids, probability, generator) -> tuple[np.ndarray, np.ndarray]:
        mask = masking.whole_word_mask(word_ids, probability, generator)
        replaced = masking.replace_masked(
            input_ids, mask, generator, mask_token_id=self.mask_token_id, ordinary_ids=self.ordinary_ids
        )
        return replaced, np.where(mask, input_ids, IGNORED)

    def _pad(self, features: list[dict]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if "input_ids" not in features[0]:
            raise InputError(
                f"The collator takes tokenised passages (`input_ids`, `word_ids`), not columns {sorted(features[0])}: "
                "tokenise the dataset with `retrieval_pretraining.passages.tokenize_documents` or give raw text to "
                "PretrainingTrainer, which does."
            )
        lengths = np.array([len(feature["input_ids"]) for feature in features])
        length = int(lengths.max())
        if self.pad_to_multiple_of:
            length = -(-length // self.pad_to_multiple_of) * self.pad_to_multiple_of
        real = np.arange(length) < lengths[:, None]

        def padded(rows, value):
            array = np.full(real.shape, value, dtype=np.int64)
            array[real] = np.concatenate([np.asarray(row) for row in rows])
            return array

        input_ids = padded([feature["input_ids"] for feature in features], self.pad_token_id)
        if "word_ids" in features[0]:
            word_ids = padded([feature["word_ids"] for feature in features], -1)
        else:
            logger.warning_once("The passages have no `word_ids`: every token is masked as a word of its own.")
            word_ids = np.broadcast_to(np.arange(length), real.shape).copy()
            word_ids[~real] = -1
        word_ids[np.isin(input_ids, self.special_ids)] = -1
        return input_ids, word_ids, real


class RetroMAECollator(MaskedLMCollator):
    """Batches for RetroMAE and DupMAE: what `RetroMAEForPreTraining` takes.

    To `MaskedLMCollator` it adds `decoder_input_ids`, `decoder_labels` `[B, L]` and, with enhanced decoding,
    `decoder_attention_mask` `[B, L, L]` bool; with `bow_loss_weight` above 0 also `bag_of_words` `[B, V]`.

    Args:
        config: the model's `RetroMAEConfig`: it says how the decoder works (`enhanced_decoding`,
            `decoder_prediction_rate`, `bow_loss_weight`).
        decoder_mlm_probability: share of the words that are hidden from each decoder row.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, config, *, decoder_mlm_probability: float = 0.5, **arguments
    ):
        super().__init__(tokenizer, **arguments)
        _check_probability("decoder_mlm_probability", decoder_mlm_probability)
        self.decoder_mlm_probability = decoder_mlm_probability
        self.enhanced_decoding = config.enhanced_decoding
        self.decoder_prediction_rate = config.decoder_prediction_rate
        self.with_bag_of_words = config.bow_loss_weight > 0.0

    def _masked(self, input_ids, word_ids, real, generator):
        batch = super()._masked(input_ids, word_ids, real, generator)
        content = word_ids >= 0
        if self.enhanced_decoding:
            predicted = masking.sample_positions(content, self.decoder_prediction_rate, generator)
            batch["decoder_input_ids"] = input_ids
            batch["decoder_labels"] = np.where(predicted, input_ids, IGNORED)
            batch["decoder_attention_mask"] = masking.decoder_visibility(
                word_ids, real, self.decoder_mlm_probability, generator
            )
        else:
            batch["decoder_input_ids"], batch["decoder_labels"] = self._mask(
                input_ids, word_ids, self.decoder_mlm_probability, generator
            )
        if self.with_bag_of_words:
            batch["bag_of_words"] = masking.bag_of_words(input_ids, content, self.vocab_size)
        return batch


def _check_probability(name: str, value: float):
    if not 0.0 < value <= 1.0:
        raise InputError(f"`--{name}` is above 0 and at most 1, not {value}.")
