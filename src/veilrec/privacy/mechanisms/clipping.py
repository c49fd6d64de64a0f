"""Bounding what one client contributes: over flat updates, over packed rows, and with a bound that adapts.

A cohort's updates come flat, `[n, d]`, or packed: client i owns the entries `offsets[i]:offsets[i + 1]` of
`values[entries, width]`, beside dense parts `[n, ...]`. The bound always holds for all parts of a client
together.

What a round takes of the updates of a cohort: only what it is about, and no client's longer than a bound.

Nothing here is random, and everything is done to each client by itself, over a leading cohort dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Doubles, Floats, Offsets
from veilrec.core.errors import BadInput, Diverged, VeilrecError
from veilrec.core.jit import jit
from veilrec.core.schema import ClientUpdates, Factors, RoundSpec, Rows, Schema, Tensor, copied, entries_at, filled
from veilrec.privacy.checks import positive, probability

# Scaled values are rounded to 24 bits, so aim this much below the bound: no norm ever exceeds it.
_BELOW = 1.0 - 2.0**-22

Packed = tuple[Offsets, Floats]  # (offsets [n + 1], values [entries, width])


def client_norms(tables: Sequence[Packed], dense: Sequence[NDArray[Any]] = ()) -> Doubles:
    """L2 norm of each client's whole update, over all its packed rows and dense parts."""
    counts = {len(offsets) - 1 for offsets, _ in tables} | {len(part) for part in dense}
    if len(counts) != 1:
        raise BadInput(f"the parts of the update are of {sorted(counts)} clients: give the same devices in each")
    squares = np.zeros(counts.pop())
    for offsets, values in tables:
        if offsets[0] != 0 or offsets[-1] != len(values):
            raise BadInput(f"offsets run from {offsets[0]} to {offsets[-1]}, but there are {len(values)} rows")
        _add_packed_squares(offsets, values, squares)
    for part in dense:
        flat = part.reshape(len(part), math.prod(part.shape[1:]))  # as packed rows: one of each client
        _add_packed_squares(np.arange(len(part) + 1), flat, squares)
    norms: Doubles = np.sqrt(squares)
    if not np.isfinite(norms).all():
        raise Diverged(
            f"{int((~np.isfinite(norms)).sum())} updates have NaN or infinite values: the model has diverged; "
            "use smaller learning rates, or less noise"
        )
    return norms


def clip_factors(norms: Doubles, clip_norm: float) -> Doubles:
    """What to multiply each update with so that its norm is at most `clip_norm`: min(1, clip_norm / norm)."""
    positive(clip_norm=clip_norm)
    limit = clip_norm * _BELOW
    return np.asarray(limit / np.maximum(norms, limit))


def clip_clients(tables: Sequence[Packed], dense: Sequence[NDArray[Any]], clip_norm: float) -> Doubles:
    """Clip each client's whole update in place; returns the norms before."""
    positive(clip_norm=clip_norm)
    norms = client_norms(tables, dense)
    factors = clip_factors(norms, clip_norm)
    _scale(tables, dense, factors)
    return norms


def _scale(tables: Sequence[Packed], dense: Sequence[NDArray[Any]], factors: Doubles) -> None:
    for offsets, values in tables:
        _scale_packed(offsets, values, factors)
    for part in dense:
        np.multiply(part, factors.reshape(-1, *(1,) * (part.ndim - 1)), out=part, casting="same_kind")


def clip_rows(values: Floats, clip_norm: float) -> Doubles:
    """Clip every row `[entries, width]` by itself, in place; returns the norms before."""
    return clip_clients([(np.arange(len(values) + 1), values)], (), clip_norm)


def clip_flat(values: Doubles, clip_norm: float) -> Doubles:
    """A copy in which every vector along the last dimension has L2 norm at most `clip_norm`."""
    flat = values.reshape(-1, values.shape[-1])
    factors = clip_factors(client_norms((), [flat]), clip_norm)
    return (flat * factors[:, np.newaxis]).reshape(values.shape)


@jit
def _add_packed_squares(offsets: Offsets, values: Floats, squares: Doubles) -> None:
    for client in range(len(squares)):
        total = 0.0
        for entry in range(offsets[client], offsets[client + 1]):
            for q in range(values.shape[1]):
                total += float(values[entry, q]) * float(values[entry, q])
        squares[client] += total


@jit
def _scale_packed(offsets: Offsets, values: Floats, factors: Doubles) -> None:
    for client in range(len(factors)):
        if factors[client] < 1.0:
            for entry in range(offsets[client], offsets[client + 1]):
                for q in range(values.shape[1]):
                    values[entry, q] *= factors[client]


def next_clip_norm(
    clip_norm: float, *, noisy_unclipped_fraction: float, quantile: float, learning_rate: float = 0.2
) -> float:
    """Geometric step to the norm that `quantile` of the updates stay below: S exp(-eta (beta - gamma)),
    always > 0.

    The fraction is taken before clipping and released with noise, so the new bound costs nothing further.
    """
    positive(clip_norm=clip_norm, learning_rate=learning_rate)
    probability(quantile=quantile)
    # More than all or less than nobody is noise; cutting it off is post-processing and keeps one step
    # bounded.
    fraction = min(max(noisy_unclipped_fraction, 0.0), 1.0)
    return clip_norm * math.exp(-learning_rate * (fraction - quantile))


def published_next_clip_norm(
    clip_norm: float, *, noisy_unclipped_fraction: float, quantile: float, learning_rate: float
) -> float:
    """DP-PrivRec, Algorithm 2, line 12: S - alpha_4 (beta - gamma). Its beta is taken after clipping, which
    makes it 1 whatever the updates are: the bound then falls by alpha_4 (1 - gamma) per round, below 0 in
    the end.
    """
    return clip_norm - learning_rate * (noisy_unclipped_fraction - quantile)


def published_noise_split(noise_multiplier: float, quantile_share: float) -> tuple[float, float]:
    """DP-PrivRec, Algorithm 2: z / sqrt(1 - h) for the update, z / sqrt(h) for the quantile; together z."""
    positive(noise_multiplier=noise_multiplier)
    probability(quantile_share=quantile_share)
    return noise_multiplier / math.sqrt(1.0 - quantile_share), noise_multiplier / math.sqrt(quantile_share)


# Rows that are projected, and factors, are multiplied out again in single precision, which may make them longer by a
# few units in the last place; they are clipped so much shorter.
BELOW_PROJECTED = 1.0 - 2.0**-18


class BadUpdate(VeilrecError):
    """An update that is not within the bounds of its round; nothing of it may reach the sum."""


def refuse_longer(norms: Doubles, most: float, *, slack: float = 1.0) -> None:
    """Refuse updates whose norm is above `most`, or none."""
    if not (norms <= most * slack).all():
        raise BadUpdate(f"an update has norm {norms.max():.6g}: this round takes at most {most:.6g}")


class OutsideRound(BadUpdate):
    """An update with something that its round is not about."""


def update_norms(updates: ClientUpdates) -> Doubles:
    """L2 norm of all that each client sends."""
    products = [factors.product() for factors in updates.factors.values()]
    return client_norms(_packed(updates), [*updates.dense.values(), *products])


def scale_clients(updates: ClientUpdates, factors: Doubles) -> None:
    """Multiply all that client i sends, but for products, with `factors[i]`, in place."""
    _scale(_packed(updates), list(updates.dense.values()), factors)


def _packed(updates: ClientUpdates) -> list[Packed]:
    return [(rows.offsets, rows.values) for rows in (*updates.tables.values(), *updates.entries.values())]


def clip_whole(updates: ClientUpdates, clip_norm: float) -> ClientUpdates:
    """Copies in which all that a client sends has at most this L2 norm."""
    kept = copied(updates)
    if kept.factors:
        return _clip_with_factors(kept, clip_norm * BELOW_PROJECTED)
    clip_clients(_packed(kept), list(kept.dense.values()), clip_norm)
    return kept


def _clip_with_factors(kept: ClientUpdates, clip_norm: float) -> ClientUpdates:
    """Clip updates with low-rank products: these are shortened by their scales, everything else in place."""
    shorter = clip_factors(update_norms(kept), clip_norm)
    scale_clients(kept, shorter)
    factors = {
        name: replace(f, scales=(f.scales * shorter[:, np.newaxis]).astype(np.float32))
        for name, f in kept.factors.items()
    }
    return replace(kept, factors=factors)


def in_entries(updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
    """Keep only the entries that the round is about, of tensors that it is partly about."""
    whole, entries = {}, dict(updates.entries)
    for name, values in updates.dense.items():
        flat = values.reshape(updates.count, -1)
        kept = spec.entries(name, flat.shape[1])
        if kept is None:
            whole[name] = values
        else:
            entries[name] = entries_at(flat, kept)
    return replace(updates, dense=whole, entries=entries)


def in_directions(updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
    """Rows of tables, only in the directions that the round is about."""
    tables = {}
    for name, rows in updates.tables.items():
        basis = spec.basis(rows.values.shape[1])
        if basis is not None:
            left = np.matmul(rows.values, basis, dtype=np.float32)
            tables[name] = Rows(rows.offsets, rows.index, np.matmul(left, basis.T, dtype=np.float32))
    return replace(updates, tables=tables)


def as_factors(updates: ClientUpdates, spec: RoundSpec, view: Schema) -> ClientUpdates:
    """The coordinates in the round's directions instead of the rows."""
    full, factors = filled(updates, view), {}
    for tensor in view.tables:
        basis = spec.basis(tensor.shape[1])
        if basis is not None:
            left = full.tables[tensor.name].values.reshape(full.count, *tensor.shape) @ basis
            ones = np.ones((full.count, basis.shape[1]), np.float32)
            factors[tensor.name] = Factors(left, ones, np.tile(basis.T, (full.count, 1, 1)))
    return replace(full, tables={}, factors=factors)


def rank_parameters(table: Tensor, rank: int) -> int:
    """Numbers of a table of rank r, both factors and the scales: r (rows + width + 1)."""
    return rank * (table.shape[0] + table.shape[1] + 1)


def refuse_outside(updates: ClientUpdates, spec: RoundSpec, view: Schema) -> None:
    """Rows outside of the round cannot be written in its messages; entries and directions can."""
    for tensor in view.tensors:
        entries = spec.entries(tensor.name, tensor.size)
        if entries is not None:
            rows = updates.entries.get(tensor.name)
            if tensor.name in updates.dense or (rows is not None and not np.isin(rows.index, entries).all()):
                raise OutsideRound(f"the update has entries of {tensor.name} that the round is not about")
        basis = spec.basis(tensor.shape[1]) if tensor.by_row else None
        if basis is not None:
            factors = updates.factors.get(tensor.name)
            if tensor.name in updates.tables or tensor.name in updates.entries:
                raise OutsideRound(f"the update has directions of {tensor.name} that the round is not about")
            if factors is not None and not (factors.right == basis.T).all():
                raise OutsideRound(f"the update has directions of {tensor.name} that the round is not about")
