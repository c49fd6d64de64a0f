"""How the noisy count of updates within the bound decides the bound of the next round: post-processing, all of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from veilrec.errors import BadInput, VeilrecError
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.mechanisms.clipping import next_clip_norm, published_next_clip_norm


@dataclass(frozen=True, kw_only=True)
class GeometricBound:
    """S exp(-rate (share - quantile)): always above 0, and within public limits (Andrew et al. 2021)."""

    cohort: int  # expected devices of a round, which the count is divided by
    smallest: float
    largest: float
    quantile: float = 0.5  # of the updates, that the bound should leave alone
    rate: float = 0.2

    def __post_init__(self) -> None:
        positive(cohort=self.cohort, smallest=self.smallest, rate=self.rate)
        probability(quantile=self.quantile)
        if not self.smallest <= self.largest < math.inf:
            raise BadInput(f"bounds from {self.smallest:g} to {self.largest:g}: give the smaller one first")

    def next(self, clip_norm: float, count: float) -> float:
        """The bound after this one; every message counted 1/2 up or down."""
        moved = next_clip_norm(
            clip_norm,
            noisy_unclipped_fraction=count / self.cohort + 0.5,
            quantile=self.quantile,
            learning_rate=self.rate,
        )
        return min(max(moved, self.smallest), self.largest)


@dataclass(frozen=True, kw_only=True)
class PublishedBound:
    """S - alpha_4 (beta - gamma), as DP-PrivRec prints it (Algorithm 2, line 11): it may fall below 0."""

    cohort: int  # M
    quantile: float  # gamma
    rate: float  # alpha_4

    def next(self, clip_norm: float, count: float) -> float:
        """The bound after this one; every message counted 1 or nothing."""
        moved = published_next_clip_norm(
            clip_norm, noisy_unclipped_fraction=count / self.cohort, quantile=self.quantile, learning_rate=self.rate
        )
        if not math.isfinite(moved):
            raise VeilrecError(f"the bound has become {moved}: use a smaller rate of the bound")
        return moved


BoundRule: TypeAlias = GeometricBound | PublishedBound
