"""The server of a federated run: it sends the model, checks and adds up messages, and steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from veilrec._arrays import Doubles, Floats, Indices, Offsets
from veilrec.errors import VeilrecError
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import add_gaussian, simulated_gaussian
from veilrec.server.aggregate import Aggregation, Aggregator
from veilrec.server.optimise import ServerRate, make_optimiser
from veilrec.updates import Schema, Uploads, part_of_model, whole_model
from veilrec.wire import codec
from veilrec.wire.values import ValueCoding


class Server:
    """Holds the public weights and nothing of any user."""

    def __init__(
        self,
        schema: Schema,
        weights: Mapping[str, Floats],
        aggregation: Aggregation,
        rate: ServerRate,
        *,
        sigma: float = 0.0,
        every_row: bool = False,
        upload_values: ValueCoding | None = None,
    ) -> None:
        if sigma > 0.0 and upload_values is not None:
            raise VeilrecError("coded values are rounded after clipping, and may then be longer than the noise covers")
        self.schema = schema
        self.upload_schema = schema if upload_values is None else schema.coded(upload_values)
        self.view = self.upload_schema  # of the messages of this round: its tables have the rows that were sent
        self.rows: Indices | None = None  # of the tables, in this round; None: all
        self._kept: Mapping[str, Offsets] = {}
        self._basis: Floats | None = None
        self.weights = {name: value.copy() for name, value in weights.items()}
        self.round_number = 0
        self._aggregator = Aggregator(schema, aggregation, every_row=every_row)
        self._optimiser = make_optimiser(rate)
        self.sigma = sigma  # standard deviation of the noise that every sum gets before it is used
        self._noisy = False

    @property
    def weighs_examples(self) -> bool:
        """Whether devices have to tell how many examples they learned from."""
        return self._aggregator.aggregation == "weighted-mean"

    def open_round(
        self, rows: Indices | None, kept: Mapping[str, Offsets] | None = None, basis: Floats | None = None
    ) -> None:
        """Say what the round is about: these rows of every table, only the kept entries of some tensors, and only
        the directions [width, rank] of the tables that an orthonormal basis spans.

        All of it is public: it comes from a seed or from what is released anyway. Noise goes to nothing else.
        """
        self._refuse_after_noise()
        self.rows = rows
        self._basis = basis
        self._kept = {} if kept is None else kept
        self.view = self.upload_schema if rows is None else self.upload_schema.narrowed(len(rows))
        if self._aggregator.schema != self.view:
            self._aggregator.schema = self.view
            self._aggregator.clear()

    def broadcast(self) -> Uploads:
        """What a device gets at the start of a round."""
        if self.rows is None:
            return whole_model(self.schema, self.weights, self.round_number)
        return part_of_model(self.schema, self.weights, self.rows, self.round_number)

    def receive(self, message: bytes) -> None:
        """Check and add one device's message; a bad one raises and changes nothing."""
        self.add(codec.decode(message, self.view, self.round_number))

    def add(self, uploads: Uploads) -> None:
        """Add messages that need no decoding: the simulator's way in."""
        self._refuse_after_noise()
        self._aggregator.add(uploads)

    def _refuse_after_noise(self) -> None:
        if self._noisy:
            raise VeilrecError(
                "the sum of this round has its noise already: nothing can be added before the next round"
            )

    def add_noise(self, source: Source) -> None:
        """Protect the sum of the round; from here on nothing depends on a single device by more than is promised."""
        self._perturb(lambda total: add_gaussian(total, sigma=self.sigma, source=source))

    def add_simulated_noise(self, generator: np.random.Generator) -> None:
        """The same with fast seeded noise, which protects nobody: for simulations."""
        self._perturb(lambda total: total + simulated_gaussian(generator, total.shape, sigma=self.sigma))

    def add_to_sum(self, noise: Mapping[str, Floats]) -> None:
        """Add the noise of all devices' messages at once: the simulator's shortcut."""
        self._aggregator.add_to_sum(noise)

    def _perturb(self, noisy: Callable[[Doubles], Doubles]) -> None:
        """Put noise on the sums themselves, so that what comes out lies on the noise's lattice whatever they were."""
        for name, total in self._aggregator.sums.items():
            if name in self._kept:
                flat = total.reshape(-1)
                flat[self._kept[name]] = noisy(flat[self._kept[name]])
            else:
                total[...] = noisy(total)
        self._noisy = True

    def step(self) -> None:
        """End the round: move the model, and forget what was sent."""
        if self.sigma > 0.0 and not self._noisy:
            raise VeilrecError("the sum of this round has no noise yet: nothing of it may be used")
        self._noisy = False
        self._optimiser.step(self.weights, self._change())
        self._aggregator.clear()
        self.round_number += 1

    def _change(self) -> dict[str, Floats]:
        change = self._aggregator.change()
        for tensor in self.schema.tables:
            if self._basis is not None:
                moved = np.matmul(change[tensor.name], self._basis, dtype=np.float32)
                change[tensor.name] = np.matmul(moved, self._basis.T, dtype=np.float32)
            if self.rows is not None:
                whole = np.zeros(tensor.shape, np.float32)
                whole[self.rows] = change[tensor.name]
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
        self.round_number = round_number
