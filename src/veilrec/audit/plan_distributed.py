"""Audit of distributed noise, `veilrec audit METHOD --distributed-noise`: masked inputs against the statement.

Everything is measured on whole masked inputs as a client forms them: noise is the masked input of a zero update, and
the effect of an update is the difference of two inputs with the same noise. How much noise the sum needs, how many
clients are counted on to add theirs, and what a round costs is computed again from the statement, `least` and `silent`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from veilrec.audit.bounds import epsilon_from_gaussian_scores
from veilrec.audit.method import ALPHA as CANARY_ALPHA
from veilrec.audit.method import FULL, QUICK, Canary, MethodAudit, fitting, small_problem, tiny_plan
from veilrec.audit.observe import ALPHA, AuditCheck, at_least, at_most, bare, is_equal, is_gaussian
from veilrec.audit.observe import spread_at_least as spread
from veilrec.audit.plan import RunAccount, announced, claim, secret_of
from veilrec.audit.plan_sums import NUMBERS, worst
from veilrec.audit.streams import repeats
from veilrec.audit.whole_run import ROUNDS
from veilrec.core.arrays import Doubles, Offsets
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.plan import Plan
from veilrec.core.schema import ClientUpdates, RoundSpec, from_vectors
from veilrec.federation.facts import guarantee_of, terms_of, with_distributed_noise
from veilrec.federation.making import least_of_shares
from veilrec.methods.base import configure, promised
from veilrec.methods.private import clients_with_data
from veilrec.methods.registry import get
from veilrec.privacy.accounting import delta_of, epsilon_of
from veilrec.privacy.events import training_event
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.distributed import DistributedNoise, DistributedNoiseSum, overflow_chance
from veilrec.privacy.randomness import KeyedSource

_SLACK = 0.002  # as in audits of noise that a server adds
_CUT = 1e-3  # of the bound: what cutting to the lattice may add
_FEWEST_DRAWS = 40
_CLIENTS = 3  # whose noises of all rounds are compared with each other
EVERY_SHARE = "standard deviation of a client's share of the noise, in any round"
_LARGE = 1e6  # times the bound: what somebody sends who wants to be seen
_OVERFLOW = 1e-9  # chance of a round that its own noise voids


@dataclass(frozen=True)
class Shared:
    """A plan with distributed noise under audit."""

    plan: Plan
    mechanism: DistributedNoiseSum
    seed: int

    def share(self, updates: ClientUpdates, spec: RoundSpec, *key: int) -> Offsets:
        """The integers that a client masks, with the noise of a key."""
        return self.mechanism.share(
            updates, spec, self.plan.fixed_point(spec), KeyedSource(secret_of(self.seed), *key)
        ).value

    def same(self, spec: RoundSpec, value: float) -> ClientUpdates:
        """An update with the same value everywhere."""
        view = spec.view(self.plan.schema.learnt)
        return from_vectors(np.full((1, sum(tensor.size for tensor in view.tensors)), value), view)

    def noise(self, spec: RoundSpec, *key: int) -> dict[str, Doubles]:
        """One client's noise on the part of the round, in the units of the model."""
        fixed_point, drawn = self.plan.fixed_point(spec), self.share(self.same(spec, 0.0), spec, *key)
        parts = {}
        for name, place in fixed_point.places.items():
            part = drawn[place].astype(np.float64) * fixed_point.steps[name]
            entries = spec.entries(name, part.size)
            parts[name] = part if entries is None else part[entries]
        return parts

    def moved(self, updates: ClientUpdates, spec: RoundSpec) -> float:
        """How far an update moves a sum: 0 where it is rejected."""
        fixed_point = self.plan.fixed_point(spec)
        try:
            with np.errstate(all="ignore"):
                apart = self.share(updates, spec, 1, 7) - self.share(self.same(spec, 0.0), spec, 1, 7)
        except VeilrecError:
            return 0.0
        squares = sum(
            float(np.sum((apart[at] * fixed_point.steps[name]) ** 2)) for name, at in fixed_point.places.items()
        )
        return math.sqrt(squares)


def honest_of(least: int, silent: float) -> int:
    """The number of clients, of the fewest, that are counted on to add noise and keep it secret."""
    return max(1, least - math.floor(silent * least + 1e-12))


def share_checks(
    plan: Plan, guarantee: Guarantee, *, least: int, silent: float, clients: int, seed: int = 0
) -> tuple[AuditCheck, ...]:
    """Run all checks of distributed noise, for sums of `least` clients of whom a part may be silent."""
    mechanism = plan.mechanism
    if not isinstance(mechanism, DistributedNoiseSum):
        return (is_equal("noise lands on", mechanism.noise_on, "share"),)
    shared = Shared(plan, mechanism, seed)
    # Who takes part is seen, so that nothing is won by being drawn.
    open_plan = replace(plan, mechanism=mechanism.inner, cohort=replace(plan.cohort, size=0), reports=None)
    account = RunAccount(open_plan, guarantee, clients, keeps_state=True, told=None)
    needed = account.needed_sigma(guess=mechanism.inner.sigma)
    honest = honest_of(least, silent)
    return (
        *_noise_checks(shared, needed, honest),
        *_bound_checks(shared),
        *_account_checks(shared, account, guarantee, needed, least, honest),
    )


def _kinds(plan: Plan) -> list[RoundSpec]:
    """The first round spec of every kind of round."""
    found: dict[object, RoundSpec] = {}
    for spec in announced(plan):
        found.setdefault((spec.tensors, spec.rank), spec)
    return list(found.values())


def _noise_checks(shared: Shared, needed: float, honest: int) -> Iterator[AuditCheck]:
    each = needed / math.sqrt(honest)
    kinds = _kinds(shared.plan)
    share = ALPHA / max(1, sum(len(shared.plan.fixed_point(spec).places) for spec in kinds))
    for spec in kinds:
        size = sum(part.size for part in shared.noise(spec, 2).values())
        draws = max(_FEWEST_DRAWS, math.ceil(NUMBERS / max(1, size)))
        drawn = [shared.noise(spec, 3, spec.number, draw) for draw in range(draws)]
        name = "standard deviation of a client's share of the noise"
        for tensor in drawn[0]:
            noise = np.concatenate([one[tensor] for one in drawn])
            yield spread(name, noise, each, f"{tensor}, round {spec.number}", alpha=share)
        together = np.concatenate([part for one in drawn for part in one.values()])[:NUMBERS]
        yield is_gaussian("distance of a share's noise from a Gaussian", together, f"round {spec.number}")
        bared = sum(bare(drawn[0][tensor], drawn[1][tensor], each) for tensor in drawn[0])
        yield is_equal("numbers of a share without noise", bared, 0, f"round {spec.number}")
    rounds = announced(shared.plan)
    named = [
        (f"client {client} in round {spec.number}", np.concatenate(list(noise.values())))
        for client in range(_CLIENTS)
        for spec in rounds
        for noise in (shared.noise(spec, 4, client, spec.number),)
    ]
    pairs = math.comb(len(named), 2)
    yield is_equal(ROUNDS, len(rounds), shared.plan.rounds, f"{len(named):,} shares in {pairs:,} pairs")
    yield repeats("pairs of shares that repeat each other", named, shifts=True)
    yield worst([spread(EVERY_SHARE, noise, each, where, alpha=ALPHA / len(named)) for where, noise in named])


def _bound_checks(shared: Shared) -> Iterator[AuditCheck]:
    """Check the bound on how far a client moves a sum, whatever its update."""
    for spec in _kinds(shared.plan):
        limit = shared.mechanism.inner.clip_norm
        if spec.clip_norm is not None:
            limit = min(limit, spec.clip_norm)
        sizes = (1e30, -1e30, 1e6 * limit, 2.0 * limit, limit)
        most = max(shared.moved(shared.same(spec, size), spec) for size in sizes)
        where = f"round {spec.number}"
        yield at_most("how far an update that is made to be large moves a sum", most, limit * (1.0 + _CUT), where)
        for what, value in (("NaN", math.nan), ("infinity", math.inf)):
            moved = shared.moved(shared.same(spec, value), spec)
            yield at_most(f"how far an update with {what} moves a sum", moved, limit * (1.0 + _CUT), where)


def _account_checks(
    shared: Shared, account: RunAccount, guarantee: Guarantee, needed: float, least: int, honest: int
) -> Iterator[AuditCheck]:
    plan, mechanism = shared.plan, shared.mechanism
    epsilon, delta = claim(guarantee)
    yield is_equal("unit of the mechanism", mechanism.unit, str(guarantee.unit))
    yield is_equal("adjacency of the mechanism", mechanism.adjacency, str(guarantee.adjacency))
    yield is_equal("whom the statement trusts", str(guarantee.trust), "server sees only noisy sums")
    yield is_equal("clients without which no sum is opened", mechanism.distributed_noise.least, least)
    yield at_most("clients whose noise is counted on", mechanism.distributed_noise.honest, honest)
    yield at_least("how far one unit moves a sum, as accounted for", mechanism.sensitivity.value, account.sensitivity)
    told = mechanism.facts().get("share_sigma", 0.0) * math.sqrt(honest)
    yield at_least("standard deviation of a sum that the officer is told", told, needed)
    yield at_most("delta of the composed run at the claimed epsilon", delta_of(training_event(plan), epsilon), delta)
    charged = epsilon_of(training_event(plan), delta)
    spent = epsilon_of(account.event(needed / (1.0 - _SLACK)), delta)
    yield at_least("epsilon that is charged, beside what the noise costs", charged, spent * (1.0 - 2.0 * _SLACK))
    chance = overflow_chance(least, mechanism.dimension)
    yield at_most("chance of a round that its own noise voids", chance, _OVERFLOW)


def share_canary(plan: Plan, guarantee: Guarantee, *, least: int, silent: float, runs: int, seed: int = 0) -> Canary:
    """Repeat one round of the fewest clients, of whom only those counted on add noise.

    One of them sends the largest possible update, or nothing (its negative under replace-one); the adversary knows its
    direction. The bound is compared with the cost of one round.
    """
    mechanism = plan.mechanism
    if not isinstance(mechanism, DistributedNoiseSum):
        return Canary(math.inf, 1.0 - CANARY_ALPHA, 0, 1, "none", holds=False)
    shared, spec, honest = Shared(plan, mechanism, seed), announced(plan)[0], honest_of(least, silent)
    fixed_point = shared.plan.fixed_point(spec)
    steps = np.concatenate(
        [np.full(at.stop - at.start, fixed_point.steps[name]) for name, at in fixed_point.places.items()]
    )
    far = _LARGE * mechanism.inner.clip_norm
    turns = guarantee.adjacency != "add-remove" or guarantee.unit != "user"
    sides = (shared.same(spec, far), shared.same(spec, -far if turns else 0.0))
    apart = shared.share(sides[0], spec, 5) - shared.share(sides[1], spec, 5)
    direction = apart * steps / max(float(np.linalg.norm(apart * steps)), 1e-300)

    def score(side: int, run: int) -> float:
        total = shared.share(sides[side], spec, 6, side, run, 0).astype(np.float64)
        for other in range(1, honest):
            total += shared.share(shared.same(spec, 0.0), spec, 6, side, run, other)
        return float(total * steps @ direction)

    scores = [np.array([score(side, run) for run in range(runs)]) for side in (0, 1)]
    _, delta = claim(guarantee)
    lower = epsilon_from_gaussian_scores(scores[0], scores[1], delta=delta, alpha=CANARY_ALPHA)
    allowed = epsilon_of(mechanism.event_in(spec), delta) + 2.0 * mechanism.draws_error
    return Canary(lower, 1.0 - CANARY_ALPHA, runs, 1, "Gaussian noise", bool(lower <= allowed))


_FEDERATION = bytes(32)


def audit_distributed_noise(
    name: str, *, quick: bool, silent: float = 0.0, seed: int = 0, settings: Sequence[str] = (), data: str | None = None
) -> MethodAudit:
    """Audit the masked inputs of clients, for the fewest clients that a sum of the plan needs."""
    started = time.perf_counter()
    method, effort = get(name), QUICK if quick else FULL
    if method.plan is None:
        raise BadInput(f"{method.name} learns where all data is, and sends no messages: audit a federated method")
    config, rounds = configure(method, preset="tuned", dataset="", settings=settings)
    problem = small_problem(method, effort.users, rounds, data)
    config = fitting(config, clients_with_data(problem))
    plan = method.plan(config, problem)
    least = least_of_shares(plan)
    shared, guarantee = _turned(plan, promised(method, config, problem), DistributedNoise(least, silent), method.name)
    checks = share_checks(shared, guarantee, least=least, silent=silent, clients=clients_with_data(problem), seed=seed)
    few, tiny = tiny_plan(method, settings, data)
    people = clients_with_data(tiny)
    claimed = promised(method, config, tiny)
    small, claim = _turned(few, claimed, DistributedNoise(people, silent), method.name)
    runs = effort.runs // (1 if tiny.news is None else 2)
    found = share_canary(small, claim, least=people, silent=silent, runs=runs, seed=seed)
    label = f"{method.name} with distributed noise" + ("" if data is None else f" on {data}")
    checks = (*checks, _opened(shared, least))
    return MethodAudit(label, guarantee, checks, found, time.perf_counter() - started)


def _turned(plan: Plan, guarantee: Guarantee, distributed_noise: DistributedNoise, name: str) -> tuple[Plan, Guarantee]:
    if guarantee.basis != "proven" or guarantee.delta is None:
        raise BadInput(f"--distributed-noise is for methods that prove something, and {name} does not: leave it out")
    turned = replace(with_distributed_noise(plan, distributed_noise), model_selection=None)
    return turned, guarantee_of(turned, guarantee.delta)


def _opened(plan: Plan, least: int) -> AuditCheck:
    """Check the smallest cohort that aggregation helpers are told."""
    terms = terms_of(plan, plan.round_planner.next(0, plan.start, None), _FEDERATION)
    return at_least("clients without which helpers open no sum", terms.least, least)
