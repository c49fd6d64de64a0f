"""The test without chance: all outputs of a discrete mechanism with their probabilities under both inputs."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np

from veilrec._arrays import Doubles


def delta_exact(first: Doubles, second: Doubles, *, epsilon: float) -> float:
    """The smallest delta at epsilon, in the worse direction."""
    factor = math.exp(epsilon)
    there = np.maximum(first - factor * second, 0.0).sum()
    back = np.maximum(second - factor * first, 0.0).sum()
    return float(max(there, back))


def epsilon_exact(first: Doubles, second: Doubles, *, delta: float = 0.0) -> float:
    """The smallest epsilon at delta; infinite where an output of one input cannot come from the other."""
    return max(_one_way(first, second, delta), _one_way(second, first, delta))


def _one_way(first: Doubles, second: Doubles, delta: float) -> float:
    possible = first > 0.0
    first, second = first[possible], second[possible]
    with np.errstate(divide="ignore"):
        ratios = np.where(second > 0.0, first / second, np.inf)
    order = np.argsort(-ratios, kind="stable")
    ratios, p, q = ratios[order], np.cumsum(first[order]), np.cumsum(second[order])
    if delta == 0.0:
        return max(0.0, math.log(ratios[0])) if ratios[0] < math.inf else math.inf
    if p[-1] <= delta:
        return 0.0
    # delta(t) with t = e^eps is the largest of P_k - t Q_k over the k likeliest outputs, k = 1, 2, ...
    enough = p > delta
    with np.errstate(divide="ignore"):
        smallest = np.max((p[enough] - delta) / q[enough])
    return max(0.0, math.log(smallest)) if smallest < math.inf else math.inf


def k_ary_response(categories: int, epsilon: float, *, value: int) -> Doubles:
    """Every category keeps itself with e^eps / (e^eps + C - 1), and becomes each other with 1 / (e^eps + C - 1)."""
    table = np.full(categories, 1.0)
    table[value] = math.exp(epsilon)
    return np.asarray(table / table.sum())


def bit_response(bits: tuple[int, ...], epsilon_per_bit: float) -> Doubles:
    """All 2^m outputs of randomised response on m bits, in binary order."""
    keep = 1.0 / (1.0 + math.exp(-epsilon_per_bit))
    table = np.ones(1)
    for bit in bits:
        table = np.outer(table, (1.0 - keep, keep) if bit else (keep, 1.0 - keep)).ravel()
    return table


def subset_selection(categories: int, width: int, epsilon: float, *, value: int) -> Doubles:
    """All sets of `width` categories, in the order of itertools: e^eps to 1 for those that hold the value."""
    table = np.array(
        [math.exp(epsilon) if value in chosen else 1.0 for chosen in combinations(range(categories), width)]
    )
    return np.asarray(table / table.sum())


def label_permutation(candidates: int, negatives: int, beta: float, *, click: int) -> Doubles:
    """DPL (PrivateRec): the click and k uniform others are shown as a set, and one of them is named as the click.

    Outputs (S, y) in the order of itertools: sets of k + 1, then members.
    """
    sets = 1.0 / math.comb(candidates - 1, negatives)
    top = math.exp(beta)
    return np.array(
        [
            (sets * (top if y == click else 1.0) / (top + negatives)) if click in shown else 0.0
            for shown, y in _shown(candidates, negatives)
        ]
    )


def response_first(candidates: int, negatives: int, epsilon: float, *, click: int) -> Doubles:
    """The sound order: k-ary response names y first, then k others are drawn around it."""
    named = k_ary_response(candidates, epsilon, value=click)
    sets = 1.0 / math.comb(candidates - 1, negatives)
    return np.array([sets * named[y] for _, y in _shown(candidates, negatives)])


def _shown(candidates: int, negatives: int) -> list[tuple[tuple[int, ...], int]]:
    return [
        (shown, y)
        for shown, place in product(combinations(range(candidates), negatives + 1), range(negatives + 1))
        for y in (shown[place],)
    ]
