"""What a GUR checkpoint does with no fine-tuning: encode, search, classify (arXiv 2306.10056).

    searcher = Searcher.from_pretrained("outputs/gur", documents)
    for hit in searcher("how does a motor run without a sensor?", k=3):
        print(hit.score, hit.text)

Only encoder and head are at work. `encode`, search and classification do the same with a RetroMAE checkpoint.
`generation.py` fills in, writes titles and expands queries; `hybrid.py` joins dense search and BM25.

Shapes: n texts or documents, E size of a sentence vector, C chunks, K labels, T templates.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from transformers import AutoModel, AutoTokenizer

from retrieval_pretraining.encoding import OUR_MODELS, check_length, check_texts, encode_sequences, text_sequences
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.search import check_chunk_score, search

__all__ = [
    "Classification",
    "Hit",
    "Searcher",
    "classify",
    "encode",
    "encode_chunks",
    "label_texts",
    "nearest_labels",
    "search",
]

# Cosines closer than this are equal: the rounding of a batch is smaller, and what it decides is chance.
_TIE = 1e-6


def encode(
    model,
    tokenizer,
    texts: Sequence[str],
    *,
    max_seq_length: int | None = None,
    batch_size: int = 64,
    prompt: str = "",
    show_progress: bool | None = None,
) -> np.ndarray:
    """Sentence vectors of length 1, float32 [n, E], in the order of `texts`.

    A text's vector does not depend on the others, on their order or on `batch_size`. Text that spells a special token
    ("</s>", "<extra_id_0>") is text. A text without any token has a vector as well, that of `</s>` alone.

    Args:
        model: a GUR or RetroMAE model with any head; the device it is on is used.
        texts: each is cut at `max_seq_length` tokens; by default at what model and tokenizer take, 512 at most.
        prompt: stands before each text.
        show_progress: None shows a bar for many texts only.

    Raises:
        InputError: no texts, a single string, texts that are no strings, another kind of model, a tokenizer of another
            model, or a length that the model does not take.
    """
    check_texts(texts)
    max_seq_length = _check_model(model, tokenizer, max_seq_length)
    sequences, _ = text_sequences(
        [prompt + text for text in texts], tokenizer, max_seq_length=max_seq_length, progress=show_progress
    )
    return _vectors(model, tokenizer, sequences, batch_size, show_progress)


def encode_chunks(
    model,
    tokenizer,
    documents: Sequence[str],
    *,
    chunk_size: int = 128,
    batch_size: int = 64,
    prompt: str = "",
    show_progress: bool | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Long documents as vectors of their chunks, none of which holds text of two documents; for `search`.

    Args:
        chunk_size: tokens of a chunk, special ones included; the last chunk of a document is what is left.
        prompt: stands before each document, so in its first chunk.

    Returns:
        vectors: float32 [C, E], of length 1; every document has at least one.
        document_of_chunk: int64 [C], ascending.

    Raises `InputError` as `encode`.
    """
    check_texts(documents, "documents")
    chunk_size = _check_model(model, tokenizer, chunk_size)
    sequences, document_of_chunk = text_sequences(
        [prompt + text for text in documents],
        tokenizer,
        max_seq_length=chunk_size,
        overflow="chunk",
        progress=show_progress,
    )
    return _vectors(model, tokenizer, sequences, batch_size, show_progress), document_of_chunk


class Hit(NamedTuple):
    """A document that was found: its number in the given documents, its score and its text."""

    document: int
    score: float
    text: str


class Searcher:
    """Documents to search in, as vectors in memory; exact.

    Args:
        model, tokenizer: see `encode`.
        documents: texts.
        max_seq_length: where queries, and documents that are not cut into chunks, are cut off.
        chunk_size: tokens of a chunk; None takes each document as one text, up to `max_seq_length`.
        chunk_score: "max", "mean" or "max+mean", see `search`. Average and maximum together were worth .02 over the
            average in a trial.
        query_prompt, document_prompt: stand before each query and each document.
        batch_size, show_progress: see `encode`.

    Raises `InputError` as `encode`.
    """

    def __init__(
        self,
        model,
        tokenizer,
        documents: Sequence[str],
        *,
        max_seq_length: int | None = None,
        chunk_size: int | None = None,
        chunk_score: str = "max+mean",
        query_prompt: str = "",
        document_prompt: str = "",
        batch_size: int = 64,
        show_progress: bool | None = None,
    ):
        check_texts(documents, "documents")
        check_chunk_score(chunk_score)
        self.model, self.tokenizer, self.documents = model, tokenizer, list(documents)
        self.chunk_score = chunk_score
        self.query_options = dict(max_seq_length=max_seq_length, batch_size=batch_size, prompt=query_prompt)
        options = dict(batch_size=batch_size, prompt=document_prompt, show_progress=show_progress)
        if chunk_size is None:
            self.vectors = encode(model, tokenizer, documents, max_seq_length=max_seq_length, **options)
            self.document_of_chunk = None
        else:
            chunks = encode_chunks(model, tokenizer, documents, chunk_size=chunk_size, **options)
            self.vectors, self.document_of_chunk = chunks

    @classmethod
    def from_pretrained(cls, name_or_path, documents: Sequence[str], **options) -> "Searcher":
        """With model and tokenizer of a checkpoint; `options` as above."""
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False)
        model = AutoModel.from_pretrained(name_or_path, trust_remote_code=False, use_safetensors=True)
        return cls(model, tokenizer, documents, **options)

    def __call__(self, query: str, k: int = 10) -> list[Hit]:
        """The `k` best documents for one query, best first."""
        return self.search([query], k)[0]

    def search(self, queries: Sequence[str], k: int = 10) -> list[list[Hit]]:
        """The `k` best documents for each query, best first; `InputError` as `encode` and `search`."""
        check_texts(queries, "queries")
        queries_QE = encode(self.model, self.tokenizer, queries, **self.query_options)
        options = dict(document_of_chunk=self.document_of_chunk, chunk_score=self.chunk_score)
        found_QK, scores_QK = search(queries_QE, self.vectors, k, **options)
        return [
            [Hit(number, score, self.documents[number]) for number, score in zip(numbers, scores, strict=True)]
            for numbers, scores in zip(found_QK.tolist(), scores_QK.tolist(), strict=True)
        ]


class Classification(NamedTuple):
    """`labels`: the label of each text. `probabilities`: float32 [n, K], in the order of the given labels."""

    labels: list[str]
    probabilities: np.ndarray


def classify(
    model,
    tokenizer,
    texts: Sequence[str],
    labels: Sequence[str],
    *,
    template: str | Sequence[str] = "{}",
    temperature: float | None = None,
    max_seq_length: int | None = None,
    batch_size: int = 64,
    show_progress: bool | None = None,
) -> Classification:
    """The label whose vector is nearest to that of the text (arXiv 2306.10056), whatever the order of the labels.

    The probabilities are the softmax of `cosine / temperature`. Labels whose cosines differ by less than a millionth
    tie, and the first one by name wins.

    Args:
        labels: words or phrases that say what a class is about.
        template: what is made of a label, such as "A text about {}."; of several templates the vectors are averaged.
        temperature: by default the one that the model was trained with.
        max_seq_length, batch_size, show_progress: see `encode`.

    Raises:
        InputError: as `encode`; no labels, empty or equal ones, a template without {}, a temperature not above 0.
    """
    check_texts(texts)
    # Sorted: the vectors of the labels then are made in the same batches, whatever the order.
    names = sorted(_check_labels(labels))
    written = label_texts(names, template)
    if temperature is None:
        temperature = _temperature(model)
    if not temperature > 0:
        raise InputError(f"temperature is {temperature}; use a number above 0.")
    options = dict(max_seq_length=max_seq_length, batch_size=batch_size)
    label_vectors = encode(model, tokenizer, written, **options)
    text_vectors = encode(model, tokenizer, texts, show_progress=show_progress, **options)
    nearest, cosines_nK = nearest_labels(text_vectors, label_vectors, names)
    exp_nK = np.exp((cosines_nK - cosines_nK.max(axis=1, keepdims=True)) / temperature)
    probabilities_nK = (exp_nK / exp_nK.sum(axis=1, keepdims=True)).astype(np.float32)
    return Classification(nearest, probabilities_nK[:, [names.index(label) for label in labels]])


def label_texts(names: Sequence[str], template: str | Sequence[str] = "{}") -> list[str]:
    """What is encoded for the labels: each name in the first template, then in the next one.

    Raises `InputError` for no template, or one without {}.
    """
    templates = [template] if isinstance(template, str) else list(template)
    if not templates or any("{}" not in each for each in templates):
        raise InputError(f'template is {template!r}; write {{}} where the label goes, such as "A text about {{}}."')
    return [each.replace("{}", name) for each in templates for name in names]


def nearest_labels(
    text_vectors: np.ndarray, label_vectors: np.ndarray, names: Sequence[str]
) -> tuple[list[str], np.ndarray]:
    """The name of the label nearest to each text, and all cosines, float64 [n, K].

    Args:
        text_vectors: [n, E], of length 1.
        label_vectors: [T * K, E], of `label_texts(names, template)`. Those of several templates are averaged.
        names: of the labels. Cosines within a millionth of the highest tie, and the first of them by name wins.
    """
    means_KE = label_vectors.reshape(-1, len(names), label_vectors.shape[1]).mean(axis=0).astype(np.float64)
    means_KE /= np.linalg.norm(means_KE, axis=1, keepdims=True).clip(min=np.finfo(np.float32).tiny)
    cosines_nK = text_vectors.astype(np.float64) @ means_KE.T
    by_name = sorted(range(len(names)), key=names.__getitem__)
    ties_nK = cosines_nK > cosines_nK.max(axis=1, keepdims=True) - _TIE
    winners = ties_nK[:, by_name].argmax(axis=1)
    return [names[by_name[i]] for i in winners], cosines_nK


def _check_model(model, tokenizer, max_seq_length: int | None) -> int:
    if getattr(model.config, "model_type", None) not in OUR_MODELS:
        raise InputError(f"{type(model).__name__} gives no sentence vectors; load a checkpoint of GUR or RetroMAE.")
    return check_length(model.base_model, tokenizer, max_seq_length)


def _vectors(model, tokenizer, sequences, batch_size, show_progress) -> np.ndarray:
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; use 1 or more.")
    known = model.get_input_embeddings().num_embeddings
    highest = max((int(ids.max()) for ids in sequences if len(ids)), default=0)
    if highest >= known:
        raise InputError(
            f"The tokenizer gives token id {highest}, but the model knows {known} tokens; load the tokenizer of the "
            "same checkpoint."
        )
    options = dict(pad_token_id=tokenizer.pad_token_id, batch_size=batch_size, progress=show_progress)
    return encode_sequences(model, sequences, **options)


def _check_labels(labels: Sequence[str]) -> Sequence[str]:
    check_texts(labels, "labels")
    empty = [number for number, label in enumerate(labels) if not label.strip()]
    if empty:
        raise InputError(f"labels[{empty[0]}] is empty; write what the class is about.")
    twice = [label for label, count in Counter(label.strip() for label in labels).items() if count > 1]
    if twice:
        raise InputError(f'The label "{twice[0]}" is given more than once; give each class a label of its own.')
    return labels


def _temperature(model) -> float:
    logit_scale = getattr(model, "logit_scale", None)  # where it is learned
    if logit_scale is not None:
        return float((-logit_scale.detach().float()).exp())
    return getattr(model.config, "contrastive_temperature", 0.1)
