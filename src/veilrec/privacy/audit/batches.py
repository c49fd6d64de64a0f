"""Many independent messages about one input of a worst pair, made at once.

Most mechanisms take a batch themselves. Those that take one person at a time are restated here, call for call: from the
same random words a batch of one is their release bit for bit, and a test holds them to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from veilrec._arrays import Bools, Doubles
from veilrec.privacy.audit.attacks import Side
from veilrec.privacy.mechanism import Mechanism
from veilrec.privacy.mechanisms.adaptive import AdaptiveSum
from veilrec.privacy.mechanisms.attention import PaddedAttention, decompose
from veilrec.privacy.mechanisms.bits import happens
from veilrec.privacy.mechanisms.clipping import clip_flat, device_norms
from veilrec.privacy.mechanisms.interests import PooledInterest
from veilrec.privacy.mechanisms.updates import CohortSum
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import UNITS, add_gaussian, lattice_gaussian, to_lattice

Draw = Callable[[Side, int, Source], Any]


def batch(mechanism: Mechanism[Any, Any]) -> Draw:
    """Of a mechanism that takes a leading dimension."""
    pair = mechanism.worst_pair()

    def draw(side: Side, count: int, source: Source) -> Any:
        value = np.asarray(pair[side])
        return mechanism.release(np.broadcast_to(value, (count, *value.shape)), source).value

    return draw


def padded_batch(mechanism: PaddedAttention) -> Draw:
    """Of padded attention; each distinct mask is encoded once."""
    pair = mechanism.worst_pair()

    def draw(side: Side, count: int, source: Source) -> Doubles:
        masks = happens(mechanism.pad_probability, (count, mechanism.slots, 1), source)
        numbers = masks[:, :, 0] @ (1 << np.arange(mechanism.slots))  # of the mask, by its bits
        attention = np.empty((2**mechanism.slots, len(mechanism.basis_vectors)))
        for number in np.flatnonzero(np.bincount(numbers)):
            mask = masks[np.argmax(numbers == number)]
            user = mechanism.encode(np.where(mask, mechanism.pad, pair[side]))
            attention[number] = decompose(user, mechanism.basis_vectors)
        return mechanism.noise.add(attention[numbers], source)

    return draw


def pooled_centres(mechanism: PooledInterest) -> tuple[Doubles, Doubles]:
    """What noise is added to, for both inputs."""
    first, second = (
        clip_flat(clicks, mechanism.clip_norm).sum(axis=0) @ mechanism.projection.T / mechanism.slots
        for clicks in mechanism.worst_pair()
    )
    return first, second


def pooled_batch(mechanism: PooledInterest) -> Draw:
    """Of pooled interests."""
    centres = pooled_centres(mechanism)

    def draw(side: Side, count: int, source: Source) -> Doubles:
        wanted = np.broadcast_to(centres[side], (count, centres[side].size))
        return add_gaussian(wanted, sigma=mechanism.sigma, source=source)

    return draw


def cohort_batch(mechanism: CohortSum) -> Draw:
    """Of the noisy sum over a cohort that is drawn anew for every message."""
    clipped = [clip_flat(people, mechanism.clip_norm) for people in mechanism.worst_pair()]

    def draw(side: Side, count: int, source: Source) -> Doubles:
        people = len(clipped[side])
        if mechanism.sampling == "fixed":
            members = _fixed_cohorts(count, people, mechanism.cohort, source)
        else:
            members = happens(mechanism.cohort / mechanism.population, (count, people), source)
        return _noisy_sums(members, clipped[side], mechanism.sigma, source)

    return draw


def adaptive_batch(mechanism: AdaptiveSum) -> Draw:
    """Of rounds with an adaptive bound, `[n, dimension + 1]`: the noisy sum, and the noisy share below the bound."""
    pair = mechanism.worst_pair()

    def draw(side: Side, count: int, source: Source) -> Doubles:
        members = _fixed_cohorts(count, mechanism.population, mechanism.cohort, source)
        below = device_norms((), [pair[side]]) <= mechanism.clip_norm
        counts = (members & below).sum(axis=1, keepdims=True).astype(np.float64)
        noisy = add_gaussian(counts, sigma=mechanism.count_standard_deviation, source=source)
        clipped = clip_flat(pair[side], mechanism.clip_norm)
        totals = _noisy_sums(members, clipped, mechanism.sigma, source)
        return np.concatenate((totals, noisy / mechanism.cohort), axis=1)

    return draw


def _fixed_cohorts(count: int, people: int, cohort: int, source: Source) -> Bools:
    drawn = np.argpartition(source.words(count * people).reshape(count, people), cohort - 1, axis=1)
    members = np.zeros((count, people), np.bool_)
    np.put_along_axis(members, drawn[:, :cohort], True, axis=1)
    return members


def _noisy_sums(members: Bools, clipped: Doubles, sigma: float, source: Source) -> Doubles:
    grid = sigma / UNITS
    noise = lattice_gaussian(source, len(members) * clipped.shape[1]).reshape(len(members), -1)
    return np.asarray((members.astype(np.int64) @ to_lattice(clipped, grid) + noise) * grid)
