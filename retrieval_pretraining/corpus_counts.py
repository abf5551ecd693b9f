"""What was read of a corpus, and what was dropped and why."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_BAD_PLACES = 3


@dataclass
class CorpusCounts:
    """What was read, cleaned and dropped. `documents` is None for a streamed corpus, which nobody has counted.

    `documents` are those that are left; `bad` counts the lines that were skipped because they could not be used, and
    `bad_places` says where the first stand. `changed` and `dropped` are the documents that cleaning changed (by step)
    and dropped (by reason). `characters` are those of what is left, by script.
    """

    files: int = 0
    documents: int | None = 0
    blank: int = 0
    null: int = 0
    undecodable: int = 0
    bad: int = 0
    bad_places: list[str] = field(default_factory=list)
    changed: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    characters: dict[str, int] = field(default_factory=dict, compare=False)

    def dropped_by_reason(self) -> dict[str, int]:
        """All documents that are missing, but for those on bad lines."""
        reasons = {"blank": self.blank, "null": self.null, **self.dropped}
        return {reason: count for reason, count in reasons.items() if count}

    def __str__(self) -> str:
        source = f" from {plural(self.files, 'file')}" if self.files else ""
        if self.documents is None:
            return f"documents streamed{source}, not counted"
        reasons = self.dropped_by_reason()
        line = f"{plural(self.documents, 'document')}{source}, {sum(reasons.values()):,} dropped"
        if reasons:
            line += f" ({', '.join(f'{count:,} {reason}' for reason, count in reasons.items())})"
        if self.undecodable:
            line += f", {plural(self.undecodable, 'undecodable place')} replaced or ignored"
        if self.bad:
            line += f", {plural(self.bad, 'bad line')} skipped ({self.where_bad()})"
        return line

    def add(self, other: CorpusCounts) -> None:
        """Adds what was counted in files that come after these."""
        for name in ("files", "documents", "blank", "null", "undecodable", "bad"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("changed", "dropped", "characters"):
            for reason, count in getattr(other, name).items():
                add_to(getattr(self, name), reason, count)
        self.bad_places = (self.bad_places + other.bad_places)[:MAX_BAD_PLACES]

    def where_bad(self) -> str:
        return "; ".join(self.bad_places) + ("; ..." if self.bad > len(self.bad_places) else "")


def add_to(counts: dict[str, int], name: str, count: int = 1) -> None:
    counts[name] = counts.get(name, 0) + count


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
