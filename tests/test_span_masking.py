"""Span corruption: the laws, what may be masked, sentinels that never run out, and texts that can be rebuilt."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from reference import span_masking_oracle as oracle

from retrieval_pretraining import masking
from retrieval_pretraining.span_masking import IGNORED, SPAN_LENGTHS, SpanLengths, corrupt_spans, span_mask

GOLDEN = json.loads((Path(__file__).parent / "golden" / "golden_gur.json").read_text(encoding="utf-8"))["masking"]
SENTINELS = np.arange(1099, 999, -1)
EOS, PAD = 1, 0


def texts_of(lengths, *, padding: int = 0, seed: int = 0):
    """Ids from 10 to 999 and an eos, word ids (a token is a word), and what is not padding."""
    lengths = np.asarray(lengths)
    position = np.arange(lengths.max() + 1 + padding)
    real = position <= lengths[:, None]
    ids = np.random.default_rng(seed).integers(10, 1000, real.shape)
    ids = np.where(position < lengths[:, None], ids, np.where(real, EOS, PAD))
    return ids, np.where(position < lengths[:, None], position, -1), real


def mask_of(ids, words, real, *, rate=0.15, law="hump_geometric", max_spans=100, whole_words=False, **generator):
    generator = masking.TextGenerator(ids, real, **generator)
    return span_mask(words, rate, SPAN_LENGTHS[law], generator, max_spans=max_spans, whole_words=whole_words)


def corrupt(ids, real, masked, begins, **options):
    return corrupt_spans(
        ids, real, masked, begins, sentinel_ids=SENTINELS, eos_token_id=EOS, pad_token_id=PAD, **options
    )


def lists(array, kept):
    return [row[flags].tolist() for row, flags in zip(array, kept)]


# --- The laws -----------------------------------------------------------------------------------------------------


def test_hump_geometric_is_the_golden_law():
    law = SPAN_LENGTHS["hump_geometric"]
    assert law.pmf == pytest.approx(GOLDEN["hump"]["pmf"], abs=1e-12)
    assert law.mean == pytest.approx(GOLDEN["hump"]["mean"], abs=1e-12)
    assert len(law.pmf) == GOLDEN["hump"]["upper"] and law.pmf.argmax() + 1 == GOLDEN["hump"]["mode"]


def test_the_means_of_the_other_laws():
    assert SPAN_LENGTHS["geometric"].mean == pytest.approx(3.797, abs=0.001)
    assert SPAN_LENGTHS["uniform"].mean == pytest.approx(3.0)


@pytest.mark.parametrize("law", SPAN_LENGTHS)
def test_drawn_lengths_follow_the_law(law):
    ids, _, real = texts_of([5] * 2000)
    drawn = SPAN_LENGTHS[law].draw(101, masking.TextGenerator(ids, real))
    shares = np.bincount(drawn.ravel(), minlength=len(SPAN_LENGTHS[law].pmf) + 1) / drawn.size
    assert shares[0] == 0 and shares[1:] == pytest.approx(SPAN_LENGTHS[law].pmf, abs=0.004)
    assert drawn.mean() == pytest.approx(SPAN_LENGTHS[law].mean, abs=0.03)


def test_spans_of_a_long_text_follow_the_law_but_for_the_one_cut_off():
    ids, words, real = texts_of([300] * 1500)
    masked, begins = mask_of(ids, words, real)
    lengths = [length for row in range(len(ids)) for _, length in oracle.spans_of(masked[row], begins[row])]
    shares = np.bincount(lengths, minlength=11)[1:] / len(lengths)
    assert shares == pytest.approx(SPAN_LENGTHS["hump_geometric"].pmf, abs=0.03)


def test_the_published_sampler_masks_what_is_known_of_it():
    for length, known in GOLDEN["author_law"].items():
        for seed in range(20):
            pmf = SPAN_LENGTHS["hump_geometric"].pmf.tolist()
            spans = oracle.published_spans(int(length), known["ratio"], pmf, random.Random(seed))
            masked = sum(count for _, count in spans)
            if int(length) <= 12:
                assert masked == known["masked_tokens"]
            assert all(begin + count < int(length) for begin, count in spans)


# --- What is masked -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("law", SPAN_LENGTHS)
@pytest.mark.parametrize("rate", [0.1, 0.15, 0.3, 0.5])
def test_the_rate_holds_at_every_length(rate, law, whole_words):
    for length in (2, 3, 5, 8, 13, 40, 128, 300):
        ids, words, real = texts_of([length] * (400_000 // (length + 200)))
        masked, begins = mask_of(ids, words, real, rate=rate, law=law, whole_words=whole_words)
        counts = masked.sum(axis=1)
        assert not masked[words < 0].any()
        assert counts.min() >= 1 and counts.max() <= length - 1
        assert np.abs(counts - rate * length).max() < 1 or rate * length < 1 or length - 1 < rate * length
        # a text so short that its rate is below one token has one masked all the same
        expected = max(rate, 1 / length)
        assert counts.mean() / length == pytest.approx(expected, abs=0.02)
        # spans that do not touch: each begins behind a token that is shown
        first = masked & ~np.pad(masked, ((0, 0), (1, 0)))[:, :-1]
        assert np.array_equal(first, begins)


@pytest.mark.parametrize("law", SPAN_LENGTHS)
@pytest.mark.parametrize("length", [2, 3, 4, 16, 100])
def test_every_position_can_be_masked(length, law):
    ids, words, real = texts_of([length] * 6000)
    masked, _ = mask_of(ids, words, real, law=law)
    shares = masked[:, :length].mean(axis=0)
    assert shares.min() > 0.003
    assert shares == pytest.approx(shares[::-1], abs=0.05)  # no end is favoured


def test_the_span_that_was_cut_off_is_anywhere():
    # Of four spans of five units and one of two, none but the last drawn is short.
    ids, words, real = texts_of([100] * 4000)
    law = SpanLengths(np.array([0.0, 0, 0, 0, 1]))
    masked, begins = span_mask(words, 0.22, law, masking.TextGenerator(ids, real), max_spans=100)
    short = np.zeros(5)
    for row in range(len(ids)):
        lengths = [length for _, length in oracle.spans_of(masked[row], begins[row])]
        if sorted(lengths) == [2, 5, 5, 5, 5]:
            short[lengths.index(2)] += 1
    assert short.sum() > 1000 and short / short.sum() == pytest.approx(np.full(5, 0.2), abs=0.03)


def test_a_text_of_one_token_or_none_stays_as_it_is():
    ids, words, real = texts_of([1, 0, 1])
    masked, begins = mask_of(ids, words, real, rate=0.5)
    assert not masked.any() and not begins.any()
    inputs, read, targets = corrupt(ids, real, masked, begins)
    assert np.array_equal(inputs, ids) and np.array_equal(read, real) and targets.tolist() == [[EOS]] * 3


WORDS = [0, 1, 1, 2, 3, 3, 3, 4, 5, 6, 6, 7, 8, 9, 10, 11, 11, 12, 13, -1]


@pytest.mark.parametrize("law", SPAN_LENGTHS)
def test_pieces_of_a_word_share_a_decision(law):
    ids, _, real = texts_of([len(WORDS) - 1] * 3000)
    masked, _ = mask_of(ids, np.tile(WORDS, (3000, 1)), real, rate=0.3, law=law, whole_words=True)
    shares = []
    for word in range(14):
        pieces = masked[:, np.array(WORDS) == word]
        assert (pieces == pieces[:, :1]).all()
        shares.append(pieces[:, 0].mean())
    assert np.mean(shares) == pytest.approx(0.3, abs=0.01) and min(shares) > 0.05
    tokens, _ = mask_of(ids, np.tile(WORDS, (3000, 1)), real, rate=0.3, law=law)
    assert (tokens[:, 4] != tokens[:, 6]).any()  # without it they need not


@pytest.mark.parametrize("max_spans", [1, 2, 5])
@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_sentinels_never_run_out_and_the_rate_holds(rate, max_spans):
    ids, words, real = texts_of([60, 200, 300, 7] * 300)
    masked, begins = mask_of(ids, words, real, rate=rate, law="uniform", max_spans=max_spans)
    assert begins.sum(axis=1).max() == max_spans and begins.sum(axis=1).min() >= 1
    for kind in range(4):
        content = (words[kind] >= 0).sum()
        assert masked[kind::4].sum(axis=1).mean() / content == pytest.approx(max(rate, 1 / content), abs=0.02)
    longest = [max(length for _, length in oracle.spans_of(masked[row], begins[row])) for row in (1, 2)]
    assert min(longest) >= rate * 200 / max_spans - 1
    for row in (1, 2):  # what is missing goes to all of them
        lengths = [length for _, length in oracle.spans_of(masked[row], begins[row])]
        assert max(lengths) - min(lengths) <= 5


@pytest.mark.parametrize("max_spans", [2, 100])
def test_special_tokens_inside_stay_and_part_a_span(max_spans):
    ids, words, real = texts_of([40] * 500)
    words[:, 3:40:4] = -1
    masked, begins = mask_of(ids, words, real, rate=0.5, max_spans=max_spans)
    assert not masked[words < 0].any() and masked.any(axis=1).all() and begins.sum(axis=1).max() <= max_spans
    inputs, read, targets = corrupt(ids, real, masked, begins)
    for before, after, target in zip(lists(ids, real), lists(inputs, read), lists(targets, targets != IGNORED)):
        assert oracle.restore(after, target, SENTINELS.tolist()) == before
    if max_spans == 100:
        assert masked.sum() / (words >= 0).sum() == pytest.approx(0.5, abs=0.02)


# --- Input and target ---------------------------------------------------------------------------------------------


def test_the_golden_example():
    """Two spans of a Chinese sentence, as the paper paints them."""
    paint = GOLDEN["paint"]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(paint["tokens"]), start=10)}
    vocabulary.update({f"<extra_id_{number}>": SENTINELS[number] for number in range(2)})
    ids = np.array([[vocabulary[token] for token in paint["tokens"]]])
    masked, begins = np.zeros_like(ids, dtype=bool), np.zeros_like(ids, dtype=bool)
    for begin, length in paint["spans"]:
        begins[0, begin] = True
        masked[0, begin : begin + length] = True
    inputs, read, targets = corrupt(ids, np.ones_like(masked), masked, begins)
    assert inputs.tolist() == [[vocabulary[token] for token in paint["src"]]] and read.all()
    assert targets.tolist() == [[*(vocabulary[token] for token in paint["tgt"]), EOS]]


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_input_and_target_rebuild_thousands_of_texts(rate, whole_words):
    ids, words, real = texts_of(np.random.default_rng(1).integers(0, 120, 3000))
    if whole_words:
        words = np.where(words >= 0, words // 3, -1)
    masked, begins = mask_of(ids, words, real, rate=rate, whole_words=whole_words)
    inputs, read, targets = corrupt(ids, real, masked, begins)
    assert (inputs[~read] == PAD).all() and inputs.dtype == targets.dtype == np.int64
    rows = zip(lists(ids, real), lists(inputs, read), lists(targets, targets != IGNORED), masked, begins)
    for before, after, target, masked_L, begins_L in rows:
        assert oracle.restore(after, target, SENTINELS.tolist()) == before
        spans = oracle.spans_of(masked_L, begins_L)
        assert (after, target) == oracle.corrupt(before, spans, SENTINELS.tolist(), EOS)
        shown = [token for token in after if token >= 1000]
        assert shown == SENTINELS[: len(spans)].tolist() == [token for token in target if token >= 1000]


def test_lengths_are_rounded_up_on_request():
    ids, words, real = texts_of([33, 50])
    inputs, read, targets = corrupt(ids, real, *mask_of(ids, words, real), pad_to_multiple_of=16)
    assert inputs.shape == read.shape and inputs.shape[1] == 48 and targets.shape[1] == 16


# --- A function of seed, epoch and text ---------------------------------------------------------------------------


@pytest.mark.parametrize("whole_words", [False, True])
def test_masks_do_not_depend_on_batch_order_or_padding(whole_words):
    ids, words, real = texts_of([40, 3, 120, 77, 12, 1])
    whole, whole_begins = mask_of(ids, words, real, whole_words=whole_words)
    for row in range(len(ids)):
        length = real[row].sum()
        alone = mask_of(*(array[row : row + 1, :length] for array in (ids, words, real)), whole_words=whole_words)
        assert np.array_equal(alone[0][0], whole[row, :length]) and np.array_equal(
            alone[1][0], whole_begins[row, :length]
        )
    order = [3, 0, 5, 1, 4, 2]
    assert np.array_equal(mask_of(ids[order], words[order], real[order], whole_words=whole_words)[0], whole[order])
    wider = [
        np.pad(array, ((0, 0), (0, 50)), constant_values=value) for array, value in ((ids, 7), (words, -1), (real, 0))
    ]
    assert np.array_equal(mask_of(*wider, whole_words=whole_words)[0][:, : ids.shape[1]], whole)


def test_masks_change_with_seed_epoch_and_copy():
    ids, words, real = texts_of([100] * 50)
    base = mask_of(ids, words, real)[0]
    assert np.array_equal(base, mask_of(ids, words, real, copy_B=np.zeros(50, dtype=np.int64))[0])
    for other in ({"seed": 1}, {"epoch": 1}, {"copy_B": np.ones(50, dtype=np.int64)}):
        changed = mask_of(ids, words, real, **other)[0]
        assert (changed != base).any(axis=1).mean() > 0.95
        # as independent as two texts are
        assert (changed & base)[:, :100].mean() == pytest.approx(0.15**2, abs=0.01)


def test_text_keys_tell_texts_apart_and_do_not_see_padding():
    ids, _, real = texts_of([30] * 500 + [4])
    ids[7] = ids[3]
    keys = masking.text_keys(ids, real)
    assert keys.dtype == np.int64 and (keys >= 0).all()
    assert keys[7] == keys[3] and len(set(keys.tolist())) == 500
    wider = masking.text_keys(np.pad(ids, ((0, 0), (0, 9)), constant_values=5), np.pad(real, ((0, 0), (0, 9))))
    assert np.array_equal(wider, keys)
