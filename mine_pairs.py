"""Raw documents in, pairs of texts that belong together out: what GUR learns from, with no label.

    python mine_pairs.py --train_file docs.jsonl --output_dir outputs/pairs      # {"title": ..., "text": ...} a line
    python mine_pairs.py --train_file book.txt --document_separator file --output_dir outputs/book_pairs
    python mine_pairs.py recipes/mine_pairs.yaml --num_workers 4                 # a recipe is a whole run

Two sentences of a document are a pair when they share a heavy span: three Han characters, ten Latin letters, or less
beside a short sentence. `outputs/pairs/pairs.parquet` has the columns text, text_pair, shared_span, document_id and
strategy; `counts.json` says what was kept and what was dropped and why. A run that was stopped goes on where it was
when the command is given again. `--help` lists what can be set.
"""

import itertools
import sys

from huggingface_hub import DatasetCard

from retrieval_pretraining.arguments import PairArguments, parse_arguments
from retrieval_pretraining.cleaning_settings import CleaningSettings
from retrieval_pretraining.corpus_cache import write_atomically
from retrieval_pretraining.door import exit_status
from retrieval_pretraining.errors import PushError
from retrieval_pretraining.hub import HubRepository, open_repository
from retrieval_pretraining.hub_files import pair_files
from retrieval_pretraining.mined_pairs import MinedPairs, mine_to_folder
from retrieval_pretraining.mining_report import CARD_TITLE, format_counts, format_pairs, pairs_card
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.pair_files import read_pairs

SHOWN = 3


def run(args: PairArguments, settings: MiningSettings, cleaning: CleaningSettings | None = None) -> MinedPairs:
    """One run; says what it did. Called by `main`, and by whoever wants a door's behaviour from Python."""
    cleaning = cleaning or CleaningSettings()
    args.check()
    settings.check()
    cleaning.check()
    repository = None
    if args.push_to_hub:
        # Now, not after hours of mining.
        repository = open_repository(
            args.hub_dataset_id,
            kind="dataset",
            token=args.hub_token,
            private=args.hub_private_repo,
            revision=args.hub_revision,
            create_pr=args.hub_create_pr,
        )
    pairs = mine_to_folder(
        {**args.source(), "cleaning": cleaning},
        args.output_dir,
        settings,
        seed=args.seed,
        num_workers=args.num_workers,
        output_format=args.output_format,
        overwrite=args.overwrite_output_dir,
    )
    if pairs.was_there:
        print(f"{pairs.file} was mined before from the same text with the same settings: nothing to do.")
    _write_card(pairs, args.license)
    print(format_counts(pairs.counts))
    if not pairs.counts["pairs"]:
        print(_why_none(args, settings, pairs.counts), file=sys.stderr)
        return pairs
    print(f"\n{format_pairs(itertools.islice(read_pairs(pairs.file), SHOWN))}")
    print(f"The pairs are in {pairs.file}. To use them:\n")
    print(f'  from datasets import load_dataset\n  pairs = load_dataset("{args.output_dir}", split="train")')
    if repository is not None:
        _push(repository, pairs)
    return pairs


def _write_card(pairs: MinedPairs, license: str | None):
    """README.md, unless there is one that says something else."""
    file = pairs.file.with_name("README.md")
    before = file.read_text(encoding="utf-8", errors="replace") if file.exists() else None
    if before is None or (not pairs.was_there and CARD_TITLE in before):
        example = itertools.islice(read_pairs(pairs.file), 1)
        write_atomically(file, pairs_card(pairs.file.name, pairs.counts, examples=example, license=license))
    elif license is not None:
        card = DatasetCard(before)
        card.data.license = license
        write_atomically(file, str(card))


def _push(repository: HubRepository, pairs: MinedPairs):
    folder = pairs.file.parent
    try:
        pushed = repository.push(pair_files(folder), f"{pairs.counts['pairs']:,} pairs")
    except PushError as error:
        raise PushError(
            f"{repository.name} was not pushed, but the pairs are whole in {folder}: {error}",
            repository.retry_command(folder),
        ) from error
    print(f"\npushed: {pushed.pr_url or pushed.commit_url}")


def _why_none(args: PairArguments, settings: MiningSettings, counts: dict) -> str:
    if settings.strategy == "title" and not counts["titles"]:
        return "warning: no pair: no document has a title; name its column with --title_column_name."
    if counts["sentences"] + counts["titles"] > counts["documents"]:
        return "warning: no pair: no two sentences of a document share a span that is heavy enough; see --help."
    hint = ""
    if args.document_separator == "line":
        hint = " Each line of a txt file is one; --document_separator blank_line or file makes larger ones."
    return f"warning: no pair: no document has two sentences.{hint}"


def main(arguments: list[str] | None = None) -> int:
    """The command line: returns the exit status."""
    return exit_status(
        lambda: run(*parse_arguments([PairArguments, MiningSettings, CleaningSettings], arguments)),
        stopped="Stopped. What was finished is kept: the same command goes on from there.",
    )


if __name__ == "__main__":
    sys.exit(main())
