"""Observation of a running plan, and the statistical checks of what was observed.

The plan's own mechanisms are called, and their inputs and outputs recorded: sums, noise, reports and released models. A
run can be replayed from recorded protected sums on other data: whatever then differs in the released models bypassed
the noise. Every check states its probability of failing by chance.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, cast

import numpy as np
from scipy.special import bdtr, bdtrc, chdtr, chdtrc, gammainccinv, gammaincinv, kolmogorov, ndtr, stdtr

from veilrec.client.local_training import LocalData
from veilrec.core.arrays import Bools, Doubles, Floats, Offsets
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.errors import VeilrecError
from veilrec.core.plan import Plan
from veilrec.core.schema import BOUND, ClientUpdates, RoundSpec, Rows, Schema
from veilrec.privacy.mechanisms.reports import ItemReports, SourceOf
from veilrec.privacy.mechanisms.sums import UpdateMechanism
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import UNITS
from veilrec.server.round_specs import CohortSampler
from veilrec.simulation.simulation import Seeds, Simulation

Sums = dict[str, Doubles]
Run = TypeVar("Run", bound=Simulation)
# What is done to the sums of a round instead of adding noise.
Protect = Callable[[MutableMapping[str, Doubles], RoundSpec], None]


@dataclass(frozen=True)
class SeenSums:
    """The sums of a round, before and after the noise."""

    spec: RoundSpec
    before: Sums
    after: Sums
    sent: Sums = field(default_factory=dict)  # bounded updates, each once, added up beside the code under audit

    def inside(self, name: str) -> Offsets | slice:
        """Positions of a flattened tensor that the round is about."""
        entries = self.spec.entries(name, self.before[name].size)
        return slice(None) if entries is None else entries

    def noise(self, name: str) -> Doubles:
        """Noise added to the positions that the round is about."""
        return np.asarray((self.after[name] - self.before[name]).reshape(-1)[self.inside(name)])

    def beside(self) -> float:
        """How far the sums are from those of the bounded updates, each once (L2)."""
        apart = (self.before[name] - self.sent.get(name, 0.0) for name in self.before)
        return math.sqrt(sum(float(np.sum(part**2)) for part in apart))

    def outside(self, name: str) -> int:
        """Number of non-zero positions that the round is not about."""
        mask = np.ones(self.before[name].size, np.bool_)
        mask[self.inside(name)] = False
        held = (self.before[name].reshape(-1) != 0.0) | (self.after[name].reshape(-1) != 0.0)
        return int(np.count_nonzero(held & mask))


@dataclass(frozen=True)
class SeenReports:
    """Reports of clients before a round, and the counts after noise."""

    clients: Offsets
    told: Offsets  # [clients, items]: how often each client counts for each item
    protected: Doubles


@dataclass
class ObservedRun:
    """Everything recorded of a run."""

    sums: list[SeenSums] = field(default_factory=list)
    # Of the bounded updates, some clients at a time, and what they count for where the bound is learnt.
    norms: list[tuple[RoundSpec, Doubles]] = field(default_factory=list)
    counts: list[Floats] = field(default_factory=list)
    messages: list[tuple[ClientUpdates, ClientUpdates, RoundSpec]] = field(
        default_factory=list
    )  # bounded, and as it was sent
    shared: list[tuple[Mapping[str, Floats], Doubles | Offsets]] = field(default_factory=list)  # noise drawn at once
    reports: list[SeenReports] = field(default_factory=list)
    released: list[dict[str, Floats]] = field(default_factory=list)  # the model after every round
    published: bytes = b""  # digest of all that a run would publish after the last one
    again: int = 0  # updates in all rounds beyond one for each client of the cohort
    keeps_state: bool = False

    def largest_norm(self, clip_norm: float | None = None) -> float:
        """The largest norm of any client update, over all tensors, rescaled to one clip norm for all rounds."""

        def scale(spec: RoundSpec) -> float:
            return 1.0 if clip_norm is None or spec.clip_norm is None else clip_norm / abs(spec.clip_norm)

        return float(max((norms.max() * scale(spec) for spec, norms in self.norms if len(norms)), default=0.0))


class _WatchedUpdates:
    """The mechanism of a plan, recorded; `instead` replaces the noise on sums."""

    def __init__(self, mechanism: UpdateMechanism, seen: ObservedRun, instead: Protect | None) -> None:
        self._mechanism, self._seen, self._instead = mechanism, seen, instead
        self._sent: Sums = {}  # of the round that is open

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def bound(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        bounded = self._mechanism.bound(updates, spec)
        self._seen.norms.append((spec, norms_of(bounded)))
        if self._mechanism.noise_on == "sum":
            _add(self._sent, bounded, spec.view(self._mechanism.schema))
        if BOUND in bounded.dense:
            self._seen.counts.append(bounded.dense[BOUND].ravel())
        return bounded

    def perturb(self, bounded: ClientUpdates, spec: RoundSpec, source: Source) -> ClientUpdates:
        sent = self._mechanism.perturb(bounded, spec, source)
        self._seen.messages.append((bounded, sent, spec))
        return sent

    def noise_of_messages(
        self, view: Schema, weights: Doubles | Offsets, generator: np.random.Generator
    ) -> dict[str, Floats]:
        noise = self._mechanism.noise_of_messages(view, weights, generator)
        self._seen.shared.append((noise, weights))
        return noise

    def protect(self, sums: MutableMapping[str, Doubles], spec: RoundSpec, source: Source) -> None:
        before = _copied(sums)
        if self._instead is None:
            self._mechanism.protect(sums, spec, source)
        else:
            self._instead(sums, spec)
        self._seen.sums.append(SeenSums(spec, before, _copied(sums), self._sent))
        self._sent = {}


class _WatchedReports:
    """The report mechanism of a plan, recorded for every client separately."""

    def __init__(self, mechanism: ItemReports, seen: ObservedRun, script: list[SeenReports] | None) -> None:
        self._mechanism, self._seen, self._script = mechanism, seen, script
        self._clients, self._told = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def count(self, data: Csr, clients: Offsets, *, seed: int, period: int) -> Offsets:
        return self._each(
            data, clients, lambda one, client: self._mechanism.count(one, client, seed=seed, period=period)
        )

    def count_each(self, data: Csr, clients: Offsets, source_of: SourceOf, share_of: SourceOf) -> Offsets:
        return self._each(
            data, clients, lambda one, client: self._mechanism.count_each(one, client, source_of, share_of)
        )

    def _each(self, data: Csr, clients: Offsets, count: Callable[[Csr, Offsets], Offsets]) -> Offsets:
        told = [count(data.take(np.array([row])), clients[row : row + 1]) for row in range(len(clients))]
        self._clients, self._told = clients, np.array(told)
        return np.asarray(self._told.sum(axis=0))

    def opened(self, total: Offsets, clients: int, source: Source) -> Doubles:
        return self.protect(total, source)

    simulated = opened

    def protect(self, counts: Offsets, source: Source) -> Doubles:
        if self._script is None:
            protected = self._mechanism.protect(counts, source)
        else:
            protected = self._script[len(self._seen.reports)].protected
        self._seen.reports.append(SeenReports(self._clients, self._told, protected))
        return protected


def watch(
    plan: Plan,
    data: LocalData,
    histories: Csr,
    seeds: Seeds,
    rounds: int,
    *,
    script: ObservedRun | None = None,
    quiet: bool = False,
    removed: int | None = None,
) -> ObservedRun:
    """Run a few rounds of a plan and record them.

    With a script, sums and counts after the noise are those of another run; quiet, sums get no noise.
    """
    seen = ObservedRun()
    instead = _from(script) if script is not None else (lambda *_: None) if quiet else None
    mechanism = cast(UpdateMechanism, _WatchedUpdates(plan.mechanism, seen, instead))
    reports = plan.reports
    if reports is not None:
        told = None if script is None else script.reports
        reports = replace(reports, mechanism=cast(ItemReports, _WatchedReports(reports.mechanism, seen, told)))
    watched = replace(plan, mechanism=mechanism, reports=reports)
    simulation: Simulation = simulate(watched, data, histories, seeds, removed=removed)
    seen.keeps_state = bool(simulation.private)
    for number in range(rounds):
        cohorts = sum(len(norms) for _, norms in seen.norms)
        simulation.step(number)
        came = sum(len(norms) for _, norms in seen.norms) - cohorts
        seen.again += max(0, came - len(np.unique(simulation.sampler.draw(number))))
        seen.released.append({name: value.copy() for name, value in simulation.server.weights.items()})
    simulation.selection = None  # whose outcome follows from gains with noise
    seen.published = digest_of_published(simulation)
    return seen


def digest_of_published(simulation: Simulation) -> bytes:
    """Digest what a run publishes: weights, which items were sent, and the ranker with its settings and tables."""
    parts, total = simulation.parts(), hashlib.sha256()
    arrays = {**parts.weights, **{f"table {name}": table for name, table in parts.ranker.tables(parts.weights).items()}}
    if parts.sent is not None:
        arrays["sent"] = parts.sent
    for name in sorted(arrays):
        total.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    total.update(json.dumps(parts.ranker.settings(), sort_keys=True, default=str).encode())
    return total.digest()


def simulate(
    plan: Plan,
    data: LocalData,
    histories: Csr,
    seeds: Seeds,
    *,
    removed: int | Offsets | None = None,
    kind: type[Run] = Simulation,  # type: ignore[assignment]
) -> Run:
    """Build a simulation of class `kind`; clients in `removed` still count and are sampled, but do not take part."""
    if removed is None:
        return kind(plan, data, histories, seeds)
    everybody = np.flatnonzero(data.rows.lengths() > 0).astype(np.int64)
    simulation = kind(plan, without(data, np.atleast_1d(removed)), histories, seeds)
    simulation.sampler = _Without(plan.cohort, everybody, seeds.cohorts, secret=seeds.secret, removed=removed)
    return simulation


def without(data: LocalData, removed: Offsets) -> LocalData:
    """Empty some rows of the data, with the ratings beside their items."""
    lengths = data.rows.lengths()
    kept = np.repeat(~np.isin(np.arange(len(lengths)), removed), lengths)
    lengths[removed] = 0
    changed: dict[str, Any] = {"rows": Csr(offsets_of(lengths), data.rows.items[kept])}
    ratings = getattr(data, "ratings", None)
    if ratings is not None:
        changed["ratings"] = ratings[kept]
    return cast(LocalData, replace(cast(Any, data), **changed))


class _Without(CohortSampler):
    """Cohorts of all clients, without the removed ones."""

    def __init__(self, *arguments: Any, removed: int | Offsets, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._removed = np.atleast_1d(removed)

    def draw(self, round_number: int) -> Offsets:
        clients = super().draw(round_number)
        left: Offsets = clients[~np.isin(clients, self._removed)]
        return left


def _from(script: ObservedRun) -> Protect:
    by_number = {sums.spec.number: sums.after for sums in script.sums}

    def protect(sums: MutableMapping[str, Doubles], spec: RoundSpec) -> None:
        for name, total in sums.items():
            total[...] = by_number[spec.number][name]

    return protect


def _add(sums: Sums, updates: ClientUpdates, view: Schema) -> None:
    """Add up client updates, independently of the code under audit."""
    for tensor in view.tensors:
        total = sums.setdefault(tensor.name, np.zeros(tensor.shape))
        if tensor.name in updates.dense:
            total += updates.dense[tensor.name].sum(axis=0, dtype=np.float64).reshape(tensor.shape)
        elif tensor.name in updates.factors:
            total += updates.factors[tensor.name].product().sum(axis=0, dtype=np.float64).reshape(tensor.shape)
        for packed, target in ((updates.tables, total), (updates.entries, total.reshape(-1, 1))):
            if tensor.name in packed:
                np.add.at(target, packed[tensor.name].index, packed[tensor.name].values)


def _copied(sums: Mapping[str, Doubles]) -> Sums:
    return {name: total.copy() for name, total in sums.items()}


def answer_of(plan: Plan, updates: ClientUpdates, spec: RoundSpec) -> str:
    """Return whether the plan's mechanism passes updates on, or refuses them."""
    try:
        plan.mechanism.check(updates, spec)
    except VeilrecError:
        return "refused"
    return "passed on"


def times(updates: ClientUpdates, factor: float) -> ClientUpdates:
    """Multiply every number of the updates."""

    def scaled(packed: Mapping[str, Rows]) -> dict[str, Rows]:
        return {name: replace(rows, values=rows.values * np.float32(factor)) for name, rows in packed.items()}

    return replace(
        updates,
        tables=scaled(updates.tables),
        entries=scaled(updates.entries),
        dense={n: values * np.float32(1.0 if n == BOUND else factor) for n, values in updates.dense.items()},
        factors={n: replace(f, scales=f.scales * np.float32(factor)) for n, f in updates.factors.items()},
    )


def norms_of(updates: ClientUpdates) -> Doubles:
    """L2 norm of each client update, computed independently of the clipping code; the clipping count is left out."""
    squares = np.zeros(updates.count)
    packed = (*updates.tables.values(), *updates.entries.values())
    for rows in packed:
        client = np.repeat(np.arange(updates.count), np.diff(rows.offsets))
        np.add.at(squares, client, (rows.values.astype(np.float64) ** 2).sum(axis=1))
    dense = (values for name, values in updates.dense.items() if name != BOUND)
    whole = (*dense, *(factors.product() for factors in updates.factors.values()))
    for values in whole:
        squares += (values.astype(np.float64).reshape(updates.count, -1) ** 2).sum(axis=1)
    return np.asarray(np.sqrt(squares))


ALPHA = 1e-6  # how often a statistical check fails although all is well, at most
_NEARLY = 1.1  # room for numbers that are only nearly Gaussian
_FEWEST = 8  # numbers from which on a correlation is worth anything
_STEP = 2.0**-19  # of a standard deviation: nearer than this to nothing twice in a row, noise never is

Value = float | int | str


@dataclass(frozen=True)
class AuditCheck:
    """A measured value, its expected relation, and whether it holds."""

    name: str
    measured: Value
    relation: Literal["is", "at least", "at most"]
    expected: Value
    holds: bool
    where: str = ""  # in which tensor, round or way of drawing it was the worst
    false_alarm_rate: float = 0.0
    allowed: tuple[float, ...] = ()  # as far as it may be by chance: one limit, or the lower and the upper one

    def to_json(self) -> dict[str, Any]:
        """JSON form of all fields; non-finite numbers become strings."""
        values = {name: _word(value) for name, value in vars(self).items()}
        return {key: value for key, value in values.items() if key not in ("where", "allowed") or value}


def _word(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else str(float(value))
    return int(value) if isinstance(value, np.integer) else value


def is_equal(name: str, measured: Value, expected: Value, where: str = "") -> AuditCheck:
    """Deterministic check: the measured value is the expected one."""
    return AuditCheck(name, measured, "is", expected, bool(measured == expected), where)


def at_most(name: str, measured: float, expected: float, where: str = "") -> AuditCheck:
    """Deterministic check: the measured value does not exceed a limit; NaN fails."""
    return AuditCheck(name, measured, "at most", expected, bool(measured <= expected), where)


def at_least(name: str, measured: float, expected: float, where: str = "") -> AuditCheck:
    """Deterministic check: the measured value is not below a limit; NaN fails."""
    return AuditCheck(name, measured, "at least", expected, bool(measured >= expected), where)


def spread_at_least(name: str, noise: Doubles, sigma: float, where: str, *, alpha: float = ALPHA) -> AuditCheck:
    """Whether Gaussian noise has at least this standard deviation (chi-square, one-sided)."""
    if not len(noise):
        return AuditCheck(name, 0.0, "at least", sigma, False, where, alpha, (sigma,))
    p_value = float(chdtr(len(noise), float(np.sum((noise / sigma) ** 2))))
    lowest = sigma * math.sqrt(2.0 * float(gammaincinv(len(noise) / 2.0, alpha)) / len(noise))
    return AuditCheck(
        name, float(np.sqrt(np.mean(noise**2))), "at least", sigma, p_value > alpha, where, alpha, (lowest,)
    )


def spread_is_one(name: str, noise: Doubles, where: str, *, errors: float = 5.0) -> AuditCheck:
    """Whether noise of any law has the standard deviation 1, to a twentieth and what chance explains."""
    measured = float(np.std(noise))
    kurtosis = float(np.mean(((noise - noise.mean()) / measured) ** 4)) if measured > 0.0 else 1.0
    limit = (
        0.05 + errors * math.sqrt((kurtosis - 1.0) / len(noise)) / 2.0
    )  # beyond 5 standard errors: 6e-7, beyond 7: 3e-12
    return AuditCheck(name, measured, "is", 1.0, abs(measured - 1.0) < limit, where, ALPHA, (1.0 - limit, 1.0 + limit))


def varies_at_most(name: str, numbers: Doubles, where: str) -> AuditCheck:
    """Whether numbers with mean 0 have at most the variance 1 (chi-square, one-sided)."""
    total, limit = float(np.sum(numbers**2)), 2.0 * float(gammainccinv(len(numbers) / 2.0, ALPHA)) * _NEARLY
    measured, most = total / len(numbers), limit / len(numbers)
    return AuditCheck(name, measured, "at most", 1.0, total <= limit, where, ALPHA, (most,))


def is_gaussian(name: str, noise: Doubles, where: str) -> AuditCheck:
    """Whether noise has the shape that the proof counts on (Kolmogorov and Smirnov, with its own spread)."""
    ordered = np.sort(noise / max(float(np.sqrt(np.mean(noise**2))), 1e-300))
    return has_law(name, ndtr(ordered), where)


def has_law(name: str, theory: Doubles, where: str) -> AuditCheck:
    """Check the values of a distribution function at ordered draws (Kolmogorov-Smirnov)."""
    n = len(theory)
    distance = float(max(np.max(np.arange(1, n + 1) / n - theory), np.max(theory - np.arange(n) / n)))
    limit = 2.7 / math.sqrt(n)  # kolmogorov(2.7) = 9e-7; with a fitted spread it is rarer still
    holds = float(kolmogorov(math.sqrt(n) * distance)) > ALPHA
    return AuditCheck(name, distance, "at most", limit, holds, where, ALPHA)


def bare(first: Doubles, second: Doubles, sigma: float) -> int:
    """Count positions without noise in two draws."""
    return int(np.count_nonzero((np.abs(first) <= _STEP * sigma) & (np.abs(second) <= _STEP * sigma)))


def off_lattice(released: Doubles, sigma: float) -> int:
    """Count released numbers that are between the steps of the lattice of noise with this standard deviation."""
    units = released.ravel() * (UNITS / sigma)
    return int(np.count_nonzero(np.abs(units - np.rint(units)) > np.maximum(1e-4, np.abs(units) * 2.0**-48)))


def repeats(noises: Sequence[tuple[str, Doubles]], sigma: float) -> list[str]:
    """Find pairs of noise vectors that are correlated or equal.

    The correlation of two Gaussian samples follows Student's t exactly; all pairs share ALPHA.
    """
    pairs = len(noises) * (len(noises) - 1) // 2
    found = []
    for i, (name, first) in enumerate(noises):
        for other, second in noises[:i]:
            n = min(len(first), len(second))
            if n < 2:
                continue
            a, b = first[:n], second[:n]
            if np.all(np.abs(a - b) <= _STEP * sigma) or (n >= _FEWEST and _correlated(a, b) < ALPHA / pairs):
                found.append(f"{other} and {name}")
    return found


def none_repeats(name: str, noises: Sequence[tuple[str, Doubles]], sigma: float, where: str) -> AuditCheck:
    """Check that no two of several noise vectors repeat each other."""
    found = repeats(noises, sigma)
    return AuditCheck(name, len(found), "is", 0, not found, ": ".join(filter(None, (where, *found[:1]))), ALPHA)


def is_near(name: str, measured: float, expected: float, share: float, where: str, alpha: float) -> AuditCheck:
    """Check a measured value that lies within a share of the expected one."""
    near, allowed = abs(measured / expected - 1.0) < share, (expected * (1.0 - share), expected * (1.0 + share))
    return AuditCheck(name, measured, "is", expected, near, where, alpha, allowed)


def _correlated(first: Doubles, second: Doubles) -> float:
    """P-value of the correlation of two independent samples."""
    a, b = first - first.mean(), second - second.mean()
    size = math.sqrt(float(a @ a) * float(b @ b))
    if size == 0.0:
        return 1.0
    r = min(abs(float(a @ b)) / size, 1.0 - 1e-15)
    return float(2.0 * stdtr(len(a) - 2, -r * math.sqrt((len(a) - 2) / (1.0 - r * r))))


def rate_at_most(name: str, hits: int, trials: int, rate: float, where: str) -> AuditCheck:
    """Check that an event happens at most at this rate (binomial, one-sided)."""
    p_value = 1.0 if rate >= 1.0 or hits == 0 else float(bdtrc(hits - 1, trials, rate))
    most = _max_hits(trials, rate, ALPHA) / max(trials, 1)
    return AuditCheck(name, hits / max(trials, 1), "at most", rate, p_value > ALPHA, where, ALPHA, (most,))


def rate_at_least(name: str, hits: int, trials: int, rate: float, where: str) -> AuditCheck:
    """Check that an event happens at least at this rate (binomial, one-sided)."""
    p_value = float(bdtr(hits, trials, rate))
    fewest = (trials - _max_hits(trials, 1.0 - rate, ALPHA)) / max(trials, 1)  # the others happen at most so often
    return AuditCheck(name, hits / max(trials, 1), "at least", rate, p_value > ALPHA, where, ALPHA, (fewest,))


def none_sampled_too_often(name: str, hits: Offsets, trials: int, rate: float) -> AuditCheck:
    """Check that the most frequently sampled client is sampled no more often than chance explains; all share ALPHA."""
    most = int(hits.max())
    p_value = 1.0 if rate >= 1.0 or most == 0 else float(bdtrc(most - 1, trials, rate))
    limit = _max_hits(trials, rate, ALPHA / len(hits)) / trials
    return AuditCheck(name, most / trials, "at most", rate, p_value > ALPHA / len(hits), "", ALPHA, (limit,))


def _max_hits(trials: int, rate: float, alpha: float) -> int:
    """The largest number of hits whose upper tail probability exceeds alpha."""
    if rate >= 1.0:
        return trials
    low, high = 0, trials + 1  # no hit is never a surprise; more than all always are
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if float(bdtrc(middle - 1, trials, rate)) > alpha else (low, middle)
    return low


def sizes_vary(name: str, sizes: Offsets, variance: float) -> AuditCheck:
    """Check that cohort sizes vary like sums of independent coins (chi-square, two-sided)."""
    statistic = float(np.sum((sizes - sizes.mean()) ** 2)) / variance
    p_value = 2.0 * min(float(chdtr(len(sizes) - 1, statistic)), float(chdtrc(len(sizes) - 1, statistic)))
    # sizes have one degree of freedom less than there are, and np.var divides by all
    low, high = (
        2.0 * variance * float(tail((len(sizes) - 1) / 2.0, ALPHA / 2.0)) / len(sizes)
        for tail in (gammaincinv, gammainccinv)
    )
    return AuditCheck(name, float(np.var(sizes)), "is", variance, p_value > ALPHA, "", ALPHA, (low, high))


def independent(
    name: str, sets: Bools, where: str, names: Sequence[str], others: Bools | None = None, *, lags: bool = True
) -> AuditCheck:
    """Check that random sets [n, members] share as many members as chance explains: pairs, and lags as a whole.

    Given their sizes, what two independent sets share is hypergeometric, which is less spread than the binomial that
    is used here. With `others`, every set is compared with every one of those.
    """
    against = sets if others is None else others
    shared = (sets.astype(np.float32) @ against.astype(np.float32).T).astype(np.float64)
    sizes, rates = sets.sum(axis=1).astype(np.float64), against.mean(axis=1)
    apart = len(sets) if others is None and lags else 0
    firsts, seconds = np.triu_indices(len(sets), 1) if others is None else np.indices(shared.shape).reshape(2, -1)
    tests = 2.0 * (len(firsts) + apart)
    both, trials, rate = shared[firsts, seconds], sizes[firsts], rates[seconds]
    found = np.flatnonzero(_by_chance(both, trials, rate) < ALPHA / tests)
    words = [f"{names[firsts[at]]} and {names[seconds[at]]}" if others is None else names[firsts[at]] for at in found]
    for lag in range(1, apart):
        total, drawn = np.trace(shared, lag), float(sizes[:-lag].sum())
        wanted = float(sizes[:-lag] @ rates[lag:]) / max(drawn, 1.0)
        if _by_chance(np.array([total]), np.array([drawn]), np.array([wanted]))[0] < ALPHA / tests:
            words.append(f"{names[0]} and {names[lag]}, and all that are as far apart")
    return AuditCheck(name, len(words), "is", 0, not words, ": ".join(filter(None, (where, *words[:1]))), ALPHA)


def _by_chance(hits: Doubles, trials: Doubles, rates: Doubles) -> Doubles:
    """How likely a binomial count is as far from its mean, on its side."""
    certain = (rates >= 1.0) | (rates <= 0.0)
    inner = np.where(certain, 0.5, rates)
    whole = trials.astype(np.int64)
    many = np.where(hits > 0, bdtrc(np.maximum(hits - 1.0, 0.0), whole, inner), 1.0)
    return np.where(certain, 1.0, np.minimum(many, bdtr(hits, whole, inner)))
