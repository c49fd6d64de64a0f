"""Rounds of different weight: each has a bound of its own, fixed and public before the first, and all the same noise.

A round whose bound is c moves its sum by c when somebody comes or goes, and costs mu = c / sigma. All of a run cost
mu^2 = (c_1^2 + c_2^2 + ...) / sigma^2: Gaussian releases compose exactly, also where later rounds depend on earlier
sums. A round may be about some tensors only; of the others nothing is sent, added up or released.

A round whose noise is a step of a binary tree (DP-FTRL, Kairouz et al. 2021): nobody has to be drawn by chance.

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
from collections import Counter
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from typing import Self, TypeVar

import numpy as np

from veilrec.core.arrays import Doubles
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.schema import ClientUpdates, RoundSpec, Schema, Tensor, from_vectors, to_vectors
from veilrec.privacy.accounting.accountant import Rounds
from veilrec.privacy.checks import positive, rounded_sum_l2, vectors, whole
from veilrec.privacy.events import ComposedEvent, Event, TreeEvent
from veilrec.privacy.mechanisms.base import lattice_delta
from veilrec.privacy.mechanisms.clipping import BadUpdate
from veilrec.privacy.mechanisms.sums import CohortSum, on_lattice
from veilrec.privacy.randomness import FastSource, KeyedSource, NumberedSource, Source
from veilrec.privacy.samplers import UNITS, lattice_gaussian, simulated_gaussian, to_lattice

Part = TypeVar("Part")


class ScheduledSum(CohortSum):
    """The noisy sum of a cohort, with a bound for every round.

    `noise_multiplier` is that of the round with the largest bound; `event()` is what that one costs.
    """

    name = "scheduled-sum"

    def __init__(
        self,
        *,
        schema: Schema,
        clip_norms: tuple[float, ...],
        noise_multiplier: float,
        taking_part: Rounds,
        delta: float,
    ) -> None:
        if len(clip_norms) != taking_part.rounds:
            raise BadInput(f"there are {len(clip_norms)} bounds for {taking_part.rounds} rounds: give one for each")
        positive(**{f"clip_norm_of_round_{number}": bound for number, bound in enumerate(clip_norms)})
        super().__init__(
            schema=schema,
            clip_norm=max(clip_norms),
            noise_multiplier=noise_multiplier,
            taking_part=taking_part,
            delta=delta,
        )
        self.clip_norms = clip_norms

    def _clip_norm(self, about: RoundSpec) -> float:
        """The bound of the round, whatever it says of itself; never more than it says."""
        own = self._bound_of(about.number)
        return own if about.clip_norm is None else min(own, about.clip_norm)

    def _bound_of(self, number: int) -> float:
        """Nothing is known of rounds beyond the last: they have the smallest bound, and are charged as the largest."""
        return self.clip_norms[number] if 0 <= number < len(self.clip_norms) else min(self.clip_norms)

    def _part(self, uploads: ClientUpdates, about: RoundSpec) -> ClientUpdates:
        return super()._part(only_of_round(uploads, about), about)

    def check(self, uploads: ClientUpdates, about: RoundSpec) -> None:
        """Refuse also what is about another tensor than the round."""
        if only_of_round(uploads, about) is not uploads:
            raise BadUpdate(f"an update is about other tensors than the round: {', '.join(about.tensors or ())}")
        super().check(uploads, about)

    def multiplier_in(self, number: int) -> float:
        """Sigma over how far somebody moves the sum of a round, the lattice of the noise included."""
        return _multiplier(self._bound_of(number), self.taking_part, self.sigma, self.dimension)

    def event_in(self, about: RoundSpec) -> Event:
        """What a round costs by its own bound."""
        if not 0 <= about.number < len(self.clip_norms):
            return self.event()
        return self.taking_part.one_round(self.multiplier_in(about.number))

    def events(self, rounds: int) -> tuple[tuple[Event, int], ...]:
        """What the first so many rounds cost; those beyond the last as much as the most costly one."""
        return tuple(Counter(self.event_in(RoundSpec(number)) for number in range(rounds)).items())

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Three of ten people, drawn in both ways; and everybody. What is audited is the costliest round, the first."""
        schema = Schema((Tensor("rows", (2, 2), by_row=True), Tensor("layer", (3,), by_row=False)))
        ways = (
            Rounds(rounds=2, sampling="fixed", population=10, cohort=3),
            Rounds(rounds=2, sampling="poisson", population=10, cohort=3),
            Rounds(rounds=2, population=4, cohort=4),
        )
        return tuple(
            cls(schema=schema, clip_norms=(1.0, 0.25), noise_multiplier=0.5, taking_part=way, delta=1e-3)
            for way in ways
        )


def _multiplier(bound: float, people: Rounds, sigma: float, dimension: int) -> float:
    moved = rounded_sum_l2(people.moved(bound), people.population)
    return sigma / (moved + math.sqrt(dimension) * sigma / UNITS)


def run_event(clip_norms: tuple[float, ...], people: Rounds, noise_multiplier: float, dimension: int) -> Event:
    """What all rounds cost with this noise on the one with the largest bound: for choosing the noise."""
    moved = rounded_sum_l2(people.moved(max(clip_norms)), people.population)
    sigma = on_lattice(noise_multiplier, moved, dimension)
    counts = Counter(clip_norms).items()
    return ComposedEvent(
        tuple((people.one_round(_multiplier(bound, people, sigma, dimension)), count) for bound, count in counts)
    )


def only_of_round(uploads: ClientUpdates, about: RoundSpec) -> ClientUpdates:
    """The same messages without the tensors that the round is not about; the very same where there are none."""
    if about.tensors is None:
        return uploads
    named = (*uploads.tables, *uploads.dense, *uploads.entries, *uploads.factors)
    if all(about.concerns(name) for name in named):
        return uploads

    def kept(part: Mapping[str, Part]) -> dict[str, Part]:
        return {name: values for name, values in part.items() if about.concerns(name)}

    return replace(
        uploads,
        tables=kept(uploads.tables),
        dense=kept(uploads.dense),
        entries=kept(uploads.entries),
        factors=kept(uploads.factors),
    )


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

    def protect(self, sums: MutableMapping[str, Doubles], about: RoundSpec, source: Source) -> None:
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
        bounded = to_vectors(self.bound(from_vectors(checked, self.schema), RoundSpec(0)), self.schema)
        turn = np.arange(len(checked)) * self.steps // len(checked)
        secret = source.words(4).tobytes()
        released = []
        for number in range(self.steps):
            parts, start = {}, 0
            total = np.tile(bounded[turn == number].sum(axis=0), (count, 1))
            for tensor in self.schema.tensors:
                parts[tensor.name] = total[:, start : start + tensor.size].copy()
                start += tensor.size
            self.protect(parts, RoundSpec(number), KeyedSource(secret, number))
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
