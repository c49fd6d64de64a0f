"""Secrets of 32 bytes in shares: any `threshold` of them give it back, fewer tell nothing (Shamir 1979)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache

from veilrec.errors import BadInput
from veilrec.federate.secagg.terms import TooFew
from veilrec.wire.codec import BadMessage

PRIME = 2**256 + 297  # the least prime above 2^256: every 32-byte secret is an element
SECRET_BYTES, SHARE_BYTES = 32, 33


def split(secret: bytes, threshold: int, points: Sequence[int]) -> list[bytes]:
    """A share for every point: a random polynomial of degree `threshold` - 1 whose value at 0 is the secret."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= len(points):
        raise BadInput(f"the threshold is {threshold} with {len(points)} shares: it is at least 1 and at most all")
    if len(set(points)) < len(points) or not all(0 < point < PRIME for point in points):
        raise ValueError("the points of shares are distinct and not 0")
    # 40 bytes modulo the prime are uniform to 2^-63.
    coefficients = [int.from_bytes(os.urandom(40), "big") % PRIME for _ in range(threshold - 1)]
    constant = int.from_bytes(secret, "big")
    shares = []
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = (value * point + coefficient) % PRIME
        shares.append(((value * point + constant) % PRIME).to_bytes(SHARE_BYTES, "big"))
    return shares


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret of at least `threshold` shares, by point; what is no secret raises."""
    points = tuple(sorted(shares))[:threshold]
    if len(points) < threshold:
        raise TooFew(f"{len(points)} shares came, and {threshold} are needed: the round is void, nothing is revealed")
    weights = _weights_at_zero(points)
    value = sum(w * int.from_bytes(shares[x], "big") for w, x in zip(weights, points, strict=True)) % PRIME
    if value >> (8 * SECRET_BYTES):
        raise BadMessage("some shares belong to no secret")
    return value.to_bytes(SECRET_BYTES, "big")


@lru_cache(maxsize=4096)
def _weights_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights of the values at these points in the value at 0."""
    weights = []
    for i, x in enumerate(points):
        top = bottom = 1
        for j, other in enumerate(points):
            if j != i:
                top = top * other % PRIME
                bottom = bottom * (other - x) % PRIME
        weights.append(top * pow(bottom, -1, PRIME) % PRIME)
    return tuple(weights)
