"""The page in a real browser: on a phone and on a desk, light and dark, on paper, without a network.

Needs Chromium or Chrome on the path (Debian: `apt-get install chromium`); skipped where there is none.
"""

import base64
import io
import re

import pytest
from headless_browser import Browser, find_browser
from report_results import bm25_only, full

from retrieval_pretraining.report_page import write_report

Image = pytest.importorskip("PIL.Image", reason="Pillow comes with matplotlib, of the extra eval")
pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome on the path")

PHONE, DESK = 375, 1200

# Of every text: its contrast to what is behind it (WCAG 2), with its first words.
CONTRASTS = """(() => {
  const channels = color => color.match(/[\\d.]+/g).map(Number)
  const luminance = color => {
    const [r, g, b] = channels(color).map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    return .2126 * r + .7152 * g + .0722 * b
  }
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor
      if (channels(color)[3] !== 0) return color
    }
  }
  const found = []
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, words = walker.currentNode.textContent.trim()
    if (!words || element.closest('title')) continue
    const style = getComputedStyle(element)
    const color = element.closest('svg') ? style.fill : style.color
    const [dark, light] = [luminance(color), luminance(ground(element))].sort((a, b) => a - b)
    found.push([(light + .05) / (dark + .05), words.slice(0, 40)])
  }
  return found
})()"""

# Texts that reach beyond their plot, and plots without a size.
CUT_OFF = """[...document.querySelectorAll('svg text')].filter(text => {
  const box = text.getBoundingClientRect(), plot = text.closest('svg').getBoundingClientRect()
  return box.width && (box.left < plot.left - 4 || box.right > plot.right + 4 || box.bottom > plot.bottom + 4)
}).map(text => text.textContent)"""
HIDDEN = """[...document.querySelectorAll('svg.plot')].filter(svg => {
  const box = svg.getBoundingClientRect()
  return box.width < 200 || box.height < 50
}).length"""
OPEN_ALL = "document.querySelectorAll('details').forEach(details => { details.open = true })"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(find_browser(), tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    results = full(datasets=("中文问答",))
    results["systems"].append({"name": "a system with a long name, all of it", "kind": "dense"})
    history = [{"step": step, "lm_loss": 9 - step / 1000} for step in range(100, 1100, 100)]
    results["training"].append({"system": results["systems"][-1]["name"], "log_history": history})
    return write_report(results, tmp_path_factory.mktemp("report"))["report.html"]


@pytest.fixture(scope="module")
def page(browser, report):
    return browser.open(report, width=PHONE)


def test_nothing_is_requested_but_the_file(page):
    assert [url.split("/")[-1] for url in page.requests()] == ["report.html"]


@pytest.mark.parametrize("width", [320, PHONE, DESK])
def test_the_page_does_not_scroll_sideways(page, width):
    page.look(width=width)
    for state in ("folded", "open"):
        sizes = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]")
        assert max(sizes[:2]) <= width == sizes[2], state
        page.evaluate(OPEN_ALL)


def test_wide_tables_scroll_in_their_own_box(page):
    page.look(width=PHONE)
    wide = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).length"
    assert page.evaluate(wide) > 0
    assert page.evaluate(
        "document.querySelectorAll('table').length === document.querySelectorAll('.scroll > table').length"
    )


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_can_be_read(page, dark):
    page.look(width=PHONE, dark=dark)
    page.evaluate(OPEN_ALL)
    found = page.evaluate(CONTRASTS)
    assert len(found) > 300
    assert [(round(contrast, 2), words) for contrast, words in found if contrast < 4.5] == []


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_plots_are_whole(page, width):
    page.look(width=width)
    page.evaluate(OPEN_ALL)
    assert page.evaluate(CUT_OFF) == [] and page.evaluate(HIDDEN) == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_screenshot_shows_the_plots_in_their_colours(page, width, dark, tmp_path):
    page.look(width=width, dark=dark)
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = false })")
    boxes = page.evaluate(
        "[...document.querySelectorAll('svg.plot')].filter(svg => svg.checkVisibility()).map(svg => {"
        "const b = svg.getBoundingClientRect(); return [b.x, b.y + scrollY, b.right, b.bottom + scrollY] })"
    )
    image = Image.open(io.BytesIO(page.screenshot(tmp_path / "page.png"))).convert("RGB")
    assert image.width == width and image.height > 2000
    ground = (0x15, 0x18, 0x1B) if dark else (0xFF, 0xFF, 0xFF)
    series = {(0x5F, 0xB4, 0xF5), (0xFF, 0x7B, 0x3A)} if dark else {(0x00, 0x67, 0xB0), (0xCF, 0x3F, 0x12)}
    assert image.getpixel((2, 2)) == ground
    in_colour = 0
    for box in boxes:
        of_plot = image.crop([round(edge) for edge in box])
        drawn = {color: count for count, color in of_plot.getcolors(maxcolors=1 << 20)}
        assert sum(count for color, count in drawn.items() if color != ground) > 500
        in_colour += bool(series & drawn.keys())
    assert len(boxes) == in_colour == 13


def test_a_point_of_the_map_tells_its_text(page):
    assert page.evaluate("document.querySelector('.map circle title').textContent") == "queries: text 0 <b> 文本"


def test_paper_is_light_and_as_wide_as_it_is(page):
    page.look(width=800, dark=True, media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") == 800
    pdf = base64.b64decode(page.send("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert pdf.startswith(b"%PDF") and len(pdf) > 50_000


def test_the_smallest_report_is_right_too(browser, tmp_path):
    page = browser.open(write_report(bm25_only(), tmp_path)["report.html"], width=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE
    empty = "[...document.querySelectorAll('section, figure, div, ul, p')].filter(e => !e.textContent.trim()).length"
    assert page.evaluate(empty) == 0
    assert re.search("BM25 reaches 0.676", page.evaluate("document.body.innerText"))
