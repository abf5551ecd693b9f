"""The README.md of a trained model: what it is, how it was made, what it measured, how to load it."""

from pathlib import Path

import torch
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
    "gur": """@misc{gur,
  title = {Generate to Understand for Representation},
  year = {2023}, eprint = {2306.10056}, archivePrefix = {arXiv}
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

_GUR_TEMPLATE = """---
{{ card_data }}
---

# {{ name }}

One model that searches, classifies and writes, **pre-trained** on raw text without labels by GUR: a T5 that fills in
masked spans, and whose encoder gives near vectors to two sentences of a document that share a span of text.

## Use

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{{ where }}", trust_remote_code=True)
vectors = model.encode(["a query", "a document"])
```

The same vectors with transformers alone, and the decoder, which fills in `<extra_id_0>`:

```python
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{{ where }}", trust_remote_code=True)
model = AutoModel.from_pretrained("{{ where }}", trust_remote_code=True)
inputs = tokenizer(["a query", "a document"], padding=True, truncation=True, return_tensors="pt")
vectors = model(**inputs).pooler_output

writer = AutoModelForSeq2SeqLM.from_pretrained("{{ where }}", trust_remote_code=True)
prompt = tokenizer("a query about <extra_id_0>", return_tensors="pt")
filled = writer.generate(**prompt, num_beams=4, max_new_tokens=16)
```

Texts of up to {{ max_seq_length }} tokens; pooling {{ pooling }}, {{ projection_dim }} dimensions, no prompts.
`backbone/` in this folder is a plain T5 of these weights, without the head of the sentence vector, that loads without
remote code.

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
        "text": _text(data_args),
        "cleaned": results.get("cleaning"),
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


def write_gur_card(folder, model, run, results: dict) -> Path:
    """The same for GUR; `run` is the `objectives.Run`."""
    config, args = model.config, run.args
    with torch.no_grad():
        temperature = float(model.temperature)
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "gur", "pretraining", "text2text-generation"],
    )
    masking = {"mask_rate": 0.15, "span_lengths": "hump_geometric", "whole_words": False, **run.gur.masking()}
    facts = {
        "objective": "gur",
        "losses": ", ".join(f"{weight:g} x {name}" for name, weight in model.loss_weights.items()),
        "start": (run.model.model_name_or_path and _shown(run.model.model_name_or_path)) or "from scratch",
        "text": _text(run.data),
        "cleaned": results.get("cleaning"),
        "pairs": results["passages"],
        "how pairs were mined": f"{run.mining.strategy}, if the text had none",
        "masked spans": ", ".join(f"{name} {value}" for name, value in masking.items()),
        "temperature": f"{temperature:g}" + (" (learned)" if config.learnable_temperature else ""),
        "steps": results["steps"],
        "pairs a batch": args.per_device_train_batch_size * args.world_size,
        "learning rate": f"{args.learning_rate:g}",
        "seed": args.seed,
        "seconds": round(results["seconds"]),
        "model": f"{config.backbone_type}, {config.num_layers} layers, d_model {config.d_model}, "
        f"{model.num_parameters():,} parameters, {model.base_model.num_parameters():,} to encode",
        "transformers": transformers.__version__,
    }
    card = ModelCard.from_template(
        data,
        template_str=_GUR_TEMPLATE,
        name=Path(folder).name,
        where=args.hub_model_id or Path(folder).name,
        pooling=config.pooling,
        projection_dim=config.projection_dim,
        max_seq_length=results["max_seq_length"],
        facts="\n".join(f"| {name} | {value} |" for name, value in facts.items() if value is not None),
        results=_results(results),
        citation=_CITATIONS["gur"],
    )
    path = Path(folder) / "README.md"
    path.write_text(card.content, encoding="utf-8")
    return path


def _shown(name: str) -> str:
    """A Hub name as it is; of a local path only the last part, which tells nobody about this machine."""
    return name if not Path(name).exists() else Path(name).name


def _text(data) -> str:
    return ", ".join(_shown(name) for name in ([data.dataset_name] if data.dataset_name else data.train_file))


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
