"""The slow, textbook GUR: sentence vectors and both losses in plain loops over Python numbers, in double precision.

It starts from the states and logits that a T5 gives, and shares no code with the model. Each rule has two modes: that
of the paper, which is the default, and that of the authors' code, whose numbers are in `tests/golden` as well.

Source: "Generate to Understand for Representation", arXiv 2306.10056, and the published implementation (laohur/GUR),
in our own words: no code is copied.
"""

import math

EOS = 1


def dot(first: list[float], second: list[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))


def last_eos(ids: list[int], mask: list[int]) -> int:
    """The position whose state stands for the text: the last `</s>`, or the last token where there is none."""
    position = None
    for index, (token, real) in enumerate(zip(ids, mask, strict=True)):
        if real and token == EOS:
            position = index
    if position is not None:
        return position
    return max(index for index, real in enumerate(mask) if real)


def gelu_new(x: float) -> float:
    return 0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def project(state: list[float], head: dict[str, list[list[float]]], eps: float = 1e-6) -> list[float]:
    """The head without dropout: `RMSNorm(u + u)`, u = W_o act(W h), or W_o (act(W_0 h) * W_1 h) where it is gated.

    `head` holds `wi` or `wi_0` and `wi_1`, `wo`, and `layer_norm` as its only row, each a list of rows.
    """
    if "wi" in head:
        inner = [max(0.0, dot(row, state)) for row in head["wi"]]
    else:
        gate = zip(head["wi_0"], head["wi_1"], strict=True)
        inner = [gelu_new(dot(first, state)) * dot(second, state) for first, second in gate]
    doubled = [2.0 * dot(row, inner) for row in head["wo"]]
    scale = 1.0 / math.sqrt(dot(doubled, doubled) / len(doubled) + eps)
    return [value * scale * weight for value, weight in zip(doubled, head["layer_norm"][0], strict=True)]


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(dot(vector, vector))
    return [value / length for value in vector]


def cross_entropy(logits: list[float], label: int) -> float:
    """In nats."""
    highest = max(logits)
    return highest + math.log(sum(math.exp(value - highest) for value in logits)) - logits[label]


def lm_loss(logits: list[list[list[float]]], labels: list[list[int]], *, ignored: int | None = -100) -> float:
    """Mean cross-entropy over the labels that are not `ignored`; the authors' code ignores none (None)."""
    losses = [
        cross_entropy(position, label)
        for text, text_labels in zip(logits, labels, strict=True)
        for position, label in zip(text, text_labels, strict=True)
        if label != ignored
    ]
    return sum(losses) / len(losses)


def contrastive_loss(
    vectors: list[list[float]],
    temperature: float,
    *,
    similarity: str = "cosine",
    negatives: list[list[bool]] | None = None,
) -> float:
    """Mean over the pairs (rows 2k and 2k + 1) and both directions of the cross-entropy of picking the partner.

    `similarity` is "cosine" (the paper) or "dot" (the authors' code). Where `negatives[i][j]` is false, text i of the
    first side and text j of the second are no candidates for each other.
    """
    if similarity == "cosine":
        vectors = [unit(vector) for vector in vectors]
    first, second = vectors[0::2], vectors[1::2]
    total = 0.0
    for pair in range(len(first)):
        row, column = [], []  # the partner comes first, then the others
        for other in [pair, *(index for index in range(len(first)) if index != pair)]:
            if negatives is None or other == pair or negatives[pair][other]:
                row.append(dot(first[pair], second[other]) / temperature)
            if negatives is None or other == pair or negatives[other][pair]:
                column.append(dot(first[other], second[pair]) / temperature)
        total += 0.5 * (cross_entropy(row, 0) + cross_entropy(column, 0))
    return total / len(first)
