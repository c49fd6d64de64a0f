"""FedNCF: federated neural collaborative filtering, the deep model of the communication paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from pydantic import PositiveInt

from veilrec._arrays import Floats
from veilrec._csr import Csr
from veilrec.device import ncf
from veilrec.device.learner import Cohort, Learner
from veilrec.device.protection import Protection, Unprotected
from veilrec.evaluate.scorer import Scorer
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem
from veilrec.models.neumf_scores import NeumfScores
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.server.aggregate import Aggregation
from veilrec.server.optimise import ServerRate
from veilrec.server.server import Server
from veilrec.simulate.choosers import Chooser
from veilrec.simulate.cohort import CohortSettings
from veilrec.simulate.simulation import Simulation
from veilrec.simulate.trainer import Trainer

_DEVICES_AT_ONCE = 50  # below 32 MB of updates: up to that, the allocator uses the same space again


class FedNcfConfig(Config):
    """Settings of FedNCF."""

    local: ncf.NcfSettings = ncf.NcfSettings()
    cohort: CohortSettings = CohortSettings()
    aggregation: Aggregation = "row-sqrt"
    server: ServerRate = ServerRate()
    adapt_epochs: PositiveInt = 20  # local epochs with which a new user joins the finished model


class NeumfModel(NeumfScores):
    """User vectors beside the public model, and how a new user joins."""

    def __init__(self, users: Floats, public: Mapping[str, Floats], adapter: ncf.NcfLearner) -> None:
        super().__init__(adapter.settings.shape, users, public)
        self._public = public
        self._adapter = adapter

    def fold_in(self, histories: Csr) -> Scorer:
        """New users: each learns its own vector on its device; items and network stay as they are."""
        devices = np.arange(len(histories), dtype=np.int64)
        private = self._adapter.fresh_private_state(devices)
        self._adapter.learn(Cohort(devices, histories, private), self._public, 0)
        return NeumfScores(self._adapter.settings.shape, private[ncf.USER], self._public)


def build(config: FedNcfConfig, problem: Problem) -> Trainer:
    """Put the parts together."""
    return make_simulation(config, problem, Unprotected())


def make_simulation(
    config: FedNcfConfig,
    problem: Problem,
    protection: Protection,
    *,
    sigma: float = 0.0,
    chooser: Chooser | None = None,
    wrap: Callable[[Learner], Learner] | None = None,
) -> Simulation:
    """Federated NCF with any protection of what leaves a device, on any part of the items."""
    local, seed = config.local, problem.seed
    weights = ncf.start_weights(problem.n_items, local.shape, local.start, seed)
    adapter = ncf.NcfLearner(replace(local, epochs=config.adapt_epochs), seed, freeze_public=True)

    def make_model(public: Mapping[str, Floats], private: Mapping[str, Floats]) -> NeumfModel:
        return NeumfModel(private[ncf.USER], public, adapter)

    server = Server(
        ncf.schema(problem.n_items, local.shape),
        weights,
        config.aggregation,
        config.server,
        sigma=sigma,
        every_row=protection.fills_messages,
    )
    learner: Learner = ncf.NcfLearner(local, seed)
    return Simulation(
        problem.train,
        learner if wrap is None else wrap(learner),
        server,
        config.cohort,
        make_model,
        seed,
        protection=protection,
        chooser=chooser,
        chunk=_DEVICES_AT_ONCE,
    )


def guarantee(config: FedNcfConfig) -> Guarantee:
    """Nothing is promised."""
    return no_guarantee(
        "The server sees which item rows a device changed, and how: it can tell which items a user has.",
        "A simulated run protects nobody.",
    )


PAPER_PRESET = {  # section 6.3 of Xue et al.; an item has 32 + 128 = 160 floats, which is what its Figure 14 counts
    "aggregation": "mean",
    "local": {
        "mlp": 128,
        "layers": (128, 64, 32),
        "start": 0.01,
        "user_rate": 0.0005,
        "item_rate": 0.0005,
        "network_rate": 0.0005,
        "decay": 0.0,
    },
    "rounds": 400,
}

METHOD = Method(
    name="fedncf",
    kind="federated",
    paper="Perifanis and Efraimidis, Federated Neural Collaborative Filtering, 2022; model of He et al. 2017;"
    " baseline of Xue et al. 2026 (priv-fedmf-sub)",
    model="NeuMF",
    summary="user vectors stay on devices, changes of item vectors and network are uploaded in the clear",
    datasets=EVERY_DATASET,
    config=FedNcfConfig,
    build=build,
    guarantee=guarantee,
    rounds=100,
    presets={
        "paper": PAPER_PRESET,
        "paper@ml-1m": {"local": {"batch": 512}, "cohort": {"size": 200}},
        "tuned@ml-1m": {"rounds": 220, "cohort": {"size": 200}},
    },
    deviations=(
        "Devices send changes in the clear; Perifanis and Efraimidis add them up by secure aggregation.",
        "Adam is lazy on item rows and starts afresh every round: devices keep only the user's vector.",
        "By default changes are divided by the square root of the number of devices, and vectors decay.",
        "The paper gives no widths of the tower; preset paper takes 256-128-64-32, with 160 floats an item.",
    ),
    item_parameters=160,
    measured=("ml-100k", "ml-1m"),
)
