"""Gradients of news models: one per device, or their weighted sum.

`CutAtNews` is for models whose user has a vector: the model's user part gives the gradient of every device in the
vectors of its news, and its news part takes it on from there. `WholeModel` is for models with parameters of another
kind, that learn no words: autograd does it all, device beside device. Where nothing is non-linear per device, one
backward pass over all examples (`together`) gives the sum of their gradients.

Gradients of the public head in closed form: its news vectors never change, so that nothing is encoded in a round.

Gradients in the basis vectors of the public head, in closed form.

With u the user vector, b the basis vectors, alpha = softmax(b u / sqrt(d)) and v = c alpha b the user put together, the
loss is a softmax over the scores v . r_n. With q its gradient in v: that in b_i is c alpha_i q + l_i u / sqrt(d), where
l_i = alpha_i (m_i - sum of alpha m) and m = c b q. u is taken as it is: nothing goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from veilrec.client.news_data import NONE, ClickExamples, OwnNews, own_news
from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.jit import jit
from veilrec.core.schema import Rows
from veilrec.kernels.tape import BARE, DEVICES_AT_ONCE, LossesOfStates, TapedNews, TapedUsers, fields_of, tensors_of
from veilrec.kernels.title_gradients import CompiledTitles, Pairs
from veilrec.models.federated_news import MOVED, SHARP, START, FedNewsRec, PublicHead
from veilrec.models.news_model import Batch, NewsInput, NewsModel, losses_of, make_batch, take_news

Weights = Mapping[str, Floats]
_FIELDS = len(fields(Batch)) - 1  # all but its news


@dataclass(frozen=True)
class Gradients:
    """Of n devices; words go by row."""

    dense: dict[str, Floats]  # [n, ...]
    words: Rows | None  # None: words do not learn
    losses: Floats  # of every device or, where the gradient is a sum, of every example


class Differentiation(Protocol):
    """How a model is differentiated; a single device is a cohort of one."""

    def each(self, weights: Weights, examples: ClickExamples, n: int) -> Gradients:
        """Of the mean loss of every device."""

    def together(self, weights: Weights, examples: ClickExamples, share: Floats) -> Gradients:
        """Of the sum of all losses times `share`, as if of one device."""

    def count_words(self, examples: ClickExamples, n: int) -> Offsets:
        """How many rows of words each device's gradient has."""


class NewsVectors(Protocol):
    """Vectors of news, and the way back from them."""

    @property
    def vectors(self) -> Floats:
        """Of every news: [news, dim]."""

    def pull_back(self, pairs: Pairs, gradients: Floats) -> tuple[dict[str, Floats], Rows | None]:
        """From gradients in the vectors of the pairs to those of every device in the weights; words by row."""


class NewsPart(Protocol):
    """What a model makes of the news before it looks at users."""

    @property
    def names(self) -> frozenset[str]:
        """The tensors that it learns."""

    def encode(self, weights: Weights, items: Offsets) -> NewsVectors:
        """Some news."""

    def count_words(self, items: Offsets, pairs: Pairs) -> Offsets:
        """How many rows of words each device's gradient has."""


def differentiation(model: NewsModel, news: NewsInput, frozen: frozenset[str]) -> Differentiation:
    """The way that suits the model."""
    learned = frozenset(name for name, _ in model.named_parameters()) - frozen
    if isinstance(model, FedNewsRec):
        return CutAtNews(model, CompiledTitles(model, news, learned))
    if model.is_dot_product and bare_parameters(model) & learned <= frozenset(BARE):
        return CutAtNews(model, TapedNews(model, news, learned))
    return AutogradModel(model, news)


def bare_parameters(model: nn.Module) -> frozenset[str]:
    """Those that belong neither to a linear layer nor to a table."""
    layers = [name for name, part in model.named_modules() if isinstance(part, nn.Linear | nn.Embedding)]
    return frozenset(name for name, _ in model.named_parameters() if name.rpartition(".")[0] not in layers)


class AutogradModel:
    """Autograd from the loss to every parameter."""

    def __init__(self, model: NewsModel, news: NewsInput) -> None:
        self._losses = _Losses(model)
        self._news = news

    def each(self, weights: Weights, examples: ClickExamples, n: int) -> Gradients:
        """Every device encodes its own news."""
        own, learned = own_news(examples, n), tensors_of(weights)
        dense = {name: np.empty((n, *value.shape), np.float32) for name, value in weights.items()}
        values = np.empty(n, np.float32)

        def mean_loss(parameters: dict[str, Tensor], share: Tensor, *inputs: Tensor | None) -> Tensor:
            each: Tensor = functional_call(self._losses, parameters, inputs)
            return (each * share).sum()

        for group in own.groups(DEVICES_AT_ONCE):
            share, batch = own.padded(group)
            inputs = (share, *fields_of(batch), *vars(take_news(self._news, batch.news)).values())
            each_its_own = (None if value is None else 0 for value in inputs)
            found, of_group = vmap(grad_and_value(mean_loss), (None, *each_its_own))(learned, *inputs)
            for name, value in dense.items():
                value[group] = found[f"model.{name}"].numpy()
            values[group] = of_group.numpy()
        return Gradients(dense, None, values)

    def together(self, weights: Weights, examples: ClickExamples, share: Floats) -> Gradients:
        """Every distinct news is encoded once."""
        batch = _batch(examples)
        news = take_news(self._news, batch.news)
        learned = {name: value.requires_grad_() for name, value in tensors_of(weights).items()}
        each = functional_call(self._losses, learned, (*fields_of(batch), *vars(news).values()))
        found = torch.autograd.grad(
            (each * torch.from_numpy(share)).sum(), list(learned.values()), materialize_grads=True
        )
        dense = {name: g.numpy()[np.newaxis] for name, g in zip(weights, found, strict=True)}
        return Gradients(dense, None, each.detach().numpy())

    def count_words(self, examples: ClickExamples, n: int) -> Offsets:
        """Nothing goes by row."""
        return np.zeros(n, np.int64)


class CutAtNews:
    """Down to the vectors of the news, then the model's news part; every distinct news goes forward once."""

    def __init__(self, model: NewsModel, part: NewsPart) -> None:
        self._losses, self._part = LossesOfStates(model), part
        self._users = TapedUsers(model)

    def each(self, weights: Weights, examples: ClickExamples, n: int) -> Gradients:
        """The gradient of a device in the vectors of its own news, and on from there."""
        own = own_news(examples, n)
        distinct, pairs = pairs_of(own)
        encoded = self._part.encode(weights, distinct)
        dense, in_vectors, losses = self.of_users(weights, encoded.vectors, own, pairs)
        of_news, words = encoded.pull_back(pairs, in_vectors)
        return Gradients(dense | of_news, words, losses)

    def of_users(
        self, weights: Weights, vectors: Floats, own: OwnNews, pairs: Pairs
    ) -> tuple[dict[str, Floats], Floats, Floats]:
        """Of every device where the vectors of the news are known: in the user model, and in them; the losses."""
        return self._users.each(self._of_users(weights), vectors, own, pairs)

    def _of_users(self, weights: Weights) -> Weights:
        return {name: value for name, value in weights.items() if name not in self._part.names}

    def together(self, weights: Weights, examples: ClickExamples, share: Floats) -> Gradients:
        """The same for all devices as one."""
        batch = _batch(examples)
        encoded = self._part.encode(weights, batch.news.numpy())
        of_users = self._of_users(weights)
        learned = {name: value.requires_grad_() for name, value in tensors_of(of_users).items()}
        vectors = torch.from_numpy(encoded.vectors).requires_grad_()
        each = functional_call(self._losses, learned, (vectors, *fields_of(batch)))
        *found, in_vectors = torch.autograd.grad(
            (each * torch.from_numpy(share)).sum(), [*learned.values(), vectors], materialize_grads=True
        )
        count = len(encoded.vectors)
        of_news, words = encoded.pull_back(Pairs(np.array([0, count]), np.arange(count)), in_vectors.numpy())
        dense = {name: g.numpy()[np.newaxis] for name, g in zip(of_users, found, strict=True)}
        return Gradients(dense | of_news, words, each.detach().numpy())

    def count_words(self, examples: ClickExamples, n: int) -> Offsets:
        """Distinct words of the news of each device."""
        return self._part.count_words(*pairs_of(own_news(examples, n)))


class _Losses(nn.Module):
    """The losses of examples, as a module: `functional_call` can then exchange the weights."""

    def __init__(self, model: NewsModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> Tensor:
        """Fields of a Batch without its news, then those of a NewsInput."""
        news = NewsInput(*tensors[_FIELDS:])
        return losses_of(self.model, self.model.encode_news(news), Batch(news.category, *tensors[:_FIELDS]))


def _batch(examples: ClickExamples) -> Batch:
    return make_batch(examples.histories, examples.history_of, examples.candidates, examples.padded, examples.noise)


def pairs_of(own: OwnNews) -> tuple[Offsets, Pairs]:
    """The distinct news of all devices, and which of them each device has."""
    distinct, title = np.unique(own.items, return_inverse=True)
    return distinct, Pairs(own.offsets, title.astype(np.int64))


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
