"""Audit of local DP: messages computed from attention and labels that a client randomises.

The plan's own local trainer and mechanisms run with a recorder between them, and with a fake mechanism whose outputs do
not depend on anybody's data: a message that still changes with the history or the clicks of its client contains more
than the randomised reports.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from scipy.special import chdtr, gammaincinv

from veilrec.audit import whole_run
from veilrec.audit.observe import ALPHA, AuditCheck, at_most, bare, has_law, is_equal, none_repeats, rate_at_most
from veilrec.audit.streams import repeats
from veilrec.client.local_training import Cohort, OwnSources, examples_if_asked
from veilrec.client.news_data import HEAD, OwnImpressions, blocks_of
from veilrec.core.arrays import Doubles, Indices, Offsets
from veilrec.core.csr import Csr, packed
from veilrec.core.plan import Plan
from veilrec.core.schema import RoundSpec
from veilrec.privacy.accounting import delta_of, epsilon_of
from veilrec.privacy.events import ComposedEvent, LaplaceEvent, training_event
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.reports import MadeOfReports
from veilrec.privacy.randomness import FastSource, KeyedSource, Source
from veilrec.simulation.pieces import CohortWorker
from veilrec.simulation.simulation import Seeds, Simulation, one_of
from veilrec.wire import messages

_NUMBERS, _LABELS = 50_000, 20_000  # that the plan's mechanisms are asked for once more
_SLACK = 0.002
_FAR_BEYOND = 50.0  # a claim: one vector refutes it alone, and nothing has to be composed
_EXTRA = 3_000  # rounds that no run reaches
_CLIENTS = 40  # whose messages are compared
_REPEATS = 60  # vectors of noise that are compared with each other
_REPORTING, _WORDS = 40, 8  # clients whose reports of every round are looked at, and first words of their streams
_SIZE = "mean size of the noise on attention"
_STRONG = 1e3  # times the basis vectors of the start: almost all attention is on one of them
_LONGEST = 12  # history that somebody else has
_USER_ENCODER = ("clicks.", "newcomer", "pad")  # what a model reads histories with, and nothing else


@dataclass
class Heard:
    """Recorded reports, call by call: with a secret, a call belongs to one client."""

    attention: list[Doubles] = field(default_factory=list)  # as it is
    released: list[Doubles] = field(default_factory=list)
    clicks: list[Offsets] = field(default_factory=list)
    items: list[Offsets] = field(default_factory=list)
    told: list[Offsets] = field(default_factory=list)  # places: the label, then the other candidates

    @property
    def most(self) -> int:
        """The largest number of vectors or labels in a call."""
        return max((len(part) for part in (*self.released, *self.told)), default=0)


class _Attention:
    """The attention noise of a plan, recorded; or, as `liar`, replaced by data-independent values."""

    def __init__(self, noise: Any, heard: Heard, *, liar: bool) -> None:
        self._noise, self._heard, self._liar = noise, heard, liar

    def __getattr__(self, name: str) -> Any:
        return getattr(self._noise, name)

    def add(self, attention: Doubles, source: Source) -> Doubles:
        """Record the release of attention."""
        if self._liar:
            generator = np.random.default_rng([7, len(self._heard.released)])
            released = generator.uniform(0.0, 1.0, np.shape(attention))
        else:
            released = self._noise.add(attention, source)
        self._heard.attention.append(np.array(attention))
        self._heard.released.append(np.array(released))
        return released


class _Labels:
    """The label mechanism of a plan, recorded; or, as `liar`, replaced by data-independent values."""

    def __init__(self, labels: Any, heard: Heard, *, liar: bool) -> None:
        self._labels, self._heard, self._liar = labels, heard, liar

    def __getattr__(self, name: str) -> Any:
        return getattr(self._labels, name)

    def release(self, clicks: Offsets, items: Offsets, source: Source) -> Offsets:
        """Record the release of labels."""
        if self._liar:
            places = (np.arange(1 + self._labels.negatives) + len(self._heard.told)) % items[:, np.newaxis]
            told = np.where(np.arange(1 + self._labels.negatives) < items[:, np.newaxis], places, -1)
        else:
            told = self._labels.release(clicks, items, source)
        self._heard.clicks.append(np.array(clicks))
        self._heard.items.append(np.array(items))
        self._heard.told.append(np.array(told))
        return told


def _overheard(plan: Plan, heard: Heard, *, liar: bool = False) -> Plan:
    """The plan with recorded report mechanisms."""
    trainer: Any = copy.copy(plan.trainer)
    noise = trainer.noise
    trainer.noise = replace(
        noise, attention=_Attention(noise.attention, heard, liar=liar), labels=_Labels(noise.labels, heard, liar=liar)
    )
    return replace(plan, trainer=trainer)


def local_checks(
    plan: Plan, data: OwnImpressions, histories: Csr, guarantee: Guarantee, *, rounds: int, seed: int
) -> Iterator[AuditCheck]:
    """Check what the statement needs of the reports against the recorded ones."""
    mechanism, noise = cast(MadeOfReports, plan.mechanism), getattr(plan.trainer, "noise", None)
    mine = noise is not None and noise.attention is mechanism.attention and noise.labels is mechanism.labels
    yield is_equal("what clients learn from", "what is accounted for" if mine else "else", "what is accounted for")
    if noise is None:
        return
    runs = {
        "secret": _run(plan, data, histories, Seeds.all_from(seed, _secret(seed, 0)), rounds),
        "seeded": _run(plan, data, histories, Seeds.all_from(seed), rounds),
    }
    samples = runs["secret"].most
    yield at_most("impressions that a message tells of", samples, mechanism.samples)
    scale = math.inf
    for way, heard in runs.items():
        asked = _asked(plan, way, seed)
        yield from _noise_checks(plan, way, heard, asked)
        yield from _label_checks(plan, way, heard, asked)
        scale = min(scale, float(np.mean(np.abs(_noise(plan, asked)))))
    yield from _every_round(plan, data, seed)
    yield from _moves(plan, seed)
    yield from _replayed(plan, data, seed)
    yield from _account(plan, data, guarantee, samples, scale, seed)


def _secret(seed: int, number: int) -> bytes:
    return hashlib.sha256(f"reports {seed} {number}".encode()).digest()


def _run(plan: Plan, data: OwnImpressions, histories: Csr, seeds: Seeds, rounds: int) -> Heard:
    """Simulate some rounds and record the reports."""
    heard = Heard()
    simulation = Simulation(_overheard(plan, heard), data, histories, seeds)
    for number in range(rounds):
        simulation.step(number)
    return heard


def _asked(plan: Plan, way: str, seed: int) -> Heard:
    """Sample the plan's mechanisms many times: attention on one basis vector, impressions of any size."""
    noise = cast(Any, plan.trainer).noise
    heard, draws = Heard(), -(-_NUMBERS // noise.attention.basis)
    sources: dict[str, Source] = {"secret": KeyedSource(_secret(seed, 1), _EXTRA), "seeded": FastSource(seed, _EXTRA)}
    attention = np.zeros((draws, noise.attention.basis))
    attention[:, 0] = 1.0
    _Attention(noise.attention, heard, liar=False).add(attention, sources[way])
    generator = np.random.default_rng(seed)
    items = generator.integers(2, 30, _LABELS)
    clicks = (generator.random(_LABELS) * items).astype(np.int64)
    _Labels(noise.labels, heard, liar=False).release(clicks, items, sources[way])
    return heard


def _clipped(attention: Doubles, norm: float) -> Doubles:
    """Clip attention to an L2 norm, independently of the code under audit."""
    lengths = np.sqrt((attention**2).sum(axis=-1, keepdims=True))
    return np.asarray(attention * np.minimum(1.0, norm / np.maximum(lengths, 1e-300)))


def _noise(plan: Plan, heard: Heard) -> Doubles:
    """Noise added to attention, [vectors, B]."""
    noise = cast(MadeOfReports, plan.mechanism).attention
    parts = [
        released - _clipped(attention, noise.clip_norm)
        for attention, released in zip(heard.attention, heard.released, strict=True)
    ]
    return np.concatenate([np.zeros((0, noise.basis)), *parts])


def _farthest(basis: int, norm: float) -> float:
    """L1 distance of clipped attention vectors, at most: one even on some basis vectors, one on all others."""
    return max(min(1.0, norm * math.sqrt(k)) + min(1.0, norm * math.sqrt(basis - k)) for k in range(1, max(basis, 2)))


def _noise_checks(plan: Plan, way: str, heard: Heard, asked: Heard) -> Iterator[AuditCheck]:
    """Check that Laplace noise of the accounted scale is on every reported number and never repeats."""
    mechanism = cast(MadeOfReports, plan.mechanism)
    charged, attention = mechanism.attention.event(), mechanism.attention
    epsilon = charged.epsilon if isinstance(charged, LaplaceEvent) else 0.0
    needed = _farthest(attention.basis, attention.clip_norm) / epsilon * (1.0 - _SLACK) if epsilon > 0.0 else math.inf
    told, more = _noise(plan, heard), _noise(plan, asked)
    yield _scale_at_least(_SIZE, told.ravel(), needed, f"{way}, in rounds")
    yield _scale_at_least(_SIZE, more.ravel(), needed, f"{way}, asked again")
    yield _is_laplace("distance of that noise from Laplace's", more.ravel(), way)
    half = len(told) // 2
    yield is_equal("numbers of attention without noise", bare(told[:half], told[half : 2 * half], needed), 0, way)
    noises = [(f"vector {n}", vector) for n, vector in enumerate(told[:_REPEATS])]
    yield none_repeats("vectors of noise that repeat each other", noises, needed, way)


def _scale_at_least(name: str, noise: Doubles, scale: float, where: str, alpha: float = ALPHA) -> AuditCheck:
    """Whether Laplace noise has at least this mean size: twice the sum over the scale is chi-square, exactly."""
    if not len(noise):
        return AuditCheck(name, 0.0, "at least", scale, False, where, ALPHA, (scale,))
    p_value = float(chdtr(2 * len(noise), 2.0 * float(np.sum(np.abs(noise))) / scale))
    lowest = scale * float(gammaincinv(len(noise), alpha)) / len(noise)
    return AuditCheck(name, float(np.mean(np.abs(noise))), "at least", scale, p_value > alpha, where, alpha, (lowest,))


def _is_laplace(name: str, noise: Doubles, where: str) -> AuditCheck:
    """Check the Laplace shape that the proof needs (Kolmogorov-Smirnov, with fitted scale)."""
    ordered = np.sort(noise / max(float(np.mean(np.abs(noise))), 1e-300))
    tail = 0.5 * np.exp(-np.abs(ordered))
    return has_law(name, np.where(ordered < 0.0, tail, 1.0 - tail), where)


def _label_checks(plan: Plan, way: str, heard: Heard, asked: Heard) -> Iterator[AuditCheck]:
    """Labels are true, and clicks are among the candidates, no more often than their epsilon allows.

    Of n items that are treated alike, epsilon allows the click e^eps / (e^eps + n - 1) of what they have together.
    That chances differ makes sums of them no more spread than those of their mean (Hoeffding 1956).
    """
    yield from _labels_hide(plan, f"{way}, in rounds", [heard])
    yield from _labels_hide(plan, f"{way}, asked again", [asked])


def _labels_hide(plan: Plan, where: str, heard: Sequence[Heard]) -> Iterator[AuditCheck]:
    epsilon = epsilon_of(cast(MadeOfReports, plan.mechanism).labels.event(), 0.0)
    clicks, items, told = (
        np.concatenate([part for one in heard for part in getattr(one, name)]) for name in ("clicks", "items", "told")
    )
    share = 1.0 / (1.0 + (items - 1) * math.exp(-epsilon))
    true = int(np.count_nonzero(told[:, 0] == clicks))
    yield rate_at_most("labels that are true", true, len(clicks), float(np.mean(share)), where)
    candidates = (told >= 0).sum(axis=1)
    among = int(np.count_nonzero((told == clicks[:, np.newaxis]).any(axis=1)))
    allowed = float(np.mean(np.minimum(1.0, candidates * share)))
    yield rate_at_most("clicks that are among the candidates", among, len(clicks), allowed, where)


def _every_round(plan: Plan, data: OwnImpressions, seed: int) -> Iterator[AuditCheck]:
    """Check the reports of some clients in every round of the plan: they are made, and nobody trains."""
    clients = np.flatnonzero(data.rows.lengths() > 0)[:_REPORTING].astype(np.int64)
    some, streams, words = data.take(clients), [], []
    heard = [Heard() for _ in range(plan.rounds)]
    for number, one in enumerate(heard):
        trainer: Any = _overheard(plan, one).trainer
        own = CohortWorker(plan, data, Seeds.all_from(seed, _secret(seed, 9))).local_noise(number, 0)
        words += [source.words(_WORDS) for _, source in own.split(clients)]
        trainer.ready(Cohort(clients, some, {}, seed, own), dict(plan.start), RoundSpec(number))
        noise = _noise(plan, one)
        streams += [
            (f"client {client} in round {number}", of)
            for client, of in zip(clients.tolist(), np.array_split(noise, len(clients)), strict=True)
        ]
    together = np.concatenate(words)
    looked = f"{len(streams):,} reports in {math.comb(len(streams), 2):,} pairs"
    yield is_equal(whole_run.ROUNDS, len(heard), plan.rounds, looked)
    yield is_equal(whole_run.WORDS, len(together) - len(np.unique(together)), 0, f"{len(words):,} streams")
    flat = [(name, noise.ravel()) for name, noise in streams]
    flat += [(f"round {number}", _noise(plan, one).ravel()) for number, one in enumerate(heard)]
    yield repeats(whole_run.REPEATS, flat, shifts=False)
    mechanism = cast(MadeOfReports, plan.mechanism)
    charged, attention = mechanism.attention.event(), mechanism.attention
    epsilon = charged.epsilon if isinstance(charged, LaplaceEvent) else 0.0
    needed = _farthest(attention.basis, attention.clip_norm) / epsilon * (1.0 - _SLACK) if epsilon > 0.0 else math.inf
    alpha = ALPHA / len(heard)
    scales = [
        _scale_at_least(_SIZE, _noise(plan, one).ravel(), needed, f"round {n}", alpha) for n, one in enumerate(heard)
    ]
    found = next((check for check in scales if not check.holds), scales[-1])
    yield replace(found, false_alarm_rate=ALPHA)
    for start in range(0, plan.rounds, max(1, plan.rounds // 4)):  # from some round on
        yield from _labels_hide(plan, f"from round {start} on", heard[start:])


def _moves(plan: Plan, seed: int) -> Iterator[AuditCheck]:
    """Check how far two attention vectors lie apart when released with the same noise."""
    attention = cast(Any, plan.trainer).noise.attention
    basis = attention.basis
    extremes = [np.repeat([1.0, 0.0], [k, basis - k]) for k in range(1, basis)]
    vectors = np.array([side / side.sum() for one in extremes for side in (one, 1.0 - one)])
    told = np.array([attention.add(one[np.newaxis], KeyedSource(_secret(seed, 2), _EXTRA))[0] for one in vectors])
    apart = float(np.abs(told[:, np.newaxis] - told).sum(axis=-1).max())
    yield at_most("how far a history moves what it is told as", apart, attention.sensitivity.value * (1.0 + 1e-9))


def _replayed(plan: Plan, data: OwnImpressions, seed: int) -> Iterator[AuditCheck]:
    """Check that with equal reports, messages of other histories and clicks are equal byte for byte."""
    clients = np.flatnonzero(data.rows.lengths() > 0)[:_CLIENTS].astype(np.int64)
    some = data.take(clients)
    sent = [_messages(plan, clients, one, seed) for one in (some, another(some, seed))]
    different = sum(first != second for first, second in zip(sent[0][0], sent[1][0], strict=True))
    yield is_equal("messages that change with more than what was told", different, 0, f"of {len(clients)}")
    yield is_equal("numbers of the user encoder that a message moves", sent[0][1] + sent[1][1], 0)


def _messages(plan: Plan, clients: Offsets, data: OwnImpressions, seed: int) -> tuple[list[bytes], int]:
    """Messages of clients with data-independent reports, and how many numbers of them concern the user encoder."""
    spec, made = RoundSpec(0), _overheard(plan, Heard(), liar=True)
    own = OwnSources(lambda client: KeyedSource(_secret(seed, 3), _EXTRA, client))
    learned = made.trainer.learn(Cohort(clients, data, {}, seed, own), dict(plan.start), spec)
    updates = plan.mechanism.bound(examples_if_asked(learned.updates, plan.sends_examples), spec)
    view = spec.view(plan.schema)
    moved = sum(
        int(np.count_nonzero(values)) for name, values in updates.dense.items() if name.startswith(_USER_ENCODER)
    )
    return [messages.encode_update(one_of(updates, place), view) for place in range(len(clients))], moved


def another(data: OwnImpressions, seed: int) -> OwnImpressions:
    """Neighbours of all clients: the same impressions, with other histories and clicks."""
    generator = np.random.default_rng([seed, 5])
    n_items = int(data.rows.items.max(initial=0)) + 1
    rows: list[Indices] = []
    for row in range(len(data.rows)):
        parts = [
            _other_block(past, np.concatenate([clicks, others]), generator, n_items)
            for past, clicks, others in blocks_of(data.rows.row(row))
        ]
        rows.append(np.concatenate([np.zeros(0, np.int32), *parts]))
    return OwnImpressions(packed(rows))


def _other_block(past: Indices, shown: Indices, generator: np.random.Generator, n_items: int) -> Indices:
    known = np.union1d(past, shown)
    length = int(generator.integers(0, _LONGEST))
    history = generator.choice(known if len(known) > 1 else np.arange(n_items), length).astype(np.int32)
    mixed = generator.permutation(shown)
    clicks = int(generator.integers(1, len(mixed)))
    head = np.array([length, clicks, len(mixed) - clicks], np.int32)
    return np.concatenate([head[:HEAD], history, mixed]).astype(np.int32)


def scores_of_reports(plan: Plan, data: OwnImpressions, *, runs: int, seed: int) -> tuple[Doubles, Doubles]:
    """Log-likelihood ratios of all reports of a client under its own data against a neighbour's, drawn under each.

    The server sends a model that separates histories as well as it can, and attacks the client where they lie farthest
    apart.
    """
    weights = dict(plan.start) | {"basis": plan.start["basis"] * np.float32(_STRONG)}
    clients = np.flatnonzero(data.rows.lengths() > 0).astype(np.int64)
    sides = (data, another(data, seed))

    def told(side: OwnImpressions, client: int, number: int, key: bytes) -> Heard:
        heard, only = Heard(), np.array([client], np.int64)
        trainer: Any = _overheard(plan, heard).trainer
        own = OwnSources(lambda one: KeyedSource(key, number, one))
        trainer.ready(Cohort(only, side.take(only), {}, seed, own), weights, RoundSpec(number))
        return heard

    def clean(client: int, number: int) -> list[tuple[Doubles, Offsets]]:
        heard = [told(side, client, number, _secret(seed, 6)) for side in sides]
        norm = cast(MadeOfReports, plan.mechanism).attention.clip_norm
        return [(_clipped(one.attention[0], norm), one.clicks[0]) for one in heard]

    def apart(client: int) -> float:
        (first, _), (second, _) = clean(client, 0)
        return float(np.abs(first - second).sum())

    client = int(max(clients.tolist(), key=apart))
    truths = [clean(client, number) for number in range(plan.rounds)]
    scores = []
    for place, side in enumerate(sides):
        drawn = [
            sum(
                _likelier(plan, told(side, client, number, _secret(seed, 8 + 2 * run + place)), truths[number])
                for number in range(plan.rounds)
            )
            for run in range(runs)
        ]
        scores.append(np.array(drawn, np.float64))
    return scores[0], scores[1]


def _likelier(plan: Plan, heard: Heard, truths: list[tuple[Doubles, Offsets]]) -> float:
    """Log-likelihood ratio of reports under the first truth against the second."""
    mechanism = cast(MadeOfReports, plan.mechanism)
    epsilon = epsilon_of(mechanism.labels.event(), 0.0)
    of = [
        epsilon * float(np.count_nonzero(heard.told[0][:, 0] == click))
        - float(np.abs(heard.released[0] - attention).sum()) / mechanism.attention.scale
        for attention, click in truths
    ]
    return of[0] - of[1]


def _account(
    plan: Plan, data: OwnImpressions, guarantee: Guarantee, samples: int, scale: float, seed: int
) -> Iterator[AuditCheck]:
    """Check that all reports of a client in a whole run cost no more than was promised."""
    mechanism, epsilon, delta = cast(MadeOfReports, plan.mechanism), guarantee.epsilon or 0.0, guarantee.delta or 0.0
    yield is_equal("unit of the mechanism", mechanism.unit, str(guarantee.unit))
    yield is_equal("adjacency of the mechanism", mechanism.adjacency, str(guarantee.adjacency))
    yield is_equal("whom the mechanism trusts", mechanism.trust, str(guarantee.trust))
    yield at_most("delta of the composed run at the claimed epsilon", delta_of(training_event(plan), epsilon), delta)
    participations = max(_participations(plan, data, secret, seed) for secret in (None, _secret(seed, 4)))
    told = participations * samples
    farthest = _farthest(mechanism.attention.basis, mechanism.attention.clip_norm)
    most = scale * (1.0 + 5.0 / math.sqrt(_NUMBERS))  # beyond 5 standard errors: 3e-7
    vector = LaplaceEvent(farthest / max(most, 1e-300))
    spent = vector.epsilon
    if vector.epsilon < epsilon + _FAR_BEYOND:
        event = ComposedEvent(((vector, told), (mechanism.labels.event(), told)))
        spent = epsilon_of(event, delta) * (1.0 - _SLACK)
    name = "epsilon of all that a client tells, from the noise that was measured"
    yield replace(at_most(name, spent, epsilon, f"{participations} participations"), false_alarm_rate=ALPHA)


def _participations(plan: Plan, data: OwnImpressions, secret: bytes | None, seed: int) -> int:
    """The largest number of rounds that one client takes part in."""
    sampler = Simulation(plan, data, data.rows, Seeds.all_from(seed, secret)).sampler
    drawn: Sequence[Offsets] = [sampler.draw(number) for number in range(plan.rounds)]
    return int(np.bincount(np.concatenate(drawn), minlength=1).max())
