"""What a device tells of its items where only their popularity is learnt: one for each, and no more than once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from veilrec._arrays import Floats, Offsets
from veilrec._csr import without_repeats
from veilrec.device.learner import Cohort, Learned, OwnItems
from veilrec.updates import Round, Rows, Schema, Tensor, Uploads

ITEMS = "items"


def schema(n_items: int) -> Schema:
    """One number per item."""
    return Schema((Tensor(ITEMS, (n_items, 1), by_row=True),))


def start_weights(n_items: int) -> dict[str, Floats]:
    """Nobody has used anything yet."""
    return {ITEMS: np.zeros((n_items, 1), np.float32)}


class VoteLearner:
    """A one for every item of a device: it learns nothing, draws nothing, keeps nothing."""

    keeps_state = False

    def __init__(self, table: str = ITEMS) -> None:
        self.table = table  # the tensor that the votes are about

    def fresh_private_state(self, devices: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing."""
        return {}

    def learn(self, cohort: Cohort[OwnItems], model: Mapping[str, Floats], about: Round) -> Learned:
        """The items that each device has, whatever the model says."""
        once = without_repeats(cohort.data.rows, len(model[self.table]))
        votes = Rows(once.offsets, once.items, np.ones((len(once.items), 1), np.float32))
        examples = once.lengths()
        uploads = Uploads(about.number, len(once), {self.table: votes}, examples=examples)
        return Learned(uploads, examples, np.zeros(len(once), np.float32))
