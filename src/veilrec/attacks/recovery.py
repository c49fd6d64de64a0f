"""How much of what it looked for an attack has found, and what would be found by chance.

Attackers that practise on clients of their own, settle on the way that finds most, and read those of others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

import numpy as np

from veilrec.attacks.subjects import SEEN, Observation, ObservedClicks, View
from veilrec.audit.bounds import at_least, at_most
from veilrec.audit.observe import simulate
from veilrec.client.federated import weights_of
from veilrec.client.local_training import Cohort, LocalData, OwnSources, SharedSource, examples_if_asked, places
from veilrec.core.arrays import Bools, Doubles, Floats, Offsets
from veilrec.core.csr import Csr
from veilrec.core.plan import Plan
from veilrec.core.schema import BOUND, ClientUpdates, RoundSpec, Schema, Tensor
from veilrec.privacy.mechanisms.sums import UpdateMechanism
from veilrec.privacy.randomness import FastSource, Source
from veilrec.server.round_specs import Tally
from veilrec.simulation.simulation import Seeds, Simulation
from veilrec.wire import messages

_UNKNOWN = 7_919  # of the seed of what clients add to their data: nobody knows what they drew


class _Overheard:
    """The mechanism of a plan, and the sums that it has put its noise on."""

    def __init__(self, mechanism: UpdateMechanism) -> None:
        self._mechanism = mechanism
        self.sums: dict[str, Doubles] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def protect(self, sums: MutableMapping[str, Doubles], spec: RoundSpec, source: Source) -> None:
        self._mechanism.protect(sums, spec, source)
        self.sums = {name: total.copy() for name, total in sums.items()}


@dataclass(frozen=True)
class WitnessedRound:
    """A round as everybody may know it before its first message."""

    spec: RoundSpec
    model: Mapping[str, Floats]  # that clients get
    view: Schema  # of their answers
    tally: Tally | None  # of reports, as it may be used


@dataclass(frozen=True)
class RoundRelease:
    """What a round gave away."""

    opened: WitnessedRound
    seen: Doubles  # the noisy sums, or the change of the model: all numbers of the view, end to end
    kept: Mapping[str, Floats]  # what clients kept for themselves before the round, [clients, ...] each


class Witness(Simulation):
    """A simulation that remembers what its last round gave away."""

    def __init__(self, plan: Plan, data: LocalData, histories: Csr, seeds: Seeds) -> None:
        self._overheard = _Overheard(plan.mechanism)
        super().__init__(
            replace(plan, mechanism=cast(UpdateMechanism, self._overheard), model_selection=None),
            data,
            histories,
            seeds,
        )

    def _ask(self, number: int, clients: Offsets) -> tuple[Tally | None, int]:
        self._last_tally, sent = super()._ask(number, clients)
        return self._last_tally, sent

    def _open_round(self, number: int, clients: Offsets) -> int:
        sent = super()._open_round(number, clients)
        server = self.server
        model = weights_of(messages.rounded_update(server.broadcast(), server.schema), server.view)
        copies = {name: values.copy() for name, values in model.items()}
        self.opened = WitnessedRound(server.spec, copies, server.view, self._last_tally)
        return sent

    def open(self, number: int, weights: Mapping[str, Floats]) -> WitnessedRound:
        """A round with these weights, before anybody has answered."""
        for name, values in weights.items():
            self.server.weights[name][...] = values
        self._open_round(number, self.sampler.draw(number))
        return self.opened

    def releases(self, rounds: int | None = None) -> Iterator[RoundRelease]:
        """All rounds of the plan, one after the other, or the first ones."""
        for number in range(self.plan.rounds if rounds is None else min(rounds, self.plan.rounds)):
            before = {name: values.copy() for name, values in self.server.weights.items()}
            kept = {name: values.copy() for name, values in self.private.items()}
            self.step(number)
            yield RoundRelease(self.opened, self._seen(before), kept)

    def _seen(self, before: Mapping[str, Floats]) -> Doubles:
        spec, view = self.opened.spec, self.opened.view
        if self.plan.mechanism.noise_on == "sum":
            parts = [self._overheard.sums[tensor.name] for tensor in view.tensors]
        else:
            changes = {name: values.astype(np.float64) - before[name] for name, values in self.server.weights.items()}
            rows = slice(None) if spec.rows is None else spec.rows
            parts = [changes[t.name][rows] if t.by_row else changes[t.name] for t in view.tensors]
        return np.concatenate([part.ravel() for part in parts])


def watched(plan: Plan, data: LocalData, histories: Csr, seeds: Seeds, removed: Offsets) -> Witness:
    """A training without the data of some clients: they still count, and are not there."""
    return simulate(plan, data, histories, seeds, removed=removed, kind=Witness)


def updates_of(
    plan: Plan,
    clients: Offsets,
    data: LocalData,
    opened: WitnessedRound,
    draws: int,
    kept: Mapping[str, Floats] | None = None,
) -> ClientUpdates:
    """The bounded updates that these clients would send in a round: their first one, or with what they kept."""
    spec = opened.spec
    if spec.rows is not None:
        data = data.inside(places(spec.rows, plan.schema.tables[0].shape[0]))
    private = plan.trainer.fresh_private_state(clients, draws) if kept is None else dict(kept)
    noise: OwnSources = SharedSource(FastSource(draws + _UNKNOWN, spec.number))
    learned = plan.trainer.learn(Cohort(clients, data, private, draws, noise), opened.model, spec)
    return plan.mechanism.bound(examples_if_asked(learned.updates, plan.sends_examples), spec)


def sums_of(
    plan: Plan,
    clients: Offsets,
    data: LocalData,
    opened: WitnessedRound,
    draws: int,
    kept: Mapping[str, Floats] | None = None,
) -> dict[str, Doubles]:
    """What all these clients together sent in a round, by tensor: in their first one, or with what they kept."""
    sums = {tensor.name: np.zeros(tensor.shape) for tensor in opened.view.tensors}
    for begin in range(0, len(clients), plan.clients_per_batch):
        some = clients[begin : begin + plan.clients_per_batch]
        own = None if kept is None else {name: values[some] for name, values in kept.items()}
        updates = updates_of(plan, some, data.take(some), opened, draws, own)
        for tensor in opened.view.tensors:
            _add_to(sums[tensor.name], updates, tensor)
    return sums


def _add_to(total: Doubles, updates: ClientUpdates, tensor: Tensor) -> None:
    """Add what updates say of a tensor."""
    from scipy.sparse import csr_matrix

    for packed, target in ((updates.tables, total), (updates.entries, total.reshape(-1, 1))):
        rows = packed.get(tensor.name)
        if rows is not None and len(rows.index):
            entries = np.arange(len(rows.index))
            one_for_each = csr_matrix((np.ones(len(entries)), (rows.index, entries)), (len(target), len(entries)))
            np.add(target, one_for_each @ rows.values.astype(np.float64), out=target)
    whole = _whole(updates, tensor.name)
    if whole is not None:
        total += whole.sum(axis=0, dtype=np.float64)


def products(updates: ClientUpdates, view: Schema, seen: Doubles) -> tuple[Doubles, Doubles]:
    """The products of updates with each other, [n, n], and with what is seen, [n]; how a bound is met is no part."""
    together, with_seen = np.zeros((updates.count, updates.count)), np.zeros(updates.count)
    for tensor in view.tensors:
        part = seen[view.places[tensor.name]]
        for block, columns in _blocks(updates, tensor):
            together += block @ block.T
            with_seen += block @ part[columns].astype(np.float32)
    return together, with_seen


def _blocks(updates: ClientUpdates, tensor: Tensor) -> Iterator[tuple[Floats, Offsets | slice]]:
    """What the updates say of a tensor, [n, numbers], and of which of its numbers that is."""
    n = updates.count
    for packed, width in ((updates.tables, tensor.shape[-1]), (updates.entries, 1)):
        rows = packed.get(tensor.name)
        if rows is None or not len(rows.index):
            continue
        touched, place = np.unique(rows.index, return_inverse=True)
        block = np.zeros((n, len(touched), width), np.float32)
        block[np.repeat(np.arange(n), np.diff(rows.offsets)), place] = rows.values
        yield block.reshape(n, -1), (touched.astype(np.int64)[:, None] * width + np.arange(width)).ravel()
    whole = _whole(updates, tensor.name)
    if whole is not None and tensor.name != BOUND:
        yield whole.reshape(n, -1), slice(None)


def _whole(updates: ClientUpdates, name: str) -> Floats | None:
    if name in updates.factors:
        return updates.factors[name].product()
    return updates.dense.get(name)


def reported(plan: Plan, clients: Offsets, data: LocalData, draws: int, period: int) -> Doubles:
    """What each client adds to the counts of reports, [clients, items]; of lies that it draws nobody knows."""
    if plan.reports is None:
        raise ValueError("the plan asks for no reports")
    mechanism, rows = plan.reports.mechanism, data.rows
    if mechanism.keep_probability < 1.0:
        own = np.zeros((len(clients), mechanism.length))
        own[rows.row_numbers(), rows.items] = 1.0
        return own
    told = [
        mechanism.count(rows.take(np.array([row])), clients[row : row + 1], seed=draws, period=period)
        for row in range(len(clients))
    ]
    return np.asarray(np.array(told, np.float64) * mechanism.step)


FALSE_POSITIVES = 0.01  # that an attack with scores may make
CONFIDENCE = 0.95  # of intervals


@dataclass(frozen=True)
class Recovery:
    """How many of the clicked news that an attack looked for it found; and how many others it took for clicked."""

    clicks: int
    found: int
    recall: float
    interval: tuple[float, float]  # of the recall, clicks of one upload being found or missed together
    false_positive_rate: float  # of the news that were not clicked
    chance: float  # recall of somebody who names every news as often, and does not look at the upload

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self) | {"confidence": CONFIDENCE}


def of_flags(flagged: Bools, clicked: Bools, known: Bools) -> Recovery:
    """Recovery by news that were flagged, [uploads, news] each; what is known anyway does not count."""
    found, clicks = (flagged & clicked).sum(axis=1), clicked.sum(axis=1)
    hits, total = int(found.sum()), int(clicks.sum())
    others = ~clicked & ~known
    of_news, of_others = (flagged & others).sum(axis=0), others.sum(axis=0)
    wrong = of_news / np.maximum(of_others, 1)  # of every news, by those who did not click it
    chance = float((wrong * clicked.sum(axis=0)).sum()) / max(1, total)
    rate = int(of_news.sum()) / max(1, int(of_others.sum()))
    return Recovery(total, hits, hits / max(1, total), _interval(found, clicks), rate, chance)


def of_scores(scores: Floats | Doubles, clicked: Bools, known: Bools) -> Recovery:
    """Recovery by scores of news, with the threshold that one of a hundred of the others passes at most."""
    others = scores[~clicked & ~known]
    allowed = int(FALSE_POSITIVES * len(others))
    threshold = np.partition(others, len(others) - 1 - allowed)[len(others) - 1 - allowed] if len(others) else np.inf
    return of_flags(scores > threshold, clicked, known)


def _interval(found: Offsets, clicks: Offsets) -> tuple[float, float]:
    """Clopper-Pearson, for fewer clicks where uploads differ more than independent clicks would make them.

    The number of clicks is divided by the design effect: the variance of the recall between uploads over that of as
    many independent clicks.
    """
    total = float(clicks.sum())
    if total == 0.0:
        return 0.0, 1.0
    recall = float(found.sum()) / total
    effect = 1.0
    if 0.0 < recall < 1.0 and len(clicks) > 1:
        spread = float(((found - recall * clicks) ** 2).sum()) * len(clicks) / (len(clicks) - 1)
        effect = max(1.0, spread / (recall * (1.0 - recall) * total))
    return proportion_interval(recall * total / effect, total / effect)


def proportion_interval(hits: float, trials: float) -> tuple[float, float]:
    """Clopper-Pearson."""
    alpha = (1.0 - CONFIDENCE) / 2
    return at_least(hits, trials, alpha), at_most(hits, trials, alpha)


@dataclass(frozen=True)
class Usual:
    """What the score of every news is when nobody has clicked it, from uploads of the attacker's own clients.

    Popular news, long titles and common words score high for everybody; measured against what is usual for a news, a
    score says something of one user, and an attack that learns nothing finds what chance finds.
    """

    mean: Doubles  # [news]
    spread: Doubles

    @classmethod
    def of(cls, scores: Floats | Doubles, clicked: Bools) -> Usual:
        """From scores [uploads, news] of clients whose clicks the attacker knows."""
        others = ~clicked
        count = np.maximum(others.sum(axis=0), 1)
        mean = np.where(others, scores, 0.0).sum(axis=0, dtype=np.float64) / count
        square = np.where(others, (scores - mean) ** 2, 0.0).sum(axis=0, dtype=np.float64) / count
        spread = np.sqrt(square)
        typical = float(np.median(spread))
        # A news whose score hardly ever moves would pass any threshold at the first touch.
        return cls(mean, np.maximum(spread, typical / 3.0 if typical > 0.0 else 1.0))

    def against(self, scores: Floats | Doubles) -> Doubles:
        """How unusual scores are."""
        unusual: Doubles = (scores - self.mean) / self.spread
        return unusual


By = Literal["word-rows", "dense", "sum", "item-rows", "reports", "values"]
Score = Callable[[Observation], Floats]  # of every news that is looked at
_Seen = Mapping[View, Observation]  # of one client


@dataclass(frozen=True)
class AttackFinding:
    """What one attack found in what one adversary sees."""

    view: View
    by: By
    how: str  # which rows or layer gave it away
    updates: int
    recovery: Recovery

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        row = {"by": self.by, "view": self.view, "seen": SEEN[self.view], "how": self.how, "updates": self.updates}
        return row | self.recovery.to_json()


class TrainedAttack(ABC):
    """An attack: practises on the attacker's own devices, settles on how, and reads those that are attacked."""

    view: View

    def practise(self, seen: Observation) -> None:  # noqa: B027
        """Take in what is seen of one of the attacker's own clients."""

    def settle(self) -> None:  # noqa: B027
        """Decide how to read, from what was practised."""

    @abstractmethod
    def read(self, seen: Observation) -> None:
        """Take in what is seen of a client that is attacked."""

    @abstractmethod
    def findings(self, targets: ObservedClicks) -> tuple[AttackFinding, ...]:
        """What was found, held against the truth."""


def found_by(
    readers: Sequence[TrainedAttack], own: Iterable[_Seen], attacked: Iterable[_Seen], targets: ObservedClicks
) -> tuple[AttackFinding, ...]:
    """What readers find in what is seen of those attacked, each in its view, after practising on the own clients."""
    for seen in own:
        for reader in readers:
            reader.practise(seen[reader.view])
    for reader in readers:
        reader.settle()
    for seen in attacked:
        for reader in readers:
            reader.read(seen[reader.view])
    return tuple(finding for reader in readers for finding in reader.findings(targets))


class BestScore(TrainedAttack):
    """The one of several scores that finds most on the attacker's own clients."""

    def __init__(self, view: View, by: By, own: ObservedClicks, scores: Mapping[str, Score]) -> None:
        self.view, self._by, self._own, self._scores = view, by, own, scores
        self._practised: list[list[Floats]] = []
        self._read: list[Doubles] = []
        self.best = 0.0  # the recall on the attacker's own clients

    def practise(self, seen: Observation) -> None:
        """Take in what is seen of one of the attacker's own clients."""
        self._practised.append([score(seen) for score in self._scores.values()])

    def settle(self) -> None:
        """Decide how to read, from what was practised."""
        best = -1.0
        for at, (name, score) in enumerate(self._scores.items()):
            values = np.array([practised[at] for practised in self._practised])
            usual = Usual.of(values, self._own.clicked)
            recall = of_scores(usual.against(values), self._own.clicked, self._own.shown).recall
            if recall > best:
                self.best = best = recall
                self._how, self._score, self._usual = name, score, usual
        self._practised.clear()

    def read(self, seen: Observation) -> None:
        """Take in what is seen of a client that is attacked."""
        self._read.append(self.unusual(seen))

    def unusual(self, seen: Observation) -> Doubles:
        """Score every news of one client."""
        return self._usual.against(self._score(seen))

    @property
    def how(self) -> str:
        """The score that was settled on."""
        return self._how

    def findings(self, targets: ObservedClicks) -> tuple[AttackFinding, ...]:
        """What was found, held against the truth."""
        recovery = of_scores(np.array(self._read), targets.clicked, targets.shown)
        return (AttackFinding(self.view, self._by, self._how, len(self._read), recovery),)


class LikeOwn(TrainedAttack):
    """Where no layer meets news vectors: a news scores by how like the upload is to those of own clients with it."""

    how = "like uploads of own devices that clicked it"

    def __init__(self, view: View, by: By, own: ObservedClicks) -> None:
        self.view, self._by = view, by
        self._own, self._clicked = own, own.clicked.astype(np.float64)
        self._practised: list[Doubles] = []
        self._read: list[Doubles] = []

    def practise(self, seen: Observation) -> None:
        """Take in what is seen of one of the attacker's own clients."""
        self._practised.append(_flat(seen))

    def settle(self) -> None:
        """Learn what is usual for every news, from what was practised."""
        self._uploads = np.array(self._practised)
        among_own = self._uploads @ self._uploads.T
        np.fill_diagonal(among_own, 0.0)  # nobody is told by itself
        self._usual = Usual.of(among_own @ self._clicked, self._own.clicked)

    def read(self, seen: Observation) -> None:
        """Take in what is seen of a client that is attacked."""
        self._read.append(self.unusual(seen))

    def unusual(self, seen: Observation) -> Doubles:
        """Score every news of one client."""
        return self._usual.against(self._uploads @ _flat(seen) @ self._clicked)

    def findings(self, targets: ObservedClicks) -> tuple[AttackFinding, ...]:
        """What was found, held against the truth."""
        recovery = of_scores(np.array(self._read), targets.clicked, targets.shown)
        return (AttackFinding(self.view, self._by, self.how, len(self._read), recovery),)


def _flat(seen: Observation) -> Doubles:
    """All that is seen as one vector of length 1."""
    whole = np.concatenate([values.ravel() for values in seen.values()])
    return np.asarray(whole / max(float(np.linalg.norm(whole)), np.finfo(np.float64).tiny))
