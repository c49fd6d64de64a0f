"""What happens to an update before it leaves a device: bounded per device, then noise; and what the sum then holds.

`bound` is not linear and always runs per device, over a cohort. Noise is linear: a real device adds its own with
`perturb`, a simulation may add `noise_of_sum` to the sum once, which has the same distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from veilrec._arrays import Floats
from veilrec._jit import jit
from veilrec.privacy.checks import positive
from veilrec.privacy.mechanisms.clipping import clip_devices
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import (
    add_gaussian,
    add_laplace,
    simulated_gaussian,
    simulated_laplace,
    simulated_laplace_sum,
)
from veilrec.updates import Rows, Schema, Tensor, Uploads


class Protection(Protocol):
    """Bounds and noise of one method."""

    @property
    def fills_messages(self) -> bool:
        """Whether noise goes to every entry, so that a message carries every row."""

    def bound(self, uploads: Uploads) -> Uploads:
        """Clip, select or compress each device's update."""

    def perturb(self, uploads: Uploads, schema: Schema, source: Source) -> Uploads:
        """All that a real device does to its bounded update before it leaves."""

    def perturb_each(self, uploads: Uploads, schema: Schema, source: Source) -> Uploads:
        """The part of `perturb` that cannot be done to the sum of the messages instead."""

    def noise_of_sum(self, schema: Schema, devices: int, generator: np.random.Generator) -> dict[str, Floats]:
        """The rest of `perturb`, for so many devices at once: the sum of their noise."""

    def counted_parameters(self, table: Tensor) -> int:
        """Numbers in one message about a table, as the communication paper counts them."""


class Unprotected:
    """No protection: for methods whose guarantee says that their messages are not private."""

    @property
    def fills_messages(self) -> bool:
        """A message carries what changed."""
        return False

    def bound(self, uploads: Uploads) -> Uploads:
        """Leave the updates as they are."""
        return uploads

    def perturb(self, uploads: Uploads, schema: Schema, source: Source) -> Uploads:
        """Nothing but what is done to each message."""
        return self.perturb_each(uploads, schema, source)

    def perturb_each(self, uploads: Uploads, schema: Schema, source: Source) -> Uploads:
        """Nothing."""
        return uploads

    def noise_of_sum(self, schema: Schema, devices: int, generator: np.random.Generator) -> dict[str, Floats]:
        """Nothing."""
        return {}

    def counted_parameters(self, table: Tensor) -> int:
        """All rows, changed or not."""
        return table.size


@dataclass(frozen=True, kw_only=True)
class WholeUpdateClip(Unprotected):
    """One L2 bound over all that a device sends; the noise is added to the sum, behind the door."""

    clip_norm: float

    def bound(self, uploads: Uploads) -> Uploads:
        """Scale down every update that is longer than the bound."""
        return clip_whole(uploads, self.clip_norm)


@dataclass(frozen=True, kw_only=True)
class NoisyMessage(Unprotected):
    """Clipped on the device, and noise on every entry of the message, as published.

    Matrix factorisation clips every row on its own and adds Laplace noise (priv-fedmf-sub, eq. 10); networks clip
    the whole update and add Gaussian noise (eq. 14).
    """

    clip_norm: float
    scale: float  # of the Laplace noise, or the standard deviation of the Gaussian
    noise: Literal["laplace", "gaussian"] = "laplace"
    clip: Literal["row", "update"] = "row"

    @property
    def fills_messages(self) -> bool:
        """Every row has noise, so every row is sent."""
        return True

    def __post_init__(self) -> None:
        positive(clip_norm=self.clip_norm)

    def bound(self, uploads: Uploads) -> Uploads:
        """Scale down every row, or every update, that is longer than the bound."""
        if self.clip == "update":
            return clip_whole(uploads, self.clip_norm)
        kept = _copy(uploads)
        for rows in kept.tables.values():
            _clip_rows(rows.values, np.float32(self.clip_norm))
        return kept

    def perturb(self, uploads: Uploads, schema: Schema, source: Source) -> Uploads:
        """Fill the message and add noise to every entry."""
        return self.add_noise(fill(uploads, schema), source)

    def add_noise(self, uploads: Uploads, source: Source) -> Uploads:
        """Noise on everything that the messages carry."""
        if not self.scale:
            return uploads
        return replace(
            uploads,
            tables={name: self._noisy_rows(rows, source) for name, rows in uploads.tables.items()},
            entries={name: self._noisy_rows(rows, source) for name, rows in uploads.entries.items()},
            dense={name: self._noisy(values, source) for name, values in uploads.dense.items()},
        )

    def _noisy_rows(self, rows: Rows, source: Source) -> Rows:
        return Rows(rows.offsets, rows.index, self._noisy(rows.values, source))

    def _noisy(self, values: Floats, source: Source) -> Floats:
        if not source.protects:
            return values + self._simulated(values.shape, source)
        if self.noise == "laplace":
            noisy = add_laplace(values.astype(np.float64), scale=self.scale, source=source)
        else:
            noisy = add_gaussian(values.astype(np.float64), sigma=self.scale, source=source)
        return noisy.astype(np.float32)

    def _simulated(self, shape: tuple[int, ...], source: Source) -> Floats:
        """Nobody is protected by seeded noise, so it need not lie on a lattice: several times faster."""
        generator = np.random.Generator(np.random.SFC64(int(source.words(1)[0])))
        if self.noise == "laplace":
            return simulated_laplace(generator, shape, scale=self.scale)
        return simulated_gaussian(generator, shape, sigma=self.scale)

    def noise_of_sum(self, schema: Schema, devices: int, generator: np.random.Generator) -> dict[str, Floats]:
        """Sum of n Laplace draws as a difference of two Gamma(n); of n Gaussians, one Gaussian."""
        if not devices or not self.scale:
            return {}
        return {t.name: self._sum(t.shape, devices, generator) for t in schema.tensors}

    def _sum(self, shape: tuple[int, ...], devices: int, generator: np.random.Generator) -> Floats:
        if self.noise == "gaussian":
            return simulated_gaussian(generator, shape, sigma=self.scale * devices**0.5)
        return simulated_laplace_sum(generator, shape, scale=self.scale, devices=devices).astype(np.float32)


def clip_whole(uploads: Uploads, clip_norm: float) -> Uploads:
    """Copies in which all that a device sends has at most this L2 norm."""
    kept = _copy(uploads)
    packed = [*kept.tables.values(), *kept.entries.values()]
    clip_devices([(rows.offsets, rows.values) for rows in packed], list(kept.dense.values()), clip_norm)
    return kept


def fill(uploads: Uploads, schema: Schema) -> Uploads:
    """The same messages with every row of every table in them, zero where nothing changed."""
    tables = {}
    for tensor in schema.tables:
        if tensor.name in uploads.entries:
            continue
        rows = uploads.tables.get(tensor.name)
        height, width = tensor.shape
        values = np.zeros((uploads.count, height, width), np.float32)
        if rows is not None:
            device = np.repeat(np.arange(uploads.count), np.diff(rows.offsets))
            values[device, rows.index] = rows.values
        offsets = np.arange(uploads.count + 1, dtype=np.int64) * height
        index = np.tile(np.arange(height, dtype=np.int32), uploads.count)
        tables[tensor.name] = Rows(offsets, index, values.reshape(-1, width))
    return replace(uploads, tables=tables)


def _copy(uploads: Uploads) -> Uploads:
    def copied(packed: Mapping[str, Rows]) -> dict[str, Rows]:
        return {name: Rows(rows.offsets, rows.index, rows.values.copy()) for name, rows in packed.items()}

    return replace(
        uploads,
        tables=copied(uploads.tables),
        entries=copied(uploads.entries),
        dense={name: values.copy() for name, values in uploads.dense.items()},
    )


@jit
def _clip_rows(values: Floats, clip_norm: np.float32) -> None:
    for entry in range(values.shape[0]):
        total = np.float32(0.0)
        for q in range(values.shape[1]):
            total += values[entry, q] * values[entry, q]
        if total > clip_norm * clip_norm:
            factor = clip_norm / np.sqrt(total)
            for q in range(values.shape[1]):
                values[entry, q] *= factor
