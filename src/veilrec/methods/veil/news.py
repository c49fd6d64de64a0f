"""`veil` where devices have seen impressions: public text ranks, and a few small sums say what everybody likes.

1. Public: vectors of the news by their words or as sentences, categories, how long titles are.
2. On the device: how near a candidate is to the own history. Nothing of it leaves.
3. Learnt, by noisy sums of clipped gradients: how much each kind of nearness counts, and what everybody likes of news.

How far all rounds together go is decided before the first, from what is known: the number of people, and the noise.
With few people or much noise the ranking stays near where public text put it, and does no harm.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from veilrec.device.news_log import OwnImpressions, pack_logs
from veilrec.device.veil_news import KINDS, SCALES, TASTE, VeilNewsLearner
from veilrec.errors import BadInput
from veilrec.evaluate.impressions import judged
from veilrec.methods.base import NewsData, Problem
from veilrec.methods.news.fednewsrec import PUBLIC
from veilrec.methods.private import noisy_sum, proven
from veilrec.methods.veil.news_ranker import VeilNewsRanker
from veilrec.methods.veil.news_reading import reading_of
from veilrec.plan import Plan
from veilrec.privacy.guarantee import Guarantee
from veilrec.server.optimise import ServerRate
from veilrec.updates import Schema, Tensor

if TYPE_CHECKING:
    from veilrec.methods.veil.method import VeilConfig
    from veilrec.privacy.mechanisms.updates import CohortSum

SUMS = (
    "Sums are released: in every round of everybody's gradients; the epsilon is that of all together. What was read,"
    " shown and clicked, and how near news are to it, never leave the device."
)
# Chosen on train users: of a sample of MIND, learning from earlier days and ranking later ones, and of synthetic-news
# (docs/veil-news.md says what was seen beside them).
SETTLED = 80.0  # mean messages that all steps together come to where neither chance nor noise is in the way
AGREED = 0.07  # how much doubt, as below, costs one step of the reach


def devices(config: VeilConfig, problem: Problem) -> OwnImpressions:
    """What devices learn from: what their users were shown and clicked."""
    return OwnImpressions(pack_logs(_news(problem).impressions, len(problem.train), config.history))


def _news(problem: Problem) -> NewsData:
    if problem.news is None:
        raise ValueError("this problem has no impressions")
    if not judged(problem.news.impressions).any():
        raise BadInput(
            "veil has nothing to learn from: no train impression has both a click and an item without one; bring"
            " impressions with both"
        )
    return problem.news


def plan(config: VeilConfig, problem: Problem) -> Plan:
    """Put the parts together."""
    reading = reading_of(_news(problem).catalogue, config.titles)
    content = reading.read(_news(problem).catalogue)
    sizes = {SCALES: content.n_features, TASTE: content.appeal.shape[1], KINDS: len(content.rarity)}
    schema = Schema(tuple(Tensor(name, (size,), by_row=False) for name, size in sizes.items() if size))
    n_devices = int((devices(config, problem).rows.lengths() > 0).sum())
    mechanism = noisy_sum(
        replace(config.privacy, clip_norm=1.0),
        config.cohort,
        schema,
        rounds=problem.rounds,
        devices=n_devices,
        keeps_state=False,
    )
    in_round = config.people or config.cohort.among(n_devices)
    return Plan(
        schema=schema,
        start={tensor.name: np.zeros(tensor.shape, np.float32) for tensor in schema.tensors},
        learner=VeilNewsLearner(content),
        mechanism=mechanism,
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation="sum",
        server=ServerRate(rate=reach(mechanism, in_round, problem.rounds) / (problem.rounds * in_round)),
        ranker=VeilNewsRanker(reading, content, config.history),
        devices_at_once=250,
    )


def reach(mechanism: CohortSum, people: int, rounds: int) -> float:
    """How many mean messages all steps together come to: SETTLED, or less by how much the mean is in doubt.

    The mean message of N people is in doubt by who they happen to be, its squared error being 1 / N at most (messages
    are of length 1), and by the noise: P sigma^2 / N^2 over its P numbers, where sigma is that of one sum as good as
    all rounds together. Shrinking in proportion is what a Gaussian prior on the mean asks for.
    """
    sigma = mechanism.sigma / math.sqrt(rounds)
    doubt = 1.0 / people + mechanism.dimension * (sigma / people) ** 2
    return 1.0 / (1.0 / SETTLED + doubt / AGREED)


def guarantee(config: VeilConfig) -> Guarantee:
    """User-level over the whole run."""
    p = config.privacy
    return proven(p.epsilon, p.delta, config.cohort, SUMS, public=PUBLIC, keeps_state=False)
