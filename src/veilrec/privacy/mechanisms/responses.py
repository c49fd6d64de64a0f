"""Answers that are a lie with a known probability: about bits, about a category, about which candidate was clicked.

Bits: randomised response (DP-SUB), and what a server learns of it. Categories: k-ary response.

Labels: an impression shows C items, one of them clicked; training uses the label and k further candidates. As published
(PrivateRec's DPL, Algorithm 3, lines 16 to 18) the candidates are drawn around the click, which is therefore always
among them: whoever sees the candidates can rule the other items out, at any epsilon. Response first, negatives second,
is epsilon-private and as accurate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from veilrec.core.arrays import Bools, Doubles, Offsets
from veilrec.core.errors import BadInput
from veilrec.privacy.checks import BitChange, bits, categories, changed_bits, positive, whole
from veilrec.privacy.events import Event, NonPrivateEvent, PureEvent, repeated
from veilrec.privacy.guarantee import Adjacency, Unit
from veilrec.privacy.mechanisms.base import Calibration, Mechanism, Sensitivity, take_terms
from veilrec.privacy.randomness import Source

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


class RandomisedResponse(Mechanism[Bools, Bools]):
    """Every bit is told truthfully with probability e^e1 / (1 + e^e1), and turned round otherwise.

    Proven: e1 = epsilon / (number of bits that may differ). As published (DP-SUB): e1 = epsilon, said to hold
    for any two vectors.
    """

    name = "randomised-response"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven", "as-published")

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


def estimate_frequency(
    counts: Doubles, reports: int, *, keep_probability: float, noise_probability: float, cut: bool = True
) -> Doubles:
    """Frequencies behind noisy counts: (c/n - q) / (p - q), kept within [0, 1] by the cut (eq. 8 of Priv-FedMF-Sub,
    with q = 1 - p).

    Without the cut it is unbiased; with it, it maximises the likelihood.
    """
    whole(reports=reports)
    raw = (np.asarray(counts, np.float64) / reports - noise_probability) / (keep_probability - noise_probability)
    return np.clip(raw, 0.0, 1.0) if cut else raw


class KaryResponse(Mechanism[Offsets, Offsets]):
    """The true category with probability e^eps / (e^eps + C - 1), each other one with 1 / (e^eps + C - 1)."""

    name = "k-ary-response"

    def __init__(self, *, categories: int, epsilon: float, unit: Unit) -> None:
        positive(epsilon=epsilon)
        whole(categories=categories)
        if categories < 2:
            raise BadInput("categories is 1: with one category there is nothing to hide; give at least 2")
        self.unit, self.adjacency = unit, "replace-one"
        self.sensitivity = Sensitivity(1.0, "changed entries")
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
        # The true category is e^claimed times as likely as another one: no power of e that could overflow is left.
        return -self.keep_probability * math.expm1(min(epsilon - self.claimed_epsilon, 0.0))

    def worst_pair(self) -> tuple[Offsets, Offsets]:
        """Any two categories."""
        return np.array(0), np.array(1)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Five interests at epsilon 1, of a whole history."""
        return (cls(categories=5, epsilon=1.0, unit="history"),)


@dataclass(frozen=True)
class Labelled:
    """What the gradient of one training example reveals."""

    candidates: Offsets  # [..., k + 1], ascending
    label: Offsets  # [...], one of them


def label_only_epsilon(epsilon: float, *, items: int, negatives: int) -> float:
    """DPL's epsilon if only the label were seen, not the candidates: max(epsilon, log((C - 1) / k))."""
    return max(epsilon, math.log((items - 1) / negatives))


def _others(around: Offsets, items: int, count: int, source: Source) -> Offsets:
    """`count` distinct items other than the given one, uniformly, for each of `[n]` items."""
    order = source.words(around.size * items).reshape(around.size, items).copy()
    order[np.arange(around.size), around] = np.uint64(2**64 - 1)
    return np.argpartition(order, count - 1, axis=1)[:, :count]


def _check_sizes(items: int, negatives: int) -> None:
    whole(items=items, negatives=negatives)
    if negatives >= items:
        raise BadInput(f"negatives is {negatives}: an impression of {items} items has at most {items - 1}")


class LabelPermutation(Mechanism[Offsets, Labelled]):
    """DPL: the click and k other items, and one of these k + 1 as label, the click with weight e^beta."""

    name = "label-permutation"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("as-published",)
    calibration: Calibration = "as-published"

    def __init__(self, *, items: int, negatives: int, epsilon: float) -> None:
        positive(epsilon=epsilon)
        _check_sizes(items, negatives)
        self.unit, self.adjacency = "click", "replace-one"
        self.sensitivity = Sensitivity(1.0, "changed entries")
        self.items, self.negatives = items, negatives
        self.claimed_epsilon, self.claimed_delta = epsilon, 0.0
        self.beta = max(0.0, epsilon + math.log(negatives / (items - 1)))
        odds = negatives * math.exp(-self.beta)  # of another label; e^beta itself may overflow
        self._lie = odds / (1.0 + odds)

    def _perturb(self, value: ArrayLike, source: Source) -> Labelled:
        """Candidates and a label per click `[...]`; one event each."""
        clicks = categories(self.items, click=value)
        flat = clicks.reshape(-1)
        others = _others(flat, self.items, self.negatives, source)
        lies = happens(self._lie, flat.shape, source)
        at = (source.words(flat.size) % np.uint64(self.negatives)).astype(np.int64)
        label = np.where(lies, others[np.arange(flat.size), at], flat)
        candidates = np.sort(np.concatenate((flat[:, np.newaxis], others), axis=1), axis=1)
        shape = clicks.shape
        return Labelled(candidates.reshape(*shape, -1), label.reshape(shape))

    def event(self) -> Event:
        """In the clear, unless every item of the impression is a candidate."""
        return PureEvent(self.claimed_epsilon) if self.negatives == self.items - 1 else NonPrivateEvent()

    def delta(self, epsilon: float) -> float:
        """Exact, over the enumerated outcomes: candidates without the other click give it away."""
        seen = self.negatives / (self.items - 1)
        return 1.0 - seen - seen * (1.0 - self._lie) * math.expm1(min(epsilon - self.beta, 0.0))

    def worst_pair(self) -> tuple[Offsets, Offsets]:
        """Any two clicks."""
        return np.array(0), np.array(1)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """The mean impression of MIND, with the paper's four negatives."""
        return (cls(items=37, negatives=4, epsilon=1.0),)


class LabelResponse(Mechanism[Offsets, Labelled]):
    """Response first: the label by k-ary response over all C items, then k other items uniformly around it.

    An impression with several clicks is answered once per click, and other clicks are not left out of the
    negatives.
    """

    name = "label-response"

    def __init__(self, *, items: int, negatives: int, epsilon: float) -> None:
        _check_sizes(items, negatives)
        self.response = KaryResponse(categories=items, epsilon=epsilon, unit="click")
        take_terms(self, self.response)
        self.items, self.negatives = items, negatives

    def _perturb(self, value: ArrayLike, source: Source) -> Labelled:
        """Candidates and a label per click `[...]`; one event each."""
        label = self.response.release(categories(self.items, click=value), source).value
        flat = label.reshape(-1)
        others = _others(flat, self.items, self.negatives, source)
        candidates = np.sort(np.concatenate((flat[:, np.newaxis], others), axis=1), axis=1)
        return Labelled(candidates.reshape(*label.shape, -1), label)

    def event(self) -> PureEvent:
        """Pure: the candidates are drawn around the label, not around the click."""
        return self.response.event()

    def delta(self, epsilon: float) -> float:
        """Exact."""
        return self.response.delta(epsilon)

    def worst_pair(self) -> tuple[Offsets, Offsets]:
        """Any two clicks."""
        return np.array(0), np.array(1)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """The mean impression of MIND, with the paper's four negatives, as for the label permutation."""
        return (cls(items=37, negatives=4, epsilon=1.0),)


class LabelPerturbation:
    """One of the two ways to tell labels, for impressions of any length."""

    def __init__(self, way: type[LabelPermutation] | type[LabelResponse], *, negatives: int, epsilon: float) -> None:
        positive(epsilon=epsilon)
        whole(negatives=negatives)
        self._way, self.negatives, self.epsilon = way, negatives, epsilon

    def of(self, items: int) -> LabelPermutation | LabelResponse:
        """The mechanism of impressions of so many items; where there are too few, all others are candidates."""
        return self._way(items=items, negatives=min(self.negatives, items - 1), epsilon=self.epsilon)

    def release(self, clicks: Offsets, items: Offsets, source: Source) -> Offsets:
        """Places `[n, 1 + negatives]` in impressions of `items` `[n]`: the label as told, then the other candidates.

        -1 where an impression has too few; one event per click.
        """
        told = np.full((len(clicks), 1 + self.negatives), -1, np.int64)
        for length in np.unique(items):
            rows = np.flatnonzero(items == length)
            answer = self.of(int(length)).release(clicks[rows], source).value
            is_label = answer.candidates == answer.label[:, np.newaxis]
            order = np.argsort(~is_label, axis=1, kind="stable")
            told[rows, : answer.candidates.shape[1]] = np.take_along_axis(answer.candidates, order, axis=1)
        return told

    def event(self) -> Event:
        """Privacy event of one click, in an impression of any length."""
        return self.of(2 + self.negatives).event()
