"""Gradients of news models: one per client, or their weighted sum.

`CutAtNews` is for models whose user has a vector: the model's user part gives the gradient of every client in the
vectors of its news, and its news part takes it on from there. `AutogradModel` is for models with parameters of another
kind, that learn no words: autograd does it all, client beside client. Where nothing is non-linear per client, one
backward pass over all examples (`together`) gives the sum of their gradients.

Gradients of the public head have a closed form: its news vectors never change, so that nothing is encoded in a round.
Those in its basis vectors: with u the user vector, b the basis vectors, alpha = softmax(b u / sqrt(d)) and
v = c alpha b the user put together, the loss is a softmax over the scores v . r_n. With q its gradient in v: that in
b_i is c alpha_i q + l_i u / sqrt(d), where l_i = alpha_i (m_i - sum of alpha m) and m = c b q. u is taken as it is:
nothing goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import embedding, embedding_bag

from veilrec.client.news_data import NONE, ClickExamples, OwnNews, own_news
from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.schema import Rows
from veilrec.kernels.tape import BARE, CLIENTS_PER_BATCH, LossesOfStates, TapedNews, TapedUsers, fields_of, tensors_of
from veilrec.kernels.title_gradients import CompiledTitles, Pairs
from veilrec.models.federated_news import MOVED, SHARP, START, FedNewsRec, PublicHead
from veilrec.models.news_model import Batch, NewsInput, NewsModel, losses_of, make_batch, take_news

Weights = Mapping[str, Floats]
_FIELDS = len(fields(Batch)) - 1  # all but its news


@dataclass(frozen=True)
class Gradients:
    """Gradients of n clients; those of words go by row."""

    dense: dict[str, Floats]  # [n, ...]
    words: Rows | None  # None: words do not learn
    losses: Floats  # of every client or, where the gradient is a sum, of every example


def differentiation(
    model: NewsModel, news: NewsInput, frozen: frozenset[str]
) -> CutAtNews | PublicHeadGradients | AutogradModel:
    """Choose how a model is differentiated; a single client is a cohort of one."""
    if isinstance(model, PublicHead):
        return PublicHeadGradients(model, news)
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
        """Every client encodes its own news."""
        own, learned = own_news(examples, n), tensors_of(weights)
        dense = {name: np.empty((n, *value.shape), np.float32) for name, value in weights.items()}
        values = np.empty(n, np.float32)

        def mean_loss(parameters: dict[str, Tensor], share: Tensor, *inputs: Tensor | None) -> Tensor:
            each: Tensor = functional_call(self._losses, parameters, inputs)
            return (each * share).sum()

        for group in own.groups(CLIENTS_PER_BATCH):
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

    def __init__(self, model: NewsModel, part: CompiledTitles | TapedNews) -> None:
        self._losses, self._part = LossesOfStates(model), part
        self._users = TapedUsers(model)

    def each(self, weights: Weights, examples: ClickExamples, n: int) -> Gradients:
        """The gradient of a client in the vectors of its own news, and on from there."""
        own = own_news(examples, n)
        distinct, pairs = pairs_of(own)
        encoded = self._part.encode(weights, distinct)
        dense, in_vectors, losses = self.of_users(weights, encoded.vectors, own, pairs)
        of_news, words = encoded.pull_back(pairs, in_vectors)
        return Gradients(dense | of_news, words, losses)

    def of_users(
        self, weights: Weights, vectors: Floats, own: OwnNews, pairs: Pairs
    ) -> tuple[dict[str, Floats], Floats, Floats]:
        """Gradients of every client for known news vectors: in the user model, and in the vectors; and the losses."""
        return self._users.each(self._of_users(weights), vectors, own, pairs)

    def _of_users(self, weights: Weights) -> Weights:
        return {name: value for name, value in weights.items() if name not in self._part.names}

    def together(self, weights: Weights, examples: ClickExamples, share: Floats) -> Gradients:
        """Gradient of the sum of all losses times `share`, as if of one client."""
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
        """Distinct words of the news of each client."""
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
    """The distinct news of all clients, and which of them each client has."""
    distinct, title = np.unique(own.items, return_inverse=True)
    return distinct, Pairs(own.offsets, title.astype(np.int64))


_LENGTH = START[0]  # of a user put together from one basis vector
_SMALLEST = 1e-12
_EXAMPLES_AT_ONCE = 1024  # few enough that the vectors of their candidates stay small


class PublicHeadGradients:
    """The loss is a softmax over scores that are linear in what learns; news vectors never change."""

    def __init__(self, model: PublicHead, news: NewsInput) -> None:
        self._parts = list(model.parts)
        with torch.no_grad():
            states = model.encode_news(news)
            self._personal = states[:, : sum(model.parts)].contiguous()
            self._components = states[:, sum(model.parts) :].contiguous()
            # In units of a centre, which is as long as 1: attention has SHARP times their product with u.
            centres = model.basis[:, : sum(model.parts)] / (SHARP * model.dim**0.5)
        self._centres = centres if model.sizes.train_basis else None

    def each(self, weights: Weights, examples: ClickExamples, n: int) -> Gradients:
        """Gradient of the mean loss of every client."""
        share = (1.0 / np.bincount(examples.client, minlength=n)[examples.client]).astype(np.float32)
        dense, losses = self._sums(weights, examples, examples.client, share, n)
        return Gradients(dense, None, np.bincount(examples.client, losses * share, n).astype(np.float32))

    def together(self, weights: Weights, examples: ClickExamples, share: Floats) -> Gradients:
        """Gradient of the sum of all losses times `share`."""
        dense, losses = self._sums(weights, examples, np.zeros(len(examples), np.int64), share, 1)
        return Gradients(dense, None, losses)

    def count_words(self, examples: ClickExamples, n: int) -> Offsets:
        """Nothing goes by row."""
        return np.zeros(n, np.int64)

    def _sums(
        self, weights: Weights, examples: ClickExamples, owner: Offsets, share: Floats, n: int
    ) -> tuple[dict[str, Floats], Floats]:
        """Gradients of every owner, and the loss of every example."""
        learned = {name: torch.from_numpy(value) for name, value in weights.items()}
        found = {name: torch.zeros(n, *value.shape) for name, value in learned.items()}
        pooled, everybodys = self._pooled(examples.histories), self._components @ learned["taste"]
        losses = np.zeros(len(examples), np.float32)
        for begin in range(0, len(examples), _EXAMPLES_AT_ONCE):
            some = slice(begin, begin + _EXAMPLES_AT_ONCE)
            owners, shown = torch.from_numpy(owner[some]), torch.from_numpy(examples.candidates[some])
            absent, items = shown == NONE, shown.clamp(min=0).long()
            news, users = embedding(items, self._personal), pooled[torch.from_numpy(examples.history_of[some])]
            along = zip(torch.split(news, self._parts, -1), torch.split(users, self._parts, -1), strict=True)
            features = torch.stack([(part * own[:, None]).sum(-1) for part, own in along], -1)  # [E, C, 3]
            slopes, loss = _through_scores(everybodys[items] + features @ learned["scales"], absent)
            weighted = (slopes * torch.from_numpy(share[some])[:, None])[:, None]  # [E, 1, C]
            found["scales"].index_add_(0, owners, torch.bmm(weighted, features)[:, 0])
            found["taste"].index_add_(0, owners, torch.bmm(weighted, embedding(items, self._components))[:, 0])
            if self._centres is not None:
                scaled = users * learned["scales"].repeat_interleave(torch.tensor(self._parts))
                centres = self._centres + MOVED * learned["moves"]
                moves, more = _moves(centres, scaled, news, everybodys[items], absent)
                found["moves"].index_add_(0, owners, moves * torch.from_numpy(share[some])[:, None, None])
                loss = loss + more
            losses[some] = loss.numpy()
        return {name: value.numpy() for name, value in found.items()}, losses

    def _pooled(self, histories: Indices) -> Tensor:
        """The mean of the clicks, its sentence part as long as 1; zero without clicks: [histories, personal]."""
        clicked = histories != NONE
        starts = np.cumsum(clicked.sum(1)) - clicked.sum(1)
        pooled = embedding_bag(
            torch.from_numpy(histories[clicked]), self._personal, torch.from_numpy(starts.astype(np.int32)), mode="mean"
        )
        sentence = pooled[:, : self._parts[0]]
        sentence /= torch.linalg.vector_norm(sentence, dim=1, keepdim=True).clamp(min=_SMALLEST)
        return pooled


def _moves(centres: Tensor, users: Tensor, news: Tensor, everybodys: Tensor, absent: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the loss of users put together from attention, in the moves of the basis; and the losses."""
    attention = torch.softmax(SHARP * users @ centres.T, -1)  # [E, B]
    together = _LENGTH * attention @ centres
    slopes, losses = _through_scores(everybodys + (news * together[:, None]).sum(-1), absent)
    slope = torch.bmm(slopes[:, None], news)[:, 0]  # q, [E, personal]
    inner = _LENGTH * slope @ centres.T
    through = SHARP * attention * (inner - (attention * inner).sum(1, keepdim=True))
    found = _LENGTH * attention[..., None] * slope[:, None] + through[..., None] * users[:, None]
    return MOVED * found, losses


def _through_scores(scores: Tensor, absent: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a softmax loss in its scores, of which the first is the click's; and the losses."""
    logs = torch.log_softmax(scores.masked_fill(absent, -torch.inf), -1)
    slopes = logs.exp()
    slopes[:, 0] -= 1.0
    return slopes, -logs[:, 0]
