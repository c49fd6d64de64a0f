"""What every news model is: news -> states, history of states -> user, user and candidates -> scores.

Below it what goes in: codes of news as tensors, and batches in which every distinct news is encoded once.

The sizes of news models, and the layers that they share.

Every layer takes a mask (True = real), and padding never changes its result. Layers use plain operations only, so that
`torch.func` can differentiate many clients at once.

The moments of torch's Adam as named arrays, so that a training can stop and go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from veilrec.core.arrays import Bools, Floats, Indices, Offsets


@dataclass(frozen=True)
class NewsSizes:
    """How large a model is; the defaults suit one core."""

    word_dim: int = 50
    heads: int = 4
    head_dim: int = 16  # news and user vectors have heads * head_dim entries
    attention: int = 32  # width of additive attention
    window: int = 3  # words that the CNN sees at once
    category_dim: int = 16
    recent: int = 20  # the latest clicks that short-term models look at
    dropout: float = 0.1  # in centralised training only
    basis: int = 5  # B: basis vectors, of models that have them
    attention_clip: float = 1.0  # theta: longest attention over them
    balance: float = 0.0  # how strongly all of them are kept in use; 0: not at all
    train_basis: bool = False  # of the public head: whether its basis vectors learn, too
    taste: int = 100  # of the public head: principal components that everybody's taste is learnt in

    @property
    def dim(self) -> int:
        """Length of a news vector."""
        return self.heads * self.head_dim


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension among the real entries; all zero where there is none."""
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(-1) * mask


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real positions: [n, l, d] -> [n, d]; zero where there is none."""
    return (values * mask.unsqueeze(-1)).sum(-2) / mask.sum(-1, keepdim=True).clamp(min=1)


class Dropout(nn.Module):
    """Dropout that draws from its own generator, and does nothing without one."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.generator: torch.Generator | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Drop entries and scale up the rest."""
        if self.generator is None or self.rate == 0.0:
            return values
        kept = torch.rand(values.shape, generator=self.generator) >= self.rate
        return values * kept / (1.0 - self.rate)


class AdditiveAttention(nn.Module):
    """Weights softmax(q . tanh(W x + b)) over a sequence: [n, l, d] -> [n, d]."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim, hidden)
        self.query = nn.Linear(hidden, 1, bias=False)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """The weighted mean; zero for a sequence without a real entry."""
        scores = self.query(self.hidden(values).tanh()).squeeze(-1)  # [n, l]
        return (masked_softmax(scores, mask).unsqueeze(-2) @ values).squeeze(-2)


class PersonalAttention(nn.Module):
    """Attention whose query comes from outside: weights softmax(q . tanh(W x + b)), [..., l, d] -> [..., d]."""

    def __init__(self, dim: int, query_dim: int) -> None:
        super().__init__()
        self.keys = nn.Linear(dim, query_dim)

    def forward(self, values: Tensor, mask: Tensor, query: Tensor) -> Tensor:
        """`query` is [..., query_dim], and is broadcast where it has fewer dimensions in front."""
        scores = (self.keys(values).tanh() @ query.unsqueeze(-1)).squeeze(-1)
        return (masked_softmax(scores, mask).unsqueeze(-2) @ values).squeeze(-2)


class SelfAttention(nn.Module):
    """Multi-head self-attention without output projection: [n, l, d] -> [n, l, heads * width]."""

    def __init__(self, dim: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.width = width
        self.projections = nn.Linear(dim, 3 * heads * width, bias=False)  # queries, keys, values

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Each real position looks at all real ones; the others come out zero."""
        return self.mix(self.projections(values), mask)

    def mix(self, projected: Tensor, mask: Tensor) -> Tensor:
        """Mix given queries, keys and values, [n, l, 3 * heads * width]: all real positions look at all real ones."""
        n, length, _ = projected.shape
        projected = projected.view(n, length, 3, self.heads, self.width)
        queries, keys, content = projected.permute(2, 0, 3, 1, 4)  # [n, heads, l, width] each
        scores = queries @ keys.transpose(-1, -2) / self.width**0.5  # [n, heads, l, l]
        mixed = masked_softmax(scores, mask[:, None, None, :]) @ content
        joined: Tensor = mixed.transpose(1, 2).reshape(n, length, self.heads * self.width)
        return joined * mask.unsqueeze(-1)


class WordCnn(nn.Module):
    """Convolution over words, same length, then ReLU: [n, l, d] -> [n, l, filters]."""

    def __init__(self, dim: int, filters: int, window: int = 3) -> None:
        super().__init__()
        self.window = window  # odd
        self.kernel = nn.Linear(window * dim, filters)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Padding counts as zero, before and behind."""
        length, reach = values.shape[1], self.window // 2
        padded = pad(values * mask.unsqueeze(-1), (0, 0, reach, reach))
        seen = torch.cat([padded[:, shift : shift + length] for shift in range(self.window)], -1)
        convolved: Tensor = self.kernel(seen).relu()
        return convolved * mask.unsqueeze(-1)


class Gru(nn.Module):
    """Gated recurrent unit over a sequence; padded steps leave the state as it is."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.inputs = nn.Linear(dim, 3 * hidden)  # reset, update, new
        self.recurrent = nn.Linear(hidden, 3 * hidden)

    def forward(self, values: Tensor, mask: Tensor, start: Tensor | None = None) -> Tensor:
        """The states after every step: [n, l, hidden]; the last one is the result."""
        steps = self.inputs(values).unbind(1)
        state = values.new_zeros(values.shape[0], self.hidden) if start is None else start
        states = []
        for number, step in enumerate(steps):
            reset_in, update_in, new_in = step.chunk(3, -1)
            reset_old, update_old, new_old = self.recurrent(state).chunk(3, -1)
            update = (update_in + update_old).sigmoid()
            new = (new_in + (reset_in + reset_old).sigmoid() * new_old).tanh()
            state = torch.where(mask[:, number, None], new + update * (state - new), state)
            states.append(state)
        return torch.stack(states, 1)


class CnnEncoder(nn.Module):
    """Words, CNN, additive attention: word codes [n, l] -> [n, dim]."""

    def __init__(self, sizes: NewsSizes, dim: int) -> None:
        super().__init__()
        self.dropout = Dropout(sizes.dropout)
        self.cnn = WordCnn(sizes.word_dim, dim, sizes.window)
        self.attention = AdditiveAttention(dim, sizes.attention)

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """One vector per text."""
        convolved = self.dropout(self.cnn(self.dropout(vectors), mask))
        pooled: Tensor = self.attention(convolved, mask)
        return pooled


class MultiHeadPooling(nn.Module):
    """Self-attention, then additive attention: [n, l, d] -> [n, heads * head_dim]."""

    def __init__(self, dim: int, sizes: NewsSizes) -> None:
        super().__init__()
        self.dropout = Dropout(sizes.dropout)
        self.mix = SelfAttention(dim, sizes.heads, sizes.head_dim)
        self.attention = AdditiveAttention(sizes.dim, sizes.attention)

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """One vector per sequence."""
        return self.pool(self.mix.projections(vectors), mask)

    def pool(self, projected: Tensor, mask: Tensor) -> Tensor:
        """One vector per sequence, of given queries, keys and values."""
        pooled: Tensor = self.attention(self.dropout(self.mix.mix(projected, mask)), mask)
        return pooled


class MultiHeadUsers:
    """Joins a model whose user is `clicks`, multi-head self-attention and attention: every news is projected once."""

    clicks: MultiHeadPooling

    def as_clicks(self, states: Tensor) -> Tensor:
        """Queries, keys and values of the news."""
        projected: Tensor = self.clicks.mix.projections(states)
        return projected

    def encode_clicks(self, clicks: Tensor, mask: Tensor) -> Tensor:
        """What the clicked news have in common."""
        return self.clicks.pool(clicks, mask)

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """The user vector, from the states of the clicked news."""
        return self.encode_clicks(self.as_clicks(history), mask)


def saved_state(optimiser: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Copy the parameters, and the moments and the step count of every one that has moved."""
    moments = {
        f"adam.{name}.{key}": value
        for name, parameter in parameters.items()
        for key, value in optimiser.state[parameter].items()
    }
    return {name: tensor.detach().numpy().copy() for name, tensor in {**parameters, **moments}.items()}


def load_saved_state(
    optimiser: torch.optim.Optimizer, parameters: Mapping[str, Tensor], state: Mapping[str, NDArray[Any]]
) -> None:
    """Restore what `saved_state` copied."""
    optimiser.state.clear()
    for name, parameter in parameters.items():
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(state[name]))
        prefix = f"adam.{name}."
        saved = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        if saved:
            optimiser.state[parameter] = {key: torch.tensor(value) for key, value in saved.items()}


EMBEDDING_SPREAD = 0.5  # standard deviation of starting vectors, like that of GloVe: smaller ones learn slowly
NONE = -1  # no item
_NEWS_AT_ONCE = 1024  # that are encoded together: the tensors of more leave the processor's cache
_FEW = 8  # examples of one history that a model scores at once


@dataclass(frozen=True)
class NewsShape:
    """How many codes the text has, and how wide given vectors are."""

    words: int
    categories: int
    subcategories: int
    entities: int
    entity_dim: int = 32
    sentence_dim: int = 0  # 0: no sentence vectors


@dataclass(frozen=True)
class NewsInput:
    """Codes of n news; 0 is padding."""

    title: Tensor  # [n, words]
    abstract: Tensor  # [n, words]
    category: Tensor  # [n]
    subcategory: Tensor  # [n]
    entities: Tensor  # [n, words], at the words of the title
    sentence: Tensor  # [n, sentence_dim], frozen


class NewsModel(nn.Module, ABC):
    """Base of the models; a subclass gives `encode_news` and `encode_user`, or its own `score`."""

    is_dot_product = True  # score = user . news, so that users can be encoded without candidates
    newcomer: nn.Parameter

    def __init__(self, sizes: NewsSizes, dim: int | None = None) -> None:
        super().__init__()
        self.sizes = sizes
        self.dim = sizes.dim if dim is None else dim
        self.dropout = Dropout(sizes.dropout)
        if self.is_dot_product:
            self.newcomer = nn.Parameter(torch.zeros(self.dim))  # the user vector of an empty history

    def take_in(self, news: NewsInput) -> frozenset[str]:
        """Set parameters from the public news before training; return the names of those that stay frozen."""
        return frozenset()

    @abstractmethod
    def encode_news(self, news: NewsInput) -> Tensor:
        """States of the news: [n, dim], or any shape behind n that the model's `score` understands."""

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """User vectors of histories, oldest first: [b, h, dim], [b, h] -> [b, dim]."""
        raise TypeError(f"{type(self).__name__} scores candidates beside the history: it has no user vector")

    def as_clicks(self, states: Tensor) -> Tensor:
        """What the user model makes of a news alone, computed once for all histories that have it."""
        return states

    def encode_clicks(self, clicks: Tensor, mask: Tensor) -> Tensor:
        """`encode_user` of what `as_clicks` gives."""
        return self.encode_user(clicks, mask)

    def user(self, history: Tensor, mask: Tensor) -> Tensor:
        """User vectors, also of those without a history."""
        return self.user_of(self.as_clicks(history), mask)

    def user_of(self, clicks: Tensor, mask: Tensor) -> Tensor:
        """`user` of what `as_clicks` gives."""
        known = mask.any(-1, keepdim=True)
        return torch.where(known, self.encode_clicks(clicks, mask), self.newcomer)

    def learning_users(self, clicks: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """User vectors of the histories of a batch in training, and what is added to the loss of their examples."""
        return self.user_of(clicks, batch.history_mask), None

    def second_users(self, users: Tensor) -> Tensor | None:
        """Other vectors of the same users whose loss is added, for what learns from nothing else; None: no such."""
        return None

    def project_clicks(self, states: Tensor) -> Tensor:
        """What `user_from` needs of every news, so that it is computed once."""
        return self.as_clicks(states)

    def user_from(self, projected: Tensor, items: Tensor, mask: Tensor) -> Tensor:
        """`user` for ranking: histories are rows of the projected news, [b, h]."""
        return self.user_of(projected[items], mask)

    def score(self, history: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """Scores of candidates: states [b, c, ...] -> [b, c]."""
        return (candidates @ self.user(history, mask).unsqueeze(-1)).squeeze(-1)

    def start(self, generator: torch.Generator) -> None:
        """Draw the starting weights; a subclass sets those that start otherwise after this."""
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Embedding):
                    module.weight.normal_(0.0, EMBEDDING_SPREAD, generator=generator)
                elif isinstance(module, nn.Linear):
                    nn.init.xavier_uniform_(module.weight, generator=generator)
                    if module.bias is not None:
                        module.bias.zero_()
            if self.is_dot_product:
                self.newcomer.normal_(0.0, 0.1, generator=generator)


def latest(history: Tensor, mask: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The last `count` real entries of every history, which are padded behind: [b, h, d] -> [b, count, d]."""
    if history.shape[1] <= count:
        return history, mask
    begin = (mask.sum(-1, keepdim=True) - count).clamp(min=0)  # [b, 1]
    places = begin + torch.arange(count)  # [b, count]
    chosen = places.unsqueeze(-1).expand(-1, -1, history.shape[2])
    return history.gather(1, chosen), mask.gather(1, places)


def news_input(
    titles: Indices,
    abstracts: Indices,
    categories: Indices,
    subcategories: Indices,
    entities: Indices,
    sentences: Floats | None = None,
) -> NewsInput:
    """Codes as tensors."""
    title, abstract, category, subcategory, entity = (
        torch.from_numpy(x.astype(np.int64)) for x in (titles, abstracts, categories, subcategories, entities)
    )
    sentence = np.zeros((len(titles), 0), np.float32) if sentences is None else sentences
    return NewsInput(title, abstract, category, subcategory, entity, torch.from_numpy(sentence))


def take_news(news: NewsInput, rows: Tensor | slice) -> NewsInput:
    """The chosen news."""
    return NewsInput(
        news.title[rows],
        news.abstract[rows],
        news.category[rows],
        news.subcategory[rows],
        news.entities[rows],
        news.sentence[rows],
    )


def trimmed(news: NewsInput) -> NewsInput:
    """Without the columns of words that are padding everywhere."""
    title, abstract = _width(news.title), _width(news.abstract)
    return NewsInput(
        news.title[:, :title],
        news.abstract[:, :abstract],
        news.category,
        news.subcategory,
        news.entities[:, :title],
        news.sentence,
    )


def _width(codes: Tensor) -> int:
    used = (codes > 0).any(0)
    return max(1, int(used.sum()))


@dataclass(frozen=True)
class Batch:
    """Examples whose histories are distinct, and whose items point into their own distinct news."""

    news: Tensor  # [m], the distinct items
    histories: Tensor  # [u, h], row of `news`; 0 where the mask is False
    history_mask: Tensor
    history_of: Tensor  # [b], row of `histories`
    candidates: Tensor  # [b, 1 + negatives], row of `news`; the first is learnt as the click
    candidate_mask: Tensor
    padded: Tensor | None = None  # [u, h], clicks that a client replaced by the pad; None: see `noise`
    # [u, B], what its mechanism added to the attention over basis vectors; where `padded` is None, what it released
    noise: Tensor | None = None
    # [u], row of `histories` and of `padded`, where several rows of `noise` have the same; None: each has its own
    row_of: Tensor | None = None


def make_batch(
    histories: Indices,
    history_of: Offsets,
    candidates: Indices,
    padded: Bools | None = None,
    noise: Floats | None = None,
) -> Batch:
    """Distinct news and histories of some examples; columns of history without any click are cut off."""
    needed, history_of = np.unique(history_of, return_inverse=True)
    past = histories[needed]
    past = past[:, : max(1, int((past != NONE).any(0).sum()))]
    pads = None if padded is None else padded[needed][:, : past.shape[1]]
    row_of = None
    if noise is not None:
        past, pads, row_of = _distinct(past, pads)
    distinct, place = np.unique(np.concatenate([past.ravel(), candidates.ravel()]), return_inverse=True)
    if distinct[0] == NONE:
        distinct, place = distinct[1:], np.maximum(place - 1, 0)
    arrays = (
        distinct.astype(np.int64),
        place[: past.size].reshape(past.shape),
        past != NONE,
        history_of.astype(np.int64),
        place[past.size :].reshape(candidates.shape),
        candidates != NONE,
    )
    return replace(
        Batch(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)),
        padded=None if pads is None else torch.from_numpy(pads),
        noise=None if noise is None else torch.from_numpy(noise[needed]),
        row_of=None if row_of is None else torch.from_numpy(row_of),
    )


def _distinct(past: Indices, pads: Bools | None) -> tuple[Indices, Bools | None, Offsets]:
    """Histories that differ, with their padded clicks, and which of them each row has."""
    seen = past if pads is None else np.concatenate([past, pads.astype(past.dtype)], 1)
    whole = np.ascontiguousarray(seen).view(f"V{seen.dtype.itemsize * seen.shape[1]}").ravel()  # one value per row
    _, first, row_of = np.unique(whole, return_index=True, return_inverse=True)
    return past[first], None if pads is None else pads[first], row_of.astype(np.int64)


def losses(model: NewsModel, news: NewsInput, batch: Batch) -> Tensor:
    """L^i of eq. 3 (FedNewsRec) for every example: [b]; `news` are the distinct news of the batch."""
    return losses_of(model, encode_in_parts(model, news), batch)


def encode_in_parts(model: NewsModel, news: NewsInput) -> Tensor:
    """States of the news: those of `encode_news`, at half the time where they are ten thousand."""
    places = range(0, len(news.title), _NEWS_AT_ONCE)
    return torch.cat([model.encode_news(take_news(news, slice(at, at + _NEWS_AT_ONCE))) for at in places])


def losses_of(model: NewsModel, states: Tensor, batch: Batch) -> Tensor:
    """Losses of a batch whose news have known states: [m, ...]."""
    if model.is_dot_product:
        users, extra = model.learning_users(model.as_clicks(states)[batch.histories], batch)
        scores = (states[batch.candidates] @ users[batch.history_of].unsqueeze(-1)).squeeze(-1)
    else:
        scores, extra = _scores_by_history(model, states, batch), None
    each = -masked_log_softmax(scores, batch.candidate_mask)[:, 0]
    if model.is_dot_product and (second := model.second_users(users)) is not None:
        others = (states[batch.candidates] @ second[batch.history_of].unsqueeze(-1)).squeeze(-1)
        each = each - masked_log_softmax(others, batch.candidate_mask)[:, 0]
    return each if extra is None else each + extra[batch.history_of]


def _scores_by_history(model: NewsModel, states: Tensor, batch: Batch) -> Tensor:
    """Scores of a model that reads the history anew for every candidate: [b, 1 + negatives].

    Examples of one history are put to the model side by side, a few at a time, so that it is read once for all of them.
    """
    rows, real = _side_by_side(batch.history_of)  # [g, few]
    owners = batch.history_of[rows[:, 0]]
    offered = states[batch.candidates[rows].flatten(1)]  # [g, few * (1 + negatives), ...]
    scores = model.score(states[batch.histories[owners]], batch.history_mask[owners], offered)
    by_group = scores.view(*rows.shape, -1)[real]
    return by_group[rows[real].argsort()]


def _side_by_side(history_of: Tensor) -> tuple[Tensor, Tensor]:
    """Examples in groups of one history, at most `_FEW` each: [g, _FEW], and where a place is taken."""
    order = history_of.argsort(stable=True)
    sizes = history_of.bincount()
    rank = torch.arange(len(order)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)  # within the history
    groups = (sizes + _FEW - 1) // _FEW
    group = (groups.cumsum(0) - groups).repeat_interleave(sizes) + rank // _FEW
    real = torch.zeros(int(groups.sum()), _FEW, dtype=torch.bool)
    real[group, rank % _FEW] = True
    rows = torch.zeros_like(real, dtype=torch.int64)  # a place that is not taken repeats the first example
    rows[group, rank % _FEW] = order
    return rows, real


def masked_log_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Log-softmax among the real entries."""
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).log_softmax(-1)
