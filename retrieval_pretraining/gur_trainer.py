"""The trainer of GUR: negatives from all processes, and contrastive batches larger than memory."""

from contextlib import nullcontext

import torch
from transformers import TrainingArguments
from transformers.utils import logging

from .errors import InputError
from .export import write_sentence_vector_files
from .losses import CachedContrast, allowed_negatives, contrastive_loss_over_processes
from .trainer import PretrainingTrainer

logger = logging.get_logger(__name__)

KEYS = ("text_keys", "document_keys")


class GURTrainer(PretrainingTrainer):
    """`PretrainingTrainer` for `GURForPreTraining`.

    A pair's negatives are the other pairs of the batch of all processes together, except those that share a text or a
    document with it; the log has their number a step as `excluded_negatives`, counted in both directions. Gradient
    accumulation adds no negatives, `contrastive_mini_batch_size` is how to have more. The temperature, where it is
    learned, is part of the model.

    In an evaluation the negatives are those of the process's own batch: losses compare between evaluations with equal
    `per_device_eval_batch_size` and number of processes. Retrieval, if asked for, searches with the sentence vectors.

    Batches hold what the model takes and, to tell negatives, `text_keys` and `document_keys` (see `PairCollator`).

    Args, beside those of `PretrainingTrainer`:
        contrastive_mini_batch_size: pairs that go through the model at once. With it `per_device_train_batch_size` may
            be in the thousands: memory holds the activations of so many pairs, while all pairs of the batch are
            negatives, and the LM loss comes along. Gradients are those of the batch in one piece; the encoder runs
            forward twice. By default a batch goes through whole.

    Example:

    ```python
    >>> arguments = TrainingArguments("out", per_device_train_batch_size=4096, bf16=True)
    >>> GURTrainer(
    ...     model, arguments, train_dataset=pairs, processing_class=tokenizer, contrastive_mini_batch_size=64
    ... ).train()
    ```
    """

    step_counts = ("excluded_negatives",)
    retrieval_pooling = "pooler_output"
    sampling_strategy = "random"

    def __init__(
        self,
        model=None,
        args: TrainingArguments | None = None,
        *positional,
        contrastive_mini_batch_size: int | None = None,
        **arguments,
    ):
        args = TrainingArguments("tmp_trainer") if args is None else args
        refuse_fp16(args, model)
        try:
            model.config.check_ranges()  # weights may have been set since the model was made
        except ValueError as error:
            raise InputError(str(error)) from error
        if contrastive_mini_batch_size is not None and contrastive_mini_batch_size < 1:
            raise InputError(f"`contrastive_mini_batch_size` is 1 or more, not {contrastive_mini_batch_size}.")
        if contrastive_mini_batch_size is not None and args.deepspeed:
            raise InputError("`contrastive_mini_batch_size` does not work with DeepSpeed: leave one of them out.")
        if contrastive_mini_batch_size is not None and "contrastive_loss" not in model.loss_weights:
            logger.warning("`contrastive_mini_batch_size` has no effect: `contrastive_loss_weight` is 0.")
            contrastive_mini_batch_size = None
        self.contrastive_mini_batch_size = contrastive_mini_batch_size
        self._cache: tuple[CachedContrast, int] | None = None  # of the batch in work, and the number of its mini-batch
        if args.ddp_find_unused_parameters is None and len(model.loss_weights) < 2:
            args.ddp_find_unused_parameters = True  # decoder or projection have no part in any step
        super().__init__(model, args, *positional, **arguments)

    def _tokenise_columns(self, dataset, columns, tokenizer, description):
        if not {"text", "text_pair"} <= set(columns):
            raise InputError(f"The {description} dataset has no columns `text` and `text_pair`, but {columns}.")
        from .tokenized_pairs import tokenize_pairs

        return tokenize_pairs(dataset, tokenizer, max_seq_length=self.max_seq_length)

    def _write_sentence_transformers_files(self, output_dir):
        write_sentence_vector_files(output_dir, max_seq_length=self.max_seq_length)

    # --- The loss -------------------------------------------------------------------------------------------------

    def _forward(self, model, inputs):
        inputs = dict(inputs)
        keys = {name: inputs.pop(name) for name in KEYS if name in inputs}
        if "contrastive_loss" not in self.model.loss_weights:
            return model(**inputs)
        if self._cache is not None and model.training:
            cache, number = self._cache
            outputs = model(**inputs)
            loss = cache.loss_of(number, outputs["sentence_embedding"], self.model.temperature)
            # A batch's count comes with the first of its mini-batches.
            found = (loss, cache.accuracy, cache.excluded * (number == 0))
        elif self.accelerator.num_processes > 1 and model.training:
            outputs = model(**inputs)
            found = contrastive_loss_over_processes(outputs["sentence_embedding"], self.model.temperature, **keys)
        else:
            mask, excluded = allowed_negatives(**keys) if keys else (None, None)
            outputs = model(**inputs, negatives_mask=mask)
            found = (outputs["contrastive_loss"], outputs["contrastive_accuracy"], excluded)
        names = ("contrastive_loss", "contrastive_accuracy", *self.step_counts)
        for name, value in zip(names, found, strict=True):
            outputs[name] = value
        return outputs

    def training_step(self, model, inputs, num_items_in_batch=None):
        if self.contrastive_mini_batch_size is None:
            return super().training_step(model, inputs, num_items_in_batch)
        model.train()
        inputs = dict(self._prepare_inputs(inputs))
        totals = self.model.loss_item_counts(inputs) if num_items_in_batch is None else num_items_in_batch
        keys = {name: inputs.pop(name) for name in KEYS if name in inputs}
        texts = 2 * self.contrastive_mini_batch_size
        columns = {name: values.split(texts) for name, values in inputs.items()}
        mini_batches = [dict(zip(columns, part)) for part in zip(*columns.values(), strict=True)]

        def encode(mini_batch):
            # Without labels the decoder does not run.
            return model(mini_batch["input_ids"], mini_batch.get("attention_mask"))["sentence_embedding"]

        with self.accelerator.no_sync(model):
            cache = CachedContrast(encode, mini_batches, self.model.temperature, **keys)
        loss = 0.0
        for number, mini_batch in enumerate(mini_batches):
            self._cache = (cache, number)
            cache.repeat_dropout(number)
            # Processes exchange gradients once, when all of them are there.
            last = number == len(mini_batches) - 1
            with nullcontext() if last else self.accelerator.no_sync(model):
                loss = loss + super().training_step(model, mini_batch, totals)
        self._cache = None
        return loss


def refuse_fp16(args: TrainingArguments, model=None):
    """Raises `InputError` where a T5 would train in fp16, in which its states overflow (transformers#5651, #9295)."""
    if args.fp16 or (model is not None and model.dtype == torch.float16):
        raise InputError("GUR does not train in fp16, in which T5 overflows: use --bf16 True, or neither.")
