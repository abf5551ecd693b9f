"""The trainer of GUR: the same losses and weights however pairs lie on processes and in mini-batches."""

from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from fresh_process import run_script
from safetensors.torch import load_file
from tokenizers_for_tests import SENTENCES, t5_tokenizer
from toy_models import gur_config
from transformers import TrainerCallback, TrainingArguments

from modeling_gur import GURForConditionalGeneration, GURForPreTraining, GURModel
from retrieval_pretraining.collators import PairCollator
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.gur_trainer import GURTrainer, refuse_fp16
from retrieval_pretraining.length_batches import length_grouped_order, random_order
from retrieval_pretraining.losses import allowed_negatives, contrastive_loss_over_processes
from retrieval_pretraining.retrieval_data import RetrievalData
from retrieval_pretraining.retrieval_evaluation import encode_texts, evaluate_retrieval

TESTS = Path(__file__).parent
LOGGED = ("loss", "lm_loss", "contrastive_loss", "lm_accuracy", "contrastive_accuracy", "excluded_negatives")


def toy_model(*, dropout: float = 0.0, **changes) -> GURForPreTraining:
    torch.manual_seed(0)
    return GURForPreTraining(gur_config(vocab_size=len(t5_tokenizer()), dropout_rate=dropout, **changes))


def toy_pairs(count: int = 48) -> Dataset:
    """Tokenised pairs: every third shares a text with the one before it, two in five are of a known document."""
    tokenizer, columns = t5_tokenizer(), {"document_key": []}
    for number in range(count):
        sides = (SENTENCES[(number - (number % 3 == 2)) % 60], SENTENCES[(7 * number + 30) % 60])
        for name, text in zip(("", "_pair"), sides):
            encoding = tokenizer(text)
            words = [-1 if word is None else word for word in encoding.word_ids()]
            columns.setdefault(f"input_ids{name}", []).append(encoding["input_ids"])
            columns.setdefault(f"word_ids{name}", []).append(words)
        columns["document_key"].append(number // 10 if number % 5 < 2 else -1)
    return Dataset.from_dict(columns)


def toy_trainer(
    folder, model=None, *, pairs=None, eval_pairs=None, mini_batch=None, retrieval_data=None, **arguments
) -> GURTrainer:
    settings = {
        "output_dir": str(folder),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.1,
        "optim": "sgd",
        "logging_steps": 1,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        **arguments,
    }
    return GURTrainer(
        toy_model() if model is None else model,
        TrainingArguments(**settings),
        train_dataset=toy_pairs() if pairs is None else pairs,
        eval_dataset=eval_pairs,
        processing_class=t5_tokenizer(),
        max_seq_length=32,
        retrieval_data=retrieval_data,
        contrastive_mini_batch_size=mini_batch,
    )


def history(trainer, name: str = "loss") -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def trained(folder, model=None, **arguments):
    """The log and all weights after training."""
    trainer = toy_trainer(folder, model, **arguments)
    trainer.train()
    weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    return {name: history(trainer, name) for name in LOGGED}, weights


def assert_same_training(first, second, atol: float = 1e-5):
    for name in LOGGED:
        assert first[0][name] == pytest.approx(second[0][name], abs=atol), name
    torch.testing.assert_close(first[1], second[1], atol=atol, rtol=0)


def test_every_loss_and_the_excluded_negatives_are_logged(tmp_path):
    trainer = toy_trainer(
        tmp_path,
        toy_model(contrastive_loss_weight=0.5, contrastive_temperature=0.2),
        **{"max_steps": 6, "gradient_accumulation_steps": 2, "logging_steps": 2},
        train_sampling_strategy="sequential",
    )
    outcome = trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(entries) == 3
    for entry in entries:
        assert entry["loss"] == pytest.approx(entry["lm_loss"] + 0.5 * entry["contrastive_loss"], abs=1e-4)
        assert 0.0 <= entry["contrastive_accuracy"] <= 1.0 and 0.0 <= entry["lm_accuracy"] <= 1.0
    rows = list(trainer.train_dataset)
    batches = [trainer.data_collator(rows[begin : begin + 8]) for begin in range(0, 48, 8)]
    counts = [int(allowed_negatives(batch["text_keys"], batch["document_keys"])[1]) for batch in batches]
    assert min(counts) > 0
    steps = [sum(counts[begin : begin + 2]) for begin in (0, 2, 4)] * 2
    assert history(trainer, "excluded_negatives") == [sum(steps[begin : begin + 2]) / 2 for begin in (0, 2, 4)]
    assert outcome.metrics["train_excluded_negatives"] == pytest.approx(sum(steps) / 6)


def test_training_lowers_both_losses(tmp_path):
    arguments = {"max_steps": 40, "logging_steps": 10, "optim": "adamw_torch", "learning_rate": 1e-2}
    log, _ = trained(tmp_path, **arguments)
    for name in ("lm_loss", "contrastive_loss"):
        assert log[name][-1] < 0.9 * log[name][0], name


def test_raw_pairs_are_tokenised(tmp_path):
    rows = [{"text": SENTENCES[i], "text_pair": SENTENCES[i + 1]} for i in range(10)]
    trainer = toy_trainer(tmp_path, pairs=rows, eval_pairs=rows[:3])
    trainer.train()
    assert len(history(trainer, "contrastive_loss")) == 2 and trainer.evaluate()["eval_lm_loss"] > 0
    with pytest.raises(InputError, match="no columns `text` and `text_pair`"):
        toy_trainer(tmp_path, pairs=[{"text": "one"}])


def test_a_text_is_cut_at_512_tokens_unless_the_tokenizer_takes_fewer(tmp_path):
    trainer = GURTrainer(toy_model(), TrainingArguments(str(tmp_path), use_cpu=True), processing_class=t5_tokenizer())
    assert trainer.max_seq_length == 512


# --- Mini-batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mini_batch, changes, arguments",
    [
        (3, {}, {}),
        (1, {"learnable_temperature": True, "contrastive_loss_weight": 0.7}, {}),
        (100, {"pooling": "weighted_mean"}, {}),
        (5, {"lm_loss_weight": 0.0, "learnable_temperature": True}, {}),
        (3, {"learnable_temperature": True, "lm_loss_weight": 0.3}, {"gradient_accumulation_steps": 3}),
    ],
)
def test_mini_batches_train_as_the_whole_batch_does(tmp_path, mini_batch, changes, arguments):
    whole = trained(tmp_path, toy_model(**changes), **arguments)
    parts = trained(tmp_path, toy_model(**changes), mini_batch=mini_batch, **arguments)
    assert_same_training(parts, whole)


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])])
@pytest.mark.parametrize("lm_loss_weight", [0.0, 1.0])
def test_mini_batches_with_dropout_have_the_gradients_of_one_graph_with_the_same_dropout(
    tmp_path, lm_loss_weight, device
):
    generators = torch.cuda if device == "cuda" else torch

    def prepared():
        model = toy_model(dropout=0.3, lm_loss_weight=lm_loss_weight, learnable_temperature=True)
        trainer = toy_trainer(tmp_path, model, mini_batch=3, use_cpu=device == "cpu")
        batch = trainer.data_collator([trainer.train_dataset[index] for index in range(8)])
        return trainer, {name: values.to(device) for name, values in batch.items()}

    def gradient(model):
        parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
        return torch.cat([parameter.grad.flatten() for parameter in parameters])

    trainer, batch = prepared()
    totals = trainer._get_num_items_in_batch([batch], device)
    torch.manual_seed(7)
    loss = trainer.training_step(trainer.model, batch, totals)

    other, batch = prepared()
    other.model.train()
    keys = {name: batch.pop(name) for name in ("text_keys", "document_keys")}
    columns = {name: values.split(6) for name, values in batch.items()}
    parts = [dict(zip(columns, part)) for part in zip(*columns.values())]
    torch.manual_seed(7)
    states = []
    for part in parts:
        states.append(generators.get_rng_state())
        other.model(part["input_ids"], part["attention_mask"])
    vectors, expected = [], 0.0
    for part, state in zip(parts, states):
        generators.set_rng_state(state)
        output = other.model(**part)
        vectors.append(output.sentence_embedding)
        if lm_loss_weight:
            expected = expected + output.lm_loss * (part["labels"] != -100).sum() / totals["lm_loss"]
    expected = expected + contrastive_loss_over_processes(torch.cat(vectors), other.model.temperature, **keys)[0]
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    torch.testing.assert_close(gradient(trainer.model), gradient(other.model), atol=1e-5, rtol=0)


def test_encoder_and_head_draw_random_numbers_before_the_decoder():
    """What mini-batches stand on: the vectors are the same with the decoder and without."""
    model = toy_model(dropout=0.3).train()
    batch = PairCollator(t5_tokenizer())(list(toy_pairs(4)))
    inputs = (batch["input_ids"], batch["attention_mask"])
    vectors = []
    for forward in (
        lambda: model(*inputs, batch["labels"]).sentence_embedding,
        lambda: model(*inputs).sentence_embedding,
        lambda: model.base_model(*inputs).pooler_output,
    ):
        torch.manual_seed(1)
        vectors.append(forward())
    assert torch.equal(vectors[0], vectors[1]) and torch.equal(vectors[0], vectors[2])
    assert not torch.equal(vectors[0], model(*inputs).sentence_embedding)


@pytest.mark.parametrize("mini_batch, order", [(None, "random"), (3, "group_by_length")])
def test_six_steps_equal_three_and_three_more_bit_for_bit(tmp_path, mini_batch, order):
    saving = {"train_sampling_strategy": order}
    saving |= {
        "save_strategy": "steps",
        "save_steps": 3,
        "max_steps": 6,
        "optim": "adamw_torch",
        "learning_rate": 1e-2,
    }
    saving["mini_batch"] = mini_batch
    whole = toy_trainer(tmp_path / "whole", toy_model(dropout=0.1), **saving)
    whole.train()
    half = toy_trainer(tmp_path / "half", toy_model(dropout=0.1), **saving)
    half.add_callback(_StopAt(3))
    half.train()
    rest = toy_trainer(tmp_path / "half", toy_model(dropout=0.1), **saving)
    rest.train(resume_from_checkpoint=str(tmp_path / "half" / "checkpoint-3"))
    for name in LOGGED:
        assert history(whole, name) == history(rest, name) and len(history(rest, name)) == 6
    first = load_file(tmp_path / "whole/checkpoint-6/model.safetensors")
    second = load_file(tmp_path / "half/checkpoint-6/model.safetensors")
    assert all(torch.equal(first[name], second[name]) for name in first)


# --- Several processes -----------------------------------------------------------------------------------------------

# Model changes, mini-batch and number of pairs. 13 are a batch of 8 and one of 5, on two processes 4 + 4 and 4 + 1.
RUNS = [
    ({}, None, 16),
    ({"learnable_temperature": True, "contrastive_loss_weight": 0.5}, None, 13),
    ({"learnable_temperature": True, "pooling": "weighted_mean"}, 2, 13),
    ({"lm_loss_weight": 0.0, "learnable_temperature": True}, 3, 13),
    ({"contrastive_loss_weight": 0.0}, None, 13),
]


def run_of(folder, number: int, **arguments):
    changes, mini_batch, pairs = RUNS[number]
    accelerator_config = {"even_batches": False}
    return trained(
        folder,
        toy_model(**changes),
        mini_batch=mini_batch,
        pairs=toy_pairs(pairs),
        accelerator_config=accelerator_config,
        **arguments,
    )


def test_two_processes_train_as_one_does(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        f"""
import sys
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
from test_gur_trainer import *
results = []
for number in range(len(RUNS)):
    results.append(run_of({str(tmp_path)!r}, number, per_device_train_batch_size=4, ddp_backend="gloo"))
accumulated = dict(mini_batch=2, per_device_train_batch_size=2, gradient_accumulation_steps=2, ddp_backend="gloo")
results.append(trained({str(tmp_path)!r}, **accumulated))
trainer = toy_trainer({str(tmp_path)!r}, eval_pairs=toy_pairs(9), per_device_eval_batch_size=9, ddp_backend="gloo")
assert trainer.accelerator.num_processes == 2
results.append(trainer.evaluate())
if trainer.is_world_process_zero():
    torch.save(results, {str(tmp_path / "results.pt")!r})
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
    )
    result = run_script([script], tmp_path, processes=2)
    assert result.status == 0, result.err[-3000:]
    *runs, accumulated, metrics = torch.load(tmp_path / "results.pt", weights_only=False)
    assert len(runs) == len(RUNS)
    for number, theirs in enumerate(runs):
        assert_same_training(theirs, run_of(tmp_path, number))
    ours = trained(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=2, mini_batch=None)
    assert_same_training(accumulated, ours)

    # Each process evaluates on its own share: LM losses agree, contrastive ones have the negatives of the share.
    one = toy_trainer(tmp_path, eval_pairs=toy_pairs(9), per_device_eval_batch_size=9)
    assert metrics["eval_lm_loss"] == pytest.approx(one.evaluate()["eval_lm_loss"], abs=1e-5)
    shares = [one.evaluate(toy_pairs(9).select(range(first, 9, 2)))["eval_contrastive_loss"] for first in (0, 1)]
    assert metrics["eval_contrastive_loss"] == pytest.approx((5 * shares[0] + 4 * shares[1]) / 9, abs=1e-5)


# --- Evaluation and what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [{}, {"bf16": True}])
def test_evaluation_with_keys_and_retrieval_by_sentence_vectors(tmp_path, precision):
    data = RetrievalData(
        name="toy",
        corpus_ids=[str(number) for number in range(20)],
        corpus_texts=SENTENCES[:20],
        query_ids=["q1", "q2"],
        query_texts=[SENTENCES[3], SENTENCES[5]],
        qrels={"q1": {"4": 1}, "q2": {"7": 1}},
    )
    trainer = toy_trainer(tmp_path, eval_pairs=toy_pairs(11), retrieval_data=data, **precision)
    trainer.train()
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] == pytest.approx(metrics["eval_lm_loss"] + metrics["eval_contrastive_loss"])
    trainer.save_model(tmp_path / "saved")
    model = GURModel.from_pretrained(tmp_path / "saved")
    options = {"pooling": "pooler_output", "max_seq_length": 32, "progress": False}
    expected = evaluate_retrieval(model, t5_tokenizer(), data, **options)
    assert {name: metrics[f"eval_retrieval_{name}"] for name in expected} == pytest.approx(expected)
    again = trainer.evaluate()
    assert again["eval_contrastive_loss"] == metrics["eval_contrastive_loss"]


def test_a_checkpoint_is_complete_and_loads_in_sentence_transformers(tmp_path):
    trainer = toy_trainer(tmp_path, save_strategy="steps", save_steps=2)
    trainer.train()
    folder = tmp_path / "checkpoint-2"
    files = {path.name for path in folder.iterdir()}
    wanted = {"model.safetensors", "config.json", "tokenizer.json", "modules.json", "training_args.json"}
    wanted |= {"modeling_gur.py", "configuration_gur.py", "linear_cross_entropy.py", "trainer_state.json"}
    assert wanted <= files and not {"training_args.bin", "1_Pooling"} & files
    sentence_transformers = pytest.importorskip("sentence_transformers")
    if int(sentence_transformers.__version__.split(".")[0]) < 6:
        pytest.skip("sentence-transformers takes the output of a head from version 6 on")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
    assert model.max_seq_length == 32
    options = {"pooling": "pooler_output", "max_seq_length": 32}
    ours = encode_texts(trainer.model, t5_tokenizer(), SENTENCES[:4], **options)
    assert abs(model.encode(SENTENCES[:4]) - ours).max() < 1e-5


def test_a_checkpoint_writes_text_with_the_states_of_what_it_has_written(tmp_path):
    trainer = toy_trainer(tmp_path)
    assert not trainer.args.use_cache  # the library's default, which it puts into the configuration
    trainer.save_model(str(tmp_path / "saved"))
    model = GURForConditionalGeneration.from_pretrained(tmp_path / "saved")
    assert model.generation_config.use_cache


def test_both_weights_at_0_are_refused(tmp_path):
    model = toy_model()
    model.config.lm_loss_weight = model.config.contrastive_loss_weight = 0.0
    with pytest.raises(InputError, match="both 0: one must be above 0"):
        toy_trainer(tmp_path, model)


def test_pairs_come_in_random_order_unless_asked_otherwise(tmp_path):
    orders = {}
    for given, used in ((None, "random"), ("random", "random"), ("group_by_length", "group_by_length")):
        trainer = toy_trainer(tmp_path / str(given), train_sampling_strategy=given)
        assert trainer.args.train_sampling_strategy == used
        orders[given] = list(trainer._get_train_sampler())
    longer = np.array([max(len(row["input_ids"]), len(row["input_ids_pair"])) for row in trainer.train_dataset])
    assert orders[None] == orders["random"] == random_order(48, seed=42, epoch=0).tolist()
    assert orders["group_by_length"] == length_grouped_order(longer, 8, seed=42, epoch=0).tolist()


def test_fp16_is_refused_with_the_advice_to_use_bf16(tmp_path):
    arguments = TrainingArguments(str(tmp_path), use_cpu=True)
    refuse_fp16(arguments, toy_model())
    with pytest.raises(InputError, match="--bf16 True"):
        refuse_fp16(arguments, toy_model().half())
    arguments.fp16 = True
    with pytest.raises(InputError, match="fp16, in which T5 overflows: use --bf16 True"):
        GURTrainer(toy_model(), arguments, processing_class=t5_tokenizer())


def test_a_mini_batch_size_that_cannot_be_is_refused_and_one_without_effect_is_named(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="`contrastive_mini_batch_size` is 1 or more, not 0"):
        toy_trainer(tmp_path, mini_batch=0)
    warnings = []
    monkeypatch.setattr("retrieval_pretraining.gur_trainer.logger.warning", warnings.append)
    trainer = toy_trainer(tmp_path, toy_model(contrastive_loss_weight=0.0), mini_batch=2)
    trainer.train()
    assert "no effect" in warnings[0] and len(history(trainer, "lm_loss")) == 2
    assert not history(trainer, "contrastive_loss") and not history(trainer, "excluded_negatives")


class _StopAt(TrainerCallback):
    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step
