"""What can be set for fine-tuning, and its checks. The optimisation is `finetune_trainer.FinetuningArguments`, which
needs sentence-transformers; these groups do not."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval_pretraining.arguments import ReadingArguments, SearchArguments, _check_choice, _help
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.finetune_data import Layout

HARD_NEGATIVES = ("none", "bm25", "model")


@dataclass
class FinetuneModelArguments:
    """The model and its vectors."""

    model_name_or_path: str | None = field(
        default=None,
        metadata=_help(
            "Model to start from: one of ours, a sentence-transformers folder, or any encoder; a folder or a name on "
            "the Hub."
        ),
    )
    model_revision: str | None = field(default=None, metadata=_help("Branch, tag or commit of the model on the Hub."))
    trust_remote_code: bool = field(
        default=False, metadata=_help("Run code that comes with a model, which then stays with the result.")
    )
    pooling: str | None = field(
        default=None,
        metadata=_help(
            "For a plain encoder: cls, mean or eos. [default: what the checkpoint is made for, else cls; T5: mean]",
            choices=["cls", "mean", "eos"],
        ),
    )
    query_prompt: str | None = field(
        default=None,
        metadata=_help(
            "Instruction before each query, which the model learns and keeps; bge_en and bge_zh are those of BGE. "
            "[default: the model's own, if any]"
        ),
    )
    document_prompt: str | None = field(
        default=None, metadata=_help("Stands before each document. [default: the model's own, if any]")
    )
    max_seq_length: int | None = field(
        default=None, metadata=_help("Tokens at which texts are cut. [default: what the checkpoint says, or 512]")
    )

    def check(self):
        if self.model_name_or_path is None:
            raise InputError("Give --model_name_or_path: the model to start from.")
        if (
            self.model_name_or_path.startswith((".", "/", "~"))
            and not Path(self.model_name_or_path).expanduser().exists()
        ):
            raise InputError(f"--model_name_or_path {self.model_name_or_path}: there is no such folder.")
        _check_choice("pooling", self.pooling, (None, "cls", "mean", "eos"))
        if self.max_seq_length is not None and self.max_seq_length < 8:
            raise InputError(f"--max_seq_length {self.max_seq_length} leaves no room for text; use at least 8.")


@dataclass
class FinetuneDataArguments(SearchArguments, ReadingArguments):
    """The pairs, and where the model is measured."""

    train_file: list[str] | None = field(
        default=None,
        metadata=_help(
            "Pairs or triplets: jsonl, json, csv, tsv or parquet, packed or not, folders, globs; what mine_pairs.py "
            "wrote; folders in BEIR layout."
        ),
    )
    train_split_name: str = field(
        default="train", metadata=_help("Split of --dataset_name, or qrels of a folder in BEIR layout.")
    )
    query_column_name: str | None = field(
        default=None,
        metadata=_help(
            "Column of the query. [default: the first of text, anchor, query, question that has a partner]"
        ),
    )
    positive_column_name: str | None = field(
        default=None,
        metadata=_help(
            "Column of the text, or the list of texts, that answers it. [default: text_pair, positive, pos, answer]"
        ),
    )
    negative_column_name: list[str] | None = field(
        default=None,
        metadata=_help(
            "Columns of texts, or lists of texts, that do not. [default: negatives, neg, negative, negative_1 ...]"
        ),
    )
    max_train_samples: int | None = field(default=None, metadata=_help("Use the first so many pairs."))
    cache_dir: str | None = field(default=None, metadata=_help("Where prepared data are kept."))

    def layout(self) -> Layout | None:
        """The columns that were named."""
        if self.query_column_name is None:
            return None
        negatives = self.negative_column_name or ("negatives", "negative", "neg")
        return Layout(self.query_column_name, self.positive_column_name, tuple(negatives))

    def source(self) -> dict[str, Any]:
        """The training data, as `finetune_data.load_training_data` takes them."""
        return {
            "train_file": self.train_file,
            "dataset_name": self.dataset_name,
            "dataset_config_name": self.dataset_config_name,
            "split": self.train_split_name,
            "max_samples": self.max_train_samples,
            "cache_dir": self.cache_dir,
            **self.reading_options(),
        }

    def reading_options(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("encoding", "encoding_errors", "on_bad_line")}

    def check(self):
        super().check()
        self.check_search()
        if (self.query_column_name is None) != (self.positive_column_name is None):
            raise InputError("Give both --query_column_name and --positive_column_name, or neither.")
        if self.negative_column_name is not None and self.query_column_name is None:
            raise InputError("--negative_column_name goes with --query_column_name and --positive_column_name.")
        if self.max_train_samples is not None and self.max_train_samples < 1:
            raise InputError(f"--max_train_samples is 1 or more, not {self.max_train_samples}.")


@dataclass
class ContrastiveArguments:
    """The loss and its negatives, beside those of the batch."""

    temperature: float = field(
        default=0.05,
        metadata=_help(
            "What cosines are divided by; lower looks harder at the nearest negatives. 0.05 is the default of "
            "sentence-transformers (scale 20), BGE has 0.02."
        ),
    )
    contrastive_mini_batch_size: int = field(
        default=32,
        metadata=_help(
            "Texts that go through the model at once; the batch, whose texts are each other's negatives, may then be "
            "larger than memory."
        ),
    )
    hard_negatives: str = field(
        default="none",
        metadata=_help(
            "Negatives for pairs that have too few: searched by bm25, or by the model as it is; none for neither.",
            choices=list(HARD_NEGATIVES),
        ),
    )
    num_hard_negatives: int | None = field(
        default=None,
        metadata=_help("Negatives of each pair. [default: 1; as many as most pairs came with, at most 7]"),
    )
    hard_negative_ranks: list[int] = field(
        default_factory=lambda: [10, 100],
        metadata=_help(
            "Which ranks they are drawn from, of the documents that are no known answers; the first ones hold answers "
            "that nobody has marked."
        ),
    )
    hard_negative_margin: float | None = field(
        default=None,
        metadata=_help(
            "With model: only documents whose score is at most that of the positive less this share of it, such as "
            "0.05. [default: any]"
        ),
    )
    corpus_file: list[str] | None = field(
        default=None,
        metadata=_help(
            "Documents to search for negatives, in any format. [default: those of the folders in BEIR layout and all "
            "positives]"
        ),
    )
    matryoshka_dims: list[int] | None = field(
        default=None, metadata=_help("Sizes at which the vectors can be cut afterwards, such as 768 256 64.")
    )

    def check(self):
        _check_choice("hard_negatives", self.hard_negatives, HARD_NEGATIVES)
        for name in ("temperature", "contrastive_mini_batch_size", "num_hard_negatives"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise InputError(f"--{name} is above 0, not {getattr(self, name)}.")
        ranks = self.hard_negative_ranks
        if len(ranks) != 2 or not 1 <= ranks[0] <= ranks[1]:
            raise InputError(
                f"--hard_negative_ranks are a first and a last rank, such as 10 100, not {' '.join(map(str, ranks))}."
            )
        if self.hard_negatives == "none":
            useless = [name for name in ("hard_negative_margin", "corpus_file") if getattr(self, name) is not None]
            useless += ["hard_negative_ranks"] if ranks != [10, 100] else []
            if useless:
                names = ", ".join(f"--{name}" for name in useless)
                raise InputError(
                    f"{names}: no effect without --hard_negatives bm25 or model; give it, or leave them out."
                )
        if self.hard_negative_margin is not None:
            if self.hard_negatives != "model":
                raise InputError("--hard_negative_margin compares scores of the model: give --hard_negatives model.")
            if not 0 <= self.hard_negative_margin < 1:
                raise InputError(f"--hard_negative_margin is 0 or more and below 1, not {self.hard_negative_margin}.")
        if self.matryoshka_dims is not None and min(self.matryoshka_dims, default=0) < 1:
            raise InputError("--matryoshka_dims are sizes of 1 or more, such as 768 256 64.")
