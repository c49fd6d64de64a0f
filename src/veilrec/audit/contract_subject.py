"""Subjects of the method contract: a method in one of its calibrations, on a small synthetic population."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from veilrec.audit.method import small_problem as audited_problem
from veilrec.audit.method import synthetic_for
from veilrec.client.local_training import SumLocalTrainer
from veilrec.core.arrays import Offsets
from veilrec.core.csr import packed
from veilrec.core.features import Feature, Features, assembled
from veilrec.data.population import Interactions, Population, Strings
from veilrec.evaluation.evaluator import evaluate
from veilrec.evaluation.protocols import make_split
from veilrec.evaluation.split import Split
from veilrec.methods.base import Config, Exemption, Method, Problem, configure, make_trainer, setting_names
from veilrec.methods.registry import get
from veilrec.privacy.guarantee import Guarantee
from veilrec.simulation.simulation import Seeds, Simulation, Trainer

USERS, ITEMS, TASTES, SEED = 500, 300, 15, 5
COHORT = 50
SECRET = bytes(range(32))
_NEWS_USERS, _NEWS_COHORT = 80, 20
# A model that is small, and a server that makes no more of a rounding than it is; what a method lacks is left out.
_SMALL_NEWS = (
    f"cohort.size={_NEWS_COHORT} batch=64 size.word_dim=8 size.heads=2 size.head_dim=4 size.attention=4"
    " size.category_dim=4 server.optimiser=sgd"
).split()
State = Mapping[str, NDArray[Any]]
histories_of = packed  # of new users, given as item numbers


class ContractBroken(Exception):
    """A check of the contract failed; the message is the finding."""


class DoesNotApply(Exception):
    """A check does not apply to a method; the message is the reason."""


@dataclass(frozen=True)
class ContractSubject:
    """A method in one of its calibrations."""

    spec: str  # the name or the file that it was asked for by
    calibration: str | None = None  # None: as it is configured
    settings: tuple[str, ...] = ()  # one of several ways that it can be trained
    data: str | None = None  # the synthetic dataset; None: the first that it learns from

    @property
    def method(self) -> Method[Any]:
        """The registered method."""
        return get(self.spec)

    @property
    def reads_news(self) -> bool:
        """Whether it learns from titles and impressions."""
        return synthetic_for(self.method, self.data) == "synthetic-news"

    def exemption(self, check: str) -> Exemption | None:
        """The exemption that the method declares for a check, if any."""
        of = (e for e in self.method.exemptions if e.check == check)
        return next((e for e in of if e.calibration in (None, self.calibration)), None)

    def problem(self, *, users: int = 60, seed: int = SEED, rounds: int = 5) -> Problem:
        """A small training problem: a handful of rounds visits most clients more than once."""
        if self.reads_news:
            return replace(audited_problem(self.method, _NEWS_USERS, rounds, self.data), public_seed=seed)
        first = np.arange(users)
        return Problem(split("loo-99").train.take(first), ITEMS, seed, rounds=rounds, features=features(first))

    def config(self, *settings: str) -> Config:
        """The small configuration that the checks use, overridden by `settings`."""
        known = set(setting_names(self.method.config))
        sum_rate = 0.5 / _NEWS_COHORT if self.calibration == "proven" else 0.5  # a sum is as many times the mean
        small = (*_SMALL_NEWS, f"server.rate={sum_rate}") if self.reads_news else (f"cohort.size={COHORT}",)
        chosen = [setting for setting in small if setting.partition("=")[0] in known]
        noise = [] if self.calibration is None else [f"calibration={self.calibration}"]
        config: Config = configure(
            self.method, preset="tuned", dataset="", settings=[*noise, *chosen, *self.settings, *settings]
        )[0]
        return config

    def build(self, problem: Problem | None = None, *settings: str, secret: bytes | None = None) -> Trainer:
        """Build the trainer."""
        return make_trainer(self.method, self.config(*settings), problem or self.problem(), secret=secret)

    def simulation(
        self, *settings: str, secret: bytes | None = None, at_once: int | None = None, users: int = 60
    ) -> Simulation:
        """Build a simulation in which every client update is formed, `at_once` clients at a time."""
        made = self.on_clients(self.problem(users=users), *settings, secret=secret)
        plan = replace(made.plan, clients_per_batch=at_once or max(COHORT, made.plan.clients_per_batch))
        if isinstance(plan.trainer, SumLocalTrainer):
            plan = replace(plan, trainer=_MessageByMessage(plan.trainer))
        return Simulation(plan, made.data, made.histories, Seeds.all_from(SEED, secret))

    def on_clients(self, problem: Problem | None = None, *settings: str, secret: bytes | None = None) -> Simulation:
        """Build the simulation of a federated method; raise `DoesNotApply` for others."""
        if self.method.plan is None:
            raise DoesNotApply("it has everybody's data in one place and sends no messages")
        made = self.build(problem, *settings, secret=secret)
        if not isinstance(made, Simulation):
            raise ContractBroken("it has a plan, and something else than a simulation comes of it")
        return made

    def guarantee(self) -> Guarantee:
        """The guarantee of a run with the configuration of the checks."""
        return self.method.guarantee(self.config())


class _MessageByMessage:
    """A local trainer without its shortcut over sums."""

    def __init__(self, trainer: Any) -> None:
        self.keeps_state = trainer.keeps_state
        self.fresh_private_state, self.learn = trainer.fresh_private_state, trainer.learn


def subjects(spec: str) -> list[ContractSubject]:
    """A method as configured, and in each of its other calibrations or on each of its other datasets."""
    field = get(spec).config.model_fields.get("calibration")
    if field is None:
        return [ContractSubject(spec), *(ContractSubject(spec, data=data) for data in get(spec).made_up[1:])]
    usual = str(field.default)
    return [
        ContractSubject(spec, usual),
        *(ContractSubject(spec, other) for other in get_args(field.annotation) if other != usual),
    ]


@cache
def people() -> Population:
    """Synthetic users with 3 of 15 tastes: 9 of 10 interactions are from these; popular items come more often.

    The generator of `synthetic-ratings` is more realistic, but needs thousands of users to beat popularity.
    """
    generator = np.random.default_rng(SEED)
    taste_of = generator.permutation(np.arange(ITEMS) % TASTES)
    popularity = 1.0 / (generator.permutation(ITEMS) + 20.0)
    rows, tastes = [], []
    for _ in range(USERS):
        tastes.append(generator.choice(TASTES, 3, replace=False))
        liked = np.isin(taste_of, tastes[-1])
        chances = popularity * np.where(liked, 9.0 / (popularity @ liked), 1.0 / popularity.sum())
        rows.append(generator.choice(ITEMS, generator.integers(12, 36), replace=False, p=chances / chances.sum()))
    used = packed(rows)
    interactions = Interactions(used.offsets, used.items)
    users, items = (Strings.of(f"{kind}{n}" for n in range(count)) for kind, count in (("u", USERS), ("i", ITEMS)))
    return Population("tastes", users, items, interactions, features=_described(np.array(tastes), taste_of))


def _described(tastes: Offsets, taste_of: Offsets) -> Features:
    """Features: a hint at one of a user's tastes, wrong for 3 of 10, and the taste of every item."""
    generator = np.random.default_rng([SEED, 1])
    known = tuple(f"t{number}" for number in range(TASTES))
    hints = np.where(generator.random(USERS) < 0.7, tastes[:, 0], generator.integers(0, TASTES, USERS))
    sides = [
        assembled(
            [Feature(name, "category", known)], len(codes), [(np.arange(len(codes)), (1 + codes).astype(np.int32))], []
        )
        for name, codes in (("hint", hints), ("taste", taste_of))
    ]
    return Features(*sides)


def features(users: Offsets | None = None) -> Features:
    """Features of all synthetic users or of some, and of their items."""
    known = cast(Features, people().features)
    return known if users is None else Features(known.users.take(users), known.items)


@cache
def split(protocol: str) -> Split:
    """Split the synthetic population by a protocol."""
    return make_split(people(), protocol, seed=SEED)


@cache
def trained(spec: str, protocol: str) -> Trainer:
    """Train a method for its trial on the synthetic population."""
    subject, cut = ContractSubject(spec), split(protocol)
    trial = subject.method.trial
    trainer = subject.build(Problem(cut.train, cut.n_items, SEED, trial.rounds, features=features()), *trial.settings)
    for number in range(trial.rounds):
        trainer.step(number)
    return trainer


@cache
def measured(spec: str, protocol: str) -> dict[str, float]:
    """Metrics of a method after its trial."""
    cut = split(protocol)
    return evaluate(cut.test, cut.train, trained(spec, protocol).model())


def copied(state: State) -> dict[str, NDArray[Any]]:
    """Copy a state, so that later steps do not change it."""
    return {name: values.copy() for name, values in state.items()}


def same(left: State, right: State) -> bool:
    """Whether two states are equal bit for bit."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and np.array_equal(left[name], right[name]) for name in left
    )


def distance(left: State, right: State) -> float:
    """The largest relative difference between the tensors of two states; tensors near zero count less."""
    if left.keys() != right.keys():
        raise ContractBroken(f"the states hold other tensors: {', '.join(sorted(left.keys() ^ right.keys()))}")
    return max(float(np.linalg.norm(left[k] - right[k]) / (np.linalg.norm(right[k]) + 1e-3)) for k in right)
