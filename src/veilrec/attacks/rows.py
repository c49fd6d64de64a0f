"""Which news somebody clicked, from one upload of a news model's gradient.

The gradient of the table of words is zero but for the words of the news that a client has read (its rows); that of a
linear layer is a sum of products whose right sides are the vectors that went in, so that its rows span the vectors of
the clicked news (PrivateRec: the pooled history, for the layer behind the pooling). Neither cares about noise that was
added in the forward pass. Under noise on the gradient itself, news get scores instead.

Which items somebody has, from which rows of a message are there and how large they are.

A client changes the rows of its own items, and of others that it drew; reports before the first round name items
outright. Where the noise lies on a sum, the attacker sees the sum and knows what everybody else sent. News have no rows
of their own: their words do, see `gradient_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from veilrec.attacks import recovery, subjects
from veilrec.attacks.recovery import AttackFinding, BestScore, LikeOwn, Score, TrainedAttack, Witness, WitnessedRound
from veilrec.attacks.subjects import Observation, ObservedClicks, PublicKnowledge, Scene, View
from veilrec.client.local_training import LocalData
from veilrec.client.news_data import OwnImpressions
from veilrec.core import rng
from veilrec.core.arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.core.schema import Schema, Tensor
from veilrec.kernels.title_encoder import WORDS
from veilrec.privacy.randomness import FastSource
from veilrec.simulation.simulation import Seeds, one_of

# What counts as seen of a direction: squared singular values below this share of the largest are noise.
_FLOORS = (1e-10, 1e-6, 1e-2, 1.0)
_NOTHING = 1e-30  # a squared length that no row has
_ALL_THERE = "all rows of the title's words are there"


def recover_clicks(
    plan: Plan, data: LocalData, weights: Mapping[str, Floats], *, updates: int, rounds: int = 1, seed: int = 0
) -> tuple[AttackFinding, ...]:
    """Attack so many clients; first what the method protects against, then what the server sees that it trusts."""
    for name, count in (("updates", updates), ("rounds", rounds)):
        if count < 1:
            raise BadInput(f"{name} is {count}: give at least 1")
    known = subjects.public_news(plan, weights)
    targets, own = subjects.people_to_attack(data, len(known.titles), updates, seed)
    scene = Scene(plan, data, weights, rounds, seed)
    readers = [reader for view in subjects.views_of(plan) for reader in _readers(plan, known, own, view)]
    views = tuple(dict.fromkeys(reader.view for reader in readers))
    return recovery.found_by(
        readers, subjects.observe(scene, own.clients, views), subjects.observe(scene, targets.clients, views), targets
    )


def _readers(plan: Plan, known: PublicKnowledge, own: ObservedClicks, view: View) -> list[TrainedAttack]:
    """The attacks on one view: by the rows of words, where messages have them, and by what is sent whole."""
    titles = known.titles[own.news]
    words = word_scores(titles) if any(tensor.name == WORDS for tensor in plan.schema.tables) else {}
    dense = dense_scores(plan.schema, known, own)
    if view == "sum" and (words or dense):
        return [BestScore(view, "sum", own, {**words, **dense})]
    readers: list[TrainedAttack] = []
    if words:
        noisy = subjects.is_noisy(plan, view)
        readers.append(BestScore(view, "word-rows", own, words) if noisy else _WordRows(view, titles))
    if dense:
        readers.append(BestScore(view, "dense", own, dense))
    return readers or [LikeOwn(view, "sum" if view == "sum" else "dense", own)]


def word_scores(titles: Offsets) -> dict[str, Score]:
    """Score news by the rows of their titles' words."""
    return {
        "length of the rows of the title's words": lambda seen: row_lengths(seen[WORDS], titles),
        "shortest row of the title's words": lambda seen: shortest_row(seen[WORDS], titles),
    }


def dense_scores(schema: Schema, known: PublicKnowledge, own: ObservedClicks) -> dict[str, Score]:
    """Every layer over every kind of news vector of its width, for several ideas of what noise is."""
    scores: dict[str, Score] = {}
    for tensor in schema.dense:
        for what, vectors in known.vectors.items():
            if len(tensor.shape) == 2 and tensor.shape[0] > 1 and tensor.shape[1] == vectors.shape[1]:
                unit = unit_vectors(vectors[own.news])
                for floor in _FLOORS:
                    scores[f"{what} in the rows of {tensor.name}, above {floor:g}"] = _InRows(tensor.name, unit, floor)
    return scores


@dataclass(frozen=True)
class _InRows:
    """How much of a news vector lies in the space that the rows of a layer's gradient span."""

    layer: str
    unit: Floats  # [news, width], vectors of length 1
    floor: float

    def __call__(self, seen: Observation) -> Floats:
        return share_in_rows(seen[self.layer], self.unit, self.floor)


class _WordRows(TrainedAttack):
    """A news is flagged when the rows of all words of its title are there, and ranked by how much it explains."""

    def __init__(self, view: View, titles: Offsets) -> None:
        self.view, self._titles = view, titles
        self._rows: list[Bools] = []

    def read(self, seen: Observation) -> None:
        self._rows.append((seen[WORDS] != 0.0).any(axis=1))

    def findings(self, targets: ObservedClicks) -> tuple[AttackFinding, ...]:
        flagged = titles_in(np.array(self._rows), self._titles)
        explained = np.array([explains(*pair, self._titles) for pair in zip(flagged, targets.shown, strict=True)])
        flags = recovery.of_flags(flagged, targets.clicked, targets.shown)
        ranked = recovery.of_scores(explained, targets.clicked, targets.shown)
        first = f"{_ALL_THERE}, those first that no other title explains"
        return (
            AttackFinding(self.view, "word-rows", _ALL_THERE, len(flagged), flags),
            AttackFinding(self.view, "word-rows", first, len(flagged), ranked),
        )


def unit_vectors(vectors: Floats) -> Floats:
    """Scale vectors to length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, np.finfo(np.float32).tiny), np.float32)


def explains(flagged: Bools, shown: Bools, titles: Offsets) -> Doubles:
    """How many words each flagged title has to explain: [news], minus infinity for the others.

    Words of what was shown need no explanation. The others are shared out evenly among the flagged titles that have
    them: a word that one title alone can have brought counts fully for it.
    """
    scores = np.full(len(titles), -np.inf)
    candidates = np.flatnonzero(flagged & ~shown)
    if not len(candidates):
        return scores
    has = np.zeros((len(candidates), int(titles.max()) + 1), np.bool_)
    has[np.arange(len(candidates))[:, None], titles[candidates]] = True
    has[:, np.unique(titles[shown])] = False
    has[:, 0] = False
    rows = has[:, has.any(axis=0)].astype(np.float64)
    scores[candidates] = rows @ (1.0 / rows.sum(axis=0))
    return scores


def titles_in(rows: Bools, titles: Offsets) -> Bools:
    """Which titles [news, words] have all their words among the rows [uploads, vocabulary] that are there."""
    inside = np.ones((len(rows), len(titles)), np.bool_)
    for place in range(titles.shape[1]):
        words = titles[:, place]
        inside &= rows[:, words] | (words == 0)
    inside[:, ~(titles > 0).any(axis=1)] = False
    return inside


def row_lengths(table: Doubles, titles: Offsets) -> Floats:
    """Mean squared length of the rows of each title's words: [news]."""
    squares = (table**2).sum(axis=1)
    real = titles > 0
    total = np.where(real, squares[titles], 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(real.sum(axis=1), 1), np.float32)


def shortest_row(table: Doubles, titles: Offsets) -> Floats:
    """Logarithm of the squared length of the shortest row of each title's words: [news]; of no words, the least."""
    logs = np.log(np.maximum((table**2).sum(axis=1), _NOTHING))
    real = titles > 0
    shortest = np.where(real, logs[titles], np.inf).min(axis=1)
    return np.asarray(np.where(real.any(axis=1), shortest, np.log(_NOTHING)), np.float32)


def share_in_rows(gradient: Doubles, unit: Floats, floor: float) -> Floats:
    """Share of each unit vector [news, width] in the rows of a gradient [out, width], weak directions counting less.

    Sum over directions k of s_k^2 / (s_k^2 + floor s_1^2) (v_k . x)^2: 1 for a vector in the span of strong rows.
    """
    _, singular, directions = np.linalg.svd(gradient, full_matrices=False)
    if not singular[0] > 0.0:
        return np.zeros(len(unit), np.float32)
    strength = (singular / singular[0]) ** 2
    weights = strength / (strength + floor)
    return np.asarray(((unit @ directions.T) ** 2) @ weights, np.float32)


REPORTS = "reports"  # what a client told before the round, beside the tensors of its message
_MATRIX = 2


@dataclass(frozen=True)
class AttackPoint:
    """Where a model is attacked: so far trained, on these clients' data."""

    plan: Plan
    data: LocalData
    histories: Csr
    weights: Mapping[str, Floats]
    n_items: int
    seed: int

    def rounds(self) -> list[WitnessedRound]:
        """One of each kind of round, as clients meet it: rounds may be about different tensors."""
        witness = Witness(self.plan, self.data, self.histories, Seeds.all_from(self.seed))
        kinds: dict[tuple[str, ...] | None, WitnessedRound] = {}
        for number in range(self.plan.rounds):
            spec = self.plan.round_planner.next(number, self.weights, None) if self.plan.reports is None else None
            if spec is not None and spec.tensors in kinds:
                continue
            opened = witness.open(number, self.weights)
            kinds.setdefault(opened.spec.tensors, opened)
            if opened.spec.tensors is None:
                break
        return list(kinds.values())


def recover_rows(place: AttackPoint, *, updates: int) -> tuple[AttackFinding, ...]:
    """Attack so many clients; first what the method protects against, then what the server sees that it trusts."""
    if updates < 1:
        raise BadInput(f"updates is {updates}: give at least 1")
    if isinstance(place.data, OwnImpressions):
        return recover_clicks(place.plan, place.data, place.weights, updates=updates, seed=place.seed)
    rounds = place.rounds()
    targets, own = histories_of(place, updates)
    views = subjects.views_of(place.plan)
    readers = [reader for view in views for reader in _row_support_readers(place, rounds, own, view)]
    seen_own, seen = (observed(place, rounds, people.clients, views) for people in (own, targets))
    return recovery.found_by(readers, seen_own, seen, targets)


def histories_of(place: AttackPoint, count: int) -> tuple[ObservedClicks, ObservedClicks]:
    """Clients to attack, and as many of the attacker's own, with what they have."""
    able = np.flatnonzero(place.data.rows.lengths() > 0).astype(np.int64)
    if len(able) < 2:
        raise BadInput(f"only {len(able)} clients can learn: an attack needs 2, one of them the attacker's own")
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([place.seed, rng.COHORT])))
    clients = generator.permutation(able)[: 2 * count]
    rows = place.data.rows.take(clients)
    has: Bools = np.zeros((len(clients), place.n_items), np.bool_)
    has[rows.row_numbers(), rows.items] = True
    return ObservedClicks(clients, np.arange(place.n_items), has, np.zeros_like(has)).halves()


def item_tensors(opened: WitnessedRound, n_items: int) -> Iterator[Tensor]:
    """The tensors of a round's answers with a row for every item."""
    rows = n_items if opened.spec.rows is None else len(opened.spec.rows)
    for tensor in opened.view.tensors:
        if len(tensor.shape) == _MATRIX and tensor.shape[0] == rows:
            yield tensor


def named(opened: WitnessedRound, name: str) -> str:
    """A tensor of one of several rounds."""
    return f"{name} in round {opened.spec.number + 1}"


def _row_support_readers(
    place: AttackPoint, rounds: list[WitnessedRound], own: ObservedClicks, view: View
) -> list[TrainedAttack]:
    readers: list[TrainedAttack] = []
    scores: dict[str, Score] = {}
    for opened in rounds:
        for tensor in item_tensors(opened, place.n_items):
            key = named(opened, tensor.name)
            whose = RoundItems(key, opened, place.n_items)
            scores[f"length of the rows of {key}"] = Lengths(whose)
            scores[f"place of the rows of {key} by their length"] = Lengths(whose, by_place=True)
    if scores:
        readers.append(BestScore(view, "item-rows", own, scores))
    if place.plan.reports is not None:
        readers.append(BestScore(view, "reports", own, {"what was reported of each item": _of_reports}))
    return readers or [LikeOwn(view, "sum" if view == "sum" else "dense", own)]


def _of_reports(seen: Observation) -> Floats:
    return np.asarray(seen[REPORTS], np.float32)


@dataclass(frozen=True)
class RoundItems:
    """From rows of a round to all items."""

    key: str
    opened: WitnessedRound
    n_items: int

    def of(self, of_rows: Doubles) -> Floats:
        """A score for every item; 0, which is no surprise, for those that the round is not about."""
        rows = self.opened.spec.rows
        if rows is None:
            return np.asarray(of_rows, np.float32)
        scores = np.zeros(self.n_items, np.float32)
        scores[rows] = of_rows
        return scores


@dataclass(frozen=True)
class Lengths:
    """How long every row is; or its place among the rows of the message, which long and short histories share."""

    items: RoundItems
    by_place: bool = False

    def __call__(self, seen: Observation) -> Floats:
        """Score every item."""
        lengths = np.linalg.norm(seen[self.items.key], axis=1)
        return self.items.of(np.argsort(np.argsort(lengths, kind="stable")).astype(float) if self.by_place else lengths)


def observed(
    place: AttackPoint,
    rounds: list[WitnessedRound],
    clients: Offsets,
    views: tuple[View, ...],
    *,
    with_reports: bool = True,
) -> Iterator[Mapping[View, Observation]]:
    """What is seen of one client after the other, in all kinds of rounds."""
    plan = place.plan
    for begin in range(0, len(clients), plan.clients_per_batch):
        some = clients[begin : begin + plan.clients_per_batch]
        data = place.data.take(some)
        bounded = [(opened, recovery.updates_of(plan, some, data, opened, place.seed)) for opened in rounds]
        told = None if plan.reports is None or not with_reports else recovery.reported(plan, some, data, place.seed, 0)
        for row, client in enumerate(some):
            seen: dict[View, dict[str, Doubles]] = {view: {} for view in views}
            for opened, updates in bounded:
                number = opened.spec.number
                for view in views:
                    source = FastSource(place.seed, rng.NOISE, number, int(client), one_generator=True)
                    parts = subjects.seen_of(plan, one_of(updates, row), opened.spec, view, source)
                    seen[view] |= {named(opened, name): values for name, values in parts.items()}
            if told is not None:
                for view in views:
                    seen[view][REPORTS] = _told(place, view, told[row], int(client), data.rows.row(row))
            yield seen


def _told(place: AttackPoint, view: View, exact: Doubles, client: int, items: Indices) -> Doubles:
    """A client's report as it is seen: the bits that it sent, the noisy counts less those of all others, or itself."""
    if place.plan.reports is None:
        raise ValueError("the plan asks for no reports")
    mechanism = place.plan.reports.mechanism
    source = FastSource(place.seed, rng.HISTOGRAM, client, one_generator=True)
    if mechanism.keep_probability < 1.0:  # a client lies by itself
        own = np.zeros(mechanism.length, np.bool_)
        own[items] = True
        return np.asarray(mechanism.report(own, source).value, np.float64)
    if view != "sum":
        return exact
    return np.asarray(mechanism.protect(np.rint(exact / mechanism.step).astype(np.int64), source))
