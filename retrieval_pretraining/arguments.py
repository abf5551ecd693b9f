"""What can be set, and its checks. Names are those of Hugging Face's run_mlm wherever it has one.

A run is a recipe (YAML: one `name: value` a line) and flags; flags win. `parse_arguments` is the same for every door.
"""

import difflib
import json
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
import yaml
from transformers import HfArgumentParser, TrainingArguments

from .chunking import CHUNK_BOUNDARIES
from .errors import InputError
from .mixing import check_shares
from .readers import READING_CHOICES

OBJECTIVES = ("retromae", "dupmae", "mlm", "gur")
DEFAULT_MIX_SHARE = 0.3
_READING_OPTIONS = ("text_column_name", "title_column_name", "encoding", *READING_CHOICES)


def _help(text: str, **more) -> dict:
    return {"help": text, **more}


@dataclass
class ModelArguments:
    """The model: an existing one, or one from scratch."""

    model_name_or_path: str | None = field(
        default=None,
        metadata=_help(
            "Backbone to start from: an encoder, an MLM model, a sentence-transformers folder, or one of ours."
        ),
    )
    config_name: str | None = field(
        default=None,
        metadata=_help(
            "From scratch: a model type such as bert, or a folder or Hub name whose configuration is used."
        ),
    )
    config_overrides: str | None = field(
        default=None,
        metadata=_help("From scratch: changes of the encoder's configuration: hidden_size=128,num_hidden_layers=2"),
    )
    tokenizer_name: str | None = field(
        default=None, metadata=_help("Folder or Hub name of the tokenizer, if it is not the model's.")
    )
    tokenizer_vocab_size: int | None = field(
        default=None,
        metadata=_help("Trains a tokenizer of this size on the text; that of an existing model is replaced by it."),
    )
    add_tokens: str | None = field(
        default=None,
        metadata=_help("File of terms, one a line, that become one token each, such as a domain's words."),
    )
    new_token_init: str | None = field(
        default=None,
        metadata=_help(
            "How new tokens of an existing model start: statistics of the text, mapped to where its tokens are, or "
            "pieces, the mean of the old tokens that they are made of. [default: statistics; pieces when streaming]",
            choices=["statistics", "pieces"],
        ),
    )
    init_weights: str = field(
        default="random",
        metadata=_help(
            "From scratch: random, or corpus, which starts from statistics of the text.", choices=["random", "corpus"]
        ),
    )
    objective: str = field(
        default="retromae",
        metadata=_help(
            "retromae; dupmae (with the bag-of-words loss); mlm, the control: the same encoder without a decoder; "
            "gur: a T5, trained on pairs, which are mined from documents.",
            choices=list(OBJECTIVES),
        ),
    )
    decoder_query: str | None = field(
        default=None,
        metadata=_help(
            "position (RetroMAE, default) or embedding (FlagEmbedding, DupMAE).", choices=["position", "embedding"]
        ),
    )
    enhanced_decoding: bool | None = field(
        default=None, metadata=_help("False: the ablation, a plain one-layer decoder. [default: True]")
    )
    decoder_prediction_rate: float | None = field(
        default=None, metadata=_help("Share of the tokens that the decoder predicts. [default: 1.0]")
    )
    bow_loss_weight: float | None = field(
        default=None, metadata=_help("Weight of the bag-of-words loss. [default: 0.1 for dupmae, else 0]")
    )
    attn_implementation: str | None = field(
        default=None, metadata=_help("sdpa, eager or flash_attention_2. [default: the best that the encoder has]")
    )
    freeze: list[str] | None = field(
        default=None,
        metadata=_help(
            "Weights whose names contain one of these stay as they are, such as position_embeddings. [default: none]"
        ),
    )
    start_share: float = field(
        default=0.0,
        metadata=_help(
            "Share of the weights it started from in the finished ones (WiSE-FT): for a start that training damages."
        ),
    )
    model_revision: str = field(default="main", metadata=_help("Branch, tag or commit of the model on the Hub."))
    token: str | None = field(default=None, metadata=_help("Access token of the Hub; `hf auth login` stores one."))
    cache_dir: str | None = field(default=None, metadata=_help("Where downloads and prepared data are kept."))

    def retromae_changes(self) -> dict:
        """The fields of `RetroMAEConfig` that were set, or that the objective sets."""
        names = ("decoder_query", "enhanced_decoding", "decoder_prediction_rate", "bow_loss_weight")
        changes = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.objective != "mlm":
            # Said in every case: a checkpoint to go on from may have had the other objective.
            changes.setdefault("bow_loss_weight", 0.1 if self.objective == "dupmae" else 0.0)
        return changes

    def check(self):
        _check_choice("objective", self.objective, OBJECTIVES)
        _check_choice("init_weights", self.init_weights, ("random", "corpus"))
        if not 0.0 <= self.start_share < 1.0:
            raise InputError(f"--start_share is 0 or more and below 1, not {self.start_share}.")
        _check_choice("decoder_query", self.decoder_query, (None, "position", "embedding"))
        if self.bow_loss_weight is not None and self.bow_loss_weight < 0.0:
            raise InputError(f"--bow_loss_weight is 0 or more, not {self.bow_loss_weight}.")
        if self.decoder_prediction_rate is not None and not 0.0 < self.decoder_prediction_rate <= 1.0:
            raise InputError(
                f"--decoder_prediction_rate is above 0 and at most 1, not {self.decoder_prediction_rate}."
            )
        if (self.model_name_or_path is None) == (self.config_name is None):
            raise InputError(
                "Give either --model_name_or_path (start from a model) or --config_name (from scratch, such as bert)."
            )
        if self.model_name_or_path is not None:
            if (
                self.model_name_or_path.startswith((".", "/", "~"))
                and not Path(self.model_name_or_path).expanduser().exists()
            ):
                raise InputError(f"--model_name_or_path {self.model_name_or_path}: there is no such folder.")
            if self.config_overrides is not None:
                raise InputError(
                    "--config_overrides is for models from scratch: give --config_name, not --model_name_or_path."
                )
            if self.init_weights != "random":
                raise InputError("--init_weights corpus is for models from scratch: give --config_name.")
        elif (self.tokenizer_name is None) == (self.tokenizer_vocab_size is None):
            raise InputError("From scratch, give either --tokenizer_name or --tokenizer_vocab_size (to train one).")
        self._check_vocabulary()
        if self.objective == "dupmae" and self.bow_loss_weight == 0.0:
            raise InputError("--objective dupmae needs a --bow_loss_weight above 0.")
        if self.objective == "retromae" and (self.bow_loss_weight or 0.0) > 0.0:
            raise InputError("--bow_loss_weight above 0 is --objective dupmae: say so.")
        if self.objective == "gur":
            names = ("decoder_query", "enhanced_decoding", "decoder_prediction_rate", "bow_loss_weight")
            useless = [f"--{name}" for name in names if getattr(self, name) is not None]
            if useless:
                raise InputError(f"{', '.join(useless)}: --objective gur has nothing of this kind; leave it out.")
        if self.objective == "mlm":
            useless = [f"--{name}" for name in self.retromae_changes()]
            if useless:
                raise InputError(f"--objective mlm has no decoder: leave out {', '.join(useless)}.")

    def _check_vocabulary(self):
        _check_choice("new_token_init", self.new_token_init, (None, "statistics", "pieces"))
        if self.tokenizer_name is not None and self.tokenizer_vocab_size is not None:
            raise InputError("Give either --tokenizer_name or --tokenizer_vocab_size (to train one).")
        if self.new_token_init is None:
            return
        if self.model_name_or_path is None:
            raise InputError("--new_token_init has no effect from scratch, where all tokens are new: leave it out.")
        if self.add_tokens is None and self.tokenizer_vocab_size is None and self.tokenizer_name is None:
            raise InputError("--new_token_init has no effect without --add_tokens or --tokenizer_vocab_size.")


@dataclass
class ReadingArguments:
    """What a run reads, and how files are read."""

    train_file: list[str] | None = field(
        default=None,
        metadata=_help(
            "Text: txt (one passage a line), jsonl, json, csv, tsv or parquet, also gz, xz, bz2, zst; folders, globs; "
            "also of other file systems, such as hf://datasets/me/mine. A folder in BEIR layout stands for its corpus."
        ),
    )
    dataset_name: str | None = field(default=None, metadata=_help("A dataset on the Hub, in place of --train_file."))
    dataset_config_name: str | None = field(default=None, metadata=_help("Its configuration."))
    train_split_name: str = field(default="train", metadata=_help("Its split."))
    encoding: str = field(default="utf-8", metadata=_help("Encoding of the files, such as gb18030."))
    encoding_errors: str = field(
        default="strict",
        metadata=_help(
            "strict names file and line of a bad byte; replace and ignore count them.",
            choices=READING_CHOICES["encoding_errors"],
        ),
    )
    on_bad_line: str = field(
        default="error",
        metadata=_help(
            "A line that cannot be parsed or decoded: error names file and line; skip counts them.",
            choices=READING_CHOICES["on_bad_line"],
        ),
    )

    def check(self):
        if (self.train_file is None) == (self.dataset_name is None):
            raise InputError("Give either --train_file (files, folders or globs) or --dataset_name (on the Hub).")
        for name, choices in READING_CHOICES.items():
            if hasattr(self, name):
                _check_choice(name, getattr(self, name), choices)


@dataclass
class TextArguments(ReadingArguments):
    """The text and how it is read."""

    text_column_name: str = field(default="text", metadata=_help("Column or key that holds the text."))
    title_column_name: str | None = field(
        default=None, metadata=_help("Column or key of a title, which is put before the text.")
    )
    document_separator: str = field(
        default="line",
        metadata=_help(
            "txt: a document is a line, a paragraph (blank_line) or a file.",
            choices=READING_CHOICES["document_separator"],
        ),
    )
    max_train_samples: int | None = field(default=None, metadata=_help("Use the first so many documents."))

    def reading_options(self) -> dict[str, str | None]:
        """How every text of a run is read, as `load_documents` takes it."""
        return {name: getattr(self, name) for name in _READING_OPTIONS}


@dataclass
class SearchArguments:
    """Where a run searches before, during and after its training."""

    eval_retrieval_dir: str | None = field(
        default=None,
        metadata=_help("Folder in BEIR layout (corpus.jsonl, queries.jsonl, qrels/): retrieval before and after."),
    )
    eval_retrieval_split: str = field(default="test", metadata=_help("Which qrels of it."))
    eval_retrieval_max_documents: int = field(
        default=2000,
        metadata=_help("During training, search in so many documents: the judged ones, and random others; 0: in all."),
    )
    eval_retrieval_max_queries: int = field(
        default=300, metadata=_help("During training, search for so many queries, drawn at random; 0: for all.")
    )

    def check_search(self):
        for name in ("eval_retrieval_max_documents", "eval_retrieval_max_queries"):
            if getattr(self, name) < 0:
                raise InputError(f"--{name} is 1 or more, or 0 for all, not {getattr(self, name)}.")


@dataclass
class PairArguments(TextArguments):
    """The documents that pairs are mined from, and where the pairs go."""

    title_column_name: str | None = field(
        default=None, metadata=_help("Column or key of the title. [default: title, where there is one]")
    )
    id_column_name: str | None = field(
        default=None,
        metadata=_help("Column or key of the document's id. [default: _id or id; else the file and the line]"),
    )
    on_bad_line: str = field(
        default="skip",
        metadata=_help(
            "A line that cannot be parsed or decoded: skip counts them; error names file and line.",
            choices=READING_CHOICES["on_bad_line"],
        ),
    )
    output_dir: str | None = field(default=None, metadata=_help("Where the pairs and their counts are written."))
    output_format: str = field(default="parquet", metadata=_help("parquet or jsonl.", choices=["parquet", "jsonl"]))
    overwrite_output_dir: bool = field(default=False, metadata=_help("Remove the pairs that were mined there before."))
    num_workers: int = field(default=1, metadata=_help("Processes that mine; the pairs are the same."))
    seed: int = field(default=42, metadata=_help("Which pairs are taken where not all may be."))
    cache_dir: str | None = field(default=None, metadata=_help("Where downloads are kept."))
    push_to_hub: bool = field(default=False, metadata=_help("Put the pairs on the Hub, as a dataset."))
    hub_dataset_id: str | None = field(default=None, metadata=_help("Its name, such as me/my-pairs."))
    hub_private_repo: bool | None = field(default=None, metadata=_help("Make a new one private."))
    hub_revision: str | None = field(default=None, metadata=_help("Branch of it; made if it does not exist."))
    hub_create_pr: bool = field(default=False, metadata=_help("Open a pull request."))
    hub_token: str | None = field(default=None, metadata=_help("Access token; better: `hf auth login`."))
    license: str | None = field(
        default=None, metadata=_help("Licence of the text, such as cc-by-4.0; is written into the card.")
    )

    def check(self):
        super().check()
        if self.output_dir is None:
            raise InputError("Give --output_dir: where the pairs are written.")
        check_pushing(self, ("hub_dataset_id", "hub_private_repo", "hub_create_pr", "hub_revision"))
        if self.push_to_hub and self.hub_dataset_id is None:
            raise InputError(
                "--push_to_hub needs the name of the dataset: give --hub_dataset_id, such as me/my-pairs."
            )
        for source in map(Path, self.train_file or []):
            if source.is_dir() and Path(self.output_dir).resolve().is_relative_to(source.resolve()):
                raise InputError(
                    f"--output_dir {self.output_dir} lies in --train_file {source}, so the pairs would be read as "
                    "text: give another --output_dir."
                )
        if self.max_train_samples is not None and self.max_train_samples < 1:
            raise InputError(f"--max_train_samples is 1 or more, not {self.max_train_samples}.")

    def source(self) -> dict:
        """The documents, as `corpus.iterate_documents` takes them."""
        return {
            "train_file": self.train_file,
            "dataset_name": self.dataset_name,
            "dataset_config_name": self.dataset_config_name,
            "split": self.train_split_name,
            "id_column_name": self.id_column_name,
            "max_samples": self.max_train_samples,
            "cache_dir": self.cache_dir,
            **self.reading_options(),
        }


@dataclass
class DataArguments(SearchArguments, TextArguments):
    """The text, how it is cut and how it is masked."""

    mix_file: list[str] | None = field(
        default=None,
        metadata=_help("Other text that is mixed in, such as general text while a model adapts to a domain."),
    )
    mix_share: list[float] | None = field(
        default=None,
        metadata=_help(
            "Share of the examples that comes from each --mix_file. [default: 0.3 of all of them together]"
        ),
    )
    validation_file: list[str] | None = field(default=None, metadata=_help("Text for the evaluation losses."))
    validation_split_percentage: float = field(
        default=0.0, metadata=_help("Without --validation_file: this share of the documents is held out.")
    )
    streaming: bool = field(default=False, metadata=_help("Read while training; needs --max_steps."))
    shuffle_buffer_size: int = field(
        default=10_000,
        metadata=_help("With --streaming: passages among which the order is random; 1: the order of the text."),
    )
    max_eval_samples: int | None = field(
        default=None, metadata=_help("Use the first so many documents for the evaluation losses.")
    )
    max_seq_length: int | None = field(
        default=None, metadata=_help("Tokens of a passage. [default: what the model takes, at most 512]")
    )
    overflow: str = field(
        default="chunk",
        metadata=_help("Longer documents: chunk (several passages) or truncate.", choices=["chunk", "truncate"]),
    )
    chunk_boundary: str = field(
        default="sentence",
        metadata=_help(
            "Where they are cut: sentence (behind as many whole sentences as fit) or token (each passage is full).",
            choices=list(CHUNK_BOUNDARIES),
        ),
    )
    overlap: int = field(
        default=0, metadata=_help("Tokens that a passage has in common with the one before, at most; whole sentences.")
    )
    chinese_whole_words: bool = field(
        default=False, metadata=_help("Mask whole Chinese words; needs `pip install rjieba`.")
    )
    preprocessing_num_workers: int | None = field(default=None, metadata=_help("Processes that tokenise."))
    encoder_mlm_probability: float = field(default=0.3, metadata=_help("Share of the tokens masked for the encoder."))
    decoder_mlm_probability: float = field(
        default=0.5, metadata=_help("Share of the words hidden from each row of the decoder.")
    )

    def mixed_shares(self) -> list[float]:
        """The share of the examples that each of `mix_file` gets."""
        files = self.mix_file or []
        return self.mix_share if self.mix_share is not None else [DEFAULT_MIX_SHARE / len(files)] * len(files)

    def check(self, *, max_steps: int, init_weights: str, evaluates: bool = False):
        super().check()
        _check_choice("overflow", self.overflow, ("chunk", "truncate"))
        _check_choice("chunk_boundary", self.chunk_boundary, CHUNK_BOUNDARIES)
        if self.overflow == "truncate" and (self.overlap or self.chunk_boundary != "sentence"):
            raise InputError("--overlap and --chunk_boundary have no effect with --overflow truncate: leave them out.")
        for name in ("encoder_mlm_probability", "decoder_mlm_probability"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise InputError(f"--{name} is above 0 and at most 1, not {getattr(self, name)}.")
        if not 0.0 <= self.validation_split_percentage < 100.0:
            raise InputError(
                f"--validation_split_percentage lies from 0 to below 100, not at {self.validation_split_percentage}."
            )
        if self.mix_share is not None and self.mix_file is None:
            raise InputError("--mix_share has no effect without --mix_file: leave it out.")
        if self.mix_file is not None:
            check_shares(self.mixed_shares(), len(self.mix_file))
            if self.streaming:
                raise InputError("--mix_file counts examples first: leave out --streaming.")
        if evaluates and self.validation_file is None and self.validation_split_percentage == 0:
            raise InputError("--eval_strategy needs text: give --validation_file or --validation_split_percentage.")
        if self.streaming and max_steps <= 0:
            raise InputError("--streaming does not know how long the text is: give --max_steps.")
        if self.streaming and init_weights == "corpus":
            raise InputError("--init_weights corpus reads all text first: leave out --streaming.")
        if self.streaming and self.validation_split_percentage > 0:
            raise InputError("--streaming cannot hold out a share of the text: give --validation_file.")
        self.check_search()
        if self.shuffle_buffer_size < 1:
            raise InputError(f"--shuffle_buffer_size is 1 (no shuffling) or more, not {self.shuffle_buffer_size}.")


@dataclass
class PretrainingArguments(TrainingArguments):
    """`TrainingArguments` with the defaults of the published recipe (learning rate 1e-4, warm-up 10 %, weight decay
    0.01, clipping at 1), and bf16 where the GPU has it."""

    output_dir: str | None = field(default=None, metadata=_help("Where the model and its checkpoints are written."))
    learning_rate: float = field(default=1e-4, metadata=_help("Peak learning rate of AdamW."))
    warmup_steps: float = field(default=0.1, metadata=_help("Steps of linear warm-up; below 1, a share of all steps."))
    weight_decay: float = field(default=0.01, metadata=_help("Weight decay of AdamW."))
    bf16: bool | None = field(default=None, metadata=_help("bf16 autocast. [default: on where the GPU has it]"))
    num_train_epochs: float = field(
        default=3.0, metadata=_help("Times that each text is seen; 0 makes the start and does not train.")
    )
    logging_steps: float = field(default=50, metadata=_help("Log every so many steps; below 1, a share of all steps."))
    save_total_limit: int | None = field(default=2, metadata=_help("Checkpoints that are kept."))
    disable_tqdm: bool | None = field(default=False, metadata=_help("No progress bar."))
    hub_create_pr: bool = field(
        default=False, metadata=_help("Push to a pull request, which the first push opens, not to a branch.")
    )
    include_num_input_tokens_seen: str = field(  # the library's takes no word on the command line
        default="no",
        metadata=_help(
            "Count the tokens that were trained on, for trainer_state.json: all, non_padding, or no.",
            choices=["all", "non_padding", "no"],
        ),
    )
    train_sampling_strategy: str | None = field(
        default=None,
        metadata=_help(
            "Order of the examples: group_by_length (batches of like lengths and little padding, in random order), "
            "random, or sequential. [default: group_by_length; gur: random]",
            choices=["group_by_length", "random", "sequential"],
        ),
    )

    def __post_init__(self):
        if self.output_dir is None:
            raise InputError("Give --output_dir: where the model is written.")
        for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} is 1 or more, not {getattr(self, name)}.")
        if self.seed < 0:
            raise InputError(f"--seed is 0 or more, not {self.seed}.")
        if self.max_steps <= 0 and not self.num_train_epochs >= 0:
            raise InputError(f"--num_train_epochs is 0 (no training) or more, not {self.num_train_epochs}.")
        check_pushing(self, ("hub_private_repo", "hub_create_pr", "hub_revision", "hub_always_push"))
        if self.label_smoothing_factor != 0:
            raise InputError("--label_smoothing_factor has no effect on these losses: leave it out.")
        if not torch.accelerator.is_available():
            self.use_cpu = True  # or transformers refuses bf16, which a CPU can do
        if self.fp16 and (self.use_cpu or not torch.cuda.is_available()):
            raise InputError("--fp16 needs a GPU; leave it out here, or use --bf16.")
        if self.bf16 is None:
            on_gpu = torch.cuda.is_available() and not self.use_cpu
            self.bf16 = on_gpu and not self.fp16 and torch.cuda.is_bf16_supported()
        if not torch.cuda.is_available() or self.use_cpu:
            self.dataloader_pin_memory = False  # there is nothing to pin for
        super().__post_init__()

    @property
    def trains(self) -> bool:
        """Whether there is a step to take; without one the model stays what it starts as."""
        return self.max_steps > 0 or self.num_train_epochs > 0


def parse_arguments(argument_classes: list[type], arguments: list[str] | None = None) -> tuple:
    """Instances of the classes from `[recipe.yaml] --flag value ...`; flags override the recipe.

    `--flag null` leaves a line of the recipe out.

    Raises `InputError` for a name that none of the classes has, with the nearest one that exists, and for a value that
    it cannot take.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = HfArgumentParser(argument_classes, allow_abbrev=False, usage="%(prog)s [recipe.yaml] [--name value ...]")
    names = [entry.name for kind in argument_classes for entry in fields(kind) if entry.init]
    arguments, left_out = _without_null(arguments)
    for name in left_out:
        check_name(name, names, "The command line leaves out")
    if arguments and not arguments[0].startswith("-"):
        # As flags before the others: they are checked as flags are, and the last one wins.
        arguments = [*_recipe_flags(Path(arguments[0]), names, left_out), *arguments[1:]]

    def error(message: str):
        raise InputError(f"{message[0].upper()}{message[1:]}. See --help.")

    parser.error = error
    try:
        *parsed, unknown = parser.parse_args_into_dataclasses(
            arguments, return_remaining_strings=True, look_for_args_file=False
        )
    except InputError:
        raise
    except (ValueError, ImportError) as problem:  # what TrainingArguments refuses
        raise InputError(str(problem).strip().splitlines()[0]) from problem
    if unknown:
        flag = next((word for word in unknown if word.startswith("--")), unknown[0])
        if flag.endswith((".yaml", ".yml")):
            raise InputError(f"The recipe {flag} comes first, before every option.")
        raise InputError(f"There is no option {flag}{_nearest(flag.lstrip('-').split('=')[0], names, '--')}")
    return tuple(parsed)


def _without_null(words: list[str]) -> tuple[list[str], set[str]]:
    """The words without `--name null`, and these names."""
    kept, left_out, position = [], set(), 0
    while position < len(words):
        if words[position].startswith("--") and words[position + 1 : position + 2] == ["null"]:
            left_out.add(words[position][2:])
            position += 2
        else:
            kept.append(words[position])
            position += 1
    return kept, left_out


def _recipe_flags(path: Path, names: list[str], left_out: set[str]) -> list[str]:
    flags = []
    for name, value in read_recipe(path).items():
        check_name(str(name), names, f"The recipe {path} sets")
        if name in left_out:
            continue
        if value is None:
            raise InputError(f"The recipe {path} gives {name} no value.")
        flags += as_flag(name, value)
    return flags


def read_recipe(path: Path) -> dict:
    """What a YAML file of `name: value` lines holds. `InputError` if it is not there or holds something else."""
    if not path.is_file():
        raise InputError(f"There is no recipe {path}.")
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"The recipe {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(recipe, dict):
        raise InputError(f"The recipe {path} should hold one `name: value` a line.")
    return recipe


def as_flag(name: str, value) -> list[str]:
    """The words of a command line that say what a line of a recipe says."""
    if value is False and name.endswith("_strategy"):
        value = "no"  # YAML reads a bare `no` as false
    if name == "language":  # so it does Norwegian
        value = ["no" if each is False else each for each in (value if isinstance(value, list) else [value])]
    values = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else value]
    return [f"--{name}", *(str(each) for each in values)]


def check_name(name: str, names: list[str], who: str):
    """Raises `InputError` for a setting that no door has, with the nearest one that exists."""
    if name not in names:
        raise InputError(f"{who} {name}, which does not exist{_nearest(name, names, '')}")


def _nearest(name: str, names: list[str], prefix: str) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ". See --help."


def check_pushing(arguments, options: tuple[str, ...]):
    """Raises `InputError` for options of a push where there is none."""
    useless = [f"--{name}" for name in options if getattr(arguments, name)]
    if useless and not arguments.push_to_hub:
        raise InputError(f"{', '.join(useless)}: no effect without --push_to_hub True; give it, or leave them out.")


def _check_choice(name: str, value, choices):
    if value not in choices:
        raise InputError(f"--{name} is one of {', '.join(str(choice) for choice in choices if choice)}, not {value}.")
