"""DP-SUB as the methods use it: settings, the reports and the agenda behind them, what a run then promises."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from veilrec._words import counted
from veilrec.errors import BadInput
from veilrec.methods.base import Problem
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
from veilrec.methods.ratings.family import Family
from veilrec.plan import Plan, Reports
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.checks import positive, probability, whole
from veilrec.privacy.events import ComposedEvent
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.reports import ItemHistogram, RandomisedReports
from veilrec.privacy.mechanisms.responses import RandomisedResponse
from veilrec.privacy.mechanisms.updates import UpdateMechanism
from veilrec.server.agenda import Agenda, ReportedItems, Tally, Threshold
from veilrec.server.cohorts import CohortSettings

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


class SubModelConfig(PrivateConfig, Protocol):
    """What the settings of a private method on a sub-model have, whatever its model."""

    @property
    def selection(self) -> SelectionSettings:
        """Which items, and how the server learns that."""


DEVIATIONS = (
    "preset paper: the threshold is the mean frequency, as section 6.4 has it; Algorithm 1 takes a number p, which is "
    "not given (set selection.threshold)",
    "preset paper: everybody reports in every round, not the devices of the round alone: DP-SUB comes before "
    "they are drawn",
    "The estimate of eq. 8 is cut to frequencies that there can be, 0 to 1.",
    "A device's items outside the sub-model are left out of its learning, and negatives are drawn inside it.",
    "Items that were never sent are ranked behind all others; the paper does not say how it ranks them.",
)
PAPER_SELECTION: dict[str, Any] = {"paper": {"selection": {"epsilon": 2.0, "reports": "everybody", "fresh": True}}}


@dataclass(frozen=True)
class Selection:
    """What devices are asked, and which items follow from their answers."""

    reports: Reports
    agenda: ReportedItems

    def first_size(self, problem: Problem) -> int:
        """How many items the sub-model of the first round has."""
        return self.size(problem, 0)

    def size(self, problem: Problem, number: int) -> int:
        """How many items the sub-model of a round has when everybody is asked in a simulation."""
        everybody = (problem.train.lengths() > 0).nonzero()[0]
        counts = self.reports.mechanism.count(
            problem.train.take(everybody), everybody, seed=problem.public_seed, period=number
        )
        rows = self.agenda.next(number, {}, Tally(counts.astype(float), len(everybody))).rows
        return problem.n_items if rows is None else len(rows)


def published_selection(selection: SelectionSettings, problem: Problem, *, estimate: bool = True) -> Selection:
    """The randomised response of DP-SUB (eq. 7), whose epsilon is claimed for any two vectors of bits."""
    bits = RandomisedResponse(
        length=problem.n_items, epsilon=selection.epsilon, change="vector", calibration="as-published"
    )
    return _randomised(selection, bits, estimate=estimate)


def _randomised(selection: SelectionSettings, bits: RandomisedResponse, *, estimate: bool = True) -> Selection:
    threshold = Threshold(keep_probability=bits.keep_probability, estimate=estimate, threshold=selection.threshold)
    reports = Reports(mechanism=RandomisedReports(bits), who=selection.reports, fresh=selection.fresh)
    return Selection(reports, ReportedItems(threshold))


def proven_selection(
    selection: SelectionSettings, privacy: PrivacySettings, cohort: CohortSettings, problem: Problem
) -> Selection:
    """Reports within their share of the budget."""
    adjacency, epsilon = adjacency_of(cohort), selection.share * privacy.epsilon
    if selection.unit == "click":
        _refuse_telling_reports(selection, cohort, problem)
        change: Literal["one bit", "swap"] = "one bit" if adjacency == "add-remove" else "swap"
        times = problem.rounds if selection.fresh else 1  # a device may be in every cohort
        return _randomised(
            selection, RandomisedResponse(length=problem.n_items, epsilon=epsilon / times, change=change)
        )
    histogram = ItemHistogram(
        length=problem.n_items,
        most_items=selection.most_items,
        epsilon=epsilon,
        delta=privacy.delta,
        adjacency=adjacency,
    )
    return Selection(Reports(mechanism=histogram), ReportedItems(Threshold(threshold=selection.threshold)))


def _refuse_telling_reports(selection: SelectionSettings, cohort: CohortSettings, problem: Problem) -> None:
    """The items that a cohort reports show who is in it, and the epsilon of the updates counts on that being secret."""
    population = devices_with_data(problem)
    if selection.reports == "cohort" and cohort.among(population) < population:
        raise BadInput(
            "selection.reports is cohort: the items of a round would tell who is in it, which a proven run has to hide;"
            " use --set selection.reports=everybody, or --set cohort.size=0 for everybody in every round"
        )


class OnPart:
    """A model of the paper on the items that DP-SUB chooses."""

    def __init__(self, family: Family[Any]) -> None:
        self.family = family

    def build(self, config: SubModelConfig, problem: Problem) -> Plan:
        """The model with every message protected as published, or every sum as proven."""
        if config.calibration == "as-published":
            return self.published(config, problem, self.family.noisy(config, self.family.schema(config, problem)))
        return self.proven(config, problem)

    def published(self, config: SubModelConfig, problem: Problem, mechanism: UpdateMechanism) -> Plan:
        """Randomised bits choose the items."""
        chosen = published_selection(config.selection, problem)
        return self.family.plan(config, problem, mechanism, agenda=chosen.agenda, reports=chosen.reports)

    def proven(self, config: SubModelConfig, problem: Problem) -> Plan:
        """Reports within the budget choose the items."""
        chosen = proven_selection(config.selection, config.privacy, config.cohort, problem)
        return self.family.proven(
            config,
            problem,
            reports=chosen.reports,
            unit=config.selection.unit,
            agenda=self.agenda(config, problem, chosen.agenda),
        )

    def agenda(self, config: Any, problem: Problem, items: Agenda) -> Agenda:
        """What a proven round is about, given the items."""
        return items

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
        chosen = published_selection(config.selection, problem)
        rows = chosen.first_size(problem)
        report, update = chosen.reports.mechanism.event(), self.family.message_event(config, problem, rows)
        times = participations(config.cohort, problem.rounds, devices_with_data(problem))
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
