"""The server of a federated run: it sends the model, checks and adds up messages, and steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from veilrec._arrays import Floats
from veilrec.errors import VeilrecError
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import add_gaussian, simulated_gaussian
from veilrec.server.aggregate import Aggregation, Aggregator
from veilrec.server.optimise import ServerRate, make_optimiser
from veilrec.wire import codec
from veilrec.wire.messages import Schema, Uploads, whole_model


class Server:
    """Holds the public weights and nothing of any user."""

    def __init__(
        self, schema: Schema, weights: Mapping[str, Floats], aggregation: Aggregation, rate: ServerRate,
        *, sigma: float = 0.0,
    ) -> None:  # fmt: skip
        self.schema = schema
        self.weights = {name: value.copy() for name, value in weights.items()}
        self.round_number = 0
        self._aggregator = Aggregator(schema, aggregation)
        self._optimiser = make_optimiser(rate)
        self.sigma = sigma  # standard deviation of the noise that every sum gets before it is used
        self._noisy = False

    @property
    def weighs_examples(self) -> bool:
        """Whether devices have to tell how many examples they learned from."""
        return self._aggregator.aggregation == "weighted-mean"

    def broadcast(self) -> Uploads:
        """What a device gets at the start of a round."""
        return whole_model(self.schema, self.weights, self.round_number)

    def receive(self, message: bytes) -> None:
        """Check and add one device's message; a bad one raises and changes nothing."""
        self.add(codec.decode(message, self.schema, self.round_number))

    def add(self, uploads: Uploads) -> None:
        """Add messages that need no decoding: the simulator's way in."""
        self._aggregator.add(uploads)

    def add_noise(self, source: Source) -> None:
        """Protect the sum of the round; from here on nothing depends on a single device by more than is promised."""
        noise = {
            t.name: add_gaussian(np.zeros(t.shape), sigma=self.sigma, source=source).astype(np.float32)
            for t in self.schema.tensors
        }
        self._add_noise(noise)

    def add_simulated_noise(self, generator: np.random.Generator) -> None:
        """The same with fast seeded noise, which protects nobody: for simulations."""
        self._add_noise(
            {t.name: simulated_gaussian(generator, t.shape, sigma=self.sigma) for t in self.schema.tensors}
        )

    def add_to_sum(self, noise: Mapping[str, Floats]) -> None:
        """Add the noise of all devices' messages at once: the simulator's shortcut."""
        self._aggregator.add_to_sum(noise)

    def _add_noise(self, noise: Mapping[str, Floats]) -> None:
        self.add_to_sum(noise)
        self._noisy = True

    def step(self) -> None:
        """End the round: move the model, and forget what was sent."""
        if self.sigma > 0.0 and not self._noisy:
            raise VeilrecError("the sum of this round has no noise yet: nothing of it may be used")
        self._noisy = False
        self._optimiser.step(self.weights, self._aggregator.change())
        self._aggregator.clear()
        self.round_number += 1

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
