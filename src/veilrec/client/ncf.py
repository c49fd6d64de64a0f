"""Local training and ranking of neural collaborative filtering (NeuMF), with deep gradient compression.

NeuMF: logistic loss, sampled negatives, only touched rows. The user vector never leaves the client; the change of every
touched item row and of the whole network is uploaded, or their negative gradients at the received model. The loss of an
example with label y is
    -log sigmoid((2y-1) score) + decay/2 (|p_u|^2 + |q_i|^2).
Adam is lazy: a batch moves the rows (weights and moments) of its own items only. Its moments start from zero in every
round, because a client keeps no optimiser state between rounds.

Deep gradient compression (Lin et al. 2018), per client over the flattened network: the update g is clipped (local
clipping), u = momentum u + g (momentum correction), v = v + u (error accumulation), some entries of v are sent and set
to 0 in u and v (factor masking). u and v never leave the client. Item rows are cut to their largest entries and not
accumulated: a client touches other rows in every round, and two more item tables per client would exceed the model.

    paper   here
    u       private state "dgc.momentum"
    v       private state "dgc.error"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

from veilrec.client.local_training import Cohort, LocalResults, LocalTrainer, OwnItems
from veilrec.client.rankers import Arrays, SettingsAlone
from veilrec.core import rng
from veilrec.core.arrays import Floats, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.schema import ClientUpdates, RoundSpec, Rows, Schema, Tensor, check_share, entries_at, share_of
from veilrec.kernels.neumf import NcfInputs, NcfRules, space_for, train_in_threads
from veilrec.models.scores import ITEMS, NeumfScores, NeumfShape, Scorer
from veilrec.privacy.mechanisms.clipping import client_norms, clip_factors
from veilrec.privacy.mechanisms.compression import largest_of_dense, largest_of_rows

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
    update: Literal["change", "gradient"] = "change"  # gradient: only user vectors learn here, the server has the rate
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
    weights = {ITEMS: start * rng.normals(seed, rng.MODEL, 0, rows, shape.row)}
    for number, (name, size) in enumerate(shape.network().items(), start=1):
        if name.endswith("bias"):
            weights[name] = np.zeros(size, np.float32)
        elif name == "output.weight":
            tower = rng.normals(seed, rng.MODEL, number, np.zeros(1, np.int64), shape.layers[-1])[0]
            tower /= np.float32(np.sqrt(shape.layers[-1]))
            weights[name] = np.concatenate([np.ones(shape.gmf, np.float32), tower])
        else:
            outputs = np.arange(size[0], dtype=np.int64)
            spread = np.float32(np.sqrt(2.0 / size[1]))
            weights[name] = spread * rng.normals(seed, rng.MODEL, number, outputs, size[1])
    return weights


class NcfLocalTrainer:
    """Local learning of NeuMF for any number of clients."""

    keeps_state = True
    reads = ("items",)
    rows = "touched"

    def __init__(self, settings: NcfSettings, *, freeze_public: bool = False) -> None:
        self.settings = settings
        self.freeze_public = freeze_public  # only the user learns: how a new user joins a finished model

    def fresh_private_state(self, clients: Offsets, draws_seed: int) -> dict[str, Floats]:
        """User vectors of clients that take part for the first time."""
        s = self.settings
        return {USER: s.start * rng.normals(draws_seed, rng.PRIVATE_STATE, 0, clients, s.shape.row)}

    def learn(self, cohort: Cohort[OwnItems], model: Mapping[str, Floats], spec: RoundSpec) -> LocalResults:
        """Learn from each client's data."""
        s, shape = self.settings, self.settings.shape
        data = cohort.data.rows
        lengths = data.lengths()
        network = shape.flat(model)
        given = NcfInputs(
            cohort.draws_seed, spec.number, cohort.clients, data.offsets, data.items, model[ITEMS], network
        )
        most = np.minimum(lengths * (1 + s.negatives * s.epochs), len(model[ITEMS]))
        learnt = space_for(most, cohort.private[USER], len(network))
        train_in_threads(shape.layout(), self._rules(), given, most, learnt)
        used = learnt.offsets[-1]
        tables = {ITEMS: Rows(learnt.offsets, learnt.items[:used], learnt.rows[:used])}
        examples = lengths * (1 + s.negatives) * s.epochs
        updates = ClientUpdates(spec.number, len(lengths), tables, shape.named(learnt.networks), examples)
        return LocalResults(updates, examples, learnt.loss)

    def _rules(self) -> NcfRules:
        s = self.settings
        public = 0.0 if self.freeze_public else 1.0
        return NcfRules(
            s.epochs,
            s.negatives,
            s.batch,
            s.reduction == "mean",
            s.optimiser == "adam",
            s.update == "gradient" and not self.freeze_public,
            np.float32(s.user_rate),
            np.float32(public * s.item_rate),
            np.float32(public * s.network_rate),
            np.float32(s.decay),
        )


MOMENTUM = "dgc.momentum"
ERROR = "dgc.error"


@dataclass(frozen=True)
class DgcSettings:
    """Deep gradient compression."""

    share: float = 0.1  # of the entries that are sent
    momentum: float = 0.5  # of what a client has not sent yet
    local_clip_norm: float = 1.0  # of the network's part of an update, before it is accumulated

    def __post_init__(self) -> None:
        check_share("dgc.share", self.share)
        if not 0.0 <= self.momentum < 1.0:
            raise BadInput(f"dgc.momentum is {self.momentum}: it has to be from 0 to below 1")
        if not 0.0 < self.local_clip_norm < np.inf:
            raise BadInput(f"dgc.local_clip_norm is {self.local_clip_norm}: it has to be a number above 0")


class DgcLocalTrainer:
    """Any trainer, with its updates compressed: to the entries that a round is about, or to the largest ones."""

    keeps_state = True

    def __init__(self, inner: LocalTrainer[OwnItems], settings: DgcSettings, schema: Schema) -> None:
        self.inner = inner
        self.settings = settings
        self.reads, self.rows = getattr(inner, "reads", None), getattr(inner, "rows", "touched")
        self._schema = schema
        self._size = sum(tensor.size for tensor in schema.dense)

    def fresh_private_state(self, clients: Offsets, draws_seed: int) -> dict[str, Floats]:
        """The trainer's own state, and empty accumulators."""
        empty = {name: np.zeros((len(clients), self._size), np.float32) for name in (MOMENTUM, ERROR)}
        return self.inner.fresh_private_state(clients, draws_seed) | empty

    def learn(self, cohort: Cohort[OwnItems], model: Mapping[str, Floats], spec: RoundSpec) -> LocalResults:
        """Learn, accumulate, and send a part."""
        learned = self.inner.learn(cohort, model, spec)
        updates, tensors = learned.updates, self._schema.dense
        flat = np.concatenate([updates.dense[t.name].reshape(updates.count, -1) for t in tensors], axis=1)
        momentum, error = cohort.private[MOMENTUM], cohort.private[ERROR]
        accumulate(momentum, error, flat, self.settings)
        entries, start = {}, 0
        for tensor in tensors:
            part = slice(start, start + tensor.size)
            named = spec.entries(tensor.name, tensor.size)
            entries[tensor.name] = self._take(momentum[:, part], error[:, part], named)
            start += tensor.size
        if spec.shares:
            return replace(learned, updates=replace(updates, dense={}, entries=entries))
        for table in self._schema.tables:
            height = len(model[table.name])
            count = share_of(height * table.shape[1], self.settings.share)
            entries[table.name] = largest_of_rows(updates.tables[table.name], count)
        return replace(learned, updates=replace(updates, tables={}, dense={}, entries=entries))

    def _take(self, momentum: Floats, error: Floats, named: Offsets | None) -> Rows:
        if named is None:
            rows = largest_of_dense(error, share_of(error.shape[1], self.settings.share))
            client = np.repeat(np.arange(len(error)), np.diff(rows.offsets))
            error[client, rows.index] = 0.0
            momentum[client, rows.index] = 0.0
            return rows
        rows = entries_at(error, named)
        error[:, named] = 0.0
        momentum[:, named] = 0.0
        return rows


def accumulate(momentum: Floats, error: Floats, update: Floats, settings: DgcSettings) -> None:
    """Clip, correct by momentum, and add to what has not been sent yet; in place."""
    factors = clip_factors(client_norms((), [update]), settings.local_clip_norm).astype(np.float32)
    momentum *= np.float32(settings.momentum)
    momentum += factors[:, np.newaxis] * update
    error += momentum


@dataclass(frozen=True)
class NeumfRanker(SettingsAlone):
    """NeuMF: a user is a vector, which a new one learns on its own device."""

    kind: ClassVar[str] = "neumf"
    local: NcfSettings  # with the epochs of joining
    draws_seed: int

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> NeumfModel:
        """Vectors of the clients beside the public model."""
        users = private.get(USER, np.zeros((0, self.local.shape.row), np.float32))
        return NeumfModel(users, weights, self)


class NeumfModel(NeumfScores):
    """User vectors beside the public model, and how a new user joins."""

    def __init__(self, users: Floats, public: Arrays, ranker: NeumfRanker) -> None:
        super().__init__(ranker.local.shape, users, public)
        self._public = public
        self._seed = ranker.draws_seed
        self._adapter = NcfLocalTrainer(ranker.local, freeze_public=True)

    def fold_in(self, histories: Csr) -> Scorer:
        """New users: each learns its own vector on its client; items and network stay as they are."""
        clients = np.arange(len(histories), dtype=np.int64)
        private = self._adapter.fresh_private_state(clients, self._seed)
        self._adapter.learn(Cohort(clients, OwnItems(histories), private, self._seed), self._public, RoundSpec(0))
        return NeumfScores(self._adapter.settings.shape, private[USER], self._public)
