"""How many a test can find: the trade-off between its false alarms and its finds, from what was done.

Whoever tests whether somebody's data was used, and is wrong about a share a of those whose data was not, finds at most
the smallest of e^eps a + delta(eps) and 1 - e^-eps (1 - delta(eps) - a), over every eps from 0 up (Wasserman and Zhou
2010; Dong, Roth and Su 2022, proposition 6). One (epsilon, delta) alone says far less than the whole profile. Every
eps gives a bound that holds, so that a search that stops early errs on the safe side. The relative error of our
samplers, 4e-15 of a number, does not show in the digits that are printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri

from veilrec.core.arrays import Doubles
from veilrec.privacy.accounting.accountant import delta_of, single_kind
from veilrec.privacy.accounting.composition import FlatComposition, flattened, groups_of
from veilrec.privacy.accounting.renyi import ORDERS, divergences_of
from veilrec.privacy.checks import probability
from veilrec.privacy.events import Event, SampledEvent

How = Literal["exact", "loss distribution", "Renyi divergences", "epsilon and delta"]
HOW: dict[How, str] = {
    "exact": "exact, from the trade-off curve of the noise itself",
    "loss distribution": "an upper bound, from the privacy loss of all that it counts, composed",
    "Renyi divergences": "an upper bound, from the Renyi divergences of what was released",
    "epsilon and delta": "an upper bound from epsilon and delta alone; what was done may allow less",
}
_MOST_EPSILON = 50.0  # beyond it a bound differs from 1 by less than a double can tell
_POINTS, _ZOOMS = 9, 13  # every grid is a quarter of the one before


@dataclass(frozen=True)
class Detection:
    """What the best test can do, at most."""

    found: float
    """Of those whom it looks for, at the given share of false alarms."""
    best_guess: float
    """How often a guess is right where it is as likely as not that somebody's data was used."""
    how: How


def detection_of(event: Event, *, false_alarms: float) -> Detection:
    """What can be told from all that an event released."""
    probability(false_alarms=false_alarms)
    groups = groups_of(event)
    if len(groups) > 1:
        each = [detection_of(group, false_alarms=false_alarms) for group in groups]
        return max(each, key=lambda detection: (detection.found, detection.best_guess))
    (event,) = groups
    parts = flattened(event)
    if parts.in_the_clear:
        return Detection(1.0, 1.0, "exact")
    if not parts.counts and parts.rho == 0.0:  # Gaussian releases in any number are one
        return Detection(float(ndtr(ndtri(false_alarms) + parts.mu)), float(ndtr(0.5 * parts.mu)), "exact")
    found = _found(lambda eps: delta_of(event, eps), false_alarms)
    apart = delta_of(event, 0.0)  # the total variation
    if parts.rho > 0.0:
        found = min(found, _found_by_renyi(parts, false_alarms))
        apart = min(apart, _apart_by_divergence(parts))
    return Detection(found, 0.5 + 0.5 * min(apart, 1.0), _how(parts))


def detection_by(epsilon: float, delta: float, *, false_alarms: float) -> Detection:
    """What (epsilon, delta) alone allows."""
    probability(false_alarms=false_alarms)
    linear = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    mirrored = 1.0 - math.exp(-epsilon) * (1.0 - delta - false_alarms)
    # The worst such mechanism tells everything with probability delta, and is randomised response otherwise.
    guess = delta + (1.0 - delta) / (1.0 + math.exp(-epsilon))
    return Detection(min(1.0, linear, mirrored), guess, "epsilon and delta")


def _how(parts: FlatComposition) -> How:
    if parts.rho > 0.0:
        return "Renyi divergences"
    known = single_kind(parts)
    # The two directions of a sampled release differ, and the worse of both is taken everywhere.
    return "loss distribution" if known is None or isinstance(known[0], SampledEvent) else "exact"


def _found(delta: Callable[[float], float], false_alarms: float) -> float:
    # The first is convex in e^eps and the second in e^-eps, so that each has one valley.
    few = _lowest(lambda eps: math.exp(eps) * false_alarms + delta(eps))
    most = _lowest(lambda eps: 1.0 - math.exp(-eps) * (1.0 - delta(eps) - false_alarms))
    return min(1.0, max(false_alarms, min(few, most)))


def _lowest(bound: Callable[[float], float]) -> float:
    low, high = 0.0, _MOST_EPSILON
    best = math.inf
    for _ in range(_ZOOMS):
        grid = np.linspace(low, high, _POINTS)
        values = [bound(float(eps)) for eps in grid]
        at = int(np.argmin(values))
        best = min(best, values[at])
        low, high = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, _POINTS - 1)])
    return best


def _found_by_renyi(parts: FlatComposition, false_alarms: float) -> float:
    """The largest share of finds for which the test itself does not diverge more than what was released."""
    orders, allowed = np.array(ORDERS), divergences_of(parts)
    low, high = false_alarms, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        both = (_divergence(middle, false_alarms, orders), _divergence(false_alarms, middle, orders))
        possible = all((divergence <= allowed).all() for divergence in both)
        low, high = (middle, high) if possible else (low, middle)
    return high


def _divergence(first: float, second: float, orders: Doubles) -> Doubles:
    """Renyi divergence of one coin from another."""
    one = orders * math.log(first) + (1.0 - orders) * math.log(second)
    other = orders * math.log1p(-first) + (1.0 - orders) * math.log1p(-second)
    return np.asarray(np.logaddexp(one, other) / (orders - 1.0), np.float64)


def _apart_by_divergence(parts: FlatComposition) -> float:
    """Total variation by the inequalities of Pinsker, and of Bretagnolle and Huber."""
    divergence = float(np.min(divergences_of(parts)))  # they rise with the order, so that any is at least that of 1
    return min(math.sqrt(0.5 * divergence), math.sqrt(-math.expm1(-divergence)))
