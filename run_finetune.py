"""A model and pairs in, a retriever out: the stage after pre-training.

    python run_finetune.py recipes/finetune.yaml                          # a recipe is a whole run
    python run_finetune.py --model_name_or_path outputs/mine --train_file pairs.jsonl --output_dir outputs/tuned
    python run_finetune.py --model_name_or_path outputs/mine --train_file data/mine --query_prompt bge_en \
        --hard_negatives bm25 --eval_retrieval_dir data/mine --output_dir outputs/tuned

Pairs are rows with `text` and `text_pair` (or `anchor` and `positive`, `query` and `pos`, or the columns you name),
with negatives or without; what `mine_pairs.py` wrote; or a folder in BEIR layout. Any model of this project, any
encoder and any sentence-transformers folder will do. The output folder is an ordinary sentence-transformers folder.
Needs the extra `sentence-transformers`; `--help` lists what can be set, docs/fine-tuning.md says what to set.
"""

import sys
from typing import Any

from retrieval_pretraining.arguments import parse_arguments
from retrieval_pretraining.card_arguments import CardArguments
from retrieval_pretraining.door import exit_status
from retrieval_pretraining.extras import import_extra
from retrieval_pretraining.finetune_arguments import (
    ContrastiveArguments,
    FinetuneDataArguments,
    FinetuneModelArguments,
)


def argument_groups() -> list[type]:
    """What can be set. The last of them is that of sentence-transformers, which may not be installed."""
    import_extra("sentence_transformers", "sentence-transformers")
    from retrieval_pretraining.finetune_trainer import FinetuningArguments

    groups = [FinetuneModelArguments, FinetuneDataArguments, FinetuningArguments]
    return [*groups, ContrastiveArguments, CardArguments]


def run(model_args, data_args, args, contrastive=None, card=None) -> dict[str, Any]:
    """One run; returns what it measured. Called by `main`, and from Python."""
    from retrieval_pretraining.finetuning import finetune

    return finetune(model_args, data_args, args, contrastive, card)


def main(arguments: list[str] | None = None) -> int:
    """The command line: returns the exit status."""
    return exit_status(lambda: run(*parse_arguments(argument_groups(), arguments)))


if __name__ == "__main__":
    sys.exit(main())
