"""Search by the words that a model's MLM head predicts from a text: what DupMAE trains beside its sentence vector.

    lexical = load_lexical_encoder(load_encoder("outputs/dupmae"), top_n=128)
    found = lexical_search(lexical.encode_queries(queries), lexical.encode_documents(texts), k=10)

DupMAE (arXiv 2211.08769) trains the max-pooled MLM logits of a text's ordinary tokens, so that the highest of them
are a sparse vector beside the sentence vector. Without fine-tuning a logit says nothing by itself: pre-training fits
their softmax, which a constant on all of them leaves as it is, so that they may all be negative. What an entry is here
stands at `lexical_weights`.

Shapes: n texts, Q queries, N documents, B texts of a batch, L positions, V vocabulary.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoConfig, AutoModelForMaskedLM

from retrieval_pretraining.encoding import (
    OUR_MODELS,
    check_texts,
    map_batches,
    model_sequences,
    pad_right,
    progress_bar,
)
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.model_folders import find_model, read_sentence_transformers_files
from retrieval_pretraining.search import best_positions
from retrieval_pretraining.systems import quiet_loading
from retrieval_pretraining.text_encoder import SentenceTransformersEncoder, TextEncoder

# Logits that a batch has at most: of each thread on a CPU 128 MiB, elsewhere 1 GiB, in float32.
_LOGITS_AT_ONCE_ON_CPU = 2**25
_LOGITS_AT_ONCE = 2**28
_QUERIES_AT_ONCE = 256
_DOCUMENTS_AT_ONCE = 16384


def lexical_weights(logits_BLV: torch.Tensor, ordinary_BL: torch.Tensor) -> torch.Tensor:
    """What each word of the vocabulary weighs in each text, float32 [B, V], 0 or more.

    With z the maximum of the logits over the positions where `ordinary_BL` is true, and p = softmax(z), which is what
    the bag-of-words loss of DupMAE fits (`modeling_retromae.bag_of_words_loss`):

        weight(t) = max(0, log p(t) - log 1/V)

    how much likelier the text makes the word than a draw from the vocabulary would: positive pointwise mutual
    information (Church and Hanks 1990; Levy and Goldberg 2014) with a uniform prior. A text without ordinary positions
    weighs nothing. The logits are overwritten.
    """
    logits_BLV.masked_fill_(~ordinary_BL[..., None], -torch.inf)
    log_p_BV = logits_BLV.amax(1).float().log_softmax(-1)
    weights_BV = (log_p_BV + math.log(log_p_BV.shape[1])).clamp(min=0.0)
    return weights_BV.masked_fill(~ordinary_BL.any(1, keepdim=True), 0.0)


def keep_highest(weights_BV: np.ndarray, top_n: int) -> sparse.csr_matrix:
    """The `top_n` highest weights of each row, those above 0; of equal ones the first of the vocabulary."""
    rows = []
    for weights_V in weights_BV:
        best = best_positions(weights_V, top_n)
        rows.append(np.sort(best[weights_V[best] > 0]))
    ids, bounds = np.concatenate(rows), np.cumsum([0, *map(len, rows)])
    weights = weights_BV[np.repeat(np.arange(len(rows)), np.diff(bounds)), ids]
    return sparse.csr_matrix((weights, ids, bounds), weights_BV.shape)


class LexicalEncoder:
    """Texts -> sparse vectors over the vocabulary, by a model with an MLM head.

    Args:
        model, tokenizer: a `...ForMaskedLM` of transformers; where it is, it stays.
        top_n: how many words of a text keep their weight, the highest; of equal ones the first of the vocabulary.
        query_prompt, document_prompt, max_seq_length, batch_size: as of `TextEncoder`.

    `description` is for the results. Raises `InputError` for a `top_n` below 1.
    """

    def __init__(
        self,
        model,
        tokenizer,
        *,
        name: str = "model",
        top_n: int = 128,
        query_prompt: str = "",
        document_prompt: str = "",
        max_seq_length: int | None = None,
        batch_size: int = 64,
    ):
        if top_n < 1:
            raise InputError(f"top_n is {top_n}; keep 1 word or more.")
        self.model, self.tokenizer, self.name, self.top_n = model, tokenizer, name, top_n
        self.query_prompt, self.document_prompt = query_prompt, document_prompt
        self.max_seq_length, self.batch_size = max_seq_length, batch_size
        self.description = f"words that its MLM head predicts, {top_n} a text"

    def encode_queries(self, texts: Sequence[str], progress: bool | None = None) -> sparse.csr_matrix:
        """Vectors of queries, each after the query prompt; see `encode`."""
        return self.encode(texts, self.query_prompt, progress=progress)

    def encode_documents(self, texts: Sequence[str], progress: bool | None = None) -> sparse.csr_matrix:
        """Vectors of documents, each after the document prompt; see `encode`."""
        return self.encode(texts, self.document_prompt, progress=progress)

    def encode(self, texts: Sequence[str], prompt: str = "", *, progress: bool | None = None) -> sparse.csr_matrix:
        """The `lexical_weights` of each text, float32 [n, V], at most `top_n` above 0 in a row.

        Special tokens neither predict nor are predicted: their positions are left out, and their columns are 0, as in
        the bag of words of the training. A vector depends on its text alone, and that of an empty text is 0.

        Raises `InputError`: no texts, something else than strings, logits that are not numbers.
        """
        check_texts(texts)
        sequences, _ = model_sequences(
            self.model,
            self.tokenizer,
            [prompt + text for text in texts],
            max_seq_length=self.max_seq_length,
            progress=progress,
        )
        device = next(self.model.parameters()).device
        special = torch.tensor(sorted(self.tokenizer.all_special_ids), dtype=torch.int64, device=device)

        @torch.no_grad()
        def encode_batch(rows: list[int]) -> sparse.csr_matrix:
            ids_BL, mask_BL = pad_right([sequences[i] for i in rows], self.tokenizer.pad_token_id, device)
            ordinary_BL = mask_BL.bool() & ~torch.isin(ids_BL, special)
            weights_BV = lexical_weights(self.model(input_ids=ids_BL, attention_mask=mask_BL).logits, ordinary_BL)
            if weights_BV.isnan().any():
                raise InputError(
                    f"{self.name}: some logits of the MLM head are not finite; the model has diverged: train it with "
                    "a lower learning rate."
                )
            weights_BV[:, special] = 0.0
            return keep_highest(weights_BV.cpu().numpy(), self.top_n)

        logits_at_once = _LOGITS_AT_ONCE_ON_CPU if device.type == "cpu" else _LOGITS_AT_ONCE
        tokens_at_once = logits_at_once // self.model.get_input_embeddings().num_embeddings
        options = dict(batch_size=self.batch_size, tokens_at_once=tokens_at_once, progress=progress)
        rows, vectors = zip(*map_batches(self.model, sequences, encode_batch, **options), strict=True)
        return sparse.vstack(vectors, format="csr")[np.argsort(np.concatenate(rows))]


def load_lexical_encoder(encoder: TextEncoder, *, top_n: int = 128, trust_remote_code: bool = False) -> LexicalEncoder:
    """The model of an encoder that `load_encoder` made, with its MLM head; all else is as in that one.

    Raises `InputError` for a `top_n` below 1, and for a model without an MLM head: one of another kind, as T5 and GUR,
    or a checkpoint that lacks weights of it.
    """
    name = encoder.model_name_or_path
    hint = "give a folder with one, as run_pretrain.py writes for RetroMAE and DupMAE, or leave --lexical out"
    if isinstance(encoder, SentenceTransformersEncoder):
        raise InputError(f"{name}: modules of sentence-transformers make its vectors, not an MLM head; {hint}.")
    folder, _ = find_model(name, revision=None if Path(name).expanduser().is_dir() else encoder.revision)
    files = read_sentence_transformers_files(folder)
    folder = folder if files is None else files.transformer
    with quiet_loading(name):
        trusted = trust_remote_code and encoder.model_type not in OUR_MODELS
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trusted)
        own_code = trusted and "AutoModelForMaskedLM" in getattr(config, "auto_map", {})
        if type(config) not in MODEL_FOR_MASKED_LM_MAPPING and not own_code:
            raise InputError(f"{name}: a model of type {config.model_type} has no MLM head; {hint}.")
        model, info = AutoModelForMaskedLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, encoder.dtype),
            use_safetensors=True,
            trust_remote_code=trusted,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    mismatched = (each if isinstance(each, str) else each[0] for each in info["mismatched_keys"])
    missing = sorted({*info["missing_keys"], *mismatched})
    if missing:
        raise InputError(f"{name}: its files lack the MLM head ({missing[0]}); {hint}.")
    device = next(encoder.model.parameters()).device
    return LexicalEncoder(
        model.to(device).eval(),
        encoder.tokenizer,
        name=encoder.name,
        top_n=top_n,
        query_prompt=encoder.query_prompt,
        document_prompt=encoder.document_prompt,
        max_seq_length=encoder.max_seq_length,
        batch_size=encoder.batch_size,
    )


def lexical_search(
    queries: sparse.csr_matrix, documents: sparse.csr_matrix, k: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The `k` documents with the highest dot products for each query, exactly; equal ones in document order.

    Takes sparse vectors [Q, V] and [N, V], of which 256 queries and 16,384 documents are compared at once. Returns,
    for each query, positions of documents (int64) and scores (float32), both [found], best first. Only scores above 0
    are found: `k` at most, perhaps none. `InputError` for `k` below 1, no documents, or vectors of two vocabularies.
    """
    if k < 1:
        raise InputError(f"k is {k}; ask for 1 document or more.")
    if not documents.shape[0]:
        raise InputError("There are no document vectors to search; give at least one document.")
    if queries.shape[1] != documents.shape[1]:
        sizes = f"{queries.shape[1]} and {documents.shape[1]}"
        raise InputError(f"Vectors of queries and documents have sizes {sizes}; encode both with the same model.")
    starts = range(0, documents.shape[0], _DOCUMENTS_AT_ONCE)
    # in float64: a score is summed word by word in one order, so that equal documents have equal ones in any block
    blocks = [documents[start : start + _DOCUMENTS_AT_ONCE].astype(np.float64).T.tocsr() for start in starts]
    found = []
    with progress_bar(queries.shape[0], "Lexical search", "query", None) as bar:
        for first in range(0, queries.shape[0], _QUERIES_AT_ONCE):
            block_QV = queries[first : first + _QUERIES_AT_ONCE].astype(np.float64)
            kept = [(np.empty(0, np.int64), np.empty(0, np.float32))] * block_QV.shape[0]
            for start, block_VN in zip(starts, blocks, strict=True):
                scores_QN = (block_QV @ block_VN).toarray().astype(np.float32)
                for row, scores_N in enumerate(scores_QN):
                    shared = np.flatnonzero(scores_N > 0)
                    # the kept ones are earlier documents and stand first: ties stay in document order
                    positions = np.append(kept[row][0], start + shared)
                    scores = np.append(kept[row][1], scores_N[shared])
                    best = best_positions(scores, k)
                    kept[row] = positions[best], scores[best]
            found += kept
            bar.update(len(kept))
    return found
