"""Tokenised texts in, padded and masked batches out.

A passage is a dict with `input_ids` and `word_ids` (one per token, -1 at special tokens) as `passages.py` makes them;
a pair has `input_ids_pair` and `word_ids_pair` too (`tokenized_pairs.py`). Other columns are ignored.
"""

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from . import masking, span_masking
from .errors import InputError
from .passages import check_pair_tokenizer, sentinel_ids
from .span_masking import IGNORED

logger = logging.get_logger(__name__)


class _Collator:
    """What all collators share: padding, which tokens are special, and the epoch that the masks are drawn for."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, seed: int, pad_to_multiple_of: int | None):
        self.seed = seed
        self.pad_to_multiple_of = pad_to_multiple_of
        self.pad_token_id = tokenizer.pad_token_id
        self.special_ids = np.array(sorted(set(tokenizer.all_special_ids)))
        # In shared memory, so that workers that outlive an epoch hear of the next one.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int):
        self._epoch.fill_(epoch)

    def _generator(self, input_ids: np.ndarray, real: np.ndarray, copy: np.ndarray | None = None):
        return masking.TextGenerator(input_ids, real, seed=self.seed, epoch=int(self._epoch), copy_B=copy)

    def _pad(self, rows: list, word_rows: list | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, word ids (every token a word where there are none) and what is not padding, all `[B, L]`."""
        lengths = np.array([len(row) for row in rows])
        length = int(lengths.max())
        if self.pad_to_multiple_of:
            length = -(-length // self.pad_to_multiple_of) * self.pad_to_multiple_of
        real = np.arange(length) < lengths[:, None]

        def padded(rows, value):
            array = np.full(real.shape, value, dtype=np.int64)
            array[real] = np.concatenate([np.asarray(row) for row in rows])
            return array

        input_ids = padded(rows, self.pad_token_id)
        if word_rows is not None:
            word_ids = padded(word_rows, -1)
        else:
            logger.warning_once("The passages have no `word_ids`: every token is masked as a word of its own.")
            word_ids = np.broadcast_to(np.arange(length), real.shape).copy()
            word_ids[~real] = -1
        word_ids[np.isin(input_ids, self.special_ids)] = -1
        return input_ids, word_ids, real


class MaskedLMCollator(_Collator):
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
        super().__init__(tokenizer, seed=seed, pad_to_multiple_of=pad_to_multiple_of)
        _check_probability("encoder_mlm_probability", encoder_mlm_probability)
        self.encoder_mlm_probability = encoder_mlm_probability
        self.mask_token_id = tokenizer.mask_token_id
        self.vocab_size = len(tokenizer)
        self.ordinary_ids = np.setdiff1d(np.arange(self.vocab_size), self.special_ids)

    def __call__(self, features: list[dict]) -> dict[str, torch.Tensor]:
        if "input_ids" not in features[0]:
            raise InputError(
                f"The collator takes tokenised passages (`input_ids`, `word_ids`), not columns {sorted(features[0])}: "
                "tokenise the dataset with `retrieval_pretraining.passages.tokenize_documents` or give raw text to "
                "PretrainingTrainer, which does."
            )
        word_ids = [row["word_ids"] for row in features] if "word_ids" in features[0] else None
        input_ids, word_ids, real = self._pad([row["input_ids"] for row in features], word_ids)
        batch = self._masked(input_ids, word_ids, real, self._generator(input_ids, real))
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


class PairCollator(_Collator):
    """Batches of pairs for GUR: what `GURForPreTraining` takes.

    A feature is one whole pair, so that shuffling, the size of a batch, workers and processes cannot part its texts.
    Of N pairs the rows 2k and 2k + 1 are the k-th: `input_ids`, `attention_mask` `[2N, L]` with masked spans, `labels`
    `[2N, T]`. `text_keys` `[2N]` tells equal texts, `document_keys` `[N]` (where the features have `document_key`)
    texts of one document, -1 where it is not known; both int64. The masks of a pair's two texts are independent, even
    where the texts are equal.

    Args:
        tokenizer: gives eos, padding and the sentinels, `<extra_id_0>` and so on.
        mask_rate: share of the tokens, or of the words, that is masked.
        span_lengths: law of the span lengths, a name in `SPAN_LENGTHS`: hump_geometric, geometric, uniform.
        whole_words: whether words are masked with all their pieces.
        seed, pad_to_multiple_of: as in `MaskedLMCollator`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        mask_rate: float = 0.15,
        span_lengths: str = "hump_geometric",
        whole_words: bool = False,
        seed: int = 0,
        pad_to_multiple_of: int | None = None,
    ):
        check_pair_tokenizer(tokenizer)
        super().__init__(tokenizer, seed=seed, pad_to_multiple_of=pad_to_multiple_of)
        if not 0.0 < mask_rate < 1.0:
            raise InputError(f"`--mask_rate` is above 0 and below 1, not {mask_rate}.")
        if span_lengths not in span_masking.SPAN_LENGTHS:
            names = ", ".join(span_masking.SPAN_LENGTHS)
            raise InputError(f"`--span_lengths` is one of {names}, not {span_lengths}.")
        self.mask_rate = mask_rate
        self.span_lengths = span_lengths
        self.whole_words = whole_words
        self.eos_token_id = tokenizer.eos_token_id
        self.sentinel_ids = np.array(sentinel_ids(tokenizer))

    def __call__(self, features: list[dict]) -> dict[str, torch.Tensor]:
        if missing := [name for name in ("input_ids", "input_ids_pair") if name not in features[0]]:
            raise InputError(
                f"The collator takes tokenised pairs, and {', '.join(missing)} is not among the columns "
                f"{sorted(features[0])}: make them with `retrieval_pretraining.tokenized_pairs.tokenize_pairs`."
            )
        rows = [row[name] for row in features for name in ("input_ids", "input_ids_pair")]
        words = None
        if "word_ids" in features[0]:
            words = [row[name] for row in features for name in ("word_ids", "word_ids_pair")]
        input_ids, word_ids, real = self._pad(rows, words)
        masked, begins = span_masking.span_mask(
            word_ids,
            self.mask_rate,
            span_masking.SPAN_LENGTHS[self.span_lengths],
            self._generator(input_ids, real, np.arange(len(rows)) % 2),
            max_spans=len(self.sentinel_ids),
            whole_words=self.whole_words,
        )
        inputs, shown, labels = span_masking.corrupt_spans(
            input_ids,
            real,
            masked,
            begins,
            sentinel_ids=self.sentinel_ids,
            eos_token_id=self.eos_token_id,
            pad_token_id=self.pad_token_id,
            pad_to_multiple_of=self.pad_to_multiple_of or 1,
        )
        batch = {
            "input_ids": inputs,
            "attention_mask": shown.astype(np.int64),
            "labels": labels,
            "text_keys": masking.text_keys(input_ids, real),
        }
        if "document_key" in features[0]:
            keys = (row["document_key"] for row in features)
            # None is a NaN where numpy formats the column.
            keys = [-1 if key is None or key != key else key for key in keys]
            batch["document_keys"] = np.array(keys, dtype=np.int64)
        return {name: torch.from_numpy(array) for name, array in batch.items()}


def _check_probability(name: str, value: float):
    if not 0.0 < value <= 1.0:
        raise InputError(f"`--{name}` is above 0 and at most 1, not {value}.")
