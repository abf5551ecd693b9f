"""What the model card of a fine-tuned model states: pairs, negatives, instruction, loss, results before and after."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modeling_retromae import backbone_of
from retrieval_pretraining.card_arguments import CardArguments
from retrieval_pretraining.card_facts import citation, run_facts, shown, shown_texts
from retrieval_pretraining.card_plots import write_plots
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.finetune_arguments import (
    ContrastiveArguments,
    FinetuneDataArguments,
    FinetuneModelArguments,
)
from retrieval_pretraining.finetune_model import needs_remote_code
from retrieval_pretraining.model_card import render_card, results_text, where_it_is
from retrieval_pretraining.results_file import write_whole
from retrieval_pretraining.text_encoder import SentenceTransformersEncoder


@dataclass
class FinetuneRun:
    """What a run was asked for."""

    model: FinetuneModelArguments
    data: FinetuneDataArguments
    args: Any  # FinetuningArguments, which need sentence-transformers
    contrastive: ContrastiveArguments = field(default_factory=ContrastiveArguments)
    card: CardArguments = field(default_factory=CardArguments)


def write_finetune_card(
    folder: str | Path, encoder: SentenceTransformersEncoder, run: FinetuneRun, results: dict[str, Any]
) -> Path:
    """Writes `README.md` and the images in it; `results` is what the run has measured until now."""
    folder = Path(folder)
    path = folder / "README.md"
    old = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    plots = write_plots(folder, results)
    return write_whole(path, finetune_card(folder, encoder, run, results, plots=plots, old=old).encode("utf-8"))


def finetune_card(
    folder: str | Path,
    encoder: SentenceTransformersEncoder,
    run: FinetuneRun,
    results: dict[str, Any],
    *,
    plots: dict[str, str] | None = None,
    old: str = "",
) -> str:
    """The text of the card. `InputError` for metadata that the Hub would refuse."""
    model, config, args = encoder.model, encoder.model[0].auto_model.config, run.args
    layers = _layers(model)
    options = f", revision={json.dumps(args.hub_revision)}" if args.hub_revision else ""
    prompts = {"query": encoder.query_prompt, "document": encoder.document_prompt}
    said = ", ".join(
        f"{name}: `{json.dumps(prompt, ensure_ascii=False)}`" for name, prompt in prompts.items() if prompt
    )
    return render_card(
        folder,
        old,
        results,
        data=run.data,
        args=args,
        card=run.card,
        base_model=run.model.model_name_or_path,
        tags=[config.model_type, "dense", "fine-tuning"],
        training_type="fine-tuning",
        family="finetuned",
        method="pairs of queries and texts that answer them",
        where=where_it_is(folder, args),
        options=options + (", trust_remote_code=True" if needs_remote_code(model) else ""),
        plain=layers == "cls",
        plain_options=", add_pooling_layer=False" if _has_pooler(config) else "",
        query_text=json.dumps(f"{prompts['query']}a query", ensure_ascii=False),
        document_text=json.dumps(f"{prompts['document']}a document", ensure_ascii=False),
        pooling=layers,
        dimensions=encoder.vector_size,
        dtype=encoder.dtype,
        max_seq_length=encoder.max_seq_length,
        prompts=said or "none",
        tables=_facts(encoder, run, results),
        results=results_text(results, plots or {}, how="each side after its prompt", opening="It"),
        limitations=_limitations(encoder, run),
        citation=citation("finetune"),
    )


def _layers(model) -> str:
    """Pooling and what comes after it, but for the length of 1; "cls" where that is all."""
    named = []
    for module in list(model)[1:]:
        kind = type(module).__name__
        if kind == "Pooling":
            kind = module.get_pooling_mode_str() if hasattr(module, "get_pooling_mode_str") else module.pooling_mode
        if kind != "Normalize":
            named.append(str(kind))
    return ", then ".join(named) or "that of the model"


def _has_pooler(config) -> bool:
    try:
        return backbone_of(config).has_pooler
    except (InputError, ValueError, KeyError):
        return False


def _facts(encoder: SentenceTransformersEncoder, run: FinetuneRun, results: dict[str, Any]) -> dict[str, dict]:
    loss = run.contrastive
    sizes = ", ".join(map(str, loss.matryoshka_dims or []))
    return {
        "Training": {
            "loss": "cross-entropy of the positive among all texts of the batch (CachedMultipleNegativesRankingLoss)",
            "temperature": f"{loss.temperature:g}, which cosines are divided by",
            "vectors that can be cut": sizes and f"to {sizes} (MatryoshkaLoss)",
            "model": f"{encoder.model_type}, {encoder.parameters:,} parameters",
            "start": shown(run.model.model_name_or_path, on_hub=True),
        },
        "Data": {
            "pairs": results.get("pairs"),
            "read from": ", ".join(shown_texts(run.data)),
            "negatives": results.get("negatives"),
            "language": ", ".join(run.card.language or []),
        },
        "Run": run_facts(run.args, results, pairs=True),
    }


def _limitations(encoder: SentenceTransformersEncoder, run: FinetuneRun) -> str:
    where = f" ({', '.join(run.card.language)})" if run.card.language else ""
    items = [
        f"It serves queries of the kind it was trained on{where}; for others it may be worse than the model that it "
        "started from. Nobody has checked what it says about people.",
        "Texts that answer a query and are not marked as such in the pairs were taken for wrong ones.",
        f"What is behind token {encoder.max_seq_length} of a text has no effect on its vector: cut long texts up.",
        "Whether it is good enough for a task is seen on data of that task, beside BM25.",
    ]
    return "\n".join(f"- {item}" for item in items)
