"""`veil`: what is public is read, what is personal stays on the device, and a few small sums are learnt privately.

1. Votes: everybody's items, 1 / sqrt(n) for each of n, with noise; the server estimates how popular items are from
   them (empirical Bayes with public content as the prior).
2. Places: where in content space each item is used, by one noisy sum; what it says beyond content extends content.
   With a larger budget a second sum says where items are used among what the first has found.
3. Weights: how much each feature of a candidate counts (kernels of public content to the own history at several
   recency scales, and popularity), by a few noisy sums of clipped gradients.
4. The map: which places in that space lead to which, by noisy sums of clipped gradients.
5. Ranking: on the device, with weights that are fitted to the own history first. It sends nothing.

What the budget is spent on, and how far steps go: from how many people there are, and from mu.

The sum of N clipped messages grows with N, its noise with 1 / mu: what can be learnt depends on nu = mu N. The shares
by nu were chosen on the validation items of ML-1M (epsilon 0.5 to 8) and ML-100K (epsilon 1).

How far steps go follows from the noise, which is known before the first round: with few people or a small epsilon they
stop early, before the noise that all rounds together put on a number grows beyond what such a number usually is; with
many they go on until what is learnt has settled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from veilrec.client.news_data import OwnImpressions
from veilrec.client.veil import (
    CLIPS,
    FURTHER,
    MAP,
    PASSES,
    PLACES,
    POPULARITY,
    VOTES,
    WEIGHTS,
    OwnHistory,
    Reading,
    Steps,
    VeilLocalTrainer,
    lengths_of,
)
from veilrec.client.veil_ranker import VeilRanker
from veilrec.core.arrays import Floats
from veilrec.core.plan import Plan, ReportSpec
from veilrec.core.schema import RoundSpec, Schema, Tensor
from veilrec.methods.base import Config, LearningTrial, Method, Problem
from veilrec.methods.news.common import DATASETS as WITH_IMPRESSIONS
from veilrec.methods.private import (
    PrivacySettings,
    adjacency_of,
    carried_by,
    clients_with_data,
    errors_of_draws,
    proven,
    shared,
    taking_part,
)
from veilrec.methods.privrec.common import WITH_FEATURES, FeatureChoice
from veilrec.methods.veil import news
from veilrec.methods.veil.content import Titles, content_of, start_of, whitening_of
from veilrec.models.veil import Content, estimated
from veilrec.privacy.accounting.accountant import noise_for
from veilrec.privacy.accounting.gaussian import epsilon_gaussian, mu_for
from veilrec.privacy.events import ComposedEvent, Event
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.base import left_by_errors
from veilrec.privacy.mechanisms.distributed import NoisySum
from veilrec.privacy.mechanisms.reports import VoteReports
from veilrec.privacy.mechanisms.schedules import ScheduledSum, run_event
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings, Tally


@dataclass(frozen=True)
class Spending:
    """Shares of mu^2: of votes, of places in both passes, and of rounds for the weights alone, and for both."""

    below: float  # nu
    votes: float
    weights: float
    map: float = 0.0
    places: float = 0.0
    further: float = 0.0  # of the second pass
    directions: int = 0  # of places, in each pass
    content: int = 24  # directions of content that the map is over, at most
    # Sums of all steps, in mean gradients, after which little changes: of the weights, and of the map.
    weights_settle: float = 60.0
    map_settles: float = 9000.0


SPENDINGS = (
    Spending(600.0, votes=0.75, weights=0.04, map=0.21),
    Spending(1000.0, votes=0.55, weights=0.05, map=0.40),
    Spending(4000.0, votes=0.40, weights=0.05, map=0.30, places=0.25, directions=4),
    Spending(
        math.inf,
        votes=0.15,
        weights=0.05,
        map=0.35,
        places=0.25,
        further=0.20,
        directions=8,
        content=32,
        weights_settle=30.0,
        map_settles=7000.0,
    ),
)
WITHOUT_MAP = Spending(math.inf, votes=0.80, weights=0.20)
MOMENTUM = 0.7
SHARES = {
    WEIGHTS: 0.1,
    MAP: 0.9,
    PLACES: 1.0,
    FURTHER: 1.0,
}  # of the squared bound, where a round is about several tensors
_NOISE = {WEIGHTS: 0.1, MAP: 0.3}  # standard deviation that all rounds may put on a number
_FOR_WEIGHTS = 1 / 6  # of the rounds


@dataclass(frozen=True)
class Phase:
    """Rounds of one kind."""

    tensors: tuple[str, ...]
    rounds: int
    share: float  # of mu^2, all rounds together


def spending_for(mu: float, people: int, *, has_map: bool) -> Spending:
    """By nu; without content there is no map, and a run is like one of few people."""
    if not has_map:
        return WITHOUT_MAP
    return next(row for row in SPENDINGS if mu * people < row.below)


def phases_of(spending: Spending, rounds: int) -> tuple[Phase, ...]:
    """How the rounds are used."""
    if not spending.map:
        return (Phase((WEIGHTS,), rounds, spending.weights),)
    places = 1 if spending.places and rounds > 1 else 0
    further = 1 if spending.further and rounds > 2 else 0
    first = max(1, round(rounds * _FOR_WEIGHTS)) if rounds > 1 + places + further else 0
    phases = (
        Phase((PLACES,), places, spending.places),
        Phase((FURTHER,), further, spending.further),
        Phase((WEIGHTS,), first, spending.weights),
        Phase((WEIGHTS, MAP), rounds - first - places - further, spending.map),
    )
    return tuple(phase for phase in phases if phase.rounds)


def steps_of(
    spending: Spending, phases: tuple[Phase, ...], bounds: tuple[float, ...], sigma: float, in_round: int
) -> Steps:
    """What a number of the sum stands for, so that steps go as far as settles them, or as far as noise allows."""
    units: dict[str, float] = {}
    noise: dict[str, float] = {}
    first = 0
    for phase in phases:
        bound = bounds[first]
        first += phase.rounds
        for name, length in lengths_of(SHARES, phase.tensors, bound).items():
            clip = CLIPS[name] / length
            if name in PASSES:  # messages are as long as one along a direction, whatever the number of directions
                units[name] = clip * math.sqrt(spending.directions)
                noise[name] = units[name] * sigma
                continue
            rounds = sum(other.rounds for other in phases if name in other.tensors)
            settled = (spending.weights_settle if name == WEIGHTS else spending.map_settles) / rounds * clip / in_round
            units[name] = (1.0 - MOMENTUM) * min(settled, _NOISE[name] / (sigma * math.sqrt(rounds)))
    return Steps(units=units, shares=SHARES, noise=noise)


def bounds_of(phases: tuple[Phase, ...]) -> tuple[float, ...]:
    """The bound of every round, so that with the same noise on all each phase costs its share; the largest is 1."""
    costs = [math.sqrt(phase.share / phase.rounds) for phase in phases]
    largest = max(costs)
    return tuple(cost / largest for cost, phase in zip(costs, phases, strict=True) for _ in range(phase.rounds))


SUMS = (
    "Sums are released: of everybody's votes, and in every round of everybody's gradients; the epsilon is that of all"
    " together."
)


class VeilConfig(Config):
    """Settings of veil; what is not here follows from the number of people and from epsilon."""

    privacy: PrivacySettings = PrivacySettings(epsilon=1.0, clip_norm=1.0)
    order: Literal["on", "off"] = "on"  # off: the latest items count no more than others, but for those long ago
    titles: Titles = "words"  # how titles are read; sentences: by MiniLM, which the extra `plm` brings
    features: FeatureChoice = FeatureChoice()
    dim: Annotated[int, Field(ge=0, le=256)] = 32  # of content space; 0: no map
    caution: Annotated[float, Field(ge=0.0, le=1e6)] = 30.0  # of the own weights; 0: none
    history: Annotated[int, Field(ge=1, le=10_000)] = 100  # of impressions: the latest clicks that count
    people: Annotated[int, Field(ge=0)] = 0  # a public nominal number; 0: how many clients there are
    cohort: CohortSettings = CohortSettings(size=0, sampling="poisson")


ORDERED = Reading()
UNORDERED = Reading(  # all alike, almost
    recency=(100.0,), taste_recency=(100.0,), popularity_recency=(100.0,), place_recency=100.0
)


@dataclass(frozen=True)
class Estimated:
    """What the server makes of votes: themselves, and how popular items are."""

    sigma: float
    content: Floats  # [items, K]

    def tensors(self, tally: Tally) -> Mapping[str, Floats]:
        """Both, for the model."""
        votes = tally.counts.astype(np.float64)
        return {VOTES: votes.astype(np.float32).reshape(-1, 1), POPULARITY: estimated(votes, self.sigma, self.content)}


@dataclass(frozen=True)
class InPhases:
    """Which tensors each round is about, and its bound."""

    phases: tuple[Phase, ...]
    bounds: tuple[float, ...]
    leaves_out = False

    def next(self, number: int, weights: Mapping[str, Floats], tally: Tally | None) -> RoundSpec:
        """By its number alone; a round beyond the last is like the last."""
        kinds = [phase.tensors for phase in self.phases for _ in range(phase.rounds)]
        place = min(number, len(kinds) - 1)
        return RoundSpec(number, clip_norm=self.bounds[place], tensors=kinds[place])


def public_content(config: VeilConfig, problem: Problem) -> Content:
    """What features and titles say of the items."""
    items = None if problem.features is None else problem.features.items
    if items is not None and config.features.items is not None:
        items = items.select(config.features.items)
    return content_of(items, problem.catalogue, problem.n_items, dim=config.dim, titles=config.titles)


def ready(config: VeilConfig) -> tuple[str, ...]:
    """Sentence vectors need the public model that makes them."""
    if config.titles == "sentences":
        from veilrec.models.text_embeddings import model_folder

        model_folder()
    return ()


def clients(config: VeilConfig, problem: Problem) -> OwnHistory | OwnImpressions:
    """What clients learn from: their items, in their order, or what they were shown."""
    if problem.news is not None:
        return news.clients(config, problem)
    return OwnHistory(problem.train)


def plan(config: VeilConfig, problem: Problem) -> Plan:
    """Put the parts together; where clients have seen impressions, those of `news`."""
    if problem.news is not None:
        return news.plan(config, problem)
    privacy, n_clients = config.privacy, clients_with_data(problem)
    content = public_content(config, problem)
    reading = ORDERED if config.order == "on" else UNORDERED
    whitening = whitening_of(content, reading)
    people = config.people or n_clients
    mu = mu_for(privacy.epsilon, privacy.delta)
    spending = spending_for(mu, people, has_map=content.basis.shape[1] > 0)
    content = replace(content, basis=np.ascontiguousarray(content.basis[:, : spending.content]))
    spending = replace(spending, directions=min(spending.directions, content.basis.shape[1]))
    phases = phases_of(spending, problem.rounds)
    bounds = bounds_of(phases)
    names = tuple(dict.fromkeys(name for phase in phases for name in phase.tensors))
    passes = sum(name in names for name in PASSES)
    reading = replace(reading, place_passes=max(passes, 1))
    width = content.basis.shape[1] + passes * spending.directions
    placed = (problem.n_items, spending.directions)
    shapes = {WEIGHTS: (len(whitening),), MAP: (reading.tastes(width), width), PLACES: placed, FURTHER: placed}
    schema = Schema(
        (
            Tensor(VOTES, (problem.n_items, 1), by_row=True, learnt=False),
            Tensor(POPULARITY, (problem.n_items, 2), by_row=True, learnt=False),
            *(Tensor(name, shapes[name], by_row=False) for name in names),
        )
    )
    votes = VoteReports(
        length=problem.n_items,
        epsilon=epsilon_gaussian(mu * math.sqrt(spending.votes), privacy.delta),
        delta=privacy.delta,
        adjacency=adjacency_of(config.cohort),
        carried=carried_by(privacy, n_clients),
    )
    mechanism = scheduled_sum(config, problem, schema, bounds, votes)
    steps = steps_of(spending, phases, bounds, mechanism.sigma, config.people or config.cohort.among(n_clients))
    return Plan(
        schema=schema,
        start={
            **{tensor.name: np.zeros(tensor.shape, np.float32) for tensor in schema.tensors},
            WEIGHTS: start_of(content, reading, whitening) / np.float32(steps.units[WEIGHTS]),
        },
        trainer=VeilLocalTrainer(content, reading, whitening, steps, names),
        mechanism=mechanism,
        round_planner=InPhases(phases, bounds),
        reports=ReportSpec(mechanism=votes),
        from_reports=Estimated(votes.sigma, content.basis),
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation="sum",
        server=ServerRate(momentum=MOMENTUM),
        ranker=VeilRanker(content, reading, whitening, steps, config.caution, problem.public_seed),
        clients_per_batch=250,
    )


def scheduled_sum(
    config: VeilConfig, problem: Problem, schema: Schema, bounds: tuple[float, ...], votes: VoteReports
) -> NoisySum:
    """Noise on the sum of every round, so that all of them and the votes keep the promise."""
    privacy, learnt = config.privacy, schema.learnt
    people = taking_part(
        config.cohort, problem.rounds, clients_with_data(problem), "user", keeps_state=False, noise=privacy.noise
    )
    dimension = sum(tensor.size for tensor in learnt.tensors)
    errors = errors_of_draws(privacy, config.cohort, people, dimension, problem.n_items)
    epsilon, delta = left_by_errors(privacy.epsilon, privacy.delta, errors)

    def together(noise_multiplier: float) -> Event:
        rounds = run_event(bounds, people, noise_multiplier, dimension)
        return ComposedEvent(((votes.event(), 1), (rounds, 1)))

    guess = math.sqrt(sum(bound**2 for bound in bounds)) / mu_for(epsilon, delta)
    multiplier = noise_for(together, epsilon, delta, guess=guess)
    made = ScheduledSum(
        schema=learnt, clip_norms=bounds, noise_multiplier=multiplier, taking_part=people, delta=privacy.delta
    )
    return shared(privacy, config.cohort, made)


def guarantee(config: VeilConfig) -> Guarantee:
    """User-level over the whole run, votes included."""
    return proven(config.privacy, config.cohort, SUMS, keeps_state=False)


def guarantee_of_run(config: VeilConfig, problem: Problem) -> Guarantee:
    """Guarantee of a run, in the words of what it learns from."""
    return guarantee(config) if problem.news is None else news.guarantee(config)


METHOD = Method(
    name="veil",
    kind="federated",
    made_up=("synthetic-ratings", "synthetic-news"),
    trial=LearningTrial(rounds=12, settings=("privacy.epsilon=100", "cohort.size=0"), times_popularity=1.4),
    paper="ours",
    model="kernels of public content over the own history, and a map of content space",
    summary="public content, a few private sums, and everything personal on the device, in its order",
    datasets=(*WITH_FEATURES, *WITH_IMPRESSIONS),
    config=VeilConfig,
    plan=plan,
    clients=clients,
    guarantee=guarantee,
    guarantee_of_run=guarantee_of_run,
    ready=ready,
    rounds=12,
    evaluations=1,
    rounds_are_fixed=True,
)
