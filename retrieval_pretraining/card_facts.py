"""What a model card says about a run: objective, text, hardware; each a row of a table, left out where unknown."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch
import transformers

from .card_metadata import hub_id

if TYPE_CHECKING:
    from .objectives import Run

METHODS = {
    "retromae": "RetroMAE: a one-layer decoder rebuilds the text from the `[CLS]` vector and a heavily masked view",
    "dupmae": "DupMAE: RetroMAE, and a bag of words predicted from the other tokens",
    "mlm": "masked language modelling (the control without a decoder)",
    "gur": "GUR: a T5 that fills in masked spans, and whose encoder gives near vectors to two sentences of a document "
    "that share a span of text",
    "gur without lm": "GUR without its language model: an encoder that gives near vectors to two texts of a document",
    "counting": "counting: its token vectors are statistics of the text, and no step of training followed",
    "nothing": "no step of training: its weights are those that it started from",
    "random": "no step of training: its weights are random numbers",
}


def is_random(run: Run) -> bool:
    """Whether the weights come from nothing: a control."""
    return not run.args.trains and run.model.model_name_or_path is None and run.model.init_weights != "corpus"


def method_of(model, run: Run) -> str:
    """What made the weights, in words."""
    if is_random(run):
        return METHODS["random"]
    if not run.args.trains:
        return METHODS["counting" if run.model.init_weights == "corpus" else "nothing"]
    without_lm = run.model.objective == "gur" and not model.config.lm_loss_weight
    return METHODS["gur without lm" if without_lm else run.model.objective]


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
    "mlm": """@inproceedings{devlin-etal-2019-bert,
  title = {BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding},
  author = {Devlin, Jacob and Chang, Ming-Wei and Lee, Kenton and Toutanova, Kristina},
  booktitle = {Proceedings of NAACL-HLT}, year = {2019}, note = {arXiv 1810.04805}
}""",
    "finetune": """@inproceedings{reimers-gurevych-2019-sentence,
  title = {Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks},
  author = {Reimers, Nils and Gurevych, Iryna},
  booktitle = {Proceedings of EMNLP-IJCNLP}, year = {2019}, note = {arXiv 1908.10084}
}""",
    "gradcache": """@misc{gao2021scaling,
  title = {Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup},
  author = {Gao, Luyu and Zhang, Yunyi and Han, Jiawei and Callan, Jamie},
  year = {2021}, eprint = {2101.06983}, archivePrefix = {arXiv}
}""",
    "gur": """@misc{gur,
  title = {Generate to Understand for Representation},
  year = {2023}, eprint = {2306.10056}, archivePrefix = {arXiv}
}""",
}
_CITED = {"dupmae": ("retromae", "dupmae"), "finetune": ("finetune", "gradcache")}  # build on each other


def citation(objective: str) -> str:
    return "\n\n".join(_CITATIONS[name] for name in _CITED.get(objective, (objective,)))


def fact_tables(model, run: Run, results: dict[str, Any], *, units: str, tokens: str | None) -> dict[str, dict]:
    """Heading -> name -> value. `units` is what the examples are called, `tokens` how many there are."""
    make = _gur_facts if run.model.objective == "gur" else _retromae_facts
    objective, architecture = make(model, run)
    losses = ", ".join(f"{weight:g} x {name}" for name, weight in model.loss_weights.items())
    source = run.model.model_name_or_path
    return {
        "Objective": {
            "objective": run.model.objective,
            "losses": losses if run.args.trains else None,
            **objective,
            "model": architecture,
            "start": shown(source, on_hub=True) if source else f"from scratch, {run.model.init_weights} weights",
            "not trained": ", ".join(run.model.freeze or []),
            "of the start in these weights": f"{results['start_share']:.0%}" if "start_share" in results else None,
        },
        "Data": {
            "text": ", ".join(shown_texts(run.data)),
            "mixed in": _mixed_in(run.data),
            "language": ", ".join(run.card.language or []),
            "documents": results.get("documents"),
            "held out of these, to validate": results.get("held_out") or None,
            units: results.get("passages"),
            "tokens": tokens,
            "cleaned": results.get("cleaning"),
        },
        "Run": run_facts(run.args, results, pairs=run.model.objective == "gur"),
    }


def _retromae_facts(model, run: Run) -> tuple[dict, str]:
    config, data, encoder = model.config, run.data, model.config.encoder_config
    sizes = f"{encoder.num_hidden_layers} layers, hidden size {encoder.hidden_size}"
    architecture = f"{encoder.model_type}, {sizes}, {model.base_model.num_parameters():,} parameters to encode"
    if not run.args.trains:
        return {}, architecture  # nothing was masked
    facts: dict[str, Any] = {"masked for the encoder": f"{data.encoder_mlm_probability:g} of the tokens"}
    if run.model.objective != "mlm":
        facts["hidden from the decoder"] = f"{data.decoder_mlm_probability:g} of the tokens"
        facts["decoder"] = (
            f"query {config.decoder_query}, prediction rate {config.decoder_prediction_rate:g}, "
            f"enhanced decoding {config.enhanced_decoding}"
        )
    if data.chinese_whole_words:
        facts["Chinese"] = "whole words are masked"
    return facts, architecture


def _gur_facts(model, run: Run) -> tuple[dict, str]:
    config = model.config
    masking = {"mask_rate": 0.15, "span_lengths": "hump_geometric", "whole_words": False, **run.gur.masking()}
    with torch.no_grad():
        temperature = float(model.temperature)
    facts = {
        "masked spans": ", ".join(f"{name} {value}" for name, value in masking.items()),
        "temperature": f"{temperature:g}" + (" (learned)" if config.learnable_temperature else ""),
        "how pairs were mined": f"{', '.join(run.gur.pair_strategies or [run.mining.strategy])}, if the text had none",
    }
    if not run.args.trains:
        facts = {}  # nothing was masked or contrasted
    sizes = f"{config.num_layers} layers, d_model {config.d_model}, {model.num_parameters():,} parameters"
    return facts, f"{config.backbone_type}, {sizes}, {model.base_model.num_parameters():,} to encode"


def run_facts(args, results: dict[str, Any], *, pairs: bool) -> dict[str, Any]:
    """How it was trained, and on what; of `pairs` the negatives are those of a batch, not of a step."""
    size, accumulated = args.per_device_train_batch_size * args.world_size, args.gradient_accumulation_steps
    co2, schedule = results.get("co2_grams"), getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    steps = {
        "pairs a batch" if pairs else "batch": size if pairs else size * accumulated,
        "batches a step": accumulated if pairs else None,
        "learning rate": f"{args.learning_rate:g}, {schedule}",
        "precision": "bf16 autocast" if args.bf16 else "fp16 autocast" if args.fp16 else "float32",
    }
    return {
        "steps": results.get("steps"),
        **(steps if args.trains else {}),
        "seed": args.seed,
        "hardware": hardware(args),
        "time": _time(results),
        "CO2": None if co2 is None else f"{co2:.3g} g (estimate of codecarbon)",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }


def hardware(args) -> str:
    """The processor that trained, and how many processes there were."""
    if torch.cuda.is_available() and not args.use_cpu:
        name = torch.cuda.get_device_name()
    else:
        name = _processor()
    return f"{name}, {args.world_size} process{'es' if args.world_size > 1 else ''}"


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:  # not Linux
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine() or "CPU"


def _time(results: dict[str, Any]) -> str | None:
    if results.get("seconds") is None:
        return None
    minutes, seconds = divmod(round(results["seconds"]), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours} h"] * bool(hours) + [f"{minutes} min"] * bool(hours or minutes) + [f"{seconds} s"]
    after = f", from step {results['resumed_at']} on" if results.get("resumed_at") else ""
    return " ".join(parts) + after


def shown_texts(data) -> list[str]:
    """What a run has read, without what is private about the place."""
    if data.dataset_name:
        return [" ".join(filter(None, (shown(data.dataset_name, on_hub=True), data.dataset_config_name)))]
    return [shown(name) for name in data.train_file]


def _mixed_in(data) -> str | None:
    if not data.mix_file:
        return None
    return ", ".join(f"{share:.0%} {shown(file)}" for share, file in zip(data.mixed_shares(), data.mix_file))


def shown(name: str, *, on_hub: bool = False) -> str:
    """A name on the Hub and an address as they are, but for a password; of a local path, only the last part, which
    tells nobody about this machine."""
    if "://" in name:
        address = urlsplit(name)
        return f"{address.scheme}://{address.netloc.split('@')[-1]}{address.path}"
    if on_hub and hub_id(name) is not None:
        return name
    return Path(name).name or Path(name).absolute().name
