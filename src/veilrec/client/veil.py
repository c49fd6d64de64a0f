"""Local training of `veil` on item histories: features of a history, and gradients of the ranker's weights and map.

A candidate's score is w . f(history, item) + taste(history)^T M basis(item). Examples come from the history alone: each
of the latest items is a target, the items before it are its context, and sampled unused items are the negatives
(softmax loss). Features are kernels to the context at several recency scales, popularity (also relative to that of the
context), and the context's place in content space. A client sends the mean gradient. Weights live in whitened
coordinates, in which features of synthetic histories are uncorrelated, so that signal and noise are comparable in every
direction. If the budget allows, a first round asks where in content space items are used, and a second one where they
are used in the space found by the first.

Every part of an update is clipped separately first, so that none crowds out another; the guarantee rests on the
mechanism's clip norm on the whole update.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec.client.local_training import Cohort, LocalResults, narrow
from veilrec.core import rng
from veilrec.core.arrays import Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.jit import jit
from veilrec.core.schema import ClientUpdates, RoundSpec
from veilrec.models.veil import Content, ItemPlaces, decays_of, joined, no_places, placed, profiles, unknown_places

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
        """Number of features of popularity."""
        return _OF_ITEM + len(self.popularity_recency)

    def features(self, content: Content) -> int:
        """Number of features of a candidate: popularity first, then kernels."""
        return self.popularity_features() + content.n_kernels * len(self.recency)

    def tastes(self, width: int) -> int:
        """Length of a context's place among items that are so wide, with a constant."""
        return 1 + len(self.taste_recency) * width


@dataclass(frozen=True)
class ReleasedSums:
    """What was released, as clients read it."""

    popularity: Floats  # [items, 2]: t, and how much a vote moves it
    places: ItemPlaces  # beyond content
    basis: Floats  # [items, D]: content, then places beyond it
    among: tuple[Floats, ...]  # [items, directions] for each pass: what items lay among, along directions all as long
    mark: bytes  # the same where all of it is the same

    @classmethod
    def of(cls, popularity: Floats, places: ItemPlaces, content: Content, passes: int = 1) -> ReleasedSums:
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
    """The items of each client in their order; what was worked out of a history once is remembered beside it."""

    rows: Csr
    remembered: dict[bytes, Remembered] = field(default_factory=dict, compare=False, repr=False)

    @property
    def kept(self) -> Mapping[str, NDArray[Any]]:
        """Nothing."""
        return {}

    def take(self, clients: Offsets) -> OwnHistory:
        """The histories of some clients."""
        return OwnHistory(self.rows.take(clients), self.remembered)

    def inside(self, place: Indices) -> OwnHistory:
        """The items inside a sub-model, by their numbers there."""
        return OwnHistory(narrow(self.rows, place))


@dataclass(frozen=True)
class VeilExamples:
    """Targets of one history; whatever the model says, they stay the same."""

    history: Indices
    ends: Offsets  # [T]: the position of each target
    candidates: Indices  # [T, 1 + negatives]: the target, then items that were not used
    kernels: Floats  # [T, negatives, kernels * scales]: of each beside the target, the difference


@dataclass(frozen=True)
class ScoredExamples:
    """Examples with the features that follow from what was released."""

    popularity: Floats  # [T, negatives, features]: of each beside the target, the difference
    tastes: Floats  # [T, 1 + scales * D]
    beside: Floats  # [T, negatives, D]: rows of the basis, less that of the target as others see it


@dataclass
class Remembered:
    """What follows from one history, and from what was last told."""

    examples: VeilExamples
    mark: bytes = b""
    seen: ScoredExamples | None = None


class HistoryReader:
    """Makes examples of histories; each is worked out once, and remembered under all that it depends on."""

    def __init__(self, reading: Reading, content: Content, seed: int) -> None:
        self.reading, self.content, self.seed = reading, content, seed
        self._key = f"{seed} {reading}".encode()

    def examples_of_all(
        self, data: OwnHistory, clients: Offsets, told: ReleasedSums
    ) -> list[tuple[VeilExamples, ScoredExamples]]:
        """The examples of each client, drawn by the seed and its number, and how it sees them."""
        return [self._examples(data, row, int(client), told) for row, client in enumerate(clients)]

    def _examples(
        self, data: OwnHistory, row: int, client: int, told: ReleasedSums
    ) -> tuple[VeilExamples, ScoredExamples]:
        history = data.rows.row(row)
        key = hashlib.blake2b(b"%d %s" % (client, self._key) + history.tobytes(), digest_size=16).digest()
        known = data.remembered.get(key)
        if known is None:
            known = data.remembered[key] = Remembered(self.made(history, client))
        if known.seen is None or known.mark != told.mark:
            known.seen, known.mark = seen(self.reading, told, known.examples), told.mark
        return known.examples, known.seen

    def made(self, history: Indices, client: int) -> VeilExamples:
        """Make the examples of a history."""
        return _made(self.reading, self.content, history, client, self.seed)


def _made(reading: Reading, content: Content, history: Indices, client: int, seed: int) -> VeilExamples:
    history = np.ascontiguousarray(history)
    last = len(history)
    ends = np.arange(last - 1, max(FEWEST_BEFORE, last - reading.targets) - 1, -1, dtype=np.int64)
    candidates = np.zeros((len(ends), 1 + reading.negatives), np.int32)
    _draw_unused(history, ends, content.n_items, np.uint64(rng.stream(seed, rng.LEARNING, 0, client)), candidates)
    described = content.features(history, ends, candidates, decays_of(reading.recency), reading.latest)
    return VeilExamples(history, ends, candidates, described[:, 1:] - described[:, :1])


def seen(reading: Reading, told: ReleasedSums, examples: VeilExamples) -> ScoredExamples:
    """Features of examples; a client takes its own part away from what was released about its target."""
    return ScoredExamples(
        popular_examples(reading, told.popularity, examples),
        tastes(reading, told.basis, examples.history, examples.ends),
        told.basis[examples.candidates[:, 1:]] - _by_others(reading, told, examples)[:, np.newaxis],
    )


def tastes(reading: Reading, basis: Floats, history: Indices, ends: Offsets) -> Floats:
    """Places of contexts among items, at every recency scale, after a constant: [T, 1 + scales * D]."""
    means = profiles(history, ends, basis, decays_of(reading.taste_recency))
    return np.column_stack([np.full(len(ends), 0.5, np.float32), means])


def places_of(reading: Reading, among: Floats, history: Indices) -> Floats:
    """Place of the context in which each item of a history was used: [n, directions]."""
    return profiles(history, np.arange(len(history)), among, decays_of((reading.place_recency,)))


def _all_as_long(table: Floats) -> Floats:
    """Scale columns to standard deviation 2; those of which nothing is known stay 0."""
    return np.ascontiguousarray(table * (np.float32(2.0) / np.maximum(table.std(axis=0), np.float32(1e-6))))


def share_of_places(places: Floats) -> float:
    """What each place of a history [n, directions] counts, so that all together are as long as the clip at most."""
    mean_square = float(np.square(places, dtype=np.float64).sum()) / max(places.size, 1)
    return min(1.0, PLACE_CLIP / max(math.sqrt(mean_square), 1e-9)) / math.sqrt(max(len(places), 1))


def _by_others(reading: Reading, told: ReleasedSums, examples: VeilExamples) -> Floats:
    """Rows of the basis of the targets, without what the client itself added to the sums: [T, D]."""
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


def popular_examples(reading: Reading, popularity: Floats, examples: VeilExamples) -> Floats:
    """Popularity of items beside a target, less that of the target as others see it: [T, negatives, features].

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
    """Popularity features of every item: [items, 3]."""
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
                item = rng.below(rng.word(start, counter), n_items)
                counter += 1
                out[target, place] = item
                if not used[item]:
                    break


VOTES, POPULARITY, WEIGHTS, MAP = "votes", "popularity", "weights", "map"
PLACES, FURTHER = "places", "further"  # among content, and among what those said
PASSES = (PLACES, FURTHER)
CLIPS = {
    WEIGHTS: 1.0,
    MAP: 0.05,
    PLACES: PLACE_CLIP,
    FURTHER: PLACE_CLIP,
}  # of what a client has to say, each part by itself


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What the numbers of the model stand for: so many units of a weight, and how a message is shared by its parts."""

    units: Mapping[str, float]  # of what is learnt, for each number of the sum
    shares: Mapping[str, float]  # of the squared bound, where a round is about several tensors
    noise: Mapping[str, float] = field(default_factory=dict)  # standard deviation on sums of which the server estimates

    def of(self, model: Mapping[str, Floats], name: str, missing: tuple[int, ...]) -> Floats:
        """A tensor in its own units; zeros where the model has none."""
        if name not in model:
            return np.zeros(missing, np.float32)
        return model[name] * np.float32(self.units[name])

    def told(self, model: Mapping[str, Floats], content: Content) -> ReleasedSums:
        """What clients make of what was released."""
        popularity = model[POPULARITY]
        uses = np.exp(popularity[:, 0].astype(np.float64))
        places, passes = no_places(len(popularity)), [name for name in PASSES if name in model]
        for name in passes:
            places = joined(places, self._placed(model, name, uses, np.column_stack([content.basis, places.values])))
        return ReleasedSums.of(popularity, places, content, max(len(passes), 1))

    def _placed(self, model: Mapping[str, Floats], name: str, uses: Doubles, known: Floats) -> ItemPlaces:
        """What a sum says beyond what was known already; before its round that is nothing."""
        if not model[name].any():
            return unknown_places(model[name].shape)
        return placed(self.of(model, name, ()), self.noise[name], uses, known)


def lengths_of(shares: Mapping[str, float], names: tuple[str, ...], bound: float) -> dict[str, float]:
    """How long each part of a message is at most; all together as long as the bound."""
    whole = sum(shares[name] for name in names)
    return {name: bound * float(np.sqrt(shares[name] / whole)) for name in names}


@dataclass(frozen=True)
class VeilLocalTrainer:
    """The gradient of a client on its own history; it keeps nothing from round to round but what it read once."""

    content: Content
    reading: Reading
    whitening: Floats  # [features, features]: weights = whitening @ coordinates
    steps: Steps
    names: tuple[str, ...]  # of all that is learnt
    keeps_state = False
    reads = ("items", "order")

    def fresh_private_state(self, clients: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing."""
        return {}

    def learn(self, cohort: Cohort[OwnHistory], model: Mapping[str, Floats], spec: RoundSpec) -> LocalResults:
        """The messages of some clients, and their loss."""
        reader = HistoryReader(self.reading, self.content, cohort.draws_seed)
        asked = tuple(name for name in self.names if spec.concerns(name))
        told = self.steps.told(model, self.content)
        read = reader.examples_of_all(cohort.data, cohort.clients, told)
        gradients, loss = self._gradients(read, model, asked)
        for name, among in zip(PASSES, told.among, strict=False):
            if name in asked:
                gradients[name] = self._places(cohort.data, among)
        bound = 1.0 if spec.clip_norm is None else spec.clip_norm
        dense = {
            name: _cut(gradients[name], CLIPS[name], length)
            for name, length in lengths_of(self.steps.shares, asked, bound).items()
        }
        counts = np.array([len(one.ends) * (1 + self.reading.negatives) for one, _ in read], np.int64)
        return LocalResults(ClientUpdates(spec.number, len(read), dense=dense), counts, loss)

    def _gradients(
        self, read: list[tuple[VeilExamples, ScoredExamples]], model: Mapping[str, Floats], asked: tuple[str, ...]
    ) -> tuple[dict[str, Floats], Floats]:
        n = len(read)
        width = self.content.basis.shape[1] + sum(model[name].shape[1] for name in PASSES if name in model)
        shape = (self.reading.tastes(width), width)
        weights = whitened(self.whitening, self.steps.of(model, WEIGHTS, (len(self.whitening),)))
        learnt_map = self.steps.of(model, MAP, shape)
        of_weights = np.zeros((n, len(weights)), np.float32)
        of_map = np.zeros((n, *(shape if MAP in asked else (0, 0))), np.float32)
        loss = np.zeros(n, np.float32)
        for place, (one, seen) in enumerate(read):
            if len(one.ends):
                loss[place] = _add_gradient(
                    seen.popularity,
                    one.kernels,
                    seen.tastes,
                    seen.beside,
                    weights,
                    learnt_map,
                    self.whitening,
                    of_weights[place],
                    of_map[place],
                )
        return {WEIGHTS: of_weights, MAP: of_map}, loss

    def _places(self, data: OwnHistory, among: Floats) -> Floats:
        """Where each client used its items: [n, items, directions]."""
        out = np.zeros((len(data.rows), *among.shape), np.float32)
        for row in range(len(out)):
            history = np.ascontiguousarray(data.rows.row(row))
            places = places_of(self.reading, among, history)
            np.add.at(out[row], history, places * np.float32(share_of_places(places) / np.sqrt(among.shape[1])))
        return out


def whitened(whitening: Floats, coordinates: Floats) -> Floats:
    """Weights of features from their coordinates."""
    return np.asarray(whitening.astype(np.float64) @ coordinates.astype(np.float64), np.float32)


def _cut(gradients: Floats, clip: float, length: float) -> Floats:
    """Gradients [n, ...] of length `clip` or more become `length` long, shorter ones in proportion."""
    flat = gradients.reshape(len(gradients), -1)
    norms = np.sqrt(np.einsum("nd,nd->n", flat, flat, dtype=np.float64))
    factors = length / np.maximum(norms, clip) * (1.0 - 1e-6)
    return np.asarray(gradients * factors.reshape(-1, *(1,) * (gradients.ndim - 1)), np.float32)


@jit
def _add_gradient(
    popularity: Floats,
    kernels: Floats,
    tastes: Floats,
    beside: Floats,
    weights: Floats,
    learnt_map: Floats,
    whitening: Floats,
    of_weights: Floats,
    of_map: Floats,
) -> float:
    """Add the mean direction in which the loss falls; returns the mean loss."""
    n_targets, n_others = kernels.shape[0], kernels.shape[1]
    n_popular, n_kernels, dim = popularity.shape[2], kernels.shape[2], beside.shape[2]
    moved = np.zeros(n_popular + n_kernels, np.float32)
    looked_for, residual = np.zeros(dim, np.float32), np.zeros(dim, np.float32)
    scores = np.zeros(n_others, np.float32)
    loss = 0.0
    for target in range(n_targets):
        looked_for[:] = 0.0
        for a in range(tastes.shape[1]):
            for d in range(dim):
                looked_for[d] += tastes[target, a] * learnt_map[a, d]
        highest = np.float32(0.0)
        for other in range(n_others):
            score = np.float32(0.0)
            for d in range(dim):
                score += looked_for[d] * beside[target, other, d]
            for f in range(n_popular):
                score += weights[f] * popularity[target, other, f]
            for f in range(n_kernels):
                score += weights[n_popular + f] * kernels[target, other, f]
            scores[other] = score
            highest = max(highest, score)
        total = np.exp(-highest)  # of the target itself, whose score is 0 here
        for other in range(n_others):
            scores[other] = np.exp(scores[other] - highest)
            total += scores[other]
        loss += np.log(total) + highest
        residual[:] = 0.0
        for other in range(n_others):
            chance = scores[other] / (total * n_targets)
            for f in range(n_popular):
                moved[f] -= chance * popularity[target, other, f]
            for f in range(n_kernels):
                moved[n_popular + f] -= chance * kernels[target, other, f]
            for d in range(dim):
                residual[d] -= chance * beside[target, other, d]
        for a in range(of_map.shape[0]):
            for d in range(dim):
                of_map[a, d] += tastes[target, a] * residual[d]
    for f in range(len(moved)):
        for g in range(len(of_weights)):
            of_weights[g] += moved[f] * whitening[f, g]
    return float(loss / n_targets)
