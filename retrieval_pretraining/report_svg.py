"""From a matplotlib figure to SVG that lives inside an HTML page: its texts are texts, its colours those of the page.

A figure is drawn in stand-in colours, `ink("series-1")`, which become `var(--series-1)`; so one drawing serves light
and dark. The page defines the variables from `PALETTE`. matplotlib (extra `eval`) is used through its objects only: no
pyplot, no window, no setting that outlives a drawing.
"""

import bisect
import html
import io
import itertools
import re
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from retrieval_pretraining.extras import import_extra

WIDTH = 360  # of a panel, in CSS pixels: a phone shows it at its full size

# name -> colour in light and in dark mode. Text in any of them has a contrast of 4.5 or more to the ground. The first
# four series and the reference keep well apart (Delta E above 15) for the three kinds of colour blindness, the others
# less so; no plot tells systems apart by colour alone.
PALETTE = {
    "text": ("#1d2227", "#e8e6e1"),
    "muted": ("#59626c", "#a3abb4"),
    "rule": ("#dde1e5", "#33393f"),
    "ground": ("#ffffff", "#15181b"),
    "raised": ("#f5f6f7", "#1e2226"),
    "link": ("#0b5cad", "#7db8f5"),
    "alarm": ("#8f3300", "#ffb27d"),
    "alarm-ground": ("#fdf1e7", "#33231a"),
    "reference": ("#59626c", "#a3abb4"),
    "series-1": ("#0067b0", "#5fb4f5"),
    "series-2": ("#cf3f12", "#ff7b3a"),
    "series-3": ("#0d5232", "#6df0a4"),
    "series-4": ("#85217a", "#cf70c4"),
    "series-5": ("#6a4a00", "#fdd44f"),
    "series-6": ("#5a2ccf", "#9287ff"),
    "series-7": ("#cc2e7a", "#f4c9fe"),
    "series-8": ("#3d8109", "#a5cf7f"),
}
SERIES = sum(name.startswith("series-") for name in PALETTE)

_INKS = {name: f"#0fab{number:02x}" for number, name in enumerate(PALETTE)}
_NAMES = {color: name for name, color in _INKS.items()}
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "retromae-gur",
    "text.parse_math": False,  # a name may hold a dollar sign
    "axes.unicode_minus": True,
    "font.size": 12,
    "path.simplify": True,
}


def ink(name: str) -> str:
    """The stand-in of a colour of `PALETTE`, for matplotlib."""
    return _INKS[name]


@contextmanager
def drawing(height: float, width: float = WIDTH) -> Iterator:
    """A figure of `width` x `height` pixels to draw on; add axes with `add_axes(figure, ...)`."""
    matplotlib = import_extra("matplotlib")
    figure_class = import_extra("matplotlib.figure").Figure
    canvas = import_extra("matplotlib.backends.backend_svg").FigureCanvasSVG
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # its own font measures the text, the reader's shows it: that the former has no Chinese does not matter
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = figure_class(figsize=(width / 72, height / 72), facecolor="none")
        canvas(figure)
        yield figure


def add_axes(figure, left: float, right: float, top: float, bottom: float):
    """Bare axes with these margins in pixels: no box; muted numbers, where ticks are set."""
    width, height = (72 * inches for inches in figure.get_size_inches())
    axes = figure.add_axes(
        [left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height]
    )
    axes.set_facecolor("none")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelsize=11, labelcolor=ink("muted"), pad=5)
    return axes


def round_numbers(low: float, high: float) -> list[float]:
    """Three to six round numbers from `low` to `high`."""
    reach = high - low
    step = 10.0 ** np.floor(np.log10(reach / 3)) if reach > 0 else 1.0
    step *= next((factor for factor in (1, 2, 5, 10) if reach / (factor * step) <= 5), 10)
    first = int(np.ceil(low / step - 1e-9))
    return [round(i * step, 10) for i in range(first, int(np.floor(high / step + 1e-9)) + 1)]


def mark_axis(axis, numbers: Sequence[float]):
    """Puts these numbers, and no others, at an axis (`axes.xaxis`, `axes.yaxis`)."""
    axis.set_ticks(numbers, [f"{value:g}".replace("-", "−") for value in numbers])


def write(axes, x: float, y: float, text: str, color: str = "text", size: float = 12, **options):
    """Text at a place of the axes' data, in a colour of `PALETTE`."""
    return axes.text(x, y, clean(text), color=ink(color), fontsize=size, **options)


def write_title(figure, text: str, note: str = ""):
    """A panel's title at its upper left, and a muted note below it."""
    height = 72 * figure.get_size_inches()[1]
    figure.text(0, 1 - 14 / height, clean(text), color=ink("text"), fontsize=13, fontweight="bold")
    if note:
        figure.text(0, 1 - 30 / height, clean(note), color=ink("muted"), fontsize=11)


def write_legend(figure, entries: Sequence[tuple[str, str]]):
    """Names in their colours (of `PALETTE`) below the title, each behind a dot."""
    width, height = (72 * inches for inches in figure.get_size_inches())
    for number, line in enumerate(legend_lines(entries, width)):
        for x, name, color in line:
            figure.text(x / width, 1 - (32 + 18 * number) / height, f"● {name}", color=ink(color), fontsize=12)


def legend_lines(entries: Sequence[tuple[str, str]], width: float = WIDTH) -> list[list[tuple[float, str, str]]]:
    """(x, name, color) of each entry of a legend, on as many lines as they need; one takes 18 pixels."""
    lines: list[list[tuple[float, str, str]]] = []
    x = width
    for name, color in entries:
        needed = 26 + 7 * len(name) + 6 * sum(unicodedata.east_asian_width(letter) in "WF" for letter in name)
        if x + needed > width:
            lines.append([])
            x = 0
        lines[-1].append((x, name, color))
        x += needed
    return lines


def to_svg(figure, *, label: str, prefix: str, titles: Mapping[str, Sequence[str]] | None = None) -> str:
    """The figure as an `<svg>` element.

    `label`: what it shows, for those who cannot see it. `prefix`: makes its ids unique on the page. `titles`: for the
    markers of lines with these gids (drawn by `plot`), one text each, shown on hover; they become circles.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    svg = buffer.getvalue()
    body = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    # matplotlib's style sheet would hold for the whole page, whose own one says the same
    body = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = re.sub(r"<[^>]+>", lambda tag: _simplified(tag.group()), body)
    for gid, texts in (titles or {}).items():
        body = _with_titles(body, gid, texts)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', body))
    body = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m.group(1)}"' if m.group(1) in used else "", body)
    body = re.sub(r'(href="|url\()#', rf"\g<1>#{prefix}-", body)
    body = re.sub(r">\s+<", "><", body)
    width, height = (round(72 * inches) for inches in figure.get_size_inches())
    return (
        f'<svg class="plot" role="img" aria-label="{html.escape(clean(label))}" viewBox="0 0 {width} {height}">'
        f"{body.strip()}</svg>"
    )


def printable(text: str) -> str:
    """The text without what a page cannot hold: control characters, half a surrogate pair."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


def clean(text: str, limit: int | None = None) -> str:
    """The printable text on one line, cut at `limit` columns; a Chinese character takes two."""
    text = " ".join(printable(text).split())
    ends = list(itertools.accumulate(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text))
    if limit is None or not ends or ends[-1] <= limit:
        return text
    return text[: bisect.bisect_right(ends, limit - 1)].rstrip() + "…"


def _simplified(tag: str) -> str:
    """A tag with the page's font, two decimals, and no empty rotations."""
    tag = " ".join(tag.split()).replace("xlink:href", "href")
    tag = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", tag)
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    tag = re.sub(r"font: (?:(\d+) )?([\d.]+px) [^;\"]*", _font, tag)  # before matplotlib 3.10
    tag = re.sub("#0fab[0-9a-f]{2}", lambda color: f"var(--{_NAMES[color.group()]})", tag)
    return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number.group()):.2f}".rstrip("0").rstrip("."), tag)


def _font(match: re.Match) -> str:
    weight, size = match.groups()
    return f"font-size: {size}" + (f"; font-weight: {weight}" if weight else "")


def _with_titles(body: str, gid: str, texts: Sequence[str]) -> str:
    """The markers of a line as circles, their style on their group, each with its text."""
    start = body.index(f'<g id="{gid}">')
    end = body.index("</g>", body.index("<use", start))
    uses = re.findall(r'<use href="[^"]*" x="([^"]*)" y="([^"]*)" style="([^"]*)"/>', body[start:end])
    circles = "".join(
        f'<circle cx="{x}" cy="{y}" r="3"><title>{html.escape(clean(text))}</title></circle>'
        for (x, y, _), text in zip(uses, texts, strict=True)
    )
    return f'{body[:start]}<g style="{uses[0][2]}"><g>{circles}{body[end:]}'
