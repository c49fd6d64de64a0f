"""The two models of the communication paper with what it does to their messages, and what holds instead."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic

from veilrec.methods.base import EVERY_DATASET, Problem
from veilrec.methods.private import (
    NOT_COVERED,
    C,
    as_published,
    devices_with_data,
    honest,
    noisy_sum,
    participations,
    proven,
    takes_part,
    with_public_divisor,
)
from veilrec.plan import Plan, Reports
from veilrec.privacy.events import ComposedEvent, Event, repeated
from veilrec.privacy.guarantee import Guarantee, Unit
from veilrec.privacy.mechanisms.messages import NoisyMessage
from veilrec.privacy.mechanisms.updates import UpdateMechanism
from veilrec.updates import Schema

DATASETS = EVERY_DATASET  # of the private methods


class Family(ABC, Generic[C]):
    """A model with its plan, and how the paper protects a message about it."""

    flaw: ClassVar[str]  # why the paper's claim does not hold
    honest_note: ClassVar[str]
    pure: ClassVar[bool]  # whether what a message tells has a finite epsilon at delta 0

    @abstractmethod
    def schema(self, config: C, problem: Problem) -> Schema:
        """The tensors of the model."""

    @abstractmethod
    def noisy(self, config: C, schema: Schema) -> NoisyMessage:
        """A message with the paper's noise."""

    @abstractmethod
    def plan(self, config: C, problem: Problem, mechanism: UpdateMechanism, **parts: Any) -> Plan:
        """The model with any protection; `parts` are further fields of a plan."""

    def build(self, config: C, problem: Problem) -> Plan:
        """The model with every message protected as published, or every sum as proven."""
        if config.calibration == "as-published":
            return self.plan(config, problem, self.noisy(config, self.schema(config, problem)))
        return self.proven(config, problem)

    def proven(
        self, config: C, problem: Problem, *, reports: Reports | None = None, unit: Unit = "user", **parts: Any
    ) -> Plan:
        """The model with noise on the sums, chosen before the first round, the reports taken into account."""
        before = None if reports is None else cost_of(reports, problem.rounds)
        mechanism = noisy_sum(
            config.privacy,
            config.cohort,
            self.schema(config, problem),
            rounds=problem.rounds,
            devices=devices_with_data(problem),
            keeps_state=True,
            before=before,
            numbers_before=0 if reports is None else problem.n_items,
            unit=unit,
        )
        return self.plan(with_public_divisor(config, problem), problem, mechanism, reports=reports, **parts)

    def message_event(self, config: C, problem: Problem, rows: int) -> Event:
        """What a message of so many rows with the paper's noise really tells of a user."""
        return self.noisy(config, self.schema(config, problem).narrowed(rows)).event()

    def guarantee(self, config: C, *caveats: str) -> Guarantee:
        """User-level over the whole run, or the paper's claim; `caveats` are about the proven form."""
        if config.calibration == "as-published":
            return as_published(config.privacy, self.flaw)
        return proven(config.privacy.epsilon, config.privacy.delta, config.cohort, *caveats, NOT_COVERED)

    def guarantee_of_run(self, config: C, problem: Problem, *caveats: str) -> Guarantee:
        """The same, with the honest value beside a claim."""
        promise = self.guarantee(config, *caveats)
        if config.calibration == "proven":
            return promise
        message = self.message_event(config, problem, problem.n_items)
        times = participations(config.cohort, problem.rounds, devices_with_data(problem))
        return honest(
            promise,
            message,
            repeated(message, times),
            self.honest_delta(config),
            note=self.honest_note,
            doing=takes_part(times),
        )

    def honest_delta(self, config: C) -> float:
        """The delta at which the honest value is stated."""
        return 0.0 if self.pure else config.privacy.delta


def cost_of(reports: Reports, rounds: int) -> Event:
    """What all reports of a device cost it: one, or one for every round that it may be in."""
    return ComposedEvent(((reports.mechanism.event(), rounds if reports.fresh else 1),))
