"""HTML -> text, where a text is HTML; "a < b and c > d" and "the <p> tag" are not.

Tags, comments, scripts and style sheets go, entities become characters, and block elements end a line. The parser is
that of Resiliparse (HTML 5, no regular expressions), which no input slows down.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from html.entities import html5

from retrieval_pretraining.extras import import_extra

_VOID = "br|hr|img|input|meta|link|wbr|col|embed|source"
_BLOCK = (
    "address|article|aside|blockquote|body|caption|center|dd|details|dialog|div|dl|dt|fieldset|figcaption|figure|footer|"
    "form|h[1-6]|head|header|html|legend|li|main|nav|noscript|ol|optgroup|option|p|pre|script|section|select|style|"
    "summary|table|tbody|td|template|textarea|tfoot|th|thead|title|tr|ul"
)
_INLINE = (
    "a|abbr|acronym|audio|b|bdi|bdo|big|button|canvas|cite|code|del|dfn|em|font|i|iframe|ins|kbd|label|map|mark|math|"
    "meter|nobr|object|output|picture|q|rp|rt|ruby|s|samp|small|span|strike|strong|sub|sup|svg|time|tt|u|var|video"
)
_NAME = f"(?:{_VOID}|{_BLOCK}|{_INLINE})"
_BEGINS_WITH_TAG = re.compile(rf"\s*<{_NAME}(?:\s[^<>]*)?/?>", re.IGNORECASE)
# A tag that closes, stands alone or has an attribute; prose that names a tag has none of these.
_HAS_TAG = re.compile(
    rf"<(?:/{_NAME}\s*>|(?:{_VOID})(?:\s[^<>]*)?/?>|{_NAME}\s+[a-z][\w:-]*\s*=|!doctype\s+html|!--)", re.IGNORECASE
)
_HAS_BLOCK = re.compile(rf"<(?:br|hr|{_BLOCK})\b", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_OPTIONS = {"preserve_formatting": True, "list_bullets": False, "alt_texts": False}


def html_to_text() -> Callable[[str], str]:
    """The function that does it; `InputError` where Resiliparse is not installed."""
    extract = import_extra("resiliparse.extract.html2text", "cleaning").extract_plain_text

    def convert(text: str) -> str:
        if "<" in text and is_html(text):
            if not _HAS_BLOCK.search(text):
                # A text with some tags in its lines, whose line breaks are not the white space of a page.
                text = text.replace("\n", "<br>\n")
            return extract(text, **_OPTIONS)
        return _ENTITY.sub(_character, text) if "&" in text else text

    return convert


def is_html(text: str) -> bool:
    return _BEGINS_WITH_TAG.match(text) is not None or _HAS_TAG.search(text) is not None


def _character(entity: re.Match[str]) -> str:
    if entity[0][1] == "#":
        return html.unescape(entity[0])
    # Not `html.unescape`, which takes "&notit;" for "&not;" and something more.
    return html5.get(entity[0][1:], entity[0])
