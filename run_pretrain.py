"""Raw text in, a retrieval-oriented encoder out.

    python run_pretrain.py recipes/demo_scifact.yaml                      # a recipe is a whole run
    python run_pretrain.py recipes/demo_scifact.yaml --max_steps 100      # flags override it
    python run_pretrain.py --model_name_or_path google-bert/bert-base-uncased \
        --train_file my_text.txt --output_dir outputs/mine                # your text, one passage a line

On a CPU, in a minute, from nothing but text:

    python run_pretrain.py --train_file my_text.txt --output_dir outputs/tiny --config_name bert \
        --config_overrides hidden_size=128,num_hidden_layers=2,num_attention_heads=4,intermediate_size=512 \
        --tokenizer_vocab_size 8000 --init_weights corpus --max_seq_length 128 --learning_rate 1e-3 --max_steps 300

The output folder loads with AutoModel (trust_remote_code) and SentenceTransformer; `encoder/` in it is a plain model
of the backbone's own class, for everything else. `--help` lists what can be set.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoTokenizer, set_seed
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from modeling_retromae import BACKBONES, RetroMAEConfig, RetroMAEForMaskedLM, RetroMAEForPreTraining, backbone_of
from retrieval_pretraining.arguments import DataArguments, ModelArguments, PretrainingArguments, parse_arguments
from retrieval_pretraining.corpus import load_documents
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.export import export_encoder
from retrieval_pretraining.model_card import write_model_card
from retrieval_pretraining.passages import check_tokenizer, chinese_segmenter, tokenize_documents, train_tokenizer
from retrieval_pretraining.retrieval_evaluation import evaluate_retrieval, format_table, load_retrieval_data, sample
from retrieval_pretraining.run_folder import (
    changed_settings,
    find_checkpoint,
    last_complete_checkpoint,
    prepare_output,
    resume_command,
)
from retrieval_pretraining.trainer import (
    NonFiniteLossError,
    PretrainingTrainer,
    SaveOnSignal,
    default_collator,
)


def say(args: PretrainingArguments, message: str):
    """One line on the screen, from one process."""
    if args.process_index == 0:
        print(message, flush=True)


# --- The text -----------------------------------------------------------------------------------------------------


def load_text(data: DataArguments, model: ModelArguments, args: PretrainingArguments):
    """The training and the validation documents (or None), counted. No model is loaded for a text that has nothing."""
    common = {**data.reading_options(), "cache_dir": model.cache_dir}
    with args.main_process_first(desc="reading"):
        train, counts = load_documents(
            train_file=data.train_file,
            dataset_name=data.dataset_name,
            dataset_config_name=data.dataset_config_name,
            split=data.train_split_name,
            streaming=data.streaming,
            max_samples=data.max_train_samples,
            **common,
        )
        say(args, f"text: {counts}")
        if data.streaming:
            train = train.shuffle(seed=args.seed, buffer_size=data.shuffle_buffer_size)
        validation = None
        if data.validation_file is not None:
            validation, counts = load_documents(
                train_file=data.validation_file, max_samples=data.max_eval_samples, **common
            )
            say(args, f"validation text: {counts}")
        elif data.validation_split_percentage > 0:
            if len(train) < 2:
                raise InputError("--validation_split_percentage needs at least 2 documents; this text has 1.")
            held_out = max(1, round(len(train) * data.validation_split_percentage / 100))
            parts = train.train_test_split(test_size=min(held_out, len(train) - 1), seed=args.seed)
            train, validation = parts["train"], parts["test"]
            if data.max_eval_samples is not None:
                validation = validation.select(range(min(data.max_eval_samples, len(validation))))
            say(args, f"held out for validation: {len(validation)} documents")
    return train, validation


def cut_text(documents, tokenizer, max_seq_length: int, data: DataArguments, args: PretrainingArguments, name: str):
    """Documents -> passages of at most `max_seq_length` tokens."""
    if documents is None:
        return None
    with args.main_process_first(desc="tokenising"):
        passages = tokenize_documents(
            documents,
            tokenizer,
            max_seq_length=max_seq_length,
            overflow=data.overflow,
            num_proc=data.preprocessing_num_workers,
            word_segmenter=chinese_segmenter() if data.chinese_whole_words else None,
            desc=f"tokenising {name}",
        )
    if not data.streaming:
        say(
            args,
            f"{name}: {len(documents):,} documents, {len(passages):,} passages of at most {max_seq_length} tokens",
        )
        _check_unknown(passages, tokenizer, name, args)
    return passages


def _check_unknown(passages, tokenizer, name: str, args: PretrainingArguments):
    """Tokens that the tokenizer does not know are never predicted: many are worth a word, only such are an error."""
    ids = np.concatenate(passages.with_format("numpy")[:2000]["input_ids"])
    content = ids[~np.isin(ids, [tokenizer.cls_token_id, tokenizer.sep_token_id])]
    share = float(np.mean(content == tokenizer.unk_token_id)) if tokenizer.unk_token_id is not None else 0.0
    if share == 1.0:
        raise InputError(f"The tokenizer knows not one token of the {name} text: is it of the text's language?")
    if share > 0.05:
        say(
            args,
            f"warning: the tokenizer does not know {share:.0%} of the tokens of the {name} text; they teach nothing",
        )


# --- The model ----------------------------------------------------------------------------------------------------


def load_tokenizer(model: ModelArguments, train_documents, args: PretrainingArguments, checkpoint: str | None):
    if checkpoint is not None:  # its ids are what the weights know, whatever the text is now
        return AutoTokenizer.from_pretrained(checkpoint)
    if model.tokenizer_vocab_size is not None:
        if not hasattr(train_documents, "__len__"):
            raise InputError(
                "--tokenizer_vocab_size reads all text first: leave out --streaming or give --tokenizer_name."
            )
        say(args, f"training a tokenizer of {model.tokenizer_vocab_size} tokens")
        return train_tokenizer((row["text"] for row in train_documents), vocab_size=model.tokenizer_vocab_size)
    option = "tokenizer_name" if model.tokenizer_name else "model_name_or_path"
    name = getattr(model, option)
    hub = {"revision": model.model_revision, "token": model.token, "cache_dir": model.cache_dir}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True, **hub)
    except (OSError, ValueError) as error:
        raise InputError(f"No tokenizer could be loaded from --{option} {name}: {_first_line(error)}") from error
    if model.tokenizer_name and model.model_name_or_path:
        _check_same_vocabulary(tokenizer, model, hub)
    return tokenizer


def _check_same_vocabulary(tokenizer, model: ModelArguments, hub: dict):
    """Another tokenizer may add tokens to the model's, but not give its rows another meaning."""
    try:
        own = AutoTokenizer.from_pretrained(model.model_name_or_path, use_fast=True, **hub).get_vocab()
    except (OSError, ValueError):
        return  # a model without a tokenizer: it has to be believed
    given = tokenizer.get_vocab()
    moved = sum(given.get(token) != number for token, number in own.items())
    if moved:
        raise InputError(
            f"--tokenizer_name {model.tokenizer_name} gives {moved:,} of the model's {len(own):,} tokens another id: "
            "its embeddings would mean other words. Use the model's own tokenizer, or train from scratch."
        )


def choose_length(data: DataArguments, longest: int) -> int:
    if data.max_seq_length is None:
        return min(longest, 512)
    if data.max_seq_length > longest:
        raise InputError(
            f"--max_seq_length {data.max_seq_length} is more than this encoder takes; use at most {longest}."
        )
    if data.max_seq_length < 8:
        raise InputError(f"--max_seq_length {data.max_seq_length} leaves no room for text; use at least 8.")
    return data.max_seq_length


def load_model(model: ModelArguments, tokenizer, args: PretrainingArguments):
    model_class = RetroMAEForMaskedLM if model.objective == "mlm" else RetroMAEForPreTraining
    changes = model.retromae_changes()
    if model.attn_implementation is not None:
        changes["attn_implementation"] = model.attn_implementation
    try:
        if model.model_name_or_path is not None:
            result = model_class.from_backbone(
                model.model_name_or_path,
                revision=model.model_revision,
                token=model.token,
                cache_dir=model.cache_dir,
                **changes,
            )
            say(args, f"{model.model_name_or_path}: {result.loading_report}")
        else:
            config = RetroMAEConfig(encoder_config=_config_from_scratch(model, tokenizer), **changes)
            result = model_class(config)
            say(args, f"{config.encoder_config.model_type} from scratch: {result.num_parameters():,} parameters")
    except (OSError, ValueError, KeyError, TypeError, ImportError, StrictDataclassError) as error:
        option = "model_name_or_path" if model.model_name_or_path else "config_name"
        raise InputError(f"--{option} {getattr(model, option)} cannot be used: {_first_line(error)}") from error
    if len(tokenizer) > result.config.vocab_size:
        say(args, f"vocabulary: {result.config.vocab_size} -> {len(tokenizer)} tokens")
        result.resize_token_embeddings(len(tokenizer))
    return result


def _config_from_scratch(model: ModelArguments, tokenizer):
    if model.config_name in CONFIG_MAPPING:
        base = AutoConfig.for_model(model.config_name)
    elif model.config_name in BACKBONES or "/" in model.config_name or Path(model.config_name).exists():
        base = AutoConfig.from_pretrained(model.config_name, revision=model.model_revision, token=model.token)
    else:
        raise ValueError(f"--config_name {model.config_name} is no folder and no type; types: {', '.join(BACKBONES)}.")
    backbone_of(base)
    changes = {"vocab_size": len(tokenizer)}
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"):
        if getattr(base, name, None) is not None:
            changes[name] = getattr(tokenizer, name, None)
    for pair in filter(None, (model.config_overrides or "").replace(" ", "").split(",")):
        name, equals, value = pair.partition("=")
        if not equals or not hasattr(base, name):
            raise ValueError(f"--config_overrides takes name=value,name=value of {type(base).__name__}, not {pair!r}.")
        changes[name] = value if isinstance(getattr(base, name), str) else yaml.safe_load(value)
    # Made anew, not updated: fields that follow from others (the kinds of ModernBERT's layers) follow the changes.
    fields = {} if model.config_name in CONFIG_MAPPING else base.to_dict()
    if "num_hidden_layers" in changes:
        fields.pop("layer_types", None)
    config = type(base)(**{**fields, **changes})
    if hasattr(config, "validate"):
        config.validate()
    return config


def _first_line(error: Exception) -> str:
    if isinstance(error, StrictDataclassError):  # the reason is on the last line
        return " ".join(str(error).split())
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


# --- The run ------------------------------------------------------------------------------------------------------


def check_best_metric(args: PretrainingArguments, model, retrieval):
    """The metric that chooses the best checkpoint is one that the evaluations will have."""
    wanted = args.metric_for_best_model
    if wanted is None or args.eval_strategy == "no":
        return
    names = ["loss", *model.loss_weights, *(name.replace("_loss", "_accuracy") for name in model.loss_weights)]
    if retrieval is not None:
        names += [f"retrieval_{name}" for name in ("ndcg@10", "recall@100", "mrr@10")]
    if wanted.removeprefix("eval_") not in names:
        known = ", ".join(f"eval_{name}" for name in names)
        hint = " (retrieval metrics need --eval_retrieval_dir)" if "retrieval" in wanted else ""
        raise InputError(f"--metric_for_best_model {wanted} is not measured{hint}; there are {known}.")


def run(model_args: ModelArguments, data_args: DataArguments, args: PretrainingArguments) -> dict:
    """One run; returns what it measured. Called by `main` and by the demo."""
    model_args.check()
    data_args.check(
        max_steps=args.max_steps, init_weights=model_args.init_weights, evaluates=args.eval_strategy != "no"
    )
    prepare_output(model_args, args)
    checkpoint = find_checkpoint(args)
    for name, (before, now) in changed_settings(model_args, data_args, args, resumed=checkpoint is not None).items():
        say(args, f"warning: resumed with another {name}: {before} -> {now}")
    retrieval = None
    if data_args.eval_retrieval_dir is not None:
        retrieval = load_retrieval_data(data_args.eval_retrieval_dir, split=data_args.eval_retrieval_split)
    train, validation = load_text(data_args, model_args, args)
    set_seed(args.seed)

    tokenizer = load_tokenizer(model_args, train, args, checkpoint)
    check_tokenizer(tokenizer)
    model = load_model(model_args, tokenizer, args)
    check_best_metric(args, model, retrieval)
    length = choose_length(data_args, model.config.max_position_embeddings)
    tokenizer.model_max_length = length
    train_passages = cut_text(train, tokenizer, length, data_args, args, "training")
    validation_passages = cut_text(validation, tokenizer, length, data_args, args, "validation")
    if args.dataloader_drop_last and not data_args.streaming:
        size = args.per_device_train_batch_size * args.world_size
        if len(train_passages) < size:
            raise InputError(
                f"--dataloader_drop_last leaves nothing of {len(train_passages)} passages in batches of {size}."
            )
    if model_args.init_weights == "corpus" and checkpoint is None:
        from retrieval_pretraining.corpus_start import corpus_start

        report = corpus_start(
            model,
            train_passages["input_ids"],
            special_ids=tokenizer.all_special_ids,
            seed=args.seed,
            show_progress=args.process_index == 0,
        )
        say(args, report["summary"])

    signals = SaveOnSignal()
    trainer = PretrainingTrainer(
        model,
        args,
        default_collator(
            model,
            tokenizer,
            seed=args.seed,
            encoder_mlm_probability=data_args.encoder_mlm_probability,
            decoder_mlm_probability=data_args.decoder_mlm_probability,
        ),
        train_passages,
        validation_passages,
        tokenizer,
        max_seq_length=length,
        retrieval_data=_retrieval_sample(retrieval, data_args),
        callbacks=[signals],
    )

    results: dict = {"passages": None if data_args.streaming else len(train_passages), "max_seq_length": length}
    scores = {}
    if retrieval is not None:
        scores["before"] = _retrieve(model, tokenizer, retrieval, length, args)
    started = time.time()
    outcome = trainer.train(resume_from_checkpoint=checkpoint)
    results["seconds"] = time.time() - started
    if signals.received is not None:
        saved = last_complete_checkpoint(args.output_dir)
        say(args, f"\nStopped after step {trainer.state.global_step}, saved in {saved}. To go on exactly from there:")
        say(args, f"  {resume_command(args, saved)}")
        raise SystemExit(128 + signals.received)
    trainer.log_metrics("train", outcome.metrics)
    trainer.save_metrics("train", outcome.metrics)
    trainer.save_state()
    if validation_passages is not None:
        trainer.retrieval_data = None  # measured below, on all documents
        metrics = trainer.evaluate()
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
        results["eval"] = metrics
    trainer.save_model(args.output_dir)
    if retrieval is not None:
        scores["after"] = _retrieve(model, tokenizer, retrieval, length, args)
        named = {f"retrieval_{when}_{name}": value for when, row in scores.items() for name, value in row.items()}
        trainer.save_metrics("eval", {**results.get("eval", {}), **named})
    results.update(train=outcome.metrics, retrieval=scores, steps=trainer.state.global_step)
    if args.should_save:
        export_encoder(model, tokenizer, Path(args.output_dir) / "encoder", max_seq_length=length)
        write_model_card(args.output_dir, model, model_args, data_args, args, results)
    if args.push_to_hub:
        trainer.push_to_hub()
    if scores:
        rows = [{"": when, **row} for when, row in scores.items()]
        say(args, f"\n{retrieval.name}, cosine of the sentence vectors:\n{format_table(rows, list(rows[0]))}")
    say(args, how_to_load(args.output_dir))
    return results


def _retrieval_sample(retrieval, data: DataArguments):
    if retrieval is None or data.eval_retrieval_max_documents is None:
        return retrieval
    return sample(retrieval, max_documents=data.eval_retrieval_max_documents)


def _retrieve(model, tokenizer, retrieval, length: int, args: PretrainingArguments) -> dict[str, float]:
    progress = None if args.process_index == 0 else False  # None: a bar where it takes long
    return evaluate_retrieval(model.base_model, tokenizer, retrieval, max_seq_length=length, progress=progress)


def how_to_load(folder: str) -> str:
    return (
        f"\nThe model is in {folder}; its plain encoder, which loads anywhere, in {folder}/encoder. To use it:\n\n"
        "  from sentence_transformers import SentenceTransformer\n"
        f'  model = SentenceTransformer("{folder}/encoder")\n'
        '  vectors = model.encode(["a query", "a document"])\n'
    )


def main(arguments: list[str] | None = None) -> int:
    """The command line: returns the exit status."""
    try:
        run(*parse_arguments([ModelArguments, DataArguments, PretrainingArguments], arguments))
    except (InputError, NonFiniteLossError) as error:
        # A mistake is made by all processes alike; a loss goes bad in one of them.
        if isinstance(error, NonFiniteLossError) or os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
