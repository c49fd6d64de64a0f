"""Rounds of different weight: each has a bound of its own, fixed and public before the first, and all the same noise.

A round whose bound is c moves its sum by c when somebody comes or goes, and costs mu = c / sigma. All of a run cost
mu^2 = (c_1^2 + c_2^2 + ...) / sigma^2: Gaussian releases compose exactly, also where later rounds depend on earlier
sums. A round may be about some tensors only; of the others nothing is sent, added up or released.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Self, TypeVar

from veilrec.errors import BadInput
from veilrec.privacy.accounting.accountant import Rounds
from veilrec.privacy.checks import positive
from veilrec.privacy.events import ComposedEvent, Event
from veilrec.privacy.mechanisms.bounding import BadUpdate
from veilrec.privacy.mechanisms.updates import CohortSum, on_lattice
from veilrec.privacy.samplers import UNITS
from veilrec.privacy.sensitivity import rounded_sum_l2
from veilrec.updates import Round, Schema, Tensor, Uploads

Part = TypeVar("Part")


class ScheduledSum(CohortSum):
    """The noisy sum of a cohort, with a bound for every round.

    `noise_multiplier` is that of the round with the largest bound; `event()` is what that one costs.
    """

    name = "scheduled-sum"

    def __init__(
        self,
        *,
        schema: Schema,
        clip_norms: tuple[float, ...],
        noise_multiplier: float,
        taking_part: Rounds,
        delta: float,
    ) -> None:
        if len(clip_norms) != taking_part.rounds:
            raise BadInput(f"there are {len(clip_norms)} bounds for {taking_part.rounds} rounds: give one for each")
        positive(**{f"clip_norm_of_round_{number}": bound for number, bound in enumerate(clip_norms)})
        super().__init__(
            schema=schema,
            clip_norm=max(clip_norms),
            noise_multiplier=noise_multiplier,
            taking_part=taking_part,
            delta=delta,
        )
        self.clip_norms = clip_norms

    def _clip_norm(self, about: Round) -> float:
        """The bound of the round, whatever it says of itself; never more than it says."""
        own = self._bound_of(about.number)
        return own if about.clip_norm is None else min(own, about.clip_norm)

    def _bound_of(self, number: int) -> float:
        """Nothing is known of rounds beyond the last: they have the smallest bound, and are charged as the largest."""
        return self.clip_norms[number] if 0 <= number < len(self.clip_norms) else min(self.clip_norms)

    def _part(self, uploads: Uploads, about: Round) -> Uploads:
        return super()._part(only_of_round(uploads, about), about)

    def check(self, uploads: Uploads, about: Round) -> None:
        """Refuse also what is about another tensor than the round."""
        if only_of_round(uploads, about) is not uploads:
            raise BadUpdate(f"an update is about other tensors than the round: {', '.join(about.tensors or ())}")
        super().check(uploads, about)

    def multiplier_in(self, number: int) -> float:
        """Sigma over how far somebody moves the sum of a round, the lattice of the noise included."""
        return _multiplier(self._bound_of(number), self.taking_part, self.sigma, self.dimension)

    def event_in(self, about: Round) -> Event:
        """What a round costs by its own bound."""
        if not 0 <= about.number < len(self.clip_norms):
            return self.event()
        return self.taking_part.one_round(self.multiplier_in(about.number))

    def events(self, rounds: int) -> tuple[tuple[Event, int], ...]:
        """What the first so many rounds cost; those beyond the last as much as the most costly one."""
        return tuple(Counter(self.event_in(Round(number)) for number in range(rounds)).items())

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Three of ten people, drawn in both ways; and everybody. What is audited is the costliest round, the first."""
        schema = Schema((Tensor("rows", (2, 2), by_row=True), Tensor("layer", (3,), by_row=False)))
        ways = (
            Rounds(rounds=2, sampling="fixed", population=10, cohort=3),
            Rounds(rounds=2, sampling="poisson", population=10, cohort=3),
            Rounds(rounds=2, population=4, cohort=4),
        )
        return tuple(
            cls(schema=schema, clip_norms=(1.0, 0.25), noise_multiplier=0.5, taking_part=way, delta=1e-3)
            for way in ways
        )


def _multiplier(bound: float, people: Rounds, sigma: float, dimension: int) -> float:
    moved = rounded_sum_l2(people.moved(bound), people.population)
    return sigma / (moved + math.sqrt(dimension) * sigma / UNITS)


def run_event(clip_norms: tuple[float, ...], people: Rounds, noise_multiplier: float, dimension: int) -> Event:
    """What all rounds cost with this noise on the one with the largest bound: for choosing the noise."""
    moved = rounded_sum_l2(people.moved(max(clip_norms)), people.population)
    sigma = on_lattice(noise_multiplier, moved, dimension)
    counts = Counter(clip_norms).items()
    return ComposedEvent(
        tuple((people.one_round(_multiplier(bound, people, sigma, dimension)), count) for bound, count in counts)
    )


def only_of_round(uploads: Uploads, about: Round) -> Uploads:
    """The same messages without the tensors that the round is not about; the very same where there are none."""
    if about.tensors is None:
        return uploads
    named = (*uploads.tables, *uploads.dense, *uploads.entries, *uploads.factors)
    if all(about.concerns(name) for name in named):
        return uploads

    def kept(part: Mapping[str, Part]) -> dict[str, Part]:
        return {name: values for name, values in part.items() if about.concerns(name)}

    return replace(
        uploads,
        tables=kept(uploads.tables),
        dense=kept(uploads.dense),
        entries=kept(uploads.entries),
        factors=kept(uploads.factors),
    )
