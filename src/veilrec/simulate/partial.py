"""A model of which some items were never sent to anybody: their vectors are still where they started."""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Bools, Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec.device.submodel import narrow
from veilrec.evaluate.scorer import Model, Scorer

_BELOW = np.float32(1e4)  # far more than any score, few enough digits to keep an order among those below


class SentFirst:
    """Ranks items that no device ever saw behind all others; new users do not learn from them either."""

    def __init__(self, model: Scorer, sent: Bools) -> None:
        self._model = model
        self._offset = np.where(sent, np.float32(0.0), -_BELOW)
        self._place = np.where(sent, np.arange(len(sent), dtype=np.int32), np.int32(-1))
        self.n_items = len(sent)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        return self._model.score_all(users) + self._offset

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        return self._model.score_some(users, items) + self._offset[items]


class SentFirstModel(SentFirst):
    """The same for a model that takes in new users."""

    def __init__(self, model: Model, sent: Bools) -> None:
        super().__init__(model, sent)
        self._whole = model
        self._sent = sent

    def fold_in(self, histories: Csr) -> Scorer:
        """New users, by those of their items that the model knows."""
        return SentFirst(self._whole.fold_in(narrow(histories, self._place)), self._sent)
