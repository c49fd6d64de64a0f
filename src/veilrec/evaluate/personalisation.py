"""How well a model ranks for a new person by how much it has been given of that person.

The questions stay the same: the same users, the same held-out items, and the same rivals. What is withheld from the
model is set aside, since a rival that the user has used would only be a second thing that changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Offsets
from veilrec._csr import Csr
from veilrec._draws import stream, word
from veilrec._jit import jit
from veilrec.errors import BadInput
from veilrec.evaluate.evaluator import Judgement, judge
from veilrec.evaluate.split import Cases, Purpose, Split, join_rows, keep_entries
from veilrec.models.scores import Model

COUNTS = (0, 1, 2, 5, 10, 20, None)  # items that the model is given; None: all of the half that is for adapting


@dataclass(frozen=True)
class Given:
    """The test cases answered by a model that was given so many items of each user."""

    count: int | None  # at most; None: the whole half
    judgement: Judgement

    @property
    def label(self) -> str:
        """As tables and pictures have it."""
        return "half" if self.count is None else str(self.count)

    @property
    def mean_items(self) -> float:
        """What the model was really given, since some have fewer."""
        return float(self.judgement.known.mean())


def personalisation(split: Split, model: Model, seed: int) -> list[Given]:
    """The same test cases by each of `COUNTS`; the last one is the protocol's own evaluation."""
    refuse_without_halves(split.protocol, adapts=split.test.adapt is not None)
    return [Given(count, judge(given_first(split.test, count, seed), split.train, model)) for count in COUNTS]


def refuse_without_halves(protocol: str, *, adapts: bool) -> None:
    """Refuse a protocol that does not adapt to new people."""
    if not adapts:
        raise BadInput(
            f"--personalisation is about people whom the model meets after training, and {protocol} has none: train"
            " with --protocol holdout-users or holdout-users-liked"
        )


def given_first(cases: Cases, count: int | None, seed: int) -> Cases:
    """The same cases with the first `count` items of the half for adapting, in a random order that is always the same.

    Whoever has fewer gives all of them. What is given stays in the order of its use, and the rest is set aside.
    """
    if cases.adapt is None:
        raise ValueError("these cases have nothing to adapt on")
    if count is None:
        return cases
    given = _turns(cases.adapt, cases.users, seed) < count
    withheld = keep_entries(cases.adapt, ~given)
    aside = withheld if cases.set_aside is None else join_rows(cases.set_aside, withheld)
    return replace(cases, adapt=keep_entries(cases.adapt, given), set_aside=aside)


def _turns(rows: Csr, users: Offsets, seed: int) -> Offsets:
    """For every entry, how many of its row are given before it; keyed by (seed, user)."""
    keys = np.empty(len(rows.items), np.uint64)
    _draw_keys(rows.offsets, users, seed, Purpose.ADAPT_ORDER, keys)
    order = np.lexsort((keys, rows.row_numbers()))
    turns = np.empty(len(keys), np.int64)
    turns[order] = np.arange(len(keys)) - np.repeat(rows.offsets[:-1], rows.lengths())
    return turns


@jit
def _draw_keys(offsets: Offsets, users: Offsets, seed: int, purpose: int, keys: NDArray[np.uint64]) -> None:
    for r in range(len(users)):
        start = stream(seed, purpose, 0, users[r])
        for entry in range(offsets[r], offsets[r + 1]):
            keys[entry] = word(start, entry - offsets[r])
