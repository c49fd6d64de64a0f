from __future__ import annotations

import math

import numpy as np
import pytest

from veilrec.core.arrays import Doubles
from veilrec.core.errors import BadInput
from veilrec.privacy.accounting import delta_of
from veilrec.privacy.accounting.gaussian import delta_gaussian
from veilrec.privacy.events import ZcdpEvent
from veilrec.privacy.mechanisms.discrete import DiscreteGaussian, DiscreteLaplace, discrete_gaussian_masses
from veilrec.privacy.randomness import SeededSource


def _hockey_stick(masses: Doubles, shift: int, epsilon: float) -> float:
    padded = np.concatenate((masses, np.zeros(shift)))
    moved = np.concatenate((np.zeros(shift), masses))
    return float(np.maximum(padded - math.exp(epsilon) * moved, 0.0).sum())


@pytest.mark.parametrize("shift", [1, 3])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_discrete_gaussian_profile_by_enumeration(shift: int, epsilon: float) -> None:
    mechanism = DiscreteGaussian(
        dimension=1, sensitivity=shift, epsilon=1.0, delta=1e-4, unit="user", adjacency="replace-one"
    )
    _, masses = discrete_gaussian_masses(float(mechanism.variance))
    assert mechanism.delta(epsilon) == pytest.approx(_hockey_stick(masses, shift, epsilon), rel=1e-6)


def test_discrete_gaussian_of_a_vector_keeps_the_bound_of_zcdp_section_9() -> None:
    mechanism = DiscreteGaussian(
        dimension=10, sensitivity=10, epsilon=2.0, delta=1e-6, unit="user", adjacency="replace-one"
    )
    # rho_max(2, 1e-6) of a mixed ledger is .088153; exact Gaussian noise would be 22.305 (section 6)
    assert float(mechanism.variance) == pytest.approx(100.0 / (2.0 * 0.088153), rel=1e-5)
    rho = mechanism.event().rho
    assert delta_gaussian(2.0, math.sqrt(2.0 * rho)) < mechanism.delta(2.0) <= 1e-6


@pytest.mark.parametrize("variance", [0.12, 0.1825, 0.3, 1.0, 4.0])
def test_the_event_of_a_discrete_gaussian_covers_it_where_a_gaussian_one_does_not(variance: float) -> None:
    _, masses = discrete_gaussian_masses(variance)
    true = [_hockey_stick(masses, 1, epsilon) for epsilon in np.linspace(0.1, 12.0, 40)]
    zcdp = [delta_of(ZcdpEvent(0.5 / variance), epsilon) for epsilon in np.linspace(0.1, 12.0, 40)]
    gaussian = [delta_gaussian(epsilon, variance**-0.5) for epsilon in np.linspace(0.1, 12.0, 40)]
    assert all(exact <= accounted * (1.0 + 1e-9) for exact, accounted in zip(true, zcdp, strict=True))
    assert any(exact > 1.1 * accounted for exact, accounted in zip(true, gaussian, strict=True))


@pytest.mark.parametrize("shift", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 0.9])
def test_discrete_laplace_profile_by_enumeration(shift: int, epsilon: float) -> None:
    mechanism = DiscreteLaplace(dimension=1, sensitivity=shift, epsilon=1.0, unit="user", adjacency="replace-one")
    ratio = math.exp(-1.0 / mechanism.scale)
    masses = (1.0 - ratio) / (1.0 + ratio) * ratio ** np.abs(np.arange(-400, 401))
    assert mechanism.delta(epsilon) == pytest.approx(_hockey_stick(masses, shift, epsilon), rel=1e-6)


def test_counts_stay_whole_numbers() -> None:
    mechanisms: list[DiscreteGaussian | DiscreteLaplace] = [*DiscreteGaussian.examples(), *DiscreteLaplace.examples()]
    for mechanism in mechanisms:
        noisy = mechanism.release(np.zeros((7, mechanism.dimension), np.int64), SeededSource(1)).value
        assert noisy.dtype == np.int64
        assert noisy.shape == (7, mechanism.dimension)


@pytest.mark.parametrize("value", [[0.5], [2**62], [True]])
def test_anything_but_moderate_whole_numbers_is_refused(value: list[float]) -> None:
    with pytest.raises(BadInput):
        DiscreteGaussian.examples()[0].release(np.array(value), SeededSource(1))


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(BadInput, match="sensitivity"):
        DiscreteGaussian(dimension=1, sensitivity=1.5, epsilon=1.0, delta=1e-6, unit="user", adjacency="replace-one")
    with pytest.raises(BadInput, match="delta"):
        DiscreteGaussian(dimension=1, sensitivity=1, epsilon=1.0, delta=0.0, unit="user", adjacency="replace-one")
    with pytest.raises(BadInput, match="epsilon"):
        DiscreteLaplace(dimension=1, sensitivity=1, epsilon=0.0, unit="user", adjacency="replace-one")
