"""Compiled products against numpy's."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec._matrix import (
    add_combination,
    aligned,
    dot,
    fill,
    set_gated_product,
    set_product,
    set_rectified_product,
    whole_blocks,
    whole_vectors,
)

SIZES = [(4, 1, 8), (8, 5, 16), (12, 7, 24), (4, 0, 8), (0, 3, 16)]  # rows, depth, columns


def numbers(*shape, seed=1):
    space = aligned(*shape)
    space[...] = np.random.default_rng(seed).normal(size=shape)
    return space


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "depth", "columns"), SIZES)
@pytest.mark.parametrize("transposed", [False, True])
def test_products(rows, depth, columns, transposed):
    left = numbers(depth, rows).T if transposed else numbers(rows, depth)
    right, start, gates = (numbers(depth, columns, seed=2), numbers(1, columns, seed=3), numbers(rows, columns, seed=4))
    expected = start + left @ right
    out = np.full((rows, columns), np.nan, np.float32)
    set_product(left, right, start, out)
    close(out, expected)
    set_rectified_product(left, right, start, out)
    close(out, np.maximum(expected, 0.0))
    set_gated_product(left, right, start, gates, out)
    close(out, np.where(gates > 0, expected, 0.0))


def test_a_product_may_be_added_to_what_is_there():
    left, right, out = numbers(8, 3), numbers(3, 8, seed=2), numbers(8, 8, seed=3)
    expected = out + left @ right
    set_product(left, right, out, out)
    close(out, expected)


@pytest.mark.parametrize("rows", [0, 1, 8, 19])
def test_a_combination_adds_weighted_rows(rows):
    weights, table, out = numbers(rows), numbers(rows, 5, seed=2), numbers(5, seed=3)
    expected = out + weights @ table
    add_combination(weights, table, out)
    close(out, expected)


def test_small_parts():
    left, right = numbers(5), numbers(9, seed=2)
    close(dot(left, right, 4), left[:4] @ right[:4])
    fill(left, np.float32(2.0))
    assert (left == 2.0).all()
    assert aligned(3, 5).ctypes.data % 64 == 0
    assert [whole_vectors(width) for width in (0, 1, 8, 9)] == [0, 8, 8, 16]
    assert [whole_blocks(rows) for rows in (0, 1, 4, 5)] == [0, 4, 4, 8]
