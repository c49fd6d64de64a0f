"""Audit of noise on sums: its spread and shape, its coverage, and that no noise is reused.

Sums are first transformed so that each has independent noise of equal size: those of a tree are added up to its nodes
(DP-FTRL), and those under adaptive clipping are divided by the clip norm of their round. Adaptive clipping is also
checked for its count, the count's noise and the update of the clip norm; trees for participation and for independent
noise on every node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from veilrec.audit import observe
from veilrec.audit.observe import ALPHA, AuditCheck, ObservedRun, SeenSums, Sums
from veilrec.core.arrays import Doubles, Offsets
from veilrec.core.plan import Plan
from veilrec.core.schema import BOUND, ClientUpdates, RoundSpec, from_vectors
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import GaussianEvent, SampledEvent, repeated
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.schedules import TreeSum
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.privacy.randomness import FastSource, KeyedSource, Source

Noise = dict[str, Doubles]
NUMBERS = 100_000  # of noise: its spread is measured to a few thousandths
EXTRA = 1_000  # streams of noise that no run uses
_FEWEST_DRAWS = 40  # of the noise of every tensor, however small
_COUNTS = 2_000  # draws of the count's noise beside those
_MAX_ROUNDS = 4  # of a tree that are asked for in one draw
SPREAD = "standard deviation of the noise on a sum"
OFF_LATTICE = "numbers of protected sums between the steps of the noise's lattice"


def own_noise(plan: Plan, sums: Sequence[SeenSums]) -> list[SeenSums]:
    """Transform the sums of consecutive rounds, from 0 on, to independent noise of the first round's size."""
    if isinstance(plan.mechanism, TreeSum):
        return [_node(sums[: place + 1], plan.mechanism.steps) for place in range(len(sums))]
    if plan.clipping_rule is None:
        return list(sums)
    first: float = getattr(plan.mechanism, "clip_norm", 1.0)
    return [_measured_by(one, first) for one in sums]


def _measured_by(sums: SeenSums, clip_norm: float) -> SeenSums:
    """Rescale the sums of updates to one clip norm."""
    scale = clip_norm / abs(sums.spec.clip_norm or clip_norm)

    def scaled(totals: Sums) -> Sums:
        return {name: total * scale for name, total in totals.items() if name != BOUND}

    return replace(sums, before=scaled(sums.before), after=scaled(sums.after))


def _node(sums: Sequence[SeenSums], steps: int) -> SeenSums:
    """The tree node that the last round completes: as many rounds as the largest power of 2 that divides its place."""
    place = sums[-1].spec.number % steps + 1
    inside = sums[-(place & -place) :]

    def added(totals: Sequence[Sums]) -> Sums:
        return {name: np.sum([total[name] for total in totals], axis=0) for name in totals[0]}

    return SeenSums(sums[-1].spec, added([one.before for one in inside]), added([one.after for one in inside]))


def protected(plan: Plan, sums: SeenSums, source: Source, spec: RoundSpec | None = None) -> SeenSums:
    """Add noise from another source to the same sums."""
    spec = sums.spec if spec is None else spec
    after = {name: total.copy() for name, total in sums.before.items()}
    plan.mechanism.protect(after, spec, source)
    return SeenSums(spec, sums.before, after)


def measured_noise(plan: Plan, first: SeenSums, key: bytes, seed: int) -> tuple[dict[str, Noise], dict[str, Doubles]]:
    """Sample the noise of every tensor again on the sums of the first round, by kind of source.

    In a tree, over enough rounds that two levels have noise. Also the noise of the count under adaptive clipping.
    """
    mechanism = plan.mechanism
    rounds = min(mechanism.steps, _MAX_ROUNDS) if isinstance(mechanism, TreeSum) else 1
    size = rounds * sum(total.size for total in first.before.values())
    draws = max(_FEWEST_DRAWS, math.ceil(NUMBERS / size))
    noise: dict[str, Noise] = {}
    counts: dict[str, Doubles] = {}
    for way in ("secret", "seeded"):
        parts: dict[str, list[Doubles]] = {}
        counted: list[Doubles] = []
        for draw in range(EXTRA, EXTRA + draws):
            asked = []
            for number in range(rounds):
                source: Source = KeyedSource(key, draw, number)
                if way == "seeded":
                    source = FastSource(seed, draw, number, one_generator=True)
                asked.append(protected(plan, first, source, replace(first.spec, number=first.spec.number + number)))
            for one in own_noise(plan, asked):
                for name in one.before:
                    parts.setdefault(name, []).append(one.noise(name))
            counted += [one.noise(BOUND) for one in asked if BOUND in one.before]
        if counted:
            many = SeenSums(first.spec, {BOUND: np.zeros(_COUNTS)}, {})
            other = KeyedSource(key, EXTRA) if way == "secret" else FastSource(seed, EXTRA, one_generator=True)
            counted.append(protected(plan, many, other).noise(BOUND))
        noise[way] = {name: np.concatenate(part) for name, part in parts.items()}
        counts[way] = np.concatenate([np.zeros(0), *counted])
    return noise, counts


def measured_in_all(
    plan: Plan, sums: Sequence[SeenSums], key: bytes, seed: int
) -> tuple[dict[str, Noise], dict[str, Doubles]]:
    """Sample the noise of every tensor, each in the first round that trains it."""
    noise, counts = measured_noise(plan, sums[0], key, seed)
    for number, first in enumerate(firsts(sums)[1:], 1):
        further, _ = measured_noise(plan, first, key, seed + number)
        for way, of_tensors in further.items():
            noise[way] = {**of_tensors, **noise[way]}
    return noise, counts


def firsts(sums: Sequence[SeenSums]) -> list[SeenSums]:
    """The first round of every set of tensors that are trained together."""
    found: dict[tuple[str, ...], SeenSums] = {}
    for one in sums:
        found.setdefault(tuple(one.before), one)
    return list(found.values())


def spread_of(noise: Noise) -> float:
    """The standard deviation of all noise together."""
    return float(np.sqrt(np.mean(np.concatenate(list(noise.values())) ** 2)))


def noise_checks(
    plan: Plan, secret: Sequence[ObservedRun], seeded: Sequence[ObservedRun], measured: dict[str, Noise], needed: float
) -> Iterator[AuditCheck]:
    """Check the spread and the shape of noise, and that none is reused."""
    runs = {way: [own_noise(plan, one.sums) for one in seen] for way, seen in (("secret", secret), ("seeded", seeded))}
    tensors = list(measured["secret"])
    share = ALPHA / (len(tensors) * sum(len(sums) for sums in runs["secret"]) * 2 + 2)
    for way, noise in measured.items():
        together = np.concatenate(list(noise.values()))
        yield observe.spread_at_least(SPREAD, together, needed, f"all tensors, {way}")
        yield observe.is_gaussian("distance of the noise from a Gaussian", together[:NUMBERS], way)
    for tensor in tensors:
        parts = [
            (sums.noise(tensor), f"{tensor}, round {sums.spec.number}, {way}")
            for way, seen in runs.items()
            for one in seen
            for sums in one
            if tensor in sums.before
        ]
        parts += [(noise[tensor], f"{tensor}, {way}") for way, noise in measured.items()]
        yield worst([observe.spread_at_least(SPREAD, noise, needed, where, alpha=share) for noise, where in parts])
    grids = [
        (sums.after[name].reshape(-1)[sums.inside(name)], plan.mechanism.sigma_in(name, sums.spec))
        for one in secret
        for sums in one.sums
        for name in sums.after
        if isinstance(plan.mechanism, CohortSum)
    ]
    yield observe.is_equal(OFF_LATTICE, sum(observe.off_lattice(after, sigma) for after, sigma in grids), 0)
    for way, seen in runs.items():
        noises = [
            (f"{tensor} in round {sums.spec.number} of run {number}", sums.noise(tensor))
            for number, one in enumerate(seen)
            for sums in one
            for tensor in tensors
            if tensor in sums.before
        ]
        yield observe.none_repeats("pairs of noises that repeat each other", noises, spread_of(measured[way]), way)


def worst(checks: list[AuditCheck]) -> AuditCheck:
    """A check that fails, or the last one, which has the most samples."""
    found = next((check for check in checks if not check.holds), checks[-1])
    return replace(found, false_alarm_rate=sum(check.false_alarm_rate for check in checks))


def coverage_checks(plan: Plan, runs: Sequence[ObservedRun], spread: float, key: bytes) -> Iterator[AuditCheck]:
    """Check that every number of a round has noise, and that numbers outside of it are zero."""
    uncovered, outside, carried = 0, 0, 0
    for number, seen in enumerate(runs):
        again = [protected(plan, sums, KeyedSource(key, number, sums.spec.number)) for sums in seen.sums]
        for one, other in zip(own_noise(plan, seen.sums), own_noise(plan, again), strict=True):
            uncovered += sum(observe.bare(one.noise(name), other.noise(name), spread) for name in one.before)
        for sums in seen.sums:
            outside += sum(sums.outside(name) for name in sums.before)
            carried += sum(int(np.count_nonzero(before)) for before in sums.before.values())
    yield observe.is_equal("numbers of a round without noise", uncovered, 0, f"{carried} carried data")
    yield observe.is_equal("numbers outside of a round that carry anything", outside, 0)


_SLACK = 0.002
_NEAR = 0.05  # of an epsilon that rests on some hundred draws of the count's noise, and many of the updates'
_NUMBERS = 20_000  # of noise at either of two bounds
COUNT = "standard deviation of the noise on the count"
BY_ROUND = "standard deviation of the noise at another bound"


def learnt_bound_checks(
    plan: Plan, runs: Sequence[ObservedRun], counted: Mapping[str, Doubles], needed: float, key: bytes
) -> Iterator[AuditCheck]:
    """Check adaptive clipping; `needed` is the noise that the first clip norm needs on a sum."""
    mechanism: Any = plan.mechanism
    stated: float = getattr(mechanism, "count_standard_deviation", math.inf)
    for way, noise in counted.items():
        yield observe.spread_at_least(COUNT, noise, stated * (1.0 - _SLACK), way)
    first: float = mechanism.clip_norm
    yield from _follows(plan, runs[0].sums[0], first, needed, key)
    told, meant = [], []
    for clip_norm in (first / 2.0, 2.0 * first):
        sizes = (0.0, clip_norm / 2.0, clip_norm * 1.001, 50.0 * clip_norm)
        told += _counts(plan, RoundSpec(0, clip_norm=clip_norm), sizes)
        meant += [0.5, 0.5, -0.5, -0.5]
    yield observe.is_equal("what updates within and beyond a bound count for", _words(told), _words(meant))
    seen = [float(np.abs(counts).max()) for run in runs for counts in run.counts if len(counts)]
    yield observe.at_most("how far one message moves the count", max(seen, default=math.inf), 0.5)
    fits = mechanism.bound(_updates(plan, (first / 2.0,)), RoundSpec(0, clip_norm=first))
    for what, counts in (("missing", None), ("1", 1.0), ("no number", math.nan)):
        yield observe.is_equal(f"a message whose count is {what}", _checked(plan, fits, first, counts), "refused")
    yield observe.is_equal(
        "rounds whose bound is not from the protected count", sum(_elsewhere(plan, run) for run in runs), 0
    )


def _follows(plan: Plan, sums: SeenSums, first: float, needed: float, key: bytes) -> Iterator[AuditCheck]:
    """Check the noise at half and at twice the clip norm, alternating, so that state of the previous round shows."""
    size = sum(total.size for name, total in sums.before.items() if name != BOUND)
    noise: dict[float, list[Doubles]] = {0.5: [], 2.0: []}
    for draw in range(math.ceil(_NUMBERS / size)):
        for factor, parts in noise.items():
            after = {name: np.zeros_like(total) for name, total in sums.before.items()}
            spec = replace(sums.spec, clip_norm=factor * first)
            plan.mechanism.protect(after, spec, KeyedSource(key, 2 * EXTRA + draw, int(factor)))
            parts += [total.ravel() / factor for name, total in after.items() if name != BOUND]
    for factor, parts in noise.items():
        yield observe.spread_at_least(BY_ROUND, np.concatenate(parts), needed, f"{factor:g} times the first")


def _updates(plan: Plan, sizes: Sequence[float]) -> ClientUpdates:
    """Updates of the given norms."""
    view = plan.schema.learnt
    vectors = np.zeros((len(sizes), sum(tensor.size for tensor in view.tensors)))
    first = next(place.start for name, place in view.places.items() if name != BOUND)
    vectors[:, first] = sizes
    return from_vectors(vectors, view)


def _counts(plan: Plan, spec: RoundSpec, sizes: Sequence[float]) -> list[float]:
    counts = plan.mechanism.bound(_updates(plan, sizes), spec).dense.get(BOUND)
    return [] if counts is None else [float(count) for count in counts.ravel()]


def _words(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def _checked(plan: Plan, updates: ClientUpdates, clip_norm: float, count: float | None) -> str:
    dense = {name: values for name, values in updates.dense.items() if name != BOUND}
    if count is not None:
        dense[BOUND] = np.full((updates.count, 1), count, np.float32)
    return observe.answer_of(plan, replace(updates, dense=dense), RoundSpec(0, clip_norm=clip_norm))


def _elsewhere(plan: Plan, run: ObservedRun) -> int:
    """Count rounds whose clip norm does not follow from the noisy count."""
    if plan.clipping_rule is None:
        return 0
    before = [float(plan.start[BOUND][0]), *(float(weights[BOUND][0]) for weights in run.released)]
    wanted = [
        np.float32(plan.clipping_rule.next(now, float(sums.after[BOUND][0])))
        for now, sums in zip(before, run.sums, strict=False)
    ]
    used = sum(sums.spec.clip_norm != now for now, sums in zip(before, run.sums, strict=False))
    moved = sum(bool(weights[BOUND][0] != bound) for weights, bound in zip(run.released, wanted, strict=True))
    return used + moved


def published_bound_checks(
    plan: Plan, first: SeenSums, guarantee: Guarantee, clients: int, key: bytes, seed: int
) -> Iterator[AuditCheck]:
    """Compare the cost of the measured noise of a published variant with the stated honest epsilon."""
    measured, counted = measured_noise(plan, first, key, seed)
    clip_norm: float = getattr(plan.mechanism, "clip_norm", math.inf)
    rate = plan.cohort.among(clients) / clients
    delta = guarantee.honest_delta or 0.0
    for way, noise in measured.items():
        mu = math.hypot(2.0 * clip_norm / spread_of(noise), 1.0 / max(float(np.std(counted[way])), 1e-300))
        accounted: Any = getattr(plan.mechanism, "taking_part", None)
        amplified = accounted is not None and accounted.rate < 1.0
        one = SampledEvent(mu, rate, "fixed") if amplified else GaussianEvent(mu)
        epsilon = epsilon_of(repeated(one, plan.rounds), delta)
        stated = guarantee.honest_epsilon or math.inf
        name = "epsilon of the run, from the noise that was measured"
        yield observe.is_near(name, epsilon, stated, _NEAR, f"{way}, at delta {delta:g}", ALPHA)
    yield observe.is_equal("adjacency of the statement", str(guarantee.adjacency), plan.mechanism.adjacency)


_MOST = 24  # rounds of a tree of which the nodes are looked at
NODE = "standard deviation of the noise on a node of the tree"
NODES = "pairs of nodes that repeat each other"


def nodes_of_a_person(steps: int) -> int:
    """The largest number of tree nodes that contain one round."""
    nodes = [(place - (place & -place), place) for place in range(1, steps + 1)]
    return max(sum(start < place <= end for start, end in nodes) for place in range(1, min(steps, 4) + 1))


def tree_checks(plan: Plan, cohorts: Any, needed: float, key: bytes) -> Iterator[AuditCheck]:
    """Check participation and nodes of tree aggregation; `cohorts` is the membership in each round."""
    mechanism = plan.mechanism
    if not isinstance(mechanism, TreeSum):
        raise TypeError("only a tree has nodes")
    members: Offsets = cohorts
    steps = mechanism.steps
    often = [members[start : start + steps].sum(axis=0).max() for start in range(0, len(members), steps)]
    yield observe.at_most("rounds of a client in one tree", int(max(often)), 1)
    yield observe.at_least(
        "rounds of a client that are accounted for", plan.max_participations or 0, int(members.sum(axis=0).max())
    )
    yield observe.at_least("rounds of a tree that are accounted for", mechanism.event().steps, steps)
    yield from _node_checks(plan, steps, needed, key)


def _node_checks(plan: Plan, steps: int, needed: float, key: bytes) -> Iterator[AuditCheck]:
    """Check nodes of zero sums with one secret, over the first rounds of the first tree and of the next one."""
    nodes = [
        node
        for start in (0, steps)
        for node in own_noise(plan, [_of_nothing(plan, start + place, key) for place in range(min(steps, _MOST))])
    ]
    noises = [
        (f"ended by round {node.spec.number}", np.concatenate([node.noise(name).ravel() for name in node.before]))
        for node in nodes
    ]
    share = ALPHA / len(noises)
    yield worst([observe.spread_at_least(NODE, noise, needed, where, alpha=share) for where, noise in noises])
    yield observe.none_repeats(NODES, noises, needed, f"{len(noises)} nodes")


def _of_nothing(plan: Plan, number: int, key: bytes) -> SeenSums:
    """The noisy sums of a round without client updates."""
    nothing = {tensor.name: np.zeros(tensor.shape) for tensor in plan.schema.learnt.tensors}
    return protected(plan, SeenSums(RoundSpec(number), nothing, nothing), KeyedSource(key, number))
