"""EASE: the linear model that few methods beat on film ratings; the reference for what privacy costs.

A Markov chain over items: what is used next depends on what was used last; a reference that knows the order.

The chances of the next item are counted over everybody's histories in the order of time, smoothed with popularity; the
rows of the latest few items are added up, older ones for less. Items that were used in the same second stand in the
order of the file, for this method as for every other one that reads the order.

Item neighbours with recency: items that the same people use, followed from the latest of a history.

Similarity is the cosine of the users of two items, whatever the order; an item of the own history counts less for each
that was used after it. With decay 1 the order is not read, and this is plain item-based filtering.

Private Gram matrix: which of the most popular items go together, released once with noise; ranked on the device.

Everybody votes for their items first (`VoteReports`, for a share of the epsilon); noisy popularity then says which K
items the matrix is of. In the only round every client sends its taste times itself, as long as the clip norm; the sum
gets Gaussian noise. The server does nothing with it: whoever ranks takes the noise off as far as its size tells
(`veilrec.models.item_item`), and follows a history along what is left. Nothing is tuned: K and the rest follow from the
number of people and from epsilon.

Taste is what a history has beside popularity, which is known already: leaving popularity out makes the rest of half of
all messages 1.2 times as strong or more beside the same noise (validation users of ML-1M, epsilon 2, 300 items: Hits@10
.147 instead of .143).
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveInt

from veilrec.client.closed_form import GRAM, GramLocalTrainer, GramRanker, gram_tensor
from veilrec.client.rankers import EaseRanker, NeighbourRanker, arrays_of
from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.core.schema import Schema
from veilrec.methods.base import EVERY_DATASET, Config, Exemption, LearningTrial, Method, Problem, unprotected
from veilrec.methods.private import PrivacySettings, clients_with_data, private_votes, proven_sums, sum_of_everybody
from veilrec.methods.references.popularity import OneStep
from veilrec.models.item_item import ease_weights, similarities, transitions
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings, PopularityTensor
from veilrec.simulation.simulation import Trainer

EASE_MOST_ITEMS = 20_000  # 4.8 GB: a float64 and a float32 for every pair of items


class EaseConfig(Config):
    """Settings of EASE."""

    ridge: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 500.0  # lambda: larger ones keep weights small


def ease_trainer(config: EaseConfig, problem: Problem) -> Trainer:
    """Solve once."""
    if problem.n_items > EASE_MOST_ITEMS:
        raise BadInput(
            f"ease keeps numbers for every pair of items, and {problem.n_items} items would take"
            f" {problem.n_items**2 * 12 / 1e9:.0f} GB: it takes at most {EASE_MOST_ITEMS} items;"
            " drop rare items, or use mf or fedmf"
        )

    return OneStep(
        lambda: {EaseRanker.WEIGHTS: ease_weights(problem.train, problem.n_items, config.ridge)},
        EaseRanker(),
        problem.train,
    )


EASE = Method(
    name="ease",
    kind="centralised",
    private_relative="dp-fedmf",
    trial=LearningTrial(rounds=1),
    exemptions=(Exemption("seed", "Nothing is drawn: the weights are the solution of an equation."),),
    paper="Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019",
    model="linear item-item model",
    summary="closed-form weights between all pairs of items, learnt from everybody's data in one place",
    datasets=tuple(name for name in EVERY_DATASET if name not in ("mind", "adressa", "ebnerd")),  # too many items
    config=EaseConfig,
    trainer=ease_trainer,
    guarantee=unprotected("Everybody's data lies in one place, and the weights are exact functions of it."),
    rounds=1,
    presets={"tuned@ml-100k": {"ridge": 300.0}, "tuned@ml-1m": {"ridge": 700.0}},
    measured=("ml-100k", "ml-1m"),
)


Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
MAX_NEIGHBOURS = 10_000


class MarkovConfig(Config):
    """Settings of the Markov chain."""

    smoothing: Positive = 20.0  # transitions by popularity alone that every item is taken to have had
    decay: Share = 0.75  # of what a row counts, for each item that was used after it
    latest: PositiveInt = 30  # items of a history whose rows count
    reach: PositiveInt = 10  # how many items later still counts as next; 1: a chain of the first order, as published
    fade: Share = 0.85  # of what a later one counts, for each in between
    neighbours: Annotated[int, Field(ge=1, le=MAX_NEIGHBOURS)] = 1000  # of a row, at most: the likeliest


def markov_trainer(config: MarkovConfig, problem: Problem) -> Trainer:
    """Count once."""
    c = config
    return OneStep(
        lambda: arrays_of(
            transitions(
                problem.train, problem.n_items, reach=c.reach, fade=c.fade, smoothing=c.smoothing, most=c.neighbours
            )
        ),
        NeighbourRanker(c.decay, c.latest),
        problem.train,
    )


MARKOV = Method(
    name="markov",
    kind="centralised",
    private_relative="private-gram",
    trial=LearningTrial(rounds=1, settings=("reach=5", "fade=1"), times_popularity=1.4),
    exemptions=(Exemption("seed", "Nothing is drawn: transitions are counted."),),
    paper="Rendle et al., Factorizing Personalized Markov Chains, WWW 2010: the chain without its factors",
    model="transitions between items",
    summary="how often an item is used after another, from everybody's data in one place; follows the latest items",
    datasets=EVERY_DATASET,
    config=MarkovConfig,
    trainer=markov_trainer,
    guarantee=unprotected("Everybody's data lies in one place, and the counts are exact."),
    rounds=1,
    measured=("ml-100k", "ml-1m"),
)


class RecencyKnnConfig(Config):
    """Settings of neighbours with recency."""

    decay: Share = 0.6  # of what an item of the history counts, for each that was used after it
    latest: PositiveInt = 50  # items of a history that count
    shrinkage: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = (
        0.0  # added below the cosine: larger ones doubt items of few users
    )
    neighbours: Annotated[int, Field(ge=1, le=MAX_NEIGHBOURS)] = 1000  # of an item, at most: the nearest


def trainer(config: RecencyKnnConfig, problem: Problem) -> Trainer:
    """Count once."""

    shrinkage, most = config.shrinkage, config.neighbours
    return OneStep(
        lambda: arrays_of(similarities(problem.train, problem.n_items, shrinkage=shrinkage, most=most)),
        NeighbourRanker(config.decay, config.latest),
        problem.train,
    )


RECENCY_KNN = Method(
    name="recency-knn",
    kind="centralised",
    private_relative="private-gram",
    trial=LearningTrial(rounds=1, settings=("decay=1",)),
    exemptions=(Exemption("seed", "Nothing is drawn: uses are counted."),),
    paper="Sarwar et al., Item-Based Collaborative Filtering, WWW 2001; recency as in Ding and Li, Time Weight"
    " Collaborative Filtering, CIKM 2005",
    model="similarities between items",
    summary="items that the same people use, from everybody's data in one place; the latest of a history count most",
    datasets=EVERY_DATASET,
    config=RecencyKnnConfig,
    trainer=trainer,
    guarantee=unprotected("Everybody's data lies in one place, and the similarities are exact."),
    rounds=1,
    measured=("ml-100k", "ml-1m"),
)


TWO_SUMS = (
    "Two sums are released, of everybody's votes and of everybody's tastes; the epsilon is that of both together."
)
MAX_ITEMS = 3000  # a message is multiplied out to the square of it
_ITEMS_PER_ROOT = 8.0  # chosen on the validation users of ML-1M at epsilon 2 and 8: 7 to 11 differ by .0025
_SHARES = (0.3, 0.4, 0.5, 0.6, 0.7)  # of epsilon for the votes: .2 to .4 differ by .004 on ML-1M, where people are many
_VOTES_PER_ROOT = 6.0  # Frappe at epsilon 2: its 700 people need half of it, or popular items are not found


class PrivateGramConfig(Config):
    """Settings of the private Gram matrix."""

    privacy: PrivacySettings = PrivacySettings(epsilon=8.0, clip_norm=1.0)
    votes: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None  # popularity's share of epsilon; None: as few need it
    items: Annotated[int, Field(ge=0, le=MAX_ITEMS)] = 0  # K, the most popular ones; 0: as many as pay
    # everybody once; poisson: whoever is added or removed comes or goes with one message
    cohort: CohortSettings = CohortSettings(size=0, sampling="poisson")


def items_that_pay(privacy: PrivacySettings, people: int, n_items: int) -> int:
    """K = 8 sqrt(n mu), with noise of 1 / mu messages: more items have more noise, fewer leave more of them out."""
    size = round(_ITEMS_PER_ROOT * math.sqrt(people * mu_for(privacy.epsilon, privacy.delta)))
    return max(1, min(size, n_items, MAX_ITEMS))


def share_of_votes(privacy: PrivacySettings, people: int) -> float:
    """The least share of epsilon whose noise is sqrt(n) / 6 votes at most; with few people none may be enough."""
    needed = _VOTES_PER_ROOT / math.sqrt(people)
    fitting = (share for share in _SHARES if mu_for(share * privacy.epsilon, privacy.delta) >= needed)
    return next(fitting, _SHARES[-1])


def plan(config: PrivateGramConfig, problem: Problem) -> Plan:
    """Put the parts together."""
    privacy, n_items, clients = config.privacy, problem.n_items, clients_with_data(problem)
    people = config.cohort.among(clients) * problem.rounds
    size = min(config.items, n_items) or items_that_pay(privacy, people, n_items)
    popularity = PopularityTensor()
    schema = Schema((popularity.tensor(n_items), gram_tensor(size)))
    share = config.votes or share_of_votes(privacy, clients)
    votes = private_votes(privacy, config.cohort, n_items, share=share, clients=clients)
    mechanism = sum_of_everybody(config, problem, schema, votes)
    return Plan(
        schema=schema,
        start={popularity.name: np.zeros((n_items, 1), np.float32), GRAM: np.zeros((size, size), np.float32)},
        trainer=GramLocalTrainer(privacy.clip_norm, votes.sigma),
        mechanism=mechanism,
        reports=votes.reports,
        from_reports=popularity,
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation="sum",
        server=ServerRate(),
        ranker=GramRanker(privacy.clip_norm, mechanism.sigma * math.sqrt(problem.rounds), votes.sigma, people),
        clients_per_batch=16,  # each is multiplied out to a matrix
    )


PRIVATE_GRAM = Method(
    name="private-gram",
    kind="federated",
    trial=LearningTrial(rounds=1, settings=("privacy.epsilon=100", "cohort.size=0"), times_popularity=1.4),
    paper="ours; eigenvalues shrunk as in Gavish and Donoho, Optimal Shrinkage of Singular Values, 2017",
    model="item-item, of low rank",
    summary="which popular items go together, released once with noise; every client ranks by its own history",
    datasets=EVERY_DATASET,
    config=PrivateGramConfig,
    plan=plan,
    guarantee=proven_sums(TWO_SUMS),
    rounds=1,
    rounds_are_fixed=True,
    measured=("ml-1m", "frappe"),
)
