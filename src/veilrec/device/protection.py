"""What happens to an update before it leaves a device: bounded per device, then noise; and what the sum then holds.

`bound` is not linear and always runs per device, over a cohort. Noise is linear: a real device adds its own with
`perturb`, a simulation may add `noise_of_sum` to the sum once, which has the same distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from veilrec._arrays import Floats
from veilrec._jit import jit
from veilrec.privacy.checks import positive
from veilrec.privacy.mechanisms.clipping import clip_devices
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import add_gaussian, add_laplace, simulated_gaussian, simulated_laplace_sum
from veilrec.wire.messages import Rows, Schema, Uploads


class Protection(Protocol):
    """Bounds and noise of one method."""

    @property
    def fills_messages(self) -> bool:
        """Whether noise goes to every entry, so that a message carries every row."""

    def bound(self, uploads: Uploads) -> Uploads:
        """Clip, select or compress each device's update."""

    def perturb(self, uploads: Uploads, schema: Schema, source: Source) -> Uploads:
        """Add each device's own noise."""

    def noise_of_sum(self, schema: Schema, devices: int, generator: np.random.Generator) -> dict[str, Floats]:
        """The sum of the noise of so many devices, drawn at once; empty where devices add none."""


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
        """Add nothing."""
        return uploads

    def noise_of_sum(self, schema: Schema, devices: int, generator: np.random.Generator) -> dict[str, Floats]:
        """Nothing."""
        return {}


@dataclass(frozen=True, kw_only=True)
class WholeUpdateClip(Unprotected):
    """One L2 bound over all that a device sends; the noise is added to the sum, behind the door."""

    clip_norm: float

    def bound(self, uploads: Uploads) -> Uploads:
        """Scale down every update that is longer than the bound."""
        kept = _copy(uploads)
        clip_devices(
            [(rows.offsets, rows.values) for rows in kept.tables.values()],
            list(kept.dense.values()),
            self.clip_norm,
        )
        return kept


@dataclass(frozen=True, kw_only=True)
class RowClip:
    """Every row clipped on its own, and noise on every entry of the message (priv-fedmf-sub, eq. 10)."""

    clip_norm: float
    scale: float  # of the Laplace noise, or the standard deviation of the Gaussian
    noise: Literal["laplace", "gaussian"] = "laplace"

    @property
    def fills_messages(self) -> bool:
        """Every row has noise, so every row is sent."""
        return True

    def __post_init__(self) -> None:
        positive(clip_norm=self.clip_norm)

    def bound(self, uploads: Uploads) -> Uploads:
        """Scale down every row that is longer than the bound."""
        kept = _copy(uploads)
        for rows in kept.tables.values():
            _clip_rows(rows.values, np.float32(self.clip_norm))
        return kept

    def perturb(self, uploads: Uploads, schema: Schema, source: Source) -> Uploads:
        """Fill the message and add noise to every entry."""
        filled = fill(uploads, schema)
        if not self.scale:
            return filled
        tables = {}
        for name, rows in filled.tables.items():
            values = rows.values.astype(np.float64)
            if self.noise == "laplace":
                noisy = add_laplace(values, scale=self.scale, source=source)
            else:
                noisy = add_gaussian(values, sigma=self.scale, source=source)
            tables[name] = Rows(rows.offsets, rows.index, noisy.astype(np.float32))
        return Uploads(filled.round_number, filled.count, tables, filled.dense, filled.examples)

    def noise_of_sum(self, schema: Schema, devices: int, generator: np.random.Generator) -> dict[str, Floats]:
        """Sum of n Laplace draws as a difference of two Gamma(n); of n Gaussians, one Gaussian."""
        if not devices or not self.scale:
            return {}
        if self.noise == "gaussian":
            sigma = self.scale * devices**0.5
            return {t.name: simulated_gaussian(generator, t.shape, sigma=sigma) for t in schema.tables}
        return {
            t.name: simulated_laplace_sum(generator, t.shape, scale=self.scale, devices=devices).astype(
                np.float32
            )
            for t in schema.tables
        }


def fill(uploads: Uploads, schema: Schema) -> Uploads:
    """The same messages with every row of every table in them, zero where nothing changed."""
    tables = {}
    for tensor in schema.tables:
        rows = uploads.tables.get(tensor.name)
        height, width = tensor.shape
        values = np.zeros((uploads.count, height, width), np.float32)
        if rows is not None:
            device = np.repeat(np.arange(uploads.count), np.diff(rows.offsets))
            values[device, rows.index] = rows.values
        offsets = np.arange(uploads.count + 1, dtype=np.int64) * height
        index = np.tile(np.arange(height, dtype=np.int32), uploads.count)
        tables[tensor.name] = Rows(offsets, index, values.reshape(-1, width))
    return Uploads(uploads.round_number, uploads.count, tables, uploads.dense, uploads.examples)


def _copy(uploads: Uploads) -> Uploads:
    tables: Mapping[str, Rows] = {
        name: Rows(rows.offsets, rows.index, rows.values.copy()) for name, rows in uploads.tables.items()
    }
    dense = {name: values.copy() for name, values in uploads.dense.items()}
    return Uploads(uploads.round_number, uploads.count, tables, dense, uploads.examples)


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
