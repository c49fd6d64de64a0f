"""Federated news models: FedNewsRec, the basis vectors of PrivateRec, and a small head over frozen text.

`FedNewsRec`: The model of FedNewsRec (Qi et al. 2020, section 3.1).

`Interests`: news models whose user vector is decomposed over B public basis vectors (PrivateRec, Algorithms 1 and 2).

A client sends its attention over the basis, not its user vector; the server puts the user vector together again. The
modules by the paper's names: user encoder (UE) with behaviour padding, interest decomposer (ID), interest reconstructor
(IR). The noise of the private attention (DPA) comes from `veilrec.privacy` and is only added here.

`PublicHead`: a hundred numbers over public vectors: what can be learnt under a proof from a few thousand people.

Score of news n for a user: a . [cosine of n with the mean of the clicks, share of n's category among them, share of
its subcategory] + w . z_n, with z_n the whitened principal components of the public sentence vectors. Only a and w
learn, and the loss is convex in them. As a dot product: u = [a1 direction of the clicks, a2 category shares, a3
subcategory shares, w], r_n = [sentence, unit vector, unit vector, z_n].

Basis vectors for private messages start as public ones, the centres of the news by k-means. They stay, or learn from a
second loss (`train_basis`): that of the scores by the user put together from attention, where the user vector is taken
as it is, so that a and w learn the same either way. A client that ranks by itself uses the whole user vector; only what
it sends is decomposed.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad, scaled_dot_product_attention

from veilrec.models.news_model import (
    AdditiveAttention,
    Batch,
    Dropout,
    Gru,
    MultiHeadPooling,
    NewsInput,
    NewsModel,
    NewsShape,
    NewsSizes,
    WordCnn,
    latest,
    masked_mean,
)
from veilrec.models.news_networks import Naml, Nrms, PlmNr, unit_vectors

InterestTerms = Literal["both", "long", "short"]


class FedNewsRec(NewsModel):
    """News: words, CNN, self-attention, attention (Fig. 1); user: long and short term (Fig. 2)."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape, interests: InterestTerms = "both") -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.cnn = WordCnn(sizes.word_dim, sizes.dim, sizes.window)
        self.title = MultiHeadPooling(sizes.dim, sizes)
        self.clicks = LongAndShortTerm(sizes, interests)

    def encode_news(self, news: NewsInput) -> Tensor:
        """t of Fig. 1."""
        mask = news.title > 0
        convolved = self.dropout(self.cnn(self.dropout(self.words(news.title)), mask))
        encoded: Tensor = self.title(convolved, mask)
        return encoded

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """u of Fig. 2."""
        encoded: Tensor = self.clicks(history, mask)
        return encoded

    def project_clicks(self, states: Tensor) -> Tensor:
        """What the linear layers that come first in the user model make of a news."""
        return self.clicks.project(states)

    def user_from(self, projected: Tensor, items: Tensor, mask: Tensor) -> Tensor:
        """u of Fig. 2 from projected news: no learning, so fused and changed in place."""
        known = mask.any(-1, keepdim=True)
        return torch.where(known, self.clicks.from_projected(projected, items, mask), self.newcomer)


class LongAndShortTerm(nn.Module):
    """Self-attention and attention over all clicks, a GRU over the recent ones, joined by attention."""

    def __init__(self, sizes: NewsSizes, interests: InterestTerms = "both") -> None:
        super().__init__()
        self.interests = interests  # Fig. 7 leaves one of them out
        self.recent = sizes.recent
        self.dropout = Dropout(sizes.dropout)
        if interests != "short":
            self.long_term = MultiHeadPooling(sizes.dim, sizes)
        if interests != "long":
            self.short_term = Gru(sizes.dim, sizes.dim)
        if interests == "both":
            self.join = AdditiveAttention(sizes.dim, sizes.attention)

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """[b, h, dim] -> [b, dim]."""
        interests = []
        if self.interests != "short":
            interests.append(self.long_term(history, mask))
        if self.interests != "long":
            interests.append(self.short_term(*latest(history, mask, self.recent))[:, -1])
        return self._joined(interests)

    def _joined(self, interests: list[Tensor]) -> Tensor:
        if len(interests) == 1:
            return interests[0]
        both = torch.stack(interests, 1)  # [b, 2, dim]
        joined: Tensor = self.join(both, torch.ones_like(both[..., 0], dtype=torch.bool))
        return joined

    def project(self, states: Tensor) -> Tensor:
        """[n, dim] -> [n, 3 dim] for each kind of interest: what depends on one news alone."""
        parts = []
        if self.interests != "short":
            parts.append(self.long_term.mix.projections(states))
        if self.interests != "long":
            parts.append(self.short_term.inputs(states))
        return torch.cat(parts, -1)

    def from_projected(self, projected: Tensor, items: Tensor, mask: Tensor) -> Tensor:
        """Compute `forward` from what `project` gives; each kind of interest gathers only what it looks at."""
        real = None if bool(mask.all()) else mask  # histories of one length need no mask
        interests = []
        width = projected.shape[-1] // (2 if self.interests == "both" else 1)
        if self.interests != "short":
            interests.append(_attend(self.long_term, embedding(items, projected[:, :width]), mask, real))
        if self.interests != "long":
            recent, mask = latest(items.unsqueeze(-1), mask, self.recent)
            steps = embedding(recent.squeeze(-1), projected[:, -width:])
            interests.append(_remember(self.short_term, steps, None if real is None else mask))
        return self._joined(interests)


def _attend(pooling: MultiHeadPooling, projected: Tensor, mask: Tensor, real: Tensor | None) -> Tensor:
    """Self-attention and attention over queries, keys and values that are there: [b, h, 3 dim] -> [b, dim]."""
    b, length, _ = projected.shape
    heads, head_dim = pooling.mix.heads, pooling.mix.width
    queries, keys, content = projected.view(b, length, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
    seen = None if real is None else real[:, None, None, :]
    mixed = scaled_dot_product_attention(queries, keys, content, attn_mask=seen)
    pooled: Tensor = pooling.attention(mixed.transpose(1, 2).reshape(b, length, heads * head_dim), mask)
    return pooled


def _remember(gru: Gru, steps: Tensor, real: Tensor | None) -> Tensor:
    """The last state of a GRU whose inputs are projected: [b, h, 3 hidden] -> [b, hidden]."""
    state = steps.new_zeros(steps.shape[0], gru.hidden)
    for number, step in enumerate(steps.unbind(1)):
        old = gru.recurrent(state)
        gates = (step[:, : 2 * gru.hidden] + old[:, : 2 * gru.hidden]).sigmoid_()
        reset, update = gates.chunk(2, -1)
        new = step[:, 2 * gru.hidden :].addcmul(reset, old[:, 2 * gru.hidden :]).tanh_()
        after = torch.lerp(new, state, update)
        state = after if real is None else torch.where(real[:, number, None], after, state)
    return state


_SMALLEST_TOTAL = 1e-12  # of the attention that ReLU leaves; less is nothing
_SMALLEST_SHARE = 1e-3  # that is told from a smaller one
_SWIFT = 10.0  # what FedAdam does to any parameter in a round is a tenth of what a share may change in it


class Interests(NewsModel):
    """Joins a model with a user vector: what it adds are the basis vectors b and the vector of a padded click.

    Both may come with a dimension in front, a copy for every history: each history then has a gradient of its own.
    """

    basis: nn.Parameter  # [B, dim]
    pad: nn.Parameter  # [dim], r0: what a padded click looks like
    shares: (
        nn.Parameter
    )  # [B], a tenth of the mean attention of clients lately, where basis vectors are kept in balance

    def add_interests(self, sizes: NewsSizes) -> None:
        """The parameters that PrivateRec adds; a subclass calls it when all others are there."""
        self.basis = nn.Parameter(torch.zeros(sizes.basis, self.dim))
        self.pad = nn.Parameter(torch.zeros(self.dim))
        if sizes.balance > 0.0:
            self.shares = nn.Parameter(torch.zeros(sizes.basis))

    def start(self, generator: torch.Generator) -> None:
        """Basis vectors of the length of a news vector: short ones never learn."""
        super().start(generator)
        with torch.no_grad():
            self.basis.normal_(0.0, 1.0, generator=generator)
            self.pad.zero_()
            if self.sizes.balance > 0.0:
                self.shares.fill_(1.0 / (_SWIFT * self.sizes.basis))

    def basis_vectors(self) -> Tensor:
        """b, what attention is over: [B, dim]."""
        return self.basis

    def pad_state(self) -> Tensor:
        """r0, the state of a padded click: [dim]."""
        return self.pad

    def whole_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """UE: the user vector before it is decomposed, [b, dim]."""
        return self.whole_of(self.as_clicks(history), mask)

    def whole_of(self, clicks: Tensor, mask: Tensor) -> Tensor:
        """`whole_user` of what `as_clicks` gives."""
        return super().user_of(clicks, mask)

    def attention(self, user: Tensor) -> Tensor:
        """ID, Algorithm 2, line 7: [b, dim] -> [b, B]."""
        products = (self.basis_vectors() @ user.unsqueeze(-1)).squeeze(-1)
        weights: Tensor = (products / self.dim**0.5).softmax(-1)
        return weights

    def reconstruct(self, attention: Tensor) -> Tensor:
        """IR, Algorithm 1, line 3: [b, B] -> [b, dim]."""
        return (attention.unsqueeze(-2) @ self.basis_vectors()).squeeze(-2)

    def user_of(self, clicks: Tensor, mask: Tensor) -> Tensor:
        """What the server ranks with where nothing is noisy."""
        return self.reconstruct(self.attention(self.whole_of(clicks, mask)))

    def learning_users(self, clicks: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """UE with padding, ID, DPA, IR as in training (Algorithm 3, lines 14 and 15): [u, dim].

        Of attention that was released already, only IR is left: nothing of the history is looked at.
        """
        if batch.noise is None and self.sizes.balance == 0.0:
            return self.user_of(clicks, batch.history_mask), None
        if batch.noise is None:
            attention = used = self.attention(self.whole_of(clicks, batch.history_mask))
        elif batch.padded is None:
            attention = used = on_simplex(batch.noise)
        else:
            attention = self.padded_attention(clicks, batch.history_mask, batch.padded)
            attention = attention if batch.row_of is None else attention[batch.row_of]
            used = on_simplex(clip(attention, self.sizes.attention_clip) + batch.noise)
        return self.reconstruct(used), self._balance(attention) if self.sizes.balance > 0.0 else None

    def _balance(self, attention: Tensor) -> Tensor:
        """Gradients, without a loss, that keep every basis vector in use: [u].

        With m the mean attention of all clients, that of sum(m log m) in the attention of one of them is log m (and a
        constant). What they share of m is the parameter `shares`, which follows the mean from round to round.
        """
        shares = _SWIFT * self.shares
        evenly = (attention * shares.detach().clamp(min=_SMALLEST_SHARE).log()).sum(-1)
        follow = (shares - attention.detach()).square().sum(-1) / (2.0 * _SWIFT)
        both = self.sizes.balance * evenly + follow
        return both - both.detach()

    def padded_attention(self, clicks: Tensor, mask: Tensor, padded: Tensor) -> Tensor:
        """Attention of histories, as `as_clicks` gives them, in which some clicks are the pad: a mechanism's input."""
        kept = torch.where(padded.unsqueeze(-1), self.as_clicks(self.pad_state()).unsqueeze(-2), clicks)
        return self.attention(self.whole_of(kept, mask))


def clip(attention: Tensor, norm: float) -> Tensor:
    """Scale attention to a norm of at most `norm` (Algorithm 2, line 8), with gradients.

    `AttentionNoise.clipped` is the definition; a test keeps both equal.
    """
    too_long: Tensor = torch.linalg.vector_norm(attention, dim=-1, keepdim=True) / norm
    return attention / too_long.clamp(min=1.0)


def on_simplex(noisy: Tensor) -> Tensor:
    """Project noisy attention back on the simplex (Algorithm 2, line 10, in training), with gradients.

    ReLU and division by the sum; uniform where ReLU leaves nothing, and then no gradient. `normalise(noisy, "relu")` is
    the definition; a test keeps both equal.
    """
    raised = noisy.relu()
    total = raised.sum(-1, keepdim=True)
    left = total > _SMALLEST_TOTAL
    return torch.where(left, raised / torch.where(left, total, 1.0), 1.0 / noisy.shape[-1])


class InterestNrms(Interests, Nrms):
    """NRMS with basis vectors."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes, shape)
        self.add_interests(sizes)


class InterestNaml(Interests, Naml):
    """NAML with basis vectors."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes, shape)
        self.add_interests(sizes)


class InterestPlmNr(Interests, PlmNr):
    """PLM-NR with basis vectors."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes, shape)
        self.add_interests(sizes)


START = (5.0, 1.0, 1.0)  # a: the cosine, and a little for the same category
SHARP = 4.0  # length of the basis vectors over sqrt(dim): the softmax over them then tells users apart
MOVED = 0.2  # what one unit of learning moves a centre, whose length is 1
_STEPS = 20  # of k-means
_SMALLEST = 1e-12


class PublicHead(Interests):
    """Learns `scales` (a), `taste` (w) and perhaps `moves` of the basis; the rest is made of public news and stays."""

    moves: nn.Parameter  # [B, personal], where basis vectors learn

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        parts = (shape.sentence_dim, shape.categories, shape.subcategories)
        width = min(sizes.taste, shape.sentence_dim)
        super().__init__(sizes, dim=sum(parts) + width)
        self.parts = parts
        self.scales = nn.Parameter(torch.zeros(3))
        self.taste = nn.Parameter(torch.zeros(width))
        self.centre = nn.Parameter(torch.zeros(shape.sentence_dim), requires_grad=False)
        self.whitening = nn.Parameter(torch.zeros(shape.sentence_dim, width), requires_grad=False)
        self.add_interests(sizes)
        self.basis.requires_grad_(False)
        if sizes.train_basis:
            self.moves = nn.Parameter(torch.zeros(sizes.basis, sum(parts)))

    def start(self, generator: torch.Generator) -> None:
        """Start at the cosine with the mean click and a little for categories, without any user's data."""
        super().start(generator)
        with torch.no_grad():
            self.scales.copy_(torch.tensor(START))
            for weight in (self.taste, self.newcomer, self.centre, self.whitening):
                weight.zero_()
            if self.sizes.train_basis:
                self.moves.zero_()

    def take_in(self, news: NewsInput) -> frozenset[str]:
        """Whitening and basis vectors, from the public news."""
        with torch.no_grad():
            self.centre.copy_(news.sentence.mean(0))
            self.whitening.copy_(_whitening(news.sentence - self.centre, self.whitening.shape[1]))
            personal = self._scaled(self.encode_news(news)[:, : sum(self.parts)], torch.tensor(START))
            centres = _centres(personal, len(self.basis))
            self.basis.zero_()
            self.basis[:, : sum(self.parts)] = centres * (SHARP * self.dim**0.5)
        return frozenset(("newcomer", "centre", "whitening", "basis", "pad"))

    def encode_news(self, news: NewsInput) -> Tensor:
        """[sentence, category, subcategory, whitened sentence]."""
        sentence = news.sentence
        category = unit_vectors(news.category, self.parts[1], sentence.dtype)
        subcategory = unit_vectors(news.subcategory, self.parts[2], sentence.dtype)
        return torch.cat([sentence, category, subcategory, (sentence - self.centre) @ self.whitening], -1)

    def whole_of(self, clicks: Tensor, mask: Tensor) -> Tensor:
        """[a1 direction, a2 shares, a3 shares, w]; only w for those without clicks."""
        pooled = masked_mean(clicks[..., : sum(self.parts)], mask)
        sentence, shares = pooled[..., : self.parts[0]], pooled[..., self.parts[0] :]
        length = torch.linalg.vector_norm(sentence, dim=-1, keepdim=True).clamp(min=_SMALLEST)
        personal = self._scaled(torch.cat([sentence / length, shares], -1), self.scales)
        return torch.cat([personal, self.taste.expand(*personal.shape[:-1], -1)], -1)

    def user_of(self, clicks: Tensor, mask: Tensor) -> Tensor:
        """The whole vector: what a client ranks with."""
        return self.whole_of(clicks, mask)

    def basis_vectors(self) -> Tensor:
        """The public centres, and where learning has moved them."""
        if not self.sizes.train_basis:
            return self.basis
        return self.basis + pad(self.moves * (MOVED * SHARP * self.dim**0.5), (0, len(self.taste)))

    def reconstruct(self, attention: Tensor) -> Tensor:
        """Basis vectors of the length of a user vector; w is public, and the same for everybody."""
        return self._together(attention, self.taste)

    def second_users(self, users: Tensor) -> Tensor | None:
        """Users put together from attention: only basis vectors learn from them."""
        if not self.sizes.train_basis:
            return None
        return self._together(self.attention(users.detach()), self.taste.detach())

    def _together(self, attention: Tensor, taste: Tensor) -> Tensor:
        vectors = self.basis_vectors()
        personal = (attention @ vectors)[..., : sum(self.parts)] * (START[0] / (SHARP * self.dim**0.5))
        return torch.cat([personal, taste.expand(*personal.shape[:-1], -1)], -1)

    def _scaled(self, personal: Tensor, scales: Tensor) -> Tensor:
        """Each of the three parts times its number."""
        return personal * scales.repeat_interleave(torch.tensor(self.parts))


def _whitening(centred: Tensor, width: int) -> Tensor:
    """Principal axes, each divided by its spread, so that the mean squared length is 1: [dim, width]."""
    exact = centred.double()
    values, axes = torch.linalg.eigh(exact.T @ exact / max(1, len(exact)))
    order = values.argsort(descending=True, stable=True)[:width]
    values, axes = values[order], axes[:, order]
    signs = torch.where(axes[axes.abs().argmax(0), torch.arange(axes.shape[1])] < 0, -1.0, 1.0)
    spread = values.clamp(min=0.0).sqrt()
    flat = spread <= 1e-6 * spread.max().clamp(min=_SMALLEST)  # a direction in which the news do not differ
    scaled: Tensor = torch.where(flat, 0.0, signs / torch.where(flat, 1.0, spread)) * axes / width**0.5
    return scaled.float()


def _centres(vectors: Tensor, count: int) -> Tensor:
    """Spherical k-means from evenly spread news: the same every time; unit vectors [count, dim]."""
    unit = vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp(min=_SMALLEST)
    centres = _apart(unit, count)
    for _ in range(_STEPS):
        nearest = (unit @ centres.T).argmax(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, unit)
        lengths = torch.linalg.vector_norm(sums, dim=-1, keepdim=True)
        centres = torch.where(lengths > _SMALLEST, sums / lengths.clamp(min=_SMALLEST), centres)
    return centres


def _apart(unit: Tensor, count: int) -> Tensor:
    """News that are far from each other: each next one is the least like those before it."""
    if not len(unit):
        return torch.zeros(count, unit.shape[1])
    chosen = [int((unit @ unit.mean(0)).argmax())]
    closest = unit @ unit[chosen[0]]
    while len(chosen) < count:
        chosen.append(int(closest.argmin()))
        closest = torch.maximum(closest, unit @ unit[chosen[-1]])
    return unit[chosen]
