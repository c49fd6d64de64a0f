"""Delimited files and parquet as columns of text, and the faults of their rows by kind and line, in one report.

UTF-8 or another encoding, any line ends, fields in double quotes that hold separators and line breaks, blank lines,
`sep=;` on top, gzip, parquet. Times are seconds since 1970 and smaller units, ISO 8601, or in a given format.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from veilrec.core.arrays import Bools, Offsets
from veilrec.core.errors import BadInput, bad_line, counted
from veilrec.data.text_files import UNIT_SEPARATOR, exact_rows, read_bytes, split_clean, unpack_gzip

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
        """Column and problem, without any row."""
        return self.what if self.column is None else f"{self.column} {self.what}"

    def summary(self) -> str:
        """Describe the fault in one line: kind, number of rows, examples, advice."""
        few: dict[str | int, str] = {}  # by value, or by line where nothing stands there
        for value, line in zip(self.values[:_LOOKED_AT], self.lines[:_LOOKED_AT].tolist(), strict=True):
            few.setdefault(value or line, f"{self._shown(value)} (line {line})" if value else f"line {line}")
            if len(few) == _EXAMPLES:
                break
        return f"{self.kind}: {counted(len(self.lines), 'row')}, such as {', '.join(few.values())}{self._advice()}"

    def alone(self, path: Path) -> str:
        """Describe a fault that only one row of the file has, as an error of that line."""
        value = self._shown(self.values[0])
        if self.column is None:
            problem = f"{self.what}, {value}" if value else self.what
        else:
            problem = f"{self.column} {value} {self.what}" if self.values[0] else self.kind
        return str(bad_line(path, int(self.lines[0]), problem + self._advice()))

    def _shown(self, value: str) -> str:
        if self.column is None:
            return value[:_SHOWN_CHARACTERS]
        return repr(value[:_SHOWN_CHARACTERS] + ("..." if len(value) > _SHOWN_CHARACTERS else ""))

    def _advice(self) -> str:
        return f"; {self.advice}" if self.advice else ""


@dataclass(frozen=True)
class FaultyFile:
    """A file with its faults and the numbers of its bad and good rows."""

    path: Path
    faults: Sequence[Fault]
    bad_rows: int
    good_rows: int


def refusal(found: Sequence[FaultyFile]) -> BadInput:
    """Return one error with every fault of every file: a single line for a single fault, else a line for each kind."""
    leave_out = ", or leave such rows out with --skip-bad (`veilrec data import`)"
    if not any(file.good_rows for file in found):
        leave_out = ": no row is without a fault"
    every = [(file.path, fault) for file in found for fault in file.faults]
    if len(every) == 1 and len(every[0][1].lines) == 1:
        path, fault = every[0]
        return BadInput(f"{fault.alone(path)}; put it right{leave_out}")
    report = []
    for file in found:
        if file.faults:
            report.append(f"{file.path} has faults in {counted(file.bad_rows, 'row')}")
            report += [f"  {fault.summary()}" for fault in file.faults]
    return BadInput("\n".join([*report, f"Put them right{leave_out}"]))


SEPARATORS = (",", "\t", ";", "|")  # candidates for the one that splits the header most
_NAMED_SEPARATORS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " ", "pipe": "|"}
_LONGEST_HEADER = 1 << 16
_UNREADABLE = "\ufffd"  # replaces bytes that are not valid in the encoding
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark is the beginning of it
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


@dataclass(frozen=True)
class Layout:
    """Separator, encoding and header of a delimited file; None: detect."""

    separator: str | None = None  # None: the one of `SEPARATORS` that splits the header most
    encoding: str | None = None  # None: UTF-8
    header: bool = True  # without, columns are called 1, 2, 3, ...
    skip_bad: bool = False  # report lines with undecodable bytes as faulty rows instead of refusing the file

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
        """Separator as it stands in the file; "" where it is to be detected."""
        given = self.separator or ""
        return _NAMED_SEPARATORS.get(given.lower(), given)


@dataclass(frozen=True)
class RawRows:
    """Rows of a file as columns of text, and the faults of the lines that could not be split."""

    path: Path
    names: list[str]  # of the columns, as in the header; may repeat
    frame: pl.DataFrame  # columns "0", "1", ...; texts, but for parquet
    lines: Offsets  # [rows], 1-based
    blank_lines: int
    faults: tuple[Fault, ...]


def read_rows(path: Path, layout: Layout) -> RawRows:
    """Read a CSV, gzip or parquet file.

    polars splits the file; only where a line is blank, malformed or longer than a line, an exact pass finds each fault.
    """
    content = read_bytes(path)
    if content[:2] == b"\x1f\x8b":
        content = unpack_gzip(path, content)
    if content[:4] == b"PAR1":
        return _read_parquet(path, content)
    _refuse_binary(path, content, layout)
    text, damaged = _decoded(path, content, layout)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    names, separator, body, first_line, blank = _take_header(path, text, layout)
    body = body.rstrip("\n")
    if not body.strip():
        raise BadInput(f"{path} has no rows: a file with at least one row is needed")
    if len(separator.encode()) > 1:
        body, separator = body.replace(separator, UNIT_SEPARATOR), UNIT_SEPARATOR
    columns = [str(place) for place in range(len(names))]
    frame = None if damaged else split_clean(body.encode(), columns, separator, quoted='"' in body)
    faults: list[Fault] = []
    if frame is None:
        frame, lines, more_blank, faults = _split_exactly(body, columns, separator, first_line)
        blank += more_blank
    else:
        lines = np.arange(first_line, first_line + len(frame), dtype=np.int64)
    return RawRows(path, names, *_without_empty(frame, lines, blank), tuple(faults))


def _read_parquet(path: Path, content: bytes) -> RawRows:
    try:
        frame = pl.read_parquet(content)
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
    if start.startswith(b"PK\x03\x04"):
        raise BadInput(f"{path} is an Excel file or a zip archive: save the sheet as CSV (UTF-8), or unpack it first")
    if layout.encoding is None and b"\0" in start and not start.startswith(tuple(_MARKS)):
        raise BadInput(f"{path} is binary: give a CSV, gzip or parquet file; text in UTF-16 needs --encoding utf-16-le")
    if start.lstrip()[:1] in (b"{", b"["):
        raise BadInput(f"{path} is JSON and no table: give a CSV file, or JSON lines with --kind impressions")


def _decoded(path: Path, content: bytes, layout: Layout) -> tuple[str, bool]:
    """Decode a file; the second value says whether undecodable bytes were replaced."""
    encoding = layout.encoding or "utf-8"
    try:
        return content.decode(encoding).removeprefix("\ufeff"), False
    except UnicodeDecodeError as error:
        other = _likely_encoding(content, encoding)
        if layout.skip_bad and not other.startswith("utf-"):
            return content.decode(encoding, "replace").removeprefix("\ufeff"), True
        byte = content[error.start : error.start + 1]
        found = f"looks like {other.upper()}" if other.startswith("utf-") else f"byte 0x{byte.hex()}"
        if other == "cp1252":
            found += f", which is {byte.decode(other)!r} in {other}"
        raise bad_line(
            path,
            content.count(b"\n", 0, error.start) + 1,
            f"not valid {encoding if layout.encoding else 'UTF-8'} ({found}): give --encoding {other} (`veilrec data"
            f" check`, or for good `veilrec data import {path} --encoding {other} --out FOLDER`), or save the file as"
            " UTF-8",
        ) from None


def _likely_encoding(content: bytes, wrong: str) -> str:
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            return encoding
    for encoding in ("utf-8", "cp1252"):
        if encoding != wrong:
            with suppress(UnicodeDecodeError):
                content.decode(encoding)
                return encoding
    return "latin-1"


def _take_header(path: Path, text: str, layout: Layout) -> tuple[list[str], str, str, int, int]:
    """Return names, separator, the rows, the line where they start, and the number of blank lines before."""
    blank, first_line, start, separator = 0, 1, 0, layout.mark
    while True:
        end = text.find("\n", start)
        line = text[start : len(text) if end < 0 else end]
        on_top = re.fullmatch(r"(?i)sep=(.)\s*", line)  # as Excel writes it
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
    if len(layout.mark) > 1 and layout.mark not in line:
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
        line, separator = line.replace(separator, UNIT_SEPARATOR), UNIT_SEPARATOR
    return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])


def _split_exactly(
    body: str, columns: list[str], separator: str, first_line: int
) -> tuple[pl.DataFrame, Offsets, int, list[Fault]]:
    """Split row by row; return the good rows, their lines, the number of blank lines, and the faults of the others."""
    shown = {"\t": "tabs", UNIT_SEPARATOR: "the separator"}.get(separator, repr(separator))
    count, encoding, quotes = (
        f"expected {len(columns)} fields separated by {shown}",
        "bytes that are no letters in this encoding",
        "the quotes do not match",
    )
    advice = {encoding: "give another --encoding"}
    rows: list[list[str]] = []
    lines: list[int] = []
    bad: dict[str, list[tuple[int, str]]] = {count: [], encoding: [], quotes: []}
    blank = 0
    for line, row in exact_rows(body, separator, quoted='"' in body):
        if row is None:
            bad[quotes].append((line + first_line, ""))
        elif len(row) < 2 and not "".join(row).strip():
            blank += 1
        elif any(_UNREADABLE in field for field in row):
            bad[encoding].append((line + first_line, ""))
        elif len(row) != len(columns):
            bad[count].append((line + first_line, f"found {len(row)}"))
        else:
            rows.append(row)
            lines.append(line + first_line)
    faults = [
        Fault(
            None,
            what,
            np.array([line for line, _ in some], np.int64),
            pl.Series([value for _, value in some], dtype=pl.String),
            advice.get(what, ""),
        )
        for what, some in bad.items()
        if some
    ]
    frame = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row")
    return frame, np.array(lines, np.int64), blank, faults


def _without_empty(frame: pl.DataFrame, lines: Offsets, blank: int) -> tuple[pl.DataFrame, Offsets, int]:
    """Count rows of nothing but separators as blank lines, and leave them out."""
    if not (frame["0"].str.strip_chars() == "").any():
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
