"""Which news somebody clicked, from one upload of a news model's gradient.

The gradient of the table of words is zero but for the words of the news that a device has read (its rows); that of a
linear layer is a sum of products whose right sides are the vectors that went in, so that its rows span the vectors of
the clicked news (PrivateRec: the pooled history, for the layer behind the pooling). Neither cares about noise that was
added in the forward pass. Under noise on the gradient itself, news get scores instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from veilrec._arrays import Bools, Doubles, Floats, Offsets
from veilrec.device.learner import LocalData
from veilrec.device.title_encoder import WORDS
from veilrec.errors import BadInput
from veilrec.plan import Plan
from veilrec.simulate.attacks.observed import (
    SEEN,
    Clicks,
    Known,
    Observation,
    Scene,
    View,
    clicks_of,
    draw_devices,
    is_noisy,
    observe,
    public_news,
    views_of,
)
from veilrec.simulate.attacks.recovery import Recovery, Usual, of_flags, of_scores
from veilrec.updates import Schema

By = Literal["word-rows", "dense", "sum"]
Score = Callable[[Observation], Floats]  # of every news that is looked at
# What counts as seen of a direction: squared singular values below this share of the largest are noise.
_FLOORS = (1e-10, 1e-6, 1e-2, 1.0)
_NOTHING = 1e-30  # a squared length that no row has
_ALL_THERE = "all rows of the title's words are there"


@dataclass(frozen=True)
class Finding:
    """What one attack found in what one adversary sees."""

    view: View
    by: By
    how: str  # which rows or layer gave it away
    uploads: int
    recovery: Recovery

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        about = {"by": self.by, "view": self.view, "seen": SEEN[self.view], "how": self.how, "uploads": self.uploads}
        return about | self.recovery.to_json()


def recover_clicks(
    plan: Plan, data: LocalData, weights: Mapping[str, Floats], *, uploads: int, rounds: int = 1, seed: int = 0
) -> tuple[Finding, ...]:
    """Attack so many devices; first what the method protects against, then what the server sees that it trusts."""
    for name, count in (("uploads", uploads), ("rounds", rounds)):
        if count < 1:
            raise BadInput(f"{name} is {count}: give at least 1")
    known = public_news(plan, weights)
    devices, attacked = draw_devices(data, uploads, seed)
    everybody = clicks_of(data, devices, len(known.titles), seed)  # type: ignore[arg-type]
    targets, own = everybody.part(slice(attacked)), everybody.part(slice(attacked, None))
    if not targets.clicked.any():
        raise BadInput("nobody of those attacked has clicked anything before: there is nothing to find; take more data")
    scene = Scene(plan, data, weights, rounds, seed)
    readers = [reader for view in views_of(plan) for reader in _readers(plan, known, own, view)]
    views = tuple(dict.fromkeys(reader.view for reader in readers))
    for seen in observe(scene, own.devices, views):
        for reader in readers:
            reader.practise(seen[reader.view])
    for reader in readers:
        reader.settle()
    for seen in observe(scene, targets.devices, views):
        for reader in readers:
            reader.read(seen[reader.view])
    return tuple(finding for reader in readers for finding in reader.findings(targets))


def _readers(plan: Plan, known: Known, own: Clicks, view: View) -> list[_Reader]:
    """The attacks on one view: by the rows of words, where messages have them, and by what is sent whole."""
    titles = known.titles[own.news]
    words: dict[str, Score] = {}
    if any(tensor.name == WORDS for tensor in plan.schema.tables):
        words["length of the rows of the title's words"] = lambda seen: row_lengths(seen[WORDS], titles)
        words["shortest row of the title's words"] = lambda seen: shortest_row(seen[WORDS], titles)
    dense = _dense_scores(plan.schema, known, own)
    if view == "sum" and (words or dense):
        return [_BestScore(view, "sum", own, {**words, **dense})]
    readers: list[_Reader] = []
    if words:
        noisy = is_noisy(plan, view)
        readers.append(_BestScore(view, "word-rows", own, words) if noisy else _WordRows(view, titles))
    if dense:
        readers.append(_BestScore(view, "dense", own, dense))
    return readers or [_LikeOwn(view, "sum" if view == "sum" else "dense", own)]


def _dense_scores(schema: Schema, known: Known, own: Clicks) -> dict[str, Score]:
    """Every layer over every kind of news vector of its width, for several ideas of what noise is."""
    scores: dict[str, Score] = {}
    for tensor in schema.dense:
        for what, vectors in known.vectors.items():
            if len(tensor.shape) == 2 and tensor.shape[0] > 1 and tensor.shape[1] == vectors.shape[1]:
                unit = _unit(vectors[own.news])
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


class _Reader(Protocol):
    """An attack: practises on the attacker's own devices, settles on how, and reads those that are attacked."""

    view: View

    def practise(self, seen: Observation) -> None: ...

    def settle(self) -> None: ...

    def read(self, seen: Observation) -> None: ...

    def findings(self, targets: Clicks) -> tuple[Finding, ...]: ...


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


class _BestScore:
    """Of several scores the one that finds most on the attacker's own devices."""

    def __init__(self, view: View, by: By, own: Clicks, scores: Mapping[str, Score]) -> None:
        self.view, self._by, self._own, self._scores = view, by, own, scores
        self._practised: list[list[Floats]] = []
        self._read: list[Floats] = []

    def practise(self, seen: Observation) -> None:
        self._practised.append([score(seen) for score in self._scores.values()])

    def settle(self) -> None:
        best = -1.0
        for at, (name, score) in enumerate(self._scores.items()):
            values = np.array([practised[at] for practised in self._practised])
            usual = Usual.of(values, self._own.clicked)
            recall = of_scores(usual.against(values), self._own.clicked, self._own.shown).recall
            if recall > best:
                best, self._how, self._score, self._usual = recall, name, score, usual
        self._practised.clear()

    def read(self, seen: Observation) -> None:
        self._read.append(self._score(seen))

    def findings(self, targets: Clicks) -> tuple[Finding, ...]:
        scores = self._usual.against(np.array(self._read))
        recovery = of_scores(scores, targets.clicked, targets.shown)
        return (Finding(self.view, self._by, self._how, len(scores), recovery),)


class _LikeOwn:
    """Where no layer meets news vectors: a news scores by how like the upload is to those of own devices with it."""

    def __init__(self, view: View, by: By, own: Clicks) -> None:
        self.view, self._by, self._own = view, by, own
        self._practised: list[Doubles] = []
        self._read: list[Doubles] = []

    def practise(self, seen: Observation) -> None:
        self._practised.append(_flat(seen))

    def settle(self) -> None:
        return

    def read(self, seen: Observation) -> None:
        self._read.append(_flat(seen))

    def findings(self, targets: Clicks) -> tuple[Finding, ...]:
        own, read = np.array(self._practised), np.array(self._read)
        among_own = own @ own.T
        np.fill_diagonal(among_own, 0.0)  # nobody is told by itself
        clicked = self._own.clicked.astype(np.float64)
        usual = Usual.of(among_own @ clicked, self._own.clicked)
        recovery = of_scores(usual.against(read @ own.T @ clicked), targets.clicked, targets.shown)
        return (Finding(self.view, self._by, "like uploads of own devices that clicked it", len(read), recovery),)


def _flat(seen: Observation) -> Doubles:
    """All that is seen as one vector of length 1."""
    whole = np.concatenate([values.ravel() for values in seen.values()])
    return np.asarray(whole / max(float(np.linalg.norm(whole)), np.finfo(np.float64).tiny))


def _unit(vectors: Floats) -> Floats:
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
