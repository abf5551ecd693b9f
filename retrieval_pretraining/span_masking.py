"""Span corruption of a batch of texts: which spans are masked, and the input and target that T5 is trained on.

Pure functions of numpy arrays with an explicit generator, as in `masking.py`; no loop over texts, tokens or spans.

Shapes: B texts, L positions, U units (tokens or words) of the longest text, S spans of the text that has most, I and T
positions of the inputs and of the targets.
"""

import numpy as np

from .masking import TextGenerator

IGNORED = -100


class SpanLengths:
    """A law of span lengths: `pmf[k - 1]` is the probability of k units, and `mean` what to expect."""

    def __init__(self, weights: np.ndarray):
        lengths = np.arange(1, len(weights) + 1)
        self.pmf = weights / weights.sum()
        self.mean = float(lengths @ self.pmf)
        # A length for each of the 2**16 values of the random bits that it is drawn from.
        bounds = np.rint(2**16 * self.pmf.cumsum()).astype(np.int64)
        self._lengths = np.repeat(lengths, np.diff(bounds, prepend=0)).astype(np.uint8)

    def draw(self, columns: int, generator: TextGenerator) -> np.ndarray:
        """Lengths, uint8 `[B, columns]`, four from each 64 random bits."""
        bits = generator.integers(-(-columns // 4)).view(np.uint16)
        return self._lengths.take(bits[:, :columns])


_ONE_TO_TEN = np.arange(1, 11)
SPAN_LENGTHS = {
    # GUR (arXiv 2306.10056): best at three, falling off to both sides. Mean 3.795.
    "hump_geometric": SpanLengths(0.66 ** np.abs(_ONE_TO_TEN - 3)),
    # SpanBERT (arXiv 1907.10529, section 3.1): p = 0.2, at most ten. Mean 3.797.
    "geometric": SpanLengths(0.2 * 0.8 ** (_ONE_TO_TEN - 1)),
    # The mean of T5 (arXiv 1910.10683, section 3.1.4), which is 3: one to five, all alike.
    "uniform": SpanLengths(np.ones(5)),
}


def span_mask(
    word_ids_BL: np.ndarray,
    rate: float,
    lengths: SpanLengths,
    generator: TextGenerator,
    *,
    max_spans: int,
    whole_words: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens are masked, and which of them begin a span, both bool `[B, L]`.

    The unit is a token, or a word with all its pieces. Of a text of n units rate * n are masked, rounded up or down at
    random so that this is what to expect, but at least one and at most n - 1; a text of one unit stays as it is. Span
    lengths are drawn until they make that number, where the last is cut off; their order is random. The spans go to
    distinct places between the units that are left. So spans never touch, and every unit can be masked, the first and
    the last too.

    Where there are more spans than `max_spans` (the sentinels there are), or than places, the first ones are kept and
    made longer: the rate holds. A special token (-1 in `word_ids_BL`) inside a span stays and parts it in two; a text
    that has more spans than `max_spans` for that reason alone loses the last ones.
    """
    content_BL = word_ids_BL >= 0
    unit_begins_BL = content_BL
    if whole_words:
        unit_begins_BL = content_BL.copy()
        unit_begins_BL[:, 1:] &= word_ids_BL[:, 1:] != word_ids_BL[:, :-1]
    units_B = unit_begins_BL.sum(axis=1, dtype=np.int32)
    begins_BS, lengths_BS = _place_spans(units_B[:, None], rate, lengths, generator, max_spans)

    # The units of all texts stand in one row, without padding.
    row, column = lengths_BS.nonzero()
    begins, sizes = (units_B.cumsum() - units_B)[row] + begins_BS[row, column], lengths_BS[row, column]
    ends = sizes.cumsum()
    masked = np.zeros(units_B.sum(), dtype=bool)
    masked[np.repeat(begins - ends + sizes, sizes) + np.arange(sizes.sum())] = True
    if whole_words:
        masked = masked.take(unit_begins_BL[content_BL].cumsum() - 1)
    masked_BL = np.zeros_like(content_BL)
    masked_BL[content_BL] = masked
    begins_BL = _first_of_runs(masked_BL)
    if begins_BL.sum(axis=1, dtype=np.int32).max(initial=0) > max_spans:
        masked_BL &= begins_BL.cumsum(axis=1) <= max_spans
        begins_BL &= masked_BL
    return masked_BL, begins_BL


def _place_spans(
    units_B1: np.ndarray, rate: float, lengths: SpanLengths, generator: TextGenerator, max_spans: int
) -> tuple[np.ndarray, np.ndarray]:
    """First unit of each span, and its length, 0 where a text has fewer spans; int32 `[B, S]`."""
    wanted_B1 = np.floor(rate * units_B1 + generator.uniform(1)).astype(np.int32)
    masked_B1 = np.minimum(np.maximum(wanted_B1, 1), np.maximum(units_B1 - 1, 0))
    places_B1 = units_B1 - masked_B1 + 1

    # The running total of the lengths, cut off at what is wanted; a span is there if it adds to the total.
    most = int(masked_B1.max(initial=0))
    total_BS = lengths.draw(most, generator).cumsum(axis=1, dtype=np.int32)
    spans_B1 = (total_BS < masked_B1).sum(axis=1, keepdims=True, dtype=np.int32) + (masked_B1 > 0)
    spans_B1 = np.minimum(spans_B1, np.minimum(places_B1, max_spans))
    columns = int(spans_B1.max(initial=0))
    total_BS = np.minimum(total_BS[:, :columns], masked_B1)
    lengths_BS = np.diff(total_BS, axis=1, prepend=np.int32(0))

    span_S = np.arange(columns, dtype=np.int32)
    there_BS = span_S < spans_B1
    divisor_B1 = np.maximum(spans_B1, 1)
    kept_B1 = (lengths_BS * there_BS).sum(axis=1, keepdims=True, dtype=np.int32)
    more_B1, rest_B1 = np.divmod(masked_B1 - kept_B1, divisor_B1)
    lengths_BS += more_B1 + (span_S < rest_B1)
    # The lengths but the last are exchangeable: a rotation puts the one that was cut off anywhere.
    turn_B1 = (generator.uniform(1) * divisor_B1).astype(np.int32)
    lengths_BS = np.take_along_axis(lengths_BS, (span_S + turn_B1) % divisor_B1, axis=1) * there_BS

    # Distinct places: sorted numbers that may repeat, plus 0, 1, 2, ...
    bits_BS = generator.integers(-(-columns // 2)).view(np.uint32)[:, :columns]
    place_BS = (bits_BS * (places_B1 - spans_B1 + 1).astype(np.uint64) >> np.uint64(32)).astype(np.int32)
    place_BS[~there_BS] = np.iinfo(np.int32).max // 2
    place_BS.sort(axis=1)
    return place_BS + span_S + lengths_BS.cumsum(axis=1, dtype=np.int32) - lengths_BS, lengths_BS


def _first_of_runs(flags_BL: np.ndarray) -> np.ndarray:
    first_BL = flags_BL.copy()
    first_BL[:, 1:] &= ~flags_BL[:, :-1]
    return first_BL


def corrupt_spans(
    input_ids_BL: np.ndarray,
    real_BL: np.ndarray,
    masked_BL: np.ndarray,
    begins_BL: np.ndarray,
    *,
    sentinel_ids: np.ndarray,
    eos_token_id: int,
    pad_token_id: int,
    pad_to_multiple_of: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts and their masks -> what T5 reads and what it writes (arXiv 1910.10683, section 3.1.4).

    In the input each span becomes one sentinel, the text's first span the first of `sentinel_ids`, and so on; all else
    stays as it is. The target is the first sentinel, the tokens it stands for, the next sentinel, ..., and an eos. The
    two rebuild the text. I and T are rounded up to a multiple of `pad_to_multiple_of`.

    Returns:
        (inputs `[B, I]`, padded at the end with `pad_token_id`; which of these are real, bool `[B, I]`; targets
        `[B, T]`, padded at the end with -100).
    """
    texts = np.arange(len(input_ids_BL))
    tokens_B, spans_B = masked_BL.sum(axis=1, dtype=np.int32), begins_BL.sum(axis=1, dtype=np.int32)
    # The masked tokens of all texts stand in one row, and so do the spans.
    where = np.flatnonzero(masked_BL)
    is_begin = begins_BL.reshape(-1).take(where)
    first = np.flatnonzero(is_begin)
    begins = where.take(first)
    number = np.arange(len(begins)) - np.repeat(spans_B.cumsum() - spans_B, spans_B)
    sentinels = sentinel_ids.take(number).astype(input_ids_BL.dtype)

    # A masked token stands behind all masked tokens, sentinels and eos that come before it.
    place = np.arange(len(where)) + is_begin.cumsum() + np.repeat(texts, tokens_B)
    written_B = tokens_B + spans_B + 1
    targets = np.empty(written_B.sum(), dtype=input_ids_BL.dtype)
    targets[place] = input_ids_BL.reshape(-1).take(where)
    targets[place.take(first) - 1] = sentinels
    targets[written_B.cumsum() - 1] = eos_token_id
    targets_BT, _ = _padded(targets, written_B, IGNORED, pad_to_multiple_of)

    shown_BL = real_BL & (begins_BL | ~masked_BL)
    inputs_BL = input_ids_BL.copy()
    inputs_BL.reshape(-1)[begins] = sentinels
    shown_B = shown_BL.sum(axis=1, dtype=np.int32)
    inputs_BI, read_BI = _padded(
        inputs_BL.reshape(-1).take(np.flatnonzero(shown_BL)), shown_B, pad_token_id, pad_to_multiple_of
    )
    return inputs_BI, read_BI, targets_BT


def _padded(row: np.ndarray, count_B: np.ndarray, filler: int, multiple: int) -> tuple[np.ndarray, np.ndarray]:
    """A row that holds all texts one after the other -> a row for each text, and what is not padding, `[B, L]`."""
    length = -(-int(count_B.max(initial=0)) // multiple) * multiple
    real_BL = np.arange(length) < count_B[:, None]
    rows_BL = np.full(real_BL.shape, filler, dtype=row.dtype)
    rows_BL[real_BL] = row
    return rows_BL, real_BL
