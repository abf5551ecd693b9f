"""Sentence similarity: files in, correlations out, and never NaN."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.similarity_evaluation import SimilarityData, load_similarity_data, similarity_scores

ROWS = [("a cat", "the cat, asleep", 4.5), ("猫", "狗", 1.0), ("rain", "", 0.0)]
ANGLES = {"east": 0.0, "near": 0.3, "far": 1.0, "north": math.pi / 2}


def on_a_circle(texts):
    return np.array([[math.cos(ANGLES[text]), math.sin(ANGLES[text])] for text in texts], dtype=np.float32)


def write(path, names):
    rows = [dict(zip(names, row, strict=True)) for row in ROWS]
    kind = path.name.split(".")[1]
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        comma = "," if kind == "csv" else "\t"
        lines = [names, *([f'"{first}"', f'"{second}"', str(score)] for first, second, score in ROWS)]
        path.write_text("".join(comma.join(line) + "\n" for line in lines), encoding="utf-8")
    return path


# --- Files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
@pytest.mark.parametrize("names", [("sentence1", "sentence2", "score"), ("text", "text_pair", "score")])
def test_every_format_gives_the_same_pairs(tmp_path, caplog, kind, names):
    data = load_similarity_data(write(tmp_path / f"pairs.{kind}", names))
    assert data == SimilarityData("pairs", ["a cat", "猫", "rain"], ["the cat, asleep", "狗", ""], [4.5, 1.0, 0.0])
    assert "1 of 3 pairs have an empty sentence" in caplog.text


def test_a_file_called_test_has_the_name_of_its_folder(tmp_path):
    (tmp_path / "stsb").mkdir()
    data = load_similarity_data(write(tmp_path / "stsb" / "test.tsv", ("sentence1", "sentence2", "score")))
    assert data.name == "stsb"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sentence1,sentence2\na,b\n", "no column 'score'; columns present: sentence1, sentence2; give the columns"),
        ("first,second,score\na,b,1\n", "no column 'sentence1'; columns present: first, second, score"),
        ("text,sentence2,score\na,b,1\n", "no column 'text_pair'"),
        ("sentence1,sentence2,score\na,b,1\nc,d,much\n", "line 3: the score 'much'"),
        ("sentence1,sentence2,score\na,b,1\nc,d,nan\n", "line 3: the score 'nan'"),
        ("sentence1,sentence2,score\na,b,1\nc,d,\n", "line 3: the score ''"),
        ("sentence1,sentence2,score\na,b,1\nc\n", "line 3: a sentence is null"),
        ("sentence1,sentence2,score\na,b,1\n", "1 pairs; give 2 or more"),
        ("sentence1,sentence2,score\n", "0 pairs"),
        ("sentence1,sentence2,score\na,b,2\nc,d,2.0\n", "all scores are 2, so there is no order"),
    ],
)
def test_what_cannot_be_used_is_an_error_with_its_place(tmp_path, text, said):
    (tmp_path / "pairs.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=rf"pairs\.csv.*{said}"):
        load_similarity_data(tmp_path / "pairs.csv")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"sentence1": 7, "sentence2": "b", "score": 1}, "line 2: a sentence is a number"),
        ({"sentence1": "a", "sentence2": None, "score": 1}, "line 2: a sentence is null"),
        ({"sentence1": "a", "sentence2": "b", "score": True}, "line 2: the score True"),
        ({"sentence1": "a", "sentence2": "b", "score": [1]}, "line 2: the score"),
    ],
)
def test_values_of_another_kind_are_an_error_with_their_line(tmp_path, row, said):
    first = {"sentence1": "a", "sentence2": "b", "score": 2}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(first) + "\n" + json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=said):
        load_similarity_data(tmp_path / "pairs.jsonl")


def test_files_that_are_missing_or_have_no_columns_are_an_error(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        load_similarity_data(tmp_path / "none.csv")
    (tmp_path / "pairs.txt").write_text("a b 1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"pairs\.txt: text without columns"):
        load_similarity_data(tmp_path / "pairs.txt")


# --- Correlations ----------------------------------------------------------------------------------------------------


def test_correlations_equal_values_worked_out_by_hand():
    data = SimilarityData("toy", ["east"] * 4, ["east", "near", "far", "north"], [5.0, 3.0, 4.0, 1.0])
    # ranks of the cosines 4 3 2 1, of the scores 4 2 3 1: 1 - 6 (0 + 1 + 1 + 0) / (4 (16 - 1))
    cosines, scores = [1.0, math.cos(0.3), math.cos(1.0), 0.0], data.scores
    x, y = [c - sum(cosines) / 4 for c in cosines], [s - sum(scores) / 4 for s in scores]
    pearson = sum(a * b for a, b in zip(x, y, strict=True)) / math.sqrt(sum(a * a for a in x) * sum(b * b for b in y))
    assert similarity_scores(on_a_circle, data) == pytest.approx({"spearman": 0.8, "pearson": pearson}, abs=1e-6)


def test_ties_in_the_scores_share_their_rank():
    data = SimilarityData("toy", ["east"] * 3, ["near", "far", "north"], [2.0, 1.0, 1.0])
    # ranks 3 2 1 and 3 1.5 1.5: covariance 1.5, variances 2 and 1.5
    assert similarity_scores(on_a_circle, data)["spearman"] == pytest.approx(1.5 / math.sqrt(2 * 1.5))


def test_the_length_of_vectors_does_not_matter():
    data = SimilarityData("toy", ["east"] * 3, ["near", "far", "north"], [3.0, 1.0, 2.0])
    long = similarity_scores(lambda texts: on_a_circle(texts) * np.arange(1, len(texts) + 1)[:, None], data)
    assert long == pytest.approx(similarity_scores(on_a_circle, data), abs=1e-6)


def test_each_text_is_encoded_once():
    calls = []

    def encode(texts):
        calls.append(list(texts))
        return on_a_circle(texts)

    similarity_scores(encode, SimilarityData("toy", ["east", "far"], ["near", "east"], [1.0, 0.0]))
    assert calls == [["east", "far", "near"]]


def test_a_collapsed_encoder_scores_0_with_a_warning(caplog):
    data = SimilarityData("toy", ["a", "b", "c"], ["d", "e", "f"], [1.0, 2.0, 3.0])
    noise = np.random.default_rng(0).uniform(0, 1e-8, size=(6, 4))
    for added in (0.0, noise):
        assert similarity_scores(lambda texts, x=added: np.ones((6, 4)) + x, data) == {"spearman": 0.0, "pearson": 0.0}
    assert caplog.text.count("the vectors say nothing") == 2


def test_vectors_that_are_not_finite_are_an_error():
    data = SimilarityData("toy", ["a", "b"], ["c", "d"], [1.0, 2.0])
    with pytest.raises(InputError, match="diverged"):
        similarity_scores(lambda texts: np.full((4, 2), np.nan), data)
    with pytest.raises(InputError, match=r"shape \(3, 2\)"):
        similarity_scores(lambda texts: np.ones((3, 2)), data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (SimilarityData("toy", [], [], []), "toy: 0 pairs"),
        (SimilarityData("toy", ["a", "b"], ["c"], [1.0, 2.0]), "2 and 1 and 2 sentences"),
        (SimilarityData("toy", ["a", "b"], ["c", "d"], [1.0, math.nan]), "no finite numbers"),
        (SimilarityData("toy", ["a", "b"], ["c", "d"], [1.0, 1.0]), "there is no order"),
        (SimilarityData("toy", ["a", "b"], ["c", None], [1.0, 2.0]), "is of type NoneType"),
    ],
)
def test_data_that_have_no_correlation_are_an_error(data, said):
    with pytest.raises(InputError, match=said):
        similarity_scores(lambda texts: np.ones((len(texts), 2)), data)
