"""Audit of distributed noise, `veilrec audit METHOD --distributed-noise`: masked inputs against the statement.

Everything is measured on whole masked inputs as a client forms them, of updates, reports and gains. Noise is what a
client sends that has nothing to tell, and the effect of an update is the difference of two inputs with the same noise.
How much noise a sum needs, how many clients are counted on to add theirs, how many rounds somebody is in, and what a
round costs is computed again from the statement, the margins `silent` and `lost`, and the cohorts that are drawn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from veilrec.core.schema import BOUND, ClientUpdates, RoundSpec, from_vectors
from veilrec.federation.facts import terms_of
from veilrec.methods.base import Method, Problem, configure, promised
from veilrec.methods.registry import get
from veilrec.privacy.accounting import delta_of, epsilon_of, noise_for
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.events import ComposedEvent, Event, GaussianEvent, training_event
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.base import SummedOnce
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.mechanisms.reports import ItemReports, VoteReports
from veilrec.privacy.mechanisms.shares import overflow_chance
from veilrec.privacy.mechanisms.sums import GainSum
from veilrec.privacy.randomness import KeyedSource
from veilrec.server.round_specs import CohortSampler

_SLACK = 0.002  # as in audits of noise that a server adds
_CUT = 1e-3  # of the bound: what cutting to the lattice may add
_FEWEST_DRAWS, _MOST_DRAWS = 40, 2000
_CLIENTS = 3  # whose noises of all rounds are compared with each other
_CLIP_NORMS = (0.1, 1.0, 5.0)  # of the first one, where it is learnt
EVERY_SHARE = "standard deviation of a client's share of the noise, in any round"
SHARE = "standard deviation of a client's share of the noise"
_LARGE = 1e6  # times the bound: what somebody sends who wants to be seen
_OVERFLOW = 1e-9  # chance of a round that its own noise voids


@dataclass(frozen=True)
class Margins:
    """What the settings say of the clients of a sum."""

    silent: float = 0.0
    lost: float = 0.0

    def least(self, clients: int) -> int:
        """The fewest clients of whom a sum is opened."""
        return clients - math.floor(self.lost * clients + 1e-9)

    def honest(self, clients: int) -> int:
        """The number of clients that are counted on to add noise and keep it secret."""
        return max(1, self.least(clients) - math.floor(self.silent * clients + 1e-9))


@dataclass(frozen=True)
class People:
    """Who takes part in the sums of a plan."""

    clients: int  # who train, and report
    validators: int
    participations: int  # rounds that somebody is in, of the cohorts that are drawn
    in_round: int  # clients of the smallest round

    @classmethod
    def of(cls, plan: Plan, clients: int, validators: int, seed: int) -> People:
        """Draw all cohorts of a plan."""
        sampler = CohortSampler(plan.cohort, np.arange(clients), seed, secret=secret_of(seed, 3))
        drawn = [sampler.draw(number) for number in range(plan.rounds)]
        times = np.bincount(np.concatenate(drawn), minlength=clients)
        return cls(clients, validators, int(times.max()), min(map(len, drawn)))


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

    def nothing(self, spec: RoundSpec, *key: int) -> Offsets:
        """The integers of a client that has nothing to tell."""
        return self.mechanism.noise(self.plan.fixed_point(spec), spec, KeyedSource(secret_of(self.seed), *key))

    def noise(self, spec: RoundSpec, *key: int) -> dict[str, Doubles]:
        """One client's noise on the part of the round, in the units of the model: of an update of zeros."""
        fixed_point, drawn = self.plan.fixed_point(spec), self.share(self.same(spec, 0.0), spec, *key)
        parts = {}
        for name, place in fixed_point.places.items():
            part = drawn[place].astype(np.float64) * fixed_point.steps[name]
            if name == BOUND:
                part -= math.copysign(0.5, float(part[0] - self._counted(spec, *key)))
            entries = spec.entries(name, part.size)
            parts[name] = part if entries is None else part[entries]
        return parts

    def _counted(self, spec: RoundSpec, *key: int) -> float:
        fixed_point = self.plan.fixed_point(spec)
        return float(self.nothing(spec, *key)[fixed_point.places[BOUND]][0]) * fixed_point.steps[BOUND]

    def moved(self, updates: ClientUpdates, spec: RoundSpec) -> tuple[float, float]:
        """How far an update moves a sum and its count, beside nothing in its place: 0 where it is rejected."""
        fixed_point = self.plan.fixed_point(spec)
        try:
            with np.errstate(all="ignore"):
                apart = self.share(updates, spec, 1, 7) - self.nothing(spec, 1, 7)
        except VeilrecError:
            return 0.0, 0.0
        squares = {
            name: float(np.sum((apart[at] * fixed_point.steps[name]) ** 2)) for name, at in fixed_point.places.items()
        }
        count = squares.pop(BOUND, 0.0)
        return math.sqrt(sum(squares.values())), math.sqrt(count)

    def specs(self) -> list[RoundSpec]:
        """The first round spec of every kind of round; at several clip norms where they are learnt."""
        found: dict[object, RoundSpec] = {}
        for spec in announced(self.plan):
            found.setdefault((spec.tensors, spec.rank), spec)
        if self.plan.clipping_rule is None:
            return list(found.values())
        return [
            replace(spec, clip_norm=factor * self.mechanism.clip_norm)
            for spec in found.values()
            for factor in _CLIP_NORMS
        ]


@dataclass(frozen=True)
class Account:
    """What a run costs somebody, computed again: `RunAccount` of the rounds that one is in, and without chance."""

    shared: Shared
    guarantee: Guarantee
    people: People

    @property
    def of_sums(self) -> RunAccount:
        """The account of the same noise where the server adds it."""
        plan = replace(self.shared.plan, mechanism=self.shared.mechanism.inner, reports=None, from_reports=None)
        return RunAccount(plan, self.guarantee, self.people.clients, keeps_state=True, told=None)

    def event(self, sigma: float) -> Event:
        """The costliest rounds, as many as somebody is in, and a report."""
        account, largest = self.of_sums, self.shared.mechanism.clip_norm
        norms = [largest] * self.shared.plan.rounds
        if self.shared.plan.clipping_rule is None:
            norms = [min(largest, spec.clip_norm or largest) for spec in announced(self.shared.plan)]
        costs = [math.hypot(account.sensitivity * norm / largest / sigma, account.count_mu) for norm in norms]
        parts: list[tuple[Event, int]] = [
            (GaussianEvent(mu), 1) for mu in sorted(costs, reverse=True)[: self.people.participations]
        ]
        if self.shared.plan.reports is not None:
            parts.append((self.shared.plan.reports.mechanism.event(), 1))
        return ComposedEvent(tuple(parts))

    def needed_sigma(self) -> float:
        """The standard deviation that the claimed epsilon needs on every sum."""
        epsilon, delta = claim(self.guarantee)
        if epsilon_of(self.event(math.inf), delta) >= epsilon:
            return math.inf
        return noise_for(self.event, epsilon, delta, guess=self.shared.mechanism.inner.sigma) * (1.0 - _SLACK)


def share_checks(
    plan: Plan, guarantee: Guarantee, margins: Margins, people: People, *, seed: int = 0
) -> tuple[AuditCheck, ...]:
    """Run all checks of distributed noise on updates, reports and gains."""
    mechanism = plan.mechanism
    if not isinstance(mechanism, DistributedNoiseSum):
        return (is_equal("noise lands on", mechanism.noise_on, "share"),)
    shared = Shared(plan, mechanism, seed)
    account = Account(shared, guarantee, people)
    needed = account.needed_sigma()
    return (
        *_noise_checks(shared, needed, margins.honest(people.in_round)),
        *_bound_checks(shared),
        *_account_checks(account, needed, margins),
        *_report_checks(plan, guarantee, margins, people.clients, seed),
        *_gain_checks(plan, guarantee, margins, people.validators, seed),
    )


def _noise_checks(shared: Shared, needed: float, honest: int) -> Iterator[AuditCheck]:
    specs, first = shared.specs(), shared.mechanism.clip_norm
    counted: float = getattr(shared.mechanism.inner, "count_standard_deviation", 0.0)
    share = ALPHA / max(1, sum(len(shared.plan.fixed_point(spec).places) for spec in specs))

    def each(name: str, spec: RoundSpec) -> float:
        if name == BOUND:
            return counted / math.sqrt(honest)
        scale = 1.0 if shared.plan.clipping_rule is None else (spec.clip_norm or first) / first
        return scale * needed / math.sqrt(honest)

    def in_units(noise: dict[str, Doubles], spec: RoundSpec) -> Doubles:
        return np.concatenate([part / each(name, spec) for name, part in noise.items()])

    for spec in specs:
        size = sum(part.size for part in shared.noise(spec, 2).values())
        draws = min(_MOST_DRAWS, max(_FEWEST_DRAWS, math.ceil(NUMBERS / max(1, size))))
        drawn = [shared.noise(spec, 3, spec.number, draw) for draw in range(draws)]
        where = f"round {spec.number}"
        if shared.plan.clipping_rule is not None:
            where += f", clip norm {spec.clip_norm:.3g}"
        for tensor in drawn[0]:
            noise = np.concatenate([one[tensor] for one in drawn])
            yield spread(SHARE, noise, each(tensor, spec), f"{tensor}, {where}", alpha=share)
        together = np.concatenate([in_units(one, spec) for one in drawn])[:NUMBERS]
        yield is_gaussian("distance of a share's noise from a Gaussian", together, where)
        bared = sum(bare(drawn[0][tensor], drawn[1][tensor], each(tensor, spec)) for tensor in drawn[0])
        yield is_equal("numbers of a share without noise", bared, 0, where)
    rounds = announced(shared.plan)
    named = [
        (f"client {client} in round {spec.number}", in_units(shared.noise(spec, 4, client, spec.number), spec))
        for client in range(_CLIENTS)
        for spec in rounds
    ]
    pairs = math.comb(len(named), 2)
    yield is_equal(ROUNDS, len(rounds), shared.plan.rounds, f"{len(named):,} shares in {pairs:,} pairs")
    yield repeats("pairs of shares that repeat each other", named, shifts=True)
    yield worst([spread(EVERY_SHARE, noise, 1.0, where, alpha=ALPHA / len(named)) for where, noise in named])


def _bound_checks(shared: Shared) -> Iterator[AuditCheck]:
    """Check the bound on how far a client moves a sum, whatever its update."""
    for spec in shared.specs():
        limit = shared.mechanism.clip_norm
        if spec.clip_norm is not None:
            limit = spec.clip_norm if shared.plan.clipping_rule is not None else min(limit, spec.clip_norm)
        sizes = (1e30, -1e30, 1e6 * limit, 2.0 * limit, limit)
        moves = [shared.moved(shared.same(spec, size), spec) for size in sizes]
        where, most = f"round {spec.number}", limit * (1.0 + _CUT)
        name = "how far an update that is made to be large moves a sum"
        yield at_most(name, max(moved for moved, _ in moves), most, where)
        if shared.plan.clipping_rule is not None:
            count = max(count for _, count in moves)
            yield at_most("how far an update moves the count", count, 0.5 * (1.0 + _CUT), where)
        for what, value in (("NaN", math.nan), ("infinity", math.inf)):
            moved, _ = shared.moved(shared.same(spec, value), spec)
            yield at_most(f"how far an update with {what} moves a sum", moved, most, where)


def _account_checks(account: Account, needed: float, margins: Margins) -> Iterator[AuditCheck]:
    plan, mechanism, guarantee = account.shared.plan, account.shared.mechanism, account.guarantee
    people, (epsilon, delta) = account.people, claim(account.guarantee)
    honest, noise = margins.honest(people.in_round), mechanism.distributed_noise
    yield is_equal("unit of the mechanism", mechanism.unit, str(guarantee.unit))
    yield is_equal("adjacency of the mechanism", mechanism.adjacency, str(guarantee.adjacency))
    yield is_equal("whom the statement trusts", str(guarantee.trust), "server sees only noisy sums")
    yield at_least("clients without which no sum is opened", noise.least, margins.least(people.in_round))
    yield at_most("clients whose noise is counted on", noise.honest, honest)
    yield at_least("rounds of a client that are accounted for", plan.participations, people.participations)
    moved = account.of_sums.sensitivity
    yield at_least("how far one unit moves a sum, as accounted for", mechanism.sensitivity.value, moved)
    told = mechanism.facts().get("share_sigma", 0.0) * math.sqrt(honest)
    yield at_least("standard deviation of a sum that the officer is told", told, needed)
    yield at_most("delta of the composed run at the claimed epsilon", delta_of(training_event(plan), epsilon), delta)
    charged = epsilon_of(training_event(replace(plan, model_selection=None)), delta)
    spent = epsilon_of(account.event(needed / (1.0 - _SLACK)), delta)
    yield at_least("epsilon that is charged, beside what the noise costs", charged, spent * (1.0 - 2.0 * _SLACK))
    chance = overflow_chance(noise.least, mechanism.dimension)
    yield at_most("chance of a round that its own noise voids", chance, _OVERFLOW)


def _once_checks(
    mechanism: SummedOnce[Any, Any], what: str, told: Sequence[Any], bound: float, sigma: float, honest: int, seed: int
) -> Iterator[AuditCheck]:
    """Check what clients send once: its noise, which needs `sigma` on the sum, and how far any of `told` moves it."""
    shares, each = mechanism.shares, sigma / math.sqrt(honest)
    if shares is None:
        yield is_equal(f"noise on {what} lands on", "sum", "share")
        return
    step = shares.step

    def sent(value: Any, *key: int) -> Doubles:
        return np.asarray(mechanism.masked(value, KeyedSource(secret_of(seed, 8), *key)) * step, np.float64)

    def quiet(*key: int) -> Doubles:
        return np.asarray(mechanism.empty(KeyedSource(secret_of(seed, 8), *key)) * step, np.float64)

    draws = max(_FEWEST_DRAWS, math.ceil(NUMBERS / mechanism.masked_length / 4))
    exact = mechanism.weigh(told[0]) * mechanism.step
    noise = np.concatenate([sent(told[0], draw) - exact for draw in range(draws)])
    yield spread(f"{SHARE} on {what}", noise, each * (1.0 - 1e-3), f"of {honest} clients")
    yield is_gaussian(f"distance of a share's noise on {what} from a Gaussian", noise[:NUMBERS], "")
    yield is_equal(
        f"numbers of {what} without noise", bare(sent(told[0], 0) - exact, sent(told[0], 1) - exact, each), 0
    )
    named = [(f"client {client}", sent(told[0], client) - exact) for client in range(40)]
    name = f"pairs of shares on {what} that repeat each other"
    if mechanism.masked_length > 1:
        yield repeats(name, named, shifts=True)
    else:
        yield at_most(name, len(named) - len({noise.tobytes() for _, noise in named}), 2)  # by chance: 1 in 10^8
    moved = max(float(np.linalg.norm(sent(value, 1) - quiet(1))) for value in told)
    yield at_most(f"how far one client moves the sum of {what}", moved, bound * (1.0 + _CUT))
    yield is_equal(f"whom {what} trust", mechanism.trust, "server sees only noisy sums")
    yield at_most(f"clients whose noise on {what} is counted on", shares.carried.honest, honest)


def _report_checks(plan: Plan, guarantee: Guarantee, margins: Margins, clients: int, seed: int) -> Iterator[AuditCheck]:
    if plan.reports is None or not isinstance(event := plan.reports.mechanism.event(), GaussianEvent):
        return  # none, or randomised bits, which need no noise on their sum
    mechanism: ItemReports = plan.reports.mechanism
    most = 1 if isinstance(mechanism, VoteReports) else getattr(mechanism, "max_items", mechanism.length)
    people = 1 if guarantee.adjacency == "add-remove" else 2
    told = []
    for count in (1, 2, mechanism.length):
        own = np.zeros(mechanism.length, np.bool_)
        own[:count] = True
        told.append(mechanism.report(own, KeyedSource(secret_of(seed, 9), count)).value)
    sigma = math.sqrt(people * most) / event.mu
    yield from _once_checks(mechanism, "reports", told, math.sqrt(most), sigma, margins.honest(clients), seed)


def _gain_checks(
    plan: Plan, guarantee: Guarantee, margins: Margins, validators: int, seed: int
) -> Iterator[AuditCheck]:
    if plan.model_selection is None or not validators:
        return
    mechanism: GainSum = plan.model_selection.mechanism
    moved = mechanism.clip * (1.0 if guarantee.adjacency == "add-remove" else 2.0)
    sigma = moved / mu_for(*claim(guarantee))
    told = (0.0, 1e6, -1e6, math.inf, math.nan, mechanism.clip)
    yield from _once_checks(mechanism, "gains", told, mechanism.clip, sigma, margins.honest(validators), seed)


def share_canary(
    plan: Plan, guarantee: Guarantee, margins: Margins, *, clients: int, runs: int, seed: int = 0
) -> Canary:
    """Repeat one round of all clients, of whom only those counted on add noise.

    One of them sends the largest possible update, or nothing (its negative under replace-one); the adversary knows its
    direction. The bound is compared with the cost of one round.
    """
    mechanism = plan.mechanism
    if not isinstance(mechanism, DistributedNoiseSum):
        return Canary(math.inf, 1.0 - CANARY_ALPHA, 0, 1, "none", holds=False)
    shared, spec, honest = Shared(plan, mechanism, seed), announced(plan)[0], margins.honest(clients)
    fixed_point = shared.plan.fixed_point(spec)
    weights = np.concatenate(
        [
            np.full(at.stop - at.start, (fixed_point.steps[name] / mechanism.share_sigma(name, spec)) ** 2)
            for name, at in fixed_point.places.items()
        ]
    )
    far = _LARGE * mechanism.clip_norm
    turns = guarantee.adjacency != "add-remove" or guarantee.unit != "user"

    def of_person(side: int, *key: int) -> Offsets:
        if side and not turns:
            return shared.nothing(spec, *key)
        return shared.share(shared.same(spec, -far if side else far), spec, *key)

    direction = (of_person(0, 5) - of_person(1, 5)) * weights
    direction /= max(float(np.linalg.norm(direction)), 1e-300)

    def score(side: int, run: int) -> float:
        total = of_person(side, 6, side, run, 0).astype(np.float64)
        for other in range(1, honest):
            total += shared.nothing(spec, 6, side, run, other)
        return float(total @ direction)

    scores = [np.array([score(side, run) for run in range(runs)]) for side in (0, 1)]
    _, delta = claim(guarantee)
    lower = epsilon_from_gaussian_scores(scores[0], scores[1], delta=delta, alpha=CANARY_ALPHA)
    allowed = epsilon_of(mechanism.event_in(spec), delta) + 2.0 * mechanism.draws_error
    return Canary(lower, 1.0 - CANARY_ALPHA, runs, 1, "Gaussian noise", bool(lower <= allowed))


_FEDERATION = bytes(32)
DISTRIBUTED = "privacy.noise=distributed"


def audit_distributed_noise(
    name: str, *, quick: bool, seed: int = 0, settings: Sequence[str] = (), data: str | None = None
) -> MethodAudit:
    """Audit the masked inputs of clients, of all sums of a method's plan."""
    started = time.perf_counter()
    method, effort = get(name), QUICK if quick else FULL
    if method.plan is None:
        raise BadInput(f"{method.name} learns where all data is, and sends no messages: audit a federated method")
    settings = settings if DISTRIBUTED in settings else (DISTRIBUTED, *settings)
    config, rounds = configure(method, preset="tuned", dataset="", settings=settings)
    problem = small_problem(method, effort.users, rounds, data)
    config = fitting(config, _trainers(method, config, problem))
    plan, guarantee = method.plan(config, problem), promised(method, config, problem)
    margins = Margins(config.privacy.silent, config.privacy.lost)
    people = People.of(plan, *_numbers(method, config, problem, plan), seed)
    checks = share_checks(plan, guarantee, margins, people, seed=seed)
    small, tiny = tiny_plan(method, settings, data)
    runs = effort.runs // (1 if tiny.news is None else 2)
    clients = small.cohort.among(_trainers(method, config, tiny))
    found = share_canary(small, promised(method, config, tiny), margins, clients=clients, runs=runs, seed=seed)
    label = f"{method.name} with distributed noise" + ("" if data is None else f" on {data}")
    checks = (*checks, _opened(plan, margins.least(people.in_round)))
    return MethodAudit(label, guarantee, checks, found, time.perf_counter() - started)


def _trainers(method: Method[Any], config: Any, problem: Problem) -> int:
    return int((method.clients(config, problem).rows.lengths() > 0).sum())


def _numbers(method: Method[Any], config: Any, problem: Problem, plan: Plan) -> tuple[int, int]:
    """How many train and how many validate."""
    data, selection = method.clients(config, problem), plan.model_selection
    return int((data.rows.lengths() > 0).sum()), 0 if selection is None else len(selection.validator.clients(data))


def _opened(plan: Plan, least: int) -> AuditCheck:
    """Check the smallest cohort that aggregation helpers are told."""
    terms = terms_of(plan, plan.round_planner.next(0, plan.start, None), _FEDERATION)
    return at_least("clients without which helpers open no sum", terms.least, least)
