"""mteb measures our checkpoints: its numbers are ours, prompts and batch size are followed, no weight is random."""

import json
import sys

import numpy as np
import pytest
from saved_models import change, copy_to, save
from tokenizers_for_tests import ENGLISH, SENTENCES

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.mteb_adapter import MTEBModel, retrieval_task
from retrieval_pretraining.retrieval_data import load_retrieval_data
from retrieval_pretraining.search import search
from retrieval_pretraining.systems import TextEncoder


@pytest.fixture(scope="module")
def mteb():
    return pytest.importorskip("mteb")  # takes seconds to import


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save("gur", tmp_path_factory.mktemp("models") / "mine")


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    """Each query is the first words of its document; every second one has a second document of grade 1."""
    folder = tmp_path_factory.mktemp("data") / "toy set"
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"d{i}", "title": "Title", "text": text} for i, text in enumerate(ENGLISH)]
    queries = [{"_id": f"q{i}", "text": " ".join(text.split()[:4])} for i, text in enumerate(ENGLISH[:12])]
    for name, records in (("corpus", corpus), ("queries", queries)):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    lines = [f"q{i}\td{i}\t2\n" + f"q{i}\td{i + 1}\t1\n" * (i % 2) for i in range(12)]
    (folder / "qrels" / "test.tsv").write_text("".join(lines), encoding="utf-8")
    return folder


def evaluate(mteb, model, task, *, cache=None, **options):
    results = mteb.evaluate(model, task, cache=cache, show_progress_bar=False, co2_tracker=False, **options)
    [result] = results.task_results
    return results, result.scores["test"][0]


def test_a_folder_is_measured_as_by_us(mteb, checkpoint, beir):
    model = MTEBModel.from_pretrained(checkpoint, query_prompt="query: ", document_prompt="text: ")
    task = retrieval_task(beir)
    assert (task.metadata.name, task.metadata.eval_langs) == ("toy set", ["eng-Latn"])
    results, scores = evaluate(mteb, model, task)
    assert (results.model_name, results.model_revision) == ("local/mine", model.encoder.weights_sha256[:12])

    data = load_retrieval_data(beir)
    encoder = model.encoder
    found, _ = search(encoder.encode_queries(data.query_texts), encoder.encode_documents(data.corpus_texts), 10)
    gains, ranks = [], []
    for query, row in zip(data.query_ids, found.tolist(), strict=True):
        grades = [data.qrels[query].get(data.corpus_ids[i], 0) for i in row]
        ideal = sorted(data.qrels[query].values(), reverse=True)
        gains.append(_dcg(grades) / _dcg(ideal))
        ranks.append(max((1 / (place + 1) for place, grade in enumerate(grades) if grade), default=0.0))
    assert scores["ndcg_at_10"] == pytest.approx(np.mean(gains), abs=1e-4)
    assert scores["mrr_at_10"] == pytest.approx(np.mean(ranks), abs=1e-4)
    assert 0.1 < scores["ndcg_at_10"] < 1


def _dcg(grades) -> float:
    return sum(grade / np.log2(place + 2) for place, grade in enumerate(grades))


def test_prompts_and_batch_size_are_followed(mteb, checkpoint, beir, monkeypatch):
    calls = []
    real = TextEncoder.encode

    def watched(self, texts, prompt="", **options):
        calls.append((texts[0], prompt, options.get("task"), options.get("batch_size")))
        return real(self, texts, prompt, **options)

    model = MTEBModel.from_pretrained(checkpoint, query_prompt="bge_en", document_prompt="text: ")
    monkeypatch.setattr(TextEncoder, "encode", watched)
    evaluate(mteb, model, retrieval_task(beir), encode_kwargs={"batch_size": 5})
    assert sorted(calls) == [
        ("The cat sat on", "Represent this sentence for searching relevant passages: ", "query", 5),
        ("Title The cat sat on the mat and looked at the moon.", "text: ", "document", 5),
    ]


def similarity_task():
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.sts import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    class ToySTS(AbsTaskSTS):
        metadata = TaskMetadata(
            name="ToySTS",
            description="toy",
            dataset={"path": "toy", "revision": "1"},
            type="STS",
            category="t2t",
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="cosine_spearman",
        )
        min_score, max_score = 0, 5

        def load_data(self, *args, **options):
            rows = {"sentence1": ENGLISH[:8], "sentence2": ENGLISH[1:9], "score": [0.0, 5, 1, 4, 2, 3, 2.5, 1.5]}
            self.dataset = DatasetDict({"test": Dataset.from_dict(rows)})
            self.data_loaded = True

    return ToySTS()


def test_similarity_tasks_get_no_prompt(mteb, checkpoint):
    from scipy.stats import spearmanr

    model = MTEBModel.from_pretrained(checkpoint, query_prompt="query: ", document_prompt="text: ")
    _, scores = evaluate(mteb, model, similarity_task())
    first, second = model.encoder.encode(ENGLISH[:8]), model.encoder.encode(ENGLISH[1:9])
    expected = spearmanr((first * second).sum(axis=1), [0.0, 5, 1, 4, 2, 3, 2.5, 1.5]).statistic
    assert scores["cosine_spearman"] == pytest.approx(expected, abs=1e-4)


def test_similarities_are_cosines(mteb, checkpoint):
    model = MTEBModel.from_pretrained(checkpoint)
    vectors = model.encoder.encode(SENTENCES[:6])
    np.testing.assert_allclose(model.similarity(vectors[:2], vectors[2:]), vectors[:2] @ vectors[2:].T, atol=1e-6)
    pairwise = model.similarity_pairwise(vectors[:3], vectors[3:])
    np.testing.assert_allclose(pairwise, (vectors[:3] * vectors[3:]).sum(axis=1), atol=1e-6)


def test_results_are_kept_by_weights_and_settings(mteb, checkpoint, tmp_path):
    def kept(**options):
        meta = MTEBModel.from_pretrained(**{"model_name_or_path": checkpoint, **options}).mteb_model_meta
        return meta.name, meta.revision, meta.experiment_name

    other = save("retromae", tmp_path / "mine")
    several = [
        kept(),
        kept(pooling="mean"),
        kept(query_prompt="query: "),
        kept(max_seq_length=32),
        kept(dtype="bfloat16"),
        kept(random_weights=True),
        kept(random_weights=True, seed=1),
        kept(model_name_or_path=other),
        kept(name="me/other"),
    ]
    assert len(set(several)) == len(several) and several[0] == kept()
    assert {name for name, *_ in several[:-1]} == {"local/mine"} and several[-1][0] == "me/other"


def test_another_checkpoint_of_the_same_name_is_measured_again(mteb, checkpoint, beir, tmp_path):
    cache = mteb.ResultCache(cache_path=tmp_path / "cache")
    other = save("retromae", tmp_path / "mine")
    first, again, second = (
        evaluate(mteb, MTEBModel.from_pretrained(path), retrieval_task(beir), cache=cache)[1]["ndcg_at_10"]
        for path in (checkpoint, checkpoint, other)
    )
    assert first == again != second


def test_missing_weights_abort(mteb, checkpoint, tmp_path):
    change(copy_to(checkpoint, tmp_path) / "config.json", num_layers=3)
    with pytest.raises(InputError, match="would be random"):
        MTEBModel.from_pretrained(tmp_path)


def test_a_name_without_an_organisation_is_an_error(mteb, checkpoint):
    with pytest.raises(InputError, match='such as "me/mine"'):
        MTEBModel.from_pretrained(checkpoint, name="mine")


def test_without_mteb_the_error_says_how_to_install_it(checkpoint, beir, monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    for call in (lambda: MTEBModel.from_pretrained(checkpoint), lambda: retrieval_task(beir)):
        with pytest.raises(InputError, match=r'pip install "retromae-gur\[mteb\]"'):
            call()
