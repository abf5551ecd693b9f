"""One file -> its rows, whatever the format. Adding a format is adding a function to `READERS`.

A reader yields (place, values): where the row is, such as "line 7", and the values of the wanted columns as the file
has them, None where there is none. It looks at no other column, keeps little more than a row in memory where the
format allows that, and raises `InputError` with the file and the line for what it cannot read. A row that cannot be
parsed goes to `SourceFile.bad_row`, which raises too or counts it, as the user wants.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import PurePath
from typing import Any, BinaryIO

from retrieval_pretraining.corpus_counts import MAX_BAD_PLACES, CorpusCounts
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.remote_files import AnyFile, RemoteFile


def _open_zst(file: BinaryIO) -> BinaryIO:
    import pyarrow as pa

    return pa.CompressedInputStream(file, "zstd")


# What opens a compressed file, from its bytes.
OPENERS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".zst": _open_zst,
}
REPLACEMENT = {"replace": "\ufffd", "ignore": ""}
_WHITESPACE = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
ZERO_WIDTH = "\u00ad\u034f\u061c\u180e\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff"
INVISIBLE = _WHITESPACE + ZERO_WIDTH
_BYTE_ORDER_MARK = "\ufeff"
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_LISTED = 20
# So many lines with undecodable bytes, and hardly one beyond ASCII without, are no damage: the encoding is wrong.
_WRONG_ENCODING = 10

# No decoder yields a lone surrogate, so it can stand for bytes that could not be decoded until the line is known.
_UNDECODABLE = "\udfff"
codecs.register_error("retrieval_pretraining.mark", lambda error: (_UNDECODABLE, error.end))


def split_suffix(path: PurePath | RemoteFile) -> tuple[str, str]:
    """`a.jsonl.gz` -> (".jsonl", ".gz"); the second is empty for a file that is not compressed."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in OPENERS else ""
    kind = suffixes[-1] if suffixes else ""
    if kind not in READERS or (kind == ".parquet" and compression):
        raise InputError(f"{path}: unknown format '{kind}{compression}'; supported are {supported_formats()}")
    return kind, compression


def is_supported(path: PurePath | RemoteFile) -> bool:
    try:
        return bool(split_suffix(path))
    except InputError:
        return False


def supported_formats() -> str:
    return f"{', '.join(READERS)}, all but parquet also followed by {', '.join(OPENERS)}"


def missing_column(source: object, name: str, columns: Sequence[str], present: str, advice: str | None = None) -> str:
    """The message for a column that was asked for; the first of `columns` is that of the text."""
    if advice is None:
        advice = "name one of them with --text_column_name" if name == columns[0] else "name one of them, or none"
    return f"{source}: no column '{name}'; columns present: {present}; {advice}"


class SourceFile:
    """One file being read: its lines, where the reader stands, and errors that name the place.

    The columns named in `optional` may be absent; a reader gives None for them. `column_advice` says what to do about
    one that is missing, where that is not to name another column of the text.
    """

    column_advice: str | None = None

    def __init__(
        self,
        path: AnyFile,
        counts: CorpusCounts,
        *,
        encoding: str = "utf-8",
        encoding_errors: str = "strict",
        on_bad_line: str = "error",
        document_separator: str = "line",
        optional: frozenset[str] = frozenset(),
    ):
        self.path, self.counts, self.encoding, self.encoding_errors = path, counts, encoding, encoding_errors
        self.on_bad_line, self.document_separator, self.optional = on_bad_line, document_separator, optional
        self.kind, self.compression = split_suffix(path)
        self.line, self.ended = 0, False
        self.decoded, self.damaged = 0, 0  # lines beyond ASCII: whole, and with undecodable bytes

    def error(self, message: str, *, place: str | None = None) -> InputError:
        return InputError(f"{self.path}, {place or f'line {self.line}'}: {message}")

    def bad_row(self, reason: str, message: str, *, place: str | None = None, lines: int = 1) -> None:
        """Raises `message` for a row that cannot be used or, if such rows are skipped, counts it under `reason`.

        A reason holds nothing of the data: it is shown, and published, with the counts.
        """
        if self.on_bad_line == "error":
            raise self.error(message, place=place)
        self.counts.bad += lines
        if len(self.counts.bad_places) < MAX_BAD_PLACES:
            self.counts.bad_places.append(f"{self.path.name}, {place or f'line {self.line}'}: {reason}")

    def missing_column(self, name: str, columns: Sequence[str], present: Sequence[str]) -> InputError:
        listed = ", ".join(map(str, present[:_MAX_LISTED])) + (", ..." if len(present) > _MAX_LISTED else "")
        listed = _SURROGATE.sub(REPLACEMENT["replace"], listed)  # a name may hold a bad byte, too
        return InputError(missing_column(self.path, name, columns, listed or "none", self.column_advice))

    def lines(self) -> Iterator[str]:
        """Lines with their ends. Only newline and carriage return end one: U+2028 and the like are text."""
        self.line, self.ended, self.decoded, self.damaged = 0, False, 0, 0
        try:
            with (
                self.path.open("rb") as file,
                OPENERS.get(self.compression, nullcontext)(file) as raw,
                io.TextIOWrapper(
                    raw, encoding=self.encoding, errors="retrieval_pretraining.mark", newline=""
                ) as stream,
            ):
                for line in stream:
                    self.line += 1
                    if self.line == 1:
                        line = line.removeprefix(_BYTE_ORDER_MARK)
                    if not line.isascii():
                        if _UNDECODABLE in line:
                            line = self._repair(line)
                        else:
                            self.decoded += 1
                    yield line
            self.ended = True
        except LookupError as error:
            raise InputError(f"encoding '{self.encoding}' is not known; try utf-8, gb18030 or utf-16") from error
        except UnicodeError as error:  # utf-16 without its mark: no handler is asked
            raise self.error(f"is not {self.encoding} ({error}); give the file's encoding") from error
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise InputError(
                f"{self.path}: cannot be read beyond line {self.line} ({error}); is the file whole?"
            ) from error

    def _repair(self, line: str) -> str:
        if self.encoding_errors != "strict":
            self.counts.undecodable += line.count(_UNDECODABLE)
            return line.replace(_UNDECODABLE, REPLACEMENT[self.encoding_errors])
        advice = "give the file's encoding (Chinese files are often gb18030) or --encoding_errors replace"
        if self.on_bad_line == "error":
            raise self.error(f"holds bytes that are not {self.encoding}; {advice}")
        self.damaged += 1
        if self.damaged >= max(_WRONG_ENCODING, 10 * self.decoded):
            raise self.error(f"is the {self.damaged}th line with bytes that are not {self.encoding}; {advice}")
        return line  # the row that it is part of is skipped

    def without_surrogates(self, place: str, values: list[Any]) -> list[Any] | None:
        """The values of a row, whose texts can be stored and encoded; None if it is skipped since they cannot.

        A surrogate stands for an undecodable byte or is half of an escaped pair: "\\ud83d", a text that was cut in the
        middle of an emoji.
        """
        found = [value for value in values if _has_surrogate(value)]
        if not found:
            return values
        if self.encoding_errors == "strict":
            halves = not any(_UNDECODABLE in value for value in found)
            what = "half of a \\uD800-\\uDFFF pair" if halves else f"bytes that are not {self.encoding}"
            self.bad_row(what, f"holds {what}; repair it or give --encoding_errors replace", place=place)
            return None
        self.counts.undecodable += sum(len(_SURROGATE.findall(value)) for value in found)
        substitute = REPLACEMENT[self.encoding_errors]
        return [_SURROGATE.sub(substitute, value) if _has_surrogate(value) else value for value in values]


def _has_surrogate(value: Any) -> bool:
    return isinstance(value, str) and not value.isascii() and _SURROGATE.search(value) is not None


_Rows = Iterator[tuple[str, list[Any]]]


def _read_txt(file: SourceFile, columns: list[str]) -> _Rows:
    # The columns do not matter here: a text has neither title nor id.
    absent = [None] * (len(columns) - 1)
    for number, text in DOCUMENT_SEPARATORS[file.document_separator](file):
        values = file.without_surrogates(f"line {number}", [text.rstrip("\r\n"), *absent])
        if values is not None:
            yield f"line {number}", values


def _split_at_lines(file: SourceFile) -> Iterator[tuple[int, str]]:
    for line in file.lines():
        yield file.line, line


def _split_at_blank_lines(file: SourceFile) -> Iterator[tuple[int, str]]:
    block: list[str] = []
    for line in file.lines():
        if line.strip(INVISIBLE):
            block.append(line)
        elif block:
            yield file.line - len(block), "".join(block)
            block = []
    if block:
        yield file.line - len(block) + 1, "".join(block)


def _do_not_split(file: SourceFile) -> Iterator[tuple[int, str]]:
    yield 1, "".join(file.lines())


# What ends a document of a .txt file -> how it is cut: (number of the first line, text) of each.
DOCUMENT_SEPARATORS: dict[str, Callable[[SourceFile], Iterator[tuple[int, str]]]] = {
    "line": _split_at_lines,
    "blank_line": _split_at_blank_lines,
    "file": _do_not_split,
}

# What the options of reading can be, for all who check them.
READING_CHOICES = {
    "encoding_errors": ["strict", *REPLACEMENT],
    "on_bad_line": ["error", "skip"],
    "document_separator": list(DOCUMENT_SEPARATORS),
}


def _read_json_lines(file: SourceFile, columns: list[str]) -> _Rows:
    def rows() -> Iterator[tuple[str, Any]]:
        for line in file.lines():
            if not line.strip(INVISIBLE):
                file.counts.blank += 1
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                # The error of `json` speaks of line 1 of 1.
                reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
                advice = "repair or remove the line, or --on_bad_line skip"
                file.bad_row("not valid JSON", f"is not valid JSON ({reason}); {advice}")
            else:
                yield f"line {file.line}", row

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
    missing, present = [name for name in columns if name not in file.optional], {}
    for place, row in rows:
        if not isinstance(row, dict):
            reason = f"{type_name(row)}, not an object"
            file.bad_row(reason, f'is {reason} such as {{"{columns[0]}": ...}}', place=place)
            continue
        if missing:
            missing = [name for name in missing if name not in row]
            if len(present) <= _MAX_LISTED:
                present.update(dict.fromkeys(row))
        values = file.without_surrogates(place, [row.get(name) for name in columns])
        if values is not None:
            yield place, values
    if missing and present:
        raise file.missing_column(missing[0], columns, list(present))


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
            _broken_csv_row(file, error, first_line, header)
            continue
        if row is None:
            return
        if header is None:
            if row:
                header = [name.strip() for name in row]
                for name in columns:
                    if name not in header and name not in file.optional:
                        raise file.missing_column(name, columns, header)
                positions = [header.index(name) if name in header else None for name in columns]
        elif not row:
            file.counts.blank += 1
        elif any(row[len(header) :]):
            # Most often an unquoted comma in the text, which would lose all that follows it.
            reason = f"{len(row)} fields under a header of {len(header)}"
            file.bad_row(reason, f"has {reason}; quote the text", place=f"line {first_line}")
        else:
            fields = [None if at is None or at >= len(row) else row[at] for at in positions]
            values = file.without_surrogates(f"line {first_line}", fields)
            if values is not None:
                yield f"line {first_line}", values


def _broken_csv_row(file: SourceFile, error: csv.Error, first_line: int, header: list[str] | None) -> None:
    message = f"is no row ({error}); quote the field and double the quotes inside it, or convert to jsonl"
    place = f"line {first_line}"
    swallowed_the_rest = file.ended and file.line > first_line
    if header is None or swallowed_the_rest:
        raise file.error(message, place=place)  # there is nothing to go on with
    # What an open quote took with it is lost too, and counted so.
    file.bad_row("broken quotes", message, place=place, lines=file.line - first_line + 1)


def _read_tsv(file: SourceFile, columns: list[str]) -> _Rows:
    return _read_csv(file, columns, delimiter="\t")


def _read_parquet(file: SourceFile, columns: list[str]) -> _Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 0
    try:
        with _parquet_source(file.path) as source, pq.ParquetFile(source) as table:
            schema = table.schema_arrow
            for name in columns:
                if name not in schema.names and name not in file.optional:
                    raise file.missing_column(name, columns, schema.names)
            present = [name for name in columns if name in schema.names]
            for batch in table.iter_batches(batch_size=1024, columns=present):
                absent = [None] * batch.num_rows
                values = {name: batch.column(batch.schema.get_field_index(name)).to_pylist() for name in present}
                for row_values in zip(*(values.get(name, absent) for name in columns), strict=True):
                    row += 1
                    yield f"row {row}", list(row_values)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{file.path}: cannot be read beyond row {row} ({reason}); is the file whole?") from error


def _parquet_source(path: AnyFile):
    return path.open("rb") if isinstance(path, RemoteFile) else nullcontext(path)


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
    if value is None:
        return "null"
    names = {list: "a list", dict: "an object", bool: "a boolean", int: "a number", float: "a number", bytes: "bytes"}
    return names.get(type(value), f"a {type(value).__name__}")
