"""What the statistics count, what the embeddings know, and what a wired model does before its first step."""

import json
import lzma
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator
from torch import nn
from transformers import BertConfig, BertModel, ElectraConfig, ElectraModel

from retrieval_pretraining import corpus_start as corpus_start_module
from retrieval_pretraining.corpus_start import (
    cooccurrence_counts,
    cooccurrence_embeddings,
    corpus_start,
    positive_pmi,
    token_counts,
    truncated_svd,
)
from retrieval_pretraining.errors import InputError

SPECIAL_IDS = (0, 1, 2, 3, 4)  # [PAD] [UNK] [CLS] [SEP] [MASK]
VOCAB_SIZE = 99
COMMON = range(5, 15)  # words of every topic
TOPICS = (range(15, 55), range(55, 95))  # ids from 95 up are never seen
SCIFACT = Path(__file__).parents[1] / "examples" / "data" / "scifact"


def topical_passages(number: int = 300, length: int = 30) -> list[list[int]]:
    """Half common words, half words of one topic, between [CLS] and [SEP]."""
    rng = np.random.default_rng(0)
    passages = []
    for index in range(number):
        topic, common = rng.choice(TOPICS[index % 2], length // 2), rng.choice(COMMON, length // 2)
        passages.append([2, *rng.permutation(np.concatenate([topic, common])).tolist(), 3])
    return passages


def toy_embeddings(**changes) -> np.ndarray:
    settings = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "excluded_ids": SPECIAL_IDS, "show_progress": False}
    return cooccurrence_embeddings(topical_passages(), **{**settings, **changes})


class Head(nn.Module):
    def __init__(self, config, vocabulary: nn.Parameter):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.GELU()
        self.LayerNorm = nn.LayerNorm(config.hidden_size)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.decoder.weight = vocabulary

    def transform(self, hidden_states):
        return self.LayerNorm(self.activation(self.dense(hidden_states)))

    def forward(self, hidden_states):
        return self.decoder(self.transform(hidden_states))


class Model(nn.Module):
    """The parts of RetroMAEForPreTraining that a corpus start knows."""

    def __init__(self, encoder, head: bool = True):
        super().__init__()
        self.config = SimpleNamespace(initializer_range=0.02)
        self.retromae = nn.Module()
        self.retromae.encoder = encoder.eval()
        if head:
            self.mlm_head = Head(encoder.config, self.get_input_embeddings().weight)
        self.decoder = nn.Linear(16, 16)

    def get_input_embeddings(self):
        return self.retromae.encoder.get_input_embeddings()


def bert(**changes) -> Model:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = BertConfig(**{"vocab_size": VOCAB_SIZE, "max_position_embeddings": 64, **sizes, **changes})
    return Model(BertModel(config, add_pooling_layer=False))


def started_bert(**changes) -> tuple[Model, dict]:
    model = bert()
    return model, corpus_start(model, topical_passages(), special_ids=SPECIAL_IDS, show_progress=False, **changes)


def cosine(left, right):
    return nn.functional.cosine_similarity(torch.as_tensor(left), torch.as_tensor(right), dim=-1)


# Counting


def pairs_by_loops(sequences, vocab_size, window, segment_length, excluded_ids):
    pairs = np.zeros((vocab_size, vocab_size))
    for sequence in sequences:
        tokens = [token for token in sequence if token not in excluded_ids]
        for i, left in enumerate(tokens):
            for j, right in enumerate(tokens):
                if i != j:
                    pairs[left, right] += abs(i - j) <= window
                    pairs[left, right] += i // segment_length == j // segment_length
    return pairs


@pytest.mark.parametrize("chunk_tokens", [10, 500_000])
def test_pairs_are_those_of_plain_loops(monkeypatch, chunk_tokens):
    monkeypatch.setattr(corpus_start_module, "CHUNK_TOKENS", chunk_tokens)
    rng = np.random.default_rng(0)
    sequences = [[2, *rng.integers(1, 12, length).tolist(), 3] for length in (1, 0, 17, 3, 9, 25)] + [[], [2, 3]]
    settings = {"vocab_size": 12, "window": 3, "segment_length": 5, "excluded_ids": (0, 2, 3)}
    counted = cooccurrence_counts(sequences, show_progress=False, **settings)
    np.testing.assert_array_equal(counted.toarray(), pairs_by_loops(sequences, **settings))


def test_no_pair_crosses_the_border_of_a_passage():
    pairs = cooccurrence_counts([[5, 6], np.array([7, 8])], vocab_size=9, show_progress=False).toarray()
    assert pairs[5, 6] == pairs[7, 8] == 2  # once in the window, once in the segment
    assert pairs[6, 7] == pairs[5, 8] == 0


def test_special_tokens_are_in_no_pair():
    pairs = cooccurrence_counts(
        topical_passages(), vocab_size=VOCAB_SIZE, excluded_ids=SPECIAL_IDS, show_progress=False
    )
    assert pairs[list(SPECIAL_IDS)].sum() == pairs[:, list(SPECIAL_IDS)].sum() == 0 < pairs.sum()


def test_token_counts():
    assert token_counts([[2, 5, 5, 3], np.array([5, 6])], 8).tolist() == [0, 0, 1, 1, 0, 3, 1, 0]


@pytest.mark.parametrize("token", [-1, 8])
def test_a_token_outside_the_vocabulary_is_refused(token):
    with pytest.raises(InputError, match=f"token id {token}, outside"):
        token_counts([[2, 5, 3], [2, token, 3]], 8)


def test_positive_pmi_follows_its_formula():
    pairs = cooccurrence_counts([[0, 1, 0, 2], [3, 1, 2, 2]], vocab_size=4, window=1, show_progress=False)
    dense = pairs.toarray()
    context = dense.sum(axis=0) ** 0.75
    expected = dense.copy()
    for i in range(4):
        for j in range(4):
            joint, token, smoothed = (
                dense[i, j] / dense.sum(),
                dense[i].sum() / dense.sum(),
                context[j] / context.sum(),
            )
            expected[i, j] = max(0.0, math.log(joint / token / smoothed)) if joint else 0.0
    assert expected.any() and (expected == 0).any()
    np.testing.assert_allclose(positive_pmi(pairs).toarray(), expected, atol=1e-6)


# Embeddings


def test_tokens_of_one_topic_are_closer_than_tokens_of_two():
    rows = toy_embeddings(hidden_size=8)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    first, second = (rows[list(topic)] for topic in TOPICS)
    within = [(topic @ topic.T)[np.triu_indices(len(topic), 1)].mean() for topic in (first, second)]
    assert min(within) > (first @ second.T).mean() + 0.1


@pytest.mark.parametrize("hidden_size", [16, 32, 128])  # 128: more than the vocabulary has directions
def test_embeddings_have_the_asked_shape_and_deviation(hidden_size):
    rows = toy_embeddings(hidden_size=hidden_size, standard_deviation=0.05)
    assert rows.shape == (VOCAB_SIZE, hidden_size) and rows.dtype == np.float32
    sizes = np.sqrt((rows**2).mean(axis=1))
    np.testing.assert_allclose(sizes[5:95], 0.05, rtol=1e-4)
    assert (sizes[:5] < 0.04).all() and (sizes[95:] < 0.04).all() and (sizes > 0).all()


def test_a_seed_gives_its_rows():
    np.testing.assert_array_equal(toy_embeddings(seed=1), toy_embeddings(seed=1))
    assert not np.allclose(toy_embeddings(seed=1), toy_embeddings(seed=2))


def test_another_seed_only_turns_the_rows():
    # As many dimensions as directions, so that no difference comes from where the SVD is cut off.
    settings = {"hidden_size": 128, "singular_value_power": 1.0}
    one, two = (toy_embeddings(seed=seed, **settings)[5:95] for seed in (1, 2))
    np.testing.assert_allclose(one @ one.T, two @ two.T, atol=1e-5)


def test_rows_span_the_leading_directions_of_the_weighted_matrix():
    """The random projection finds the subspace of an exact SVD."""
    pairs = cooccurrence_counts(
        topical_passages(), vocab_size=VOCAB_SIZE, excluded_ids=SPECIAL_IDS, show_progress=False
    )
    weighted = np.sqrt(pairs.toarray().sum(axis=1, keepdims=True)) * positive_pmi(pairs).toarray()
    exact = np.linalg.svd(weighted)[0][5:95, :2]
    rows = toy_embeddings(hidden_size=2)[5:95]
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(rows @ rows.T, exact @ exact.T, atol=1e-2)


def test_the_identity_share_is_a_direction_of_its_own_for_each_token_beside_its_company():
    company = toy_embeddings(hidden_size=3)[5:95]
    both = toy_embeddings(hidden_size=5, identity_share=0.4)[5:95]
    cosines, of_both = (rows @ rows.T / np.sum(rows**2, axis=1).mean() for rows in (company, both))
    # Half of each cosine is the company's; the other half is that of unit vectors in the 2 other dimensions.
    identity = 2.0 * of_both - cosines
    np.testing.assert_allclose(np.diag(identity), 1.0, atol=1e-2)
    eigenvalues = np.sort(np.linalg.eigvalsh(identity))[::-1]
    assert eigenvalues[1] > 10.0 and np.abs(eigenvalues[2:]).max() < 1.0, eigenvalues[:4]
    assert len(np.unique(np.round(identity[0], 3))) > 60  # not one direction for all


def test_an_identity_share_that_leaves_nothing_for_the_company_is_refused():
    with pytest.raises(ValueError, match=r"identity_share is 0 or more and below 1, not 1\.0"):
        toy_embeddings(identity_share=1.0)


@pytest.mark.parametrize("shape", [(300, 40), (40, 300), (60, 60)])
def test_the_factorisation_is_that_of_the_whole_matrix(shape):
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((shape[0], 25)) * 2.0 ** -np.arange(25) @ rng.standard_normal((25, shape[1]))
    matrix[:, :3] = 0.0
    matrix = matrix.astype(np.float32)
    left, singular_values, _ = np.linalg.svd(matrix)
    for given in (sparse.csr_matrix(matrix), aslinearoperator(matrix)):
        found, values = truncated_svd(given, 35, np.random.default_rng(0))
        assert found.shape == (shape[0], 35) and found.dtype == values.dtype == np.float32
        np.testing.assert_allclose(values[:10], singular_values[:10], rtol=1e-3)
        assert values[25:].max() < 1e-5 * values[0]  # there are no more directions
        np.testing.assert_allclose(found[:, :15].T @ found[:, :15], np.eye(15), atol=1e-3)
        np.testing.assert_allclose(np.abs(np.sum(found[:, :10] * left[:, :10], axis=0)), 1.0, atol=1e-3)


# Models


def test_a_wired_cls_is_the_idf_weighted_mean():
    model, report = started_bert()
    assert report["wired"]
    encoder = model.retromae.encoder
    passages = torch.tensor(topical_passages())
    with torch.no_grad():
        cls = encoder(input_ids=passages).last_hidden_state[:, 0]
        states = encoder.embeddings(input_ids=passages)
    counts = torch.tensor(token_counts(topical_passages(), VOCAB_SIZE)).clamp(min=1)

    def bag(power: float) -> torch.Tensor:
        weights = (counts / counts.sum()) ** -power
        weights[list(SPECIAL_IDS)] = 0.0
        weights = weights[passages] / weights[passages].sum(dim=1, keepdim=True)
        mean = (weights[..., None] * states).sum(dim=1)
        return nn.functional.layer_norm(states[:, 0] + 2.0 * mean, mean.shape[1:])

    assert cosine(cls, bag(0.35)).min() > 0.97
    # What tells passages apart is the weighted mean, not the plain one.
    varying = cls - cls.mean(dim=0)
    weighted, plain = (cosine(varying, bag(power) - bag(power).mean(dim=0)).mean() for power in (0.35, 0.0))
    assert weighted > 0.98 and weighted > plain + 0.001, (weighted, plain)


def test_a_wired_cls_ignores_padding():
    model, _ = started_bert()
    passage = torch.tensor(topical_passages()[:1])
    padded = nn.functional.pad(passage, (0, 9))
    with torch.no_grad():
        alone = model.retromae.encoder(input_ids=passage).last_hidden_state[:, 0]
        in_batch = model.retromae.encoder(input_ids=padded, attention_mask=padded.ne(0).long()).last_hidden_state[:, 0]
    torch.testing.assert_close(alone, in_batch, atol=1e-5, rtol=1e-5)


def test_the_mlm_transform_is_the_identity():
    model, _ = started_bert()
    normal = nn.functional.layer_norm(torch.randn(50, 16, generator=torch.Generator().manual_seed(0)), (16,))
    with torch.no_grad():
        assert cosine(model.mlm_head.transform(normal), normal).min() > 0.99


def test_untrained_mlm_is_unigram_and_prefers_the_topic_of_the_passage():
    model, _ = started_bert()
    passages = torch.tensor(topical_passages())
    masked = passages.clone()
    masked[:, 10] = 4
    with torch.no_grad():
        scores = model.mlm_head(model.retromae.encoder(input_ids=masked).last_hidden_state[:, 10])
    counts = token_counts(topical_passages(), VOCAB_SIZE)
    counts[list(SPECIAL_IDS)] = 0
    unigram = torch.tensor(np.log((counts + 0.5) / (counts + 0.5).sum())).float()
    loss = nn.functional.cross_entropy(scores, passages[:, 10]).item()
    assert loss == pytest.approx(
        nn.functional.cross_entropy(unigram.expand_as(scores), passages[:, 10]).item(), abs=0.05
    )
    assert loss < math.log(VOCAB_SIZE) - 0.3
    first, second = ((scores - unigram)[:, list(topic)].mean(dim=1) for topic in TOPICS)
    right = torch.cat([first[0::2] > second[0::2], second[1::2] > first[1::2]])  # passages alternate between topics
    assert right.float().mean() > 0.9, right.float().mean()


def test_all_else_stays_as_it_was():
    before, (after, _) = bert(), started_bert()
    assert torch.equal(before.decoder.weight, after.decoder.weight)
    assert after.mlm_head.decoder.weight is after.get_input_embeddings().weight
    # What training needs is still there: no matrix became zero.
    assert all(parameter.abs().max() > 0 for parameter in after.retromae.encoder.parameters() if parameter.ndim == 2)


def test_one_layer_and_no_head():
    model = Model(bert(num_hidden_layers=1).retromae.encoder, head=False)
    assert corpus_start(model, topical_passages(), special_ids=SPECIAL_IDS, show_progress=False)["wired"]


def test_other_encoders_get_embeddings_of_their_own_size_only():
    config = ElectraConfig(
        vocab_size=VOCAB_SIZE, embedding_size=16, hidden_size=32, num_hidden_layers=1, num_attention_heads=4
    )
    model = Model(ElectraModel(config), head=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = corpus_start(model, topical_passages(), special_ids=SPECIAL_IDS, show_progress=False)
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["retromae.encoder.embeddings.word_embeddings.weight"]
    assert not report["wired"] and "token embeddings only" in report["summary"]
    np.testing.assert_array_equal(model.get_input_embeddings().weight.detach(), toy_embeddings(hidden_size=16))


def test_the_report_counts():
    _, report = started_bert()
    assert report["tokens"] == report["tokens_used"] == 300 * 30
    assert report["vocabulary_seen"] == pytest.approx(90 / 94)
    assert report["summary"].startswith("Start from 9,000 tokens that show 95.7% of the vocabulary")


def test_of_a_long_text_every_nth_passage_is_used():
    model, report = started_bert(max_tokens=4500)
    assert (report["tokens"], report["tokens_used"]) == (9000, 4500)
    half = cooccurrence_embeddings(
        topical_passages()[::2], vocab_size=VOCAB_SIZE, hidden_size=16, excluded_ids=SPECIAL_IDS, show_progress=False
    )
    np.testing.assert_array_equal(model.get_input_embeddings().weight.detach(), half)


def test_no_text_is_refused():
    with pytest.raises(InputError, match="needs text"):
        corpus_start(bert(), [[2, 3]], special_ids=SPECIAL_IDS, show_progress=False)


@pytest.mark.slow
def test_an_untrained_cls_retrieves_on_scifact():
    """Measured .57 / .86 (nDCG@10 / recall@100); random weights .05 / .22, BM25 .676 / .913."""
    from tokenizers import BertWordPieceTokenizer

    if not (SCIFACT / "corpus.jsonl.xz").exists():
        pytest.skip(f"{SCIFACT} holds no corpus.jsonl.xz")
    with lzma.open(SCIFACT / "corpus.jsonl.xz", "rt", encoding="utf-8") as lines:
        documents = {row["_id"]: row["title"] + " " + row["text"] for row in map(json.loads, lines)}
    relevant = {}
    for line in (SCIFACT / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        query, document, grade = line.split("\t")
        if int(grade) > 0:
            relevant.setdefault(query, set()).add(document)
    lines = (SCIFACT / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    queries = {row["_id"]: row["text"] for row in map(json.loads, lines) if row["_id"] in relevant}

    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(documents.values(), vocab_size=8000, show_progress=False)
    special = {token: tokenizer.token_to_id(token) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}

    def pieces(text: str, length: int) -> list[list[int]]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return [
            [special["[CLS]"], *ids[at : at + length - 2], special["[SEP]"]] for at in range(0, len(ids), length - 2)
        ]

    sizes = {"vocab_size": 8000, "hidden_size": 128, "intermediate_size": 512, "max_position_embeddings": 256}
    model = bert(**sizes)
    passages = [piece for text in documents.values() for piece in pieces(text, 128)]
    corpus_start(model, passages, special_ids=special.values(), show_progress=False)

    @torch.no_grad()
    def encode(texts: list[str], length: int) -> torch.Tensor:
        rows = []
        for at in range(0, len(texts), 64):
            ids = [torch.tensor(pieces(text, length)[0]) for text in texts[at : at + 64]]
            batch = nn.utils.rnn.pad_sequence(ids, batch_first=True)
            output = model.retromae.encoder(input_ids=batch, attention_mask=batch.ne(0).long())
            rows.append(nn.functional.normalize(output.last_hidden_state[:, 0], dim=1))
        return torch.cat(rows)

    scores = encode(list(queries.values()), 64) @ encode(list(documents.values()), 256).T
    names, gains, recalls = list(documents), [], []
    for query, row in zip(queries, scores, strict=True):
        found = [names[index] in relevant[query] for index in row.topk(100).indices]
        ideal = sum(1 / math.log2(rank + 2) for rank in range(min(10, len(relevant[query]))))
        gains.append(sum(hit / math.log2(rank + 2) for rank, hit in enumerate(found[:10])) / ideal)
        recalls.append(sum(found) / len(relevant[query]))
    assert np.mean(gains) > 0.53
    assert np.mean(recalls) > 0.85
