"""Robust sums, to see what they do to poisoned messages: trimmed means and medians, coordinate by coordinate.

They look at messages one by one, or at the sums of groups of messages, so that they cannot be had together with secure
aggregation of a whole cohort. They are no part of any method: dropping the largest numbers changes what one device can
move, and nothing is proven of that. What comes out are messages again, all alike in what they say of a row, so that
whatever adds them up goes on as before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from veilrec._arrays import Floats, Offsets
from veilrec.errors import BadInput
from veilrec.updates import Rows, Uploads

Among = Literal["everybody", "who changed the row"]


@dataclass(frozen=True)
class Robust:
    """What is left out of a sum."""

    trim: float  # share of the contributions that are left out on either side; 0.5: all but the median
    among: Among = "everybody"  # whether those who do not change a row count as zeros
    group: int = 1  # messages that are added up first, as secure aggregation of small groups would

    def __post_init__(self) -> None:
        if not 0.0 <= self.trim <= 0.5 or self.group < 1:
            raise BadInput(f"trim is {self.trim} and group {self.group}: give a share up to 0.5, and a whole number")

    def messages(self, uploads: Uploads, generator: np.random.Generator) -> Uploads:
        """Messages whose sum is robust."""
        if uploads.entries or uploads.factors:
            raise BadInput("robust sums are of whole rows and tensors: this method sends parts of them")
        n = uploads.count
        groups = generator.permutation(n) // self.group
        count = int(groups.max(initial=-1)) + 1
        tables = {name: self._of_rows(rows, groups, count) for name, rows in uploads.tables.items()}
        dense = {name: self._of_dense(values, groups, count) for name, values in uploads.dense.items()}
        return replace(uploads, tables=tables, dense=dense)

    def _of_rows(self, rows: Rows, groups: Offsets, count: int) -> Rows:
        if not len(rows.index):
            return rows
        device = np.repeat(np.arange(len(groups)), np.diff(rows.offsets))
        touched, place = np.unique(rows.index, return_inverse=True)
        width = rows.values.shape[1]
        sums = np.zeros((len(touched), count, width), np.float32)
        if self.group == 1:
            sums[place, groups[device]] = rows.values
        else:
            np.add.at(sums, (place, groups[device]), rows.values)
        said = np.zeros((len(touched), count), np.bool_)
        said[place, groups[device]] = True
        many = np.full(len(touched), count) if self.among == "everybody" else said.sum(axis=1)
        if self.among != "everybody":
            sums[~said] = np.nan  # sorted to the end
        total = _trimmed_sums(np.ascontiguousarray(sums.transpose(0, 2, 1)), many, self.trim)
        each = total / np.bincount(place, minlength=len(touched))[:, None]
        return Rows(rows.offsets, rows.index, each[place].astype(np.float32))

    def _of_dense(self, values: Floats, groups: Offsets, count: int) -> Floats:
        flat = values.reshape(len(values), -1)
        sums = np.zeros((count, flat.shape[1]), np.float32)
        np.add.at(sums, groups, flat)
        total = _trimmed_sums(np.ascontiguousarray(sums.T)[np.newaxis], np.array([count]), self.trim)[0]
        each = (total / max(1, len(values))).astype(np.float32)
        return np.broadcast_to(each, flat.shape).reshape(values.shape).copy()


def _trimmed_sums(values: Floats, many: Offsets, trim: float) -> Floats:
    """Of [rows, numbers, contributions], so many of which count in each row: their number times the trimmed mean."""
    cut = np.minimum((trim * many).astype(np.int64), (many - 1) // 2)
    places = np.arange(values.shape[2])
    kept = (places >= cut[:, None]) & (places < (many - cut)[:, None])  # [rows, contributions]
    middle = np.where(kept[:, None, :], np.sort(values, axis=2), np.float32(0.0)).sum(axis=2)
    return np.asarray(middle * (many / np.maximum(many - 2 * cut, 1))[:, None], np.float32)
