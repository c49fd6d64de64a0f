"""What a device of `veil` adds to a sum: how its ranker's weights, and the map of content space, should move.

A candidate's score is w . f(history, item) + taste(history)^T M basis(item). A device compares each of its latest items
with a few that it never used (softmax), and sends the mean gradient. Weights live in whitened coordinates, in which
features of made-up histories are uncorrelated, so that a step is as long in every direction as the noise is.
Where the budget pays for it, one round before all others asks where in content space items are used, and a second one
where they are used among what the first has found.

Every part of a message is cut to a length of its own first, so that none crowds out another; what the promise rests on
is the bound of the mechanism on all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from veilrec._arrays import Doubles, Floats, Offsets
from veilrec._jit import jit
from veilrec.device.learner import Cohort, Learned
from veilrec.device.veil_history import (
    PLACE_CLIP,
    Examples,
    OwnHistory,
    Reader,
    Reading,
    Seen,
    Told,
    places_of,
    share_of_places,
)
from veilrec.models.veil_content import Content
from veilrec.models.veil_places import Places, joined, no_places, placed, unknown_places
from veilrec.updates import Round, Uploads

VOTES, POPULARITY, WEIGHTS, MAP = "votes", "popularity", "weights", "map"
PLACES, FURTHER = "places", "further"  # among content, and among what those said
PASSES = (PLACES, FURTHER)
CLIPS = {
    WEIGHTS: 1.0,
    MAP: 0.05,
    PLACES: PLACE_CLIP,
    FURTHER: PLACE_CLIP,
}  # of what a device has to say, each part by itself


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

    def told(self, model: Mapping[str, Floats], content: Content) -> Told:
        """What devices make of what was released."""
        popularity = model[POPULARITY]
        uses = np.exp(popularity[:, 0].astype(np.float64))
        places, passes = no_places(len(popularity)), [name for name in PASSES if name in model]
        for name in passes:
            places = joined(places, self._placed(model, name, uses, np.column_stack([content.basis, places.values])))
        return Told.of(popularity, places, content, max(len(passes), 1))

    def _placed(self, model: Mapping[str, Floats], name: str, uses: Doubles, known: Floats) -> Places:
        """What a sum says beyond what was known already; before its round that is nothing."""
        if not model[name].any():
            return unknown_places(model[name].shape)
        return placed(self.of(model, name, ()), self.noise[name], uses, known)


def lengths_of(shares: Mapping[str, float], names: tuple[str, ...], bound: float) -> dict[str, float]:
    """How long each part of a message is at most; all together as long as the bound."""
    whole = sum(shares[name] for name in names)
    return {name: bound * float(np.sqrt(shares[name] / whole)) for name in names}


@dataclass(frozen=True)
class VeilLearner:
    """The gradient of a device on its own history; it keeps nothing from round to round but what it read once."""

    content: Content
    reading: Reading
    whitening: Floats  # [features, features]: weights = whitening @ coordinates
    steps: Steps
    names: tuple[str, ...]  # of all that is learnt
    keeps_state = False

    def fresh_private_state(self, devices: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing."""
        return {}

    def learn(self, cohort: Cohort[OwnHistory], model: Mapping[str, Floats], about: Round) -> Learned:
        """The messages of some devices, and their loss."""
        reader = Reader(self.reading, self.content, cohort.draws_seed)
        asked = tuple(name for name in self.names if about.concerns(name))
        told = self.steps.told(model, self.content)
        read = reader.examples_of_all(cohort.data, cohort.devices, told)
        gradients, loss = self._gradients(read, model, asked)
        for name, among in zip(PASSES, told.among, strict=False):
            if name in asked:
                gradients[name] = self._places(cohort.data, among)
        bound = 1.0 if about.clip_norm is None else about.clip_norm
        dense = {
            name: _cut(gradients[name], CLIPS[name], length)
            for name, length in lengths_of(self.steps.shares, asked, bound).items()
        }
        counts = np.array([len(one.ends) * (1 + self.reading.negatives) for one, _ in read], np.int64)
        return Learned(Uploads(about.number, len(read), dense=dense), counts, loss)

    def _gradients(
        self, read: list[tuple[Examples, Seen]], model: Mapping[str, Floats], asked: tuple[str, ...]
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
        """Where each device used its items: [n, items, directions]."""
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
