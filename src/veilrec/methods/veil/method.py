"""`veil`: what is public is read, what is personal stays on the device, and a few small sums are learnt privately.

1. Votes: everybody's items, 1 / sqrt(n) for each of n, with noise; the server estimates how popular items are from
   them (empirical Bayes with public content as the prior).
2. Places: where in content space each item is used, by one noisy sum; what it says beyond content extends content.
   With a larger budget a second sum says where items are used among what the first has found.
3. Weights: how much each feature of a candidate counts (kernels of public content to the own history at several
   recency scales, and popularity), by a few noisy sums of clipped gradients.
4. The map: which places in that space lead to which, by noisy sums of clipped gradients.
5. Ranking: on the device, with weights that are fitted to the own history first. Nothing of it leaves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from veilrec._arrays import Floats
from veilrec.device.news_log import OwnImpressions
from veilrec.device.veil import FURTHER, MAP, PASSES, PLACES, POPULARITY, VOTES, WEIGHTS, VeilLearner
from veilrec.device.veil_history import OwnHistory, Reading
from veilrec.device.veil_ranker import VeilRanker
from veilrec.methods.base import Config, Method, Problem, Trial
from veilrec.methods.meta.common import WITH_FEATURES, FeatureChoice
from veilrec.methods.news.common import DATASETS as WITH_IMPRESSIONS
from veilrec.methods.private import PrivacySettings, adjacency_of, devices_with_data, proven, taking_part
from veilrec.methods.veil import news
from veilrec.methods.veil.budget import MOMENTUM, Phase, bounds_of, phases_of, spending_for, steps_of
from veilrec.methods.veil.content import Titles, content_of
from veilrec.methods.veil.coordinates import start_of, whitening_of
from veilrec.models.veil_content import Content
from veilrec.models.veil_popularity import estimated
from veilrec.plan import Plan, Reports
from veilrec.privacy.accounting.accountant import noise_for
from veilrec.privacy.accounting.gaussian import epsilon_gaussian, mu_for
from veilrec.privacy.events import ComposedEvent, Event
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.noise import left_by_sampler
from veilrec.privacy.mechanisms.scheduled import ScheduledSum, run_event
from veilrec.privacy.mechanisms.votes import VoteReports
from veilrec.server.agenda import Tally
from veilrec.server.cohorts import CohortSettings
from veilrec.server.optimise import ServerRate
from veilrec.updates import Round, Schema, Tensor

SUMS = (
    "Sums are released: of everybody's votes, and in every round of everybody's gradients; the epsilon is that of all"
    " together. The own history, its order, and the weights fitted to it never leave the device."
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
    people: Annotated[int, Field(ge=0)] = 0  # a public nominal number; 0: how many devices there are
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

    def next(self, number: int, weights: Mapping[str, Floats], tally: Tally | None) -> Round:
        """By its number alone; a round beyond the last is like the last."""
        kinds = [phase.tensors for phase in self.phases for _ in range(phase.rounds)]
        place = min(number, len(kinds) - 1)
        return Round(number, clip_norm=self.bounds[place], tensors=kinds[place])


def public_content(config: VeilConfig, problem: Problem) -> Content:
    """What features and titles say of the items."""
    items = None if problem.features is None else problem.features.items
    if items is not None and config.features.items is not None:
        items = items.select(config.features.items)
    return content_of(items, problem.catalogue, problem.n_items, dim=config.dim, titles=config.titles)


def ready(config: VeilConfig) -> tuple[str, ...]:
    """Sentence vectors need the public model that makes them."""
    if config.titles == "sentences":
        from veilrec.models.minilm import model_folder

        model_folder()
    return ()


def devices(config: VeilConfig, problem: Problem) -> OwnHistory | OwnImpressions:
    """What devices learn from: their items, in their order, or what they were shown."""
    if problem.news is not None:
        return news.devices(config, problem)
    return OwnHistory(problem.train)


def plan(config: VeilConfig, problem: Problem) -> Plan:
    """Put the parts together; where devices have seen impressions, those of `news`."""
    if problem.news is not None:
        return news.plan(config, problem)
    privacy, n_devices = config.privacy, devices_with_data(problem)
    content = public_content(config, problem)
    reading = ORDERED if config.order == "on" else UNORDERED
    whitening = whitening_of(content, reading)
    people = config.people or n_devices
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
    )
    mechanism = scheduled_sum(config, problem, schema, bounds, votes)
    steps = steps_of(spending, phases, bounds, mechanism.sigma, config.people or config.cohort.among(n_devices))
    return Plan(
        schema=schema,
        start={
            **{tensor.name: np.zeros(tensor.shape, np.float32) for tensor in schema.tensors},
            WEIGHTS: start_of(content, reading, whitening) / np.float32(steps.units[WEIGHTS]),
        },
        learner=VeilLearner(content, reading, whitening, steps, names),
        mechanism=mechanism,
        agenda=InPhases(phases, bounds),
        reports=Reports(mechanism=votes),
        from_reports=Estimated(votes.sigma, content.basis),
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation="sum",
        server=ServerRate(momentum=MOMENTUM),
        ranker=VeilRanker(content, reading, whitening, steps, config.caution, problem.public_seed),
        devices_at_once=250,
    )


def scheduled_sum(
    config: VeilConfig, problem: Problem, schema: Schema, bounds: tuple[float, ...], votes: VoteReports
) -> ScheduledSum:
    """Noise on the sum of every round, so that all of them and the votes keep the promise."""
    privacy, learnt = config.privacy, schema.learnt
    people = taking_part(config.cohort, problem.rounds, devices_with_data(problem), "user", keeps_state=False)
    dimension = sum(tensor.size for tensor in learnt.tensors)
    epsilon, delta = left_by_sampler(privacy.epsilon, privacy.delta, dimension * problem.rounds + problem.n_items)

    def together(noise_multiplier: float) -> Event:
        rounds = run_event(bounds, people, noise_multiplier, dimension)
        return ComposedEvent(((votes.event(), 1), (rounds, 1)))

    guess = math.sqrt(sum(bound**2 for bound in bounds)) / mu_for(epsilon, delta)
    multiplier = noise_for(together, epsilon, delta, guess=guess)
    return ScheduledSum(
        schema=learnt, clip_norms=bounds, noise_multiplier=multiplier, taking_part=people, delta=privacy.delta
    )


def guarantee(config: VeilConfig) -> Guarantee:
    """User-level over the whole run, votes included."""
    p = config.privacy
    return proven(p.epsilon, p.delta, config.cohort, SUMS, keeps_state=False)


def guarantee_of_run(config: VeilConfig, problem: Problem) -> Guarantee:
    """The same, in the words of what the run learns from."""
    return guarantee(config) if problem.news is None else news.guarantee(config)


METHOD = Method(
    name="veil",
    kind="federated",
    made_up=("synthetic-ratings", "synthetic-news"),
    trial=Trial(rounds=12, settings=("privacy.epsilon=100", "cohort.size=0"), times_popularity=1.4),
    paper="ours",
    model="kernels of public content over the own history, and a map of content space",
    summary="public content, a few private sums, and everything personal on the device, in its order",
    datasets=(*WITH_FEATURES, *WITH_IMPRESSIONS),
    config=VeilConfig,
    plan=plan,
    devices=devices,
    guarantee=guarantee,
    guarantee_of_run=guarantee_of_run,
    ready=ready,
    rounds=12,
    evaluations=1,
    rounds_are_fixed=True,
)
