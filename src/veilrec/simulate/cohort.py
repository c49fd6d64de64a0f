"""Who takes part in a round: drawn from the population, at a cost that depends on the cohort alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from veilrec import _draws
from veilrec._arrays import Bools, Offsets
from veilrec.errors import BadInput


@dataclass(frozen=True)
class CohortSettings:
    """How many devices a round has, and which of them stay."""

    size: int = 100  # devices in a round, the expected number under Poisson sampling; 0: everybody
    sampling: Literal["fixed", "poisson"] = "fixed"  # exactly `size` without replacement, or each on its own
    available: float = 1.0  # chance that a device can be reached in a round
    drop_out: float = 0.0  # chance that a device learns but its message never arrives

    def among(self, population: int) -> int:
        """The size in a population of so many devices that have data; one that cannot be drawn is refused."""
        if population == 0:
            raise BadInput("no device has anything to learn from: every user's training part is empty")
        if not 0 <= self.size <= population:
            raise BadInput(
                f"cohort.size is {self.size}, but {population} devices have something to learn from: "
                f"choose a size from 1 to {population}, for example --set cohort.size={min(100, population)}, "
                "or 0 for everybody"
            )
        return self.size or population


class CohortSampler:
    """Draws the devices of each round, keyed by (seed, round)."""

    def __init__(self, settings: CohortSettings, eligible: Offsets, seed: int) -> None:
        self.size = settings.among(len(eligible))
        for name in ("available", "drop_out"):
            value = getattr(settings, name)
            if not 0.0 <= value <= 1.0:
                raise BadInput(f"cohort.{name} is {value}: it is a chance, from 0 to 1")
        if not 0 <= seed < 2**63:
            raise BadInput(f"seed is {seed}: it is a whole number from 0 to below 2^63")
        self.settings = settings
        self.eligible = eligible
        self.seed = seed

    def draw(self, round_number: int) -> Offsets:
        """The devices of a round, in increasing order."""
        s, n = self.settings, len(self.eligible)
        key = np.random.SeedSequence([self.seed, _draws.COHORT, round_number])
        generator = np.random.Generator(np.random.Philox(key))
        size = int(generator.binomial(n, self.size / n)) if s.sampling == "poisson" else self.size
        devices = self.eligible[np.sort(generator.choice(n, size, replace=False, shuffle=False))]
        if s.available < 1.0:
            devices = devices[self._chance(_draws.AVAILABILITY, round_number, devices, s.available)]
        return devices

    def arrives(self, round_number: int, devices: Offsets) -> Bools:
        """Which of the devices' messages reach the server."""
        if self.settings.drop_out == 0.0:
            return np.ones(len(devices), np.bool_)
        return ~self._chance(_draws.DROP_OUT, round_number, devices, self.settings.drop_out)

    def _chance(self, purpose: int, round_number: int, devices: Offsets, chance: float) -> Bools:
        return _draws.uniforms(self.seed, purpose, round_number, devices)[:, 0] < chance
