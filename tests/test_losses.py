"""The contrastive loss: equal to a slow oracle, however the pairs lie on processes and in mini-batches."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fresh_process import run_script
from reference.contrastive_oracle import contrastive, related

from modeling_gur import contrastive_loss
from retrieval_pretraining.losses import CachedContrast, allowed_negatives, contrastive_loss_over_processes

TESTS = Path(__file__).parent


def toy_pairs(pairs: int = 9, size: int = 6, seed: int = 0):
    """Vectors `[2N, E]` of several lengths, the texts of each pair, and their documents, of which some are not known.

    Some texts and documents are in several pairs, on both sides.
    """
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(2 * pairs, size)) * generator.uniform(0.5, 3.0, (2 * pairs, 1))
    texts = [tuple(f"text {number}" for number in generator.integers(0, 3 * pairs, 2)) for _ in range(pairs)]
    documents = [None if number < 2 else int(number) for number in generator.integers(0, 2 * pairs, pairs)]
    return vectors, texts, documents


def keys_of(texts, documents) -> dict[str, torch.Tensor]:
    """Keys as a collator makes them: any integers, negative ones too; -1 only where the document is not known."""
    known = sorted({text for pair in texts for text in pair})
    text_keys = [7919 * known.index(text) - 40_000 for pair in texts for text in pair]
    document_keys = [-1 if document is None else -(1000 + document) for document in documents]
    return {"text_keys": torch.tensor(text_keys), "document_keys": torch.tensor(document_keys)}


def test_pairs_that_share_a_text_or_a_document_are_no_negatives():
    texts = [("a", "b"), ("c", "d"), ("b", "e"), ("f", "f"), ("g", "a"), ("h", "i"), ("j", "k")]
    documents = [1, 2, 3, 2, 4, None, None]
    allowed, excluded = allowed_negatives(**keys_of(texts, documents))
    assert [(i, j) for i, j in (~allowed).nonzero().tolist() if i < j] == [(0, 2), (0, 4), (1, 3)]
    assert torch.equal(allowed, allowed.t()) and allowed.diagonal().all()
    assert excluded == 6
    for i, j in np.ndindex(7, 7):
        assert allowed[i, j] == (i == j or not related(i, j, texts, documents))
    without_documents, excluded = allowed_negatives(keys_of(texts, documents)["text_keys"])
    assert without_documents[1, 3] and excluded == 4


def test_the_pairs_of_other_processes_are_judged_alike():
    _, texts, documents = toy_pairs(12)
    keys = keys_of(texts, documents)
    whole, excluded = allowed_negatives(**keys)
    counts = []
    for first, last in ((0, 5), (5, 5), (5, 12)):
        own = (keys["text_keys"][2 * first : 2 * last], keys["document_keys"][first:last])
        part, count = allowed_negatives(*own, *keys.values(), first=first)
        assert torch.equal(part, whole[first:last])
        counts.append(count)
    assert sum(counts) == excluded > 0


@pytest.mark.parametrize("seed", range(4))
def test_loss_equals_the_oracle(seed):
    vectors, texts, documents = toy_pairs(seed=seed)
    expected = contrastive(vectors, 0.3, texts, documents)
    ours = torch.tensor(vectors, dtype=torch.float32, requires_grad=True)
    keys = keys_of(texts, documents)
    loss, accuracy, excluded = contrastive_loss_over_processes(ours, 0.3, **keys)
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-5)
    assert accuracy.item() == pytest.approx(expected["accuracy"])
    assert excluded == expected["excluded"] > 0

    theirs = ours.detach().clone().requires_grad_()
    of_model = contrastive_loss(theirs[0::2], theirs[1::2], 0.3, allowed_negatives(**keys)[0])
    assert of_model.item() == pytest.approx(loss.item(), abs=1e-6)
    loss.backward(), of_model.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=0)


def test_gradient_equals_finite_differences_of_the_oracle():
    vectors, texts, documents = toy_pairs(5, 3)
    ours = torch.tensor(vectors, dtype=torch.float32, requires_grad=True)
    temperature = torch.tensor(0.4, requires_grad=True)
    contrastive_loss_over_processes(ours, temperature, **keys_of(texts, documents))[0].backward()
    step = 1e-6

    def slope(change, at=0.4, by=0.0):
        losses = [contrastive(vectors + sign * change, at + sign * by, texts, documents)["loss"] for sign in (1, -1)]
        return (losses[0] - losses[1]) / (2 * step)

    for place in np.ndindex(vectors.shape):
        change = np.zeros_like(vectors)
        change[place] = step
        assert ours.grad[place].item() == pytest.approx(slope(change), abs=1e-5)
    assert temperature.grad.item() == pytest.approx(slope(0.0, by=step), abs=1e-5)


def test_one_sentence_in_three_of_eight_pairs_costs_nothing():
    """Perfectly separated vectors: equal within a pair and for pairs that share a sentence, orthogonal otherwise."""
    texts = [(f"a{number}", f"b{number}") for number in range(8)]
    texts[2], texts[5] = ("a0", "b2"), ("a5", "a0")
    group = [0, 1, 0, 3, 4, 0, 6, 7]
    vectors = torch.eye(8)[group].repeat_interleave(2, 0)
    loss, _, excluded = contrastive_loss_over_processes(vectors, 0.05, **keys_of(texts, [None] * 8))
    assert excluded == 6 and loss < 1e-5
    loss, _, excluded = contrastive_loss_over_processes(vectors, 0.05)
    assert excluded == 0 and loss > 0.3  # three pairs cannot be told apart, ln 3 each


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("pairs", [0, 1])
def test_one_pair_has_loss_0_and_finite_gradients(pairs, keys):
    vectors = torch.randn(2 * pairs, 4, requires_grad=True)
    keys = keys_of([("a", "a")] * pairs, [3] * pairs) if keys and pairs else {}
    temperature = torch.tensor(0.1, requires_grad=True)
    loss, accuracy, excluded = contrastive_loss_over_processes(vectors, temperature, **keys)
    loss.backward()
    assert loss == 0.0 and accuracy == pairs and excluded == 0
    assert torch.equal(vectors.grad, torch.zeros_like(vectors)) and temperature.grad == 0.0


def test_a_pair_without_any_negative_left_has_loss_0_and_finite_gradients():
    vectors = torch.randn(8, 4, requires_grad=True)
    loss, _, excluded = contrastive_loss_over_processes(vectors, 0.1, **keys_of([("a", "b")] * 4, [None] * 4))
    loss.backward()
    assert loss == 0.0 and excluded == 12
    assert torch.equal(vectors.grad, torch.zeros_like(vectors))


def test_the_loss_is_in_fp32_under_autocast():
    vectors, texts, documents = toy_pairs(64, 16)
    vectors, keys = torch.tensor(vectors, dtype=torch.float32), keys_of(texts, documents)
    expected = contrastive_loss_over_processes(vectors, 0.01, **keys)[0]
    with torch.autocast("cpu", torch.bfloat16):
        loss = contrastive_loss_over_processes(vectors, 0.01, **keys)[0]
    assert loss.dtype == torch.float32 and loss == expected


class _Encoder(torch.nn.Module):
    def __init__(self, dropout: float):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Dropout(dropout), torch.nn.Linear(12, 5))
        self.logit_scale = torch.nn.Parameter(torch.tensor(1.5))
        self.calls = 0

    @property
    def temperature(self):
        return (-self.logit_scale).exp()

    def forward(self, mini_batch):
        self.calls += 1
        return self.layers(mini_batch["inputs"])


def gradients(module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])


def cached_backward(module, inputs, texts: int, keys) -> CachedContrast:
    mini_batches = [{"inputs": part} for part in inputs.split(texts)]
    cache = CachedContrast(module, mini_batches, module.temperature, **keys)
    for number, mini_batch in enumerate(mini_batches):
        cache.repeat_dropout(number)
        loss = cache.loss_of(number, module(mini_batch), module.temperature)
        assert loss == cache.loss
        (loss * len(mini_batch["inputs"]) / len(inputs)).backward()
    return cache


@pytest.mark.parametrize("texts", [2, 8, 18, 100])
def test_cached_gradients_equal_plain_ones(texts):
    _, names, documents = toy_pairs(9)
    inputs, keys = torch.randn(18, 6, generator=torch.Generator().manual_seed(1)), keys_of(names, documents)
    plain, cached = _Encoder(0.0), _Encoder(0.0)
    loss, accuracy, excluded = contrastive_loss_over_processes(plain({"inputs": inputs}), plain.temperature, **keys)
    loss.backward()
    cache = cached_backward(cached, inputs, texts, keys)
    torch.testing.assert_close(gradients(cached), gradients(plain), atol=1e-6, rtol=0)
    assert (cache.accuracy, cache.excluded) == (accuracy, excluded)
    assert cache.loss.item() == pytest.approx(loss.item(), abs=1e-6)


def test_cached_gradients_with_dropout_equal_those_of_one_graph_with_the_same_dropout():
    inputs = torch.randn(18, 6, generator=torch.Generator().manual_seed(1))
    plain, cached = _Encoder(0.4), _Encoder(0.4)
    torch.manual_seed(3)
    cached_backward(cached, inputs, 8, {})
    torch.manual_seed(3)
    vectors = torch.cat([plain({"inputs": part}) for part in inputs.split(8)])
    contrastive_loss_over_processes(vectors, plain.temperature)[0].backward()
    torch.testing.assert_close(gradients(cached), gradients(plain), atol=1e-6, rtol=0)


SPLITS = [(5, 4), (1, 8), (0, 9), (9, 0)]


def test_two_processes_have_the_loss_and_the_gradients_of_one(tmp_path):
    """Plain and cached, with equal and unequal numbers of pairs, none on one process included."""
    vectors, texts, documents = toy_pairs(9)
    keys = keys_of(texts, documents)
    ours = torch.tensor(vectors, dtype=torch.float32, requires_grad=True)
    temperature = torch.tensor(0.3, requires_grad=True)
    loss, accuracy, excluded = contrastive_loss_over_processes(ours, temperature, **keys)
    loss.backward()
    expected = [ours.grad.tolist(), temperature.grad.item(), loss.item(), accuracy.item(), excluded.item()]

    script = tmp_path / "run.py"
    script.write_text(
        f"""
import json, sys
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
from test_losses import *
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
assert dist.get_world_size() == 2
vectors, texts, documents = toy_pairs(9)
keys = keys_of(texts, documents)
for split in SPLITS:
    for cached in (False, True):
        begin, end = sum(split[:rank]), sum(split[: rank + 1])
        if cached and not all(split):
            continue
        ours = torch.tensor(vectors[2 * begin : 2 * end], dtype=torch.float32, requires_grad=True)
        temperature = torch.tensor(0.3, requires_grad=True)
        own = dict(text_keys=keys["text_keys"][2 * begin : 2 * end], document_keys=keys["document_keys"][begin:end])
        share = (end - begin) / 9
        if cached:
            parts = [dict(inputs=part) for part in ours.split(4)]
            found = CachedContrast(lambda part: part["inputs"], parts, temperature, **own)
            loss, accuracy, excluded = found.loss, found.accuracy, found.excluded
            for number, part in enumerate(parts):
                (found.loss_of(number, part["inputs"], temperature) * len(part["inputs"]) / 18).backward(
                    retain_graph=True
                )
        else:
            loss, accuracy, excluded = contrastive_loss_over_processes(ours, temperature, **own)
            (loss * share).backward()
        sums = torch.stack([loss.detach() * share, accuracy * share, excluded.float(), temperature.grad])
        dist.all_reduce(sums)
        rows = [None, None]
        dist.all_gather_object(rows, ours.grad.tolist())
        if rank == 0:
            print("RESULT", json.dumps([rows[0] + rows[1], sums[3].item(), *sums[:3].tolist()]), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
    )
    result = run_script([script], tmp_path, processes=2)
    assert result.status == 0, result.err[-3000:]
    found = [json.loads(line[7:]) for line in result.out.splitlines() if line.startswith("RESULT")]
    assert len(found) == 6
    for gradient, *numbers in found:
        np.testing.assert_allclose(gradient, expected[0], atol=1e-6)
        assert numbers == pytest.approx(expected[1:], abs=1e-6)
