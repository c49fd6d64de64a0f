"""Audit of a method, `veilrec audit METHOD`: attack its own plan on small synthetic data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast, get_args

import numpy as np

from veilrec.audit.bounds import epsilon_from_gaussian_scores, epsilon_from_scores
from veilrec.audit.observe import AuditCheck, ObservedRun, SeenSums, is_equal, simulate, watch
from veilrec.audit.plan import audit_plan, claim, secret_of
from veilrec.audit.plan_local import scores_of_reports
from veilrec.audit.whole_run import ROUNDS, WORDS, warm_start_checks
from veilrec.client.local_training import LocalData
from veilrec.client.news_data import OwnImpressions
from veilrec.core.arrays import Doubles
from veilrec.core.csr import Csr, offsets_of, packed
from veilrec.core.errors import BadInput
from veilrec.core.features import Feature, Features, assembled
from veilrec.core.plan import Plan
from veilrec.core.schema import BOUND, Schema
from veilrec.data import synthetic_news, synthetic_ratings
from veilrec.evaluation.protocols import make_split
from veilrec.methods.base import Config, Method, NewsData, Problem, configure, promised, setting_names
from veilrec.methods.public import data_in_plan, difference, neighbouring
from veilrec.methods.registry import METHODS, get
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.reports import MadeOfReports
from veilrec.privacy.mechanisms.schedules import TreeSum
from veilrec.runs.noise import Noise
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train
from veilrec.server.round_specs import CohortSampler, Tally
from veilrec.simulation.simulation import Seeds, Simulation

ALPHA = 1e-4
_PARTS = 8


@dataclass(frozen=True)
class Canary:
    """Lower bound on epsilon from repeated training runs."""

    epsilon_lower: float
    confidence: float
    runs: int  # with the person's data, and as many without
    rounds: int
    law: str  # what was taken for granted: that the noise is Gaussian, or nothing
    holds: bool


@dataclass(frozen=True)
class CanaryPair:
    """Two neighbouring datasets: one person's data is present, or removed or replaced."""

    first: LocalData
    second: LocalData
    person: int  # whose data differs
    removed: int | None = None  # in the second


def canary(plan: Plan, data: LocalData, histories: Csr, guarantee: Guarantee, *, runs: int, seed: int = 0) -> Canary:
    """Run all rounds of a plan `runs` times a side, on the neighbouring datasets that its guarantee is about."""
    if isinstance(plan.mechanism, MadeOfReports) and isinstance(data, OwnImpressions):
        reported = scores_of_reports(plan, data, runs=runs, seed=seed)  # all messages of one client are seen
        return _sung(reported, plan, guarantee, gaussian=False)
    plan = replace(
        plan, model_selection=None
    )  # validation clients are others, and model selection is audited by itself
    pair, direction = _max_telling(plan, data, histories, guarantee, seed)
    scores = [
        np.array([_score(plan, pair, side, histories, direction, seed, run) for run in range(runs)]) for side in (0, 1)
    ]
    clients = int((data.rows.lengths() > 0).sum())
    everybody = plan.cohort.size in (0, clients) or plan.cohort.sampling == "cyclic"
    gaussian = everybody and (plan.reports is None or guarantee.unit == "user")
    return _sung(scores, plan, guarantee, gaussian=gaussian)


def _sung(scores: Sequence[Doubles], plan: Plan, guarantee: Guarantee, *, gaussian: bool) -> Canary:
    epsilon, delta = claim(guarantee)
    bound = epsilon_from_gaussian_scores if gaussian else epsilon_from_scores
    lower = bound(scores[0], scores[1], delta=delta, alpha=ALPHA)
    law = "Gaussian noise" if gaussian else "none"
    return Canary(lower, 1.0 - ALPHA, len(scores[0]), plan.rounds, law, bool(lower <= epsilon))


def _score(plan: Plan, pair: CanaryPair, side: int, histories: Csr, direction: Doubles, seed: int, run: int) -> float:
    seeds = Seeds.all_from(seed, secret_of(seed, side, run))
    data, removed = (pair.second, pair.removed) if side else (pair.first, None)
    simulation: Simulation = simulate(plan, data, histories, seeds, removed=removed)
    weighs = _weighed(plan, simulation, pair)
    if weighs is None:
        for number in range(plan.rounds):
            simulation.step(number)
        return float(_flat(simulation, plan) @ direction)
    score = 0.0
    for number in range(plan.rounds):
        before, weight = _flat(simulation, plan), weighs(number)
        simulation.step(number)
        score += weight * float((_flat(simulation, plan) - before) @ direction)
    return score


def _flat(simulation: Simulation, plan: Plan) -> Doubles:
    weights = [simulation.server.weights[tensor.name].ravel() for tensor in plan.schema.tensors]
    return np.concatenate(weights).astype(np.float64)


def _weighed(plan: Plan, simulation: Simulation, pair: CanaryPair) -> Callable[[int], float] | None:
    """Weight of a round's step for an adversary who sees every model; None: the last model suffices.

    A step is as large as the released clip norm of its round. In tree aggregation the nodes that contain the person
    have independent noise, so a round counts as often as it is in one of them.
    """
    if plan.clipping_rule is not None:
        return lambda _: 1.0 / float(simulation.server.weights[BOUND][0])
    if isinstance(plan.mechanism, TreeSum):
        times = _in_nodes(plan, simulation, pair.person, plan.mechanism.steps)
        return lambda number: times[number]
    return None


def _in_nodes(plan: Plan, simulation: Simulation, person: int, steps: int) -> Doubles:
    """For every round, the number of tree nodes that contain both the round and the person's participation."""
    times = np.zeros(plan.rounds)
    everybody, seeds = simulation.sampler.eligible, simulation.seeds
    sampler = CohortSampler(plan.cohort, everybody, seeds.cohorts, secret=seeds.secret)
    turns = [number for number in range(plan.rounds) if person in sampler.draw(number)]
    for end in range(plan.rounds):
        place = end % steps + 1
        start = end - (place & -place) + 1
        times[start : end + 1] += sum(start <= turn <= end for turn in turns)
    return times


def _max_telling(
    plan: Plan, data: LocalData, histories: Csr, guarantee: Guarantee, seed: int
) -> tuple[CanaryPair, Doubles]:
    """The neighbouring pair whose sums lie farthest apart without noise, and the direction between them."""

    def moves(side: LocalData, removed: int | None, number: int) -> Doubles:
        seeds = Seeds.all_from(seed, secret_of(seed, 2, number))
        seen = watch(plan, side, histories, seeds, plan.rounds, quiet=True, removed=removed)
        return np.asarray(np.sum([_whole(sums, plan.schema) for sums in seen.sums], axis=0)) + _told(plan, seen)

    def apart(pair: CanaryPair, number: int) -> Doubles:
        return np.asarray(moves(pair.first, None, number) - moves(pair.second, pair.removed, number))

    pair = max(_pairs(data, guarantee), key=lambda pair: float(np.linalg.norm(apart(pair, 0))))
    # Where rounds are about parts that chance has a hand in, all of them count.
    direction = np.sum(
        [apart(pair, number) for number in range(_PARTS if plan.round_planner.leaves_out else 1)], axis=0
    )
    return pair, direction / max(float(np.linalg.norm(direction)), 1e-300)


def _whole(sums: SeenSums, schema: Schema) -> Doubles:
    """The sums of a round before the noise, as a change of the whole model."""
    parts = []
    for tensor in schema.tensors:
        full = np.zeros(tensor.shape)
        rows = sums.spec.rows if tensor.by_row else None
        # The bound is no sum of the model's changes; and a round may be about some tensors only.
        if tensor.learnt and tensor.name != BOUND and sums.spec.concerns(tensor.name):
            full[slice(None) if rows is None else rows] = sums.before[tensor.name]
        parts.append(full.ravel())
    return np.concatenate(parts)


def _told(plan: Plan, seen: ObservedRun) -> Doubles:
    """The contribution of reports to the model before noise, weighted by its variance relative to that of the sums."""
    whole = {tensor.name: np.zeros(tensor.shape) for tensor in plan.schema.tensors}
    if plan.from_reports is not None and plan.reports is not None:
        told, mechanism = seen.reports[0].told, plan.reports.mechanism
        sigma, of_sums = getattr(mechanism, "sigma", 0.0), plan.mechanism.facts().get("sigma", 0.0)
        weight = (of_sums / sigma) ** 2 if sigma and of_sums else 1.0
        tally = Tally(told.sum(axis=0) * mechanism.step, len(told))
        for name, values in plan.from_reports.tensors(tally).items():
            whole[name] = values.astype(np.float64) * weight
    return np.concatenate([whole[tensor.name].ravel() for tensor in plan.schema.tensors])


def _pairs(data: LocalData, guarantee: Guarantee) -> list[CanaryPair]:
    everybody = np.flatnonzero(data.rows.lengths() > 0).tolist()
    if guarantee.unit == "click":
        return [CanaryPair(data, _without_a_click(data, client), client) for client in everybody]
    if guarantee.adjacency == "add-remove":
        return [CanaryPair(data, data, client, client) for client in everybody]
    rows, person = np.arange(len(data.rows)), everybody[0]
    return [CanaryPair(data, data.take(np.where(rows == person, other, rows)), person) for other in everybody[1:]]


def _without_a_click(data: LocalData, client: int) -> LocalData:
    """Remove the first item of a client's data; added clicks are bounded in the same way."""
    rows = data.rows
    kept = np.ones(len(rows.items), np.bool_)
    kept[rows.offsets[client]] = False
    lengths = rows.lengths()
    lengths[client] -= 1
    return cast(LocalData, replace(cast(Any, data), rows=Csr(offsets_of(lengths), rows.items[kept])))


_SYNTHETIC = ("synthetic-ratings", "synthetic-news")
_NEWS = _SYNTHETIC[1]
_DATA_SEED = 1  # of the synthetic data
_PUBLIC_SEED = 3
_TINY_ROUNDS, _TINY_NEWS_ROUNDS = 3, 1  # a news model takes as long for one as the others for ten
_FEWER = 2  # times fewer runs of those
_WARM_CLIENTS = 40  # of a run that another one starts from
_TINY_CLIENTS, _TINY_ITEMS, _TINY_USES = 12, 16, 5
# A model so small that a run takes milliseconds; what a method does not have is left out.
_TINY = [
    "cohort.size=0",
    "local.dim=4",
    "rank=2",
    "local.gmf=2",
    "local.mlp=2",
    "selection.max_items=5",
    "selection.threshold=0",
    "size.word_dim=4",
    "size.heads=2",
    "size.head_dim=2",
    "size.attention=2",
    "size.basis=2",
]
# For methods that adapt a network over features. It is linear, so that noise in the model does not change what
# the person's data does to it, and steps are so large that every update has to be clipped.
_TINY_NETWORK = [
    "local.steps=2",
    "local.negatives=8",
    "local.needed=0",
    "local.rate=3",
    "model.embedding=0",
    "model.hidden=[]",
]


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

    @property
    def covered(self) -> str:
        """How many rounds of the plan were looked at, and how many streams were compared; empty if none were."""
        found = {check.name: check for check in self.checks}
        if ROUNDS not in found:
            return ""
        rounds, words = found[ROUNDS], found.get(WORDS)
        looked = f"{rounds.measured} of {rounds.expected} were looked at; {rounds.where}"
        return looked if words is None else f"{looked}; {words.where}"

    def to_json(self) -> dict[str, Any]:
        """JSON form for `veilrec audit METHOD --json`."""
        return {
            "method": self.method,
            "covered": self.covered,
            "claimed": self.claimed.to_json(),
            "checks": [check.to_json() for check in self.checks],
            "canary": None if self.canary is None else asdict(self.canary),
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
    config = fitting(config, int((method.clients(config, problem).rows.lengths() > 0).sum()))
    guarantee = promised(method, config, problem)
    checks = (
        *fact_checks(method, config, problem),
        *audit_plan(
            method.plan(config, problem),
            method.clients(config, problem),
            problem.train,
            guarantee,
            rounds=min(effort.rounds, rounds),
            drawn=effort.drawn,
            seed=seed,
        ),
    )
    found = None
    if guarantee.basis == "proven":
        plan, tiny = tiny_plan(method, settings, data)
        config = tiny_config(method, settings)
        claim = promised(method, config, tiny)
        runs = effort.runs // (1 if tiny.news is None else _FEWER)
        found = canary(plan, method.clients(config, tiny), tiny.train, claim, runs=runs, seed=seed)
        checks = (*checks, *_warm_start(method, settings, data))
    label = name if data is None else f"{name} on {data}"
    return MethodAudit(label, guarantee, checks, found, time.perf_counter() - started)


def fact_checks(method: Method[Any], config: Any, problem: Problem) -> Iterator[AuditCheck]:
    """Check that a plan is made of public facts, and that a client's data and role have nothing of another's."""
    if method.plan is None:
        return
    found = data_in_plan(method, config, problem)
    yield is_equal("what the plan is made of beside public facts", found or "nothing", "nothing")
    clients, plan = partial(method.clients, config), method.plan(config, problem)
    first, *others = neighbouring(problem, lambda one: clients(one).rows)
    told = (_of_others(plan, clients(first.problem), clients(one.problem), one.people) for one in others)
    found = next((difference for difference in told if difference is not None), "nothing")
    yield is_equal("what a client's data or role tells of another client", found, "nothing")


def _of_others(plan: Plan, data: LocalData, other: LocalData, people: Sequence[int]) -> str | None:
    """How data and roles differ in two neighbouring problems, beside the data of those people who differ."""
    selection = plan.model_selection
    unchanged = np.setdiff1d(np.arange(len(data.rows)), people)
    sides = []
    for one in (data, other):
        judges = np.zeros(0, np.int64) if selection is None else selection.validator.clients(one)
        trains = np.flatnonzero(one.rows.lengths() > 0)
        known = people if len(people) == 1 else ()  # somebody who stays, with other data, keeps the role
        roles = {
            name: np.intersect1d(who, (*unchanged, *known)) for name, who in (("trains", trains), ("judges", judges))
        }
        sides.append({"data": one.take(unchanged), **roles})
    return difference(sides[0], sides[1], "clients")


def _warm_start(method: Method[Any], settings: Sequence[str], data: str | None) -> list[AuditCheck]:
    """Train a tiny model, start another run from it as `train --from` does, and compare what they draw."""
    synthetic = f"{synthetic_for(method, data)}:users={_WARM_CLIENTS}"
    tiny = tuple(_tiny_settings(method, settings))
    simulations: dict[str, Simulation] = {}
    with TemporaryDirectory() as folder:
        for noise in get_args(Noise):
            out = Path(folder) / noise
            request = RunRequest(method.name, synthetic, settings=tiny, noise=noise, rounds=1)
            first = prepare(request)
            train(first, out)
            second = prepare(replace(request, start_from=out))
            simulations[f"{noise} run"] = cast(Simulation, first.trainer)
            simulations[f"{noise} run from it"] = cast(Simulation, second.trainer)
    return list(warm_start_checks(simulations))


def fitting(config: Any, clients: int) -> Any:
    """Reduce the cohort size of a configuration to what a small population has that trains."""
    if config.cohort.size <= clients:
        return config
    return config.model_copy(update={"cohort": replace(config.cohort, size=clients // 4)})


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
    return Csr(population.interactions.offsets, population.interactions.items), cast(Features, population.features)


@cache
def _news(users: int, rounds: int) -> Problem:
    population = synthetic_news.generate(users=users, news=200, days=3, seed=_DATA_SEED)
    cut = make_split(population, "mind", seed=0)
    news = NewsData(cast(Any, population.catalogue), cast(Any, cut.train_impressions))
    return Problem(cut.train, cut.n_items, _PUBLIC_SEED, rounds, news)


def tiny_config(method: Method[Any], settings: Sequence[str]) -> Any:
    """The configuration of a tiny plan: `settings`, with the smallest possible model."""
    config, _ = configure(method, preset="tuned", dataset="", settings=_tiny_settings(method, settings))
    return config


def _tiny_settings(method: Method[Any], settings: Sequence[str]) -> list[str]:
    known = set(setting_names(method.config))
    of_all = (*_TINY, *_TINY_NETWORK) if "features.items" in known else _TINY
    tiny = [setting for setting in of_all if setting.partition("=")[0] in known]
    return [*(setting for setting in settings if not setting.startswith("cohort.size")), *tiny]


def _tiny_features() -> Features:
    """Features of a tiny population: two groups of users and four kinds of items."""
    sides = []
    for name, count, values in (("group", _TINY_CLIENTS, "ab"), ("kind", _TINY_ITEMS, "abcd")):
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
        rows = [np.sort(generator.choice(_TINY_ITEMS, _TINY_USES, replace=False)) for _ in range(_TINY_CLIENTS)]
        problem = Problem(packed(rows), _TINY_ITEMS, _PUBLIC_SEED, min(_TINY_ROUNDS, rounds), features=_tiny_features())
    else:
        problem = _news(_TINY_CLIENTS, min(_TINY_NEWS_ROUNDS, rounds))
    config: Config = tiny_config(method, settings)
    return method.plan(config, problem), problem
