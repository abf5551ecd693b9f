"""Other text mixed in by share: as much as was asked for, each example as often as any other."""

import numpy as np
import pytest
from datasets import Dataset
from tokenizers_for_tests import SENTENCES

import run_pretrain
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.mixing import check_shares, mix, mixture

TINY_BERT = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=48"


@pytest.mark.parametrize(("sizes", "shares"), [([700, 5000], [0.3]), ([100, 90, 4000], [0.2, 0.3]), ([50, 7], [0.9])])
def test_the_shares_are_those_that_were_asked_for(sizes, shares):
    rows = mixture(sizes, shares, seed=0)
    assert rows[0].tolist() == list(range(sizes[0]))
    total = sum(map(len, rows))
    for own, share in zip(rows[1:], shares, strict=True):
        assert len(own) / total == pytest.approx(share, abs=1 / sizes[0])


def test_a_small_corpus_comes_again_evenly():
    counts = np.bincount(mixture([90, 7], [0.5], seed=3)[1], minlength=7)
    assert counts.sum() == 90 and set(counts.tolist()) == {12, 13}


def test_a_large_corpus_gives_different_examples_by_seed_only():
    one, same, other = (mixture([10, 1000], [0.5], seed=seed)[1].tolist() for seed in (1, 1, 2))
    assert one == same != other and len(set(one)) == 10


def test_a_single_example_still_gets_another_one():
    assert [len(own) for own in mixture([1, 3], [0.1], seed=0)] == [1, 1]


def test_rows_stay_whole():
    one, other = (Dataset.from_dict({"input_ids": [[i, sign] for i in range(4)]}) for sign in (1, 2))
    mixed = mix([one, other], [0.5], seed=0)["input_ids"]
    assert sorted(mixed[:]) == sorted([[i, sign] for i in range(4) for sign in (1, 2)])


@pytest.mark.parametrize(
    ("shares", "corpora", "message"),
    [([0.1], 2, "1 values for 2"), ([0.0], 1, "above 0"), ([1.0], 1, "below 1"), ([0.6, 0.5], 2, "adds up to 1.1")],
)
def test_shares_that_leave_nothing_are_refused(shares, corpora, message):
    with pytest.raises(InputError, match=message):
        check_shares(shares, corpora)


# --- The front door --------------------------------------------------------------------------------------------------


def test_a_run_mixes_in_other_text_by_share(tmp_path, capsys):
    own, other = tmp_path / "own.txt", tmp_path / "other.txt"
    own.write_text("\n".join(SENTENCES[:14]), encoding="utf-8")
    other.write_text("\n".join(SENTENCES[14:34]), encoding="utf-8")
    command = f"--config_name bert --config_overrides {TINY_BERT} --tokenizer_vocab_size 600 --train_file {own} "
    command += f"--mix_file {other} --max_steps 2 --per_device_train_batch_size 4 --save_strategy no "
    command += f"--use_cpu --output_dir {tmp_path / 'out'}"
    assert run_pretrain.main(command.split()) == 0
    assert f"an epoch: 20 passages, 70% training text + 30% {other}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--mix_share 0.2", "--mix_share has no effect without --mix_file"),
        ("--mix_file {own} --mix_share 1.5", "below 1"),
        ("--mix_file {own} --mix_share 0.1 0.1", "2 values for 1"),
        ("--mix_file nowhere.txt", "nowhere.txt"),
        ("--mix_file {own} --streaming True", "leave out --streaming"),
    ],
)
def test_a_mistake_in_mixing_is_one_sentence(flags, message, tmp_path, capsys):
    own = tmp_path / "own.txt"
    own.write_text("\n".join(SENTENCES[:14]), encoding="utf-8")
    command = f"--config_name bert --config_overrides {TINY_BERT} --tokenizer_vocab_size 600 --train_file {own} "
    command += f"--max_steps 2 --use_cpu --output_dir {tmp_path / 'out'} {flags.format(own=own)}"
    assert run_pretrain.main(command.split()) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert message in line
