"""How NeuMF scores, from a history alone; it needs the compiled kernels that it learns with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from veilrec._arrays import Floats
from veilrec._csr import Csr
from veilrec.device import ncf
from veilrec.device.learner import Cohort, OwnItems
from veilrec.device.rankers import Arrays, SettingsAlone
from veilrec.models.neumf_scores import NeumfScores
from veilrec.models.scores import Scorer
from veilrec.updates import Round


@dataclass(frozen=True)
class NeumfRanker(SettingsAlone):
    """NeuMF: a user is a vector, which a new one learns on its own device."""

    kind: ClassVar[str] = "neumf"
    local: ncf.NcfSettings  # with the epochs of joining
    draws_seed: int

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> NeumfModel:
        """Vectors of the devices beside the public model."""
        users = private.get(ncf.USER, np.zeros((0, self.local.shape.row), np.float32))
        return NeumfModel(users, weights, self)


class NeumfModel(NeumfScores):
    """User vectors beside the public model, and how a new user joins."""

    def __init__(self, users: Floats, public: Arrays, ranker: NeumfRanker) -> None:
        super().__init__(ranker.local.shape, users, public)
        self._public = public
        self._seed = ranker.draws_seed
        self._adapter = ncf.NcfLearner(ranker.local, freeze_public=True)

    def fold_in(self, histories: Csr) -> Scorer:
        """New users: each learns its own vector on its device; items and network stay as they are."""
        devices = np.arange(len(histories), dtype=np.int64)
        private = self._adapter.fresh_private_state(devices, self._seed)
        self._adapter.learn(Cohort(devices, OwnItems(histories), private, self._seed), self._public, Round(0))
        return NeumfScores(self._adapter.settings.shape, private[ncf.USER], self._public)
