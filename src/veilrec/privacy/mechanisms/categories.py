"""One category out of C: k-ary randomised response, and subset selection for small epsilon."""

from __future__ import annotations

import math
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from veilrec._arrays import Bools, Offsets
from veilrec.errors import BadInput
from veilrec.privacy.checks import categories, positive, whole
from veilrec.privacy.events import PureEvent
from veilrec.privacy.guarantee import Adjacency, Unit
from veilrec.privacy.mechanism import Calibration, Sensitivity
from veilrec.privacy.mechanisms._accounted import Accounted
from veilrec.privacy.mechanisms.bits import SAFE, happens
from veilrec.privacy.randomness import Source

_ONE_CHOICE = Sensitivity(1.0, "changed entries")


def _at_least_two(count: int) -> None:
    whole(categories=count)
    if count < 2:
        raise BadInput("categories is 1: with one category there is nothing to hide; give at least 2")


def _without_rounding(excess: float, scale: float) -> float:
    # Exactly at the limit the difference is a rounding error, not a leak.
    return excess if excess > 1e-14 * scale else 0.0


class KaryResponse(Accounted[Offsets, Offsets]):
    """The true category with probability e^eps / (e^eps + C - 1), each other one with 1 / (e^eps + C - 1)."""

    name = "k-ary-response"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)

    def __init__(self, *, categories: int, epsilon: float, unit: Unit, adjacency: Adjacency = "replace-one") -> None:
        self._set_calibration("proven")
        positive(epsilon=epsilon)
        _at_least_two(categories)
        self.unit, self.adjacency = unit, adjacency
        self.sensitivity = _ONE_CHOICE
        self.categories = categories
        self.claimed_epsilon, self.claimed_delta = epsilon, 0.0
        weight = math.exp(-epsilon)  # so that a large epsilon does not overflow
        self.keep_probability = 1.0 / (1.0 + (categories - 1) * weight)
        self.other_probability = weight / (1.0 + (categories - 1) * weight)

    def _perturb(self, value: ArrayLike, source: Source) -> Offsets:
        """A category per given category, `[...]`; one event each."""
        checked = categories(self.categories, value=value)
        others = self.categories - 1
        lies = happens(SAFE * others * self.other_probability, checked.shape, source)
        # A step of 1 to C - 1 leads to every other category equally often.
        steps = (source.words(checked.size) % np.uint64(others)).astype(np.int64).reshape(checked.shape) + 1
        return np.where(lies, (checked + steps) % self.categories, checked)

    def event(self) -> PureEvent:
        """Pure; for two categories exactly, for more as a bound."""
        return PureEvent(self.claimed_epsilon)

    def delta(self, epsilon: float) -> float:
        """Exact: only the first of the two categories is likelier than e^epsilon times."""
        excess = self.keep_probability - math.exp(epsilon) * self.other_probability
        return _without_rounding(excess, self.keep_probability)

    def worst_pair(self) -> tuple[Offsets, Offsets]:
        """Any two categories."""
        return np.array(0), np.array(1)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Five interests at epsilon 1, of a whole history."""
        return (cls(categories=5, epsilon=1.0, unit="history"),)


class SubsetSelection(Accounted[Offsets, Bools]):
    """A set of w categories, the true one in it with probability w e^eps / (w e^eps + C - w), as C bits."""

    name = "subset-selection"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)

    def __init__(self, *, categories: int, epsilon: float, unit: Unit, adjacency: Adjacency = "replace-one") -> None:
        self._set_calibration("proven")
        positive(epsilon=epsilon)
        _at_least_two(categories)
        self.unit, self.adjacency = unit, adjacency
        self.sensitivity = _ONE_CHOICE
        self.categories = categories
        self.claimed_epsilon, self.claimed_delta = epsilon, 0.0
        weight = math.exp(-epsilon)
        self.size = max(1, round(categories * weight / (1.0 + weight)))
        self.keep_probability = self.size / (self.size + (categories - self.size) * weight)
        self.other_probability = (self.size - self.keep_probability) / (categories - 1)
        self._leave_out = (categories - self.size) * weight / (self.size + (categories - self.size) * weight)

    def _perturb(self, value: ArrayLike, source: Source) -> Bools:
        """A set per given category; one event each."""
        checked = categories(self.categories, value=value)
        flat = checked.reshape(-1)
        left_out = happens(SAFE * self._leave_out, flat.shape, source)
        # Order all categories at random, the true one first or last, and take the first w.
        order = source.words(flat.size * self.categories).reshape(flat.size, self.categories).copy()
        order[np.arange(flat.size), flat] = np.where(left_out, np.uint64(2**64 - 1), np.uint64(0))
        chosen = np.argpartition(order, self.size - 1, axis=1)[:, : self.size]
        sets = np.zeros(order.shape, np.bool_)
        np.put_along_axis(sets, chosen, True, axis=1)
        return sets.reshape(*checked.shape, self.categories)

    def event(self) -> PureEvent:
        """Pure."""
        return PureEvent(self.claimed_epsilon)

    def delta(self, epsilon: float) -> float:
        """Exact: the sets with the first category but not the second are the likelier ones."""
        with_first = self.keep_probability * (self.categories - self.size) / (self.categories - 1)
        with_second = self._leave_out * self.size / (self.categories - 1)
        return _without_rounding(with_first - math.exp(epsilon) * with_second, with_first)

    def worst_pair(self) -> tuple[Offsets, Offsets]:
        """Any two categories."""
        return np.array(0), np.array(1)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Eight candidates at epsilon 1: sets of two."""
        return (cls(categories=8, epsilon=1.0, unit="click"),)
