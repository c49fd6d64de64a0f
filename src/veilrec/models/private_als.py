"""Item vectors from noisy sums over people: the items' half of alternating least squares.

Chien et al., Private Alternating Least Squares, ICML 2021, for uses without ratings. With the vectors u of people, of
length 1, and weights c_ui of their items, whose squares add up to 1 for everybody, three sums are released with noise:

    G = sum over u of u u^T        A_i = sum over users of i of c_ui u u^T        b_i = sum over users of i of c_ui u

and item i gets (unobserved G + A_i + ridge I)^-1 b_i, with A_i and G projected on matrices without negative
eigenvalues. Where A_i is not asked for, the users of an item are taken to be like everybody: A_i = (sum of c_ui / n) G,
with that sum from the votes that are known already. All of it is public: whoever has the sums can do it.

Where something is known of items (as in Curmei et al., Private Matrix Factorization with Public Item Features, RecSys
2023), the same sums first give a small matrix W, so that F W is the best that features F can say, and the ridge then
draws item vectors to F W instead of nothing:

    W minimises sum over i of (F_i W)(unobserved G + A_i)(F_i W)^T - 2 b_i (F_i W)^T, with a ridge of its own
    (unobserved G + A_i + ridge I)^-1 (b_i + ridge F_i W)

F has, beside a one and the root of popularity p, the features, centred and times that root: the sums of popular items
are larger, and so are their vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from veilrec.core.arrays import Doubles, Floats, Offsets
from veilrec.core.csr import Csr

_RIDGE_OF_FEATURES = 0.1  # of an item's ridge, times the root of how many items say something; .01 ranks alike


@dataclass(frozen=True)
class AlsSums:
    """How a person's message is made up, and how sums are solved: the same for everybody."""

    dim: int  # of the vectors
    whole: float  # share of a squared message that tells of u u^T for everybody
    gramians: float  # share that tells of it for each item; 0: left out
    norm: float  # of a message
    unobserved: float  # what an item that somebody has not used counts, beside one that is used
    ridge: float  # added to every item's equations
    exponent: float  # of popularity, in the weight of an item: below 0, rare ones get more
    floor: float  # of popularity
    people: float  # whose votes are in the popularity

    @property
    def width(self) -> int:
        """Numbers of an item's row: b and, where it is asked for, half of A."""
        return self.dim + (self.dim * (self.dim + 1) // 2 if self.gramians else 0)

    @property
    def lengths(self) -> tuple[float, float, float]:
        """Lengths of a message's parts: u u^T, those of items, and the right sides; the squares add up to norm^2."""
        shares = (self.whole, self.gramians, 1.0 - self.whole - self.gramians)
        whole, gramians, right = (self.norm * math.sqrt(share) for share in shares)
        return whole, gramians, right

    def rarities(self, popularity: Floats) -> Doubles:
        """What an item weighs among those of a person, before these are made as long as 1: [items]."""
        votes = popularity.reshape(-1).astype(np.float64)
        return np.asarray(np.maximum(votes, self.floor) ** self.exponent)

    def item_weights(self, popularity: Floats, rows: Csr) -> Doubles:
        """c_ui beside the items of the rows: the squares of a row add up to 1."""
        weights = self.rarities(popularity)[rows.items]
        squares = np.bincount(rows.row_numbers(), weights * weights, minlength=len(rows))
        return np.asarray(weights / np.sqrt(squares)[rows.row_numbers()])

    def messages(self, vectors: Doubles, weights: Doubles, owners: Offsets) -> tuple[Floats, Floats]:
        """u u^T of people [n, dim, dim], and the rows of their items [entries, width]."""
        whole, gramians, right = self.lengths
        squares = vectors[:, :, np.newaxis] * vectors[:, np.newaxis, :]
        rows = right * vectors
        if self.gramians:
            rows = np.concatenate([rows, gramians * _packed(squares)], axis=1)
        told = rows[owners] * weights[:, np.newaxis]
        return (whole * squares).astype(np.float32), told.astype(np.float32)

    def solve(self, popularity: Floats, gram: Floats, rows: Floats, features: Floats | None = None) -> Floats:
        """The item vectors [items, dim]; features [items, k] are known of them."""
        whole, gramians, right = self.lengths
        everybody = gram.astype(np.float64) / whole
        values, vectors = np.linalg.eigh((everybody + everybody.T) / 2.0)
        values = np.maximum(values, 0.0)
        sides = rows[:, : self.dim].astype(np.float64) / right
        if not self.gramians:
            # Every item's matrix has the eigenvectors of G.
            scales = self.unobserved + self._total_weights(popularity) / self.people
            sides = sides @ vectors
            if features is not None:
                sides += self.ridge * self._said(popularity, features, scales, values, sides)
            return np.asarray((sides / (np.outer(scales, values) + self.ridge)) @ vectors.T, np.float32)
        own = _positive(_unpacked(rows[:, self.dim :].astype(np.float64) / gramians, self.dim))
        shared = self.unobserved * (vectors * values) @ vectors.T + self.ridge * np.eye(self.dim)
        return np.asarray(np.linalg.solve(own + shared, sides[..., np.newaxis])[..., 0], np.float32)

    def _said(self, popularity: Floats, features: Floats, scales: Doubles, values: Doubles, sides: Doubles) -> Doubles:
        """F W along the eigenvectors of G, each of which has equations of its own: [items, dim]."""
        votes = np.maximum(popularity.reshape(-1, 1).astype(np.float64), self.floor)
        root = np.sqrt(votes / votes.mean())
        known = np.concatenate([np.ones_like(root), root, root * features], axis=1)  # F
        squares, right = (known * scales[:, np.newaxis]).T @ known, known.T @ sides
        steady = _RIDGE_OF_FEATURES * self.ridge * math.sqrt(len(known)) * np.eye(known.shape[1])
        each = np.linalg.solve(values[:, np.newaxis, np.newaxis] * squares + steady, right.T[..., np.newaxis])
        return np.asarray(known @ each[..., 0].T)

    def _total_weights(self, popularity: Floats) -> Doubles:
        """The sum of c_ui over the users of each item, as far as votes (exponent 0) tell: [items]."""
        votes = np.maximum(popularity.reshape(-1).astype(np.float64), 0.0)
        rarities = self.rarities(popularity)
        mean_square = float((votes * rarities**2).sum()) / max(float(votes.sum()), 1e-12)
        return np.asarray(votes * rarities / math.sqrt(max(mean_square, 1e-12)))


def _packed(squares: Doubles) -> Doubles:
    """The upper half of symmetric matrices [n, d, d] as vectors of the same length."""
    first, second = np.triu_indices(squares.shape[1])
    return np.asarray(squares[:, first, second] * np.where(first == second, 1.0, math.sqrt(2.0)))


def _unpacked(halves: Doubles, dim: int) -> Doubles:
    first, second = np.triu_indices(dim)
    values = halves / np.where(first == second, 1.0, math.sqrt(2.0))
    whole = np.empty((len(halves), dim, dim))
    whole[:, first, second] = values
    whole[:, second, first] = values
    return whole


def _positive(matrices: Doubles) -> Doubles:
    """The nearest symmetric matrices without negative eigenvalues."""
    values, vectors = np.linalg.eigh(matrices)
    scaled = vectors * np.maximum(values, 0.0)[:, np.newaxis, :]
    return np.asarray(scaled @ np.swapaxes(vectors, 1, 2))
