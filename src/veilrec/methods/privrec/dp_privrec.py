"""DP-PrivRec: PrivRec with user-level differential privacy and adaptive clipping (Wang et al. 2021, Algorithm 2).

| paper | here |
|---|---|
| S, clipping bound: its first value | `privacy.clip_norm` |
| gamma, quantile of unclipped updates | `bound.quantile` |
| alpha_4, step of the clip norm | `bound.rate` |
| z, noise multiplier | `bound.noise_multiplier` |
| h, share of the loss for the count | `bound.count_share` |
| alpha_3, server step | `server.rate` |

proven: the count of updates within the clip norm is taken before clipping, the clip norm moves geometrically (Andrew et
al. 2021), the noise is scaled by the server's rate, and accounting is that of the sampling: Poisson, cohorts of a fixed
size, or DP-FTRL (cohort.sampling=cyclic) where nobody can be trusted to sample. The votes for popularity are within the
budget. as-published: Algorithm 2 as printed; epsilon follows from z.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.core.schema import with_bound
from veilrec.methods.base import LearningTrial, Method, Problem, read_presets
from veilrec.methods.private import (
    ONLY_THE_MODEL,
    SERVER_SEES,
    PrivacySettings,
    adaptive_sum,
    as_published,
    clients_with_data,
    cyclic,
    private_votes,
    proven,
    taking_part,
    tree_sum,
    with_learnt_bound,
    with_public_divisor,
)
from veilrec.methods.privrec import common
from veilrec.methods.privrec.common import WITH_FEATURES, MetaConfig
from veilrec.methods.privrec.privrec import READINGS
from veilrec.privacy.accounting.accountant import epsilon_of, paper_convention
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.events import repeated
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.base import Calibration
from veilrec.privacy.mechanisms.schedules import PublishedAdaptiveSum, first_bound
from veilrec.server.round_specs import CohortSettings, LearntBound, PopularityTensor
from veilrec.server.server import PublishedClipping

FLAWS = (
    "The count is taken after clipping, where it is 1 for everybody: the bound falls by alpha_4 (1 - gamma) a round, "
    "and below 0, which turns updates round."
)
OVERCHARGED = "the paper counts a release for every client of a round, where a round is one"
NOISE_OUTSIDE = "the noise is added outside of alpha_3, so that the noise multiplier of the updates is z / alpha_3"
BOUND_IS_RELEASED = "The bound of every round is released with the model: it follows from counts with noise."


@dataclass(frozen=True, kw_only=True)
class BoundSettings:
    """Adaptive clipping; settings marked as published have no effect in the proven form."""

    quantile: float = 0.5  # gamma: the share of updates that the bound should leave alone
    rate: float = 0.2  # proven: of the geometric step; as published: alpha_4
    noise_multiplier: float = 1.0  # as published: z
    count_share: float = 0.7  # as published: h, of the round's loss, for the count

    def __post_init__(self) -> None:
        probability(quantile=self.quantile, count_share=self.count_share)
        positive(rate=self.rate, noise_multiplier=self.noise_multiplier)


def published_plan(
    plan: Plan, privacy: PrivacySettings, bound: BoundSettings, *, clients: int, keeps_state: bool
) -> Plan:
    """Add the adaptive clipping of Algorithm 2, as printed, to a plan; epsilon follows from z and is no setting."""
    if plan.cohort.sampling != "fixed" or plan.aggregation != "mean" or plan.server.optimiser != "sgd":
        raise BadInput(
            "Algorithm 2 is about means of cohorts of one size, and plain steps: use --set cohort.sampling=fixed, "
            "aggregation=mean and server.optimiser=sgd"
        )
    mechanism = PublishedAdaptiveSum(
        schema=with_bound(plan.schema.learnt),
        clip_norm=privacy.clip_norm,
        noise_multiplier=bound.noise_multiplier,
        count_share=bound.count_share,
        server_rate=plan.server.rate,
        taking_part=taking_part(plan.cohort, plan.rounds, clients, "user", keeps_state=keeps_state),
        delta=privacy.delta,
    )
    rule = PublishedClipping(cohort=plan.cohort.among(clients), quantile=bound.quantile, rate=bound.rate)
    return replace(
        plan,
        schema=with_bound(plan.schema),
        start={**plan.start, **first_bound(privacy.clip_norm)},
        mechanism=mechanism,
        round_planner=LearntBound(plan.round_planner),
        clipping_rule=rule,
    )


def published_guarantee(plan: Plan, bound: BoundSettings, *caveats: str, clients: int) -> Guarantee:
    """The paper's own accounting of a `published_plan`, beside the epsilon that its rounds really cost."""
    mechanism, cohort = plan.mechanism, plan.cohort.among(clients)
    delta, run = mechanism.claimed_delta, repeated(mechanism.event(), plan.rounds)
    claimed = paper_convention(
        clients, cohort, delta, releases=plan.rounds * cohort, noise_multiplier=bound.noise_multiplier
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
        caveats=(*caveats, FLAWS, SERVER_SEES, ONLY_THE_MODEL),
        honest_epsilon=epsilon_of(run, delta),
        honest_delta=delta,
        honest_note="; ".join(notes),
        event=run,
    )


LISTS_ARE_PUBLIC = "Which features there are, the lists of their values and the ranges of numbers are taken as public."


Share = Annotated[float, Field(gt=0.0, lt=1.0, allow_inf_nan=False)]


class DpPrivRecConfig(MetaConfig):
    """Settings of DP-PrivRec."""

    calibration: Calibration = "proven"  # proven: noise that holds; as-published: the paper's
    privacy: PrivacySettings = PrivacySettings(epsilon=2.0, clip_norm=1.0)  # clip_norm: the first bound
    bound: BoundSettings = BoundSettings()
    votes_share: Share = 0.5  # proven: of epsilon, for what is popular, where the model asks for that
    cohort: CohortSettings = CohortSettings(size=100, sampling="poisson")


def in_a_tree(config: DpPrivRecConfig) -> bool:
    """Whether the noise is that of DP-FTRL, which only a server can take back."""
    return config.cohort.sampling == "cyclic" and config.privacy.noise == "central"


def plan(config: DpPrivRecConfig, problem: Problem) -> Plan:
    """Assemble the plan."""
    clients = clients_with_data(problem)
    made = common.parts(config, problem, common.chosen_features(problem, config.features))
    if config.calibration == "as-published":
        in_plaintext = common.build(config, problem, made, **common.plaintext_votes(config, problem))
        return published_plan(in_plaintext, config.privacy, config.bound, clients=clients, keeps_state=False)
    summed = with_public_divisor(config, problem)
    further: dict[str, Any] = {}
    before: dict[str, Any] = {}
    if config.model.popularity:
        votes = private_votes(config.privacy, config.cohort, problem.n_items, share=config.votes_share, clients=clients)
        further = {"reports": votes.reports, "from_reports": PopularityTensor()}
        before = {"before": votes.event, "numbers_before": votes.numbers}
    plain = common.build(summed, problem, made, **further)
    options = {"rounds": problem.rounds, "clients": clients, **before}
    if in_a_tree(config):
        return cyclic(plain, tree_sum(config.privacy, config.cohort, made.schema.learnt, **options))
    noise = adaptive_sum(config.privacy, config.cohort, made.schema.learnt, keeps_state=False, **options)
    return with_learnt_bound(plain, noise, quantile=config.bound.quantile, rate=config.bound.rate)


def guarantee(config: DpPrivRecConfig) -> Guarantee:
    """Guarantee of a configuration: per user over the whole run, or the paper's claim."""
    if config.calibration == "as-published":
        return as_published(config.privacy, "The paper's epsilon follows from its noise, rounds and cohorts.")
    released = () if in_a_tree(config) else (BOUND_IS_RELEASED,)
    caveats = (LISTS_ARE_PUBLIC, *released)
    return proven(config.privacy, config.cohort, *caveats, keeps_state=False)


def guarantee_of_run(config: DpPrivRecConfig, problem: Problem) -> Guarantee:
    """Guarantee of a run; beside the paper's claim, the epsilon that holds."""
    if config.calibration != "as-published":
        return guarantee(config)
    return published_guarantee(plan(config, problem), config.bound, clients=clients_with_data(problem))


METHOD = Method(
    name="dp-privrec",
    kind="federated",
    trial=LearningTrial(rounds=10, settings=("privacy.epsilon=100",), times_popularity=1.4),
    paper="Wang et al., Fast-adapting and Privacy-preserving Federated Recommender System, VLDB Journal 2021,"
    " Algorithm 2; proven form after Andrew et al., Differentially Private Learning with Adaptive Clipping, 2021",
    model="network over features",
    summary="privrec whose users are covered by differential privacy, with a clip norm that is learnt",
    datasets=WITH_FEATURES,
    config=DpPrivRecConfig,
    plan=plan,
    clients=common.clients,
    guarantee=guarantee,
    guarantee_of_run=guarantee_of_run,
    rounds=40,
    evaluations=4,
    presets=read_presets("dp-privrec"),
    rounds_are_fixed=True,
    deviations=(
        *READINGS,
        "proven: the count is taken before clipping (after it, it is 1 for everybody), and the bound moves"
        " geometrically, so that it stays above 0",
        "proven: noise inside alpha_3; the count gets noise of its own instead of a share h",
        "as published: alpha_4 is not printed: 1",
    ),
    measured=("ml-1m", "frappe"),
)
