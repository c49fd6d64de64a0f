"""Gradients of the public head in closed form: its news vectors never change, so that nothing is encoded in a round.

Gradients in the basis vectors of the public head, in closed form.

With u the user vector, b the basis vectors, alpha = softmax(b u / sqrt(d)) and v = c alpha b the user put together, the
loss is a softmax over the scores v . r_n. With q its gradient in v: that in b_i is c alpha_i q + l_i u / sqrt(d), where
l_i = alpha_i (m_i - sum of alpha m) and m = c b q. u is taken as it is: nothing goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from veilrec.client.news_data import NONE, ClickExamples
from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.jit import jit
from veilrec.kernels.news_gradients import Gradients
from veilrec.models.news_model import NewsInput
from veilrec.models.public_head import MOVED, SHARP, START, PublicHead

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
        examples: ClickExamples,
        owner: Offsets,
        share: Floats,
        n: int,
    ) -> tuple[Floats, Floats]:
        """Of every owner, [n, B, personal], and the loss of every example; `everybodys` is each news' own score."""
        moves = np.zeros((n, *self._centres.shape), np.float32)
        losses = np.zeros(len(examples), np.float32)
        _public_basis_gradients_add_gradients(
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
def _public_basis_gradients_add_gradients(
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
            _public_basis_gradients_pool(histories[history_of[example]], personal, sentence_dim, user)
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
def _public_basis_gradients_pool(history: Indices, personal: Floats, sentence_dim: int, user: Floats) -> None:
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


_SMALLEST = np.float32(1e-12)
_FIRST_NAME = 2  # codes below it are padding and the unknown


class PublicHeadGradients:
    """The loss is a softmax over scores that are linear in what learns."""

    def __init__(self, model: PublicHead, news: NewsInput) -> None:
        with torch.inference_mode():
            states = model.encode_news(news).numpy()
        self._sentences = np.ascontiguousarray(states[:, : model.parts[0]])
        self._components = np.ascontiguousarray(states[:, sum(model.parts) :])
        self._categories = news.category.numpy().astype(np.int32)
        self._subcategories = news.subcategory.numpy().astype(np.int32)
        self._basis = BasisGradients(model, states) if model.sizes.train_basis else None

    def each(self, weights: Mapping[str, Floats], examples: ClickExamples, n: int) -> Gradients:
        """Of the mean loss of every device."""
        counts = np.bincount(examples.device, minlength=n)
        share = (1.0 / counts[examples.device]).astype(np.float32)
        dense, losses = self._sums(weights, examples, examples.device, share, n)
        of_devices = np.bincount(examples.device, losses * share, n).astype(np.float32)
        return Gradients(dense, None, of_devices)

    def together(self, weights: Mapping[str, Floats], examples: ClickExamples, share: Floats) -> Gradients:
        """Of the sum of all losses times `share`."""
        dense, losses = self._sums(weights, examples, np.zeros(len(examples), np.int64), share, 1)
        return Gradients(dense, None, losses)

    def count_words(self, examples: ClickExamples, n: int) -> Offsets:
        """Nothing goes by row."""
        return np.zeros(n, np.int64)

    def _sums(
        self, weights: Mapping[str, Floats], examples: ClickExamples, owner: Offsets, share: Floats, n: int
    ) -> tuple[dict[str, Floats], Floats]:
        scales, taste = np.zeros((n, 3), np.float32), np.zeros((n, self._components.shape[1]), np.float32)
        losses = np.zeros(len(examples), np.float32)
        _add_gradients(
            examples.histories,
            examples.history_of,
            examples.candidates,
            owner,
            share,
            self._sentences,
            self._categories,
            self._subcategories,
            self._components,
            self._components @ weights["taste"],
            weights["scales"],
            scales,
            taste,
            losses,
        )
        if self._basis is None:
            return {"scales": scales, "taste": taste}, losses
        moves, others = self._basis.sums(weights, self._components @ weights["taste"], examples, owner, share, n)
        return {"scales": scales, "taste": taste, "moves": moves}, losses + others


@jit
def _add_gradients(
    histories: Indices,
    history_of: Offsets,
    candidates: Indices,
    owner: Offsets,
    share: Floats,
    sentences: Floats,
    categories: Indices,
    subcategories: Indices,
    components: Floats,
    everybodys: Floats,
    a: Floats,
    scales: Floats,
    taste: Floats,
    losses: Floats,
) -> None:
    dim, width, most = sentences.shape[1], components.shape[1], candidates.shape[1]
    direction = np.zeros(dim, np.float32)
    features, scores = np.zeros((most, 3), np.float32), np.zeros(most, np.float32)
    clicks = 0
    for example in range(len(candidates)):
        history = histories[history_of[example]]
        if example == 0 or history_of[example] != history_of[example - 1]:
            clicks = _pool(history, sentences, direction)
        highest = np.float32(-np.inf)
        for c in range(most):
            item = candidates[example, c]
            if item == NONE:
                continue
            cosine = np.float32(0.0)
            for q in range(dim):
                cosine += direction[q] * sentences[item, q]
            features[c, 0] = cosine
            features[c, 1] = _same(history, clicks, categories, item)
            features[c, 2] = _same(history, clicks, subcategories, item)
            scores[c] = everybodys[item]
            for part in range(3):
                scores[c] += a[part] * features[c, part]
            highest = max(highest, scores[c])
        total = np.float32(0.0)
        for c in range(most):
            if candidates[example, c] != NONE:
                total += np.exp(scores[c] - highest)
        losses[example] = highest + np.log(total) - scores[0]
        row, weight = owner[example], share[example]
        for c in range(most):
            item = candidates[example, c]
            if item == NONE:
                continue
            slope = (np.exp(scores[c] - highest) / total - np.float32(c == 0)) * weight
            for part in range(3):
                scales[row, part] += slope * features[c, part]
            for q in range(width):
                taste[row, q] += slope * components[item, q]


@jit
def _pool(history: Indices, sentences: Floats, direction: Floats) -> int:
    """The direction of the mean of the clicks, and how many they are."""
    direction[:] = np.float32(0.0)
    clicks = 0
    while clicks < len(history) and history[clicks] != NONE:
        for q in range(len(direction)):
            direction[q] += sentences[history[clicks], q]
        clicks += 1
    if clicks == 0:
        return 0
    square = np.float32(0.0)
    for q in range(len(direction)):
        direction[q] /= np.float32(clicks)
        square += direction[q] * direction[q]
    length = max(np.sqrt(square), _SMALLEST)
    for q in range(len(direction)):
        direction[q] /= length
    return clicks


@jit
def _same(history: Indices, clicks: int, codes: Indices, item: int) -> np.float32:
    """The share of the clicks with the code of an item; none of an unknown one."""
    if clicks == 0 or codes[item] < _FIRST_NAME:
        return np.float32(0.0)
    same = 0
    for j in range(clicks):
        same += codes[history[j]] == codes[item]
    return np.float32(same / clicks)
