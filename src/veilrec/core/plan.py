"""A method's plan: all that it is before anybody's data; it is simulated, federated, released and audited from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from veilrec.client.local_training import LocalTrainer
from veilrec.client.rankers import Ranker
from veilrec.client.validation import Validator
from veilrec.core.arrays import Floats
from veilrec.core.fixed_point import MOST_CLIENTS, FixedPoint, Ring
from veilrec.core.schema import RoundSpec, Schema
from veilrec.privacy.events import ComposedEvent, Event, ParallelEvent
from veilrec.privacy.mechanisms.model_selection import GainSum
from veilrec.privacy.mechanisms.reports import ItemReports
from veilrec.privacy.mechanisms.sums import UpdateMechanism
from veilrec.server.aggregation import ROW_COUNTS, Aggregation
from veilrec.server.client_sampling import CohortSettings
from veilrec.server.optimisers import ServerRate
from veilrec.server.round_specs import FullModelRounds, ReportTensors, RoundPlanner
from veilrec.server.server import ClippingRule, Server


@dataclass(frozen=True, kw_only=True)
class ReportSpec:
    """What devices are asked before a round, and how often."""

    mechanism: ItemReports
    who: Literal["everybody", "cohort"] = "everybody"
    fresh: bool = False  # a new report every round; otherwise a device draws one and repeats it

    @property
    def once(self) -> bool:
        """Whether one tally serves the whole run."""
        return self.who == "everybody" and not self.fresh


@dataclass(frozen=True, kw_only=True)
class ModelSelection:
    """The end of a run: devices that never learnt say whether the trained model is better than the start."""

    judge: Validator[Any]  # who says so, and how a device finds out
    mechanism: GainSum  # what bounds what one says, and protects the sum


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The parts of a method; it holds nothing of any user, and does not know where it runs."""

    schema: Schema  # of the model, and how its numbers travel
    start: Mapping[str, Floats]  # the first model
    learner: LocalTrainer[Any]  # what a device does with its data and the model
    mechanism: UpdateMechanism  # what bounds an update, and protects the message or the sum
    agenda: RoundPlanner = field(default_factory=FullModelRounds)  # what each round is about
    reports: ReportSpec | None = None  # what the agenda or the model needs to ask the devices for
    from_reports: ReportTensors | None = None  # what of the model the reports fill, before the first round
    rounds: int  # that the noise was chosen for
    most_turns: int | None = None  # rounds that a device takes part in, at most; None: all of them
    cohort: CohortSettings  # who takes part: drawn from a secret
    aggregation: Aggregation
    server: ServerRate
    bound_rule: ClippingRule | None = None  # how the clip norm moves, where it is a number of the model
    decay_share: float = 0.0  # of the weights, taken off by the server for every device of a round
    averaging: float = 0.0  # of the model that ranks, over the last rounds
    ranker: Ranker  # how trained weights score, from a history alone
    comparison: ModelSelection | None = None  # after the last round; None: whatever was learnt is kept
    devices_at_once: int = 100  # that a simulation hands to the learner: few enough for the cache

    def __post_init__(self) -> None:
        if self.from_reports is not None and (self.reports is None or not self.reports.once):
            raise ValueError("tensors come from reports that everybody gives once, before the first round")

    @property
    def tells_examples(self) -> bool:
        """Whether devices have to tell how many examples they learned from."""
        return self.aggregation == "weighted-mean"

    @property
    def most_devices(self) -> int:
        """In one round: sums are made for so many, and nothing of anybody decides it.

        Where chance decides and no noise rests on it, more than this come in one round of 10^30 (Bernstein).
        """
        size = self.cohort.size
        if size and self.cohort.sampling != "poisson":
            return size
        by_chance = size + math.ceil(12.0 * math.sqrt(size)) + 64 if size else MOST_CLIENTS
        return self.mechanism.most_people or by_chance

    def lattice(self, about: RoundSpec, ring: Ring = 64) -> FixedPoint:
        """The whole numbers that the messages of a round are added up in; what a device masks is on it."""
        return self.mechanism.lattice(
            about,
            devices=self.most_devices,
            weighs_examples=self.tells_examples,
            counts_rows=self.aggregation in ROW_COUNTS,
            ring=ring,
        )

    def make_server(self) -> Server:
        """A server with the first model."""
        return Server(
            self.schema,
            self.start,
            self.mechanism,
            self.aggregation,
            self.server,
            decay_share=self.decay_share,
            bound_rule=self.bound_rule,
            most_devices=self.most_devices,
        )

    def event(self) -> Event:
        """What the whole run costs whoever the mechanisms protect.

        That is every round and the reports before them or, for who judges and so never learns, the comparison.
        """
        turns = self.rounds if self.most_turns is None else self.most_turns
        parts: tuple[tuple[Event, int], ...] = self.mechanism.events(turns)
        if self.reports is not None:
            asked = self.rounds if self.reports.fresh else 1  # a device may be in every cohort
            parts = ((self.reports.mechanism.event(), asked), *parts)
        learning = ComposedEvent(parts)
        return learning if self.comparison is None else ParallelEvent((learning, self.comparison.mechanism.event()))
