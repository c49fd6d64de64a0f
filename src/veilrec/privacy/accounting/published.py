"""What DP-PrivRec's Tables 3 and 4 say, how they came about, and what its training really spends.

All 36 finite entries come out of the Renyi accountant for fixed-size samples with noise multiplier 1 if the
number of releases is taken as rounds times cohort: once per device, although a cohort of any size makes one
release per round. The paper charges itself too much; the honest epsilon is several times smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from veilrec.privacy.accounting.accountant import Rounds, epsilon_for
from veilrec.privacy.accounting.renyi import epsilon_classical, sampled_curve
from veilrec.privacy.checks import probability

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
    return epsilon_classical(_ORDERS, releases * curve, delta)


@lru_cache(maxsize=32)
def _curve(rate: float, noise_multiplier: float) -> tuple[float, ...]:
    return tuple(sampled_curve(1.0 / noise_multiplier, rate, _ORDERS).tolist())


def compared(population: int, cohort: int, delta: float) -> PublishedEpsilon:
    """One entry of the two tables; it has to be one of them."""
    printed = (MOVIELENS_TABLE | FRAPPE_TABLE)[population, cohort][DELTAS.index(delta)]
    rounds = Rounds(rounds=ROUNDS, sampling="fixed", population=population, cohort=cohort)
    return PublishedEpsilon(
        paper=printed,
        paper_convention=paper_convention(population, cohort, delta, releases=ROUNDS * cohort),
        honest=epsilon_for(NOISE_MULTIPLIER, delta, rounds),
    )
