"""What is known of people and of items beside their ids: categories and numbers, encoded so that a model can read them.

All features of a side share one numbering of codes, feature after feature. The first code of each is the bucket of
whatever is unknown: a value that is not in its list, or none at all. Lists of values, and the ranges that numbers are
scaled by, are public; what a user's own values are stays on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.errors import BadInput, unknown_name

Kind = Literal["category", "categories", "number"]  # one of a list, some of a list, a number
NO_CODE = -1  # fills up the rows of those who have fewer values than others
UNKNOWN = 0  # of the codes of a feature, counted from its first
MIDDLE = 0.5  # where a number stands that is missing or not finite
CODES, NUMBERS = "features.codes", "features.numbers"  # among what a client keeps
Entries: TypeAlias = tuple[Offsets, Indices]  # of a category: rows, and a code for each, counted from its first


@dataclass(frozen=True)
class Feature:
    """One column: its name, and what its values can be."""

    name: str
    kind: Kind
    values: tuple[str, ...] = ()  # of a category: without the unknown one
    low: float = 0.0  # of a number: what becomes 0
    high: float = 1.0  # what becomes 1; whatever lies outside is moved to the nearer end
    separator: str = "|"  # of categories: what stands between several in one text

    def __post_init__(self) -> None:
        if not self.name:
            raise BadInput("a feature has no name: give each one")
        if self.kind not in get_args(Kind):
            raise BadInput(f"feature {self.name!r}: {unknown_name('kind', str(self.kind), get_args(Kind))}")
        if len(set(self.values)) < len(self.values):
            twice = next(value for value in self.values if self.values.count(value) > 1)
            raise BadInput(f"feature {self.name!r} has the value {twice!r} twice: list every value once")
        if not (self.low < self.high and math.isfinite(self.high - self.low)):
            raise BadInput(
                f"feature {self.name!r} ranges from low {self.low:g} to high {self.high:g}: low must be below high,"
                " and both finite"
            )
        if not self.separator:
            raise BadInput(f"feature {self.name!r} has an empty separator: give what stands between values, such as |")

    @property
    def codes(self) -> int:
        """How many codes it takes."""
        return 0 if self.kind == "number" else 1 + len(self.values)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {value: code for code, value in enumerate(self.values, UNKNOWN + 1)}

    def codes_of(self, text: str) -> list[int]:
        """The codes that a text stands for, counted from its first; at least that of the unknown."""
        parts = text.split(self.separator) if self.kind == "categories" else [text]
        said = [part.strip() for part in parts if part.strip()]
        return sorted({self._places.get(part, UNKNOWN) for part in said}) or [UNKNOWN]

    def scaled(self, numbers: Doubles) -> Floats:
        """Numbers from 0 to 1: what is outside is moved to the nearer end, what is not finite to the middle."""
        inside = (np.clip(numbers, self.low, self.high) - self.low) / (self.high - self.low)
        return np.where(np.isfinite(numbers), inside, MIDDLE).astype(np.float32)


@dataclass(frozen=True)
class Side:
    """The features of all users, or of all items: a row for each."""

    features: tuple[Feature, ...]
    codes: Indices  # [rows, slots]: codes of this side, ascending, filled up with NO_CODE
    numbers: Floats  # [rows, features that are numbers], from 0 to 1

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def categories(self) -> tuple[Feature, ...]:
        """The features that are not numbers: each has an embedding in the input of a model."""
        return tuple(feature for feature in self.features if feature.kind != "number")

    @cached_property
    def starts(self) -> Offsets:
        """Where the codes of each category begin, and where the last one ends: [categories + 1]."""
        return offsets_of([feature.codes for feature in self.categories])

    @property
    def n_codes(self) -> int:
        """How many codes the side has."""
        return int(self.starts[-1])

    def take(self, rows: Offsets) -> Side:
        """Some rows."""
        return Side(self.features, self.codes[rows], self.numbers[rows])

    def select(self, names: Sequence[str]) -> Side:
        """Some features only, in the order that they have here; their codes are numbered anew."""
        self._known(names)
        chosen = tuple(feature for feature in self.features if feature.name in names)
        sizes = [feature.codes for feature in self.categories]
        stays = np.repeat([feature in chosen for feature in self.categories], sizes).astype(np.bool_)
        renumbered = np.append(np.where(stays, np.cumsum(stays) - 1, NO_CODE), NO_CODE)  # NO_CODE reads the last one
        codes = renumbered[self.codes].astype(np.int32)
        order = np.argsort(codes == NO_CODE, axis=1, kind="stable")
        width = max(int((codes != NO_CODE).sum(axis=1).max(initial=0)), sum(f.kind != "number" for f in chosen))
        kept = [feature in chosen for feature in self.features if feature.kind == "number"]
        numbers = self.numbers[:, np.array(kept, np.bool_)]
        return Side(chosen, np.take_along_axis(codes, order, axis=1)[:, :width], numbers)

    def encoded(self, rows: Sequence[Mapping[str, str | float]]) -> Side:
        """New rows from values by the names of features; one that is not given is unknown."""
        known = self._known(name for row in rows for name in row)
        texts = {name: [_text(row.get(name, "")) for row in rows] for name in known}
        entries, numbers = [], []
        for feature in self.features:
            if feature.kind == "number":
                numbers.append(feature.scaled(np.array([_number(text) for text in texts[feature.name]], np.float64)))
            else:
                entries.append(text_entries(feature, texts[feature.name], np.arange(len(rows))))
        return assembled(self.features, len(rows), entries, numbers)

    def _known(self, names: Iterable[str]) -> list[str]:
        """Return the names of all features; refuse a name that is none of them."""
        known = [feature.name for feature in self.features]
        for name in names:
            if name not in known:
                none = BadInput(f"unknown feature {name!r}: there are none here; leave it out")
                raise unknown_name("feature", name, known) if known else none
        return known

    def unknown(self) -> Bools:
        """Whose value of a category is unknown: [rows, categories]."""
        unknown = np.zeros((len(self), len(self.categories)), np.bool_)
        for place, start in enumerate(self.starts[:-1]):
            unknown[:, place] = (self.codes == start + UNKNOWN).any(axis=1)
        return unknown

    def strangers(self, count: int) -> Side:
        """So many of whom nothing is known: unknown categories, and numbers in the middle of their range."""
        codes = np.full((count, self.codes.shape[1]), NO_CODE, np.int32)
        codes[:, : len(self.categories)] = self.starts[:-1] + UNKNOWN
        return Side(self.features, codes, np.full((count, self.numbers.shape[1]), MIDDLE, np.float32))

    def kept(self) -> dict[str, NDArray[Any]]:
        """As the arrays that a client keeps."""
        return {CODES: self.codes, NUMBERS: self.numbers}

    def of(self, kept: Mapping[str, NDArray[Any]], count: int) -> Side:
        """The rows that clients kept; strangers where they kept none."""
        if CODES not in kept:
            return self.strangers(count)
        return Side(self.features, kept[CODES], kept[NUMBERS])

    def to_json(self) -> list[dict[str, Any]]:
        """The features without anybody's values, for a saved model."""
        return [{**asdict(feature), "values": list(feature.values)} for feature in self.features]

    @classmethod
    def from_json(cls, listed: Sequence[Mapping[str, Any]]) -> Side:
        """The features that `to_json` wrote, without rows."""
        from pydantic import TypeAdapter, ValidationError

        try:
            features = TypeAdapter(tuple[Feature, ...]).validate_python(listed)
        except ValidationError as error:
            told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
            raise BadInput(f"a list of features cannot be read ({told}): write it with Side.to_json") from None
        return without_rows(features)


def usual(said: Side, owners: Offsets | Indices, count: int) -> Side:
    """What rows of categories with one value each say most often of each owner; of equals the first listed.

    Whatever is unknown counts only where nothing else was said; of an owner without rows all is.
    """
    codes = np.empty((count, len(said.categories)), np.int32)
    for place, (start, end) in enumerate(pairwise(said.starts)):
        width = int(end - start)
        keys = np.asarray(owners, np.int64) * width + (said.codes[:, place] - start)
        times = np.bincount(keys, minlength=count * width).reshape(count, width)
        times[:, UNKNOWN] = 0
        best = times.argmax(axis=1)
        codes[:, place] = start + np.where(times[np.arange(count), best] > 0, best, UNKNOWN)
    return Side(said.features, codes, np.zeros((count, 0), np.float32))


@dataclass(frozen=True)
class Features:
    """Both sides of a data set; a side without features has rows without columns."""

    users: Side
    items: Side


def without_rows(features: Sequence[Feature], count: int = 0) -> Side:
    """Features of nobody, or of so many of whom nothing is known."""
    entries = [(np.zeros(0, np.int64), np.zeros(0, np.int32)) for feature in features if feature.kind != "number"]
    middle = np.full(count, MIDDLE, np.float32)
    return assembled(features, count, entries, [middle for feature in features if feature.kind == "number"])


def text_entries(feature: Feature, distinct: Sequence[str], places: Offsets | Indices) -> Entries:
    """The entries of rows that have the texts at these places of a list of distinct ones."""
    found = [feature.codes_of(text) for text in distinct]
    codes = np.array([code for some in found for code in some], np.int32)
    rows = Csr(offsets_of([len(some) for some in found]), codes).take(places.astype(np.int64))
    return rows.row_numbers(), rows.items


def assembled(features: Sequence[Feature], count: int, entries: Sequence[Entries], numbers: Sequence[Floats]) -> Side:
    """A side of so many rows from its columns; where a row has no entry of a category, that is unknown."""
    categories = [feature for feature in features if feature.kind != "number"]
    n_codes = max(1, sum(feature.codes for feature in categories))
    keys, start = [np.zeros(0, np.int64)], 0
    for feature, (rows, codes) in zip(categories, entries, strict=True):
        silent = np.flatnonzero(np.bincount(rows, minlength=count) == 0)
        keys += [rows * n_codes + start + codes, silent * n_codes + start + UNKNOWN]
        start += feature.codes
    ordered = np.sort(np.concatenate(keys), kind="stable")  # few long runs, which are merged
    owners, codes = np.divmod(ordered[np.diff(ordered, prepend=-1) > 0], n_codes)
    lengths = np.bincount(owners, minlength=count)
    filled = np.full((count, max(len(categories), int(lengths.max(initial=0)))), NO_CODE, np.int32)
    filled[owners, np.arange(len(owners)) - offsets_of(lengths)[owners]] = codes
    columns = np.stack(numbers, axis=1) if numbers else np.zeros((count, 0), np.float32)
    return Side(tuple(features), filled, columns)


def _text(value: str | float) -> str:
    """As a file would write it: 25.0 is 25."""
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole else str(value)


def is_number(text: str) -> bool:
    """Whether a text is a finite number."""
    return math.isfinite(_number(text))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
