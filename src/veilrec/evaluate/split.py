"""What a protocol hands out: what devices may learn from, and what they are asked afterwards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Bools, Indices, Offsets
from veilrec._csr import Csr, csr_from_pairs
from veilrec.data.population import Impressions


@dataclass(frozen=True)
class Cases:
    """T questions: for each a user and the items that a good model ranks first."""

    users: Offsets  # [T], index in the population; a row of the scorer unless the protocol folds the user in
    positives: Csr  # T rows
    candidates: Indices | None = None  # loo-99, [T, 1 + 99]: column 0 the held-out item, then the sampled ones
    adapt: Csr | None = None  # holdout-users, T rows: what the device adapts on
    impressions: Impressions | None = None  # mind, T impressions
    set_aside: Csr | None = None  # T rows: the validation items of a test user, which are no rivals of the test items

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True)
class Split:
    """A population cut into what is learnt from and what is asked."""

    protocol: str
    n_users: int
    n_items: int
    train: Csr  # n_users rows: the distinct items that devices may learn from, in time order
    test: Cases
    valid: Cases | None = None
    train_impressions: Impressions | None = None  # mind: those that devices may learn from


def join_rows(left: Csr, right: Csr) -> Csr:
    """Row r of the one followed by row r of the other."""
    rows = np.concatenate([left.row_numbers(), right.row_numbers()])
    return csr_from_pairs(rows, np.concatenate([left.items, right.items]), len(left))


def keep_entries(rows: Csr, kept: Bools) -> Csr:
    """The same rows with only the marked entries, in the same order."""
    before = np.zeros(len(kept) + 1, np.int64)
    np.cumsum(kept, out=before[1:])
    return Csr(before[rows.offsets], rows.items[kept])
