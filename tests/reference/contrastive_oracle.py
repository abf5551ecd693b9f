"""Symmetric InfoNCE over pairs with excluded negatives, item by item, in double precision with numpy.

Source: arXiv 2306.10056, section 3, and CLIP (arXiv 2103.00020, figure 3); which negatives are excluded is this
project's own rule. No code is shared with the package.
"""

import numpy as np


def related(i: int, j: int, texts: list[tuple], documents: list) -> bool:
    """Whether pairs i and j share a text or a document (None: not known)."""
    if set(texts[i]) & set(texts[j]):
        return True
    return documents[i] is not None and documents[i] == documents[j]


def contrastive(vectors: np.ndarray, temperature: float, texts: list[tuple], documents: list) -> dict:
    """Rows 2k and 2k + 1 of `vectors` are pair k, whose two texts are `texts[k]`.

    Returns the mean `loss`, the `accuracy`, the number of `excluded` negatives, and `losses`, one a pair.
    """
    units = [vector / np.sqrt((vector**2).sum()) for vector in np.asarray(vectors, dtype=np.float64)]
    pairs, losses, right, excluded = len(units) // 2, [], 0, 0
    for i in range(pairs):
        total = 0.0
        for side in (0, 1):
            scores = {}
            for j in range(pairs):
                if i == j or not related(i, j, texts, documents):
                    scores[j] = float(units[2 * i + side] @ units[2 * j + 1 - side]) / temperature
                elif side == 0:
                    excluded += 1
            total += -np.log(np.exp(scores[i]) / sum(np.exp(score) for score in scores.values()))
            right += max(scores, key=scores.get) == i
        losses.append(total / 2)
    return {
        "loss": float(np.mean(losses)),
        "accuracy": right / (2 * pairs),
        "excluded": excluded,
        "losses": losses,
    }
