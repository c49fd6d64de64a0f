"""Gradients in the basis vectors of the public head, in closed form.

With u the user vector, b the basis vectors, alpha = softmax(b u / sqrt(d)) and v = c alpha b the user put together, the
loss is a softmax over the scores v . r_n. With q its gradient in v: that in b_i is c alpha_i q + l_i u / sqrt(d), where
l_i = alpha_i (m_i - sum of alpha m) and m = c b q. u is taken as it is: nothing goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec.device.news_log import NONE, Examples
from veilrec.models.public_head import MOVED, SHARP, START, PublicHead

_SMALLEST = np.float32(1e-12)
_LENGTH = np.float32(START[0])  # of a user put together from one basis vector


class BasisGradients:
    """Of the loss of the users that are put together from attention."""

    def __init__(self, model: PublicHead, states: Floats) -> None:
        self._personal = np.ascontiguousarray(states[:, : sum(model.parts)])
        self._parts = model.parts
        # In units of a centre, which is as long as 1: attention has SHARP times their product with u.
        centres = model.basis.detach().numpy()[:, : sum(model.parts)] / (SHARP * model.dim**0.5)
        self._centres = np.ascontiguousarray(centres, np.float32)

    def sums(
        self,
        weights: Mapping[str, Floats],
        everybodys: Floats,
        examples: Examples,
        owner: Offsets,
        share: Floats,
        n: int,
    ) -> tuple[Floats, Floats]:
        """Of every owner, [n, B, personal], and the loss of every example; `everybodys` is each news' own score."""
        moves = np.zeros((n, *self._centres.shape), np.float32)
        losses = np.zeros(len(examples), np.float32)
        _add_gradients(
            examples.histories,
            examples.history_of,
            examples.candidates,
            owner,
            share,
            self._personal,
            self._parts[0],
            np.repeat(weights["scales"], self._parts),
            everybodys,
            self._centres + np.float32(MOVED) * weights["moves"],
            moves,
            losses,
        )
        return moves, losses


@jit
def _add_gradients(
    histories: Indices,
    history_of: Offsets,
    candidates: Indices,
    owner: Offsets,
    share: Floats,
    personal: Floats,
    sentence_dim: int,
    scales: Floats,
    everybodys: Floats,
    centres: Floats,
    moves: Floats,
    losses: Floats,
) -> None:
    (count, dim), most = centres.shape, candidates.shape[1]
    user, together, slopes = np.zeros(dim, np.float32), np.zeros(dim, np.float32), np.zeros(dim, np.float32)
    attention, inner = np.zeros(count, np.float32), np.zeros(count, np.float32)
    scores = np.zeros(most, np.float32)
    for example in range(len(candidates)):
        if example == 0 or history_of[example] != history_of[example - 1]:
            _pool(histories[history_of[example]], personal, sentence_dim, user)
            user *= scales
            _attend(user, centres, attention)
            together[:] = np.float32(0.0)
            for i in range(count):
                together += _LENGTH * attention[i] * centres[i]
        highest, total = np.float32(-np.inf), np.float32(0.0)
        for c in range(most):
            item = candidates[example, c]
            if item != NONE:
                scores[c] = everybodys[item] + _product(together, personal[item])
                highest = max(highest, scores[c])
        for c in range(most):
            if candidates[example, c] != NONE:
                total += np.exp(scores[c] - highest)
        losses[example] = highest + np.log(total) - scores[0]
        slopes[:] = np.float32(0.0)
        for c in range(most):
            item = candidates[example, c]
            if item != NONE:
                slopes += (np.exp(scores[c] - highest) / total - np.float32(c == 0)) * personal[item]
        mean = np.float32(0.0)
        for i in range(count):
            inner[i] = _LENGTH * _product(centres[i], slopes)
            mean += attention[i] * inner[i]
        row, weight = owner[example], share[example] * np.float32(MOVED)
        for i in range(count):
            straight = weight * _LENGTH * attention[i]
            through = weight * np.float32(SHARP) * attention[i] * (inner[i] - mean)
            for q in range(dim):
                moves[row, i, q] += straight * slopes[q] + through * user[q]


@jit
def _pool(history: Indices, personal: Floats, sentence_dim: int, user: Floats) -> None:
    """The mean of the clicks, its sentence part as long as 1; zero without clicks."""
    user[:] = np.float32(0.0)
    clicks = 0
    while clicks < len(history) and history[clicks] != NONE:
        user += personal[history[clicks]]
        clicks += 1
    if clicks:
        user /= np.float32(clicks)
        sentence = user[:sentence_dim]
        sentence /= max(np.sqrt(_product(sentence, sentence)), _SMALLEST)


@jit
def _attend(user: Floats, centres: Floats, attention: Floats) -> None:
    for i in range(len(centres)):
        attention[i] = np.float32(SHARP) * _product(centres[i], user)
    attention[:] = np.exp(attention - attention.max())
    attention /= attention.sum()


@jit
def _product(one: Floats, other: Floats) -> np.float32:
    total = np.float32(0.0)
    for q in range(len(one)):
        total += one[q] * other[q]
    return total
