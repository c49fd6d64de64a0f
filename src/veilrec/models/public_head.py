"""A hundred numbers over public vectors: what can be learnt under a proof from a few thousand people.

Score of news n for a user: a . [cosine of n with the mean of the clicks, share of n's category among them, share of
its subcategory] + w . z_n, with z_n the whitened principal components of the public sentence vectors. Only a and w
learn, and the loss is convex in them. As a dot product: u = [a1 direction of the clicks, a2 category shares, a3
subcategory shares, w], r_n = [sentence, unit vector, unit vector, z_n].

Basis vectors for private messages start as public ones, the centres of the news by k-means. They stay, or learn from a
second loss (`train_basis`): that of the scores by the user put together from attention, where the user vector is taken
as it is, so that a and w learn the same either way. A device that ranks by itself uses the whole user vector; only what
it sends is decomposed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from veilrec.models.interests import Interests
from veilrec.models.layers import NewsSizes, masked_mean
from veilrec.models.news_model import NewsInput, NewsShape
from veilrec.models.news_networks import unit_vectors

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
        """The cosine with the mean, and a little for categories: a start that nobody's data went into."""
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

    def whole_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """[a1 direction, a2 shares, a3 shares, w]; only w for those without clicks."""
        pooled = masked_mean(history[..., : sum(self.parts)], mask)
        sentence, shares = pooled[..., : self.parts[0]], pooled[..., self.parts[0] :]
        length = torch.linalg.vector_norm(sentence, dim=-1, keepdim=True).clamp(min=_SMALLEST)
        personal = self._scaled(torch.cat([sentence / length, shares], -1), self.scales)
        return torch.cat([personal, self.taste.expand(*personal.shape[:-1], -1)], -1)

    def user(self, history: Tensor, mask: Tensor) -> Tensor:
        """The whole vector: what a device ranks with."""
        return self.whole_user(history, mask)

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
