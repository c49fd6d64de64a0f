"""What a round takes of the updates of a cohort: only what it is about, and no device's longer than a bound.

Nothing here is random, and everything is done to each device by itself, over a leading cohort dimension.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from veilrec._arrays import Doubles
from veilrec.errors import VeilrecError
from veilrec.privacy.mechanisms.clipping import clip_devices, clip_factors, device_norms, scale_packed
from veilrec.updates import Factors, Round, Rows, Schema, Tensor, Uploads, copied, entries_at, filled

# Rows that are projected, and factors, are multiplied out again in single precision, which may make them longer by a
# few units in the last place; they are clipped so much shorter.
BELOW_PROJECTED = 1.0 - 2.0**-18


class BadUpdate(VeilrecError):
    """An update that is not within the bounds of its round; nothing of it may reach the sum."""


class OutsideRound(BadUpdate):
    """An update with something that its round is not about."""


def upload_norms(uploads: Uploads) -> Doubles:
    """L2 norm of all that each device sends."""
    packed = [(rows.offsets, rows.values) for rows in (*uploads.tables.values(), *uploads.entries.values())]
    products = [factors.product() for factors in uploads.factors.values()]
    return device_norms(packed, [*uploads.dense.values(), *products])


def clip_whole(uploads: Uploads, clip_norm: float) -> Uploads:
    """Copies in which all that a device sends has at most this L2 norm."""
    kept = copied(uploads)
    if kept.factors:
        return _clip_with_factors(kept, clip_norm * BELOW_PROJECTED)
    packed = [*kept.tables.values(), *kept.entries.values()]
    clip_devices([(rows.offsets, rows.values) for rows in packed], list(kept.dense.values()), clip_norm)
    return kept


def _clip_with_factors(kept: Uploads, clip_norm: float) -> Uploads:
    """The same where some of it are products: they are shortened by their scales, everything else in place."""
    shorter = clip_factors(upload_norms(kept), clip_norm)
    for rows in (*kept.tables.values(), *kept.entries.values()):
        scale_packed(rows.offsets, rows.values, shorter)
    for values in kept.dense.values():
        np.multiply(values, shorter.reshape(-1, *(1,) * (values.ndim - 1)), out=values, casting="same_kind")
    factors = {
        name: replace(f, scales=(f.scales * shorter[:, np.newaxis]).astype(np.float32))
        for name, f in kept.factors.items()
    }
    return replace(kept, factors=factors)


def in_entries(uploads: Uploads, about: Round) -> Uploads:
    """Of tensors that the round is partly about, only those entries."""
    whole, entries = {}, dict(uploads.entries)
    for name, values in uploads.dense.items():
        flat = values.reshape(uploads.count, -1)
        kept = about.entries(name, flat.shape[1])
        if kept is None:
            whole[name] = values
        else:
            entries[name] = entries_at(flat, kept)
    return replace(uploads, dense=whole, entries=entries)


def in_directions(uploads: Uploads, about: Round) -> Uploads:
    """Rows of tables, only in the directions that the round is about."""
    tables = {}
    for name, rows in uploads.tables.items():
        basis = about.basis(rows.values.shape[1])
        if basis is not None:
            left = np.matmul(rows.values, basis, dtype=np.float32)
            tables[name] = Rows(rows.offsets, rows.index, np.matmul(left, basis.T, dtype=np.float32))
    return replace(uploads, tables=tables)


def as_factors(uploads: Uploads, about: Round, view: Schema) -> Uploads:
    """The coordinates in the round's directions instead of the rows."""
    full, factors = filled(uploads, view), {}
    for tensor in view.tables:
        basis = about.basis(tensor.shape[1])
        if basis is not None:
            left = full.tables[tensor.name].values.reshape(full.count, *tensor.shape) @ basis
            ones = np.ones((full.count, basis.shape[1]), np.float32)
            factors[tensor.name] = Factors(left, ones, np.tile(basis.T, (full.count, 1, 1)))
    return replace(full, tables={}, factors=factors)


def rank_parameters(table: Tensor, rank: int) -> int:
    """Numbers of a table of rank r, both factors and the scales: r (rows + width + 1)."""
    return rank * (table.shape[0] + table.shape[1] + 1)


def refuse_outside(uploads: Uploads, about: Round, view: Schema) -> None:
    """Rows outside of the round cannot be written in its messages; entries and directions can."""
    for tensor in view.tensors:
        entries = about.entries(tensor.name, tensor.size)
        if entries is not None:
            rows = uploads.entries.get(tensor.name)
            if tensor.name in uploads.dense or (rows is not None and not np.isin(rows.index, entries).all()):
                raise OutsideRound(f"the update has entries of {tensor.name} that the round is not about")
        basis = about.basis(tensor.shape[1]) if tensor.by_row else None
        if basis is not None:
            factors = uploads.factors.get(tensor.name)
            if tensor.name in uploads.tables or tensor.name in uploads.entries:
                raise OutsideRound(f"the update has directions of {tensor.name} that the round is not about")
            if factors is not None and not (factors.right == basis.T).all():
                raise OutsideRound(f"the update has directions of {tensor.name} that the round is not about")
