"""Closed-form collaborative filtering on clients: private ALS and the private item-item Gram matrix.

Private ALS: a client solves its user vector from the released item sums and contributes the outer product of its
direction and the rows of its items. Gram matrix: a client sends y y^T / |y|^2 of its taste y over the most popular
items, once. Both trainers are deterministic and stateless, and every message has the length of the clip norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from veilrec.client import fcf
from veilrec.client.local_training import Cohort, LocalResults, OwnItems
from veilrec.client.rankers import Arrays, FcfModel, SettingsAlone
from veilrec.core.arrays import Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr, without_repeats
from veilrec.core.jit import jit
from veilrec.core.schema import ClientUpdates, Factors, RoundSpec, Rows, Schema, Tensor
from veilrec.models.item_item import GramScorer, Scaling, tastes_of
from veilrec.models.private_als import AlsSums

ALS_POPULARITY, FEATURES, ALS_GRAM, ITEMS = "popularity", "features", "gram", "items"
_NOTHING = 1e-12  # of a vector: it points nowhere


def schema_of(popularity: Tensor, features: Floats | None, n_items: int, sums: AlsSums) -> Schema:
    """All that clients get: the votes, what is known of items, and the sums of the last round."""
    known = () if features is None else (Tensor(FEATURES, (n_items, features.shape[1]), by_row=True, learnt=False),)
    rows, gram = Tensor(ITEMS, (n_items, sums.width), by_row=True), Tensor(ALS_GRAM, (sums.dim, sums.dim), by_row=False)
    return Schema((popularity, *known, rows, gram))


def item_vectors(sums: AlsSums, model: Arrays) -> Floats:
    """Scorer that solves user vectors from the model and a history."""
    return sums.solve(model[ALS_POPULARITY], model[ALS_GRAM], model[ITEMS], model.get(FEATURES))


def start_sums(n_items: int, sums: AlsSums, start: float, seed: int) -> dict[str, Floats]:
    """Sums whose solution are random vectors of this standard deviation."""
    rows = np.zeros((n_items, sums.width), np.float32)
    vectors = fcf.start_weights(n_items, sums.dim, start, seed)[fcf.ITEMS]
    rows[:, : sums.dim] = vectors * np.float32(sums.ridge * sums.lengths[2])
    return {ITEMS: rows, ALS_GRAM: np.zeros((sums.dim, sums.dim), np.float32)}


@dataclass(frozen=True)
class PrivateAlsLocalTrainer:
    """Solves item vectors from the sums, its own vector from these, and sends what the next sums need of it.

    Draws nothing, keeps nothing; every message is as long as the clip norm.
    """

    local: fcf.FcfSettings
    sums: AlsSums
    keeps_state = False
    reads = ("items",)
    rows = "own"

    def fresh_private_state(self, clients: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing: the user's vector follows from the history and the model."""
        return {}

    def learn(self, cohort: Cohort[OwnItems], model: Mapping[str, Floats], spec: RoundSpec) -> LocalResults:
        """The message of each client; the loss is how far its items are from a score of 1, on average of squares."""
        popularity = model[ALS_POPULARITY]
        items = item_vectors(self.sums, model)
        rows = without_repeats(cohort.data.rows, len(items))
        owners = rows.row_numbers()
        solved = fcf.solve_users(items, rows, self.local).astype(np.float64)
        scores = np.einsum("ed,ed->e", solved[owners], items[rows.items].astype(np.float64))
        lengths = rows.lengths()
        loss = np.bincount(owners, (1.0 - scores) ** 2, minlength=len(rows)) / np.maximum(lengths, 1)
        norms = np.sqrt((solved * solved).sum(axis=1, keepdims=True))
        directions = np.where(
            (norms > _NOTHING) & (lengths > 0)[:, np.newaxis], solved / np.maximum(norms, _NOTHING), 0.0
        )
        squares, told = self.sums.messages(directions, self.sums.item_weights(popularity, rows), owners)
        updates = ClientUpdates(
            spec.number, len(rows), {ITEMS: Rows(rows.offsets, rows.items, told)}, {ALS_GRAM: squares}
        )
        return LocalResults(updates, lengths, loss.astype(np.float32))


@dataclass(frozen=True)
class PrivateAlsRanker(SettingsAlone):
    """Item vectors from noisy sums; a client solves its vector from its history and these."""

    kind: ClassVar[str] = "private-least-squares"
    local: fcf.FcfSettings
    sums: AlsSums

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> FcfModel:
        """Known users are those with a history."""
        return FcfModel(item_vectors(self.sums, weights), histories, self.local)


POPULARITY, GRAM = "popularity", "gram"
_NOTHING_LEFT = 1e-9  # of a squared length: all of it was popularity


def gram_tensor(size: int) -> Tensor:
    """The matrix of the most popular items; its answers are of rank one."""
    return Tensor(GRAM, (size, size), by_row=False)


@dataclass(frozen=True)
class GramLocalTrainer:
    """y y^T / |y|^2 of a client's taste y (see `veilrec.models.item_item`), times a norm: draws nothing, keeps nothing.

    It is sent as its factors, 2 K + 1 numbers instead of K^2; the server multiplies them out.
    """

    norm: float  # of a message
    floor: float  # of popularity
    keeps_state = False
    reads = ("items",)

    def fresh_private_state(self, clients: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing."""
        return {}

    def learn(self, cohort: Cohort[OwnItems], model: Mapping[str, Floats], spec: RoundSpec) -> LocalResults:
        """The message of each client, from how popular items are; the loss is what these leave of its history."""
        popularity, size = model[POPULARITY], len(model[GRAM])
        scaling = Scaling.of(popularity, size, self.floor)
        rows = cohort.data.rows
        tastes = np.zeros((len(rows), size), np.float32)
        left = np.zeros(len(rows), np.float32)
        _write_tastes(
            rows.offsets, rows.items, scaling.places(len(popularity)), scaling.scales, scaling.centre, tastes, left
        )
        scales = np.full((len(rows), 1), self.norm, np.float32)
        factors = Factors(tastes[:, :, np.newaxis], scales, tastes[:, np.newaxis, :])
        updates = ClientUpdates(spec.number, len(rows), factors={GRAM: factors})
        return LocalResults(updates, rows.lengths(), left)


@dataclass(frozen=True)
class GramRanker(SettingsAlone):
    """Popularity and tastes, both from noisy sums whose noise is known: a user is a history."""

    kind: ClassVar[str] = "gram"
    norm: float  # of a message
    sigma: float  # of the noise on every number of the matrix
    floor: float  # of popularity
    people: float  # whose messages are in the sum

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> GramScorer:
        """Known users are those with a history."""
        popularity, matrix = weights[POPULARITY], weights[GRAM]
        scaling = Scaling.of(popularity, len(matrix), self.floor)
        tastes = tastes_of(matrix.astype(np.float64) / self.norm, sigma=self.sigma / self.norm, people=self.people)
        return GramScorer(popularity, scaling, tastes, histories)


@jit
def _write_tastes(
    offsets: Offsets, items: Indices, places: Indices, scales: Doubles, centre: Doubles, tastes: Floats, left: Floats
) -> None:
    size = len(centre)
    own = np.zeros(size, np.float64)
    for client in range(len(tastes)):
        own[:] = 0.0
        along, square = 0.0, 0.0
        for entry in range(offsets[client], offsets[client + 1]):
            place = places[items[entry]]
            if place >= 0 and own[place] == 0.0:
                own[place] = scales[place]
                along += scales[place] * centre[place]
                square += scales[place] * scales[place]
        rest = 0.0
        for i in range(size):
            own[i] -= along * centre[i]
            rest += own[i] * own[i]
        if rest > _NOTHING_LEFT * square:
            for i in range(size):
                tastes[client, i] = own[i] / np.sqrt(rest)
            left[client] = rest / square
