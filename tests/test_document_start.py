"""The document part of a start: what tokens know of whole documents."""

import numpy as np
import pytest
import torch
from toy_models import gur_config

from modeling_gur import GURForPreTraining
from retrieval_pretraining.corpus_start import cooccurrence_embeddings
from retrieval_pretraining.document_start import document_rows
from retrieval_pretraining.gur_start import (
    DOCUMENT_GAIN,
    DOCUMENT_WEIGHT_POWER,
    FULL_LENGTH,
    identity_projection,
    inverse_document_frequency,
    start_gur,
)

VOCABULARY = 99


def documents(count: int = 40, length: int = 30) -> list[np.ndarray]:
    """Of five topics with frequent and rare words, and a `</s>`; some tokens occur in none."""
    generator = np.random.default_rng(0)
    law = 1.0 / np.arange(1, 11) ** 1.5
    words = [generator.choice(10, length, p=law / law.sum()) for _ in range(count)]
    return [np.append(10 + word + 10 * (number % 5) * (word > 2), 1) for number, word in enumerate(words)]


def dense_matrix(texts, weights: np.ndarray, power: float) -> np.ndarray:
    """Rows n^power w of the texts, of length 1, from a loop."""
    rows = np.zeros((len(texts), len(weights)))
    for row, text in zip(rows, texts, strict=True):
        for token in text:
            row[token] = list(text).count(token) ** power * weights[token]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("weight_power", [1.0, 0.6])
def test_rows_are_the_main_directions_of_the_documents(power, weight_power):
    texts, weights = documents(), np.random.default_rng(1).uniform(0.5, 2.0, VOCABULARY).astype(np.float32)
    options = {"repeated_token_power": power, "weight_power": weight_power}
    rows = document_rows(texts, weights, dimensions=12, **options)
    assert rows.shape == (VOCABULARY, 12) and rows.dtype == np.float32
    _, _, right = np.linalg.svd(dense_matrix(texts, weights**weight_power, power), full_matrices=False)
    expected = right[:12].T * weights[:, None] ** (weight_power - 1.0)
    matrix = dense_matrix(texts, weights, power)
    expected /= np.sqrt(np.mean(np.sum((matrix @ expected) ** 2, axis=1)))
    np.testing.assert_allclose(rows @ rows.T, expected @ expected.T, atol=1e-3)  # the sign of a direction is free
    assert np.sum((matrix @ rows) ** 2, axis=1).mean() == pytest.approx(1.0, abs=1e-4)
    occurs = (matrix != 0).any(axis=0)
    assert np.array_equal(np.abs(rows).max(axis=1) > 1e-4, occurs) and 30 < occurs.sum() < 50


def test_there_are_no_more_directions_than_the_documents_have():
    weights = np.ones(VOCABULARY, dtype=np.float32)
    assert document_rows([[5, 6], [7]], weights, dimensions=10).shape == (VOCABULARY, 2)
    assert document_rows([], weights, dimensions=10).shape == (VOCABULARY, 0)
    assert document_rows([[5], []], np.zeros(VOCABULARY), dimensions=10).shape == (VOCABULARY, 0)


def test_documents_of_weight_zero_are_passed_over():
    weights = np.ones(VOCABULARY, dtype=np.float32)
    weights[1] = 0.0
    np.testing.assert_allclose(
        document_rows([[1], *documents()], weights, dimensions=5) ** 2,
        document_rows(documents(), weights, dimensions=5) ** 2,
        atol=1e-4,
    )


def test_further_rows_keep_their_length_beside_the_rest():
    options = {"vocab_size": VOCABULARY, "excluded_ids": [1], "seed": 3, "show_progress": False}
    further = np.random.default_rng(2).standard_normal((VOCABULARY, 8)).astype(np.float32)
    rest = cooccurrence_embeddings(documents(), hidden_size=24, **options)
    both = cooccurrence_embeddings(documents(), hidden_size=32, further_rows=further, **options)
    seen = np.unique(np.concatenate(documents()))[1:]  # without </s>
    rest = rest[seen] / np.linalg.norm(rest[seen], axis=1, keepdims=True)
    expected = np.concatenate([rest, further[seen]], axis=1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    both = both[seen] / np.linalg.norm(both[seen], axis=1, keepdims=True)
    np.testing.assert_allclose(both @ both.T, expected @ expected.T, atol=0.02)
    with pytest.raises(ValueError, match="8 further dimensions leave none of 8"):
        cooccurrence_embeddings(documents(), hidden_size=8, further_rows=further, **options)


def start(texts, **changes) -> GURForPreTraining:
    torch.manual_seed(0)
    sizes = {"d_model": 512, "projection_dim": 512, "projection_hidden_dim": 1024}
    model = GURForPreTraining(gur_config(**{**sizes, "pooling": "weighted_mean", **changes})).eval()
    identity_projection(model.projection, noise=0.0)
    start_gur(model, texts, special_ids=[0, 1, 2], seed=3, show_progress=False)
    return model


@pytest.mark.parametrize(
    ("d_model", "length", "extent", "directions", "company"),
    [
        (512, 2 * FULL_LENGTH, 1.0, 10, 251),  # one for each four documents, then half and half
        (768, 2 * FULL_LENGTH, 1.0, 10, 256),  # no more for the company
        (512, 30, 31 / FULL_LENGTH, 3, 254),  # of short documents fewer, and shorter rows
        (512, 1, 2 / FULL_LENGTH, 1, 255),
    ],
)
def test_the_sentence_vector_of_a_wide_model_is_the_sum_of_company_identity_and_documents(
    d_model, length, extent, directions, company
):
    texts = documents(40, length)
    sizes = {"d_model": d_model, "projection_dim": d_model, "projection_hidden_dim": 2 * d_model}
    model = start(texts, repeated_token_power=0.5, **sizes)
    idf = inverse_document_frequency(texts, VOCABULARY, special_ids=[0, 1, 2])
    options = {"repeated_token_power": 0.5, "weight_power": DOCUMENT_WEIGHT_POWER, "seed": 3}
    rows = document_rows(texts, idf, dimensions=directions, **options) * DOCUMENT_GAIN * extent
    vectors = cooccurrence_embeddings(
        texts,
        vocab_size=VOCABULARY,
        hidden_size=d_model,
        further_rows=rows,
        identity_share=1 - company / (d_model - directions),
        singular_value_power=0.25,
        excluded_ids=[0, 1, 2],
        seed=3,
        show_progress=False,
    )
    # The rest of a row has length 1, the documents' part its own.
    vectors *= np.sqrt(1.0 + np.sum(rows**2, axis=1, keepdims=True)) / np.linalg.norm(vectors, axis=1, keepdims=True)
    matrix = dense_matrix(texts, idf + 1e-9, 0.5)
    expected = matrix @ vectors
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    ids = torch.tensor(np.array(texts))
    with torch.no_grad():
        for name, weight in model.named_parameters():  # quiet layers, made silent
            if name.endswith(("SelfAttention.o.weight", "DenseReluDense.wo.weight")):
                weight.zero_()
        found = model.base_model(ids, torch.ones_like(ids)).pooler_output
        found = torch.nn.functional.normalize(found, dim=-1)
    np.testing.assert_allclose((found @ found.T).numpy(), expected @ expected.T, atol=2e-3)


def test_a_narrow_model_and_another_pooling_have_no_document_part():
    texts = documents()
    for changes in ({"pooling": "mean"}, {"d_model": 256, "projection_dim": 256, "projection_hidden_dim": 512}):
        model = start(texts, **changes)
        expected = cooccurrence_embeddings(
            texts,
            vocab_size=VOCABULARY,
            hidden_size=model.config.d_model,
            excluded_ids=[0, 1, 2],
            seed=3,
            standard_deviation=model.config.initializer_factor,
            show_progress=False,
            **({"identity_share": 0.5, "singular_value_power": 0.25} if model.config.d_model >= 512 else {}),
        )
        torch.testing.assert_close(model.shared.weight.detach(), torch.from_numpy(expected))


def test_of_many_documents_the_directions_take_no_more_than_two_thirds_of_the_dimensions(monkeypatch):
    asked = []

    def no_rows(texts, weights, *, dimensions, **options):
        asked.append((len(texts), dimensions))
        return np.zeros((VOCABULARY, 1), dtype=np.float32)

    monkeypatch.setattr("retrieval_pretraining.gur_start.document_rows", no_rows)
    monkeypatch.setattr("retrieval_pretraining.gur_start.MAX_DOCUMENTS", 1500)
    start(documents(1363, FULL_LENGTH))
    start(documents(1500, FULL_LENGTH))
    start(documents(1600, FULL_LENGTH))  # every second one
    assert asked == [(1363, 341), (1500, 341), (800, 200)]
