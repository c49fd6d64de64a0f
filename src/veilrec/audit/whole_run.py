"""Audit of all rounds of a plan: clipping, noise, cohorts and the streams that they come from, at every round number.

Clients do not train: every round has the same oversized updates, so that a whole run takes about as long as one round
of real training. What is random is compared in two ways. Streams are asked for their first words: no two uses of a
secret may share one, in any round, for any purpose, before or after a restart. And what came of them is correlated
with itself, every round with every other one, so that noise that ignores its stream is seen as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, gammaincinv, stdtr

from veilrec.audit import observe
from veilrec.audit.observe import ALPHA, AuditCheck
from veilrec.client.local_training import Cohort, LocalData, LocalResults
from veilrec.core.arrays import Bools, Doubles, Floats, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import VeilrecError
from veilrec.core.plan import Plan
from veilrec.core.schema import BOUND, ClientUpdates, RoundSpec, filled, from_vectors, to_vectors
from veilrec.privacy.mechanisms.reports import ItemReports, SourceOf
from veilrec.privacy.mechanisms.schedules import TreeSum
from veilrec.privacy.mechanisms.sums import GainSum, UpdateMechanism
from veilrec.privacy.randomness import KeyedSource, Source
from veilrec.simulation.pieces import Seeds, one_of
from veilrec.simulation.simulation import Simulation

ROUNDS = "rounds of the plan that were looked at"
NORMS = "largest norm of an oversized update, in any round, to its bound"
MESSAGES = "noise on a message, in any round, to that in the first one"
PASSED = "rounds in which a message beyond the bound is passed on"
STRAYED = "rounds, of all, whose bound is not from the protected count"
BARE = "numbers without noise in two rounds in a row"
SPREAD = "standard deviation of the noise, in any round"
COUNT = "standard deviation of the noise on the count, in any round"
REPEATS = "pairs of streams whose noise repeats, also shifted"
WORDS = "random words that two streams share"
RESTART = "streams that are others after a restart"
WARM_WORDS = "random words that a run and its warm start share"
WARM_NOISE = "pairs of streams of a run and of its warm start whose noise repeats"
COINS = "pairs of rounds whose cohorts depend on each other"
NOISE_COINS = "cohorts that are drawn from the words of another stream"
LIES = "pairs of reports whose lies depend on each other"

_FAR = 1e6  # times the bound: what an oversized update has
_CLIENTS = 2  # that send one: in all numbers, and in the first number of every tensor
_WORDS = 64  # of a stream that are compared
_OF_A_CLIENT = 8
_KEPT = 1_000_000  # numbers of a tensor's noise that are kept, of all rounds together
_LENGTHS = (512, 64, 8)  # first numbers of two streams that are correlated
_ENOUGH = 2_000  # numbers of noise on a tensor in a round
_SHIFTED = 400  # streams that are also compared with each other's shifts
_UNLIKELY = 16.0  # a squared cosine, times the length: below that no pair is worth a second look
_SAME = 2.0**-19  # of a standard deviation
_AFTER_RESTART = 3  # rounds
_SLACK = 0.002

Words = dict[tuple[str | int, ...], NDArray[np.uint64]]


@dataclass
class SeenRun:
    """Everything recorded of a run over all rounds."""

    people: int  # that cohorts are drawn from
    kept: int  # numbers of a tensor's noise in a round that are kept
    specs: list[RoundSpec] = field(default_factory=list)
    noise: list[dict[str, Doubles]] = field(default_factory=list)  # of every round: the first numbers by tensor
    squares: list[dict[str, tuple[int, float]]] = field(default_factory=list)  # count and sum, of all numbers
    bare: int = 0
    norms: list[float] = field(default_factory=list)  # of bounded updates, relative to the bound of their round
    passed: set[int] = field(default_factory=set)  # rounds in which the server took what no client can have sent
    counts: list[float] = field(default_factory=list)  # of updates within an adaptive bound, with their noise
    strayed: int = 0  # rounds whose bound follows from something else
    messages: list[tuple[str, Doubles]] = field(default_factory=list)  # noise of clients on them
    others: dict[str, Doubles] = field(default_factory=dict)  # noise on counts of reports, and on the sum of gains
    streams: Words = field(default_factory=dict)  # first words, by what a stream is for
    cohorts: list[Offsets] = field(default_factory=list)
    lies: list[tuple[str, Bools]] = field(default_factory=list)
    state: dict[str, NDArray[Any]] = field(default_factory=dict)  # in the middle of the run

    @property
    def words(self) -> int:
        """Words of a stream of noise on sums that are kept: one for every coin of a cohort."""
        return max(_WORDS, self.people)

    def opened(self, name: tuple[str | int, ...], source: Source, words: int) -> None:
        """Record the first words of a stream that a secret names."""
        again = getattr(source, "again", None)
        if again is not None:
            self.streams[name] = again().words(words)


class _Oversized:
    """Clients that send as much as they can, whatever they know."""

    keeps_state = False

    def __init__(self, plan: Plan, seen: SeenRun) -> None:
        self._schema, self._seen = plan.schema, seen
        self._far: float = _FAR * getattr(plan.mechanism, "clip_norm", 1.0)

    def fresh_private_state(self, clients: Offsets, draws_seed: int) -> dict[str, Floats]:
        return {}

    def learn(self, cohort: Cohort[Any], model: Mapping[str, Floats], spec: RoundSpec) -> LocalResults:
        count, view = len(cohort.clients), spec.view(self._schema)
        for place, source in () if cohort.noise is None else cohort.noise.split(cohort.clients):
            client = int(cohort.clients[place][0])
            self._seen.opened(("learning", spec.number, client), source, _OF_A_CLIENT)
        vectors = np.zeros((count, sum(tensor.size for tensor in view.tensors)))
        vectors[::2] = self._far
        for place in view.places.values():
            vectors[1::2, place.start] = -self._far
        ones = np.ones(count, np.int64)
        return LocalResults(replace(from_vectors(vectors, view), examples=ones), ones, np.zeros(count, np.float32))


class _Mechanism:
    """The mechanism of a plan, recorded in every round."""

    def __init__(self, plan: Plan, seen: SeenRun) -> None:
        self._mechanism, self._plan, self._seen = plan.mechanism, plan, seen
        self._most: float = getattr(plan.mechanism, "clip_norm", math.inf)  # before anything can move it
        self._zeros: dict[str, Bools] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def _limit(self, spec: RoundSpec) -> float:
        if spec.clip_norm is None:
            return self._most
        return min(self._most, spec.clip_norm) if self._plan.clipping_rule is None else abs(spec.clip_norm)

    def bound(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        bounded = self._mechanism.bound(updates, spec)
        if bounded.count:
            self._seen.norms.append(float(observe.norms_of(bounded).max()) / self._limit(spec))
            longer = observe.times(one_of(bounded, 0), 2.0)
            if observe.answer_of(self._plan, longer, spec) != "refused":
                self._seen.passed.add(spec.number)
        return bounded

    def perturb(self, bounded: ClientUpdates, spec: RoundSpec, source: Source) -> ClientUpdates:
        seen, view = self._seen, spec.view(self._plan.schema)
        seen.opened(("message", spec.number, len(seen.streams)), source, _OF_A_CLIENT)
        sent = self._mechanism.perturb(bounded, spec, source)
        if not sent.factors:  # what follows the noise is not noise
            drawn = (to_vectors(sent, view) - to_vectors(filled(bounded, view), view)).ravel()
            seen.messages.append((f"message {len(seen.messages)} in round {spec.number}", drawn[drawn != 0.0]))
        return sent

    def protect(self, sums: MutableMapping[str, Doubles], spec: RoundSpec, source: Source) -> None:
        seen = self._seen
        seen.opened(("sum of a round", spec.number), source, seen.words)
        before = {name: total.copy() for name, total in sums.items()}
        self._mechanism.protect(sums, spec, source)
        noise, squares, more = {}, {}, self._more(before, spec)
        for name, total in sums.items():
            entries = spec.entries(name, total.size)
            inside = slice(None) if entries is None else entries
            drawn = (total - before[name]).reshape(-1)
            zeros = np.zeros(total.size, np.bool_)
            zeros[inside] = drawn[inside] == 0.0
            if len(zeros) == len(self._zeros.get(name, ())):
                seen.bare += int(np.count_nonzero(zeros & self._zeros[name]))
            self._zeros[name] = zeros
            drawn = drawn[inside] * self._scale(name, spec)
            noise[name] = drawn[: seen.kept].copy()
            drawn = np.concatenate([drawn, more.get(name, np.zeros(0)) * self._scale(name, spec)])
            squares[name] = (drawn.size, float(drawn @ drawn))
        seen.counts += [float(sums[BOUND][0])] if BOUND in sums else []
        seen.specs.append(spec)
        seen.noise.append(noise)
        seen.squares.append(squares)

    def _more(self, sums: Mapping[str, Doubles], spec: RoundSpec) -> dict[str, Doubles]:
        """Draw more noise for small tensors, as if they were larger, from a stream that no run uses."""
        small = [
            name for name, total in sums.items() if spec.entries(name, total.size) is None and total.size < _ENOUGH
        ]
        more = {name: np.zeros(_ENOUGH) for name in small}
        if isinstance(self._mechanism, TreeSum):
            return {}
        if more:
            self._mechanism.protect(more, spec, KeyedSource(b"an audit's own secret", spec.number))
        return more

    def _scale(self, name: str, spec: RoundSpec) -> float:
        """Make noise in units of the first clip norm, where it follows an adaptive one."""
        if self._plan.clipping_rule is None or name == BOUND:
            return 1.0
        return self._most / abs(spec.clip_norm or self._most)


class _Reports:
    """The report mechanism of a plan, recorded."""

    def __init__(self, mechanism: ItemReports, seen: SeenRun, asked: int) -> None:
        self._mechanism, self._seen, self._asked = mechanism, seen, asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def count(self, data: Csr, clients: Offsets, *, seed: int, period: int) -> Offsets:
        def of(one: Csr, client: Offsets) -> Offsets:
            return self._mechanism.count(one, client, seed=seed, period=period)

        return self._each(data, clients, of)

    def count_each(self, data: Csr, clients: Offsets, source_of: SourceOf, share_of: SourceOf) -> Offsets:
        for client in clients.tolist():
            self._seen.opened(("report", self._asked, client), source_of(client), _OF_A_CLIENT)
        return self._each(
            data, clients, lambda one, client: self._mechanism.count_each(one, client, source_of, share_of)
        )

    def _each(self, data: Csr, clients: Offsets, count: Any) -> Offsets:
        self._asked += 1
        told = np.array([count(data.take(np.array([row])), clients[row : row + 1]) for row in range(len(clients))])
        if self._mechanism.keep_probability < 1.0:
            own = np.zeros(told.shape, np.bool_)
            own[np.repeat(np.arange(len(data)), data.lengths()), data.items] = True
            self._seen.lies += [
                (f"client {client}, report {self._asked}", lie)
                for client, lie in zip(clients.tolist(), (told > 0) != own, strict=True)
            ]
        return np.asarray(told.sum(axis=0))

    def opened(self, total: Offsets, clients: int, source: Source) -> Doubles:
        return self.protect(total, source)

    simulated = opened

    def protect(self, counts: Offsets, source: Source) -> Doubles:
        self._seen.opened(("counts of reports", self._asked), source, self._seen.words)
        protected = self._mechanism.protect(counts, source)
        self._seen.others[f"counts of reports {self._asked}"] = protected - counts * self._mechanism.step
        return protected


class _Gains:
    """The mechanism of private model selection, recorded; it has many numbers of noise drawn instead of one."""

    def __init__(self, mechanism: GainSum, seen: SeenRun) -> None:
        self._mechanism, self._seen = mechanism, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def opened(self, total: Offsets, clients: int, source: Source) -> Doubles:
        self._seen.opened(("model selection",), source, self._seen.words)
        noise = self._mechanism.protect(np.zeros(_LENGTHS[0], np.int64), source)
        self._seen.others["sum of gains"] = noise
        return np.asarray(total * self._mechanism.step + noise[: len(total)])

    simulated = opened


@dataclass(frozen=True)
class _Indifferent:
    """Held-out clients that find two models equally good."""

    validator: Any

    def clients(self, data: LocalData) -> Offsets:
        return np.asarray(self.validator.clients(data))

    def gains(self, data: LocalData, start: Mapping[str, Floats], trained: Mapping[str, Floats]) -> Doubles:
        return np.zeros(len(data.rows))


class _Few:
    """The sampler of a plan, recorded; whoever it draws, the same two clients take part."""

    def __init__(self, sampler: Any, seen: SeenRun) -> None:
        self._sampler, self._seen = sampler, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def draw(self, number: int) -> Offsets:
        self._seen.cohorts.append(np.searchsorted(self._sampler.eligible, self._sampler.draw(number)))
        return np.asarray(self._sampler.eligible[:_CLIENTS])

    def arrives(self, number: int, clients: Offsets) -> Bools:
        return np.ones(len(clients), np.bool_)


def run(
    plan: Plan, data: LocalData, histories: Csr, seeds: Seeds, *, resumed: tuple[int, SeenRun] | None = None
) -> SeenRun:
    """Run all rounds of a plan, or some after a restart from the state of another run, and record them."""
    people = int((data.rows.lengths() > 0).sum())
    seen = SeenRun(people, max(_LENGTHS[0], _KEPT // plan.rounds))
    selection, reports = plan.model_selection, plan.reports
    if selection is not None:
        gains = cast(GainSum, _Gains(selection.mechanism, seen))
        selection = replace(selection, validator=cast(Any, _Indifferent(selection.validator)), mechanism=gains)
    if reports is not None:
        reports = replace(
            reports,
            mechanism=cast(ItemReports, _Reports(reports.mechanism, seen, 0 if resumed is None else resumed[0])),
        )
    mechanism = cast(UpdateMechanism, _Mechanism(plan, seen))
    trainer = cast(Any, _Oversized(plan, seen))
    watched = replace(plan, mechanism=mechanism, reports=reports, trainer=trainer, model_selection=selection)
    simulation = Simulation(watched, data, histories, seeds)
    simulation.sampler = cast(Any, _Few(simulation.sampler, seen))
    first, end, half = 0, plan.rounds, plan.rounds // 2
    if resumed is not None:
        first, end = resumed[0], min(plan.rounds, resumed[0] + _AFTER_RESTART)
        simulation.load_state(resumed[1].state, first)
    with np.errstate(all="ignore"):  # the models that come of this are of no use
        for number in range(first, end):
            if number == half and resumed is None:
                seen.state = {name: np.array(values) for name, values in simulation.state().items()}
            before = float(simulation.server.weights[BOUND][0]) if plan.clipping_rule is not None else 0.0
            simulation.step(number)
            if plan.clipping_rule is not None and seen.counts:
                wanted = np.float32(plan.clipping_rule.next(before, seen.counts[-1]))
                after = simulation.server.weights[BOUND][0]
                seen.strayed += bool(after != wanted or seen.specs[-1].clip_norm != before)
    return seen


def checks(
    plan: Plan, data: LocalData, histories: Csr, needed: float, seed: int, secrets: Sequence[bytes]
) -> Iterator[AuditCheck]:
    """Check every round of a plan whose sums need noise of a standard deviation; with two secrets and without."""
    seeds = Seeds.all_from(seed, secrets[0])
    try:
        secret = run(plan, data, histories, seeds)
        runs = {
            "secret": secret,
            "another secret": run(plan, data, histories, Seeds.all_from(seed, secrets[1])),
            "seeded": run(plan, data, histories, Seeds(seed, seed, seed + 1)),
        }
        half = plan.rounds // 2
        again = run(plan, data, histories, seeds, resumed=(half, secret))
    except VeilrecError as error:
        yield observe.is_equal(ROUNDS, f"stopped: {error}", plan.rounds)
        return
    counted, streams = {len(seen.specs) for seen in runs.values()}, _streams(plan, runs)
    tensors = [
        (f"{name} in round {spec.number}, {way}", part)
        for way, seen in runs.items()
        for spec, noise in zip(seen.specs, _own_noise(plan, seen), strict=True)
        for name, part in noise.items()
    ]
    many = max(len(noise) for noise in secret.noise) > 1
    pairs = sum(math.comb(len(some), 2) for some in (streams, tensors if many else []))
    looked = f"{len(streams) + (len(tensors) if many else 0):,} streams of noise in {pairs:,} pairs"
    yield observe.is_equal(ROUNDS, min(counted), plan.rounds, looked)
    yield observe.at_most(NORMS, max(norm for seen in runs.values() for norm in seen.norms), 1.0)
    yield observe.is_equal(PASSED, len(set().union(*(seen.passed for seen in runs.values()))), 0)
    yield observe.is_equal(STRAYED, sum(seen.strayed for seen in runs.values()), 0)
    yield observe.is_equal(BARE, sum(seen.bare for seen in runs.values()), 0)
    for way, seen in runs.items():
        yield from _spreads(plan, seen, needed, way)
    yield repeats(REPEATS, streams, shifts=True)
    if many:
        yield repeats(REPEATS, tensors, shifts=False)
    yield from _words(runs, again)
    yield from _cohorts(plan, runs)
    for way in ("secret", "seeded"):
        if runs[way].lies:
            names, lies = zip(*runs[way].lies, strict=True)
            yield observe.independent(LIES, np.array(lies), way, names)


def message_checks(
    plan: Plan, data: LocalData, histories: Csr, seed: int, secrets: Sequence[bytes]
) -> Iterator[AuditCheck]:
    """Check that noise on messages is of one size in all rounds of a plan, and never the same twice."""
    runs = {
        way: run(plan, data, histories, Seeds.all_from(seed, secret))
        for way, secret in zip(("secret", "another secret"), secrets, strict=True)
    }
    noises = [(f"{name}, {way}", noise) for way, seen in runs.items() for name, noise in seen.messages if len(noise)]
    looked = f"{len(noises):,} messages in {math.comb(len(noises), 2):,} pairs"
    yield observe.is_equal(ROUNDS, len(runs["secret"].cohorts), plan.rounds, looked)
    yield shared_words(runs)
    yield repeats(REPEATS, noises, shifts=True)
    first = [noise for name, noise in noises if "in round 0," in name]
    if first:
        size = max(float(np.std(np.concatenate(first))), 1e-300)
        enough = [(where, noise / size) for where, noise in noises if len(noise) >= _WORDS]
        sizes = [observe.spread_is_one(MESSAGES, noise, where, errors=7.0) for where, noise in enough]
        yield from [check for check in sizes if not check.holds][:1] or sizes[-1:]  # all of them share its ALPHA


def _streams(plan: Plan, runs: Mapping[str, SeenRun]) -> list[tuple[str, Doubles]]:
    """The noise of every round in the order in which it was drawn, and that on reports and gains."""
    found = []
    for way, seen in runs.items():
        for spec, noise in zip(seen.specs, _own_noise(plan, seen), strict=True):
            found.append((f"round {spec.number}, {way}", np.concatenate([*noise.values()])[: _LENGTHS[0]]))
        found += [(f"{name}, {way}", noise) for name, noise in seen.others.items()]
    return found


def _spreads(plan: Plan, seen: SeenRun, needed: float, way: str) -> Iterator[AuditCheck]:
    """Check the noise of every tensor and of all together: in every round, and from every round on."""
    squares = seen.squares
    if isinstance(plan.mechanism, TreeSum):
        nodes = _own_noise(plan, seen)
        squares = [{name: (node.size, float(node @ node)) for name, node in one.items()} for one in nodes]
    names = list(dict.fromkeys(name for one in squares for name in one))
    counts = np.array([[one.get(name, (0, 0.0))[0] for name in names] for one in squares], np.float64)
    sums = np.array([[one.get(name, (0, 0.0))[1] for name in names] for one in squares])
    if BOUND in names:
        place, stated = names.index(BOUND), getattr(plan.mechanism, "count_standard_deviation", math.inf)
        yield _worst(COUNT, counts[:, [place]], sums[:, [place]], stated * (1.0 - _SLACK), [BOUND], way)
        counts, sums = np.delete(counts, place, axis=1), np.delete(sums, place, axis=1)
        names.remove(BOUND)
    counts, sums = (np.column_stack([part, part.sum(axis=1)]) for part in (counts, sums))
    yield _worst(SPREAD, counts, sums, needed, [*names, "all tensors"], way)


def _worst(name: str, counts: Doubles, sums: Doubles, needed: float, names: Sequence[str], way: str) -> AuditCheck:
    """The least likely of all rounds and tails of rounds (chi-square, one-sided); all share ALPHA."""
    n = np.concatenate([counts, np.cumsum(counts[::-1], axis=0)[::-1]])
    total = np.concatenate([sums, np.cumsum(sums[::-1], axis=0)[::-1]])
    n, total = n.ravel(), total.ravel()
    chances = np.where(n > 0, chdtr(np.maximum(n, 1.0), total / needed**2), 1.0)
    at, alpha = int(np.argmin(chances)), ALPHA / max(1, int(np.count_nonzero(n)))
    row, column = divmod(at, counts.shape[1])
    when = f"round {row}" if row < len(counts) else f"from round {row - len(counts)} on"
    lowest = needed * math.sqrt(2.0 * float(gammaincinv(n[at] / 2.0, alpha)) / n[at])
    measured = math.sqrt(total[at] / n[at])
    where = f"{names[column]}, {when}, {way}"
    return AuditCheck(name, measured, "at least", needed, bool(chances[at] > alpha), where, ALPHA, (lowest,))


def _own_noise(plan: Plan, seen: SeenRun) -> list[dict[str, Doubles]]:
    """The first numbers of the noise that every round has of its own: in a tree, that of the node that it ends."""
    if not isinstance(plan.mechanism, TreeSum):
        return seen.noise
    found = []
    for last, spec in enumerate(seen.specs):
        place = spec.number % plan.mechanism.steps + 1
        inside = seen.noise[last + 1 - (place & -place) : last + 1]
        found.append({name: np.sum([one[name] for one in inside], axis=0) for name in inside[0]})
    return found


def repeats(name: str, streams: Sequence[tuple[str, Doubles]], *, shifts: bool) -> AuditCheck:
    """Check that no noise repeats another, as it is, with its sign turned, or (few streams) shifted.

    Of two independent Gaussian vectors the cosine follows Student's t exactly, and the part of it where a shifted one
    overlaps is smaller. All pairs and shifts share ALPHA. Vectors of 2 to 7 numbers may not be equal.
    """
    pairs = max(1, math.comb(len(streams), 2))
    found: list[str] = []
    names = np.array([name for name, _ in streams], object)
    sizes = np.array([len(noise) for _, noise in streams])
    above = math.inf
    for length in _LENGTHS:
        places = np.flatnonzero(sizes >= length)
        if len(places) < 2:
            continue
        rows = np.array([streams[place][1][:length] for place in places.tolist()])
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
        lags = 2 * length - 1 if shifts and len(rows) <= _SHIFTED else 1
        cosines = _shifted(rows) if lags > 1 else np.abs(rows @ rows.T)
        short = sizes[places] < above  # pairs of longer ones were compared over a greater length
        firsts, seconds = np.nonzero(
            np.triu((short[:, np.newaxis] | short) & (cosines**2 * length > min(_UNLIKELY, length / 2)), 1)
        )
        r = np.minimum(cosines[firsts, seconds], 1.0 - 1e-15)
        chances = 2.0 * stdtr(length - 1, -r * np.sqrt((length - 1) / (1.0 - r * r)))
        near = np.flatnonzero(chances < ALPHA / (pairs * lags * len(_LENGTHS)))
        found += [f"{names[places[firsts[at]]]} and {names[places[seconds[at]]]}" for at in near]
        above = length
    for size in range(2, _LENGTHS[-1]):
        places = np.flatnonzero(sizes == size)
        if len(places) > 1:
            rows = np.array([streams[place][1] for place in places.tolist()])
            apart = np.abs(rows[:, np.newaxis] - rows).max(axis=-1)
            equal = np.argwhere(np.triu(apart <= _SAME * np.std(rows), 1))
            found += [
                f"{streams[int(places[first])][0]} and {streams[int(places[second])][0]}" for first, second in equal
            ]
    return AuditCheck(name, len(found), "is", 0, not found, "".join(found[:1]), ALPHA)


def _shifted(rows: Doubles) -> Doubles:
    """The largest cosine of two vectors over all shifts of one of them, [n, n] above the diagonal."""
    count, length = rows.shape
    waves, found = np.fft.rfft(rows, 2 * length, axis=1), np.zeros((count, count))
    for row in range(count - 1):
        crossed = np.fft.irfft(waves[row] * waves[row + 1 :].conj(), 2 * length, axis=1)
        found[row, row + 1 :] = np.abs(crossed).max(axis=1)
    return found


def shared_words(runs: Mapping[str, SeenRun]) -> AuditCheck:
    """Check that no two streams of one secret, or of several, have a word in common."""
    streams = [words[:_WORDS] for seen in runs.values() for words in seen.streams.values()]
    everything = np.concatenate([np.zeros(0, np.uint64), *streams])
    shared = len(everything) - len(np.unique(everything))
    return observe.is_equal(WORDS, shared, 0, f"first words of {len(streams):,} streams: {', '.join(runs)}")


def warm_start_checks(simulations: Mapping[str, Simulation]) -> Iterator[AuditCheck]:
    """Check that runs, each of which starts from the model of the one before, have nothing random in common."""
    runs = {name: run(one.plan, one.data, one.histories, one.seeds) for name, one in simulations.items()}
    streams = [stream for name, one in simulations.items() for stream in _streams(one.plan, {name: runs[name]})]
    yield replace(shared_words(runs), name=WARM_WORDS)
    yield repeats(WARM_NOISE, streams, shifts=True)


def _words(runs: Mapping[str, SeenRun], again: SeenRun) -> Iterator[AuditCheck]:
    """Check the words of all streams of two secrets, and that a restart goes on with the same ones."""
    yield shared_words({way: runs[way] for way in ("secret", "another secret")})
    first, after = runs["secret"], {spec.number: noise for spec, noise in zip(again.specs, again.noise, strict=True)}
    words = sum(not np.array_equal(first.streams.get(name, ()), some) for name, some in again.streams.items())
    noise = sum(
        any(
            not np.allclose(part, seen[name], rtol=0.0, atol=1e-6 * np.std(part))
            for name, part in after[number].items()
        )
        for number, seen in enumerate(first.noise)
        if number in after
    )
    yield observe.is_equal(RESTART, words + noise, 0, f"restarted before round {min(after, default=0)}")


def _cohorts(plan: Plan, runs: Mapping[str, SeenRun]) -> Iterator[AuditCheck]:
    """Check cohorts that are drawn by chance: of every round with every other, and with the words of noise."""
    people = runs["secret"].people
    if plan.cohort.sampling == "cyclic" or plan.cohort.size == 0 or plan.rounds < 2:
        return
    for way in ("secret", "seeded"):
        members = np.zeros((plan.rounds, people), np.bool_)
        for number, clients in enumerate(runs[way].cohorts):
            members[number, clients] = True
        names = [f"round {number}" for number in range(plan.rounds)]
        yield observe.independent(COINS, members, way, names)
        streams = [words[:people] for words in runs[way].streams.values() if len(words) >= people]
        if streams:
            level = np.uint64(min(plan.cohort.size / people, 1.0) * 2.0**63) * np.uint64(2)
            coins = np.array([words < level for words in streams])
            yield observe.independent(NOISE_COINS, members, way, names, coins)
