"""Vectors of single items, where the budget pays for them: what content does not say.

An item's vector meets the context's place along the directions that the map found strongest, and a constant. The server
adds up gradients; how far a number of the sum moves a vector is the same to everybody: farther for items that many use,
whose sums have more signal beside the same noise (a shrunken Newton step with a prior on the vectors' size).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Floats

DIRECTIONS = 8
# Chosen on the validation items of ML-1M at epsilon 4 and 8.
_LONGEST = 4.0  # of a context along the strongest direction, in content space
_CURVATURE, _VARIANCE_OF_SUM, _PRIOR = 0.1, 0.02, 0.3


@dataclass(frozen=True)
class ItemSteps:
    """What a number of the sum stands for."""

    people: float  # in a round
    noise: float  # standard deviation of the noise on the sum of gradients
    rate: float  # of the sum of gradients, and units of it

    def of_items(self, popularity: Floats) -> Floats:
        """How far each item's vector moves: [items, 1]."""
        uses = np.exp(popularity[:, :1].astype(np.float64))
        expected = self.people / len(uses) * _CURVATURE * uses / uses.mean()
        seen = expected**2 * _PRIOR**2 + expected * _VARIANCE_OF_SUM + self.noise**2
        return np.asarray(self.rate * expected * _PRIOR**2 / seen, np.float32)


def directions_of(learnt_map: Floats) -> Floats:
    """Along which contexts meet items' vectors: [1 + tastes, 1 + directions], the first a constant."""
    left, values, _ = np.linalg.svd(learnt_map[1:].astype(np.float64), full_matrices=False)
    kept = min(DIRECTIONS, left.shape[1])
    signs = np.where(left[np.abs(left[:, :kept]).argmax(axis=0), np.arange(kept)] < 0, -1.0, 1.0)
    strength = np.sqrt(values[:kept] / max(float(values[0]), 1e-12))
    out = np.zeros((len(learnt_map), 1 + kept))
    out[0, 0] = 2.0  # the constant of a taste is 1/2
    out[1:, 1:] = left[:, :kept] * signs * strength * _LONGEST
    return np.asarray(out, np.float32)
