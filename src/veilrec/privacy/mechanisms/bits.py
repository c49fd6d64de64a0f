"""Randomised response on bit vectors, symmetric (DP-SUB) or optimised, and what a server learns of it."""

from __future__ import annotations

import itertools
import math
from typing import ClassVar, Literal, Self

import numpy as np

from veilrec._arrays import Bools, Doubles
from veilrec.errors import unknown_name
from veilrec.privacy.checks import bits, positive, whole
from veilrec.privacy.events import Event, PureEvent, repeated
from veilrec.privacy.guarantee import Adjacency, Unit
from veilrec.privacy.mechanism import Calibration, Sensitivity
from veilrec.privacy.mechanisms._accounted import Accounted
from veilrec.privacy.randomness import Source
from veilrec.privacy.sensitivity import BitChange, changed_bits

# The probability of a lie is raised by this, so that float arithmetic never leaves it below the exact value.
SAFE = 1.0 + 2.0**-50
_UNITS: dict[BitChange, tuple[Unit, Adjacency]] = {
    "one bit": ("click", "add-remove"),
    "swap": ("click", "replace-one"),
    "set": ("history", "replace-one"),
    "vector": ("user", "replace-one"),
}


def happens(probability: float, shape: tuple[int, ...], source: Source) -> Bools:
    """Independent coins that show True with `probability`, rounded up to the next multiple of 2^-64."""
    threshold = min(math.ceil(probability * 2.0**64), 2**64 - 1)
    return (source.words(math.prod(shape)) < np.uint64(threshold)).reshape(shape)


def flip_probability(epsilon_per_bit: float) -> float:
    """1 / (1 + e^epsilon)."""
    return math.exp(-epsilon_per_bit) / (1.0 + math.exp(-epsilon_per_bit))


class RandomisedResponse(Accounted[Bools, Bools]):
    """Every bit is told truthfully with probability e^e1 / (1 + e^e1), and turned round otherwise.

    Proven: e1 = epsilon / (number of bits that may differ). As published (DP-SUB): e1 = epsilon, said to hold
    for any two vectors.
    """

    name = "randomised-response"

    def __init__(
        self, *, length: int, epsilon: float, change: BitChange, items: int = 1, calibration: Calibration = "proven"
    ) -> None:
        self._set_calibration(calibration)
        positive(epsilon=epsilon)
        self.changed = changed_bits(change, length=length, items=items)
        self.length = length
        self.unit, self.adjacency = _UNITS[change]
        self.sensitivity = Sensitivity(float(self.changed), "changed entries")
        self.claimed_epsilon, self.claimed_delta = epsilon, 0.0
        self.epsilon_per_bit = epsilon / self.changed if calibration == "proven" else epsilon
        self.flip_probability = flip_probability(self.epsilon_per_bit)

    @property
    def keep_probability(self) -> float:
        """The chance that a bit is told as it is."""
        return 1.0 - self.flip_probability

    def _perturb(self, value: Bools, source: Source) -> Bools:
        """The vectors `[..., length]` with some bits turned round; one event per vector."""
        checked = bits(self.length, value=value)
        return checked ^ happens(SAFE * self.flip_probability, checked.shape, source)

    def event(self) -> Event:
        """One randomised response per bit that may differ."""
        one = PureEvent(self.epsilon_per_bit)
        return one if self.changed == 1 else repeated(one, self.changed)

    def worst_pair(self) -> tuple[Bools, Bools]:
        """As many different bits as allowed; for a swap and for sets, disjoint sets of one size."""
        first, second = np.zeros(self.length, np.bool_), np.zeros(self.length, np.bool_)
        half = self.changed // 2
        first[:half] = True
        second[half : self.changed] = True
        return first, second

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """One per kind of change, and the published claim about any two vectors."""
        return (
            cls(length=40, epsilon=1.0, change="one bit"),
            cls(length=40, epsilon=2.0, change="swap"),
            cls(length=40, epsilon=4.0, change="set", items=2),
            cls(length=40, epsilon=1.0, change="vector", calibration="as-published"),
        )


class UnaryEncoding(Accounted[Bools, Bools]):
    """Optimised unary encoding (OUE): a 1 is told with probability 1/2, a 0 becomes 1 with probability q.

    q = 1 / (e^epsilon + 1) when one item is swapped for another, e^-epsilon / 2 when one bit differs.
    """

    name = "unary-encoding"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)

    def __init__(self, *, length: int, epsilon: float, change: Literal["one bit", "swap"] = "swap") -> None:
        self._set_calibration("proven")
        positive(epsilon=epsilon)
        if change not in ("one bit", "swap"):
            raise unknown_name("change of bits", change, ("one bit", "swap"))
        self.changed = changed_bits(change, length=length)
        self.length = length
        self.unit, self.adjacency = _UNITS[change]
        self.sensitivity = Sensitivity(float(self.changed), "changed entries")
        self.claimed_epsilon, self.claimed_delta = epsilon, 0.0
        self.keep_probability = 0.5
        self.noise_probability = flip_probability(epsilon) if change == "swap" else 0.5 * math.exp(-epsilon)

    def _perturb(self, value: Bools, source: Source) -> Bools:
        """The vectors `[..., length]` as told; one event per vector."""
        checked = bits(self.length, value=value)
        kept = happens(self.keep_probability, checked.shape, source)
        made_up = happens(SAFE * self.noise_probability, checked.shape, source)
        return np.where(checked, kept, made_up)

    def event(self) -> PureEvent:
        """Pure at the calibrated epsilon."""
        return PureEvent(self.claimed_epsilon)

    def delta(self, epsilon: float) -> float:
        """Exact, over the outcomes of the bits that differ."""
        return max(self._delta(epsilon, down=False), self._delta(epsilon, down=True))

    def _delta(self, epsilon: float, *, down: bool) -> float:
        one, zero = self.keep_probability, self.noise_probability
        ones = [(one, zero)] if self.changed == 1 else [(one, zero), (zero, one)]
        total = 0.0
        for outcome in itertools.product((True, False), repeat=len(ones)):
            first = math.prod(p if told else 1.0 - p for (p, _), told in zip(ones, outcome, strict=True))
            second = math.prod(p if told else 1.0 - p for (_, p), told in zip(ones, outcome, strict=True))
            first, second = (second, first) if down else (first, second)
            # Exactly at the limit the difference is a rounding error, not a leak.
            excess = first - math.exp(epsilon) * second
            total += excess if excess > 1e-14 * first else 0.0
        return total

    def worst_pair(self) -> tuple[Bools, Bools]:
        """One item, and another one (or none)."""
        first, second = np.zeros(self.length, np.bool_), np.zeros(self.length, np.bool_)
        first[0] = True
        if self.changed == 2:
            second[1] = True
        return first, second

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """For both kinds of change."""
        return (cls(length=10, epsilon=2.0, change="swap"), cls(length=10, epsilon=1.0, change="one bit"))


def estimate_frequency(counts: Doubles, reports: int, *, keep_probability: float, noise_probability: float) -> Doubles:
    """Frequencies behind noisy counts: (c/n - q) / (p - q), kept within [0, 1] (eq. 8 of Priv-FedMF-Sub, with
    q = 1 - p).

    Without the cut it is unbiased; with it, it maximises the likelihood.
    """
    whole(reports=reports)
    raw = (np.asarray(counts, np.float64) / reports - noise_probability) / (keep_probability - noise_probability)
    return np.clip(raw, 0.0, 1.0)


def frequency_variance(*, keep_probability: float, noise_probability: float) -> float:
    """Variance of a rare item's estimated frequency, times the number of reports: q (1 - q) / (p - q)^2."""
    gap = keep_probability - noise_probability
    return noise_probability * (1.0 - noise_probability) / gap**2
