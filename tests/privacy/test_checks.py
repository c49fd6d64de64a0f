"""Sections of the notes are those of docs/privacy.md's source, the privacy mathematics."""

import math

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.privacy import checks
from veilrec.privacy.mechanisms.clipping import clip_flat


def test_bad_arguments_are_refused_by_their_name():
    bad = [
        (lambda value: checks.positive(epsilon=1.0, argument=value), [0.0, -1.0, math.nan, math.inf]),
        (lambda value: checks.probability(argument=value), [0.0, 1.0, -0.1, 2.0, math.nan]),
        (lambda value: checks.whole(argument=value), [0, -1, 1.5, True]),
        (
            lambda value: checks.vectors(2, argument=value),
            [[1.0, math.nan], [1.0, math.inf], [1.0], 1.0, [[1.0, 2.0, 3.0]], ["a", "b"]],
        ),
        (lambda value: checks.categories(5, argument=value), [[5], [-1], [1.0], ["a"]]),
        (lambda value: checks.bits(2, argument=value), [[0, 2], [0.5, 1.0], [0], ["0", "1"], [math.nan, 0.0]]),
    ]
    for check, values in bad:
        for value in values:
            with pytest.raises(BadInput, match="argument"):
                check(value)
    checks.whole(rows=np.int64(3))
    assert checks.vectors(2, update=np.zeros((3, 4, 2), np.float32)).shape == (3, 4, 2)
    for kind in (np.bool_, np.uint8, np.float32):
        np.testing.assert_array_equal(checks.bits(2, value=np.array([0, 1], kind)), [False, True])


def _clipped_attentions(basis, clip_norm):
    """Random attention vectors of every sparsity, and all uniform ones on subsets, clipped."""
    generator = np.random.default_rng(basis)
    spread = generator.dirichlet(np.full(basis, 0.1), 300)
    subsets = np.array([[(s >> i) & 1 for i in range(basis)] for s in range(1, 2**basis)], np.float64)
    points = np.concatenate((spread, subsets / subsets.sum(axis=1, keepdims=True)))
    return clip_flat(points, clip_norm)


@pytest.mark.parametrize("basis", [2, 3, 5, 8])
@pytest.mark.parametrize("clip_norm", [0.1, 0.4, 0.6, 0.8, 1.0, 2.0])
def test_attention_diameters_by_brute_force(basis, clip_norm):
    points = _clipped_attentions(basis, clip_norm)
    apart = points[:, np.newaxis] - points
    for order, bound in ((1, checks.attention_l1(clip_norm, basis)), (2, checks.attention_l2(clip_norm))):
        largest = np.linalg.norm(apart, order, axis=2).max()
        assert largest <= bound * (1.0 + 1e-12)
        assert largest >= bound * (1.0 - 1e-5)  # attained


def test_sensitivities_of_sections_0_1_6_and_7():
    true = checks.clipped_l1(1.0, 32, "replace-one")
    assert true / 2.0 == pytest.approx(5.656854, abs=5e-7)  # against Delta_f = 2 C
    assert true / 1.0 == pytest.approx(11.313708, abs=1e-6)  # against Delta_f = C
    assert checks.clipped_l1(1.0, 400, "replace-one") / 2.0 == pytest.approx(20.0)  # section 0, 1d
    assert checks.pooled_l2(1.0, 50, "replace-one") == pytest.approx(0.04)
    assert checks.pooled_l2(1.0, 50, "add-remove") == pytest.approx(0.02)
    for clip_norm, expected in ((0.4, 0.565685), (2.0, 1.414214)):
        assert checks.attention_l2(clip_norm) == pytest.approx(expected, abs=5e-7)
    table = [(0.4, 5, 1.258506), (0.6, 5, 1.848528), (0.8, 3, 1.8), (0.1, 8, 0.4), (1.0, 5, 2.0), (1.0, 2, 2.0)]
    for clip_norm, basis, expected in table:
        assert checks.attention_l1(clip_norm, basis) == pytest.approx(expected, abs=5e-7)
    with pytest.raises(BadInput, match="clip_norm"):
        checks.attention_l2(0.0)
    with pytest.raises(BadInput, match="clip_norm"):
        checks.clipped_l2(math.nan, "replace-one")
    assert checks.changed_bits("one bit", length=1682) == 1
    assert checks.changed_bits("swap", length=1682) == 2
    assert checks.changed_bits("set", length=1682, items=4) == 8
    assert checks.changed_bits("vector", length=1682) == 1682
    assert checks.changed_bits("set", length=5, items=4) == 5  # a set changes no more bits than there are
    with pytest.raises(BadInput, match="one bit"):
        checks.changed_bits("two bits", length=5)
    with pytest.raises(BadInput, match="swap"):
        checks.changed_bits("swap", length=1)


def test_lattice_costs_one_step_per_coordinate():
    generator = np.random.default_rng(0)
    first, grid = generator.normal(size=(200, 7)), 0.3
    second = first + generator.normal(size=(200, 7))
    moved = np.trunc(first / grid) * grid - np.trunc(second / grid) * grid
    for order, bound in ((1, checks.on_lattice_l1), (2, checks.on_lattice_l2)):
        before = np.linalg.norm(first - second, order, axis=1)
        after = np.linalg.norm(moved, order, axis=1)
        assert (after <= [bound(distance, 7, grid) for distance in before]).all()
    # OpenDP's Gaussian at k = -20, B = 5, scale 4, d_in = sqrt 2
    moved = checks.on_lattice_l2(math.sqrt(2.0), 5, 2.0**-20)
    assert moved**2 / (2.0 * 4.0**2) == pytest.approx(0.0625001885, abs=5e-11)
