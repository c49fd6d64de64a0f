"""How a feature network ranks: it adapts to a history on the device, and the adapted weights never leave it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import TypeAdapter

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec.device.feature_learner import Adapter, MetaSettings
from veilrec.device.rankers import Arrays
from veilrec.features import Side
from veilrec.models.feature_inputs import Inputs
from veilrec.models.feature_net import Activation

_CODES, _NUMBERS = "items.codes", "items.numbers"
_NUMBERS_AT_ONCE = 1 << 20  # of adapted weights: 4 MB


@dataclass(frozen=True)
class FeatureRanker:
    """The network, how it adapts, and the public features of the items."""

    kind: ClassVar[str] = "features"
    inputs: Inputs
    hidden: tuple[int, ...]
    activation: Activation
    local: MetaSettings  # with which somebody's device adapts
    draws_seed: int

    @cached_property
    def adapter(self) -> Adapter:
        """What adapts."""
        return Adapter(self.inputs.net(self.hidden, self.activation), self.inputs, self.local)

    def settings(self) -> dict[str, Any]:
        """What makes this ranker again, but for the items."""
        return {
            "people": self.inputs.people.to_json(),
            "items": self.inputs.items.to_json(),
            "embedding": self.inputs.embedding,
            "popularity": self.inputs.popularity,
            "hidden": list(self.hidden),
            "activation": self.activation,
            "local": asdict(self.local),
            "draws_seed": self.draws_seed,
        }

    def tables(self, weights: Arrays) -> Arrays:
        """The features of the items."""
        return {_CODES: self.inputs.items.codes, _NUMBERS: self.inputs.items.numbers}

    @classmethod
    def restored(cls, settings: Mapping[str, Any], tables: Arrays) -> Self:
        """The ranker that settings and tables were taken from."""
        items = Side(Side.from_json(settings["items"]).features, tables[_CODES], tables[_NUMBERS])
        inputs = Inputs(
            Side.from_json(settings["people"]), items, int(settings["embedding"]), bool(settings["popularity"])
        )
        return cls(
            inputs,
            tuple(int(width) for width in settings["hidden"]),
            settings["activation"],
            TypeAdapter(MetaSettings).validate_python(settings["local"]),
            int(settings["draws_seed"]),
        )

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> FeatureModel:
        """For devices with these histories, which adapt when they are asked."""
        return FeatureModel(self, weights, histories, self.inputs.people.of(private, len(histories)))


class FeatureModel:
    """A model that adapts to whoever asks."""

    def __init__(self, ranker: FeatureRanker, weights: Arrays, histories: Csr, people: Side) -> None:
        self._ranker, self._weights = ranker, weights
        self._histories, self._people = histories, people
        self._adapter = ranker.adapter
        self._start = self._adapter.net.flat(weights)
        self._items = ranker.inputs.of_items(weights)
        self.people = ranker.inputs.people
        self.n_items = len(self._items.codes)

    def adapted(self, users: Offsets) -> Floats:
        """The weights of some users' devices: [n, size]; all draw alike, so that a list depends on its history only.

        A device on whose data they overflow keeps the model as it came.
        """
        own, people = self._histories.take(users), self._people.take(users)
        nobody = np.zeros(len(users), np.int64)
        adapter, seed = self._adapter, self._ranker.draws_seed
        learnt, _ = adapter.adapt(self._start, self._items, own, people, devices=nobody, seed=seed)
        learnt[~np.isfinite(learnt).all(axis=1)] = self._start
        return learnt

    def _scored(self, users: Offsets) -> Iterator[tuple[slice, Floats]]:
        """Scores of every item, a few users at a time."""
        at_once = max(1, _NUMBERS_AT_ONCE // max(self._adapter.net.size, self.n_items))
        for start in range(0, len(users), at_once):
            some = np.asarray(users[start : start + at_once], np.int64)
            yield slice(start, start + len(some)), self.scored(self.adapted(some), self._people.take(some))

    def scored(self, adapted: Floats, people: Side) -> Floats:
        """Scores of every item by weights that devices have adapted already: [n, items]."""
        return self._adapter.score(adapted, self._items, people)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        scores = np.empty((len(users), self.n_items), np.float32)
        for part, some in self._scored(users):
            scores[part] = some
        return scores

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        scores = np.empty(items.shape, np.float32)
        distinct, place = np.unique(users, return_inverse=True)
        for part, some in self._scored(distinct):
            cases = np.flatnonzero((place >= part.start) & (place < part.stop))
            scores[cases] = some[place[cases, np.newaxis] - part.start, items[cases]]
        return scores

    def fold_in(self, histories: Csr) -> FeatureModel:
        """New users of whom only a history is known."""
        return self.fold_in_people(histories, self.people.strangers(len(histories)))

    def fold_in_people(self, histories: Csr, people: Side) -> FeatureModel:
        """New users with these features."""
        chosen = people.select([feature.name for feature in self.people.features])
        return FeatureModel(self._ranker, self._weights, histories, chosen)
