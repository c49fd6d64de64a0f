"""What happens to the updates of a cohort on their way into a sum.

One object bounds every client's update, puts noise on its message or on the sum of the round, says what that costs, and
names the pair of inputs that shows it best. Simulation, client, coordinator, ledger and audit all call this object.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Literal, Self

import numpy as np

from veilrec.core.arrays import Bools, Doubles, Floats, Offsets
from veilrec.core.errors import BadInput
from veilrec.core.fixed_point import MAX_EXAMPLES, FixedPoint, Ring
from veilrec.core.schema import ClientUpdates, RoundSpec, Rows, Schema, Tensor, from_vectors, to_vectors
from veilrec.privacy import samplers
from veilrec.privacy.accounting.accountant import Rounds, epsilon_of
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.checks import clipped_l2, positive, probability, rounded_sum_l2, vectors, whole
from veilrec.privacy.events import Event, GaussianEvent, NonPrivateEvent
from veilrec.privacy.guarantee import ADJACENCIES, Adjacency
from veilrec.privacy.mechanisms import base, clipping
from veilrec.privacy.mechanisms.base import Calibration, Mechanism, Released, Sensitivity, SummedOnce
from veilrec.privacy.mechanisms.clipping import clip_whole, in_entries
from veilrec.privacy.mechanisms.responses import happens
from veilrec.privacy.mechanisms.shares import DistributedNoise
from veilrec.privacy.randomness import FastSource, Source
from veilrec.privacy.samplers import UNITS, Law

_FIRST = RoundSpec(0)
# The largest number of a message that nothing bounds, once and times its examples: whatever learns stays far below.
_UNBOUNDED, _UNBOUNDED_WEIGHED = 2.0**14, 2.0**22


class UpdateMechanism(Mechanism[Doubles, Doubles]):
    """Bounds and noise of one method, over a leading cohort dimension: a real client is a cohort of one.

    `bound` is not linear and always runs per client. Noise is linear: a real client adds its own with `perturb`; a
    simulation may draw the noise of all messages at once (`noise_of_messages`), which has the same distribution.
    """

    schema: Schema  # of the whole model
    fills_messages: bool = False  # whether noise goes to every entry, so that a message carries every row
    noise_on: Literal["nothing", "message", "share", "sum"] = "nothing"
    perturbs_each: bool = False  # whether a part of `perturb` cannot be done to the sum of the messages instead
    is_linear: bool = False  # whether nothing at all is done to a single message

    @property
    def max_people(self) -> int | None:
        """How many the noise was chosen for, all of whom may be in one round; None: it does not depend on it."""
        return None

    @property
    def dimension(self) -> int:
        """Numbers of the model."""
        return sum(tensor.size for tensor in self.schema.tensors)

    @abstractmethod
    def bound(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        """Clip, select or compress each client's update."""

    def perturb(self, bounded: ClientUpdates, spec: RoundSpec, source: Source) -> ClientUpdates:
        """All that a client does to its bounded update before it leaves."""
        return self.perturb_each(bounded, spec, source)

    def perturb_each(self, bounded: ClientUpdates, spec: RoundSpec, source: Source) -> ClientUpdates:
        """The part of `perturb` that cannot be done to the sum of the messages instead."""
        return bounded

    def noise_of_messages(
        self, view: Schema, weights: Doubles | Offsets, generator: np.random.Generator
    ) -> dict[str, Floats]:
        """The rest of `perturb`, for all clients at once: the sum of their noise, each counted `weights` times."""
        return {}

    def protect(self, sums: MutableMapping[str, Doubles], spec: RoundSpec, source: Source) -> None:
        """Put the noise of a round on its sums, in place, on everything that the round is about."""

    def message(self, updates: ClientUpdates, spec: RoundSpec, source: Source) -> Released[ClientUpdates]:
        """What leaves a client, and what the round costs it."""
        base.require_complete(self)
        return Released(self.perturb(self.bound(updates, spec), spec, source), self.event_in(spec))

    def event_in(self, spec: RoundSpec) -> Event:
        """What a round costs; of most mechanisms, each the same."""
        return self.event()

    def events(self, rounds: int) -> tuple[tuple[Event, int], ...]:
        """What the first so many rounds cost, and how often each."""
        return ((self.event(), rounds),)

    def check(self, updates: ClientUpdates, spec: RoundSpec) -> None:
        """Refuse messages that no client within its bounds can have sent."""

    def reach(self, tensor: Tensor, spec: RoundSpec, weight: int = 1) -> float:
        """The largest number of a tensor, so many times, that a message adds to a sum."""
        return _UNBOUNDED if weight == 1 else _UNBOUNDED_WEIGHED

    def fixed_point(
        self,
        spec: RoundSpec,
        *,
        clients: int,
        weighs_examples: bool = False,
        counts_rows: bool = False,
        ring: Ring = 64,
    ) -> FixedPoint:
        """The whole numbers that messages of a round are added up in; those that are bounded end where it ends."""
        view, weight = spec.view(self.schema), MAX_EXAMPLES if weighs_examples else 1
        return FixedPoint.fitting(
            view,
            {tensor.name: self.reach(tensor, spec, weight) for tensor in view.tensors},
            clients=clients,
            ring=ring,
            weighs_examples=weighs_examples,
            counts_rows=counts_rows and not self.fills_messages,
            saturates=not self.is_linear,
        )

    def facts(self) -> dict[str, float]:
        """What an officer needs to account for the noise by hand; nothing where the noise is not on sums."""
        return {}

    def chooses_entries(self, tensor: Tensor) -> bool:
        """Whether a message carries the numbers of a tensor that are largest, so that their places tell something."""
        return False

    def counted_parameters(self, table: Tensor, spec: RoundSpec) -> int:
        """Numbers in one message about a table, as the communication paper counts them: all rows, changed or not."""
        return table.size

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The messages of clients with these updates `[n, numbers of the model]`, or of one."""
        checked = vectors(self.dimension, update=value)
        updates = from_vectors(checked.reshape(-1, checked.shape[-1]), self.schema)
        sent = self.perturb(self.bound(updates, _FIRST), _FIRST, source)
        return to_vectors(sent, self.schema).reshape(checked.shape)


class NoNoise(UpdateMechanism):
    """No protection: for methods whose guarantee says that their messages are not private."""

    name = "in-the-clear"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("as-published",)
    calibration: Calibration = "as-published"
    is_linear = True

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.unit, self.adjacency = "user", "replace-one"
        self.sensitivity = Sensitivity(math.inf, "L2")
        self.claimed_epsilon, self.claimed_delta = math.inf, 1.0

    def bound(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        """Leave the updates as they are."""
        return updates

    def event(self) -> Event:
        """No epsilon is finite."""
        return NonPrivateEvent()

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Any two updates."""
        return np.zeros(self.dimension), np.ones(self.dimension)


class ClippedWhole(UpdateMechanism):
    """A user's whole update, clipped to one L2 norm."""

    clip_norm: float

    def bound(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        """Scale down every update that is longer than the bound."""
        return clip_whole(updates, self.clip_norm)

    def reach(self, tensor: Tensor, spec: RoundSpec, weight: int = 1) -> float:
        """No number is larger than the whole update."""
        return weight * self.clip_norm

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """A flat update of the largest norm, and its opposite."""
        largest = np.full(self.dimension, self.clip_norm / math.sqrt(self.dimension))
        return largest, -largest


class CohortSum(UpdateMechanism):
    """A round of clipped updates whose sum gets Gaussian noise before anything else is done with it.

    An update is cut to what the round is about and clipped to one L2 norm. Fixed-size cohorts and everybody: a person
    is replaced and moves the sum by twice the clip norm; Poisson: a person is added or removed and moves it by the
    clip norm. Updates are added up as whole numbers, cut towards zero, which makes none of them longer. The noise
    multiplier is sigma over that sensitivity, which also pays for cutting the sum to the noise's lattice. A round with
    drop-outs is not a fixed-size cohort any more.
    """

    name = "cohort-sum"
    scope, trust = "per round", "server"
    noise_on = "sum"

    def __init__(
        self, *, schema: Schema, clip_norm: float, noise_multiplier: float, taking_part: Rounds, delta: float
    ) -> None:
        positive(noise_multiplier=noise_multiplier, clip_norm=clip_norm)
        probability(delta=delta)
        if any(tensor.values != "float32" for tensor in schema.tensors):
            raise BadInput("coded values are rounded after clipping, and may then be longer than the noise covers")
        self.schema, self.clip_norm = schema, clip_norm
        self.taking_part = taking_part
        self.unit, self.adjacency = taking_part.unit, taking_part.adjacency
        self.sensitivity = Sensitivity(taking_part.moved(clip_norm), "L2")
        self.noise_multiplier = noise_multiplier
        moved = rounded_sum_l2(self.sensitivity.value, taking_part.population)
        self.sigma = on_lattice(noise_multiplier, moved, self.dimension)
        self.claimed_delta = delta

    @property
    def max_people(self) -> int:
        """The population of its rounds."""
        return self.taking_part.population

    @cached_property
    def claimed_epsilon(self) -> float:  # type: ignore[override]
        """Epsilon of one round; the sampler's error, far below what accounting rounds to, is taken off delta."""
        return epsilon_of(self.event(), 0.999 * self.claimed_delta) * (1.0 + 1e-9) + 1e-9

    def bound(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        """Leave out what the round is not about, and clip the rest as a whole."""
        part = self._part(updates, spec)
        if spec.rank is None:
            return clip_whole(part, self._clip_norm(spec))
        return clipping.as_factors(
            clip_whole(part, self._clip_norm(spec) * clipping.BELOW_PROJECTED), spec, spec.view(self.schema)
        )

    def _part(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        """Keep what the round is about."""
        return in_entries(updates if spec.rank is None else clipping.in_directions(updates, spec), spec)

    def _clip_norm(self, spec: RoundSpec) -> float:
        return self.clip_norm if spec.clip_norm is None else min(self.clip_norm, spec.clip_norm)

    def reach(self, tensor: Tensor, spec: RoundSpec, weight: int = 1) -> float:
        """No number is larger than the whole update."""
        return weight * self._clip_norm(spec)

    def sigma_in(self, name: str, spec: RoundSpec) -> float:
        """The standard deviation of the noise on the sum of a tensor in a round."""
        return self.sigma

    def protect(self, sums: MutableMapping[str, Doubles], spec: RoundSpec, source: Source) -> None:
        """Noise on the sums themselves, so that what comes out lies on the noise's lattice whatever they were."""
        for name, total in sums.items():
            entries, sigma = spec.entries(name, total.size), self.sigma_in(name, spec)
            if entries is None:
                total[...] = self._noisy(total, sigma, source)
            else:
                flat = total.reshape(-1)
                flat[entries] = self._noisy(flat[entries], sigma, source)

    def _noisy(self, total: Doubles, sigma: float, source: Source) -> Doubles:
        if isinstance(source, FastSource):
            return np.asarray(total + samplers.simulated_gaussian(source.generator(), total.shape, sigma=sigma))
        return samplers.add_gaussian(total, sigma=sigma, source=source)

    def check(self, updates: ClientUpdates, spec: RoundSpec) -> None:
        """Refuse what lies outside of the round, and what is longer than the bound."""
        clipping.refuse_outside(updates, spec, spec.view(self.schema))
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # of factors that are finite and whose product is not
                norms = clipping.update_norms(updates)
        except BadInput as error:
            raise clipping.BadUpdate(str(error)) from None
        clipping.refuse_longer(norms, self._clip_norm(spec))

    def facts(self) -> dict[str, float]:
        """The noise, and how many people it is for."""
        people = self.taking_part
        multiplier = self.sigma / self.sensitivity.value
        noise = {"sigma": self.sigma, "noise_multiplier": multiplier}
        return noise | {"population": people.population, "cohort": people.cohort}

    def counted_parameters(self, table: Tensor, spec: RoundSpec) -> int:
        """All rows, or the factors of a table of low rank."""
        return table.size if spec.rank is None else clipping.rank_parameters(table, spec.rank)

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The noisy sum `[dimension]` of a cohort drawn from `[population, dimension]` updates."""
        return np.asarray(self._perturb_many(value, 1, source)[0])

    def _perturb_many(self, value: Doubles, count: int, source: Source) -> Doubles:
        """Many independent rounds over the same people: `[count, dimension]`."""
        checked = vectors(self.dimension, updates=value)
        plan = self.taking_part
        if checked.ndim != 2 or len(checked) > plan.population:
            raise BadInput(f"updates have shape {checked.shape}: give one row per person, {plan.population} at most")
        if plan.sampling == "fixed" and len(checked) != plan.population:
            raise BadInput(f"there are {len(checked)} updates: a fixed-size cohort needs all {plan.population}")
        if plan.rate == 1.0:
            members = np.ones((count, len(checked)), np.bool_)
        elif plan.sampling == "fixed":
            members = fixed_cohorts(count, len(checked), plan.cohort, source)
        else:
            members = happens(plan.rate, (count, len(checked)), source)
        bounded = to_vectors(self.bound(from_vectors(checked, self.schema), _FIRST), self.schema)
        cut = self.fixed_point(_FIRST, clients=plan.population).cut(bounded)
        totals = members.astype(np.float64) @ cut
        parts = {name: totals[:, place].copy() for name, place in self.schema.places.items()}
        self.protect(parts, _FIRST, source)
        return np.concatenate(list(parts.values()), axis=1)

    def event(self) -> Event:
        """One round: Gaussian noise of which a person is part, always or by chance."""
        return self.taking_part.one_round(self.noise_multiplier)

    def delta(self, epsilon: float) -> float:
        """The exact profile of one round, with the sampler's errors."""
        return base.lattice_delta(self.event(), epsilon, self.dimension)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Everybody silent but one, whose update turns round (replace-one) or is missing (add-remove)."""
        with_one = np.zeros((self.taking_part.population, self.dimension))
        with_one[0] = self.clip_norm / math.sqrt(self.dimension)
        whole = self.sensitivity.value > self.clip_norm  # of an update, which turns into another
        return (with_one, -with_one) if whole else (with_one, with_one[1:])

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Three of ten people, drawn in both ways; and everybody."""
        return tuple(
            cls(schema=EXAMPLE, clip_norm=1.0, noise_multiplier=0.5, taking_part=way, delta=1e-3)
            for way in example_rounds(1)
        )


EXAMPLE = Schema((Tensor("rows", (2, 2), by_row=True), Tensor("layer", (3,), by_row=False)))


def example_rounds(rounds: int) -> tuple[Rounds, ...]:
    """Three of ten people, drawn in both ways; and everybody."""
    return (
        Rounds(rounds=rounds, sampling="fixed", population=10, cohort=3),
        Rounds(rounds=rounds, sampling="poisson", population=10, cohort=3),
        Rounds(rounds=rounds, population=4, cohort=4),
    )


def on_lattice(noise_multiplier: float, sensitivity: float, dimension: int) -> float:
    """The sigma that is `noise_multiplier` times the sensitivity and what cutting a sum to the lattice adds to it.

    Cutting moves two sums apart by up to sqrt(dimension) steps of sigma / 2^20:
    sigma = noise_multiplier * (sensitivity + sqrt(dimension) sigma / 2^20).
    """
    left = 1.0 - noise_multiplier * math.sqrt(dimension) / UNITS
    if left < 0.5:
        raise BadInput(
            f"the noise would be {noise_multiplier:.3g} times what one user can change, on {dimension} numbers: more "
            "than half of it would only hide rounding; ask for a larger privacy.epsilon or fewer rounds"
        )
    return noise_multiplier * sensitivity / left


def fixed_cohorts(count: int, people: int, cohort: int, source: Source) -> Bools:
    """So many cohorts of exactly `cohort` of `people`, every choice equally likely: [count, people]."""
    words = source.words(count * people).reshape(count, people)
    members = np.zeros((count, people), np.bool_)
    np.put_along_axis(members, np.argpartition(words, cohort - 1, axis=1)[:, :cohort], True, axis=1)
    return members


def noisy_messages(updates: ClientUpdates, *, law: Law, scale: float, source: Source) -> ClientUpdates:
    """Noise on everything that the messages carry."""

    def noisy(values: Floats) -> Floats:
        if isinstance(source, FastSource):
            if law == "laplace":
                return values + samplers.simulated_laplace(source.generator(), values.shape, scale=scale)
            return values + samplers.simulated_gaussian(source.generator(), values.shape, sigma=scale)
        return samplers.add_noise(values.astype(np.float64), law=law, scale=scale, source=source).astype(np.float32)

    def noisy_rows(packed: Mapping[str, Rows]) -> dict[str, Rows]:
        return {name: Rows(rows.offsets, rows.index, noisy(rows.values)) for name, rows in packed.items()}

    tables, entries = noisy_rows(updates.tables), noisy_rows(updates.entries)
    dense = {name: noisy(values) for name, values in updates.dense.items()}
    return replace(updates, tables=tables, entries=entries, dense=dense)


def noise_of_sum(
    schema: Schema, weights: Doubles | Offsets, generator: np.random.Generator, *, law: Law, scale: float
) -> dict[str, Floats]:
    """The noise of messages that fill the schema, added up; the message of client u counts `weights[u]` times.

    A sum of n Laplace draws is a difference of two Gamma(n) draws; one of Gaussian draws is a Gaussian draw.
    """
    if not len(weights):
        return {}
    if law == "gaussian":
        sigma = scale * math.sqrt(float(np.sum(np.asarray(weights, np.float64) ** 2)))
        return {t.name: samplers.simulated_gaussian(generator, t.shape, sigma=sigma) for t in schema.tensors}
    values, counts = np.unique(weights, return_counts=True)
    noise = {}
    for tensor in schema.tensors:
        total = np.zeros(tensor.shape)
        for value, count in zip(values, counts, strict=True):
            total += value * samplers.simulated_laplace_sum(generator, tensor.shape, scale=scale, clients=int(count))
        noise[tensor.name] = total.astype(np.float32)
    return noise


def with_noise(exact: Doubles, sigma: float, source: Source) -> Doubles:
    """Add Gaussian noise to exact sums, in double precision; a fast source draws it off the lattice."""
    if isinstance(source, FastSource):
        return np.asarray(exact + sigma * source.generator().normal(0.0, 1.0, exact.shape))
    return samplers.add_gaussian(exact, sigma=sigma, source=source)


# Private model selection: held-out validation clients, who never train, tell by how much the trained model serves them
# better than the first one. Their clipped gains are added up with noise, and the trained model is kept only where the
# mean exceeds what noise and chance alone would show.
STANDARD_ERRORS = 2.0  # of noise and chance together, that a gain has to exceed: by chance alone it does 1 time in 40
_MAX_VALIDATORS = 1 << 24
_UNITS_OF_GAIN = 1 << 28  # of a whole number at least as large as the clip: all sums are exact in double precision


class GainSum(SummedOnce[Doubles, Doubles]):
    """Sum of the clipped gains of validation clients, each counted once.

    Gains are added up as whole numbers of steps, cut towards zero, so that none exceeds the clip and no sum depends on
    the order.
    """

    name = "gain-sum"
    scope, trust = "whole run", "server"
    masked_length = 1

    def __init__(
        self,
        *,
        clip: float,
        epsilon: float,
        delta: float,
        adjacency: Adjacency,
        carried: DistributedNoise | None = None,
    ) -> None:
        positive(clip=clip, epsilon=epsilon)
        probability(delta=delta)
        self.clip = clip
        self.unit, self.adjacency = "user", adjacency
        self.sensitivity = Sensitivity(clipped_l2(clip, adjacency), "L2")
        self.claimed_epsilon, self.claimed_delta = epsilon, delta
        self.step = 2.0 ** math.ceil(math.log2(clip)) / _UNITS_OF_GAIN
        self.largest = int(clip / self.step)
        self.sigma = self._share_out(epsilon, delta, carried)
        self._event = GaussianEvent(mu_for(epsilon, delta))

    def bound(self, gains: Doubles) -> Doubles:
        """No gain is larger than the clip, and one that is no number is none."""
        found = np.nan_to_num(np.asarray(gains, np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        return np.clip(found, -self.clip, self.clip)

    def weigh(self, value: Doubles | float) -> Offsets:
        """Bounded gains in steps, cut towards zero: `[1]` of one client."""
        return np.trunc(self.bound(np.atleast_1d(value)) / self.step).astype(np.int64)

    def total(self, gains: Doubles) -> Offsets:
        """The sum `[1]` of bounded gains, in steps: the same whatever their order."""
        if np.ndim(gains) != 1 or len(gains) > _MAX_VALIDATORS:
            raise BadInput(
                f"gains have shape {np.shape(gains)}: one number per client is needed, {_MAX_VALIDATORS:,} at most"
            )
        return np.asarray(self.weigh(gains).sum(keepdims=True))

    def check(self, gain: float) -> None:
        """Refuse a gain that nobody who keeps to the bound can have sent."""
        if not abs(gain) <= self.clip:
            raise clipping.BadUpdate(f"a gain of {gain:.6g}: this comparison takes at most {self.clip:.6g}")

    def protect(self, total: Offsets, source: Source) -> Doubles:
        """Noise on the sum."""
        self._refuse_shares()
        return with_noise(np.asarray(total * self.step, np.float64), self.sigma, source)

    def threshold(self, validators: int) -> float:
        """Gain that a noisy mean over validation clients has to exceed: standard errors of its noise and of chance.

        The variance of a clipped gain is at most the clip squared, so that nothing has to be learnt of it.
        """
        whole(validators=validators)
        return STANDARD_ERRORS * math.sqrt(validators * self.clip**2 + self.sigma**2) / validators

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The noisy sum `[1]` of the gains of n validation clients, `[n, 1]`."""
        return np.asarray(self._perturb_many(value, 1, source)[0])

    def _perturb_many(self, value: Doubles, count: int, source: Source) -> Doubles:
        checked = vectors(1, gains=value)
        return self._released(self.total(checked.reshape(-1)), count, source)

    def event(self) -> GaussianEvent:
        """Gaussian, the lattice included."""
        return self._event

    def delta(self, epsilon: float) -> float:
        """The exact profile, with the sampler's errors."""
        return self._profile(self.sigma, epsilon)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """One client that gains all, against none (add-remove) or one that loses all (replace-one)."""
        first = np.array([[self.clip]])
        return first, np.zeros((0, 1)) if self.adjacency == "add-remove" else -first

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """In both adjacencies, of the server's noise and of that of four clients, of whom one adds none."""
        return tuple(
            cls(clip=0.1, epsilon=1.0, delta=1e-6, adjacency=way, carried=noise)
            for noise in (None, DistributedNoise(4, silent=0.25))
            for way in ADJACENCIES
        )
