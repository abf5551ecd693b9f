"""What tokens are made of: the letters that one has in common with others.

"infection" and "infections", or 公路 and 州际公路, are tokens that have nothing in common as such. With coordinates
from what they are made of, the vectors of a model from scratch know better, as those of a search engine do that stems
its words and searches pairs of Chinese characters.

Character n-grams for search: McNamee and Mayfield (2004), "Character n-gram tokenization for European language text
retrieval", Information Retrieval 7. As parts of word vectors: Bojanowski, Grave, Joulin and Mikolov (2017), "Enriching
word vectors with subword information", TACL 5.
"""

import re
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from .passages import SPACELESS_LETTER

# So many letters in a row, the space before a word being one; fewer of Chinese and its like. Chosen on development
# queries (docs/experiments.md).
_FRAGMENT = 4
_SPACELESS_FRAGMENT = 2
_SPACELESS_RUN = re.compile(f"{SPACELESS_LETTER}+")
_NOTHING_IN_COMMON = re.compile(r"<.*>|.*\d.*")  # special tokens, bytes, and numbers, which are the same or are not


def spelling_features(tokens: Sequence[str], *, share: float) -> sparse.csr_matrix:
    """Coordinates of each token: which one it is, and which fragments it is made of.

    A row has length 1. The first len(tokens) coordinates are the token itself, with a square of 1 - `share`; the
    others are its fragments. So the product of two rows is 1 for the same token, and for others `share` times the
    cosine of their fragments. A token without fragments is itself alone.

    Args:
        tokens: as the tokenizer names them ("▁infection", "##tion"), in the order of their ids.

    Returns: float32 [len(tokens), len(tokens) + fragments].
    """
    numbers: dict[str, int] = {}
    rows, columns = [], []
    for row, token in enumerate(tokens):
        found = [numbers.setdefault(fragment, len(numbers)) for fragment in fragments(token)]
        rows += [row] * len(found)
        columns += found
    shape = (len(tokens), len(numbers))
    counts = sparse.coo_matrix((np.ones(len(rows), dtype=np.float32), (rows, columns)), shape=shape).tocsr()
    squares = np.asarray(counts.multiply(counts).sum(axis=1), dtype=np.float32).ravel()
    shared = np.where(squares > 0, np.float32(share), np.float32(0.0))
    scaled = sparse.diags(np.sqrt(shared / np.maximum(squares, 1.0))) @ counts
    return sparse.hstack([sparse.diags(np.sqrt(1.0 - shared)), scaled], format="csr", dtype=np.float32)


def fragments(token: str) -> list[str]:
    """What a token has in common with others, in order; what occurs twice stands there twice.

    "▁cats" -> ["▁cat", "cats"]; "州际公路" -> ["州际", "际公", "公路"]; "1998" -> [].
    """
    if _NOTHING_IN_COMMON.fullmatch(token):
        return []
    runs = [(run, _SPACELESS_FRAGMENT) for run in _SPACELESS_RUN.findall(token)]
    runs += [(run, _FRAGMENT) for run in _SPACELESS_RUN.split(token)]
    return [run[at : at + size] for run, size in runs for at in range(len(run) - size + 1)]
