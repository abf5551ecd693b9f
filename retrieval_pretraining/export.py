"""Writes what other tools read: the files of sentence-transformers, and a plain encoder.

The layout of a folder that sentence-transformers loads (version 3 and up), as data:

    modules.json                         which modules, in which order
    sentence_bert_config.json            how long a text may be
    1_Pooling/config.json                the first token's state is the sentence vector
    2_Normalize/                         to length 1; has no settings
    config_sentence_transformers.json    prompts, and cosine similarity
"""

import json
from pathlib import Path

_MODULES = (
    ("", "Transformer"),
    ("1_Pooling", "Pooling"),
    ("2_Normalize", "Normalize"),
)


def write_sentence_transformers_files(
    folder: str | Path, *, max_seq_length: int, hidden_size: int | None = None, pooling: str = "cls"
):
    """Makes a model folder one that `SentenceTransformer(folder)` loads with the right pooling.

    Without these files it would silently take the mean of all states. Weights and tokenizer are not touched;
    sentence-transformers need not be installed.
    """
    folder = Path(folder)
    if hidden_size is None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config = config.get("encoder_config", config)
        hidden_size = config.get("hidden_size", config.get("dim"))
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(_MODULES)
    ]
    pooling_config = {
        "word_embedding_dimension": hidden_size,
        **{f"pooling_mode_{mode}": mode == pooling for mode in ("max_tokens", "mean_sqrt_len_tokens")},
        "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_mean_tokens": pooling == "mean",
        "include_prompt": True,
    } | ({"pooling_mode_lasttoken": True} if pooling == "lasttoken" else {})
    files = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": max_seq_length, "do_lower_case": False},
        "1_Pooling/config.json": pooling_config,
        "config_sentence_transformers.json": {
            "prompts": {"query": "", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "2_Normalize").mkdir(exist_ok=True)


def write_sentence_vector_files(folder: str | Path, *, max_seq_length: int):
    """Makes the folder of a model with a head of its own, as GUR's, one that `SentenceTransformer(folder)` loads, from
    version 6 on: the sentence vector is the model's `pooler_output`, and no pooling comes after it."""
    files = {
        "modules.json": [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}],
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}},
            "module_output_name": "sentence_embedding",
            "max_seq_length": max_seq_length,
        },
    }
    for name, content in files.items():
        (Path(folder) / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def export_encoder(model, tokenizer, folder: str | Path, *, max_seq_length: int):
    """Writes the encoder as a plain checkpoint of its own class: AutoModel, AutoModelForMaskedLM and
    SentenceTransformer load it without this package and without `trust_remote_code`."""
    folder = Path(folder)
    model.export_encoder(folder)
    tokenizer.save_pretrained(folder)
    write_sentence_transformers_files(folder, max_seq_length=max_seq_length)
