"""Which items go together, told once: a device's message is its taste times itself, and how such a sum ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from veilrec._arrays import Doubles, Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec._jit import jit
from veilrec.device.learner import Cohort, Learned, OwnItems
from veilrec.device.rankers import Arrays, SettingsAlone
from veilrec.models.gram import GramScorer, Scaling, tastes_of
from veilrec.updates import Factors, Round, Tensor, Uploads

POPULARITY, GRAM = "popularity", "gram"
_NOTHING_LEFT = 1e-9  # of a squared length: all of it was popularity


def gram_tensor(size: int) -> Tensor:
    """The matrix of the most popular items; its answers are of rank one."""
    return Tensor(GRAM, (size, size), by_row=False)


@dataclass(frozen=True)
class GramLearner:
    """y y^T / |y|^2 of a device's taste y (see `veilrec.models.gram`), times a norm: draws nothing, keeps nothing.

    It is sent as its factors, 2 K + 1 numbers instead of K^2; the server multiplies them out.
    """

    norm: float  # of a message
    floor: float  # of popularity
    keeps_state = False

    def fresh_private_state(self, devices: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing."""
        return {}

    def learn(self, cohort: Cohort[OwnItems], model: Mapping[str, Floats], about: Round) -> Learned:
        """The message of each device, from how popular items are; the loss is what these leave of its history."""
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
        uploads = Uploads(about.number, len(rows), factors={GRAM: factors})
        return Learned(uploads, rows.lengths(), left)


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
    for device in range(len(tastes)):
        own[:] = 0.0
        along, square = 0.0, 0.0
        for entry in range(offsets[device], offsets[device + 1]):
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
                tastes[device, i] = own[i] / np.sqrt(rest)
            left[device] = rest / square
