"""What DP-PrivRec promises: proven, with a bound that is learnt before clipping; or as its Algorithm 2 prints it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from veilrec.errors import BadInput
from veilrec.methods.private import (
    ONLY_THE_MODEL,
    SERVER_SEES,
    SIMULATED,
    PrivacySettings,
    adaptive_sum,
    proven,
    taking_part,
    with_learnt_bound,
)
from veilrec.plan import Plan
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.accounting.published import paper_convention
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.events import Event, repeated
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.adaptive import first_bound
from veilrec.privacy.mechanisms.adaptive_published import PublishedAdaptiveSum
from veilrec.server.agenda import LearntBound
from veilrec.server.bound import PublishedBound
from veilrec.server.cohorts import CohortSettings
from veilrec.updates import Schema, with_bound

FLAWS = (
    "The count is taken after clipping, where it is 1 for everybody: the bound falls by alpha_4 (1 - gamma) a round, "
    "and below 0, which turns updates round."
)
OVERCHARGED = "the paper counts a release for every device of a round, where a round is one"
NOISE_OUTSIDE = "the noise is added outside of alpha_3, so that the noise multiplier of the updates is z / alpha_3"
BOUND_IS_RELEASED = "The bound of every round is released with the model: it follows from counts with noise."


@dataclass(frozen=True, kw_only=True)
class BoundSettings:
    """How the bound is learnt; what only the printed form has is of no use in the proven one."""

    quantile: float = 0.5  # gamma: the share of updates that the bound should leave alone
    rate: float = 0.2  # proven: of the geometric step; as published: alpha_4
    noise_multiplier: float = 1.0  # as published: z
    count_share: float = 0.7  # as published: h, of the round's loss, for the count

    def __post_init__(self) -> None:
        probability(quantile=self.quantile, count_share=self.count_share)
        positive(rate=self.rate, noise_multiplier=self.noise_multiplier)


def proven_plan(
    plan: Plan,
    privacy: PrivacySettings,
    bound: BoundSettings,
    *,
    devices: int,
    keeps_state: bool,
    before: Event | None = None,
    numbers_before: int = 0,
) -> Plan:
    """A plan that knows nothing of a bound, with one that is learnt; its aggregation is a plain sum."""
    mechanism = adaptive_sum(
        privacy,
        plan.cohort,
        plan.schema.learnt,
        rounds=plan.rounds,
        devices=devices,
        keeps_state=keeps_state,
        before=before,
        numbers_before=numbers_before,
    )
    return with_learnt_bound(plan, mechanism, quantile=bound.quantile, rate=bound.rate)


def proven_guarantee(privacy: PrivacySettings, cohort: CohortSettings, *caveats: str, keeps_state: bool) -> Guarantee:
    """User-level over the whole run."""
    return proven(privacy.epsilon, privacy.delta, cohort, *caveats, BOUND_IS_RELEASED, keeps_state=keeps_state)


def published_sum(
    privacy: PrivacySettings, bound: BoundSettings, plan: Plan, schema: Schema, *, devices: int, keeps_state: bool
) -> PublishedAdaptiveSum:
    """Algorithm 2's noise: `privacy.clip_norm` is the first bound; epsilon follows from z, and is not asked for."""
    if plan.cohort.sampling != "fixed" or plan.aggregation != "mean" or plan.server.optimiser != "sgd":
        raise BadInput(
            "Algorithm 2 is about means of cohorts of one size, and plain steps: use --set cohort.sampling=fixed, "
            "aggregation=mean and server.optimiser=sgd"
        )
    people = taking_part(plan.cohort, plan.rounds, devices, "user", keeps_state=keeps_state)
    return PublishedAdaptiveSum(
        schema=with_bound(schema.learnt),
        clip_norm=privacy.clip_norm,
        noise_multiplier=bound.noise_multiplier,
        count_share=bound.count_share,
        server_rate=plan.server.rate,
        taking_part=people,
        delta=privacy.delta,
    )


def published_plan(
    plan: Plan, privacy: PrivacySettings, bound: BoundSettings, *, devices: int, keeps_state: bool
) -> Plan:
    """A plan that knows nothing of a bound, with Algorithm 2's."""
    mechanism = published_sum(privacy, bound, plan, plan.schema, devices=devices, keeps_state=keeps_state)
    rule = PublishedBound(cohort=plan.cohort.among(devices), quantile=bound.quantile, rate=bound.rate)
    return replace(
        plan,
        schema=with_bound(plan.schema),
        start={**plan.start, **first_bound(privacy.clip_norm)},
        mechanism=mechanism,
        agenda=LearntBound(plan.agenda),
        bound_rule=rule,
    )


def published_guarantee(plan: Plan, bound: BoundSettings, *caveats: str, devices: int) -> Guarantee:
    """The paper's own account of a plan of `published_plan`, and beside it what its rounds cost."""
    mechanism, cohort = plan.mechanism, plan.cohort.among(devices)
    delta, run = mechanism.claimed_delta, repeated(mechanism.event(), plan.rounds)
    claimed = paper_convention(
        devices, cohort, delta, releases=plan.rounds * cohort, noise_multiplier=bound.noise_multiplier
    )
    notes = (OVERCHARGED,) if plan.server.rate == 1.0 else (OVERCHARGED, NOISE_OUTSIDE)
    return Guarantee(
        basis="as published",
        unit="user",
        adjacency="replace-one",
        epsilon=claimed,
        delta=delta,
        scope="whole run",
        trust="server",
        caveats=(*caveats, FLAWS, SERVER_SEES, ONLY_THE_MODEL, SIMULATED),
        honest_epsilon=epsilon_of(run, delta),
        honest_delta=delta,
        honest_note="; ".join(notes),
        event=run,
    )
