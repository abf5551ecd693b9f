"""HTML becomes text where a text is HTML, and nowhere else."""

import time

import pytest

from retrieval_pretraining.html_text import html_to_text, is_html


@pytest.fixture(scope="module")
def convert():
    return html_to_text()


@pytest.mark.parametrize(
    "text",
    [
        "a < b and c > d",
        "if (a<b && b>c) { return a->b; }",
        "1<a and b>2",
        "vector<int> v; map<string, list<T>> m;",
        "The <p> tag starts a paragraph, <b> is for bold.",
        "<name>John</name>",
        "<3 and >_<",
        "R&D at AT&T; ?a=1&copy=2 &unknown; &notit;",
        "第一行\n\n第二行  <",
        "",
    ],
)
def test_text_without_tags_stays_as_it_is(convert, text):
    assert not is_html(text)
    assert convert(text) == text


@pytest.mark.parametrize(
    "text, expected",
    [
        ("<p>Hello <b>wor</b>ld</p>", "Hello world"),
        ("<p>unclosed <b>bold", "unclosed bold"),
        ("<p>cut off <a hre", "cut off"),
        ("<P CLASS='x'>a</P>", "a"),
        ("<p title='a > b'>x</p>", "x"),
        ("text <!-- a comment --> more", "text more"),
        ("<my-widget>custom</my-widget><br>", "custom"),
        ("link to <a href=http://x.y>a page</a>", "link to a page"),
        ("4<sup>th</sup> of July", "4th of July"),
        ("picture <img src=x alt='not text'> here", "picture here"),
    ],
)
def test_tags_and_comments_are_gone(convert, text, expected):
    assert is_html(text)
    assert convert(text) == expected


@pytest.mark.parametrize("element", ["script", "style"])
def test_scripts_and_style_sheets_are_gone(convert, element):
    assert convert(f"<p>a</p><{element}>if (x < 1) {{ '<p>no</p>' }}</{element}><p>b</p>").split() == ["a", "b"]
    assert convert(f"<{element}>never closed <p>hidden</p>") == ""


def test_entities_become_characters(convert):
    assert convert("<p>a &lt; b &amp;&amp; c &gt; d&nbsp;&#8212; &copy; &#x4e2d;</p>") == "a < b && c > d\xa0— © 中"
    assert convert("no tags: x &lt; y &amp; z &#20013; &hellip;") == "no tags: x < y & z 中 …"


@pytest.mark.parametrize(
    "text",
    [
        "<p>一。</p><p>二。</p>",
        "<div>一。</div>二。",
        "一。<br/>二。",
        "<ul><li>一。<li>二。</ul>",
        "<h1>一。</h1>二。",
    ],
)
def test_block_elements_end_a_line(convert, text):
    assert [line.strip() for line in convert(text).splitlines() if line.strip()] == ["一。", "二。"]


def test_cells_stay_apart(convert):
    assert convert("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>").split() == ["a", "b", "c"]


def test_line_breaks_of_a_page_are_white_space_and_those_of_a_text_with_some_tags_stay(convert):
    assert convert("<p>one\n   two</p>") == "one two"
    assert convert("one <b>bold</b>\ntwo\n\nthree") == "one bold\ntwo\n\nthree"


def test_preformatted_text_keeps_its_lines(convert):
    assert convert("<pre>def f():\n    return 1</pre>") == "def f():\n    return 1"


@pytest.mark.parametrize(
    "piece", ["<", "<!", "<!--", "<a ", "<![CDATA[", "<div>", "&", "&a", "<p a='", " ", "<br ", "<a" + " " * 500]
)
def test_no_input_takes_long(convert, piece):
    text = piece * (60_000 // len(piece))
    started = time.perf_counter()
    convert(text)
    convert(f"{text}</p>")
    assert time.perf_counter() - started < 5  # the parser of the standard library takes minutes for some
