"""The server of a federated run.

- `Server`: sends the model, checks and sums messages, adds the noise, steps.
- `ServerState`: the server, the averaged model and the items covered so far, between rounds.
- `SelectionOutcome`: which model a run keeps: the trained one if held-out validation clients gain by it, or the start.
- `GeometricClipping`, `PublishedClipping`: the next clip norm from a noisy count of updates within it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Bools, Doubles, Floats, Offsets
from veilrec.core.errors import BadInput, Diverged, VeilrecError
from veilrec.core.fixed_point import MAX_EXAMPLES, FixedPoint
from veilrec.core.plan import ModelSelection, Plan
from veilrec.core.schema import BOUND, ClientUpdates, RoundSpec, Schema, part_of_model, whole_model
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.mechanisms.clipping import BadUpdate, next_clip_norm, published_next_clip_norm
from veilrec.privacy.randomness import Source
from veilrec.server.aggregation import Aggregator, make_optimiser
from veilrec.server.round_specs import Tally
from veilrec.wire import messages


@dataclass(frozen=True, kw_only=True)
class GeometricClipping:
    """S exp(-rate (share - quantile)): always above 0, and within public limits (Andrew et al. 2021)."""

    cohort: int  # expected clients of a round, which the count is divided by
    smallest: float
    largest: float
    quantile: float = 0.5  # of the updates, that the bound should leave alone
    rate: float = 0.2

    def __post_init__(self) -> None:
        positive(cohort=self.cohort, smallest=self.smallest, rate=self.rate)
        probability(quantile=self.quantile)
        if not self.smallest <= self.largest < math.inf:
            raise BadInput(f"bounds from {self.smallest:g} to {self.largest:g}: give the smaller one first")

    def next(self, clip_norm: float, count: float) -> float:
        """The bound after this one; every message counted 1/2 up or down."""
        moved = next_clip_norm(
            clip_norm,
            noisy_unclipped_fraction=count / self.cohort + 0.5,
            quantile=self.quantile,
            learning_rate=self.rate,
        )
        return min(max(moved, self.smallest), self.largest)


@dataclass(frozen=True, kw_only=True)
class PublishedClipping:
    """S - alpha_4 (beta - gamma), as DP-PrivRec prints it (Algorithm 2, line 11): it may fall below 0."""

    cohort: int  # M
    quantile: float  # gamma
    rate: float  # alpha_4

    def next(self, clip_norm: float, count: float) -> float:
        """The bound after this one; every message counted 1 or nothing."""
        moved = published_next_clip_norm(
            clip_norm, noisy_unclipped_fraction=count / self.cohort, quantile=self.quantile, learning_rate=self.rate
        )
        if not math.isfinite(moved):
            raise VeilrecError(f"the bound has become {moved}: use a smaller rate of the bound")
        return moved


ClippingRule: TypeAlias = GeometricClipping | PublishedClipping


class WrongExamples(messages.BadMessage):
    """A message with an example count that the round does not use, or without one that it needs."""


class Server:
    """Holds the public weights and nothing of any user."""

    def __init__(self, plan: Plan) -> None:
        if (plan.clipping_rule is not None) != any(tensor.name == BOUND for tensor in plan.schema.tensors):
            raise BadInput(f"a rule for the bound and a tensor {BOUND} in the schema need each other: give both")
        self.plan, self.schema, self.mechanism = plan, plan.schema, plan.mechanism
        self.weights = {name: value.copy() for name, value in plan.start.items()}
        self.spec = RoundSpec(0)
        self._aggregator = Aggregator(plan.fixed_point(self.spec), plan.aggregation)
        self._optimiser = make_optimiser(plan.server)
        self._protected = False

    def fill(self, tensors: Mapping[str, Floats]) -> None:
        """Set tensors that no answer is about."""
        for name, values in tensors.items():
            tensor = self.schema[name]
            if tensor.learnt or values.shape != tensor.shape:
                raise ValueError(f"{name} is learnt, or {values.shape} is not its shape: it cannot be filled")
            self.weights[name][...] = values

    @property
    def view(self) -> Schema:
        """The schema of this round's messages: its tables have the rows that were sent."""
        return self.fixed_point.view

    @property
    def fixed_point(self) -> FixedPoint:
        """The whole numbers that this round's messages are added up in."""
        return self._aggregator.fixed_point

    def open_round(self, spec: RoundSpec) -> None:
        """Begin a round with its spec."""
        self._refuse_after_noise()
        self.spec = spec
        fixed_point = self.plan.fixed_point(spec)
        if self.fixed_point != fixed_point:
            self._aggregator.clear(fixed_point)

    def broadcast(self) -> ClientUpdates:
        """Model that clients get at the start of a round."""
        if self.spec.rows is None:
            return whole_model(self.schema, self.weights, self.spec.number)
        return part_of_model(self.schema, self.weights, self.spec.rows, self.spec.number)

    def receive(self, message: bytes) -> None:
        """Check and add one client's message; a bad one raises and changes nothing."""
        self.add(self.read(message))

    def read(self, message: bytes) -> ClientUpdates:
        """Unpack one client's message for this round; one that cannot be added raises."""
        updates = messages.decode_update(message, self.view, self.spec.number)
        if (updates.examples is not None) != self.plan.sends_examples:
            raise WrongExamples(
                "the message does not tell its number of examples, by which this round weighs it"
                if self.plan.sends_examples
                else "the message tells its number of examples, which this round does not ask for"
            )
        if updates.examples is not None and updates.examples.max() > MAX_EXAMPLES:
            raise WrongExamples(f"the message tells of {updates.examples.max()} examples: {MAX_EXAMPLES} are the most")
        self.mechanism.check(updates, self.spec)
        try:
            self.fixed_point.check(updates)
        except Diverged as beyond:
            raise BadUpdate(str(beyond)) from None
        return updates

    def add(self, updates: ClientUpdates) -> None:
        """Add messages that need neither decoding nor checking: the simulator's way in."""
        self._refuse_after_noise()
        self._aggregator.add(updates)

    def add_integers(self, total: Offsets, *, clients: int) -> None:
        """Add a fixed-point sum of updates: from secure aggregation, or from a worker of a simulation."""
        self._refuse_after_noise()
        self._aggregator.add_integers(total, clients=clients)

    def add_to_sum(self, noise: Mapping[str, Floats]) -> None:
        """Add the noise of all clients' messages at once: the simulator's shortcut."""
        self._aggregator.add_to_sum(noise)

    def protect(self, source: Source) -> None:
        """Put its noise on the sum; from here on nothing depends on one client by more than is promised."""
        self._refuse_after_noise()
        self.mechanism.protect(self._aggregator.sums, self.spec, source)
        self._protected = True

    def _refuse_after_noise(self) -> None:
        if self._protected:
            raise VeilrecError(
                "the sum of this round has its noise already: nothing can be added before the next round"
            )

    def step(self) -> None:
        """End the round: update the model, and clear the sums."""
        if self.mechanism.noise_on == "sum" and not self._protected:
            raise VeilrecError("the sum of this round has no noise yet: nothing of it may be used")
        self._protected = False
        bound = self._next_bound()
        if self.plan.decay_share:
            share = np.float32(self.plan.decay_share) * np.float32(self._aggregator.clients)  # of the sum
            learnt = {tensor.name for tensor in self.view.tensors}
            self._aggregator.add_to_sum({name: -share * self.weights[name] for name in learnt})
        change = {name: value for name, value in self._change().items() if name not in bound}
        self._optimiser.step(self.weights, change)
        for name, value in bound.items():
            self.weights[name][...] = value
        self._aggregator.clear(self.fixed_point)
        self.spec = RoundSpec(self.spec.number + 1)

    def drop_round(self) -> None:
        """End a void round: keep the model, and clear the sums."""
        self._protected = False
        self._aggregator.clear(self.fixed_point)
        self.spec = RoundSpec(self.spec.number + 1)

    def _next_bound(self) -> dict[str, float]:
        """The clip norm of the next round, from the protected count of this one; nothing where it is not learnt."""
        if self.plan.clipping_rule is None:
            return {}
        now, count = float(self.weights[BOUND][0]), float(self._aggregator.sums[BOUND][0])
        return {BOUND: self.plan.clipping_rule.next(now, count)}

    def _change(self) -> dict[str, Floats]:
        change = self._aggregator.change()
        for tensor in self.schema.learnt.tables:
            if not self.spec.concerns(tensor.name):
                continue
            basis = self.spec.basis(tensor.shape[1])
            if basis is not None:
                moved = np.matmul(change[tensor.name], basis, dtype=np.float32)
                change[tensor.name] = np.matmul(moved, basis.T, dtype=np.float32)
            if self.spec.rows is not None:
                whole = np.zeros(tensor.shape, np.float32)
                whole[self.spec.rows] = change[tensor.name]
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
        self.spec = RoundSpec(round_number)


_SERVER, _AVERAGE, _SENT = "server.", "average.", "sent"


class ServerState:
    """State of a run between rounds: server, running average, and the items that rounds covered."""

    def __init__(self, plan: Plan) -> None:
        self.server = Server(plan)
        self._from_reports = plan.from_reports
        # The model that ranks may be a running mean of the server's: averages = averaging * averages + ...
        self.averaging = np.float32(plan.averaging)
        self.averages = {n: value.copy() for n, value in plan.start.items()} if plan.averaging else {}
        # How often each item was part of what a round was about, where rounds are about parts.
        leaves_out = plan.round_planner.leaves_out
        self.sent = np.zeros(plan.schema.tables[0].shape[0], np.int64) if leaves_out else None

    def take_in(self, tally: Tally | None) -> None:
        """Fill the tensors that come from reports, once these are known; the same again changes nothing."""
        if tally is None or self._from_reports is None:
            return
        self.server.fill(self._from_reports.tensors(tally))
        for name, values in self.known.items() if self.averages else ():
            self.averages[name][...] = values

    @property
    def known(self) -> dict[str, Floats]:
        """The tensors that no answer is about."""
        return {t.name: self.server.weights[t.name] for t in self.server.schema.tensors if not t.learnt}

    def step(self) -> None:
        """End the round, and update average and coverage."""
        rows = self.server.spec.rows
        if self.sent is not None:
            self.sent[slice(None) if rows is None else rows] += 1
        self.server.step()
        for name, weights in self.server.weights.items() if self.averages else ():
            self.averages[name] += (np.float32(1.0) - self.averaging) * (weights - self.averages[name])

    def goes_too_far(self) -> bool:
        """Whether the model has weights that no client would learn from: a client lies, or the rates are too large."""
        known = ((tensor, self.weights.get(tensor.name)) for tensor in self.server.schema.tensors)
        return not all(values is None or (np.abs(values) <= tensor.largest).all() for tensor, values in known)

    @property
    def weights(self) -> Mapping[str, Floats]:
        """Weights of the model that ranks: averages where there are any, else those of the server."""
        return self.averages or self.server.weights

    @property
    def sent_items(self) -> Bools | None:
        """The items that any round was about; None: all."""
        return None if self.sent is None or self.sent.all() else self.sent > 0

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state for a checkpoint between rounds."""
        sent = {} if self.sent is None else {_SENT: self.sent}
        averages = {_AVERAGE + name: values for name, values in self.averages.items()}
        return {_SERVER + name: values for name, values in self.server.state().items()} | sent | averages

    def load_state(self, state: Mapping[str, NDArray[Any]], rounds_done: int) -> None:
        """Go on from a checkpoint."""
        server = {name.removeprefix(_SERVER): state[name] for name in state if name.startswith(_SERVER)}
        self.server.load_state(server, rounds_done)
        if self.sent is not None:
            self.sent[...] = state[_SENT]
        for name in self.averages:
            self.averages[name][...] = state[_AVERAGE + name]


@dataclass(frozen=True)
class SelectionOutcome:
    """Outcome of private model selection; all but the public number of validation clients is noisy."""

    kept: Literal["start", "trained"]
    gain: float  # noisy mean of the clipped gains
    threshold: float  # that it had to exceed
    validators: int  # nominal, which is public

    def to_json(self) -> dict[str, Any]:
        """Encode for `result.json`."""
        return asdict(self)

    def line(self) -> str:
        """Describe the outcome in a sentence."""
        kept = "the trained model" if self.kept == "trained" else "the start"
        compared = "more than" if self.kept == "trained" else "not more than"
        return (
            f"Clients that never learnt, nominally {self.validators:,}, compared the trained model with the start, and"
            f" {kept} is kept: the noisy mean of their gains, each clipped, is {self.gain:.4f}, {compared} the"
            f" {self.threshold:.4f} that noise and chance explain."
        )

    def state(self) -> Doubles:
        """Encode for a checkpoint."""
        return np.array([self.kept == "trained", self.gain, self.threshold, self.validators], np.float64)

    @classmethod
    def restored(cls, state: Doubles) -> SelectionOutcome:
        """Decode what `state` returned."""
        trained, gain, threshold, validators = state.tolist()
        return cls("trained" if trained else "start", gain, threshold, int(validators))


def selection_of(sent: Iterable[bytes], selection: ModelSelection, noise: Source) -> SelectionOutcome:
    """Select a model by the messages of validation clients; a bad one raises before noise is drawn."""
    mechanism, told = selection.mechanism, [messages.decode_gain(message) for message in sent]
    for gain in told:
        mechanism.check(gain)
    noisy = mechanism.protect(mechanism.total(np.array(told, np.float64)), noise)
    return decide(float(noisy[0]), selection)


def decide(noisy_sum: float, selection: ModelSelection) -> SelectionOutcome:
    """Keep the trained model only if its noisy mean gain exceeds the threshold of noise and chance.

    Mean and threshold are of the nominal number of validation clients: by the true one, which no noise covers, one
    person more would move the outcome past what the noise on the sum hides.
    """
    gain, threshold = noisy_sum / selection.people, selection.mechanism.threshold(selection.people)
    return SelectionOutcome("trained" if gain > threshold else "start", gain, threshold, selection.people)
