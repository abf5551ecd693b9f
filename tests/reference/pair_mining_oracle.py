"""What makes two sentences a pair, one pair and one character at a time (GUR, arXiv 2306.10056, section 3.1)."""

import unicodedata


def normalise(text: str) -> str:
    return "".join(character.lower() if len(character.lower()) == 1 else character for character in text)


def character_weight(character: str) -> int:
    if not unicodedata.category(character).startswith("L"):
        return 1
    return 10 if unicodedata.east_asian_width(character) == "W" else 3


def weight(text: str) -> int:
    return sum(character_weight(character) for character in text)


def heaviest_common_substring(one: str, other: str) -> tuple[int, set[str]]:
    """The weight of the heaviest common substring, and all substrings that weigh as much, by the textbook table."""
    one, other = normalise(one), normalise(other)
    best, found = 0, set()
    before = [0] * (len(other) + 1)
    for i in range(1, len(one) + 1):
        row = [0] * (len(other) + 1)
        for j in range(1, len(other) + 1):
            if one[i - 1] == other[j - 1]:
                row[j] = before[j - 1] + 1
                substring = one[i - row[j] : i]
                heavy = weight(substring)
                if heavy > best:
                    best, found = heavy, set()
                if heavy == best:
                    found.add(substring)
        before = row
    return best, found


def is_pair(one: str, other: str, *, full: int = 30, short: int = 20, short_sentence: int = 150) -> bool:
    heaviest, _ = heaviest_common_substring(one, other)
    return heaviest >= full or (heaviest >= short and min(weight(one), weight(other)) <= short_sentence)


def all_pairs(sentences: list[str], **thresholds: int) -> set[tuple[int, int]]:
    return {
        (i, j)
        for i in range(len(sentences))
        for j in range(i + 1, len(sentences))
        if is_pair(sentences[i], sentences[j], **thresholds)
    }
