"""What a device does with the bytes of a round: read the model, learn, and make its answer."""

from __future__ import annotations

from dataclasses import replace

from veilrec._arrays import Floats
from veilrec.updates import Schema, Uploads
from veilrec.wire import codec


def examples_if_asked(uploads: Uploads, tell_examples: bool) -> Uploads:
    """Leave the number of examples out of the messages unless the aggregation needs it."""
    return uploads if tell_examples else replace(uploads, examples=None)


def weights_of(model: Uploads, schema: Schema) -> dict[str, Floats]:
    """The tensors of a model that has every row of `schema`; a kernel must never look up a row that did not come."""
    tables = {name: rows.values for name, rows in model.tables.items()}
    weights = tables | {name: values[0] for name, values in model.dense.items()}
    for tensor in schema.tensors:
        if tensor.name not in weights or weights[tensor.name].shape != tensor.shape:
            raise codec.BadMessage(f"the model that came lacks {tensor.name} or a part of it")
    return weights
