"""Which columns of your own data are features, and which hold titles, as a YAML file says it.

    users:
      file: people.csv          # optional: a second table; without it the columns are those of the log
      key: customer             # its column of ids; default: user, or item
      features:
        age: {kind: number, low: 0, high: 100}
        country: {kind: category, values: [DE, FR, PE]}
    items:
      file: films.csv
      title: name               # of items only, optional: its columns of titles, and of longer texts
      abstract: plot
      features:                 # may be left out beside a title
        genres: {kind: categories, separator: "|"}

What is not given (values; low and high) is taken from the data, and is then as public as the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import yaml

from veilrec.errors import BadInput, unknown_name
from veilrec.features import Feature, Kind

SIDES = {"users": "user", "items": "item"}  # and what their ids are called
TEXTS = ("title", "abstract")  # of items
_OF_A_SIDE = {"users": ("file", "key", "features"), "items": ("file", "key", "features", *TEXTS)}
_OF_A_FEATURE: Mapping[str, tuple[str, ...]] = {
    "category": ("kind", "values"),
    "categories": ("kind", "values", "separator"),
    "number": ("kind", "low", "high"),
}
_ENDINGS = (".gz", ".csv", ".tsv", ".txt", ".parquet")
_EXAMPLE = "`users: {features: {age: {kind: number, low: 0, high: 100}}}`"


@dataclass(frozen=True)
class Wanted:
    """A column that becomes a feature, as far as the file says how."""

    name: str
    kind: Kind
    values: tuple[str, ...] | None = None  # None: those that occur
    low: float | None = None  # None: the lowest that occurs
    high: float | None = None
    separator: str = "|"


@dataclass(frozen=True)
class SideSchema:
    """The features of users or of items."""

    name: str  # "users" or "items"
    file: Path | None  # None: the log itself
    key: str  # the column of ids in that file
    wanted: tuple[Wanted, ...]
    texts: Mapping[str, str] = field(default_factory=dict)  # of `TEXTS`, the columns that hold them

    @property
    def columns(self) -> tuple[str, ...]:
        """All that are read, but for the ids."""
        return tuple(dict.fromkeys((*(wanted.name for wanted in self.wanted), *self.texts.values())))


@dataclass(frozen=True)
class Schema:
    """What a file says of both sides; one that it does not name has no features."""

    path: Path
    sides: tuple[SideSchema, ...]

    @property
    def sources(self) -> list[Path]:
        """Every file that the features depend on, beside the log."""
        return [self.path, *(side.file for side in self.sides if side.file is not None)]

    @property
    def log_columns(self) -> tuple[str, ...]:
        """The columns of the log that are features or texts."""
        return tuple(dict.fromkeys(name for side in self.sides if side.file is None for name in side.columns))


def beside(log: Path) -> Path | None:
    """The schema that lies beside a log (clicks.features.yaml for clicks.csv), if there is one."""
    name = log.name
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    found = log.with_name(f"{name}.features.yaml")
    return found if found.is_file() else None


def read_schema(path: Path) -> Schema:
    """Read and check a file of features."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{path} is no YAML (not UTF-8): write a text file such as {_EXAMPLE}") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}): give a YAML file of features") from None
    return Schema(path, parse_schema(text, str(path), path.parent))


def parse_schema(text: str, where: str, folder: Path) -> tuple[SideSchema, ...]:
    """The sides that a text names; files are looked for from the folder on."""
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"{where} is no YAML ({reason}): write for instance {_EXAMPLE}") from None
    sides = _mapping(found, where, "users: and items:")
    _only(sides, SIDES, where)
    return tuple(_side(name, sides[name], f"{where}, {name}", folder) for name in SIDES if name in sides)


def _side(name: str, given: Any, where: str, folder: Path) -> SideSchema:
    side = _mapping(given, where, "features:")
    _only(side, _OF_A_SIDE[name], where)
    texts = {text: _column_of(side[text], text, where) for text in TEXTS if side.get(text) is not None}
    if "abstract" in texts and "title" not in texts:
        raise BadInput(f"{where}: abstract is given and title is not: name the column of titles, too")
    columns = side.get("features")
    if columns is not None or not texts:
        columns = _mapping(columns, f"{where}, features", "columns such as age: {kind: number}")
    file = side.get("file")
    if file is not None and not (isinstance(file, str) and file):
        raise BadInput(f"{where}: file is {file!r}: give the name of a file")
    key = side.get("key", SIDES[name])
    if not isinstance(key, str | int) or key == "":
        raise BadInput(f"{where}: key is {key!r}: give the name of the column with the ids")
    if "key" in side and file is None:
        raise BadInput(f"{where}: key is for a second file, and none is given: add file:, or leave key: out")
    place = None if file is None else folder / Path(file).expanduser()
    if place is not None and not place.is_file():
        raise BadInput(f"{where}: {place} is not there: give file: as seen from the folder of the YAML file")
    wanted = tuple(_wanted(str(name), column, f"{where}, {name}") for name, column in (columns or {}).items())
    return SideSchema(name, place, str(key), wanted, texts)


def _column_of(given: Any, what: str, where: str) -> str:
    if not isinstance(given, str | int) or isinstance(given, bool) or given == "":
        raise BadInput(f"{where}: {what} is {given!r}: give the name of the column that holds it")
    return str(given)


def _wanted(name: str, given: Any, where: str) -> Wanted:
    column = _mapping(given, where, "kind: category, categories or number")
    kind: Any = column.get("kind")
    if not isinstance(kind, str) or kind not in _OF_A_FEATURE:
        raise BadInput(f"{where}: {unknown_name('kind', str(kind), get_args(Kind))}")
    _only(column, _OF_A_FEATURE[kind], f"{where} (a {kind})" if kind != "categories" else f"{where} (categories)")
    separator = column.get("separator", "|")
    if not isinstance(separator, str) or not separator:
        raise BadInput(f"{where}: separator is {separator!r}: give what stands between values, such as '|'")
    low, high = (_bound(column.get(end), end, where) for end in ("low", "high"))
    values = None if column.get("values") is None else _values(column["values"], where)
    if low is not None and high is not None:
        try:
            Feature(name, "number", low=low, high=high)
        except BadInput as error:
            raise BadInput(f"{where}: {error}") from None
    return Wanted(name, cast(Kind, kind), values, low, high, separator)


def _values(given: Any, where: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not given:
        raise BadInput(f"{where}: values is {given!r}: give a list such as [DE, FR], or leave it out")
    for value in given:
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
            raise BadInput(f"{where}: {value!r} in values is neither a text nor a number: put it in quotes")
    values = tuple(str(value).strip() for value in given)
    twice = [value for value in values if values.count(value) > 1]
    if twice:
        raise BadInput(f"{where}: {twice[0]!r} stands twice in values: list every value once")
    return values


def _bound(given: Any, end: str, where: str) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not _finite(given):
        raise BadInput(f"{where}: {end} is {given!r}: give a finite number")
    return float(given)


def _finite(number: float) -> bool:
    try:
        return math.isfinite(float(number))
    except OverflowError:
        return False


def _mapping(given: Any, where: str, expected: str) -> dict[Any, Any]:
    if not isinstance(given, dict) or not given:
        raise BadInput(f"{where}: expected is {expected}, found {_shown(given)}; write for instance {_EXAMPLE}")
    return given


def _only(given: Mapping[Any, Any], known: Mapping[str, Any] | tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in known:
            raise BadInput(f"{where}: {unknown_name('key', str(key), known)}")


def _shown(given: Any) -> str:
    return "nothing" if given is None or given == {} else repr(given)[:60]
