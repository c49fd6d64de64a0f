"""Local training and ranking of a feature network by Reptile (PrivRec, Algorithm 1).

Starting from theta_0, a client takes SGD steps on its own items and sampled negatives, and sends theta - theta_0. A
finished model adapts to a new user in the same way; adapted weights never leave the client.

    paper     here
    theta_0   the model of the round
    E_2       MetaSettings.epochs
    alpha_1   MetaSettings.rate
    mu        MetaSettings.proximal (eq. 7)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
from pydantic import TypeAdapter

from veilrec.client.local_training import Cohort, LocalResults, OwnItemsAndFeatures
from veilrec.client.rankers import Arrays
from veilrec.core import rng
from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput, unknown_name
from veilrec.core.features import Side
from veilrec.core.schema import ClientUpdates, RoundSpec, Schema, Tensor
from veilrec.kernels import feature_net as kernel
from veilrec.models.feature_net import Activation, FeatureNet, Inputs, ItemInputs

Loss = Literal["logistic", "softmax", "rating"]
_LOSSES = {"logistic": kernel.LOGISTIC, "softmax": kernel.SOFTMAX, "rating": kernel.SQUARED}
LIKED = np.float32(0.6)  # 3 stars of five: more of them is a liking (section 3.2)
_SCORED_AT_ONCE = 512  # items, few enough that their activations stay in the cache


@dataclass(frozen=True)
class MetaSettings:
    """How a client adapts the model, in a round and afterwards."""

    loss: Loss = "logistic"  # eq. 2; softmax: own items against others; rating: squared errors of ratings out of 1
    epochs: int = 5  # E_2: passes over the own items
    steps: int = 0  # SGD steps, whatever the number of items; 0: as many as the epochs have batches
    batch: int = 16  # own items in a step; 0: all of them
    negatives: int = 4  # other items drawn: for every own one; with softmax, for a step
    reduction: Literal["sum", "mean"] = "mean"  # of the losses in a step
    rate: float = 0.1  # alpha_1
    positives: Literal["used", "liked"] = "used"  # liked: own items rated above 3 of 5 score 1, the others 0
    needed: float = 0.0  # n_0: somebody with n items learns at n / (n + n_0) of the rate
    proximal: float = 0.0  # mu of eq. 7
    proximal_term: Literal["squared", "norm"] = "squared"  # eq. 7 prints the norm, which has no gradient at theta_0

    def __post_init__(self) -> None:
        if self.loss not in _LOSSES:
            raise unknown_name("local.loss", self.loss, get_args(Loss))
        for name, least in (("epochs", 1), ("steps", 0), ("batch", 0), ("negatives", 0)):
            if getattr(self, name) < least:
                raise BadInput(f"local.{name} is {getattr(self, name)}: it has to be at least {least}")
        for name in ("rate", "needed", "proximal"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise BadInput(f"local.{name} is {getattr(self, name)}: it has to be a number from 0 up")
        if self.positives == "liked" and self.loss != "logistic":
            raise BadInput(
                f"local.positives is liked and local.loss {self.loss}: only the logistic loss has explicit negatives;"
                " use --set local.loss=logistic, or --set local.positives=used"
            )
        if self.loss == "softmax" and self.negatives == 0:
            raise BadInput("local.negatives is 0: a softmax needs other items; give for instance 256")

    @property
    def reads_ratings(self) -> bool:
        """Whether a client learns from how its user rated."""
        return self.loss == "rating" or self.positives == "liked"

    def targets(self, ratings: Floats) -> Floats:
        """What items with these ratings out of 1 should score."""
        return ratings if self.loss == "rating" else (ratings > LIKED).astype(np.float32)

    @property
    def rules(self) -> kernel.Rules:
        """For compiled code."""
        return kernel.Rules(
            loss=_LOSSES[self.loss],
            epochs=self.epochs,
            steps=self.steps,
            batch=self.batch,
            negatives=self.negatives,
            mean=self.reduction == "mean",
            rate=np.float32(self.rate),
            needed=np.float32(self.needed),
            pull=np.float32(self.proximal),
            pull_squared=self.proximal_term == "squared",
        )

    def steps_of(self, lengths: Offsets) -> Offsets:
        """How many steps clients with so many items take."""
        if self.steps > 0:
            return np.where(lengths > 0, self.steps, 0)
        batches = np.where(lengths > 0, 1, 0) if self.batch == 0 else -(-lengths // self.batch)
        return np.asarray(self.epochs * batches)

    def examples_of(self, lengths: Offsets, n_items: int) -> Offsets:
        """How many scores they compute the errors of, at most one step too many."""
        batch = lengths if self.batch == 0 else np.minimum(self.batch, lengths)
        others = np.where(lengths < n_items, self.negatives, 0)
        return np.asarray(self.steps_of(lengths) * (batch + (others if self.loss == "softmax" else batch * others)))

    def max_in_a_step(self, lengths: Offsets) -> int:
        """The examples of the largest step."""
        longest = int(lengths.max(initial=0))
        batch = longest if self.batch == 0 else min(self.batch, longest)
        return batch + (self.negatives if self.loss == "softmax" else batch * self.negatives)


class Step(NamedTuple):
    """The examples of one SGD step."""

    items: Indices
    labels: Floats  # what each should score
    own: int  # so many of them, the first ones, are the client's own


@dataclass(frozen=True)
class Adapter:
    """Weights adapted to people on their clients, and what the adapted weights say of every item."""

    net: FeatureNet
    inputs: Inputs
    local: MetaSettings

    @property
    def reads(self) -> tuple[str, ...]:
        """What of a client's data it is made from."""
        features = ("features",) if self.inputs.people.features else ()
        return ("items", *features, *(("ratings",) if self.local.reads_ratings else ()))

    def adapt(
        self,
        start: Floats,
        items: ItemInputs,
        own: Csr,
        people: Side,
        *,
        clients: Offsets,
        seed: int,
        round_number: int = 0,
        targets: Floats | None = None,
    ) -> tuple[Floats, Floats]:
        """The weights [n, size] at which each client arrives, and the loss of its last epoch."""
        if len(own.items) and not 0 <= int(own.items.min()) <= int(own.items.max()) < len(items.codes):
            raise BadInput(f"a client has item {int(own.items.max())}: the model knows {len(items.codes)}")
        learnt = np.empty((len(own), self.net.size), np.float32)
        loss = np.zeros(len(own), np.float32)
        wanted = np.ones(len(own.items), np.float32) if targets is None else targets
        kernel.learn_clients(
            self.net.net,
            self.local.rules,
            start,
            *self.inputs.of_people(people),
            items.codes,
            items.numbers,
            items.offsets,
            own.offsets,
            own.items,
            wanted,
            clients,
            seed,
            round_number,
            self._space(self.local.max_in_a_step(own.lengths())),
            learnt,
            loss,
        )
        # compiled code may take what is not a number for one: a client that has diverged has no loss
        loss[~np.isfinite(learnt).all(axis=1)] = np.nan
        return learnt, loss

    def drawn(
        self,
        own: Indices,
        n_items: int,
        *,
        client: int,
        seed: int,
        round_number: int = 0,
        targets: Floats | None = None,
    ) -> Iterator[Step]:
        """What a client learns from, step by step."""
        rules, own = self.local.rules, own.copy()
        wanted = np.ones(len(own), np.float32) if targets is None else targets.copy()
        is_own = np.full(n_items, -1, np.int32)
        is_own[own] = 0
        others = self.local.negatives if (is_own < 0).any() else 0
        lengths = np.array([len(own)])
        batch = len(own) if self.local.batch == 0 else min(self.local.batch, len(own))
        items = np.empty(self.local.max_in_a_step(lengths), np.int32)
        labels = np.empty(len(items), np.float32)
        stream = np.uint64(rng.stream(seed, rng.LEARNING, round_number, client))
        counter, at = 0, 0
        for _ in range(int(self.local.steps_of(lengths)[0])):
            here, size, counter = kernel.draw_step(
                rules, own, wanted, at, batch, others, is_own, 0, stream, counter, items, labels
            )
            at = 0 if at + here == len(own) else at + here
            yield Step(items[:size].copy(), labels[:size].copy(), here)

    def score(self, learnt: Floats, items: ItemInputs, people: Side) -> Floats:
        """Scores of all items by each client's own weights: [n, items]."""
        scores = np.empty((len(learnt), len(items.codes)), np.float32)
        kernel.score_clients(
            self.net.net,
            learnt,
            *self.inputs.of_people(people),
            items.codes,
            items.numbers,
            items.offsets,
            self._space(_SCORED_AT_ONCE),
            scores,
        )
        return scores

    def _space(self, examples: int) -> kernel.Space:
        return kernel.space_for(self.net.net, max(examples, 1), self.net.size)


class MetaLocalTrainer:
    """Local learning of Reptile for any number of clients: a client keeps nothing but its data."""

    keeps_state = False

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.reads = adapter.reads

    def fresh_private_state(self, clients: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing: who takes part again starts from the model again."""
        return {}

    def learn(self, cohort: Cohort[OwnItemsAndFeatures], model: Mapping[str, Floats], spec: RoundSpec) -> LocalResults:
        """theta - theta_0 of every client."""
        a, data = self.adapter, cohort.data
        start, lengths = a.net.flat(model), data.rows.lengths()
        learnt, loss = a.adapt(
            start,
            a.inputs.of_items(model),
            data.rows,
            data.people,
            clients=cohort.clients,
            seed=cohort.draws_seed,
            round_number=spec.number,
            targets=None if data.ratings is None else a.local.targets(data.ratings),
        )
        learnt -= start
        examples = a.local.examples_of(lengths, len(a.inputs.items))
        dense = {name: np.ascontiguousarray(part) for name, part in a.net.named(learnt).items()}
        return LocalResults(ClientUpdates(spec.number, len(lengths), dense=dense, examples=examples), examples, loss)


def schema(net: FeatureNet, known: tuple[Tensor, ...] = ()) -> Schema:
    """The tensors of the network, all of them sent whole, and those that are known before the first round."""
    return Schema((*(Tensor(name, shape, by_row=False) for name, shape in net.tensors.items()), *known))


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
        """For clients with these histories, which adapt when they are asked."""
        return FeatureModel(self, weights, histories, self.inputs.people.of(private, len(histories)))


class FeatureModel:
    """A model that adapts to each user before it scores."""

    def __init__(
        self, ranker: FeatureRanker, weights: Arrays, histories: Csr, people: Side, ratings: Floats | None = None
    ) -> None:
        self._ranker, self._weights, self._ratings = ranker, weights, ratings
        self.reads_ratings, self.predicts_ratings = ranker.local.reads_ratings, ranker.local.loss == "rating"
        self._histories, self._people = histories, people
        self._adapter = ranker.adapter
        self._start = self._adapter.net.flat(weights)
        self._items = ranker.inputs.of_items(weights)
        self.people = ranker.inputs.people
        self.n_items = len(self._items.codes)

    def adapted(self, users: Offsets) -> Floats:
        """The weights of some users' devices: [n, size]; all draw alike, so that a list depends on its history only.

        A client on whose data they overflow keeps the model as it came.
        """
        own, people = self._histories.take(users), self._people.take(users)
        nobody = np.zeros(len(users), np.int64)
        adapter, seed = self._adapter, self._ranker.draws_seed
        targets = None
        if self._ratings is not None:
            entries = Csr(self._histories.offsets, np.arange(len(self._histories.items), dtype=np.int32)).take(users)
            targets = adapter.local.targets(self._ratings[entries.items])
        learnt, _ = adapter.adapt(self._start, self._items, own, people, clients=nobody, seed=seed, targets=targets)
        learnt[~np.isfinite(learnt).all(axis=1)] = self._start
        return learnt

    def _scored(self, users: Offsets) -> Iterator[tuple[slice, Floats]]:
        """Scores of every item, a few users at a time."""
        at_once = max(1, _NUMBERS_AT_ONCE // max(self._adapter.net.size, self.n_items))
        for start in range(0, len(users), at_once):
            some = np.asarray(users[start : start + at_once], np.int64)
            yield slice(start, start + len(some)), self.scored(self.adapted(some), self._people.take(some))

    def scored(self, adapted: Floats, people: Side) -> Floats:
        """Scores of every item by weights that clients have adapted already: [n, items]."""
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

    def fold_in_rated(self, histories: Csr, people: Side, ratings: Floats) -> FeatureModel:
        """New users with these features, who rated their histories so (out of 1)."""
        chosen = people.select([feature.name for feature in self.people.features])
        return FeatureModel(self._ranker, self._weights, histories, chosen, ratings)
