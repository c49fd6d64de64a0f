"""FedMF: federated matrix factorisation; the plain method that the communication paper measures everything against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import PositiveInt

from veilrec._arrays import Floats
from veilrec._csr import Csr
from veilrec.device import mf
from veilrec.device.learner import Cohort
from veilrec.device.protection import Protection, Unprotected
from veilrec.evaluate.scorer import Scorer
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem
from veilrec.models.factors import Factors
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.server.aggregate import Aggregation
from veilrec.server.optimise import ServerRate
from veilrec.server.server import Server
from veilrec.simulate.choosers import Chooser
from veilrec.simulate.cohort import CohortSettings
from veilrec.simulate.simulation import Simulation
from veilrec.simulate.trainer import Trainer
from veilrec.wire.values import ValueCoding

_AT_ONCE = 64  # new users who join together: few enough that their scratch space stays small


class FedMfConfig(Config):
    """Settings of FedMF."""

    local: mf.MfSettings = mf.MfSettings()
    cohort: CohortSettings = CohortSettings()
    aggregation: Aggregation = "row-sqrt"
    server: ServerRate = ServerRate()
    adapt_epochs: PositiveInt = 20  # local epochs with which a new user joins the finished model


class FedMfModel(Factors):
    """User vectors of the simulated devices beside the public item vectors."""

    def __init__(self, users: Floats, items: Floats, adapter: mf.MfLearner) -> None:
        super().__init__(users, items)
        self._adapter = adapter

    def fold_in(self, histories: Csr) -> Scorer:
        """New users: each learns its own vector on its device; the items stay as they are."""
        users = np.empty((len(histories), self.items.shape[1]), np.float32)
        for start in range(0, len(histories), _AT_ONCE):
            devices = np.arange(start, min(start + _AT_ONCE, len(histories)), dtype=np.int64)
            private = self._adapter.fresh_private_state(devices)
            self._adapter.learn(Cohort(devices, histories.take(devices), private), {mf.ITEMS: self.items}, 0)
            users[devices] = private[mf.USER]
        return Factors(users, self.items)


def build(config: FedMfConfig, problem: Problem) -> Trainer:
    """Put the parts together."""
    return make_simulation(config, problem, Unprotected())


def make_simulation(
    config: FedMfConfig,
    problem: Problem,
    protection: Protection,
    *,
    sigma: float = 0.0,
    chooser: Chooser | None = None,
    values: ValueCoding = "float32",
    averaging: float = 0.0,
) -> Simulation:
    """Federated matrix factorisation with any protection of what leaves a device, on any part of the items."""
    local, seed = config.local, problem.seed
    schema = mf.schema(problem.n_items, local.dim).coded(values)
    weights = mf.start_weights(problem.n_items, local.dim, local.start, seed)
    adapter = mf.MfLearner(replace(local, epochs=config.adapt_epochs), seed, freeze_items=True)

    def make_model(public: Mapping[str, Floats], private: Mapping[str, Floats]) -> FedMfModel:
        return FedMfModel(private[mf.USER], public[mf.ITEMS], adapter)

    server = Server(
        schema, weights, config.aggregation, config.server, sigma=sigma, every_row=protection.fills_messages
    )
    return Simulation(
        problem.train,
        mf.MfLearner(local, seed),
        server,
        config.cohort,
        make_model,
        seed,
        protection=protection,
        chooser=chooser,
        averaging=averaging,
    )


def guarantee(config: FedMfConfig) -> Guarantee:
    """Nothing is promised."""
    return no_guarantee(
        "The server sees the change of every item row that a device touched: it can tell which items a user has.",
        "A simulated run protects nobody.",
    )


# "tuned" was chosen on the validation item of seed 1 (item rate 0.03 or 0.05, decay 0.005 to 0.03).
# "paper" is section 6.3 of the communication paper, which does not say how losses and updates are combined: we take
# the mean of the losses and the mean of the updates. It hardly leaves chance in its 400 rounds.
PRESETS: dict[str, dict[str, Any]] = {
    "tuned@ml-100k": {"rounds": 100, "local": {"item_rate": 0.05, "decay": 0.01}},
    "tuned@ml-1m": {"rounds": 300, "cohort": {"size": 200}, "local": {"item_rate": 0.03, "decay": 0.005}},
    "paper": {
        "rounds": 400,
        "local": {"batch": 256, "reduction": "mean", "user_rate": 0.001, "item_rate": 0.001, "decay": 0.0},
        "aggregation": "mean",
    },
    "paper@ml-1m": {"cohort": {"size": 200}, "local": {"batch": 512}},
    "small": {"rounds": 40, "local": {"dim": 16}},
}

METHOD = Method(
    name="fedmf",
    kind="federated",
    paper="Chai et al., Secure Federated Matrix Factorization, 2021; baseline of Xue et al. 2026 (priv-fedmf-sub)",
    model="matrix factorisation",
    summary="user vectors stay on devices, changes of item vectors are uploaded in the clear",
    datasets=EVERY_DATASET,
    config=FedMfConfig,
    build=build,
    guarantee=guarantee,
    rounds=200,
    presets=PRESETS,
    item_parameters=32,
    measured=("ml-100k", "ml-1m"),
)
