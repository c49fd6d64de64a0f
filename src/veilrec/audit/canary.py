"""End-to-end canary: train many times with one person's data and without it, and tell the released models apart.

The adversary knows everything but whether the person took part: the plan, the others' data, and the direction in which
the person's data moves the model without noise. The score is how far the model moved in that direction; how well it
separates the two sides bounds epsilon from below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from veilrec.audit.bounds import epsilon_from_gaussian_scores, epsilon_from_scores
from veilrec.audit.observe import ObservedRun, SeenSums, simulate, watch
from veilrec.audit.plan import claim, secret_of
from veilrec.audit.plan_local import scores_of_reports
from veilrec.client.local_training import LocalData
from veilrec.client.news_data import OwnImpressions
from veilrec.core.arrays import Doubles
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.plan import Plan
from veilrec.core.schema import BOUND, Schema
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.reports import MadeOfReports
from veilrec.privacy.mechanisms.schedules import TreeSum
from veilrec.server.client_sampling import CohortSampler
from veilrec.server.round_specs import Tally
from veilrec.simulation.simulation import Seeds, Simulation

ALPHA = 1e-4
_PARTS = 8


@dataclass(frozen=True)
class Canary:
    """Lower bound on epsilon from repeated training runs."""

    epsilon_lower: float
    confidence: float
    runs: int  # with the person's data, and as many without
    rounds: int
    law: str  # what was taken for granted: that the noise is Gaussian, or nothing
    holds: bool

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


@dataclass(frozen=True)
class CanaryPair:
    """Two neighbouring datasets: one person's data is present, or removed or replaced."""

    first: LocalData
    second: LocalData
    person: int  # whose data differs
    removed: int | None = None  # in the second


def canary(plan: Plan, data: LocalData, histories: Csr, guarantee: Guarantee, *, runs: int, seed: int = 0) -> Canary:
    """Run all rounds of a plan `runs` times a side, on the neighbouring datasets that its guarantee is about."""
    if isinstance(plan.mechanism, MadeOfReports) and isinstance(data, OwnImpressions):
        return _of_reports(plan, data, guarantee, runs, seed)
    plan = replace(plan, comparison=None)  # validation clients are others, and model selection is audited by itself
    pair, direction = _most_telling(plan, data, histories, guarantee, seed)
    scores = [
        np.array([_score(plan, pair, side, histories, direction, seed, run) for run in range(runs)]) for side in (0, 1)
    ]
    epsilon, delta = claim(guarantee)
    devices = int((data.rows.lengths() > 0).sum())
    everybody = plan.cohort.size in (0, devices) or plan.cohort.sampling == "turns"
    gaussian = everybody and (plan.reports is None or guarantee.unit == "user")
    bound = epsilon_from_gaussian_scores if gaussian else epsilon_from_scores
    lower = bound(scores[0], scores[1], delta=delta, alpha=ALPHA)
    law = "Gaussian noise" if gaussian else "none"
    return Canary(lower, 1.0 - ALPHA, runs, plan.rounds, law, bool(lower <= epsilon))


def _of_reports(plan: Plan, data: OwnImpressions, guarantee: Guarantee, runs: int, seed: int) -> Canary:
    """Canary under local DP: the adversary sees all messages of one client."""
    epsilon, delta = claim(guarantee)
    scores = scores_of_reports(plan, data, runs=runs, seed=seed)
    lower = epsilon_from_scores(*scores, delta=delta, alpha=ALPHA)
    return Canary(lower, 1.0 - ALPHA, runs, plan.rounds, "none", bool(lower <= epsilon))


def _score(plan: Plan, pair: CanaryPair, side: int, histories: Csr, direction: Doubles, seed: int, run: int) -> float:
    seeds = Seeds.all_from(seed, secret_of(seed, side, run))
    data, removed = (pair.second, pair.removed) if side else (pair.first, None)
    simulation: Simulation = simulate(plan, data, histories, seeds, removed=removed)
    weighs = _weighed(plan, simulation, pair)
    if weighs is None:
        for number in range(plan.rounds):
            simulation.step(number)
        return float(_flat(simulation, plan) @ direction)
    score = 0.0
    for number in range(plan.rounds):
        before, weight = _flat(simulation, plan), weighs(number)
        simulation.step(number)
        score += weight * float((_flat(simulation, plan) - before) @ direction)
    return score


def _flat(simulation: Simulation, plan: Plan) -> Doubles:
    weights = [simulation.server.weights[tensor.name].ravel() for tensor in plan.schema.tensors]
    return np.concatenate(weights).astype(np.float64)


def _weighed(plan: Plan, simulation: Simulation, pair: CanaryPair) -> Callable[[int], float] | None:
    """Weight of a round's step for an adversary who sees every model; None: the last model suffices.

    A step is as large as the released clip norm of its round. In tree aggregation the nodes that contain the person
    have independent noise, so a round counts as often as it is in one of them.
    """
    if plan.bound_rule is not None:
        return lambda _: 1.0 / float(simulation.server.weights[BOUND][0])
    if isinstance(plan.mechanism, TreeSum):
        times = _in_nodes(plan, simulation, pair.person, plan.mechanism.steps)
        return lambda number: times[number]
    return None


def _in_nodes(plan: Plan, simulation: Simulation, person: int, steps: int) -> Doubles:
    """For every round, the number of tree nodes that contain both the round and the person's participation."""
    times = np.zeros(plan.rounds)
    everybody, seeds = simulation.sampler.eligible, simulation.seeds
    sampler = CohortSampler(plan.cohort, everybody, seeds.cohorts, secret=seeds.secret)
    turns = [number for number in range(plan.rounds) if person in sampler.draw(number)]
    for end in range(plan.rounds):
        place = end % steps + 1
        start = end - (place & -place) + 1
        times[start : end + 1] += sum(start <= turn <= end for turn in turns)
    return times


def _most_telling(
    plan: Plan, data: LocalData, histories: Csr, guarantee: Guarantee, seed: int
) -> tuple[CanaryPair, Doubles]:
    """The neighbouring pair whose sums lie farthest apart without noise, and the direction between them."""

    def moves(side: LocalData, removed: int | None, number: int) -> Doubles:
        seeds = Seeds.all_from(seed, secret_of(seed, 2, number))
        seen = watch(plan, side, histories, seeds, plan.rounds, quiet=True, removed=removed)
        return np.asarray(np.sum([_whole(sums, plan.schema) for sums in seen.sums], axis=0)) + _told(plan, seen)

    def apart(pair: CanaryPair, number: int) -> Doubles:
        return np.asarray(moves(pair.first, None, number) - moves(pair.second, pair.removed, number))

    pair = max(_pairs(data, guarantee), key=lambda pair: float(np.linalg.norm(apart(pair, 0))))
    # Where rounds are about parts that chance has a hand in, all of them count.
    direction = np.sum([apart(pair, number) for number in range(_PARTS if plan.agenda.leaves_out else 1)], axis=0)
    return pair, direction / max(float(np.linalg.norm(direction)), 1e-300)


def _whole(sums: SeenSums, schema: Schema) -> Doubles:
    """The sums of a round before the noise, as a change of the whole model."""
    parts = []
    for tensor in schema.tensors:
        full = np.zeros(tensor.shape)
        rows = sums.about.rows if tensor.by_row else None
        # The bound is no sum of the model's changes; and a round may be about some tensors only.
        if tensor.learnt and tensor.name != BOUND and sums.about.concerns(tensor.name):
            full[slice(None) if rows is None else rows] = sums.before[tensor.name]
        parts.append(full.ravel())
    return np.concatenate(parts)


def _told(plan: Plan, seen: ObservedRun) -> Doubles:
    """The contribution of reports to the model before noise, weighted by its variance relative to that of the sums."""
    whole = {tensor.name: np.zeros(tensor.shape) for tensor in plan.schema.tensors}
    if plan.from_reports is not None and plan.reports is not None:
        told, mechanism = seen.reports[0].told, plan.reports.mechanism
        sigma, of_sums = getattr(mechanism, "sigma", 0.0), plan.mechanism.facts().get("sigma", 0.0)
        weight = (of_sums / sigma) ** 2 if sigma and of_sums else 1.0
        tally = Tally(told.sum(axis=0) * mechanism.step, len(told))
        for name, values in plan.from_reports.tensors(tally).items():
            whole[name] = values.astype(np.float64) * weight
    return np.concatenate([whole[tensor.name].ravel() for tensor in plan.schema.tensors])


def _pairs(data: LocalData, guarantee: Guarantee) -> list[CanaryPair]:
    everybody = np.flatnonzero(data.rows.lengths() > 0).tolist()
    if guarantee.unit == "click":
        return [CanaryPair(data, _without_a_click(data, device), device) for device in everybody]
    if guarantee.adjacency == "add-remove":
        return [CanaryPair(data, data, device, device) for device in everybody]
    return [CanaryPair(data, _replaced(data, everybody[0], device), everybody[0]) for device in everybody[1:]]


def _replaced(data: LocalData, device: int, other: int) -> LocalData:
    rows = np.arange(len(data.rows))
    rows[device] = other
    return data.take(rows)


def _without_a_click(data: LocalData, device: int) -> LocalData:
    """Remove the first item of a client's data; added clicks are bounded in the same way."""
    rows = data.rows
    kept = np.ones(len(rows.items), np.bool_)
    kept[rows.offsets[device]] = False
    lengths = rows.lengths()
    lengths[device] -= 1
    return cast(LocalData, replace(cast(Any, data), rows=Csr(offsets_of(lengths), rows.items[kept])))
