"""Local training of MAML with second-order gradients: NN-SELF, a baseline of PrivRec (its eq. 4 and 5).

A client splits its items into a support and a query set, adapts to the support set by SGD, and sends the negative
gradient of the query loss with respect to the initial weights, through all steps. A cohort is one batch: a leading
dimension holds each client's weights, and examples are padded to those of the longest client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from veilrec.client.local_training import Cohort, LocalResults, OwnItemsAndFeatures
from veilrec.client.reptile import Adapter
from veilrec.core import rng
from veilrec.core.arrays import Bools, Floats, Indices, Offsets
from veilrec.core.jit import jit
from veilrec.core.schema import ClientUpdates, RoundSpec
from veilrec.kernels.feature_net import draw_others
from veilrec.models.feature_net import FeatureNet, ItemInputs

_NOTHING = -1e30  # a score whose exponential is 0; of -inf alone a logsumexp has no derivative


@dataclass(frozen=True)
class MamlExamples:
    """Items of n clients, own ones and others, with labels; filled up to [n, most]."""

    items: Indices
    own: Bools  # the client has the item
    inside: Bools  # False where the row is filled up
    outside: Floats  # [n], for how many items each other one stands


class MamlLocalTrainer:
    """Local learning of NN-SELF for any number of clients."""

    keeps_state = False

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.reads = (*adapter.reads, "order")

    def fresh_private_state(self, clients: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing."""
        return {}

    def learn(self, cohort: Cohort[OwnItemsAndFeatures], model: Mapping[str, Floats], spec: RoundSpec) -> LocalResults:
        """The negative meta-gradient of every client."""
        a, data, n = self.adapter, cohort.data, len(cohort.clients)
        support, query = self._halves(cohort, spec.number)
        softmax = a.local.loss == "softmax"
        net = _Batched(a.net, a.inputs.of_items(model), *a.inputs.of_people(data.people), softmax=softmax)
        start = torch.from_numpy(np.tile(a.net.flat(model), (n, 1))).requires_grad_()
        rates = a.local.rate * data.rows.lengths() / (data.rows.lengths() + a.local.needed + 1e-12)
        step = torch.from_numpy(rates.astype(np.float32))[:, None]
        weights = start
        for _ in range(max(a.local.steps, 1)):
            loss = net.losses(weights, support).sum()  # a client's weights appear in its own loss only
            (slope,) = torch.autograd.grad(loss, weights, create_graph=True)
            weights = weights - step * slope
        losses = net.losses(weights, query)
        (meta,) = torch.autograd.grad(losses.sum(), start)
        update = -meta.numpy()
        update[data.rows.lengths() == 0] = 0.0
        examples = (support.inside.sum(axis=1) + query.inside.sum(axis=1)).astype(np.int64)
        dense = {name: np.ascontiguousarray(part) for name, part in a.net.named(update).items()}
        updates = ClientUpdates(spec.number, n, dense=dense, examples=examples)
        return LocalResults(updates, examples, losses.detach().numpy())

    def _halves(self, cohort: Cohort[OwnItemsAndFeatures], round_number: int) -> tuple[MamlExamples, MamlExamples]:
        rows, negatives = cohort.data.rows, self.adapter.local.negatives
        softmax, half = self.adapter.local.loss == "softmax", int(-(-rows.lengths().max(initial=1) // 2))
        most = half + (negatives if softmax else half * negatives)
        support, query = (np.zeros((len(rows), most), np.int32) for _ in range(2))
        of_support, of_query = (np.zeros((len(rows), 2), np.int64) for _ in range(2))
        _cut(
            rows.offsets,
            rows.items,
            cohort.clients,
            len(self.adapter.inputs.items),
            negatives,
            softmax,
            cohort.draws_seed,
            round_number,
            support,
            of_support,
            query,
            of_query,
        )
        outside = len(self.adapter.inputs.items) - rows.lengths()
        return _filled(support, of_support, outside), _filled(query, of_query, outside)


def _filled(items: Indices, counts: Offsets, outside: Offsets) -> MamlExamples:
    """Own items stand first, then the others; `counts` says how many of each."""
    place = np.arange(items.shape[1])
    stands_for = (outside / np.maximum(counts[:, 1], 1)).astype(np.float32)
    return MamlExamples(items, place < counts[:, :1], place < counts.sum(axis=1)[:, None], stands_for)


@jit
def _cut(
    offsets: Offsets,
    data: Indices,
    clients: Offsets,
    n_items: int,
    negatives: int,
    shared: bool,
    seed: int,
    round_number: int,
    support: Indices,
    support_counts: Offsets,
    query: Indices,
    query_counts: Offsets,
) -> None:
    """Half of a client's items each, in a random order; a single item is in both halves."""
    is_own = np.full(n_items, -1, np.int32)
    for client in range(len(clients)):
        own = data[offsets[client] : offsets[client + 1]].copy()
        n = len(own)
        for item in own:
            is_own[item] = client
        outside = 0
        for item in range(n_items):
            outside += is_own[item] != client
        drawn = negatives if outside > 0 else 0
        stream = rng.stream(seed, rng.LEARNING, round_number, clients[client])
        counter = 0
        for j in range(n):
            pick = j + rng.below(rng.word(stream, counter), n - j)
            counter += 1
            own[j], own[pick] = own[pick], own[j]
        first = (n + 1) // 2
        other = own[first:] if n > 1 else own
        support[client, :first] = own[:first]
        query[client, : len(other)] = other
        for_support = drawn if shared else first * drawn
        for_query = drawn if shared else len(other) * drawn
        support_counts[client, 0], support_counts[client, 1] = first, for_support
        query_counts[client, 0], query_counts[client, 1] = len(other), for_query
        counter = draw_others(
            for_support, n_items, is_own, client, stream, counter, support[client, first : first + for_support]
        )
        start = len(other)
        counter = draw_others(
            for_query, n_items, is_own, client, stream, counter, query[client, start : start + for_query]
        )


class _Batched:
    """The network with weights of their own for n clients: [n, size] in, losses [n] out."""

    def __init__(self, net: FeatureNet, items: ItemInputs, codes: Indices, numbers: Floats, *, softmax: bool) -> None:
        self.net = net
        self._softmax = softmax
        self._items = items
        self._people = codes, torch.from_numpy(numbers)

    def losses(self, flat: Tensor, examples: MamlExamples) -> Tensor:
        """The mean loss of each client's examples."""
        scores = self._scores(self._named(flat), examples.items)
        own, inside = torch.from_numpy(examples.own), torch.from_numpy(examples.inside)
        if self._softmax:
            others = scores.masked_fill(own | ~inside, _NOTHING).logsumexp(dim=1, keepdim=True)
            others = others + torch.from_numpy(examples.outside).clamp(min=1e-12).log()[:, None]
            each, counted = torch.nn.functional.softplus(others - scores), own
        else:
            labels = own.to(scores.dtype)
            each = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
            counted = inside
        return (each * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1)

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        sizes = [int(np.prod(shape)) for shape in self.net.tensors.values()]
        parts = torch.split(flat, sizes, dim=1)
        return {
            name: part.reshape(len(flat), *shape)
            for part, (name, shape) in zip(parts, self.net.tensors.items(), strict=True)
        }

    def _scores(self, weights: Mapping[str, Tensor], items: Indices) -> Tensor:
        n, size = items.shape
        codes, numbers = self._people
        people = _embedded(weights.get("users.embedding"), codes[:, None, :], self.net.user_categories)
        of_items = _embedded(weights.get("items.embedding"), self._items.codes[items], self.net.item_categories)
        sides = [*(part.expand(n, size, -1) for part in people), numbers[:, None].expand(n, size, -1), *of_items]
        x = torch.cat([*sides, torch.from_numpy(self._items.numbers[items])], dim=2)
        layers = len(self.net.widths) - 1
        for layer in range(1, layers + 1):
            x = torch.baddbmm(weights[f"layer{layer}.bias"][:, None], x, weights[f"layer{layer}.weight"])
            if layer < layers:
                x = torch.relu(x) if self.net.activation == "relu" else torch.sigmoid(x)
        return x[..., 0] + torch.from_numpy(self._items.offsets[items])


def _embedded(table: Tensor | None, codes: Indices, categories: tuple[int, ...]) -> list[Tensor]:
    """For every category, the sum of the vectors of its codes: [n, examples, embedding] each."""
    if table is None:
        return []
    parts, start = [], 0
    clients = torch.arange(len(table))[:, None, None]
    for count in categories:
        mine = (codes >= start) & (codes < start + count)
        vectors = table[clients, torch.from_numpy(np.where(mine, codes, 0).astype(np.int64))]
        parts.append((vectors * torch.from_numpy(mine.astype(np.float32))[..., None]).sum(dim=2))
        start += count
    return parts
