"""NN-SELF: PrivRec's network trained by MAML, with second-order gradients and a support and a query set.

Chen et al., Federated Meta-Learning for Recommendation, 2018, as PrivRec compares with it (eq. 4 and 5): SELF means
that somebody new adapts to the own support set alone.

    theta <- theta_0 - alpha_1 grad L(theta_0, support)                       on the device
    theta_0 <- theta_0 - alpha_2 sum over devices of grad_theta_0 L(theta, query)
"""

from __future__ import annotations

from veilrec.errors import BadInput
from veilrec.methods.base import Exemption, Method, Problem, Trial
from veilrec.methods.meta import common
from veilrec.methods.meta.common import WITH_FEATURES, MetaConfig
from veilrec.methods.meta.privrec import PAPER, PAPER_ON_ML_1M, TUNED, guarantee
from veilrec.methods.private import merged
from veilrec.plan import Plan

PRESETS = merged(
    {"paper": PAPER, "paper@ml-1m": PAPER_ON_ML_1M, "paper@ml-100k": PAPER_ON_ML_1M, "tuned": TUNED},
    {
        "paper": {
            "local": {"batch": 0, "negatives": 4, "proximal": 0.0, "steps": 1, "rate": 0.1},
            "server": {"rate": 0.02},
            "aggregation": "sum",
        },
        "tuned": {
            "local": {"negatives": 256, "proximal": 0.0, "steps": 10, "rate": 0.8},
            "server": {"rate": 0.002},
            "aggregation": "sum",
        },
    },
)


def plan(config: MetaConfig, problem: Problem) -> Plan:
    """Put the parts together."""
    if config.local.loss == "rating" or config.local.batch != 0 or config.local.proximal:
        raise BadInput(
            "nn-self adapts to whole support sets, without ratings and proximal term: leave local.batch and"
            " local.proximal at 0, and local.loss at logistic or softmax"
        )
    from veilrec.device.maml import MamlLearner  # torch: a list of methods needs none

    made = common.parts(config, problem, common.chosen_features(problem, config.features))
    learner = MamlLearner(made.adapter)
    return common.build(config, problem, made, learner=learner, **common.votes_in_the_clear(config, problem))


METHOD = Method(
    name="nn-self",
    kind="federated",
    private_relative="dp-privrec",
    trial=Trial(rounds=20),
    exemptions=tuple(
        Exemption(check, "A cohort multiplies larger matrices, whose sums are in another order: to 1e-5.")
        for check in ("cohort", "real-rounds")
    ),
    paper="Chen et al., Federated Meta-Learning for Recommendation, 2018; baseline of PrivRec",
    model="network over features",
    summary="MAML with second-order gradients: devices upload the gradient of a query set through their adaptation",
    datasets=WITH_FEATURES,
    config=MetaConfig,
    plan=plan,
    devices=common.devices,
    guarantee=guarantee,
    rounds=40,
    evaluations=4,
    presets=PRESETS,
    deviations=(
        "the number of inner steps, both rates and negatives are not printed: ours",
        "a device with one item has it in both sets",
    ),
    measured=("ml-1m", "frappe"),
)
