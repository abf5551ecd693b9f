"""A model as an encoder of queries and documents: the same pooling, prompts and length in every call.

Shapes: n texts, H size of a vector, C chunks.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from retrieval_pretraining.encoding import (
    PROGRESS_BAR_FROM,
    check_length,
    check_pooling,
    check_texts,
    encode_sequences,
    encode_texts,
    model_sequences,
)
from retrieval_pretraining.errors import InputError


class TextEncoder:
    """Texts -> vectors of length 1, by one model, always in the same way.

    Args:
        model, tokenizer: any encoder of transformers, with a head or without; where it is, it stays.
        pooling: "cls", "mean", "eos" or "pooler_output", see `encode_texts`; None takes the model's own.
        query_prompt, document_prompt: stand before each query and each document.
        max_seq_length: where texts are cut; None takes what model and tokenizer take, 512 at most.
        batch_size: the most texts that run at once.
        model_name_or_path, revision, weights_sha256, random_weights: where the model is from, for `describe`.

    Raises `InputError` for a pooling or a length that the model does not have, a batch size below 1, or a tokenizer
    of another model.
    """

    def __init__(
        self,
        model,
        tokenizer,
        *,
        name: str = "model",
        pooling: str | None = None,
        query_prompt: str = "",
        document_prompt: str = "",
        max_seq_length: int | None = None,
        batch_size: int = 64,
        model_name_or_path: str | None = None,
        revision: str | None = None,
        weights_sha256: str | None = None,
        random_weights: bool = False,
    ):
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self.query_prompt, self.document_prompt = query_prompt, document_prompt
        self.batch_size = check_batch_size(batch_size)
        self.model_name_or_path, self.revision = model_name_or_path, revision
        self.weights_sha256, self.random_weights = weights_sha256, random_weights
        self._settle(pooling, max_seq_length)

    def _settle(self, pooling: str | None, max_seq_length: int | None):
        _check_vocabulary(self.model, self.tokenizer, self.name)
        self.pooling = check_pooling(self.model, pooling)
        self.max_seq_length = check_length(self.model.base_model, self.tokenizer, max_seq_length)

    def encode_queries(self, texts: Sequence[str], progress: bool | None = None) -> np.ndarray:
        """Vectors of queries, each after the query prompt; see `encode`."""
        return self.encode(texts, self.query_prompt, task="query", progress=progress)

    def encode_documents(self, texts: Sequence[str], progress: bool | None = None) -> np.ndarray:
        """Vectors of documents, each after the document prompt; see `encode`."""
        return self.encode(texts, self.document_prompt, task="document", progress=progress)

    def encode(
        self,
        texts: Sequence[str],
        prompt: str = "",
        *,
        task: str | None = None,
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> np.ndarray:
        """Vectors of length 1, float32 [n, H], in the order of the texts; no texts give none.

        A vector depends on its text alone: not on the others, their order or the batch size. An empty text has one as
        well. `task` is "query" or "document" where the model has a way of its own for each, as some folders of
        sentence-transformers have. `progress` None shows a bar for many texts only.

        Raises `InputError`: a single string, something else than strings, vectors that are not finite.
        """
        batch_size = self.batch_size if batch_size is None else check_batch_size(batch_size)
        if not isinstance(texts, str) and not len(texts):
            return np.empty((0, self.vector_size), dtype=np.float32)
        check_texts(texts)
        vectors = self._encode(texts, prompt, task, batch_size, progress)
        self._check_finite(vectors)
        return vectors

    def encode_document_chunks(
        self, texts: Sequence[str], *, chunk_size: int = 128, progress: bool | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Long documents as vectors of their chunks, none of which holds text of two documents; for `search`.

        `chunk_size` is in tokens, special ones included. The document prompt stands before each document, so in its
        first chunk. Returns vectors of length 1, float32 [C, H], at least one of each document, and the document of
        each chunk, int64 [C], ascending. `InputError` as `encode`, and for a chunk size that the model does not take.
        """
        check_texts(texts, "documents")
        sequences, document_of_chunk = model_sequences(
            self.model,
            self.tokenizer,
            [self.document_prompt + text for text in texts],
            max_seq_length=chunk_size,
            overflow="chunk",
            progress=progress,
        )
        vectors = encode_sequences(
            self.model,
            sequences,
            pad_token_id=self.tokenizer.pad_token_id,
            batch_size=self.batch_size,
            pooling=self.pooling,
            progress=progress,
        )
        self._check_finite(vectors)
        return vectors, document_of_chunk

    @cached_property
    def vector_size(self) -> int:
        return self.encode(["a"]).shape[1]

    @property
    def dtype(self) -> str:
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.base_model.parameters())

    @property
    def model_type(self) -> str:
        return self.model.config.model_type

    def describe(self) -> dict[str, Any]:
        """What it takes to repeat the vectors: the entry of a dense system in results.json, whose chunks are None."""
        return {
            "name": self.name,
            "kind": "dense",
            "model_name_or_path": self.model_name_or_path,
            "revision": self.revision,
            "model_type": self.model_type,
            "weights_sha256": self.weights_sha256,
            "pooling": self.pooling,
            "query_prompt": self.query_prompt,
            "document_prompt": self.document_prompt,
            "max_seq_length": self.max_seq_length,
            "dtype": self.dtype,
            "vector_size": self.vector_size,
            "parameters": self.parameters,
            "random_weights": self.random_weights,
            "chunk_size": None,
            "chunk_score": None,
            "batch_size": self.batch_size,
        }

    def _encode(self, texts, prompt, task, batch_size, progress) -> np.ndarray:
        return encode_texts(
            self.model,
            self.tokenizer,
            [prompt + text for text in texts],
            max_seq_length=self.max_seq_length,
            batch_size=batch_size,
            pooling=self.pooling,
            progress=progress,
        )

    def _check_finite(self, vectors: np.ndarray):
        wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(wrong):
            hint = " or encode in float32" if self.dtype == "float16" else ""
            raise InputError(
                f"{self.name}: {len(wrong)} of {len(vectors)} vectors are not finite, the first is number {wrong[0]}; "
                f"the model has diverged: train it with a lower learning rate{hint}."
            )


class SentenceTransformersEncoder(TextEncoder):
    """A folder whose modules only sentence-transformers can run, such as a dense layer or static embeddings.

    `model` is a `SentenceTransformer`; it makes the tokens itself, and there are no chunks.
    """

    def __init__(self, model, **options):
        super().__init__(model, None, **options)

    def _settle(self, pooling: str | None, max_seq_length: int | None):
        self.pooling = "sentence-transformers"
        if max_seq_length is not None:
            self.model.max_seq_length = max_seq_length
        longest = self.model.max_seq_length
        self.max_seq_length = longest if longest is not None and math.isfinite(longest) else None

    @property
    def model_type(self) -> str:
        config = getattr(getattr(self.model[0], "auto_model", None), "config", None)
        return getattr(config, "model_type", type(self.model[0]).__name__)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def encode_document_chunks(self, texts, *, chunk_size=128, progress=None):
        raise InputError(
            f"{self.name}: sentence-transformers makes one vector of a text; leave chunks out, or name a pooling, to "
            "use the model without its other modules."
        )

    def _encode(self, texts, prompt, task, batch_size, progress):
        encode = self.model.encode
        if task is not None:
            encode = self.model.encode_query if task == "query" else self.model.encode_document
        vectors = encode(
            list(texts),
            prompt=prompt,  # some folders leave it out of the pooling
            batch_size=batch_size,
            show_progress_bar=len(texts) >= PROGRESS_BAR_FROM if progress is None else progress,
        ).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=np.finfo(np.float32).tiny)


def check_batch_size(batch_size: int) -> int:
    """The same; `InputError` below 1."""
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; use 1 or more.")
    return batch_size


def _check_vocabulary(model, tokenizer, name: str):
    try:
        known = model.get_input_embeddings().num_embeddings
    except (AttributeError, NotImplementedError):  # a model of characters may have no such table
        return
    highest = max(tokenizer.get_vocab().values())
    if highest >= known:
        raise InputError(
            f"{name}: the tokenizer has token id {highest}, but the model knows {known} tokens; put the tokenizer of "
            "this model into its folder."
        )
