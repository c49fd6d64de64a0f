"""How popular items are, estimated from noisy votes: empirical Bayes, with what is publicly known as the prior.

An item has e^t votes, seen with Gaussian noise of known size; t is Gaussian around a linear function of the item's
public content. Both are fitted to all votes together (EM on a grid), and an item's estimate is its posterior mean of t.
Where the noise is large, items of the same content share what is known of them; where it is small, votes speak.
Everything here is done to what was released already.
"""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Doubles, Floats

_GRID = np.linspace(-4.0, 7.0, 111)  # of t: from 1/50 of a vote to a thousand
_LONGEST = np.log(1e6)  # of the grid where there are more people
_STEP = 0.1
_TIMES, _RIDGE, _LEAST_VARIANCE, _LEAST_NOISE = 25, 3.0, 0.05, 0.5
_AT_ONCE = 20_000


def estimated(votes: Doubles, sigma: float, content: Floats) -> Floats:
    """For every item the posterior mean of t, and how much a vote more or less moves it: [items, 2].

    `content` [items, K] is what the prior may depend on. The second column is the slope: a device that takes its own
    vote away to see how popular its item is with the others subtracts so much of it.
    """
    noise = max(sigma, _LEAST_NOISE)
    grid = _grid(float(votes.max(initial=1.0)) + 3.0 * noise)
    design = np.column_stack([np.ones(len(votes)), _standardised(content)])
    prior, variance = _fitted(votes, noise, design, grid)
    mean, _ = _posterior(votes, prior, variance, noise, grid)
    below, _ = _posterior(votes - _STEP, prior, variance, noise, grid)
    return np.column_stack([mean, (mean - below) / _STEP]).astype(np.float32)


def _grid(largest: float) -> Doubles:
    last = min(max(_GRID[-1], np.log(max(largest, 1.0)) + 1.0), _LONGEST)
    return np.arange(_GRID[0], last + _STEP / 2.0, _STEP)


def _standardised(content: Floats) -> Doubles:
    centred = content.astype(np.float64) - content.mean(axis=0, dtype=np.float64)
    return np.asarray(centred / np.maximum(centred.std(axis=0), 1e-6))


def _posterior(votes: Doubles, prior: Doubles, variance: float, noise: float, grid: Doubles) -> tuple[Doubles, Doubles]:
    """Mean and variance of t given an item's votes."""
    mean, spread = np.empty(len(votes)), np.empty(len(votes))
    for start in range(0, len(votes), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        log = -0.5 * ((votes[part, np.newaxis] - np.exp(grid)) / noise) ** 2
        log -= 0.5 * (grid - prior[part, np.newaxis]) ** 2 / variance
        chance = np.exp(log - log.max(axis=1, keepdims=True))
        chance /= chance.sum(axis=1, keepdims=True)
        mean[part] = chance @ grid
        spread[part] = chance @ grid**2 - mean[part] ** 2
    return mean, spread


def _fitted(votes: Doubles, noise: float, design: Doubles, grid: Doubles) -> tuple[Doubles, float]:
    """The prior of every item, and its variance."""
    prior, variance = np.full(len(votes), np.log(max(float(votes.mean()), 0.1))), 4.0
    ridge = np.diag([0.0, *np.full(design.shape[1] - 1, _RIDGE)])
    gram = design.T @ design
    for _ in range(_TIMES):
        mean, spread = _posterior(votes, prior, variance, noise, grid)
        prior = design @ np.linalg.solve(gram + ridge * variance, design.T @ mean)
        variance = max(float(((mean - prior) ** 2 + spread).mean()), _LEAST_VARIANCE)
    return prior, variance
