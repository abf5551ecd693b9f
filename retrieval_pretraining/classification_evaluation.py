"""Classification with frozen vectors: by the nearest label, and by a logistic regression on a few texts a class.

    data = load_classification_data("data/banking77")
    zero_shot_classification(encode, data)  # {"zero_shot_accuracy": 0.31, ...}
    few_shot_classification(encode, data, shots=(10, 100))  # {"accuracy@10": {"mean": 0.61, "std": ...}, ...}

The regression needs the extra `eval` (scikit-learn).

Shapes: n training texts, t test texts, H size of a vector.
"""

import json
import logging
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.evaluation_inputs import (
    Encode,
    check_vectors,
    dataset_name,
    encode_checked,
    read_rows,
    split_file,
)
from retrieval_pretraining.extras import import_extra
from retrieval_pretraining.readers import INVISIBLE, type_name
from retrieval_pretraining.zero_shot import label_texts, nearest_labels

logger = logging.getLogger(__name__)

# Of 1, 3, 10, 30 and 100 the best in 3-fold cross-validation within the training texts of BANKING77 ([CLS] of
# examples/starter-en), or within .003 of it, at 5, 10, 50 and all texts a class: .497, .608, .773, .807. 10 gives
# .483, .600, .768, .801 and 100 gives .495, .611, .770, .800. Random weights: within .003 of the best as well.
INVERSE_REGULARISATION = 30.0  # "C"
_MAX_ITERATIONS = 1000
_TOLERANCE = 1e-6  # with which scikit-learn 1.3 and 1.9 agree; their default tolerances differ in meaning
_NO_SPREAD = 1e-6  # of unit vectors that differ by rounding only

_NEEDS = "the columns text and label"


@dataclass
class ClassificationData:
    """Texts with labels, and `label_names`: label -> its readable name, for all labels there are.

    Without training texts (empty lists) only zero-shot classification is possible.
    """

    name: str
    train_texts: list[str]
    train_labels: list[str]
    test_texts: list[str]
    test_labels: list[str]
    label_names: dict[str, str]


def load_classification_data(folder_or_file: str | Path, *, split: str = "test") -> ClassificationData:
    """A folder with `train.*` and `test.*` (jsonl, json, csv, tsv or parquet) and, if labels are not readable,
    `labels.json`; or one file of test texts, with a `labels.json` beside it or without.

    Rows are `{"text": ..., "label": ...}`, the label a string or a whole number. `labels.json` maps labels to names,
    `{"card_arrival": "card arrival"}`, or lists the names of the numbers from 0; a label that it lacks is its own
    name. `split` names another file than `test.*` to test on. What does not fit together is counted in a warning:
    empty texts, which stay, and test texts with a label that the training texts lack.

    Raises:
        InputError: a file is missing, cannot be read, has no column text or label, no row, or a text or label of
            another kind (with the line); there is one class only; `labels.json` is no such map, or gives two labels
            the same name.
    """
    path = Path(folder_or_file)
    if split == "train":
        raise InputError('split is "train", the texts that are learned from; test on others.')
    if path.is_dir():
        folder, name = path, path.resolve().name
        train_file, test_file = split_file(path, "train"), split_file(path, split)
        if test_file is None:
            raise InputError(f"{path}: there is no {split}.jsonl (nor csv, tsv, parquet); give a folder that has it.")
    else:
        folder, name, train_file, test_file = path.parent, dataset_name(path), None, path
    train_texts, train_labels = ([], []) if train_file is None else _read_labelled(train_file)
    test_texts, test_labels = _read_labelled(test_file)
    labels = sorted({*train_labels, *test_labels})
    data = ClassificationData(
        name, train_texts, train_labels, test_texts, test_labels, _label_names(folder / "labels.json", labels)
    )
    _check(data, path)
    unknown = Counter(test_labels)
    for label in train_labels:
        unknown.pop(label, None)
    if train_texts and unknown:
        logger.warning(
            "%s: %d of %d test texts have one of %d labels that no training text has; few-shot, they count as wrong.",
            path,
            unknown.total(),
            len(test_texts),
            len(unknown),
        )
    return data


def zero_shot_classification(
    encode: Encode,
    data: ClassificationData,
    *,
    template: str | Sequence[str] = "{}",
    test_vectors: np.ndarray | None = None,
    per_text: bool = False,
) -> dict[str, Any]:
    """Accuracy and macro F1 of the label whose name is nearest to the text, as in `zero_shot.classify`.

    Args:
        template: what is made of a name, such as "A text about {}."; of several templates the vectors are averaged.
        test_vectors: [t, H], if the test texts are encoded already.
        per_text: also `right`, [t], 1.0 for each text that was given its label, else 0.0.

    Returns `{"zero_shot_accuracy": ..., "zero_shot_macro_f1": ...}`, from 0 to 1. Macro F1 is the mean over the labels
    that a test text has or was given.

    Raises `InputError`: texts or vectors that are not as they must be, a template without {}.
    """
    _check(data, data.name)
    label_of = {name: label for label, name in data.label_names.items()}
    names = sorted(label_of)
    if all(name.isdecimal() for name in names):
        logger.warning("%s: the labels are numbers, which say nothing; name them in labels.json.", data.name)
    labels = encode_checked(encode, label_texts(names, template), "labels")
    if test_vectors is None:
        tests = encode_checked(encode, data.test_texts, "test texts")
    else:
        tests = check_vectors(test_vectors, len(data.test_texts), "test texts")
    nearest, _ = nearest_labels(tests, labels, names)
    found = [label_of[name] for name in nearest]
    accuracy, macro_f1 = _accuracy_and_macro_f1(data.test_labels, found)
    results: dict[str, Any] = {"zero_shot_accuracy": accuracy, "zero_shot_macro_f1": macro_f1}
    return results | ({"right": _right(data.test_labels, found)} if per_text else {})


def few_shot_classification(
    encode: Encode | tuple[np.ndarray, np.ndarray],
    data: ClassificationData,
    *,
    shots: Sequence[int | Literal["all"]] = (10, 100),
    seeds: int = 5,
    seed: int = 0,
    per_text: bool = False,
) -> dict[str, dict[str, Any]]:
    """Accuracy and macro F1 of a logistic regression on frozen vectors of `k` texts a class, for each k of `shots`.

    The texts are drawn at random, the same ones for every model; those of a smaller k are among those of a larger one.
    A class that has fewer gives all. "all" learns from all texts once, as they are.

    Before the regression (L2, C 30, the same for every model) the vectors are moved by the mean of those that are
    learned from and divided by their mean distance from it. That is one shift and one factor, no whitening: directions
    stay as they are. Without it the penalty would weigh on a model by how narrow the cone of its vectors is: for
    random weights, whose cosines are all near 1, scikit-learn then stops where it starts.

    Args:
        encode: texts -> vectors, or the vectors themselves: those of the training texts [n, H] and of the test texts
            [t, H].
        seeds: draws for each k.
        seed: what they are drawn by.
        per_text: also `right` beside each accuracy, [t], the share of the draws in which a text was given its label.

    Returns:
        `{"accuracy@10": {"mean", "std", "values", "short_classes"}, "macro_f1@10": ...}`, and for "all" the same under
        "accuracy" and "macro_f1". There is one value only where every draw would be the same. `std` is the deviation
        of a sample (n - 1), 0 for one value; `short_classes` counts the classes that had fewer texts.

    Raises:
        InputError: no training texts or one class of them, shots that are not 1 or more or "all", `seeds` below 1,
            vectors that are not one a text or not finite, or no scikit-learn.
    """
    _check(data, data.name)
    _check_shots(shots, seeds)
    classes = sorted(set(data.train_labels))
    number_of = {label: number for number, label in enumerate(classes)}
    numbers = np.array([number_of[label] for label in data.train_labels], dtype=np.int64)
    if len(classes) < 2:
        raise InputError(f"{data.name}: the training texts have {len(classes)} classes; few-shot needs 2 or more.")
    import_extra("sklearn")
    if callable(encode):
        sides = [encode_checked(encode, data.train_texts, "training texts")]
        sides.append(encode_checked(encode, data.test_texts, "test texts"))
    else:
        sides = [check_vectors(encode[0], len(data.train_texts), "training texts")]
        sides.append(check_vectors(encode[1], len(data.test_texts), "test texts"))
    train_nH, test_tH = (side.astype(np.float64) for side in sides)
    if train_nH.shape[1] != test_tH.shape[1]:
        raise InputError("Vectors of training and test texts have different sizes; encode both with the same model.")
    members = [np.flatnonzero(numbers == number) for number in range(len(classes))]
    results: dict[str, dict[str, Any]] = {}
    for shot in shots:
        short = 0 if shot == "all" else sum(len(rows) < shot for rows in members)
        if short:
            logger.warning("%s: %d of %d classes have fewer than %d texts.", data.name, short, len(classes), shot)
        once = shot == "all" or all(len(rows) <= shot for rows in members)  # every draw would be the same
        values, rights = [], []
        for draw in range(1 if once else seeds):
            rows = np.arange(len(numbers)) if shot == "all" else _draw(members, shot, [seed, draw])
            predicted = _predict(train_nH[rows], numbers[rows], test_tH)
            found = [classes[i] for i in predicted]
            values.append(_accuracy_and_macro_f1(data.test_labels, found))
            rights.append(_right(data.test_labels, found))
        for metric, of_metric in zip(("accuracy", "macro_f1"), zip(*values, strict=True), strict=True):
            results[metric if shot == "all" else f"{metric}@{shot}"] = {
                "mean": float(np.mean(of_metric)),
                "std": float(np.std(of_metric, ddof=1)) if len(of_metric) > 1 else 0.0,
                "values": list(of_metric),
                "short_classes": short,
            }
        if per_text:
            results["accuracy" if shot == "all" else f"accuracy@{shot}"]["right"] = np.mean(rights, axis=0).tolist()
    return results


def _draw(members: list[np.ndarray], shot: int, seed: list[int]) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.concatenate([generator.permutation(rows)[:shot] for rows in members])


def _predict(train_nH: np.ndarray, numbers: np.ndarray, test_tH: np.ndarray) -> np.ndarray:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    mean = train_nH.mean(axis=0)
    spread = np.sqrt(np.square(train_nH - mean).sum(axis=1).mean())
    scale = 1 / spread if spread > _NO_SPREAD else 1.0
    model = LogisticRegression(C=INVERSE_REGULARISATION, max_iter=_MAX_ITERATIONS, tol=_TOLERANCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # said below, without advice that nobody can take
        model.fit((train_nH - mean) * scale, numbers)
    if np.max(model.n_iter_) >= _MAX_ITERATIONS:
        logger.warning("The logistic regression has not converged in %d steps.", _MAX_ITERATIONS)
    return model.predict((test_tH - mean) * scale)


def _accuracy_and_macro_f1(labels: Sequence[str], predicted: Sequence[str]) -> tuple[float, float]:
    right = Counter(label for label, found in zip(labels, predicted, strict=True) if label == found)
    given, found = Counter(labels), Counter(predicted)
    f1 = [2 * right[label] / (given[label] + found[label]) for label in given | found]
    return right.total() / len(labels), sum(f1) / len(f1)


def _right(labels: Sequence[str], predicted: Sequence[str]) -> list[float]:
    return [float(label == found) for label, found in zip(labels, predicted, strict=True)]


def _read_labelled(path: Path) -> tuple[list[str], list[str]]:
    texts, labels, empty = [], [], 0
    for place, (text, label) in read_rows(path, ["text", "label"], needs=_NEEDS):
        if not isinstance(text, str):
            raise InputError(f"{place}: the text is {type_name(text)}; give each row a text.")
        is_number = isinstance(label, int) and not isinstance(label, bool)
        if not (is_number or (isinstance(label, str) and label.strip(INVISIBLE))):
            what = "empty" if isinstance(label, str) else type_name(label)
            raise InputError(f"{place}: the label is {what}; it must be a string or a whole number.")
        empty += not text.strip(INVISIBLE)
        texts.append(text)
        labels.append(str(label).strip(INVISIBLE))
    if not texts:
        raise InputError(f"{path}: there are no rows; give {_NEEDS}.")
    if empty:
        logger.warning("%s: %d of %d texts are empty.", path, empty, len(texts))
    return texts, labels


def _label_names(path: Path, labels: Sequence[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    if path.is_file():
        try:
            written = json.loads(path.read_text(encoding="utf-8-sig"))
        except ValueError as error:
            raise InputError(f"{path}: is not valid JSON ({error}); repair it.") from error
        if isinstance(written, list):
            written = {str(number): name for number, name in enumerate(written)}
        if not isinstance(written, dict) or not all(isinstance(name, str) for name in written.values()):
            raise InputError(f'{path}: needs {{"label": "its name", ...}} or a list of names; repair it.')
        names = {label.strip(INVISIBLE): name for label, name in written.items()}
    lacking = [label for label in labels if label not in names]
    if names and lacking:
        logger.warning('%s: lacks %d labels, such as "%s"; they are their own names.', path, len(lacking), lacking[0])
    return {**names, **{label: label for label in lacking}}


def _check(data: ClassificationData, source: str | Path):
    for texts, labels in ((data.train_texts, data.train_labels), (data.test_texts, data.test_labels)):
        if len(texts) != len(labels):
            raise InputError(f"{source}: {len(texts)} texts and {len(labels)} labels; give each text one.")
    if not data.test_texts:
        raise InputError(f"{source}: there are no test texts; give at least one.")
    unnamed = {*data.train_labels, *data.test_labels} - data.label_names.keys()
    if unnamed:
        raise InputError(f"{source}: the label {sorted(map(str, unnamed))[0]!r} has no name; name all labels.")
    if len(data.label_names) < 2:
        raise InputError(f"{source}: there is one class only; classification needs 2 or more.")
    label_of: dict[str, str] = {}
    for label, name in data.label_names.items():
        if not (isinstance(name, str) and name.strip(INVISIBLE)):
            raise InputError(f'{source}: the name of the label "{label}" is empty; write what it is about.')
        if label_of.setdefault(name.strip(INVISIBLE), label) != label:
            raise InputError(
                f'{source}: "{label_of[name.strip(INVISIBLE)]}" and "{label}" have the same name "{name}".'
            )


def _check_shots(shots: Sequence[int | str], seeds: int):
    whole = all(shot == "all" or (isinstance(shot, int) and shot >= 1) for shot in shots)
    if isinstance(shots, str) or not len(shots) or not whole:
        raise InputError(f'shots are {shots!r}; give a list of numbers of 1 or more, or "all".')
    if seeds < 1:
        raise InputError(f"seeds is {seeds}; draw 1 time or more.")
