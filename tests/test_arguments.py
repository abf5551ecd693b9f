from dataclasses import fields
from inspect import signature
from types import SimpleNamespace

import pytest

from retrieval_pretraining.arguments import (
    DataArguments,
    ModelArguments,
    PretrainingArguments,
    TextArguments,
    parse_arguments,
)
from retrieval_pretraining.corpus import iterate_documents, load_documents
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.readers import READING_CHOICES


@pytest.mark.parametrize("sources", [{}, {"train_file": ["a.txt"], "dataset_name": "b"}])
def test_text_comes_from_exactly_one_source(sources):
    with pytest.raises(InputError, match=r"either --train_file .* or --dataset_name"):
        TextArguments(**sources).check()
    with pytest.raises(InputError, match=r"either --train_file .* or --dataset_name"):
        DataArguments(**sources).check(max_steps=1, init_weights="random")


@pytest.mark.parametrize("name", READING_CHOICES)
def test_reading_options_are_checked_from_python_and_from_the_command_line(name):
    for choice in READING_CHOICES[name]:
        (text,) = parse_arguments([TextArguments], ["--train_file", "a.txt", f"--{name}", choice])
        text.check()
        assert text.reading_options()[name] == choice
    with pytest.raises(InputError, match=f"--{name} is one of .*, not maybe"):
        TextArguments(train_file=["a.txt"], **{name: "maybe"}).check()
    with pytest.raises(InputError, match=f"--{name}.*invalid choice: 'maybe'"):
        parse_arguments([TextArguments], [f"--{name}", "maybe"])


def test_tokens_are_counted_as_the_command_line_says(tmp_path):
    """The library takes a truth value there, whatever its own documentation says."""
    words = ["--output_dir", str(tmp_path), "--include_num_input_tokens_seen"]
    (counted,) = parse_arguments([PretrainingArguments], [*words, "non_padding"])
    assert counted.include_num_input_tokens_seen == "non_padding"
    assert parse_arguments([PretrainingArguments], words[:2])[0].include_num_input_tokens_seen == "no"
    with pytest.raises(InputError, match=r"include_num_input_tokens_seen.*invalid choice: 'some'"):
        parse_arguments([PretrainingArguments], [*words, "some"])


def test_the_fields_of_the_text_come_first_in_the_data_arguments():
    text = [entry.name for entry in fields(TextArguments)]
    assert text[0] == "train_file" and [entry.name for entry in fields(DataArguments)][: len(text)] == text


def test_reading_options_are_parameters_of_the_readers_with_the_same_defaults():
    options = TextArguments().reading_options()
    for reader in (load_documents, iterate_documents):
        defaults = {name: parameter.default for name, parameter in signature(reader).parameters.items()}
        assert {name: defaults[name] for name in options} == options


@pytest.mark.parametrize("name", [entry.name for entry in fields(TextArguments)])
def test_pretraining_reads_its_text_as_the_arguments_say(name, monkeypatch):
    from retrieval_pretraining import objectives

    data = DataArguments(validation_file=["v.txt"], **{name: "mark"})
    run = objectives.Run(
        ModelArguments(),
        data,
        SimpleNamespace(trains=True, seed=0, process_index=0, disable_tqdm=True),
        say=lambda message: None,
    )
    for objective, loader in (("retromae", "load_documents"), ("gur", "load_pairs")):
        calls = []
        answer = ([], "") if objective == "retromae" else []
        fake = lambda source=None, *others, **options: (calls.append(source or options), answer)[1]  # noqa: B023, E731
        monkeypatch.setattr(objectives, loader, fake)
        objectives.OBJECTIVES[objective](run).load_text()
        assert "mark" in calls[0].values()
        assert ("mark" in calls[1].values()) == (name in data.reading_options())
