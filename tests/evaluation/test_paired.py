"""The paired test: exact where it can be counted out, right in size where nothing differs; Holm's correction."""

from itertools import product

import numpy as np
import pytest

from veilrec.evaluation.metrics import holm, sign_flip_test


def exact(differences):
    """All ways to flip."""
    signs = np.array(list(product((-1.0, 1.0), repeat=len(differences))))
    return float(np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12))


@pytest.mark.parametrize("seed", range(4))
def test_the_p_value_is_that_of_all_flips(seed):
    differences = np.random.default_rng(seed).normal(0.3, 1.0, 12)
    (p_value,) = sign_flip_test(differences[:, None])
    expected = exact(differences)
    # Four draws, each within 5 standard deviations of 9,999 flips: fails by chance once in 400,000 seeds.
    assert p_value == pytest.approx(expected, abs=5 * np.sqrt(expected * (1 - expected) / 9_999) + 1e-4)


def test_columns_are_tests_of_their_own_and_both_sides_count():
    differences = np.column_stack([np.ones(30), -np.ones(30), np.zeros(30), np.tile([1.0, -1.0], 15)])
    up, down, nothing, balanced = sign_flip_test(differences)
    assert up == down == pytest.approx(1e-4)  # never below 1 / (flips + 1)
    assert nothing == balanced == 1.0


def test_equally_good_methods_are_told_apart_as_seldom_as_promised():
    generator = np.random.default_rng(5)
    differences = generator.normal(size=(60, 2000)) * generator.exponential(size=(60, 1))  # heavy tails, no favourite
    share = np.mean(sign_flip_test(differences, flips=999) <= 0.05)
    assert share == pytest.approx(0.05, abs=0.025)  # 5 standard deviations: 4 in 10 million seeds fail


def test_many_users_are_flipped_in_parts(monkeypatch):
    differences = np.random.default_rng(1).normal(0.1, 1.0, (500, 2))
    monkeypatch.setattr("veilrec.evaluation.metrics._AT_ONCE", 500 * 7)
    parts = sign_flip_test(differences, flips=2_000)
    monkeypatch.undo()
    assert parts == pytest.approx(sign_flip_test(differences, flips=2_000), abs=0.06)


def test_holm_multiplies_by_what_is_left_and_never_falls():
    # Worked by hand: sorted .005 .01 .03 .04 times 4 3 2 1, then the largest so far.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
