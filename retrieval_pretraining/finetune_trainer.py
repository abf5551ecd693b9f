"""The Trainer of sentence-transformers for pairs and triplets, with whole pushes, safe batches and no pickles.

Importing this room needs sentence-transformers (extra `sentence-transformers`).
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import Trainer

from retrieval_pretraining.arguments import PretrainingArguments, _help
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.extras import import_extra, sentence_transformers_part
from retrieval_pretraining.finetune_batches import AnswerSafeBatches
from retrieval_pretraining.finetune_model import reload_weights
from retrieval_pretraining.hub import HubRepository
from retrieval_pretraining.hub_pushes import HubPushes
from retrieval_pretraining.relevance import Relevance, example_keys, negative_columns
from retrieval_pretraining.retrieval_data import RetrievalData
from retrieval_pretraining.retrieval_evaluation import dense_run, retrieval_metrics
from retrieval_pretraining.run_folder import last_complete_checkpoint
from retrieval_pretraining.text_encoder import TextEncoder
from retrieval_pretraining.trainer import use_one_gpu

_library = import_extra("sentence_transformers", "sentence-transformers")
_evaluation = sentence_transformers_part("evaluation")
_losses = sentence_transformers_part("losses")


@dataclass
class FinetuningArguments(PretrainingArguments, _library.SentenceTransformerTrainingArguments):
    """`SentenceTransformerTrainingArguments` with the defaults of fine-tuning: one epoch in batches of 64 pairs at a
    learning rate of 2e-5. What says which batches and prompts there are is said elsewhere."""

    num_train_epochs: float = field(default=1.0, metadata=_help("Times that each pair is seen."))
    per_device_train_batch_size: int = field(
        default=64,
        metadata=_help(
            "Pairs of a batch and a device, whose texts are each other's negatives; accumulation adds none."
        ),
    )
    per_device_eval_batch_size: int = field(
        default=64, metadata=_help("Texts that are encoded at once: before and after, and to mine negatives.")
    )
    learning_rate: float = field(default=2e-5, metadata=_help("Peak learning rate of AdamW."))
    # Set by the run.
    prompts: dict | None = field(default=None, init=False)
    batch_sampler: str = field(default="batch_sampler", init=False)
    multi_dataset_batch_sampler: str = field(default="proportional", init=False)
    router_mapping: dict | None = field(default=None, init=False)
    warmup_ratio: float | None = field(default=None, init=False)
    train_sampling_strategy: str = field(default="random", init=False)

    def __post_init__(self):
        super().__post_init__()
        if not self.trains:
            raise InputError("Nothing to train: --max_steps or --num_train_epochs is above 0.")
        self.logging_nan_inf_filter = False  # a loss that is no number is an error, see `log`
        if self.world_size > 1:
            self.dataloader_drop_last = True  # each process has as many vectors to send to the others


class RetrievalEvaluator(_evaluation.SentenceEvaluator):
    """nDCG and recall of the model while it trains, as `eval_retrieval_ndcg@10` and so on."""

    def __init__(self, encoder: TextEncoder, data: RetrievalData):
        super().__init__()
        self.encoder, self.data = encoder, data
        self.primary_metric = "retrieval_ndcg@10"

    def __call__(self, model, output_path: str | None = None, epoch: int = -1, steps: int = -1) -> dict[str, float]:
        if output_path is not None:
            with contextlib.suppress(OSError):
                Path(output_path).rmdir()  # made for files, of which there are none
        run = retrieval_run(self.encoder, self.data, progress=False)
        return {f"retrieval_{name}": value for name, value in retrieval_metrics(run, self.data.qrels).items()}


def retrieval_run(encoder: TextEncoder, data: RetrievalData, *, progress: bool | None = None):
    """The ranking of the best 100 documents for each query, which is as deep as the default measures look."""
    queries = encoder.encode_queries(data.query_texts, progress=progress)
    documents = encoder.encode_documents(data.corpus_texts, progress=progress)
    run = dense_run(queries, documents, data.query_ids, data.corpus_ids, top_k=data.depth(100))
    return data.without_own(run, 100)


def contrastive_loss(
    model, *, temperature: float, mini_batch_size: int, matryoshka_dims: Sequence[int] | None, world_size: int
) -> torch.nn.Module:
    """Cross-entropy of the positive among all texts of the batch, of all processes, over cosines / `temperature`.

    The loss that BGE is fine-tuned with: `CachedMultipleNegativesRankingLoss` of sentence-transformers with a scale of
    1 / `temperature`. `mini_batch_size` texts go through the model at once; gradients are those of the whole batch.
    `matryoshka_dims`: the same loss of the vectors cut to these sizes is added to that of the whole ones, so that they
    can be cut later (Kusupati et al. 2022, arXiv 2205.13147).
    """
    loss = _losses.CachedMultipleNegativesRankingLoss(
        model, scale=1.0 / temperature, mini_batch_size=mini_batch_size, gather_across_devices=world_size > 1
    )
    if matryoshka_dims:
        loss = _losses.MatryoshkaLoss(model, loss, matryoshka_dims=list(matryoshka_dims))
    return loss


class FinetuningTrainer(HubPushes, _library.SentenceTransformerTrainer):
    """`SentenceTransformerTrainer` for examples with the columns query, positive and negative_1, negative_2 ...

    Args, beside those of `SentenceTransformerTrainer`:
        relevance: which texts answer which query; no batch takes one of them for a negative.
        hub_repository: what `hub.open_repository` found.
    """

    def __init__(
        self, *, args, train_dataset, relevance: Relevance, hub_repository: HubRepository | None = None, **options
    ):
        self.hub_repository = hub_repository
        use_one_gpu(args)
        queries, documents = example_keys(train_dataset)
        self.batches = AnswerSafeBatches(
            queries,
            documents,
            relevance.answers,
            args.per_device_train_batch_size,
            num_processes=args.world_size,
            drop_last=args.dataloader_drop_last,
            seed=args.seed if args.data_seed is None else args.data_seed,
        )
        super().__init__(args=args, train_dataset=train_dataset, **options)

    def get_batch_sampler(self, dataset, *args, **kwargs):
        return self.batches

    def add_model_card_callback(self, default_args_dict):
        """The card is that of this project."""

    def log(self, logs: dict[str, float], start_time: float | None = None):
        loss = logs.get("loss", logs.get("train_loss", 0.0))
        if not math.isfinite(loss):
            checkpoint = last_complete_checkpoint(self.args.output_dir)
            raise InputError(
                f"The loss is not finite at step {self.state.global_step}"
                + (f"; the last good checkpoint is {checkpoint}" if checkpoint else "")
                + ". Start again with a lower --learning_rate or a higher --temperature."
            )
        # Under the name that it has everywhere in this project.
        logs |= {
            name.replace("loss", "contrastive_loss"): logs[name] for name in ("loss", "train_loss") if name in logs
        }
        Trainer.log(self, logs, start_time)  # that of sentence-transformers 5.2 fails with transformers 5.17

    def _save(self, output_dir: str | None = None, state_dict=None):
        """The whole folder, with the tokenizer; no pickle, and not the library's card."""
        folder = Path(output_dir or self.args.output_dir)
        self.model.save(str(folder), create_model_card=False)

    def _load_from_checkpoint(self, checkpoint_path: str, model=None):
        reload_weights(self.model, checkpoint_path)


def column_prompts(columns: Sequence[str], query_prompt: str, document_prompt: str) -> dict[str, str]:
    """What stands before the texts of each column."""
    prompts = {"query": query_prompt, **dict.fromkeys(["positive", *negative_columns(columns)], document_prompt)}
    return {name: prompt for name, prompt in prompts.items() if prompt}
