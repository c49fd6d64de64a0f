"""Which news somebody clicked, from one upload of a news model's gradient.

The gradient of the table of words is zero but for the words of the news that a device has read (its rows); that of a
linear layer is a sum of products whose right sides are the vectors that went in, so that its rows span the vectors of
the clicked news (PrivateRec: the pooled history, for the layer behind the pooling). Neither cares about noise that was
added in the forward pass. Under noise on the gradient itself, news get scores instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Bools, Doubles, Floats, Offsets
from veilrec.device.learner import LocalData
from veilrec.device.title_encoder import WORDS
from veilrec.errors import BadInput
from veilrec.plan import Plan
from veilrec.simulate.attacks.observed import (
    Clicks,
    Known,
    Observation,
    Scene,
    View,
    is_noisy,
    observe,
    people_to_attack,
    public_news,
    views_of,
)
from veilrec.simulate.attacks.readers import BestScore, Finding, LikeOwn, Reader, Score, found_by
from veilrec.simulate.attacks.recovery import of_flags, of_scores
from veilrec.updates import Schema

# What counts as seen of a direction: squared singular values below this share of the largest are noise.
_FLOORS = (1e-10, 1e-6, 1e-2, 1.0)
_NOTHING = 1e-30  # a squared length that no row has
_ALL_THERE = "all rows of the title's words are there"


def recover_clicks(
    plan: Plan, data: LocalData, weights: Mapping[str, Floats], *, uploads: int, rounds: int = 1, seed: int = 0
) -> tuple[Finding, ...]:
    """Attack so many devices; first what the method protects against, then what the server sees that it trusts."""
    for name, count in (("uploads", uploads), ("rounds", rounds)):
        if count < 1:
            raise BadInput(f"{name} is {count}: give at least 1")
    known = public_news(plan, weights)
    targets, own = people_to_attack(data, len(known.titles), uploads, seed)
    scene = Scene(plan, data, weights, rounds, seed)
    readers = [reader for view in views_of(plan) for reader in _readers(plan, known, own, view)]
    views = tuple(dict.fromkeys(reader.view for reader in readers))
    return found_by(readers, observe(scene, own.devices, views), observe(scene, targets.devices, views), targets)


def _readers(plan: Plan, known: Known, own: Clicks, view: View) -> list[Reader]:
    """The attacks on one view: by the rows of words, where messages have them, and by what is sent whole."""
    titles = known.titles[own.news]
    words: dict[str, Score] = {}
    if any(tensor.name == WORDS for tensor in plan.schema.tables):
        words["length of the rows of the title's words"] = lambda seen: row_lengths(seen[WORDS], titles)
        words["shortest row of the title's words"] = lambda seen: shortest_row(seen[WORDS], titles)
    dense = dense_scores(plan.schema, known, own)
    if view == "sum" and (words or dense):
        return [BestScore(view, "sum", own, {**words, **dense})]
    readers: list[Reader] = []
    if words:
        noisy = is_noisy(plan, view)
        readers.append(BestScore(view, "word-rows", own, words) if noisy else _WordRows(view, titles))
    if dense:
        readers.append(BestScore(view, "dense", own, dense))
    return readers or [LikeOwn(view, "sum" if view == "sum" else "dense", own)]


def dense_scores(schema: Schema, known: Known, own: Clicks) -> dict[str, Score]:
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


class _WordRows:
    """A news is flagged when the rows of all words of its title are there, and ranked by how much it explains."""

    def __init__(self, view: View, titles: Offsets) -> None:
        self.view, self._titles = view, titles
        self._rows: list[Bools] = []

    def practise(self, seen: Observation) -> None:
        return

    def settle(self) -> None:
        return

    def read(self, seen: Observation) -> None:
        self._rows.append((seen[WORDS] != 0.0).any(axis=1))

    def findings(self, targets: Clicks) -> tuple[Finding, ...]:
        flagged = titles_in(np.array(self._rows), self._titles)
        explained = np.array([explains(*pair, self._titles) for pair in zip(flagged, targets.shown, strict=True)])
        flags = of_flags(flagged, targets.clicked, targets.shown)
        ranked = of_scores(explained, targets.clicked, targets.shown)
        first = f"{_ALL_THERE}, those first that no other title explains"
        return (
            Finding(self.view, "word-rows", _ALL_THERE, len(flagged), flags),
            Finding(self.view, "word-rows", first, len(flagged), ranked),
        )


def unit_vectors(vectors: Floats) -> Floats:
    """The same vectors, each of length 1."""
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
