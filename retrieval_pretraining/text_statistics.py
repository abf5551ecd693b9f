"""What a text is made of, on one screen: documents kept and dropped, characters and tokens by script, unknown ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval_pretraining.corpus_counts import CorpusCounts, plural
from retrieval_pretraining.scripts import SCRIPTS, count_scripts

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

# Above this share of unknown tokens the tokenizer is not that of the text.
UNKNOWN_SHARE = 0.05
# What a tokenizer of bytes makes of characters that it has no token for.
PARTS = "parts of a character"
_KINDS = (*SCRIPTS, PARTS)
# All is counted up to so many examples; of more, as many that are spread evenly.
_COUNTED_EXAMPLES = 1_000_000
_BLOCKS = 1_000


@dataclass
class TokenCounts:
    """The tokens of a dataset of passages or of pairs; special tokens are not counted, but in `lengths`."""

    scripts: dict[str, int]  # without the unknown ones
    unknown: int
    has_unknown: bool  # whether the tokenizer has a token for what it does not know
    lengths: np.ndarray  # tokens of each text, the special ones included
    examples: int
    of: int  # examples that there are

    @property
    def tokens(self) -> int:
        return sum(self.scripts.values()) + self.unknown

    @property
    def unknown_share(self) -> float:
        return self.unknown / max(1, self.tokens)


def count_tokens(examples: Dataset, tokenizer: PreTrainedTokenizerBase) -> TokenCounts:
    """Counts the columns input_ids and, of pairs, input_ids_pair; of more than a million examples, a sample."""
    columns = [name for name in ("input_ids", "input_ids_pair") if name in examples.column_names]
    table, total = examples.with_format("arrow"), len(examples)
    ids_seen, lengths, counted = np.zeros(len(tokenizer), dtype=np.int64), [], 0
    for begin, end in _blocks(total):
        block = table[begin:end]
        counted += end - begin
        for name in columns:
            for chunk in block.column(name).chunks:
                # `flatten` leaves out what lies outside of a slice.
                counts = np.bincount(chunk.flatten().to_numpy(), minlength=len(ids_seen))
                ids_seen = np.pad(ids_seen, (0, len(counts) - len(ids_seen))) + counts
                lengths.append(chunk.value_lengths().to_numpy())
    unknown_id = tokenizer.unk_token_id
    unknown = 0 if unknown_id is None else int(ids_seen[unknown_id])
    ids_seen[list({*tokenizer.all_special_ids, *([] if unknown_id is None else [unknown_id])})] = 0
    scripts = dict.fromkeys(_KINDS, 0)
    for token_id in np.flatnonzero(ids_seen).tolist():
        scripts[_script_of_token(tokenizer, token_id)] += int(ids_seen[token_id])
    return TokenCounts(
        {script: count for script, count in scripts.items() if count},
        unknown,
        unknown_id is not None,
        np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int64),
        counted,
        total,
    )


def _blocks(total: int) -> list[tuple[int, int]]:
    """[begin, end) of rows, up to `_COUNTED_EXAMPLES` in all."""
    if total <= _COUNTED_EXAMPLES:
        size = 10_000
        return [(begin, min(begin + size, total)) for begin in range(0, total, size)]
    size = _COUNTED_EXAMPLES // _BLOCKS
    return [(begin, begin + size) for begin in np.linspace(0, total - size, _BLOCKS).astype(int).tolist()]


def _script_of_token(tokenizer: Any, token_id: int) -> str:
    """The script of most of the token's letters and digits, if it has any."""
    token = tokenizer.convert_ids_to_tokens(token_id)
    # "<0xE4>" is a byte for the tokenizers of SentencePiece; other tokens of ASCII letters say what they are.
    is_plain = token.isascii() and not token.startswith("<0x")
    text = token if is_plain else tokenizer.convert_tokens_to_string([token])
    counts = count_scripts(text)
    if "\ufffd" in text and not counts[:-1].any():
        return PARTS
    return SCRIPTS[int(counts[:-1].argmax())] if counts[:-1].any() else SCRIPTS[-1]


def format_statistics(counts: CorpusCounts | None, tokens: TokenCounts | None = None, *, unit: str = "passage") -> str:
    """One screen. `counts` is None where nobody counted what was read; `unit` is what an example is called."""
    lines = []
    if counts is not None and counts.documents is not None:
        lines += _document_lines(counts)
    characters = {} if counts is None else counts.characters
    columns = [
        (name, found) for name, found in (("characters", characters), ("tokens", tokens and tokens.scripts)) if found
    ]
    if columns:
        lines += _table(columns)
    if tokens is not None:
        lines += _token_lines(tokens, unit)
    return "\n".join(lines)


def unknown_warning(tokens: TokenCounts, name: str = "") -> str | None:
    """What to say where the tokenizer knows too few tokens of the text."""
    if tokens.unknown_share <= UNKNOWN_SHARE:
        return None
    return (
        f"warning: the tokenizer does not know {tokens.unknown_share:.0%} of the tokens of the "
        f"{f'{name} ' if name else ''}text; they teach nothing: choose another tokenizer"
    )


def _document_lines(counts: CorpusCounts) -> list[str]:
    lines = [f"{plural(counts.documents, 'document')} kept"]
    reasons = counts.dropped_by_reason()
    for what, found in (("dropped", reasons), ("changed", counts.changed)):
        # A document may be changed by more than one step.
        if found:
            total = f"{sum(found.values()):,} " if what == "dropped" else ""
            lines.append(f"{total}{what}: {', '.join(f'{count:,} {reason}' for reason, count in found.items())}")
    return lines


def _table(columns: list[tuple[str, dict[str, int]]]) -> list[str]:
    """A row for each script, a count and a share for each column."""
    totals = [sum(found.values()) for _, found in columns]
    lines = [f"{'':<21}" + "".join(f"{name:>15}{'':>9}" for name, _ in columns).rstrip()]
    for kind in _KINDS:
        if any(kind in found for _, found in columns):
            cells = (
                f"{found.get(kind, 0):>15,}{found.get(kind, 0) / total:>8.1%} "
                for (_, found), total in zip(columns, totals)
            )
            lines.append(f"{kind:<21}" + "".join(cells).rstrip())
    lines.append(f"{'all':<21}" + "".join(f"{total:>15,}{'':>9}" for total in totals).rstrip())
    return lines


def _token_lines(tokens: TokenCounts, unit: str) -> list[str]:
    lines = []
    if tokens.lengths.size:
        mean, median, longest = tokens.lengths.mean(), np.median(tokens.lengths), tokens.lengths.max()
        of = "" if tokens.examples == tokens.of else f", of {tokens.examples:,} of {tokens.of:,}"
        lines.append(
            f"tokens a {unit}: {mean:.1f} (median {median:.0f}, longest {longest}, special ones included{of})"
        )
    if tokens.has_unknown:
        lines.append(f"unknown tokens: {tokens.unknown:,}, {tokens.unknown_share:.2%}")
    warning = unknown_warning(tokens)
    return lines if warning is None else [*lines, warning]
