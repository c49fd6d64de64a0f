"""Client sampling: the cohort of each round, drawn at a cost that depends on the cohort alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from veilrec.core import rng
from veilrec.core.arrays import Bools, Offsets
from veilrec.core.errors import BadInput, counted
from veilrec.privacy.mechanisms.responses import happens
from veilrec.privacy.mechanisms.sums import fixed_cohorts
from veilrec.privacy.randomness import KeyedSource


@dataclass(frozen=True)
class CohortSettings:
    """Size of a cohort, sampling scheme, availability and drop-out."""

    size: int = 100  # devices in a round, the expected number under Poisson sampling; 0: everybody
    # exactly `size` without replacement; each on its own; or a fixed order, `size` at a time, so that all come as often
    sampling: Literal["fixed", "poisson", "turns"] = "fixed"
    available: float = 1.0  # chance that a device can be reached in a round
    drop_out: float = 0.0  # chance that a device learns but its message never arrives

    def __post_init__(self) -> None:
        if self.size < 0:
            raise BadInput(f"cohort.size is {self.size}: give a whole number above 0, or 0 for everybody")
        if not 0.0 < self.available <= 1.0:
            raise BadInput(
                f"cohort.available is {self.available}: it is the chance that a device can be reached; give a number"
                " above 0 and up to 1"
            )
        if not 0.0 <= self.drop_out < 1.0:
            raise BadInput(
                f"cohort.drop_out is {self.drop_out}: it is the chance that a message is lost; give a number from 0"
                " to below 1"
            )

    def among(self, population: int) -> int:
        """Cohort size in a population; raise BadInput for one that cannot be drawn."""
        if population == 0:
            raise BadInput("no device has anything to learn from: every user's training part is empty")
        if self.size > population:
            raise TooFewDevices(self.size, population)
        return self.size or population

    def most_turns(self, rounds: int, population: int) -> int:
        """Largest number of rounds that a client takes part in."""
        if self.sampling != "turns":
            return rounds
        return math.ceil(rounds * self.among(population) / population)


class TooFewDevices(BadInput):
    """A cohort is larger than the population."""

    def __init__(self, size: int, population: int) -> None:
        self.population = population
        super().__init__(
            f"cohort.size is {size}, but only {counted(population, 'device')} can learn: use "
            f"--set cohort.size={min(100, population)}, or another size from 1 to {population}; 0 is everybody"
        )


class CohortSampler:
    """Draws the devices of each round, keyed by (seed, round); from a secret where amplification rests on it."""

    def __init__(self, settings: CohortSettings, eligible: Offsets, seed: int, *, secret: bytes | None = None) -> None:
        self.size = settings.among(len(eligible))
        if not 0 <= seed < 2**63:
            raise BadInput(f"seed is {seed}: it is a whole number from 0 to below 2^63")
        self.settings = settings
        self.eligible = eligible
        self.seed = seed
        self._secret = secret

    @property
    def _order(self) -> Offsets:
        """Fixed order for cohort.sampling=turns: the same in every round."""
        n = len(self.eligible)
        if self._secret is not None:
            return np.argsort(KeyedSource(self._secret, rng.COHORT, 0).words(n), kind="stable")
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, rng.COHORT]))).permutation(n)

    def draw(self, round_number: int) -> Offsets:
        """The devices of a round, in increasing order."""
        s = self.settings
        chosen = self._chosen(round_number) if self._secret is None else self._secretly(self._secret, round_number)
        devices = self.eligible[chosen]
        if s.available < 1.0:
            devices = devices[self._chance(rng.AVAILABILITY, round_number, devices, s.available)]
        return devices

    def _chosen(self, round_number: int) -> Offsets:
        """Sample from the seed, at a cost that depends on the cohort alone."""
        n = len(self.eligible)
        if self.settings.sampling == "turns":
            return self._turn(round_number)
        key = np.random.SeedSequence([self.seed, rng.COHORT, round_number])
        generator = np.random.Generator(np.random.Philox(key))
        poisson = self.settings.sampling == "poisson"
        size = int(generator.binomial(n, self.size / n)) if poisson else self.size
        return np.sort(generator.choice(n, size, replace=False, shuffle=False))

    def _secretly(self, secret: bytes, round_number: int) -> Offsets:
        """Sample from the secret: one word per client of a keyed stream."""
        n = len(self.eligible)
        if self.settings.sampling == "turns":
            return self._turn(round_number)
        source = KeyedSource(secret, rng.COHORT, round_number)
        if self.size == n:
            return np.arange(n)
        if self.settings.sampling == "poisson":
            return np.flatnonzero(happens(self.size / n, (n,), source))
        return np.flatnonzero(fixed_cohorts(1, n, self.size, source)[0])

    def _turn(self, round_number: int) -> Offsets:
        """Next clients of the fixed order, which repeats."""
        n = len(self.eligible)
        return np.sort(self._order[(round_number * self.size + np.arange(self.size)) % n])

    def arrives(self, round_number: int, devices: Offsets) -> Bools:
        """Which of the devices' messages reach the server."""
        if self.settings.drop_out == 0.0:
            return np.ones(len(devices), np.bool_)
        return ~self._chance(rng.DROP_OUT, round_number, devices, self.settings.drop_out)

    def _chance(self, purpose: int, round_number: int, devices: Offsets, chance: float) -> Bools:
        return rng.uniforms(self.seed, purpose, round_number, devices)[:, 0] < chance
