"""A real device: one user's data and state, a model that comes in, a message that goes out."""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Floats, Indices
from veilrec._csr import Csr
from veilrec.device.learner import Cohort, Learner
from veilrec.device.protection import Protection
from veilrec.privacy.randomness import SecureSource, Source
from veilrec.wire import codec
from veilrec.wire.messages import Schema, Uploads


class Device:
    """A cohort of one behind the door: bytes in, bytes out."""

    def __init__(
        self, number: int, items: Indices, learner: Learner, schema: Schema, protection: Protection,
        *, source: Source | None = None, tell_examples: bool = False,
    ) -> None:  # fmt: skip
        self.number = np.array([number], np.int64)
        self.items = np.ascontiguousarray(items, dtype=np.int32)
        self.learner = learner
        self.schema = schema
        self.protection = protection
        self.source = SecureSource() if source is None else source
        self.tell_examples = tell_examples
        self.private = learner.fresh_private_state(self.number)

    def take_part(self, broadcast: bytes, round_number: int) -> bytes:
        """Learn from the model that came and answer with this device's message."""
        model = weights_of(codec.decode(broadcast, self.schema, round_number), self.schema)
        data = Csr(np.array([0, len(self.items)], np.int64), self.items)
        cohort = Cohort(self.number, data, self.private)
        learned = self.learner.learn(cohort, model, round_number)
        bounded = self.protection.bound(told(learned.uploads, self.tell_examples))
        return codec.encode(self.protection.perturb(bounded, self.schema, self.source), self.schema)


def told(uploads: Uploads, tell_examples: bool) -> Uploads:
    """Leave the number of examples out of the messages unless the aggregation needs it."""
    if tell_examples:
        return uploads
    return Uploads(uploads.round_number, uploads.count, uploads.tables, uploads.dense)


def weights_of(model: Uploads, schema: Schema) -> dict[str, Floats]:
    """The tensors of a model that was sent whole; a kernel must never look up a row that did not come."""
    tables = {name: rows.values for name, rows in model.tables.items()}
    weights = tables | {name: values[0] for name, values in model.dense.items()}
    for tensor in schema.tensors:
        if tensor.name not in weights or weights[tensor.name].shape != tensor.shape:
            raise codec.BadMessage(f"the model that came lacks {tensor.name} or a part of it")
    return weights
