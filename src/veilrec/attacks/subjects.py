"""What an attack is run against: a run or a method, as a plan, clients with data, and a model.

What an adversary sees of simulated clients, and what is true of them.

The uploads are made as a round makes them: the plan's trainer, its mechanism, its coding of numbers. Where noise lies
on the sum of a round, the adversary knows what everybody else sent, as differential privacy has it, and so sees one
client's bounded update with the noise of the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from veilrec.client.local_training import Cohort, LocalData, OwnSources, examples_if_asked
from veilrec.client.news_data import OwnImpressions, blocks_of
from veilrec.core import rng
from veilrec.core.arrays import Bools, Doubles, Floats, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.core.resources import require
from veilrec.core.schema import ClientUpdates, RoundSpec, filled, to_vectors
from veilrec.data.datasets import full_spec, load
from veilrec.evaluation.protocols import default_protocol, make_split
from veilrec.evaluation.split import Split
from veilrec.methods.base import Method, Problem, configure, promised, ready
from veilrec.methods.registry import get
from veilrec.models.news_content import NewsContent
from veilrec.models.news_model import NewsInput
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.randomness import FastSource
from veilrec.runs.checkpoint import read_config, read_result
from veilrec.runs.evaluation import refuse_changed_data
from veilrec.runs.request import problem_of, read_trained
from veilrec.runs.saved import open_model
from veilrec.simulation.simulation import one_of
from veilrec.wire import messages

_PADDING = ("padding", "pad_probability")  # how settings call the share of clicks that a client hides


@dataclass(frozen=True)
class AttackSubject:
    """What is attacked."""

    method: str
    calibration: str | None
    data: str
    trained: str  # where the model is from
    claimed: Guarantee
    padding: float | None
    plan: Plan
    clients: LocalData
    weights: Mapping[str, Floats]
    split: Split  # what was learnt from, and the questions that were kept back

    def __post_init__(self) -> None:
        if self.plan.mechanism.noise_on == "share":
            raise BadInput(
                "with privacy.noise=distributed a server sees what others see with privacy.noise=central, sums with"
                " noise: attack that"
            )

    @property
    def label(self) -> str:
        """For tables and pictures."""
        return self.method if self.calibration is None else f"{self.method}, {self.calibration}"

    @property
    def reads_news(self) -> bool:
        """Whether its clients learn from impressions."""
        return isinstance(self.clients, OwnImpressions)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors say of which method they are."""
        try:
            yield
        except BadInput as error:
            raise BadInput(f"{self.method}: {error}") from None


class Populations:
    """Data sets, each read once."""

    def __init__(self) -> None:
        self.load = cache(load)


def subjects_of(
    runs: Sequence[Path],
    methods: Sequence[str],
    calibrations: Sequence[str],
    settings: Sequence[str],
    data: str,
    seed: int,
    populations: Populations,
    *,
    needs_titles: bool,
) -> list[Callable[[], AttackSubject]]:
    """What makes each subject, runs first; a method without calibrations is attacked once."""
    if not runs and not methods:
        raise BadInput("nothing to attack: give the folder of a run, or --method such as fednewsrec")
    if not methods and (calibrations or settings):
        raise BadInput("--calibration and --set are for --method: a run is attacked as it was trained")
    made: list[Callable[[], AttackSubject]] = [
        partial(subject_of_run, folder, populations, needs_titles=needs_titles) for folder in runs
    ]
    for name in methods:
        has = "calibration" in get(name).config.model_fields or len(methods) == 1
        for calibration in calibrations if has and calibrations else (None,):
            chosen = [] if calibration is None else [f"calibration={calibration.strip().lower()}"]
            made.append(
                partial(
                    subject_of_method,
                    name,
                    data,
                    populations,
                    settings=[*settings, *chosen],
                    seed=seed,
                    needs_titles=needs_titles,
                )
            )
    return made


def subject_of_method(
    name: str,
    data: str,
    populations: Populations,
    *,
    settings: Sequence[str] = (),
    seed: int = 0,
    needs_titles: bool = False,
) -> AttackSubject:
    """A method as it is before its first round."""
    method = _sending(get(name))
    require(f"attacking {method.name}", "numba")
    data = full_spec(data)
    config, rounds = configure(method, preset="tuned", dataset=data.partition(":")[0], settings=settings)
    ready(method, config)
    population = populations.load(data)
    split = make_split(population, default_protocol(population), seed=seed)
    problem = problem_of(population, split, seed, rounds)
    return _subject(method, config, problem, split, data=data, needs_titles=needs_titles)


def subject_of_run(folder: Path, populations: Populations, *, needs_titles: bool = False) -> AttackSubject:
    """A run with its last model, on its own data."""
    rounds = int(read_result(folder)["rounds"])
    trained, model = read_trained(folder), open_model(folder)
    method = _sending(get(trained.method))
    try:
        config = method.config.model_validate(read_config(folder).get("config"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{folder} was trained with other settings ({where}: {first['msg']}): train again") from None
    population = populations.load(trained.data)
    refuse_changed_data(folder, trained, model, population)
    split = trained.split(population)
    people = read_config(folder).get("nominal_people")
    problem = replace(problem_of(population, split, trained.seed, rounds), people=people)
    subject = _subject(method, config, problem, split, data=trained.data, needs_titles=needs_titles)
    weights, place = model.parts.weights, f"{folder} after {rounds} rounds"
    shapes = {tensor.name: tensor.shape for tensor in subject.plan.schema.tensors}
    if {name: values.shape for name, values in weights.items()} != shapes:
        raise BadInput(f"{folder} has another model than {method.name} has today: train again")
    return replace(subject, trained=place, claimed=model.guarantee, weights=dict(weights))


def _sending(method: Method[Any]) -> Method[Any]:
    if method.plan is None:
        raise BadInput(
            f"{method.name} learns where all data is, and sends no messages: attack a federated method, such as"
            " fednewsrec"
        )
    return method


def _subject(
    method: Method[Any], config: Any, problem: Problem, split: Split, *, data: str, needs_titles: bool
) -> AttackSubject:
    """Build the subject of a method before its first round."""
    if method.plan is None:
        raise ValueError(f"{method.name} has no plan")
    if problem.news is None and needs_titles:
        raise BadInput(
            f"{method.name}: this data has no titles or train impressions, and the attack looks for clicked news:"
            " give --data synthetic-news or mind:FOLDER, and a method that reads titles, such as fednewsrec"
        )
    plan, values = method.plan(config, problem), config.model_dump()
    everything = {**values, **(values.get("privacy") or {})}
    return AttackSubject(
        method=method.name,
        calibration=values.get("calibration"),
        data=data,
        trained="before the first round",
        claimed=promised(method, config, problem),
        padding=next((float(everything[name]) for name in _PADDING if name in everything), None),
        plan=plan,
        clients=method.clients(config, problem),
        weights=dict(plan.start),
        split=split,
    )


View = Literal["message", "sum", "update"]
SEEN: Mapping[View, str] = {
    "message": "the message of a client, as it reaches the server",
    "sum": "the noisy sum of a round, seen by somebody who knows what everybody else sent",
    "update": "a client's bounded update before any noise: what the server sees, which the method trusts",
}
Observation = Mapping[str, Doubles]  # what is seen of every tensor of the model; 0 where a message says nothing
_MAX_NEWS = 4_000  # that are looked at: those that anybody clicked, and others
_FEWEST = 2  # clients: one is attacked, one is the attacker's own


@dataclass(frozen=True)
class PublicKnowledge:
    """The public side: what the news say, and their vectors by the model that the clients were sent."""

    titles: Offsets  # [news, words], 0 behind the last
    vectors: Mapping[str, Floats]  # [news, width] each, by what they are


@dataclass(frozen=True)
class ObservedClicks:
    """Who clicked what, [clients, news], of the news that are looked at."""

    clients: Offsets
    news: Offsets  # by their numbers
    clicked: Bools  # before the impressions that the clients learn from, and not shown in any of these
    shown: Bools  # in an impression: whoever made the page knows that

    def part(self, chosen: slice) -> ObservedClicks:
        """The part of some clients."""
        return ObservedClicks(self.clients[chosen], self.news, self.clicked[chosen], self.shown[chosen])

    def halves(self) -> tuple[ObservedClicks, ObservedClicks]:
        """Those who are attacked, and the attacker's own: one less where they are odd."""
        attacked = len(self.clients) - len(self.clients) // 2
        return self.part(slice(attacked)), self.part(slice(attacked, None))


def public_news(plan: Plan, weights: Mapping[str, Floats]) -> PublicKnowledge:
    """The titles that the plan's ranker reads, and vectors of the news; methods without any are refused."""
    items, content = (getattr(plan.ranker, name, None) for name in ("items", "content"))
    if isinstance(content, NewsContent):  # no layer is over vectors of news: there are no rows to look at
        return PublicKnowledge(np.zeros((content.n_news, 1), np.int64), {})
    if not isinstance(items, NewsInput):
        raise BadInput("its model reads no titles, and the attack is about news: choose a method such as fednewsrec")
    nobody = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))
    scorer: Any = plan.ranker.model(weights, {}, nobody)
    states = scorer.states.numpy()
    vectors = {"news vectors": states} if states.ndim == 2 else {}
    if items.sentence.shape[1]:
        vectors["sentence vectors"] = items.sentence.numpy()
        for layer in plan.schema.dense:
            if len(layer.shape) == 2 and layer.shape[1] == items.sentence.shape[1]:
                vectors[f"sentence vectors behind {layer.name}"] = items.sentence.numpy() @ weights[layer.name].T
    return PublicKnowledge(items.title.numpy(), vectors)


def people_to_attack(data: LocalData, n_news: int, count: int, seed: int) -> tuple[ObservedClicks, ObservedClicks]:
    """Readers to attack, and as many of the attacker's own, or all there are."""
    if not isinstance(data, OwnImpressions):
        raise BadInput(
            "its clients keep no impressions, and the attack is about news: choose a method such as fednewsrec"
        )
    able = np.flatnonzero(data.rows.lengths() > 0).astype(np.int64)
    if len(able) < _FEWEST:
        raise BadInput(f"only {len(able)} clients can learn: an attack needs {_FEWEST}, one of them the attacker's own")
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, rng.COHORT])))
    targets, own = clicks_of(data, generator.permutation(able)[: 2 * count], n_news, seed).halves()
    if not targets.clicked.any():
        raise BadInput("nobody of those attacked has clicked anything before: there is nothing to find; take more data")
    return targets, own


def clicks_of(data: OwnImpressions, clients: Offsets, n_news: int, seed: int) -> ObservedClicks:
    """The truth about some clients; of a large catalogue, all clicked news and some others."""
    clicked = np.zeros((len(clients), n_news), np.bool_)
    shown = np.zeros((len(clients), n_news), np.bool_)
    for row, client in enumerate(clients):
        for history, clicks, others in blocks_of(data.rows.row(int(client))):
            clicked[row, history] = True
            shown[row, clicks] = shown[row, others] = True
    clicked &= ~shown
    news = np.arange(n_news)
    if n_news > _MAX_NEWS:
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, rng.MODEL])))
        anybody = clicked.any(axis=0)
        free = max(0, _MAX_NEWS - int(anybody.sum()))
        others = generator.permutation(np.flatnonzero(~anybody))[:free]
        news = np.sort(np.concatenate([np.flatnonzero(anybody), others]))
    return ObservedClicks(clients, news.astype(np.int64), clicked[:, news], shown[:, news])


def views_of(plan: Plan) -> tuple[View, ...]:
    """What somebody sees whom the method protects against, and what the server sees where the method trusts it."""
    return ("sum", "update") if plan.mechanism.noise_on == "sum" else ("message",)


def is_noisy(plan: Plan, view: View) -> bool:
    """Whether all that is seen has noise on it."""
    return view != "update" and plan.mechanism.noise_on != "nothing"


@dataclass(frozen=True)
class Scene:
    """Clients that learn from their data with a model, so many rounds each."""

    plan: Plan
    data: LocalData
    weights: Mapping[str, Floats]
    rounds: int
    seed: int


def observe(scene: Scene, clients: Offsets, views: Sequence[View]) -> Iterator[Mapping[View, Observation]]:
    """What is seen of one client after the other, the mean over its rounds; nobody else is in them."""
    plan = scene.plan
    for begin in range(0, len(clients), plan.clients_per_batch):
        some = clients[begin : begin + plan.clients_per_batch]
        by_round = [_round(scene, some, views, number) for number in range(scene.rounds)]
        for rounds in zip(*by_round, strict=True):  # of one client
            yield {view: _mean([seen[view] for seen in rounds]) for view in views}


def _mean(seen: Sequence[Observation]) -> Observation:
    if len(seen) == 1:
        return seen[0]
    return {name: np.mean([one[name] for one in seen], axis=0) for name in seen[0]}


def _round(
    scene: Scene, clients: Offsets, views: Sequence[View], number: int
) -> Iterator[dict[View, dict[str, Doubles]]]:
    plan, seed = scene.plan, scene.seed
    spec = plan.round_planner.next(number, scene.weights, None)
    private = plan.trainer.fresh_private_state(clients, seed)
    noise = OwnSources(lambda client: FastSource(seed, rng.LOCAL_NOISE, number, client))
    cohort = Cohort(clients, scene.data.take(clients), private, seed, noise)
    learned = plan.trainer.learn(cohort, scene.weights, spec)
    bounded = plan.mechanism.bound(examples_if_asked(learned.updates, plan.sends_examples), spec)
    for row, client in enumerate(clients):
        source = FastSource(seed, rng.NOISE, number, int(client), one_generator=True)
        yield {view: seen_of(plan, one_of(bounded, row), spec, view, source) for view in views}


def seen_of(plan: Plan, update: ClientUpdates, spec: RoundSpec, view: View, source: FastSource) -> dict[str, Doubles]:
    """What is seen of one client's bounded update."""
    schema = spec.view(plan.schema)
    if view == "message":
        update = messages.rounded_update(plan.mechanism.perturb(update, spec, source), schema)
    vector = to_vectors(filled(update, schema) if view == "sum" else update, schema)[0]
    seen = {tensor.name: vector[schema.places[tensor.name]].reshape(tensor.shape) for tensor in schema.tensors}
    if view == "sum":
        plan.mechanism.protect(seen, spec, source)
    return seen
