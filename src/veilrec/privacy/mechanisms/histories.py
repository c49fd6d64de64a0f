"""Histories of many devices at once, as the mechanisms that read clicks take them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Bools, Doubles, Indices, Offsets
from veilrec.errors import BadInput
from veilrec.privacy.checks import finite


@dataclass(frozen=True)
class Clicks:
    """Histories packed end to end: device i clicked the rows `items[offsets[i]:offsets[i + 1]]` of public vectors."""

    table: Doubles  # [news, d]: public
    offsets: Offsets  # [devices + 1]
    items: Indices  # [clicks]

    def __post_init__(self) -> None:
        finite(table=self.table)
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.items) or (np.diff(self.offsets) < 0).any():
            raise BadInput("offsets of packed histories run from 0 to the number of clicks, and never fall")
        if self.items.size and not (self.items.min() >= 0 and self.items.max() < len(self.table)):
            raise BadInput(f"a click is on none of the {len(self.table)} public vectors")

    @classmethod
    def of(cls, history: Doubles) -> Clicks:
        """One device with these vectors."""
        count = len(history)
        return cls(history, np.array([0, count], np.int64), np.arange(count, dtype=np.int32))

    def sums(self, table: Doubles) -> Doubles:
        """Per device the sum of the rows of another table of the same news: [devices, width].

        A device's clicks are added up one after another, so that who else is there changes no bit of its sum.
        """
        out = np.zeros((len(self.offsets) - 1, table.shape[1]))
        owners = np.repeat(np.arange(len(out)), np.diff(self.offsets))
        np.add.at(out, owners, table[self.items])
        return out


@dataclass(frozen=True)
class Slots:
    """Histories in places: an absent click is a place that is not taken, and never becomes a pad."""

    vectors: Doubles  # [devices, slots, d]
    taken: Bools  # [devices, slots]

    def __post_init__(self) -> None:
        finite(vectors=self.vectors)
        if self.vectors.ndim != 3 or self.taken.shape != self.vectors.shape[:2]:
            raise BadInput(
                f"vectors have shape {self.vectors.shape} and places {self.taken.shape}: give [devices, slots, width]"
                " and [devices, slots]"
            )
