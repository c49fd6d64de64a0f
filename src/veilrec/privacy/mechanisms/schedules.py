"""Rounds of different weight: each has a bound of its own, fixed and public before the first, and all the same noise.

A round whose bound is c moves its sum by c when somebody comes or goes, and costs mu = c / sigma. All of a run cost
mu^2 = (c_1^2 + c_2^2 + ...) / sigma^2: Gaussian releases compose exactly, also where later rounds depend on earlier
sums. A round may be about some tensors only; of the others nothing is sent, added up or released.

A round whose noise is a step of a binary tree (DP-FTRL, Kairouz et al. 2021): nobody has to be drawn by chance.

Clients take part in a public cyclic order, once in every `steps` rounds, and every `steps` rounds a new tree begins.
Round t of a tree (from 1) ends one node of it: the rounds (t - 2^v, t], with 2^v the largest power of two dividing t.
The node has noise of its own, n_t, which every sum of the rounds up to some t then needs for the nodes of t's binary
digits only: N(t) = n_t + N(t - 2^v). What is added to round t is N(t) - N(t - 1) = n_t - n_(t-1) - n_(t-2) - n_(t-4)
- ... - n_(t-2^(v-1)): new noise, less that of the nodes that lie inside the new one.

The noise of a node is named by the secret and the round that ends it, and drawn again when it is taken back: there is
nothing to keep, to lose or to give away between rounds, and a restart changes nothing.

A round that also learns how to clip the next one (Andrew et al. 2021): DP-PrivRec's adaptive clipping, done soundly,
and as it is printed (Algorithm 2). The bound S is a number of the model, so that it is released, saved and resumed with
it. A message carries the update, clipped to the S of its round, and whether it had to be: b - 1/2 with b = 1 if its
norm was at most S before clipping. The server adds both up, each with noise of its own, and the noisy count decides the
S of the next round.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from veilrec.core.arrays import Doubles, Floats
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.schema import (
    BOUND,
    ClientUpdates,
    RoundSpec,
    Schema,
    Tensor,
    copied,
    from_vectors,
    to_vectors,
    with_bound,
)
from veilrec.privacy.accounting.accountant import Rounds, adaptive_clipping_noise, paper_convention
from veilrec.privacy.checks import on_lattice_l2, positive, rounded_sum_l2, vectors, whole
from veilrec.privacy.events import ComposedEvent, Event, TreeEvent
from veilrec.privacy.guarantee import Adjacency
from veilrec.privacy.mechanisms import clipping
from veilrec.privacy.mechanisms.base import Calibration, lattice_delta
from veilrec.privacy.mechanisms.clipping import BadUpdate
from veilrec.privacy.mechanisms.sums import EXAMPLE, CohortSum, example_rounds, on_lattice
from veilrec.privacy.randomness import FastSource, KeyedSource, NumberedSource, Source
from veilrec.privacy.samplers import UNITS, lattice_gaussian, simulated_gaussian, to_lattice

Part = TypeVar("Part")


class ScheduledSum(CohortSum):
    """The noisy sum of a cohort, with a bound for every round.

    `noise_multiplier` is that of the round with the largest bound; `event()` is what that one costs. Whoever takes part
    in some of the rounds only is taken to be in the costliest.
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
        if len(clip_norms) < taking_part.rounds:  # of more rounds, a person is in some
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

    def _clip_norm(self, spec: RoundSpec) -> float:
        """The bound of the round, whatever it says of itself; never more than it says."""
        own = self._bound_of(spec.number)
        return own if spec.clip_norm is None else min(own, spec.clip_norm)

    def _bound_of(self, number: int) -> float:
        """Nothing is known of rounds beyond the last: they have the smallest bound, and are charged as the largest."""
        return self.clip_norms[number] if 0 <= number < len(self.clip_norms) else min(self.clip_norms)

    def _part(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        return super()._part(only_of_round(updates, spec), spec)

    def check(self, updates: ClientUpdates, spec: RoundSpec) -> None:
        """Refuse also what is about another tensor than the round."""
        if only_of_round(updates, spec) is not updates:
            raise BadUpdate(f"an update is about other tensors than the round: {', '.join(spec.tensors or ())}")
        super().check(updates, spec)

    def event_in(self, spec: RoundSpec) -> Event:
        """What a round costs by its own bound."""
        if not 0 <= spec.number < len(self.clip_norms):
            return self.event()
        bound, people = self._bound_of(spec.number), self.taking_part
        return people.one_round(_multiplier(bound, people, self.sigma, self.dimension))

    def events(self, rounds: int) -> tuple[tuple[Event, int], ...]:
        """What so many rounds cost at most: the costliest; those beyond the last as much as the most costly one."""
        known = sorted(range(len(self.clip_norms)), key=lambda number: -self.clip_norms[number])
        numbers = [*known, *range(len(known), rounds)][:rounds]
        return tuple(Counter(self.event_in(RoundSpec(number)) for number in numbers).items())

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Three of ten people, drawn in both ways; and everybody. What is audited is the costliest round, the first."""
        return tuple(
            cls(schema=EXAMPLE, clip_norms=(1.0, 0.25), noise_multiplier=0.5, taking_part=way, delta=1e-3)
            for way in example_rounds(2)
        )


def _multiplier(bound: float, people: Rounds, sigma: float, dimension: int) -> float:
    moved = rounded_sum_l2(people.moved(bound), people.population)
    return sigma / (moved + math.sqrt(dimension) * sigma / UNITS)


def run_event(clip_norms: tuple[float, ...], people: Rounds, noise_multiplier: float, dimension: int) -> Event:
    """What all rounds of a person cost with this noise on the one with the largest bound: for choosing the noise."""
    moved = rounded_sum_l2(people.moved(max(clip_norms)), people.population)
    sigma = on_lattice(noise_multiplier, moved, dimension)
    counts = Counter(sorted(clip_norms, reverse=True)[: people.rounds]).items()
    return ComposedEvent(
        tuple((people.one_round(_multiplier(bound, people, sigma, dimension)), count) for bound, count in counts)
    )


def only_of_round(updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
    """Messages without the tensors that the round is not about; the very object where there are none."""
    if spec.tensors is None:
        return updates
    named = (*updates.tables, *updates.dense, *updates.entries, *updates.factors)
    if all(spec.concerns(name) for name in named):
        return updates

    def kept(part: Mapping[str, Part]) -> dict[str, Part]:
        return {name: values for name, values in part.items() if spec.concerns(name)}

    return replace(
        updates,
        tables=kept(updates.tables),
        dense=kept(updates.dense),
        entries=kept(updates.entries),
        factors=kept(updates.factors),
    )


def taken_back(number: int, steps: int) -> tuple[int, ...]:
    """The rounds whose nodes lie inside the one that this round ends, and are not inside each other."""
    place = number % steps + 1
    inside = (place & -place).bit_length() - 1  # v: how often 2 divides the place in the tree
    return tuple(number - 2**level for level in range(inside))


class TreeSum(CohortSum):
    """Sums of clients that take part in cyclic order, with the noise of a tree over `steps` rounds.

    A client takes part at most once in a tree and `participations` times in all. It is part of the sums of at most
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
        participations: int,
        population: int,
        delta: float,
    ) -> None:
        whole(steps=steps, participations=participations, population=population)
        self.steps = steps
        # Everybody, once in a tree, added or removed.
        people = Rounds(rounds=participations, sampling="poisson", population=population, cohort=population)
        super().__init__(
            schema=schema, clip_norm=clip_norm, noise_multiplier=noise_multiplier, taking_part=people, delta=delta
        )

    def protect(self, sums: MutableMapping[str, Doubles], spec: RoundSpec, source: Source) -> None:
        """The new node's noise, less that of the nodes inside it, all on one lattice."""
        if spec.rows is not None or spec.shares or spec.rank is not None:
            raise BadInput("a tree of noise runs over sums of the whole model: a round cannot be about a part of it")
        if not isinstance(source, NumberedSource):
            raise VeilrecError("a tree of noise needs a source that names the noise of every round")
        earlier = [source.of(number) for number in taken_back(spec.number, self.steps)]
        for name, total in sums.items():
            total[...] = self._with_nodes(total, self.sigma_in(name, spec), source, earlier)

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
        """The sums of one tree, many times: `[count, steps * dimension]`, of people who take part in cyclic order."""
        checked = vectors(self.dimension, updates=value)
        population = self.taking_part.population
        if checked.ndim != 2 or len(checked) != population:
            raise BadInput(f"updates have shape {checked.shape}: give one row for each of {population} people")
        bounded = to_vectors(self.bound(from_vectors(checked, self.schema), RoundSpec(0)), self.schema)
        turn = np.arange(len(checked)) * self.steps // len(checked)
        secret = source.words(4).tobytes()
        released: list[Doubles] = []
        for number in range(self.steps):
            total = np.tile(bounded[turn == number].sum(axis=0), (count, 1))
            parts = {name: total[:, place].copy() for name, place in self.schema.places.items()}
            self.protect(parts, RoundSpec(number), KeyedSource(secret, number))
            released += parts.values()
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
        return tuple(
            cls(
                schema=EXAMPLE,
                clip_norm=1.0,
                noise_multiplier=2.0,
                steps=steps,
                participations=1,
                population=10,
                delta=1e-3,
            )
            for steps in (5, 1)
        )


def _fast_node(source: Source, total: Doubles, sigma: float) -> Doubles:
    if not isinstance(source, FastSource):
        raise TypeError("nodes of one tree come from one kind of source")
    return simulated_gaussian(source.generator(), total.shape, sigma=sigma).astype(np.float64)


FARTHEST = 100.0  # times the first bound, or a part of it: no later one lies outside
_ROUNDING = 1e-6  # of a bound that the model holds in single precision
_HALF = 0.5  # what a message counts for, up or down


def first_bound(clip_norm: float) -> dict[str, Floats]:
    """What the first model says of the bound."""
    positive(clip_norm=clip_norm)
    return {BOUND: np.array([clip_norm], np.float32)}


def without_count(updates: ClientUpdates) -> ClientUpdates:
    """Messages without what they say of the bound."""

    def others(parts: Mapping[str, Any]) -> dict[str, Any]:
        return {name: part for name, part in parts.items() if name != BOUND}

    return replace(updates, dense=others(updates.dense), entries=others(updates.entries))


class _WithCount(CohortSum):
    """The noisy sum of a cohort beside the noisy count of updates within the bound, which decides the next bound."""

    count_standard_deviation: float
    counts: ClassVar[Mapping[float, str]]  # what a message may count for

    def sigma_in(self, name: str, spec: RoundSpec) -> float:
        """Proportional to the size of the round's bound; for the count, always the same."""
        if name == BOUND:
            return self.count_standard_deviation
        return self.sigma * abs(self._clip_norm(spec) / self.clip_norm)

    def check_counts(self, updates: ClientUpdates) -> None:
        """Refuse counts that no client sends."""
        counts = updates.dense.get(BOUND)
        if counts is None or counts.shape != (updates.count, 1) or not np.isin(counts, list(self.counts)).all():
            either = " or ".join(self.counts.values())
            raise BadUpdate(f"an update does not say whether it was within the bound, by {either}")

    def facts(self) -> dict[str, float]:
        """The noise of the first round, which follows the bound, and that of the count."""
        return {**super().facts(), "count_standard_deviation": self.count_standard_deviation}


class AdaptiveSum(_WithCount):
    """The noisy sum of a cohort, and the noisy count of updates within the bound, taken before clipping.

    Both together cost what the sum alone would with `noise_multiplier`: the sum gets a little more noise than that. A
    message counts 1/2 up or down, so that whoever is added or removed moves the count by 1/2, and whoever is replaced
    by 1. `clip_norm` is the bound of the first round; later ones stay within a factor `FARTHEST` of it.
    """

    name = "adaptive-sum"
    counts: ClassVar[Mapping[float, str]] = {_HALF: "1/2", -_HALF: "-1/2"}

    def __init__(
        self,
        *,
        schema: Schema,
        clip_norm: float,
        noise_multiplier: float,
        count_standard_deviation: float,
        taking_part: Rounds,
        delta: float,
    ) -> None:
        if not any(tensor.name == BOUND and tensor == Tensor(BOUND, (1,), by_row=False) for tensor in schema.tensors):
            raise BadInput(f"the schema has no tensor {BOUND} of one number: use with_bound(schema)")
        positive(count_standard_deviation=count_standard_deviation)
        moved = taking_part.moved(_HALF)
        # 1/z^2 = 1/z_update^2 + (moved / its noise)^2; a count cut to the lattice moves by up to one step more.
        effective = moved / (moved / count_standard_deviation + 1.0 / UNITS)
        adjacency: Adjacency = "add-remove" if moved == _HALF else "replace-one"
        split = adaptive_clipping_noise(noise_multiplier, effective, adjacency=adjacency)
        super().__init__(
            schema=schema,
            clip_norm=clip_norm,
            noise_multiplier=split.update_noise_multiplier,
            taking_part=taking_part,
            delta=delta,
        )
        self.noise_multiplier = noise_multiplier  # of the sum and the count together
        self.count_standard_deviation = count_standard_deviation

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest bound."""
        return self.clip_norm / FARTHEST, self.clip_norm * FARTHEST

    def bound(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        """Count, then clip: the count is of the updates as they were, cut to what the round is about."""
        update = without_count(updates)
        within = clipping.update_norms(self._part(update, spec)) <= self._clip_norm(spec)
        counts = np.where(within, _HALF, -_HALF).astype(np.float32).reshape(-1, 1)
        bounded = super().bound(update, spec)
        return replace(bounded, dense={**bounded.dense, BOUND: counts})

    def _clip_norm(self, spec: RoundSpec) -> float:
        """The bound of this round, which the model says."""
        clip_norm = self.clip_norm if spec.clip_norm is None else spec.clip_norm
        smallest, largest = self.limits
        if not smallest * (1.0 - _ROUNDING) <= clip_norm <= largest * (1.0 + _ROUNDING):
            raise BadInput(
                f"the round has clip norm {clip_norm:g}: this plan has bounds from {smallest:g} to {largest:g}"
            )
        return clip_norm

    def reach(self, tensor: Tensor, spec: RoundSpec, weight: int = 1) -> float:
        """The largest number of the update, and of what a message counts for."""
        return weight * _HALF if tensor.name == BOUND else super().reach(tensor, spec, weight)

    def check(self, updates: ClientUpdates, spec: RoundSpec) -> None:
        """Refuse updates that are longer than the bound of this round, and counts that no client sends."""
        super().check(without_count(updates), spec)
        self.check_counts(updates)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Everybody silent but one, who flips its update and is over the bound on one side only; or who is missing."""
        with_one, other = super().worst_pair()
        first = np.zeros_like(with_one)
        first[0] = self.clip_norm / math.sqrt(self.dimension - 1)
        first[0, self.schema.places[BOUND]] = 0.0
        first *= 1.0 - 1e-6
        return (first, -first * (1.0 + 2e-6)) if len(other) == len(with_one) else (first, first[1:])

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Three of ten people, drawn in both ways; and everybody."""
        return tuple(
            cls(
                schema=with_bound(EXAMPLE),
                clip_norm=1.0,
                noise_multiplier=0.5,
                count_standard_deviation=1.5,
                taking_part=way,
                delta=1e-3,
            )
            for way in example_rounds(1)
        )


class PublishedAdaptiveSum(_WithCount):
    """Fixed cohorts; the count taken after clipping; noise outside of the server's rate.

    The bound may fall to 0 and below, as printed: min(1, S / norm) then flips updates and gives them norm |S|.
    The noise is proportional to |S|, and at S = 0 nothing but the count is released.
    """

    name = "published-adaptive-sum"
    counts: ClassVar[Mapping[float, str]] = {0.0: "0", 1.0: "1"}
    calibrations: ClassVar[tuple[Calibration, ...]] = ("as-published",)
    calibration: Calibration = "as-published"

    def __init__(
        self,
        *,
        schema: Schema,
        clip_norm: float,
        noise_multiplier: float,
        count_share: float,
        server_rate: float,
        taking_part: Rounds,
        delta: float,
    ) -> None:
        positive(server_rate=server_rate)
        super().__init__(
            schema=schema, clip_norm=clip_norm, noise_multiplier=noise_multiplier, taking_part=taking_part, delta=delta
        )
        of_update, of_count = clipping.published_noise_split(
            noise_multiplier, count_share
        )  # z / sqrt(1 - h), z / sqrt(h)
        # Lines 8 and 9: theta + alpha_3 mean + N(0, (2 S z / M)^2 / (1 - h)): on the sum, M / alpha_3 times that.
        self.sigma = 2.0 * clip_norm * of_update / server_rate
        self.count_standard_deviation = 2.0 * of_count  # line 10: 2 z / M / sqrt(h) on the mean

    @property
    def claimed_epsilon(self) -> float:  # type: ignore[override]
        """Epsilon of one round as the paper counts: a release for every client of it."""
        people = self.taking_part
        return paper_convention(
            people.population,
            people.cohort,
            self.claimed_delta,
            releases=people.cohort,
            noise_multiplier=self.noise_multiplier,
        )

    def bound(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        """Lines 22 and 23: clip, and then ask whether the norm is at most S."""
        clip_norm, kept = self._clip_norm(spec), copied(self._part(without_count(updates), spec))
        norms = clipping.update_norms(kept)
        if clip_norm > 0.0:
            factors = clipping.clip_factors(norms, clip_norm)
        else:
            factors = np.divide(clip_norm, norms, out=np.zeros_like(norms), where=norms > 0.0)
        clipping.scale_clients(kept, factors)
        counts = (clipping.update_norms(kept) <= clip_norm).astype(np.float32).reshape(-1, 1)
        return replace(kept, dense={**kept.dense, BOUND: counts})

    def _clip_norm(self, spec: RoundSpec) -> float:
        return self.clip_norm if spec.clip_norm is None else spec.clip_norm

    def reach(self, tensor: Tensor, spec: RoundSpec, weight: int = 1) -> float:
        """The bound has any sign, and may be 0; a message counts for 1."""
        return weight * (1.0 if tensor.name == BOUND else max(abs(self._clip_norm(spec)), self.clip_norm * 2.0**-20))

    def _noisy(self, total: Doubles, sigma: float, source: Source) -> Doubles:
        return total if sigma == 0.0 else super()._noisy(total, sigma, source)

    def check(self, updates: ClientUpdates, spec: RoundSpec) -> None:
        """Refuse updates that are longer than the bound, and counts that no client sends."""
        clipping.refuse_longer(
            clipping.update_norms(without_count(updates)), abs(self._clip_norm(spec)), slack=1.0 + 1e-6
        )
        self.check_counts(updates)

    def event(self) -> Event:
        """What one round really costs: one release of both, whoever is replaced moves the sum by 2 |S|, the count by 1.

        1/z^2 = (2 S / sigma)^2 + (1 / its noise)^2, with what rounding and the lattice add to both.
        """
        moved = rounded_sum_l2(self.sensitivity.value, self.taking_part.population)
        mu_update = on_lattice_l2(moved, self.dimension, self.sigma / UNITS) / self.sigma
        mu_count = 1.0 / self.count_standard_deviation + 1.0 / UNITS
        return self.taking_part.one_round(1.0 / math.hypot(mu_update, mu_count))
