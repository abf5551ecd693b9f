"""What a mining run says: its counts as data and on one screen, a few pairs to look at, the card of the dataset."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import yaml

from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.pair_mining import Pair
from retrieval_pretraining.readers import CorpusCounts
from retrieval_pretraining.span_join import normalise

CARD_TITLE = "# Pairs of texts mined from raw documents"


def mining_report(counts: Counter, reading: CorpusCounts, kept: int, settings: MiningSettings) -> dict[str, Any]:
    """`counts.json`: what was read, what became of it, and what was dropped and why."""
    dropped = {
        "documents_blank": reading.blank,
        "documents_null": reading.null,
        "documents_bad_line": reading.bad,
        **{f"documents_{reason.replace(' ', '_')}": count for reason, count in reading.dropped.items()},
        "sentences_too_short": counts["sentences too short"],
        "sentences_repeated": counts["sentences repeated"],
        "candidates_over_sentence_limit": counts["candidates over the sentence limit"],
        "candidates_over_document_limit": counts["candidates over the document limit"],
        "candidates_too_short": counts["candidates too short"],
        "pairs_repeated": counts["pairs"] - kept,
    }
    return {
        "files": reading.files,
        "documents": counts["documents"],
        "documents_changed": reading.changed,
        "characters": reading.characters,
        "titles": counts["titles"],
        "sentences": counts["sentences"],
        "sentences_cut": counts["sentences cut"],
        "candidates": counts["candidates"],
        "pairs": kept,
        "left_over": counts["sentences left over"],
        "left_over_joined": counts["left-over sentences joined"],
        "left_over_pairs": counts["pairs from left-over sentences"],
        "dropped": dropped,
        "bad_places": reading.bad_places,
        "undecodable": reading.undecodable,
        "settings": asdict(settings),
    }


def format_counts(counts: dict[str, Any]) -> str:
    """One screen: what was read, what became of it, and what was dropped and why."""
    dropped = counts["dropped"]
    characters = counts.get("characters", {})
    leftover = counts["settings"]["leftover_strategy"]
    rows = [
        (
            "documents",
            counts["documents"],
            [
                (dropped["documents_blank"], "blank ones dropped"),
                (dropped["documents_null"], "without text dropped"),
                (dropped["documents_bad_line"], f"unreadable, skipped: {'; '.join(counts['bad_places'])}"),
                (counts["undecodable"], "undecodable places replaced or ignored"),
                *((count, f"{reason}, dropped") for reason, count in _dropped_by_cleaning(dropped).items()),
                *((count, f"changed ({step})") for step, count in counts.get("documents_changed", {}).items()),
            ],
        ),
        # Not there in what was mined by an earlier version.
        (
            "characters",
            sum(characters.values()),
            sorted(((n, script) for script, n in characters.items()), reverse=True),
        ),
        (
            "sentences",
            counts["sentences"],
            [
                (counts["titles"], "titles besides"),
                (counts["sentences_cut"], "too long, cut"),
                (dropped["sentences_too_short"], "too short, dropped"),
                (dropped["sentences_repeated"], "repeated in their document, dropped"),
            ],
        ),
        (
            "candidates",
            counts["candidates"],
            [
                (dropped["candidates_over_sentence_limit"], "dropped, a sentence being used up"),
                (dropped["candidates_over_document_limit"], "dropped, the document being used up"),
                (dropped["candidates_too_short"], "too short, dropped"),
            ],
        ),
        ("pairs", counts["pairs"], [(dropped["pairs_repeated"], "the same as others, dropped")]),
        (
            "left over",
            counts["left_over"],
            [
                (counts["left_over"] if leftover == "drop" else 0, "sentences in no pair, dropped"),
                (counts["left_over_joined"], "joined to a neighbour"),
                (counts["left_over_pairs"], f"made a pair ({leftover})"),
            ],
        ),
    ]
    lines = []
    for name, count, details in rows:
        if name == "characters" and not count:
            continue
        noted = ", ".join(f"{number:,} {what}" for number, what in details if number)
        lines.append(f"{name:<11}{count:>13,}" + (f"   {noted}" if noted else ""))
    return "\n".join(lines)


def reading_counts(counts: dict[str, Any]) -> CorpusCounts:
    """What was read, as it was counted when it was."""
    dropped = counts["dropped"]
    return CorpusCounts(
        files=counts["files"],
        documents=counts["documents"],
        blank=dropped["documents_blank"],
        null=dropped["documents_null"],
        undecodable=counts["undecodable"],
        bad=dropped["documents_bad_line"],
        bad_places=counts["bad_places"],
        changed=counts.get("documents_changed", {}),
        dropped=_dropped_by_cleaning(dropped),
        characters=counts.get("characters", {}),
    )


def _dropped_by_cleaning(dropped: dict[str, int]) -> dict[str, int]:
    """By reason; those that are dropped without any cleaning aside."""
    others = dict.fromkeys(name for name in dropped if name.startswith("documents_"))
    for name in ("documents_blank", "documents_null", "documents_bad_line"):
        del others[name]
    return {name.removeprefix("documents_").replace("_", " "): dropped[name] for name in others}


def format_pairs(pairs: Iterable[Pair], *, width: int = 100) -> str:
    """Pairs to look at, the shared span in brackets."""
    lines = []
    for pair in pairs:
        for text in (pair.text, pair.text_pair):
            lines.append("  " + _marked(text, pair.shared_span, width))
        lines.append("")
    return "\n".join(lines)


def _marked(text: str, span: str, width: int) -> str:
    """The text on one line, cut to about `width` characters around the span."""
    span = span.strip()
    begin = normalise(text).find(normalise(span)) if span else -1
    if begin < 0:
        return _one_line(text[:width]) + ("..." if len(text) > width else "")
    end = begin + len(span)
    left = max(0, begin - max(width - len(span), 20) // 2)
    right = max(end, left + width)
    marked = f"{text[left:begin]}[{text[begin:end]}]{text[end:right]}"
    return ("..." if left else "") + _one_line(marked) + ("..." if right < len(text) else "")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def pairs_card(
    file_name: str, counts: dict[str, Any], *, examples: Iterable[Pair] = (), license: str | None = None
) -> str:
    """README.md of a folder of pairs: with it `load_dataset(folder)` reads the pairs and nothing else.

    What nobody said is left out: the language of the text, and its licence.
    """
    metadata: dict[str, Any] = {"configs": [{"config_name": "default", "data_files": file_name}]}
    if license is not None:
        metadata["license"] = license
    if counts["pairs"]:
        metadata["size_categories"] = [_size_category(counts["pairs"])]
    metadata |= {"task_categories": ["sentence-similarity"], "tags": ["sentence-transformers", "gur", "mined-pairs"]}
    shown = "".join(
        f"\n```json\n{json.dumps(pair._asdict(), indent=2, ensure_ascii=False)}\n```\n" for pair in examples
    )
    settings = "\n".join(f"| {name} | {value} |" for name, value in counts["settings"].items())
    return f"""---
{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True).strip()}
---

{CARD_TITLE}

{counts["pairs"]:,} pairs (`text`, `text_pair`) from {counts["documents"]:,} documents. `shared_span` is the heaviest
text that both have in common (empty where none is asked for), `document_id` where they are from, `strategy` how they
were made. Mined with [retromae-gur](https://github.com/) by the rule of GUR (arXiv 2306.10056); the text keeps the
licence of its documents.
{shown}
```
{format_counts(counts)}
```

| setting | value |
|---|---|
{settings}
"""


def _size_category(number: int) -> str:
    """The word of the Hub."""
    bounds = [(10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M")]
    bounds += [(10**8, "10M<n<100M"), (10**9, "100M<n<1B")]
    return next((name for bound, name in bounds if number < bound), "n>1B")
