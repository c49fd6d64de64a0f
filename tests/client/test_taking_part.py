"""A message that overflows is one of zeros, whatever it is made of."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.client.federated import nothing_if_overflown
from veilrec.core.schema import ClientUpdates, Factors


def product(size: float) -> ClientUpdates:
    ones = np.ones((1, 4, 1), np.float32)
    factors = Factors(size * ones, np.ones((1, 1), np.float32), ones.transpose(0, 2, 1))
    return ClientUpdates(0, 1, factors={"matrix": factors})


@pytest.mark.parametrize("size", [np.nan, np.inf, 1e30])
def test_factors_that_overflow_become_zeros(size: float) -> None:
    left = nothing_if_overflown(product(size)).factors["matrix"]
    assert not left.product().any()
    assert left.left.shape == (1, 4, 1)


def test_other_factors_stay() -> None:
    assert nothing_if_overflown(product(2.0)).factors["matrix"].product().sum() == 32.0
