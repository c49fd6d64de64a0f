"""What ranking needs of a model, and nothing more.

Scores that are a product of a user's and an item's vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from veilrec.core.arrays import Csr, Floats, Indices, Offsets
from veilrec.core.features import Side
from veilrec.core.jit import jit


class Scorer(Protocol):
    """Scores for some users; a user is a row. Higher scores rank first."""

    n_items: int

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), n_items]."""

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""


class Model(Scorer, Protocol):
    """A scorer for known users that also takes in new ones."""

    def fold_in(self, histories: Csr) -> Scorer:
        """A scorer for new users of whom only the history is known: row r of `histories` is user r."""


@runtime_checkable
class KnowsPeople(Model, Protocol):
    """A model that also reads what a device knows of its user."""

    people: Side  # the features that it reads, without rows

    def fold_in_people(self, histories: Csr, people: Side) -> Scorer:
        """The same for new users with these features."""


Source = Literal["history", "order", "own weights", "content", "popularity", "appeal"]


@dataclass(frozen=True)
class RestsOn:
    """What a list was made of."""

    uses: tuple[Source, ...]  # what changes this list: without a history, only what is the same for everybody
    items: int  # of the history that count
    said: str  # the same for people, in a sentence

    def as_json(self) -> Mapping[str, Any]:
        """For programs."""
        return asdict(self)


@runtime_checkable
class SaysWhatItUses(Protocol):
    """A model that can tell what its list for a history rests on."""

    def rests_on(self, history: Indices) -> RestsOn:
        """What the list of somebody with this history is made of."""


def joined(model: Model, histories: Csr, people: Side | None = None) -> Scorer:
    """A scorer for new users, by all that is known of them and that the model can read."""
    if people is not None and isinstance(model, KnowsPeople):
        return model.fold_in_people(histories, people)
    return model.fold_in(histories)


class FactorScores:
    """score(u, i) = users[u] . items[i]."""

    def __init__(self, users: Floats, items: Floats) -> None:
        self.users = users
        self.items = items
        self.n_items = len(items)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        scores: Floats = self.users[users] @ self.items.T
        return scores

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        out = np.empty(items.shape, np.float32)
        _score_some(self.users, self.items, np.ascontiguousarray(users), np.ascontiguousarray(items), out)
        return out


@jit
def _score_some(user_rows: Floats, item_rows: Floats, users: Offsets, items: Indices, out: Floats) -> None:
    for case in range(items.shape[0]):
        user = user_rows[users[case]]
        for j in range(items.shape[1]):
            item = item_rows[items[case, j]]
            score = np.float32(0.0)
            for q in range(len(user)):
                score += user[q] * item[q]
            out[case, j] = score
