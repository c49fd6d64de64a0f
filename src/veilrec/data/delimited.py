"""Delimited files and parquet as columns of text, and the faults of their rows by kind and line, in one report.

UTF-8 or another encoding, any line ends, fields in double quotes that hold separators and line breaks, blank lines,
gzip, parquet. Times are seconds since 1970 and smaller units, ISO 8601, or in a given format.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from veilrec.core.arrays import Bools, Offsets
from veilrec.core.errors import BadInput, bad_line, counted
from veilrec.data.text_files import decode, expected_fields, read_bytes, split_rows

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
USUAL_SCALE = "1-5"  # of ratings, unless another is given
_NAMED_SEPARATORS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " ", "pipe": "|"}


@dataclass(frozen=True)
class CsvOptions:
    """How a file is to be read where it does not say so itself."""

    user_column: str | None = None  # None: a name that is known
    item_column: str | None = None
    rating_column: str | None = None  # "none": there is none
    time_column: str | None = None
    time_format: str | None = None  # as in Python's strptime; None: seconds since 1970 or ISO 8601
    decimal: str | None = None  # None: a point
    separator: str | None = None  # None: the one of `SEPARATORS` that splits the header most
    encoding: str | None = None  # None: UTF-8
    header: bool = True  # without, columns are called 1, 2, 3, ...
    skip_bad: bool = False
    rating_scale: str | None = None  # as 1-5; "none": ratings are counts or the like

    def __post_init__(self) -> None:
        if self.decimal not in (None, ".", ","):
            raise BadInput(f"--decimal is {self.decimal!r}: give '.' or ','")
        if self.time_format is not None:
            check_format(self.time_format)
        try:
            "".encode(self.encoding or "utf-8")
        except LookupError:
            raise BadInput(
                f"--encoding {self.encoding} does not exist: give utf-8, cp1252, latin-1, utf-16 or another that Python"
                " knows"
            ) from None
        if self.separator is not None and (not self.mark or '"' in self.mark or "\n" in self.mark):
            raise BadInput(f"--separator {self.separator!r} splits nothing: give for instance ';', ',', tab or '|'")

        _ = self.scale

    @property
    def scale(self) -> tuple[float, float] | None:
        """Lowest and highest rating there can be; None: ratings have no scale."""
        if self.rating_scale == "none":
            return None
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*-\s*(\d+(?:\.\d+)?)", (self.rating_scale or USUAL_SCALE).strip())
        low, high = (float(end) for end in found.groups()) if found else (0.0, 0.0)
        if not low < high < math.inf:
            raise BadInput(
                f"--rating-scale {self.rating_scale} is none: give the lowest and the highest rating there can be, such"
                " as 1-5 or 0.5-10, or none for counts of uses"
            )
        return low, high

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

    def text(self, place: int) -> pl.Series:
        """Return a column as text, "" where it is empty."""
        column = self.frame[str(place)]
        if column.dtype.is_nested():
            raise BadInput(
                f"{self.path}: column {self.names[place]!r} holds lists and not single values: give another one, or"
                " join them with | in a text"
            )
        return column.cast(pl.String).fill_null("")


def read_rows(path: Path, options: CsvOptions) -> RawRows:
    """Read a CSV, gzip or parquet file."""
    content = read_bytes(path)
    if content[:4] == b"PAR1":
        return _read_parquet(path, content)
    if (options.encoding is None and b"\0" in content[2:8192]) or content.lstrip()[:1] in (b"{", b"["):
        raise BadInput(
            f"{path} is no table of text: give a CSV, gzip or parquet file (of Excel save the sheet as CSV, of a zip"
            " archive the file in it, of UTF-16 give --encoding utf-16; JSON lines are for --kind impressions)"
        )
    how = f"give --encoding ENCODING (`veilrec data check`, or for good `veilrec data import {path} --encoding"
    text = decode(path, content, options.encoding, f"{how} ENCODING --out FOLDER`), or ").replace("\r", "\n")
    body = text.lstrip("\n")
    first_line = 1 + len(text) - len(body)
    head, _, rest = body.partition("\n")
    if not head.strip():
        raise BadInput(f"{path} is empty: a header such as user,item,rating,time and rows are needed")
    separator = options.mark or max(SEPARATORS, key=lambda mark: len(_fields(head, mark)))
    names = _fields(head, separator)
    if not options.header:
        names, rest, blank = [str(number) for number in range(1, len(names) + 1)], body, first_line - 1
    else:
        blank, first_line = first_line - 1, first_line + 1
    rest = rest.rstrip("\n")
    if not rest.strip():
        raise BadInput(f"{path} has no rows: a file with at least one row is needed")
    columns = [str(place) for place in range(len(names))]
    frame, lines, others = split_rows(rest, columns, separator, first_line, quoted='"' in rest)
    counts = [(line, found) for line, found in others.items() if found]
    quotes = [line for line, found in others.items() if found is None]
    faults = [
        Fault(
            None,
            expected_fields(columns, separator),
            np.array([line for line, _ in counts], np.int64),
            pl.Series([f"found {found}" for _, found in counts], dtype=pl.String),
        ),
        Fault(None, "the quotes do not match", np.array(quotes, np.int64), pl.Series([""] * len(quotes))),
    ]
    empty: Bools = frame.select(pl.all_horizontal(pl.all().str.strip_chars() == "")).to_series().to_numpy()
    blank += int(empty.sum()) + len(others) - len(counts) - len(quotes)
    return RawRows(path, names, frame.filter(~empty), lines[~empty], blank, tuple(f for f in faults if len(f.lines)))


def _read_parquet(path: Path, content: bytes) -> RawRows:
    try:
        frame = pl.read_parquet(content)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadInput(f"{path} is not a whole parquet file ({str(error).splitlines()[0]}): get it again") from None
    names = frame.columns
    if not len(frame):
        raise BadInput(f"{path} has no rows: a file with at least one row is needed")
    frame = frame.with_columns(pl.col(pl.Datetime, pl.Date).dt.epoch("s"))
    frame.columns = [str(place) for place in range(len(names))]
    return RawRows(path, names, frame, np.arange(1, len(frame) + 1, dtype=np.int64), 0, ())


def _fields(line: str, separator: str) -> list[str]:
    if len(separator) > 1:
        return [part.strip() for part in line.split(separator)]
    found = next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    return [name.strip() for name in found]


_FORMATS = tuple(
    date + time
    for date in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d.%m.%y", "%d %b %Y", "%b %d, %Y")
    for time in ("", " %H:%M", " %H:%M:%S", ", %H:%M", ", %H:%M:%S", " %I:%M %p")
)
# Numbers above which times are in that unit, and how many make a second: as seconds, 1e11 is the year 5138.
_SMALLER_UNITS = ((10**17, "nanoseconds", 10**9), (10**14, "microseconds", 10**6), (10**11, "milliseconds", 10**3))
_LATEST = 1e15  # seconds, either way: beyond, a number is no time
_GUESSED_FROM = 20  # values

Wrong = dict[str, tuple[pl.Series, str]]  # by kind of fault: the rows, and advice


def check_format(given: str) -> None:
    """Refuse a format without a whole date, or with a part that strptime does not know: every time would be bad."""
    try:
        datetime.strptime(datetime(2000, 1, 1).strftime(given), given)
        pl.Series(["x"]).str.strptime(pl.Datetime("us"), given, strict=False)
        whole = re.search("%[a-zA-Z]", given) is not None
    except (ValueError, re.error, pl.exceptions.PolarsError):
        whole = False
    if not whole:
        raise BadInput(f"--time-format {given!r} cannot be used: give parts of strptime, such as '%d.%m.%Y %H:%M'")


def with_point(column: pl.Series, decimal: str) -> pl.Series:
    """Numbers as Python writes them; with a decimal comma, one with a point is none."""
    if decimal == ".":
        return column
    return column.str.replace_all(".", "?", literal=True).str.replace_all(",", ".", literal=True)


def read_times(column: pl.Series, given: str | None, decimal: str) -> tuple[pl.Series, Wrong, str]:
    """Seconds since 1970, what is wrong, and the unit that numbers were in if that is another."""
    empty, unit = column == "", ""
    if given is None:
        seconds, unit = _in_seconds(plain_times(column, decimal))
        what = "is neither seconds since 1970 nor ISO 8601"
    else:
        seconds = column.str.strptime(pl.Datetime("us"), given, strict=False).dt.epoch("s")
        what = f"is not a time in the format {given}"
    bad = seconds.is_null() & ~empty
    wrong = {
        "is empty": (empty, "without times give --time-column none"),
        what: (bad, _guessed_format(column.filter(bad), given) if bad.any() else ""),
    }
    return seconds.fill_null(0), wrong, unit


def _in_seconds(times: pl.Series) -> tuple[pl.Series, str]:
    """Times in seconds, where each that is so large can only be in a smaller unit; and such units."""
    found, left = [], times
    for low, unit, parts in _SMALLER_UNITS:
        smaller = (left > low).fill_null(False)
        if smaller.any():
            found.append(unit)
            times = times.zip_with(~smaller, times // parts)
            left = left.zip_with(~smaller, pl.Series([None], dtype=pl.Int64))
    return times, " and ".join(found)


def moment_of(text: str) -> int:
    """A public moment that a user gives as the cut of a log, in seconds since 1970."""
    seconds = iso_seconds(text.strip())
    if seconds is None:
        raise BadInput(
            f"--cut {text!r} is no date: give a day such as 2026-01-31, or a moment such as 2026-01-31T18:00Z"
        )
    return seconds


def plain_times(column: pl.Series, decimal: str = ".") -> pl.Series:
    """Seconds since 1970 of numbers and of moments in ISO 8601; null for anything else."""
    whole = column.cast(pl.Int64, strict=False)
    if not whole.null_count():
        return whole
    number = with_point(column, decimal).cast(pl.Float64, strict=False)
    number = pl.select(pl.when(number.is_finite() & (number.abs() < _LATEST)).then(number.floor())).to_series()
    seconds = whole.fill_null(number.cast(pl.Int64, strict=False))
    left = column.filter(seconds.is_null()).unique()
    read = pl.Series([iso_seconds(text) for text in left], dtype=pl.Int64)
    return seconds.fill_null(column.replace_strict(left, read, default=None, return_dtype=pl.Int64))


def iso_seconds(text: str) -> int | None:
    """Seconds since 1970 of a moment in ISO 8601, UTC without a zone; None for anything else."""
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError, OSError):
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
