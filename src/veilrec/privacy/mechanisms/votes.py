"""Votes: everybody's items, so that nobody's count for more than one vote; what is popular, before the first round.

A device tells its items as bits, and the trusted server adds 1 / sqrt(n) for each of its n items. All votes of one
person then have L2 norm 1 at most, and move the sums by 1 when the person is added or removed. Nobody's votes are
negative, so that two people's are at an angle of 90 degrees at most: replacing one moves the sums by sqrt(2).

Votes are whole numbers of 2^-24, rounded down: their sum is the same in whichever order they come, it has no rounding
of its own for up to 2^29 people, and the norm of a person's votes is at most 1 exactly.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np

from veilrec._arrays import Bools, Doubles, Offsets
from veilrec._csr import Csr, without_repeats
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.checks import bits, positive, probability, whole
from veilrec.privacy.events import Event, GaussianEvent, NonPrivateEvent
from veilrec.privacy.guarantee import Adjacency
from veilrec.privacy.mechanisms.base import Calibration, Released, Sensitivity, require_complete
from veilrec.privacy.mechanisms.noise import lattice_delta, lattice_sigma
from veilrec.privacy.mechanisms.reports import ItemReports
from veilrec.privacy.randomness import FastSource, Source
from veilrec.privacy.samplers import UNITS, add_gaussian

_WHOLE_VOTE = 2**24


@lru_cache(maxsize=8)
def vote_sizes(most: int) -> Offsets:
    """What each item counts, in steps, of somebody with 0 to `most` of them: all n together at most one vote."""
    sizes = np.array([0, *(math.isqrt(_WHOLE_VOTE**2 // n) for n in range(1, most + 1))], np.int64)
    sizes.flags.writeable = False
    return sizes


class VoteReports(ItemReports):
    """One vote for each person, shared among the items of the person; Gaussian noise on the sums."""

    name = "vote-reports"
    scope, trust = "whole run", "server"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)
    keep_probability = 1.0
    step = 1.0 / _WHOLE_VOTE
    largest = _WHOLE_VOTE  # of somebody with one item

    def __init__(self, *, length: int, epsilon: float, delta: float, adjacency: Adjacency) -> None:
        self._set_calibration("proven")
        whole(length=length)
        positive(epsilon=epsilon)
        probability(delta=delta)
        self.length = length
        self.unit, self.adjacency = "user", adjacency
        self.sensitivity = Sensitivity(1.0 if adjacency == "add-remove" else math.sqrt(2.0), "L2")
        self.claimed_epsilon, self.claimed_delta = epsilon, delta
        self.sigma = lattice_sigma(epsilon, delta, self.sensitivity.value, length)
        self._event = GaussianEvent(mu_for(epsilon, delta))  # every report of a simulation asks for it

    def report(self, own: Bools, source: Source) -> Released[Bools]:
        """A device's items, all of them."""
        require_complete(self)
        return Released(bits(self.length, own=own), self.event())

    def weigh(self, told: Bools) -> Offsets:
        """1 / sqrt(n) for each of n items, in steps."""
        size = vote_sizes(self.length)[told.sum(axis=-1)]
        return np.asarray(told * size[..., np.newaxis])

    def count(self, data: Csr, devices: Offsets, *, seed: int, period: int) -> Offsets:
        """Sums of votes; nothing is drawn."""
        once = without_repeats(data, self.length)
        counts = np.zeros(self.length, np.int64)
        lengths = once.lengths()
        np.add.at(counts, once.items, np.repeat(vote_sizes(self.length)[lengths], lengths))
        return counts

    def protect(self, counts: Offsets, source: Source) -> Doubles:
        """Votes, with noise on every sum."""
        votes = counts.astype(np.float64) * self.step
        if isinstance(source, FastSource):
            return np.asarray(votes + self.sigma * source.generator().normal(0.0, 1.0, counts.shape))
        return add_gaussian(votes, sigma=self.sigma, source=source)

    def _perturb(self, value: Bools, source: Source) -> Doubles:  # type: ignore[override]
        """The noisy votes of people `[n, length]`."""
        return self.protect(self._votes_of(value), source)

    def _perturb_many(self, value: Bools, count: int, source: Source) -> Doubles:  # type: ignore[override]
        """Many releases over the same people: only the noise differs."""
        return self.protect(np.tile(self._votes_of(value), (count, 1)), source)

    def _votes_of(self, people: Bools) -> Offsets:
        told = bits(self.length, value=people).reshape(-1, self.length)
        return np.asarray(self.weigh(told).sum(axis=0))

    def event(self) -> Event:
        """Gaussian, the lattice included."""
        return self._event

    def delta(self, epsilon: float) -> float:
        """The exact profile, with the sampler's errors."""
        moved = self.sensitivity.value + math.sqrt(self.length) * self.sigma / UNITS
        return lattice_delta(GaussianEvent(moved / self.sigma), epsilon, self.length)

    def worst_pair(self) -> tuple[Bools, Bools]:
        """One person with a single item, and another with another one (or nobody)."""
        first, second = np.zeros((1, self.length), np.bool_), np.zeros((1, self.length), np.bool_)
        first[0, 0] = True
        second[0, -1] = self.adjacency == "replace-one"
        return first, second

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Six items, in both adjacencies."""
        return (
            cls(length=6, epsilon=1.0, delta=1e-6, adjacency="add-remove"),
            cls(length=6, epsilon=1.0, delta=1e-6, adjacency="replace-one"),
        )


class VotesInTheClear(VoteReports):
    """The same votes without noise: for methods whose guarantee says that their messages are not private."""

    name = "votes-in-the-clear"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("as-published",)

    def __init__(self, *, length: int) -> None:
        self._set_calibration("as-published")
        whole(length=length)
        self.length = length
        self.unit, self.adjacency = "user", "replace-one"
        self.sensitivity = Sensitivity(math.sqrt(2.0), "L2")
        self.claimed_epsilon, self.claimed_delta = math.inf, 1.0
        self.sigma = 0.0

    def protect(self, counts: Offsets, source: Source) -> Doubles:
        """The votes as they are."""
        return counts.astype(np.float64) * self.step

    def event(self) -> Event:
        """No epsilon is finite."""
        return NonPrivateEvent()

    def delta(self, epsilon: float) -> float:
        """Nothing is hidden at any epsilon."""
        return 1.0

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Nothing is claimed, so there is nothing to audit."""
        return ()
