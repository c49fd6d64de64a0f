"""NCF: NeuMF with everybody's data in one place: FedNCF if nothing had to stay apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilrec import _draws
from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec.device import ncf
from veilrec.device.sampling import draw_epoch
from veilrec.methods.base import Config, Method, Problem
from veilrec.methods.fedncf import NeumfModel
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.simulate.trainer import StepReport, Trainer

if TYPE_CHECKING:
    from torch import nn


class NcfConfig(Config):
    """Settings of NCF; model, loss and negatives are those of FedNCF."""

    gmf: Annotated[int, Field(ge=1)] = 32  # length of the vectors that are multiplied entry by entry
    mlp: Annotated[int, Field(ge=1)] = 32  # length of the vectors that enter the tower
    layers: ncf.Widths = (32, 16, 8)  # widths of the tower's layers; it takes in 2 * mlp
    start: Annotated[float, Field(gt=0.0)] = 0.1  # standard deviation of the starting vectors
    negatives: Annotated[int, Field(ge=1)] = 4  # unused items drawn per used one, afresh every epoch
    batch: Annotated[int, Field(ge=1)] = 1024  # examples per step of Adam
    rate: Annotated[float, Field(gt=0.0)] = 0.001
    decay: Annotated[float, Field(ge=0.0)] = 0.0  # weight decay of the vectors that an example touches
    adapt: ncf.NcfSettings = ncf.NcfSettings(epochs=20, batch=32, user_rate=0.02)  # how a new user joins


class NcfTrainer:
    """Adam over all examples in random order; a step is an epoch."""

    def __init__(self, config: NcfConfig, problem: Problem) -> None:
        import torch

        from veilrec.models.neumf import NeuMF

        self.config = config
        self.problem = problem
        sizes = {"gmf": config.gmf, "mlp": config.mlp, "layers": config.layers, "start": config.start}
        settings = ncf.NcfSettings(**{**vars(config.adapt), **sizes, "negatives": config.negatives})
        self.adapter = ncf.NcfLearner(settings, problem.seed, freeze_public=True)
        n_users = len(problem.train)
        start = ncf.start_weights(problem.n_items, settings.shape, config.start, problem.seed)
        start[ncf.USER] = self.adapter.fresh_private_state(np.arange(n_users))[ncf.USER]
        self.net = NeuMF(n_users, problem.n_items, settings.shape)
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(torch.from_numpy(start[name]))
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=config.rate, foreach=False)

    def step(self, number: int) -> StepReport:
        """One epoch."""
        import torch

        c, train = self.config, self.problem.train
        users, items, labels = draw_examples(
            train.offsets, train.items, self.problem.n_items, c.negatives, self.problem.seed, number
        )
        key = np.random.SeedSequence([self.problem.seed, _draws.LEARNING, number])
        order = np.random.Generator(np.random.Philox(key)).permutation(len(users))
        total = 0.0
        for begin in range(0, len(order), c.batch):
            part = order[begin : begin + c.batch]
            total += self._batch(*(torch.from_numpy(x[part]) for x in (users, items, labels)))
        return StepReport(loss=total / max(len(order), 1))
