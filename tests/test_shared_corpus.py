import itertools
import random

import pytest

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.readers import CorpusCounts
from retrieval_pretraining.shared_corpus import SharedCorpus, Stretch


def corpus_of(sizes: list[int]) -> SharedCorpus:
    return SharedCorpus([], [], sizes, {})


def test_stretches_of_one_file_and_of_many():
    assert [corpus_of([100]).stretches(rank, 3) for rank in range(3)] == [
        [Stretch(0, 1, rank, 3)] for rank in range(3)
    ]
    assert [corpus_of([10] * 6).stretches(rank, 3) for rank in range(3)] == [
        [Stretch(0, 2)],
        [Stretch(2, 4)],
        [Stretch(4, 6)],
    ]
    # A border in the middle of the third file: both read it, and have its parts in turn.
    assert [corpus_of([10] * 5).stretches(rank, 2) for rank in range(2)] == [
        [Stretch(0, 2), Stretch(2, 3, 0, 2)],
        [Stretch(2, 3, 1, 2), Stretch(3, 5)],
    ]


def test_every_part_of_every_file_has_one_task():
    generator = random.Random(1)
    for _ in range(300):
        sizes = [generator.choice([1, 1, 7, 50, 1000]) for _ in range(generator.randint(1, 12))]
        tasks = generator.randint(1, 15)
        turns: dict[int, list[tuple[int, int]]] = {}
        for rank in range(tasks):
            stretches = corpus_of(sizes).stretches(rank, tasks)
            assert all(one.end <= other.begin for one, other in itertools.pairwise(stretches))
            for stretch in stretches:
                for number in range(stretch.begin, stretch.end):
                    turns.setdefault(number, []).append((stretch.turn, stretch.sharers))
        assert turns == {n: [(turn, len(turns[n])) for turn in range(len(turns[n]))] for n in range(len(sizes))}


def test_documents_are_called_as_in_one_process_and_counted_once(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "docs.txt").write_text("Eins.\n\nZwei.\n", encoding="utf-8")
    corpus = SharedCorpus.from_source({"train_file": tmp_path})
    counts = CorpusCounts()
    read = [list(corpus.read(Stretch(1, 2, turn, 2), counts)) for turn in (0, 1)]
    assert read[0] == read[1]
    assert [document.document_id for document in read[0]] == ["b/docs.txt:1", "b/docs.txt:3"]
    assert (counts.files, counts.documents, counts.blank) == (1, 2, 1)


def test_what_cannot_be_shared_is_refused(tmp_path):
    file = tmp_path / "docs.txt"
    file.write_text("Eins.", encoding="utf-8")
    with pytest.raises(InputError, match="max_samples cannot be shared by tasks"):
        SharedCorpus.from_source({"train_file": file, "max_samples": 3})
    with pytest.raises(InputError, match="dataset_name cannot be shared by tasks"):
        SharedCorpus.from_source({"dataset_name": "someone/something"})
    with pytest.raises(InputError, match="no such file"):
        SharedCorpus.from_source({"train_file": tmp_path / "missing.txt"})
    with pytest.raises(InputError, match="on_bad_line 'ignore' is not known"):
        SharedCorpus.from_source({"train_file": file, "on_bad_line": "ignore"})
