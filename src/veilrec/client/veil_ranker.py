"""Ranking of `veil` from public content, released sums, and a history that never leaves the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import TypeAdapter

from veilrec.client.rankers import Arrays
from veilrec.client.veil import (
    FEWEST_BEFORE,
    MAP,
    WEIGHTS,
    HistoryReader,
    Reading,
    ReleasedSums,
    Steps,
    popular,
    seen,
    tastes,
    whitened,
)
from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import counted
from veilrec.models.scores import RestsOn, Source
from veilrec.models.veil import Content, amounts_of, decays_of

_CONTENT, _WHITENING, _PLACES = "content.", "whitening", "places."
_NEWTON_STEPS = 2


@dataclass(frozen=True)
class Learnt:
    """What was learnt, in the units that scores are made of."""

    told: ReleasedSums
    weights: Floats  # [features], everybody's
    map: Floats  # [tastes, D]


@dataclass(frozen=True)
class VeilRanker:
    """Everything public that a client needs beside the released weights."""

    kind: ClassVar[str] = "veil"
    content: Content
    reading: Reading
    whitening: Floats
    steps: Steps
    caution: float  # of the own weights: how strongly they are held to everybody's; 0: there are none of one's own
    draws_seed: int  # of the items beside the own targets, the same for everybody

    def settings(self) -> dict[str, Any]:
        """What makes this ranker again, but for the arrays."""
        return {
            "reading": asdict(self.reading),
            "steps": asdict(self.steps),
            "caution": self.caution,
            "draws_seed": self.draws_seed,
        }

    def tables(self, weights: Arrays) -> Arrays:
        """The public content, the coordinates of the weights, and what follows from released places of items."""
        told = self.steps.told(weights, self.content).places
        places = {_PLACES + field.name: getattr(told, field.name) for field in fields(told)}
        return {**self.content.arrays(_CONTENT), _WHITENING: self.whitening, **places}

    @classmethod
    def restored(cls, settings: Mapping[str, Any], tables: Arrays) -> Self:
        """The ranker that settings and tables were taken from."""
        return cls(
            Content.from_arrays(tables, _CONTENT),
            TypeAdapter(Reading).validate_python(settings["reading"]),
            tables[_WHITENING],
            TypeAdapter(Steps).validate_python(settings["steps"]),
            float(settings["caution"]),
            int(settings["draws_seed"]),
        )

    def learnt(self, weights: Arrays) -> Learnt:
        """What the released sums say, in the units of scores."""
        told = self.steps.told(weights, self.content)
        width = told.basis.shape[1]
        return Learnt(
            told,
            whitened(self.whitening, self.steps.of(weights, WEIGHTS, (len(self.whitening),))),
            self.steps.of(weights, MAP, (self.reading.tastes(width), width)),
        )

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> VeilModel:
        """Known users are those with a history."""
        return VeilModel(self, self.learnt(weights), histories)


class VeilModel:
    """Scores from histories; weights are fitted to each history first."""

    def __init__(self, ranker: VeilRanker, learnt: Learnt, histories: Csr) -> None:
        self._ranker, self._learnt, self._histories = ranker, learnt, histories
        self.n_items = ranker.content.n_items
        self._told, self._weights, self._map = learnt.told, learnt.weights, learnt.map

    @cached_property
    def _reader(self) -> HistoryReader:
        return HistoryReader(self._ranker.reading, self._ranker.content, self._ranker.draws_seed)

    def own_weights(self, history: Indices) -> Floats:
        """Everybody's weights, moved by Newton steps on the own latest items; a short history moves them little."""
        ranker = self._ranker
        examples = self._reader.made(history, 0)
        if not len(examples.ends) or not ranker.caution:
            return self._weights
        known = seen(ranker.reading, self._told, examples)
        beside = np.concatenate([known.popularity, examples.kernels], axis=2).astype(np.float64)  # [T, N, features]
        scores = beside @ self._weights + np.einsum("tnd,td->tn", known.beside, known.tastes @ self._map)
        white = beside @ ranker.whitening.astype(np.float64)
        moved = np.zeros(white.shape[2])
        for _ in range(_NEWTON_STEPS):
            chances = _chances(scores + white @ moved)  # [T, N]
            mean = np.einsum("tn,tnf->tf", chances, white)
            weighed = white * np.sqrt(chances)[..., np.newaxis]
            flat = weighed.reshape(-1, white.shape[2])
            curvature = flat.T @ flat - mean.T @ mean + ranker.caution * np.eye(len(moved))
            moved += np.linalg.solve(curvature, -mean.sum(axis=0) - ranker.caution * moved)
        return self._weights + whitened(ranker.whitening, moved.astype(np.float32))

    def _score(self, history: Indices, items: Indices) -> Floats:
        """Scores of some items [C] after the whole history."""
        ranker = self._ranker
        content, reading = ranker.content, ranker.reading
        weights = self.own_weights(history)
        known = np.ascontiguousarray(history)
        end, popular_part = np.array([len(known)]), reading.popularity_features()
        described = popular(reading, self._told.popularity, known, end, np.ascontiguousarray(items[np.newaxis]))[0]
        context = known[max(0, len(known) - reading.latest) :][::-1]
        by_scale = weights[popular_part:].reshape(len(reading.recency), content.n_kernels)
        alike = content.scores(context, items, amounts_of(by_scale, len(context), decays_of(reading.recency)))
        taste = tastes(reading, self._told.basis, known, end)[0]
        of_map = self._told.basis[items] @ (taste @ self._map)
        return np.asarray(described @ weights[:popular_part] + alike + of_map, np.float32)

    def rests_on(self, history: Indices) -> RestsOn:
        """Describe what the list for this history rests on."""
        if not len(history):
            said = "Nothing was used yet: ranked by how popular items are and by their content, the same for everybody."
            return RestsOn(("popularity", "content"), 0, said)
        targets = self._ranker.reading.targets if self._ranker.caution else 0
        own = min(targets, len(history) - FEWEST_BEFORE)
        read = counted(len(history), "item") + (" in their order" if len(history) > 1 else "")
        weights = f"weights fitted to the latest {own} of them" if own > 0 else "the weights of everybody"
        uses: list[Source] = ["history"]
        uses += ["order"] if len(history) > 1 else []
        uses += ["own weights"] if own > 0 else []
        return RestsOn((*uses, "content", "popularity"), len(history), f"Ranked here by {read}, with {weights}.")

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        everything = np.arange(self.n_items, dtype=np.int32)
        return self.score_some(users, np.tile(everything, (len(users), 1)))

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        scores = np.zeros(items.shape, np.float32)
        for case, user in enumerate(users):
            scores[case] = self._score(self._histories.row(int(user)), items[case])
        return scores

    def fold_in(self, histories: Csr) -> VeilModel:
        """New users do what all others do."""
        return VeilModel(self._ranker, self._learnt, histories)


def _chances(scores: Any) -> Any:
    """Softmax over the items beside a target, whose own score is 0: [T, N]."""
    highest = np.maximum(scores.max(axis=1, keepdims=True), 0.0)
    powers = np.exp(scores - highest)
    return powers / (np.exp(-highest) + powers.sum(axis=1, keepdims=True))
