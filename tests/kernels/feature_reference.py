"""A feature network the slow way, for comparison: one client at a time, in doubles, by autograd of torch."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from veilrec.client.local_training import Cohort, OwnItemsAndFeatures
from veilrec.client.reptile import Adapter
from veilrec.core.arrays import Floats
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.features import Feature, Features, Side, assembled
from veilrec.models.feature_net import POPULARITY, Inputs

SEED, ROUND, N_ITEMS = 7, 3, 40


def some_features(users, n_items=N_ITEMS):
    """People with two categories and a number; items with a category, one to three genres, and two numbers."""
    generator = np.random.default_rng(2)

    def one_of(count, values):
        return np.arange(count), generator.integers(0, values + 1, count).astype(np.int32)

    def numbers(count):
        return generator.random(count).astype(np.float32)

    picks = [generator.choice(5, generator.integers(1, 4), replace=False) for _ in range(n_items)]
    genres = np.repeat(np.arange(n_items), [len(pick) for pick in picks]), 1 + np.concatenate(picks).astype(np.int32)
    people = (Feature("group", "category", tuple("abc")), Feature("job", "category", tuple("xy")))
    kinds = (Feature("genres", "categories", tuple("abcde")), Feature("kind", "category", tuple("uvw")))
    year, mark, age = (Feature(name, "number") for name in ("year", "mark", "age"))
    return Features(
        assembled([*people, age], users, [one_of(users, 3), one_of(users, 2)], [numbers(users)]),
        assembled([*kinds, year, mark], n_items, [genres, one_of(n_items, 3)], [numbers(n_items), numbers(n_items)]),
    )


def histories(lengths, n_items=N_ITEMS):
    generator = np.random.default_rng(1)
    rows = [np.sort(generator.choice(n_items, n, replace=False)) for n in lengths]
    return Csr(offsets_of(lengths), np.concatenate([np.zeros(0), *rows]).astype(np.int32))


@dataclass(frozen=True)
class World:
    """Clients, their people and items, and a network that they share."""

    adapter: Adapter
    data: OwnItemsAndFeatures
    weights: dict[str, Floats]

    @property
    def start(self):
        return self.adapter.net.flat(self.weights)

    @property
    def n_items(self):
        return len(self.adapter.inputs.items)

    def with_local(self, **other):
        local = replace(self.adapter.local, **other)
        return replace(self, adapter=replace(self.adapter, local=local))

    def cohort(self, *places):
        chosen = np.array(places or range(len(self.data.rows)), np.int64)
        return Cohort(10 + chosen, self.data.take(chosen), {}, SEED)

    def learnt(self):
        """What the kernel makes of all clients, and their losses."""
        data, items = self.data, self.adapter.inputs.of_items(self.weights)
        of = {"clients": 10 + np.arange(len(data.rows)), "seed": SEED, "round_number": ROUND, "targets": data.ratings}
        return self.adapter.adapt(self.start, items, data.rows, data.people, **of)


def world(
    local, *, lengths=(7, 1, 12), embedding=3, hidden=(6, 4), popularity=True, n_items=N_ITEMS, about_people=True, **how
):
    """Everything a model can have, unless less is asked for."""
    features = some_features(len(lengths), n_items)
    people = features.users if about_people else features.users.select([])
    inputs = Inputs(Side(people.features, people.codes[:0], people.numbers[:0]), features.items, embedding, popularity)
    net = inputs.net(hidden, **how)
    generator = np.random.default_rng(5)
    weights = net.start(SEED, spread=0.7)
    for name in weights:  # biases, too, so that no ReLU stands exactly at 0
        weights[name] += generator.normal(0.0, 0.1, weights[name].shape).astype(np.float32)
    if popularity:
        weights[POPULARITY] = generator.integers(0, 30, (n_items, 1)).astype(np.float32)
    rows = histories(lengths, n_items)
    ratings = generator.choice([0.2, 0.4, 0.6, 0.8, 1.0], len(rows.items)).astype(np.float32)
    data = OwnItemsAndFeatures(rows, people, ratings if local.loss == "rating" else None)
    return World(Adapter(net, inputs, local), data, weights)


class Reference:
    """One client, by torch."""

    def __init__(self, of, place):
        self.of, self.place = of, place
        self.net, self.local = of.adapter.net, of.adapter.local
        codes, numbers = of.adapter.inputs.of_people(of.data.people)
        self.user_codes, self.user_numbers = codes[place], torch.tensor(numbers[place]).double()
        self.items = of.adapter.inputs.of_items(of.weights)
        self.own = of.data.rows.row(place)
        self.start = torch.tensor(of.start).double()

    def scores(self, flat, items):
        """Row by row, code by code."""
        w, at = {}, 0
        for name, shape in self.net.tensors.items():
            size = int(np.prod(shape))
            w[name] = flat[at : at + size].reshape(shape)
            at += size
        rows = []
        for item in items:
            parts = self._embedded(w.get("users.embedding"), self.user_codes, self.net.user_categories)
            parts += [self.user_numbers]
            parts += self._embedded(w.get("items.embedding"), self.items.codes[item], self.net.item_categories)
            rows.append(torch.cat([*parts, torch.tensor(self.items.numbers[item]).double()]))
        x = torch.stack(rows)
        layers = len(self.net.widths) - 1
        for layer in range(1, layers + 1):
            x = x @ w[f"layer{layer}.weight"] + w[f"layer{layer}.bias"]
            if layer < layers:
                x = torch.relu(x) if self.net.activation == "relu" else torch.sigmoid(x)
        return x[:, 0] + torch.tensor(self.items.offsets[items]).double()

    def _embedded(self, table, codes, categories):
        parts, start = [], 0
        for count in categories:
            mine = [int(code) for code in codes if start <= code < start + count]
            parts.append(table[mine].sum(dim=0))
            start += count
        return parts

    def loss(self, flat, items, labels, own):
        """Of one step: the sum or the mean over what it counts."""
        scores, wanted = self.scores(flat, items), torch.tensor(labels).double()
        if self.local.loss == "softmax":
            outside = self.of.n_items - len(self.own)
            others = scores[own:].exp().sum() * (outside / max(len(items) - own, 1))
            each = -(scores[:own].exp() / (scores[:own].exp() + others)).log()
        elif self.local.loss == "rating":
            each = (scores - wanted) ** 2
        else:
            each = binary_cross_entropy_with_logits(scores, (wanted > 0).double(), reduction="none")
        return each.mean() if self.local.reduction == "mean" else each.sum()

    def penalty(self, flat):
        """The proximal term of eq. 7."""
        moved = flat - self.start
        if self.local.proximal_term == "squared":
            return self.local.proximal / 2 * (moved**2).sum()
        return self.local.proximal / 2 * moved.norm() if bool(moved.any()) else 0.0 * moved.sum()

    def learnt(self):
        """The weights after all steps."""
        local, n, weights = self.local, len(self.own), self.start
        rate = local.rate * n / (n + local.needed) if n else 0.0
        ratings = self.of.data.take(np.array([self.place])).ratings if local.loss == "rating" else None
        drawn = self.of.adapter.drawn(
            self.own, self.of.n_items, client=10 + self.place, seed=SEED, round_number=ROUND, targets=ratings
        )
        for items, labels, own in drawn if n else ():
            flat = weights.clone().requires_grad_()
            (slope,) = torch.autograd.grad(self.loss(flat, items, labels, own) + self.penalty(flat), flat)
            weights = weights - rate * slope
        return weights.numpy()


def assert_same_change(got, wanted, start, tolerance):
    """Within so much of the largest change, and the rounding of weights to single precision."""
    change = np.abs(wanted - start).max()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * change + 4e-7 * np.abs(start).max())
