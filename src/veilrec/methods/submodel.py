"""DP-SUB as the methods use it: settings, the chooser behind them, and what the reports cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from veilrec.errors import BadInput
from veilrec.methods.base import Problem
from veilrec.methods.private import adjacency_of
from veilrec.privacy.checks import positive, whole
from veilrec.privacy.events import ComposedEvent, Event, GaussianEvent
from veilrec.privacy.gaussian import mu_for
from veilrec.privacy.guarantee import Adjacency
from veilrec.privacy.mechanism import Calibration
from veilrec.privacy.mechanisms.bits import RandomisedResponse
from veilrec.server.selection import Threshold
from veilrec.simulate.choosers import Chooser, HistogramItems, ReportedItems
from veilrec.simulate.cohort import CohortSettings


@dataclass(frozen=True, kw_only=True)
class SelectionSettings:
    """Which items the sub-model has, and how the server learns that."""

    epsilon: float = (
        0.5  # of the reports: as published per bit; proven, of a user (or click), within the total
    )
    threshold: float | None = None  # frequency from which an item is in; None: the mean of all
    unit: Literal["user", "click"] = (
        "user"  # proven: one histogram on sums, or randomised bits that trust nobody
    )
    most_items: int = 100  # of a user that the histogram counts
    reports: Literal["everybody", "cohort"] = "everybody"  # who is asked, where bits are randomised
    fresh: bool = False  # whether bits are randomised anew every round, as published, or drawn once

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        whole(most_items=self.most_items)
        if self.threshold is not None and not 0.0 <= self.threshold < 1.0:
            raise BadInput(
                f"selection.threshold is {self.threshold}: a frequency is from 0 to below 1; leave it out for the mean"
            )


def response(
    selection: SelectionSettings, n_items: int, *, calibration: Calibration, adjacency: Adjacency
) -> RandomisedResponse:
    """The randomised response of DP-SUB (eq. 7): as published for any two vectors, proven for one click."""
    if calibration == "as-published":
        return RandomisedResponse(
            length=n_items, epsilon=selection.epsilon, change="vector", calibration="as-published"
        )
    change: Literal["one bit", "swap"] = "one bit" if adjacency == "add-remove" else "swap"
    return RandomisedResponse(length=n_items, epsilon=selection.epsilon, change=change)


def reported(
    selection: SelectionSettings, problem: Problem, mechanism: RandomisedResponse, *, estimate: bool = True
) -> ReportedItems:
    """Items chosen by randomised reports."""
    threshold = Threshold(
        keep_probability=mechanism.keep_probability, estimate=estimate, threshold=selection.threshold
    )
    return ReportedItems(
        problem.train, problem.n_items, threshold, problem.seed,
        reports=selection.reports, fresh=selection.fresh,
    )  # fmt: skip


def histogram_noise(selection: SelectionSettings, adjacency: Adjacency, delta: float) -> tuple[float, float]:
    """Noise on the counts and its mu: a user moves them by sqrt(most), or sqrt(2 most) when replaced."""
    users = 1 if adjacency == "add-remove" else 2
    sensitivity = math.sqrt(users * selection.most_items)
    mu = mu_for(selection.epsilon, delta)
    return sensitivity / mu, mu


def proven_selection(
    selection: SelectionSettings, cohort: CohortSettings, problem: Problem, delta: float
) -> tuple[Chooser, Event]:
    """The chooser of a proven run, and what all its reports together cost."""
    adjacency = adjacency_of(cohort)
    if selection.unit == "click":
        mechanism = response(selection, problem.n_items, calibration="proven", adjacency=adjacency)
        times = report_times(selection, problem)
        return reported(selection, problem, mechanism), ComposedEvent(((mechanism.event(), times),))
    sigma, mu = histogram_noise(selection, adjacency, delta)
    threshold = Threshold(threshold=selection.threshold)
    chooser = HistogramItems(
        problem.train, problem.n_items, threshold, problem.seed, most=selection.most_items, sigma=sigma
    )
    return chooser, GaussianEvent(mu)


def report_times(selection: SelectionSettings, problem: Problem) -> int:
    """How often a device's bits are randomised anew in a run, at most."""
    return problem.rounds if selection.fresh else 1  # a device may be in every cohort


def run_of(
    selection: SelectionSettings, problem: Problem, *, report: Event, update: Event, times: int
) -> Event:
    """A run in which a device sends `times` updates, and reports as often as it is asked."""
    asked = report_times(selection, problem) if selection.reports == "everybody" else times
    return ComposedEvent(((report, asked if selection.fresh else 1), (update, times)))
