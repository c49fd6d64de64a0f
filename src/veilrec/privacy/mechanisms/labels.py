"""Which candidate was clicked: PrivateRec's label permutation as published, and the order that makes it
private.

An impression shows C items, one of them clicked; training uses the label and k further candidates. As
published (DPL, Algorithm 3, lines 16 to 18) the candidates are drawn around the click, which is therefore
always among them: whoever sees the candidates can rule the other items out, at any epsilon. Response first,
negatives second, is epsilon-private and as accurate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from veilrec._arrays import Doubles, Offsets
from veilrec.errors import BadInput
from veilrec.privacy.checks import categories, positive, whole
from veilrec.privacy.events import Event, NonPrivateEvent, PureEvent
from veilrec.privacy.mechanism import Calibration, Sensitivity
from veilrec.privacy.mechanisms._accounted import Accounted
from veilrec.privacy.mechanisms.bits import happens
from veilrec.privacy.mechanisms.categories import KaryResponse
from veilrec.privacy.randomness import Source


@dataclass(frozen=True)
class Labelled:
    """What the gradient of one training example reveals."""

    candidates: Offsets  # [..., k + 1], ascending
    label: Offsets  # [...], one of them


def label_only_epsilon(epsilon: float, *, items: int, negatives: int) -> float:
    """DPL's epsilon if only the label were seen, not the candidates: max(epsilon, log((C - 1) / k))."""
    return max(epsilon, math.log((items - 1) / negatives))


def forward_corrected(probabilities: Doubles, *, keep_probability: float, other_probability: float) -> Doubles:
    """Probabilities of the label as told, from the model's for the click: (p - q) * softmax + q."""
    return (keep_probability - other_probability) * probabilities + other_probability


def _others(around: Offsets, items: int, count: int, source: Source) -> Offsets:
    """`count` distinct items other than the given one, uniformly, for each of `[n]` items."""
    order = source.words(around.size * items).reshape(around.size, items).copy()
    order[np.arange(around.size), around] = np.uint64(2**64 - 1)
    return np.argpartition(order, count - 1, axis=1)[:, :count]


def _check_sizes(items: int, negatives: int) -> None:
    whole(items=items, negatives=negatives)
    if negatives >= items:
        raise BadInput(f"negatives is {negatives}: an impression of {items} items has at most {items - 1}")


class LabelPermutation(Accounted[Offsets, Labelled]):
    """DPL: the click and k other items, and one of these k + 1 as label, the click with weight e^beta."""

    name = "label-permutation"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("as-published",)

    def __init__(self, *, items: int, negatives: int, epsilon: float) -> None:
        self._set_calibration("as-published")
        positive(epsilon=epsilon)
        _check_sizes(items, negatives)
        self.unit, self.adjacency = "click", "replace-one"
        self.sensitivity = Sensitivity(1.0, "changed entries")
        self.items, self.negatives = items, negatives
        self.claimed_epsilon, self.claimed_delta = epsilon, 0.0
        self.beta = max(0.0, epsilon + math.log(negatives / (items - 1)))

    def _perturb(self, value: ArrayLike, source: Source) -> Labelled:
        """Candidates and a label per click `[...]`; one event each."""
        clicks = categories(self.items, click=value)
        flat = clicks.reshape(-1)
        others = _others(flat, self.items, self.negatives, source)
        lies = happens(self.negatives / (self.negatives + math.exp(self.beta)), flat.shape, source)
        at = (source.words(flat.size) % np.uint64(self.negatives)).astype(np.int64)
        label = np.where(lies, others[np.arange(flat.size), at], flat)
        candidates = np.sort(np.concatenate((flat[:, np.newaxis], others), axis=1), axis=1)
        shape = clicks.shape
        return Labelled(candidates.reshape(*shape, -1), label.reshape(shape))

    def event(self) -> Event:
        """In the clear, unless every item of the impression is a candidate."""
        return PureEvent(self.claimed_epsilon) if self.negatives == self.items - 1 else NonPrivateEvent()

    def delta(self, epsilon: float) -> float:
        """Exact (section 3 of the notes): candidates without the other click give it away."""
        seen = self.negatives / (self.items - 1)
        weight = math.exp(self.beta)
        excess = weight - math.exp(epsilon)
        return 1.0 - seen + seen * max(excess if excess > 1e-14 * weight else 0.0, 0.0) / (self.negatives + weight)

    def worst_pair(self) -> tuple[Offsets, Offsets]:
        """Any two clicks."""
        return np.array(0), np.array(1)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """The mean impression of MIND, with the paper's four negatives."""
        return (cls(items=37, negatives=4, epsilon=1.0),)


class LabelResponse(Accounted[Offsets, Labelled]):
    """Response first: the label by k-ary response over all C items, then k other items uniformly around it.

    An impression with several clicks is answered once per click, and other clicks are not left out of the
    negatives.
    """

    name = "label-response"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)

    def __init__(self, *, items: int, negatives: int, epsilon: float) -> None:
        self._set_calibration("proven")
        _check_sizes(items, negatives)
        self.response = KaryResponse(categories=items, epsilon=epsilon, unit="click")
        self.unit, self.adjacency = self.response.unit, self.response.adjacency
        self.sensitivity = self.response.sensitivity
        self.items, self.negatives = items, negatives
        self.claimed_epsilon, self.claimed_delta = epsilon, 0.0

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
        return self.response.worst_pair()

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """The same impression as for the label permutation."""
        return (cls(items=37, negatives=4, epsilon=1.0),)
