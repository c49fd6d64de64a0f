"""The two models of the communication paper with what it does to their messages, and what holds instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from veilrec.device.protection import NoisyMessage, Protection, WholeUpdateClip
from veilrec.methods.base import EVERY_DATASET, Problem
from veilrec.methods.private import (
    NOT_COVERED,
    C,
    PrivacySettings,
    as_published,
    honest,
    participations,
    proven,
    sigma_of_sum,
    takes_part,
    with_public_divisor,
)
from veilrec.privacy.events import Event, repeated
from veilrec.privacy.guarantee import Guarantee, Unit
from veilrec.simulate.simulation import Simulation
from veilrec.updates import Schema

DATASETS = EVERY_DATASET  # of the private methods


@dataclass(frozen=True, kw_only=True)
class Family(Generic[C]):
    """A model, how it is simulated, and how the paper protects a message about it."""

    simulate: Callable[..., Simulation]  # (config, problem, protection, *, sigma, chooser, ...)
    schema: Callable[[C, Problem], Schema]
    noisy: Callable[[PrivacySettings], NoisyMessage]
    tells: Callable[[C, int], Event]  # what a message of so many rows with that noise really tells of a user
    flaw: str  # why the paper's claim does not hold
    honest_note: str
    pure: bool  # whether what a message tells has a finite epsilon at delta 0

    def build(self, config: C, problem: Problem) -> Simulation:
        """The model with every message protected as published, or every sum as proven."""
        if config.calibration == "as-published":
            return self.simulate(config, problem, self.noisy(config.privacy))
        return self.proven(config, problem, WholeUpdateClip(clip_norm=config.privacy.clip_norm))

    def proven(
        self,
        config: C,
        problem: Problem,
        protection: Protection,
        *,
        besides: Event | None = None,
        unit: Unit = "user",
        **parts: Any,
    ) -> Simulation:
        """The model with noise on the sums, chosen before the first round; `besides` is what was released before."""
        dimension = sum(tensor.size for tensor in self.schema(config, problem).tensors)
        sigma = sigma_of_sum(config.privacy, config.cohort, problem, dimension, besides=besides, unit=unit)
        return self.simulate(with_public_divisor(config, problem), problem, protection, sigma=sigma, **parts)

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
        message = self.tells(config, problem.n_items)
        times = participations(config.cohort, problem)
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
