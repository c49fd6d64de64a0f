"""DP-PrivRec: PrivRec whose users are covered, with a clip norm that is learnt (Algorithm 2).

Proven: the count of updates within the bound is taken before clipping, the bound moves geometrically, noise is inside
of the server's rate, the count gets what it needs and no more, and accounting is that of the sampling: cohorts drawn by
Poisson or of a fixed size, which devices without state may have, or a tree of noise where devices take turns
(cohort.sampling=turns) and nobody can be trusted to draw. The votes that say what is popular are within the budget.

As published: Algorithm 2 as printed, with the paper's noise, whose epsilon follows from its noise multiplier z.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from veilrec.methods.base import Method, Problem, Trial
from veilrec.methods.meta import common
from veilrec.methods.meta.common import WITH_FEATURES, MetaConfig
from veilrec.methods.meta.dp_privrec_privacy import (
    BoundSettings,
    proven_guarantee,
    proven_plan,
    published_guarantee,
    published_plan,
)
from veilrec.methods.meta.privrec import PAPER, PAPER_ON_ML_1M, READINGS, TUNED
from veilrec.methods.private import (
    PrivacySettings,
    as_published,
    devices_with_data,
    merged,
    private_votes,
    proven,
    with_public_divisor,
)
from veilrec.methods.turns import by_turns, tree_sum
from veilrec.plan import Plan
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.base import Calibration
from veilrec.server.agenda import PopularityTensor
from veilrec.server.cohorts import CohortSettings

ADAPTED = "The weights that a device adapts to its user never leave it and are not covered."
LISTS_ARE_PUBLIC = (
    "Which features there are, the lists of their values and the ranges of numbers are taken as public, also where they"
    " were read off the data."
)


Share = Annotated[float, Field(gt=0.0, lt=1.0, allow_inf_nan=False)]


class DpPrivRecConfig(MetaConfig):
    """Settings of DP-PrivRec."""

    calibration: Calibration = "proven"  # proven: noise that holds; as-published: the paper's
    privacy: PrivacySettings = PrivacySettings(epsilon=2.0, clip_norm=1.0)  # clip_norm: the first bound
    bound: BoundSettings = BoundSettings()
    votes_share: Share = 0.5  # proven: of epsilon, for what is popular, where the model asks for that
    cohort: CohortSettings = CohortSettings(size=100, sampling="poisson")


PRESETS: dict[str, dict[str, Any]] = merged(
    {"paper": PAPER, "paper@ml-1m": PAPER_ON_ML_1M, "paper@ml-100k": PAPER_ON_ML_1M, "tuned": TUNED},
    {
        "paper": {"privacy": {"clip_norm": 40.0}, "bound": {"quantile": 0.9}, "cohort": {"sampling": "fixed"}},
        "paper@frappe": {"privacy": {"clip_norm": 35.0}},
        "paper:as-published": {"bound": {"rate": 1.0, "noise_multiplier": 1.0, "count_share": 0.7}},
        "tuned": {"cohort": {"size": 500}},
        "tuned:as-published": {"cohort": {"size": 30, "sampling": "fixed"}, "model": {"popularity": False}},
    },
)


def plan(config: DpPrivRecConfig, problem: Problem) -> Plan:
    """Put the parts together."""
    devices = devices_with_data(problem)
    made = common.parts(config, problem, common.chosen_features(problem, config.features))
    if config.calibration == "as-published":
        in_the_clear = common.build(config, problem, made, **common.votes_in_the_clear(config, problem))
        return published_plan(in_the_clear, config.privacy, config.bound, devices=devices, keeps_state=False)
    summed = with_public_divisor(config, problem)
    further: dict[str, Any] = {}
    before: dict[str, Any] = {}
    if config.model.popularity:
        votes = private_votes(config.privacy, config.cohort, problem.n_items, share=config.votes_share)
        further = {"reports": votes.reports, "from_reports": PopularityTensor()}
        before = {"before": votes.event, "numbers_before": votes.numbers}
    plain = common.build(summed, problem, made, **further)
    if config.cohort.sampling == "turns":
        tree = tree_sum(
            config.privacy, config.cohort, made.schema.learnt, rounds=problem.rounds, devices=devices, **before
        )
        return by_turns(plain, tree)
    return proven_plan(plain, config.privacy, config.bound, devices=devices, keeps_state=False, **before)


def guarantee(config: DpPrivRecConfig) -> Guarantee:
    """User-level over the whole run; as published, the paper's claim, which a run works out for its own size."""
    if config.calibration == "as-published":
        return as_published(config.privacy, "The paper's epsilon follows from its noise, rounds and cohorts.")
    caveats = (ADAPTED, LISTS_ARE_PUBLIC)
    if config.cohort.sampling == "turns":
        return proven(config.privacy.epsilon, config.privacy.delta, config.cohort, *caveats, keeps_state=False)
    return proven_guarantee(config.privacy, config.cohort, *caveats, keeps_state=False)


def guarantee_of_run(config: DpPrivRecConfig, problem: Problem) -> Guarantee:
    """The same, with the honest value beside a claim."""
    if config.calibration != "as-published":
        return guarantee(config)
    return published_guarantee(plan(config, problem), config.bound, devices=devices_with_data(problem))


METHOD = Method(
    name="dp-privrec",
    kind="federated",
    trial=Trial(rounds=10, settings=("privacy.epsilon=100",), times_popularity=1.4),
    paper="Wang et al., Fast-adapting and Privacy-preserving Federated Recommender System, VLDB Journal 2021,"
    " Algorithm 2; proven form after Andrew et al., Differentially Private Learning with Adaptive Clipping, 2021",
    model="network over features",
    summary="privrec whose users are covered by differential privacy, with a clip norm that is learnt",
    datasets=WITH_FEATURES,
    config=DpPrivRecConfig,
    plan=plan,
    devices=common.devices,
    guarantee=guarantee,
    guarantee_of_run=guarantee_of_run,
    rounds=40,
    evaluations=4,
    presets=PRESETS,
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
