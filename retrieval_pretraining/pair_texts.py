"""Pieces of a document that are no single sentence: what stands around one, a sentence with its neighbours, a crop.

All are cut from the text as it stands; places are (begin, end) in characters, sentence by sentence.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

Place = tuple[int, int]


def surroundings(
    text: str, places: list[Place], number: int, *, max_length: int, without: Iterable[Place] = ()
) -> str:
    """What stands around a sentence, without it: whole sentences, before and behind in turn, while they fit.

    `number` -1 stands for what precedes the text, such as its title: then it is the beginning of the text. `without`
    are further places that are left out, where the same sentence stands again.
    """
    begin, end = places[number] if number >= 0 else (0, 0)
    left, right = begin, end
    before, behind = number - 1, number + 1
    grown = True
    while grown:
        grown = False
        if before >= 0 and (begin - places[before][0]) + (right - end) <= max_length:
            left, before, grown = places[before][0], before - 1, True
        if behind < len(places) and (begin - left) + (places[behind][1] - end) <= max_length:
            right, behind, grown = places[behind][1], behind + 1, True
    kept, at = [], left
    for cut_begin, cut_end in sorted([(begin, end), *without]):
        if left <= cut_begin and cut_end <= right:
            kept.append(text[at:cut_begin])
            at = cut_end
    return "".join([*kept, text[at:right]]).strip()


def join_neighbours(places: list[Place], used: set[int], *, max_length: int) -> tuple[list[Place], set[int]]:
    """The places of the `used` sentences after the others were joined to them, and the sentences that were joined.

    A sentence goes to the nearest used one before it, else to the one behind it, if the whole does not get longer
    than `max_length`.
    """
    joined: set[int] = set()
    grown = list(places)
    for step, order in ((1, sorted(used)), (-1, sorted(used, reverse=True))):
        for owner in order:
            neighbour = owner + step
            while 0 <= neighbour < len(places) and neighbour not in used and neighbour not in joined:
                begin = min(grown[owner][0], places[neighbour][0])
                end = max(grown[owner][1], places[neighbour][1])
                if end - begin > max_length:
                    break
                grown[owner] = (begin, end)
                joined.add(neighbour)
                neighbour += step
    return grown, joined


def random_crop(text: str, generator: random.Random, *, min_length: int, max_length: int) -> str:
    """A random piece of 5 to 50 % of the text (Contriever: Izacard et al., 2022, arXiv 2112.09118), whole words."""
    length = min(max(round(len(text) * generator.uniform(0.05, 0.5)), min_length), max_length)
    begin = generator.randrange(max(1, len(text) - length + 1))
    end = min(begin + length, len(text))
    while begin < end and _inside_word(text, begin):
        begin += 1
    while begin < end and _inside_word(text, end):
        end -= 1
    return text[begin:end].strip()


def _inside_word(text: str, at: int) -> bool:
    """Whether a word goes on across this place. Scripts that put no space between words have no such places."""
    return 0 < at < len(text) and all(
        character.isalnum() and ord(character) < 0x2E80 for character in text[at - 1 : at + 1]
    )
