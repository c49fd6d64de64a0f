"""A round whose noise is a step of a binary tree (DP-FTRL, Kairouz et al. 2021): nobody has to be drawn by chance.

Devices take turns in a public order, once in every `steps` rounds, and every `steps` rounds a new tree begins. Round t
of a tree (from 1) ends one node of it: the rounds (t - 2^v, t], where 2^v is the largest power of two that divides t.
The node has noise of its own, n_t, which every sum of the rounds up to some t then needs for the nodes of t's binary
digits only: N(t) = n_t + N(t - 2^v). What is added to round t is N(t) - N(t - 1) = n_t - n_(t-1) - n_(t-2) - n_(t-4)
- ... - n_(t-2^(v-1)): new noise, less that of the nodes that lie inside the new one.

The noise of a node is named by the secret and the round that ends it, and drawn again when it is taken back: there is
nothing to keep, to lose or to give away between rounds, and a restart changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from typing import Self

import numpy as np

from veilrec._arrays import Doubles
from veilrec.errors import BadInput, VeilrecError
from veilrec.privacy.accounting.accountant import Rounds
from veilrec.privacy.checks import vectors, whole
from veilrec.privacy.events import TreeEvent
from veilrec.privacy.mechanisms.noise import lattice_delta
from veilrec.privacy.mechanisms.updates import CohortSum
from veilrec.privacy.randomness import FastSource, KeyedSource, NumberedSource, Source
from veilrec.privacy.samplers import UNITS, lattice_gaussian, simulated_gaussian, to_lattice
from veilrec.updates import Round, Schema, Tensor, from_vectors, to_vectors


def taken_back(number: int, steps: int) -> tuple[int, ...]:
    """The rounds whose nodes lie inside the one that this round ends, and are not inside each other."""
    place = number % steps + 1
    inside = (place & -place).bit_length() - 1  # v: how often 2 divides the place in the tree
    return tuple(number - 2**level for level in range(inside))


class TreeSum(CohortSum):
    """Sums of devices that take turns, with the noise of a tree over `steps` rounds.

    A device takes part at most once in a tree and `turns` times in all. It is part of the sums of at most
    floor(log2(steps)) + 1 nodes, each with noise of its own, and moves each of them by its clip norm: a person whose
    data is missing gives an update of nothing, in the same place of the same order (add-remove).
    `noise_multiplier` is that of one node.
    """

    name = "tree-sum"

    def __init__(
        self,
        *,
        schema: Schema,
        clip_norm: float,
        noise_multiplier: float,
        steps: int,
        turns: int,
        population: int,
        delta: float,
    ) -> None:
        whole(steps=steps, turns=turns, population=population)
        self.steps = steps
        # Everybody, once in a tree, added or removed.
        people = Rounds(rounds=turns, sampling="poisson", population=population, cohort=population)
        super().__init__(
            schema=schema, clip_norm=clip_norm, noise_multiplier=noise_multiplier, taking_part=people, delta=delta
        )

    def protect(self, sums: MutableMapping[str, Doubles], about: Round, source: Source) -> None:
        """The new node's noise, less that of the nodes inside it, all on one lattice."""
        if about.rows is not None or about.shares or about.rank is not None:
            raise BadInput("a tree of noise runs over sums of the whole model: a round cannot be about a part of it")
        if not isinstance(source, NumberedSource):
            raise VeilrecError("a tree of noise needs a source that names the noise of every round")
        earlier = [source.of(number) for number in taken_back(about.number, self.steps)]
        for name, total in sums.items():
            total[...] = self._with_nodes(total, self.sigma_in(name, about), source, earlier)

    def _with_nodes(self, total: Doubles, sigma: float, source: Source, earlier: list[Source]) -> Doubles:
        if isinstance(source, FastSource):
            return np.asarray(
                total + _fast_node(source, total, sigma) - sum(_fast_node(one, total, sigma) for one in earlier)
            )
        grid = sigma / UNITS
        units = to_lattice(total, grid) + lattice_gaussian(source, total.size).reshape(total.shape)
        for one in earlier:
            units -= lattice_gaussian(one, total.size).reshape(total.shape)
        return np.asarray(units.astype(np.float64) * grid)

    def event(self) -> TreeEvent:
        """One turn: a tree in which a person takes part once."""
        return TreeEvent(self.noise_multiplier, self.steps)

    def delta(self, epsilon: float) -> float:
        """The exact profile of one tree, with the sampler's errors."""
        return lattice_delta(self.event(), epsilon, self.dimension * self.steps)

    def facts(self) -> dict[str, float]:
        """The noise of a node, and how many of them one person is part of."""
        return {**super().facts(), "rounds_of_a_tree": self.steps, "nodes_of_a_person": self.steps.bit_length()}

    def _perturb_many(self, value: Doubles, count: int, source: Source) -> Doubles:
        """The sums of one tree, many times: `[count, steps * dimension]`, of people who take turns."""
        checked = vectors(self.dimension, updates=value)
        population = self.taking_part.population
        if checked.ndim != 2 or len(checked) != population:
            raise BadInput(f"updates have shape {checked.shape}: give one row for each of {population} people")
        bounded = to_vectors(self.bound(from_vectors(checked, self.schema), Round(0)), self.schema)
        turn = np.arange(len(checked)) * self.steps // len(checked)
        secret = source.words(4).tobytes()
        released = []
        for number in range(self.steps):
            parts, start = {}, 0
            total = np.tile(bounded[turn == number].sum(axis=0), (count, 1))
            for tensor in self.schema.tensors:
                parts[tensor.name] = total[:, start : start + tensor.size].copy()
                start += tensor.size
            self.protect(parts, Round(number), KeyedSource(secret, number))
            released += [parts[tensor.name] for tensor in self.schema.tensors]
        return np.concatenate(released, axis=1)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Everybody silent but the first, who is in as many nodes as anybody; or everybody silent."""
        nobody = np.zeros((self.taking_part.population, self.dimension))
        with_one = nobody.copy()
        with_one[0] = self.clip_norm / math.sqrt(self.dimension)
        return with_one, nobody

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Trees of five rounds and of one."""
        schema = Schema((Tensor("rows", (2, 2), by_row=True), Tensor("layer", (3,), by_row=False)))
        return tuple(
            cls(schema=schema, clip_norm=1.0, noise_multiplier=2.0, steps=steps, turns=1, population=10, delta=1e-3)
            for steps in (5, 1)
        )


def _fast_node(source: Source, total: Doubles, sigma: float) -> Doubles:
    if not isinstance(source, FastSource):
        raise TypeError("nodes of one tree come from one kind of source")
    return simulated_gaussian(source.generator(), total.shape, sigma=sigma).astype(np.float64)
