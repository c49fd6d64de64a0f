from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from veilrec.errors import BadInput
from veilrec.privacy.mechanisms.laplace import Laplace
from veilrec.privacy.randomness import SeededSource
from veilrec.privacy.samplers import UNITS


def _laplace(epsilon: float = 1.0, dimension: int = 5, sensitivity: float = 2.0) -> Laplace:
    return Laplace(dimension=dimension, sensitivity=sensitivity, epsilon=epsilon, unit="user", adjacency="replace-one")


def test_scale_is_l1_sensitivity_over_epsilon() -> None:
    assert _laplace(0.5).scale == pytest.approx(4.0, rel=1e-4)
    assert _laplace(0.5).scale > 4.0


def test_noise_has_its_scale_and_lies_on_the_lattice() -> None:
    mechanism = _laplace(dimension=50_000)
    noisy = mechanism.release(np.full(50_000, math.pi), SeededSource(1)).value
    grid = mechanism.scale / UNITS
    np.testing.assert_array_equal(np.rint(noisy / grid) * grid, noisy)
    assert stats.kstest((noisy - math.pi) / mechanism.scale, "laplace").pvalue > 1e-6  # one seed in a million


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.8, 0.2), (0.4, 0.3, 0.3)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 0.7])
def test_one_coordinate_is_the_worst_pair(shares: tuple[float, ...], epsilon: float) -> None:
    """Monte Carlo of the exact profile when the distance is spread; 5 standard errors: one seed in a million."""
    generator = np.random.default_rng(1)
    x = generator.laplace(size=(200_000, len(shares)))
    loss = (np.abs(x - np.array(shares)) - np.abs(x)).sum(axis=1)
    excess = np.maximum(-np.expm1(epsilon - loss), 0.0)
    spread = excess.mean() + 5.0 * excess.std() / math.sqrt(len(x))
    assert spread < -math.expm1((epsilon - 1.0) / 2.0)  # the profile of one coordinate with the whole distance


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": 1e-9}, {"sensitivity": 0.0}, {"dimension": 0}])
def test_bad_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        _laplace(**wrong)  # type: ignore[arg-type]
