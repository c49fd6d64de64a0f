"""What is known of people and of items beside their ids: categories and numbers, encoded so that a model can read them.

All features of a side share one numbering of codes, feature after feature. The first code of each is the bucket of
whatever is unknown: a value that is not in its list, or none at all. Lists of values, and the ranges that numbers are
scaled by, are public; what a user's own values are stays on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Floats, Indices, Offsets

Kind = Literal["category", "categories", "number"]  # one of a list, some of a list, a number
NO_CODE = -1  # fills up the rows of those who have fewer values than others
UNKNOWN = 0  # of the codes of a feature, counted from its first
CODES, NUMBERS = "features.codes", "features.numbers"  # among what a device keeps


@dataclass(frozen=True)
class Feature:
    """One column: its name, and what its values can be."""

    name: str
    kind: Kind
    values: tuple[str, ...] = ()  # of a category: without the unknown one
    low: float = 0.0  # of a number: what becomes 0
    high: float = 1.0  # what becomes 1; whatever lies outside is moved to the nearer end

    @property
    def codes(self) -> int:
        """How many codes it takes."""
        return 0 if self.kind == "number" else 1 + len(self.values)


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
        sizes = [feature.codes for feature in self.categories]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    @property
    def n_codes(self) -> int:
        """How many codes the side has."""
        return int(self.starts[-1])

    def take(self, rows: Offsets) -> Side:
        """Some rows."""
        return Side(self.features, self.codes[rows], self.numbers[rows])

    def strangers(self, count: int) -> Side:
        """So many of whom nothing is known: unknown categories, and numbers in the middle of their range."""
        codes = np.full((count, self.codes.shape[1]), NO_CODE, np.int32)
        codes[:, : len(self.categories)] = self.starts[:-1] + UNKNOWN
        return Side(self.features, codes, np.full((count, self.numbers.shape[1]), 0.5, np.float32))

    def kept(self) -> dict[str, NDArray[Any]]:
        """As the arrays that a device keeps."""
        return {CODES: self.codes, NUMBERS: self.numbers}

    def of(self, kept: Mapping[str, NDArray[Any]], count: int) -> Side:
        """The rows that devices kept; strangers where they kept none."""
        if CODES not in kept:
            return self.strangers(count)
        return Side(self.features, kept[CODES], kept[NUMBERS])


@dataclass(frozen=True)
class Features:
    """Both sides of a data set; a side without features has rows without columns."""

    users: Side
    items: Side
