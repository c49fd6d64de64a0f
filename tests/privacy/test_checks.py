from __future__ import annotations

import math

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.privacy import checks


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_positive_refuses_and_names_the_argument(value: float) -> None:
    with pytest.raises(BadInput, match="clip_norm"):
        checks.positive(epsilon=1.0, clip_norm=value)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 2.0, math.nan])
def test_probability_lies_strictly_between_0_and_1(value: float) -> None:
    with pytest.raises(BadInput, match="delta"):
        checks.probability(delta=value)


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_whole_refuses(value: int) -> None:
    with pytest.raises(BadInput, match="rows"):
        checks.whole(rows=value)


def test_whole_accepts_numpy_integers() -> None:
    checks.whole(rows=np.int64(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [[1.0, math.nan], [1.0, math.inf], [1.0], 1.0, [[1.0, 2.0, 3.0]], ["a", "b"]])
def test_vectors_refuses(value: object) -> None:
    with pytest.raises(BadInput, match="update"):
        checks.vectors(2, update=value)  # type: ignore[arg-type]


def test_vectors_keeps_leading_dimensions() -> None:
    assert checks.vectors(2, update=np.zeros((3, 4, 2), np.float32)).shape == (3, 4, 2)


@pytest.mark.parametrize("value", [[5], [-1], [1.0], ["a"]])
def test_categories_refuses(value: object) -> None:
    with pytest.raises(BadInput, match="click"):
        checks.categories(5, click=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [[0, 2], [0.5, 1.0], [0], ["0", "1"], [math.nan, 0.0]])
def test_bits_refuses(value: object) -> None:
    with pytest.raises(BadInput, match="value"):
        checks.bits(2, value=value)  # type: ignore[arg-type]


def test_bits_accepts_zeros_and_ones_of_any_type() -> None:
    for kind in (np.bool_, np.uint8, np.float32):
        np.testing.assert_array_equal(checks.bits(2, value=np.array([0, 1], kind)), [False, True])
