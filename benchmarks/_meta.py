"""Meta-learning on many clients: our kernel beside a plain torch loop over them, and beside all of them in one bmm.

All start from the same weights and learn from the very same examples, which the others get ready-made; ours draws them
as it goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from _measure import Options, Result, Round, fresh_rounds
from _news import OF_ONE_CORE
from _ours_alone import ml_1m
from veilrec.client.reptile import Adapter, FeatureRanker, MetaSettings
from veilrec.core.arrays import Floats, Indices
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.errors import VeilrecError
from veilrec.core.features import Feature, Features, assembled
from veilrec.core.resources import peak_rss_mb
from veilrec.methods.base import Problem
from veilrec.methods.privrec import baselines
from veilrec.models.feature_net import POPULARITY, Activation, FeatureNet, Inputs

_SEED = 1
_ITEMS, _GENRES, _OWN = 3706, 18, 100  # as in ML-1M; a genre more is the unknown one
_PEOPLE = {"gender": 2, "age": 7, "occupation": 21}
_LOCAL = MetaSettings(loss="logistic", epochs=5, batch=16, negatives=4, rate=0.1)
_CLIENTS, _CLIENTS_QUICK = 60, 8
_TURNS = 7
SAME = 1e-4  # of the largest change of a weight: how far results may be apart
# Where an input of a ReLU is 0 but for rounding, software decides its sign, and the client goes another way from there:
# torch in single precision differs from torch in double precision on as many clients.
_ALIKE = 0.75
_SOURCE = f"synthetic clients in the shape of ml-1m: {_ITEMS} items with 1 to 4 of 19 genres, {_OWN} items each"
_ADAPTED_ITEMS = 83  # half of the mean history of ML-1M
_ADAPTATIONS = 20


def small(name: str, options: Options) -> Result:
    """Embeddings of 16, hidden layers of 32 and 16."""
    return _compare(name, 16, (32, 16), options)


def large(name: str, options: Options) -> Result:
    """Embeddings of 64, four hidden layers of 64: the paper's."""
    return _compare(name, 64, (64, 64, 64, 64), options)


def _compare(name: str, embedding: int, hidden: tuple[int, ...], options: Options) -> Result:
    torch.set_num_threads(1)
    clients = Clients(embedding, hidden, _CLIENTS_QUICK if options.quick else _CLIENTS)
    clients.ours(0)
    memory, rounds = peak_rss_mb(), min(options.repeats, _TURNS)
    for number in range(rounds):
        clients.prepare(number)
    alike = float((clients.apart(0) <= SAME).mean())
    if alike < _ALIKE:
        raise VeilrecError(f"{name}: the contenders learn the same on {alike:.0%} of the clients only")
    contenders: dict[str, Round] = {"ours": clients.ours, "plain_loop": clients.loop, "batched": clients.batched}
    seconds = {n: f.cpu_seconds for n, f in fresh_rounds(contenders, rounds).items()}
    ours, batched = seconds["ours"], seconds["batched"]
    steps = clients.steps * len(clients.own)
    figures = {
        "batched_torch_seconds": batched,
        "ratio_to_batched_torch": round(batched / ours, 3),
        "microseconds_of_a_step": round(1e6 * ours / steps, 1),
        "loop_microseconds_of_a_step": round(1e6 * seconds["plain_loop"] / steps, 1),
        "batched_torch_microseconds_of_a_step": round(1e6 * batched / steps, 1),
        "clients_alike": round(alike, 3),
    }
    winner = f"Our kernel won, {batched / ours:.1f} times as fast as" if batched > ours else "Our kernel lost against"
    notes = (
        OF_ONE_CORE,
        f"{winner} torch with one bmm per layer for all {len(clients.own)} clients at once.",
        "The others get their examples ready-made, as matrices of ones and zeros; ours draws them as it goes.",
        f"All arrive at the same weights, to {SAME:g} of the largest change, on {alike:.0%} of the clients; where they"
        " do not, rounding turned a ReLU on or off.",
    )
    return Result(name, _SOURCE, len(clients.own), ours, memory, {"plain_loop": seconds["plain_loop"]}, figures, notes)


def one_client(name: str, options: Options) -> Result:
    """How long somebody's device takes to learn the tuned linear head; compiled already."""
    source, population = ml_1m()
    pairs, n_items = population.interactions.pairs(), population.n_items
    problem = Problem(pairs, n_items, _SEED, 1, features=population.features)
    plan = baselines.popularity_head_plan(baselines.PopularityHeadConfig(), problem)
    votes = np.bincount(pairs.items, minlength=n_items).astype(np.float32)
    weights = {**plan.start, POPULARITY: votes.reshape(-1, 1)}
    user = int(np.flatnonzero(pairs.lengths() >= min(_ADAPTED_ITEMS, int(pairs.lengths().max())))[0])
    own = pairs.row(user)[:_ADAPTED_ITEMS]
    if not isinstance(plan.ranker, FeatureRanker):
        raise VeilrecError("popularity-head ranks by something else than features")
    model = plan.ranker.model(weights, {}, Csr(offsets_of([len(own)]), own))
    nobody_else, local = np.zeros(1, np.int64), baselines.HEAD
    model.adapted(nobody_else)  # compiles
    learning = _milliseconds(lambda: model.adapted(nobody_else), options)
    figures = {"milliseconds_of_a_client": round(learning, 2)}
    note = (
        f"{local.steps} steps on {len(own)} own items and {local.negatives:,} sampled ones, "
        f"{plan.ranker.adapter.net.size} weights."
    )
    return Result(name, source, 1, learning / 1e3, peak_rss_mb(), figures=figures, notes=(OF_ONE_CORE, note))


def _milliseconds(call: Callable[[], object], options: Options) -> float:
    taken = []
    for _ in range(options.repeats if options.quick else options.repeats * _ADAPTATIONS):
        start = time.thread_time()
        call()
        taken.append(time.thread_time() - start)
    return 1e3 * median(taken)


@dataclass(frozen=True)
class _Examples:
    """What all clients learn from in one step."""

    kinds: Tensor  # [n, examples, genres]: ones and zeros
    labels: Tensor  # [n, examples]


class Clients:
    """So many clients that learn the same network, three ways."""

    def __init__(
        self,
        embedding: int,
        hidden: tuple[int, ...],
        count: int,
        *,
        n_items: int = _ITEMS,
        own: int = _OWN,
        activation: Activation = "relu",
    ) -> None:
        generator = np.random.default_rng(_SEED)
        features = made_up_features(count, n_items, generator)
        self.people = features.users
        self.n_items = n_items
        rows = [np.sort(generator.choice(n_items, own, replace=False)) for _ in range(count)]
        self.own = Csr(offsets_of([own] * count), np.concatenate(rows).astype(np.int32))
        inputs = Inputs(features.users.take(np.zeros(0, np.int64)), features.items, embedding, popularity=False)
        self.adapter = Adapter(inputs.net(hidden, activation), inputs, _LOCAL)
        self.items = inputs.of_items({})
        self.start = self.net.flat(self.net.start(_SEED))
        self._prepared: dict[int, list[_Examples]] = {}

    @property
    def net(self) -> FeatureNet:
        """The network."""
        return self.adapter.net

    @property
    def steps(self) -> int:
        """Local steps of a client."""
        return int(self.adapter.local.steps_of(self.own.lengths())[0])

    def prepare(self, number: int) -> None:
        """Make the examples of a round."""
        if number not in self._prepared:
            self._prepared[number] = self._examples(number)

    def _examples(self, number: int) -> list[_Examples]:
        hot = torch.from_numpy(ones_and_zeros(self.items.codes, self.adapter.inputs.items.n_codes))
        drawn = [
            list(self.adapter.drawn(self.own.row(d), self.n_items, client=d, seed=_SEED, round_number=number))
            for d in range(len(self.own))
        ]
        return [
            _Examples(
                hot[torch.from_numpy(np.stack([step.items for step in at_once]))],
                torch.from_numpy(np.stack([step.labels for step in at_once])),
            )
            for at_once in zip(*drawn, strict=True)
        ]

    def ours(self, number: int) -> Floats:
        """The kernel: the weights at which all clients arrive, [n, size]."""
        return self.adapter.adapt(
            self.start,
            self.items,
            self.own,
            self.people,
            clients=np.arange(len(self.own)),
            seed=_SEED,
            round_number=number,
        )[0]

    def loop(self, number: int) -> Floats:
        """A module of torch, and one client after the other."""
        arrived = np.empty((len(self.own), self.net.size), np.float32)
        start = {name: torch.from_numpy(part) for name, part in self.net.named(self.start).items()}
        module, codes = LoopNet(self.net), torch.from_numpy(self.people.codes.astype(np.int64))
        optimiser = torch.optim.SGD(module.parameters(), lr=_LOCAL.rate, foreach=True)
        batches = [[(e.kinds[d], e.labels[d]) for e in self._prepared[number]] for d in range(len(self.own))]
        for client, steps in enumerate(batches):
            module.load(start)
            for kinds, labels in steps:
                optimiser.zero_grad()
                loss = binary_cross_entropy_with_logits(module(codes[client], kinds), labels)
                torch.autograd.backward(loss)
                optimiser.step()
            arrived[client] = self.net.flat(module.weights())
        return arrived

    def batched(self, number: int) -> Floats:
        """All clients at once: a leading dimension holds the weights of each."""
        flat = torch.from_numpy(np.tile(self.start, (len(self.own), 1)))
        for examples in self._prepared[number]:
            flat.requires_grad_()
            scores = self._batched_net.scores(flat, examples.kinds)
            each = binary_cross_entropy_with_logits(scores, examples.labels, reduction="none").mean(dim=1)
            (slope,) = torch.autograd.grad(each.sum(), flat)
            flat = flat.detach().sub_(slope, alpha=_LOCAL.rate)
        return flat.numpy()

    @cached_property
    def _batched_net(self) -> _BatchedNet:
        return _BatchedNet(self.net, self.people.codes)

    def apart(self, number: int) -> Floats:
        """The largest difference between the results of a round, over the largest change of a weight: [n]."""
        self.prepare(number)
        ours = self.ours(number)
        largest = np.abs(ours - self.start).max(axis=1)
        apart = [np.abs(ours - theirs(number)).max(axis=1) / largest for theirs in (self.loop, self.batched)]
        return np.asarray(np.maximum(*apart), np.float32)


class LoopNet(nn.Module):
    """The network as anybody would write it; genres come as ones and zeros, faster here than an EmbeddingBag."""

    def __init__(self, net: FeatureNet) -> None:
        super().__init__()
        self.users = nn.Embedding(sum(net.user_categories), net.embedding)
        self.items = nn.Parameter(torch.empty(sum(net.item_categories), net.embedding))
        self.activation = torch.relu if net.activation == "relu" else torch.sigmoid
        self.layers = nn.ModuleList([nn.Linear(inputs, outputs) for inputs, outputs in pairwise(net.widths)])

    def forward(self, codes: Tensor, kinds: Tensor) -> Tensor:
        """Scores [examples] of a user with these codes."""
        user = self.users(codes).reshape(1, -1).expand(len(kinds), -1)
        x = torch.cat([user, kinds @ self.items], dim=1)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        scores: Tensor = self.layers[-1](x)
        return scores[:, 0]

    def _named(self) -> dict[str, Tensor]:
        named = {"users.embedding": self.users.weight.detach(), "items.embedding": self.items.detach()}
        for number, layer in enumerate(self.layers, start=1):
            if isinstance(layer, nn.Linear):
                named |= {f"layer{number}.weight": layer.weight.detach().T, f"layer{number}.bias": layer.bias.detach()}
        return named

    def load(self, weights: dict[str, Tensor]) -> None:
        """Go on from these."""
        for name, values in self._named().items():
            values.copy_(weights[name])

    def weights(self) -> dict[str, Floats]:
        """As they stand."""
        return {name: values.numpy() for name, values in self._named().items()}


class _BatchedNet:
    """A network for n clients with weights of their own; embeddings are multiplied into the first layer first."""

    def __init__(self, net: FeatureNet, codes: Indices) -> None:
        self._net = net
        self._people = torch.from_numpy(codes.astype(np.int64))
        self._activation = torch.relu if net.activation == "relu" else torch.sigmoid
        self._sizes = [int(np.prod(shape)) for shape in net.tensors.values()]

    def scores(self, flat: Tensor, kinds: Tensor) -> Tensor:
        """[n, examples] from weights [n, size] and genres [n, examples, genres]."""
        n, e = len(flat), self._net.embedding
        parts = zip(self._net.tensors.items(), torch.split(flat, self._sizes, dim=1), strict=True)
        w = {name: part.reshape(n, *shape) for (name, shape), part in parts}
        of_users = len(self._net.user_categories) * e
        rows = self._people[:, :, None].expand(-1, -1, e)
        people = w["users.embedding"].gather(1, rows).reshape(n, 1, of_users)
        first = w["layer1.weight"]
        share = torch.baddbmm(w["layer1.bias"][:, None], people, first[:, :of_users])
        x = torch.baddbmm(share, kinds, torch.bmm(w["items.embedding"], first[:, of_users:]))
        for layer in range(2, len(self._net.widths)):
            x = torch.baddbmm(w[f"layer{layer}.bias"][:, None], self._activation(x), w[f"layer{layer}.weight"])
        return x[..., 0]


def made_up_features(users: int, n_items: int, generator: np.random.Generator) -> Features:
    """People with three categories, and items with 1 to 4 genres."""
    genres = Feature("genres", "categories", tuple(f"g{k}" for k in range(_GENRES)))
    picks = [generator.choice(_GENRES, generator.integers(1, 5), replace=False) for _ in range(n_items)]
    rows = np.repeat(np.arange(n_items), [len(pick) for pick in picks])
    items = assembled([genres], n_items, [(rows, 1 + np.concatenate(picks).astype(np.int32))], [])
    about = [Feature(name, "category", tuple(map(str, range(count)))) for name, count in _PEOPLE.items()]
    entries = [
        (np.arange(users), generator.integers(1, 1 + count, users).astype(np.int32)) for count in _PEOPLE.values()
    ]
    return Features(assembled(about, users, entries, []), items)


def ones_and_zeros(codes: Indices, count: int) -> Floats:
    """A one for each code of a row: [rows, count]."""
    hot = np.zeros((len(codes), count), np.float32)
    rows, slots = np.nonzero(codes >= 0)
    hot[rows, codes[rows, slots]] = 1.0
    return hot
