"""Neural collaborative filtering (NeuMF) on the device: logistic loss, sampled negatives, only touched rows.

The user's vector never leaves the device; the change of every touched item row and of the whole network is
uploaded, or their negative gradients at what the server sent. The loss of an example with label y is
    -log sigmoid((2y-1) score) + decay/2 (|p_u|^2 + |q_i|^2).
Adam is lazy: a batch moves the rows (weights and moments) of its own items only. Its moments start from zero
in every round, because a device keeps no optimiser from one round to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

from veilrec import _draws
from veilrec._arrays import Floats, Offsets
from veilrec.device.learner import Cohort, Learned, OwnItems
from veilrec.device.ncf_kernel import NcfInputs, NcfRules, space_for, train_in_threads
from veilrec.models.neumf_scores import ITEMS, NeumfShape
from veilrec.updates import Round, Rows, Schema, Tensor, Uploads

USER = "user"


def _split(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


Width = Annotated[int, Field(ge=1, le=2**16)]
# "32,16,8" or a list
Widths = Annotated[tuple[Width, ...], BeforeValidator(_split), Field(min_length=1)]
Rate = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


@dataclass(frozen=True)
class NcfSettings:
    """Local learning of NeuMF."""

    gmf: Width = 32  # length of the vectors that are multiplied entry by entry
    mlp: Width = 32  # length of the vectors that enter the tower
    layers: Widths = (32, 16, 8)  # widths of the tower's layers; it takes in 2 * mlp
    start: Rate = 0.1  # standard deviation of the starting vectors
    epochs: PositiveInt = 5  # local epochs in a round
    negatives: NonNegativeInt = 4  # unused items drawn per used one, afresh every epoch
    batch: NonNegativeInt = 256  # examples per step; 0 = the whole epoch
    reduction: Literal["sum", "mean"] = "mean"  # of the losses in a batch
    optimiser: Literal["sgd", "adam"] = "adam"  # of the local steps
    upload: Literal["change", "gradient"] = "change"  # gradient: only user vectors learn here, the server has the rate
    user_rate: Rate = 0.02  # learning rate of user vectors
    item_rate: Rate = 0.02  # learning rate of item vectors
    network_rate: Rate = 0.0002  # learning rate of the layers
    decay: Rate = 0.005  # weight decay of the vectors that an example touches

    @property
    def shape(self) -> NeumfShape:
        """The sizes of the model."""
        return NeumfShape(self.gmf, self.mlp, self.layers)


def schema(n_items: int, shape: NeumfShape) -> Schema:
    """The public part of the model: one row per item, and the network."""
    dense = (Tensor(name, size, by_row=False) for name, size in shape.network().items())
    return Schema((Tensor(ITEMS, (n_items, shape.row), by_row=True), *dense))


def start_weights(n_items: int, shape: NeumfShape, start: float, seed: int) -> dict[str, Floats]:
    """The server's first model.

    Layers start as rectifiers should (normal, variance 2 / inputs); w_g is 1, so that the GMF half starts as
    plain matrix factorisation and its vectors learn at full speed from the first round.
    """
    rows = np.arange(n_items, dtype=np.int64)
    weights = {ITEMS: start * _draws.normals(seed, _draws.MODEL, 0, rows, shape.row)}
    for number, (name, size) in enumerate(shape.network().items(), start=1):
        if name.endswith("bias"):
            weights[name] = np.zeros(size, np.float32)
        elif name == "output.weight":
            tower = _draws.normals(seed, _draws.MODEL, number, np.zeros(1, np.int64), shape.layers[-1])[0]
            tower /= np.float32(np.sqrt(shape.layers[-1]))
            weights[name] = np.concatenate([np.ones(shape.gmf, np.float32), tower])
        else:
            outputs = np.arange(size[0], dtype=np.int64)
            spread = np.float32(np.sqrt(2.0 / size[1]))
            weights[name] = spread * _draws.normals(seed, _draws.MODEL, number, outputs, size[1])
    return weights


class NcfLearner:
    """Local learning of NeuMF for any number of devices."""

    keeps_state = True

    def __init__(self, settings: NcfSettings, *, freeze_public: bool = False) -> None:
        self.settings = settings
        self.freeze_public = freeze_public  # only the user learns: how a new user joins a finished model

    def fresh_private_state(self, devices: Offsets, draws_seed: int) -> dict[str, Floats]:
        """User vectors of devices that take part for the first time."""
        s = self.settings
        return {USER: s.start * _draws.normals(draws_seed, _draws.PRIVATE_STATE, 0, devices, s.shape.row)}

    def learn(self, cohort: Cohort[OwnItems], model: Mapping[str, Floats], about: Round) -> Learned:
        """Learn from each device's data."""
        s, shape = self.settings, self.settings.shape
        data = cohort.data.rows
        lengths = data.lengths()
        network = shape.flat(model)
        given = NcfInputs(
            cohort.draws_seed, about.number, cohort.devices, data.offsets, data.items, model[ITEMS], network
        )
        most = np.minimum(lengths * (1 + s.negatives * s.epochs), len(model[ITEMS]))
        learnt = space_for(most, cohort.private[USER], len(network))
        train_in_threads(shape.layout(), self._rules(), given, most, learnt)
        used = learnt.offsets[-1]
        tables = {ITEMS: Rows(learnt.offsets, learnt.items[:used], learnt.rows[:used])}
        examples = lengths * (1 + s.negatives) * s.epochs
        uploads = Uploads(about.number, len(lengths), tables, shape.named(learnt.networks), examples)
        return Learned(uploads, examples, learnt.loss)

    def _rules(self) -> NcfRules:
        s = self.settings
        public = 0.0 if self.freeze_public else 1.0
        return NcfRules(
            s.epochs,
            s.negatives,
            s.batch,
            s.reduction == "mean",
            s.optimiser == "adam",
            s.upload == "gradient" and not self.freeze_public,
            np.float32(s.user_rate),
            np.float32(public * s.item_rate),
            np.float32(public * s.network_rate),
            np.float32(s.decay),
        )
