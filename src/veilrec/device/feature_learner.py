"""Meta-learning of a feature network on devices: every device adapts the model to its user, and tells the change.

Reptile (PrivRec, Algorithm 1): theta starts at theta_0, takes some SGD steps on the device's own items and sampled
others, and theta - theta_0 is the update. A finished model adapts to somebody new in the same way, and the adapted
weights stay on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from veilrec import _draws
from veilrec._arrays import Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec.device import feature_kernel as kernel
from veilrec.device.learner import Cohort, Learned, OwnItemsAndFeatures
from veilrec.errors import BadInput, unknown_name
from veilrec.features import Side
from veilrec.models.feature_inputs import Inputs, ItemInputs
from veilrec.models.feature_net import FeatureNet
from veilrec.updates import Round, Schema, Tensor, Uploads

Loss = Literal["logistic", "softmax", "rating"]
_LOSSES = {"logistic": kernel.LOGISTIC, "softmax": kernel.SOFTMAX, "rating": kernel.SQUARED}
_SCORED_AT_ONCE = 512  # items, few enough that their activations stay in the cache


@dataclass(frozen=True)
class MetaSettings:
    """How a device adapts the model, in a round and afterwards."""

    loss: Loss = "logistic"  # eq. 2; softmax: own items against others; rating: squared errors of ratings out of 1
    epochs: int = 5  # E_2: passes over the own items
    steps: int = 0  # SGD steps, whatever the number of items; 0: as many as the epochs have batches
    batch: int = 16  # own items in a step; 0: all of them
    negatives: int = 4  # other items drawn: for every own one; with softmax, for a step
    reduction: Literal["sum", "mean"] = "mean"  # of the losses in a step
    rate: float = 0.1  # alpha_1
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
        if self.loss == "softmax" and self.negatives == 0:
            raise BadInput("local.negatives is 0: a softmax needs other items; give for instance 256")

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
        """How many steps devices with so many items take."""
        if self.steps > 0:
            return np.where(lengths > 0, self.steps, 0)
        batches = np.where(lengths > 0, 1, 0) if self.batch == 0 else -(-lengths // self.batch)
        return np.asarray(self.epochs * batches)

    def examples_of(self, lengths: Offsets, n_items: int) -> Offsets:
        """How many scores they compute the errors of, at most one step too many."""
        batch = lengths if self.batch == 0 else np.minimum(self.batch, lengths)
        others = np.where(lengths < n_items, self.negatives, 0)
        return np.asarray(self.steps_of(lengths) * (batch + (others if self.loss == "softmax" else batch * others)))

    def most_in_a_step(self, lengths: Offsets) -> int:
        """The examples of the largest step."""
        longest = int(lengths.max(initial=0))
        batch = longest if self.batch == 0 else min(self.batch, longest)
        return batch + (self.negatives if self.loss == "softmax" else batch * self.negatives)


class Step(NamedTuple):
    """The examples of one SGD step."""

    items: Indices
    labels: Floats  # what each should score
    own: int  # so many of them, the first ones, are the device's own


@dataclass(frozen=True)
class Adapter:
    """Weights adapted to people on their devices, and what the adapted weights say of every item."""

    net: FeatureNet
    inputs: Inputs
    local: MetaSettings

    def adapt(
        self,
        start: Floats,
        items: ItemInputs,
        own: Csr,
        people: Side,
        *,
        devices: Offsets,
        seed: int,
        round_number: int = 0,
        targets: Floats | None = None,
    ) -> tuple[Floats, Floats]:
        """The weights [n, size] at which each device arrives, and the loss of its last epoch."""
        if len(own.items) and not 0 <= int(own.items.min()) <= int(own.items.max()) < len(items.codes):
            raise BadInput(f"a device has item {int(own.items.max())}: the model knows {len(items.codes)}")
        learnt = np.empty((len(own), self.net.size), np.float32)
        loss = np.zeros(len(own), np.float32)
        wanted = np.ones(len(own.items), np.float32) if targets is None else targets
        kernel.learn_devices(
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
            devices,
            seed,
            round_number,
            self._space(self.local.most_in_a_step(own.lengths())),
            learnt,
            loss,
        )
        # compiled code may take what is not a number for one: a device that has diverged has no loss
        loss[~np.isfinite(learnt).all(axis=1)] = np.nan
        return learnt, loss

    def drawn(
        self,
        own: Indices,
        n_items: int,
        *,
        device: int,
        seed: int,
        round_number: int = 0,
        targets: Floats | None = None,
    ) -> Iterator[Step]:
        """What a device learns from, step by step."""
        rules, own = self.local.rules, own.copy()
        wanted = np.ones(len(own), np.float32) if targets is None else targets.copy()
        is_own = np.full(n_items, -1, np.int32)
        is_own[own] = 0
        others = self.local.negatives if (is_own < 0).any() else 0
        lengths = np.array([len(own)])
        batch = len(own) if self.local.batch == 0 else min(self.local.batch, len(own))
        items = np.empty(self.local.most_in_a_step(lengths), np.int32)
        labels = np.empty(len(items), np.float32)
        stream = np.uint64(_draws.stream(seed, _draws.LEARNING, round_number, device))
        counter, at = 0, 0
        for _ in range(int(self.local.steps_of(lengths)[0])):
            here, size, counter = kernel.draw_step(
                rules, own, wanted, at, batch, others, is_own, 0, stream, counter, items, labels
            )
            at = 0 if at + here == len(own) else at + here
            yield Step(items[:size].copy(), labels[:size].copy(), here)

    def score(self, learnt: Floats, items: ItemInputs, people: Side) -> Floats:
        """Scores of all items by each device's own weights: [n, items]."""
        scores = np.empty((len(learnt), len(items.codes)), np.float32)
        kernel.score_devices(
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


class MetaLearner:
    """Local learning of Reptile for any number of devices: a device keeps nothing but its data."""

    keeps_state = False

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter

    def fresh_private_state(self, devices: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing: who takes part again starts from the model again."""
        return {}

    def learn(self, cohort: Cohort[OwnItemsAndFeatures], model: Mapping[str, Floats], about: Round) -> Learned:
        """theta - theta_0 of every device."""
        a, data = self.adapter, cohort.data
        start, lengths = a.net.flat(model), data.rows.lengths()
        learnt, loss = a.adapt(
            start,
            a.inputs.of_items(model),
            data.rows,
            data.people,
            devices=cohort.devices,
            seed=cohort.draws_seed,
            round_number=about.number,
            targets=data.ratings,
        )
        learnt -= start
        examples = a.local.examples_of(lengths, len(a.inputs.items))
        dense = {name: np.ascontiguousarray(part) for name, part in a.net.named(learnt).items()}
        return Learned(Uploads(about.number, len(lengths), dense=dense, examples=examples), examples, loss)


def schema(net: FeatureNet, known: tuple[Tensor, ...] = ()) -> Schema:
    """The tensors of the network, all of them sent whole, and those that are known before the first round."""
    return Schema((*(Tensor(name, shape, by_row=False) for name, shape in net.tensors.items()), *known))
