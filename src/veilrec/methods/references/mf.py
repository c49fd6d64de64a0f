"""MF: centralised matrix factorisation, the counterpart of FedMF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from veilrec.client import mf
from veilrec.client.mf import one_example
from veilrec.client.rankers import FactorModel, MfRanker, ModelParts
from veilrec.core import rng
from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.jit import jit
from veilrec.kernels.loops import draw_epoch, mean_logistic_loss
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem, described, unprotected
from veilrec.simulation.simulation import StepReport

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class MfConfig(Config):
    """Settings of MF; loss and negatives are those of FedMF."""

    dim: PositiveInt = 32  # length of user and item vectors
    start: Positive = 0.1  # standard deviation of the starting vectors
    negatives: PositiveInt = 4  # unused items drawn per used one, afresh every epoch
    rate: Positive = 0.02  # learning rate
    decay: NotNegative = 0.005  # weight decay of the rows that an example touches
    adapt_epochs: PositiveInt = 20  # epochs with which a new user joins the finished model


class MfTrainer:
    """Plain SGD over all users in random order; a step is an epoch."""

    def __init__(self, config: MfConfig, problem: Problem) -> None:
        self.config = config
        self.problem = problem
        settings = mf.MfSettings(
            dim=config.dim,
            start=config.start,
            epochs=config.adapt_epochs,
            negatives=config.negatives,
            user_rate=config.rate,
            item_rate=config.rate,
            decay=config.decay,
        )
        self.ranker = MfRanker(settings, problem.public_seed)
        everybody = np.arange(len(problem.train), dtype=np.int64)
        self.users = mf.MfLocalTrainer(settings).fresh_private_state(everybody, problem.public_seed)[mf.USER]
        self.items = mf.start_weights(problem.n_items, config.dim, config.start, problem.public_seed)[mf.ITEMS]

    def step(self, number: int) -> StepReport:
        """One epoch."""
        c, train = self.config, self.problem.train
        loss = _epoch(
            train.offsets,
            train.items,
            self.users,
            self.items,
            c.negatives,
            np.float32(c.rate),
            np.float32(c.decay),
            self.problem.public_seed,
            number,
        )
        return StepReport(loss=float(loss))

    def parts(self) -> ModelParts:
        """Items for everybody, and the users' vectors."""
        return ModelParts(self.ranker, {mf.ITEMS: self.items}, {mf.USER: self.users})

    def model(self) -> FactorModel:
        """Model with the current weights."""
        return FactorModel(self.users, self.items, self.ranker)

    def state(self) -> dict[str, NDArray[Any]]:
        """Both tables."""
        return {mf.USER: self.users, mf.ITEMS: self.items}

    def load_state(self, state: Mapping[str, NDArray[Any]], steps_done: int) -> None:
        """Go on from a state."""
        self.users[...] = state[mf.USER]
        self.items[...] = state[mf.ITEMS]


@jit
def _epoch(  # type: ignore[no-untyped-def]
    offsets: Offsets, data: Indices, users: Floats, table: Floats, negatives, rate, decay, seed, epoch
):
    n_users, n_items = len(users), len(table)
    longest = np.max(offsets[1:] - offsets[:-1])
    own = np.empty(longest, np.int32)
    items = np.empty(longest * (1 + negatives), np.int32)
    labels = np.empty(longest * (1 + negatives), np.float32)
    errors = np.empty(longest * (1 + negatives), np.float32)
    is_own = np.full(n_items, -1, np.int32)
    total = 0.0
    examples = 0
    for user in _random_order(n_users, seed, epoch):
        length = offsets[user + 1] - offsets[user]
        drawn = negatives if length < n_items else 0  # who owns every item has nothing to draw from
        size = length * (1 + drawn)
        mine = own[:length]
        mine[:] = data[offsets[user] : offsets[user + 1]]
        for j in range(length):
            is_own[mine[j]] = user
        start = rng.stream(seed, rng.LEARNING, epoch, user)
        draw_epoch(mine, is_own, user, n_items, drawn, start, 0, items, labels)
        for j in range(size):
            errors[j] = one_example(users[user], table[items[j]], labels[j], False, rate, rate, decay)
        total += size * mean_logistic_loss(errors[:size])
        examples += size
    return total / max(examples, 1)


@jit
def _random_order(size: int, seed: int, epoch: int) -> Offsets:
    order = np.empty(size, np.int64)
    start = rng.stream(seed, rng.COHORT, epoch, 0)
    for i in range(size):  # Fisher-Yates, inside out
        other = rng.below(rng.word(start, i), i + 1)
        order[i] = order[other]
        order[other] = i
    return order


METHOD = Method(
    **described("mf"),
    datasets=EVERY_DATASET,
    config=MfConfig,
    trainer=MfTrainer,
    guarantee=unprotected("Everybody's data lies in one place."),
)
