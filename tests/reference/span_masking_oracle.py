"""Span corruption as slow loops: what the fast one is tested and timed against.

Sources, in our own words (no code is copied):

- GUR, arXiv 2306.10056, and its code, as `specs/gur.md` describes it: the published sampler.
- T5, arXiv 1910.10683, section 3.1.4: sentinels, input and target.

A span is (first position, length). Lists of ints in, lists of ints out.
"""

import random


def published_spans(length, rate, pmf, rng: random.Random):
    """The published sampler: each span lies in a cover of round(span / rate) tokens; the covers fill the text.

    The last cover is cut off and its span shortened with it. Of three spans or more, neighbours of one token are
    merged. A span's start is uniform in its cover, whose last token is never masked; so of a text of up to 3 tokens
    nothing is masked at 15 %.
    """
    covers, left = [], length
    while left > 0:
        span = rng.choices(range(1, len(pmf) + 1), pmf)[0]
        cover = round(span / rate)
        if cover >= left:
            span, cover = round(left * rate), left
        covers.append((span, cover))
        left -= cover
    if len(covers) >= 3:
        merged = covers[:1]
        for span, cover in covers[1:]:
            if span == merged[-1][0] == 1:
                merged[-1] = (2, merged[-1][1] + cover)
            else:
                merged.append((span, cover))
        covers = merged
    rng.shuffle(covers)
    spans, begin = [], 0
    for span, cover in covers:
        if span:
            spans.append((begin + rng.randrange(max(1, cover - span)), span))
        begin += cover
    return spans


def corrupt(ids, spans, sentinel_ids, eos_token_id):
    """(input, target): each span, in the order of the text, becomes the next sentinel."""
    read, written, position = [], [], 0
    for sentinel, (begin, length) in zip(sentinel_ids, spans):
        read += [*ids[position:begin], sentinel]
        written += [sentinel, *ids[begin : begin + length]]
        position = begin + length
    return read + ids[position:], [*written, eos_token_id]


def spans_of(masked, begins):
    """The spans of one text, from its flags."""
    spans = []
    for position, is_masked in enumerate(masked):
        if begins[position]:
            spans.append((position, 1))
        elif is_masked:
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
    return spans


def restore(read, written, sentinel_ids):
    """(input, target) -> the text: behind each sentinel of the target stand the tokens that go into its place."""
    parts, sentinels = {}, set(sentinel_ids)
    for token in written[:-1]:
        if token in sentinels:
            current = parts.setdefault(token, [])
        else:
            current.append(token)
    return [inner for token in read for inner in (parts[token] if token in sentinels else [token])]


def collate_like_published(texts, rate, pmf, sentinel_ids, eos_token_id, pad_token_id, rng: random.Random):
    """A batch from Python lists, text by text: (inputs, attention mask, targets), lists of equally long lists."""
    rows = []
    for ids in texts:
        spans = published_spans(len(ids) - 1, rate, pmf, rng)
        rows.append(corrupt(ids, spans, sentinel_ids, eos_token_id))
    read_length, written_length = (max(len(row[side]) for row in rows) for side in (0, 1))
    inputs = [read + [pad_token_id] * (read_length - len(read)) for read, _ in rows]
    attention = [[1] * len(read) + [0] * (read_length - len(read)) for read, _ in rows]
    targets = [written + [-100] * (written_length - len(written)) for _, written in rows]
    return inputs, attention, targets
