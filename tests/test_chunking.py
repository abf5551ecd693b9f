import itertools

import numpy as np
import pytest
from tokenizers_for_tests import SENTENCES, bert_tokenizer, unigram_tokenizer

from retrieval_pretraining.chunking import check_chunking, cut_at_sentences, cut_evenly, sentence_ends
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.passages import encode_documents


def cut(ends, room, *, words=None, **options):
    words = np.arange(ends[-1]) if words is None else np.array(words)
    return cut_at_sentences(np.array(ends), words, room, **options)


@pytest.mark.parametrize(
    ("ends", "room", "expected"),
    [
        ([4, 9, 12], 12, [(0, 12)]),
        ([4, 9, 12], 10, [(0, 9), (9, 12)]),
        ([4, 9, 12], 8, [(0, 4), (4, 12)]),
        ([10, 40], 12, [(0, 12), (12, 24), (24, 36), (36, 40)]),  # the long one begins where there is room
        ([30, 35, 40], 12, [(0, 12), (12, 24), (24, 35), (35, 40)]),
        ([5], 5, [(0, 5)]),
    ],
)
def test_chunks_end_with_the_last_sentence_that_fits(ends, room, expected):
    assert cut(ends, room) == expected


def test_a_sentence_too_long_for_a_chunk_is_cut_between_words():
    assert cut([30], 10, words=[0, 4, 8, 12, 18, 24]) == [(0, 8), (8, 18), (18, 24), (24, 30)]


def test_a_word_too_long_for_a_chunk_is_cut_where_the_chunk_is_full():
    assert cut([30], 10, words=[0, 3]) == [(0, 10), (10, 20), (20, 30)]


def test_overlap_is_whole_sentences_where_one_is_short_enough():
    assert cut([4, 8, 12, 16, 20], 12, overlap=5) == [(0, 12), (8, 20)]


def test_overlap_is_words_where_no_sentence_is_short_enough():
    assert cut([8, 16, 24], 16, words=range(0, 24, 2), overlap=5) == [(0, 16), (12, 24)]


def test_overlap_gives_way_to_a_sentence_that_would_be_cut():
    assert cut([10, 19], 10, overlap=4) == [(0, 10), (9, 19)]
    assert cut([10, 20], 10, overlap=4) == [(0, 10), (10, 20)]


def test_even_chunks_are_full_but_for_the_last():
    assert cut_evenly(25, 10) == [(0, 10), (10, 20), (20, 25)]
    assert cut_evenly(25, 10, overlap=4) == [(0, 10), (6, 16), (12, 22), (18, 25)]
    assert cut_evenly(16, 10, overlap=4) == [(0, 10), (6, 16)]
    assert cut_evenly(8, 10) == [(0, 8)]


@pytest.mark.parametrize("share_of_overlap", [0, 1, 3])
def test_any_document_keeps_its_tokens_and_its_short_sentences(share_of_overlap):
    generator = np.random.default_rng(0)
    for _ in range(500):
        total, room = int(generator.integers(1, 80)), int(generator.integers(1, 20))
        ends = np.unique(np.append(generator.integers(1, total + 1, size=generator.integers(0, 15)), total))
        words = np.unique(np.append(generator.integers(0, total, size=total), 0))
        overlap = room // 2 * share_of_overlap // 3
        chunks = cut_at_sentences(ends, words, room, overlap=overlap)
        assert chunks[0][0] == 0 and chunks[-1][1] == total
        assert all(0 < end - begin <= room for begin, end in chunks)
        for (begin, end), (after, end_after) in itertools.pairwise(chunks):
            assert begin < after <= end < end_after and end - after <= overlap
        for begin, end in zip([0, *ends[:-1]], ends):
            if end - begin <= room:
                assert any(one <= begin and end <= other for one, other in chunks), (ends, room, chunks)


@pytest.mark.parametrize("make", [bert_tokenizer, unigram_tokenizer])
def test_sentences_of_a_text_end_where_the_next_one_begins(make):
    tokenizer = make()
    text = "The cat sat. The dog ran away!  我们使用它。 A mat"
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    ends = sentence_ends(text, np.array([begin for begin, _ in offsets]))
    bounds = [0, *ends.tolist()]
    pieces = [text[offsets[one][0] : offsets[other - 1][1]].strip() for one, other in itertools.pairwise(bounds)]
    assert pieces == ["The cat sat.", "The dog ran away!", "我们使用它。", "A mat"]


def test_passages_of_a_long_document_are_whole_sentences():
    tokenizer = bert_tokenizer()
    sentences = [f"{sentence.rstrip('.')}." for sentence in SENTENCES[:12]]
    longest = max(len(tokenizer(sentence)["input_ids"]) for sentence in sentences)
    encoded = encode_documents([" ".join(sentences)], tokenizer, max_seq_length=2 * longest)
    whole = [tokenizer(sentence, add_special_tokens=False)["input_ids"] for sentence in sentences]
    assert len(encoded["input_ids"]) > 2
    for ids in encoded["input_ids"]:
        ids = ids[1:-1]
        while ids:
            sentence = whole.pop(0)
            assert ids[: len(sentence)] == sentence
            ids = ids[len(sentence) :]
    assert whole == []


def test_words_of_a_chunk_are_numbered_from_its_own_begin_with_overlap_too():
    encoded = encode_documents([" ".join(SENTENCES) * 3], bert_tokenizer(), max_seq_length=32, overlap=10)
    for words in encoded["word_ids"]:
        assert words[1] <= 0 and max(words) < len(words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunk_boundary": "page", "overlap": 0}, "sentence or token"),
        ({"chunk_boundary": "token", "overlap": -1}, "0 or more"),
        ({"chunk_boundary": "token", "overlap": 6}, "at most 5"),
    ],
)
def test_impossible_chunks_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        check_chunking(**options, room=10)
