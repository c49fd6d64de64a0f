"""The server of a federated run: it sends the model, checks and adds up messages, and steps."""

from __future__ import annotations

from collections.abc import Mapping

from veilrec._arrays import Floats
from veilrec.server.aggregate import Aggregation, Aggregator
from veilrec.server.optimise import ServerRate, make_optimiser
from veilrec.wire import codec
from veilrec.wire.messages import Schema, Uploads, whole_model


class Server:
    """Holds the public weights and nothing of any user."""

    def __init__(
        self, schema: Schema, weights: Mapping[str, Floats], aggregation: Aggregation, rate: ServerRate
    ) -> None:
        self.schema = schema
        self.weights = {name: value.copy() for name, value in weights.items()}
        self.round_number = 0
        self._aggregator = Aggregator(schema, aggregation)
        self._optimiser = make_optimiser(rate)

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

    def step(self) -> None:
        """End the round: move the model, and forget what was sent."""
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
