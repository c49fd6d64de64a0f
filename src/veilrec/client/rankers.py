"""Rankers: settings that turn trained weights into a scorer that needs a history only, not the training population.

Matrix factorisation, least squares, EASE, popularity, random, item neighbours and SASRec; all without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from veilrec.client import fcf, mf
from veilrec.client.local_training import Cohort, OwnItems, narrow
from veilrec.core import rng
from veilrec.core.arrays import Bools, Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.features import Side
from veilrec.core.jit import jit
from veilrec.core.schema import RoundSpec
from veilrec.models.item_item import EaseScorer, Neighbours, NeighbourScorer
from veilrec.models.scores import FactorScores, KnowsPeople, Model, SasRecScorer, Scorer

_AT_ONCE = 64  # new users who join together: few enough that their scratch space stays small
_BELOW = np.float32(1e4)  # far more than any score, few enough digits to keep an order among those below
Arrays = Mapping[str, NDArray[Any]]


class Ranker(Protocol):
    """Settings that turn weights into a model; with the weights they are all that a run has to keep."""

    kind: ClassVar[str]

    def settings(self) -> dict[str, Any]:
        """What makes this ranker again, as JSON."""

    def tables(self, weights: Arrays) -> Arrays:
        """Arrays that it needs beside these weights and its settings: words that it knows, items as they were read."""

    @classmethod
    def restored(cls, settings: Mapping[str, Any], tables: Arrays) -> Self:
        """The ranker that settings and tables were taken from."""

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> Model:
        """The model for clients with these states and histories; none of either for new users only."""


@dataclass(frozen=True)
class SettingsAlone:
    """A ranker that is nothing but its settings."""

    def settings(self) -> dict[str, Any]:
        """What makes this ranker again."""
        return asdict(self)

    def tables(self, weights: Arrays) -> Arrays:
        """None are needed."""
        return {}

    @classmethod
    def restored(cls, settings: Mapping[str, Any], tables: Arrays) -> Self:
        """The ranker of these settings."""
        return TypeAdapter(cls).validate_python(settings)


@dataclass(frozen=True)
class MfRanker(SettingsAlone):
    """Matrix factorisation: a user is a vector, which a new one learns on its own device."""

    kind: ClassVar[str] = "matrix-factorisation"
    local: mf.MfSettings  # with the epochs of joining
    draws_seed: int

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> FactorModel:
        """Vectors of the clients beside the public item vectors."""
        items = weights[mf.ITEMS]
        users = private.get(mf.USER, np.zeros((0, items.shape[1]), np.float32))
        return FactorModel(users, items, self)


class FactorModel(FactorScores):
    """User vectors beside the public item vectors."""

    def __init__(self, users: Floats, items: Floats, ranker: MfRanker) -> None:
        super().__init__(users, items)
        self._seed = ranker.draws_seed
        self._adapter = mf.MfLocalTrainer(ranker.local, freeze_items=True)

    def fold_in(self, histories: Csr) -> Scorer:
        """New users: each learns its own vector on its client; the items stay as they are."""
        users = np.empty((len(histories), self.items.shape[1]), np.float32)
        for start in range(0, len(histories), _AT_ONCE):
            clients = np.arange(start, min(start + _AT_ONCE, len(histories)), dtype=np.int64)
            private = self._adapter.fresh_private_state(clients, self._seed)
            cohort = Cohort(clients, OwnItems(histories.take(clients)), private, self._seed)
            self._adapter.learn(cohort, {mf.ITEMS: self.items}, RoundSpec(0))
            users[clients] = private[mf.USER]
        return FactorScores(users, self.items)


@dataclass(frozen=True)
class FcfRanker(SettingsAlone):
    """Least squares: a client solves its vector from its history and the items as they stand."""

    kind: ClassVar[str] = "least-squares"
    local: fcf.FcfSettings

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> FcfModel:
        """Known users are those with a history."""
        return FcfModel(weights[fcf.ITEMS], histories, self.local)


class FcfModel:
    """When scores are asked for, vectors are solved."""

    def __init__(self, items: Floats, histories: Csr, settings: fcf.FcfSettings) -> None:
        self.items = items
        self.histories = histories
        self.settings = settings
        self.n_items = len(items)

    def vectors(self, users: Offsets) -> Floats:
        """The vectors that some users' devices solve."""
        return fcf.solve_users(self.items, self.histories.take(users), self.settings)

    def _solved(self, users: Offsets) -> FactorScores:
        return FactorScores(self.vectors(users), self.items)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        return self._solved(users).score_all(np.arange(len(users)))

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        return self._solved(users).score_some(np.arange(len(users)), items)

    def fold_in(self, histories: Csr) -> FcfModel:
        """New users do what all others do."""
        return FcfModel(self.items, histories, self.settings)


@dataclass(frozen=True)
class EaseRanker(SettingsAlone):
    """A linear item-item model: a user is a history."""

    kind: ClassVar[str] = "item-item"
    WEIGHTS: ClassVar[str] = "weights"

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> EaseScorer:
        """Known users are those with a history."""
        return EaseScorer(weights[self.WEIGHTS], histories)


@dataclass(frozen=True)
class PopularityRanker(SettingsAlone):
    """score(u, i) = the number of users who used item i in training, exact or not, the same for everybody."""

    kind: ClassVar[str] = "popularity"
    USES: ClassVar[str] = "uses"
    table: str = USES  # the weights that hold a number for every item

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> PopularityModel:
        """One model for all users."""
        return PopularityModel(weights[self.table].reshape(-1))


class PopularityModel:
    """One non-personalised list for every user."""

    def __init__(self, uses: Floats) -> None:
        self.uses = uses
        self.n_items = len(uses)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        return np.tile(self.uses, (len(users), 1))

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C]."""
        scores: Floats = self.uses[items]
        return scores

    def fold_in(self, histories: Csr) -> PopularityModel:
        """New users get the same list as all others."""
        return self


@dataclass(frozen=True)
class OwnHistoryRanker(SettingsAlone):
    """The items that somebody used, the most used first, and then what is popular."""

    kind: ClassVar[str] = "own-history"

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> OwnHistoryModel:
        """Known users are those with a history."""
        return OwnHistoryModel(weights[PopularityRanker.USES].reshape(-1), histories)


class OwnHistoryModel:
    """score(u, i) = how often u used item i, and between equals its share of the most popular item's users."""

    def __init__(self, uses: Floats, histories: Csr) -> None:
        self.uses, self.histories = uses, histories
        self.n_items = len(uses)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        scores = np.tile(self.uses / np.float32(1.0 + self.uses.max(initial=0.0)), (len(users), 1))
        own = self.histories.take(users)
        np.add.at(scores, (own.row_numbers(), own.items), np.float32(1.0))
        return scores

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C]."""
        distinct, place = np.unique(users, return_inverse=True)
        scores: Floats = self.score_all(distinct)[place[:, np.newaxis], items]
        return scores

    def fold_in(self, histories: Csr) -> OwnHistoryModel:
        """New users come with what they used."""
        return OwnHistoryModel(self.uses, histories)


@dataclass(frozen=True)
class RandomRanker(SettingsAlone):
    """score(u, i) in [0, 1), keyed by (seed, user, item)."""

    kind: ClassVar[str] = "random"
    SEED: ClassVar[str] = "seed"
    n_items: int

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> RandomModel:
        """One model for all users."""
        return RandomModel(int(weights[self.SEED][0]), self.n_items)


class RandomModel:
    """Scores that are computed when asked for, never kept."""

    def __init__(self, seed: int, n_items: int) -> None:
        self.seed = seed
        self.n_items = n_items

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        items = np.arange(self.n_items, dtype=np.int32)
        return self.score_some(users, np.tile(items, (len(users), 1)))

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C]."""
        out = np.empty(items.shape, np.float32)
        _score_randomly(self.seed, np.ascontiguousarray(users, np.int64), np.ascontiguousarray(items), out)
        return out

    def fold_in(self, histories: Csr) -> RandomModel:
        """New users are numbered like the others."""
        return self


@jit
def _score_randomly(seed: int, users: Offsets, items: Indices, out: Floats) -> None:
    for case in range(items.shape[0]):
        start = rng.stream(seed, rng.MODEL, 0, users[case])
        for j in range(items.shape[1]):
            # 24 bits are all that a float32 below 1 can hold.
            shifted = rng.word(start, items[case, j]) >> np.uint64(40)
            out[case, j] = np.float32(shifted) * np.float32(2.0**-24)


class SentFirst:
    """Ranks items that no client ever saw behind all others: their vectors are still where they started."""

    def __init__(self, scorer: Scorer, sent: Bools) -> None:
        self._scorer = scorer
        self._offset = np.where(sent, np.float32(0.0), -_BELOW)
        self.n_items = len(sent)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        return self._scorer.score_all(users) + self._offset

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        return self._scorer.score_some(users, items) + self._offset[items]


class SentFirstModel(SentFirst):
    """A model that ranks unsent items last; new users do not learn from such items either."""

    def __init__(self, model: Model, sent: Bools) -> None:
        super().__init__(model, sent)
        self._model = model
        self._sent = sent
        self._place = np.where(sent, np.arange(len(sent), dtype=np.int32), np.int32(-1))

    def fold_in(self, histories: Csr) -> Scorer:
        """New users, by those of their items that the model knows."""
        return SentFirst(self._model.fold_in(narrow(histories, self._place)), self._sent)


class SentFirstPeople(SentFirstModel):
    """A model that ranks unsent items last and reads features of users."""

    def __init__(self, model: KnowsPeople, sent: Bools) -> None:
        super().__init__(model, sent)
        self._knowing = model
        self.people = model.people

    def fold_in_people(self, histories: Csr, people: Side) -> Scorer:
        """New users, by those of their items that the model knows and by their features."""
        return SentFirst(self._knowing.fold_in_people(narrow(histories, self._place), people), self._sent)


def sent_first(model: Model, sent: Bools) -> SentFirstModel:
    """The model with the items that no client ever saw behind all others."""
    return SentFirstPeople(model, sent) if isinstance(model, KnowsPeople) else SentFirstModel(model, sent)


@dataclass(frozen=True)
class NeighbourRanker(SettingsAlone):
    """Neighbours of the latest items, the newest first: a user is a history."""

    kind: ClassVar[str] = "neighbours"
    decay: float  # of what an item counts, for each that was used after it
    latest: int  # items of a history, at most

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> NeighbourScorer:
        """Known users are those with a history."""
        rows = Csr(weights["offsets"], weights["items"])
        neighbours = Neighbours(rows, weights["values"], weights["rest"], weights["popularity"])
        return NeighbourScorer(neighbours, histories, decay=self.decay, latest=self.latest)


def arrays_of(neighbours: Neighbours) -> Arrays:
    """What a model is saved as."""
    return {
        "offsets": neighbours.rows.offsets,
        "items": neighbours.rows.items,
        "values": neighbours.values,
        "rest": neighbours.rest,
        "popularity": neighbours.popularity,
    }


@dataclass(frozen=True)
class SasRecRanker(SettingsAlone):
    """Self-attention over the latest items: a user is a history."""

    kind: ClassVar[str] = "self-attention"

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> SasRecScorer:
        """Known users are those with a history."""
        return SasRecScorer(weights, histories)


@dataclass(frozen=True)
class ModelParts:
    """A trained model in parts: public weights, and private state of clients."""

    ranker: Ranker
    weights: Mapping[str, NDArray[Any]]
    private: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # [users, ...] each
    sent: Bools | None = None  # the items that any round was about; None: all

    def model(self, histories: Csr) -> Model:
        """Model for users with these histories, in the order of their private states."""
        model = self.ranker.model(self.weights, self.private, histories)
        return model if self.sent is None else sent_first(model, self.sent)
