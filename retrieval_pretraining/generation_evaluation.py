"""What a GUR checkpoint writes, measured on retrieval data: expanded queries, titles, masked spans.

    writer = load_writer(encoder, "gur")
    written = expand_queries(writer, encoder.tokenizer, data.query_texts)
    expansion_scores(data.query_texts, written)  # {"query_words_kept": 1.0, ...}
    documents = draw_documents(data, 200, seed=42)
    title_scores(documents, write_titles(writer, encoder.tokenizer, documents))
    perplexity(writer, encoder.tokenizer, [document.text for document in documents], seed=42)

Nothing is fine-tuned (arXiv 2306.10056). Beams, their penalty and the length of what is written are the defaults of
`generation.py`; of each query and document the best result counts. Words are those of `words_of`.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from modeling_gur import GURForConditionalGeneration
from retrieval_pretraining.collators import PairCollator
from retrieval_pretraining.encoding import evaluation_mode
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.evaluation_results import EvaluationResults, content_hash
from retrieval_pretraining.generation import BeamSearch, Generated, expand_query, generate_titles
from retrieval_pretraining.mask_prompts import keyword_prompts, prompt_ids
from retrieval_pretraining.model_folders import find_model, read_sentence_transformers_files
from retrieval_pretraining.passages import SPACELESS_LETTER, check_pair_tokenizer, encode_documents, sentinel_ids
from retrieval_pretraining.retrieval_data import RetrievalData
from retrieval_pretraining.systems import TextEncoder, quiet_loading

PASSAGE_LENGTH = 32  # tokens in which spans are masked: a sentence, as long as the paper's short ones
MAX_PASSAGES = 1000
SHOWN = 10  # queries, and titles, that the report shows of each model
SHOWN_CHARACTERS = 200

_WORDS = re.compile(f"{SPACELESS_LETTER}|(?:(?!{SPACELESS_LETTER})\\w)+")


class Document(NamedTuple):
    """`text` without its title; `title` is "" where the corpus has none apart from the text."""

    text: str
    title: str


# --- The model -------------------------------------------------------------------------------------------------------


def load_writer(encoder: TextEncoder, name: str) -> GURForConditionalGeneration:
    """The whole model that an encoder was loaded from, on its device and in its type.

    `InputError`, which calls the model `name`, if it is no GUR, or one without its decoder or sentinels.
    """
    if encoder.model_type != "gur" or encoder.tokenizer is None:
        raise InputError(
            f"--generation needs GUR with its decoder, and {name} is of type {encoder.model_type}: leave out one of "
            "the two."
        )
    path = encoder.model_name_or_path
    folder, _ = find_model(path, revision=encoder.revision)
    files = read_sentence_transformers_files(folder)
    with quiet_loading(name):
        writer, info = GURForConditionalGeneration.from_pretrained(
            folder if files is None else files.transformer,
            dtype=encoder.model.dtype,
            use_safetensors=True,
            output_loading_info=True,
        )
    missing = [key for key in info["missing_keys"] if key.startswith(("decoder.", "lm_head."))]
    if missing:
        raise InputError(
            f"--generation needs GUR with its decoder, and {name} lacks {len(missing)} weights of it: give the folder "
            "that the pre-training wrote, not an encoder made of it."
        )
    check_pair_tokenizer(encoder.tokenizer)
    return writer.to(encoder.model.device).eval()


# --- Words -----------------------------------------------------------------------------------------------------------


def words_of(text: str) -> list[str]:
    """Runs of letters and digits, lower-cased; of a script without spaces each letter is a word. No stemming."""
    return _WORDS.findall(text.lower())


def distinct(texts: Iterable[str], n: int) -> float | None:
    """Different n-grams of words over all n-grams of all texts, from 0 to 1; None where there is none.

    After Li et al. 2016, "A Diversity-Promoting Objective Function for Neural Conversation Models", who divide by the
    number of words for every n. More texts repeat more: compare on equally many.
    """
    grams = [tuple(words[i : i + n]) for words in map(words_of, texts) for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None


def word_overlap_f1(text: str, reference: str) -> float:
    """ROUGE-1 F1 (Lin 2004): words in common, each as often as both have it, over the mean of the two lengths."""
    own, wanted = Counter(words_of(text)), Counter(words_of(reference))
    total = own.total() + wanted.total()
    return 2 * (own & wanted).total() / total if total else 0.0


# --- Query expansion -------------------------------------------------------------------------------------------------


def expand_queries(
    writer, tokenizer, queries: Sequence[str], *, max_seq_length: int = 512, **beams
) -> list[Generated | None]:
    """The best expansion of each query (`expand_query`); None where the model adds nothing, for a query of more than
    `max_seq_length` tokens with its masks, and for one without text."""
    sentinels = sentinel_ids(tokenizer)

    def fits(query: str) -> bool:
        try:
            [longest] = keyword_prompts([query], 1, 0, "the query")
            prompt_ids(longest, tokenizer, sentinels, max_seq_length)
        except InputError:
            return False
        return True

    rows = [row for row, query in enumerate(queries) if fits(query)]
    written: list[Generated | None] = [None] * len(queries)
    if rows:
        options = dict(num_results=1, max_seq_length=max_seq_length, **beams)
        for row, results in zip(rows, expand_query(writer, tokenizer, [queries[r] for r in rows], **options)):
            written[row] = results[0] if results else None
    return written


def expansion_scores(queries: Sequence[str], written: Sequence[Generated | None]) -> dict[str, float]:
    """Shares of the queries, and how much the added words vary; a query without an expansion (None) stays as it is.

    query_words_kept: the result has every word of the query, as often as the query has it.
    queries_expanded: the result has a word more than the query, or one more often.
    query_distinct_1, query_distinct_2: `distinct` of what was written beside the queries, each span by itself; left
    out where nothing was.
    """
    kept = expanded = 0
    for query, result in zip(queries, written, strict=True):
        before, after = Counter(words_of(query)), Counter(words_of(query if result is None else result.text))
        kept += not before - after
        expanded += bool(after - before)
    scores = {"query_words_kept": kept / len(queries), "queries_expanded": expanded / len(queries)}
    return scores | _distinct_scores("query", [span for result in written if result for span in result.spans])


# --- Titles ----------------------------------------------------------------------------------------------------------


def draw_documents(data: RetrievalData, count: int, *, seed: int) -> list[Document]:
    """At most `count` documents that have a text, drawn at random, in corpus order."""
    documents = []
    for identifier, text in zip(data.corpus_ids, data.corpus_texts, strict=True):
        title = data.titles.get(identifier, "")
        text = text[len(title) :].strip() if title else text.strip()
        documents += [Document(text, title.strip())] if text else []
    drawn = sorted(random.Random(seed).sample(range(len(documents)), min(count, len(documents))))
    return [documents[row] for row in drawn]


def write_titles(writer, tokenizer, documents: Sequence[Document], *, max_seq_length: int = 512, **beams) -> list[str]:
    """The best title of each document (`generate_titles`), which reads the text alone; "" where none is written."""
    options = dict(num_results=1, max_seq_length=max_seq_length, **beams)
    found = generate_titles(writer, tokenizer, [document.text for document in documents], **options)
    return [titles[0].text if titles else "" for titles in found]


def title_scores(documents: Sequence[Document], titles: Sequence[str]) -> dict[str, float]:
    """What the titles are like.

    titles_written: share of the documents that got one.
    title_words: words of a title, mean over those written.
    title_words_in_document: share of a title's words that occur in the text, mean over those written.
    title_distinct_1, title_distinct_2: `distinct` of all titles.
    title_rouge_1: `word_overlap_f1` with the true title, mean over the documents that have one; no title counts as 0.

    A score without anything to measure is left out.
    """
    rows = [(words_of(title), set(words_of(document.text))) for document, title in zip(documents, titles, strict=True)]
    rows = [(words, known) for words, known in rows if words]
    scores = {"titles_written": len(rows) / len(documents)}
    if rows:
        scores["title_words"] = _mean(len(words) for words, _ in rows)
        scores["title_words_in_document"] = _mean(_mean(word in known for word in words) for words, known in rows)
    scores |= _distinct_scores("title", titles)
    overlaps = [
        word_overlap_f1(title, document.title)
        for document, title in zip(documents, titles, strict=True)
        if document.title
    ]
    return scores | ({"title_rouge_1": _mean(overlaps)} if overlaps else {})


# --- Masked spans ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def perplexity(writer, tokenizer, texts: Sequence[str], *, seed: int, batch_size: int = 64) -> float | None:
    """exp of the mean cross-entropy of the decoder, over all tokens that it has to write, sentinels and </s> among
    them: exp of the `lm_loss` of the training. None where no text has two tokens.

    The texts are cut, at ends of sentences where that fits, into passages of at most `PASSAGE_LENGTH` tokens, of which
    at most `MAX_PASSAGES` are drawn. `PairCollator` masks each of them twice, as it does by default in the training
    (15 %, hump geometric). Masks depend on `seed` and the passage alone. It is a measure per token: models compare
    only where they have the same tokenizer.
    """
    encoded = encode_documents(list(texts), tokenizer, max_seq_length=PASSAGE_LENGTH)
    passages = [
        {"input_ids": ids, "word_ids": words, "input_ids_pair": ids, "word_ids_pair": words}
        for ids, words in zip(encoded["input_ids"], encoded["word_ids"], strict=True)
        if sum(word >= 0 for word in words) > 1  # a single token is never masked
    ]
    if not passages:
        return None
    passages = random.Random(seed).sample(passages, min(MAX_PASSAGES, len(passages)))
    passages.sort(key=lambda passage: len(passage["input_ids"]))
    collator = PairCollator(tokenizer, seed=seed)
    size, loss, tokens = max(1, batch_size // 2), 0.0, 0
    with evaluation_mode(writer):
        for start in range(0, len(passages), size):
            batch = {name: value.to(writer.device) for name, value in collator(passages[start : start + size]).items()}
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
            count = int((batch["labels"] != -100).sum())
            loss += float(writer(**inputs, use_cache=False).loss) * count
            tokens += count
    return math.exp(min(loss / tokens, 700.0))  # exp of more is no float


# --- All of it -------------------------------------------------------------------------------------------------------


def measure_generation(
    writer,
    encoder: TextEncoder,
    name: str,
    data: RetrievalData,
    results: EvaluationResults,
    *,
    max_documents: int,
    batch_size: int,
    seed: int,
) -> list[str]:
    """Adds the scores of a model, with examples, on a dataset of its own; returns the queries as they are searched
    for, expanded where they were."""
    tokenizer = encoder.tokenizer
    documents = draw_documents(data, max_documents, seed=seed)
    dataset = f"{data.name} (generation)"
    if all(entry["name"] != dataset for entry in results.datasets):
        entry = next(entry for entry in results.datasets if entry["name"] == data.name)
        described = {"name": dataset, "kind": "generation", "path": entry["path"], "language": entry["language"]}
        sha256 = content_hash([documents, data.query_texts])
        results.datasets.append({**described, "documents": len(documents), "sha256": sha256})
    _check_vocabulary(tokenizer, next(entry for entry in results.datasets if entry["name"] == dataset), results)
    beams = {"batch_size": max(1, batch_size // BeamSearch.num_beams), "max_seq_length": encoder.max_seq_length}
    beams["show_progress"] = True  # hundreds take minutes
    written = expand_queries(writer, tokenizer, data.query_texts, **beams)
    scores: dict[str, float | None] = dict(expansion_scores(data.query_texts, written))
    expanded = [query if one is None else one.text for query, one in zip(data.query_texts, written, strict=True)]
    examples = {"query": list(zip(data.query_texts, expanded, strict=True))}
    if documents:
        titles = write_titles(writer, tokenizer, documents, **beams)
        texts = [document.text for document in documents]
        scores |= title_scores(documents, titles)
        scores["perplexity"] = perplexity(writer, tokenizer, texts, seed=seed, batch_size=batch_size)
        examples["title"] = list(zip(texts, titles, strict=True))
    for metric, value in scores.items():
        if value is not None:
            results.add_score(dataset, name, metric, value)
    for what, pairs in examples.items():
        results.details["generated"] += [
            {"dataset": dataset, "system": name, "what": what, "given": given[:SHOWN_CHARACTERS], "written": text}
            for given, text in pairs[:SHOWN]
        ]
    return expanded


def _check_vocabulary(tokenizer, entry: dict, results: EvaluationResults):
    """A warning where the perplexities on a dataset are of more than one vocabulary."""
    vocabulary = content_hash(sorted(tokenizer.get_vocab().items()))
    text = f"{entry['name']}: the models have different tokenizers, so that their perplexities do not compare."
    if entry.setdefault("vocabulary_sha256", vocabulary) != vocabulary and text not in results.warnings:
        results.warnings.append(text)


def _distinct_scores(what: str, texts: Sequence[str]) -> dict[str, float]:
    found = {f"{what}_distinct_{n}": distinct(texts, n) for n in (1, 2)}
    return {metric: value for metric, value in found.items() if value is not None}


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)
