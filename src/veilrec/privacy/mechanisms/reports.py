"""Reports on which items a device has: one bit per item, and at most some items of each device in a noisy histogram.

DP-SUB (Priv-FedMF-Sub, Algorithm 1) asks for randomised bits, which trust nobody and cover a click. A histogram trusts
the server with the bits, covers a user, and needs 300 times less noise.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Self

import numpy as np

from veilrec import _draws
from veilrec._arrays import Bools, Doubles, Indices, Offsets
from veilrec._csr import Csr
from veilrec._jit import jit
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.checks import bits, positive, probability, whole
from veilrec.privacy.events import Event, GaussianEvent
from veilrec.privacy.guarantee import Adjacency
from veilrec.privacy.mechanisms.base import Calibration, Mechanism, Released, Sensitivity, require_complete
from veilrec.privacy.mechanisms.bounding import BadUpdate
from veilrec.privacy.mechanisms.noise import lattice_delta, lattice_sigma
from veilrec.privacy.mechanisms.responses import RandomisedResponse
from veilrec.privacy.randomness import FastSource, Source
from veilrec.privacy.samplers import add_gaussian

SourceOf = Callable[[int], Source]
"""The source of a device's own randomness, by its number."""


class ItemReports(Mechanism[Bools, Bools]):
    """How devices tell which items they have: what one sends, and what is done to the counts."""

    length: int  # items
    keep_probability: float  # that a bit was told as it is
    step: float = 1.0  # of the whole numbers that are added up
    largest: int = 1  # of the whole numbers that a report adds; none of them is below 0

    @property
    def under_masks(self) -> bool:
        """Whether secure sums hide such reports; those that trust nobody may be seen one by one, and are."""
        return self.trust != "nobody"

    @abstractmethod
    def report(self, own: Bools, source: Source) -> Released[Bools]:
        """What leaves a device, and what it costs."""

    @abstractmethod
    def count(self, data: Csr, devices: Offsets, *, seed: int, period: int) -> Offsets:
        """How many simulated devices report each item; a device's report depends on (seed, period) alone."""

    def check(self, told: Bools) -> None:
        """Refuse a report that no device within its bounds can have sent."""

    def weigh(self, told: Bools) -> Offsets:
        """What a report adds to the counts, in steps: one for every item that it names."""
        return told.astype(np.int64)

    def protect(self, counts: Offsets, source: Source) -> Doubles:
        """The counts as they may be used."""
        return counts.astype(np.float64)

    def count_each(self, data: Csr, devices: Offsets, source_of: SourceOf) -> Offsets:
        """The same counts from reports that every device makes for itself."""
        counts = np.zeros(self.length, np.int64)
        for row, device in enumerate(devices.tolist()):
            own = np.zeros(self.length, np.bool_)
            own[data.row(row)] = True
            counts += self.weigh(self.report(own, source_of(device)).value)
        return counts


class RandomisedReports(ItemReports):
    """Randomised bits (eq. 7): noise on the device."""

    name = "randomised-reports"

    def __init__(self, response: RandomisedResponse) -> None:
        self._set_calibration(response.calibration)
        self.response = response
        self.length = response.length
        self.keep_probability = response.keep_probability
        self.unit, self.adjacency = response.unit, response.adjacency
        self.sensitivity = response.sensitivity
        self.claimed_epsilon, self.claimed_delta = response.claimed_epsilon, response.claimed_delta

    def report(self, own: Bools, source: Source) -> Released[Bools]:
        """The bits, some of them turned round."""
        return self.response.release(own, source)

    def count(self, data: Csr, devices: Offsets, *, seed: int, period: int) -> Offsets:
        """Counts of randomised bits, none of which is formed."""
        counts = np.zeros(self.length, np.int64)
        flips_below = np.uint64(min(int((1.0 - self.keep_probability) * 2.0**64), 2**64 - 1))
        _count_randomised(data.offsets, data.items, devices, flips_below, seed, period, counts)
        return counts

    def _perturb(self, value: Bools, source: Source) -> Bools:
        return self.response.release(value, source).value

    def event(self) -> Event:
        """That of the bits."""
        return self.response.event()

    def worst_pair(self) -> tuple[Bools, Bools]:
        """That of the bits."""
        return self.response.worst_pair()

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Randomised response is audited by itself."""
        return ()


class ItemHistogram(ItemReports):
    """One histogram over everybody: at most `most_items` of each device, Gaussian noise on the counts.

    A user moves the counts by sqrt(most_items) when added or removed, by sqrt(2 most_items) when replaced.
    """

    name = "item-histogram"
    scope, trust = "whole run", "server"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)
    keep_probability = 1.0

    def __init__(self, *, length: int, most_items: int, epsilon: float, delta: float, adjacency: Adjacency) -> None:
        self._set_calibration("proven")
        whole(length=length, most_items=most_items)
        positive(epsilon=epsilon)
        probability(delta=delta)
        self.length, self.most_items = length, most_items
        self.unit, self.adjacency = "user", adjacency
        people = 1 if adjacency == "add-remove" else 2
        self.sensitivity = Sensitivity(math.sqrt(people * most_items), "L2")
        self.claimed_epsilon, self.claimed_delta = epsilon, delta
        self.sigma = lattice_sigma(epsilon, delta, self.sensitivity.value, length)
        self._event = GaussianEvent(mu_for(epsilon, delta))  # every report of a simulation asks for it

    def report(self, own: Bools, source: Source) -> Released[Bools]:
        """At most so many of a device's items, at random."""
        require_complete(self)
        items = np.flatnonzero(bits(self.length, own=own))
        told = np.zeros(self.length, np.bool_)
        if len(items) > self.most_items:
            items = items[np.argsort(source.words(len(items)))[: self.most_items]]
        told[items] = True
        return Released(told, self.event())

    def count(self, data: Csr, devices: Offsets, *, seed: int, period: int) -> Offsets:
        """Counts of such reports, none of which is formed."""
        counts = np.zeros(self.length, np.int64)
        _count_few(data.offsets, data.items, devices, self.most_items, seed, period, counts)
        return counts

    def check(self, told: Bools) -> None:
        """Refuse a report on more items than anybody may have in the histogram."""
        if int(told.sum()) > self.most_items:
            raise BadUpdate(f"a report names {int(told.sum())} items: this one takes at most {self.most_items}")

    def protect(self, counts: Offsets, source: Source) -> Doubles:
        """Noise on every count."""
        exact = counts.astype(np.float64)
        if isinstance(source, FastSource):
            return exact + self.sigma * source.generator().normal(0.0, 1.0, counts.shape)
        return add_gaussian(exact, sigma=self.sigma, source=source)

    def _perturb(self, value: Bools, source: Source) -> Doubles:  # type: ignore[override]
        """The noisy counts over people `[n, length]`."""
        people = bits(self.length, value=value).reshape(-1, self.length)
        counts = np.zeros(self.length, np.int64)
        for own in people:
            told = self.report(own, source).value
            self.check(told)
            counts += told
        return self.protect(counts, source)

    def _perturb_many(self, value: Bools, count: int, source: Source) -> Doubles:  # type: ignore[override]
        """Many histograms over the same people; where nobody's items have to be chosen, only the noise differs."""
        people = bits(self.length, value=value).reshape(-1, self.length)
        if (people.sum(axis=1) > self.most_items).any():
            return np.stack([self._perturb(people, source) for _ in range(count)])
        told = np.array([self.report(own, source).value for own in people])
        return self.protect(np.tile(told.sum(axis=0), (count, 1)), source)

    def event(self) -> GaussianEvent:
        """Gaussian, the lattice included."""
        return self._event

    def delta(self, epsilon: float) -> float:
        """The exact profile, with the sampler's errors."""
        moved = self.sensitivity.value + math.sqrt(self.length) * self.sigma / 2**20
        return lattice_delta(GaussianEvent(moved / self.sigma), epsilon, self.length)

    def worst_pair(self) -> tuple[Bools, Bools]:
        """One person with as many items as count, and another with as many others (or nobody)."""
        first, second = np.zeros((1, self.length), np.bool_), np.zeros((1, self.length), np.bool_)
        first[0, : self.most_items] = True
        if self.adjacency == "add-remove":
            return first, second
        second[0, -self.most_items :] = True
        return first, second

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Two of six items a person, in both adjacencies."""
        return (
            cls(length=6, most_items=2, epsilon=1.0, delta=1e-6, adjacency="add-remove"),
            cls(length=6, most_items=2, epsilon=1.0, delta=1e-6, adjacency="replace-one"),
        )


@jit
def _count_randomised(
    offsets: Offsets, items: Indices, devices: Offsets, flips_below: np.uint64, seed: int, period: int, counts: Offsets
) -> None:
    own = np.full(len(counts), -1, np.int64)
    for row in range(len(devices)):
        for entry in range(offsets[row], offsets[row + 1]):
            own[items[entry]] = row
        start = _draws.stream(seed, _draws.REPORT, period, devices[row])
        for item in range(len(counts)):
            turned = _draws.word(start, item) < flips_below
            counts[item] += (own[item] == row) != turned


@jit
def _count_few(
    offsets: Offsets, items: Indices, devices: Offsets, most: int, seed: int, period: int, counts: Offsets
) -> None:
    for row in range(len(devices)):
        own = items[offsets[row] : offsets[row + 1]].copy()
        start = _draws.stream(seed, _draws.REPORT, period, devices[row])
        for j in range(min(most, len(own))):
            pick = j + _draws.below(_draws.word(start, j), len(own) - j)
            own[j], own[pick] = own[pick], own[j]
            counts[own[j]] += 1
