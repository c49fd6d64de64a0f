"""Where items lie beyond their content, estimated from noisy sums: among which tastes each was used.

Everybody adds, for each of its items, the place in content space of what came before it: the sum S_i is about W_i
times the mean place at which item i is used, with W_i its votes. What content says of that place is predicted by ridge
regression; the variance of what is left is estimated, the noise is known, and each item keeps as much of it as its sum
can tell (linear empirical Bayes). A second sum, of places among what the first said, is read in the same way: content
and what the first said predict it. Everything here is done to what was released already.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from veilrec._arrays import Doubles, Floats

_RIDGE, _PRIOR, _PER_VOTE, _LEAST = 3.0, 0.07, 0.2, 1e-4  # in squared units of a place along one direction


@dataclass(frozen=True)
class Places:
    """What is known of the items along each direction: [items, directions] each."""

    values: Floats  # beyond content; of unit variance where votes are many, 0 where nothing is known
    gains: Floats  # how far one more of S moves the value
    expected: Floats  # the mean place of an item of this content


def no_places(n_items: int) -> Places:
    """No direction at all."""
    return unknown_places((n_items, 0))


def unknown_places(shape: tuple[int, ...]) -> Places:
    """Directions of which nothing is known yet."""
    nothing = np.zeros(shape, np.float32)
    return Places(nothing, nothing, nothing)


def joined(first: Places, second: Places) -> Places:
    """The directions of both."""
    return Places(*(np.column_stack([getattr(one, each.name) for one in (first, second)]) for each in fields(first)))


def placed(sums: Floats, noise: float, uses: Doubles, content: Floats) -> Places:
    """From sums [items, directions] with noise of this standard deviation, and how many votes items have [items]."""
    if not sums.shape[1]:
        return no_places(len(sums))
    seen, votes = sums.astype(np.float64), uses[:, np.newaxis]
    expected = np.tile(seen.sum(axis=0) / votes.sum(), (len(seen), 1))
    # A place S / W has variance prior + per_vote / W + noise^2 / W^2.
    weight = votes**2 / (_PRIOR * votes**2 + _PER_VOTE * votes + noise**2)
    design = np.column_stack([np.ones(len(seen)), _standardised(content)])
    gram = design.T @ (design * weight) + _RIDGE * np.eye(design.shape[1])
    expected += design @ np.linalg.solve(gram, design.T @ (weight * (seen / votes - expected)))
    left = seen - votes * expected
    # Moments: E left^2 = W^2 variance + W per_vote + noise^2, items weighed by how well they tell.
    squared = (weight / votes) ** 2
    known = left**2 - _PER_VOTE * votes - noise**2
    variance = np.maximum((squared * known).sum(axis=0) / (squared * votes**2).sum(), _LEAST)
    gains = votes * variance / (votes**2 * variance + votes * _PER_VOTE + noise**2) / np.sqrt(variance)
    return Places((gains * left).astype(np.float32), gains.astype(np.float32), expected.astype(np.float32))


def _standardised(content: Floats) -> Doubles:
    wide = content.astype(np.float64)
    return np.asarray((wide - wide.mean(axis=0)) / np.maximum(wide.std(axis=0), 1e-6))
