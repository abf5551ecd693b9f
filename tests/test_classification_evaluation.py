"""Classification with frozen vectors: files in, the nearest label, a regression on a few texts a class."""

import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval_pretraining import classification_evaluation
from retrieval_pretraining.classification_evaluation import (
    ClassificationData,
    few_shot_classification,
    load_classification_data,
    zero_shot_classification,
)
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.zero_shot import label_texts, nearest_labels

TRAIN = [
    {"text": "where is my card", "label": "card"},
    {"text": "我的卡", "label": "card"},
    {"text": "a loan, please", "label": "loan"},
]
TEST = [{"text": "card?", "label": "card"}, {"text": "money", "label": "loan"}]
NAMES = {"card": "a bank card", "loan": "a loan"}


def write(path, rows):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        comma = "," if path.suffix == ".csv" else "\t"
        lines = [list(rows[0]), *([f'"{value}"' for value in row.values()] for row in rows)]
        path.write_text("".join(comma.join(line) + "\n" for line in lines), encoding="utf-8")


def folder(path, *, train=TRAIN, test=TEST, names=NAMES, kind="jsonl"):
    if train is not None:
        write(path / f"train.{kind}", train)
    if test is not None:
        write(path / f"test.{kind}", test)
    if names is not None:
        (path / "labels.json").write_text(json.dumps(names), encoding="utf-8")
    return path


# --- Files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_every_format_gives_the_same_data(tmp_path, caplog, kind):
    assert load_classification_data(folder(tmp_path, kind=kind)) == ClassificationData(
        tmp_path.name,
        ["where is my card", "我的卡", "a loan, please"],
        ["card", "card", "loan"],
        ["card?", "money"],
        ["card", "loan"],
        NAMES,
    )
    assert not caplog.records


def test_numbers_are_labels_and_a_list_names_them(tmp_path):
    rows = [{"text": "a", "label": 0}, {"text": "b", "label": 1}]
    data = load_classification_data(folder(tmp_path, train=rows, test=rows, names=["first", "second", "third"]))
    assert data.train_labels == ["0", "1"] and data.label_names == {"0": "first", "1": "second", "2": "third"}


def test_without_names_labels_are_their_own(tmp_path, caplog):
    data = load_classification_data(folder(tmp_path, names=None))
    assert data.label_names == {"card": "card", "loan": "loan"} and not caplog.records


def test_labels_that_labels_json_lacks_are_counted(tmp_path, caplog):
    data = load_classification_data(folder(tmp_path, names={"card": "a bank card"}))
    assert data.label_names == {"card": "a bank card", "loan": "loan"}
    assert 'lacks 1 labels, such as "loan"' in caplog.text


def test_one_file_is_test_texts_without_training_texts(tmp_path):
    data = load_classification_data(folder(tmp_path) / "test.jsonl")
    assert (data.name, data.train_texts, data.test_labels) == (tmp_path.name, [], ["card", "loan"])
    assert data.label_names == NAMES
    write(tmp_path / "other.csv", TEST)
    assert load_classification_data(tmp_path / "other.csv").name == "other"


def test_another_split_is_tested_on(tmp_path):
    write(tmp_path / "dev.csv", TRAIN)
    data = load_classification_data(folder(tmp_path), split="dev")
    assert data.test_texts == data.train_texts
    with pytest.raises(InputError, match='split is "train"'):
        load_classification_data(tmp_path, split="train")


def test_test_texts_of_labels_that_are_not_trained_are_counted(tmp_path, caplog):
    test = [*TEST, {"text": "x", "label": "new"}, {"text": "y", "label": "new"}, {"text": "z", "label": "other"}]
    load_classification_data(folder(tmp_path, test=test, names=None))
    assert "3 of 5 test texts have one of 2 labels that no training text has" in caplog.text


def test_empty_texts_stay_and_are_counted(tmp_path, caplog):
    data = load_classification_data(folder(tmp_path, test=[*TEST, {"text": " \u3000", "label": "card"}]))
    assert len(data.test_texts) == 3
    assert "test.jsonl: 1 of 3 texts are empty" in caplog.text


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": None, "label": "card"}, r"train\.jsonl, line 4: the text is null"),
        ({"text": ["a"], "label": "card"}, "line 4: the text is a list"),
        ({"text": "a"}, "line 4: the label is null"),
        ({"text": "a", "label": " "}, "line 4: the label is empty"),
        ({"text": "a", "label": 1.5}, "line 4: the label is a number"),
        ({"text": "a", "label": True}, "line 4: the label is a boolean"),
    ],
)
def test_values_of_another_kind_are_an_error_with_their_line(tmp_path, row, said):
    with pytest.raises(InputError, match=said):
        load_classification_data(folder(tmp_path, train=[*TRAIN, row]))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"test": None}, r"there is no test\.jsonl"),
        ({"test": [{"sentence": "a", "label": "b"}]}, "no column 'text'; columns present: sentence, label; give the"),
        ({"test": [{"text": "a", "class": "b"}]}, "no column 'label'; columns present: text, class"),
        ({"train": []}, r"train\.jsonl: there are no rows"),
        ({"train": TRAIN[:1], "test": TEST[:1], "names": None}, "one class only"),
        ({"names": {"card": "a", "loan": "a "}}, '"card" and "loan" have the same name'),
        ({"names": {"card": "a", "loan": " "}}, 'name of the label "loan" is empty'),
        ({"names": {"card": 1}}, r"labels\.json: needs"),
        ({"names": "card"}, r"labels\.json: needs"),
    ],
)
def test_what_cannot_be_used_is_an_error_that_names_the_file(tmp_path, changed, said):
    with pytest.raises(InputError, match=said):
        load_classification_data(folder(tmp_path, **changed))


def test_two_files_of_one_split_and_a_missing_one_are_an_error(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        load_classification_data(tmp_path / "none.jsonl")
    write(folder(tmp_path) / "train.csv", TRAIN)
    with pytest.raises(InputError, match=r"train\.csv and train\.jsonl are the same split"):
        load_classification_data(tmp_path)
    (tmp_path / "train.csv").unlink()
    (tmp_path / "labels.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"labels\.json: is not valid JSON"):
        load_classification_data(tmp_path)


# --- The nearest label -----------------------------------------------------------------------------------------------

VECTORS = {
    "up": [0.0, 1.0],
    "right": [1.0, 0.0],
    "left": [-1.0, 0.0],
    "upright": [0.6, 0.8],
    "about up": [0.8, 0.6],
    "about right": [1.0, 0.0],
    "about left": [-0.6, 0.8],
}


def encode(texts):
    return np.array([VECTORS[text] for text in texts], dtype=np.float32)


def toy(test_texts, test_labels, names=None):
    names = names or {"U": "up", "R": "right", "L": "left"}
    return ClassificationData("toy", [], [], test_texts, test_labels, names)


def test_the_nearest_name_gives_the_label_and_the_scores_are_those_by_hand():
    # found: U U R L; F1 of U 2 * 1 / (1 + 2), of R 2 * 1 / (2 + 1), of L 1
    data = toy(["up", "upright", "right", "left"], ["U", "R", "R", "L"])
    found = zero_shot_classification(encode, data)
    assert found == pytest.approx({"zero_shot_accuracy": 0.75, "zero_shot_macro_f1": (2 / 3 + 2 / 3 + 1) / 3})


def test_which_texts_were_right_is_told_on_request():
    data = toy(["up", "upright", "right", "left"], ["U", "R", "R", "L"])
    assert zero_shot_classification(encode, data, per_text=True)["right"] == [1.0, 0.0, 1.0, 1.0]
    data, vectors = clusters()
    found = few_shot_classification(vectors, data, shots=[2, "all"], seeds=4, per_text=True)
    for metric in ("accuracy@2", "accuracy"):
        right = found[metric].pop("right")
        assert len(right) == len(data.test_texts) and np.mean(right) == pytest.approx(found[metric]["mean"])
        assert set(right) <= ({0.0, 0.25, 0.5, 0.75, 1.0} if metric == "accuracy@2" else {0.0, 1.0})
    assert found == few_shot_classification(vectors, data, shots=[2, "all"], seeds=4)


def test_a_label_that_is_neither_given_nor_found_is_not_in_macro_f1():
    assert zero_shot_classification(encode, toy(["up"], ["U"]))["zero_shot_macro_f1"] == 1.0
    # R is found and not given: (0 + 0) / 2
    assert zero_shot_classification(encode, toy(["right"], ["U"]))["zero_shot_macro_f1"] == 0.0


def test_templates_are_averaged():
    # "about {}" makes "upright" a text about up; alone, so does "{}"; the average of "right" is right
    data = toy(["about up"], ["U"])
    assert zero_shot_classification(encode, data, template="{}")["zero_shot_accuracy"] == 0.0
    assert zero_shot_classification(encode, data, template="about {}")["zero_shot_accuracy"] == 1.0
    # means (0.8, 1.6) / 1.789, (1, 0) and (-1.6, 0.8) / 1.789: cosines 0.894, 0.8 and -0.447
    assert zero_shot_classification(encode, data, template=["{}", "about {}"])["zero_shot_accuracy"] == 1.0


def test_vectors_that_are_there_are_not_made_again():
    calls = []

    def counting(texts):
        calls.append(list(texts))
        return encode(texts)

    data = toy(["up", "left"], ["U", "L"])
    assert zero_shot_classification(counting, data, test_vectors=encode(["up", "left"]))["zero_shot_accuracy"] == 1.0
    assert calls == [["left", "right", "up"]]


def test_a_constant_encoder_gives_all_texts_the_first_name():
    data = toy(["a", "b", "c"], ["U", "R", "L"])
    constant = zero_shot_classification(lambda texts: np.full((len(texts), 4), 0.5, dtype=np.float32), data)
    assert constant["zero_shot_accuracy"] == pytest.approx(1 / 3)
    data.test_labels = ["L", "L", "L"]  # "left"
    constant = zero_shot_classification(lambda texts: np.full((len(texts), 4), 0.5, dtype=np.float32), data)
    assert constant["zero_shot_accuracy"] == 1.0


def test_names_that_are_numbers_give_a_warning(caplog):
    zero_shot_classification(lambda texts: np.eye(2)[: len(texts)], toy(["a"], ["0"], {"0": "0", "1": "1"}))
    assert "the labels are numbers" in caplog.text


def test_nearest_labels_equals_a_loop_whatever_the_order_of_the_names():
    generator = np.random.default_rng(0)
    names = ["delta", "alpha", "echo", "bravo"]
    texts, labels = generator.normal(size=(20, 5)), generator.normal(size=(2, 4, 5))
    expected = []
    for text in texts:
        means = {name: labels[0][i] + labels[1][i] for i, name in enumerate(names)}
        expected.append(max(means, key=lambda name: text @ means[name] / np.linalg.norm(means[name])))
    found, cosines = nearest_labels(texts, labels.reshape(8, 5), names)
    assert found == expected and cosines.shape == (20, 4)
    order = [2, 0, 3, 1]
    other, moved = nearest_labels(texts, labels[:, order].reshape(8, 5), [names[i] for i in order])
    assert other == expected
    np.testing.assert_allclose(moved, cosines[:, order], atol=1e-12)


def test_labels_tie_within_a_millionth_and_the_first_name_wins():
    labels = np.array([[1.0, 0.0], [1.0, 0.0], [0.999, np.sqrt(1 - 0.999**2)]])
    labels[0] = [np.cos(1e-3), np.sin(1e-3)]  # a cosine of 1 - 5e-7
    for names in (["b", "a", "0"], ["a", "b", "0"]):
        assert nearest_labels(np.array([[1.0, 0.0]]), labels, names)[0] == ["a"]


def test_label_texts_are_the_names_in_one_template_after_the_other():
    assert label_texts(["a", "{}"], ["{}!", "on {}"]) == ["a!", "{}!", "on a", "on {}"]


# --- A few texts a class ---------------------------------------------------------------------------------------------


def clusters(*, sizes=(40, 40, 40), size=6, noise=0.6, seed=0, offset=0.0, tests=30):
    """Unit vectors around a centre for each class; with an `offset` they all lie in a narrow cone."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(len(sizes), size))

    def draw(counts):
        labels = np.repeat(np.arange(len(sizes)), counts)
        vectors = centres[labels] + noise * generator.normal(size=(len(labels), size)) + offset
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels

    (train, train_labels), (test, test_labels) = draw(list(sizes)), draw([tests] * len(sizes))
    texts = [[f"{name} {i}" for i in range(len(rows))] for name, rows in (("train", train), ("test", test))]
    names = {f"c{i}": f"class {i}" for i in range(len(sizes))}
    labels = [[f"c{i}" for i in rows] for rows in (train_labels, test_labels)]
    return ClassificationData("toy", texts[0], labels[0], texts[1], labels[1], names), (train, test)


def test_the_mean_and_deviation_are_those_of_the_draws():
    data, vectors = clusters()
    found = few_shot_classification(vectors, data, shots=[2, 20], seeds=4)
    assert list(found) == ["accuracy@2", "macro_f1@2", "accuracy@20", "macro_f1@20"]
    for one in found.values():
        assert len(one["values"]) == 4 and one["short_classes"] == 0
        mean = sum(one["values"]) / 4
        assert one["mean"] == pytest.approx(mean)
        assert one["std"] == pytest.approx((sum((value - mean) ** 2 for value in one["values"]) / 3) ** 0.5)
    assert 0.5 < found["accuracy@2"]["mean"] < found["accuracy@20"]["mean"] < 1
    assert len(set(found["accuracy@2"]["values"])) > 1
    assert json.loads(json.dumps(found)) == found


def test_draws_are_balanced_nested_and_made_by_the_seed(monkeypatch):
    data, (train, test) = clusters(sizes=(8, 20, 12))
    order = np.random.default_rng(1).permutation(40)
    data.train_labels = [data.train_labels[i] for i in order]
    label_of = {tuple(train[i]): label for i, label in zip(order, data.train_labels, strict=True)}

    def drawn(shots, seed):
        sets = []

        def predict(vectors, numbers, tests):
            rows = [tuple(row.astype(np.float32)) for row in vectors]
            assert [label_of[row] for row in rows] == [f"c{number}" for number in numbers]
            assert len(set(rows)) == len(rows)
            sets.append(set(rows))
            return np.zeros(len(tests), dtype=np.int64)

        monkeypatch.setattr(classification_evaluation, "_predict", predict)
        few_shot_classification((train[order], test), data, shots=shots, seeds=2, seed=seed)
        return sets

    three, other_three, five, other_five = drawn([3, 5], 7)
    for rows, count in ((three, 3), (other_three, 3), (five, 5), (other_five, 5)):
        assert sorted(label_of[row] for row in rows) == ["c0"] * count + ["c1"] * count + ["c2"] * count
    assert three < five and other_three < other_five and three != other_three
    assert drawn([5, 3], 7) == [five, other_five, three, other_three]
    assert three not in drawn([3], 8)


def test_there_is_one_draw_where_all_would_be_the_same():
    data, vectors = clusters(sizes=(8, 7, 8))
    found = few_shot_classification(vectors, data, shots=[7, 8, 100, "all"], seeds=2)
    assert [len(found[key]["values"]) for key in ("accuracy@7", "accuracy@8", "accuracy@100", "accuracy")] == [
        2,
        1,
        1,
        1,
    ]
    assert found["accuracy@8"]["values"] == found["accuracy@100"]["values"] == found["accuracy"]["values"]
    assert [found[key]["short_classes"] for key in ("accuracy@7", "accuracy@8", "accuracy@100")] == [0, 1, 3]


def test_all_learns_from_the_whole_training_set_once():
    from sklearn.linear_model import LogisticRegression

    data, (train, test) = clusters(sizes=(30, 10, 5))
    found = few_shot_classification((train, test), data, shots=["all"], seeds=5)
    assert list(found) == ["accuracy", "macro_f1"]
    wide, narrow = train.astype(np.float64), test.astype(np.float64)
    spread = np.mean([((row - wide.mean(axis=0)) ** 2).sum() for row in wide]) ** 0.5
    model = LogisticRegression(C=30.0 / spread**2, tol=1e-8, max_iter=5000).fit(
        wide - wide.mean(axis=0), data.train_labels
    )
    predicted = model.predict(narrow - wide.mean(axis=0))
    accuracy = sum(a == b for a, b in zip(predicted, data.test_labels, strict=True)) / len(predicted)
    assert found["accuracy"] == {"mean": pytest.approx(accuracy), "std": 0.0, "values": [accuracy], "short_classes": 0}
    from sklearn.metrics import f1_score

    assert found["macro_f1"]["mean"] == pytest.approx(f1_score(data.test_labels, predicted, average="macro"))


def test_a_class_with_fewer_texts_gives_all_and_is_counted(caplog):
    data, vectors = clusters(sizes=(3, 40, 4))
    found = few_shot_classification(vectors, data, shots=[4, 10], seeds=2)
    assert (found["accuracy@4"]["short_classes"], found["accuracy@10"]["short_classes"]) == (1, 2)
    assert "2 of 3 classes have fewer than 10 texts" in caplog.text


def test_each_text_is_encoded_once():
    data, (train, test) = clusters()
    vectors = dict(zip([*data.train_texts, *data.test_texts], [*train, *test], strict=True))
    calls = []

    def encode(texts):
        calls.append(list(texts))
        return np.array([vectors[text] for text in texts])

    found = few_shot_classification(encode, data, shots=[3, "all"], seeds=2)
    assert calls == [data.train_texts, data.test_texts]
    assert found == few_shot_classification((train, test), data, shots=[3, "all"], seeds=2)


def test_a_narrow_cone_of_vectors_is_no_disadvantage():
    # Classes of different sizes: a penalty that holds the regression at its start leaves it with the largest one.
    data, sides = clusters(sizes=(60, 20, 20))
    wide = few_shot_classification(sides, data, shots=["all"])["accuracy"]["mean"]
    cone = [np.concatenate([side, np.full((len(side), 1), 100.0)], axis=1) for side in sides]
    cone = tuple(side / np.linalg.norm(side, axis=1, keepdims=True) for side in cone)
    narrow = few_shot_classification(cone, data, shots=["all"])["accuracy"]["mean"]
    assert wide > 0.8 and narrow == pytest.approx(wide, abs=0.02)


def test_a_constant_encoder_is_right_by_chance():
    data, _ = clusters()
    rounding = np.random.default_rng(0).uniform(-1, 1, size=(210, 6)) * 1e-8
    constant = np.full((210, 6), 6**-0.5)
    for vectors in (constant, constant + rounding):
        found = few_shot_classification((vectors[:120], vectors[120:]), data, shots=[10], seeds=2)
        assert found["accuracy@10"]["mean"] == pytest.approx(1 / 3, abs=0.01)


def test_labels_may_be_numbers_in_memory():
    data, vectors = clusters()
    data.train_labels, data.test_labels = (
        [int(label[1]) for label in side] for side in (data.train_labels, data.test_labels)
    )
    data.label_names = {number: f"class {number}" for number in range(3)}
    assert few_shot_classification(vectors, data, shots=[20], seeds=1)["accuracy@20"]["mean"] > 0.7


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shots": []}, "shots are"),
        ({"shots": [0]}, "shots are"),
        ({"shots": "all"}, "give a list"),
        ({"shots": ["some"]}, "shots are"),
        ({"shots": [1.5]}, "shots are"),
        ({"seeds": 0}, "seeds is 0"),
        ({"encode": (np.ones((120, 2)), np.ones((89, 2)))}, r"vectors of 90 test texts have the shape \(89, 2\)"),
        ({"encode": (np.ones((120, 2)), np.ones((90, 3)))}, "different sizes"),
        ({"encode": lambda texts: np.full((len(texts), 2), np.nan)}, "diverged"),
    ],
)
def test_what_cannot_be_measured_is_an_error_in_a_sentence(options, said):
    data, vectors = clusters()
    with pytest.raises(InputError, match=said):
        few_shot_classification(**{"encode": vectors, "data": data, **options})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"train_texts": [], "train_labels": []}, "training texts have 0 classes"),
        ({"train_labels": ["c0"] * 120}, "training texts have 1 classes"),
        ({"train_labels": ["c0"]}, "120 texts and 1 labels"),
        ({"test_texts": [], "test_labels": []}, "no test texts"),
        ({"label_names": {"c0": "a", "c1": "b"}}, "label 'c2' has no name"),
        ({"label_names": {"c0": "a", "c1": "b", "c2": None}}, 'name of the label "c2" is empty'),
        ({"label_names": {"c0": "a", "c1": "b", "c2": "b"}}, "same name"),
    ],
)
def test_data_that_do_not_fit_together_are_an_error(changed, said):
    data, vectors = clusters()
    for name, value in changed.items():
        setattr(data, name, value)
    with pytest.raises(InputError, match=said):
        few_shot_classification(vectors, data)


def test_without_scikit_learn_the_pip_command_is_named(monkeypatch):
    data, vectors = clusters()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(InputError, match=r'sklearn is not installed; pip install "retromae-gur\[eval\]"'):
        few_shot_classification(vectors, data)


def test_what_one_seed_gives_it_gives_again():
    data, vectors = clusters()
    first = few_shot_classification(vectors, data, shots=[3], seeds=2, seed=7)
    assert few_shot_classification(vectors, data, shots=[3], seeds=2, seed=7) == first
    assert few_shot_classification(vectors, data, shots=[3], seeds=2, seed=8) != first


def test_zero_shot_refuses_what_is_no_text_and_templates_without_a_place():
    with pytest.raises(InputError, match=r"test texts\[1\] is of type NoneType"):
        zero_shot_classification(lambda texts: np.ones((len(texts), 2)), toy(["a", None], ["U", "R"]))
    with pytest.raises(InputError, match=r"write {} where the label goes"):
        zero_shot_classification(encode, toy(["up"], ["U"]), template="about")
