"""What a device does with the bytes of a round: read the model, learn, and make its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from veilrec._arrays import Floats
from veilrec.lattice import MOST_EXAMPLES
from veilrec.updates import Factors, Rows, Schema, Uploads
from veilrec.wire import codec

_LARGEST = 2.0**60  # its square is still a number in single precision, in which norms are taken


def examples_if_asked(uploads: Uploads, tell_examples: bool) -> Uploads:
    """Leave the number of examples out of the messages unless the aggregation needs it; no more than it takes."""
    if not tell_examples or uploads.examples is None:
        return replace(uploads, examples=None)
    return replace(uploads, examples=np.minimum(uploads.examples, MOST_EXAMPLES))


def nothing_if_overflown(uploads: Uploads) -> Uploads:
    """The message of one device; of zeros where a number is none, or too large to be squared.

    Whoever sends the model can make it overflow for some data alone: a device that then fell silent would tell that it
    has such data, as often as it is asked, and pay for nothing.
    """
    packed = (*uploads.tables.values(), *uploads.entries.values())
    factors = (part for f in uploads.factors.values() for part in (f.left, f.scales, f.right))
    numbers = (*(rows.values for rows in packed), *uploads.dense.values(), *factors)
    if all((np.abs(values) <= _LARGEST).all() for values in numbers):
        return uploads

    def zeros(parts: Mapping[str, Rows]) -> dict[str, Rows]:
        return {name: Rows(rows.offsets, rows.index, np.zeros_like(rows.values)) for name, rows in parts.items()}

    dense = {name: np.zeros_like(values) for name, values in uploads.dense.items()}
    products = {
        name: Factors(np.zeros_like(f.left), np.zeros_like(f.scales), np.zeros_like(f.right))
        for name, f in uploads.factors.items()
    }
    tables, entries = zeros(uploads.tables), zeros(uploads.entries)
    return replace(uploads, tables=tables, entries=entries, dense=dense, factors=products)


def weights_of(model: Uploads, schema: Schema) -> dict[str, Floats]:
    """The tensors of a model that has every row of `schema`; a kernel must never look up a row that did not come."""
    tables = {name: rows.values for name, rows in model.tables.items()}
    weights = tables | {name: values[0] for name, values in model.dense.items()}
    for tensor in schema.tensors:
        if tensor.name not in weights or weights[tensor.name].shape != tensor.shape:
            raise codec.BadMessage(f"the model that came lacks {tensor.name} or a part of it")
    return weights
