"""A Trainer for models with several named losses.

What a model needs: `loss_weights` (name -> weight; its `loss` is their weighted sum), `loss_item_counts(inputs)`
(name -> how many items that loss is the mean of) and an output with one field per name, with `..._accuracy` beside
`..._loss` where there is one. Everything else - normalisation over accumulation steps and processes, logs by part,
evaluation, saving - follows from that, for any objective.
"""

import copy
import json
import signal
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput
from transformers.utils import logging

from .collators import MaskedLMCollator, PairCollator, RetroMAECollator
from .errors import InputError
from .export import write_sentence_transformers_files
from .hub import HubRepository
from .hub_pushes import HubPushes
from .length_batches import EpochSampler, length_grouped_order, padding_report, random_order, text_lengths
from .loss_sums import LossSums
from .passages import tokenize_documents
from .run_folder import last_complete_checkpoint
from .streaming import PassageStream, StreamBatches, stream_documents

logger = logging.get_logger(__name__)


class NonFiniteLossError(RuntimeError):
    """The loss is no number any more; the message names the step and the last good checkpoint."""


class PretrainingTrainer(HubPushes, Trainer):
    """`Trainer` for RetroMAE, DupMAE and their MLM control.

    Args, beside those of `Trainer`:
        max_seq_length: raw text is cut to this many tokens a passage; defaults to what model and tokenizer take.
        retrieval_data: a `RetrievalData` that each evaluation searches with the sentence vectors; adds
            `eval_retrieval_ndcg@10` and so on to its metrics.
        hub_repository: what `hub.open_repository` found; by default `args.push_to_hub` opens it.

    Default `TrainingArguments` do. Datasets may hold raw text (`text`, other columns are ignored; long texts become
    several passages) or passages from `passages.tokenize_documents`. Without a collator the one for the model is made.
    """

    # Losses come normalised over the whole accumulated batch of all processes (transformers 5.20 and up).
    loss_is_scaled_for_ga = True

    # For subclasses: counts in the output of `_forward`, summed over micro-batches and processes and logged as the
    # mean of a step, and how `encode_texts` takes the sentence vectors.
    step_counts: tuple[str, ...] = ()
    retrieval_pooling = "cls"

    # The order of the examples where the arguments leave it open, as those of `run_pretrain.py` do.
    sampling_strategy = "group_by_length"

    def __init__(
        self,
        model=None,
        args: TrainingArguments | None = None,
        data_collator=None,
        train_dataset=None,
        eval_dataset=None,
        processing_class=None,
        *,
        max_seq_length: int | None = None,
        retrieval_data=None,
        hub_repository: HubRepository | None = None,
        callbacks: list[TrainerCallback] | None = None,
        **arguments,
    ):
        args = TrainingArguments("tmp_trainer") if args is None else args
        args.remove_unused_columns = False  # the collator needs columns that `forward` does not name
        if args.train_sampling_strategy is None:
            args.train_sampling_strategy = self.sampling_strategy
        args.logging_nan_inf_filter = False  # ours names the step, and does not wait for the GPU at each
        # Batches differ in length: each process reads its own, none is cut out of a larger one.
        args.accelerator_config.dispatch_batches = False
        if args.ddp_find_unused_parameters is None:
            args.ddp_find_unused_parameters = False  # every parameter has a part in every step
        use_one_gpu(args)
        if processing_class is None and (data_collator is None or not hasattr(model, "config")):
            raise InputError("PretrainingTrainer needs the tokenizer: give `processing_class`.")
        self.retrieval_data = retrieval_data
        self.hub_repository = hub_repository
        self.max_seq_length = max_seq_length or _longest_input(model, processing_class)
        if data_collator is None:
            data_collator = default_collator(model, processing_class, seed=args.seed)
        train_dataset = self._tokenised(train_dataset, processing_class, "train")
        if isinstance(eval_dataset, dict):
            eval_dataset = {name: self._tokenised(data, processing_class, name) for name, data in eval_dataset.items()}
        else:
            eval_dataset = self._tokenised(eval_dataset, processing_class, "eval")
        use_cache = getattr(getattr(model, "config", None), "use_cache", None)
        super().__init__(
            model, args, data_collator, train_dataset, eval_dataset, processing_class, callbacks=callbacks, **arguments
        )
        if use_cache is not None:  # turned off, it would be saved so: a GUR read again would write many times slower
            self.model.config.use_cache = use_cache
        self.model_accepts_loss_kwargs = True  # the same statement as `loss_is_scaled_for_ga` for older versions
        self._sums = LossSums(self.model, args.device, self.step_counts)
        self._first_bad_step = torch.full((), -1, dtype=torch.long, device=args.device)
        self._sampler: EpochSampler | None = None
        self._stream: StreamBatches | None = None
        self.add_callback(_EpochOfMasks(self))

    def _tokenised(self, dataset, tokenizer, description: str):
        if isinstance(dataset, list) and dataset and isinstance(dataset[0], dict):
            from datasets import Dataset

            dataset = Dataset.from_list(dataset)
        columns = getattr(dataset, "column_names", None)
        streamed = hasattr(dataset, "column_names") and not hasattr(dataset, "__len__")
        if streamed and not columns:
            columns = list(next(iter(dataset), {}))
        if not columns:
            return dataset
        if "input_ids" not in columns:
            dataset = self._tokenise_columns(dataset, columns, tokenizer, description)
        if streamed:
            return dataset if isinstance(dataset, PassageStream) else PassageStream(dataset)
        return dataset.with_format("numpy") if hasattr(dataset, "with_format") else dataset

    def _tokenise_columns(self, dataset, columns: list[str], tokenizer, description: str):
        if "text" not in columns:
            raise InputError(f"The {description} dataset has neither `text` nor `input_ids`, but {columns}.")
        tokenise = tokenize_documents if hasattr(dataset, "__len__") else stream_documents
        return tokenise(dataset, tokenizer=tokenizer, max_seq_length=self.max_seq_length)

    # --- The order of the examples ---------------------------------------------------------------------------------

    def _get_train_sampler(self, train_dataset=None):
        dataset = self.train_dataset if train_dataset is None else train_dataset
        strategy = self.args.train_sampling_strategy
        if strategy not in ("random", "group_by_length") or not hasattr(dataset, "__len__"):
            return super()._get_train_sampler(train_dataset)
        # In place of the library's: theirs for like lengths draws from the global generator, and with accelerate 1.3
        # that for random order hears nothing of the epoch that a run is resumed in.
        order = partial(random_order, len(dataset), seed=self._data_seed)
        if strategy == "group_by_length":
            lengths = text_lengths(dataset, length_column_name=self.args.length_column_name).max(axis=1)
            order = partial(length_grouped_order, lengths, self._step_batch_size, seed=self._data_seed)
        self._sampler = EpochSampler(len(dataset), lambda epoch: order(epoch=epoch))
        return self._sampler

    @property
    def _step_batch_size(self) -> int:
        return self._train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size

    @property
    def _data_seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    def padding_report(self) -> str:
        """One line on how much of the training batches is padding; the dataset is not a stream."""
        return padding_report(
            text_lengths(self.train_dataset, length_column_name=self.args.length_column_name),
            batch_size=self._train_batch_size,
            step_batch_size=self._step_batch_size,
            seed=self._data_seed,
            group_by_length=self.args.train_sampling_strategy == "group_by_length",
        )

    def get_train_dataloader(self) -> DataLoader:
        self._stream = None
        if not isinstance(self.train_dataset, PassageStream):
            return super().get_train_dataloader()
        args = self.args
        self._stream = StreamBatches(
            self.train_dataset,
            self._train_batch_size,
            seed=self._data_seed,
            num_streams=max(1, args.dataloader_num_workers),
            process_index=args.process_index,
            num_processes=args.world_size,
            group_by_length=args.train_sampling_strategy == "group_by_length",
            shuffle=args.train_sampling_strategy != "sequential",
            drop_last=args.dataloader_drop_last,
            show_progress=args.process_index == 0 and not args.disable_tqdm,
        )
        # Not prepared by accelerate, which would divide it among the processes once more.
        return self._stream.dataloader(
            args.max_steps * args.gradient_accumulation_steps,
            self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
        )

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        try:
            batches, counts = super().get_batch_samples(epoch_iterator, num_batches, device)
        except InputError as error:
            # From a worker it comes as the text of a traceback, of which our sentence is the end.
            raise InputError(str(error).rpartition("InputError: ")[2].strip()) from error
        if self._stream is not None:
            for batch in batches:
                self._stream.note(batch)
        return batches, counts

    def _save_rng_state(self, output_dir):
        super()._save_rng_state(output_dir)
        if self._stream is not None:
            self._stream.save(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if self._stream is not None and checkpoint is not None:
            self._stream.load(checkpoint)

    # --- The loss -------------------------------------------------------------------------------------------------

    def _get_num_items_in_batch(self, batch_samples: list, device) -> dict[str, torch.Tensor] | None:
        """How many items each named loss has in all micro-batches of this step, on all processes."""
        if not batch_samples:
            return None
        counts = [self.model.loss_item_counts(batch) for batch in batch_samples]
        names = list(self.model.loss_weights)
        total = torch.stack([sum(count[name] for count in counts) for name in names]).to(device)
        total = self.accelerator.reduce(total, reduction="sum")
        return dict(zip(names, total, strict=True))

    def _forward(self, model, inputs):
        """The model's output, with every named loss in it."""
        return model(**inputs)

    def compute_loss(self, model, inputs, return_outputs: bool = False, num_items_in_batch=None):
        outputs = self._forward(model, inputs)
        counts = self.model.loss_item_counts(inputs)
        totals = counts if num_items_in_batch is None else num_items_in_batch
        shares = {name: counts[name] / totals[name].clamp(min=1) for name in self.model.loss_weights}
        loss = sum(weight * shares[name] * outputs[name] for name, weight in self.model.loss_weights.items())
        if model.training:
            self._sums.add(outputs, shares)
            self._note_non_finite(loss.detach())
        # Gradients are averaged over processes, while each process holds its share of one mean.
        loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def _note_non_finite(self, loss: torch.Tensor):
        step = self.state.global_step + 1
        bad = ~torch.isfinite(loss) & (self._first_bad_step < 0)
        self._first_bad_step = torch.where(bad, torch.full_like(self._first_bad_step, step), self._first_bad_step)
        if loss.device.type == "cpu":  # asking costs nothing here, and no step is taken on a bad gradient
            self._stop_if_non_finite()

    def _stop_if_non_finite(self, step: int | None = None):
        """Raises if a loss was not finite. With a `step`, the weights that it left are looked at as well, by all
        processes together; a gradient that overflows spoils them after a loss that was still good."""
        first = self._first_bad_step
        if step is not None:
            finite = torch.stack([parameter.detach().isfinite().all() for parameter in self.model.parameters()]).all()
            first = torch.where(finite | (first >= 0), first, torch.full_like(first, step))
            first = self.accelerator.gather(first[None]).max()
        step = int(first)
        if step >= 0:
            checkpoint = last_complete_checkpoint(self.args.output_dir)
            advice = f"the last good checkpoint is {checkpoint}" if checkpoint else "no checkpoint was saved before"
            raise NonFiniteLossError(
                f"The loss is not finite at step {step}; {advice}. Start again from it with a lower --learning_rate, "
                "a lower --max_grad_norm, or without fp16."
            )

    # --- Logs -----------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None):
        if "loss" in logs:
            self._stop_if_non_finite()
            logs.update(self._sums.drain(self.state.global_step, self.accelerator))
        elif "train_loss" in logs:
            self._stop_if_non_finite()
            self._sums.drain(self.state.global_step, self.accelerator)
            logs.update({f"train_{name}": value for name, value in self._sums.run_averages().items()})
        super().log(logs, start_time)

    # --- Evaluation -----------------------------------------------------------------------------------------------

    def get_eval_dataloader(self, eval_dataset=None) -> DataLoader:
        """Every passage once: each process takes its share of them, and the masks are the same each time."""
        if eval_dataset is None or isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset if eval_dataset is None else self.eval_dataset[eval_dataset]
        if eval_dataset is None:
            raise InputError("There is nothing to evaluate on: give `eval_dataset`.")
        eval_dataset = self._tokenised(eval_dataset, self.processing_class, "eval")
        if not hasattr(eval_dataset, "__len__"):
            raise InputError("The evaluation text has no length: load it without streaming.")
        collator = self.data_collator
        if hasattr(collator, "set_epoch"):
            collator = copy.copy(collator)
            collator._epoch = torch.zeros((), dtype=torch.int64)  # its own, which stays where it is
        return DataLoader(
            eval_dataset,
            batch_size=self.args.eval_batch_size,
            sampler=range(self.args.process_index, len(eval_dataset), self.args.world_size),
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ) -> EvalLoopOutput:
        """Each named loss and accuracy as the mean over its items, `loss` as their weighted sum; then retrieval."""
        model = self._wrap_model(self.model, training=False)
        if len(self.accelerator._models) == 0 and model is self.model:
            model = self.accelerator.prepare_model(model, evaluation_mode=True)
        model.eval()
        self.callback_handler.eval_dataloader = dataloader
        sums, names = LossSums(self.model, self.args.device), list(self.model.loss_weights)
        totals = torch.zeros(len(names) + 1, device=self.args.device, dtype=torch.long)  # items of each, and passages
        for inputs in dataloader:
            inputs = self._prepare_inputs(inputs)
            with torch.no_grad(), self.compute_loss_context_manager():
                outputs = self._forward(model, inputs)
            counts = self.model.loss_item_counts(inputs)
            sums.add(outputs, counts)
            totals[:-1] += torch.stack([counts[name] for name in names])
            totals[-1] += len(inputs["input_ids"])
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        totals = self.accelerator.reduce(totals, reduction="sum").tolist()
        metrics = sums.item_averages(dict(zip(names, totals[:-1], strict=True)), self.accelerator)
        metrics["loss"] = sum(weight * metrics[name] for name, weight in self.model.loss_weights.items())
        if self.retrieval_data is not None:
            from .retrieval_evaluation import evaluate_retrieval

            options = {"max_seq_length": self.max_seq_length, "pooling": self.retrieval_pooling, "progress": False}
            scores = evaluate_retrieval(self.model.base_model, self.processing_class, self.retrieval_data, **options)
            metrics.update({f"retrieval_{name}": value for name, value in scores.items()})
        return EvalLoopOutput(
            predictions=None,
            label_ids=None,
            metrics={f"{metric_key_prefix}_{name}": value for name, value in metrics.items()},
            num_samples=totals[-1],
        )

    # --- Saving ---------------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model, trial):
        self._stop_if_non_finite(self.state.global_step)
        super()._save_checkpoint(model, trial)

    def _save(self, output_dir: str | None = None, state_dict=None):
        """Weights, code, tokenizer, what sentence-transformers reads, and the arguments as JSON: no pickle."""
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            output_dir = Path(output_dir or self.args.output_dir)
            (output_dir / "training_args.bin").unlink(missing_ok=True)
            arguments = json.loads(self.args.to_json_string())
            (output_dir / "training_args.json").write_text(json.dumps(arguments, indent=2), encoding="utf-8")
            self._write_sentence_transformers_files(output_dir)

    def _write_sentence_transformers_files(self, output_dir: Path):
        write_sentence_transformers_files(output_dir, max_seq_length=self.max_seq_length)


class _EpochOfMasks(TrainerCallback):
    """Tells the collator which epoch it is, and starts the sums of the log where the run starts or resumes."""

    def __init__(self, trainer: PretrainingTrainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        self.trainer._sums = LossSums(self.trainer.model, args.device, self.trainer.step_counts)
        self.trainer._sums.start(state.global_step)
        self.trainer._first_bad_step.fill_(-1)
        # Passes that are behind a resumed run. `state.epoch` is a fraction within one, may end a rounding error below
        # a whole number, and of text whose length nobody knows, it says nothing. (`PassageStream` counts its own.)
        passes = (state.epoch or 0.0) + 1e-6
        if not hasattr(self.trainer.train_dataset, "__len__"):
            passes = state.global_step // max(1, state.max_steps)
        self.epoch = int(passes) - 1

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.epoch += 1
        if hasattr(self.trainer.data_collator, "set_epoch"):
            self.trainer.data_collator.set_epoch(self.epoch)
        if self.trainer._sampler is not None:
            self.trainer._sampler.set_epoch(self.epoch)


class SaveOnSignal(TrainerCallback):
    """Ctrl-C (or SIGTERM) finishes the step, saves a checkpoint and stops; a second one stops at once.

    Several processes agree on the step (on GPUs, every tenth step).
    """

    def __init__(self):
        self.received: int | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        self._previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in self._previous:
            signal.signal(number, self._receive)

    def _receive(self, number, frame):
        self.received = number
        for each, handler in self._previous.items():
            signal.signal(each, handler)

    def on_step_end(self, args, state, control, **kwargs):
        stop = self.received is not None
        if args.world_size > 1:
            if args.device.type != "cpu" and state.global_step % 10:
                return  # asking a GPU at every step would wait for it
            flag = torch.tensor(int(stop), device=args.device)
            torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
            stop = bool(flag)
            if stop:
                self.received = self.received or signal.SIGINT
        if stop:
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_train_end(self, args, state, control, **kwargs):
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def use_one_gpu(args: TrainingArguments):
    """Not `DataParallel`, which cuts batches up within a process."""
    if args.n_gpu > 1:
        logger.warning(f"Using 1 of {args.n_gpu} GPUs; start with `torchrun --nproc_per_node {args.n_gpu}` for all.")
        args._n_gpu = 1


def default_collator(model, tokenizer, *, seed: int = 0, encoder_mlm_probability=0.3, decoder_mlm_probability=0.5):
    """The collator for what the model is trained on; the probabilities are those of RetroMAE."""
    if model.config.model_type == "gur":
        return PairCollator(tokenizer, seed=seed)
    if hasattr(model, "decoder"):
        return RetroMAECollator(
            tokenizer,
            model.config,
            seed=seed,
            encoder_mlm_probability=encoder_mlm_probability,
            decoder_mlm_probability=decoder_mlm_probability,
        )
    return MaskedLMCollator(tokenizer, seed=seed, encoder_mlm_probability=encoder_mlm_probability)


def _longest_input(model, tokenizer) -> int:
    longest = getattr(model.config, "max_position_embeddings", None) or 512  # a T5 has no limit of its own
    return longest if tokenizer is None else min(longest, tokenizer.model_max_length)
