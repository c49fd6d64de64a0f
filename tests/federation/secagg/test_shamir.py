from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilrec.core.errors import BadInput
from veilrec.federation.secagg.pairs import PRIME, combine, split
from veilrec.federation.secagg.terms import TooFew
from veilrec.wire.messages import BadMessage


@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.sets(st.integers(1, 2**32), min_size=6, max_size=9))
def test_any_threshold_of_the_shares_gives_the_secret_back(secret, threshold, points):
    shares = dict(zip(points, split(secret, threshold, list(points)), strict=True))
    assert combine(shares, threshold) == secret
    assert combine(dict(list(shares.items())[-threshold:]), threshold) == secret


def test_below_the_threshold_every_secret_is_as_likely():
    """Given two shares of three, each secret belongs to exactly one third share: nothing is told."""
    shares = dict(zip((1, 2, 3), split(bytes(32), 3, (1, 2, 3)), strict=True))
    for other in (b"\1" * 32, b"\xff" * 32):
        # The value at 3 of the polynomial through (0, other), (1, .), (2, .): s(3) = s(0) - 3 s(1) + 3 s(2)
        first, second = (int.from_bytes(shares[x], "big") for x in (1, 2))
        third = (int.from_bytes(other, "big") - 3 * first + 3 * second) % PRIME
        assert combine({1: shares[1], 2: shares[2], 3: third.to_bytes(33, "big")}, 3) == other


def test_the_modulus_is_a_prime():
    """Miller-Rabin with twenty bases: a composite passes one time in 4^20."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 22):
        power = pow(base, odd, PRIME)
        assert power == 1 or any(pow(power, 2**r, PRIME) == PRIME - 1 for r in range(twos))


def test_what_is_no_sharing_is_refused():
    with pytest.raises(BadInput, match="threshold is 3 with 2 shares"):
        split(bytes(32), 3, [1, 2])
    for secret, points in ((bytes(31), [1, 2]), (bytes(32), [1, 1]), (bytes(32), [0, 1])):
        with pytest.raises(ValueError, match="bytes|distinct"):
            split(secret, 2, points)
    with pytest.raises(BadMessage, match="no secret"):
        combine({1: (2**256 + 1).to_bytes(33, "big")}, 1)
    with pytest.raises(TooFew, match="3 shares came, and 4"):
        combine(dict(enumerate(split(bytes(32), 4, range(1, 7))[:3], 1)), 4)
