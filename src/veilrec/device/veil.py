"""What a device of `veil` adds to a sum: how its ranker's weights, and the map of content space, should move.

A candidate's score is w . f(history, item) + taste(history)^T M basis(item). A device compares each of its latest items
with a few that it never used (softmax), and sends the mean gradient. Weights live in whitened coordinates, in which
features of made-up histories are uncorrelated, so that a step is as long in every direction as the noise is.

Every part of a message is cut to a length of its own first, so that none crowds out another; what the promise rests on
is the bound of the mechanism on all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec.device.learner import Cohort, Learned
from veilrec.device.veil_history import Examples, OwnHistory, Reader, Reading
from veilrec.device.veil_items import ItemSteps, directions_of
from veilrec.models.veil_content import Content
from veilrec.updates import Round, Uploads

VOTES, POPULARITY, WEIGHTS, MAP, ITEMS = "votes", "popularity", "weights", "map", "items"
CLIPS = {WEIGHTS: 1.0, MAP: 0.05, ITEMS: 0.1}  # of a device's gradient, each part by itself


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What the numbers of the model stand for: so many units of a weight, and how a message is shared by its parts."""

    units: Mapping[str, float]  # of what is learnt, for each number of the sum
    shares: Mapping[str, float]  # of the squared bound, where a round is about several tensors
    items: ItemSteps | None = None  # None: items have no vectors of their own

    def of(self, model: Mapping[str, Floats], name: str, missing: tuple[int, ...]) -> Floats:
        """A tensor in its own units; zeros where the model has none."""
        if name not in model:
            return np.zeros(missing, np.float32)
        return model[name] * np.float32(self.units[name])

    def items_of(self, model: Mapping[str, Floats], learnt_map: Floats) -> tuple[Floats, Floats]:
        """Vectors of the items, and the directions along which a taste meets them; nothing where there are none."""
        if self.items is None:
            return np.zeros((len(model[POPULARITY]), 0), np.float32), np.zeros((len(learnt_map), 0), np.float32)
        return model[ITEMS] * self.items.of_items(model[POPULARITY]), directions_of(learnt_map)


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
        read = reader.examples_of_all(cohort.data, cohort.devices, model[POPULARITY])
        asked = tuple(name for name in self.names if about.concerns(name))
        gradients, loss = self._gradients(read, model, asked)
        bound = 1.0 if about.clip_norm is None else about.clip_norm
        dense = {
            name: _cut(gradients[name], CLIPS[name], length)
            for name, length in lengths_of(self.steps.shares, asked, bound).items()
        }
        counts = np.array([len(one.ends) * (1 + self.reading.negatives) for one, _ in read], np.int64)
        return Learned(Uploads(about.number, len(read), dense=dense), counts, loss)

    def _gradients(
        self, read: list[tuple[Examples, Floats]], model: Mapping[str, Floats], asked: tuple[str, ...]
    ) -> tuple[dict[str, Floats], Floats]:
        n, basis = len(read), self.content.basis
        shape = (self.reading.tastes(self.content), basis.shape[1])
        weights = whitened(self.whitening, self.steps.of(model, WEIGHTS, (len(self.whitening),)))
        learnt_map = self.steps.of(model, MAP, shape)
        items, directions = self.steps.items_of(model, learnt_map)
        of_weights = np.zeros((n, len(weights)), np.float32)
        of_map = np.zeros((n, *(shape if MAP in asked else (0, 0))), np.float32)
        of_items = np.zeros((n, *(items.shape if ITEMS in asked else (0, 0))), np.float32)
        loss = np.zeros(n, np.float32)
        for place, (one, popularity) in enumerate(read):
            if len(one.ends):
                loss[place] = _add_gradient(
                    one.candidates,
                    popularity,
                    one.kernels,
                    one.tastes,
                    basis,
                    weights,
                    learnt_map,
                    items,
                    one.tastes @ directions,
                    self.whitening,
                    of_weights[place],
                    of_map[place],
                    of_items[place],
                )
        return {WEIGHTS: of_weights, MAP: of_map, ITEMS: of_items}, loss


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
    candidates: Indices,
    popularity: Floats,
    kernels: Floats,
    tastes: Floats,
    basis: Floats,
    weights: Floats,
    learnt_map: Floats,
    items: Floats,
    meets: Floats,
    whitening: Floats,
    of_weights: Floats,
    of_map: Floats,
    of_items: Floats,
) -> float:
    """Add the mean direction in which the loss falls; returns the mean loss."""
    n_targets, n_others = kernels.shape[0], kernels.shape[1]
    n_popular, n_kernels, dim = popularity.shape[2], kernels.shape[2], basis.shape[1]
    moved = np.zeros(n_popular + n_kernels, np.float32)
    looked_for, residual = np.zeros(dim, np.float32), np.zeros(dim, np.float32)
    scores = np.zeros(n_others, np.float32)
    loss = 0.0
    for target in range(n_targets):
        looked_for[:] = 0.0
        for a in range(tastes.shape[1]):
            for d in range(dim):
                looked_for[d] += tastes[target, a] * learnt_map[a, d]
        own = np.float32(0.0)
        for d in range(dim):
            own += looked_for[d] * basis[candidates[target, 0], d]
        for d in range(items.shape[1]):
            own += meets[target, d] * items[candidates[target, 0], d]
        highest = np.float32(0.0)
        for other in range(n_others):
            score = -own
            for d in range(dim):
                score += looked_for[d] * basis[candidates[target, 1 + other], d]
            for d in range(items.shape[1]):
                score += meets[target, d] * items[candidates[target, 1 + other], d]
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
            for d in range(of_items.shape[1]):
                of_items[candidates[target, 1 + other], d] -= chance * meets[target, d]
                of_items[candidates[target, 0], d] += chance * meets[target, d]
            for f in range(n_popular):
                moved[f] -= chance * popularity[target, other, f]
            for f in range(n_kernels):
                moved[n_popular + f] -= chance * kernels[target, other, f]
            for d in range(dim):
                residual[d] -= chance * (basis[candidates[target, 1 + other], d] - basis[candidates[target, 0], d])
        for a in range(of_map.shape[0]):
            for d in range(dim):
                of_map[a, d] += tastes[target, a] * residual[d]
    for f in range(len(moved)):
        for g in range(len(of_weights)):
            of_weights[g] += moved[f] * whitening[f, g]
    return float(loss / n_targets)
