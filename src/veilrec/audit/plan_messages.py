"""Audit of noise on messages, of reports, and of private model selection.

A paper's claim for noisy messages is not expected to hold; the audit passes when the statement beside it is true: when
the measured noise gives the honest epsilon that is stated, or none is finite. Reports before a round are checked for
their noise, their number and the items they may contain. Model selection is checked for its held-out validation
clients, their influence on the result, and its noise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from veilrec.audit import observe
from veilrec.audit.observe import AuditCheck, ObservedRun, SeenReports
from veilrec.client.local_training import LocalData
from veilrec.client.validation import Validator
from veilrec.core.arrays import Bools, Doubles, Floats, Offsets
from veilrec.core.csr import Csr
from veilrec.core.plan import ModelSelection, Plan
from veilrec.core.schema import ClientUpdates, RoundSpec, Schema, filled, from_vectors, to_vectors
from veilrec.privacy.accounting import epsilon_of, epsilon_renyi
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.events import ComposedEvent, Event, GaussianEvent, LaplaceEvent, training_event
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.reports import ItemReports, VoteReports
from veilrec.privacy.mechanisms.sums import STANDARD_ERRORS
from veilrec.privacy.randomness import FastSource, KeyedSource, Source
from veilrec.server.server import SelectionOutcome
from veilrec.simulation.simulation import Seeds, Simulation

_NUMBERS = 100_000
_EXTRA = 2_000  # periods that no run reaches
_NORMAL = 5.0  # variance of a binomial number from which on it is taken for Gaussian


@dataclass(frozen=True)
class ReportedCounts:
    """Observed reports of a run."""

    times: int  # how many different ones a client gives in a whole run
    noise: dict[str, Doubles]  # on the counts, by where it comes from; empty: bits are turned round instead
    lies: dict[str, tuple[int, int, int, int]]  # of bits: made up, of how many; left out, of how many
    places: dict[str, Bools]  # which bits are lies, [different reports, items]


def told_by(
    plan: Plan, data: Csr, secret: Sequence[ObservedRun], seeded: Sequence[ObservedRun]
) -> ReportedCounts | None:
    """Summarise the reports of recorded runs; None where the plan has none."""
    reports = plan.reports
    if reports is None:
        return None
    first = secret[0].reports[0]
    times = plan.rounds if max(_different(seen.reports) for seen in (*secret, *seeded)) > 1 else 1
    if isinstance(reports.mechanism.event(), GaussianEvent):
        return ReportedCounts(times, _measured(reports.mechanism, first), {}, {})
    lies, places = {}, {}
    for way, runs in _ways(secret, seeded):
        lies[way], places[way] = _lies(data, [one for seen in runs for one in seen.reports])
    return ReportedCounts(times, {}, lies, places)


def _ways(
    secret: Sequence[ObservedRun], seeded: Sequence[ObservedRun]
) -> tuple[tuple[str, Sequence[ObservedRun]], ...]:
    return ("secret", secret), ("seeded", seeded)


def _different(reports: Sequence[SeenReports]) -> int:
    """The number of different reports of one client, or of different counts."""
    said: dict[int, set[bytes]] = {}
    for one in reports:
        for client, told in zip(one.clients.tolist(), one.told, strict=True):
            said.setdefault(client, set()).add(told.tobytes())
    return max(len({one.protected.tobytes() for one in reports}), *(len(different) for different in said.values()))


def _changed(plan: Plan, guarantee: Guarantee) -> int:
    """The number of bits that one unit changes."""
    length = plan.reports.mechanism.length if plan.reports is not None else 0
    if guarantee.unit != "click":
        return length
    return 1 if guarantee.adjacency == "add-remove" else min(2, length)


def _max_squared(plan: Plan) -> int:
    """The largest squared norm that one client adds to the counts."""
    mechanism = plan.reports.mechanism if plan.reports is not None else None
    if isinstance(mechanism, VoteReports):
        return 1
    most: int = getattr(mechanism, "max_items", getattr(mechanism, "length", 0))
    return most


def _measured(mechanism: ItemReports, first: SeenReports) -> dict[str, Doubles]:
    """Noise on counts, sampled again from the plan's own mechanism; every other item is one that nobody has."""
    counts = first.told.sum(axis=0)
    counts[1::2] = 0
    draws = max(2, math.ceil(_NUMBERS / len(counts)))
    sources: dict[str, list[Source]] = {
        "secret": [KeyedSource(b"an audit's own secret", _EXTRA + draw) for draw in range(draws)],
        "seeded": [FastSource(1, _EXTRA + draw, one_generator=True) for draw in range(draws)],
    }
    return {
        way: np.concatenate([mechanism.protect(counts, source) - counts * mechanism.step for source in drawn])
        for way, drawn in sources.items()
    }


def _lies(data: Csr, reports: Sequence[SeenReports]) -> tuple[tuple[int, int, int, int], Bools]:
    """Counts of randomised bits (false ones, zeros, false zeros, ones), and where lies are; equal reports once."""
    different = {
        (client, told.tobytes()): (client, told)
        for one in reports
        for client, told in zip(one.clients.tolist(), one.told > 0, strict=True)
    }
    told = np.array([bits for _, bits in different.values()])
    own = np.zeros(told.shape, np.bool_)
    for row, (client, _) in enumerate(different.values()):
        own[row, data.row(client)] = True
    counts = ((told & ~own), ~own, (own & ~told), own)
    made_up, zeros, left_out, ones = (int(np.count_nonzero(bits)) for bits in counts)
    return (made_up, zeros, left_out, ones), told != own


def _place_checks(places: Bools, chance: float, way: str) -> Iterator[AuditCheck]:
    """Check that the lies of two reports have nothing to do with each other."""
    first, second = places[: len(places) // 2 * 2].reshape(-1, 2, places.shape[1]).swapaxes(0, 1)
    both = int(np.count_nonzero(first & second))
    yield observe.rate_at_most("how often two reports lie about the same item", both, first.size, chance**2, way)
    expected = len(places) * chance
    if expected * (1.0 - chance) >= _NORMAL:  # then how many lie about an item is nearly Gaussian
        counts = (places.sum(axis=0) - expected) / math.sqrt(expected * (1.0 - chance))
        yield observe.varies_at_most("variance of how many lie about an item", counts, way)


def report_checks(
    plan: Plan, told: ReportedCounts, secret: Sequence[ObservedRun], seeded: Sequence[ObservedRun], guarantee: Guarantee
) -> Iterator[AuditCheck]:
    """Check the noise, or flipped bits, of reports, their number, and the items they may contain."""
    reports = plan.reports
    if reports is None:
        return
    event = reports.mechanism.event()
    yield observe.at_least("times that a client's report is charged for", _charged(plan, event), told.times)
    if not told.noise:
        least = epsilon_of(event, 0.0) / _changed(plan, guarantee)
        needed = math.exp(-least) / (1.0 + math.exp(-least))
        for way, (made_up, zeros, left_out, ones) in told.lies.items():
            yield observe.rate_at_least("bits of a report that are made up", made_up, zeros, needed, way)
            yield observe.rate_at_least("bits of a report that are left out", left_out, ones, needed, way)
            yield from _place_checks(told.places[way], 1.0 - reports.mechanism.keep_probability, way)
        return
    step, what = reports.mechanism.step, "squared votes" if isinstance(reports.mechanism, VoteReports) else "items"
    largest = max(int((one.told**2).sum(axis=1).max()) for seen in (*secret, *seeded) for one in seen.reports)
    yield observe.at_most(f"{what} of one client in the counts", largest * step**2, _max_squared(plan))
    mu = event.mu if isinstance(event, GaussianEvent) else 0.0
    people = 1 if guarantee.adjacency == "add-remove" else 2  # whose items move the counts
    sigma = math.sqrt(people * _max_squared(plan)) / mu if mu > 0.0 else math.inf
    for way, noise in told.noise.items():
        yield observe.spread_at_least("standard deviation of the noise on the counts", noise, sigma * (1.0 - 1e-3), way)
        first, second = noise.reshape(-1, reports.mechanism.length)[:2]
        yield observe.is_equal("counts without noise", observe.bare(first, second, sigma), 0, way)
    for way, runs in _ways(secret, seeded):
        noises = [
            (f"counts {number} of run {run}", one.protected - one.told.sum(axis=0) * step)
            for run, seen in enumerate(runs)
            for number, one in enumerate(seen.reports)
        ]
        yield observe.none_repeats("noises on counts that repeat each other", noises, sigma, way)


def _charged(plan: Plan, event: Event) -> int:
    """The number of reports that the composed event counts."""
    whole = training_event(replace(plan, model_selection=None))
    parts = whole.parts if isinstance(whole, ComposedEvent) else ((whole, 1),)
    return sum(count for part, count in parts if part == event)


_NEAR = 0.03  # of an epsilon that rests on measured noise
_USUAL = 0.2  # of the number of items of a sub-model, which the statement takes from one draw of the reports
_LAPLACE = 4.5  # kurtosis between that of Gaussian noise, 3, and that of Laplace noise, 6
_NOTHING = 2.0**-19  # of a standard deviation
_BY_CHANCE = 1e-5  # how often noise is nearer to nothing than that, at most
_MESSAGES = 300  # that are looked at
_ENOUGH = 500  # numbers, for the spread of noise of any law


def message_checks(
    plan: Plan, secret: ObservedRun, seeded: ObservedRun, told: ReportedCounts | None, guarantee: Guarantee
) -> Iterator[AuditCheck]:
    """Check the statement about plaintext messages, or messages with noise as published."""
    cost = plan.mechanism.event()
    if guarantee.basis == "none":
        yield observe.is_equal("what the statement promises", "nothing", "nothing")
        yield observe.is_equal("epsilon of an update", _word(epsilon_of(cost, 1e-6)), "none is finite")
        return
    if plan.mechanism.is_linear:  # noise that is added before learning does not cover what is sent
        yield observe.is_equal("epsilon of a message", _word(epsilon_of(cost, 1e-6)), "none is finite")
        stated = "none is finite" if guarantee.honest_epsilon is None else _word(guarantee.honest_epsilon)
        yield observe.is_equal("honest epsilon of the statement", stated, "none is finite")
        refuted = epsilon_of(cost, 1e-6) > (guarantee.epsilon or 0.0)
        yield observe.is_equal("the paper's claim", "refuted" if refuted else "not refuted", "refuted")
        return
    noise = _noise(plan, secret)
    sent = np.concatenate([part.ravel() for part in noise.values()])
    spread = max(float(np.std(part)) for part in noise.values())
    nothing = int(np.count_nonzero(np.abs(sent) <= _NOTHING * spread))
    yield observe.rate_at_most("numbers that are sent without noise", nothing, len(sent), _BY_CHANCE, "")
    delta = guarantee.honest_delta if guarantee.honest_delta is not None else guarantee.delta or 0.0
    epsilon = _epsilon(plan, secret, noise, delta)
    name = "epsilon of a message, from the noise that was measured"
    if guarantee.honest_epsilon is None:
        yield observe.is_equal(name, _word(epsilon), "none is finite")
    else:
        honest, share = guarantee.honest_epsilon, _NEAR if told is None else _USUAL
        yield observe.is_near(name, epsilon, honest, share, f"at delta {delta:g}", 1e-6)
    claimed = guarantee.epsilon or 0.0
    yield observe.is_equal(
        "the paper's claim", "refuted" if epsilon > claimed else "not refuted", "refuted", f"{claimed:g}"
    )
    yield from _shortcut(noise, seeded)
    if told is not None:
        yield from report_checks(plan, told, [secret], [seeded], guarantee)


def _word(epsilon: float) -> str:
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "none is finite"


def _noise(plan: Plan, seen: ObservedRun) -> dict[str, Doubles]:
    """Noise on the numbers of messages, by tensor: [numbers] or, where all are sent, [n, size]."""
    parts: dict[str, list[Doubles]] = {}
    for number, (bounded, sent, spec) in enumerate(seen.messages[:_MESSAGES]):
        view, noisy = spec.view(plan.schema), sent
        if sent.factors:  # what follows the noise is not noise
            inner: Any = plan.mechanism
            noisy = inner.inner.perturb(bounded, spec, KeyedSource(b"an audit's own secret", number))
        before, after = to_vectors(filled(bounded, view), view), to_vectors(noisy, view)
        for name, place in view.places.items():
            difference = (after - before)[:, place]
            if name in noisy.entries:
                difference = difference[:, noisy.entries[name].index]
            parts.setdefault(name, []).append(difference)
    return {name: np.concatenate([one.ravel() for one in some]) for name, some in parts.items()}


def _chosen_by_data(messages: Sequence[tuple[ClientUpdates, ClientUpdates, RoundSpec]]) -> bool:
    """Whether messages of one round differ in which numbers they carry."""
    for name in {name for _, sent, _ in messages for name in sent.entries}:
        places = {sent.entries[name].index.tobytes() for _, sent, spec in messages if spec.number == 0}
        if len(places) > 1:
            return True
    return False


def _epsilon(plan: Plan, seen: ObservedRun, noise: dict[str, Doubles], delta: float) -> float:
    """Epsilon of one message and its report; infinite where the data chooses what is sent."""
    moved = _moved(plan, seen.messages[0][2])
    if _chosen_by_data(seen.messages) or any(float(np.std(noise[name])) == 0.0 for name in moved):
        return math.inf
    report: list[tuple[Event, int]] = [] if plan.reports is None else [(plan.reports.mechanism.event(), 1)]
    together = np.concatenate([noise[name] / np.std(noise[name]) for name in moved])
    if float(np.mean(together**4)) < _LAPLACE:
        squares = sum(float(np.sum((distance / np.std(noise[name])) ** 2)) for name, distance in moved.items())
        return epsilon_of(ComposedEvent((*report, (GaussianEvent(math.sqrt(squares)), 1))), delta)
    losses = np.concatenate([distance / float(np.mean(np.abs(noise[name]))) for name, distance in moved.items()])
    pure = epsilon_of(ComposedEvent((*report, (LaplaceEvent(float(losses.sum())), 1))), 0.0)
    if delta == 0.0:
        return pure
    kinds, counts = np.unique(np.round(losses, 9), return_counts=True)
    each = [(LaplaceEvent(float(kind)), int(count)) for kind, count in zip(kinds, counts, strict=True)]
    return min(pure, epsilon_renyi(ComposedEvent((*report, *each)), delta))


def _moved(plan: Plan, spec: RoundSpec) -> dict[str, Doubles]:
    """Distance of the bounded updates of the worst pair, for every number of a message."""
    view = spec.view(plan.schema)
    pair = [_narrowed(vector, plan.schema.learnt, view) for vector in plan.mechanism.worst_pair()]
    bounded = plan.mechanism.bound(from_vectors(np.stack(pair), view), spec)
    first, second = to_vectors(bounded, view)
    return {name: np.abs(first - second)[place] for name, place in view.places.items()}


def _narrowed(vector: Doubles, schema: Schema, view: Schema) -> Doubles:
    """The first rows of every table, as many as the round has."""
    return np.concatenate([vector[schema.places[part.name]][: part.size] for part in view.tensors])


def _shortcut(noise: dict[str, Doubles], seeded: ObservedRun) -> Iterator[AuditCheck]:
    """Check that noise drawn for all messages of a round at once is as large as separate noise."""
    drawn: dict[str, Doubles] = {}  # as if one message had had it, in standard deviations of one that had
    for name, of_message in noise.items():
        shared = [
            (total[name] / math.sqrt(float(np.sum(weights.astype(np.float64) ** 2)))).ravel()
            for total, weights in seeded.shared
            if name in total
        ]
        spread = float(np.std(of_message))
        if shared and spread > 0.0:
            drawn[name] = np.concatenate(shared) / spread
    if not drawn:
        return
    together = {"all tensors": np.concatenate(list(drawn.values()))}
    for name, values in (drawn | together).items():
        if len(values) >= _ENOUGH:
            yield observe.spread_is_one("noise of a simulation that draws it at once", values, name)


_DRAWS = 600  # of the noise, by the run itself
_SLACK = 0.002  # of the noise, as for sums
_FAR = 8.0  # standard deviations that no noise reaches
_A_LITTLE = 1e-6


@dataclass(frozen=True)
class _Says:
    """Validation clients that all report the same gain."""

    validator: Validator[Any]
    gain: float
    left_out: int

    def clients(self, data: LocalData) -> Offsets:
        return self.validator.clients(data)[self.left_out :]

    def gains(self, data: LocalData, start: Mapping[str, Floats], trained: Mapping[str, Floats]) -> Doubles:
        return np.full(len(data.rows), self.gain)


def comparison_checks(
    plan: Plan, data: LocalData, histories: Csr, guarantee: Guarantee, seed: int
) -> Iterator[AuditCheck]:
    """Check private model selection against its statement, with validation clients that report chosen gains."""
    comparison = plan.model_selection
    if comparison is None or guarantee.epsilon is None or guarantee.delta is None:
        return
    mechanism, validators = comparison.mechanism, comparison.validator.clients(data)
    both = np.intersect1d(validators, np.flatnonzero(data.rows.lengths() > 0))
    yield observe.is_equal("clients that train and validate", len(both), 0, f"{len(validators)} validation clients")
    moved = mechanism.clip * (1.0 if guarantee.adjacency == "add-remove" else 2.0)
    needed = moved / mu_for(guarantee.epsilon, guarantee.delta) * (1.0 - _SLACK)
    yield observe.is_equal("adjacency of the comparison", mechanism.adjacency, str(guarantee.adjacency))
    yield observe.at_least(
        "how far one validation client moves the sum, as accounted for", mechanism.sensitivity.value, moved
    )
    if not len(validators):
        return
    run = _Run(plan, data, histories, seed)
    for way, secret in (("secret", True), ("seeded", False)):
        noise = (
            np.array([run.selection(0.0, number, secret=secret).gain for number in range(_DRAWS)]) * comparison.people
        )
        yield observe.spread_at_least(
            "standard deviation of the noise on the validation clients' sum", noise, needed, way
        )
        yield observe.is_gaussian("distance of that noise from a Gaussian", noise, way)
    limit = len(validators) * mechanism.clip + _FAR * mechanism.sigma
    for gain in (1e6, -1e6, math.inf, math.nan):
        said = abs(run.selection(gain, 0, secret=True).gain) * comparison.people
        yield observe.at_most(f"sum of validation clients who all say {gain:g}", said, limit)
    both_outcomes = {run.selection(0.0, 0, secret=True, left_out=number) for number in (0, 1)}
    yield observe.is_equal(
        "outcomes of a comparison that one validation client more changes past the noise", len(both_outcomes) - 1, 0
    )
    yield from _decisions(run, comparison)


class _Run:
    """Repeated model selection of a plan."""

    def __init__(self, plan: Plan, data: LocalData, histories: Csr, seed: int) -> None:
        self._simulation = Simulation(plan, data, histories, Seeds.all_from(seed))
        self._comparison: Any = plan.model_selection
        self._seed = seed

    def selection(self, gain: float, number: int, *, secret: bool, left_out: int = 0) -> SelectionOutcome:
        """The outcome when all validation clients, but those that are left out, report the same gain."""
        made = self._simulation
        key = hashlib.sha256(f"comparison {self._seed} {number}".encode()).digest() if secret else None
        made.seeds = Seeds.all_from(self._seed + number, key)
        made.plan = replace(
            made.plan,
            model_selection=replace(self._comparison, validator=_Says(self._comparison.validator, gain, left_out)),
        )
        made.compare()
        if made.selection is None:
            raise ValueError("a plan with a comparison came to no verdict")
        return made.selection


def _decisions(run: _Run, comparison: ModelSelection) -> Iterator[AuditCheck]:
    """Check that the trained model is kept only where the noisy mean gain exceeds the threshold."""
    people, clip = comparison.people, comparison.mechanism.clip
    threshold = STANDARD_ERRORS * math.sqrt(people * clip**2 + comparison.mechanism.sigma**2) / people
    gains = (-clip, 0.0, 0.5 * threshold, threshold, 1.5 * threshold, 2.0 * threshold, clip)
    found = [run.selection(gain, number, secret=True) for number, gain in enumerate(gains)]
    wrong = sum((one.kept == "trained") != (one.gain > threshold * (1.0 + _A_LITTLE)) for one in found)
    yield observe.is_equal("comparisons that keep a model against their own threshold", wrong, 0)
