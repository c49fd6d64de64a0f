"""NCF: centralised NeuMF (He et al. 2017), the counterpart of FedNCF and the torch reference for its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilrec.client import ncf
from veilrec.client.ncf import NeumfModel, NeumfRanker
from veilrec.client.rankers import ModelParts
from veilrec.core import rng
from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.jit import jit
from veilrec.kernels.loops import draw_epoch
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem, described, unprotected
from veilrec.simulation.simulation import StepReport

if TYPE_CHECKING:
    from torch import Tensor


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class NcfConfig(Config):
    """Settings of NCF; model, loss and negatives are those of FedNCF."""

    gmf: ncf.Width = 32  # length of the vectors that are multiplied entry by entry
    mlp: ncf.Width = 32  # length of the vectors that enter the tower
    layers: ncf.Widths = (32, 16, 8)  # widths of the tower's layers; it takes in 2 * mlp
    start: Positive = 0.1  # standard deviation of the starting vectors
    negatives: Count = 4  # unused items drawn per used one, afresh every epoch
    batch: Count = 1024  # examples per step of Adam
    rate: Positive = 0.002  # learning rate
    decay: ncf.Rate = 0.01  # weight decay of the vectors that an example touches
    adapt_epochs: Count = 20  # epochs with which a new user joins the finished model
    adapt_rate: Positive = 0.02  # learning rate with which a new user joins


class NcfTrainer:
    """Adam over all examples in random order; a step is an epoch."""

    def __init__(self, config: NcfConfig, problem: Problem) -> None:
        import torch

        from veilrec.models.baseline_networks import NeuMF

        self.config = config
        self.problem = problem
        settings = ncf.NcfSettings(
            gmf=config.gmf,
            mlp=config.mlp,
            layers=config.layers,
            start=config.start,
            epochs=config.adapt_epochs,
            negatives=config.negatives,
            batch=32,
            user_rate=config.adapt_rate,
            decay=config.decay,
        )
        self.ranker = NeumfRanker(settings, problem.public_seed)
        n_users = len(problem.train)
        start = ncf.start_weights(problem.n_items, settings.shape, config.start, problem.public_seed)
        start[ncf.USER] = ncf.NcfLocalTrainer(settings).fresh_private_state(np.arange(n_users), problem.public_seed)[
            ncf.USER
        ]
        self.net = NeuMF(n_users, problem.n_items, settings.shape)
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(torch.from_numpy(start[name]))
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=config.rate, foreach=False)

    def step(self, number: int) -> StepReport:
        """One epoch."""
        import torch

        c, p = self.config, self.problem
        users, items, labels = draw_examples(p.train, p.n_items, c.negatives, p.public_seed, number)
        key = np.random.SeedSequence([p.public_seed, rng.LEARNING, number])
        order = np.random.Generator(np.random.Philox(key)).permutation(len(users))
        total = 0.0
        for begin in range(0, len(order), c.batch):
            part = order[begin : begin + c.batch]
            total += self._batch(*(torch.from_numpy(x[part]) for x in (users, items, labels)))
        return StepReport(loss=total / max(len(order), 1))

    def _batch(self, users: Tensor, items: Tensor, labels: Tensor) -> float:
        """One step of Adam; the sum of the batch's losses."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        self.optimiser.zero_grad()
        loss = binary_cross_entropy_with_logits(self.net(users, items), labels)
        objective = loss
        if self.config.decay > 0.0:
            squares = self.net.users(users).square().sum() + self.net.items(items).square().sum()
            objective = loss + self.config.decay / 2 * squares / len(labels)
        objective.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return loss.item() * len(labels)

    def parts(self) -> ModelParts:
        """Items and network for everybody, and the users' vectors."""
        weights = {name: tensor.detach().numpy().copy() for name, tensor in self._tensors().items()}
        return ModelParts(self.ranker, weights, {ncf.USER: weights.pop(ncf.USER)})

    def model(self) -> NeumfModel:
        """Model with the current weights."""
        parts = self.parts()
        return NeumfModel(parts.private[ncf.USER], parts.weights, self.ranker)

    def state(self) -> dict[str, NDArray[Any]]:
        """The weights, and Adam's moments and step count of each."""
        from veilrec.models.news_model import saved_state

        return saved_state(self.optimiser, dict(self.net.named_parameters()))

    def load_state(self, state: Mapping[str, NDArray[Any]], steps_done: int) -> None:
        """Go on from a state."""
        from veilrec.models.news_model import load_saved_state

        load_saved_state(self.optimiser, dict(self.net.named_parameters()), state)

    def _tensors(self) -> dict[str, Tensor]:
        return {ncf.USER: self.net.users.weight, **self.net.public()}


def draw_examples(train: Csr, n_items: int, negatives: int, seed: int, epoch: int) -> tuple[Offsets, Offsets, Floats]:
    """Users, items and labels of an epoch: what every client would draw for itself, user after user."""
    drawn = np.where(train.lengths() < n_items, negatives, 0)
    offsets = np.zeros(len(train) + 1, np.int64)
    np.cumsum(train.lengths() * (1 + drawn), out=offsets[1:])
    items, labels = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.float32)
    _draw_examples(train.offsets, train.items.copy(), n_items, drawn, offsets, seed, epoch, items, labels)
    return Csr(offsets, items).row_numbers(), items.astype(np.int64), labels


@jit
def _draw_examples(  # type: ignore[no-untyped-def]
    offsets: Offsets,
    data: Indices,
    n_items,
    drawn: Offsets,
    out_offsets: Offsets,
    seed,
    epoch,
    items: Indices,
    labels: Floats,
):
    is_own = np.full(n_items, -1, np.int32)
    for user in range(len(offsets) - 1):
        mine = data[offsets[user] : offsets[user + 1]]
        for j in range(len(mine)):
            is_own[mine[j]] = user
        start = rng.stream(seed, rng.LEARNING, epoch, user)
        part = slice(out_offsets[user], out_offsets[user + 1])
        draw_epoch(mine, is_own, user, n_items, drawn[user], start, 0, items[part], labels[part])


METHOD = Method(
    **described("ncf"),
    datasets=EVERY_DATASET,
    config=NcfConfig,
    trainer=NcfTrainer,
    guarantee=unprotected("Everybody's data lies in one place."),
)
