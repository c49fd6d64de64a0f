"""Noise for a wanted epsilon, and epsilon for a noise, over the rounds of a training.

`noise_multiplier` is the standard deviation of the noise on the sum of the cohort's updates, divided by how far one
person can move that sum under the adjacency that goes with the sampling: twice the clip norm for replace-one (fixed
cohorts, or everybody in every round), the clip norm itself for add-remove (Poisson).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from veilrec.errors import BadInput, unknown_name
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.events import Event, GaussianEvent, SampledEvent, repeated
from veilrec.privacy.gaussian import mu_for
from veilrec.privacy.guarantee import Adjacency

Sampling = Literal["none", "poisson", "fixed"]


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How often, and with what chance, a person takes part in a training."""

    rounds: int
    sampling: Sampling = "none"
    """none: everybody in every round; fixed: a cohort of exactly `cohort`; poisson: each with chance cohort/population."""
    population: int = 1
    cohort: int = 1

    def __post_init__(self) -> None:
        if self.sampling not in get_args(Sampling):
            raise unknown_name("sampling", self.sampling, get_args(Sampling))
        if self.rounds < 1:
            raise BadInput(f"rounds is {self.rounds}: give at least 1")
        if not 1 <= self.cohort <= self.population:
            raise BadInput(
                f"a cohort of {self.cohort} from a population of {self.population}: give a cohort of at least 1 and a "
                "population that is not smaller"
            )

    @property
    def rate(self) -> float:
        """The chance to be part of one round."""
        return 1.0 if self.sampling == "none" else self.cohort / self.population

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency for which the noise multiplier and the epsilon are meant."""
        return "add-remove" if self.sampling == "poisson" else "replace-one"

    def event(self, noise_multiplier: float) -> Event:
        """All rounds with this noise."""
        positive(noise_multiplier=noise_multiplier)
        mu = 1.0 / noise_multiplier
        if self.sampling == "none":
            return repeated(GaussianEvent(mu), self.rounds)
        return repeated(SampledEvent(mu, self.rate, self.sampling), self.rounds)


def epsilon_for(noise_multiplier: float, delta: float, plan: Rounds) -> float:
    """What a training with this noise spends."""
    probability(delta=delta)
    return epsilon_of(plan.event(noise_multiplier), delta)


def noise_multiplier_for(epsilon: float, delta: float, plan: Rounds) -> float:
    """The noise multiplier that a training needs, to one part in ten thousand and never too small."""
    positive(epsilon=epsilon)
    probability(delta=delta)
    without_sampling = math.sqrt(plan.rounds) / mu_for(epsilon, delta)
    if plan.rate == 1.0:
        return without_sampling
    return noise_for(plan.event, epsilon, delta, at_most=without_sampling)


def noise_for(
    event: Callable[[float], Event], epsilon: float, delta: float, *, at_most: float, tolerance: float = 1e-4
) -> float:
    """The smallest noise whose event keeps (epsilon, delta), if more noise never means more epsilon.

    Bisection on a logarithmic scale, speeded up by the secant through the last two bounds; what is returned has been
    accounted for and satisfies.
    """
    positive(epsilon=epsilon, at_most=at_most)
    spent_high = epsilon_of(event(at_most), delta)
    if spent_high > epsilon:
        raise BadInput(
            f"noise {at_most:g} spends epsilon {spent_high:g} at delta {delta:g}, more than {epsilon:g}: allow more noise"
        )
    low, high, spent_low = _bracket(event, epsilon, delta, at_most)
    ...
