"""The server of a federated run: it sends the model, checks and adds up messages, and steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from veilrec._arrays import Floats, Offsets
from veilrec.errors import BadInput, Diverged, VeilrecError
from veilrec.lattice import MOST_DEVICES, MOST_EXAMPLES, Lattice
from veilrec.privacy.mechanisms.bounding import BadUpdate
from veilrec.privacy.mechanisms.updates import UpdateMechanism
from veilrec.privacy.randomness import Source
from veilrec.server.aggregate import ROW_COUNTS, Aggregation, Aggregator
from veilrec.server.bound import BoundRule
from veilrec.server.optimise import ServerRate, make_optimiser
from veilrec.updates import BOUND, Round, Schema, Uploads, part_of_model, whole_model
from veilrec.wire import codec


class WrongExamples(codec.BadMessage):
    """A message that tells how many examples it is from where nobody asked, or does not where the round needs it."""


class Server:
    """Holds the public weights and nothing of any user."""

    def __init__(
        self,
        schema: Schema,
        weights: Mapping[str, Floats],
        mechanism: UpdateMechanism,
        aggregation: Aggregation,
        rate: ServerRate,
        *,
        decay_share: float = 0.0,
        bound_rule: BoundRule | None = None,
        most_devices: int = MOST_DEVICES,
    ) -> None:
        if (bound_rule is not None) != any(tensor.name == BOUND for tensor in schema.tensors):
            raise BadInput(f"a rule for the bound and a tensor {BOUND} in the schema need each other: give both")
        self.schema = schema
        self.bound_rule = bound_rule  # moves the clip norm, where that is learnt
        self.mechanism = mechanism
        self.weights = {name: value.copy() for name, value in weights.items()}
        self.decay_share = np.float32(decay_share)  # of the weights, taken off for every device of a round
        self.about = Round(0)
        self.most_devices = most_devices  # in one round: sums are made for so many
        self._aggregator = Aggregator(self._lattice(self.about, aggregation), aggregation)
        self._optimiser = make_optimiser(rate)
        self._protected = False

    def _lattice(self, about: Round, aggregation: Aggregation) -> Lattice:
        return self.mechanism.lattice(
            about,
            devices=self.most_devices,
            weighs_examples=aggregation == "weighted-mean",
            counts_rows=aggregation in ROW_COUNTS,
        )

    def fill(self, tensors: Mapping[str, Floats]) -> None:
        """Set tensors that no answer is about."""
        for name, values in tensors.items():
            tensor = self.schema[name]
            if tensor.learnt or values.shape != tensor.shape:
                raise ValueError(f"{name} is learnt, or {values.shape} is not its shape: it cannot be filled")
            self.weights[name][...] = values

    @property
    def weighs_examples(self) -> bool:
        """Whether devices have to tell how many examples they learned from."""
        return self._aggregator.aggregation == "weighted-mean"

    @property
    def view(self) -> Schema:
        """The schema of this round's messages: its tables have the rows that were sent."""
        return self.lattice.view

    @property
    def lattice(self) -> Lattice:
        """The whole numbers that this round's messages are added up in."""
        return self._aggregator.lattice

    def open_round(self, about: Round) -> None:
        """Say what the round is about."""
        self._refuse_after_noise()
        self.about = about
        lattice = self._lattice(about, self._aggregator.aggregation)
        if self.lattice != lattice:
            self._aggregator.clear(lattice)

    def broadcast(self) -> Uploads:
        """What a device gets at the start of a round."""
        if self.about.rows is None:
            return whole_model(self.schema, self.weights, self.about.number)
        return part_of_model(self.schema, self.weights, self.about.rows, self.about.number)

    def receive(self, message: bytes) -> None:
        """Check and add one device's message; a bad one raises and changes nothing."""
        self.add(self.read(message))

    def read(self, message: bytes) -> Uploads:
        """Unpack one device's message for this round; one that cannot be added raises."""
        uploads = codec.decode(message, self.view, self.about.number)
        if (uploads.examples is not None) != self.weighs_examples:
            raise WrongExamples(
                "the message does not tell its number of examples, by which this round weighs it"
                if self.weighs_examples
                else "the message tells its number of examples, which this round does not ask for"
            )
        if uploads.examples is not None and uploads.examples.max() > MOST_EXAMPLES:
            raise WrongExamples(f"the message tells of {uploads.examples.max()} examples: {MOST_EXAMPLES} are the most")
        self.mechanism.check(uploads, self.about)
        try:
            self.lattice.check(uploads)
        except Diverged as beyond:
            raise BadUpdate(str(beyond)) from None
        return uploads

    def add(self, uploads: Uploads) -> None:
        """Add messages that need neither decoding nor checking: the simulator's way in."""
        self._refuse_after_noise()
        self._aggregator.add(uploads)

    def add_integers(self, total: Offsets, *, devices: int) -> None:
        """Add what some devices' messages add up to, in whole numbers of this round's lattice: nobody else's way in
        but that of secure aggregation, and of a simulation in several processes."""
        self._refuse_after_noise()
        self._aggregator.add_integers(total, devices=devices)

    def add_to_sum(self, noise: Mapping[str, Floats]) -> None:
        """Add the noise of all devices' messages at once: the simulator's shortcut."""
        self._aggregator.add_to_sum(noise)

    def protect(self, source: Source) -> None:
        """Put its noise on the sum; from here on nothing depends on one device by more than is promised."""
        self._refuse_after_noise()
        self.mechanism.protect(self._aggregator.sums, self.about, source)
        self._protected = True

    def _refuse_after_noise(self) -> None:
        if self._protected:
            raise VeilrecError(
                "the sum of this round has its noise already: nothing can be added before the next round"
            )

    def step(self) -> None:
        """End the round: move the model, and forget what was sent."""
        if self.mechanism.noise_on == "sum" and not self._protected:
            raise VeilrecError("the sum of this round has no noise yet: nothing of it may be used")
        self._protected = False
        bound = self._next_bound()
        if self.decay_share:
            share = self.decay_share * np.float32(self._aggregator.devices)  # of the sum
            learnt = {tensor.name for tensor in self.view.tensors}
            self._aggregator.add_to_sum({name: -share * self.weights[name] for name in learnt})
        change = {name: value for name, value in self._change().items() if name not in bound}
        self._optimiser.step(self.weights, change)
        for name, value in bound.items():
            self.weights[name][...] = value
        self._aggregator.clear(self.lattice)
        self.about = Round(self.about.number + 1)

    def drop_round(self) -> None:
        """End a round that is void: the model stays, and what was sent is forgotten."""
        self._protected = False
        self._aggregator.clear(self.lattice)
        self.about = Round(self.about.number + 1)

    def _next_bound(self) -> dict[str, float]:
        """The clip norm of the next round, from the protected count of this one; nothing where it is not learnt."""
        if self.bound_rule is None:
            return {}
        now, count = float(self.weights[BOUND][0]), float(self._aggregator.sums[BOUND][0])
        return {BOUND: self.bound_rule.next(now, count)}

    def _change(self) -> dict[str, Floats]:
        change = self._aggregator.change()
        for tensor in self.schema.learnt.tables:
            if not self.about.concerns(tensor.name):
                continue
            basis = self.about.basis(tensor.shape[1])
            if basis is not None:
                moved = np.matmul(change[tensor.name], basis, dtype=np.float32)
                change[tensor.name] = np.matmul(moved, basis.T, dtype=np.float32)
            if self.about.rows is not None:
                whole = np.zeros(tensor.shape, np.float32)
                whole[self.about.rows] = change[tensor.name]
                change[tensor.name] = whole
        return change

    def state(self) -> dict[str, Floats]:
        """Weights and optimiser, for a checkpoint between rounds."""
        state = {f"weights.{name}": value for name, value in self.weights.items()}
        return state | {f"optimiser.{name}": value for name, value in self._optimiser.state().items()}

    def load_state(self, state: Mapping[str, Floats], round_number: int) -> None:
        """Go on from a checkpoint."""
        for name in self.weights:
            self.weights[name][...] = state[f"weights.{name}"]
        saved = {key.partition(".")[2]: value for key, value in state.items() if key.startswith("optimiser.")}
        self._optimiser.load_state(saved)
        self.about = Round(round_number)
