"""The tables of a report: what is best, what is significant and by which test; names stay names."""

import pytest
from report_results import bm25_only, comparison, full, score

from retrieval_pretraining.report_tables import (
    command_lines,
    datasets_table,
    differences_table,
    format_results,
    health_table,
    markdown_report,
    scores_table,
    systems_table,
    to_markdown,
)
from retrieval_pretraining.results_file import validate_results


def table_of(results: dict, function=scores_table, *arguments):
    return function(validate_results(results), *arguments)


def test_scores_as_markdown():
    table = table_of(full(), scores_table, "scifact")
    assert to_markdown(table, interval_of=1).splitlines() == [
        "| system       |    nDCG@10 | 95 % interval |     MRR@10 | recall@100 |",
        "| ------------ | ---------: | ------------: | ---------: | ---------: |",
        "| BM25         |      0.676 |   0.636–0.716 |      0.676 |      0.676 |",
        "| random       |      0.077 |   0.037–0.117 |      0.077 |      0.077 |",
        "| before       |      0.212 |   0.172–0.252 |      0.212 |      0.212 |",
        "| after        | ▼¹▲² 0.342 |   0.302–0.382 | ▼¹▲² 0.342 | ▼¹▲² 0.342 |",
        "| after + BM25 |  **0.694** |   0.654–0.734 |  **0.694** |  **0.694** |",
        "",
        "Bold: the highest value.",
        "",
        "▲ ▼: significantly better or worse than ¹ BM25, ² before (p < 0.05, paired randomisation test; 12 comparisons"
        ", not corrected for their number). Tested: nDCG@10, MRR@10 and recall@100.",
        "",
        "Intervals: 95 %, bootstrap. Whether two systems differ is answered by the paired differences.",
    ]


def test_one_system_is_not_the_best_of_itself():
    table = table_of(bm25_only(), scores_table, "scifact")
    assert not table.rows[0][1].best and table.notes == ["Intervals: 95 %, bootstrap over queries."]


def test_what_shows_as_the_best_value_is_marked_too_and_a_gap_is_a_dash():
    results = bm25_only()
    results["systems"] += [{"name": name, "kind": "dense"} for name in ("a", "b")]
    results["scores"] += [score("scifact", "a", "ndcg@10", 0.67604), score("scifact", "b", "map", float("nan"))]
    rows = table_of(results, scores_table, "scifact").rows
    assert [[cell.text for cell in row] for row in rows] == [
        ["BM25", "0.676", "–"],
        ["a", "0.676", "–"],
        ["b", "–", "–"],
    ]
    assert [row[1].best for row in rows] == [True, True, False]


def test_corrected_p_values_decide_where_there_are_any():
    results = full()
    for record in results["comparisons"]:
        record["p_value_holm"] = 0.2
    table = table_of(results, scores_table, "scifact")
    assert not any(cell.mark for row in table.rows for cell in row)
    assert "corrected by Holm's method" in table.notes[1]
    differences = table_of(results, differences_table, "scifact")
    assert "p (Holm)" in differences.columns and {row[5].text for row in differences.rows} == {"0.200"}


def test_few_shot_scores_show_their_deviation_over_seeds():
    results = bm25_only()
    results["datasets"].append({"name": "banking", "kind": "classification"})
    results["systems"].append({"name": "a", "kind": "dense"})
    for shots in (10, 5):
        results["scores"].append(score("banking", "a", f"accuracy@{shots}", 0.8) | {"std": 0.014, "seeds": 5})
    table = table_of(results, scores_table, "banking")
    assert table.columns == ["system", "accuracy, 5 a class", "accuracy, 10 a class"]
    assert table.rows[0][1].interval == "± 0.014" and table.notes == ["±: deviation over seeds."]


def test_differences_say_how_many_queries_won():
    table = table_of(full(), differences_table, "scifact")
    assert [cell.text for cell in table.rows[0]] == [
        *("after", "BM25", "nDCG@10", "−0.334", "−0.364 to −0.304", "< 0.001", "120", "60", "120")
    ]
    assert [row[3].mark for row in table.rows] == ["▼", "▲", "", ""]


def test_columns_that_say_nothing_are_left_out():
    table = table_of(full(), systems_table)
    assert "revision" not in table.columns and "document prompt" not in table.columns and "chunks" not in table.columns
    of = {row[0].text: dict(zip(table.columns, (cell.text for cell in row), strict=True)) for row in table.rows}
    assert of["after"]["query prompt"] == "“query: ”" and of["after"]["started from"] == "before"
    assert of["random"]["weights"] == "random" and of["after"]["weights"] == "ab" * 6
    assert of["after + BM25"]["model"] == "z_score of after + BM25"
    assert table_of(bm25_only(), datasets_table).columns == ["dataset", "kind", "documents", "queries"]
    assert table_of(bm25_only(), health_table).rows == []


def test_a_weighted_hybrid_states_its_weights():
    results = full()
    results["systems"][-1]["weights"] = [1.0, 0.5]
    assert table_of(results, systems_table).rows[-1][1].text == "z_score of 1 × after + 0.5 × BM25"


def test_the_report_has_what_was_measured_and_no_empty_parts():
    report = markdown_report(validate_results(full()))
    for part in (
        "**中文问答**, nDCG@10",
        "## Warnings",
        "## scifact",
        "## Vectors",
        "## Systems",
        "## Data",
        "seed 42",
    ):
        assert part in report
    report = markdown_report(validate_results(bm25_only()))
    assert "## Warnings" not in report and "## Vectors" not in report and "\n\n\n" not in report


def test_the_screen_shows_scores_marks_and_warnings():
    lines = format_results(full()).splitlines()
    assert lines[0] == "scifact (retrieval: 5,183 documents, 300 queries)"
    assert "| after        | ▼¹▲² 0.342 | ▼¹▲² 0.342 | ▼¹▲² 0.342 |" in lines
    assert lines[-1] == "Warning: qrels of scifact: 3 of 339 judged documents are not in the corpus."
    assert format_results(bm25_only()).count("\n\n") == 1


def test_a_command_is_shown_with_an_option_a_line():
    command = "python run.py --prompt 'a --b' --bm25 x"
    assert command_lines(command) == "python run.py \\\n    --prompt 'a --b' \\\n    --bm25 x"
    assert command_lines("unclosed ' quote") == "unclosed ' quote"


def test_names_are_neither_markdown_nor_html():
    results = bm25_only()
    results["systems"][0]["name"] = results["scores"][0]["system"] = "a|b *c* <script>\n[d](e)"
    report = markdown_report(validate_results(results))
    assert r"| a\|b \*c\* &lt;script> \[d](e) " in report
    assert "<script>" not in report


def test_more_than_nine_baselines_are_told_apart():
    results = bm25_only()
    results["systems"] += [{"name": f"s{i}", "kind": "dense"} for i in range(12)]
    results["scores"] += [score("scifact", f"s{i}", "ndcg@10", 0.1) for i in range(12)]
    results["comparisons"] = [comparison("scifact", "BM25", f"s{i}", 0.576) for i in range(12)]
    mark = table_of(results, scores_table, "scifact").rows[0][1].mark
    assert mark == "".join(f"▲{i}" for i in "¹²³⁴⁵⁶⁷⁸⁹") + "▲(10)▲(11)▲(12)"


@pytest.mark.parametrize("kind", ["retrieval", "classification"])
def test_a_dataset_without_scores_has_no_section(kind):
    results = bm25_only()
    results["datasets"].append({"name": "empty", "kind": kind})
    assert "## empty" not in markdown_report(validate_results(results))
