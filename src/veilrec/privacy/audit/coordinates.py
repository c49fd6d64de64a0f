"""The test for noise on many coordinates: each moves a little, and all of them together a lot.

The outputs that tell the most have every coordinate beyond a threshold, and nobody ever sees 30 of them do that at
once. But where each coordinate has noise of its own, such an event has probability p^k under one input and q^k under
the other, and p and q are pinned down by all coordinates of all draws. That they are independent is put on trial.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from veilrec._arrays import Doubles
from veilrec.privacy.audit.sampling import epsilon_from_scores

_TRIED = 2_000_000  # numbers in the trial of independence


def epsilon_from_coordinates(first: Doubles, second: Doubles, *, alpha: float) -> float:
    """Pure epsilon from below: k ln(p / q), from a score for each of k coordinates of every draw, `[n, k]`."""
    of_one = epsilon_from_scores(first.ravel(), second.ravel(), delta=0.0, alpha=alpha)
    return int(first.shape[1]) * of_one


def independence_p_value(scores: Doubles) -> float:
    """How surprising the scores `[n, k]` are if neighbouring coordinates say nothing about each other."""
    signs = scores[: _TRIED // scores.shape[1]] > np.median(scores[:1000])
    centred = signs - signs.mean(axis=0)
    spread = centred.std(axis=0)
    products = centred[:, 1:] * centred[:, :-1] / np.maximum(spread[1:] * spread[:-1], 1e-12)
    statistic = float(products.sum()) / math.sqrt(products.size)
    return float(2.0 * ndtr(-abs(statistic)))
