"""The README.md of a trained model: what it is, how it was made, what it measured, how to load it."""

from pathlib import Path

import transformers
from huggingface_hub import ModelCard, ModelCardData

_METHODS = {
    "retromae": "RetroMAE: a one-layer decoder rebuilds the text from the `[CLS]` vector and a heavily masked view",
    "dupmae": "DupMAE: RetroMAE, and a bag of words predicted from the other tokens",
    "mlm": "masked language modelling (the control without a decoder)",
}

_CITATIONS = {
    "retromae": """@inproceedings{xiao-etal-2022-retromae,
  title = {RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder},
  author = {Xiao, Shitao and Liu, Zheng and Shao, Yingxia and Cao, Zhao},
  booktitle = {Proceedings of EMNLP}, year = {2022}, note = {arXiv 2205.12035}
}""",
    "dupmae": """@article{liu2022retromae2,
  title = {RetroMAE-2: Duplex Masked Auto-Encoder For Pre-Training Retrieval-Oriented Language Models},
  author = {Liu, Zheng and Xiao, Shitao and Shao, Yingxia and Cao, Zhao}, year = {2022}, note = {arXiv 2211.08769}
}""",
}

_TEMPLATE = """---
{{ card_data }}
---

# {{ name }}

A **pre-trained** text encoder, made from raw text without labels by {{ method }}. Its `[CLS]` state is the sentence
vector. Pre-training prepares the vector; for search in earnest, fine-tune it on pairs. Similarities are good for their
order, not for their values.

## Use

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{{ where }}", trust_remote_code=True)
vectors = model.encode(["a query", "a document"])
```

The same vectors with transformers alone:

```python
import torch
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{{ where }}", trust_remote_code=True)
model = AutoModel.from_pretrained("{{ where }}", trust_remote_code=True)
inputs = tokenizer(["a query", "a document"], padding=True, truncation=True, return_tensors="pt")
vectors = torch.nn.functional.normalize(model(**inputs).pooler_output)
```

Texts of up to {{ max_seq_length }} tokens; the state of the first token, normalised to length 1; no prompts.
`encoder/` in this folder is a plain {{ model_type }} model that loads without remote code. {{ whole }}

## How it was trained

| | |
|---|---|
{{ facts }}

## Results

{{ results }}

## Citation

```bibtex
{{ citation }}
```
"""


def write_model_card(folder, model, model_args, data_args, args, results: dict) -> Path:
    """Writes `README.md` of a run into its folder. `results` is what `run_pretrain.run` measured."""
    encoder = model.config.encoder_config
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "retromae", "pretraining", model_args.objective],
    )
    facts = {
        "objective": model_args.objective,
        "losses": ", ".join(f"{weight:g} x {name}" for name, weight in model.loss_weights.items()),
        "start": (model_args.model_name_or_path and _shown(model_args.model_name_or_path)) or "from scratch",
        "text": data_args.dataset_name or ", ".join(Path(name).name for name in data_args.train_file),
        "passages": results["passages"],
        "masked for the encoder": data_args.encoder_mlm_probability,
        "hidden from the decoder": None if model_args.objective == "mlm" else data_args.decoder_mlm_probability,
        "decoder": None
        if model_args.objective == "mlm"
        else f"query {model.config.decoder_query}, prediction rate {model.config.decoder_prediction_rate:g}, "
        f"enhanced decoding {model.config.enhanced_decoding}",
        "steps": results["steps"],
        "batch": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "learning rate": f"{args.learning_rate:g}",
        "seed": args.seed,
        "seconds": round(results["seconds"]),
        "encoder": f"{encoder.model_type}, {encoder.num_hidden_layers} layers, hidden size {encoder.hidden_size}, "
        f"{model.base_model.num_parameters():,} parameters",
        "transformers": transformers.__version__,
    }
    card = ModelCard.from_template(
        data,
        template_str=_TEMPLATE,
        name=Path(folder).name,
        where=args.hub_model_id or Path(folder).name,
        whole="The weights here are the encoder and its MLM head."
        if model_args.objective == "mlm"
        else "The weights here are whole, the decoder too, to go on with pre-training.",
        method=_METHODS[model_args.objective],
        model_type=encoder.model_type,
        max_seq_length=results["max_seq_length"],
        facts="\n".join(f"| {name} | {value} |" for name, value in facts.items() if value is not None),
        results=_results(results),
        citation="\n\n".join(
            _CITATIONS[name] for name in dict.fromkeys(("retromae", model_args.objective)) if name in _CITATIONS
        ),
    )
    path = Path(folder) / "README.md"
    path.write_text(card.content, encoding="utf-8")
    return path


def _shown(name: str) -> str:
    """A Hub name as it is; of a local path only the last part, which tells nobody about this machine."""
    return name if not Path(name).exists() else Path(name).name


def _results(results: dict) -> str:
    lines = []
    if results.get("retrieval"):
        names = list(next(iter(results["retrieval"].values())))
        lines += [f"| | {' | '.join(names)} |", "|" + "---|" * (len(names) + 1)]
        for when, row in results["retrieval"].items():
            lines.append(f"| {when} | {' | '.join(f'{row[name]:.3f}' for name in names)} |")
        lines.append("")
    shown = {**results["train"], **results.get("eval", {})}
    shown = {name: value for name, value in shown.items() if name.endswith(("_loss", "_accuracy"))}
    lines += ["| | |", "|---|---|", *(f"| {name} | {value:.4f} |" for name, value in shown.items())]
    return "\n".join(lines)
