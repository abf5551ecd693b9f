"""What differs from objective to objective: the model, what a training example is, and what is written in the end.

`run_pretrain.py` tells the story and asks one of these where the objective decides. `OBJECTIVES` maps the name to the
class; adding an objective is adding a class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from configuration_gur import GURConfig
from modeling_gur import GURForPreTraining
from modeling_retromae import BACKBONES, RetroMAEConfig, RetroMAEForMaskedLM, RetroMAEForPreTraining, backbone_of
from retrieval_pretraining.arguments import DataArguments, ModelArguments, PretrainingArguments
from retrieval_pretraining.card_arguments import CardArguments
from retrieval_pretraining.cleaning_settings import CleaningSettings
from retrieval_pretraining.collators import PairCollator
from retrieval_pretraining.corpus import load_documents
from retrieval_pretraining.corpus_counts import CorpusCounts
from retrieval_pretraining.corpus_start import corpus_start
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.export import export_encoder
from retrieval_pretraining.gur_arguments import GURArguments
from retrieval_pretraining.gur_start import identity_projection, start_gur
from retrieval_pretraining.gur_trainer import GURTrainer, refuse_fp16
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.model_card import write_model_card
from retrieval_pretraining.model_folders import only_pickled_on_hub
from retrieval_pretraining.pair_corpus import hold_out_documents, load_mined_documents, load_pairs
from retrieval_pretraining.passages import check_pair_tokenizer, check_tokenizer, chinese_segmenter, tokenize_documents
from retrieval_pretraining.streaming import stream_documents
from retrieval_pretraining.tokenized_pairs import tokenize_pairs
from retrieval_pretraining.trainer import PretrainingTrainer, default_collator

ENCODED_LENGTH = 256  # tokens of a text that a GUR encodes, unless it is trained on longer ones
# What the decoder of a model from scratch starts from: some 60,000 labels, in seconds.
START_PAIRS, START_BATCH = 4096, 256


@dataclass
class Run:
    """What a run was asked for, and how it speaks."""

    model: ModelArguments
    data: DataArguments
    args: PretrainingArguments
    gur: GURArguments = field(default_factory=GURArguments)
    mining: MiningSettings = field(default_factory=MiningSettings)
    cleaning: CleaningSettings = field(default_factory=CleaningSettings)
    card: CardArguments = field(default_factory=CardArguments)
    say: Callable[[str], None] = print

    def source(self) -> dict[str, Any]:
        """The training text, as the readers take it."""
        return {
            "train_file": self.data.train_file,
            "dataset_name": self.data.dataset_name,
            "dataset_config_name": self.data.dataset_config_name,
            "split": self.data.train_split_name,
            "cleaning": self.cleaning,
            "max_samples": self.data.max_train_samples,
            "cache_dir": self.model.cache_dir,
            **self.data.reading_options(),
        }

    def mix_source(self, file: str) -> dict[str, Any]:
        """Other text that is mixed in; read as the training text is."""
        return {**self.source(), "train_file": [file], "dataset_name": None, "max_samples": None}

    def validation_source(self) -> dict[str, Any]:
        return {
            "train_file": self.data.validation_file,
            "cleaning": self.cleaning,
            "max_samples": self.data.max_eval_samples,
            "cache_dir": self.model.cache_dir,
            **self.data.reading_options(),
        }


class RetroMAEObjective:
    """RetroMAE, DupMAE, and MLM, their control: a text is an example."""

    tokenizer_kind = "bert"
    backbones = BACKBONES
    units = ("documents", "passages")  # what is read, and what it becomes
    examples = "passages"  # what a card calls these
    sequence = "passage"  # what a row of token ids is
    trainer_class = PretrainingTrainer
    retrieval_pooling = "cls"

    def __init__(self, run: Run):
        self.run = run
        self.reading: CorpusCounts | None = None  # of the text, once it is loaded
        self.held_out = 0  # documents of it that validate
        self.token_count: str | None = None  # of it, once it is cut

    def check(self):
        self.run.cleaning.check()
        check_config(self.run, self.backbones)
        useless = _changed(self.run.mining, [entry.name for entry in fields(MiningSettings)])
        if useless:
            raise InputError(f"{useless}: only --objective gur mines pairs; leave it out.")

    def settings(self) -> list:
        """Groups of arguments, beside those of every run, that decide what comes out."""
        return [self.run.cleaning]

    check_tokenizer = staticmethod(check_tokenizer)

    def load_text(self):
        """(training, validation or None): datasets with the column text."""
        run, data = self.run, self.run.data
        train, self.reading = load_documents(**run.source(), streaming=data.streaming)
        run.say(f"text: {self.reading}")
        validation = None
        if data.validation_file is not None:
            validation, counts = load_documents(**run.validation_source())
            run.say(f"validation text: {counts}")
        elif data.validation_split_percentage > 0:
            if len(train) < 2:
                raise InputError("--validation_split_percentage needs at least 2 documents; this text has 1.")
            held_out = max(1, round(len(train) * data.validation_split_percentage / 100))
            self.held_out = min(held_out, len(train) - 1)
            parts = train.train_test_split(test_size=self.held_out, seed=run.args.seed)
            train, validation = parts["train"], _first_rows(parts["test"], data.max_eval_samples)
            run.say(f"held out for validation: {len(validation)} documents")
        return train, validation

    def load_other_text(self, source: dict[str, Any]):
        dataset, counts = load_documents(**source)
        self.run.say(f"text to mix in: {counts}")
        return dataset

    def texts(self, dataset):
        """The texts that a tokenizer is trained on."""
        return (row["text"] for row in dataset)

    def tokenise(self, dataset, tokenizer, *, max_seq_length: int, desc: str):
        data = self.run.data
        options = {
            "max_seq_length": max_seq_length,
            "overflow": data.overflow,
            "chunk_boundary": data.chunk_boundary,
            "overlap": data.overlap,
            "word_segmenter": chinese_segmenter() if data.chinese_whole_words else None,
        }
        if not hasattr(dataset, "__len__"):
            return stream_documents(dataset, tokenizer, shuffle_buffer_size=data.shuffle_buffer_size, **options)
        return tokenize_documents(dataset, tokenizer, num_proc=data.preprocessing_num_workers, desc=desc, **options)

    def load_model(self, tokenizer):
        run = self.run
        model_class = RetroMAEForMaskedLM if run.model.objective == "mlm" else RetroMAEForPreTraining
        changes = run.model.retromae_changes()
        if run.model.attn_implementation is not None:
            changes["attn_implementation"] = run.model.attn_implementation

        def from_scratch():
            base = base_config(run.model, self.backbones)
            backbone_of(base)
            return model_class(RetroMAEConfig(encoder_config=changed_config(base, run.model, tokenizer), **changes))

        return make_model(run, tokenizer, model_class, changes, from_scratch)

    def longest_input(self, model) -> int:
        return model.config.max_position_embeddings

    def encoded_length(self, max_seq_length: int) -> int:
        """Tokens of a text that the finished model encodes."""
        return max_seq_length

    def example_length(self, max_seq_length: int) -> int:
        """Tokens of a text of the training examples."""
        return max_seq_length

    def sequences(self, passages, tokenizer):
        """The token ids of the training text, to be gone through more than once."""
        return passages["input_ids"]

    def start_from_corpus(self, model, passages, tokenizer) -> str:
        report = corpus_start(
            model,
            self.sequences(passages, tokenizer),
            special_ids=tokenizer.all_special_ids,
            seed=self.run.args.seed,
            show_progress=self.run.args.process_index == 0,
        )
        return report["summary"]

    def collator(self, model, tokenizer):
        return default_collator(
            model,
            tokenizer,
            seed=self.run.args.seed,
            encoder_mlm_probability=self.run.data.encoder_mlm_probability,
            decoder_mlm_probability=self.run.data.decoder_mlm_probability,
        )

    def trainer_arguments(self) -> dict[str, Any]:
        return {}

    def export(self, model, tokenizer, folder: Path, *, max_seq_length: int):
        export_encoder(model, tokenizer, folder / "encoder", max_seq_length=max_seq_length)

    def write_card(self, model, folder: str, results: dict):
        write_model_card(folder, model, self, results)

    @staticmethod
    def how_to_load(folder: str) -> str:
        return (
            f"\nThe model is in {folder}; its plain encoder, which loads anywhere, in {folder}/encoder. To use it:\n\n"
            "  from sentence_transformers import SentenceTransformer\n"
            f'  model = SentenceTransformer("{folder}/encoder")\n'
            '  vectors = model.encode(["a query", "a document"])\n'
        )


class GURObjective:
    """GUR: a pair of texts is an example; from documents the pairs are mined first, if anything learns from pairs."""

    tokenizer_kind = "t5"
    backbones = ("t5", "mt5", "umt5")
    units = ("pairs", "with two texts")
    examples = "pairs"
    sequence = "text"
    trainer_class = GURTrainer
    retrieval_pooling = "pooler_output"

    def __init__(self, run: Run):
        self.run = run
        self.reading: CorpusCounts | None = None
        self.held_out = 0
        self.held_out_documents: set[str] = set()
        self.token_count: str | None = None

    def check(self):
        run, data = self.run, self.run.data
        run.mining.check()
        run.cleaning.check()
        check_config(run, self.backbones, self._new_config)
        refuse_fp16(run.args)
        shortest, encoded = data.max_seq_length or 0, run.gur.encode_max_seq_length
        if encoded is not None and encoded < shortest:
            raise InputError(
                f"--encode_max_seq_length {encoded} is below --max_seq_length {shortest}, what is trained on: give as "
                "much or more, or lower both."
            )
        useless = _changed(data, ["encoder_mlm_probability", "decoder_mlm_probability"])
        if useless:
            raise InputError(f"{useless}: --objective gur masks spans, see --mask_rate; leave it out.")
        if data.streaming:
            raise InputError("--streaming does not go with --objective gur: its pairs are mined from the whole text.")
        useless = _changed(data, ["overflow", "chunk_boundary", "overlap"])
        if useless:
            raise InputError(f"{useless}: has no effect on --objective gur, a sentence that is too long is cut off.")
        if data.chinese_whole_words and not run.gur.mask_whole_words:
            raise InputError("--chinese_whole_words has no effect on --objective gur without --mask_whole_words true.")

    def settings(self) -> list:
        return [self.run.gur, self.run.mining, self.run.cleaning]

    check_tokenizer = staticmethod(check_pair_tokenizer)

    def load_text(self):
        """(training, validation or None): datasets with the columns text and text_pair; of a model that is started and
        not trained, documents, with the column text."""
        run, data = self.run, self.run.data
        loaded = None if self._learns_from_pairs() else load_mined_documents(run.source())
        if loaded is not None:
            train, self.reading = loaded
            self.units, self.examples = ("documents", "passages"), "passages"
            run.say(f"text: {self.reading}; nothing is trained, so no pairs are mined")
            return train, None
        common = self._pair_options()
        counts = CorpusCounts()
        train = load_pairs(run.source(), run.mining, counts=counts, **common)
        self.reading = counts if counts.documents else None  # there are none where pairs are given
        validation = None
        if data.validation_file is not None:
            validation = load_pairs(run.validation_source(), run.mining, **common)
        elif data.validation_split_percentage > 0:
            train, validation = hold_out_documents(train, data.validation_split_percentage, seed=run.args.seed)
            names = validation["document_id"] if "document_id" in validation.column_names else []
            self.held_out_documents = {name for name in names if name is not None}
            self.held_out = len(self.held_out_documents)
            validation = _first_rows(validation, data.max_eval_samples)
            run.say(f"held out for validation: {len(validation):,} pairs, of documents of their own")
        return train, validation

    def _learns_from_pairs(self) -> bool:
        """Training does, and the start of a decoder, and a validation loss."""
        run, data = self.run, self.run.data
        measures = data.validation_file is not None or data.validation_split_percentage > 0
        starts_decoder = run.model.init_weights == "corpus" and run.gur.lm_loss_weight != 0
        return run.args.trains or starts_decoder or measures or data.mix_file is not None

    def load_other_text(self, source: dict[str, Any]):
        return load_pairs(source, self.run.mining, **self._pair_options())

    def _pair_options(self) -> dict[str, Any]:
        run = self.run
        return {
            "strategies": run.gur.pair_strategies,
            "seed": run.args.seed,
            "num_workers": run.data.preprocessing_num_workers or 1,
            "say": run.say,
            "show_progress": run.args.process_index == 0 and not run.args.disable_tqdm,
        }

    def texts(self, dataset):
        sides = [name for name in ("text", "text_pair") if name in dataset.column_names]
        return dict.fromkeys(row[side] for row in dataset for side in sides)

    def tokenise(self, dataset, tokenizer, *, max_seq_length: int, desc: str):
        data = self.run.data
        if "text_pair" not in dataset.column_names:
            # In full chunks: statistics of short ones lack what stands on both sides of a cut.
            options = {"max_seq_length": max_seq_length, "chunk_boundary": "token", "desc": desc}
            return tokenize_documents(dataset, tokenizer, num_proc=data.preprocessing_num_workers, **options)
        return tokenize_pairs(
            dataset,
            tokenizer,
            max_seq_length=max_seq_length,
            num_proc=data.preprocessing_num_workers,
            word_segmenter=chinese_segmenter() if data.chinese_whole_words else None,
            desc=desc,
        )

    def _config_changes(self) -> dict[str, Any]:
        attention = self.run.model.attn_implementation
        return self.run.gur.config_changes() | ({} if attention is None else {"attn_implementation": attention})

    def _new_config(self, base) -> GURConfig:
        """That of a model from scratch, around a T5's. `ValueError` for what does not go together."""
        changes = self._config_changes()
        if self.run.gur.projection_init == "identity":
            # Two columns of the hidden layer for each coordinate that passes through.
            changes.setdefault("projection_dim", base.d_model)
            changes["projection_hidden_dim"] = 2 * base.d_model
        config = GURConfig.from_backbone_config(base, **changes)
        if self.run.gur.projection_init == "identity" and config.feed_forward_proj.startswith("gated"):
            raise ValueError(
                f"--projection_init identity needs relu in feed_forward_proj, not {config.feed_forward_proj}."
            )
        return config

    def load_model(self, tokenizer):
        run, changes = self.run, self._config_changes()

        def from_scratch():
            base = changed_config(base_config(run.model, self.backbones), run.model, tokenizer)
            model = GURForPreTraining(self._new_config(base))
            if run.gur.projection_init == "identity":
                identity_projection(model.projection, seed=run.args.seed)
            return model

        return make_model(run, tokenizer, GURForPreTraining, changes, from_scratch)

    def longest_input(self, model) -> int:
        return 1_000_000  # relative positions have no limit; by default a text is cut at 512 all the same

    def encoded_length(self, max_seq_length: int) -> int:
        return max(max_seq_length, self.run.gur.encode_max_seq_length or ENCODED_LENGTH)

    def example_length(self, max_seq_length: int) -> int:
        return max_seq_length if self.examples == "pairs" else self.encoded_length(max_seq_length)

    def sequences(self, passages, tokenizer):
        if self.examples == "pairs":
            # The texts of mined pairs are cut short, and what stood together in a document no longer does in them.
            loaded = load_mined_documents(self.run.source(), leave_out=self.held_out_documents)
            if loaded is None:
                return _BothSides(passages)
            options = {"max_seq_length": tokenizer.model_max_length, "desc": "tokenising documents"}
            passages = self.tokenise(loaded[0], tokenizer, **options)
        return passages.with_format("numpy")["input_ids"]

    def start_from_corpus(self, model, passages, tokenizer) -> str:
        return start_gur(
            model,
            self.sequences(passages, tokenizer),
            special_ids=tokenizer.all_special_ids,
            # There may be more rows than tokens.
            tokens=[name or "" for name in tokenizer.convert_ids_to_tokens(range(model.config.vocab_size))],
            batches=self._some_batches(model, passages, tokenizer),
            seed=self.run.args.seed,
            show_progress=self.run.args.process_index == 0 and not self.run.args.disable_tqdm,
        )

    def _some_batches(self, model, pairs, tokenizer) -> list[dict]:
        """Masked pairs for the start of the decoder, the same in every process."""
        if "lm_loss" not in model.loss_weights:
            return []
        drawn = np.random.default_rng(self.run.args.seed).permutation(len(pairs))[:START_PAIRS]
        rows, collator = pairs.select(drawn).with_format("numpy"), self.collator(model, tokenizer)
        size = max(1, min(START_BATCH, len(drawn) // 2))
        return [collator([rows[i] for i in range(at, min(at + size, len(rows)))]) for at in range(0, len(rows), size)]

    def collator(self, model, tokenizer):
        return PairCollator(tokenizer, seed=self.run.args.seed, **self.run.gur.masking())

    def trainer_arguments(self) -> dict[str, Any]:
        return {"contrastive_mini_batch_size": self.run.gur.contrastive_mini_batch_size}

    def export(self, model, tokenizer, folder: Path, *, max_seq_length: int):
        model.export_backbone(folder / "backbone")
        tokenizer.save_pretrained(folder / "backbone")

    def write_card(self, model, folder: str, results: dict):
        write_model_card(folder, model, self, results)

    @staticmethod
    def how_to_load(folder: str) -> str:
        return (
            f"\nThe model is in {folder}; a plain T5 of its weights in {folder}/backbone. To use it:\n\n"
            "  from sentence_transformers import SentenceTransformer\n"
            f'  model = SentenceTransformer("{folder}", trust_remote_code=True)\n'
            '  vectors = model.encode(["a query", "a document"])\n'
        )


OBJECTIVES = {
    "retromae": RetroMAEObjective,
    "dupmae": RetroMAEObjective,
    "mlm": RetroMAEObjective,
    "gur": GURObjective,
}


class _BothSides:
    """The token ids of both texts of all pairs, each text once, to be gone through more than once."""

    def __init__(self, pairs):
        sides = pairs.with_format("numpy")
        self.rows = list(
            {
                row.tobytes(): row
                for name in ("input_ids", "input_ids_pair")
                for row in sides.select_columns(name)[:][name]
            }.values()
        )

    def __iter__(self):
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def _changed(arguments, names: list[str]) -> str:
    """The flags of a group of arguments that have another value than by default."""
    defaults = {entry.name: entry.default for entry in fields(arguments)}
    return ", ".join(f"--{name}" for name in names if getattr(arguments, name) != defaults[name])


def _first_rows(dataset, most: int | None):
    return dataset if most is None else dataset.select(range(min(most, len(dataset))))


# --- Models -------------------------------------------------------------------------------------------------------

_UNUSABLE = (OSError, ValueError, KeyError, TypeError, ImportError, StrictDataclassError)


def make_model(run: Run, tokenizer, model_class, changes: dict, from_scratch: Callable):
    """The model of a run, from a backbone with its own vocabulary, or new with that of the tokenizer."""
    arguments = run.model
    try:
        if arguments.model_name_or_path is not None:
            result = model_class.from_backbone(
                arguments.model_name_or_path,
                revision=arguments.model_revision,
                token=arguments.token,
                cache_dir=arguments.cache_dir,
                **changes,
            )
            run.say(f"{arguments.model_name_or_path}: {result.loading_report}")
        else:
            result = from_scratch()
            kind = getattr(result.config, "encoder_config", result.config).model_type
            run.say(f"{kind} from scratch: {result.num_parameters():,} parameters")
    except _UNUSABLE as error:
        name = arguments.model_name_or_path
        if name and only_pickled_on_hub(name, revision=arguments.model_revision, token=arguments.token):
            raise InputError(
                f"--model_name_or_path {name} has its weights in a pickle, which can run code when it is read, and "
                "none in safetensors: load it where you trust it, save it with save_pretrained, and give that folder."
            ) from error
        raise _unusable(arguments, error) from error
    return result


def check_config(run: Run, types, complete: Callable = lambda base: base):
    """Raises `InputError` for a configuration from which no model can be made, before anything is read.

    `complete` makes the whole model's of the backbone's.
    """
    if run.model.config_name is None:
        return
    try:
        config = changed_config(base_config(run.model, types), run.model, None)
        if config.model_type not in types:
            raise ValueError(f"no backbone of type {config.model_type!r} is supported; there are {', '.join(types)}.")
        complete(config)
    except _UNUSABLE as error:
        raise _unusable(run.model, error) from error


def _unusable(arguments: ModelArguments, error: Exception) -> InputError:
    option = "model_name_or_path" if arguments.model_name_or_path else "config_name"
    return InputError(f"--{option} {getattr(arguments, option)} cannot be used: {first_line(error)}")


def base_config(arguments: ModelArguments, types):
    """The configuration that `--config_name` names: a type, a folder or a name on the Hub."""
    name = arguments.config_name
    if name in CONFIG_MAPPING:
        return AutoConfig.for_model(name)
    if name in types or "/" in name or Path(name).exists():
        return AutoConfig.from_pretrained(
            name, revision=arguments.model_revision, token=arguments.token, trust_remote_code=False
        )
    raise ValueError(f"--config_name {name} is no folder and no type; types: {', '.join(types)}.")


def changed_config(base, arguments: ModelArguments, tokenizer):
    """A new configuration: `base` with `--config_overrides`, and the ids of the tokenizer where there is one."""
    changes = {} if tokenizer is None else {"vocab_size": len(tokenizer)}
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"):
        if tokenizer is not None and getattr(base, name, None) is not None:
            changes[name] = getattr(tokenizer, name, None)
    for pair in filter(None, (arguments.config_overrides or "").replace(" ", "").split(",")):
        name, equals, value = pair.partition("=")
        if not equals or not hasattr(base, name):
            raise ValueError(f"--config_overrides takes name=value,name=value of {type(base).__name__}, not {pair!r}.")
        changes[name] = value if isinstance(getattr(base, name), str) else yaml.safe_load(value)
    # Made anew, not updated: fields that follow from others (the kinds of ModernBERT's layers) follow the changes.
    fields = {} if arguments.config_name in CONFIG_MAPPING else base.to_dict()
    if "num_hidden_layers" in changes:
        fields.pop("layer_types", None)
    config = type(base)(**{**fields, **changes})
    if hasattr(config, "validate"):
        config.validate()
    return config


def first_line(error: Exception) -> str:
    """The first line of an error's message; of strict dataclasses all of it, the reason being on the last."""
    if isinstance(error, StrictDataclassError):
        return " ".join(str(error).split())
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
