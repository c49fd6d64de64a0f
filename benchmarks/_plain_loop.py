"""The plain way, one torch module and a Python loop over clients; also what runs in the peers' clients."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding

from _workload import LocalWork, Workload
from veilrec.core.arrays import Floats, Offsets

Batch = tuple[Tensor, Tensor]  # items, labels


class ClientModule(nn.Module, ABC):
    """A model as one client sees it: the public parameters, and its own, which stay."""

    private = ("user",)

    def __init__(self, local: LocalWork) -> None:
        super().__init__()
        self.reduction = local.reduction

    @abstractmethod
    def scores(self, items: Tensor) -> Tensor:
        """A logit for each item."""

    @abstractmethod
    def optimiser(self, rate: float) -> Optimiser:
        """A fresh local optimiser."""

    def loss(self, items: Tensor, labels: Tensor) -> Tensor:
        """Logistic loss of a batch."""
        return binary_cross_entropy_with_logits(self.scores(items), labels, reduction=self.reduction)

    def metrics(self, items: Tensor, labels: Tensor) -> dict[str, object]:
        """Nothing: no contender evaluates."""
        del items, labels
        return {}


class MfModule(ClientModule):
    """Matrix factorisation, learnt with plain SGD."""

    def __init__(self, local: LocalWork) -> None:
        super().__init__(local)
        self.items = nn.Parameter(torch.empty(local.n_items, local.dim))
        self.user = nn.Parameter(torch.empty(local.dim))

    def scores(self, items: Tensor) -> Tensor:
        """p_u . q_i."""
        return embedding(items, self.items) @ self.user

    def optimiser(self, rate: float) -> Optimiser:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=rate)


class NcfModule(ClientModule):
    """NeuMF, learnt with Adam; lazy for the item rows, as on our clients: only a batch's own items move."""

    def __init__(self, local: LocalWork) -> None:
        super().__init__(local)
        self.dim = local.dim  # of each half of a row: [gmf | mlp]
        self.items = nn.Parameter(torch.empty(local.n_items, 2 * local.dim))
        self.user = nn.Parameter(torch.empty(2 * local.dim))
        widths = (2 * local.dim, *local.layers)
        self.layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
        for number, layer in enumerate(self.layers, start=1):
            self.add_module(f"layer{number}", layer)
        self.output = _Unit(local.dim + widths[-1])

    def scores(self, items: Tensor) -> Tensor:
        """The two halves side by side (He et al. 2017, equation 12)."""
        gmf, mlp = torch.split(embedding(items, self.items, sparse=True), self.dim, dim=1)
        hidden = torch.cat([self.user[self.dim :].expand(len(items), -1), mlp], dim=1)
        for layer in self.layers:
            hidden = torch.relu(layer(hidden))
        together = torch.cat([gmf * self.user[: self.dim], hidden], dim=1)
        logits: Tensor = self.output(together)
        return logits

    def optimiser(self, rate: float) -> Optimiser:
        """Lazy Adam for the items, Adam for the rest."""
        rest = [values for name, values in self.named_parameters() if name != "items"]
        # SparseAdam adds epsilon before the bias correction (about 0.03 in the first steps), Adam after it.
        items = torch.optim.SparseAdam([self.items], lr=rate, eps=3e-10)
        return _Both(items, torch.optim.Adam(rest, lr=rate, eps=1e-8))


class _Unit(nn.Module):
    """A linear layer with one output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(1))

    def forward(self, inputs: Tensor) -> Tensor:
        """[n] from [n, width]."""
        return inputs @ self.weight + self.bias


class Optimiser(Protocol):
    """What a training loop needs of an optimiser."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def step(self) -> object:
        """Move the parameters."""


class _Both:
    """Two optimisers as one."""

    def __init__(self, first: torch.optim.Optimizer, second: torch.optim.Optimizer) -> None:
        self._parts = (first, second)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for part in self._parts:
            part.zero_grad()

    def step(self) -> None:
        """Move all parameters."""
        for part in self._parts:
            part.step()


def make_module(local: LocalWork) -> ClientModule:
    """The module of a workload; its values come with every message."""
    return MfModule(local) if local.model == "mf" else NcfModule(local)


class Examples:
    """The batches of a client's epochs."""

    def __init__(self, local: LocalWork, own: Tensor, generator: torch.Generator) -> None:
        self.local = local
        self.own = own
        self.generator = generator
        self.is_own = torch.zeros(local.n_items, dtype=torch.bool)
        self.is_own[own] = True
        n_negatives = len(own) * local.negatives
        self.labels = torch.cat([torch.ones(len(own)), torch.zeros(n_negatives)])

    def epoch(self) -> Iterator[Batch]:
        """Every own item once and fresh negatives, in random order (which a single batch does not need)."""
        local = self.local
        items = torch.cat([self.own, self._negatives()]) if local.negatives else self.own
        if local.batch == 0:
            yield items, self.labels
            return
        order = torch.randperm(len(items), generator=self.generator)
        for chosen in torch.split(order, local.batch):
            yield items[chosen], self.labels[chosen]

    def _negatives(self) -> Tensor:
        n_items = self.local.n_items
        drawn = torch.randint(n_items, (len(self.own) * self.local.negatives,), generator=self.generator)
        while bool((used := self.is_own[drawn]).any()):
            drawn[used] = torch.randint(n_items, (int(used.sum()),), generator=self.generator)
        return drawn


def examples_of(workload: Workload) -> list[Examples]:
    """The examples of every user."""
    generator = torch.Generator().manual_seed(1)
    items = torch.as_tensor(workload.train.items, dtype=torch.int64)
    users = torch.split(items, workload.train.lengths().tolist())
    return [Examples(workload.local, own, generator) for own in users]


def learn(module: ClientModule, examples: Examples) -> None:
    """The local epochs of one client."""
    optimiser = module.optimiser(examples.local.rate)
    for _ in range(examples.local.epochs):
        for items, labels in examples.epoch():
            optimiser.zero_grad()
            torch.autograd.backward(module.loss(items, labels))
            optimiser.step()


class PlainLoop:
    """Federated averaging with user vectors that stay, and nothing else."""

    def __init__(self, workload: Workload, cohort_of: Callable[[int], Offsets]) -> None:
        self.cohort_of = cohort_of
        self.module = make_module(workload.local)
        self.public = tensors(workload.public)
        self.private = tensors(workload.private)
        self.examples = examples_of(workload)

    @torch.no_grad()
    def round(self, number: int) -> None:
        """Every client learns from the same model; the server adds the mean of their changes."""
        clients = self.cohort_of(number).tolist()
        parameters = dict(self.module.named_parameters())
        total = {name: torch.zeros_like(values) for name, values in self.public.items()}
        for client in clients:
            for name, values in self.public.items():
                parameters[name].copy_(values)
            for name, values in self.private.items():
                parameters[name].copy_(values[client])
            with torch.enable_grad():
                learn(self.module, self.examples[client])
            for name, values in self.public.items():
                total[name] += parameters[name] - values
            for name, values in self.private.items():
                values[client] = parameters[name]
        for name, values in self.public.items():
            values.add_(total[name], alpha=1.0 / len(clients))


def tensors(arrays: Mapping[str, Floats]) -> dict[str, Tensor]:
    """Copies as torch tensors."""
    return {name: torch.tensor(values) for name, values in arrays.items()}
