"""The users' half of private alternating least squares: a device solves its vector, and sends it with its items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from veilrec._arrays import Floats, Offsets
from veilrec._csr import Csr, without_repeats
from veilrec.device import fcf
from veilrec.device.learner import Cohort, Learned, OwnItems
from veilrec.device.rankers import Arrays, FcfModel, SettingsAlone
from veilrec.models.private_als import Sums
from veilrec.updates import Round, Rows, Schema, Tensor, Uploads

POPULARITY, FEATURES, GRAM, ITEMS = "popularity", "features", "gram", "items"
_NOTHING = 1e-12  # of a vector: it points nowhere


def schema_of(popularity: Tensor, features: Floats | None, n_items: int, sums: Sums) -> Schema:
    """All that devices get: the votes, what is known of items, and the sums of the last round."""
    known = () if features is None else (Tensor(FEATURES, (n_items, features.shape[1]), by_row=True, learnt=False),)
    rows, gram = Tensor(ITEMS, (n_items, sums.width), by_row=True), Tensor(GRAM, (sums.dim, sums.dim), by_row=False)
    return Schema((popularity, *known, rows, gram))


def item_vectors(sums: Sums, model: Arrays) -> Floats:
    """What whoever has the model can solve."""
    return sums.solve(model[POPULARITY], model[GRAM], model[ITEMS], model.get(FEATURES))


def start_sums(n_items: int, sums: Sums, start: float, seed: int) -> dict[str, Floats]:
    """Sums whose solution are random vectors of this standard deviation."""
    rows = np.zeros((n_items, sums.width), np.float32)
    vectors = fcf.start_weights(n_items, sums.dim, start, seed)[fcf.ITEMS]
    rows[:, : sums.dim] = vectors * np.float32(sums.ridge * sums.lengths[2])
    return {ITEMS: rows, GRAM: np.zeros((sums.dim, sums.dim), np.float32)}


@dataclass(frozen=True)
class PrivateAlsLearner:
    """Solves item vectors from the sums, its own vector from these, and sends what the next sums need of it.

    Draws nothing, keeps nothing; every message is as long as the clip norm.
    """

    local: fcf.FcfSettings
    sums: Sums
    keeps_state = False

    def fresh_private_state(self, devices: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing: the user's vector follows from the history and the model."""
        return {}

    def learn(self, cohort: Cohort[OwnItems], model: Mapping[str, Floats], about: Round) -> Learned:
        """The message of each device; the loss is how far its items are from a score of 1, on average of squares."""
        popularity = model[POPULARITY]
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
        uploads = Uploads(about.number, len(rows), {ITEMS: Rows(rows.offsets, rows.items, told)}, {GRAM: squares})
        return Learned(uploads, lengths, loss.astype(np.float32))


@dataclass(frozen=True)
class PrivateAlsRanker(SettingsAlone):
    """Item vectors from noisy sums; a device solves its vector from its history and these."""

    kind: ClassVar[str] = "private-least-squares"
    local: fcf.FcfSettings
    sums: Sums

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> FcfModel:
        """Known users are those with a history."""
        return FcfModel(item_vectors(self.sums, weights), histories, self.local)
