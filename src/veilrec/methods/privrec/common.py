"""Parts that the methods with a feature network share: settings, features, assembly of the plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from veilrec.client.local_training import LocalTrainer, OwnItemsAndFeatures
from veilrec.client.reptile import Adapter, FeatureRanker, MetaLocalTrainer, MetaSettings, schema
from veilrec.core.arrays import Floats
from veilrec.core.errors import BadInput, unknown_name
from veilrec.core.features import Feature, Features, Side, assembled, without_rows
from veilrec.core.plan import Aggregation, Plan, ReportSpec
from veilrec.core.schema import Schema
from veilrec.data.datasets import DATASETS
from veilrec.evaluation.split import join_rows
from veilrec.methods.base import Config, Problem
from veilrec.models.feature_net import Activation, FeatureNet, Inputs
from veilrec.privacy.mechanisms.reports import PlainVotes
from veilrec.privacy.mechanisms.sums import NoNoise, UpdateMechanism
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings, PopularityTensor

WITH_FEATURES = ("ml-100k", "ml-1m", "frappe", "csv", "synthetic-ratings")
WITH_ITEMS = tuple(name for name, dataset in DATASETS.items() if dataset.kind != "news")
ITEM = "item"  # the one feature of models that know items by their ids
_WIDEST, _DEEPEST = 4096, 16


@dataclass(frozen=True)
class FeatureChoice:
    """Which features the network reads."""

    users: tuple[str, ...] | None = None  # by name; None: all that the data has
    items: tuple[str, ...] | None = None


@dataclass(frozen=True)
class NetSettings:
    """The network."""

    embedding: int = 64  # length of a category's vector; 0: a one for each category of a row, and no vectors
    hidden: tuple[int, ...] = (64, 64, 64, 64)  # widths; none: a linear model
    activation: Activation = "relu"  # eq. 1; section 4.1 says sigmoid
    start: float = 0.1  # standard deviation of the first embeddings
    start_at_zero: bool = False  # the output layer: every score is then the item's offset
    popularity: bool = False  # log-votes of everybody as offset of a score and as numbers of an item

    def __post_init__(self) -> None:
        if not 0 <= self.embedding <= _WIDEST:
            raise BadInput(f"model.embedding is {self.embedding}: give a whole number from 0 to {_WIDEST}")
        if len(self.hidden) > _DEEPEST or not all(1 <= width <= _WIDEST for width in self.hidden):
            raise BadInput(
                f"model.hidden is {list(self.hidden)}: give up to {_DEEPEST} widths from 1 to {_WIDEST}, such as"
                " [64, 64]"
            )
        if self.activation not in ("relu", "sigmoid"):
            raise unknown_name("model.activation", self.activation, ("relu", "sigmoid"))
        if not 0.0 <= self.start < math.inf:
            raise BadInput(f"model.start is {self.start}: it has to be a number from 0 up")


class MetaConfig(Config):
    """Settings of a feature network that clients adapt."""

    features: FeatureChoice = FeatureChoice()
    model: NetSettings = NetSettings()
    local: MetaSettings = MetaSettings()
    cohort: CohortSettings = CohortSettings(size=30)
    aggregation: Aggregation = "mean"  # eq. 6
    server: ServerRate = ServerRate()  # its rate is alpha_3


def chosen_features(problem: Problem, choice: FeatureChoice) -> Features:
    """The features of the data that the settings name; items without any are refused."""
    features = problem.features
    if features is None or not features.items.features:
        raise BadInput(
            "this data says nothing of its items but their ids, and the method reads features: use ml-1m, ml-100k or"
            " frappe with all their files, give your log a features.yaml (docs/data.md), or train fofl-self"
        )
    users, items = features.users, features.items
    users = users if choice.users is None else users.select(choice.users)
    items = items if choice.items is None else items.select(choice.items)
    if not items.features:
        raise BadInput(
            "features.items is empty: name at least one of " + ", ".join(f.name for f in features.items.features)
        )
    return Features(users, items)


def item_ids(problem: Problem) -> Features:
    """Features of items that are known by their ids only: the id as a category."""
    ids = np.arange(problem.n_items, dtype=np.int32)
    feature = Feature(ITEM, "category", tuple(map(str, ids)))
    items = assembled((feature,), problem.n_items, [(ids.astype(np.int64), ids + 1)], [])
    return Features(without_rows((), len(problem.train)), items)


def clients(config: MetaConfig, problem: Problem) -> OwnItemsAndFeatures:
    """Local data of clients: their items, and the features of their users."""
    users = chosen_features(problem, config.features).users
    return _own(config, problem, users)


def _own(config: MetaConfig, problem: Problem, users: Side) -> OwnItemsAndFeatures:
    ratings = _ratings(config, problem)
    if ratings is None:
        return OwnItemsAndFeatures(problem.train if problem.records is None else problem.records, users)
    if problem.disliked is None or config.local.positives == "used":
        return OwnItemsAndFeatures(problem.train, users, ratings)
    rows = join_rows(problem.train, problem.disliked)
    order = np.argsort(np.concatenate([problem.train.row_numbers(), problem.disliked.row_numbers()]), kind="stable")
    low = np.zeros(len(problem.disliked.items), np.float32)  # whatever it was, it is below a liking
    return OwnItemsAndFeatures(rows, users, np.concatenate([ratings, low])[order])


def clients_with_ids(config: MetaConfig, problem: Problem) -> OwnItemsAndFeatures:
    """Local data of clients for models that know items by their ids only."""
    return _own(config, problem, item_ids(problem).users)


def _ratings(config: MetaConfig, problem: Problem) -> Floats | None:
    if not config.local.reads_ratings:
        return None
    what = "local.loss is rating" if config.local.loss == "rating" else "local.positives is liked"
    if problem.ratings is None:
        raise BadInput(
            f"{what}, and this data has no ratings with a scale: use --set local.loss=logistic (or softmax) and"
            " --set local.positives=used"
        )
    if ((problem.ratings < 0.0) | (problem.ratings > 1.0)).any():
        raise BadInput(
            f"{what}, and there are ratings beyond the scale of this data: say which it has, with"
            " `veilrec data import --rating-scale LOW-HIGH`, or use logistic or softmax"
        )
    return problem.ratings


@dataclass(frozen=True)
class MetaParts:
    """A network, how clients adapt it, and how it ranks."""

    adapter: Adapter
    ranker: FeatureRanker
    schema: Schema
    start: dict[str, Floats]

    @property
    def net(self) -> FeatureNet:
        """The network."""
        return self.adapter.net


def parts(config: MetaConfig, problem: Problem, features: Features) -> MetaParts:
    """Make network, adapter, ranker, schema and starting weights."""
    m = config.model
    if _ratings(config, problem) is not None and m.popularity:
        raise BadInput(
            "local.loss is rating, and model.popularity adds the logarithm of votes to every score, which is no rating:"
            " use --preset ratings, or --set model.popularity=false"
        )
    people = without_rows(features.users.features)  # how many values somebody has is nobody's to know
    inputs = Inputs(people, features.items, m.embedding, m.popularity)
    adapter = Adapter(inputs.net(m.hidden, m.activation), inputs, config.local)
    known = (PopularityTensor().tensor(problem.n_items),) if m.popularity else ()
    start = adapter.net.start(problem.public_seed, spread=m.start, zero_output=m.start_at_zero)
    for tensor in known:
        start[tensor.name] = np.zeros(tensor.shape, np.float32)
    ranker = FeatureRanker(inputs, m.hidden, m.activation, config.local, problem.public_seed)
    return MetaParts(adapter, ranker, schema(adapter.net, known), start)


def plaintext_votes(config: MetaConfig, problem: Problem) -> dict[str, Any]:
    """Plan fields for popularity from plaintext votes; empty where the model does not use popularity."""
    if not config.model.popularity:
        return {}
    reports = ReportSpec(mechanism=PlainVotes(length=problem.n_items))
    return {"reports": reports, "from_reports": PopularityTensor()}


def build(
    config: MetaConfig,
    problem: Problem,
    made: MetaParts,
    *,
    mechanism: UpdateMechanism | None = None,
    trainer: LocalTrainer[Any] | None = None,
    **further: Any,
) -> Plan:
    """Assemble a plan of these parts; without noise unless a mechanism is given."""
    return Plan(
        schema=made.schema,
        start=made.start,
        trainer=trainer or MetaLocalTrainer(made.adapter),
        mechanism=mechanism or NoNoise(made.schema.learnt),
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation=config.aggregation,
        server=config.server,
        ranker=made.ranker,
        clients_per_batch=max(1, min(100, 4_000_000 // made.net.size)),
        **further,
    )
