"""Delimited files and parquet, split by polars into columns of text; every fault is reported by kind and line."""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from veilrec._arrays import Bools, Offsets
from veilrec._quotes import without_blanks_behind
from veilrec._words import counted
from veilrec.data.text_files import read_bytes
from veilrec.errors import BadInput, bad_line

_EXAMPLES = 3  # of a kind of fault, each with another value
_LOOKED_AT = 1000  # faulty rows of a kind, for other values
_SHOWN_CHARACTERS = 40  # of a faulty value


@dataclass(frozen=True)
class Fault:
    """One kind of fault, and the rows that have it."""

    column: str | None  # as the file calls it; None: the line as a whole
    what: str  # "is not a number"
    lines: Offsets  # [rows], 1-based; one at least
    values: pl.Series  # [rows], as they stand in the file; of whole lines, what was found instead
    advice: str = ""

    @property
    def kind(self) -> str:
        """What it is, without any row."""
        return self.what if self.column is None else f"{self.column} {self.what}"

    def told(self) -> str:
        """One line for all rows."""
        few: dict[str | int, str] = {}  # by value, or by line where nothing stands there
        for value, line in zip(self.values[:_LOOKED_AT], self.lines[:_LOOKED_AT].tolist(), strict=True):
            few.setdefault(value or line, f"{self._shown(value)} (line {line})" if value else f"line {line}")
            if len(few) == _EXAMPLES:
                break
        return f"{self.kind}: {counted(len(self.lines), 'row')}, such as {', '.join(few.values())}{self._advice()}"

    def alone(self, path: Path) -> str:
        """The same where only one row has it, and no other fault is in the file."""
        value = self._shown(self.values[0])
        if self.column is None:
            told = f"{self.what}, {value}" if value else self.what
        else:
            told = f"{self.column} {value} {self.what}" if self.values[0] else self.kind
        return str(bad_line(path, int(self.lines[0]), told + self._advice()))

    def _shown(self, value: str) -> str:
        if self.column is None:
            return value[:_SHOWN_CHARACTERS]
        return repr(value[:_SHOWN_CHARACTERS] + ("..." if len(value) > _SHOWN_CHARACTERS else ""))

    def _advice(self) -> str:
        return f"; {self.advice}" if self.advice else ""


@dataclass(frozen=True)
class FaultyFile:
    """A file, what is wrong with it, and how many of its rows are bad or good."""

    path: Path
    faults: Sequence[Fault]
    bad_rows: int
    good_rows: int


def refusal(found: Sequence[FaultyFile]) -> BadInput:
    """The error that tells every fault of every file: a line where there is one, else a line for each kind."""
    leave_out = ", or leave such rows out with --skip-bad (`veilrec data import`)"
    if not any(file.good_rows for file in found):
        leave_out = ": no row is without a fault"
    every = [(file.path, fault) for file in found for fault in file.faults]
    if len(every) == 1 and len(every[0][1].lines) == 1:
        path, fault = every[0]
        return BadInput(f"{fault.alone(path)}; put it right{leave_out}")
    told = []
    for file in found:
        if file.faults:
            told.append(f"{file.path} has faults in {counted(file.bad_rows, 'row')}")
            told += [f"  {fault.told()}" for fault in file.faults]
    return BadInput("\n".join([*told, f"Put them right{leave_out}"]))


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


_FORMATS = tuple(
    date + time
    for date in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d.%m.%y", "%d %b %Y", "%b %d, %Y")
    for time in ("", " %H:%M", " %H:%M:%S", ", %H:%M", ", %H:%M:%S", " %I:%M %p")
)
_FAST_FORMAT = re.compile(r"(?:[^%]|%[dmYHMS])*")  # what polars reads exactly as Python does
# Numbers above which times are in that unit, and how many make a second: as seconds, 1e11 is the year 5138.
_SMALLER_UNITS = ((10**17, "nanoseconds", 10**9), (10**14, "microseconds", 10**6), (10**11, "milliseconds", 10**3))
_LATEST = 1e15  # seconds, either way: beyond, a number is no time
_GUESSED_FROM = 20  # values

Wrong = dict[str, tuple[pl.Series, str]]  # by kind of fault: the rows, and advice


def check_format(given: str) -> None:
    """Refuse a format with no parts, or with one that strptime does not know, which would make every time a bad one."""
    if not re.search("%[a-zA-Z]", given):
        raise BadInput(f"--time-format {given!r} has no parts: give for instance '%d.%m.%Y %H:%M'")
    odd = re.search(r"%(?![aAbBcdfHIjmMpSUwWxXyYzZGuV%])(?:.|$)", given.replace("%%", ""))
    if odd:
        raise BadInput(
            f"--time-format {given!r} is invalid: Python's strptime knows no {odd[0]!r}; give for instance"
            " '%d.%m.%Y %H:%M'"
        )


def with_point(column: pl.Series, decimal: str) -> pl.Series:
    """Numbers as Python writes them; with a decimal comma, one with a point is none."""
    if decimal == ".":
        return column
    return column.str.replace_all(".", "?", literal=True).str.replace_all(",", ".", literal=True)


def read_times(column: pl.Series, given: str | None, decimal: str) -> tuple[pl.Series, Wrong, str]:
    """Seconds since 1970, what is wrong, and the unit that numbers were in if that is another."""
    empty, unit = column == "", ""
    if given is None:
        seconds, unit = _in_seconds(_plain_times(column, decimal))
        what = "is neither seconds since 1970 nor ISO 8601"
    else:
        seconds = _formatted_times(column, given)
        what = f"is not a time in the format {given}"
    bad = seconds.is_null() & ~empty
    wrong = {
        "is empty": (empty, "without times give --time-column none"),
        what: (bad, _guessed_format(column.filter(bad), given) if bad.any() else ""),
    }
    return seconds.fill_null(0), wrong, unit


def _in_seconds(times: pl.Series) -> tuple[pl.Series, str]:
    """Times that are all so large that they can only be in a smaller unit, in seconds; and that unit."""
    least = times.min()
    for low, unit, parts in _SMALLER_UNITS:
        if isinstance(least, int) and least > low:
            return times // parts, unit
    return times, ""


def _plain_times(column: pl.Series, decimal: str) -> pl.Series:
    whole = column.cast(pl.Int64, strict=False)
    if not whole.null_count():
        return whole
    number = with_point(column, decimal).cast(pl.Float64, strict=False)
    number = pl.select(pl.when(number.is_finite() & (number.abs() < _LATEST)).then(number.floor())).to_series()
    seconds = whole.fill_null(number.cast(pl.Int64, strict=False))
    return _filled(column, seconds, iso_seconds)


def _formatted_times(column: pl.Series, given: str) -> pl.Series:
    seconds = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(column))
    if _FAST_FORMAT.fullmatch(given):
        with suppress(pl.exceptions.PolarsError):  # a format without a whole date
            seconds = column.str.strptime(pl.Datetime("us"), given, strict=False).dt.epoch("s")

    def read(text: str) -> int | None:
        try:
            moment = datetime.strptime(text, given)
        except ValueError:
            return None
        except re.error:
            raise BadInput(f"--time-format {given!r} cannot be used: see Python's strptime") from None
        return _seconds_of(moment)

    return _filled(column, seconds, read)


def _filled(column: pl.Series, seconds: pl.Series, read: Callable[[str], int | None]) -> pl.Series:
    """Every distinct text that has no seconds yet, read by itself."""
    left = seconds.is_null() & (column != "")
    if not left.any():
        return seconds
    distinct = column.filter(left).unique()
    known = pl.DataFrame({"text": distinct, "found": pl.Series([read(text) for text in distinct], dtype=pl.Int64)})
    joined = pl.DataFrame({"text": column, "seconds": seconds}).join(
        known, on="text", how="left", maintain_order="left"
    )
    return joined.select(pl.coalesce("seconds", "found")).to_series()


def iso_seconds(text: str) -> int | None:
    """Seconds since 1970 of a moment in ISO 8601, UTC without a zone; None for anything else."""
    try:
        return _seconds_of(datetime.fromisoformat(text))
    except ValueError:
        return None


def _seconds_of(moment: datetime) -> int | None:
    try:
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (OverflowError, OSError):
        return None


def _guessed_format(bad: pl.Series, given: str | None) -> str:
    """Advice: the formats that fit the first of these texts, other than the given one."""
    texts = bad[: 50 * _GUESSED_FROM].unique(maintain_order=True)[:_GUESSED_FROM].to_list()

    def fits(one: str, text: str) -> bool:
        try:
            datetime.strptime(text, one)
        except ValueError:
            return False
        return True

    for few in (texts, texts[:1]):
        fitting = [one for one in _FORMATS if one != given and few and all(fits(one, text) for text in few)]
        if fitting:
            return "give --time-format " + " or ".join(f"'{one}'" for one in fitting[:2])
    return "give --time-format, such as '%d.%m.%Y %H:%M'" if given is None else ""
