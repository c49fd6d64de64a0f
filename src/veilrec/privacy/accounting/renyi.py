"""Renyi and zero-concentrated accounting: what the ledger adds up, and a second opinion on the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from veilrec.core.arrays import Doubles
from veilrec.core.errors import BadInput
from veilrec.privacy.accounting.composition import FlatComposition, Simple, flattened
from veilrec.privacy.accounting.gaussian import smallest
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.events import Event, GaussianEvent, LaplaceEvent, PureEvent, ResponseEvent, SampledEvent

ORDERS: tuple[float, ...] = (
    1.001,
    1.002,
    1.005,
    1.01,
    1.02,
    1.05,
    *(1.0 + x / 10.0 for x in range(1, 100)),
    *range(11, 65),
    128,
    256,
    512,
    1024,
)


def rho_of(event: Event) -> float:
    """Zero-concentrated privacy (zCDP): rho, mu^2 / 2 of Gaussian noise, epsilon^2 / 2 of pure mechanisms, summed.

    What is gained by sampling has no such form; a sampled event is charged as if everybody took part.
    """
    parts = flattened(event)
    if parts.in_the_clear:
        return math.inf
    return parts.rho + 0.5 * parts.mu**2 + sum(count * _half_square(part) for part, count in parts.counts)


def _half_square(event: Simple) -> float:
    match event:
        case GaussianEvent(mu) | SampledEvent(mu, _, _):
            return 0.5 * mu * mu
        case LaplaceEvent(epsilon) | PureEvent(epsilon) | ResponseEvent(epsilon, _):
            return 0.5 * epsilon * epsilon


def epsilon_zcdp(rho: float, delta: float) -> float:
    """Epsilon of rho-zCDP: min over alpha of rho a + log(1 - 1/a) - log(delta a) / (a - 1)."""
    probability(delta=delta)
    if rho == 0.0:
        return 0.0
    return max(0.0, _least(lambda orders: _epsilon_at(orders, rho * orders, delta)))


def delta_zcdp(rho: float, epsilon: float) -> float:
    """Delta of rho-zCDP: min over alpha of e^((a - 1)(a rho - epsilon)) (1 - 1/a)^a / (a - 1)."""
    if rho == 0.0:
        return 0.0
    return math.exp(min(0.0, _least(lambda orders: _log_delta_at(orders, rho * orders, epsilon))))


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
    """Epsilon by Renyi accounting: all that is known where a part is zCDP, and elsewhere looser than `epsilon_of`."""
    probability(delta=delta)
    parts = flattened(event)
    if parts.in_the_clear:
        return math.inf
    return float(max(0.0, np.min(_epsilon_at(np.array(ORDERS), divergences_of(parts), delta))))


def delta_renyi(event: Event, epsilon: float) -> float:
    """Delta by Renyi accounting."""
    parts = flattened(event)
    if parts.in_the_clear:
        return 1.0
    return math.exp(min(0.0, float(np.min(_log_delta_at(np.array(ORDERS), divergences_of(parts), epsilon)))))


def divergences_of(parts: FlatComposition) -> Doubles:
    """Of all parts together, at ORDERS."""
    total = (parts.rho + 0.5 * parts.mu**2) * np.array(ORDERS)
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


def _log_delta_at(orders: Doubles, divergences: Doubles, epsilon: float) -> Doubles:
    # The same proposition, solved for delta.
    less_one = orders - 1.0
    return np.asarray(less_one * (divergences - epsilon) + orders * np.log1p(-1.0 / orders) - np.log(less_one))
