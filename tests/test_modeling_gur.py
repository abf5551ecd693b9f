"""The GUR model: equal to the published numbers and to the slow oracle, whatever the padding, batch and dtype."""

import json
import math
from pathlib import Path

import pytest
import torch
from reference import gur_oracle
from safetensors.torch import load_file
from toy_models import gur_batch, gur_config

from modeling_gur import (
    GURForConditionalGeneration,
    GURForPreTraining,
    GURForSequenceClassification,
    GURModel,
    contrastive_loss,
)

GOLDEN = Path(__file__).parent / "golden"


# --- The published numbers -------------------------------------------------------------------------------------------


def our_name(golden_name: str) -> str:
    return golden_name.replace("projector.DenseReluDense.", "projection.").replace("projector.", "projection.")


@pytest.fixture(scope="module", params=["gated", "relu"])
def golden(request):
    """One published case: (tensors by their names without the case, the case's record)."""
    prefix = f"{request.param}/"
    tensors = load_file(GOLDEN / "golden_gur.safetensors")
    case = json.loads((GOLDEN / "golden_gur.json").read_text(encoding="utf-8"))["cases"][request.param]
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}, case


def golden_model(golden, cls=GURForPreTraining):
    tensors, case = golden
    fields = {name: value for name, value in case["config"].items() if name != "d_vector"}
    model = cls(gur_config(**fields, projection_dim=case["config"]["d_vector"]))
    weights = {our_name(name[8:]): value for name, value in tensors.items() if name.startswith("weights/")}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert set(missing) == set(model.get_expanded_tied_weights_keys()) and not unexpected
    return model.train()


def golden_inputs(tensors):
    return {
        "input_ids": tensors["in/input_ids"],
        "attention_mask": tensors["in/attention_mask"],
        "labels": tensors["in/labels_ignore_pad"],
    }


def test_losses_and_vectors_equal_the_published_ones(golden):
    tensors, case = golden
    output = golden_model(golden)(**golden_inputs(tensors))
    expected = case["expected"]
    assert output.lm_loss.item() == pytest.approx(expected["lm_loss_pads_ignored"], abs=5e-6)
    assert output.contrastive_loss.item() == pytest.approx(expected["cl_loss_cosine"], abs=5e-6)
    assert output.loss.item() == pytest.approx(expected["total_correct_alpha1"], abs=1e-5)
    torch.testing.assert_close(output.sentence_embedding, tensors["out/embedding_l2"], atol=1e-6, rtol=0)
    states, real = tensors["out/encoder_last_hidden_state"], tensors["in/attention_mask"].bool()
    torch.testing.assert_close(output.encoder_last_hidden_state[real], states[real], atol=5e-6, rtol=0)
    vectors = golden_model(golden).project(states, tensors["in/input_ids"], tensors["in/attention_mask"])
    torch.testing.assert_close(vectors, tensors["out/embedding"], atol=1e-6, rtol=0)


def test_gradients_and_a_step_equal_the_published_ones(golden):
    tensors, case = golden
    model = golden_model(golden)
    model(**golden_inputs(tensors)).loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    norms = {our_name(name): value for name, value in case["grad_norms"]["correct"].items()}
    assert norms.keys() == gradients.keys()
    for name, norm in norms.items():
        assert gradients[name].norm().item() == pytest.approx(norm, rel=2e-5, abs=1e-6), name
    stored = [name for name in tensors if name.startswith("grad_correct/")]
    assert len(stored) == 3
    for name in stored:
        torch.testing.assert_close(gradients[our_name(name[13:])], tensors[name], atol=2e-5, rtol=1e-5)
    torch.optim.AdamW(model.parameters(), lr=1e-3).step()
    after = model(**golden_inputs(tensors)).loss.item()
    assert after == pytest.approx(case["expected"]["total_correct_after_one_adamw_step_lr1e-3"], abs=1e-5)


def test_greedy_output_and_logits_equal_the_published_ones(golden):
    tensors, case = golden
    model = golden_model(golden, GURForConditionalGeneration).eval()
    inputs = golden_inputs(tensors)
    output = model(**inputs)
    real = tensors["in/labels_ignore_pad"] != -100
    torch.testing.assert_close(output.logits[real], tensors["out/logits"][real], atol=1e-5, rtol=0)
    assert output.loss.item() == pytest.approx(case["expected"]["lm_loss_pads_ignored"], abs=5e-6)
    expected = tensors["out/generate_greedy"]
    del inputs["labels"]
    written = model.generate(**inputs, max_new_tokens=expected.shape[1] - 1, num_beams=1, do_sample=False)
    assert torch.equal(written, expected)


# --- The losses ------------------------------------------------------------------------------------------------------


def random_pairs(pairs: int, size: int = 8):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, pairs, size, generator=generator).unbind()


@pytest.mark.parametrize("pairs", [1, 2, 7])
@pytest.mark.parametrize("masked", [False, True])
def test_the_contrastive_loss_equals_the_slow_oracle(pairs, masked):
    first, second = random_pairs(pairs)
    negatives = torch.rand(pairs, pairs, generator=torch.Generator().manual_seed(1)) < 0.5 if masked else None
    rows = torch.stack([first, second], 1).flatten(0, 1).double().tolist()
    expected = gur_oracle.contrastive_loss(rows, 0.1, negatives=None if negatives is None else negatives.tolist())
    assert contrastive_loss(first, second, 0.1, negatives).item() == pytest.approx(expected, abs=1e-5)


def test_texts_that_are_no_negatives_of_each_other_move_nothing():
    first, second = random_pairs(3)
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[0, 2] = mask[2, 0] = False
    first.requires_grad_(), second.requires_grad_()
    loss = contrastive_loss(first, second, 0.1, mask)
    # Text 0 meets 1 alone, text 2 meets 1 alone, text 1 meets both.
    parts = [contrastive_loss(first[[0, 1]], second[[0, 1]], 0.1), contrastive_loss(first, second, 0.1)]
    assert loss < parts[1] and torch.isfinite(loss)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (first, second)))


def test_a_pair_alone_and_a_text_without_length_give_finite_gradients():
    for first, second in (random_pairs(1), (torch.zeros(3, 8), torch.zeros(3, 8))):
        first, second = first.clone().requires_grad_(), second.clone().requires_grad_()
        loss = contrastive_loss(first, second, 0.1)
        assert loss.item() == pytest.approx(math.log(len(first)), abs=1e-6)
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (first, second)))


def test_the_contrastive_loss_is_computed_in_fp32():
    first, second = random_pairs(50)
    exact = contrastive_loss(first, second, 0.01)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(contrastive_loss(first, second, 0.01), exact)
    half = contrastive_loss(first.bfloat16(), second.bfloat16(), 0.01)
    assert half.dtype == torch.float32
    assert torch.equal(half, contrastive_loss(first.bfloat16().float(), second.bfloat16().float(), 0.01))


@pytest.mark.parametrize("pooling", ["eos", "mean", "first", "weighted_mean"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_model_equals_the_slow_oracle(pooling, tied):
    torch.manual_seed(0)
    config = gur_config(pooling=pooling, tie_word_embeddings=tied, feed_forward_proj="gated-gelu", lm_loss_weight=0.7)
    model = GURForPreTraining(config).eval()
    generation = GURForConditionalGeneration(config).eval()
    generation.load_state_dict(model.state_dict())
    batch = gur_batch()
    output = model(**batch)
    logits = generation(**batch).logits.double().tolist()
    assert output.lm_loss.item() == pytest.approx(gur_oracle.lm_loss(logits, batch["labels"].tolist()), abs=5e-6)
    vectors = output.sentence_embedding.double().tolist()
    expected = gur_oracle.contrastive_loss(vectors, 0.1)
    assert output.contrastive_loss.item() == pytest.approx(expected, abs=5e-6)
    assert output.loss.item() == pytest.approx(0.7 * output.lm_loss.item() + expected, abs=1e-5)
    ranked = model._shift_right(batch["labels"]), torch.tensor(logits).argmax(-1)
    labelled = batch["labels"] != -100
    right = (ranked[1] == batch["labels"])[labelled].float().mean().item()
    assert output.lm_accuracy.item() == pytest.approx(right)
    similarity = output.sentence_embedding[0::2] @ output.sentence_embedding[1::2].T
    found = [(similarity.argmax(dim) == torch.arange(3)).float().mean().item() for dim in (0, 1)]
    assert output.contrastive_accuracy.item() == pytest.approx(sum(found) / 2)


def test_negatives_masked_in_the_batch_reach_the_loss():
    torch.manual_seed(0)
    model = GURForPreTraining(gur_config()).eval()
    batch = gur_batch()
    mask = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 1]]).bool()
    output = model(**batch, negatives_mask=mask)
    sides = output.sentence_embedding[0::2], output.sentence_embedding[1::2]
    torch.testing.assert_close(output.contrastive_loss, contrastive_loss(*sides, 0.1, mask))
    assert output.contrastive_loss < model(**batch).contrastive_loss


def test_a_weight_of_0_leaves_a_loss_out_with_what_only_it_needs():
    torch.manual_seed(0)
    model = GURForPreTraining(gur_config()).train()
    whole, batch = model(**gur_batch()), gur_batch()

    model.config.lm_loss_weight = 0.0
    model.decoder.forward = model.lm_head.forward = None  # whoever calls them fails
    output = model(**batch)
    assert output.lm_loss is None and output.lm_accuracy is None
    assert torch.equal(output.loss, whole.contrastive_loss)
    assert model.loss_weights == {"contrastive_loss": 1.0}

    del model.decoder.forward, model.lm_head.forward
    model.config.lm_loss_weight, model.config.contrastive_loss_weight = 2.0, 0.0
    model.projection.forward = None
    odd = {name: value[:5] for name, value in batch.items()}
    output = model(**odd)
    assert output.contrastive_loss is None and output.sentence_embedding is None
    assert torch.equal(output.loss, 2.0 * output.lm_loss) and model.loss_weights == {"lm_loss": 2.0}
    with pytest.raises(ValueError, match="`contrastive_loss_weight` is 0, so the model needs `labels`"):
        model(odd["input_ids"], odd["attention_mask"])


def test_without_labels_only_the_contrastive_loss_is_left():
    model = GURForPreTraining(gur_config()).eval()
    batch = gur_batch()
    output = model(batch["input_ids"], batch["attention_mask"])
    assert output.lm_loss is None and torch.equal(output.loss, output.contrastive_loss)
    assert output.encoder_last_hidden_state.shape == (6, 12, 32)


def test_an_odd_number_of_rows_is_an_error_in_a_sentence():
    batch = {name: value[:5] for name, value in gur_batch().items()}
    with pytest.raises(ValueError, match="Rows 2k and 2k \\+ 1 are a pair, but there are 5 rows"):
        GURForPreTraining(gur_config())(**batch)


def test_item_counts_are_what_the_losses_are_means_of():
    torch.manual_seed(0)
    model = GURForPreTraining(gur_config()).eval()
    batch = gur_batch()
    counts = model.loss_item_counts(batch)
    assert {name: int(count) for name, count in counts.items()} == {"lm_loss": 6 * 6 - 3 * 2, "contrastive_loss": 3}
    assert counts.keys() == model.loss_weights.keys()
    assert model.loss_item_counts({"input_ids": batch["input_ids"]}).keys() == {"contrastive_loss"}
    # Micro-batches, each weighed by its labels, make the mean of the whole.
    halves = [{name: value[rows] for name, value in batch.items()} for rows in (slice(0, 2), slice(2, 6))]
    total = sum(model(**half, num_items_in_batch=counts["lm_loss"]).lm_loss for half in halves)
    torch.testing.assert_close(total, model(**batch).lm_loss)


def test_a_learned_temperature_starts_where_it_is_told_and_stays_in_its_bounds():
    torch.manual_seed(0)
    model = GURForPreTraining(gur_config(learnable_temperature=True, contrastive_temperature=0.05))
    fixed = GURForPreTraining(gur_config(contrastive_temperature=0.05))
    fixed.load_state_dict(model.state_dict(), strict=False)
    batch = gur_batch()
    loss = model(**batch).contrastive_loss
    torch.testing.assert_close(loss, fixed(**batch).contrastive_loss)
    loss.backward()
    assert model.logit_scale.grad.abs() > 0
    with torch.no_grad():
        model.logit_scale.fill_(50.0)
    model.zero_grad()
    model(**batch).contrastive_loss.backward()
    assert model.temperature.item() == pytest.approx(0.01) and model.logit_scale.grad.abs() > 0


# --- Training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_stays_near_fp32(dtype):
    torch.manual_seed(0)
    model = GURForPreTraining(gur_config(feed_forward_proj="gated-gelu"))
    with torch.autocast("cpu", dtype=dtype):
        output = model(**gur_batch())
    output.loss.backward()
    assert output.loss.dtype == output.sentence_embedding.dtype == torch.float32
    assert output.loss.item() == pytest.approx(model(**gur_batch()).loss.item(), rel=3e-2)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_give_vectors_of_length_1(dtype, tmp_path):
    torch.manual_seed(0)
    model = GURModel(gur_config(pooling="mean")).eval()
    model.save_pretrained(tmp_path)
    half = GURModel.from_pretrained(tmp_path, dtype=dtype).eval()
    batch = gur_batch()
    vectors = half(batch["input_ids"], batch["attention_mask"]).pooler_output
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(6))
    exact = model(batch["input_ids"], batch["attention_mask"]).pooler_output
    assert (vectors * exact).sum(1).min() > 0.99


@pytest.mark.parametrize("backbone_type", ["t5", "umt5"])
def test_activation_checkpointing_changes_no_gradient(backbone_type):
    torch.manual_seed(0)
    model = GURForPreTraining(gur_config(backbone_type=backbone_type)).train()
    model(**gur_batch()).loss.backward()
    plain = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    calls = []
    hook = model.encoder.block[1].layer[0].register_forward_hook(lambda *_: calls.append(1))
    model(**gur_batch()).loss.backward()
    hook.remove()
    assert len(calls) == 2  # computed again in the backward pass
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, plain[name], atol=1e-6, rtol=1e-4)


def test_training_brings_pairs_together_and_fills_the_spans():
    torch.manual_seed(0)
    model = GURForPreTraining(gur_config()).train()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    batch, losses = gur_batch(), []
    for _ in range(30):
        output = model(**batch)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(output.loss.item())
    assert losses[-1] < 0.2 * losses[0] and output.contrastive_accuracy == 1.0 and output.lm_accuracy > 0.8


def test_no_tensor_of_tokens_times_vocabulary_is_made():
    model = GURForPreTraining(gur_config(vocab_size=20_000))
    batch = gur_batch(lengths=(64,) * 20)
    sizes = []

    def note(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(**batch).loss.backward()
    assert max(sizes) == 20_000 * 32  # the embeddings; logits would be 100 labels x 20,000


@pytest.mark.parametrize(
    "num_labels, labels, problem",
    [
        (3, torch.tensor([0, 1, 2, 0, 1, 2]), None),
        (3, torch.tensor([[1.0, 0.0, 1.0]] * 6), None),
        (1, torch.arange(6.0), None),
        (3, torch.arange(18.0).view(6, 3), "regression"),
        (3, torch.tensor([[1, 0, 1]] * 6), "multi_label_classification"),
        (3, torch.tensor([[0], [1], [2], [0], [1], [2]]), "single_label_classification"),
    ],
)
def test_classification_has_the_loss_of_its_problem(num_labels, labels, problem):
    torch.manual_seed(0)
    model = GURForSequenceClassification(gur_config(num_labels=num_labels, problem_type=problem)).eval()
    batch = gur_batch()
    output = model(batch["input_ids"], batch["attention_mask"], labels)
    assert output.logits.shape == (6, num_labels)
    functional, logits = torch.nn.functional, output.logits
    if problem == "regression" or num_labels == 1:
        expected = functional.mse_loss(logits.view(labels.shape), labels)
    elif labels.shape == (6, 3):
        expected = functional.binary_cross_entropy_with_logits(logits, labels.float())
    else:
        expected = functional.cross_entropy(logits, labels.view(-1))
    torch.testing.assert_close(output.loss, expected)
    assert model(batch["input_ids"], return_dict=False)[0].shape == (6, num_labels)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_cuda_gives_the_losses_of_the_cpu(dtype):
    torch.manual_seed(0)
    model = GURForPreTraining(gur_config(pooling="weighted_mean", learnable_temperature=True)).eval()
    batch = gur_batch()
    expected = model(**batch).loss.item()
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
        loss = model.cuda()(**{name: value.cuda() for name, value in batch.items()}).loss.item()
    assert loss == pytest.approx(expected, rel=3e-2 if dtype else 1e-4)
