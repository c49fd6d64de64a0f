"""Audit of a method, `veilrec audit METHOD`: attack its own plan on small synthetic data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from veilrec.audit.canary import ALPHA, Canary, canary
from veilrec.audit.observe import AuditCheck
from veilrec.audit.plan import audit_plan
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.errors import BadInput
from veilrec.core.features import Feature, Features, assembled
from veilrec.core.plan import Plan
from veilrec.data import synthetic_news, synthetic_ratings
from veilrec.evaluation.protocols import make_split
from veilrec.methods.base import Config, Method, NewsData, Problem, configure, promised, setting_names
from veilrec.methods.private import devices_with_data
from veilrec.methods.registry import METHODS, get
from veilrec.privacy.guarantee import Guarantee

_SYNTHETIC = ("synthetic-ratings", "synthetic-news")
_NEWS = _SYNTHETIC[1]
_DATA_SEED = 1  # of the synthetic data
_PUBLIC_SEED = 3
_TINY_ROUNDS, _TINY_NEWS_ROUNDS = 3, 1  # a news model takes as long for one as the others for ten
_FEWER = 2  # times fewer runs of those
_TINY_DEVICES, _TINY_ITEMS, _TINY_USES = 12, 16, 5
# A model so small that a run takes milliseconds; what a method does not have is left out.
_TINY = (
    "cohort.size=0",
    "local.dim=4",
    "rank=2",
    "local.gmf=2",
    "local.mlp=2",
    "selection.most_items=5",
    "selection.threshold=0",
    "size.word_dim=4",
    "size.heads=2",
    "size.head_dim=2",
    "size.attention=2",
    "size.basis=2",
)
# For methods that adapt a network over features. It is linear, so that noise in the model does not change what
# the person's data does to it, and steps are so large that every update has to be clipped.
_TINY_NETWORK = (
    "local.steps=2",
    "local.negatives=8",
    "local.needed=0",
    "local.rate=3",
    "model.embedding=0",
    "model.hidden=[]",
)


@dataclass(frozen=True)
class AuditEffort:
    """How much an audit examines."""

    users: int
    rounds: int  # that are watched, of those that the noise was chosen for
    drawn: int  # cohorts
    runs: int  # of the canary, a side


QUICK, FULL = AuditEffort(200, 3, 1_000, 400), AuditEffort(600, 6, 10_000, 5_000)


@dataclass(frozen=True)
class MethodAudit:
    """The claim of a method and the findings of its audit."""

    method: str
    claimed: Guarantee
    checks: tuple[AuditCheck, ...]
    canary: Canary | None  # where something is proven
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether all checks and the canary agree with the method's statement."""
        return all(check.holds for check in self.checks) and (self.canary is None or self.canary.holds)

    @property
    def false_alarm_rate(self) -> float:
        """Upper bound, over all seeds, on the probability that a sound method fails."""
        return sum(check.false_alarm_rate for check in self.checks) + (0.0 if self.canary is None else ALPHA)

    def to_json(self) -> dict[str, Any]:
        """JSON form for `veilrec audit METHOD --json`."""
        return {
            "method": self.method,
            "claimed": self.claimed.to_json(),
            "checks": [check.to_json() for check in self.checks],
            "canary": None if self.canary is None else self.canary.to_json(),
            "holds": self.holds,
            "false_alarm_rate": self.false_alarm_rate,
            "seconds": round(self.seconds, 3),
        }


def proven_cases() -> list[tuple[str, str | None]]:
    """All proven methods, on each synthetic dataset that they treat differently (None: the default one)."""
    return [(name, data) for name in proven_methods() for data in (None, *get(name).made_up[1:])]


def proven_methods() -> list[str]:
    """Names of the federated methods whose default configuration has a proven guarantee."""
    return [name for name in METHODS if (method := get(name)).plan is not None and _basis(method) == "proven"]


def _basis(method: Method[Any]) -> str:
    return method.guarantee(configure(method, preset="tuned", dataset="")[0]).basis


def synthetic_for(method: Method[Any], data: str | None = None) -> str:
    """The synthetic dataset that a method is audited on: `data`, or the first that it learns from."""
    known = [name for name in _SYNTHETIC if name in method.datasets]
    if data is None:
        return known[0] if known else _NEWS
    if data not in known:
        raise BadInput(f"{method.name} is not audited on {data}: choose from {', '.join(known)}")
    return data


def audit_method(
    name: str, *, quick: bool, seed: int = 0, settings: Sequence[str] = (), data: str | None = None
) -> MethodAudit:
    """Audit a method as configured on a few hundred synthetic clients, with a canary among twelve."""
    started = time.perf_counter()
    method, effort = get(name), QUICK if quick else FULL
    name = method.name
    if method.plan is None:
        raise BadInput(
            f"{name} learns where all data is, and sends no messages: audit a federated method, such as dp-fedmf"
        )
    config, rounds = configure(method, preset="tuned", dataset="", settings=settings)
    problem = small_problem(method, effort.users, rounds, data)
    config = fitting(config, devices_with_data(problem))
    guarantee = promised(method, config, problem)
    checks = audit_plan(
        method.plan(config, problem),
        method.devices(config, problem),
        problem.train,
        guarantee,
        rounds=min(effort.rounds, rounds),
        drawn=effort.drawn,
        seed=seed,
    )
    found = None
    if guarantee.basis == "proven":
        plan, tiny = tiny_plan(method, settings, data)
        config = tiny_config(method, settings)
        claim = promised(method, config, tiny)
        runs = effort.runs // (1 if tiny.news is None else _FEWER)
        found = canary(plan, method.devices(config, tiny), tiny.train, claim, runs=runs, seed=seed)
    label = name if data is None else f"{name} on {data}"
    return MethodAudit(label, guarantee, checks, found, time.perf_counter() - started)


def fitting(config: Any, devices: int) -> Any:
    """Reduce the cohort size of a configuration to what a small population has."""
    if config.cohort.size <= devices:
        return config
    return config.model_copy(update={"cohort": replace(config.cohort, size=devices // 4)})


def small_problem(method: Method[Any], users: int, rounds: int, data: str | None = None) -> Problem:
    """A training problem on synthetic data of the kind that the method learns from."""
    if synthetic_for(method, data) != _NEWS:
        rows, known = _ratings(users)
        n_items = int(rows.items.max()) + 1
        features = Features(known.users, known.items.take(np.arange(n_items)))
        return Problem(rows, n_items, _PUBLIC_SEED, rounds, features=features)
    return _news(users, rounds)


@cache
def _ratings(users: int) -> tuple[Csr, Features]:
    population = synthetic_ratings.generate(users=users, items=120, seed=_DATA_SEED)
    if population.features is None:
        raise ValueError("synthetic ratings have features")
    return Csr(population.interactions.offsets, population.interactions.items), population.features


def _news(users: int, rounds: int) -> Problem:
    train, n_items, news = _synthetic_news(users)
    return Problem(train, n_items, _PUBLIC_SEED, rounds, news)


@cache
def _synthetic_news(users: int) -> tuple[Csr, int, NewsData]:
    population = synthetic_news.generate(users=users, news=200, days=3, seed=_DATA_SEED)
    cut = make_split(population, "mind", seed=0)
    if population.catalogue is None or cut.train_impressions is None:
        raise ValueError("synthetic news have a catalogue and impressions")
    return cut.train, cut.n_items, NewsData(population.catalogue, cut.train_impressions)


def tiny_config(method: Method[Any], settings: Sequence[str]) -> Any:
    """The configuration of a tiny plan: `settings`, with the smallest possible model."""
    known = set(setting_names(method.config))
    of_all = (*_TINY, *_TINY_NETWORK) if "features.items" in known else _TINY
    tiny = [setting for setting in of_all if setting.partition("=")[0] in known]
    asked = [setting for setting in settings if not setting.startswith("cohort.size")]
    config, _ = configure(method, preset="tuned", dataset="", settings=[*asked, *tiny])
    return config


def _tiny_features() -> Features:
    """Features of a tiny population: two groups of users and four kinds of items."""
    sides = []
    for name, count, values in (("group", _TINY_DEVICES, "ab"), ("kind", _TINY_ITEMS, "abcd")):
        codes = 1 + np.arange(count, dtype=np.int32) % len(values)
        sides.append(assembled([Feature(name, "category", tuple(values))], count, [(np.arange(count), codes)], []))
    return Features(*sides)


def tiny_plan(method: Method[Any], settings: Sequence[str] = (), data: str | None = None) -> tuple[Plan, Problem]:
    """A plan of a few numbers for twelve clients with full participation, and its problem."""
    if method.plan is None:
        raise ValueError(f"{method.name} has no plan")
    _, rounds = configure(method, preset="tuned", dataset="", settings=settings)
    if synthetic_for(method, data) != _NEWS:
        generator = np.random.default_rng(_DATA_SEED)
        rows = [np.sort(generator.choice(_TINY_ITEMS, _TINY_USES, replace=False)) for _ in range(_TINY_DEVICES)]
        train = Csr(offsets_of([len(row) for row in rows]), np.concatenate(rows).astype(np.int32))
        problem = Problem(train, _TINY_ITEMS, _PUBLIC_SEED, min(_TINY_ROUNDS, rounds), features=_tiny_features())
    else:
        problem = _news(_TINY_DEVICES, min(_TINY_NEWS_ROUNDS, rounds))
    config: Config = tiny_config(method, settings)
    return method.plan(config, problem), problem
