"""Parts of the communication paper (Xue et al. 2026): its two model families, DP-SUB, and its count of parameters.

`Family` pairs a model with the paper's noise on a message, and with noise on sums that is proven. `OnPart` puts a
family on the sub-model that DP-SUB chooses (Algorithm 1). The last part reproduces how the paper counts communication
(Table 2, Figures 9 and 14): one way, item vectors only, summed over clients and rounds, in millions. Network weights,
positions of sparse entries and the bits of randomised response are not counted there; `up_bytes` and `down_bytes` of
a run count everything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np

from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput, counted
from veilrec.core.plan import Plan, ReportSpec
from veilrec.core.schema import Schema
from veilrec.methods.base import EVERY_DATASET, Problem
from veilrec.methods.private import (
    PrivacySettings,
    PrivateFields,
    adjacency_of,
    as_published,
    carried_by,
    clients_with_data,
    honest,
    noisy_sum,
    participations,
    proven,
    takes_part,
    with_public_divisor,
)
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.checks import positive, probability, whole
from veilrec.privacy.events import ComposedEvent, Event, repeated
from veilrec.privacy.guarantee import Guarantee, Unit
from veilrec.privacy.mechanisms.local import NoisyMessage
from veilrec.privacy.mechanisms.reports import ItemHistogram, RandomisedReports
from veilrec.privacy.mechanisms.responses import RandomisedResponse
from veilrec.privacy.mechanisms.sums import UpdateMechanism
from veilrec.server.round_specs import CohortSettings, ReportedItems, ReportThreshold, RoundPlanner, Tally

DATASETS = EVERY_DATASET  # of the private methods
C = TypeVar("C", bound=PrivateFields)


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
        """Assemble the plan: noise on every message (as published) or on every sum (proven)."""
        if config.calibration == "as-published":
            return self.plan(config, problem, self.noisy(config, self.schema(config, problem)))
        return self.proven(config, problem)

    def proven(
        self, config: C, problem: Problem, *, reports: ReportSpec | None = None, unit: Unit = "user", **parts: Any
    ) -> Plan:
        """The model with noise on the sums, chosen before the first round, the reports taken into account."""
        before = None if reports is None else cost_of(reports, problem.rounds)
        mechanism = noisy_sum(
            config.privacy,
            config.cohort,
            self.schema(config, problem),
            rounds=problem.rounds,
            clients=clients_with_data(problem),
            keeps_state=True,
            before=before,
            numbers_before=0 if reports is None else problem.n_items,
            unit=unit,
        )
        return self.plan(with_public_divisor(config, problem), problem, mechanism, reports=reports, **parts)

    def message_event(self, config: C, problem: Problem, rows: int) -> Event:
        """Privacy event of a message of `rows` rows with the paper's noise."""
        return self.noisy(config, self.schema(config, problem).narrowed(rows)).event()

    def guarantee(self, config: C, *caveats: str) -> Guarantee:
        """Guarantee of a configuration: proven per user, or the paper's claim; `caveats` go with the former."""
        if config.calibration == "as-published":
            return as_published(config.privacy, self.flaws(config))
        return proven(config.privacy, config.cohort, *caveats)

    def guarantee_of_run(self, config: C, problem: Problem, *caveats: str) -> Guarantee:
        """Guarantee of a run; beside the paper's claim, the epsilon that holds."""
        promise = self.guarantee(config, *caveats)
        if config.calibration == "proven":
            return promise
        message = self.message_event(config, problem, problem.n_items)
        times = participations(config.cohort, problem.rounds, clients_with_data(problem))
        return honest(
            promise,
            message,
            repeated(message, times),
            self.honest_delta(config),
            note=self.note(config),
            doing=takes_part(times),
        )

    def flaws(self, config: C) -> str:
        """Why the paper's claim does not hold with these settings."""
        return self.flaw

    def note(self, config: C) -> str:
        """What the honest epsilon is of."""
        return self.honest_note

    def honest_delta(self, config: C) -> float:
        """The delta at which the honest value is stated."""
        return 0.0 if self.pure else config.privacy.delta


def cost_of(reports: ReportSpec, rounds: int) -> Event:
    """Privacy event of all reports of a client: one, or one for every round."""
    return ComposedEvent(((reports.mechanism.event(), rounds if reports.fresh else 1),))


REPORTS = (
    "The claim does not hold for the reports either: their epsilon is that of one bit; two users differ in up to as "
    "many bits as there are items, and bits that are drawn anew every round add up."
)
HISTOGRAM = "The items of the sub-model come from one noisy histogram on sums; its cost is part of the epsilon."
CLICK = (
    "Only single clicks are covered, because the reports are, and of clicks those that clients learn from: which of a "
    "user's are held out for the test, and who has any at all, is taken as known. Updates alone are covered whole."
)


@dataclass(frozen=True, kw_only=True)
class SelectionSettings:
    """DP-SUB: which items the sub-model has, and how the server learns that."""

    epsilon: float = 2.0  # as published: of one bit
    share: float = 0.2  # proven: of the epsilon of the run, for all reports together
    threshold: float | None = None  # frequency from which an item is in; None: the mean of all
    unit: Literal["user", "click"] = "user"  # proven: one histogram on sums, or randomised bits that trust nobody
    max_items: int = 100  # of a user that the histogram counts
    reports: Literal["everybody", "cohort"] = "everybody"  # who is asked, where bits are randomised
    cut: bool = True  # whether estimates (eq. 8, which prints none) are kept from 0 to 1: it moves their mean
    fresh: bool = False  # whether bits are randomised anew every round, as published, or drawn once

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        probability(share=self.share)
        whole(max_items=self.max_items)
        if self.threshold is not None and not 0.0 <= self.threshold < 1.0:
            raise BadInput(
                f"selection.threshold is {self.threshold}: a frequency is from 0 to below 1; leave it out for the mean"
            )


@dataclass(frozen=True)
class Selection:
    """Reports that clients send, and the round specs that follow from them."""

    reports: ReportSpec
    round_planner: ReportedItems

    def size(self, problem: Problem, number: int) -> int:
        """How many items the sub-model of a round has when everybody is asked in a simulation."""
        everybody = (problem.train.lengths() > 0).nonzero()[0]
        counts = self.reports.mechanism.count(
            problem.train.take(everybody), everybody, seed=problem.public_seed, period=number
        )
        rows = self.round_planner.next(number, {}, Tally(counts.astype(float), len(everybody))).rows
        return problem.n_items if rows is None else len(rows)


def published_selection(selection: SelectionSettings, problem: Problem, *, estimate: bool = True) -> Selection:
    """Randomised response of DP-SUB (eq. 7), whose epsilon is claimed for any two vectors of bits."""
    bits = RandomisedResponse(
        length=problem.n_items, epsilon=selection.epsilon, change="vector", calibration="as-published"
    )
    return _randomised(selection, bits, estimate=estimate)


def _randomised(selection: SelectionSettings, bits: RandomisedResponse, *, estimate: bool = True) -> Selection:
    threshold = ReportThreshold(
        keep_probability=bits.keep_probability, estimate=estimate, threshold=selection.threshold, cut=selection.cut
    )
    reports = ReportSpec(mechanism=RandomisedReports(bits), who=selection.reports, fresh=selection.fresh)
    return Selection(reports, ReportedItems(threshold))


def proven_selection(
    selection: SelectionSettings, privacy: PrivacySettings, cohort: CohortSettings, problem: Problem
) -> Selection:
    """Reports within their share of the budget."""
    adjacency, epsilon = adjacency_of(cohort), selection.share * privacy.epsilon
    if selection.unit == "click":
        _refuse_telling_reports(selection, cohort, problem)
        change: Literal["one bit", "swap"] = "one bit" if adjacency == "add-remove" else "swap"
        times = problem.rounds if selection.fresh else 1  # a client may be in every cohort
        return _randomised(
            selection, RandomisedResponse(length=problem.n_items, epsilon=epsilon / times, change=change)
        )
    histogram = ItemHistogram(
        length=problem.n_items,
        max_items=selection.max_items,
        epsilon=epsilon,
        delta=privacy.delta,
        adjacency=adjacency,
        carried=carried_by(privacy, clients_with_data(problem)),
    )
    threshold = ReportThreshold(threshold=selection.threshold, cut=selection.cut)
    return Selection(ReportSpec(mechanism=histogram), ReportedItems(threshold))


def _refuse_telling_reports(selection: SelectionSettings, cohort: CohortSettings, problem: Problem) -> None:
    """The items that a cohort reports show who is in it, and the epsilon of the updates counts on that being secret."""
    population = clients_with_data(problem)
    if selection.reports == "cohort" and cohort.among(population) < population:
        raise BadInput(
            "selection.reports is cohort: the items of a round would tell who is in it, which a proven run has to hide;"
            " use --set selection.reports=everybody, or --set cohort.size=0 for everybody in every round"
        )


class OnPart:
    """A model family on the items that DP-SUB chooses."""

    def __init__(self, family: Family[Any]) -> None:
        self.family = family

    def build(self, config: Any, problem: Problem) -> Plan:
        """The model with every message protected as published, or every sum as proven."""
        if config.calibration == "as-published":
            return self.published(config, problem, self.family.noisy(config, self.family.schema(config, problem)))
        return self.proven(config, problem)

    def published(self, config: Any, problem: Problem, mechanism: UpdateMechanism) -> Plan:
        """Randomised bits choose the items."""
        chosen = published_selection(config.selection, problem)
        return self.family.plan(config, problem, mechanism, round_planner=chosen.round_planner, reports=chosen.reports)

    def proven(self, config: Any, problem: Problem) -> Plan:
        """Reports within the budget choose the items."""
        chosen = proven_selection(config.selection, config.privacy, config.cohort, problem)
        return self.family.proven(
            config,
            problem,
            reports=chosen.reports,
            unit=config.selection.unit,
            round_planner=self.round_planner(config, problem, chosen.round_planner),
        )

    def round_planner(self, config: Any, problem: Problem, items: RoundPlanner) -> RoundPlanner:
        """Round planner of the proven form, given that of the items."""
        return items

    def guarantee(self, config: Any, *caveats: str) -> Guarantee:
        """User-level over the whole run with the selection in it, or the paper's claim."""
        if config.calibration == "as-published":
            return as_published(config.privacy, self.family.flaws(config), REPORTS)
        promise = self.family.guarantee(config, *caveats)
        if config.selection.unit == "user":
            return replace(promise, caveats=(HISTOGRAM, *promise.caveats))
        return replace(promise, unit="click", caveats=(CLICK, *promise.caveats))

    def guarantee_of_run(self, config: Any, problem: Problem) -> Guarantee:
        """Guarantee of a run; beside the paper's claim, the epsilon of one report and one update of typical size."""
        if config.calibration == "proven":
            return self.guarantee(config)
        chosen = published_selection(config.selection, problem)
        rows = chosen.size(problem, 0)
        report, update = chosen.reports.mechanism.event(), self.family.message_event(config, problem, rows)
        times = participations(config.cohort, problem.rounds, clients_with_data(problem))
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
    """How many reports a client draws in a run in which it takes part so many times."""
    if not selection.fresh:
        return 1
    return problem.rounds if selection.reports == "everybody" else times


ROUNDS = 400
CLIENTS = {"ml-100k": 100, "ml-1m": 200}  # a round
ROWS = {"ml-100k": 1683, "ml-1m": 3706}  # of the item table: one more than the items of ML-100K
WIDTH = {"matrix factorisation": 32, "NeuMF": 160}  # numbers of an item
EPSILON = 2.0  # of a bit; with it and the mean as threshold the paper's numbers of items come out
RANK = 16
HALF = 0.5


@dataclass(frozen=True)
class Counted:
    """One total of the paper, in millions of parameters, beside what its convention gives."""

    method: str
    dataset: str
    printed: float
    counted: float
    how: str

    @property
    def relative_error(self) -> float:
        """Relative error of our count against the printed number."""
        return self.counted / self.printed - 1.0


def total(numbers_per_message: float, dataset: str) -> float:
    """Millions of parameters of a whole run."""
    return numbers_per_message * CLIENTS[dataset] * ROUNDS / 1e6


def selected_items(interactions: Csr, seed: int, *, rounds: int = 5, cut: bool = True) -> float:
    """How many items DP-SUB chooses as published: everybody's bits, drawn anew every round; the mean of a few.

    Items are those that somebody has used, as the paper counts them: 3,706 films of ML-1M, not all 3,883.
    """
    used, items = np.unique(interactions.items, return_inverse=True)
    problem = Problem(Csr(interactions.offsets, items.astype(np.int32)), len(used), seed, rounds)
    chosen = published_selection(SelectionSettings(epsilon=EPSILON, cut=cut, fresh=True), problem)
    return sum(chosen.size(problem, number) for number in range(rounds)) / rounds


def totals(selected: Mapping[str, float]) -> list[Counted]:
    """Every total that the paper prints; `selected` is the size of the sub-model by data set."""
    mf, ncf = WIDTH["matrix factorisation"], WIDTH["NeuMF"]
    counted = []
    for dataset, items in selected.items():
        rows = ROWS[dataset]
        whole, part = f"{rows} rows of", f"{items:.1f} selected rows of"
        numbers = {  # of a message, and how they are counted
            "fedmf": (rows * mf, f"{whole} {mf}"),
            "priv-fedmf-sub": (items * mf, f"{part} {mf}"),
            "fedncf": (rows * ncf, f"{whole} {ncf}"),
            "priv-fedncf-sub-compress": (items * ncf, f"{part} {ncf}; the printed number does not come out of this"),
            "dp-fedmf-svd": (RANK * (rows + mf + 1), f"rank {RANK}: {RANK} ({rows} + {mf} + 1)"),
            "dp-fedmf-topk": (
                HALF * rows * mf,
                f"half of {rows} rows of {mf}; the printed number is 200 more, and no share gives it",
            ),
        }
        for method, (count, how) in numbers.items():
            if dataset in _PRINTED[method]:
                counted.append(Counted(method, dataset, _PRINTED[method][dataset], total(count, dataset), how))
    return counted


_PRINTED: dict[str, dict[str, float]] = {
    "fedmf": {"ml-100k": 2154.24, "ml-1m": 9487.36},
    "priv-fedmf-sub": {"ml-100k": 698.67, "ml-1m": 2907.85},
    "fedncf": {"ml-100k": 10771.2, "ml-1m": 47436.8},
    "priv-fedncf-sub-compress": {"ml-100k": 4200.0, "ml-1m": 4421.2},
    "dp-fedmf-svd": {"ml-1m": 4785.93},
    "dp-fedmf-topk": {"ml-1m": 4943.68},
}
