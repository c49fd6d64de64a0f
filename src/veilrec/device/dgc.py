"""Deep gradient compression on the device (Lin et al. 2018): what is not sent now is kept and sent later.

Per device, over the flattened network: the update g is clipped (local clipping), u = momentum u + g (momentum
correction), v = v + u (error accumulation), some entries of v are sent and set to 0 in u and v (factor masking).
u and v never leave the device. Item rows are cut to their largest entries and not accumulated: a device
touches other rows in every round, and two more item tables on every device would be larger than the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from veilrec._arrays import Floats, Offsets
from veilrec.device.learner import Cohort, Learned, Learner, OwnItems
from veilrec.errors import BadInput
from veilrec.privacy.mechanisms.clipping import clip_factors, device_norms
from veilrec.privacy.mechanisms.largest import largest_of_dense, largest_of_rows
from veilrec.updates import Round, Rows, Schema, check_share, entries_at, share_of

MOMENTUM = "dgc.momentum"
ERROR = "dgc.error"


@dataclass(frozen=True)
class DgcSettings:
    """Deep gradient compression."""

    share: float = 0.1  # of the entries that are sent
    momentum: float = 0.5  # of what a device has not sent yet
    local_clip_norm: float = 1.0  # of the network's part of an update, before it is accumulated

    def __post_init__(self) -> None:
        check_share("dgc.share", self.share)
        if not 0.0 <= self.momentum < 1.0:
            raise BadInput(f"dgc.momentum is {self.momentum}: it has to be from 0 to below 1")
        if not 0.0 < self.local_clip_norm < np.inf:
            raise BadInput(f"dgc.local_clip_norm is {self.local_clip_norm}: it has to be a number above 0")


class DgcLearner:
    """Any learner, with its updates compressed: to the entries that a round is about, or to the largest ones."""

    keeps_state = True

    def __init__(self, inner: Learner[OwnItems], settings: DgcSettings, schema: Schema) -> None:
        self.inner = inner
        self.settings = settings
        self._schema = schema
        self._size = sum(tensor.size for tensor in schema.dense)

    def fresh_private_state(self, devices: Offsets, draws_seed: int) -> dict[str, Floats]:
        """The learner's own state, and empty accumulators."""
        empty = {name: np.zeros((len(devices), self._size), np.float32) for name in (MOMENTUM, ERROR)}
        return self.inner.fresh_private_state(devices, draws_seed) | empty

    def learn(self, cohort: Cohort[OwnItems], model: Mapping[str, Floats], about: Round) -> Learned:
        """Learn, accumulate, and send a part."""
        learned = self.inner.learn(cohort, model, about)
        uploads, tensors = learned.uploads, self._schema.dense
        flat = np.concatenate([uploads.dense[t.name].reshape(uploads.count, -1) for t in tensors], axis=1)
        momentum, error = cohort.private[MOMENTUM], cohort.private[ERROR]
        accumulate(momentum, error, flat, self.settings)
        entries, start = {}, 0
        for tensor in tensors:
            part = slice(start, start + tensor.size)
            named = about.entries(tensor.name, tensor.size)
            entries[tensor.name] = self._take(momentum[:, part], error[:, part], named)
            start += tensor.size
        if about.shares:
            return replace(learned, uploads=replace(uploads, dense={}, entries=entries))
        for table in self._schema.tables:
            height = len(model[table.name])
            count = share_of(height * table.shape[1], self.settings.share)
            entries[table.name] = largest_of_rows(uploads.tables[table.name], count)
        return replace(learned, uploads=replace(uploads, tables={}, dense={}, entries=entries))

    def _take(self, momentum: Floats, error: Floats, named: Offsets | None) -> Rows:
        if named is None:
            rows = largest_of_dense(error, share_of(error.shape[1], self.settings.share))
            device = np.repeat(np.arange(len(error)), np.diff(rows.offsets))
            error[device, rows.index] = 0.0
            momentum[device, rows.index] = 0.0
            return rows
        rows = entries_at(error, named)
        error[:, named] = 0.0
        momentum[:, named] = 0.0
        return rows


def accumulate(momentum: Floats, error: Floats, update: Floats, settings: DgcSettings) -> None:
    """Clip, correct by momentum, and add to what has not been sent yet; in place."""
    factors = clip_factors(device_norms((), [update]), settings.local_clip_norm).astype(np.float32)
    momentum *= np.float32(settings.momentum)
    momentum += factors[:, np.newaxis] * update
    error += momentum
