"""What of a history can be worked out from the numbers of a message: gradient inversion, by method.

In matrix factorisation every row that a client changes moves along its own secret vector, items that it has one way and
items that it drew the other: the main direction of the message tells the two apart. In news models the gradient of a
layer is a sum of products whose right sides are vectors of the news that were read: the closed form is their span, and
a pursuit takes the news one by one that explain most of what is left.

Three adversaries: a server that gets messages one by one, a server that gets only the exact sum of a cohort (secure
aggregation), and somebody outside, who sees the sum as it is released.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from veilrec.attacks import rows
from veilrec.attacks.recovery import BestScore, LikeOwn, Recovery, Score, WitnessedRound, sums_of
from veilrec.attacks.rows import AttackPoint, Lengths, RoundItems
from veilrec.attacks.subjects import Observation, ObservedClicks, PublicKnowledge, people_to_attack, public_news
from veilrec.client.news_data import OwnImpressions
from veilrec.core import rng
from veilrec.core.arrays import Doubles, Floats, Offsets
from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.core.schema import Schema
from veilrec.kernels.title_encoder import WORDS
from veilrec.privacy.randomness import FastSource
from veilrec.server.round_specs import CohortSampler

View = Literal["message", "secure sum", "released"]
SEEN: dict[View, str] = {
    "message": "one client's message, as a server gets it that adds up messages itself",
    "secure sum": "the sum of a cohort's messages and nothing else: a curious server under secure aggregation",
    "released": "the same sum with its noise: somebody outside, who sees the models",
}
_COHORTS = 6  # that are looked at, on either side
_STEPS = 40  # of a pursuit
_DIRECTIONS = 64  # of a layer's gradient that a pursuit looks at


@dataclass(frozen=True)
class Inverted:
    """What was worked out from what one adversary sees."""

    view: View
    how: str
    clients: int
    cohort: int  # messages in a sum; 1 for a single message
    recovery: Recovery

    by = "values"  # and not by which of them are there

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        row = {"view": self.view, "seen": SEEN[self.view], "how": self.how, "clients": self.clients}
        return row | {"cohort": self.cohort} | self.recovery.to_json()


def views_of(plan: Plan) -> tuple[View, ...]:
    """Who sees something of his own: noise that clients add is in their sum already."""
    return ("message", "secure sum", "released") if plan.mechanism.noise_on == "sum" else ("message", "secure sum")


def invert(place: AttackPoint, *, updates: int) -> tuple[Inverted, ...]:
    """Work out the histories of so many clients, by each adversary."""
    if updates < 1:
        raise BadInput(f"updates is {updates}: give at least 1")
    known = public_news(place.plan, place.weights) if isinstance(place.data, OwnImpressions) else None
    if known is None:
        targets, own = rows.histories_of(place, updates)
    else:
        targets, own = people_to_attack(place.data, len(known.titles), updates, place.seed)
    rounds = place.rounds()
    scores = scores_of(place.plan, place.n_items, rounds, own, known)
    found = []
    for view in views_of(place.plan):
        reader: Any = BestScore("message", "values", own, scores) if scores else LikeOwn("message", "values", own)
        for seen in _observed(place, rounds, own.clients, view, 0):
            reader.practise(seen)
        reader.settle()
        for seen in _observed(place, rounds, targets.clients, view, 1):
            reader.read(seen)
        (finding,) = reader.findings(targets)
        size = 1 if view == "message" else _cohort_size(place)
        found.append(Inverted(view, finding.how, finding.updates, size, finding.recovery))
    return tuple(found)


def scores_of(
    plan: Plan, n_items: int, rounds: list[WitnessedRound], own: ObservedClicks, known: PublicKnowledge | None
) -> dict[str, Score]:
    """All ways that there are for this model."""
    scores: dict[str, Score] = {}
    if known is not None:
        return _scores_of_news(plan.schema, rounds, own, known)
    for opened in rounds:
        for tensor in rows.item_tensors(opened, n_items):
            items = RoundItems(rows.named(opened, tensor.name), opened, n_items)
            scores[f"main direction of {items.key}, the side of the few"] = Direction(items, "few")
            scores[f"main direction of {items.key}, the side of the longest"] = Direction(items, "long")
            scores[f"length of the rows of {items.key}"] = Lengths(items)
    return scores


def _scores_of_news(
    schema: Schema, rounds: list[WitnessedRound], own: ObservedClicks, known: PublicKnowledge
) -> dict[str, Score]:
    scores: dict[str, Score] = {}
    titles = known.titles[own.news]
    for opened in rounds:
        told = {tensor.name for tensor in opened.view.tensors}
        of_layers = rows.dense_scores(Schema(tuple(t for t in schema.tensors if t.name in told)), known, own)
        scores |= {how: _OfRound(score, opened) for how, score in of_layers.items()}
        for tensor in opened.view.dense:
            for what, vectors in known.vectors.items():
                if len(tensor.shape) == 2 and tensor.shape[0] > 1 and tensor.shape[1] == vectors.shape[1]:
                    pursuit = Pursuit(tensor.name, rows.unit_vectors(vectors[own.news]))
                    scores[f"pursuit of {what} in {tensor.name}"] = _OfRound(pursuit, opened)
        if WORDS in told:
            scores |= {how: _OfRound(score, opened) for how, score in rows.word_scores(titles).items()}
    return scores


@dataclass(frozen=True)
class _OfRound:
    """A score of tensors by their plain names."""

    score: Score
    opened: WitnessedRound

    def __call__(self, seen: Observation) -> Floats:
        return self.score({t.name: seen[rows.named(self.opened, t.name)] for t in self.opened.view.tensors})


Side = Literal["few", "long"]


@dataclass(frozen=True)
class Direction:
    """How far every row moves along the main direction of them all, in units of the message."""

    items: RoundItems
    side: Side

    def __call__(self, seen: Observation) -> Floats:
        """Score every item."""
        along = main_direction(seen[self.items.key], self.side)
        moved = along[along != 0.0]
        return self.items.of(along / max(float(np.sqrt(np.mean(moved**2))), 1e-30) if len(moved) else along)


def main_direction(table: Doubles, side: Side) -> Doubles:
    """Rows [items, width] along the direction that explains most of them.

    Own items move one way and those that were drawn as negatives the other; which is which, their number tells: there
    are fewer own ones. Under noise everything moves, and the side of the longest is taken.
    """
    if table.shape[1] == 1:
        return np.asarray(table[:, 0])
    _, vectors = np.linalg.eigh(table.T @ table)
    along = table @ vectors[:, -1]
    forward = (along > 0.0).sum() <= (along < 0.0).sum() if side == "few" else (along**3).sum() >= 0.0
    return np.asarray(along if forward else -along)


@dataclass(frozen=True)
class Pursuit:
    """Orthogonal matching pursuit: the news that explain a layer's gradient, one by one; the first score highest."""

    layer: str
    unit: Floats  # [news, width], vectors of length 1

    def __call__(self, seen: Observation) -> Floats:
        """Score every news."""
        _, strength, directions = np.linalg.svd(seen[self.layer], full_matrices=False)
        strength, directions = strength[:_DIRECTIONS], directions[:_DIRECTIONS]
        scores = np.zeros(len(self.unit), np.float32)
        if not strength[0] > 0.0:
            return scores
        atoms = (self.unit @ directions.T).astype(np.float64)  # in the span of the gradient's rows
        lengths = np.maximum(np.linalg.norm(atoms, axis=1, keepdims=True), 1e-9)
        atoms = atoms / np.maximum(lengths, 0.1)  # what hardly lies in the span explains nothing
        left = np.diag(strength / strength[0])
        for step in range(min(_STEPS, len(strength))):
            explains = np.linalg.norm(atoms @ left.T, axis=1) * (scores == 0.0)
            best = int(np.argmax(explains))
            scores[best] = _STEPS - step
            axis = atoms[best] / max(float(np.linalg.norm(atoms[best])), 1e-12)
            left = left - np.outer(left @ axis, axis)
        return scores + np.asarray(lengths[:, 0] / (1.0 + lengths[:, 0]), np.float32)


def _cohort_size(place: AttackPoint) -> int:
    return place.plan.cohort.among(int((place.data.rows.lengths() > 0).sum()))


def _observed(
    place: AttackPoint, rounds: list[WitnessedRound], clients: Offsets, view: View, side: int
) -> Iterator[Mapping[str, Doubles]]:
    """What an adversary sees of one client after the other: its message, or the sum of a cohort that it is in."""
    if view == "message":
        yield from (seen["message"] for seen in rows.observed(place, rounds, clients, ("message",), with_reports=False))
        return
    parts = [part for part in np.array_split(clients, min(_COHORTS, len(clients))) if len(part)]
    for number, part in enumerate(parts):
        seen = sum_with(place, rounds, part, view, side * _COHORTS + number)
        for _ in part:
            yield seen


def sum_with(
    place: AttackPoint, rounds: list[WitnessedRound], inside: Offsets, view: View, number: int
) -> Mapping[str, Doubles]:
    """The sum of a cohort that some clients are in; the others are drawn as the plan draws them."""
    plan = place.plan
    able = np.flatnonzero(place.data.rows.lengths() > 0).astype(np.int64)
    drawn = CohortSampler(plan.cohort, able, place.seed + number).draw(number)
    others = drawn[~np.isin(drawn, inside)][: max(0, _cohort_size(place) - len(inside))]
    cohort = np.sort(np.concatenate([inside, others]))
    seen: dict[str, Doubles] = {}
    for opened in rounds:
        parts = sums_of(plan, cohort, place.data, opened, place.seed + number)
        source = FastSource(place.seed, rng.NOISE, number, opened.spec.number, one_generator=True)
        if view == "released":
            plan.mechanism.protect(parts, opened.spec, source)
        elif plan.mechanism.noise_on == "message":
            noise = plan.mechanism.noise_of_messages(opened.view, np.ones(len(cohort)), source.generator())
            for name, values in noise.items():
                parts[name] += values
        seen |= {rows.named(opened, name): values for name, values in parts.items()}
    return seen
