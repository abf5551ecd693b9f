"""What the evaluations take: encoders as functions, and rows of files."""

import json

import numpy as np
import pytest

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.evaluation_inputs import dataset_name, encode_checked, read_rows, split_file


def test_an_encoder_gets_a_list_and_gives_one_finite_vector_a_text():
    vectors = encode_checked(lambda texts: np.full((len(texts.copy()), 2), 0.5), ("a", "b"))  # no copy of a tuple
    assert vectors.shape == (2, 2)
    with pytest.raises(InputError, match=r"vectors of 2 labels have the shape \(3, 2\); give one vector a text"):
        encode_checked(lambda texts: np.ones((3, 2)), ["a", "b"], "labels")
    with pytest.raises(InputError, match="Some vectors of labels are not finite"):
        encode_checked(lambda texts: np.array([[1.0], [np.inf]]), ["a", "b"], "labels")


@pytest.mark.parametrize(("texts", "said"), [([], "no texts"), ("ab", "one string"), (["a", 7], r"texts\[1\]")])
def test_what_is_no_list_of_strings_is_not_encoded(texts, said):
    with pytest.raises(InputError, match=said):
        encode_checked(lambda texts: pytest.fail("encoded"), texts)


def test_rows_come_with_their_place_and_lacking_values_are_none(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2, "b": "x"}\n', encoding="utf-8")
    assert read_rows(path, ["a", "b", "c"], needs="a", optional=["c"]) == [
        (f"{path}, line 1", [1, None, None]),
        (f"{path}, line 3", [2, "x", None]),
    ]


def test_a_column_that_no_row_has_is_named_with_those_there_are(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({f"c{i}": i for i in range(30)}) + "\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"no column 'a'; columns present: c0, c1, .*c19, \.\.\.; give the column a\.$"
    ):
        read_rows(path, ["a"], needs="the column a")


def test_a_split_is_the_one_file_of_that_name(tmp_path):
    for name in ("test.txt", "test.md", "testing.csv", "train.csv"):
        (tmp_path / name).touch()
    assert split_file(tmp_path, "test") is None
    (tmp_path / "test.jsonl.gz").touch()
    assert split_file(tmp_path, "test") == tmp_path / "test.jsonl.gz"
    (tmp_path / "test.csv").touch()
    with pytest.raises(InputError, match=r"test\.csv and test\.jsonl\.gz are the same split"):
        split_file(tmp_path, "test")


def test_a_dataset_of_one_file_has_its_name_or_that_of_its_folder(tmp_path, monkeypatch):
    assert dataset_name(tmp_path / "stsb" / "test.csv.gz") == "stsb"
    assert dataset_name(tmp_path / "stsb" / "sick.tsv") == "sick"
    monkeypatch.chdir(tmp_path)
    assert dataset_name(type(tmp_path)("dev.csv")) == tmp_path.name
