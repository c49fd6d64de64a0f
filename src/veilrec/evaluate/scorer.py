"""What the evaluation needs of a model, and nothing more."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from veilrec._arrays import Floats
from veilrec.data.population import Impressions, ItemTable
from veilrec.models.scores import Model


@runtime_checkable
class ImpressionScorer(Protocol):
    """A model that would rather score whole impressions than be folded in (it may use times, say)."""

    def score_impressions(self, impressions: Impressions) -> Floats:
        """A score for every entry of `impressions.shown.items`."""


@runtime_checkable
class Reader(Protocol):
    """A model that knows items by their text, and so can rank those of another data set."""

    def on(self, catalogue: ItemTable) -> Model:
        """The same model for the items of another catalogue."""
