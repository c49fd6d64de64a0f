"""How a device reads its own history for `veil`: in its order, at no cost to anybody's privacy.

Examples are made of the history alone: each of the latest items is a target, what came before it the context, and a few
items that the user never used stand beside it. A candidate is described by kernels to the context at several recency
scales, by how popular it is (also beside how popular the context was), and by the context's place in content space.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec import _draws
from veilrec._arrays import Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec._jit import jit
from veilrec.device.learner import narrow
from veilrec.models.veil_content import Content, decays_of, profiles
from veilrec.models.veil_places import Places

FEWEST_BEFORE = 4  # items before a target
_TRIES = 20  # to draw an item that was not used
_FURTHER_VOTES = 5.0  # in the second form of popularity: 2 ln(e^t + 5)
_OF_ITEM = 3  # popularity features that are of the item alone
PLACE_CLIP = 0.8  # of all places of a history together, where one along each direction is about 1
_IN_BASIS = 0.5  # how long a place beyond content is beside content


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What of a history is looked at, and how."""

    recency: tuple[float, ...] = (1.0, 3.0, 8.0, 25.0, 100.0)  # scales of kernels, in items
    taste_recency: tuple[float, ...] = (1.0, 5.0, 40.0)  # of the place in content space
    popularity_recency: tuple[float, ...] = (2.0, 8.0, 40.0)  # of how popular the context was
    place_recency: float = 8.0  # of the places that items are used at
    place_passes: int = 1  # 2: half of the directions are among content, half among what those said beyond content
    latest: int = 100  # items of a context that kernels look at
    targets: int = 40
    negatives: int = 5  # beside each target

    def popularity_features(self) -> int:
        """How many there are."""
        return _OF_ITEM + len(self.popularity_recency)

    def features(self, content: Content) -> int:
        """Of a candidate: popularity first, then kernels."""
        return self.popularity_features() + content.n_kernels * len(self.recency)

    def tastes(self, width: int) -> int:
        """Length of a context's place among items that are so wide, with a constant."""
        return 1 + len(self.taste_recency) * width


@dataclass(frozen=True)
class Told:
    """What was released, as devices read it."""

    popularity: Floats  # [items, 2]: t, and how much a vote moves it
    places: Places  # beyond content
    basis: Floats  # [items, D]: content, then places beyond it
    among: tuple[Floats, ...]  # [items, directions] for each pass: what items lay among, along directions all as long
    mark: bytes  # the same where all of it is the same

    @classmethod
    def of(cls, popularity: Floats, places: Places, content: Content, passes: int = 1) -> Told:
        """What follows from what was released."""
        basis = np.column_stack([content.basis, np.float32(_IN_BASIS) * places.values])
        directions = places.values.shape[1] // passes
        among = tuple(_all_as_long(table[:, :directions]) for table in (content.basis, places.values)[:passes])
        mark = hashlib.blake2b(popularity.tobytes(), digest_size=16)
        for known in (places.values, places.gains, places.expected):
            mark.update(known.tobytes())
        return cls(popularity, places, basis, among, mark.digest())


@dataclass(frozen=True)
class OwnHistory:
    """The items of each device in their order; what was worked out of a history once is remembered beside it."""

    rows: Csr
    remembered: dict[bytes, Remembered] = field(default_factory=dict, compare=False, repr=False)

    @property
    def kept(self) -> Mapping[str, NDArray[Any]]:
        """Nothing."""
        return {}

    def take(self, devices: Offsets) -> OwnHistory:
        """The histories of some devices."""
        return OwnHistory(self.rows.take(devices), self.remembered)

    def inside(self, place: Indices) -> OwnHistory:
        """The items inside a sub-model, by their numbers there."""
        return OwnHistory(narrow(self.rows, place))


@dataclass(frozen=True)
class Examples:
    """Targets of one history; whatever the model says, they stay the same."""

    history: Indices
    ends: Offsets  # [T]: the position of each target
    candidates: Indices  # [T, 1 + negatives]: the target, then items that were not used
    kernels: Floats  # [T, negatives, kernels * scales]: of each beside the target, the difference


@dataclass(frozen=True)
class Seen:
    """The same examples in the light of what was released."""

    popularity: Floats  # [T, negatives, features]: of each beside the target, the difference
    tastes: Floats  # [T, 1 + scales * D]
    beside: Floats  # [T, negatives, D]: rows of the basis, less that of the target as others see it


@dataclass
class Remembered:
    """What follows from one history, and from what was last told."""

    examples: Examples
    mark: bytes = b""
    seen: Seen | None = None


class Reader:
    """Makes examples of histories; each is worked out once, and remembered under all that it depends on."""

    def __init__(self, reading: Reading, content: Content, seed: int) -> None:
        self.reading, self.content, self.seed = reading, content, seed
        self._key = f"{seed} {reading}".encode()

    def examples_of_all(self, data: OwnHistory, devices: Offsets, told: Told) -> list[tuple[Examples, Seen]]:
        """The examples of each device, drawn by the seed and its number, and how it sees them."""
        return [self._examples(data, row, int(device), told) for row, device in enumerate(devices)]

    def _examples(self, data: OwnHistory, row: int, device: int, told: Told) -> tuple[Examples, Seen]:
        history = data.rows.row(row)
        key = hashlib.blake2b(b"%d %s" % (device, self._key) + history.tobytes(), digest_size=16).digest()
        known = data.remembered.get(key)
        if known is None:
            known = data.remembered[key] = Remembered(self.made(history, device))
        if known.seen is None or known.mark != told.mark:
            known.seen, known.mark = seen(self.reading, told, known.examples), told.mark
        return known.examples, known.seen

    def made(self, history: Indices, device: int) -> Examples:
        """The examples of a history that nobody remembers."""
        return _made(self.reading, self.content, history, device, self.seed)


def _made(reading: Reading, content: Content, history: Indices, device: int, seed: int) -> Examples:
    history = np.ascontiguousarray(history)
    last = len(history)
    ends = np.arange(last - 1, max(FEWEST_BEFORE, last - reading.targets) - 1, -1, dtype=np.int64)
    candidates = np.zeros((len(ends), 1 + reading.negatives), np.int32)
    _draw_unused(history, ends, content.n_items, np.uint64(_draws.stream(seed, _draws.LEARNING, 0, device)), candidates)
    described = content.features(history, ends, candidates, decays_of(reading.recency), reading.latest)
    return Examples(history, ends, candidates, described[:, 1:] - described[:, :1])


def seen(reading: Reading, told: Told, examples: Examples) -> Seen:
    """Of what was released a device takes its own part away where it looks at its own target."""
    return Seen(
        popular_examples(reading, told.popularity, examples),
        tastes(reading, told.basis, examples.history, examples.ends),
        told.basis[examples.candidates[:, 1:]] - _by_others(reading, told, examples)[:, np.newaxis],
    )


def tastes(reading: Reading, basis: Floats, history: Indices, ends: Offsets) -> Floats:
    """Where contexts lie among items, at every recency scale, after a constant: [T, 1 + scales * D]."""
    means = profiles(history, ends, basis, decays_of(reading.taste_recency))
    return np.column_stack([np.full(len(ends), 0.5, np.float32), means])


def places_of(reading: Reading, among: Floats, history: Indices) -> Floats:
    """Where each item of a history was used, among items that lie so: [n, directions]."""
    return profiles(history, np.arange(len(history)), among, decays_of((reading.place_recency,)))


def _all_as_long(table: Floats) -> Floats:
    """The same with columns of standard deviation 2; of which nothing is known stays 0."""
    return np.ascontiguousarray(table * (np.float32(2.0) / np.maximum(table.std(axis=0), np.float32(1e-6))))


def share_of_places(places: Floats) -> float:
    """What each place of a history [n, directions] counts, so that all together are as long as the clip at most."""
    mean_square = float(np.square(places, dtype=np.float64).sum()) / max(places.size, 1)
    return min(1.0, PLACE_CLIP / max(math.sqrt(mean_square), 1e-9)) / math.sqrt(max(len(places), 1))


def _by_others(reading: Reading, told: Told, examples: Examples) -> Floats:
    """Rows of the basis of the targets, without what the device itself added to the sums: [T, D]."""
    targets = examples.candidates[:, 0]
    rows = told.basis[targets]
    if told.places.values.shape[1] and len(rows):
        passes = [places_of(reading, among, examples.history) for among in told.among]
        shares = np.concatenate([np.full(places.shape[1], share_of_places(places), np.float32) for places in passes])
        own = shares * (np.column_stack(passes)[examples.ends] - told.places.expected[targets])
        rows[:, -own.shape[1] :] -= np.float32(_IN_BASIS) * told.places.gains[targets] * own
    return rows


def popular(reading: Reading, popularity: Floats, history: Indices, ends: Offsets, candidates: Indices) -> Floats:
    """The popularity features of candidates [T, C] before positions of a history: [T, C, features]."""
    known = _popularity_table(popularity)
    return _described(known[candidates], _context(reading, known, history, ends))


def popular_examples(reading: Reading, popularity: Floats, examples: Examples) -> Floats:
    """Of every item beside a target, less those of the target as the others see it: [T, negatives, features].

    The target's own vote is taken away from its popularity, as far as it moved it: the item beside it got none.
    """
    known = _popularity_table(popularity)
    context = _context(reading, known, examples.history, examples.ends)
    target = popularity[examples.candidates[:, :1]]  # [T, 1, 2]
    own_vote = np.float32(1.0 / np.sqrt(max(len(examples.history), 1)))
    by_others = _popularity_forms(target[..., 0] - own_vote * target[..., 1], popularity[:, 0].mean())
    return _described(known[examples.candidates[:, 1:]], context) - _described(by_others, context)


def _context(reading: Reading, known: Floats, history: Indices, ends: Offsets) -> Floats:
    """How popular the items before positions were, at every recency scale: [T, scales]."""
    return profiles(history, ends, known[:, 2:] - np.float32(1.0), decays_of(reading.popularity_recency))


def _popularity_table(popularity: Floats) -> Floats:
    """Of every item: [items, 3]."""
    return _popularity_forms(popularity[:, 0], popularity[:, 0].mean())


def _popularity_forms(estimate: Floats, mean: np.float32) -> Floats:
    """t, 2 ln(e^t + 5), and t above that of the mean item: [..., 3]."""
    further = 2.0 * np.log(np.exp(estimate) + _FURTHER_VOTES)
    return np.stack([estimate, further.astype(np.float32), estimate - mean], axis=-1)


def _described(known: Floats, context: Floats) -> Floats:
    """[T, C, 3] and [T, scales] -> [T, C, 3 + scales]."""
    above = known[..., 2:]
    return np.concatenate([known[..., :2], above**2 / np.float32(3.0), above * context[:, np.newaxis]], axis=-1)


@jit
def _draw_unused(history: Indices, ends: Offsets, n_items: int, start: np.uint64, out: Indices) -> None:
    """Targets in the first column; items that are not in the history in the others, as far as some are found."""
    used = np.zeros(n_items, np.bool_)
    for item in history:
        used[item] = True
    counter = 0
    for target in range(len(ends)):
        out[target, 0] = history[ends[target]]
        for place in range(1, out.shape[1]):
            for _ in range(_TRIES):
                item = _draws.below(_draws.word(start, counter), n_items)
                counter += 1
                out[target, place] = item
                if not used[item]:
                    break
