"""MTEB and C-MTEB on any model that `load_encoder` loads (extra `mteb`).

    model = MTEBModel.from_pretrained("outputs/gur", query_prompt="bge_en")
    results = mteb.evaluate(model, mteb.get_tasks(["SciFact"]), encode_kwargs={"batch_size": 64})
    results = mteb.evaluate(model, retrieval_task("my_folder"))

A checkpoint that lacks weights is an `InputError` when it is loaded: it gets no score.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retrieval_pretraining.bm25 import detect_language
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.extras import import_extra
from retrieval_pretraining.retrieval_data import load_retrieval_data
from retrieval_pretraining.systems import load_encoder
from retrieval_pretraining.text_encoder import TextEncoder

_LANGUAGES = {"en": "eng-Latn", "zh": "zho-Hans"}  # as mteb writes those that `detect_language` knows


class MTEBModel:
    """What `mteb.evaluate` takes, around a `TextEncoder`.

    Queries get the encoder's query prompt, documents its document prompt, and the texts of a task that tells no one
    from the other, such as classification or similarity, none. `batch_size` and `show_progress_bar` of `encode_kwargs`
    are followed. mteb keeps results by `mteb_model_meta`: the name, a revision that stands for the weights, and how
    the vectors are made, so that another checkpoint of the same name is measured again.

    Args:
        encoder: as `load_encoder` gives it.
        name: "organisation/model", for mteb's records; by default its name on the Hub, or "local/" and its own.

    Raises:
        InputError: mteb is not installed, or a name without "/".
    """

    def __init__(self, encoder: TextEncoder, *, name: str | None = None):
        self.encoder = encoder
        self.mteb_model_meta = _model_meta(encoder, name)

    @classmethod
    def from_pretrained(cls, model_name_or_path: str | Path, *, name: str | None = None, **options) -> "MTEBModel":
        """The model in a folder or on the Hub; `options` and errors are those of `load_encoder`."""
        import_extra("mteb", "mteb")  # before minutes of loading
        return cls(load_encoder(model_name_or_path, **options), name=name)

    def encode(self, inputs, *, prompt_type=None, batch_size=None, show_progress_bar=None, **about) -> np.ndarray:
        """Vectors of length 1, float32 [n, H], of the texts of mteb's batches. `about` says which task it is."""
        texts = [text for batch in inputs for text in batch["text"]]
        task = None if prompt_type is None else getattr(prompt_type, "value", prompt_type)
        prompts = {"query": self.encoder.query_prompt, "document": self.encoder.document_prompt}
        options = dict(task=task, batch_size=batch_size, progress=show_progress_bar)
        return self.encoder.encode(texts, prompts.get(task, ""), **options)

    def similarity(self, embeddings1, embeddings2) -> torch.Tensor:
        """Cosines of all with all, [n, m]."""
        return torch.as_tensor(embeddings1) @ torch.as_tensor(embeddings2).mT

    def similarity_pairwise(self, embeddings1, embeddings2) -> torch.Tensor:
        """Cosines of each with its partner, [n]."""
        return (torch.as_tensor(embeddings1) * torch.as_tensor(embeddings2)).sum(dim=-1)


def retrieval_task(folder: str | Path, *, split: str = "test") -> Any:
    """A retrieval task of mteb from a folder in BEIR layout, named as the folder; read as by `load_retrieval_data`.

    Raises:
        InputError: mteb is not installed, or as `load_retrieval_data`.
    """
    import_extra("mteb", "mteb")
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    data = load_retrieval_data(folder, split=split)
    content = repr((data.corpus_ids, data.corpus_texts, data.query_ids, data.query_texts, data.qrels))

    class FolderRetrieval(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=data.name,
            description=f"{len(data.query_ids)} queries and {len(data.corpus_ids)} documents of a local folder.",
            dataset={"path": str(folder), "revision": _short_hash(content.encode())},
            type="Retrieval",
            category="t2t",
            eval_splits=[split],
            eval_langs=[_LANGUAGES[detect_language(data.corpus_texts)]],
            main_score="ndcg_at_10",
        )

        def load_data(self, *args, **options):
            self.dataset = {
                "default": {
                    split: {
                        "corpus": Dataset.from_dict({"id": data.corpus_ids, "text": data.corpus_texts}),
                        "queries": Dataset.from_dict({"id": data.query_ids, "text": data.query_texts}),
                        "relevant_docs": {query: dict(grades) for query, grades in data.qrels.items()},
                        "top_ranked": None,
                    }
                }
            }
            self.data_loaded = True

    return FolderRetrieval()


def _model_meta(encoder: TextEncoder, name: str | None):
    import_extra("mteb", "mteb")
    from mteb.models.model_meta import ModelMeta, ScoringFunction

    if name is None:
        own = encoder.model_name_or_path or ""
        name = own if encoder.revision is not None and not Path(own).is_dir() else f"local/{encoder.name}"
    if "/" not in name:
        raise InputError(f'name is "{name}"; mteb wants an organisation and a model, such as "me/{name}".')
    described = encoder.describe()
    # Without a commit or a file, such as random weights, a vector stands for them.
    revision = encoder.revision or (encoder.weights_sha256 or _short_hash(encoder.encode(["a"]).tobytes()))[:12]
    settings = ("pooling", "query_prompt", "document_prompt", "max_seq_length", "dtype", "random_weights")
    return ModelMeta.create_empty(
        overwrites=dict(
            name=name,
            revision=revision,
            n_parameters=described["parameters"],
            max_tokens=described["max_seq_length"],
            embed_dim=described["vector_size"],
            framework=["PyTorch"],
            similarity_fn_name=ScoringFunction.COSINE,
            use_instructions=bool(encoder.query_prompt or encoder.document_prompt),
            experiment_kwargs={key: described[key] for key in settings if described[key] not in (None, "", False)},
        )
    )


def _short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
