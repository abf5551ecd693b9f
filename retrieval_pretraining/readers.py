"""One file -> its rows, whatever the format. Adding a format is adding a function to `READERS`.

A reader yields (place, values): where the row is, such as "line 7", and the values of the wanted columns as the file
has them, None where there is none. It looks at no other column, keeps little more than a row in memory where the
format allows that, and raises `InputError` with the file and the line for what it cannot read.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval_pretraining.errors import InputError

OPENERS = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
REPLACEMENT = {"replace": "\ufffd", "ignore": ""}
_WHITESPACE = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
_ZERO_WIDTH = "\u00ad\u034f\u061c\u180e\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff"
INVISIBLE = _WHITESPACE + _ZERO_WIDTH
_BYTE_ORDER_MARK = "\ufeff"
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_LISTED = 20

# No decoder yields a lone surrogate, so it can stand for bytes that could not be decoded until the line is known.
_UNDECODABLE = "\udfff"
codecs.register_error("retrieval_pretraining.mark", lambda error: (_UNDECODABLE, error.end))


@dataclass
class CorpusCounts:
    """What was read and what was dropped. `documents` is None for a streamed corpus, which nobody has counted."""

    files: int = 0
    documents: int | None = 0
    blank: int = 0
    null: int = 0
    undecodable: int = 0

    def __str__(self) -> str:
        source = f" from {_plural(self.files, 'file')}" if self.files else ""
        if self.documents is None:
            return f"documents streamed{source}, not counted"
        reasons = [f"{count:,} {reason}" for reason, count in (("blank", self.blank), ("null", self.null)) if count]
        line = f"{_plural(self.documents, 'document')}{source}, {self.blank + self.null:,} dropped"
        if reasons:
            line += f" ({', '.join(reasons)})"
        if self.undecodable:
            line += f", {_plural(self.undecodable, 'undecodable place')} replaced or ignored"
        return line


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def split_suffix(path: Path) -> tuple[str, str]:
    """`a.jsonl.gz` -> (".jsonl", ".gz"); the second is empty for a file that is not compressed."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in OPENERS else ""
    kind = suffixes[-1] if suffixes else ""
    if kind not in READERS or (kind == ".parquet" and compression):
        raise InputError(f"{path}: unknown format '{kind}{compression}'; supported are {supported_formats()}")
    return kind, compression


def is_supported(path: Path) -> bool:
    try:
        return bool(split_suffix(path))
    except InputError:
        return False


def supported_formats() -> str:
    return f"{', '.join(READERS)}, all but parquet also followed by {', '.join(OPENERS)}"


class SourceFile:
    """One file being read: its lines, where the reader stands, and errors that name the place."""

    def __init__(self, path: Path, encoding: str, encoding_errors: str, counts: CorpusCounts):
        self.path, self.encoding, self.encoding_errors, self.counts = path, encoding, encoding_errors, counts
        self.kind, self.compression = split_suffix(path)
        self.line = 0

    def error(self, message: str, *, place: str | None = None) -> InputError:
        return InputError(f"{self.path}, {place or f'line {self.line}'}: {message}")

    def missing_column(self, name: str, present: Sequence[str]) -> InputError:
        listed = ", ".join(map(str, present[:_MAX_LISTED])) + (", ..." if len(present) > _MAX_LISTED else "")
        return InputError(
            f"{self.path}: no column '{name}'; columns present: {listed or 'none'}; "
            "name one of them with --text_column_name"
        )

    def lines(self) -> Iterator[str]:
        """Lines with their ends. Only newline and carriage return end one: U+2028 and the like are text."""
        self.line = 0
        try:
            raw = OPENERS.get(self.compression, open)(self.path, "rb")
            with io.TextIOWrapper(
                raw, encoding=self.encoding, errors="retrieval_pretraining.mark", newline=""
            ) as stream:
                for line in stream:
                    self.line += 1
                    if self.line == 1:
                        line = line.removeprefix(_BYTE_ORDER_MARK)
                    if _UNDECODABLE in line:
                        line = self._repair(line)
                    yield line
        except LookupError as error:
            raise InputError(f"encoding '{self.encoding}' is not known; try utf-8, gb18030 or utf-16") from error
        except UnicodeError as error:  # utf-16 without its mark: no handler is asked
            raise self.error(f"is not {self.encoding} ({error}); give the file's encoding") from error
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise InputError(
                f"{self.path}: cannot be read beyond line {self.line} ({error}); is the file whole?"
            ) from error

    def _repair(self, line: str) -> str:
        if self.encoding_errors == "strict":
            raise self.error(
                f"holds bytes that are not {self.encoding}; give the file's encoding (Chinese files are often "
                "gb18030) or --encoding_errors replace"
            )
        self.counts.undecodable += line.count(_UNDECODABLE)
        return line.replace(_UNDECODABLE, REPLACEMENT[self.encoding_errors])


_Rows = Iterator[tuple[str, list[Any]]]


def _read_txt(file: SourceFile, columns: list[str]) -> _Rows:
    # The columns do not matter here: a line is a passage and has no title.
    for line in file.lines():
        yield f"line {file.line}", [line.rstrip("\r\n")]


def _read_json_lines(file: SourceFile, columns: list[str]) -> _Rows:
    def rows() -> Iterator[tuple[str, Any]]:
        for line in file.lines():
            if not line.strip(INVISIBLE):
                file.counts.blank += 1
                continue
            try:
                yield f"line {file.line}", json.loads(line)
            except (ValueError, RecursionError) as error:
                # The error of `json` speaks of line 1 of 1.
                reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
                raise file.error(f"is not valid JSON ({reason}); repair or remove the line") from error

    return _pick_columns(file, rows(), columns)


def _read_json(file: SourceFile, columns: list[str]) -> _Rows:
    """An array of objects (held in memory whole), one object, or JSON lines under another name."""
    if _starts_like_json_lines(file):
        return _read_json_lines(file, columns)
    text = "".join(file.lines())
    if not text.strip(INVISIBLE):
        return iter(())
    try:
        items = json.loads(text)
    except json.JSONDecodeError as error:
        raise file.error(f"is not valid JSON ({error.msg}); repair the file", place=f"line {error.lineno}") from error
    except (ValueError, RecursionError) as error:
        raise file.error(f"is not valid JSON ({error}); repair the file", place="whole file") from error
    if not isinstance(items, list):
        items = [items]
    return _pick_columns(file, ((f"item {number}", item) for number, item in enumerate(items, 1)), columns)


def _starts_like_json_lines(file: SourceFile) -> bool:
    undecodable = file.counts.undecodable
    first = next((line for line in file.lines() if line.strip(INVISIBLE)), "")
    file.counts.undecodable = undecodable  # this line is going to be read again
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _pick_columns(file: SourceFile, rows: Iterator[tuple[str, Any]], columns: list[str]) -> _Rows:
    # Keys may differ from row to row, so a column is only missing when no row of the file has it.
    missing, present = list(columns), {}
    for place, row in rows:
        if not isinstance(row, dict):
            raise file.error(f'is {type_name(row)}, not an object such as {{"{columns[0]}": ...}}', place=place)
        if missing:
            missing = [name for name in missing if name not in row]
            if len(present) <= _MAX_LISTED:
                present.update(dict.fromkeys(row))
        yield place, [_without_surrogates(file, place, row.get(name)) for name in columns]
    if missing and present:
        raise file.missing_column(missing[0], list(present))


def _without_surrogates(file: SourceFile, place: str, value: Any) -> Any:
    # Half of an escaped pair ("\ud83d", a text cut in the middle of an emoji) is no character and cannot be stored.
    if not isinstance(value, str) or value.isascii() or not _SURROGATE.search(value):
        return value
    if file.encoding_errors == "strict":
        raise file.error(
            "holds half of a \\uD800-\\uDFFF pair; repair it or give --encoding_errors replace", place=place
        )
    value, replaced = _SURROGATE.subn(REPLACEMENT[file.encoding_errors], value)
    file.counts.undecodable += replaced
    return value


def _read_csv(file: SourceFile, columns: list[str], *, delimiter: str = ",") -> _Rows:
    csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))  # the default refuses documents over 128 KiB
    # strict: otherwise a quote that nobody closed swallows the rest of the file in silence.
    reader = csv.reader(file.lines(), delimiter=delimiter, strict=True)
    header, positions, first_line = None, [], 1
    while True:
        first_line = file.line + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise file.error(
                f"is no row ({error}); quote the field and double the quotes inside it, or convert to jsonl",
                place=f"line {first_line}",
            ) from error
        if row is None:
            return
        if header is None:
            if row:
                header = [name.strip() for name in row]
                for name in columns:
                    if name not in header:
                        raise file.missing_column(name, header)
                positions = [header.index(name) for name in columns]
        elif not row:
            file.counts.blank += 1
        elif any(row[len(header) :]):
            # Most often an unquoted comma in the text, which would lose all that follows it.
            raise file.error(
                f"has {len(row)} fields under a header of {len(header)}; quote the text", place=f"line {first_line}"
            )
        else:
            yield f"line {first_line}", [row[position] if position < len(row) else None for position in positions]


def _read_tsv(file: SourceFile, columns: list[str]) -> _Rows:
    return _read_csv(file, columns, delimiter="\t")


def _read_parquet(file: SourceFile, columns: list[str]) -> _Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 0
    try:
        with pq.ParquetFile(file.path) as table:
            schema = table.schema_arrow
            for name in columns:
                if name not in schema.names:
                    raise file.missing_column(name, schema.names)
            for batch in table.iter_batches(batch_size=1024, columns=columns):
                values = [batch.column(batch.schema.get_field_index(name)).to_pylist() for name in columns]
                for row_values in zip(*values, strict=True):
                    row += 1
                    yield f"row {row}", list(row_values)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{file.path}: cannot be read beyond row {row} ({reason}); is the file whole?") from error


READERS = {
    ".txt": _read_txt,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".parquet": _read_parquet,
}


def type_name(value: Any) -> str:
    names = {list: "a list", dict: "an object", bool: "a boolean", int: "a number", float: "a number", bytes: "bytes"}
    return names.get(type(value), f"a {type(value).__name__}")
