"""DP-SUB as the methods use it: settings, the chooser behind them, what reports cost, what a run then promises."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from veilrec._words import counted
from veilrec.device.protection import Protection, WholeUpdateClip
from veilrec.errors import BadInput
from veilrec.methods.base import Config, Problem
from veilrec.methods.family import Family
from veilrec.methods.private import (
    PrivacySettings,
    PrivateConfig,
    adjacency_of,
    as_published,
    devices_with_data,
    honest,
    participations,
    takes_part,
)
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.checks import positive, probability, whole
from veilrec.privacy.events import ComposedEvent, Event, GaussianEvent
from veilrec.privacy.gaussian import mu_for
from veilrec.privacy.guarantee import Adjacency, Guarantee
from veilrec.privacy.mechanisms.bits import RandomisedResponse
from veilrec.privacy.mechanisms.gaussian import lattice_sigma
from veilrec.server.selection import Threshold
from veilrec.simulate.choosers import Chooser, HistogramItems, ReportedItems
from veilrec.simulate.cohort import CohortSettings
from veilrec.simulate.simulation import Simulation

REPORTS = (
    "The claim does not hold for the reports either: their epsilon is that of one bit; two users differ in up to as "
    "many bits as there are items, and bits that are drawn anew every round add up."
)
HISTOGRAM = "The items of the sub-model come from one noisy histogram on sums; its cost is part of the epsilon."
CLICK = "Only single clicks are covered, because the reports are; a user's updates by themselves are covered whole."


@dataclass(frozen=True, kw_only=True)
class SelectionSettings:
    """Which items the sub-model has, and how the server learns that."""

    epsilon: float = 2.0  # as published: of one bit
    share: float = 0.2  # proven: of the epsilon of the run, for all reports together
    threshold: float | None = None  # frequency from which an item is in; None: the mean of all
    unit: Literal["user", "click"] = "user"  # proven: one histogram on sums, or randomised bits that trust nobody
    most_items: int = 100  # of a user that the histogram counts
    reports: Literal["everybody", "cohort"] = "everybody"  # who is asked, where bits are randomised
    fresh: bool = False  # whether bits are randomised anew every round, as published, or drawn once

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        probability(share=self.share)
        whole(most_items=self.most_items)
        if self.threshold is not None and not 0.0 <= self.threshold < 1.0:
            raise BadInput(
                f"selection.threshold is {self.threshold}: a frequency is from 0 to below 1; leave it out for the mean"
            )


class SelectionConfig(Config):
    """What a method on a sub-model adds to its settings."""

    selection: SelectionSettings = SelectionSettings()


class SubModelConfig(SelectionConfig, PrivateConfig):
    """The settings of a private method on a sub-model."""


PAPER_SELECTION: dict[str, Any] = {"paper": {"selection": {"epsilon": 2.0, "reports": "everybody", "fresh": True}}}


def published_bits(selection: SelectionSettings, problem: Problem) -> RandomisedResponse:
    """The randomised response of DP-SUB (eq. 7), whose epsilon is claimed for any two vectors of bits."""
    return RandomisedResponse(
        length=problem.n_items, epsilon=selection.epsilon, change="vector", calibration="as-published"
    )


def reported(
    selection: SelectionSettings, problem: Problem, mechanism: RandomisedResponse, *, estimate: bool = True
) -> ReportedItems:
    """Items chosen by randomised reports."""
    threshold = Threshold(keep_probability=mechanism.keep_probability, estimate=estimate, threshold=selection.threshold)
    return ReportedItems(
        problem.train, problem.n_items, threshold, problem.seed, reports=selection.reports, fresh=selection.fresh
    )


def histogram_noise(
    selection: SelectionSettings, adjacency: Adjacency, epsilon: float, delta: float, n_items: int
) -> float:
    """Noise on the counts: a user moves them by sqrt(most), or sqrt(2 most) when replaced."""
    users = 1 if adjacency == "add-remove" else 2
    return lattice_sigma(epsilon, delta, math.sqrt(users * selection.most_items), n_items)


def proven_selection(
    selection: SelectionSettings, privacy: PrivacySettings, cohort: CohortSettings, problem: Problem
) -> tuple[Chooser, Event]:
    """The chooser of a proven run, and what all its reports together cost."""
    adjacency, epsilon = adjacency_of(cohort), selection.share * privacy.epsilon
    if selection.unit == "click":
        _refuse_telling_reports(selection, cohort, problem)
        change: Literal["one bit", "swap"] = "one bit" if adjacency == "add-remove" else "swap"
        times = problem.rounds if selection.fresh else 1  # a device may be in every cohort
        bits = RandomisedResponse(length=problem.n_items, epsilon=epsilon / times, change=change)
        return reported(selection, problem, bits), ComposedEvent(((bits.event(), times),))
    chooser = HistogramItems(
        problem.train,
        problem.n_items,
        Threshold(threshold=selection.threshold),
        problem.seed,
        most=selection.most_items,
        sigma=histogram_noise(selection, adjacency, epsilon, privacy.delta, problem.n_items),
    )
    return chooser, GaussianEvent(mu_for(epsilon, privacy.delta))


def _refuse_telling_reports(selection: SelectionSettings, cohort: CohortSettings, problem: Problem) -> None:
    """The items that a cohort reports show who is in it, and the epsilon of the updates counts on that being secret."""
    population = devices_with_data(problem)
    if selection.reports == "cohort" and cohort.among(population) < population:
        raise BadInput(
            "selection.reports is cohort: the items of a round would tell who is in it, which a proven run has to hide;"
            " use --set selection.reports=everybody, or --set cohort.size=0 for everybody in every round"
        )


@dataclass(frozen=True)
class OnPart:
    """A model of the paper on the items that DP-SUB chooses."""

    family: Family[Any]

    def build(self, config: SubModelConfig, problem: Problem) -> Simulation:
        """Put the parts together."""
        if config.calibration == "as-published":
            return self.published(config, problem, self.family.noisy(config.privacy))
        return self.proven(config, problem, WholeUpdateClip(clip_norm=config.privacy.clip_norm))

    def published(self, config: SubModelConfig, problem: Problem, protection: Protection) -> Simulation:
        """Randomised bits choose the items."""
        chooser = reported(config.selection, problem, published_bits(config.selection, problem))
        return self.family.simulate(config, problem, protection, chooser=chooser)

    def proven(
        self,
        config: SubModelConfig,
        problem: Problem,
        protection: Protection,
        around: Callable[[Chooser], Chooser] = lambda items: items,
    ) -> Simulation:
        """Reports within the budget choose the items; `around` may choose more than items."""
        items, cost = proven_selection(config.selection, config.privacy, config.cohort, problem)
        return self.family.proven(
            config, problem, protection, besides=cost, unit=config.selection.unit, chooser=around(items)
        )

    def guarantee(self, config: SubModelConfig, *caveats: str) -> Guarantee:
        """User-level over the whole run with the selection in it, or the paper's claim."""
        if config.calibration == "as-published":
            return as_published(config.privacy, self.family.flaw, REPORTS)
        promise = self.family.guarantee(config, *caveats)
        if config.selection.unit == "user":
            return replace(promise, caveats=(HISTOGRAM, *promise.caveats))
        return replace(promise, unit="click", caveats=(CLICK, *promise.caveats))

    def guarantee_of_run(self, config: SubModelConfig, problem: Problem) -> Guarantee:
        """The same, with the honest value beside a claim: a report and an update of the usual size."""
        if config.calibration == "proven":
            return self.guarantee(config)
        bits = published_bits(config.selection, problem)
        rows = first_size(config.selection, problem, bits)
        report, update = bits.event(), self.family.tells(config, rows)
        times = participations(config.cohort, problem)
        reports = _reports(config.selection, problem, times)
        run = ComposedEvent(((report, reports), (update, times)))
        delta = self.family.honest_delta(config)
        promise = honest(
            self.guarantee(config),
            ComposedEvent(((report, 1), (update, 1))),
            run,
            delta,
            note=f"of one report on {problem.n_items} items and one update of {counted(rows, 'row')}",
            doing=f"{takes_part(times)} and draws {'one report' if reports == 1 else f'{reports} reports'}",
        )
        if reports == 1:
            return promise
        once = epsilon_of(ComposedEvent(((report, 1), (update, times))), delta)
        note = f"{promise.honest_note}; {once:.4g} if it drew one report and repeated it"
        return replace(promise, honest_note=note)


def _reports(selection: SelectionSettings, problem: Problem, times: int) -> int:
    """How many reports a device draws in a run in which it takes part so many times."""
    if not selection.fresh:
        return 1
    return problem.rounds if selection.reports == "everybody" else times


def first_size(selection: SelectionSettings, problem: Problem, bits: RandomisedResponse) -> int:
    """How many items the sub-model of the first round has when everybody is asked."""
    everybody = np.flatnonzero(problem.train.lengths() > 0)
    rows = reported(selection, problem, bits).choose(0, everybody, {}).rows
    return problem.n_items if rows is None else len(rows)
