"""The method contract behind `veilrec check method`: what every method must satisfy, whoever wrote it.

The project's own tests run the same checks over every registered method.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veilrec.audit.contract_subject import (
    SECRET,
    SEED,
    ContractBroken,
    ContractSubject,
    DoesNotApply,
    copied,
    distance,
    measured,
    same,
    subjects,
    trained,
)
from veilrec.audit.method import audit_method
from veilrec.client.federated import weights_of
from veilrec.client.local_training import Cohort, OwnItems, SumLocalTrainer, places
from veilrec.core.csr import packed
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.fixed_point import FixedPoint
from veilrec.core.resources import MissingPart
from veilrec.core.schema import BOUND, ClientUpdates, RoundSpec, from_vectors, to_vectors
from veilrec.data.population import Strings
from veilrec.methods.base import LARGEST, configure, preset_names, promised
from veilrec.methods.public import data_in_plan
from veilrec.methods.registry import get
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.events import training_event
from veilrec.runs.model_files import ModelFiles, save_model
from veilrec.runs.saved import open_model
from veilrec.server.aggregation import Aggregator
from veilrec.simulation.real_clients import RealRun
from veilrec.simulation.simulation import Simulation, one_of
from veilrec.wire import messages

ROUNDS = 3
CLIENTS, REAL_COHORT = 24, 12  # of real rounds
ROUNDING = 1e-5  # how far products of matrices in another order may differ
_FEWEST_NUMBERS, _MAX_NOISY_ROUNDS = 300, 20  # of noise that is compared
_OF_NETWORKS = 5e-5  # the same for large matrices, which processors multiply in orders of their own
_NOISE_APART = 0.35  # four standard errors of the ratio of two mean squares of 300 numbers
_MAX_AFTER_BOUND = 1e3  # of an entry that was 1e6


def need(holds: bool, found: str) -> None:
    """Raise `ContractBroken` with the finding unless the condition holds."""
    if not holds:
        raise ContractBroken(found)


def parts(subject: ContractSubject) -> None:
    """A method has either a federated plan or a central trainer, and describes itself."""
    method = subject.method
    need((method.plan is None) != (method.trainer is None), "it needs a plan or a trainer, and not both")
    need((method.plan is not None) == (method.kind == "federated"), f"it says {method.kind}: a plan makes it federated")
    for text in ("paper", "model", "summary", "datasets"):
        need(bool(getattr(method, text)), f"it says nothing of its {text}")


def settings(subject: ContractSubject) -> None:
    """Every preset is valid, and impossible settings are rejected in one line."""
    method = subject.method
    for preset in preset_names(method):
        for dataset in method.datasets:
            configure(method, preset=preset, dataset=dataset)
    values = dict(_numbers(method.config().model_dump()))
    wrong = {"no_such_thing": ["1"]} | {name: ["nan", "inf", "-inf"] for name in values}
    for name, number in values.items():
        if isinstance(number, int):
            wrong[name] = [*wrong[name], str(LARGEST + 1), str(-(10**20))]
    for name, tried in wrong.items():
        for value in tried:
            _refused(subject, f"{name}={value}")


def _refused(subject: ContractSubject, setting: str) -> None:
    try:
        configure(subject.method, preset="tuned", dataset="", settings=[setting])
    except BadInput as told:
        need("\n" not in str(told), f"--set {setting} is refused in more than one line")
    else:
        raise ContractBroken(
            f"--set {setting} is taken: bound the setting with types such as PositiveInt or Field(le=...)"
        )


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int | float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, value


def guarantee(subject: ContractSubject) -> None:
    """Every statement is complete, and a proven plan spends no more than it promises."""
    config, problem = subject.config(), subject.problem()
    statement = promised(subject.method, config, problem)
    need(bool(statement.caveats), "the guarantee has no caveats: say in plain words what is not covered")
    need(statement.basis == subject.guarantee().basis, "a run states another basis than the method")
    if statement.basis != "proven" or subject.method.plan is None:
        return
    epsilon, delta = statement.epsilon or 0.0, statement.delta or 0.0
    spent = epsilon_of(training_event(subject.method.plan(config, problem)), delta)
    need(spent <= epsilon * (1 + 1e-9), f"the plan spends epsilon {spent:.4g} and {statement.line()} is promised")


def honest(subject: ContractSubject) -> None:
    """Beside a paper's claim stands the epsilon of our accounting."""
    statement = promised(subject.method, subject.config(), subject.problem())
    if statement.basis != "as published":
        raise DoesNotApply("nothing is claimed as published")
    need(bool(statement.honest_note), "a claim as published needs an honest_note: why another value holds, or none")
    finite, exempt = statement.honest_epsilon is not None, subject.exemption("honest") is not None
    need(finite or exempt, "no honest epsilon stands beside the claim")
    need(not (finite and exempt), "it is said that no epsilon is finite, and one stands beside the claim")


def seed(subject: ContractSubject) -> None:
    """One seed always gives the same bits, another seed another model."""
    first, again, other = (subject.build(subject.problem(seed=number)) for number in (SEED, SEED, SEED + 1))
    for number in range(2):
        for trainer in (first, again, other):
            trainer.step(number)
    need(same(first.state(), again.state()), "two trainings with one seed differ: key every draw by the problem's seed")
    if subject.exemption("seed") is None:
        need(not same(first.state(), other.state()), "another seed changes nothing")
    else:
        need(same(first.state(), other.state()), "it is said that nothing is drawn, and another seed changes the model")


def resume(subject: ContractSubject) -> None:
    """A resumed training gives the same bits as an uninterrupted one; `load_state` takes copies."""
    straight, stopped, resumed = (subject.build() for _ in range(3))
    for number in range(2):
        straight.step(number)
        stopped.step(number)
    handed, before = stopped.state(), copied(stopped.state())
    resumed.load_state(handed, 2)
    need(same(resumed.state(), straight.state()), "state() does not hold all that load_state() needs")
    for number in range(2, 4):
        straight.step(number)
        resumed.step(number)
    need(same(resumed.state(), straight.state()), "a resumed training goes another way: something is not in state()")
    need(same(stopped.state(), before), "load_state() keeps the arrays that it was given: take copies")
    users = np.arange(10)
    need(
        np.array_equal(resumed.model().score_all(users), straight.model().score_all(users)),
        "a resumed model scores otherwise: something that it scores with is not in state()",
    )


def scores(subject: ContractSubject) -> None:
    """`score_some` agrees with `score_all`."""
    trainer = subject.build()
    trainer.step(0)
    model, n_items = trainer.model(), subject.problem().n_items
    users = np.array([3, 0, 7, 3])
    items = np.random.default_rng(1).integers(0, n_items, (4, 12)).astype(np.int32)
    everything, some = model.score_all(users), model.score_some(users, items)
    need(model.n_items == n_items, f"the model has {model.n_items} items of {n_items}")
    need(everything.shape == (4, n_items), f"score_all gives {everything.shape}, expected is {(4, n_items)}")
    need(some.dtype == everything.dtype == np.float32, "scores are float32")
    chosen = np.take_along_axis(everything, items.astype(np.int64), axis=1)
    need(np.allclose(some, chosen, rtol=1e-4, atol=1e-4), "score_some gives other scores than score_all")


def new_users(subject: ContractSubject) -> None:
    """New users get finite scores from a history alone, even an empty one, and leave the model unchanged."""
    trainer = subject.build()
    trainer.step(0)
    before = copied(trainer.state())
    folded = trainer.model().fold_in(packed([[], [5], [1, 2, 3]])).score_all(np.arange(3))
    need(folded.shape == (3, subject.problem().n_items), f"fold_in gives scores of shape {folded.shape}")
    need(bool(np.isfinite(folded).all()), "a new user gets scores that are no numbers")
    need(same(trainer.state(), before), "taking in new users changes the model")


def without_data(subject: ContractSubject) -> None:
    """A saved model gives the same scores without the data that it was trained on."""
    trainer = subject.build()
    trainer.step(0)
    own, n_items = trainer.parts(), subject.problem().n_items
    history = packed([[5, 1, 9]])
    wanted = trainer.model().fold_in(history).score_all(np.zeros(1, np.int64))[0]
    with tempfile.TemporaryDirectory() as folder:
        save_model(
            Path(folder),
            ModelFiles(
                method=subject.method.name,
                ranker=own.ranker,
                weights=own.weights,
                sent=own.sent,
                items=Strings.of(f"i{number}" for number in range(n_items)),
                titles=None,
                guarantee=subject.guarantee(),
            ),
        )
        try:
            opened = open_model(Path(folder), subject.spec)
        except BadInput as told:
            raise ContractBroken(
                f"its saved model cannot be opened ({told}): name its ranker in Method.rankers"
            ) from None
        need(type(opened.parts.ranker) is type(own.ranker), f"another ranker has the kind {own.ranker.kind!r}")
        again = opened.for_anybody.fold_in(history).score_all(np.zeros(1, np.int64))[0]
    need(np.allclose(again, wanted, rtol=1e-5, atol=1e-6), "the saved model scores otherwise than the trained one")


def learns(subject: ContractSubject) -> None:
    """After its trial a method beats popularity on held-out items of synthetic users, and chance on new users."""
    if subject.reads_news:
        raise DoesNotApply("few synthetic readers are not enough to learn a language from")
    if subject.exemption("learns") is not None:
        return
    # With 500 cases the standard error of hr@10 is at most 0.022: 1.4 times popularity's 0.17 is no accident.
    factor = subject.method.trial.times_popularity
    for metric in ("hr@10", "ndcg@10"):
        found, bar = measured(subject.spec, "loo-99")[metric], measured("popularity", "loo-99")[metric]
        need(found > factor * bar, f"{metric} is {found:.3f}; {factor:g} times popularity is {factor * bar:.3f}")
    # 100 new users with some 12 items each to find: chance is 0.034, its standard error about 0.005.
    found, chance = (measured(name, "holdout-users")["hr@10"] for name in (subject.spec, "random"))
    need(found > 3 * chance, f"hr@10 of new users is {found:.3f}, and three times chance would be {3 * chance:.3f}")
    state = copied(trained(subject.spec, "holdout-users").state())
    need(all(np.isfinite(values).all() for values in state.values()), "what it has learnt holds numbers that are none")


def cohort(subject: ContractSubject) -> None:
    """A cohort of 50 gives what 50 cohorts of one give, noise included: no client touches another's message."""
    whole, alone = subject.simulation(secret=SECRET), subject.simulation(secret=SECRET, at_once=1)
    for number in range(ROUNDS):
        reports = [replace(run.step(number), loss=None, shares=None) for run in (whole, alone)]
        need(reports[0] == reports[1], f"round {number} sends {reports[0]} as a cohort and {reports[1]} one by one")
    apart = distance(alone.state(), whole.state())
    networks = subject.reads_news or subject.exemption("cohort") is not None  # which multiply larger matrices
    alike = apart <= ROUNDING if networks else same(alone.state(), whole.state())
    need(alike, f"the models or what clients keep differ by {apart:.2g} of their size")


def shortcut(subject: ContractSubject) -> None:
    """A local trainer that computes the sum of a cohort directly gives the sum of all client updates."""
    quick = subject.on_clients()
    if not isinstance(quick.plan.trainer, SumLocalTrainer):
        raise DoesNotApply("it has no shortcut over sums")
    if not quick.plan.mechanism.is_linear:
        raise DoesNotApply("something is done to every message alone, so that the shortcut is not taken")
    slow = subject.simulation()
    for number in range(2):
        fast, each = quick.step(number), slow.step(number)
        need((fast.up_bytes, fast.up_params) == (each.up_bytes, each.up_params), "the shortcut counts other bytes")
    apart = distance(quick.server.state(), slow.server.state())
    need(apart <= ROUNDING, f"the models differ by {apart:.2g} of their size")


def noise_at_once(subject: ContractSubject) -> None:
    """Noise that a simulation draws for a whole cohort has the size of noise drawn by each client."""
    fast, exact = subject.simulation(), subject.simulation(secret=SECRET)
    if fast.plan.mechanism.noise_on == "nothing":
        raise DoesNotApply("no noise is added")
    tables = [tensor.name for tensor in fast.plan.schema.learnt.tables]
    first = fast.plan.round_planner.next(0, fast.plan.start, None)  # which may be about some tensors only
    learnt = {tensor.name: tensor.size for tensor in fast.plan.schema.learnt.tensors if first.concerns(tensor.name)}
    chosen = tables[0] if tables else max(learnt, key=lambda name: learnt[name])
    rounds = min(_MAX_NOISY_ROUNDS, -(-_FEWEST_NUMBERS // learnt[chosen]))  # a small tensor says little at once
    sizes = []
    for run in (fast, exact):
        squares = []
        for number in range(rounds):
            before = run.server.weights[chosen].astype(np.float64)
            run.step(number)
            moved = run.server.weights[chosen] - before
            squares.append(moved[moved != 0.0] ** 2)
        sizes.append(float(np.mean(np.concatenate(squares))))
    need(abs(sizes[0] / sizes[1] - 1.0) <= _NOISE_APART, f"mean squares {sizes[0]:.3g} and {sizes[1]:.3g}")


def bounds(subject: ContractSubject) -> None:
    """Every client update is bounded however large it is, and noise on a sum reaches every number of it."""
    if subject.guarantee().basis == "none":
        raise DoesNotApply("nothing is promised, so nothing has to be bounded")
    sim = subject.simulation(secret=SECRET)
    mechanism, schema = sim.plan.mechanism, sim.plan.schema.learnt
    if mechanism.is_linear:
        raise DoesNotApply("messages leave as they are, and the statement says what that means")
    huge = np.full((3, sum(tensor.size for tensor in schema.tensors)), 1e6)
    bounded = mechanism.bound(from_vectors(huge, schema), RoundSpec(0))
    mechanism.check(bounded, RoundSpec(0))
    most = float(np.abs(to_vectors(bounded, schema)).max())
    need(most < _MAX_AFTER_BOUND, f"an update of millions leaves with entries of {most:.3g}")
    before = copied(sim.server.weights)
    sim.step(0)
    if mechanism.noise_on != "sum":
        return
    spec = slice(None) if sim.server_state.sent is None else sim.server_state.sent > 0
    view = sim.server.view  # of the first round, which may be about some tensors only
    for name in [tensor.name for tensor in view.tables[:1]] or [tensor.name for tensor in view.tensors]:
        share = float((sim.server.weights[name] != before[name])[spec].mean())
        need(share > 0.99, f"noise reaches {share:.0%} of {name}, not all of it")


def outside_part(subject: ContractSubject) -> None:
    """A client whose items are all outside the part of a round sends nothing but noise."""
    if subject.reads_news or subject.guarantee().basis == "none":
        raise DoesNotApply("it is for private methods that know items by their ids")
    sim = subject.simulation()
    if not sim.plan.schema.learnt.tables:
        raise DoesNotApply("it knows items by their features, and every round is about all of the model")
    n_items = subject.problem().n_items
    part = np.arange(1, n_items, 2, dtype=np.int32)
    spec = RoundSpec(0, part)
    sim.server.open_round(spec)
    private = {key: values[[0]] for key, values in sim.private.items()}
    before = copied(private)
    alone = OwnItems(packed([[0]])).inside(places(part, n_items))
    clients = Cohort(np.array([0]), alone, private, SEED)
    learned = sim.plan.trainer.learn(clients, weights_of(sim.server.broadcast(), sim.server.view), spec)
    bounded = sim.plan.mechanism.bound(learned.updates, spec)
    told = replace(bounded, dense={name: part for name, part in bounded.dense.items() if name != BOUND})
    need(not to_vectors(told, sim.server.view).any(), "its message is not empty")
    need(same(private, before), "what it keeps has changed")


def holds_no_user_data(subject: ContractSubject) -> None:
    """A plan holds no user's data: it is sent to every client."""
    problem = subject.problem()
    for array in _arrays(subject.on_clients(problem).plan, set()):
        need(not np.shares_memory(array, problem.train.items), "the plan holds the items that people have used")
        need(array.shape[:1] != problem.train.items.shape, "the plan holds an array as long as all uses together")
        described = problem.features is not None and array.ndim > 1 and len(array) == len(problem.train)
        need(not described, "the plan holds a row for every person")


def public_facts(subject: ContractSubject) -> None:
    """A plan, the ranker's settings and tables included, is that of public facts and of neighbouring data."""
    if subject.method.plan is None:
        raise DoesNotApply("it has everybody's data in one place and no plan")
    found = data_in_plan(subject.method, subject.config(), subject.problem())
    need(found is None, f"the plan depends on somebody's data: {found}")


def _arrays(value: Any, seen: set[int]) -> Iterator[NDArray[Any]]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _arrays(inner, seen)
    elif hasattr(value, "__dict__"):
        yield from _arrays(vars(value), seen)


@contextmanager
def real_beside(simulated: Simulation) -> Iterator[RealRun]:
    """Run some rounds of a simulation beside real clients that exchange bytes; every counted byte is sent."""
    with tempfile.TemporaryDirectory() as folder:
        real = RealRun(Path(folder), simulated.plan, simulated.data, simulated.seeds)
        try:
            for number in range(ROUNDS):
                told, done = simulated.step(number), real.step()
                need((told.clients, told.down_bytes) == (done.clients, done.down_bytes), "clients or bytes down differ")
                sent = (done.up_bytes, done.report_bytes)
                need((told.up_bytes, told.selection_bytes) == sent, f"counted {told.up_bytes} bytes up, sent {sent[0]}")
                need(done.messages == done.clients and not done.refused, "the coordinator refused a message")
            yield real
        finally:
            real.close()


def real_rounds(subject: ContractSubject, *settings: str) -> None:
    """Real clients and a coordinator that exchange bytes give the simulation's model, noise included."""
    size = f"cohort.size={8 if subject.reads_news else REAL_COHORT}"
    problem = subject.problem(users=CLIENTS)
    simulated = subject.on_clients(problem, size, *settings, secret=SECRET)
    with real_beside(simulated) as real:
        state, wanted = dict(real.coordinator.server_state.state()), simulated.server_state.state()
        exempt = subject.exemption("real-rounds") is not None
        if exempt or subject.reads_news:  # a cohort multiplies larger matrices, whose sums are in another order
            need(distance(state, wanted) <= _OF_NETWORKS, "real clients give another model")
            if exempt:
                return
            simulated.server_state.load_state(state, ROUNDS)
            simulated.compare()
            need(real.compare() == simulated.selection, "real validation clients select another model")
            return
        need(same(state, wanted), "real clients give another model")
        for name, client in real.clients.items():
            number = int(name.split()[1])
            kept = {key: values[[number]] for key, values in simulated.private.items()}
            need(same(dict(client.private), kept), f"{name} keeps something else than its simulation")


def whole_messages(subject: ContractSubject) -> None:
    """Reports are counted in whole messages, and client updates beside them."""
    sim = subject.simulation()
    report = sim.step(0)
    length = messages.size(subject.problem().n_items)
    need(report.selection_bytes % length == 0, f"{report.selection_bytes} bytes are not whole reports of {length}")
    need(report.up_bytes > report.selection_bytes, "no bytes are counted for updates")


def audited(subject: ContractSubject) -> None:
    """The claim of a proven method withstands a quick audit."""
    if subject.guarantee().basis != "proven":
        raise DoesNotApply("nothing is proven")
    chosen = () if subject.calibration is None else (f"calibration={subject.calibration}",)
    found = audit_method(subject.spec, quick=True, settings=(*chosen, *subject.settings), data=subject.data)
    failed = [check.name for check in found.checks if not check.holds]
    if found.canary is not None and not found.canary.holds:
        failed.append("canary")
    need(found.holds, f"the audit fails: {', '.join(failed)}; see `veilrec audit {subject.spec} --quick`")


_SHARDS = 3


def sums(subject: ContractSubject) -> None:
    """Client updates in another order, in shards, and as masked integers add up to the same bits."""
    sim = subject.simulation(secret=SECRET)
    server: Any = sim.server
    taken: list[tuple[FixedPoint, RoundSpec, ClientUpdates]] = []
    add = server.add

    def noting(updates: ClientUpdates) -> None:
        taken.append((server.fixed_point, server.spec, updates))
        add(updates)

    server.add = noting
    sim.step(0)
    alone = [one_of(updates, place) for *_, updates in taken for place in range(updates.count)]
    need(len(alone) > _SHARDS, f"{len(alone)} messages are too few to be in another order")
    (fixed_point, spec, _), rule = taken[0], sim.plan.aggregation
    need(fixed_point == sim.plan.fixed_point(spec), "a client would add integers of another lattice")
    whole, shuffled, shards = (Aggregator(fixed_point, rule) for _ in range(3))
    for *_, updates in taken:
        whole.add(updates)
    order = np.random.default_rng(SEED).permutation(len(alone))
    for place in order:
        shuffled.add(alone[place])
    for some in np.array_split(order, _SHARDS):
        part = Aggregator(fixed_point, rule)
        for place in some:
            part.add(alone[place])
        shards.add_integers(part.vector, clients=part.clients)
    masked = np.zeros(fixed_point.size, np.int64)
    for message in alone:
        masked += fixed_point.integers(message)[0]
    for name, other in (("in another order", shuffled.vector), ("in shards", shards.vector), ("as masked", masked)):
        need(np.array_equal(whole.vector, other), f"messages {name} add up to other bits")
    need(bool(whole.vector.any()), "nothing was added up")


Verdict = Literal["holds", "broken", "exempt", "does not apply", "not checked"]


@dataclass(frozen=True)
class ContractCheck:
    """One requirement of the contract."""

    name: str
    means: str
    run: Callable[[ContractSubject], None]
    every_calibration: bool = False


CONTRACT = (
    ContractCheck("parts", "it has a plan for clients or a trainer, and says what it is", parts),
    ContractCheck("settings", "every preset can be had, and impossible settings are refused in one line", settings),
    ContractCheck("guarantee", "what it promises is whole, and its plan spends no more", guarantee, True),
    ContractCheck("honest", "beside a paper's claim stands what accounting says", honest, True),
    ContractCheck("seed", "the same seed gives the same bits, another one another model", seed),
    ContractCheck("resume", "a resumed training gives the same bits as an uninterrupted one", resume),
    ContractCheck("scores", "some items are scored as all are", scores),
    ContractCheck("new-users", "a new user gets recommendations from a history alone", new_users),
    ContractCheck("without-data", "a saved model ranks without the data that it was learnt from", without_data),
    ContractCheck("learns", "on synthetic data it finds held-out items more often than popularity", learns),
    ContractCheck("cohort", "a cohort of 50 gives what 50 cohorts of one give, noise included", cohort, True),
    ContractCheck("sums", "messages in any order, in shards and masked add up to the same bits", sums),
    ContractCheck("shortcut", "a sum learnt at once is the sum of all messages", shortcut, True),
    ContractCheck("noise", "batched noise has the size of each client's own", noise_at_once, True),
    ContractCheck("bounds", "no message is larger than its bound, and noise reaches all of a sum", bounds, True),
    ContractCheck("outside", "a client that has nothing in a round's part sends nothing", outside_part, True),
    ContractCheck("nobody", "the plan, which every client gets, holds no user's data", holds_no_user_data),
    ContractCheck("public-facts", "the plan is that of public facts, whatever people have used", public_facts, True),
    ContractCheck("bytes", "bytes are counted in whole messages", whole_messages, True),
    ContractCheck("real-rounds", "real clients over bytes give the simulation's model", real_rounds, True),
    ContractCheck("audit", "what is proven withstands a quick audit", audited),
)


@dataclass(frozen=True)
class CheckOutcome:
    """The result of one check."""

    check: ContractCheck
    calibration: str | None
    verdict: Verdict
    found: str = ""  # why, where it does not simply hold
    seconds: float = 0.0
    data: str | None = None  # the kind of people, where it is not the usual one

    @property
    def name(self) -> str:
        """The name of the check, with the calibration or the dataset where it runs on several."""
        way = self.calibration or self.data
        return self.check.name if way is None else f"{self.check.name} ({way})"

    def to_json(self) -> dict[str, Any]:
        """JSON form for `veilrec check method --json`."""
        return {
            "check": self.check.name,
            "calibration": self.calibration,
            **({} if self.data is None else {"data": self.data}),
            "means": self.check.means,
            "verdict": self.verdict,
            "found": self.found or None,
            "seconds": round(self.seconds, 3),
        }


def cases(spec: str, names: Sequence[str] = ()) -> list[tuple[ContractCheck, ContractSubject]]:
    """All checks of a method, or those named, for every calibration and synthetic dataset they apply to."""
    every = subjects(spec)
    usual = [subject for subject in every if subject is every[0] or subject.data is not None]
    chosen = [check for check in CONTRACT if not names or check.name in names]
    return [(check, s) for check in chosen for s in (every if check.every_calibration else usual)]


def try_check(check: ContractCheck, subject: ContractSubject) -> CheckOutcome:
    """Run one check; whatever a method raises becomes a finding and does not stop the other"""
    started = time.perf_counter()
    verdict: Verdict = "holds"
    found = ""
    try:
        check.run(subject)
    except ContractBroken as broken:
        verdict, found = "broken", str(broken)
    except DoesNotApply as reason:
        verdict, found = "does not apply", str(reason)
    except MissingPart as missing:
        verdict, found = "not checked", str(missing)
    except VeilrecError as error:
        verdict, found = "broken", str(error)
    except Exception as error:
        verdict, found = "broken", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    exemption = subject.exemption(check.name)
    if verdict == "holds" and exemption is not None:
        verdict, found = "exempt", exemption.reason
    several = check.every_calibration and subject.calibration is not None
    calibration = subject.calibration if several else None
    return CheckOutcome(check, calibration, verdict, found, time.perf_counter() - started, subject.data)


def check_method(spec: str, names: Sequence[str] = ()) -> Iterator[CheckOutcome]:
    """Yield every outcome as soon as it is known."""
    get(spec)  # an unknown name is refused before anything else
    for check, subject in cases(spec, names):
        yield try_check(check, subject)
