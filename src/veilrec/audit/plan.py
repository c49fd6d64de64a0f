"""Audit of a plan: its sums, messages, reports, cohorts and accounting against its privacy statement.

The plan runs unchanged, with keyed secret noise and with seeded noise, and is recorded. What the stated guarantee needs
is computed again from epsilon, delta, rounds, cohorts, unit and adjacency; the mechanism's own statement of its noise
is compared with that and with the measurement, and is never trusted. An audit can refute a statement but does not prove
one: see docs/privacy.md.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from veilrec.audit import observe, plan_sums, whole_run
from veilrec.audit.observe import ALPHA, AuditCheck, ObservedRun
from veilrec.audit.plan_local import local_checks
from veilrec.audit.plan_messages import ReportedCounts, comparison_checks, message_checks, report_checks, told_by
from veilrec.client.local_training import LocalData
from veilrec.client.news_data import OwnImpressions
from veilrec.core.arrays import Doubles, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import VeilrecError
from veilrec.core.plan import Plan
from veilrec.core.schema import ClientUpdates, RoundSpec, from_vectors
from veilrec.privacy.accounting import delta_of, epsilon_of, noise_for
from veilrec.privacy.events import ComposedEvent, Event, GaussianEvent, SampledEvent, repeated, training_event
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.reports import MadeOfReports
from veilrec.privacy.mechanisms.schedules import ScheduledSum, TreeSum
from veilrec.privacy.samplers import UNITS
from veilrec.simulation.simulation import Seeds, Simulation

PUBLISHED = "what a run publishes, where the same protected numbers come of other data"
AGAIN = "updates beyond one for each client of a cohort"
NOT_ONCE = "how far a sum is from that of the bounded updates, each once, in clip norms"
TOGETHER = "pairs of clients whose coins depend on each other"
_SLACK = 0.002  # noise is chosen to spend at least 0.9995 of epsilon


def audit_plan(
    plan: Plan,
    data: LocalData,
    histories: Csr,
    guarantee: Guarantee,
    *,
    rounds: int = 3,
    drawn: int = 1000,
    seed: int = 0,
) -> tuple[AuditCheck, ...]:
    """Run all checks of a plan and its statement on this data, over a few rounds.

    Cohorts are `drawn` many times. The seed decides everything; see `AuditCheck.false_alarm_rate`.
    """
    run = _Run(plan, data, histories, max(rounds, _until_every_tensor(plan)), seed)
    if guarantee.basis == "proven":
        return tuple(_proven(run, guarantee, drawn))
    secret, seeded = run.secret(0), run.seeded(0)
    if guarantee.basis == "as published" and plan.mechanism.noise_on == "sum":
        key = secret_of(seed, 2)
        return tuple(plan_sums.published_bound_checks(plan, secret.sums[0], guarantee, run.clients, key, seed))
    told = told_by(plan, data.rows, [secret], [seeded])
    checks = tuple(message_checks(plan, secret, seeded, told, guarantee))
    if plan.mechanism.noise_on != "message":
        return checks
    return (*checks, *whole_run.message_checks(plan, data, histories, seed, _secrets(seed)))


def _secrets(seed: int) -> list[bytes]:
    return [secret_of(seed, number) for number in (11, 12)]


def _until_every_tensor(plan: Plan) -> int:
    """The number of rounds until each kind of round has occurred, where rounds train different tensors."""
    if not isinstance(plan.mechanism, ScheduledSum):
        return 0
    kinds = [spec.tensors for spec in announced(plan)]
    return 1 + max(kinds.index(kind) for kind in kinds)


def announced(plan: Plan) -> list[RoundSpec]:
    """The round specs of a schedule that is fixed before the first round."""
    return [plan.round_planner.next(number, plan.start, None) for number in range(plan.rounds)]


def secret_of(seed: int, *numbers: int) -> bytes:
    """A reproducible secret for an audit."""
    return hashlib.sha256(f"audit {seed} {numbers}".encode()).digest()


@dataclass(frozen=True)
class _Run:
    """A plan on some data."""

    plan: Plan
    data: LocalData
    histories: Csr
    rounds: int
    seed: int

    def secret(self, number: int) -> ObservedRun:
        """Record a run with noise keyed by a secret."""
        return self._watched(Seeds.all_from(self.seed, secret_of(self.seed, number)))

    def seeded(self, number: int) -> ObservedRun:
        """Record a run with seeded noise from fast generators."""
        return self._watched(Seeds(self.seed, self.seed, self.seed + 1 + number))

    def _watched(self, seeds: Seeds) -> ObservedRun:
        return observe.watch(self.plan, self.data, self.histories, seeds, self.rounds)

    def replayed(self, script: ObservedRun) -> ObservedRun:
        """Replay the protected sums and counts with all data, draws and cohorts changed."""
        generator = np.random.default_rng(self.seed)
        everybody = np.flatnonzero(self.data.rows.lengths() > 0)
        chosen = np.arange(len(self.data.rows))
        chosen[everybody] = generator.choice(everybody, len(everybody))
        other = Seeds.all_from(self.seed + 17, secret_of(self.seed, 17))
        return observe.watch(self.plan, self.data.take(chosen), self.histories, other, self.rounds, script=script)

    @property
    def clients(self) -> int:
        """The number of clients that can take part."""
        return int((self.data.rows.lengths() > 0).sum())


def _proven(run: _Run, guarantee: Guarantee, drawn: int) -> Iterator[AuditCheck]:
    if isinstance(run.plan.mechanism, MadeOfReports):
        if not isinstance(run.data, OwnImpressions):
            raise TypeError("messages are made of reports on impressions")
        seen = run.secret(0)
        yield from local_checks(run.plan, run.data, run.histories, guarantee, rounds=run.rounds, seed=run.seed)
        yield from _bound_checks(run.plan, RoundSpec(0), seen.largest_norm())
        return
    if run.plan.mechanism.noise_on != "sum":
        yield observe.is_equal("noise lands on", run.plan.mechanism.noise_on, "sum")
        return
    secret, seeded = [run.secret(0), run.secret(1)], [run.seeded(0), run.seeded(1)]
    told = told_by(run.plan, run.data.rows, secret, seeded)
    account = RunAccount(run.plan, guarantee, run.clients, secret[0].keeps_state, told)
    key = secret_of(run.seed, 2)
    measured, counted = plan_sums.measured_in_all(run.plan, secret[0].sums, key, run.seed)
    spread, runs = plan_sums.spread_of(measured["secret"]), (*secret, *seeded)
    needed = account.needed_sigma(guess=spread)
    yield from plan_sums.noise_checks(run.plan, secret, seeded, measured, needed)
    yield from plan_sums.coverage_checks(run.plan, runs, spread, key)
    # Numbers that change with the data while the protected sums and counts stay the same have bypassed the noise.
    replay = run.replayed(secret[0])
    replayed = zip(secret[0].released, replay.released, strict=True)
    bits = [(one[name].view(np.uint32), other[name].view(np.uint32)) for one, other in replayed for name in one]
    past = sum(int(np.count_nonzero(one != other)) for one, other in bits)
    yield observe.is_equal("numbers of the model that data reaches past the noise", past, 0)
    same = secret[0].published == replay.published
    yield observe.is_equal(PUBLISHED, "the same" if same else "different", "the same")
    for first in (sums.spec for sums in plan_sums.firsts(secret[0].sums)):
        yield from _bound_checks(run.plan, first, max(seen.largest_norm(first.clip_norm) for seen in runs))
    yield from _alone(run, secret[0])
    yield from _once(run.plan, runs)
    if run.plan.clipping_rule is not None:
        yield from plan_sums.learnt_bound_checks(run.plan, runs, counted, needed, key)
    if isinstance(run.plan.mechanism, TreeSum):
        yield from plan_sums.tree_checks(run.plan, _cohorts(run, key, run.plan.rounds), needed, key)
    else:
        yield from _cohort_checks(run, account, drawn)
    if told is not None:
        yield from report_checks(run.plan, told, secret, seeded, guarantee)
    yield from comparison_checks(run.plan, run.data, run.histories, guarantee, run.seed)
    yield from whole_run.checks(run.plan, run.data, run.histories, needed, run.seed, _secrets(run.seed))
    yield from _account_checks(run.plan, account, guarantee, needed, measured)


@dataclass(frozen=True)
class RunAccount:
    """The cost of a run, computed from its statement, its cohorts and the observed reports."""

    plan: Plan
    guarantee: Guarantee
    clients: int
    keeps_state: bool
    told: ReportedCounts | None

    @property
    def rate(self) -> float:
        """The sampling rate that accounting may use for amplification."""
        cohort, told = self.plan.cohort, self.plan.reports is not None and self.plan.reports.who == "cohort"
        rate = min(1.0, (cohort.size or self.clients) / self.clients)
        whole = cohort.sampling == "poisson" and self.guarantee.adjacency == "add-remove"
        part = cohort.sampling == "fixed" and self.guarantee.adjacency == "replace-one" and not self.keeps_state
        return rate if (whole or part) and not told else 1.0

    @property
    def sensitivity(self) -> float:
        """How far one unit moves a sum: an update is added or removed, or replaced."""
        return self._moved(getattr(self.plan.mechanism, "clip_norm", math.inf))

    def _moved(self, most: float) -> float:
        comes_or_goes = self.guarantee.unit == "user" and self.guarantee.adjacency == "add-remove"
        return most if comes_or_goes else 2.0 * most

    @property
    def count_mu(self) -> float:
        """The cost of the adaptive-clipping count: b - 1/2 is added or removed, or changes sign."""
        if self.plan.clipping_rule is None:
            return 0.0
        sigma: float = getattr(self.plan.mechanism, "count_standard_deviation", 0.0)
        return self._moved(0.5) / sigma + 1.0 / UNITS if sigma > 0.0 else math.inf

    def event(self, sigma: float) -> Event:
        """The privacy event of the whole run with noise `sigma` on its sums, and with the observed reports."""
        mu, sampling = math.hypot(self.sensitivity / sigma, self.count_mu), self.plan.cohort.sampling
        one: Event = GaussianEvent(mu)
        times = self.plan.rounds
        if isinstance(self.plan.mechanism, TreeSum):
            times = self.plan.cohort.max_participations(self.plan.rounds, self.clients)
            one = GaussianEvent(mu * math.sqrt(plan_sums.nodes_of_a_person(self.plan.mechanism.steps)))
        if self.rate < 1.0:
            one = SampledEvent(mu, self.rate, "poisson" if sampling == "poisson" else "fixed")
            if self.guarantee.unit != "user":
                one = replace(one, sampling="padding")
        rounds = repeated(one, times)
        if isinstance(self.plan.mechanism, ScheduledSum):
            rounds = ComposedEvent(tuple((self._scheduled(spec, sigma), 1) for spec in announced(self.plan)))
        return rounds if self.reports is None else ComposedEvent((*rounds.parts, *self.reports.parts))

    def _scheduled(self, spec: RoundSpec, sigma: float) -> Event:
        """The event of one round by the clip norm in its spec, or by the largest one."""
        largest: float = getattr(self.plan.mechanism, "clip_norm", math.inf)
        mu = self._moved(largest if spec.clip_norm is None else min(largest, spec.clip_norm)) / sigma
        if self.rate == 1.0:
            return GaussianEvent(mu)
        return SampledEvent(mu, self.rate, "poisson" if self.plan.cohort.sampling == "poisson" else "fixed")

    @property
    def reports(self) -> ComposedEvent | None:
        """The event of all observed reports; the cost of a single report is checked separately."""
        if self.plan.reports is None or self.told is None:
            return None
        return repeated(self.plan.reports.mechanism.event(), self.told.times)

    def needed_sigma(self, guess: float) -> float:
        """The standard deviation that the claimed epsilon needs on every sum."""
        epsilon, delta = claim(self.guarantee)
        if not math.isfinite(self.sensitivity + self.count_mu):
            return math.inf  # nothing is bounded
        if epsilon_of(self.event(math.inf), delta) >= epsilon:
            return math.inf  # the reports or the count alone spend it all
        at = guess if math.isfinite(guess) and guess > 0.0 else self.sensitivity
        return noise_for(self.event, epsilon, delta, guess=at) * (1.0 - _SLACK)


def claim(guarantee: Guarantee) -> tuple[float, float]:
    """The epsilon and delta of a guarantee; raise ValueError where it has none."""
    if guarantee.epsilon is None or guarantee.delta is None:
        raise ValueError("nothing is claimed")
    return guarantee.epsilon, guarantee.delta


def _bound_checks(plan: Plan, spec: RoundSpec, seen: float) -> Iterator[AuditCheck]:
    """Check the bound on an update over all tensors: as observed, and against hostile updates."""
    mechanism = plan.mechanism
    limit: float = getattr(mechanism, "clip_norm", math.inf)
    if spec.clip_norm is not None:
        limit = min(limit, spec.clip_norm) if plan.clipping_rule is None else spec.clip_norm
    yield observe.at_most("largest norm of an update of a client", seen, limit)
    sizes = (1e30, -1e30, 1e6 * limit, 2.0 * limit, 1.001 * limit, limit)
    largest = max(_norm(plan, spec, size, spread=spread) for spread in (True, False) for size in sizes)
    yield observe.at_most("largest norm of an update that is made to be large", largest, limit)
    for what, value in (("NaN", math.nan), ("infinity", math.inf)):
        yield observe.at_most(
            f"norm of what is left of an update with {what}", _norm(plan, spec, value, spread=False), limit
        )
    own = limit if plan.clipping_rule is None else getattr(mechanism, "limits", (0.0, limit))[1]
    if math.isfinite(own):
        larger = replace(spec, clip_norm=2.0 * own)
        followed = max(_norm(plan, larger, 3.0 * own, spread=spread) for spread in (True, False))
        yield observe.at_most("norm of an update where the server asks for a larger bound", followed, own)
    fits = mechanism.bound(_hostile(plan, spec, np.array([limit]), spread=True), spec)
    yield observe.is_equal(
        "a message that is twice as long as the bound",
        observe.answer_of(plan, observe.times(fits, 2.0), spec),
        "refused",
    )
    yield observe.is_equal(
        "a message with NaN in it", observe.answer_of(plan, observe.times(fits, math.nan), spec), "refused"
    )


def _alone(run: _Run, together: ObservedRun) -> Iterator[AuditCheck]:
    """Check that no client's update depends on another's: the sum of a round is the same where each trains alone."""
    plan = replace(run.plan, clients_per_batch=1)
    apart = replace(run, plan=plan).secret(0)
    largest: float = getattr(plan.mechanism, "clip_norm", math.inf)
    moved, where = max(
        (math.sqrt(sum(float(np.sum((seen.before[name] - one.before[name]) ** 2)) for name in seen.before)), number)
        for number, (seen, one) in enumerate(zip(together.sums, apart.sums, strict=True))
    )
    name = "how far a sum moves where its clients train one by one, in clip norms"
    yield observe.at_most(name, moved / largest, _SLACK, f"round {where}")


def _once(plan: Plan, runs: Sequence[ObservedRun]) -> Iterator[AuditCheck]:
    """Check that a sum has the bounded update of every client of its cohort once, and nothing else."""
    yield observe.is_equal(AGAIN, sum(seen.again for seen in runs), 0)
    if plan.cohort.drop_out == 0.0:
        beside = max(sums.beside() for seen in runs for sums in seen.sums)
        yield observe.at_most(NOT_ONCE, beside / getattr(plan.mechanism, "clip_norm", math.inf), _SLACK)


def _hostile(plan: Plan, spec: RoundSpec, sizes: Doubles, *, spread: bool) -> ClientUpdates:
    """Updates of the given sizes: in every number, or in the first number of every tensor."""
    view = spec.view(plan.schema)
    size = sum(tensor.size for tensor in view.tensors)
    vectors, starts = np.zeros((len(sizes), size)), [place.start for place in view.places.values()]
    vectors[:, slice(None) if spread else starts] = sizes[:, np.newaxis]
    return from_vectors(vectors, view)


def _norm(plan: Plan, spec: RoundSpec, size: float, *, spread: bool) -> float:
    """The norm of a bounded update: 0 where it is rejected, infinite where it is not finite."""
    try:
        with np.errstate(all="ignore"):
            norms = observe.norms_of(plan.mechanism.bound(_hostile(plan, spec, np.array([size]), spread=spread), spec))
    except VeilrecError:
        return 0.0
    return float(norms.max()) if np.isfinite(norms).all() else math.inf


def _cohort_checks(run: _Run, account: RunAccount, drawn: int) -> Iterator[AuditCheck]:
    """Check how often clients take part against the accounting, and the accounting against what it may use."""
    accounted = getattr(run.plan.mechanism, "taking_part", None)
    if accounted is None:
        yield observe.is_equal("the chance to take part that is accounted for", "none stated", "some")
        return
    yield observe.at_least("the chance to take part that is accounted for", accounted.rate, account.rate)
    yield observe.at_least("rounds that are accounted for", accounted.rounds, run.plan.rounds)
    if account.rate < 1.0:
        drawn_by = [_cohorts(run, secret_of(run.seed, number), drawn) for number in (4, 5)]
        same = bool(np.array_equal(*drawn_by))
        yield observe.is_equal("cohorts of two secrets", "the same" if same else "different", "different")
    for way, secret in (("secret", secret_of(run.seed, 4)), ("seeded", None)):
        cohorts = _cohorts(run, secret, drawn)
        hits = cohorts.sum(axis=0)
        rate = accounted.rate
        yield observe.rate_at_most("how often a client takes part", int(hits.sum()), cohorts.size, rate, way)
        yield observe.none_sampled_too_often("how often the most drawn client takes part", hits, drawn, rate)
        if accounted.sampling == "poisson" and 0.0 < rate < 1.0:
            names = [f"client {client}" for client in range(cohorts.shape[1])]
            yield observe.independent(TOGETHER, cohorts.T > 0, way, names, lags=False)
            sizes = cohorts.sum(axis=1)
            yield observe.sizes_vary("variance of the size of a cohort", sizes, cohorts.shape[1] * rate * (1.0 - rate))
        elif accounted.sampling == "fixed":
            sizes = np.unique(cohorts.sum(axis=1))
            yield observe.is_equal("sizes of cohorts", " ".join(map(str, sizes)), str(accounted.cohort))


def _cohorts(run: _Run, secret: bytes | None, drawn: int) -> Any:
    """Membership of clients in many rounds, [rounds, clients]."""
    simulation = Simulation(run.plan, run.data, run.histories, Seeds.all_from(run.seed, secret))
    everybody = np.flatnonzero(run.data.rows.lengths() > 0)
    members: Offsets = np.zeros((drawn, len(run.data.rows)), np.int64)
    for number in range(drawn):
        members[number, simulation.sampler.draw(number)] = 1
    return members[:, everybody]


def _account_checks(
    plan: Plan, account: RunAccount, guarantee: Guarantee, needed: float, measured: dict[str, dict[str, Doubles]]
) -> Iterator[AuditCheck]:
    """Check that the statement, the mechanism and the composed event agree."""
    epsilon, delta = claim(guarantee)
    mechanism = plan.mechanism
    yield observe.is_equal("unit of the mechanism", mechanism.unit, str(guarantee.unit))
    yield observe.is_equal("adjacency of the mechanism", mechanism.adjacency, str(guarantee.adjacency))
    moved = account.sensitivity
    yield observe.at_least("how far one unit moves a sum, as accounted for", mechanism.sensitivity.value, moved)
    yield observe.at_least("standard deviation that the officer is told", mechanism.facts().get("sigma", 0.0), needed)
    yield observe.at_most(
        "delta of the composed run at the claimed epsilon", delta_of(training_event(plan), epsilon), delta
    )
    numbers = sum(len(noise) for noise in measured["secret"].values())
    most = plan_sums.spread_of(measured["secret"]) * (
        1.0 + 5.0 / math.sqrt(2.0 * numbers)
    )  # beyond 5 standard errors: 3e-7
    spent = epsilon_of(account.event(most), delta) if most > 0.0 else math.inf
    charged = epsilon_of(training_event(plan), delta)
    check = observe.at_least(
        "epsilon that is charged, beside what the measured noise costs", charged, spent * (1.0 - _SLACK)
    )
    yield replace(check, false_alarm_rate=ALPHA)
