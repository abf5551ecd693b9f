"""BM25, the baseline of every table: tokens of English and Chinese, an index, a ranking of the whole corpus.

    run = bm25_run(data)
    print(describe_bm25(data)["description"])

    index = BM25Index(passages)  # made once, asked as often as wanted
    [(positions, scores)] = index.search(["a question"], top_k=100)

The scores are those of bm25s in Lucene's variant: a query is the sum over its tokens, repeated ones too, of

    idf(t) * tf(t, d) / (tf(t, d) + k1 * (1 - b + b * length(d) / mean length))
    idf(t) = ln(1 + (N - df(t) + 0.5) / (df(t) + 0.5))

over N documents, df(t) of them with the token; length and tf count tokens. Robertson and Zaragoza 2009, "The
Probabilistic Relevance Framework: BM25 and Beyond"; on the variants Kamphuis et al. 2020, "Which BM25 Do You Mean?".
Needs the extra `eval`, Chinese words the extra `chinese`.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from retrieval_pretraining.encoding import check_texts, progress_bar
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.extras import import_extra
from retrieval_pretraining.retrieval_data import RetrievalData, Run
from retrieval_pretraining.retrieval_metrics import check_ids
from retrieval_pretraining.search import best_positions

CHINESE_TOKENS = ("bigrams", "words")

_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_TOKENS = {
    ("en", "bigrams"): "English stems without stop words",
    ("en", "words"): "English stems without stop words",
    ("zh", "bigrams"): "Chinese character bigrams and stemmed words",
    ("zh", "words"): "Chinese words (rjieba) and stemmed words",
}

logger = logging.getLogger(__name__)


def bm25_run(
    data: RetrievalData,
    *,
    k1: float = 0.9,
    b: float = 0.4,
    language: str = "auto",
    chinese_tokens: str = "bigrams",
    top_k: int = 1000,
    progress: bool | None = None,
) -> Run:
    """Rank the corpus by BM25; documents with a score above 0 only, `top_k` at most, ties in corpus order.

    `k1`, `b`, `language`, `chinese_tokens` and `progress` are those of `BM25Index`. A query may find nothing; if none
    finds anything, that is a warning. `InputError` as `BM25Index`, and for ids that come twice or are not one a text.
    """
    check_ids(data.corpus_ids, len(data.corpus_texts), "documents")
    check_ids(data.query_ids, len(data.query_texts), "queries")
    options = {"k1": k1, "b": b, "language": language, "chinese_tokens": chinese_tokens, "progress": progress}
    index = BM25Index(data.corpus_texts, **options)
    logger.info("BM25 on %s: %s.", data.name, index.description)
    run: Run = {}
    found = index.search(data.query_texts, top_k=data.depth(top_k))
    for query, (positions, scores) in zip(data.query_ids, found, strict=True):
        run[query] = {data.corpus_ids[i]: score for i, score in zip(positions, scores.tolist(), strict=True)}
    if not any(run.values()):
        logger.warning("BM25 on %s: no query shares a token with a document (%s).", data.name, index.description)
    return data.without_own(run, top_k)


def bm25_scores(data: RetrievalData, candidates: Mapping[str, Sequence[str]], **options) -> Run:
    """BM25's scores of some documents of each query; `options` are those of `bm25_run`."""
    index = BM25Index(data.corpus_texts, **options)
    place = {document: position for position, document in enumerate(data.corpus_ids)}
    texts = dict(zip(data.query_ids, data.query_texts, strict=True))
    run: Run = {}
    for query, documents in candidates.items():
        scores = index.scores(texts[query])
        run[query] = {document: float(scores[place[document]]) for document in documents}
    return run


def describe_bm25(
    data: RetrievalData,
    *,
    k1: float = 0.9,
    b: float = 0.4,
    language: str = "auto",
    chinese_tokens: str = "bigrams",
) -> dict[str, str]:
    """What `bm25_run` does with the same options, for the results: `language` ("en" or "zh") and a `description`.

    {"language": "en", "description": "lucene, k1 0.9, b 0.4; English stems without stop words"}
    """
    language = _check_options(data.corpus_texts, k1, b, language, chinese_tokens)
    return {"language": language, "description": _describe(k1, b, language, chinese_tokens)}


class BM25Index:
    """A corpus, tokenised and counted once, and asked for the best texts of any number of queries.

    Args:
        k1, b: 0 or more; 0 to 1.
        language: "en" for stemmed words of two or more characters without stop words, "zh" for Han characters as
            `chinese_tokens` says and all other words lower-cased and stemmed, "auto" to ask `detect_language`.
        chinese_tokens: "bigrams" of a run of Han characters (a run of one as itself) or its "words" by rjieba.
        progress: whether bars are shown; None: where it takes long.

    `language` is then "en" or "zh", and `description` the sentence for the results.

    Raises `InputError`: an extra is missing, an option is not known, no texts, or one that is not a string.
    """

    def __init__(
        self,
        texts: Sequence[str],
        *,
        k1: float = 0.9,
        b: float = 0.4,
        language: str = "auto",
        chinese_tokens: str = "bigrams",
        progress: bool | None = None,
    ):
        bm25s = import_extra("bm25s")
        logging.getLogger("bm25s").setLevel(logging.WARNING)  # on import it sets itself to DEBUG
        check_texts(texts, "documents")
        self.language = _check_options(texts, k1, b, language, chinese_tokens)
        self.description = _describe(k1, b, self.language, chinese_tokens)
        self.progress = progress
        self._tokenize = bm25_tokenizer(self.language, chinese_tokens=chinese_tokens)
        self._vocabulary: dict[str, int] = {}
        self._size = len(texts)
        documents = []
        with progress_bar(len(texts), "BM25 index", "text", progress) as bar:
            for text in texts:
                tokens = self._tokenize(text)
                documents.append([self._vocabulary.setdefault(token, len(self._vocabulary)) for token in tokens])
                bar.update()
        self._index = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
        if self._vocabulary:  # bm25s cannot index nothing
            self._index.index((documents, self._vocabulary), show_progress=False)

    def search(self, texts: Sequence[str], *, top_k: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each text the positions in the corpus (int64) and the scores (float32), both [found], best first.

        Only scores above 0 count as found, `top_k` at most; equal ones are in corpus order. `InputError` if a text is
        not a string or `top_k` is below 1.
        """
        check_texts(texts, "queries")
        if top_k < 1:
            raise InputError(f"top_k is {top_k}; ask for 1 document or more.")
        found = []
        with progress_bar(len(texts), "BM25", "query", self.progress) as bar:
            for text in texts:
                scores = self.scores(text)  # not `retrieve` of bm25s: its order among ties is arbitrary
                best = best_positions(scores, top_k)
                best = best[scores[best] > 0]
                found.append((best, scores[best]))
                bar.update()
        return found

    def scores(self, text: str) -> np.ndarray:
        """Of all texts of the corpus for one query, float32 [N]."""
        tokens = [self._vocabulary[token] for token in self._tokenize(text) if token in self._vocabulary]
        return self._index.get_scores_from_ids(tokens) if tokens else np.zeros(self._size, np.float32)


def bm25_tokenizer(language: str, *, chinese_tokens: str = "bigrams") -> Callable[[str], list[str]]:
    """Text -> tokens, as `BM25Index` says, for `language` "en" or "zh"; `InputError` without the extra it needs."""
    _check_names(language, ("en", "zh"), chinese_tokens)
    stem = import_extra("Stemmer").Stemmer("english").stemWord
    if language == "en":
        stop_words = frozenset(import_extra("bm25s").stopwords.STOPWORDS_EN)
        find_words = re.compile(r"\w\w+").findall
        return lambda text: [stem(word) for word in find_words(text.lower()) if word not in stop_words]
    cut = import_extra("rjieba", "chinese").cut if chinese_tokens == "words" else _bigrams
    find_runs = re.compile(f"([{_HAN}]+)|([^\\W{_HAN}]+)").findall

    def tokenize(text: str) -> list[str]:
        tokens: list[str] = []
        for han, word in find_runs(text.lower()):
            tokens += cut(han) if han else [stem(word)]
        return tokens

    return tokenize


def detect_language(texts: Sequence[str]) -> str:
    """ "zh" if at least 5 % of the letters in a sample of the texts are Han characters, "en" otherwise."""
    # a low bar: the Chinese tokenisation of BM25 also handles English words, the English one no Chinese
    text = " ".join(texts[:: len(texts) // 2000 + 1])
    han = len(re.findall(f"[{_HAN}]", text))
    return "zh" if han and han >= 0.05 * sum(map(str.isalpha, text)) else "en"


def _bigrams(han: str) -> list[str]:
    return [han[i : i + 2] for i in range(max(1, len(han) - 1))]


def _check_options(texts: Sequence[str], k1: float, b: float, language: str, chinese_tokens: str) -> str:
    """The language, "en" or "zh"."""
    _check_names(language, ("auto", "en", "zh"), chinese_tokens)
    if not (np.isfinite(k1) and k1 >= 0 and 0 <= b <= 1):
        raise InputError(f"k1 is {k1} and b is {b}; give a k1 of 0 or more and a b from 0 to 1.")
    return detect_language(texts) if language == "auto" else language


def _check_names(language: str, languages: Sequence[str], chinese_tokens: str) -> None:
    if language not in languages:
        raise InputError(f'language is "{language}"; choose one of {", ".join(languages)}.')
    if chinese_tokens not in CHINESE_TOKENS:
        raise InputError(f'chinese_tokens is "{chinese_tokens}"; choose one of {", ".join(CHINESE_TOKENS)}.')


def _describe(k1: float, b: float, language: str, chinese_tokens: str) -> str:
    return f"lucene, k1 {k1:g}, b {b:g}; {_TOKENS[language, chinese_tokens]}"
