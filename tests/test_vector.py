"""Vectors in compiled code do what numpy does to eight entries."""

from __future__ import annotations

import numpy as np

from veilrec._jit import jit
from veilrec._vector import LANES, load, load_spread, spread, square_root, store, total, where_positive

VALUES = np.random.default_rng(1).normal(size=(3, 4, 2 * LANES)).astype(np.float32)


@jit
def _arithmetic(left, right, out):
    a, b = load(left, (1, 2, 3)), load(right, (2, 0, 8))
    store(out, (0, 1), a + b)
    store(out, (1, 1), a - b)
    store(out, (2, 1), a * b)
    store(out, (3, 1), a / b)


@jit
def _functions(values, out):
    a = load(values, (0, 0, 0))
    store(out, (0, 1), square_root(a * a))
    store(out, (1, 1), where_positive(a, a * a))
    store(out, (2, 1), spread(values[0, 0, 1]))
    store(out, (3, 1), load_spread(values, (0, 0, 2)))
    return total(a)


def _result(function, *arguments):
    out = np.zeros((4, LANES + 2), np.float32)
    given = function(*arguments, out)
    assert not out[:, 0].any(), "a store began too early"
    assert not out[:, -1].any(), "a store went on too long"
    return out[:, 1:-1], given


def test_operators():
    a, b = VALUES[1, 2, 3 : 3 + LANES], VALUES[2, 0, LANES:]
    out, _ = _result(_arithmetic, VALUES, VALUES)
    np.testing.assert_allclose(out, [a + b, a - b, a * b, a / b], rtol=1e-6)


def test_functions():
    a = VALUES[0, 0, :LANES]
    out, given = _result(_functions, VALUES)
    expected = [np.abs(a), np.where(a > 0, a * a, 0), np.full(LANES, a[1]), np.full(LANES, a[2])]
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    assert given == np.float32(given)
    np.testing.assert_allclose(given, a.sum(), rtol=1e-5)
