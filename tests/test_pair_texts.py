import random

import pytest

from retrieval_pretraining.pair_texts import join_neighbours, random_crop, surroundings

TEXT = "One. Two!  三三。Four four four. Five"
SENTENCES = ["One.", "Two!", "三三。", "Four four four.", "Five"]
PLACES = [(TEXT.index(sentence), TEXT.index(sentence) + len(sentence)) for sentence in SENTENCES]


def random_text(generator: random.Random) -> tuple[str, list[tuple[int, int]]]:
    text, places = "", []
    for number in range(generator.randint(1, 8)):
        sentence = f"{chr(0x4E00 + number)}{'词' * generator.randint(0, 12)}。"
        places.append((len(text), len(text) + len(sentence)))
        text += sentence + " " * generator.randint(0, 2)
    return text, places


# --- surroundings ---


@pytest.mark.parametrize(
    "number, expected",
    [
        (0, "Two!  三三。Four four four. Five"),
        (2, "One. Two!  Four four four. Five"),
        (4, "One. Two!  三三。Four four four."),
        (-1, TEXT),
    ],
)
def test_surroundings_are_the_text_without_the_sentence(number, expected):
    assert surroundings(TEXT, PLACES, number, max_length=1000) == expected


@pytest.mark.parametrize(
    "max_length, expected",
    [
        (4, ""),
        (6, "Two!"),
        (21, "Two!  Four four four."),
        (26, "One. Two!  Four four four."),
        (31, "One. Two!  Four four four. Five"),
    ],
)
def test_surroundings_grow_sentence_by_sentence_on_both_sides_while_they_fit(max_length, expected):
    assert surroundings(TEXT, PLACES, 2, max_length=max_length) == expected


def test_the_surroundings_of_what_precedes_the_text_are_its_beginning():
    assert surroundings(TEXT, PLACES, -1, max_length=10) == "One. Two!"


def test_surroundings_never_hold_the_sentence_nor_exceed_the_limit():
    generator = random.Random(0)
    for _ in range(1000):
        text, places = random_text(generator)
        number, limit = generator.randrange(len(places)), generator.randint(1, 60)
        sentence = text[slice(*places[number])]
        around = surroundings(text, places, number, max_length=limit)
        assert len(around) <= limit and sentence not in around
        whole = [text[one:other] for one, other in places if text[one] in around]
        assert all(sentence in around for sentence in whole), "whole sentences"


def test_a_sentence_that_stands_twice_is_left_out_at_both_places():
    text = "Alpha. Bravo. Alpha. Charlie."
    around = surroundings(text, [(0, 6), (7, 13), (21, 29)], 0, max_length=100, without=[(14, 20)])
    assert around.split() == ["Bravo.", "Charlie."]


def test_a_sentence_that_is_alone_has_no_surroundings():
    assert surroundings("Alone.", [(0, 6)], 0, max_length=100) == ""


# --- joining ---


def joined(used, *, max_length=1000):
    places, taken = join_neighbours(PLACES, set(used), max_length=max_length)
    return [TEXT[begin:end] for begin, end in places], taken


def test_a_left_over_sentence_goes_to_the_used_one_before_it():
    texts, taken = joined({0, 3})
    assert texts[0] == "One. Two!  三三。" and texts[3] == "Four four four. Five"
    assert taken == {1, 2, 4}


def test_what_precedes_all_used_ones_goes_to_the_first():
    texts, taken = joined({2})
    assert texts[2] == TEXT and taken == {0, 1, 3, 4}


def test_what_does_not_fit_before_goes_behind():
    texts, taken = joined({0, 2}, max_length=10)
    assert texts[0] == "One. Two!" and texts[2] == "三三。" and taken == {1}
    texts, taken = joined({0, 2}, max_length=8)
    assert texts[0] == "One." and texts[2] == "三三。" and taken == set()
    assert joined({0, 4}, max_length=22)[0][4] == "Four four four. Five"


def test_nothing_is_joined_where_nothing_is_used():
    assert joined(set()) == (SENTENCES, set())


def test_joined_texts_stand_in_the_text_and_each_left_over_sentence_goes_to_one_only():
    generator = random.Random(1)
    for _ in range(2000):
        _, places = random_text(generator)
        used = {number for number in range(len(places)) if generator.random() < 0.4}
        limit = generator.randint(14, 60)
        grown, taken = join_neighbours(places, used, max_length=limit)
        assert not taken & used
        held = [number for owner in used for number, place in enumerate(places) if _within(place, grown[owner])]
        assert sorted(held) == sorted(used | taken)
        assert all(_within(places[number], grown[number]) for number in used)
        assert all(end - begin <= limit for begin, end in (grown[number] for number in used))
        assert all(grown[number] == places[number] for number in range(len(places)) if number not in used)


def _within(inner, outer) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


# --- crops ---


def test_a_crop_is_a_piece_of_the_text_of_whole_words():
    text = " ".join(f"word{number}" for number in range(100, 300))
    words = set(text.split())
    generator = random.Random(2)
    for _ in range(500):
        piece = random_crop(text, generator, min_length=20, max_length=1000)
        assert piece in text and piece == piece.strip() and set(piece.split()) <= words
        assert len(piece) <= len(text) / 2 + 1


def test_a_crop_of_chinese_text_is_cut_anywhere():
    text = "".join(chr(0x4E00 + number) for number in range(200))
    generator = random.Random(3)
    pieces = [random_crop(text, generator, min_length=2, max_length=1000) for _ in range(500)]
    assert all(piece in text and 10 <= len(piece) <= 100 for piece in pieces)
    assert min(map(len, pieces)) < 15 and max(map(len, pieces)) > 95
    assert any(piece.startswith(text[0]) for piece in pieces) or len({piece[0] for piece in pieces}) > 80


def test_a_crop_keeps_to_its_limits_where_the_text_allows():
    text = "字" * 1000
    generator = random.Random(4)
    lengths = [len(random_crop(text, generator, min_length=80, max_length=120)) for _ in range(300)]
    assert min(lengths) == 80 and max(lengths) == 120
    assert random_crop("短", generator, min_length=5, max_length=10) == "短"


def test_crops_are_drawn_from_the_generator_they_are_given():
    text = "字词" * 300
    draws = [random_crop(text, random.Random(seed), min_length=2, max_length=500) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] and len(draws[0]) != len(draws[2])
