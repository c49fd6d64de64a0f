"""DP-FedMF-SVD: DP-FedMF with messages of low rank.

As published: the noisy message is cut to its r largest singular values, which is post-processing. Proven: r directions
that a public seed names anew every round; looking at the update to choose them would cost.
"""

from __future__ import annotations

from pydantic import PositiveInt

from veilrec.errors import BadInput
from veilrec.methods.base import Method, Problem
from veilrec.methods.private import PRIVATE_TRIAL, merged
from veilrec.methods.ratings.dp_fedmf import FAMILY, ONE_MESSAGE, PAPER_PRESETS, TUNED, DpFedMfConfig
from veilrec.methods.ratings.family import DATASETS
from veilrec.methods.ratings.fedmf import AS_PRINTED
from veilrec.plan import Plan
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.compressed import LowRank
from veilrec.server.agenda import SeededDirections

PAPER = {"ml-1m": {"hr@10": 0.452, "ndcg@10": 0.248, "paper_params": 4785.93e6}}  # Table 2
_SEEDED = "The directions of a round come from a public seed."


class DpFedMfSvdConfig(DpFedMfConfig):
    """Settings of DP-FedMF-SVD."""

    rank: PositiveInt = 16  # of a message: r (items + dim + 1) numbers


def plan(config: DpFedMfSvdConfig, problem: Problem) -> Plan:
    """Put the parts together."""
    if config.rank > config.local.dim:
        raise BadInput(
            f"rank is {config.rank}, but a table with {config.local.dim} columns has no larger rank: "
            f"give at most {config.local.dim}, for example --set rank={config.local.dim // 2 or 1}"
        )
    if config.calibration == "as-published":
        noisy = FAMILY.noisy(config, FAMILY.schema(config, problem))
        return FAMILY.plan(config, problem, LowRank(noisy, rank=config.rank))
    return FAMILY.proven(config, problem, agenda=SeededDirections(rank=config.rank, public_seed=problem.public_seed))


def guarantee(config: DpFedMfSvdConfig) -> Guarantee:
    """That of DP-FedMF: what follows the noise costs nothing, and a public basis tells nothing."""
    return FAMILY.guarantee(config, _SEEDED)


def guarantee_of_run(config: DpFedMfSvdConfig, problem: Problem) -> Guarantee:
    """The same, with the honest value beside a claim."""
    return FAMILY.guarantee_of_run(config, problem, _SEEDED)


METHOD = Method(
    name="dp-fedmf-svd",
    kind="federated",
    trial=PRIVATE_TRIAL,
    published=PAPER,
    paper="baseline of Xue et al. 2026 (priv-fedmf-sub), Table 2; proven form ours",
    model="matrix factorisation",
    summary="dp-fedmf with messages of low rank",
    datasets=DATASETS,
    config=DpFedMfSvdConfig,
    plan=plan,
    guarantee=guarantee,
    guarantee_of_run=guarantee_of_run,
    rounds=20,
    presets=merged(PAPER_PRESETS, TUNED, {"tuned": {"rank": 4}, "tuned@ml-1m": {"rank": 8}}),
    rounds_are_fixed=True,
    item_parameters=32,
    measured=("ml-100k", "ml-1m"),
    deviations=(
        *AS_PRINTED,
        ONE_MESSAGE,
        "The paper does not say where the decomposition happens; here after the noise, so that it costs nothing.",
        "Only messages to the server are shortened; the model comes down whole.",
    ),
)
