"""What the evaluation needs of a model, and nothing more."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec.data.population import Catalogue, Impressions


class Scorer(Protocol):
    """A model bound to a set of users; a user is a row index. Higher scores rank first."""

    n_items: int

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item, [len(users), n_items]."""

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of chosen items: `items` is [T, C], a row for each of the T users; so is the result."""


class Model(Scorer, Protocol):
    """A scorer for the users of its training that can also take in new ones."""

    def fold_in(self, histories: Csr) -> Scorer:
        """A scorer for new users of whom only the history is known: row r of `histories` is user r."""


@runtime_checkable
class ImpressionScorer(Protocol):
    """A model that would rather score whole impressions than be folded in (it may use times, say)."""

    def score_impressions(self, impressions: Impressions) -> Floats:
        """A score for every entry of `impressions.shown.items`."""


@runtime_checkable
class Reader(Protocol):
    """A model that knows items by their text, and so can rank those of another data set."""

    def on(self, catalogue: Catalogue) -> Model:
        """The same model for the items of another catalogue."""
