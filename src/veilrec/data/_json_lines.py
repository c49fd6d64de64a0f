"""JSON-lines files, plain or gzip: one object per line, read at full speed; a malformed line is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import polars as pl

from veilrec._arrays import Offsets
from veilrec.data.text_files import read_utf8
from veilrec.errors import BadInput, bad_line

TEXT = pl.String()
TEXTS = pl.List(pl.String())
Schema: TypeAlias = Mapping[str, pl.DataType]


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

    def where(self, chosen: pl.Series) -> JsonLines:
        """The chosen rows."""
        return JsonLines(self.path, self.frame.filter(chosen), self.lines[chosen.to_numpy()])


def read_json_lines(path: Path, schema: Schema) -> JsonLines:
    """Read the keys of `schema`; numbers become text; other keys and blank lines are passed over."""
    content = read_utf8(path)
    if not content.strip():
        raise BadInput(f"{path} is empty: at least one line with a JSON object is needed")
    frame = _read_fast(content, schema)
    n_lines = content.rstrip(b"\n").count(b"\n") + 1
    if frame is not None and len(frame) == n_lines:
        return JsonLines(path, frame, np.arange(1, n_lines + 1))
    texts = content.split(b"\n")
    lines = [line for line, text in enumerate(texts, 1) if text.strip()]
    if frame is None or len(frame) != len(lines):
        rows = [_checked(path, line, texts[line - 1], schema) for line in lines]
        frame = pl.DataFrame(rows, schema=dict(schema), orient="row")
    return JsonLines(path, frame, np.array(lines, np.int64))


def _read_fast(content: bytes, schema: Schema) -> pl.DataFrame | None:
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


def _checked(path: Path, line: int, text: bytes, schema: Schema) -> list[str | list[str] | None]:
    """One line read by itself, to say what is wrong with it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_line(path, line, f"not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise bad_line(path, line, f"expected a JSON object, found {_kind(value)}")
    return [_field(path, line, key, value.get(key), wanted == TEXTS) for key, wanted in schema.items()]


def _field(path: Path, line: int, key: str, value: object, many: bool) -> str | list[str] | None:
    if value is None:
        return None
    values = value if many and isinstance(value, list) else [value]
    fits = [isinstance(one, str | int | float) and not isinstance(one, bool) for one in values]
    if (many and not isinstance(value, list)) or not all(fits):
        wanted = "a list of texts or numbers" if many else "a text or a number"
        raise bad_line(path, line, f"{key!r} must be {wanted}, found {_kind(value)}")
    texts = [str(one) for one in values]
    return texts if many else texts[0]


def _kind(value: object) -> str:
    if isinstance(value, list) and value:
        odd = [one for one in value if not isinstance(one, str | int | float) or isinstance(one, bool)]
        return f"a list with {_kind(odd[0])}" if odd else "a list"
    names = {dict: "an object", list: "an empty list", bool: "true or false", str: "a text", type(None): "null"}
    return names.get(type(value), "a number")
