"""Delimited files as people really have them, split into rows of texts; lines that cannot be split are gathered.

UTF-8 or another encoding, with or without a byte order mark, any line ends, fields in double quotes that hold
separators and line breaks, blank lines, `sep=;` on top, gzip, parquet. What is no table at all is called what it is.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from veilrec._arrays import Bools, Offsets
from veilrec._quotes import without_blanks_behind
from veilrec.data.csv_faults import Fault
from veilrec.data.text_files import read_bytes
from veilrec.errors import BadInput, bad_line

SEPARATORS = (",", "\t", ";", "|")  # that are looked for in the header
_NAMED_SEPARATORS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " ", "pipe": "|"}
_STAND_IN = "\x1f"  # for separators of several characters, which nobody else can split on
_LONGEST_HEADER = 1 << 16
_NEWLINE = 0x0A
_UNREADABLE = "\ufffd"  # what stands where bytes are no letters
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark is the beginning of it
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"
# First bytes of what people take for a table, what it is, and what to do.
_BINARIES = (
    (b"\xd0\xcf\x11\xe0", "an old Excel file", "save the sheet as CSV (UTF-8)"),
    (b"SQLite format 3", "an SQLite database", "export the table as CSV"),
    (b"%PDF", "a PDF", "export the table as CSV"),
    (b"BZh", "a bzip2 file", "unpack it first"),
    (b"\xfd7zXZ", "an xz file", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", "unpack it first"),
    (b"7z\xbc\xaf", "a 7z archive", "unpack it first"),
    (b"ARROW1", "an Arrow file", "save it as parquet or CSV"),
    (b"\x89HDF", "an HDF5 file", "save the table as parquet or CSV"),
    (b"Obj\x01", "an Avro file", "save it as parquet or CSV"),
    (b"\x93NUMPY", "an array of numpy", "save it as CSV with a header"),
)
_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\x0b\x0c\x1f")) + b"\x7f"


@dataclass(frozen=True)
class Layout:
    """How the texts of a file are to be found; None: as the file itself says."""

    separator: str | None = None  # None: the one of `SEPARATORS` that splits the header most
    encoding: str | None = None  # None: UTF-8
    header: bool = True  # without, columns are called 1, 2, 3, ...
    skip_bad: bool = False  # whether a line in another encoding is a fault like others, or of the whole file

    def __post_init__(self) -> None:
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except LookupError:
                raise BadInput(
                    f"--encoding {self.encoding} does not exist: give utf-8, cp1252, latin-1, utf-16 or another that"
                    " Python knows"
                ) from None
        if self.separator is not None and (not self.mark or '"' in self.mark or "\n" in self.mark):
            raise BadInput(f"--separator {self.separator!r} splits nothing: give for instance ';', ',', tab or '|'")

    @property
    def mark(self) -> str:
        """The separator, by its letters."""
        given = self.separator or ""
        return _NAMED_SEPARATORS.get(given.lower(), given)


@dataclass(frozen=True)
class RawRows:
    """The rows that could be split, and what is known of the others."""

    path: Path
    names: list[str]  # of the columns, as they stand in the header; may repeat
    frame: pl.DataFrame  # columns "0", "1", ...; texts, but for parquet
    lines: Offsets  # [rows], 1-based
    blank_lines: int
    faults: tuple[Fault, ...]


def read_rows(path: Path, layout: Layout) -> RawRows:
    """Split a file into rows."""
    content = read_bytes(path)
    if content[:2] == _GZIP:
        content = _unpacked(path, content)
    if content[:4] == _PARQUET:
        return _read_parquet(path)
    _refuse_binary(path, content, layout)
    text, damaged = _decoded(path, content, layout)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    names, separator, body, first_line, blank = _take_header(path, text, layout)
    if len(separator) > 1:
        body, separator = body.replace(separator, _STAND_IN), _STAND_IN
    body = body.rstrip("\n")
    if not body.strip():
        raise BadInput(f"{path} has no rows: a file with at least one row is needed")
    split = _split_quoted if '"' in body else _split_plain
    frame, lines, more_blank, faults = split(body, len(names), separator, first_line, damaged)
    return RawRows(path, names, *_without_empty(frame, lines, blank + more_blank), tuple(faults))


def _unpacked(path: Path, content: bytes) -> bytes:
    try:
        return gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"{path} is not a whole gzip file ({error}): get it again") from None


def _read_parquet(path: Path) -> RawRows:
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadInput(f"{path} is not a whole parquet file ({str(error).splitlines()[0]}): get it again") from None
    names = frame.columns
    moments = [name for name in names if isinstance(frame.schema[name], pl.Datetime | pl.Date)]
    frame = frame.with_columns(pl.col(name).dt.epoch("s") for name in moments)
    if not len(frame):
        raise BadInput(f"{path} has no rows: a file with at least one row is needed")
    frame.columns = [str(place) for place in range(len(names))]
    return RawRows(path, names, frame, np.arange(1, len(frame) + 1, dtype=np.int64), 0, ())


def _refuse_binary(path: Path, content: bytes, layout: Layout) -> None:
    start = content[:8192]
    if start[:4] == b"PK\x03\x04":
        kind, todo = ("a zip archive", "unpack it first")
        if b"[Content_Types].xml" in start or b"xl/" in start:
            kind, todo = "an Excel file", "save the sheet as CSV (UTF-8)"
        elif b"mimetype" in start:
            kind, todo = "a spreadsheet of OpenDocument", "save the sheet as CSV (UTF-8)"
        raise BadInput(f"{path} is binary and no table of text: it is {kind}; {todo}")
    for mark, kind, todo in _BINARIES:
        if start.startswith(mark):
            raise BadInput(f"{path} is binary and no table of text: it is {kind}; {todo}")
    if layout.encoding is not None or start.startswith(tuple(_MARKS)) or _wide_encoding(start):
        return
    if len(start) - len(start.translate(None, _CONTROL)) > len(start) // 50:
        raise BadInput(f"{path} is binary and no table of text: give a CSV, gzip or parquet file")
    if start.lstrip()[:1] in (b"{", b"["):
        raise BadInput(f"{path} is JSON and no table: give a CSV file, or JSON lines with --kind impressions")


def _wide_encoding(start: bytes) -> str | None:
    """UTF-16 without a mark: every other byte of plain letters is zero."""
    if len(start) >= 8:
        if not any(start[0:64:2]) and all(start[1:64:2]):
            return "utf-16-be"
        if not any(start[1:64:2]) and all(start[0:64:2]):
            return "utf-16-le"
    return None


def _decoded(path: Path, content: bytes, layout: Layout) -> tuple[str, bool]:
    """The text, and whether something in it could not be read and is marked."""
    encoding = layout.encoding or "utf-8"
    content = content.removeprefix(codecs.BOM_UTF8) if codecs.lookup(encoding).name == "utf-8" else content
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        other = _other_encoding(content, error.start)
        if layout.skip_bad and not other.startswith("utf-"):
            return content.decode(encoding, "replace"), True
        line = content.count(b"\n", 0, error.start) + 1
        found = f"looks like {other.upper()}" if other.startswith("utf-") else f"byte 0x{content[error.start]:02x}"
        if other == "cp1252":
            found += f", which is {content[error.start : error.start + 1].decode(other)!r} in {other}"
        wanted = "UTF-8" if layout.encoding is None else layout.encoding
        raise bad_line(
            path,
            line,
            f"not valid {wanted} ({found}): give --encoding {other} (`veilrec data check`, or for good"
            f" `veilrec data import {path} --encoding {other} --out FOLDER`), or save the file as UTF-8",
        ) from None
    else:
        wide = _wide_encoding(content[:64]) if layout.encoding is None else None
        if wide is not None:
            advice = f"give --encoding {wide} (`veilrec data import {path} --encoding {wide} --out FOLDER`)"
            raise bad_line(path, 1, f"not UTF-8 (looks like {wide.upper()}): {advice}")
        return text.removeprefix("\ufeff"), False


def _other_encoding(content: bytes, place: int) -> str:
    """What a file that is not in the encoding that it should be in is likely to be in."""
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            return encoding
    wide = _wide_encoding(content[:64])
    if wide is not None:
        return wide
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        pass
    else:
        return "utf-8"
    try:
        content[max(0, place - 100) : place + 100].decode("cp1252")
    except UnicodeDecodeError:
        return "latin-1"
    return "cp1252"


def _take_header(path: Path, text: str, layout: Layout) -> tuple[list[str], str, str, int, int]:
    """Names, separator, what comes behind, the line where that starts, and blank lines before."""
    blank, first_line, start, separator = 0, 1, 0, layout.mark
    while True:
        end = text.find("\n", start)
        line = text[start : len(text) if end < 0 else end]
        on_top = re.fullmatch(r"(?i)sep=(.)\s*", line)
        if not on_top and line.strip():
            break
        if end < 0:
            raise BadInput(f"{path} is empty: a header such as user,item,rating,time and rows are needed")
        blank += not on_top
        separator = separator or (on_top.group(1) if on_top else "")
        first_line, start = first_line + 1, end + 1
    if len(line) > _LONGEST_HEADER:
        raise bad_line(path, first_line, f"longer than {_LONGEST_HEADER:,} letters; give a text file with short lines")
    separator = separator or max(SEPARATORS, key=lambda mark: len(_fields(line, mark)))
    if layout.mark and len(layout.mark) > 1 and layout.mark not in line:
        raise BadInput(
            f"--separator {layout.separator!r} does not occur in the first line of {path} ({line[:80]}): give the one"
            " that stands there"
        )
    names = _fields(line, separator)
    if not layout.header:
        return [str(number) for number in range(1, len(names) + 1)], separator, text[start:], first_line, blank
    return [name.strip() for name in names], separator, text[start + len(line) + 1 :], first_line + 1, blank


def _fields(line: str, separator: str) -> list[str]:
    if len(separator) > 1:
        line, separator = line.replace(separator, _STAND_IN), _STAND_IN
    return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])


_Split = tuple[pl.DataFrame, Offsets, int, list[Fault]]


def _split_plain(body: str, width: int, separator: str, first_line: int, damaged: bool) -> _Split:
    """Without quotes a line is a row: counted with numpy, split by polars."""
    content = body.encode() + b"\n"
    raw = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(raw == _NEWLINE)
    starts = np.concatenate([[0], ends[:-1] + 1])
    if ord(separator) < 128:
        marks = np.flatnonzero(raw == ord(separator))
    else:
        found = re.finditer(re.escape(separator.encode()), content)
        marks = np.fromiter((match.start() for match in found), np.int64)
    counts = np.diff(np.searchsorted(marks, ends), prepend=0) + 1
    odd = np.flatnonzero(counts != width)
    is_blank = np.zeros(len(ends), np.bool_)
    is_blank[odd] = [not content[starts[row] : ends[row]].strip() for row in odd.tolist()]
    unreadable = np.zeros(len(ends), np.bool_)
    if damaged:
        places = [match.start() for match in re.finditer(_UNREADABLE.encode(), content)]
        unreadable[np.searchsorted(ends, places)] = True
    wrong = (counts != width) & ~is_blank & ~unreadable
    faults = [*_wrong_counts(np.flatnonzero(wrong) + first_line, counts[wrong].tolist(), width, separator)]
    faults += _unreadable_lines(np.flatnonzero(unreadable) + first_line)
    kept = ~(is_blank | wrong | unreadable)
    if not kept.all():
        content = raw[np.repeat(kept, ends - starts + 1)].tobytes()
    frame = _texts(width, ()) if not content else _parsed_plain(content, width, separator, int(kept.sum()))
    return frame, np.flatnonzero(kept) + first_line, int(is_blank.sum()), faults


def _parsed_plain(content: bytes, width: int, separator: str, count: int) -> pl.DataFrame:
    if ord(separator) >= 128:
        content, separator = content.replace(separator.encode(), _STAND_IN.encode()), _STAND_IN
    frame = pl.read_csv(
        content,
        separator=separator,
        has_header=False,
        quote_char=None,
        schema={str(place): pl.String for place in range(width)},
    ).fill_null("")
    if len(frame) != count:
        raise BadInput(f"a file could not be split into lines: {count} lines, {len(frame)} rows")
    return frame


def _split_quoted(body: str, width: int, separator: str, first_line: int, damaged: bool) -> _Split:
    """With quotes a row may have several lines; one whose quotes do not match ends with its line."""
    rows: list[list[str]] = []
    lines: list[int] = []
    wrong: list[tuple[int, int]] = []
    broken: list[int] = []
    unreadable: list[int] = []
    blank = 0
    for line, row in _quoted_rows(body, separator):
        if row is None:
            broken.append(line)
        elif len(row) < 2 and not "".join(row).strip():
            blank += 1
        elif damaged and any(_UNREADABLE in field for field in row):
            unreadable.append(line)
        elif len(row) != width:
            wrong.append((line, len(row)))
        else:
            rows.append(row)
            lines.append(line)
    faults = [*_wrong_counts(_numbers(line for line, _ in wrong) + first_line, [n for _, n in wrong], width, separator)]
    faults += _unreadable_lines(_numbers(unreadable) + first_line)
    if broken:
        opened = pl.Series([""] * len(broken), dtype=pl.String)
        faults.append(Fault(None, "the quotes do not match", _numbers(broken) + first_line, opened))
    return _texts(width, rows), _numbers(lines) + first_line, blank, faults


def _quoted_rows(body: str, separator: str) -> Iterator[tuple[int, list[str] | None]]:
    """Every row with the number of the line that it starts on, from 0; None where the quotes do not match."""
    lines = without_blanks_behind(body, separator).split("\n")
    begin = 0
    while begin < len(lines):
        reader = csv.reader(
            (lines[place] + "\n" for place in range(begin, len(lines))),
            delimiter=separator,
            strict=True,
            skipinitialspace=True,
        )
        start = begin
        try:
            for row in reader:
                yield start, row
                start = begin + reader.line_num
        except csv.Error:
            yield start, None
            begin = start + 1
        else:
            return


def _texts(width: int, rows: Sequence[list[str]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={str(place): pl.String for place in range(width)}, orient="row")


def _numbers(values: Iterable[int]) -> Offsets:
    return np.fromiter(values, np.int64)


def _wrong_counts(lines: Offsets, counts: list[int], width: int, separator: str) -> Iterator[Fault]:
    if counts:
        shown = {"\t": "tabs", _STAND_IN: "the separator"}.get(separator, repr(separator))
        values = pl.Series([f"found {count}" for count in counts], dtype=pl.String)
        yield Fault(None, f"expected {width} fields separated by {shown}", lines, values)


def _unreadable_lines(lines: Offsets) -> Iterator[Fault]:
    if len(lines):
        values = pl.Series([""] * len(lines), dtype=pl.String)
        yield Fault(None, "bytes that are no letters in this encoding", lines, values, "give another --encoding")


def _without_empty(frame: pl.DataFrame, lines: Offsets, blank: int) -> tuple[pl.DataFrame, Offsets, int]:
    """Rows of nothing but separators are blank lines, too."""
    first = frame["0"].str.strip_chars() == ""
    if not first.any():
        return frame, lines, blank
    empty: Bools = frame.select(pl.all_horizontal(pl.all().str.strip_chars() == "")).to_series().to_numpy()
    return frame.filter(~empty), lines[~empty], blank + int(empty.sum())
