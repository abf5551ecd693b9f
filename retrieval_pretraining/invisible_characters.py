"""What cannot be seen and means nothing: control characters, marks that a web page or an office program left behind.

What has a meaning stays. The joiners U+200C and U+200D shape letters of the scripts from Arabic to Mongolian, and
emoji of several parts, so they stay behind such letters and emoji; anywhere else they are left-overs. U+200B parts the
words of Thai, Lao, Burmese and Khmer, and stays between their letters. Tags (U+E0020 on) stay behind the black flag,
of which they make that of a region. Variation selectors stay: emoji and rare Han characters need them.
"""

from __future__ import annotations

import re

_LINE_ENDS = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
_SEPARATORS = re.compile("[\x1c-\x1f]")

# Bidirectional marks are here too: they say how a line is laid out, not what it says.
_ALWAYS = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"  # control characters
    "\u00ad\u061c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff"  # soft hyphen, bidirectional marks, operators
    "\ufff9-\ufffb\ufdd0-\ufdef\ufffe\uffff"  # annotation marks, no characters at all
)
_JOINED_LETTER = (
    "\u0600-\u085f\u08a0-\u0dff\u0f00-\u109f\u1780-\u18af\u1a20-\u1aaf\ua840-\ua87f\ua980-\ua9ff\uaa60-\uaa7f"
)
_EMOJI = "\u2190-\u21ff\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\ufe0f\U0001f000-\U0001faff"
_WORDS_WITHOUT_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\uaa60-\uaa7f"
_TAG = "\U000e0020-\U000e007f"

_INVISIBLE = re.compile(
    f"[{_ALWAYS}]+"
    f"|(?<![{_JOINED_LETTER}{_EMOJI}])[\u200c\u200d]+"
    f"|(?<![{_WORDS_WITHOUT_SPACES}])\u200b+|\u200b+(?![{_WORDS_WITHOUT_SPACES}])"
    f"|(?<![\U0001f3f4{_TAG}])[\U000e0001{_TAG}]+"
)
# Most texts have none of all these, which one class of characters tells ten times as fast.
_ANY = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200d\u2028\u2029\U000e0001{_TAG}{_ALWAYS}]")


def remove_control_characters(text: str) -> str:
    """The text without them. Every line end becomes a newline, and U+001C to U+001F a space: words stay apart."""
    if not _ANY.search(text):
        return text
    return _INVISIBLE.sub("", _SEPARATORS.sub(" ", _LINE_ENDS.sub("\n", text)))
