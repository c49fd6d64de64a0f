"""Text files, plain or gzip: read at full speed; a malformed line is named by file, line and fault.

`read_table` splits a whole delimited file into text columns without a Python loop over its lines; `TextTable` then
turns columns into numbers, and a value that does not fit raises `BadInput` with the line it stands on.
`read_json_lines` does the same for files with a JSON object a line.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import polars as pl

from veilrec.core.arrays import Indices, Offsets
from veilrec.core.csr import offsets_of
from veilrec.core.errors import BadInput, bad_line, counted, without_blanks_behind
from veilrec.data.population import Strings

_SHOWN_LINES = 10  # lines


class LineFaults:
    """The faults of a file, of each line the first that was found."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[int, str] = {}  # by line

    def add(self, line: int, problem: str) -> None:
        """Keep what is wrong with a line."""
        self._found.setdefault(line, problem)

    def refuse(self) -> None:
        """Raise if there are any: a line where there is one, else a line for each of the first."""
        if len(self._found) == 1:
            raise bad_line(self._path, *next(iter(self._found.items())))
        if self._found:
            listed = [f"  line {line}: {self._found[line]}" for line in sorted(self._found)[:_SHOWN_LINES]]
            more = [f"  and {len(self._found) - _SHOWN_LINES:,} more"] if len(self._found) > _SHOWN_LINES else []
            raise BadInput(
                "\n".join([f"{self._path} has faults in {counted(len(self._found), 'line')}", *listed, *more])
            )


TAB = "\t"
_UNIT_SEPARATOR = "\x1f"  # stands in for separators of several bytes
_FITTING = "ENCODING"
_GZIP = b"\x1f\x8b"
_SHOWN_CHARACTERS = 40  # of a faulty value in a message

TEXT = pl.String()
TEXTS = pl.List(pl.String())
JsonSchema: TypeAlias = Mapping[str, pl.DataType]


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
    """Read a file, and unpack it if it is gzip."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except FileNotFoundError:
        raise BadInput(f"{path} is not there: give the path of an existing file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"{path} is not a whole gzip file ({error}): get it again") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}): give a readable file") from None


def decode(path: Path, content: bytes, encoding: str | None = None, advice: str = "") -> str:
    """Decode a text file, UTF-8 unless told otherwise, without byte order mark; lines end in a bare newline.

    `advice` is for the error message; ENCODING in it stands for one that may fit.
    """
    try:
        text = content.decode(encoding or "utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        byte = content[error.start : error.start + 1]
        found, other = f"byte 0x{byte.hex()}", "utf-8"
        if encoding is None:
            found, other = f"{found}, which is {byte.decode('cp1252', 'replace')!r} in cp1252", "cp1252"
        line, wrong = content.count(b"\n", 0, error.start) + 1, encoding or "UTF-8"
        problem = f"not valid {wrong} ({found}): {advice.replace(_FITTING, other)}save the file as UTF-8"
        raise bad_line(path, line, problem) from None
    return text.replace("\r\n", "\n")


def read_text(path: Path, encoding: str | None = None) -> str:
    """Read and decode a text file, plain or gzip."""
    return decode(path, read_bytes(path), encoding)


@dataclass(frozen=True)
class TextTable:
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

    def without_duplicates(self) -> TextTable:
        """The table with exact repetitions of a whole row left out; the first one stays."""
        numbered = self.frame.with_columns(pl.Series("", self.lines))
        kept = numbered.unique(subset=self.frame.columns, keep="first", maintain_order=True)
        return TextTable(self.path, kept.drop(""), np.ascontiguousarray(kept[""].to_numpy(), dtype=np.int64))

    def _refuse(self, name: str, faulty: pl.Series, fault: str) -> None:
        if faulty.any():
            row = int(faulty.arg_max() or 0)
            value = self.frame[name][row][:_SHOWN_CHARACTERS]
            raise self.error(row, f"{name} {value!r} {fault}" if value else f"{name} is empty")


def read_table(
    path: Path, names: Sequence[str] | None = None, *, separator: str, encoding: str | None = None, quoted: bool = False
) -> TextTable:
    """Split a file into text columns; without `names` the first line is the header.

    Every line must have exactly one field per column; only blank lines at the very end are passed over.
    `quoted` allows fields in double quotes that hold separators or line breaks; without it a double quote is
    a letter like any other.
    """
    content, first_line = read_text(path, encoding).rstrip("\n"), 1
    if names is None:
        head, _, content = content.partition("\n")
        names, first_line = _header(path, head, separator), 2
    if not content:
        raise BadInput(f"{path} has no rows: a file with at least one row is needed")
    frame, lines, others = split_rows(content, names, separator, first_line, quoted=quoted)
    for line, found in others.items():
        if found is None:
            raise bad_line(path, line, "the quotes do not match")
        raise bad_line(path, line, f"{expected_fields(names, separator)}, found {found or 'a blank line'}")
    return TextTable(path, frame, lines)


def expected_fields(names: Sequence[str], separator: str) -> str:
    """What a line should have had."""
    return f"expected {len(names)} fields separated by {'tabs' if separator == TAB else repr(separator)}"


def split_rows(
    content: str, names: Sequence[str], separator: str, first_line: int, *, quoted: bool
) -> tuple[pl.DataFrame, Offsets, dict[int, int | None]]:
    """Split into text columns; return the rows, their lines, and of every other line how many fields were found.

    That is 0 for a blank line, and None where the quotes do not match. polars splits the whole; only where it cannot
    be sure that every line is a row, an exact pass goes through the lines.
    """
    if len(separator.encode()) > 1:  # polars and csv split on single bytes
        content, separator = content.replace(separator, _UNIT_SEPARATOR), _UNIT_SEPARATOR
    frame = _split_clean(content.encode(), names, separator, quoted=quoted)
    if frame is not None:
        return frame, np.arange(first_line, first_line + len(frame), dtype=np.int64), {}
    rows: dict[int, list[str]] = {}
    others: dict[int, int | None] = {}
    for line, row in _exact_rows(content, separator, first_line, quoted=quoted):
        if row is None:
            others[line] = None
        elif len(row) < 2 and not "".join(row).strip():
            others[line] = 0
        elif len(row) != len(names):
            others[line] = len(row)
        else:
            rows[line] = row
    frame = pl.DataFrame(list(rows.values()), schema=dict.fromkeys(names, pl.String), orient="row")
    return frame, np.array(list(rows), np.int64), others


def _split_clean(content: bytes, names: Sequence[str], separator: str, *, quoted: bool) -> pl.DataFrame | None:
    """Split lines with polars; None unless each is exactly one row with one field per column.

    polars takes short lines and stray quotes without a word, so rows, separators and quotes are counted.
    """
    try:
        frame = pl.read_csv(
            content,
            separator=separator,
            has_header=False,
            quote_char='"' if quoted else None,
            schema=dict.fromkeys(names, pl.String),
        ).fill_null("")
    except pl.exceptions.PolarsError:
        return None
    separators = content.count(separator.encode())
    if quoted:
        if frame.select(pl.any_horizontal(pl.all().str.contains('"', literal=True).any())).item():
            return None
        separators -= frame.select(pl.sum_horizontal(pl.all().str.count_matches(separator, literal=True).sum())).item()
    whole = len(frame) == content.count(b"\n") + 1 and separators == len(frame) * (len(names) - 1)
    return frame if whole else None


def _exact_rows(body: str, separator: str, first_line: int, *, quoted: bool) -> Iterator[tuple[int, list[str] | None]]:
    """Yield every row with the line that it starts on; None for a line whose quotes do not match."""
    if not quoted:
        yield from ((number, line.split(separator)) for number, line in enumerate(body.split("\n"), first_line))
        return
    lines = without_blanks_behind(body, separator).split("\n")
    begin = 0
    while begin < len(lines):
        rest = (lines[place] + "\n" for place in range(begin, len(lines)))
        reader = csv.reader(rest, delimiter=separator, strict=True, skipinitialspace=True)
        start = begin
        try:
            for row in reader:
                yield first_line + start, row
                start = begin + reader.line_num
        except csv.Error:
            yield first_line + start, None
            begin = start + 1
        else:
            return


def _header(path: Path, line: str, separator: str) -> list[str]:
    if not line:
        raise BadInput(f"{path} is empty: a header line and at least one row are needed")
    names = [name.strip() for name in next(csv.reader([line], delimiter=separator))]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise bad_line(path, 1, f"column {repeated[0]!r} occurs more than once in the header")
    return names


@dataclass(frozen=True)
class JsonLines:
    """The wanted keys as columns (null where a key is missing), and the line that every row stands on."""

    path: Path
    frame: pl.DataFrame
    lines: Offsets  # [rows], 1-based

    def refuse(self, faulty: pl.Series, problem: str) -> None:
        """Raise for the first row marked as faulty, if there is one."""
        if faulty.any():
            raise bad_line(self.path, int(self.lines[int(faulty.arg_max() or 0)]), problem)

    def sorted_out(self, faulty: pl.Series, problem: str, faults: LineFaults) -> JsonLines:
        """Keep the rows that are not faulty; add the others to `faults`."""
        if not faulty.any():
            return self
        for line in self.lines[faulty.to_numpy()].tolist():
            faults.add(line, problem)
        return self.where(~faulty)

    def where(self, chosen: pl.Series) -> JsonLines:
        """The chosen rows."""
        return JsonLines(self.path, self.frame.filter(chosen), self.lines[chosen.to_numpy()])


def read_json_lines(path: Path, schema: JsonSchema, faults: LineFaults | None = None) -> JsonLines:
    """Read the keys of `schema`; numbers become text; other keys and blank lines are passed over.

    Lines that cannot be read are left out and added to `faults`; without it, they raise BadInput.
    """
    content = read_text(path).encode()
    if not content.strip():
        raise BadInput(f"{path} is empty: at least one line with a JSON object is needed")
    frame = _read_objects(content, schema)
    n_lines = content.rstrip(b"\n").count(b"\n") + 1
    if frame is not None and len(frame) == n_lines:
        return JsonLines(path, frame, np.arange(1, n_lines + 1))
    texts = {line: text for line, text in enumerate(content.split(b"\n"), 1) if text.strip()}
    if frame is not None and len(frame) == len(texts):
        return JsonLines(path, frame, np.array(list(texts), np.int64))
    found, rows = LineFaults(path) if faults is None else faults, {}
    for line, text in texts.items():
        try:
            rows[line] = _read_object(text, schema)
        except json.JSONDecodeError as error:
            found.add(line, f"not valid JSON from character {error.colno} on ({error.msg})")
        except (ValueError, TypeError, RecursionError) as error:
            found.add(line, str(error))
    if faults is None:
        found.refuse()
    frame = pl.DataFrame(list(rows.values()), schema=dict(schema), orient="row")
    return JsonLines(path, frame, np.array(list(rows), np.int64))


def _read_objects(content: bytes, schema: JsonSchema) -> pl.DataFrame | None:
    """All lines at once; None when one cannot be read so, or may hold more than texts and numbers.

    polars turns nested values, true and false into text, and writes very long numbers with an exponent.
    """
    try:
        frame = pl.read_ndjson(content, schema=dict(schema))
    except pl.exceptions.PolarsError:
        return None
    columns = (column.explode() if column.dtype == TEXTS else column for column in frame)
    suspect = r"^(?:[\[{]|true$|false$|-?\d\.\d*[eE])"
    return None if any(column.str.contains(suspect).any() for column in columns) else frame


def _read_object(text: bytes, schema: JsonSchema) -> list[str | list[str] | None]:
    """Parse one line; raise ValueError with the problem."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError(f"expected a JSON object, found {_shown(value)}")
    return [_json_field(key, value.get(key), wanted == TEXTS) for key, wanted in schema.items()]


def _json_field(key: str, value: object, many: bool) -> str | list[str] | None:
    if value is None:
        return None
    values = value if many and isinstance(value, list) else [value]
    fits = all(isinstance(one, str | int | float) and not isinstance(one, bool) for one in values)
    if (many and not isinstance(value, list)) or not fits:
        wanted = "a list of texts or numbers" if many else "a text or a number"
        raise ValueError(f"{key!r} must be {wanted}, found {_shown(value)}")
    return [str(one) for one in values] if many else str(value)


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:_SHOWN_CHARACTERS]


def encode(column: pl.Series) -> tuple[Indices, Strings]:
    """Codes of a column of ids, and the distinct ids: whole numbers by their value, then all others by their bytes.

    Every reader numbers users and items so. A model publishes its items in their order, which must not tell who used
    what: it is that of the ids, and never that of the log.
    """
    texts = column.cast(pl.String)
    value, whole = pl.col("id").str.strip_chars_start("0"), pl.col("id").str.contains(r"^[0-9]+$")
    order = [~whole, pl.when(whole).then(value.str.len_bytes()), pl.when(whole).then(value), pl.col("id")]
    distinct = pl.DataFrame({"id": texts.unique()}).sort(order)["id"]
    table = pl.DataFrame({"id": distinct, "code": np.arange(len(distinct), dtype=np.int32)})
    joined = pl.DataFrame({"id": texts}).join(table, on="id", how="left", maintain_order="left")
    return np.ascontiguousarray(joined["code"].to_numpy(), dtype=np.int32), pack(distinct)


def encode_together(columns: Sequence[pl.Series]) -> tuple[list[Indices], Strings]:
    """Codes of several columns of ids over one list of distinct ids, in the order of `encode`."""
    codes, distinct = encode(pl.concat([column.cast(pl.String) for column in columns]))
    ends = np.cumsum([len(column) for column in columns])
    return np.split(codes, ends[:-1]), distinct


def pack(column: pl.Series) -> Strings:
    """A text column as packed strings."""
    joined = "".join(column.to_list()).encode()
    return Strings(offsets_of(column.str.len_bytes()), np.frombuffer(joined, np.uint8))


def rows_of(ids: Strings, listing: pl.DataFrame, key: str) -> pl.DataFrame:
    """The rows of a listing in the order of these ids; "" for nulls, and for an id that is not listed."""
    wanted, listed = pl.DataFrame({key: unpack(ids)}), listing.with_columns(pl.col(key).cast(pl.String))
    rows = wanted.join(listed, on=key, how="left", maintain_order="left")
    return rows.with_columns(pl.col(pl.String).fill_null(""))


def blanks(count: int) -> pl.Series:
    """A text column of empty texts."""
    return pl.Series([""], dtype=pl.String).new_from_index(0, count)


def unpack(strings: Strings) -> pl.Series:
    """Packed strings as a text column."""
    return pl.Series(list(strings), dtype=pl.String)
