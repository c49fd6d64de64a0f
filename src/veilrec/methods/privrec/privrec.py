"""PrivRec: Reptile over a feature network with a proximal term (Wang et al., VLDB Journal 2021, Algorithm 1).

    theta <- theta - alpha_1 grad(L + mu/2 |theta - theta_0|)     on the client, E_2 epochs (eq. 7)
    theta_0 <- theta_0 + alpha_3 mean(theta - theta_0)            on the server (eq. 6)

| paper | here |
|---|---|
| theta_0, theta | global weights, weights adapted by a client |
| alpha_1 | `local.rate` |
| mu | `local.proximal` |
| E_2 | `local.epochs` |
| M, clients in a round | `cohort.size` |
| alpha_3 | `server.rate` |

Preset paper has the paper's model and the settings that it prints: embeddings of 64, four hidden layers, E_2 = 100,
M = 30. Preset tuned was chosen on the validation users of ML-1M, seed 0 (docs/privrec.md): a linear model over
categories and popularity, whose 40 full steps on a client against 1,024 sampled items are scaled by n / (n + 40).
"""

from __future__ import annotations

from typing import Any

from veilrec.core.plan import Plan
from veilrec.methods.base import Method, Problem, described, unprotected
from veilrec.methods.privrec import common
from veilrec.methods.privrec.common import WITH_FEATURES, MetaConfig

NOT_PRIVATE = (
    "In plaintext, the server sees how each client's training changed the model, which shows what its user has used."
)


def plan(config: MetaConfig, problem: Problem) -> Plan:
    """Assemble the plan, without noise."""
    made = common.parts(config, problem, common.chosen_features(problem, config.features))
    return common.build(config, problem, made, **common.plaintext_votes(config, problem))


METHOD: Method[Any] = Method(
    **described("privrec"),
    datasets=WITH_FEATURES,
    config=MetaConfig,
    plan=plan,
    clients=common.clients,
    guarantee=unprotected(NOT_PRIVATE),
)
