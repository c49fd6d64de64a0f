"""How the mechanisms on updates and reports are attacked."""

from __future__ import annotations

from typing import Any

import numpy as np

from veilrec._arrays import Doubles
from veilrec.privacy.audit.attacks import Attack, Scores, SupportEvent
from veilrec.privacy.audit.scores import (
    MANY,
    SOME,
    Strategy,
    draws_of,
    gaussian_attacks,
    laplace_attacks,
    projection,
    scored,
)
from veilrec.privacy.events import SampledEvent
from veilrec.privacy.mechanisms.adaptive import AdaptiveSum
from veilrec.privacy.mechanisms.compressed import LargestEntries, LowRank, SentEntries, SparseDeep
from veilrec.privacy.mechanisms.gains import GainSum
from veilrec.privacy.mechanisms.messages import (
    ElementwiseLaplace,
    NoisyMessage,
    RowwiseLaplace,
    UpdateLaplace,
    UpdateNoise,
)
from veilrec.privacy.mechanisms.reports import ItemHistogram
from veilrec.privacy.mechanisms.shared import SharedSum
from veilrec.privacy.mechanisms.tree import TreeSum
from veilrec.privacy.mechanisms.updates import CohortSum
from veilrec.privacy.mechanisms.votes import VoteReports
from veilrec.updates import Round, from_vectors, to_vectors


def _gaussian(mechanism: UpdateNoise) -> tuple[Attack, ...]:
    first, second = mechanism.worst_pair()
    return gaussian_attacks(draws_of(mechanism), first, second, sigma=mechanism.scale, claim=mechanism.claimed_epsilon)


def _laplace(mechanism: NoisyMessage) -> tuple[Attack, ...]:
    first, second = mechanism.worst_pair()
    return laplace_attacks(draws_of(mechanism), first, second, scale=mechanism.scale)


def _low_rank(mechanism: LowRank) -> tuple[Attack, ...]:
    first, second = mechanism.worst_pair()
    return laplace_attacks(draws_of(mechanism), first, second, scale=mechanism.inner.scale)


def _cohort_sum(mechanism: CohortSum | SharedSum) -> tuple[Attack, ...]:
    first, second = (value.sum(axis=0) for value in mechanism.worst_pair())
    along = scored(draws_of(mechanism), projection(first, second))
    event = mechanism.event()
    return (Scores(along, MANY, "gaussian", sampled=event if isinstance(event, SampledEvent) else None),)


def _adaptive_sum(mechanism: AdaptiveSum) -> tuple[Attack, ...]:
    """One person moves the sum and the count; each part is weighed by its noise."""
    schema, about = mechanism.schema, Round(0)
    first, second = (
        to_vectors(mechanism.bound(from_vectors(value, schema), about), schema).sum(axis=0)
        for value in mechanism.worst_pair()
    )
    sigma = np.concatenate([np.full(tensor.size, mechanism.sigma_in(tensor.name, about)) for tensor in schema.tensors])
    along = scored(draws_of(mechanism), projection((first - second) / sigma**2, np.zeros(len(sigma))))
    event = mechanism.event()
    return (Scores(along, MANY, "gaussian", sampled=event if isinstance(event, SampledEvent) else None),)


def _tree_sum(mechanism: TreeSum) -> tuple[Attack, ...]:
    """The sums of all nodes that the first round is in, from the sums of the rounds: each has noise of its own."""
    first, second = (value.sum(axis=0) for value in mechanism.worst_pair())
    nodes = [2**level for level in range(mechanism.steps.bit_length())]  # they end at these rounds, and begin at 1
    times = [sum(number < end for end in nodes) for number in range(mechanism.steps)]  # that a round is in one
    weights = np.concatenate([count * (first - second) for count in times])
    along = scored(draws_of(mechanism), projection(weights, np.zeros(len(weights))))
    return (Scores(along, MANY, "gaussian"),)


def _histogram(mechanism: ItemHistogram | VoteReports) -> tuple[Attack, ...]:
    first, second = (mechanism.weigh(people).sum(axis=0) * mechanism.step for people in mechanism.worst_pair())
    return gaussian_attacks(draws_of(mechanism), first, second, sigma=mechanism.sigma, claim=mechanism.claimed_epsilon)


def _gain_sum(mechanism: GainSum) -> tuple[Attack, ...]:
    first, second = (np.atleast_1d(gains.sum()) for gains in mechanism.worst_pair())
    return gaussian_attacks(draws_of(mechanism), first, second, sigma=mechanism.sigma, claim=mechanism.claimed_epsilon)


def _tells_where(mechanism: LargestEntries | SentEntries | SparseDeep) -> tuple[Attack, ...]:
    def sends_the_first(updates: Doubles) -> Any:
        return updates[:, 0] != 0.0

    return (SupportEvent(scored(draws_of(mechanism), sends_the_first), SOME),)


OF_UPDATES: dict[type, Strategy] = {
    UpdateNoise: _gaussian,
    ElementwiseLaplace: _laplace,
    RowwiseLaplace: _laplace,
    UpdateLaplace: _laplace,
    LowRank: _low_rank,
    TreeSum: _tree_sum,
    AdaptiveSum: _adaptive_sum,  # before what it is made of
    CohortSum: _cohort_sum,
    SharedSum: _cohort_sum,
    ItemHistogram: _histogram,
    VoteReports: _histogram,
    GainSum: _gain_sum,
    LargestEntries: _tells_where,
    SentEntries: _tells_where,
    SparseDeep: _tells_where,
}
