"""Figures inside a page: colours of the page, texts that stay texts, ids of their own, the same bytes each time."""

import itertools
import re
import sys
import xml.etree.ElementTree as ET

import matplotlib
import pytest

from retrieval_pretraining.report_svg import (
    PALETTE,
    SERIES,
    add_axes,
    clean,
    drawing,
    ink,
    legend_lines,
    mark_axis,
    round_numbers,
    to_svg,
    write,
    write_title,
)


def drawn(text: str = "title", prefix: str = "a", label: str = "a label") -> str:
    with drawing(height=100) as figure:
        write_title(figure, text)
        axes = add_axes(figure, 10, 10, 20, 20)
        axes.plot([0, 1], [0, 1], color=ink("series-1"))
        axes.plot([0.2, 0.4, 0.6], [0.1, 0.3, 0.5], "o", color=ink("series-2"), gid="points")
        write(axes, 0.5, 0.5, text, "muted")
        mark_axis(axes.xaxis, [-0.5, 0.5])
        return to_svg(figure, label=label, prefix=prefix, titles={"points": ["one", "<two>", "三"]})


def test_it_is_one_element_without_what_would_reach_beyond_it():
    svg = drawn()
    root = ET.fromstring(svg)
    assert (root.tag, root.get("role"), root.get("viewBox")) == ("svg", "img", "0 0 360 100")
    for part in ("<style", "<?xml", "<!DOCTYPE", "<metadata", "http", "xlink"):
        assert part not in svg


def test_text_is_text_in_the_font_of_the_page():
    svg = drawn("a <b> & $x_1$ 中文 \x07 \ud83d")
    assert "a &lt;b&gt; &amp; $x_1$ 中文 \ufffd \ufffd</text>" in svg and "font-family" not in svg
    assert ET.fromstring(svg).find(".//text[@style]") is not None and "font-size: 13px" in svg


def test_colours_are_those_of_the_page():
    svg = drawn()
    assert set(re.findall(r"var\(--([^)]+)\)", svg)) == {"text", "muted", "series-1", "series-2"}
    assert not re.search("#[0-9a-f]{6}", svg)


def test_ids_are_the_panel_s_own_and_every_reference_has_its_target():
    svg = drawn(prefix="p7")
    ids = re.findall(r' id="([^"]+)"', svg)
    assert ids and len(ids) == len(set(ids)) and all(name.startswith("p7-") for name in ids)
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', svg)) == set(ids)


def test_points_have_their_texts():
    root = ET.fromstring(drawn())
    assert [circle.find("title").text for circle in root.iter("circle")] == ["one", "<two>", "三"]
    assert len({(circle.get("cx"), circle.get("cy")) for circle in root.iter("circle")}) == 3


def test_the_label_is_escaped():
    assert ET.fromstring(drawn(label='"a" <b>\n& c')).get("aria-label") == '"a" <b> & c'


def test_the_same_drawing_is_the_same_text_and_matplotlib_is_left_as_it_was(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    names = ("svg.fonttype", "svg.hashsalt", "font.size", "text.parse_math")
    before = [matplotlib.rcParams[name] for name in names]
    assert drawn() == drawn()
    assert [matplotlib.rcParams[name] for name in names] == before


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-0.33, 0.05, [-0.3, -0.2, -0.1, 0]),
        (5.68, 6.07, [5.7, 5.8, 5.9, 6]),
        (0, 0.031, [0, 0.01, 0.02, 0.03]),
        (0, 600, [0, 200, 400, 600]),
        (3, 3, [3]),
    ],
)
def test_axes_have_few_round_numbers(low, high, expected):
    assert round_numbers(low, high) == expected


def test_texts_are_cut_by_columns():
    assert clean("a\n b\t c") == "a b c" and clean("abcdef", 6) == "abcdef" and clean("abcdefg", 6) == "abcde…"
    assert clean("语言模型", 8) == "语言模型" and clean("语言模型一", 8) == "语言模…" and clean("", 3) == ""


def test_a_legend_takes_as_many_lines_as_it_needs():
    lines = legend_lines([(name * 10, "text") for name in "abcdef"])
    assert [[name[0] for _, name, _ in line] for line in lines] == [["a", "b", "c"], ["d", "e", "f"]]
    assert [x for x, _, _ in lines[0]] == [0, 96, 192]


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_every_colour_can_be_read_on_the_ground(mode):
    def contrast(one: str, other: str) -> float:
        dark, light = sorted(luminance(PALETTE[name][mode]) for name in (one, other))
        return (light + 0.05) / (dark + 0.05)

    for name in PALETTE.keys() - {"ground", "raised", "rule", "alarm-ground"}:
        assert contrast(name, "ground") >= 4.5, name
    for text, ground in itertools.product(("text", "muted"), ("raised", "alarm-ground")):
        assert contrast(text, ground) >= 4.5, (text, ground)
    assert contrast("alarm", "alarm-ground") >= 4.5
    assert len({PALETTE[f"series-{number}"][mode] for number in range(1, SERIES + 1)}) == SERIES == 8
