"""Plan: a method before anybody's data. Simulations, federations, releases and audits are all made from it.

One training round, in this process or over a network (`simulation.simulation`, `federation.coordinator.driver`):

    weights = plan.start                                        # in a ServerState
    tally = plan.reports and sum(client reports)                # item reports, once or before each round
    for number in range(plan.rounds):
        cohort = CohortSampler(plan.cohort, ...).draw(number)   # from the server's secret
        spec = plan.round_planner.next(number, weights, tally)  # RoundSpec: rows, tensors, clip norm; public
        # on each client of the cohort:
        results = plan.trainer.learn(data, weights, spec)       # local training
        update = plan.mechanism.bound(results.updates, spec)    # clip
        update = plan.mechanism.perturb(update, spec, noise)    # local mechanisms alone
        # on the server:
        sums = Aggregator(plan.fixed_point(spec), ...).add(update of each client)  # integers: order does not matter
        plan.mechanism.protect(sums, spec, noise)               # mechanisms on sums alone
        weights = make_optimiser(plan.server).step(weights, change)  # plan.aggregation, decay_share, averaging
    if plan.model_selection:                                    # held-out validation clients choose the model
        weights = trained if noisy mean of gains > threshold else plan.start

A networked round sends the same bytes: the coordinator sends `spec` and weights (`wire.rounds`) over TLS under the
federation's own authority, clients answer with `wire.messages` in signed requests, under masks where the federation
uses secure aggregation (`federation.secagg`). With distributed noise (`privacy.noise`) a method plans with mechanisms
whose noise the clients add, to updates, reports and gains.

A release holds weights, vocabulary and `plan.ranker`, which scores from a history alone (`runs.release`); its privacy
statement is made of `privacy.events.training_event(plan)` and of what the mechanisms declare.

The parts are named by their protocols, which their packages define; this module imports none of them at run time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from veilrec.core.arrays import Floats
from veilrec.core.fixed_point import MAX_CLIENTS, FixedPoint, Ring
from veilrec.core.schema import RoundSpec, Schema

if TYPE_CHECKING:
    from veilrec.client.local_training import LocalTrainer
    from veilrec.client.rankers import Ranker
    from veilrec.client.validation import Validator
    from veilrec.privacy.mechanisms.reports import ItemReports
    from veilrec.privacy.mechanisms.sums import GainSum, UpdateMechanism
    from veilrec.server.aggregation import ServerRate
    from veilrec.server.round_specs import CohortSettings, ReportTensors, RoundPlanner, Tally
    from veilrec.server.server import ClippingRule

Aggregation = Literal["sum", "mean", "weighted-mean", "row-mean", "row-sqrt"]
ROW_COUNTS = ("row-mean", "row-sqrt")  # rules that divide by the number of clients that sent each row


@dataclass(frozen=True)
class FullModelRounds:
    """Round planner that trains the whole model in every round."""

    leaves_out = False

    def next(self, number: int, weights: Mapping[str, Floats], tally: Tally | None) -> RoundSpec:
        """Return the spec of round `number`: all rows of all tensors."""
        return RoundSpec(number)


@dataclass(frozen=True, kw_only=True)
class ReportSpec:
    """Item reports that clients send before a round, and how often."""

    mechanism: ItemReports
    who: Literal["everybody", "cohort"] = "everybody"
    fresh: bool = False  # a new report every round; otherwise a client draws one and repeats it

    @property
    def once(self) -> bool:
        """Whether one tally serves the whole run."""
        return self.who == "everybody" and not self.fresh


@dataclass(frozen=True, kw_only=True)
class ModelSelection:
    """Private model selection after the last round: held-out clients compare the trained model with the start."""

    validator: Validator[Any]  # which clients are held out, and how one of them compares two models
    mechanism: GainSum  # bounds the gain that one client reports, and protects the sum
    people: int  # public nominal number of validation clients: the outcome may not depend on the true one


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All parts of a method; holds no user's data and does not depend on where it runs."""

    schema: Schema  # tensors of the model, and how their values are encoded
    start: Mapping[str, Floats]  # initial weights
    trainer: LocalTrainer[Any]  # local training on a client
    mechanism: UpdateMechanism  # clips client updates, and protects each update or their sum
    round_planner: RoundPlanner = field(default_factory=FullModelRounds)  # the spec of each round
    reports: ReportSpec | None = None  # item reports that the round planner or the model needs
    from_reports: ReportTensors | None = None  # tensors that are filled from the reports, before the first round
    rounds: int  # that the noise was calibrated for
    max_participations: int | None = None  # rounds that one client takes part in, at most; None: by its cohorts
    cohort: CohortSettings  # client sampling
    aggregation: Aggregation
    server: ServerRate  # server optimiser
    clipping_rule: ClippingRule | None = (
        None  # adaptive clipping: how the clip norm moves, where it is part of the model
    )
    decay_share: float = 0.0  # weight decay on the server, per client of a round
    averaging: float = 0.0  # of the model that ranks, over the last rounds
    ranker: Ranker  # how trained weights score items, from a history alone
    model_selection: ModelSelection | None = None  # None: the trained model is kept
    clients_per_batch: int = 100  # clients per batch of a simulation: few enough for the cache

    def __post_init__(self) -> None:
        if self.from_reports is not None and (self.reports is None or not self.reports.once):
            raise ValueError("tensors come from reports that every client gives once, before the first round")

    @property
    def sends_examples(self) -> bool:
        """Whether a client update includes the number of training examples."""
        return self.aggregation == "weighted-mean"

    @property
    def max_clients(self) -> int:
        """Upper bound on the clients of one round, by which sums are dimensioned; depends on nobody's data.

        With Poisson sampling, where no noise rests on it, a round exceeds it with probability 1e-30 (Bernstein).
        """
        size = self.cohort.size
        if size and self.cohort.sampling != "poisson":
            return size
        by_chance = size + math.ceil(12.0 * math.sqrt(size)) + 64 if size else MAX_CLIENTS
        return self.mechanism.max_people or by_chance

    @property
    def participations(self) -> int:
        """Largest number of rounds that one client takes part in."""
        if self.max_participations is not None:
            return self.max_participations
        return self.cohort.max_participations(self.rounds, self.mechanism.max_people or self.cohort.size or 1)

    def fixed_point(self, spec: RoundSpec, ring: Ring = 64) -> FixedPoint:
        """Return the fixed-point format in which the updates of a round are summed, and masked."""
        return self.mechanism.fixed_point(
            spec,
            clients=self.max_clients,
            weighs_examples=self.sends_examples,
            counts_rows=self.aggregation in ROW_COUNTS,
            ring=ring,
        )
