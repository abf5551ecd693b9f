"""What tokens have in common because they are spelt alike, in the vectors of a model from scratch."""

import numpy as np
import pytest
import torch
from scipy import sparse
from toy_models import gur_config

from modeling_gur import GURForPreTraining
from retrieval_pretraining.corpus_start import cooccurrence_embeddings
from retrieval_pretraining.document_start import document_rows
from retrieval_pretraining.gur_start import identity_projection, start_gur
from retrieval_pretraining.spelling import fragments, spelling_features

TOKENS = [
    "<pad>",
    "▁infection",
    "▁infections",
    "▁inf",
    "公路",
    "州际公路",
    "▁1998",
    "▁1999",
    "s",
    "<0xE5>",
    "▁dna公路",
]


def test_fragments_are_four_letters_in_a_row_and_two_of_chinese():
    assert fragments("▁cats") == ["▁cat", "cats"] and fragments("##ing") == ["##in", "#ing"]
    assert fragments("州际公") == ["州际", "际公"] and fragments("▁dna公路") == ["公路", "▁dna"]
    assert fragments("aaaaa") == ["aaaa", "aaaa"] and fragments("▁is") == []
    assert all(not fragments(token) for token in ("▁1998", "公", "covid-19", "<extra_id_0>", "<0xE5>", ""))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_product_of_two_tokens_is_the_share_of_the_cosine_of_their_fragments(share):
    rows = spelling_features(TOKENS, share=share)
    assert rows.dtype == np.float32 and rows.shape[0] == len(TOKENS)
    names = sorted({fragment for token in TOKENS for fragment in fragments(token)})
    counts = np.array([[fragments(token).count(name) for name in names] for token in TOKENS], dtype=float)
    lengths = np.maximum(np.linalg.norm(counts, axis=1), 1e-9)
    expected = share * (counts / lengths[:, None]) @ (counts / lengths[:, None]).T
    np.fill_diagonal(expected, 1.0)
    np.testing.assert_allclose((rows @ rows.T).toarray(), expected, atol=1e-6)
    assert expected[6, 7] == 0 and expected[1, 2] == pytest.approx(share * 7 / np.sqrt(7 * 8))


def texts(count: int = 60) -> list[list[int]]:
    generator = np.random.default_rng(0)
    return [[*generator.integers(3, 30, 20), 1] for _ in range(count)]


def some_features(size: int = 40) -> sparse.csr_matrix:
    matrix = sparse.random(size, 25, density=0.2, random_state=1, format="csr", dtype=np.float32)
    matrix = sparse.hstack([sparse.identity(size), matrix]).tocsr()
    return sparse.diags(1.0 / np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())) @ matrix


def test_documents_differ_in_the_features_of_their_tokens():
    weights, features = np.random.default_rng(1).uniform(0.5, 2.0, 40).astype(np.float32), some_features()
    rows = document_rows(texts(), weights, dimensions=8, repeated_token_power=0.5, features=features)
    counts = np.zeros((60, 40))
    for row, text in zip(counts, texts(), strict=True):
        for token in set(text):
            row[token] = text.count(token) ** 0.5 * weights[token]
    counts /= np.linalg.norm(counts, axis=1, keepdims=True)
    described = counts @ features.toarray()
    described /= np.linalg.norm(described, axis=1, keepdims=True)
    _, _, right = np.linalg.svd(described, full_matrices=False)
    expected = features.toarray() @ right[:8].T
    expected /= np.sqrt(np.mean(np.sum((counts @ expected) ** 2, axis=1)))
    expected[counts.sum(axis=0) == 0] = 0.0  # never seen, though others are spelt alike
    assert rows.shape == (40, 8) and rows.dtype == np.float32 and (np.abs(rows).max(axis=1) == 0).sum() == 12
    np.testing.assert_allclose(rows @ rows.T, expected @ expected.T, atol=2e-3)


def test_identity_is_the_sum_of_the_directions_of_the_features():
    features = some_features()
    options = {"vocab_size": 40, "excluded_ids": [1], "seed": 3, "show_progress": False, "identity_share": 0.95}
    rows = cooccurrence_embeddings(texts(), hidden_size=1000, identity_features=features, **options)
    plain = cooccurrence_embeddings(texts(), hidden_size=1000, **options)
    rows, plain = (each[3:30] / np.linalg.norm(each[3:30], axis=1, keepdims=True) for each in (rows, plain))
    # Half of the square of a row is company, the same in both.
    difference = 2 * (rows @ rows.T - plain @ plain.T)
    expected = (features @ features.T).toarray()[3:30, 3:30] - np.eye(27)
    np.testing.assert_allclose(difference, expected, atol=0.2)
    assert np.corrcoef(difference.ravel(), expected.ravel())[0, 1] > 0.9


def test_a_wide_model_starts_with_tokens_that_are_spelt_alike_near_each_other():
    names = [f"<{number}>" for number in range(99)]
    names[10:13] = ["▁infection", "▁infections", "▁vaccine"]
    generator = np.random.default_rng(0)
    documents = [[*generator.integers(10, 90, 30), 1] for _ in range(40)]

    def cosine_gain(tokens):
        torch.manual_seed(0)
        model = GURForPreTraining(gur_config(d_model=512, projection_dim=512, projection_hidden_dim=1024))
        identity_projection(model.projection)
        start_gur(model, documents, special_ids=[0, 1], tokens=tokens, show_progress=False)
        rows = torch.nn.functional.normalize(model.shared.weight[10:13].detach(), dim=1)
        return float(rows[0] @ rows[1] - rows[0] @ rows[2])

    assert cosine_gain(names) > 0.15 > abs(cosine_gain(None))
