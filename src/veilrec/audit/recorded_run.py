"""A run over all rounds of a plan, recorded: clipped updates, noise, cohorts, and the streams that they come from.

Clients do not train: every round has the same oversized updates, so that a whole run takes about as long as one round
of real training.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from veilrec.audit import observe
from veilrec.audit.streams import LENGTHS
from veilrec.client.local_training import Cohort, LocalData, LocalResults
from veilrec.core.arrays import Bools, Doubles, Floats, Offsets
from veilrec.core.csr import Csr
from veilrec.core.plan import Plan
from veilrec.core.schema import BOUND, ClientUpdates, RoundSpec, filled, from_vectors, to_vectors
from veilrec.privacy.mechanisms.reports import ItemReports, SourceOf
from veilrec.privacy.mechanisms.schedules import TreeSum
from veilrec.privacy.mechanisms.sums import GainSum, UpdateMechanism
from veilrec.privacy.randomness import KeyedSource, Source
from veilrec.simulation.pieces import Seeds, one_of
from veilrec.simulation.simulation import Simulation

_FAR = 1e6  # times the bound: what an oversized update has
_CLIENTS = 2  # that send one: in all numbers, and in the first number of every tensor
_MOST_CLIENTS = 64  # of the first round, where messages have noise of their own
_NUMBERS = 2_000_000  # of their messages together, at most
_OF_A_CLIENT = 8
_KEPT = 1_000_000  # numbers of a tensor's noise that are kept, of all rounds together
_ENOUGH = 2_000  # numbers of noise on a tensor in a round
WORDS_KEPT = 64  # of a stream, that are compared
SLACK = 0.002  # as a share
_AFTER_RESTART = 3  # rounds

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
    beside: int = 0  # clients whose bounded update was another one with others beside it
    script: float | None = None  # standard deviation of the numbers that stand in the place of all that is protected
    models: list[bytes] = field(default_factory=list)  # digest after every round, with a script

    @property
    def words(self) -> int:
        """Words of a stream of noise on sums that are kept: one for every coin of a cohort."""
        return max(WORDS_KEPT, self.people)

    def opened(self, name: tuple[str | int, ...], source: Source, words: int) -> None:
        """Record the first words of a stream that a secret names."""
        again = getattr(source, "again", None)
        if again is not None:
            self.streams[name] = again().words(words)


class _Oversized:
    """Clients that send as much as they can, or nothing, whatever they know."""

    keeps_state = False

    def __init__(self, plan: Plan, seen: SeenRun, times: float = _FAR) -> None:
        self._schema, self._seen = plan.schema, seen
        self._far: float = times * getattr(plan.mechanism, "clip_norm", 1.0)

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
        if bounded.count and self._seen.script is None:
            view = spec.view(self._plan.schema)
            whole = to_vectors(bounded, view)
            alone = [
                self._mechanism.bound(one_of(updates, place), spec) for place in range(min(bounded.count, _CLIENTS))
            ]
            apart = [np.abs(to_vectors(one, view)[0] - row).max() for one, row in zip(alone, whole, strict=False)]
            self._seen.beside += sum(far > SLACK * self._limit(spec) for far in apart)
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
        if seen.script is not None:
            for name, total in sums.items():
                entries = spec.entries(name, total.size)
                inside = slice(None) if entries is None else entries
                total[...] = 0.0
                total.reshape(-1)[inside] = _scripted(seen.script, total.reshape(-1)[inside].size, spec.number, name)
            return
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
        if self._seen.script is not None:
            return _scripted(self._seen.script, len(counts), self._asked, "reports")
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
        if self._seen.script is not None:
            return _scripted(self._seen.script, len(total), 0, "gains")
        self._seen.opened(("model selection",), source, self._seen.words)
        noise = self._mechanism.protect(np.zeros(LENGTHS[0], np.int64), source)
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


def _scripted(size: float, count: int, number: int, name: str) -> Doubles:
    """Numbers that are the same in every run, in the place of what is protected."""
    key = int.from_bytes(hashlib.sha256(f"{number} {name}".encode()).digest()[:8], "little")
    return np.asarray(size * np.random.default_rng(key).standard_normal(count))


class _Few:
    """The sampler of a plan, recorded; whoever it draws, the same few clients take part."""

    def __init__(self, sampler: Any, seen: SeenRun, first: int, most: int) -> None:
        self._sampler, self._seen, self._first, self._most = sampler, seen, first, most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def draw(self, number: int) -> Offsets:
        self._seen.cohorts.append(np.searchsorted(self._sampler.eligible, self._sampler.draw(number)))
        return np.asarray(self._sampler.eligible[: min(self._most, self._first if number == 0 else _CLIENTS)])

    def arrives(self, number: int, clients: Offsets) -> Bools:
        return np.ones(len(clients), np.bool_)


def run(
    plan: Plan,
    data: LocalData,
    histories: Csr,
    seeds: Seeds,
    *,
    resumed: tuple[int, SeenRun] | None = None,
    script: float | None = None,
    times: float = _FAR,
    people: int | None = None,
    nobody: bool = False,
) -> SeenRun:
    """Run all rounds of a plan, or some after a restart from the state of another run, and record them.

    With a `script`, numbers of this standard deviation stand in the place of all that is protected, the same in every
    run; `times` is how large an update is, in clip norms. `people` is a nominal number, and with `nobody` all cohorts
    are empty.
    """
    seen = SeenRun(int((data.rows.lengths() > 0).sum()), max(LENGTHS[0], _KEPT // plan.rounds), script=script)
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
    trainer = cast(Any, _Oversized(plan, seen, times))
    watched = replace(plan, mechanism=mechanism, reports=reports, trainer=trainer, model_selection=selection)
    simulation = Simulation(watched, data, histories, seeds, people=people)
    asks_cohorts = reports is not None and reports.who == "cohort"  # which are then everybody
    first_ones = _CLIENTS
    if plan.mechanism.noise_on == "message":
        numbers = sum(tensor.size for tensor in plan.schema.learnt.tensors)
        first_ones = max(_CLIENTS, min(_MOST_CLIENTS, _NUMBERS // max(numbers, 1)))
    simulation.sampler = cast(
        Any, _Few(simulation.sampler, seen, first_ones, 0 if nobody and not asks_cohorts else first_ones)
    )
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
            if script is not None:
                seen.models.append(_digest(simulation))
            elif plan.clipping_rule is not None and seen.counts:
                wanted = np.float32(plan.clipping_rule.next(before, seen.counts[-1]))
                after = simulation.server.weights[BOUND][0]
                seen.strayed += bool(after != wanted or seen.specs[-1].clip_norm != before)
    return seen


def _digest(simulation: Simulation) -> bytes:
    """Digest all that the server knows after a round, and the model that would be released."""
    total = hashlib.sha256()
    parts = {**simulation.server_state.state(), **simulation.parts().weights}
    if simulation._tally is not None:
        parts["reports"] = np.array(simulation._tally.reports)
    for name in sorted(parts):
        total.update(name.encode() + np.ascontiguousarray(parts[name]).tobytes())
    return total.digest()
