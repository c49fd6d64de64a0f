"""Attacks on each mechanism: its worst pair, the most informative score, and the tests that can reach its claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from veilrec.audit.claims import (
    MANY,
    SOME,
    Attack,
    Guesses,
    OutcomeTable,
    Scores,
    Strategy,
    SupportEvent,
    bit_ratio,
    bit_response,
    draws_of,
    gaussian_attacks,
    k_ary_response,
    laplace_attacks,
    number_of_bits,
    padded_ratio,
    projection,
    scored,
)
from veilrec.core.arrays import Doubles, Offsets
from veilrec.core.errors import BadInput
from veilrec.core.schema import RoundSpec, from_vectors, to_vectors
from veilrec.privacy.events import SampledEvent
from veilrec.privacy.mechanisms.adaptive_clipping import AdaptiveSum
from veilrec.privacy.mechanisms.attention import PaddedAttention, PrivateAttention
from veilrec.privacy.mechanisms.base import Gaussian, Laplace, Mechanism
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.privacy.mechanisms.compression import LargestEntries, LowRank, SentEntries, SparseDeep
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.mechanisms.interests import EmbeddingNoise, InterestResponse, PooledInterest
from veilrec.privacy.mechanisms.local import (
    ElementwiseLaplace,
    NoisyMessage,
    RowwiseLaplace,
    UpdateLaplace,
    UpdateNoise,
)
from veilrec.privacy.mechanisms.reports import ItemHistogram, VoteReports
from veilrec.privacy.mechanisms.responses import (
    KaryResponse,
    Labelled,
    LabelPermutation,
    LabelResponse,
    RandomisedResponse,
)
from veilrec.privacy.mechanisms.schedules import TreeSum
from veilrec.privacy.mechanisms.sums import CohortSum, GainSum
from veilrec.privacy.randomness import Source, uniforms


def _update_noise(mechanism: UpdateNoise) -> tuple[Attack, ...]:
    first, second = mechanism.worst_pair()
    return gaussian_attacks(draws_of(mechanism), first, second, sigma=mechanism.scale, claim=mechanism.claimed_epsilon)


def _cohort_sum(mechanism: CohortSum | DistributedNoiseSum) -> tuple[Attack, ...]:
    first, second = (value.sum(axis=0) for value in mechanism.worst_pair())
    return _along(mechanism, first, second)


def _along(mechanism: Mechanism[Any, Any], first: Doubles, second: Doubles) -> tuple[Attack, ...]:
    """Attack Gaussian noise along a direction, with the sampling that the mechanism accounts for."""
    along = scored(draws_of(mechanism), projection(first, second))
    event = mechanism.event()
    return (Scores(along, MANY, "gaussian", sampled=event if isinstance(event, SampledEvent) else None),)


def _adaptive_sum(mechanism: AdaptiveSum) -> tuple[Attack, ...]:
    """One client moves the sum and the count; each part is weighted by its noise."""
    schema, about = mechanism.schema, RoundSpec(0)
    first, second = (
        to_vectors(mechanism.bound(from_vectors(value, schema), about), schema).sum(axis=0)
        for value in mechanism.worst_pair()
    )
    sigma = np.concatenate([np.full(tensor.size, mechanism.sigma_in(tensor.name, about)) for tensor in schema.tensors])
    return _along(mechanism, (first - second) / sigma**2, np.zeros(len(sigma)))


def _tree_sum(mechanism: TreeSum) -> tuple[Attack, ...]:
    """Sums of all nodes that contain the first round: each has independent noise."""
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


def _laplace(mechanism: Laplace | NoisyMessage | LowRank) -> tuple[Attack, ...]:
    first, second = mechanism.worst_pair()
    noisy = mechanism.inner if isinstance(mechanism, LowRank) else mechanism
    return laplace_attacks(draws_of(mechanism), first, second, scale=noisy.scale)


def attacks_on(mechanism: Mechanism[Any, Any]) -> tuple[Attack, ...]:
    """The attacks on a mechanism; raise BadInput for a mechanism without known attacks."""
    for kind, strategy in _STRATEGIES.items():
        if isinstance(mechanism, kind):
            return strategy(mechanism)
    raise BadInput(
        f"no attack is known on {type(mechanism).__name__}, so its claim cannot be audited: add one to"
        " audit/strategies.py"
    )


def _gaussian(mechanism: Gaussian) -> tuple[Attack, ...]:
    return gaussian_attacks(
        draws_of(mechanism), *mechanism.worst_pair(), sigma=mechanism.sigma, claim=mechanism.claimed_epsilon
    )


def _randomised_response(mechanism: RandomisedResponse) -> tuple[Attack, ...]:
    first, second = mechanism.worst_pair()
    keep = mechanism.keep_probability
    score = bit_ratio(first, second, one_if_one=keep, one_if_zero=1.0 - keep)
    attacks: list[Attack] = [Scores(scored(draws_of(mechanism), score), MANY // 4)]
    if mechanism.changed <= 4:
        moving = first != second
        one, other = (bit_response(tuple(value[moving]), mechanism.epsilon_per_bit) for value in (first, second))
        draw = scored(draws_of(mechanism), lambda outputs: number_of_bits(outputs[:, moving]))
        attacks.append(OutcomeTable(one, other, draw, SOME))
    if mechanism.changed == 1:
        attacks.append(Guesses(_guessed_bits(mechanism), MANY))
    return tuple(attacks)


def _guessed_bits(mechanism: RandomisedResponse) -> Callable[[int, Source], int]:
    """Every bit is a canary: the guess is the reported bit."""

    def correct(bits: int, source: Source) -> int:
        rows = bits // mechanism.length
        truth = (uniforms(source, rows * mechanism.length) < 0.5).reshape(rows, mechanism.length)
        return int(np.count_nonzero(mechanism.release(truth, source).value == truth))

    return correct


def _k_ary(mechanism: KaryResponse | InterestResponse) -> tuple[Attack, ...]:
    response = mechanism if isinstance(mechanism, KaryResponse) else mechanism.response
    first, second = (k_ary_response(response.categories, mechanism.claimed_epsilon, value=value) for value in (0, 1))
    draw = draws_of(mechanism)
    return OutcomeTable(first, second, draw, MANY), Scores(scored(draw, _first_or_second), MANY)


def _first_or_second(told: Offsets) -> Doubles:
    return np.asarray((told == 0).astype(np.float64) - (told == 1))


def _labels(mechanism: LabelPermutation | LabelResponse) -> tuple[Attack, ...]:
    draw = draws_of(mechanism)

    def rules_out_the_second(told: Labelled) -> Any:
        return ~(told.candidates == 1).any(axis=-1)

    return (
        Scores(scored(draw, lambda told: _first_or_second(told.label)), MANY),
        SupportEvent(scored(draw, rules_out_the_second), MANY // 4),
    )


def _attention(mechanism: PrivateAttention) -> tuple[Attack, ...]:
    noise, claim = mechanism.noise, mechanism.claimed_epsilon
    first, second = (clip_flat(value, noise.clip_norm) for value in mechanism.worst_pair())
    if noise.noise == "gaussian":
        return gaussian_attacks(draws_of(mechanism), first, second, sigma=noise.scale, claim=claim)
    return laplace_attacks(draws_of(mechanism), first, second, scale=noise.scale)


def _padded_attention(mechanism: PaddedAttention) -> tuple[Attack, ...]:
    noise, draw = mechanism.noise, draws_of(mechanism)
    empty = np.tile(mechanism.pad, (mechanism.slots, 1))
    first, second, pad = (
        clip_flat(mechanism.attention(history), noise.clip_norm) for history in (*mechanism.worst_pair(), empty)
    )
    if noise.noise == "gaussian":
        event = SampledEvent(0.0, 1.0 - mechanism.pad_probability, "padding")
        along = scored(draw, projection(first, second))
        return (Scores(along, 4 * MANY, "gaussian", sampled=event),)
    score = padded_ratio(
        first,
        second,
        pad,
        pad_probability=mechanism.pad_probability,
        log_density=lambda offsets: -np.abs(offsets).sum(axis=1) / noise.scale,
    )
    return (Scores(scored(draw, score), MANY),)


def _pooled_interest(mechanism: PooledInterest) -> tuple[Attack, ...]:
    first, second = (mechanism.pooled(history) for history in mechanism.worst_pair())
    return gaussian_attacks(draws_of(mechanism), first, second, sigma=mechanism.sigma, claim=mechanism.claimed_epsilon)


def _embedding_noise(mechanism: EmbeddingNoise) -> tuple[Attack, ...]:
    draw, claim = draws_of(mechanism), mechanism.claimed_epsilon
    first, second = mechanism.worst_pair()
    if mechanism.noise == "gaussian":
        return gaussian_attacks(draw, first, second, sigma=mechanism.scale, claim=claim)
    return laplace_attacks(draw, first, second, scale=mechanism.scale)


_STRATEGIES: dict[type, Strategy] = {
    UpdateNoise: _update_noise,
    ElementwiseLaplace: _laplace,
    RowwiseLaplace: _laplace,
    UpdateLaplace: _laplace,
    LowRank: _laplace,
    TreeSum: _tree_sum,
    AdaptiveSum: _adaptive_sum,  # before what it is made of
    CohortSum: _cohort_sum,
    DistributedNoiseSum: _cohort_sum,
    ItemHistogram: _histogram,
    VoteReports: _histogram,
    GainSum: _gain_sum,
    LargestEntries: _tells_where,
    SentEntries: _tells_where,
    SparseDeep: _tells_where,
    Gaussian: _gaussian,
    Laplace: _laplace,
    RandomisedResponse: _randomised_response,
    KaryResponse: _k_ary,
    InterestResponse: _k_ary,
    LabelPermutation: _labels,
    LabelResponse: _labels,
    PrivateAttention: _attention,
    PaddedAttention: _padded_attention,
    PooledInterest: _pooled_interest,
    EmbeddingNoise: _embedding_noise,
}
