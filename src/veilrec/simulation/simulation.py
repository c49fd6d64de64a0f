"""Simulation of a federation in one process, with the local trainers and mechanisms that real clients run.

`Trainer` is the interface between the run loop and either a simulation or a centralised baseline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from veilrec.client.federated import weights_of
from veilrec.client.local_training import Cohort, LocalData, SumLocalTrainer, examples_if_asked, places
from veilrec.client.rankers import ModelParts
from veilrec.core import rng
from veilrec.core.arrays import Bools, Floats, Offsets
from veilrec.core.csr import Csr
from veilrec.core.plan import Plan
from veilrec.core.state import fill
from veilrec.models.scores import Model
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.randomness import (
    FastSource,
    Source,
    noise_of_client,
    noise_of_comparison,
    noise_of_histogram,
    noise_of_report,
    noise_of_sum,
    share_of_comparison,
    share_of_report,
)
from veilrec.server.round_specs import CohortSampler, Tally
from veilrec.server.server import SelectionOutcome, ServerState, decide
from veilrec.simulation.pieces import CohortWorker, OpenRound, Piece, PieceReport, Seeds, keep, one_of
from veilrec.simulation.workers import WorkerPool
from veilrec.wire import messages, rounds


@dataclass(frozen=True)
class StepReport:
    """Participation, traffic and loss of one round (centralised: one epoch)."""

    clients: int = 0
    down_bytes: int = 0
    up_bytes: int = 0
    down_params: int = 0
    up_params: int = 0
    selection_bytes: int = 0  # of up_bytes: reports on which items the sub-model should have
    paper_params: int = 0  # as the communication paper counts: one way, item vectors only
    loss: float | None = None
    shares: tuple[float, ...] | None = None  # mean attention over basis vectors, of models that have them


class Trainer(Protocol):
    """Trains step by step; can be stopped and resumed between any two steps."""

    def step(self, number: int) -> StepReport:
        """Run round `number`, counted from 0."""

    def parts(self) -> ModelParts:
        """Current model in parts."""

    def model(self) -> Model:
        """Current model, ready to rank for the training users."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that the next step and the model depend on, apart from configuration and data."""

    def load_state(self, state: Mapping[str, NDArray[Any]], steps_done: int) -> None:
        """Resume from a saved state."""


__all__ = ["Seeds", "Simulation", "keep", "one_of"]

_TALLY = "reports.counts"
_SELECTION = "comparison"
_ON_SUMS = ("sum", "share")
_MODELS_COMPARED = 2  # that a validation client gets: the start and the trained one


class Simulation:
    """Simulated clients, a server, and the rounds between them."""

    def __init__(
        self,
        plan: Plan,
        data: LocalData,
        histories: Csr,
        seeds: Seeds,
        *,
        people: int | None = None,
        numbers: Offsets | None = None,
    ) -> None:
        self.plan = plan
        self.data = data
        self.histories = histories  # the items of every client: what it ranks by
        self.seeds = seeds
        # With its number and a seed a client draws; by rows, one person more would change the draws of all behind.
        self.numbers: Offsets = np.arange(len(data.rows), dtype=np.int64) if numbers is None else numbers
        self.server_state = ServerState(plan)
        self.server = self.server_state.server
        self._everybody = np.flatnonzero(data.rows.lengths() > 0).astype(np.int64)
        # In a public order the turns of the others must not depend on whether one person has data.
        in_turns = people is not None and plan.cohort.sampling == "cyclic" and plan.mechanism.noise_on in _ON_SUMS
        places = self._may_train() if in_turns else self._everybody
        turns = places if people is None or len(places) <= people else self._everybody
        self.sampler = CohortSampler(
            plan.cohort, turns, seeds.cohorts, secret=seeds.secret, people=people, numbers=self.numbers
        )
        self.private = plan.trainer.fresh_private_state(self.numbers, seeds.draws)
        self._trainer_of_sums = plan.trainer if isinstance(plan.trainer, SumLocalTrainer) else None
        self._tally: Tally | None = None  # where one serves the whole run
        self.start = plan.start  # what training is compared with in the end
        self.selection: SelectionOutcome | None = None  # of the last comparison, once it was made
        self.crew: WorkerPool | None = None  # other processes that work on pieces of a round; None: this one alone

    def step(self, number: int) -> StepReport:
        """Run one round."""
        drawn = self.sampler.draw(number)
        clients = drawn[self.data.rows.lengths()[drawn] > 0]
        arrives = self.sampler.arrives(number, clients)
        report_bytes = self._open_round(number, clients)
        server, plan = self.server, self.plan
        broadcast = server.broadcast()
        model = weights_of(messages.rounded_update(broadcast, server.schema), server.view)
        if self._trainer_of_sums is not None and self._takes_shortcuts:
            sent = self._learn_sum(self._trainer_of_sums, clients[arrives], model)
        else:
            sent = self._learn_each(clients, arrives, model)
        is_void = not self._share_noise(drawn, clients, int(arrives.sum()))
        if plan.mechanism.noise_on == "sum":
            server.protect(self._source_of_sums(number))
        counted = sum(plan.mechanism.counted_parameters(table, server.spec) for table in server.view.tables)
        down = int(messages.sizes(broadcast, server.schema)[0]) + rounds.size(server.spec, server.schema)
        if is_void:  # too few to carry the noise: nobody opens the sum
            server.drop_round()
        else:
            self.server_state.step()
        validators = self.compare() if number + 1 == plan.rounds else 0
        return StepReport(
            clients=len(clients),
            down_bytes=down * (len(clients) + _MODELS_COMPARED * validators),
            up_bytes=sent.up_bytes + report_bytes + messages.SIZE * validators,
            down_params=messages.parameters(broadcast, server.schema) * len(clients),
            up_params=sent.up_params,
            selection_bytes=report_bytes,
            paper_params=counted * len(clients),
            loss=sent.loss,
            shares=sent.shares,
        )

    def _open_round(self, number: int, clients: Offsets) -> int:
        """Collect reports and open the round on the server; return the bytes of the reports."""
        tally, report_bytes = self._ask(number, clients)
        self.server_state.take_in(tally)
        spec = self.plan.round_planner.next(number, self.server.weights, tally)
        self.server.open_round(spec)
        return report_bytes

    def _ask(self, number: int, clients: Offsets) -> tuple[Tally | None, int]:
        reports = self.plan.reports
        if reports is None:
            return None, 0
        asked = self._everybody if reports.who == "everybody" else clients
        sent = 0 if reports.once and number > 0 else len(asked)
        if reports.once and self._tally is not None:
            return self._tally, sent * messages.size(reports.mechanism.length)
        if not len(asked):
            return None, 0
        mechanism, period = reports.mechanism, number if reports.fresh else 0
        data, secret = self.data.take(asked).rows, self.seeds.secret
        told = self._reported(asked)
        if secret is None:
            counts = mechanism.count(data, asked, seed=self.seeds.draws, period=period)
            key = (self.seeds.noise, rng.HISTOGRAM, *((period,) if period else ()))  # fresh counts, fresh noise
            protected = mechanism.simulated(counts, told, FastSource(*key, one_generator=True))
        else:
            counts = mechanism.count_each(
                data,
                asked,
                lambda client: noise_of_report(secret, period, client),
                lambda client: share_of_report(secret, period, client),
            )
            for client in self._nobody(asked[:0], told - len(asked)):
                counts += mechanism.empty(share_of_report(secret, period, client))
            protected = mechanism.opened(counts, told, noise_of_histogram(secret, period))
        tally = Tally(protected, told)
        if reports.once:
            self._tally = tally
        return tally, sent * messages.size(mechanism.length)

    def _reported(self, asked: Offsets) -> int:
        """How many reports a tally says that it is of: where all report to a trusted server, the nominal number."""
        reports = self.plan.reports
        nominal = reports is not None and reports.mechanism.under_masks and reports.who == "everybody"
        return self.sampler.people if nominal else len(asked)

    @property
    def _takes_shortcuts(self) -> bool:
        """Whether nothing is done to a single update, coding included; never with a secret."""
        exact = all(tensor.values == "float32" for tensor in self.server.view.tensors)
        return exact and self.plan.mechanism.is_linear and self.seeds.secret is None

    def _learn_sum(self, trainer: SumLocalTrainer[Any], clients: Offsets, model: Mapping[str, Floats]) -> _Sent:
        """Compute the weighted mean of all updates without forming any; only their sizes are known."""
        if not len(clients):
            return _Sent()
        server, weighs = self.server, self.plan.sends_examples
        noise = self._hand.local_noise(server.spec.number, 0)
        cohort = Cohort(self.numbers[clients], self.data.take(clients), {}, self.seeds.draws, noise)
        learned, outlines = trainer.learn_sum(cohort, model, server.spec, weighs_examples=weighs)
        server.add(examples_if_asked(learned.updates, weighs))
        up_bytes, up_params = (
            int(messages.sizes(outlines, server.view).sum()),
            messages.parameters(outlines, server.view),
        )
        return _Sent(up_bytes, up_params, float(learned.loss.mean()), _mean_shares([learned.shares], [len(clients)]))

    def _learn_each(self, clients: Offsets, arrives: Bools, model: Mapping[str, Floats]) -> _Sent:
        """Form every client update, some clients at a time; then add linear noise for all at once."""
        server, mechanism = self.server, self.plan.mechanism
        rows, n_items = server.spec.rows, self.plan.schema.tables[0].shape[0] if self.plan.schema.tables else 0
        opened = OpenRound(server.spec, model, None if rows is None else places(rows, n_items))
        told = self._heard(opened, self._pieces(clients, arrives))
        if mechanism.noise_on == "message" and self.seeds.secret is None:
            weights = np.concatenate([np.zeros(0, np.int64), *(one.weights for one in told)])
            number = server.spec.number
            generator = FastSource(self.seeds.noise, rng.NOISE, number, one_generator=True).generator()
            server.add_to_sum(mechanism.noise_of_messages(server.view, weights, generator))
        losses = np.concatenate([np.zeros(0, np.float32), *(one.loss for one in told)])
        return _Sent(
            sum(one.up_bytes for one in told),
            sum(one.up_params for one in told),
            self._mean_loss(losses),
            _mean_shares([one.shares for one in told], [len(one.loss) for one in told]),
        )

    def _share_noise(self, drawn: Offsets, clients: Offsets, arrived: int) -> bool:
        """Add shares of the noise that are not in the sum yet; tell whether enough came for it to be opened.

        Places that nobody has, and clients without data, stand for clients that send their share of the noise alone.
        """
        server, mechanism, secret = self.server, self.plan.mechanism, self.seeds.secret
        if not isinstance(mechanism, DistributedNoiseSum):
            return True
        spec, idle = server.spec, np.setdiff1d(drawn, clients)
        others = self._nobody(idle, self.sampler.empty(spec.number))
        if secret is None:
            source = FastSource(self.seeds.noise, rng.NOISE, spec.number, one_generator=True)
            shares = arrived + len(others)
            server.add_to_sum(mechanism.total_of_shares(server.fixed_point, spec, shares, source))
        else:
            for client in others:
                share = mechanism.noise(server.fixed_point, spec, noise_of_client(secret, spec.number, client))
                server.add_integers(share, clients=1)
        return arrived + len(others) >= mechanism.distributed_noise.least

    def _may_train(self) -> Offsets:
        """Clients with a turn, whether they have data or not: all but validation clients."""
        selection, rows = self.plan.model_selection, np.arange(len(self.data.rows), dtype=np.int64)
        return rows if selection is None else np.setdiff1d(rows, selection.validator.clients(self.data))

    def _nobody(self, idle: Offsets, empty: int) -> list[int]:
        """Numbers of clients with a share of noise and nothing else; those of empty places lie behind all others."""
        return [*idle.tolist(), *range(len(self.data.rows), len(self.data.rows) + empty)]

    def _mean_loss(self, losses: Floats) -> float | None:
        """Mean over the clients on whose data the model does not overflow.

        If it overflows on all, training has diverged (NaN), and a run that anybody can repeat says so. With a secret it
        goes on as real clients would, which answer zeros: whether somebody's data ends a run may not be told.
        """
        known = losses[np.isfinite(losses)]
        if len(known):
            return float(known.sum()) / len(known)
        return None if self.seeds.secret is not None or not len(losses) else float("nan")

    def _pieces(self, clients: Offsets, arrives: Bools) -> Iterator[Piece]:
        at_once = self.plan.clients_per_batch
        for start in range(0, len(clients), at_once):
            some = clients[start : start + at_once]
            private = {name: values[some] for name, values in self.private.items()}
            yield Piece(start, some, self.numbers[some], arrives[start : start + at_once], private)

    def _heard(self, opened: OpenRound, pieces: Iterator[Piece]) -> list[PieceReport]:
        """Train all pieces, add up their updates and store the private state of their clients."""
        if self.crew is None:
            return [self._keep(piece, self._hand.learn(piece, opened, self.server)) for piece in pieces]
        given = list(pieces)
        told, sums = self.crew.learn(opened, given)
        for part in sums:
            self.server.add_integers(part.total, clients=part.clients)
        return [self._keep(piece, one) for piece, one in zip(given, told, strict=True)]

    def _keep(self, piece: Piece, told: PieceReport) -> PieceReport:
        for name, values in told.private.items():
            self.private[name][piece.clients] = values
        return told

    @property
    def _hand(self) -> CohortWorker:
        return CohortWorker(self.plan, self.data, self.seeds)

    def _source_of_sums(self, number: int) -> Source:
        if self.seeds.secret is not None:
            return noise_of_sum(self.seeds.secret, number)
        return FastSource(self.seeds.noise, rng.NOISE, number, one_generator=True)

    def compare(self) -> int:
        """Run private model selection; return the number of validation clients."""
        comparison, secret = self.plan.model_selection, self.seeds.secret
        if comparison is None:
            return 0
        mechanism, validators = comparison.mechanism, comparison.validator.clients(self.data)
        told = comparison.validator.gains(self.data.take(validators), self._untrained, self.server_state.weights)
        carried = 0 if mechanism.shares is None else mechanism.shares.carried.clients
        missing = max(0, carried - len(validators))  # places of nobody, with a share of the noise
        if secret is None:
            fast = FastSource(self.seeds.noise, rng.COMPARISON, one_generator=True)
            noisy = mechanism.simulated(mechanism.total(told), len(validators) + missing, fast)
        else:
            senders = [*validators.tolist(), *self._nobody(validators[:0], missing)]
            total = np.zeros(mechanism.masked_length, np.int64)
            for gain, client in zip([*told, *np.zeros(missing)], senders, strict=True):
                total += mechanism.masked(gain, share_of_comparison(secret, client))
            noisy = mechanism.opened(total, len(senders), noise_of_comparison(secret))
        self.selection = decide(float(noisy[0]), comparison)
        return len(validators)

    def parts(self) -> ModelParts:
        """Model in parts: public weights, and the private state of the simulated clients."""
        keeps_start = self.selection is not None and self.selection.kept == "start"
        weights = self._untrained if keeps_start else self.server_state.weights
        return ModelParts(self.plan.ranker, dict(weights), self._own, self.server_state.sent_items)

    @property
    def _untrained(self) -> dict[str, Floats]:
        """Model before the first round, with what reports told."""
        return {**self.start, **self.server_state.known}

    @property
    def _own(self) -> dict[str, NDArray[Any]]:
        """Private state that the simulated clients rank with."""
        return {**self.private, **self.data.kept}

    def compared(self) -> dict[str, Model]:
        """Start and trained model, where private model selection chose between them."""
        if self.selection is None:
            return {}
        both = {"start": self._untrained, "trained": self.server_state.weights}
        return {
            name: ModelParts(self.plan.ranker, dict(weights), self._own, self.server_state.sent_items).model(
                self.histories
            )
            for name, weights in both.items()
        }

    def model(self) -> Model:
        """Current model; items that no round covered rank last."""
        return self.parts().model(self.histories)

    def state(self) -> dict[str, NDArray[Any]]:
        """State of the server and of all simulated clients."""
        private = {f"private.{name}": values for name, values in self.private.items()}
        tally = {} if self._tally is None else {_TALLY: self._tally.counts}
        selection = {} if self.selection is None else {_SELECTION: self.selection.state()}
        return self.server_state.state() | private | tally | selection

    def load_state(self, state: Mapping[str, NDArray[Any]], steps_done: int) -> None:
        """Resume from a saved state."""
        self.server_state.load_state(state, steps_done)
        if steps_done == 0:  # of an earlier run, from which this one starts
            self.start = {name: weights.copy() for name, weights in self.server_state.weights.items()}
        for name, values in self.private.items():
            fill(values, state, f"private.{name}")
        if _TALLY in state:
            self._tally = Tally(np.array(state[_TALLY]), self._reported(self._everybody))
            self.server_state.take_in(self._tally)
        self.selection = SelectionOutcome.restored(state[_SELECTION]) if _SELECTION in state else None


@dataclass(frozen=True)
class _Sent:
    """Traffic and losses of the clients of a round."""

    up_bytes: int = 0
    up_params: int = 0
    loss: float | None = None
    shares: tuple[float, ...] | None = None


def _mean_shares(shares: Sequence[Floats | None], counts: Sequence[int]) -> tuple[float, ...] | None:
    """Mean attention over basis vectors of a round, from the means of its pieces."""
    known = [(values, count) for values, count in zip(shares, counts, strict=True) if values is not None]
    if not known:
        return None
    means = np.average([values for values, _ in known], axis=0, weights=[count for _, count in known])
    return tuple(float(value) for value in means)
