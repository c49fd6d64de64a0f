"""Attacks on the uploads of news models, and on the queries of their users.

Attacks on what a training sends and releases, by method and calibration: who was in it, and what they have.

Trainings in which some clients lie: what becomes of everybody's lists, by attack, share and defence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from veilrec.attacks import poisoning
from veilrec.attacks.inversion import invert
from veilrec.attacks.membership import Kind, Membership, MembershipEffort, ceiling_of, find_members
from veilrec.attacks.poisoning import Defence, MaliciousClients, Poison, PoisonedSimulation, Poisoning
from veilrec.attacks.recovery import proportion_interval
from veilrec.attacks.rows import AttackPoint, recover_clicks, recover_rows
from veilrec.attacks.subjects import AttackSubject, Populations
from veilrec.core import rng
from veilrec.core.arrays import Doubles
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput, Diverged
from veilrec.evaluation.evaluator import evaluate_cases
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import repeated
from veilrec.privacy.guarantee import Guarantee, Trust
from veilrec.privacy.mechanisms.attention import Noise, Normalisation, PrivateAttention, normalise
from veilrec.privacy.mechanisms.base import Calibration, Mechanism
from veilrec.privacy.mechanisms.interests import InterestResponse
from veilrec.privacy.randomness import SeededSource
from veilrec.runs.evaluation import refuse_changed_data
from veilrec.runs.request import read_trained
from veilrec.runs.saved import SavedModel, open_model
from veilrec.simulation.simulation import Seeds

Mode = Literal["attention", "interest"]
COUNTS = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True, kw_only=True)
class QueryNoise:
    """How clients ask: the noise on their attention, and what is made of it."""

    epsilon: float = 1.0
    delta: float = 0.0
    clip_norm: float = 1.0
    noise: Noise = "laplace"
    calibration: Calibration = "proven"

    @property
    def normalisation(self) -> Normalisation:
        """As published a client sends SoftPlus, divided by its sum; proven, whoever gets it takes the nearest point."""
        return "softplus" if self.calibration == "as-published" else "simplex"


@dataclass(frozen=True)
class QueryPoint:
    """What is known after n queries of a client, over all clients."""

    queries: int
    found: float  # share of clients whose strongest interest is the one that the attacker names
    interval: tuple[float, float]
    error: float  # half the L1 distance between the attention and what the attacker takes it for, on average
    epsilon_together: float | None  # of all these queries, else in the terms of the claim; None: none is finite


@dataclass(frozen=True)
class RecoveryCurve:
    """One way of asking, over the number of queries."""

    mode: Mode
    memoised: bool
    claimed: Guarantee
    points: tuple[QueryPoint, ...]

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self) | {"claimed": self.claimed.to_json()}


def average_queries(
    attention: Doubles, asking: QueryNoise, *, counts: Sequence[int] = COUNTS, seed: int = 0
) -> tuple[RecoveryCurve, ...]:
    """Attack clients with these attention vectors [clients, B], by each mode, with fresh noise and with memoised."""
    if attention.ndim != 2 or not len(attention):
        raise BadInput(f"attention has shape {attention.shape}: give a row for every client")
    if not counts or min(counts) < 1:
        raise BadInput(f"queries are {list(counts)}: give whole numbers from 1 on")
    counts = sorted(set(counts))
    basis = attention.shape[1]
    curves = []
    modes: dict[Mode, Mechanism[Doubles, Any]] = {"attention": PrivateAttention(basis=basis, **vars(asking))}
    if asking.calibration == "proven":
        modes["interest"] = InterestResponse(basis=basis, epsilon=asking.epsilon)
    for mode, mechanism in modes.items():
        for memoised in (False, True):
            answers = _asked(mechanism, attention, counts[-1], memoised=memoised, seed=seed)
            guesses = _of_attention(answers, asking) if mode == "attention" else _of_answers(answers, basis)
            points = tuple(
                _point(n, guesses(n), attention, mechanism, memoised=memoised, delta=asking.delta) for n in counts
            )
            curves.append(RecoveryCurve(mode, memoised, _claim(mechanism), points))
    return tuple(curves)


def best_guess(attention: Doubles) -> float:
    """How often somebody is right who gets no query, and names the interest that is the strongest of most clients."""
    return float(np.bincount(attention.argmax(axis=1)).max() / len(attention))


def _asked(mechanism: Mechanism[Doubles, Any], attention: Doubles, count: int, *, memoised: bool, seed: int) -> Any:
    """What the attacker gets of every client, query by query: [queries, clients, ...]."""
    source = SeededSource(seed)
    drawn = np.array([mechanism.release(attention, source).value for _ in range(1 if memoised else count)])
    return np.repeat(drawn, count, axis=0) if memoised else drawn


def _of_attention(answers: Doubles, asking: QueryNoise) -> Any:
    if asking.normalisation == "simplex":
        return lambda n: normalise(answers[:n].mean(axis=0), "simplex")
    return lambda n: normalise(answers[:n], asking.normalisation).mean(axis=0)


def _of_answers(answers: Any, basis: int) -> Any:
    """The interest that was named most often, and nothing else; of equals the one that was named first."""

    def guess(n: int) -> Doubles:
        counts = (answers[:n, :, np.newaxis] == np.arange(basis)).sum(axis=0).astype(np.float64)
        counts[np.arange(len(counts)), answers[0]] += 0.5
        return np.asarray(np.eye(basis)[counts.argmax(axis=1)])

    return guess


def _point(
    n: int, guess: Doubles, attention: Doubles, mechanism: Mechanism[Doubles, Any], *, memoised: bool, delta: float
) -> QueryPoint:
    hits = int(np.count_nonzero(guess.argmax(axis=1) == attention.argmax(axis=1)))
    clients = len(attention)
    interval = proportion_interval(hits, clients)
    error = float(np.abs(guess - attention).sum(axis=1).mean() / 2.0)
    cost = epsilon_of(repeated(mechanism.event(), 1 if memoised else n), delta)
    return QueryPoint(n, hits / clients, interval, error, round(cost, 9) if np.isfinite(cost) else None)


def _claim(mechanism: Mechanism[Doubles, Any]) -> Guarantee:
    proven = mechanism.calibration == "proven"
    epsilon, delta = mechanism.claimed_epsilon, mechanism.claimed_delta
    honest = None if proven else epsilon_of(mechanism.event(), delta)
    known = honest is not None and np.isfinite(honest)
    return Guarantee(
        basis="proven" if proven else "as published",
        unit=mechanism.unit,
        adjacency=mechanism.adjacency,
        epsilon=epsilon,
        delta=delta,
        scope="per message",
        trust="nobody",
        honest_epsilon=honest if known else None,
        honest_delta=delta if known else None,
    )


_USERS = 500  # test users whose interests are looked for, at most


@dataclass(frozen=True)
class QueryAttack:
    """A run whose users' queries were averaged."""

    folder: Path
    method: str
    data: str
    users: int
    interests: int
    chance: float  # of naming the right interest without a query
    asking: QueryNoise
    curves: tuple[RecoveryCurve, ...]

    def to_json(self) -> dict[str, Any]:
        """For `veilrec attack repeated-queries --json`."""
        own = {name: getattr(self, name) for name in ("method", "data", "users", "interests", "chance")}
        asking = {name: getattr(self.asking, name) for name in ("calibration", "noise", "clip_norm")}
        curves = [curve.to_json() for curve in self.curves]
        return {"attack": "repeated-queries", "run": str(self.folder)} | own | asking | {"curves": curves}


def attack_queries(
    folder: Path, populations: Populations, asking: QueryNoise, *, counts: Sequence[int] = COUNTS, seed: int = 0
) -> QueryAttack:
    """Average the queries of a run's test users."""
    trained, model = read_trained(folder), open_model(folder)
    scorer = _with_interests(model)
    population = populations.load(trained.data)
    refuse_changed_data(folder, trained, model, population)
    attention = attention_of_test_users(scorer, trained.split(population).test.impressions, seed)
    curves = average_queries(attention, asking, counts=counts, seed=seed)
    users, interests = attention.shape
    return QueryAttack(folder, trained.method, trained.data, users, interests, best_guess(attention), asking, curves)


def clip_norm_of(folder: Path) -> float:
    """The bound on attention that a run's model was trained with."""
    return float(_with_interests(open_model(folder)).model.sizes.attention_clip)


def _with_interests(model: SavedModel) -> Any:
    scorer: Any = model.for_anybody
    if not hasattr(getattr(scorer, "model", None), "padded_attention"):
        raise BadInput(
            f"{model.folder} is a run of {model.method}, whose model has no basis vectors, so that its clients send no"
            " attention: train one that has, such as privaterec, and give its folder"
        )
    return scorer


def attention_of_test_users(scorer: Any, impressions: Any, seed: int) -> Doubles:
    """Attention over the basis of test users with a history, some of them: [users, B]."""
    import torch

    if impressions is None:
        raise BadInput("the run's protocol asks about no impressions: train with --protocol mind")
    _, first = np.unique(impressions.users, return_index=True)  # one history a user
    rows = np.unique(impressions.history_of[first]).astype(np.int64)
    rows = rows[impressions.histories.lengths()[rows] > 0]
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed])))
    rows = np.sort(generator.permutation(rows)[:_USERS])
    if not len(rows):
        raise BadInput("no test user has clicked anything before: there are no interests to find")
    items, mask = _padded(impressions.histories.take(rows), scorer.longest)
    with torch.inference_mode():
        past = scorer.states[torch.from_numpy(items)]
        found = scorer.model.attention(scorer.model.whole_user(past, torch.from_numpy(mask)))
    attention = found.numpy().astype(np.float64)
    return np.asarray(attention / attention.sum(axis=1, keepdims=True))


def _padded(histories: Csr, longest: int) -> tuple[Any, Any]:
    """The latest clicks of every history: [users, longest] and which are real."""
    width = max(1, min(longest, int(histories.lengths().max(initial=0))))
    items, mask = np.zeros((len(histories), width), np.int64), np.zeros((len(histories), width), np.bool_)
    for row in range(len(histories)):
        latest = histories.row(row)[-width:]
        items[row, : len(latest)], mask[row, : len(latest)] = latest, True
    return items, mask


_HIDDEN: dict[Trust | None, tuple[str, ...]] = {  # what nobody sees
    "server sees only noisy sums": ("update", "message", "secure sum"),
    "server sees only sums": ("update", "message"),
}


@dataclass(frozen=True)
class Result:
    """What one attack found in one subject."""

    attack: str
    subject: AttackSubject
    findings: Sequence[Any]  # of the attack's own kind, each with a `to_json`
    about: dict[str, Any] = field(default_factory=dict)  # of all findings

    def to_json(self) -> dict[str, Any]:
        """The first finding, which is the one that the method's statement is about, and all of them."""
        s = self.subject
        named = {"attack": self.attack, "method": s.method, "calibration": s.calibration, "model": s.trained}
        terms = {"claimed": s.claimed.to_json(), "data": s.data, **self.about}
        first: dict[str, Any] = self.findings[0].to_json()
        return named | first | terms | {"findings": [f.to_json() for f in self.findings]}


def attack_members(subject: AttackSubject, *, effort: MembershipEffort, kinds: Sequence[Kind], seed: int = 0) -> Result:
    """Train a subject with canaries among its clients; a run is trained again, with its own settings and data."""
    plan, split = subject.plan, subject.split
    found: list[Membership] = []
    with subject.named():
        for kind in kinds:
            found += find_members(
                plan, subject.clients, split.train, split.n_items, subject.claimed, effort=effort, kind=kind, seed=seed
            )
    ceiling = asdict(ceiling_of(plan)) if subject.claimed.basis == "proven" else None
    return Result("membership", subject, found, {"rounds": plan.rounds, "ceiling": ceiling})


def attack_updates(subject: AttackSubject, *, updates: int, rounds: int = 1, seed: int = 0) -> Result:
    """Look for clicked news in what a subject's clients send in so many rounds each, taken together."""
    with subject.named():
        found = recover_clicks(
            subject.plan, subject.clients, subject.weights, updates=updates, rounds=rounds, seed=seed
        )
    return Result("gradient-rows", subject, found, {"padding": subject.padding, "rounds": rounds})


def attack_rows(subject: AttackSubject, *, updates: int, seed: int = 0) -> Result:
    """Look for the items that a subject's clients have in the rows that they send."""
    return _placed("row-support", recover_rows, subject, updates, seed)


def attack_messages(subject: AttackSubject, *, updates: int, seed: int = 0) -> Result:
    """Work out histories from the numbers of messages, of their sums, and of what is released."""
    return _placed("inversion", invert, subject, updates, seed)


def _placed(name: str, attack: Callable[..., Sequence[Any]], subject: AttackSubject, updates: int, seed: int) -> Result:
    """Attack a subject's clients; views that its trust model hides from everybody are left out."""
    split = subject.split
    place = AttackPoint(subject.plan, subject.clients, split.train, subject.weights, split.n_items, seed)
    with subject.named():
        found = attack(place, updates=updates)
    # Where messages are masked, nobody sees one by itself; where clients add the noise, nobody sees a sum without.
    hidden = _HIDDEN.get(subject.claimed.trust, ())
    return Result(name, subject, [one for one in found if one.view not in hidden])


SHARES = (0.001, 0.01, 0.05)


def attack_poisoning(
    subject: AttackSubject,
    *,
    poisons: Sequence[Poison],
    shares: Sequence[float],
    defences: Sequence[Defence],
    rounds: int | None = None,
    seed: int = 0,
) -> Result:
    """Train a subject again and again: once where nobody lies, then with every attack against every defence."""
    for share in shares:
        if not 0.0 < share < 0.5:
            raise BadInput(f"--share is {share:g}: it is the share of clients that lie, above 0 and below 0.5")
    if rounds is not None and rounds < 1:
        raise BadInput(f"--rounds is {rounds}: give at least 1")
    with subject.named():
        lies = [(None, 0.0), *((poison, share) for poison in poisons for share in shares)]
        found = tuple(
            _one(subject, poison, defence, share, rounds, seed) for defence in defences for poison, share in lies
        )
    return Result("poisoning", subject, found, {"rounds": min(rounds or subject.plan.rounds, subject.plan.rounds)})


def _one(
    subject: AttackSubject, poison: Poison | None, defence: Defence, share: float, rounds: int | None, seed: int
) -> Poisoning:
    plan, data, split = subject.plan, subject.clients, subject.split
    generator = np.random.default_rng([seed, rng.COHORT, 1])
    able = np.flatnonzero(data.rows.lengths() > 0).astype(np.int64)
    count = max(1, round(share * len(able))) if poison is not None else 0
    lying = np.sort(generator.permutation(able)[:count])
    target = poisoning.choose_target(data, split.n_items)
    told, liars = data, None
    if poison is not None:
        liars = MaliciousClients(lying, poison, target, poisoning.popular_items(data, split.n_items, target))
        by_learning = poisoning.learns_promotion(plan, data)
        told = poisoning.lying_data(data, split.n_items, liars, generator, by_learning=by_learning)
    training = PoisonedSimulation(plan, told, split.train, Seeds.all_from(seed), liars, defence)
    for number in range(min(rounds or plan.rounds, plan.rounds)):
        training.step(number)
    model = training.model()
    metric, worst = ("auc", 0.5) if subject.reads_news else ("hr@10", 0.0)
    try:
        judged = evaluate_cases(split.test, split.train, model)
        quality = float(np.mean(judged.values[metric][~np.isin(judged.users, lying)]))
        honest = generator.permutation(np.setdiff1d(able, lying))
        exposure = poisoning.exposure_of(model, split.train, honest, target)
    except Diverged:  # the attack has won: nothing can be ranked any more
        quality, exposure = worst, 1.0
    return Poisoning(poison, defence, share, count, training.refused, exposure, quality, metric)
