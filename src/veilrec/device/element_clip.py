"""FedNewsRec's protection (eq. 4, 5): every entry clipped on its own, Laplace noise on every entry of the message."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from veilrec._arrays import Doubles, Floats, Offsets
from veilrec.device.protection import Unprotected, fill
from veilrec.privacy.checks import positive
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import add_laplace, simulated_laplace_sum
from veilrec.updates import Rows, Schema, Uploads


@dataclass(frozen=True, kw_only=True)
class ElementClip(Unprotected):
    """clip(g, clip_value) + Laplace(scale)."""

    clip_value: float  # delta of eq. 4
    scale: float  # lambda of eq. 5; 0 for no noise

    def __post_init__(self) -> None:
        positive(clip_value=self.clip_value)

    @property
    def fills_messages(self) -> bool:
        """Every entry has noise, so every row is sent."""
        return self.scale > 0.0

    def bound(self, uploads: Uploads) -> Uploads:
        """Clip every entry."""
        tables = {name: Rows(r.offsets, r.index, self._clip(r.values)) for name, r in uploads.tables.items()}
        dense = {name: self._clip(values) for name, values in uploads.dense.items()}
        return replace(uploads, tables=tables, dense=dense)

    def perturb(self, uploads: Uploads, schema: Schema, source: Source) -> Uploads:
        """Fill the message and add noise to every entry."""
        if not self.scale:
            return uploads
        filled = fill(uploads, schema)
        tables = {
            name: Rows(rows.offsets, rows.index, self._noisy(rows.values, source))
            for name, rows in filled.tables.items()
        }
        dense = {name: self._noisy(values, source) for name, values in filled.dense.items()}
        return replace(filled, tables=tables, dense=dense)

    def noise_of_sum(self, schema: Schema, devices: int, generator: np.random.Generator) -> dict[str, Floats]:
        """The sum of the noise of devices that all weigh 1."""
        return self.noise_of_weighted_sum(schema, np.ones(devices), generator)

    def noise_of_weighted_sum(
        self, schema: Schema, weights: Doubles | Offsets, generator: np.random.Generator
    ) -> dict[str, Floats]:
        """The same where the message of device u counts `weights[u]` times: equal weights are drawn at once."""
        if not self.scale or not len(weights):
            return {}
        values, counts = np.unique(weights, return_counts=True)
        noise = {}
        for tensor in schema.tensors:
            total = np.zeros(tensor.shape)
            for value, count in zip(values, counts, strict=True):
                drawn = simulated_laplace_sum(generator, tensor.shape, scale=self.scale, devices=int(count))
                total += value * drawn
            noise[tensor.name] = total.astype(np.float32)
        return noise

    def _clip(self, values: Floats) -> Floats:
        return np.clip(values, -np.float32(self.clip_value), np.float32(self.clip_value))

    def _noisy(self, values: Floats, source: Source) -> Floats:
        return add_laplace(values.astype(np.float64), scale=self.scale, source=source).astype(np.float32)
