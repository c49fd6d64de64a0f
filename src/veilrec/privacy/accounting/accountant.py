"""What a sequence of events adds up to, and the noise that a wanted epsilon needs over the rounds of a training.

Epsilon for a delta, and delta for an epsilon, are exact where a formula exists (Gaussian releases in any number, one
sampled release, randomised response repeated), and otherwise an upper bound, tight to about three digits, from the
composed privacy loss distribution. The answer holds for the adjacency, unit and sensitivity behind the events, and for
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
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from scipy.special import gammaln, ndtr, ndtri

from veilrec.core.errors import BadInput, unknown_name
from veilrec.privacy.accounting import composition
from veilrec.privacy.accounting.composition import SMALLEST_DELTA, Countable, FlatComposition
from veilrec.privacy.accounting.gaussian import delta_gaussian, epsilon_gaussian, mu_for, sampled_epsilon, smallest
from veilrec.privacy.checks import clipped_l2, positive, probability
from veilrec.privacy.events import Event, GaussianEvent, PureEvent, SampledEvent, repeated
from veilrec.privacy.guarantee import Adjacency, Unit


def epsilon_of(event: Event, delta: float) -> float:
    """The smallest epsilon known to hold with this delta, or infinity; delta 0 asks for pure privacy."""
    if delta != 0.0:
        probability(delta=delta)
    return max(_epsilon(composition.flattened(group), delta) for group in composition.groups_of(event))


def _epsilon(parts: FlatComposition, delta: float) -> float:
    if parts.in_plaintext:
        return math.inf
    if not parts.counts and delta != 0.0:
        return epsilon_gaussian(parts.mu, delta)
    basic = parts.sum_of_pure
    if delta == 0.0:
        return float(basic)
    if exact := single_kind(parts):
        return _epsilon_exact(*exact, delta)
    if delta < SMALLEST_DELTA:
        raise BadInput(f"delta is {delta}: mixed events are accounted for down to {SMALLEST_DELTA}; give a larger one")
    return min(basic, max(0.0, float(composition.composed(parts).get_epsilon_for_delta(delta))))


def delta_of(event: Event, epsilon: float) -> float:
    """The smallest delta known to hold with this epsilon (from 0 up)."""
    if not 0.0 <= epsilon < math.inf:
        raise BadInput(f"epsilon is {epsilon}: give a finite number, not negative")
    return max(_delta(composition.flattened(group), epsilon) for group in composition.groups_of(event))


def _delta(parts: FlatComposition, epsilon: float) -> float:
    if parts.in_plaintext:
        return 1.0
    if not parts.counts:
        return delta_gaussian(epsilon, parts.mu)
    if exact := single_kind(parts):
        return _delta_exact(*exact, epsilon)
    return min(1.0, float(composition.composed(parts).get_delta_for_epsilon(epsilon)))


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
        return float(composition.profile(event, np.array([epsilon]))[0])
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
    # None: everybody in every round; fixed: exactly `cohort` people; poisson: each by a coin of its own.
    sampling: Sampling = "none"
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

    # Noise on the sum of the updates, over its sensitivity; a little more than without the count.
    update_noise_multiplier: float
    count_standard_deviation: float  # noise on how many updates were not clipped


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


# Published accounting: DP-PrivRec's Tables 3 and 4. All 36 epsilons come out if every client of a cohort is charged as
# a release of its own, which is too much: a round is one release. The honest value stands beside each.
ROUNDS = 1000  # E_1 of section 4.4
NOISE_MULTIPLIER = 1.0
DELTAS = (1e-8, 1e-6, 1e-4)

# (population, cohort) -> epsilon at DELTAS
MOVIELENS_TABLE = {
    (4800, 5): (1.7439, 1.3602, 0.9764),
    (4800, 10): (3.2117, 2.7511, 2.2535),
    (4800, 15): (5.9705, 5.2030, 4.3074),
    (4800, 20): (9.4736, 8.3223, 6.9235),
    (4800, 25): (13.7047, 12.1696, 10.2052),
    (4800, 30): (18.9107, 16.6081, 14.3056),
}
FRAPPE_TABLE = {
    (760, 2): (2.2994, 1.8388, 1.3783),
    (760, 5): (7.4618, 6.5408, 5.3932),
    (760, 8): (16.2853, 14.3169, 12.0143),
    (760, 10): (23.7651, 21.4626, 18.6182),
    (760, 12): (34.5025, 30.0690, 25.4638),
    (760, 15): (50.1537, 45.5485, 40.9433),
}

_ORDERS = np.arange(2.0, 65.0)


@dataclass(frozen=True)
class PublishedEpsilon:
    """The paper's epsilon, how we arrive at the same number, and what holds."""

    paper: float
    paper_convention: float
    honest: float


def paper_convention(
    population: int, cohort: int, delta: float, *, releases: int, noise_multiplier: float = NOISE_MULTIPLIER
) -> float:
    """Epsilon as the paper counts it: Renyi, fixed-size sampling, the older conversion, whole orders."""
    probability(delta=delta)
    curve = np.array(_curve(cohort / population, noise_multiplier))
    return composition.epsilon_classical(_ORDERS, releases * curve, delta)


@lru_cache(maxsize=32)
def _curve(rate: float, noise_multiplier: float) -> tuple[float, ...]:
    return tuple(composition.sampled_curve(1.0 / noise_multiplier, rate, _ORDERS).tolist())


def compared(population: int, cohort: int, delta: float) -> PublishedEpsilon:
    """One entry of the two tables; it has to be one of them."""
    printed = (MOVIELENS_TABLE | FRAPPE_TABLE)[population, cohort][DELTAS.index(delta)]
    rounds = Rounds(rounds=ROUNDS, sampling="fixed", population=population, cohort=cohort)
    return PublishedEpsilon(
        paper=printed,
        paper_convention=paper_convention(population, cohort, delta, releases=ROUNDS * cohort),
        honest=epsilon_for(NOISE_MULTIPLIER, delta, rounds),
    )


# Trade-off functions: what the best test can do that tells two adjacent inputs apart. It says what a release means to a
# person in plain numbers, and it is tighter than one (epsilon, delta), which is a single point of the same curve.
How = Literal["exact", "loss distribution", "epsilon and delta"]
HOW: dict[How, str] = {
    "exact": "exact, from the trade-off curve of the noise itself",
    "loss distribution": "an upper bound, from the privacy loss of all that it counts, composed",
    "epsilon and delta": "an upper bound from epsilon and delta alone; what was done may allow less",
}
_MAX_EPSILON = 50.0  # beyond it a bound differs from 1 by less than a double can tell
_POINTS, _ZOOMS = 9, 13  # every grid is a quarter of the one before


@dataclass(frozen=True)
class Detection:
    """What the best test can do, at most."""

    found: float  # of those whom it looks for, at the given share of false alarms
    best_guess: float  # how often a guess is right where it is as likely as not that somebody's data was used
    how: How


def detection_of(event: Event, *, false_alarms: float) -> Detection:
    """What can be told from all that an event released."""
    probability(false_alarms=false_alarms)
    each = (_detection(composition.flattened(group), false_alarms) for group in composition.groups_of(event))
    return max(each, key=lambda detection: (detection.found, detection.best_guess))


def _detection(parts: FlatComposition, false_alarms: float) -> Detection:
    if parts.in_plaintext:
        return Detection(1.0, 1.0, "exact")
    if not parts.counts:  # Gaussian releases in any number are one
        return Detection(float(ndtr(ndtri(false_alarms) + parts.mu)), float(ndtr(0.5 * parts.mu)), "exact")
    found = _found(lambda eps: _delta(parts, eps), false_alarms)
    apart = _delta(parts, 0.0)  # the total variation
    known = single_kind(parts)
    # The two directions of a sampled release differ, and the worse of both is taken everywhere.
    composed_loss = known is None or isinstance(known[0], SampledEvent)
    return Detection(found, 0.5 + 0.5 * min(apart, 1.0), "loss distribution" if composed_loss else "exact")


def detection_by(epsilon: float, delta: float, *, false_alarms: float) -> Detection:
    """What (epsilon, delta) alone allows."""
    probability(false_alarms=false_alarms)
    linear = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    mirrored = 1.0 - math.exp(-epsilon) * (1.0 - delta - false_alarms)
    # The worst such mechanism tells everything with probability delta, and is randomised response otherwise.
    guess = delta + (1.0 - delta) / (1.0 + math.exp(-epsilon))
    return Detection(min(1.0, linear, mirrored), guess, "epsilon and delta")


def _found(delta: Callable[[float], float], false_alarms: float) -> float:
    # The first is convex in e^eps and the second in e^-eps, so that each has one valley.
    few = _lowest(lambda eps: math.exp(eps) * false_alarms + delta(eps))
    most = _lowest(lambda eps: 1.0 - math.exp(-eps) * (1.0 - delta(eps) - false_alarms))
    return min(1.0, max(false_alarms, min(few, most)))


def _lowest(bound: Callable[[float], float]) -> float:
    low, high = 0.0, _MAX_EPSILON
    best = math.inf
    for _ in range(_ZOOMS):
        grid = np.linspace(low, high, _POINTS)
        values = [bound(float(eps)) for eps in grid]
        at = int(np.argmin(values))
        best = min(best, values[at])
        low, high = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, _POINTS - 1)])
    return best
