"""Reports on which items a client has: one bit per item, and at most some items of each client in a noisy histogram.

DP-SUB (Priv-FedMF-Sub, Algorithm 1) asks for randomised bits, which trust nobody and cover a click. A histogram trusts
the server with the bits, covers a user, and needs 300 times less noise.

Updates that a client makes of nothing but what it has already told under local noise.

Votes: everybody's items, so that nobody's count for more than one vote; what is popular, before the first round.

A client tells its items as bits, and the trusted server adds 1 / sqrt(n) for each of its n items. All votes of one
person then have L2 norm 1 at most, and move the sums by 1 when the person is added or removed. Nobody's votes are
negative, so that two people's are at an angle of 90 degrees at most: replacing one moves the sums by sqrt(2).

Votes are whole numbers of 2^-24, rounded down: their sum is the same in whichever order they come, it has no rounding
of its own for up to 2^29 people, and the norm of a person's votes is at most 1 exactly.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np

from veilrec.core import rng
from veilrec.core.arrays import Bools, Doubles, Indices, Offsets
from veilrec.core.csr import Csr, without_repeats
from veilrec.core.jit import jit
from veilrec.core.schema import ClientUpdates, RoundSpec, Schema
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.checks import bits, positive, probability, whole
from veilrec.privacy.events import ComposedEvent, Event, GaussianEvent, NonPrivateEvent
from veilrec.privacy.guarantee import ADJACENCIES, Adjacency
from veilrec.privacy.mechanisms import base
from veilrec.privacy.mechanisms.attention import AttentionNoise
from veilrec.privacy.mechanisms.base import Calibration, Released, Sensitivity, SummedOnce
from veilrec.privacy.mechanisms.clipping import BadUpdate, refuse_longer, update_norms
from veilrec.privacy.mechanisms.responses import LabelPerturbation, RandomisedResponse
from veilrec.privacy.mechanisms.shares import DistributedNoise
from veilrec.privacy.mechanisms.sums import ClippedWhole, with_noise
from veilrec.privacy.randomness import Source

SourceOf = Callable[[int], Source]  # the source of a client's own randomness, by its number


class ItemReports(SummedOnce[Bools, Bools]):
    """How clients tell which items they have: what one sends, and what is done to the counts."""

    length: int  # items
    keep_probability: float  # that a bit was told as it is
    step = 1.0
    largest = 1  # none of the numbers is below 0

    @property
    def masked_length(self) -> int:  # type: ignore[override]
        """One number for every item."""
        return self.length

    @property
    def under_masks(self) -> bool:
        """Whether secure sums hide such reports; those that trust nobody may be seen one by one, and are."""
        return self.trust != "nobody"

    @abstractmethod
    def report(self, own: Bools, source: Source) -> Released[Bools]:
        """What leaves a client, and what it costs."""

    @abstractmethod
    def count(self, data: Csr, clients: Offsets, *, seed: int, period: int) -> Offsets:
        """How many simulated clients report each item; a client's report depends on (seed, period) alone."""

    def check(self, told: Bools) -> None:
        """Refuse a report that no client within its bounds can have sent."""

    def weigh(self, value: Bools) -> Offsets:
        """What a report adds to the counts, in steps: one for every item that it names."""
        return value.astype(np.int64)

    def protect(self, total: Offsets, source: Source) -> Doubles:
        """The counts as they may be used."""
        return total.astype(np.float64)

    def count_each(self, data: Csr, clients: Offsets, source_of: SourceOf, share_of: SourceOf) -> Offsets:
        """Counts from reports that every client makes for itself, with its share of the noise where it adds one."""
        counts = np.zeros(self.length, np.int64)
        for row, client in enumerate(clients.tolist()):
            own = np.zeros(self.length, np.bool_)
            own[data.row(row)] = True
            counts += self.masked(self.report(own, source_of(client)).value, share_of(client))
        return counts


class RandomisedReports(ItemReports):
    """Randomised bits (eq. 7): noise on the client."""

    name = "randomised-reports"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven", "as-published")

    def __init__(self, response: RandomisedResponse) -> None:
        self._set_calibration(response.calibration)
        self.response = response
        self.length = response.length
        self.keep_probability = response.keep_probability
        base.take_terms(self, response)

    def report(self, own: Bools, source: Source) -> Released[Bools]:
        """The bits, some of them turned round."""
        return self.response.release(own, source)

    def count(self, data: Csr, clients: Offsets, *, seed: int, period: int) -> Offsets:
        """Counts of randomised bits, none of which is formed."""
        counts = np.zeros(self.length, np.int64)
        flips_below = np.uint64(min(int((1.0 - self.keep_probability) * 2.0**64), 2**64 - 1))
        _count_randomised(data.offsets, data.items, clients, flips_below, seed, period, counts)
        return counts

    def _perturb(self, value: Bools, source: Source) -> Bools:
        return self.response.release(value, source).value

    def event(self) -> Event:
        """That of the bits."""
        return self.response.event()

    def worst_pair(self) -> tuple[Bools, Bools]:
        """That of the bits."""
        return self.response.worst_pair()


class _NoisyCounts(ItemReports):
    """Counts with Gaussian noise, once in a run: of a trusted server, or of the clients in shares."""

    scope, trust = "whole run", "server"
    keep_probability = 1.0
    sigma: float  # of the noise on the counts of everybody

    def _calibrate(
        self, squared: int, epsilon: float, delta: float, adjacency: Adjacency, carried: DistributedNoise | None
    ) -> None:
        """Choose the noise for counts that somebody who is added or removed moves by the root of `squared`."""
        positive(epsilon=epsilon)
        probability(delta=delta)
        self.unit, self.adjacency, self._most = "user", adjacency, squared
        people = 1 if adjacency == "add-remove" else 2
        self.sensitivity = Sensitivity(math.sqrt(people * squared), "L2")
        self.claimed_epsilon, self.claimed_delta = epsilon, delta
        self.sigma = self._share_out(epsilon, delta, carried)
        self._event = GaussianEvent(mu_for(epsilon, delta))  # every report of a simulation asks for it

    def protect(self, total: Offsets, source: Source) -> Doubles:
        """Noise on every count."""
        self._refuse_shares()
        return with_noise(total.astype(np.float64) * self.step, self.sigma, source)

    def event(self) -> Event:
        """Gaussian, the lattice included."""
        return self._event

    def delta(self, epsilon: float) -> float:
        """The exact profile, with the sampler's errors."""
        return self._profile(self.sigma, epsilon)

    def worst_pair(self) -> tuple[Bools, Bools]:
        """One person with as many items as count (one vote: a single one), and another with others (or nobody)."""
        first, second = np.zeros((1, self.length), np.bool_), np.zeros((1, self.length), np.bool_)
        first[0, : self._most] = True
        second[0, -self._most :] = self.adjacency == "replace-one"
        return first, second


class ItemHistogram(_NoisyCounts):
    """One histogram over everybody: at most `max_items` of each client, Gaussian noise on the counts.

    A user moves the counts by sqrt(max_items) when added or removed, by sqrt(2 max_items) when replaced.
    """

    name = "item-histogram"

    def __init__(
        self,
        *,
        length: int,
        max_items: int,
        epsilon: float,
        delta: float,
        adjacency: Adjacency,
        carried: DistributedNoise | None = None,
    ) -> None:
        whole(length=length, max_items=max_items)
        self.length, self.max_items = length, max_items
        self._calibrate(max_items, epsilon, delta, adjacency, carried)

    def report(self, own: Bools, source: Source) -> Released[Bools]:
        """At most so many of a client's items, at random."""
        base.require_complete(self)
        items = np.flatnonzero(bits(self.length, own=own))
        told = np.zeros(self.length, np.bool_)
        if len(items) > self.max_items:
            items = items[np.argsort(source.words(len(items)))[: self.max_items]]
        told[items] = True
        return Released(told, self.event())

    def count(self, data: Csr, clients: Offsets, *, seed: int, period: int) -> Offsets:
        """Counts of such reports, none of which is formed."""
        counts = np.zeros(self.length, np.int64)
        _count_few(data.offsets, data.items, clients, self.max_items, seed, period, counts)
        return counts

    def check(self, told: Bools) -> None:
        """Refuse a report on more items than anybody may have in the histogram."""
        if int(told.sum()) > self.max_items:
            raise BadUpdate(f"a report names {int(told.sum())} items: this one takes at most {self.max_items}")

    def _perturb(self, value: Bools, source: Source) -> Doubles:  # type: ignore[override]
        """The noisy counts over people `[n, length]`."""
        people = bits(self.length, value=value).reshape(-1, self.length)
        told = np.zeros((len(people), self.length), np.int64)
        for row, own in enumerate(people):
            told[row] = self.report(own, source).value
        return np.asarray(self._released(told.sum(axis=0), 1, source)[0])

    def _perturb_many(self, value: Bools, count: int, source: Source) -> Doubles:  # type: ignore[override]
        """Many histograms over the same people; where nobody's items have to be chosen, only the noise differs."""
        people = bits(self.length, value=value).reshape(-1, self.length)
        if (people.sum(axis=1) > self.max_items).any():
            return np.stack([self._perturb(people, source) for _ in range(count)])
        told = np.array([self.report(own, source).value for own in people])
        return self._released(told.sum(axis=0), count, source)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Two of six items a person, in both adjacencies; and with noise of five clients, of whom one adds none."""
        carried = (None, None, DistributedNoise(5, silent=0.2))
        return tuple(
            cls(length=6, max_items=2, epsilon=1.0, delta=1e-6, adjacency=way, carried=noise)
            for way, noise in zip((*ADJACENCIES, "add-remove"), carried, strict=True)
        )


@jit
def _count_randomised(
    offsets: Offsets, items: Indices, clients: Offsets, flips_below: np.uint64, seed: int, period: int, counts: Offsets
) -> None:
    own = np.full(len(counts), -1, np.int64)
    for row in range(len(clients)):
        for entry in range(offsets[row], offsets[row + 1]):
            own[items[entry]] = row
        start = rng.stream(seed, rng.REPORT, period, clients[row])
        for item in range(len(counts)):
            turned = rng.word(start, item) < flips_below
            counts[item] += (own[item] == row) != turned


@jit
def _count_few(
    offsets: Offsets, items: Indices, clients: Offsets, most: int, seed: int, period: int, counts: Offsets
) -> None:
    for row in range(len(clients)):
        own = items[offsets[row] : offsets[row + 1]].copy()
        start = rng.stream(seed, rng.REPORT, period, clients[row])
        for j in range(min(most, len(own))):
            pick = j + rng.below(rng.word(start, j), len(own) - j)
            own[j], own[pick] = own[pick], own[j]
            counts[own[j]] += 1


class MadeOfReports(ClippedWhole):
    """The attention and the label of some impressions are told with noise; the update is computed from these alone.

    So the update costs what they cost, whatever is done with them, and the clip norm only keeps it from harming the
    sum. The unit is a user, whose whole history and every click may change; what the user was shown stays.
    """

    name = "made-of-reports"

    def __init__(
        self, *, schema: Schema, attention: AttentionNoise, labels: LabelPerturbation, samples: int, clip_norm: float
    ) -> None:
        positive(clip_norm=clip_norm)
        whole(samples=samples)
        self.unit, self.adjacency = "user", "replace-one"
        self.schema, self.attention, self.labels = schema, attention, labels
        self.samples, self.clip_norm = samples, clip_norm
        self.sensitivity = attention.sensitivity
        self.claimed_epsilon, self.claimed_delta = epsilon_of(self.event(), 0.0), 0.0

    def check(self, updates: ClientUpdates, spec: RoundSpec) -> None:
        """Refuse an update that is longer than the bound: it would harm the sum."""
        refuse_longer(update_norms(updates), self.clip_norm)

    def event(self) -> Event:
        """An attention vector and a label for every impression of a message."""
        return ComposedEvent(((self.attention.event(), self.samples), (self.labels.event(), self.samples)))


_WHOLE_VOTE = 2**24


@lru_cache(maxsize=8)
def vote_sizes(most: int) -> Offsets:
    """What each item counts, in steps, of somebody with 0 to `most` of them: all n together at most one vote."""
    sizes = np.array([0, *(math.isqrt(_WHOLE_VOTE**2 // n) for n in range(1, most + 1))], np.int64)
    sizes.flags.writeable = False
    return sizes


class VoteReports(_NoisyCounts):
    """One vote for each person, shared among the items of the person; Gaussian noise on the sums."""

    name = "vote-reports"
    step = 1.0 / _WHOLE_VOTE
    largest = _WHOLE_VOTE  # of somebody with one item

    def __init__(
        self,
        *,
        length: int,
        epsilon: float,
        delta: float,
        adjacency: Adjacency,
        carried: DistributedNoise | None = None,
    ) -> None:
        whole(length=length)
        self.length = length
        self._calibrate(1, epsilon, delta, adjacency, carried)

    def report(self, own: Bools, source: Source) -> Released[Bools]:
        """A client's items, all of them."""
        base.require_complete(self)
        return Released(bits(self.length, own=own), self.event())

    def weigh(self, value: Bools) -> Offsets:
        """1 / sqrt(n) for each of n items, in steps."""
        size = vote_sizes(self.length)[value.sum(axis=-1)]
        return np.asarray(value * size[..., np.newaxis])

    def count(self, data: Csr, clients: Offsets, *, seed: int, period: int) -> Offsets:
        """Sums of votes; nothing is drawn."""
        once = without_repeats(data, self.length)
        counts = np.zeros(self.length, np.int64)
        lengths = once.lengths()
        np.add.at(counts, once.items, np.repeat(vote_sizes(self.length)[lengths], lengths))
        return counts

    def _perturb(self, value: Bools, source: Source) -> Doubles:  # type: ignore[override]
        """The noisy votes of people `[n, length]`."""
        return np.asarray(self._released(self._votes_of(value), 1, source)[0])

    def _perturb_many(self, value: Bools, count: int, source: Source) -> Doubles:  # type: ignore[override]
        """Many releases over the same people: only the noise differs."""
        return self._released(self._votes_of(value), count, source)

    def _votes_of(self, people: Bools) -> Offsets:
        told = bits(self.length, value=people).reshape(-1, self.length)
        return np.asarray(self.weigh(told).sum(axis=0))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Six items, in both adjacencies, of the server's noise and of that of five clients, of whom one is missing."""
        return tuple(
            cls(length=6, epsilon=1.0, delta=1e-6, adjacency=way, carried=noise)
            for noise in (None, DistributedNoise(5, lost=0.2))
            for way in ADJACENCIES
        )


class PlainVotes(VoteReports):
    """Votes without noise: for methods whose guarantee says that their messages are not private."""

    name = "votes-in-the-clear"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("as-published",)
    calibration: Calibration = "as-published"

    def __init__(self, *, length: int) -> None:
        whole(length=length)
        self.length = length
        self.unit, self.adjacency = "user", "replace-one"
        self.sensitivity = Sensitivity(math.sqrt(2.0), "L2")
        self.claimed_epsilon, self.claimed_delta = math.inf, 1.0
        self.sigma = 0.0

    def protect(self, total: Offsets, source: Source) -> Doubles:
        """The votes as they are."""
        return total.astype(np.float64) * self.step

    def event(self) -> Event:
        """No epsilon is finite."""
        return NonPrivateEvent()

    def delta(self, epsilon: float) -> float:
        """Nothing is hidden at any epsilon."""
        return 1.0
