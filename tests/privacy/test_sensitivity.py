"""Sections of the notes are those of docs/privacy.md's source, the privacy mathematics."""

from __future__ import annotations

import math

import numpy as np
import pytest

from veilrec.core.arrays import Doubles
from veilrec.core.errors import BadInput
from veilrec.privacy import checks
from veilrec.privacy.checks import BitChange
from veilrec.privacy.mechanisms.clipping import clip_flat


@pytest.mark.parametrize(("clip_norm", "expected"), [(0.4, 0.565685), (2.0, 1.414214)])
def test_attention_l2_of_section_1(clip_norm: float, expected: float) -> None:
    assert checks.attention_l2(clip_norm) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize(
    ("clip_norm", "basis", "expected"),
    [(0.4, 5, 1.258506), (0.6, 5, 1.848528), (0.8, 3, 1.8), (0.1, 8, 0.4), (1.0, 5, 2.0), (1.0, 2, 2.0)],
)
def test_attention_l1_of_section_1(clip_norm: float, basis: int, expected: float) -> None:
    assert checks.attention_l1(clip_norm, basis) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize(("clip_norm", "basis", "ratio"), [(0.4, 5, 3.146264), (0.5, 3, 2.414214), (1, 5, 2)])
def test_published_laplace_is_this_much_too_weak_section_1(clip_norm: float, basis: int, ratio: float) -> None:
    assert checks.attention_l1(clip_norm, basis) / clip_norm == pytest.approx(ratio, abs=5e-7)


def _clipped_attentions(basis: int, clip_norm: float) -> Doubles:
    """Random attention vectors of every sparsity, and all uniform ones on subsets, clipped."""
    generator = np.random.default_rng(basis)
    spread = generator.dirichlet(np.full(basis, 0.1), 300)
    subsets = np.array([[(s >> i) & 1 for i in range(basis)] for s in range(1, 2**basis)], np.float64)
    points = np.concatenate((spread, subsets / subsets.sum(axis=1, keepdims=True)))
    return clip_flat(points, clip_norm)


@pytest.mark.parametrize("basis", [2, 3, 5, 8])
@pytest.mark.parametrize("clip_norm", [0.1, 0.4, 0.6, 0.8, 1.0, 2.0])
def test_attention_diameters_by_brute_force(basis: int, clip_norm: float) -> None:
    points = _clipped_attentions(basis, clip_norm)
    apart = points[:, np.newaxis] - points
    for order, bound in ((1, checks.attention_l1(clip_norm, basis)), (2, checks.attention_l2(clip_norm))):
        largest = np.linalg.norm(apart, order, axis=2).max()
        assert largest <= bound * (1.0 + 1e-12)
        assert largest >= bound * (1.0 - 1e-5)  # attained


def test_l1_of_an_l2_ball_section_7() -> None:
    true = checks.clipped_l1(1.0, 32, "replace-one")
    assert true / 2.0 == pytest.approx(5.656854, abs=5e-7)  # against Delta_f = 2 C
    assert true / 1.0 == pytest.approx(11.313708, abs=1e-6)  # against Delta_f = C
    assert checks.clipped_l1(1.0, 400, "replace-one") / 2.0 == pytest.approx(20.0)  # section 0, 1d


def test_pooling_with_a_fixed_denominator_section_1() -> None:
    assert checks.pooled_l2(1.0, 50, "replace-one") == pytest.approx(0.04)
    assert checks.pooled_l2(1.0, 50, "add-remove") == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("change", "items", "expected"), [("one bit", 1, 1), ("swap", 1, 2), ("set", 4, 8), ("vector", 1, 1682)]
)
def test_changed_bits_section_6(change: BitChange, items: int, expected: int) -> None:
    assert checks.changed_bits(change, length=1682, items=items) == expected


def test_user_level_randomised_response_section_6() -> None:
    assert 2 * checks.changed_bits("vector", length=1682) == 3364
    assert 2 * checks.changed_bits("vector", length=3900) == 7800
    assert 2 * checks.changed_bits("set", length=1682, items=4) == 16


def test_a_set_never_changes_more_bits_than_there_are() -> None:
    assert checks.changed_bits("set", length=5, items=4) == 5


def test_lattice_costs_one_step_per_coordinate() -> None:
    generator = np.random.default_rng(0)
    first, grid = generator.normal(size=(200, 7)), 0.3
    second = first + generator.normal(size=(200, 7))
    moved = np.trunc(first / grid) * grid - np.trunc(second / grid) * grid
    for order, bound in ((1, checks.on_lattice_l1), (2, checks.on_lattice_l2)):
        before = np.linalg.norm(first - second, order, axis=1)
        after = np.linalg.norm(moved, order, axis=1)
        assert (after <= [bound(distance, 7, grid) for distance in before]).all()


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan])
def test_a_clip_of_nothing_is_refused(clip_norm: float) -> None:
    with pytest.raises(BadInput, match="clip_norm"):
        checks.attention_l2(clip_norm)
    with pytest.raises(BadInput, match="clip_norm"):
        checks.clipped_l2(clip_norm, "replace-one")


def test_unknown_changes_are_refused() -> None:
    with pytest.raises(BadInput, match="one bit"):
        checks.changed_bits("two bits", length=5)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="swap"):
        checks.changed_bits("swap", length=1)


def test_lattice_cost_of_section_8() -> None:
    # OpenDP's Gaussian at k = -20, B = 5, scale 4, d_in = sqrt 2
    moved = checks.on_lattice_l2(math.sqrt(2.0), 5, 2.0**-20)
    assert moved**2 / (2.0 * 4.0**2) == pytest.approx(0.0625001885, abs=5e-11)
