"""Whether one method is better than another for the same users, or whether chance alone would do as much.

Two methods that are equally good could exchange their answers to a user without anybody noticing. So the differences
of each user keep or change their sign together, at random, many times over: the p-value is how often the mean
difference is then as large as the one that was seen (a permutation test for pairs; Fisher, The Design of Experiments,
1935). Nothing is assumed of how the differences are distributed, and a user with many cases counts as one user.

Where many pairs are tested, Holm's correction (A simple sequentially rejective multiple test procedure, 1979) keeps
the chance of any wrong finding at the level of one test.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from veilrec._arrays import Doubles

FLIPS = 9_999
_AT_ONCE = 1 << 23  # signs that are held at a time


def sign_flip_test(differences: Doubles, *, flips: int = FLIPS, seed: int = 0) -> Doubles:
    """Two-sided p-values, one a column, of [users, pairs]: what each user adds to the mean difference of a pair.

    The same signs serve all columns. A p-value is never below 1 / (flips + 1), and never too small: the differences as
    they are count as one of the draws.
    """
    users, pairs = differences.shape
    seen = np.abs(differences.sum(axis=0))
    edge = seen * (1.0 - 1e-12)  # sums in another order differ in their last digits
    as_large = np.zeros(pairs, np.int64)
    generator = np.random.default_rng([seed, users])
    at_once = max(1, _AT_ONCE // max(users, 1))
    for start in range(0, flips, at_once):
        count = min(at_once, flips - start)
        bits = np.unpackbits(np.frombuffer(generator.bytes(count * (users + 7) // 8 + 1), np.uint8))
        signs = bits[: count * users].reshape(count, users) * 2.0 - 1.0
        as_large += (np.abs(signs @ differences) >= edge).sum(axis=0)
    return ((1.0 + as_large) / (1.0 + flips)).astype(np.float64)


def holm(p_values: Sequence[float]) -> list[float]:
    """The same p-values, corrected for how many there are."""
    order = np.argsort(p_values, kind="stable")
    corrected = np.empty(len(order))
    largest = 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p_values[index]))
        corrected[index] = largest
    return [float(value) for value in corrected]
