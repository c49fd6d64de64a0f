"""Delimited text files, plain or gzip: read at full speed; a malformed line is named by file, line and fault.

`read_table` splits a whole file into text columns without a Python loop over its lines; `Table` then turns
columns into numbers or codes, and a value that does not fit raises `BadInput` with the line it stands on.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from veilrec._arrays import Doubles, Indices, Offsets
from veilrec.data.strings import Strings
from veilrec.errors import BadInput, bad_line

_NEWLINE = 0x0A
_UNIT_SEPARATOR = b"\x1f"  # stands in for separators of several bytes, which polars cannot split on
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_LONGEST_HEADER = 1 << 16
_SHOWN_CHARACTERS = 40  # of a faulty value in a message


def find_optional(folder: Path, name: str) -> Path | None:
    """The file of that name in a folder, plain or with `.gz`; None when neither is there."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    return None


def find_file(folder: Path, name: str) -> Path:
    """The file of that official name in a folder, plain or with `.gz`."""
    found = find_optional(folder, name)
    if found is not None:
        return found
    problem = f"no {name} (or {name}.gz) in {folder}" if folder.is_dir() else f"there is no folder {folder}"
    raise BadInput(
        f"{problem}: put the data set's official files there; `veilrec data list` says which they are and "
        "where they come from"
    )


def read_bytes(path: Path) -> bytes:
    """The contents of a file, unpacked when its name ends in `.gz`."""
    with _opened(path) as source:
        return source.read()


def read_first_line(path: Path) -> str:
    """The first line of a text file without its end."""
    with _opened(path) as source:
        line = source.readline(_LONGEST_HEADER)
    if b"\r" in line.rstrip(b"\r\n"):
        raise bad_line(path, 1, "lines end in bare carriage returns; save the file with line feeds")
    if len(line) == _LONGEST_HEADER:
        raise bad_line(path, 1, f"longer than {_LONGEST_HEADER:,} bytes; give a text file with a short header")
    return _checked(path, line.removeprefix(_BYTE_ORDER_MARK)).decode().rstrip("\r\n")


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedIOBase]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as source:
            yield source
    except FileNotFoundError:
        raise BadInput(f"{path} is not there: give the path of an existing file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"{path} is not a whole gzip file ({error}): get it again") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}): give a readable file") from None


def read_utf8(path: Path, encoding: str = "utf-8") -> bytes:
    """The contents of a text file as UTF-8 bytes without byte order mark; lines end in a bare newline."""
    content = read_bytes(path)
    if encoding == "utf-8":
        content = _checked(path, content.removeprefix(_BYTE_ORDER_MARK))
    else:
        content = content.decode(encoding).encode()
    return content.replace(b"\r\n", b"\n") if b"\r" in content else content


def _checked(path: Path, content: bytes) -> bytes:
    """The bytes, if they are UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        kind = "looks like UTF-16" if content[:2] in _UTF16_MARKS else f"byte 0x{content[error.start]:02x}"
        raise bad_line(path, line, f"not valid UTF-8 ({kind}); save the file as UTF-8") from None
    return content


@dataclass(frozen=True)
class Table:
    """The columns of a delimited file as text, with the line that every row stands on."""

    path: Path
    frame: pl.DataFrame  # String columns only, "" where a field is empty
    lines: Offsets  # [rows], 1-based line of the file

    def __len__(self) -> int:
        return self.frame.height

    def error(self, row: int, problem: str) -> BadInput:
        """The error for a row of this table."""
        return bad_line(self.path, int(self.lines[row]), problem)

    def text(self, name: str) -> pl.Series:
        """A column as text; an empty field is an error."""
        column = self.frame[name]
        self._refuse(name, column == "", "is empty")
        return column

    def integers(self, name: str, *, low: int | None = None, high: int | None = None) -> Offsets:
        """A column of whole numbers, within bounds when they are given."""
        column = self.frame[name].cast(pl.Int64, strict=False)
        self._refuse(name, column.is_null(), "is not a whole number")
        if low is not None:
            self._refuse(name, column < low, f"is below {low}")
        if high is not None:
            self._refuse(name, column > high, f"is above {high}")
        return np.ascontiguousarray(column.to_numpy(), dtype=np.int64)

    def numbers(self, name: str) -> Doubles:
        """A column of finite numbers."""
        column = self.frame[name].cast(pl.Float64, strict=False)
        self._refuse(name, column.is_null(), "is not a number")
        # numbers end up in float32, where a larger one would become infinite
        self._refuse(name, ~column.cast(pl.Float32, strict=False).is_finite(), "is not a finite number")
        return np.ascontiguousarray(column.to_numpy(), dtype=np.float64)

    def codes(self, name: str) -> tuple[Indices, Strings]:
        """A text column as codes and the distinct values in the order of their first appearance."""
        return encode(self.text(name))

    def without_duplicates(self) -> Table:
        """The table with exact repetitions of a whole row left out; the first one stays."""
        numbered = self.frame.with_columns(pl.Series("", self.lines))
        kept = numbered.unique(subset=self.frame.columns, keep="first", maintain_order=True)
        return Table(self.path, kept.drop(""), np.ascontiguousarray(kept[""].to_numpy(), dtype=np.int64))

    def _refuse(self, name: str, faulty: pl.Series, fault: str) -> None:
        if faulty.any():
            row = int(faulty.arg_max() or 0)
            value = self.frame[name][row][:_SHOWN_CHARACTERS]
            raise self.error(row, f"{name} {value!r} {fault}" if value else f"{name} is empty")


def read_table(
    path: Path, names: Sequence[str] | None = None, *, separator: str, encoding: str = "utf-8", quoted: bool = False
) -> Table:
    """Split a file into text columns; without `names` the first line is the header.

    Every line must have exactly one field per column; only blank lines at the very end are passed over.
    `quoted` allows fields in double quotes that hold separators or line breaks; without it a double quote is
    a letter like any other.
    """
    content = read_utf8(path, encoding).rstrip(b"\n")
    if names is None:
        head, _, content = content.partition(b"\n")
        names = _header(path, head.decode(), separator)
        first_line = 2
    else:
        first_line = 1
    if not content:
        raise BadInput(f"{path} has no rows: a file with at least one row is needed")
    if quoted and b'"' in content:
        return _read_quoted(path, content.decode(), names, separator, first_line)
    return _read_plain(path, content + b"\n", names, separator, first_line)


def encode(column: pl.Series) -> tuple[Indices, Strings]:
    """Codes of a text column, numbered in the order of first appearance, and the distinct values."""
    distinct = column.unique(maintain_order=True)
    table = pl.DataFrame({"value": distinct, "code": np.arange(len(distinct), dtype=np.int32)})
    joined = pl.DataFrame({"value": column}).join(table, on="value", how="left", maintain_order="left")
    return np.ascontiguousarray(joined["code"].to_numpy(), dtype=np.int32), pack(distinct)


def pack(column: pl.Series) -> Strings:
    """A text column as packed strings."""
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(column.str.len_bytes().to_numpy(), out=offsets[1:])
    joined = "".join(column.to_list()).encode()
    return Strings(offsets, np.frombuffer(joined, np.uint8))


def _header(path: Path, line: str, separator: str) -> list[str]:
    if not line:
        raise BadInput(f"{path} is empty: a header line and at least one row are needed")
    names = [name.strip() for name in next(csv.reader([line], delimiter=separator))]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise bad_line(path, 1, f"column {repeated[0]!r} occurs more than once in the header")
    return names


def _read_plain(path: Path, content: bytes, names: Sequence[str], separator: str, first_line: int) -> Table:
    mark = separator.encode()
    if len(mark) > 1:
        if _UNIT_SEPARATOR in content:
            line = content.count(b"\n", 0, content.index(_UNIT_SEPARATOR)) + first_line
            raise bad_line(path, line, "control character 0x1f is not allowed")
        content, mark = content.replace(mark, _UNIT_SEPARATOR), _UNIT_SEPARATOR
    raw = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(raw == _NEWLINE)
    fields = np.diff(np.searchsorted(np.flatnonzero(raw == mark[0]), ends), prepend=0) + 1
    wrong = np.flatnonzero(fields != len(names))
    if len(wrong):
        row = int(wrong[0])
        blank = ends[row] == (ends[row - 1] + 1 if row else 0)
        raise _wrong_count(path, row + first_line, len(names), separator, 0 if blank else int(fields[row]))
    frame = pl.read_csv(
        content, separator=mark.decode(), has_header=False, quote_char=None, schema=dict.fromkeys(names, pl.String)
    ).fill_null("")
    if frame.height != len(ends):
        raise BadInput(f"{path} could not be split into lines: {len(ends)} lines, {frame.height} rows")
    return Table(path, frame, np.arange(first_line, first_line + len(ends), dtype=np.int64))


def _read_quoted(path: Path, content: str, names: Sequence[str], separator: str, first_line: int) -> Table:
    # newline="" keeps line breaks inside quotes as they are
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=separator, strict=True)
    rows, starts, start = [], [], 0
    try:
        for row in reader:
            if len(row) != len(names):
                raise _wrong_count(path, start + first_line, len(names), separator, len(row))
            rows.append(row)
            starts.append(start + first_line)
            start = reader.line_num
    except csv.Error as error:
        raise bad_line(path, start + first_line, f"the quotes do not match ({error})") from None
    frame = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")
    return Table(path, frame, np.array(starts, np.int64))


def _wrong_count(path: Path, line: int, expected: int, separator: str, found: int) -> BadInput:
    shown = {"\t": "tabs"}.get(separator, repr(separator))
    what = f"found {found}" if found else "found a blank line"
    return bad_line(path, line, f"expected {expected} fields separated by {shown}, {what}")
