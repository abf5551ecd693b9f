"""What a model writes, measured: each score against what a hand counts, and the door from flags to report."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gur_runs import write_lines
from tokenizers_for_tests import ENGLISH, bert_tokenizer, t5_tokenizer
from toy_models import gur_config, retromae_config

from modeling_gur import GURForConditionalGeneration, GURForPreTraining, GURModel
from modeling_retromae import RetroMAEForPreTraining
from retrieval_pretraining import generation_evaluation as room
from retrieval_pretraining.evaluation_results import EvaluationResults
from retrieval_pretraining.generation import Generated, expand_query
from retrieval_pretraining.generation_evaluation import (
    Document,
    distinct,
    draw_documents,
    expand_queries,
    expansion_scores,
    perplexity,
    title_scores,
    word_overlap_f1,
    words_of,
    write_titles,
)
from retrieval_pretraining.report_score_plots import metric_plot
from retrieval_pretraining.report_summary import summarise
from retrieval_pretraining.report_tables import scores_table
from retrieval_pretraining.retrieval_data import load_retrieval_data, sample
from run_evaluation import main

EXPANSION = "gur, queries expanded for BM25"


@pytest.fixture(scope="module")
def tokenizer():
    return t5_tokenizer()


@pytest.fixture(scope="module")
def writer(tokenizer):
    torch.manual_seed(0)
    return GURForConditionalGeneration(gur_config(vocab_size=len(tokenizer))).eval()


# --- Measures --------------------------------------------------------------------------------------------------------


def test_words_are_lower_case_runs_and_single_letters_of_scripts_without_spaces():
    assert words_of("The BM25-score, don't: 电机 Control of电机2") == [
        *("the", "bm25", "score", "don", "t", "电", "机", "control", "of", "电", "机", "2")
    ]
    assert words_of(" ... ") == []


def test_distinct_counts_different_n_grams_that_cross_no_text():
    assert distinct(["a b a", "B c"], 1) == 3 / 5  # a, b, c
    assert distinct(["a b a", "B c", "a b"], 2) == 3 / 4  # ab, ba, bc, and ab again
    assert distinct(["a", "b"], 2) is None and distinct([], 1) is None


def test_word_overlap_is_rouge_1():
    assert word_overlap_f1("wing flow flow", "Flow of a wing") == 2 * 2 / (3 + 4)
    assert word_overlap_f1("flow flow flow", "flow flow") == 2 * 2 / 5
    assert word_overlap_f1("", "a wing") == 0.0 and word_overlap_f1("", "") == 0.0


def test_expansions_are_scored_against_their_queries():
    queries = ["wing flow", "the the wall", "plain", "heat"]
    written = [
        Generated("Supersonic wing flow past bodies", -1.0, ("Supersonic", "past bodies")),  # kept, expanded
        Generated("the wall of the past", -1.0, ("of", "past")),  # kept and expanded: two "the"
        None,  # kept, as it stays as it is
        Generated("hea ting past bodies", -1.0, ("past bodies",)),  # the word is lost
    ]
    assert expansion_scores(queries, written) == {
        "query_words_kept": 3 / 4,
        "queries_expanded": 3 / 4,
        "query_distinct_1": 4 / 7,  # supersonic, past, bodies, of
        "query_distinct_2": 1 / 2,  # past bodies, twice
    }
    once = expansion_scores(["the the wall"], [Generated("the wall", -1.0, ("",))])
    assert once == {"query_words_kept": 0.0, "queries_expanded": 0.0}
    again = expansion_scores(["wall"], [Generated("wall wall", -1.0, ("wall",))])
    assert again["queries_expanded"] == 1.0


def test_titles_are_scored_against_their_documents():
    documents = [
        Document("the flow past a wing", "Wing flow"),
        Document("heat of a wall", ""),
        Document("a cold wall", "Cold walls"),
    ]
    assert title_scores(documents, ["wing flow theory", "heat heat", ""]) == {
        "titles_written": 2 / 3,
        "title_words": 5 / 2,
        "title_words_in_document": (2 / 3 + 1) / 2,
        "title_distinct_1": 4 / 5,
        "title_distinct_2": 3 / 3,
        "title_rouge_1": (2 * 2 / 5 + 0) / 2,  # of the two that have a title
    }
    assert title_scores(documents[1:2], [""]) == {"titles_written": 0.0}


def test_perplexity_is_exp_of_the_mean_loss_of_the_training(writer, tokenizer, monkeypatch):
    """Token for token, whatever the batches."""
    texts = ENGLISH[:7]
    found = perplexity(writer, tokenizer, texts, seed=3)
    assert found == pytest.approx(perplexity(writer, tokenizer, texts, seed=3, batch_size=4), rel=1e-5)
    assert perplexity(writer, tokenizer, texts, seed=4) != pytest.approx(found, rel=1e-6)
    model = GURForPreTraining(writer.config).eval()
    model.load_state_dict(writer.state_dict())
    batches = []

    class Recording(room.PairCollator):
        def __call__(self, features):
            batches.append(super().__call__(features))
            return batches[-1]

    monkeypatch.setattr(room, "PairCollator", Recording)
    assert perplexity(writer, tokenizer, texts, seed=3, batch_size=6) == pytest.approx(found, rel=1e-5)
    losses, tokens = 0.0, 0
    for batch in batches:
        with torch.no_grad():
            output = model(batch["input_ids"], batch["attention_mask"], batch["labels"])
        count = int((batch["labels"] != -100).sum())
        losses, tokens = losses + float(output.lm_loss) * count, tokens + count
    assert len({batch["labels"].shape for batch in batches}) > 1  # a mean of means would be another number
    assert found == pytest.approx(math.exp(losses / tokens), rel=1e-5)


def test_perplexity_of_a_model_without_a_preference_is_the_size_of_its_vocabulary(writer, tokenizer):
    flat = GURForConditionalGeneration(writer.config).eval()
    torch.nn.init.zeros_(flat.shared.weight)
    assert perplexity(flat, tokenizer, ENGLISH[:3], seed=0) == pytest.approx(len(tokenizer), rel=1e-4)
    assert perplexity(flat, tokenizer, ["", " "], seed=0) is None


# --- Texts in, texts out ---------------------------------------------------------------------------------------------


def test_the_best_expansion_of_each_query_and_none_where_it_cannot_be(writer, tokenizer):
    queries = ["motor control", " ", "word " * 200, "the cat"]
    first, blank, long, last = expand_queries(writer, tokenizer, queries, max_seq_length=32, max_new_tokens=4)
    assert blank is None and long is None
    expected = expand_query(writer, tokenizer, [queries[0], queries[3]], max_seq_length=32, max_new_tokens=4)
    assert [first, last] == [results[0] for results in expected]
    assert expand_queries(writer, tokenizer, [" "]) == [None]


def test_a_title_is_written_from_the_text_alone(writer, tokenizer, monkeypatch):
    seen = []

    def generate_titles(model, tokenizer, documents, **options):
        seen.extend(documents)
        return [[Generated(f"title {number}", -1.0, ())] if number else [] for number in range(len(documents))]

    monkeypatch.setattr(room, "generate_titles", generate_titles)
    documents = [Document("the flow", "Wing"), Document("the wall", "")]
    assert write_titles(writer, tokenizer, documents) == ["", "title 1"]
    assert seen == ["the flow", "the wall"]


def test_documents_are_drawn_by_seed_without_their_titles(tmp_path):
    rows = [{"_id": str(i), "title": f"Title {i}" * (i % 2), "text": f"text {i}"} for i in range(20)]
    rows += [{"_id": "only", "title": "A title", "text": ""}]
    write_lines(tmp_path / "corpus.jsonl", rows)
    write_lines(tmp_path / "queries.jsonl", [{"_id": "q", "text": "a query"}])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/test.tsv").write_text("q\t3\t1\n")
    data = load_retrieval_data(tmp_path)
    every = draw_documents(data, 100, seed=0)
    assert every == [Document(f"text {i}", f"Title {i}" * (i % 2)) for i in range(20)]
    drawn = draw_documents(data, 5, seed=0)
    assert len(drawn) == 5 and drawn == draw_documents(data, 5, seed=0) != draw_documents(data, 5, seed=1)
    assert [document for document in every if document in drawn] == drawn
    few = sample(data, max_documents=6)
    assert few.titles.keys() == {i for i in few.corpus_ids if i == "only" or int(i) % 2}
    assert draw_documents(replace(data, titles={}), 4, seed=0)[0].title == ""


# --- The door --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with data and small models; that of GUR has a decoder, of which one copy has none left."""
    pytest.importorskip("bm25s")
    pytest.importorskip("ir_measures")
    pytest.importorskip("matplotlib")
    root = tmp_path_factory.mktemp("generation")
    rows = [{"_id": f"d{i}", "title": text.split()[0], "text": text} for i, text in enumerate(ENGLISH)]
    write_lines(root / "tiny/corpus.jsonl", rows)
    queries = [{"_id": f"q{i}", "text": " ".join(ENGLISH[i].split()[2:4])} for i in range(4)]
    write_lines(root / "tiny/queries.jsonl", queries)
    (root / "tiny/qrels").mkdir()
    (root / "tiny/qrels/test.tsv").write_text("".join(f"q{i}\td{i}\t1\n" for i in range(4)))
    for name, tokenizer, kind, config in (
        ("gur", t5_tokenizer(), GURForPreTraining, gur_config),
        ("encoder_of_gur", t5_tokenizer(), GURModel, gur_config),
        ("retromae", bert_tokenizer(), RetroMAEForPreTraining, retromae_config),
    ):
        torch.manual_seed(0)
        kind(config(vocab_size=len(tokenizer))).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


def run(place: Path, output: Path, *more) -> int:
    command = ["--eval_retrieval_dir", place / "tiny", "--model_name_or_path", place / "gur", "--generation"]
    command += ["--bm25", "--generation_max_documents", 5, "--output_dir", output, *more]
    return main([str(word) for word in command])


@pytest.fixture(scope="module")
def results(place) -> dict:
    assert run(place, place / "report", "--save_query_scores") == 0
    return json.loads((place / "report/results.json").read_text(encoding="utf-8"))


def test_the_door_measures_queries_titles_and_spans(results):
    rows = [row for row in results["scores"] if row["dataset"] == "tiny (generation)"]
    assert {row["system"] for row in rows} == {"gur"}  # not of random weights
    scores = {row["metric"]: row["value"] for row in rows}
    assert set(scores) == {
        *("perplexity", "query_words_kept", "queries_expanded", "query_distinct_1", "query_distinct_2"),
        *("titles_written", "title_words", "title_words_in_document", "title_distinct_1", "title_distinct_2"),
        "title_rouge_1",
    }
    assert scores["query_words_kept"] == scores["queries_expanded"] == 1.0 and scores["perplexity"] > 10
    entry = next(entry for entry in results["datasets"] if entry["kind"] == "generation")
    assert entry["documents"] == 5


def test_bm25_with_expanded_queries_is_a_system_that_is_compared_with_bm25(results, place):
    system = next(system for system in results["systems"] if system["name"] == EXPANSION)
    assert (system["kind"], system["of"]) == ("expansion", ["gur", "BM25"])
    pairs = {(row["system"], row["baseline"]) for row in results["comparisons"]}
    assert (EXPANSION, "BM25") in pairs
    of_queries = json.loads((place / "report/query_scores.json").read_text(encoding="utf-8"))["tiny"]
    assert of_queries[EXPANSION]["ndcg@10"].keys() == of_queries["BM25"]["ndcg@10"].keys()


def test_bm25_searches_for_what_was_written(place, tmp_path, monkeypatch):
    """Expansions that name the right document make it the first one."""
    texts = {" ".join(text.split()[2:4]): text for text in ENGLISH[:4]}

    def expand_query(model, tokenizer, queries, **options):
        return [[Generated(f"{query} {texts[query]}", -1.0, ("", texts[query]))] for query in queries]

    monkeypatch.setattr(room, "expand_query", expand_query)
    assert run(place, tmp_path) == 0
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    scores = {row["system"]: row["value"] for row in found["scores"] if row["metric"] == "recall@1"}
    assert scores[EXPANSION] == 1.0 > scores["BM25"]


def test_the_report_shows_scores_and_what_was_written(results, place):
    page = (place / "report/report.html").read_text(encoding="utf-8")
    tables = (place / "report/results.md").read_text(encoding="utf-8")
    for text in (page, tables):
        assert "queries: words kept" in text and "titles: ROUGE-1" in text and EXPANSION in text
    generated = results["details"]["generated"]
    assert [row["what"] for row in generated] == ["query"] * 4 + ["title"] * 5
    assert generated[0]["given"] == " ".join(ENGLISH[0].split()[2:4]) in generated[0]["written"]
    assert "Expanded queries: gur" in page and generated[0]["given"] in page


def test_without_bm25_only_the_texts_are_measured(place, tmp_path):
    command = ["--eval_retrieval_dir", place / "tiny", "--model_name_or_path", place / "gur", "--generation"]
    command += ["--random_weights", "False", "--generation_max_documents", 2, "--output_dir", tmp_path]
    assert main([str(word) for word in command]) == 0
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert [system["name"] for system in found["systems"]] == ["gur"]
    assert any(row["dataset"] == "tiny (generation)" for row in found["scores"])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("retromae", "--generation needs GUR with its decoder, and retromae is of type retromae"),
        ("encoder_of_gur", "--generation needs GUR with its decoder, and encoder_of_gur lacks"),
    ],
)
def test_a_model_that_cannot_write_is_one_sentence_before_anything_is_measured(
    place, tmp_path, capsys, monkeypatch, model, message
):
    monkeypatch.setattr("retrieval_pretraining.evaluation.bm25_run", lambda *_, **__: pytest.fail("measured"))
    assert run(place, tmp_path / "report", "--model_name_or_path", place / "gur", place / model) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.startswith("error: ") and printed.count("\n") == 1
    assert not (tmp_path / "report").exists()


def test_generation_needs_models_and_texts(place, tmp_path, capsys):
    assert main(["--bm25", "--generation", "--eval_retrieval_dir", str(place / "tiny"), "--output_dir", "x"]) == 2
    assert "--generation needs models and texts" in capsys.readouterr().err
    assert run(place, tmp_path, "--generation_max_documents", 0) == 2
    assert "--generation_max_documents is 1 or more" in capsys.readouterr().err


def test_the_best_perplexity_is_the_lowest_and_no_length_is_best(results):
    """In the tables and in words; and neither is plotted on the axis of shares."""
    mine = [row for row in results["scores"] if row["dataset"] == "tiny (generation)"]
    changes = {"perplexity": -1.0, "title_words": 1.0, "query_distinct_1": -0.1}
    other = [{**row, "system": "BM25", "value": row["value"] + changes.get(row["metric"], 0.0)} for row in mine]
    both = {**results, "scores": [*results["scores"], *other]}
    table = scores_table(both, "tiny (generation)")
    rows = {row[0].text: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    bold = {system: {name for name, cell in row.items() if cell.best} for system, row in rows.items()}
    assert "perplexity" in bold["BM25"] - bold["gur"] and "queries: distinct-1" in bold["gur"] - bold["BM25"]
    assert "titles: words" not in bold["gur"] | bold["BM25"]
    assert "Bold: the highest value, of perplexity the lowest." in table.notes
    [said] = [finding for finding in summarise(both).findings if finding.dataset == "tiny (generation)"]
    assert said.metric == "perplexity" and said.sentences[0].startswith("BM25 is best with")
    plot = metric_plot(both, "tiny (generation)")
    labels = "".join(plot.panels + plot.more)
    assert "titles: ROUGE-1" in labels and "perplexity" not in labels and "titles: words on" not in labels


def test_perplexities_of_different_vocabularies_are_warned_of(place, tokenizer):
    results, entry = EvaluationResults(seed=0), {"name": "tiny (generation)"}
    room._check_vocabulary(tokenizer, entry, results)
    room._check_vocabulary(t5_tokenizer(), entry, results)
    assert not results.warnings
    room._check_vocabulary(bert_tokenizer(), entry, results)
    room._check_vocabulary(bert_tokenizer(), entry, results)
    assert len(results.warnings) == 1 and "perplexities do not compare" in results.warnings[0]
