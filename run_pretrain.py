"""Raw text in, a retrieval-oriented encoder out.

    python run_pretrain.py recipes/demo_scifact.yaml                      # a recipe is a whole run
    python run_pretrain.py recipes/demo_scifact.yaml --max_steps 100      # flags override it
    python run_pretrain.py --model_name_or_path google-bert/bert-base-uncased \
        --train_file my_text.txt --output_dir outputs/mine                # your text, one passage a line

On a CPU, in a minute, from nothing but text:

    python run_pretrain.py --train_file my_text.txt --output_dir outputs/tiny --config_name bert \
        --config_overrides hidden_size=128,num_hidden_layers=2,num_attention_heads=4,intermediate_size=512 \
        --tokenizer_vocab_size 8000 --init_weights corpus --max_seq_length 128 --learning_rate 1e-3 --max_steps 300

GUR, from a T5 and documents, from which pairs are mined first (a file with `text_pair` is taken as it is):

    python run_pretrain.py --objective gur --model_name_or_path google/t5-v1_1-small --train_file docs.jsonl \
        --pooling mean --max_seq_length 64 --output_dir outputs/gur

The output folder loads with AutoModel (trust_remote_code) and SentenceTransformer; `encoder/` in it (`backbone/` for
GUR) is a plain model of the backbone's own class, for everything else. `--help` lists what can be set.
"""

import itertools
import sys
from pathlib import Path

from transformers import set_seed

from retrieval_pretraining.added_terms import read_terms
from retrieval_pretraining.arguments import DataArguments, ModelArguments, PretrainingArguments, parse_arguments
from retrieval_pretraining.card_arguments import CardArguments
from retrieval_pretraining.cleaning_settings import CleaningSettings
from retrieval_pretraining.door import exit_status
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.gur_arguments import GURArguments
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.mixing import mix
from retrieval_pretraining.model_card import model_card
from retrieval_pretraining.objectives import OBJECTIVES, Run
from retrieval_pretraining.retrieval_evaluation import (
    bm25_beside,
    evaluate_retrieval,
    format_table,
    load_retrieval_data,
    retrieval_metrics,
    training_sample,
)
from retrieval_pretraining.start_share import mix_with_start, remember_start
from retrieval_pretraining.text_statistics import count_tokens, format_statistics, unknown_warning
from retrieval_pretraining.token_rows import DEFAULT_INIT, fit_vocabulary
from retrieval_pretraining.tokenizer_loading import load_tokenizer
from retrieval_pretraining.trainer import NonFiniteLossError
from retrieval_pretraining.training_run import bars, open_run, push, speaker, train

ARGUMENTS = [ModelArguments, DataArguments, PretrainingArguments, GURArguments, MiningSettings, CleaningSettings]
ARGUMENTS += [CardArguments]


# --- The text -----------------------------------------------------------------------------------------------------


def cut_text(objective, dataset, tokenizer, max_seq_length: int, name: str):
    """Texts -> examples of at most `max_seq_length` tokens."""
    if dataset is None:
        return None
    run = objective.run
    with run.args.main_process_first(desc="tokenising"):
        examples = objective.tokenise(dataset, tokenizer, max_seq_length=max_seq_length, desc=f"tokenising {name}")
    if not run.data.streaming:
        read, made = objective.units
        run.say(f"{name}: {len(dataset):,} {read}, {len(examples):,} {made} of at most {max_seq_length} tokens")
        _say_statistics(objective, examples, tokenizer, name)
    return examples


def _say_statistics(objective, examples, tokenizer, name: str):
    """One screen for the training text. Tokens that the tokenizer does not know are never predicted: many are worth a
    word, only such are an error."""
    tokens = count_tokens(examples, tokenizer)
    if tokens.unknown_share == 1.0:
        raise InputError(f"The tokenizer knows not one token of the {name} text: is it of the text's language?")
    if name == "training":
        about = "" if tokens.examples == tokens.of else "about "
        objective.token_count = f"{about}{tokens.tokens * tokens.of // max(1, tokens.examples):,}"
        objective.run.say(format_statistics(objective.reading, tokens, unit=objective.sequence))
    elif unknown_warning(tokens, name) is not None:
        objective.run.say(unknown_warning(tokens, name))


def choose_length(data: DataArguments, longest: int) -> int:
    if data.max_seq_length is None:
        return min(longest, 512)
    if data.max_seq_length > longest:
        raise InputError(
            f"--max_seq_length {data.max_seq_length} is more than this model takes; use at most {longest}."
        )
    if data.max_seq_length < 8:
        raise InputError(f"--max_seq_length {data.max_seq_length} leaves no room for text; use at least 8.")
    return data.max_seq_length


def freeze(model, names: list[str], *, say=print):
    """Leaves alone, in training, the weights whose names contain one of these; `InputError` where none or all do."""
    for name in names:
        found = [parameter for own, parameter in model.named_parameters() if name in own]
        if not found:
            some = ", ".join(own for own, _ in itertools.islice(model.named_parameters(), 3))
            raise InputError(f"--freeze {name}: no weight of this model has it in its name; there are {some} ...")
        for parameter in found:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"--freeze {' '.join(names)} leaves nothing to train.")
    if names:
        kept = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
        say(f"not trained: {kept:,} of {model.num_parameters():,} parameters ({', '.join(names)})")


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


def run(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: PretrainingArguments,
    gur_args: GURArguments | None = None,
    mining: MiningSettings | None = None,
    cleaning: CleaningSettings | None = None,
    card: CardArguments | None = None,
) -> dict:
    """One run; returns what it measured. Called by `main` and by the demos."""
    gur_args, mining, cleaning = gur_args or GURArguments(), mining or MiningSettings(), cleaning or CleaningSettings()
    card = card or CardArguments()
    model_args.check()
    data_args.check(
        max_steps=args.max_steps, init_weights=model_args.init_weights, evaluates=args.eval_strategy != "no"
    )
    gur_args.check(objective=model_args.objective, from_scratch=model_args.config_name is not None)
    say = speaker(args)
    objective = OBJECTIVES[model_args.objective](
        Run(model_args, data_args, args, gur_args, mining, cleaning, card, say=say)
    )
    objective.check()
    card.check()
    checkpoint, repository = open_run(model_args, data_args, args, objective.settings(), say=say)
    terms = read_terms(model_args.add_tokens) if model_args.add_tokens is not None and checkpoint is None else None
    retrieval = None
    if data_args.eval_retrieval_dir is not None:
        retrieval = load_retrieval_data(data_args.eval_retrieval_dir, split=data_args.eval_retrieval_split)
    # No model is loaded for a text that has nothing.
    with args.main_process_first(desc="reading"):
        text, validation = objective.load_text()
    set_seed(args.seed)

    tokenizer, change = load_tokenizer(objective, text, checkpoint=checkpoint, terms=terms)
    objective.check_tokenizer(tokenizer)
    model = objective.load_model(tokenizer)
    check_best_metric(args, model, retrieval)
    freeze(model, model_args.freeze or [], say=say)
    length = choose_length(data_args, objective.longest_input(model))
    encoded_length, length = objective.encoded_length(length), objective.example_length(length)
    tokenizer.model_max_length = encoded_length
    train_examples = cut_text(objective, text, tokenizer, length, "training")
    sequences = None
    if change is not None and not data_args.streaming:
        sequences = objective.sequences(train_examples, tokenizer)
    init = {"init": model_args.new_token_init or DEFAULT_INIT, "seed": args.seed}
    said = fit_vocabulary(model, tokenizer, change, sequences, checkpoint=checkpoint, **init)
    if said is not None:
        say(said)
    validation_examples = cut_text(objective, validation, tokenizer, length, "validation")
    if args.dataloader_drop_last and not data_args.streaming:
        size = args.per_device_train_batch_size * args.world_size
        if len(train_examples) < size:
            raise InputError(
                f"--dataloader_drop_last leaves nothing of {len(train_examples)} {objective.units[1]} in batches of "
                f"{size}."
            )
    if model_args.init_weights == "corpus" and checkpoint is None:
        say(objective.start_from_corpus(model, train_examples, tokenizer))

    if data_args.mix_file is not None:
        train_examples = _mix_in(objective, train_examples, tokenizer, length, data_args, args)

    trainer = objective.trainer_class(
        model,
        args,
        objective.collator(model, tokenizer),
        train_examples,
        validation_examples,
        tokenizer,
        max_seq_length=encoded_length,
        retrieval_data=_retrieval_sample(retrieval, data_args, args),
        hub_repository=repository,
        **objective.trainer_arguments(),
    )
    if args.trains and not data_args.streaming:
        say(trainer.padding_report())

    count = None if data_args.streaming else len(train_examples)
    scores: dict[str, dict[str, float]] = {}
    results: dict = {"passages": count, "max_seq_length": encoded_length, "cleaning": cleaning.summary()}
    results |= {"documents": objective.reading and objective.reading.documents, "held_out": objective.held_out}
    results["retrieval"] = scores
    if retrieval is not None:
        results |= {"retrieval_name": retrieval.name, "bm25": _bm25(retrieval, args)}
    if args.should_save:
        model_card(args.output_dir, model, objective, results)  # now, not after hours: what is wrong with it
    if retrieval is not None and args.trains:
        scores["before"] = _retrieve(objective, model, tokenizer, retrieval, encoded_length, args)

    def complete(folder: Path, now: dict):
        """What a checkpoint lacks to be published."""
        objective.export(model, tokenizer, folder, max_seq_length=encoded_length)
        objective.write_card(model, folder, {**results, **now})

    share = model_args.start_share if args.trains else 0.0
    if share and args.should_save:
        remember_start(model, args.output_dir, checkpoint=checkpoint)
    results |= train(trainer, args, checkpoint, complete, card=card, say=say)
    if share:
        mix_with_start(model, args.output_dir, share=share)
        results["start_share"] = share
        say(f"the finished weights: {share:.0%} those of the start, {1 - share:.0%} those of the training")
    if validation_examples is not None:
        trainer.retrieval_data = None  # measured below, on all documents
        metrics = trainer.evaluate()
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
        results["eval"] = metrics
    trainer.save_model(args.output_dir, _internal_call=True)  # is pushed below, when all of it is there
    if retrieval is not None:
        scores["after"] = _retrieve(objective, model, tokenizer, retrieval, encoded_length, args)
        named = {f"retrieval_{when}_{name}": value for when, row in scores.items() for name, value in row.items()}
        trainer.save_metrics("eval", {**results.get("eval", {}), **named})
    if args.should_save:
        objective.export(model, tokenizer, Path(args.output_dir), max_seq_length=encoded_length)
        objective.write_card(model, args.output_dir, results)
    if scores:
        table = {"BM25": results["bm25"], **scores}
        names = {} if args.trains else {"after": "model"}
        rows = [{"": names.get(when, when), **row} for when, row in table.items() if row]
        say(f"\n{retrieval.name}, cosine of the sentence vectors:\n{format_table(rows, list(rows[-1]))}")
    say(objective.how_to_load(args.output_dir))
    if args.push_to_hub:
        push(trainer, say)
    return results


def _mix_in(objective, examples, tokenizer, length: int, data: DataArguments, args: PretrainingArguments):
    """The training examples, and their share of those of other text."""
    others = []
    for file in data.mix_file:
        with args.main_process_first(desc="reading"):
            text = objective.load_other_text(objective.run.mix_source(file))
        others.append(cut_text(objective, text, tokenizer, length, file))
    shares = data.mixed_shares()
    mixed = mix([examples, *others], shares, seed=args.seed)
    parts = " + ".join(f"{share:.0%} {file}" for share, file in zip(shares, data.mix_file, strict=True))
    objective.run.say(f"an epoch: {len(mixed):,} {objective.units[1]}, {1 - sum(shares):.0%} training text + {parts}")
    return mixed


def _retrieval_sample(retrieval, data: DataArguments, args: PretrainingArguments):
    """What is searched at the evaluations during training."""
    if retrieval is None or args.eval_strategy == "no":
        return retrieval
    limits = {"max_queries": data.eval_retrieval_max_queries, "max_documents": data.eval_retrieval_max_documents}
    return training_sample(retrieval, **limits, seed=args.seed, say=speaker(args))


def _retrieve(objective, model, tokenizer, retrieval, length: int, args: PretrainingArguments) -> dict[str, float]:
    return evaluate_retrieval(
        model.base_model,
        tokenizer,
        retrieval,
        max_seq_length=length,
        pooling=objective.retrieval_pooling,
        progress=bars(args),
    )


def _bm25(retrieval, args: PretrainingArguments) -> dict[str, float] | None:
    run = bm25_beside(retrieval, speaker(args), progress=bars(args)) if args.process_index == 0 else None
    return None if run is None else retrieval_metrics(run, retrieval.qrels)


def main(arguments: list[str] | None = None) -> int:
    """The command line: returns the exit status."""
    return exit_status(lambda: run(*parse_arguments(ARGUMENTS, arguments)), failures=(NonFiniteLossError,))


if __name__ == "__main__":
    sys.exit(main())
