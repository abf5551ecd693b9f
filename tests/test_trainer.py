"""The trainer: the same numbers however a batch is divided, resumed or evaluated, and every loss by its name."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from fresh_process import run_script
from safetensors.torch import load_file
from tokenizers_for_tests import SENTENCES, bert_tokenizer
from toy_models import retromae_config
from transformers import TrainerCallback, TrainingArguments

from modeling_retromae import RetroMAEForMaskedLM, RetroMAEForPreTraining
from retrieval_pretraining.arguments import PretrainingArguments
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.length_batches import length_grouped_order
from retrieval_pretraining.retrieval_data import RetrievalData
from retrieval_pretraining.run_folder import last_complete_checkpoint
from retrieval_pretraining.trainer import NonFiniteLossError, PretrainingTrainer

TESTS = Path(__file__).parent
GOLDEN_CURVE = TESTS / "golden" / "loss_curve_10_steps.txt"
PARTS = ("encoder_mlm_loss", "decoder_mlm_loss", "bag_of_words_loss")


def toy_model(model_class=RetroMAEForPreTraining, *, dropout: float = 0.0, **changes):
    torch.manual_seed(0)
    config = retromae_config(**changes)
    config.vocab_size = len(bert_tokenizer())
    config.encoder_config.hidden_dropout_prob = dropout
    return model_class(config)


def toy_text(count: int = 48) -> Dataset:
    rows = [SENTENCES[i % len(SENTENCES)] for i in range(count)]
    return Dataset.from_dict({"id": list(range(count)), "text": rows, "extra": [["x"]] * count})


def toy_trainer(
    folder, model=None, *, eval_text=None, retrieval_data=None, text=None, **arguments
) -> PretrainingTrainer:
    settings = {
        "output_dir": str(folder),
        "max_steps": 6,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        **arguments,
    }
    return PretrainingTrainer(
        toy_model() if model is None else model,
        TrainingArguments(**settings),
        train_dataset=toy_text() if text is None else text,
        eval_dataset=eval_text,
        processing_class=bert_tokenizer(),
        max_seq_length=32,
        retrieval_data=retrieval_data,
    )


def history(trainer, name: str = "loss") -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def test_default_arguments_train_on_raw_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = PretrainingTrainer(
        toy_model(),
        TrainingArguments("out", max_steps=2, use_cpu=True),
        train_dataset=toy_text(),
        processing_class=bert_tokenizer(),
    )
    assert trainer.train().global_step == 2
    assert torch.isfinite(torch.tensor(trainer.state.log_history[-1]["train_loss"]))


def test_rows_and_later_evaluation_text_may_be_raw(tmp_path):
    trainer = toy_trainer(tmp_path, text=[{"text": SENTENCES[0]}, {"text": SENTENCES[1]}], max_steps=1)
    trainer.train()
    assert trainer.evaluate(toy_text(5))["eval_loss"] > 0
    with pytest.raises(InputError, match="eval_dataset"):
        trainer.evaluate()


def test_without_a_tokenizer_the_trainer_says_so(tmp_path):
    with pytest.raises(InputError, match="processing_class"):
        PretrainingTrainer(toy_model(), TrainingArguments(str(tmp_path), use_cpu=True), train_dataset=toy_text())


def test_a_long_text_becomes_several_passages(tmp_path):
    text = Dataset.from_dict({"text": [" ".join(SENTENCES), "A short one."]})
    trainer = toy_trainer(tmp_path, text=text)
    assert len(trainer.train_dataset) > 2
    assert max(len(row["input_ids"]) for row in trainer.train_dataset) == 32


@pytest.mark.parametrize(
    "model_class, order", [(RetroMAEForPreTraining, "random"), (RetroMAEForMaskedLM, "group_by_length")]
)
def test_two_micro_batches_of_four_equal_one_batch_of_eight(tmp_path, model_class, order):
    curves, weights = [], []
    for size, steps in ((8, 1), (4, 2), (2, 4)):
        changes = {"bow_loss_weight": 0.1} if model_class is RetroMAEForPreTraining else {}
        trainer = toy_trainer(
            tmp_path,
            toy_model(model_class, **changes),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            optim="sgd",
            train_sampling_strategy=order,
        )
        trainer.train()
        curves.append(history(trainer))
        weights.append(torch.cat([parameter.flatten() for parameter in trainer.model.parameters()]))
    assert curves[1] == pytest.approx(curves[0], abs=1e-5)
    assert curves[2] == pytest.approx(curves[0], abs=1e-5)
    torch.testing.assert_close(weights[0], weights[1], atol=1e-6, rtol=0)
    torch.testing.assert_close(weights[0], weights[2], atol=1e-6, rtol=0)


def test_named_losses_sum_to_the_logged_loss(tmp_path):
    trainer = toy_trainer(
        tmp_path,
        toy_model(bow_loss_weight=0.3),
        max_steps=10,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=3,
        logging_steps=2,
    )
    outcome = trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(entries) == 5
    for entry in entries:
        assert entry["loss"] == pytest.approx(
            entry["encoder_mlm_loss"] + entry["decoder_mlm_loss"] + 0.3 * entry["bag_of_words_loss"], abs=1e-4
        )
        assert 0.0 <= entry["encoder_mlm_accuracy"] <= 1.0 and 0.0 <= entry["decoder_mlm_accuracy"] <= 1.0
        assert "grad_norm" in entry
    for name in (*PARTS, "encoder_mlm_accuracy"):
        mean = sum(history(trainer, name)) / len(entries)
        assert outcome.metrics[f"train_{name}"] == pytest.approx(mean, abs=1e-6)


def test_training_lowers_every_named_loss(tmp_path):
    trainer = toy_trainer(tmp_path, toy_model(bow_loss_weight=0.1), max_steps=60, logging_steps=10)
    trainer.train()
    for name in PARTS:
        assert history(trainer, name)[-1] < 0.9 * history(trainer, name)[0], name


def test_ten_steps_give_the_golden_loss_curve(tmp_path):
    trainer = toy_trainer(tmp_path, toy_model(bow_loss_weight=0.1, decoder_prediction_rate=0.5), max_steps=10)
    trainer.train()
    names = ("loss", *PARTS)
    lines = [
        " ".join(f"{entry[name]:.4f}" for name in names) for entry in trainer.state.log_history if "loss" in entry
    ]
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN_CURVE.write_text("# " + " ".join(names) + "\n" + "\n".join(lines) + "\n")
    golden = GOLDEN_CURVE.read_text().splitlines()
    assert golden[0] == "# " + " ".join(names) and len(golden) == 11
    for line, expected in zip(lines, golden[1:]):
        assert [float(x) for x in line.split()] == pytest.approx([float(x) for x in expected.split()], abs=2e-3)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_six_steps_equal_three_and_three_more_bit_for_bit(tmp_path, dropout):
    saving = {"save_strategy": "steps", "save_steps": 3, "max_steps": 9}
    whole = toy_trainer(tmp_path / "whole", toy_model(dropout=dropout), **saving)
    whole.train()
    half = toy_trainer(tmp_path / "half", toy_model(dropout=dropout), **saving)
    # 48 texts in batches of 8 are 6 steps an epoch: this one stops in the middle of the first.
    half.add_callback(_StopAt(3))
    half.train()
    rest = toy_trainer(tmp_path / "half", toy_model(dropout=dropout), **saving)
    rest.train(resume_from_checkpoint=str(tmp_path / "half" / "checkpoint-3"))
    assert history(whole)[3:] == history(rest)[3:] and len(history(rest)) == 9
    first = load_file(tmp_path / "whole/checkpoint-9/model.safetensors")
    second = load_file(tmp_path / "half/checkpoint-9/model.safetensors")
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("order", ["random", "group_by_length"])
def test_a_run_resumed_in_any_epoch_equals_one_that_was_not_stopped(tmp_path, order):
    # 28 texts in steps of 2 x 4 are 4 steps an epoch, of which the last has one micro-batch.
    settings = {"text": toy_text(28), "max_steps": 9, "save_strategy": "steps", "save_steps": 2}
    settings |= {"train_sampling_strategy": order, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    whole = toy_trainer(tmp_path, toy_model(dropout=0.1), **settings)
    whole.train()
    for step in (4, 6):
        rest = toy_trainer(tmp_path / f"from {step}", toy_model(dropout=0.1), **{**settings, "save_strategy": "no"})
        rest.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert history(whole) == history(rest) and len(history(rest)) == 9
        for name, value in whole.model.state_dict().items():
            assert torch.equal(value, rest.model.state_dict()[name]), name


def test_a_step_has_the_batch_of_its_epoch_and_of_like_lengths(tmp_path):
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 12}
    trainer = toy_trainer(tmp_path, train_sampling_strategy="group_by_length", **settings)
    seen, compute_loss = [], trainer.compute_loss

    def watching(model, inputs, **more):
        seen.append(inputs["attention_mask"].sum(dim=1).tolist())
        return compute_loss(model, inputs, **more)

    trainer.compute_loss = watching
    trainer.train()
    lengths = np.array([len(row["input_ids"]) for row in trainer.train_dataset])
    expected = [lengths[length_grouped_order(lengths, 8, seed=42, epoch=epoch)].reshape(-1, 2) for epoch in (0, 1)]
    assert seen == np.concatenate(expected).tolist()


def test_like_lengths_are_the_default_where_the_arguments_leave_it_open(tmp_path):
    for given, used in ((None, "group_by_length"), ("random", "random"), ("sequential", "sequential")):
        arguments = PretrainingArguments(str(tmp_path), use_cpu=True, train_sampling_strategy=given)
        trainer = PretrainingTrainer(toy_model(), arguments, None, toy_text(), processing_class=bert_tokenizer())
        assert trainer.args.train_sampling_strategy == used


def test_two_evaluations_agree_whatever_the_batch_size_and_the_epoch(tmp_path):
    trainer = toy_trainer(tmp_path, toy_model(bow_loss_weight=0.1), eval_text=toy_text(10))
    first = trainer.evaluate()
    trainer.data_collator.set_epoch(5)
    trainer.args.per_device_eval_batch_size = 3
    second = trainer.evaluate()
    names = [f"eval_{name}" for name in ("loss", *PARTS, "encoder_mlm_accuracy", "decoder_mlm_accuracy")]
    for name in names:
        assert first[name] == pytest.approx(second[name], abs=1e-5), name
    assert first["eval_loss"] == pytest.approx(
        first["eval_encoder_mlm_loss"] + first["eval_decoder_mlm_loss"] + 0.1 * first["eval_bag_of_words_loss"]
    )
    assert "eval_bag_of_words_accuracy" not in first


def test_retrieval_is_measured_at_each_evaluation_and_chooses_the_best_checkpoint(tmp_path):
    data = RetrievalData(
        name="toy",
        corpus_ids=[str(i) for i in range(20)],
        corpus_texts=SENTENCES[:20],
        query_ids=["q1", "q2"],
        query_texts=[SENTENCES[3], SENTENCES[4]],
        qrels={"q1": {"3": 1}, "q2": {"4": 1}},
    )
    trainer = toy_trainer(
        tmp_path,
        eval_text=toy_text(10),
        retrieval_data=data,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_retrieval_ndcg@10",
        greater_is_better=True,
    )
    trainer.train()
    scores = history(trainer, "eval_retrieval_ndcg@10")
    assert len(scores) == 3 and scores[0] == 1.0  # each query is a document of its own
    assert trainer.state.best_metric == 1.0


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(tmp_path):
    model = toy_model()
    trainer = toy_trainer(tmp_path, model, save_strategy="steps", save_steps=2)
    trainer.add_callback(_BreakAt(4, model))
    with pytest.raises(NonFiniteLossError, match=r"not finite at step 5; the last good checkpoint is .*checkpoint-4"):
        trainer.train()
    weights = load_file(tmp_path / "checkpoint-2/model.safetensors")
    assert all(torch.isfinite(value).all() for value in weights.values())


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    model = toy_model()
    trainer = toy_trainer(tmp_path, model, save_strategy="steps", save_steps=1)
    trainer.add_callback(_BreakAt(3, model, after_the_loss=True))
    with pytest.raises(NonFiniteLossError, match=r"at step 4; the last good checkpoint is .*checkpoint-3"):
        trainer.train()
    for step in (1, 2, 3):
        weights = load_file(tmp_path / f"checkpoint-{step}/model.safetensors")
        assert all(torch.isfinite(value).all() for value in weights.values())
    assert not (tmp_path / "checkpoint-4").exists()


def test_a_checkpoint_is_complete_and_holds_no_pickled_arguments(tmp_path):
    trainer = toy_trainer(tmp_path, save_strategy="steps", save_steps=3, max_steps=3)
    trainer.train()
    files = {path.name for path in (tmp_path / "checkpoint-3").iterdir()}
    wanted = {"model.safetensors", "config.json", "tokenizer.json", "modules.json", "1_Pooling", "training_args.json"}
    wanted |= {"modeling_retromae.py", "configuration_retromae.py", "linear_cross_entropy.py", "trainer_state.json"}
    assert wanted <= files and "training_args.bin" not in files
    state = load_file(tmp_path / "checkpoint-3/model.safetensors")
    assert any(name.startswith("decoder.layer.") for name in state) and "mlm_head.dense.weight" in state


def test_a_push_keeps_our_model_card(tmp_path):
    trainer = toy_trainer(tmp_path)
    (tmp_path / "README.md").write_text("ours")
    trainer.create_model_card(model_name="x")
    assert (tmp_path / "README.md").read_text() == "ours"


def test_a_checkpoint_that_was_cut_short_is_passed_over(tmp_path):
    for step in (5, 10, 15):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model.safetensors").touch()
        if step < 15:
            (folder / "trainer_state.json").touch()
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
    assert last_complete_checkpoint(tmp_path / "none") is None


def test_continuing_from_the_full_checkpoint_starts_where_the_decoder_was(tmp_path):
    trainer = toy_trainer(tmp_path, max_steps=150, logging_steps=5)
    trainer.train()
    trainer.save_model(tmp_path / "full")
    trainer.model.export_encoder(tmp_path / "encoder")
    last = history(trainer, "decoder_mlm_loss")[-1]
    full = RetroMAEForPreTraining.from_backbone(tmp_path / "full")
    bare = RetroMAEForPreTraining.from_backbone(tmp_path / "encoder")
    assert full.loading_report.endswith("decoder loaded") and bare.loading_report.endswith("decoder initialised")
    first_losses = []
    for model in (full, bare):
        again = toy_trainer(tmp_path / "again", model, max_steps=1, learning_rate=0.0, per_device_train_batch_size=48)
        again.train()
        first_losses.append(history(again, "decoder_mlm_loss")[0])
    assert first_losses[0] == pytest.approx(last, rel=0.05)
    assert first_losses[1] > first_losses[0] + 0.01


def test_each_pass_over_the_text_has_masks_of_its_own(tmp_path):
    trainer = toy_trainer(tmp_path, text=toy_text(16), max_steps=6)
    epochs, set_epoch = [], trainer.data_collator.set_epoch
    trainer.data_collator.set_epoch = lambda epoch: (epochs.append(epoch), set_epoch(epoch))
    trainer.train()
    assert epochs == [0, 1, 2]


@pytest.mark.parametrize("workers, order", [(0, "random"), (2, "group_by_length")])
def test_several_processes_and_workers_give_the_losses_of_one(tmp_path, workers, order):
    # Six steps are an epoch: the order of the second is another one.
    options = {"eval_text": toy_text(7), "optim": "sgd", "train_sampling_strategy": order, "max_steps": 8}
    one = toy_trainer(tmp_path / "one", toy_model(bow_loss_weight=0.1), **options)
    one.train()
    metrics = one.evaluate()
    script = tmp_path / "run.py"
    script.write_text(
        f"""
import json, os, sys
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
from test_trainer import *
trainer = toy_trainer(
    {str(tmp_path / "two")!r}, toy_model(bow_loss_weight=0.1), eval_text=toy_text(7), optim="sgd",
    per_device_train_batch_size=4, ddp_backend="gloo", dataloader_num_workers={workers}, save_strategy="steps",
    save_steps=8, max_steps=8, train_sampling_strategy={order!r},
)
assert trainer.accelerator.num_processes == 2
trainer.train()
metrics = trainer.evaluate()
if trainer.is_world_process_zero():
    print("RESULT", json.dumps([trainer.state.log_history, metrics]), flush=True)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
    )
    result = run_script([script], tmp_path, processes=2)
    assert result.status == 0, result.err[-3000:]
    log, theirs = json.loads(next(line for line in result.out.splitlines() if line.startswith("RESULT"))[7:])
    for name in ("loss", *PARTS, "encoder_mlm_accuracy"):
        assert [entry[name] for entry in log if name in entry] == pytest.approx(history(one, name), abs=1e-4), name
    for name in ("eval_loss", "eval_bag_of_words_loss", "eval_decoder_mlm_accuracy"):
        assert theirs[name] == pytest.approx(metrics[name], abs=1e-4), name
    weights = load_file(tmp_path / "two/checkpoint-8/model.safetensors")
    for name, value in one.model.state_dict().items():
        if name in weights:
            torch.testing.assert_close(weights[name], value, atol=1e-5, rtol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", [{}, {"bf16": True}, {"fp16": True}])
def test_training_runs_on_cuda(tmp_path, precision):
    trainer = toy_trainer(tmp_path, use_cpu=False, max_steps=60, logging_steps=10, **precision)
    trainer.train()
    assert history(trainer)[-1] < history(trainer)[0]


class _StopAt(TrainerCallback):
    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


class _BreakAt(TrainerCallback):
    def __init__(self, step: int, model, after_the_loss: bool = False):
        self.step, self.model, self.after_the_loss = step, model, after_the_loss

    def on_step_begin(self, args, state, control, **kwargs):
        self._break(state, not self.after_the_loss)

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self._break(state, self.after_the_loss)

    def _break(self, state, now: bool):
        if now and state.global_step == self.step:
            self.model.mlm_head.dense.weight.data[0, 0] = float("nan")
