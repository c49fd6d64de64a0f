"""Gradients of news models: one per device, or their weighted sum.

`CutAtNews` is for models whose user has a vector: the model's user part gives the gradient of every device in the
vectors of its news, and its news part takes it on from there. `WholeModel` is for models with parameters of another
kind, that learn no words: autograd does it all, device beside device. Where nothing is non-linear per device, one
backward pass over all examples (`together`) gives the sum of their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from veilrec.client.news_data import ClickExamples, OwnNews, own_news
from veilrec.core.arrays import Floats, Offsets
from veilrec.core.schema import Rows
from veilrec.kernels.news_texts import SentenceNews
from veilrec.kernels.news_users import COMPILED, CompiledUsers
from veilrec.kernels.tape import BARE, DEVICES_AT_ONCE, LossesOfStates, TapedNews, TapedUsers, fields_of, tensors_of
from veilrec.kernels.title_gradients import CompiledTitles, Pairs
from veilrec.models.fednewsrec import FedNewsRec
from veilrec.models.news_model import Batch, NewsInput, NewsModel, losses_of, make_batch, take_news
from veilrec.models.news_networks import PlmNr

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


class UserPart(Protocol):
    """What a model makes of users when the news are known."""

    def each(
        self, weights: Weights, vectors: Floats, own: OwnNews, pairs: Pairs
    ) -> tuple[dict[str, Floats], Floats, Floats]:
        """Gradients of every device in the weights, and of the pairs in the vectors of their news; the losses."""


def differentiation(model: NewsModel, news: NewsInput, frozen: frozenset[str]) -> Differentiation:
    """The way that suits the model."""
    learned = frozenset(name for name, _ in model.named_parameters()) - frozen
    if isinstance(model, FedNewsRec):
        return CutAtNews(model, CompiledTitles(model, news, learned))
    if model.is_dot_product and bare_parameters(model) & learned <= frozenset(BARE):
        if isinstance(model, PlmNr):
            return CutAtNews(model, SentenceNews(model, news, learned))
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
        self._users: UserPart = CompiledUsers(model) if isinstance(model, COMPILED) else TapedUsers(model)

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
