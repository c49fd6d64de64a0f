"""FCF: federated collaborative filtering, implicit-feedback least squares with users' vectors on devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec.device import fcf
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem
from veilrec.models.factors import Factors
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.server.optimise import ServerRate
from veilrec.server.server import Server
from veilrec.simulate.cohort import CohortSettings
from veilrec.simulate.simulation import Simulation
from veilrec.simulate.trainer import Trainer
from veilrec.updates import Schema


@dataclass(frozen=True)
class FcfRate(ServerRate):
    """Adam is the paper's choice; its rates here are ours, chosen on validation items."""

    optimiser: Literal["sgd", "adam", "yogi"] = "adam"
    rate: float = 0.02
    momentum: float = 0.9


class FcfConfig(Config):
    """Settings of FCF."""

    local: fcf.FcfSettings = fcf.FcfSettings()
    start: fcf.Positive = 0.1  # standard deviation of the starting item vectors
    cohort: CohortSettings = CohortSettings()
    server: FcfRate = FcfRate()


class FcfServer(Server):
    """Adds to the devices' gradients what needs no device: the gradient of the items' own regularisation.

    The loss sums over all n devices, so the mean of a cohort's f(u, i) stands for 1/n of its
    gradient, and the regularisation takes the same share.
    """

    def __init__(self, schema: Schema, weights: Mapping[str, Floats], rate: ServerRate, decay_share: float) -> None:
        super().__init__(schema, weights, "mean", rate)
        self._decay_share = np.float32(decay_share)

    def step(self) -> None:
        """End the round: Adam on the whole gradient, as in the paper."""
        share = self._decay_share * np.float32(self._aggregator.devices)  # of the sum, which becomes a mean
        self.add_to_sum({fcf.ITEMS: -share * self.weights[fcf.ITEMS]})
        super().step()


class FcfModel:
    """When scores are asked for, a device solves its vector from its history and the items as they stand."""

    def __init__(self, items: Floats, histories: Csr, settings: fcf.FcfSettings) -> None:
        self.items = items
        self.histories = histories
        self.settings = settings
        self.n_items = len(items)

    def _solved(self, users: Offsets) -> Factors:
        return Factors(fcf.solve_users(self.items, self.histories.take(users), self.settings), self.items)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        return self._solved(users).score_all(np.arange(len(users)))

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        return self._solved(users).score_some(np.arange(len(users)), items)

    def fold_in(self, histories: Csr) -> FcfModel:
        """New users do what all others do."""
        return FcfModel(self.items, histories, self.settings)


def build(config: FcfConfig, problem: Problem) -> Trainer:
    """Put the parts together."""
    local, train = config.local, problem.train
    weights = fcf.start_weights(problem.n_items, local.dim, config.start, problem.seed)
    decay_share = local.decay / max(1, int((train.lengths() > 0).sum()))
    server = FcfServer(fcf.schema(problem.n_items, local.dim), weights, config.server, decay_share)

    def make_model(public: Mapping[str, Floats], private: Mapping[str, Floats]) -> FcfModel:
        return FcfModel(public[fcf.ITEMS], train, local)

    return Simulation(train, fcf.FcfLearner(local), server, config.cohort, make_model, problem.seed)


def guarantee(config: FcfConfig) -> Guarantee:
    """Nothing is promised."""
    return no_guarantee(
        "The server sees a device's gradient of every item, and can compute from it exactly which items the user has.",
        "A simulated run protects nobody.",
    )


METHOD = Method(
    name="fcf",
    kind="federated",
    paper="Ammad-ud-din et al., Federated Collaborative Filtering for Privacy-Preserving Personalized"
    " Recommendation System, 2019",
    model="implicit-feedback least squares",
    summary="devices solve their own vector and upload the gradient of every item vector in the clear",
    datasets=EVERY_DATASET,
    config=FcfConfig,
    build=build,
    guarantee=guarantee,
    rounds=200,
    presets={"tuned@ml-100k": {"rounds": 150}, "tuned@ml-1m": {"cohort": {"size": 200}}},
    deviations=(
        "sizes, rates and regularisation are ours, chosen on validation items, not the paper's",
        "a round takes a cohort of devices instead of all, and the gradient is scaled to match",
        "Adam is that of Reddi et al. 2021: no bias correction, and second moments start at caution^2",
    ),
    measured=("ml-100k", "ml-1m", "mind"),
)
