"""Distributed noise: every client adds a part of it to the whole numbers that it sends under masks.

Nobody ever sees a sum without noise. Of the clients of a sum a part `lost` may be missing when it is opened (with fewer
it is void), and a part `silent` may add none, or tell their own. All others are counted on, and their shares together
have at least the variance that the sum needs: every share has standard deviation sigma / sqrt(honest). A full sum has
more noise than is needed, by sqrt(clients / honest).

Shares are rounded Gaussians on the lattice of the sum. Why their sum protects like one Gaussian of all their variance:

  Let G_1..G_n be independent N(0, s^2), s in lattice units, X_i = G_i rounded to a whole number, U_i = X_i - G_i, and
  T = G_1 + ... + G_n. Then X_1 + ... + X_n = round(T + U_1 + ... + U_{n-1}): what is rounded differs from the sum
  of the X_i by G_n - X_n. If U_1..U_{n-1} were independent of T, the noisy sum v + X_1 + ... + X_n would be made of
  v + T, a Gaussian release, and of draws that have nothing to do with v: post-processing. They nearly are. Given T,
  (G_1..G_{n-1}) is Gaussian with covariance s^2 (I - J / n), and the density of its fractional parts is, by Poisson,
  1 + sum over k in Z^(n-1), k not 0, of waves of height exp(-2 pi^2 s^2 Q(k)), Q(k) = |k|^2 - (sum of k_i)^2 / n.
  Put k_n = 0; then Q(k) is the sum of (k_i - mean)^2, and stays if a whole number is added to all of them. Add the one
  that makes their median 0. Now at most half of them are above 0, and their sum P has P^2 <= (n / 2) |k|^2 by Cauchy
  and Schwarz; so has the sum of those below. So n mean^2 <= |k|^2 / 2, and Q(k) >= |k|^2 / 2. All waves together are at
  most

      tau = (sum over j in Z of exp(-pi^2 s^2 j^2))^n - 1,

  whatever T and the fractions are. So every probability of the noisy sum is within a factor 1 - tau to 1 + tau of the
  ideal one, without exception. With 10 units a share tau is below 2 n 10^-428.

v is any whole number, so that this holds for everything that is summed: updates, votes, counts of items, gains. It is
what all clients send, cut to the lattice one by one and towards zero: none becomes longer than its bound, so that the
sum moves by what one client moves it, and rounding costs the proof nothing. Numbers of one message may lie on lattices
of their own, and lattices may change from round to round, as those of adaptive clipping do with the clip norm: a
lattice is public before its round, and the theorem is about one number.

Each share is drawn with a relative error of 2^-48 at most (`samplers`), so that of n shares has n times as much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from veilrec.core.arrays import Doubles, Offsets
from veilrec.core.errors import BadInput
from veilrec.privacy.checks import whole
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import RELATIVE_ERROR, Scale, lattice_gaussian

FEWEST_UNITS = 2**10  # of a share: what cutting to the lattice takes from an update is then far below its noise
REACH = 16.0  # standard deviations of a share that a sum has room for, beside what is summed
_UNITS = 2**16  # of a share of what is sent once
_COARSEST = 2.0**-12  # of the largest number that is sent once: no lattice of these is coarser


@dataclass(frozen=True)
class DistributedNoise:
    """How many clients carry the noise of a sum."""

    clients: int  # of a full sum
    silent: float = 0.0  # share of these that may add no noise, or tell the server theirs
    lost: float = 0.0  # share of these that may be missing; with fewer no sum is opened

    def __post_init__(self) -> None:
        whole(clients=self.clients)
        check_margins(self.silent, self.lost)

    @property
    def least(self) -> int:
        """Clients without which no sum is opened."""
        return self.clients - _part(self.lost, self.clients)

    @property
    def honest(self) -> int:
        """Clients whose shares are counted on: at least one."""
        return max(1, self.least - _part(self.silent, self.clients))

    @property
    def surplus(self) -> float:
        """How many times the noise that is needed a full sum has."""
        return math.sqrt(self.clients / self.honest)

    @property
    def log_error(self) -> float:
        """Log-error of one number of a sum, on the coarsest lattice that is used."""
        return log_error(self.honest, FEWEST_UNITS)


def check_margins(silent: float, lost: float) -> None:
    """Refuse margins that leave nobody to carry the noise."""
    for name, value, what in (("silent", silent, "adds no noise"), ("lost", lost, "may be missing")):
        if not 0.0 <= value < 1.0:
            raise BadInput(f"{name} is {value}: it is the share that {what}, from 0 to below 1")
    if silent + lost >= 1.0:
        raise BadInput(
            f"silent is {silent:g} and lost {lost:g}: together they are below 1, so that somebody is left to add noise"
        )


def _part(share: float, clients: int) -> int:
    return math.floor(share * clients + 1e-9)  # 0.3 of 10 is 3, whatever 0.3 is in binary


def tau(shares: int, units: float) -> float:
    """How far, relative to itself, a probability of a sum of rounded Gaussians is off at most: see above."""
    waves = sum(math.exp(-((math.pi * units * j) ** 2)) for j in range(1, 40))
    return math.expm1(shares * math.log1p(2.0 * waves))


def log_error(shares: int, units: float) -> float:
    """Bound the log-error of one number of a sum: rounded shares (`tau`), and the sampler's own error."""
    off = tau(shares, units)
    if off >= 0.5:
        raise BadInput(f"shares of {units:g} units are too small for a sum of {shares} of them: use a finer lattice")
    return -math.log1p(-off) + shares * RELATIVE_ERROR


def overflow_chance(clients: int, numbers: int) -> float:
    """At most how likely it is that noise carries one of so many numbers of a sum beyond its width.

    Every client has room for 16 standard deviations of its share, and a sum for all of these together: 16 sqrt(n)
    standard deviations of its noise, less half a unit a client for rounding. A Gaussian tail is below 2 e^(-t^2 / 2).
    """
    return min(1.0, 2.0 * numbers * math.exp(-126.0 * clients))


@dataclass(frozen=True)
class Shares:
    """Clients' shares of the noise on sums of what each of them sends once, and the lattice of these sums."""

    carried: DistributedNoise
    sigma: float  # of all shares that are counted on, together
    largest: float  # number that one client sends

    @property
    def share_sigma(self) -> float:
        """The standard deviation that every client's share needs."""
        return self.sigma / math.sqrt(self.carried.honest)

    @cached_property
    def step(self) -> float:
        """Of the lattice: a power of two, by which 2^16 units or fewer make a share, unless it is far larger."""
        by_noise = 2.0 ** math.ceil(math.log2(self.share_sigma / _UNITS))
        return min(by_noise, 2.0 ** math.floor(math.log2(self.largest * _COARSEST)))

    @cached_property
    def scale(self) -> Scale:
        """Units of a share: never fewer than it needs."""
        return Scale.above(self.share_sigma / self.step)

    @property
    def most(self) -> int:
        """Largest whole number that a client sends, but for `overflow_chance`."""
        return math.ceil(self.largest / self.step) + math.ceil(REACH * self.scale.units)

    def integers(self, steps: Offsets, step: float) -> Offsets:
        """Whole numbers of other steps, of one client or several, on the lattice: cut towards zero."""
        return np.asarray(np.trunc(steps * (step / self.step)), np.int64)

    def draw(self, count: int, source: Source) -> Offsets:
        """One client's share on so many numbers."""
        return lattice_gaussian(source, count, self.scale)

    def numbers(self, total: Offsets, clients: int) -> Doubles:
        """Convert an opened sum; one of too few clients is refused."""
        if clients < self.carried.least:
            raise BadInput(
                f"a sum of {clients} clients has too little noise to be used: it takes {self.carried.least} at least"
            )
        return np.asarray(total * self.step)
