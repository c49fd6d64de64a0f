"""Gradients of news models: one per device, or their weighted sum.

`CutAtNews` is for FedNewsRec: autograd gives the gradient in the vectors of the news, compiled code takes it on through
the title model, where nearly all of the work is. `WholeModel` is for models that learn no words: autograd does it all.
Devices are differentiated side by side, each with its own news. Where nothing is non-linear per device, one backward
pass over all examples (`together`) gives the sum of their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from veilrec._arrays import Floats, Offsets
from veilrec.device import title_gradients as titles
from veilrec.device.linear_tape import LinearTape
from veilrec.device.news_log import Examples
from veilrec.device.news_padding import OwnNews, own_news
from veilrec.device.title_gradients import WORDS, Pairs
from veilrec.models.fednewsrec import FedNewsRec
from veilrec.models.news_model import NewsInput, NewsModel
from veilrec.models.news_tensors import Batch, losses_of, make_batch, take_news
from veilrec.updates import Rows

Weights = Mapping[str, Floats]
NEWCOMER = "newcomer"
_DEVICES_AT_ONCE = 64  # differentiated side by side: those with histories of like length


@dataclass(frozen=True)
class Gradients:
    """Of n devices; words go by row."""

    dense: dict[str, Floats]  # [n, ...]
    words: Rows | None  # None: words do not learn
    losses: Floats  # of every device or, where the gradient is a sum, of every example


class Differentiation(Protocol):
    """How a model is differentiated; a single device is a cohort of one."""

    def each(self, weights: Weights, examples: Examples, n: int) -> Gradients:
        """Of the mean loss of every device."""

    def together(self, weights: Weights, examples: Examples, share: Floats) -> Gradients:
        """Of the sum of all losses times `share`, as if of one device."""

    def count_words(self, examples: Examples, n: int) -> Offsets:
        """How many rows of words each device's gradient has."""


def differentiation(model: NewsModel, news: NewsInput, frozen: frozenset[str]) -> Differentiation:
    """The way that suits the model."""
    if isinstance(model, FedNewsRec):
        return CutAtNews(model, news, learns_words=WORDS not in frozen)
    return WholeModel(model, news)


class WholeModel:
    """Autograd from the loss to every parameter."""

    def __init__(self, model: NewsModel, news: NewsInput) -> None:
        self._losses = _Losses(model)
        self._news = news

    def each(self, weights: Weights, examples: Examples, n: int) -> Gradients:
        """Every device encodes its own news."""
        own, learned = own_news(examples, n), _tensors(weights)
        dense = {name: np.empty((n, *value.shape), np.float32) for name, value in weights.items()}
        values = np.empty(n, np.float32)

        def mean_loss(parameters: dict[str, Tensor], share: Tensor, *inputs: Tensor) -> Tensor:
            each: Tensor = functional_call(self._losses, parameters, inputs)
            return (each * share).sum()

        for group in own.groups(_DEVICES_AT_ONCE):
            share, batch = own.padded(group)
            inputs = (share, *_fields(batch), *vars(take_news(self._news, batch.news)).values())
            found, of_group = vmap(grad_and_value(mean_loss), (None, *(0 for _ in inputs)))(learned, *inputs)
            for name, value in dense.items():
                value[group] = found[f"model.{name}"].numpy()
            values[group] = of_group.numpy()
        return Gradients(dense, None, values)

    def together(self, weights: Weights, examples: Examples, share: Floats) -> Gradients:
        """Every distinct news is encoded once."""
        batch = make_batch(examples.histories, examples.history_of, examples.candidates)
        news = take_news(self._news, batch.news)
        learned = {name: value.requires_grad_() for name, value in _tensors(weights).items()}
        each = functional_call(self._losses, learned, (*_fields(batch), *vars(news).values()))
        found = torch.autograd.grad(
            (each * torch.from_numpy(share)).sum(), list(learned.values()), materialize_grads=True
        )
        dense = {name: g.numpy()[np.newaxis] for name, g in zip(weights, found, strict=True)}
        return Gradients(dense, None, each.detach().numpy())

    def count_words(self, examples: Examples, n: int) -> Offsets:
        """Nothing goes by row."""
        return np.zeros(n, np.int64)


class CutAtNews:
    """Autograd down to the vectors of the news, then `title_gradients`; every distinct title goes forward once."""

    def __init__(self, model: FedNewsRec, news: NewsInput, *, learns_words: bool) -> None:
        self._losses = _LossesOfStates(model)
        self._heads, self._dim = model.sizes.heads, model.dim
        self._codes = news.title.numpy()
        self._words = model.words.weight.detach().numpy()  # where they stay as they are
        self._learns_words = learns_words

    def each(self, weights: Weights, examples: Examples, n: int) -> Gradients:
        """The gradient of a device in the vectors of its own news, and on from there."""
        own = own_news(examples, n)
        distinct, pairs = _pairs(own)
        whole = {WORDS: self._words, **weights}
        encoded = titles.encode(whole, self._codes[distinct], self._heads)
        of_users = {k: v for k, v in weights.items() if k not in titles.TENSORS}
        dense = {name: np.zeros((n, *value.shape), np.float32) for name, value in of_users.items()}
        in_vectors, values = np.empty((len(pairs.title), self._dim), np.float32), np.zeros(n, np.float32)
        shares = own.shares()
        for group in own.groups(_DEVICES_AT_ONCE):
            histories, rows, batch = own.packed(group)
            own_pairs = batch.news.numpy()
            vectors = encoded.vectors[pairs.title[own_pairs]]
            found, in_vectors[own_pairs], loss = self._by_history(of_users, vectors, shares[rows], batch)
            np.add.at(values, own.device[rows], loss * shares[rows])
            for name, value in dense.items():
                _add_up(value, own.owner[histories], found[name])
        of_titles, words = titles.pull_back(whole, encoded, pairs, in_vectors, learns_words=self._learns_words)
        return Gradients(dense | of_titles, words if self._learns_words else None, values)

    def _by_history(
        self, weights: Weights, vectors: Floats, share: Floats, batch: Batch
    ) -> tuple[dict[str, Floats], Floats, Floats]:
        """Gradients of each history in the user model, and of all in the vectors; losses of the examples."""
        count = len(batch.histories)
        learned = _tensors(weights)
        leaf = torch.from_numpy(vectors).requires_grad_()
        newcomer = learned[f"model.{NEWCOMER}"].expand(count, -1).clone().requires_grad_()
        with LinearTape(self._losses) as tape:
            inputs = (leaf, *_fields(batch))
            each = functional_call(self._losses, learned | {f"model.{NEWCOMER}": newcomer}, inputs)
        total = (each * torch.from_numpy(share)).sum()
        found, (in_vectors, in_newcomer) = tape.gradients(total, (leaf, newcomer))
        by_name = {name.removeprefix("model."): g.numpy() for name, g in found.items()}
        return by_name | {NEWCOMER: in_newcomer.numpy()}, in_vectors.numpy(), each.detach().numpy()

    def together(self, weights: Weights, examples: Examples, share: Floats) -> Gradients:
        """The same for all devices as one."""
        batch = make_batch(examples.histories, examples.history_of, examples.candidates)
        whole = {WORDS: self._words, **weights}
        encoded = titles.encode(whole, self._codes[batch.news.numpy()], self._heads)
        of_users = {k: v for k, v in weights.items() if k not in titles.TENSORS}
        learned = {name: value.requires_grad_() for name, value in _tensors(of_users).items()}
        vectors = torch.from_numpy(encoded.vectors).requires_grad_()
        each = functional_call(self._losses, learned, (vectors, *_fields(batch)))
        *found, in_vectors = torch.autograd.grad(
            (each * torch.from_numpy(share)).sum(), [*learned.values(), vectors], materialize_grads=True
        )
        count = len(encoded.vectors)
        of_titles, words = titles.pull_back(
            whole,
            encoded,
            Pairs(np.array([0, count]), np.arange(count)),
            in_vectors.numpy(),
            learns_words=self._learns_words,
        )
        dense = {name: g.numpy()[np.newaxis] for name, g in zip(of_users, found, strict=True)}
        return Gradients(dense | of_titles, words if self._learns_words else None, each.detach().numpy())

    def count_words(self, examples: Examples, n: int) -> Offsets:
        """Distinct words of the titles of each device."""
        if not self._learns_words:
            return np.zeros(n, np.int64)
        distinct, pairs = _pairs(own_news(examples, n))
        return titles.count_words(self._codes[distinct], pairs, len(self._words))


class _Losses(nn.Module):
    """The losses of examples, as a module: `functional_call` can then exchange the weights."""

    def __init__(self, model: NewsModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> Tensor:
        """Fields of a Batch without its news, then those of a NewsInput."""
        news = NewsInput(*tensors[5:])
        return losses_of(self.model, self.model.encode_news(news), Batch(news.category, *tensors[:5]))


class _LossesOfStates(nn.Module):
    """The same for news whose vectors are known."""

    def __init__(self, model: NewsModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, vectors: Tensor, *tensors: Tensor) -> Tensor:
        """Fields of a Batch without its news."""
        return losses_of(self.model, vectors, Batch(vectors, *tensors))


def _fields(batch: Batch) -> tuple[Tensor, ...]:
    """Of a batch, all but its news."""
    return (batch.histories, batch.history_mask, batch.history_of, batch.candidates, batch.candidate_mask)


def _tensors(weights: Weights) -> dict[str, Tensor]:
    """Parameters under the names that they have in `_Losses`; the arrays themselves, not copies."""
    return {f"model.{name}": torch.from_numpy(value) for name, value in weights.items()}


def _pairs(own: OwnNews) -> tuple[Offsets, Pairs]:
    """The distinct news of all devices, and which of them each device has."""
    distinct, title = np.unique(own.items, return_inverse=True)
    return distinct, Pairs(own.offsets, title.astype(np.int64))


def _add_up(sums: Floats, owner: Offsets, values: Floats) -> None:
    """Add the gradients of histories to those of the devices that own them, in rising order."""
    if len(np.unique(owner)) == len(owner):
        sums[owner] = values
        return
    np.add.at(sums, owner, values)
