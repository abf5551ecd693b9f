"""The page: everything in one file, every text a text, nothing where there is nothing to show."""

import itertools
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_results import bm25_only, full

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.report_page import report_html, write_report
from retrieval_pretraining.results_file import read_results, validate_results

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """The elements of a page: (name, attributes, path of names above); fails where they are not closed in turn."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict, tuple]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)

    def of(self, tag: str) -> list[dict]:
        return [attributes for name, attributes, _ in self.elements if name == tag]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    return write_report(full(), tmp_path_factory.mktemp("report") / "new" / "folder")


@pytest.fixture(scope="module")
def page(written) -> str:
    return written["report.html"].read_text(encoding="utf-8")


def test_three_files_are_written(written):
    assert list(written) == ["results.json", "results.md", "report.html"]
    assert sorted(path.name for path in written["results.json"].parent.iterdir()) == sorted(written)
    assert read_results(written["results.json"]) == validate_results(full())
    assert written["results.md"].read_text(encoding="utf-8").startswith("# Evaluation\n")


def test_what_was_written_makes_the_same_page(written, page):
    assert report_html(read_results(written["results.json"])) == page


def test_it_needs_nothing_but_itself(page):
    found = Page(page)
    assert {name for name, _, _ in found.elements} & {"script", "link", "img", "iframe", "object", "base"} == set()
    for _, attributes, _ in found.elements:
        assert attributes.keys().isdisjoint({"src", "srcset", "action", "onload", "onerror"})
        assert attributes.get("href", "#").startswith("#")
    assert "@import" not in page and "@font-face" not in page
    assert set(re.findall(r"url\((.)", page)) == {"#"}


def test_ids_are_unique_and_links_arrive(page):
    found = Page(page)
    ids = [attributes["id"] for _, attributes, _ in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for _, attributes, _ in found.elements if "href" in attributes]
    targets = {*(link[1:] for link in links), *re.findall(r"url\(#([^)]+)\)", page)}
    assert targets <= set(ids) and "dataset-0" in targets


def test_every_colour_that_is_used_is_defined_for_both_modes(page):
    assert set(re.findall(r"var\(--([\w-]+)\)", page)) <= set(re.findall(r"--([\w-]+): #", page))
    assert page.count("--text: #") == 3  # light, dark, paper


def test_texts_of_data_stay_texts(page):
    assert "<script>" not in page and "<img" not in page and "<b>" not in re.sub("<b>relevant</b>", "", page)
    texts = "".join(Page(page).texts)
    assert "什么是<script>alert(1)</script>语言模型？" in texts and "<img src=x onerror=alert(1)> & more" in texts


def test_names_and_texts_that_are_no_text_do_not_break_it():
    results = bm25_only()
    name = "<b>\ud83d\x00 \"'&"
    results["systems"][0]["name"] = results["scores"][0]["system"] = name
    results["command"] = "x \ud83d"
    assert "<b>\ufffd\ufffd \"'&" in "".join(Page(report_html(results)).texts)


def test_figures_have_captions_and_labels(page):
    found = Page(page)
    assert len(found.of("figure")) == len(found.of("figcaption")) == 2 * 3 + 2 * 2 + 1
    svgs = found.of("svg")
    assert len(svgs) > 20 and all(svg["role"] == "img" and svg["aria-label"] for svg in svgs)
    assert [name for name, _, above in found.elements if name == "svg" and "figure" not in above] == []


def test_headings_descend_one_level_at_a_time(page):
    levels = [int(name[1]) for name, _, _ in Page(page).elements if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(below - above <= 1 for above, below in itertools.pairwise(levels))


def test_tables_name_their_rows_and_columns(page):
    found = Page(page)
    assert {attributes.get("scope") for attributes in found.of("th")} == {"row", "col"}
    assert all("scroll" in page for _ in found.of("table"))
    assert all(above[-1] == "div" for name, _, above in found.elements if name == "table")


def test_the_summary_comes_first(page):
    texts = " ".join(Page(page).texts)
    places = [texts.index(part) for part in ("In short", "is best with", "To be wary of", "3 of 339 judged", "Scores")]
    assert places == sorted(places)


def test_with_one_system_and_one_dataset_there_are_no_empty_boxes():
    found = Page(report_html(bm25_only()))
    texts = " ".join(found.texts)
    for absent in ("To be wary of", "Vectors", "Training", "Differences", "Largest gains", "The other metrics"):
        assert absent not in texts
    assert len(found.of("svg")) == len(found.of("figure")) == 1 and found.of("details") == []
    assert len(found.of("table")) == 3


def test_results_without_scores_still_make_a_page():
    results = {"format": 1, "datasets": [{"name": "a", "kind": "retrieval"}], "systems": []}
    texts = " ".join(Page(report_html(results)).texts)
    assert "Nothing was measured." in texts


def test_gains_come_before_losses_with_what_was_found(page):
    texts = re.sub(r"\s+", " ", " ".join(Page(page).texts))
    assert "after is better 什么是" in texts and "before is better 什么是" in texts
    assert texts.index("nDCG@10 +1.000") < texts.index("nDCG@10 −0.630")
    assert "relevant 语言模型预测下一个词。" in texts


def test_long_texts_are_cut_and_a_query_may_find_nothing():
    results = bm25_only()
    results["details"] = {"queries": full(datasets=("scifact",))["details"]["queries"][:1]}
    results["systems"] += full()["systems"][1:]
    record = results["details"]["queries"][0]
    record |= {"query": "q" * 10_000, "baseline_found": []}
    record["found"][0]["text"] = "文" * 10_000
    page = report_html(results)
    assert "found nothing" in page
    assert "q" * 499 + "…" in page and "q" * 500 not in page
    assert "文" * 159 + "…" in page and "文" * 160 not in page


def test_without_matplotlib_the_numbers_are_there_and_the_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r'matplotlib is not installed; pip install "retromae-gur\[eval\]"'):
        write_report(bm25_only(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json", "results.md"]


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written"):
        write_report(bm25_only(), tmp_path / "file")
