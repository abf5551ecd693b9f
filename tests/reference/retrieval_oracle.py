"""BM25 and the retrieval metrics as slow loops, from their formulas: what the fast ones are tested against.

- BM25: Robertson and Zaragoza 2009, in the variant of Lucene (Kamphuis et al. 2020, "Which BM25 Do You Mean?").
- nDCG: Jaervelin and Kekaelaeinen 2002, with the grade as gain and log2(1 + rank) as discount, as trec_eval has it.
"""

import itertools
import math


def is_han(character):
    code = ord(character)
    return (
        0x3400 <= code <= 0x4DBF
        or 0x4E00 <= code <= 0x9FFF
        or 0xF900 <= code <= 0xFAFF
        or 0x20000 <= code <= 0x323AF
        or character in "々〇"
    )


def runs(text):
    """(is it Han, characters) of each run of letters, digits and underscores."""
    found, before = [], None
    for character in text.lower():
        kind = is_han(character) if character.isalnum() or character in "_々〇" else None
        if kind is not None and kind == before:
            found[-1] = (kind, found[-1][1] + character)
        elif kind is not None:
            found.append((kind, character))
        before = kind
    return found


def english_tokens(text, stem, stop_words):
    words, word = [], ""
    for character in text.lower() + " ":
        if character.isalnum() or character == "_":
            word += character
        else:
            words.append(word)
            word = ""
    return [stem(word) for word in words if len(word) > 1 and word not in stop_words]


def chinese_tokens(text, stem):
    tokens = []
    for han, run in runs(text):
        if not han:
            tokens.append(stem(run))
        elif len(run) == 1:
            tokens.append(run)
        else:
            for first, second in itertools.pairwise(run):
                tokens.append(first + second)
    return tokens


def bm25_scores(query, documents, k1, b):
    """Tokens of a query and of each document -> a score a document."""
    mean_length = sum(len(document) for document in documents) / len(documents)
    scores = []
    for document in documents:
        score = 0.0
        for token in query:
            holding = sum(1 for other in documents if token in other)
            idf = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
            frequency = document.count(token)
            if frequency:
                score += idf * frequency / (frequency + k1 * (1 - b + b * len(document) / mean_length))
        scores.append(score)
    return scores


def ndcg(ranking, grades, k):
    gain = ideal = 0.0
    for rank, document in enumerate(ranking[:k], start=1):
        gain += max(0, grades.get(document, 0)) / math.log2(1 + rank)
    for rank, grade in enumerate(sorted(grades.values(), reverse=True)[:k], start=1):
        ideal += max(0, grade) / math.log2(1 + rank)
    return gain / ideal


def reciprocal_rank(ranking, grades, k):
    for rank, document in enumerate(ranking[:k], start=1):
        if grades.get(document, 0) >= 1:
            return 1 / rank
    return 0.0


def average_precision(ranking, grades):
    found, total = 0, 0.0
    for rank, document in enumerate(ranking, start=1):
        if grades.get(document, 0) >= 1:
            found += 1
            total += found / rank
    return total / sum(1 for grade in grades.values() if grade >= 1)


def recall(ranking, grades, k):
    relevant = {document for document, grade in grades.items() if grade >= 1}
    return len(relevant & set(ranking[:k])) / len(relevant)
