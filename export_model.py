"""A trained model in the form that another tool takes.

    python export_model.py --model_name_or_path outputs/mine --format sentence-transformers --output_dir exports/mine
    python export_model.py --model_name_or_path outputs/mine --format onnx --output_dir exports/onnx
    python export_model.py --model_name_or_path outputs/gur --format t5 --output_dir exports/t5

`encoder` is the backbone's own class with its MLM head, `sentence-transformers` the encoder with pooling and
normalisation, `t5` the T5 of a GUR model, `onnx` the sentence vector as one graph (extra `onnx`). docs/serving.md says
which server takes which. `--help` lists what can be set.
"""

import sys
from pathlib import Path

from retrieval_pretraining.arguments import parse_arguments
from retrieval_pretraining.door import exit_status
from retrieval_pretraining.model_export import ExportArguments, export_model


def run(args: ExportArguments) -> Path:
    """One export; says how to load it. Called by `main`, and from Python."""
    folder = export_model(args)
    print(f"Written: {folder}. To use it:\n\n{how_to_load(folder, args.format)}")
    return folder


def how_to_load(folder: Path, wanted: str) -> str:
    """Lines of Python."""
    if wanted == "t5":
        return (
            "  from transformers import AutoModelForSeq2SeqLM\n"
            f'  model = AutoModelForSeq2SeqLM.from_pretrained("{folder}")\n'
        )
    if wanted == "onnx":
        return (
            "  import numpy as np, onnxruntime\n"
            "  from tokenizers import Tokenizer\n"
            f'  texts = Tokenizer.from_file("{folder}/tokenizer.json").encode_batch(["a query", "a document"])\n'
            '  ids = {"input_ids": np.array([text.ids for text in texts])}\n'
            '  ids["attention_mask"] = np.array([text.attention_mask for text in texts])\n'
            f'  vectors = onnxruntime.InferenceSession("{folder}/onnx/model.onnx").run(None, ids)[0]\n'
        )
    flag = ", trust_remote_code=True" if any(folder.glob("modeling_*.py")) else ""
    return (
        "  from sentence_transformers import SentenceTransformer\n"
        f'  model = SentenceTransformer("{folder}"{flag})\n'
        '  vectors = model.encode(["a query", "a document"])\n'
    )


def main(arguments: list[str] | None = None) -> int:
    """The command line: returns the exit status."""
    return exit_status(lambda: run(*parse_arguments([ExportArguments], arguments)))


if __name__ == "__main__":
    sys.exit(main())
