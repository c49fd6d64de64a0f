"""Several events after one another, as one privacy loss distribution (connect-the-dots of dp-accounting).

Every event is given by its exact profile delta(epsilon), which is that of a dominating pair of
distributions. Such pairs compose even when a later mechanism is chosen by the outputs of earlier ones (Zhu,
Dong and Wang 2022), so the numbers hold for training, where every round depends on the last. Composing
profiles ourselves, rather than handing dp-accounting its own events, avoids its two traps: it ignores the
count of randomised response, and it doubles the sensitivity of a Gaussian under replace-one in one
accountant but not in the other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from veilrec.core.arrays import Doubles
from veilrec.core.errors import BadInput
from veilrec.privacy.accounting.gaussian import (
    amplified_epsilon,
    delta_gaussian,
    epsilon_gaussian,
    sampled_delta,
    smallest,
)
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.events import (
    ComposedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    ParallelEvent,
    PureEvent,
    ResponseEvent,
    SampledEvent,
    TreeEvent,
)

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

SMALLEST_DELTA = 1e-12  # below it the rounding of the Fourier transform would show
_WIDEST_INTERVAL = 2e-4  # of the grid of privacy losses
_MAX_POINTS = 2**18
_MAX_POINTS_OF_ONE = 2**16
_LOST_TAIL = 1e-20  # mass beyond the grid of one event; it is counted as a loss of infinity

Countable: TypeAlias = LaplaceEvent | PureEvent | ResponseEvent | SampledEvent
Simple: TypeAlias = GaussianEvent | Countable


@dataclass(frozen=True)
class FlatComposition:
    """A composition with nothing nested: all Gaussian releases as one, the rest counted."""

    mu: float
    counts: tuple[tuple[Countable, int], ...]
    in_plaintext: bool = False

    @property
    def sum_of_pure(self) -> float:
        """Basic composition of epsilons that hold with delta 0; infinite if one part has none."""
        if self.mu > 0.0:
            return math.inf
        return sum(count * (math.inf if isinstance(e, SampledEvent) else e.epsilon) for e, count in self.counts)


def groups_of(event: Event) -> tuple[Event, ...]:
    """What an event is for each group of people who may have met different parts of it; one event where all met all."""
    match event:
        case ParallelEvent(groups):
            return tuple(dict.fromkeys(way for group in groups for way in groups_of(group)))
        case ComposedEvent(parts):
            if all(len(groups_of(inner)) == 1 for inner, _ in parts):
                return (event,)
            # A person may be in another group each time.
            ways = [combinations_with_replacement(groups_of(inner), _checked_count(n)) for inner, n in parts]
            return tuple(ComposedEvent(tuple((one, 1) for some in way for one in some)) for way in product(*ways))
        case _:
            return (event,)


def flattened(event: Event) -> FlatComposition:
    """The simple events of a composition; one that is not known raises."""
    counts: Counter[Countable] = Counter()
    mu_squared = 0.0
    in_plaintext = False
    todo: list[tuple[Event, int]] = [(event, 1)]
    while todo:
        part, count = todo.pop()
        match part:
            case ComposedEvent(parts):
                todo += [(inner, count * _checked_count(times)) for inner, times in parts]
            case NonPrivateEvent():
                in_plaintext |= count > 0
            case GaussianEvent(mu):
                mu_squared += count * _checked(mu=mu) ** 2
            case TreeEvent(noise, steps):  # a leaf is part of one node per level, and each node has its own noise
                if not (noise > 0.0 and steps >= 1):
                    raise BadInput(f"{part!r}: give a noise multiplier above 0 and at least 1 step")
                mu_squared += count * (math.sqrt(steps.bit_length()) / noise) ** 2
            case SampledEvent(mu, rate, "fixed" | "padding" | "poisson") if 0.0 < rate <= 1.0:
                if rate == 1.0:
                    mu_squared += count * _checked(mu=mu) ** 2
                elif _checked(mu=mu) > 0.0:
                    counts[part] += count
            case ResponseEvent(_, candidates) if candidates < 2:
                raise BadInput(f"{part!r}: a response has at least 2 candidates")
            case LaplaceEvent(epsilon) | PureEvent(epsilon) | ResponseEvent(epsilon, _):
                if _checked(epsilon=epsilon) > 0.0:
                    counts[part] += count
            case _:
                raise BadInput(f"no accounting is known for {part!r}: nothing is claimed for it")
    _check_one_adjacency(counts)
    return FlatComposition(math.sqrt(mu_squared), tuple((e, n) for e, n in counts.items() if n), in_plaintext)


@lru_cache(maxsize=16)
def composed(parts: FlatComposition) -> PrivacyLossDistribution:
    """The distribution of the privacy loss of all parts together."""
    events: list[tuple[Simple, int]] = list(parts.counts)
    if parts.mu > 0.0:
        events.append((GaussianEvent(parts.mu), 1))
    interval = _interval(events)
    total: PrivacyLossDistribution | None = None
    for event, count in events:
        one = distribution(event, interval)
        several = one.self_compose(count) if count > 1 else one
        total = several if total is None else total.compose(several, 1e-15)
    if total is None:
        raise ValueError("nothing to compose")
    return total


def profile(event: Simple, epsilon: Doubles) -> Doubles:
    """Exact delta at epsilons that are not negative; of a sampled event in its worse direction."""
    match event:
        case GaussianEvent(mu):
            return delta_gaussian(epsilon, mu)
        case SampledEvent(mu, rate, _):
            return sampled_delta(epsilon, mu, rate)
        case LaplaceEvent(top):
            return np.asarray(-np.expm1(np.minimum((epsilon - top) / 2.0, 0.0)), np.float64)
        case PureEvent(top):
            # (e^top - e^epsilon) / (1 + e^top), randomised response
            return -np.expm1(np.minimum(epsilon - top, 0.0)) / (1.0 + math.exp(-top))
        case ResponseEvent(top, candidates):
            # Two answers tell the two inputs apart, with probabilities keep and keep / e^top; the others tell nothing.
            return -np.expm1(np.minimum(epsilon - top, 0.0)) / (1.0 + (candidates - 1) * math.exp(-top))


def distribution(event: Simple, interval: float) -> PrivacyLossDistribution:
    """The privacy loss of one event, on a grid of this interval: an upper bound that is exact on the grid."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    top = math.ceil(_largest_loss(event) / interval) + 1
    if isinstance(event, SampledEvent) and event.sampling == "poisson":
        return PrivacyLossDistribution(*_poisson_masses(event, interval, top))
    upper = profile(event, interval * np.arange(top + 1, dtype=np.float64))
    # Replace-one is symmetric: delta(-eps) = 1 - e^-eps + e^-eps delta(eps).
    below = interval * np.arange(top, 0, -1, dtype=np.float64)
    lower = -np.expm1(-below) + np.exp(-below) * upper[:0:-1]
    return PrivacyLossDistribution(_masses(np.concatenate((lower, upper)), -top, top, interval))


def _poisson_masses(event: SampledEvent, interval: float, top: int) -> tuple[Any, Any]:
    bottom = math.ceil(-math.log1p(-event.rate) / interval) + 1  # without the person no loss exceeds -log(1 - rate)
    grid = interval * np.arange(-bottom, top + 1, dtype=np.float64)
    removed = sampled_delta(grid, event.mu, event.rate)
    # The other direction: delta_QP(eps) = 1 - e^eps + e^eps delta_PQ(-eps).
    mirrored = -grid[::-1]
    added = np.maximum(-np.expm1(mirrored) + np.exp(mirrored) * removed[::-1], 0.0)
    return _masses(removed, -bottom, top, interval), _masses(added, -top, bottom, interval)


def _masses(deltas: Doubles, first: int, last: int, interval: float) -> Any:
    from dp_accounting.pld import pld_pmf

    falling = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, falling)


def _largest_loss(event: Simple) -> float:
    match event:
        case GaussianEvent(mu):
            return epsilon_gaussian(mu, _LOST_TAIL)
        case SampledEvent(mu, rate, _):
            return amplified_epsilon(epsilon_gaussian(mu, _LOST_TAIL), rate=rate)
        case LaplaceEvent(top) | PureEvent(top) | ResponseEvent(top, _):
            return top


def _spread(event: Simple) -> float:
    """Standard deviation of the privacy loss, roughly: it only decides how fine the grid is."""
    match event:
        case GaussianEvent(mu):
            return mu
        case SampledEvent(mu, rate, _):
            return min(mu, rate * math.sqrt(math.expm1(min(mu * mu, 100.0))))
        case LaplaceEvent(top) | PureEvent(top) | ResponseEvent(top, _):
            return top


def _interval(events: list[tuple[Simple, int]]) -> float:
    """Fine enough that rounding adds little to the variance of the loss, coarse enough to be quick."""
    variance = sum(count * _spread(event) ** 2 for event, count in events)
    fine = 0.05 * math.sqrt(variance / sum(count for _, count in events))
    # 17 standard deviations hold all but 1e-15 of the total loss.
    coarse = max(
        17.0 * math.sqrt(variance) / _MAX_POINTS, max(_largest_loss(event) for event, _ in events) / _MAX_POINTS_OF_ONE
    )
    return max(min(_WIDEST_INTERVAL, fine), coarse)


def _check_one_adjacency(counts: Counter[Countable]) -> None:
    ways = {event.sampling for event in counts if isinstance(event, SampledEvent)}
    if "poisson" in ways and len(ways) > 1:
        raise BadInput(
            "a composition mixes Poisson sampling (add-remove) with fixed cohorts or padding (replace-one): "
            "account for each adjacency by itself"
        )


def _checked(**values: float) -> float:
    ((name, value),) = values.items()
    if not 0.0 <= value < math.inf:
        raise BadInput(f"{name} is {value}: a privacy event has a finite {name} that is not negative")
    return value


def _checked_count(count: int) -> int:
    if count < 0:
        raise BadInput(f"an event is repeated {count} times: give 0 or more")
    return count


ORDERS: tuple[float, ...] = (
    *(1.001, 1.002, 1.005, 1.01, 1.02, 1.05),
    *(1.0 + x / 10.0 for x in range(1, 100)),
    *range(11, 65),
    *(128, 256, 512, 1024),
)


def epsilon_zcdp(rho: float, delta: float) -> float:
    """Epsilon of rho-zCDP: min over alpha of rho a + log(1 - 1/a) - log(delta a) / (a - 1)."""
    probability(delta=delta)
    if rho == 0.0:
        return 0.0
    return max(0.0, _least(lambda orders: _epsilon_at(orders, rho * orders, delta)))


def _least(bound: Callable[[Doubles], Doubles]) -> float:
    """The smallest of bounds that hold at every order: a search that stops early is safe."""
    low, high = -12.0, 40.0  # of log(alpha - 1)
    for _ in range(5):
        grid = np.linspace(low, high, 100)
        values = bound(1.0 + np.exp(grid))
        best = int(np.argmin(values))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
    return float(values[best])


def rho_max(epsilon: float, delta: float) -> float:
    """The zCDP budget of a ledger of mixed mechanisms: the largest rho that still gives (epsilon, delta)."""
    positive(epsilon=epsilon)
    return 1.0 / smallest(lambda x: epsilon_zcdp(1.0 / x, delta) <= epsilon, relative_tolerance=1e-12)


def epsilon_renyi(event: Event, delta: float) -> float:
    """Epsilon by Renyi accounting, which is looser than `epsilon_of`, and quick for many different parts."""
    probability(delta=delta)
    parts = flattened(event)
    if parts.in_plaintext:
        return math.inf
    return float(max(0.0, np.min(_epsilon_at(np.array(ORDERS), divergences_of(parts), delta))))


def divergences_of(parts: FlatComposition) -> Doubles:
    """Renyi divergences of all parts together, at ORDERS."""
    total = 0.5 * parts.mu**2 * np.array(ORDERS)
    for part, count in parts.counts:
        total = total + count * np.array(_curve(part))
    return np.asarray(total, np.float64)


def epsilon_classical(orders: Doubles, divergences: Doubles, delta: float) -> float:
    """The older conversion, min over alpha of divergence + log(1/delta) / (alpha - 1) (Mironov 2017)."""
    return float(np.min(divergences + math.log(1.0 / delta) / (orders - 1.0)))


def sampled_curve(mu: float, rate: float, orders: Doubles) -> Doubles:
    """Renyi divergences on a fixed-size sample (Wang, Balle and Kasiviswanathan 2019, theorem 27)."""
    from dp_accounting import dp_event

    whole = 2**40  # the curve depends on the rate only, which dp-accounting wants as two integers; rounded up
    sampled = dp_event.SampledWithoutReplacementDpEvent(whole, math.ceil(rate * whole), _gaussian(mu))
    return _divergences(sampled, orders, replace_one=True)


@lru_cache(maxsize=64)
def _curve(event: Simple) -> tuple[float, ...]:
    from dp_accounting import dp_event

    orders = np.array(ORDERS)
    match event:
        case SampledEvent(mu, rate, "poisson"):
            curve = _divergences(dp_event.PoissonSampledDpEvent(rate, _gaussian(mu)), orders, replace_one=False)
        case SampledEvent(mu, rate, _):
            curve = sampled_curve(mu, rate, orders)
        case LaplaceEvent(epsilon):
            curve = _divergences(dp_event.LaplaceDpEvent(1.0 / epsilon), orders, replace_one=False)
        case PureEvent(epsilon) | ResponseEvent(epsilon, _):  # that of two candidates is the largest
            curve = _response_divergences(epsilon, orders)
        case _:
            raise BadInput(f"no Renyi divergence is known for {event!r}")
    return tuple(float(value) for value in curve)


def _divergences(event: object, orders: Doubles, *, replace_one: bool) -> Doubles:
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    relation = NeighboringRelation.REPLACE_ONE if replace_one else NeighboringRelation.ADD_OR_REMOVE_ONE
    return np.asarray(RdpAccountant(orders.tolist(), relation).compose(event).rdp, np.float64)


def _gaussian(mu: float) -> object:
    from dp_accounting import dp_event

    return dp_event.GaussianDpEvent(1.0 / mu)


def _response_divergences(epsilon: float, orders: Doubles) -> Doubles:
    """log(p^a q^(1-a) + q^a p^(1-a)) / (a - 1) with p = e^eps q, q = 1 / (1 + e^eps)."""
    log_q = -np.logaddexp(0.0, epsilon)
    log_p = log_q + epsilon
    one = orders * log_p + (1.0 - orders) * log_q
    other = orders * log_q + (1.0 - orders) * log_p
    return np.asarray(np.logaddexp(one, other) / (orders - 1.0), np.float64)


def _epsilon_at(orders: Doubles, divergences: Doubles, delta: float) -> Doubles:
    # Canonne, Kamath and Steinke 2020, proposition 12
    return divergences + np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1.0)
