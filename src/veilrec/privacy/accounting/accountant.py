"""What a sequence of events adds up to, and the noise that a wanted epsilon needs over the rounds of a training.

Epsilon for a delta, and delta for an epsilon, are exact where a formula exists (Gaussian releases in any number, one
sampled release, randomised response repeated), and otherwise an upper bound, tight to about three digits, from the
composed privacy loss distribution. A composition with a part that is known as zCDP only is accounted for by Renyi
divergences, which is looser. The answer holds for the adjacency, unit and sensitivity behind the events, and for
mechanisms chosen by earlier outputs as well.

`noise_multiplier` is the standard deviation of the noise on the sum of the cohort's updates, divided by how far one
person can move that sum under the adjacency that goes with the sampling: twice the clip norm for replace-one (fixed
cohorts, or everybody in every round), the clip norm itself for add-remove (Poisson). Where the unit is a click, its
owner takes part with it or without, and a whole clipped update changes into another: twice the clip norm, whatever the
sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.special import gammaln

from veilrec.core.errors import BadInput, unknown_name
from veilrec.privacy.accounting.composition import (
    SMALLEST_DELTA,
    Countable,
    FlatComposition,
    composed,
    flattened,
    groups_of,
    profile,
)
from veilrec.privacy.accounting.gaussian import delta_gaussian, epsilon_gaussian, mu_for, sampled_epsilon, smallest
from veilrec.privacy.accounting.renyi import delta_renyi, delta_zcdp, epsilon_renyi, epsilon_zcdp, rho_of
from veilrec.privacy.checks import clipped_l2, positive, probability
from veilrec.privacy.events import Event, GaussianEvent, PureEvent, SampledEvent, repeated
from veilrec.privacy.guarantee import Adjacency, Unit


def epsilon_of(event: Event, delta: float) -> float:
    """The smallest epsilon known to hold with this delta, or infinity; delta 0 asks for pure privacy."""
    if delta != 0.0:
        probability(delta=delta)
    groups = groups_of(event)
    if len(groups) > 1:
        return max(epsilon_of(group, delta) for group in groups)
    (event,) = groups
    parts = flattened(event)
    if parts.in_the_clear:
        return math.inf
    if parts.rho > 0.0:
        return math.inf if delta == 0.0 else _epsilon_with_zcdp(event, parts, delta)
    if not parts.counts:
        return _epsilon_all_gaussian(parts.mu, delta)
    basic = parts.sum_of_pure
    if delta == 0.0:
        return basic
    if exact := single_kind(parts):
        return _epsilon_exact(*exact, delta)
    if delta < SMALLEST_DELTA:
        raise BadInput(f"delta is {delta}: mixed events are accounted for down to {SMALLEST_DELTA}; give a larger one")
    return min(basic, max(0.0, float(composed(parts).get_epsilon_for_delta(delta))))


def delta_of(event: Event, epsilon: float) -> float:
    """The smallest delta known to hold with this epsilon (from 0 up)."""
    if not 0.0 <= epsilon < math.inf:
        raise BadInput(f"epsilon is {epsilon}: give a finite number, not negative")
    groups = groups_of(event)
    if len(groups) > 1:
        return max(delta_of(group, epsilon) for group in groups)
    (event,) = groups
    parts = flattened(event)
    if parts.in_the_clear:
        return 1.0
    if parts.rho > 0.0:
        return delta_renyi(event, epsilon) if parts.counts else delta_zcdp(rho_of(event), epsilon)
    if not parts.counts:
        return delta_gaussian(epsilon, parts.mu)
    if exact := single_kind(parts):
        return _delta_exact(*exact, epsilon)
    return min(1.0, float(composed(parts).get_delta_for_epsilon(epsilon)))


def _epsilon_with_zcdp(event: Event, parts: FlatComposition, delta: float) -> float:
    return epsilon_renyi(event, delta) if parts.counts else epsilon_zcdp(rho_of(event), delta)


def _epsilon_all_gaussian(mu: float, delta: float) -> float:
    if delta == 0.0:
        return 0.0 if mu == 0.0 else math.inf
    return epsilon_gaussian(mu, delta)


def single_kind(parts: FlatComposition) -> tuple[Countable, int] | None:
    """The one event of a composition that has a formula: anything once, or a pure event repeated."""
    if parts.mu != 0.0 or len(parts.counts) != 1:
        return None
    ((event, count),) = parts.counts
    return (event, count) if count == 1 or isinstance(event, PureEvent) else None


def _epsilon_exact(event: Countable, count: int, delta: float) -> float:
    if isinstance(event, SampledEvent):
        return sampled_epsilon(event.mu, event.rate, delta)
    if _delta_exact(event, count, 0.0) <= delta:
        return 0.0
    return smallest(lambda epsilon: _delta_exact(event, count, epsilon) <= delta, relative_tolerance=1e-12)


def _delta_exact(event: Countable, count: int, epsilon: float) -> float:
    if count == 1:
        return float(profile(event, np.array([epsilon]))[0])
    if not isinstance(event, PureEvent):
        raise TypeError(f"{event!r} has no formula for {count} of it")
    return _delta_repeated_response(event.epsilon, count, epsilon)


def _delta_repeated_response(epsilon_of_one: float, count: int, epsilon: float) -> float:
    """Kairouz, Oh and Viswanath 2015: with `lies` answers turned round the loss is (n - 2 lies) eps."""
    lies = np.arange(count + 1)
    log_choices = gammaln(count + 1) - gammaln(lies + 1) - gammaln(count - lies + 1)
    log_chance = log_choices - lies * epsilon_of_one - count * np.logaddexp(0.0, -epsilon_of_one)
    excess = epsilon - (count - 2 * lies) * epsilon_of_one
    return float(np.sum(np.exp(log_chance) * -np.expm1(np.minimum(excess, 0.0))))


Sampling = Literal["none", "poisson", "fixed"]
_SLACK = 5e-4  # how far below the wanted epsilon, relatively, is close enough
_FAR = 30.0
LARGEST_EPSILON = 1e6  # beyond it losses overflow, and nothing is promised anyway


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How often, and with what chance, a person takes part in a training."""

    rounds: int
    sampling: Sampling = "none"
    """none: everybody in every round; fixed: exactly `cohort` people; poisson: each by a coin of its own."""
    population: int = 1
    cohort: int = 1
    unit: Unit = "user"

    def __post_init__(self) -> None:
        if self.sampling not in get_args(Sampling):
            raise unknown_name("sampling", self.sampling, get_args(Sampling))
        if self.rounds < 1:
            raise BadInput(f"rounds is {self.rounds}: give at least 1")
        if not 1 <= self.cohort <= self.population:
            raise BadInput(
                f"a cohort of {self.cohort} from a population of {self.population}: give at least 1, "
                "and a population that is not smaller"
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
        return repeated(self.one_round(noise_multiplier), self.rounds)

    def one_round(self, noise_multiplier: float) -> GaussianEvent | SampledEvent:
        """One of them."""
        positive(noise_multiplier=noise_multiplier)
        mu = 1.0 / noise_multiplier
        if self.sampling == "none":
            return GaussianEvent(mu)
        if self.unit != "user":  # drawn or not, with the click or without: as if padded when not drawn
            return SampledEvent(mu, self.rate, "padding")
        return SampledEvent(mu, self.rate, self.sampling)

    def moved(self, clip_norm: float) -> float:
        """How far one unit can move the sum of a round."""
        return clipped_l2(clip_norm, self.adjacency if self.unit == "user" else "replace-one")


def epsilon_for(noise_multiplier: float, delta: float, rounds: Rounds) -> float:
    """What a training with this noise spends."""
    probability(delta=delta)
    return epsilon_of(rounds.event(noise_multiplier), delta)


def noise_multiplier_for(epsilon: float, delta: float, rounds: Rounds) -> float:
    """The noise multiplier that a training needs: never too small, and at most a thousandth too large."""
    if epsilon > LARGEST_EPSILON:
        raise BadInput(
            f"epsilon is {epsilon:g}, which protects nobody: give at most {LARGEST_EPSILON:g}, or use a method without"
            " privacy"
        )
    mu = mu_for(epsilon, delta)
    if rounds.rate == 1.0:
        return math.sqrt(rounds.rounds) / mu
    # Central limit of sampled Gaussians (Dong, Roth and Su 2022): mu = rate sqrt(rounds (e^(1/z^2) - 1)).
    guess = 1.0 / math.sqrt(math.log1p((mu / rounds.rate) ** 2 / rounds.rounds))
    return noise_for(rounds.event, epsilon, delta, guess=guess)


def noise_for(event: Callable[[float], Event], epsilon: float, delta: float, *, guess: float = 1.0) -> float:
    """A noise whose event spends at most epsilon and at least 0.9995 of it, if more noise never spends more.

    Bracketing and bisection on a logarithmic scale, the secant tried first; the answer was accounted for.
    """
    positive(epsilon=epsilon, guess=guess)
    probability(delta=delta)

    def excess(log_noise: float) -> float:
        spent = epsilon_of(event(math.exp(log_noise)), delta)
        return math.log(spent / epsilon) if 0.0 < spent < math.inf else math.copysign(_FAR, spent - epsilon)

    low, high = _bracket(excess, math.log(guess))
    while high.excess < -_SLACK and high.at - low.at > 1e-9:
        low, high = _narrowed(excess, low, high)
    return math.exp(high.at)


@dataclass(frozen=True)
class _Tried:
    at: float  # logarithm of the noise
    excess: float  # logarithm of what it spends over what it may spend


def _bracket(excess: Callable[[float], float], start: float) -> tuple[_Tried, _Tried]:
    """A noise that spends too much, and a larger one that does not."""
    here = _Tried(start, excess(start))
    step = 0.05
    direction = 1.0 if here.excess > 0.0 else -1.0
    while True:
        there = _Tried(here.at + direction * step, excess(here.at + direction * step))
        if (there.excess > 0.0) != (here.excess > 0.0):
            return (here, there) if direction > 0.0 else (there, here)
        here, step = there, 2.0 * step
        if abs(here.at - start) > _FAR:
            raise BadInput("no noise gives that epsilon: ask for a larger epsilon or delta, or for fewer rounds")


def _narrowed(excess: Callable[[float], float], low: _Tried, high: _Tried) -> tuple[_Tried, _Tried]:
    share = (low.excess + _SLACK / 2.0) / (low.excess - high.excess)  # the secant, aimed a little to the safe side
    for cut in (share, 0.5):
        middle = low.at + min(max(cut, 0.02), 0.98) * (high.at - low.at)
        tried = _Tried(middle, excess(middle))
        low, high = (tried, high) if tried.excess > 0.0 else (low, tried)
        if high.excess >= -_SLACK:
            break
    return low, high


@dataclass(frozen=True)
class ClippingNoise:
    """The noise of a round, shared by the sum of the updates and the count that adapts the clip norm."""

    update_noise_multiplier: float
    """Noise on the sum of the updates, over its sensitivity; a little more than without the count."""
    count_standard_deviation: float
    """Noise on how many updates were not clipped."""


def adaptive_clipping_noise(
    noise_multiplier: float, count_standard_deviation: float, *, adjacency: Adjacency
) -> ClippingNoise:
    """Keep the privacy of one release with `noise_multiplier` while the count is released beside it.

    1/z^2 = 1/z_update^2 + (sensitivity of the count / its noise)^2. Replacing a person moves the count by 1;
    adding one moves it by 1/2 when every bit b is sent as b - 1/2 (Andrew et al. 2021).
    """
    positive(noise_multiplier=noise_multiplier, count_standard_deviation=count_standard_deviation)
    sensitivity = 1.0 if adjacency == "replace-one" else 0.5
    left = noise_multiplier**-2 - (sensitivity / count_standard_deviation) ** 2
    if left <= 0.0:
        raise BadInput(
            f"count_standard_deviation is {count_standard_deviation}: the count alone spends the round; "
            f"give more than {sensitivity * noise_multiplier:g}"
        )
    return ClippingNoise(left**-0.5, count_standard_deviation)
