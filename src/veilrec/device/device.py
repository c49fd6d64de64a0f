"""A real device: one user's data and state, a model that comes in, a message that goes out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from veilrec._arrays import Floats, Indices
from veilrec._csr import Csr
from veilrec.device.learner import Cohort, Learner
from veilrec.device.protection import Protection
from veilrec.device.submodel import narrow, places
from veilrec.privacy.randomness import SecureSource, Source
from veilrec.updates import Schema, Uploads
from veilrec.wire import codec
from veilrec.wire.values import ValueCoding


class Device:
    """A cohort of one behind the door: bytes in, bytes out."""

    def __init__(
        self,
        number: int,
        items: Indices,
        learner: Learner,
        schema: Schema,
        protection: Protection,
        *,
        source: Source | None = None,
        tell_examples: bool = False,
        submodel: bool = False,
        upload_values: ValueCoding | None = None,
    ) -> None:
        self.number = np.array([number], np.int64)
        self.items = np.ascontiguousarray(items, dtype=np.int32)
        self.learner = learner
        self.schema = schema
        self.protection = protection
        self.source = SecureSource() if source is None else source
        self.tell_examples = tell_examples
        self.submodel = submodel  # whether a model with only some rows of its tables will do
        self.upload_schema = schema if upload_values is None else schema.coded(upload_values)
        self.private = learner.fresh_private_state(self.number)

    def take_part(self, broadcast: bytes, round_number: int) -> bytes:
        """Learn from the model that came and answer with this device's message."""
        model = codec.decode(broadcast, self.schema, round_number)
        data = Csr(np.array([0, len(self.items)], np.int64), self.items)
        view = self.upload_schema
        rows = sent_rows(model, self.schema) if self.submodel else None
        if rows is not None:
            view = view.narrowed(len(rows))
            data = narrow(data, places(rows, self.schema.tables[0].shape[0]))
        cohort = Cohort(self.number, data, self.private)
        learned = self.learner.learn(cohort, weights_of(model, view), round_number)
        bounded = self.protection.bound(told(learned.uploads, self.tell_examples))
        return codec.encode(self.protection.perturb(bounded, view, self.source), view)


def told(uploads: Uploads, tell_examples: bool) -> Uploads:
    """Leave the number of examples out of the messages unless the aggregation needs it."""
    return uploads if tell_examples else replace(uploads, examples=None)


def sent_rows(model: Uploads, schema: Schema) -> Indices | None:
    """The rows of a sub-model, the same of every table; None for a whole model."""
    first = schema.tables[0]
    if first.name not in model.tables or len(model.tables[first.name].index) in (0, first.shape[0]):
        return None
    rows = model.tables[first.name].index
    for tensor in schema.tables:
        if tensor.name not in model.tables or not np.array_equal(model.tables[tensor.name].index, rows):
            raise codec.BadMessage(f"the sub-model has other rows of {tensor.name} than of {first.name}")
    return rows


def weights_of(model: Uploads, schema: Schema) -> dict[str, Floats]:
    """The tensors of a model that has every row of `schema`; a kernel must never look up a row that did not come."""
    tables = {name: rows.values for name, rows in model.tables.items()}
    weights = tables | {name: values[0] for name, values in model.dense.items()}
    for tensor in schema.tensors:
        if tensor.name not in weights or weights[tensor.name].shape != tensor.shape:
            raise codec.BadMessage(f"the model that came lacks {tensor.name} or a part of it")
    return weights
