"""DP-FedMF-SVD: DP-FedMF with messages of low rank.

As published: the noisy message is cut to its r largest singular values, which is post-processing. Proven: r directions
that a public seed names anew every round; looking at the update to choose them would cost.
"""

from __future__ import annotations

from pydantic import PositiveInt

from veilrec.device.compress import LowRank, PublicBasis
from veilrec.errors import BadInput
from veilrec.methods.base import Method, Problem
from veilrec.methods.dp_fedmf import FAMILY, PAPER_PRESETS, TUNED, DpFedMfConfig
from veilrec.methods.family import DATASETS
from veilrec.methods.private import merged
from veilrec.simulate.choosers import SeededBasis
from veilrec.simulate.trainer import Trainer

PAPER = {"ml-1m": {"hr@10": 0.452, "ndcg@10": 0.248, "paper_params": 4785.93e6}}  # Table 2
_SEEDED = "The directions of a round come from a public seed."


class DpFedMfSvdConfig(DpFedMfConfig):
    """Settings of DP-FedMF-SVD."""

    rank: PositiveInt = 16  # of a message: r (items + dim + 1) numbers


def build(config: DpFedMfSvdConfig, problem: Problem) -> Trainer:
    """Put the parts together."""
    if config.rank > config.local.dim:
        raise BadInput(
            f"rank is {config.rank}, but a table with {config.local.dim} columns has no larger rank: "
            f"give at most {config.local.dim}, for example --set rank={config.local.dim // 2 or 1}"
        )
    if config.calibration == "as-published":
        low_rank = LowRank(noisy=FAMILY.noisy(config.privacy), rank=config.rank)
        return FAMILY.simulate(config, problem, low_rank)
    clip_norm, seed = config.privacy.clip_norm, problem.seed
    protection = PublicBasis(clip_norm=clip_norm, rank=config.rank, public_seed=seed)
    return FAMILY.proven(config, problem, protection, chooser=SeededBasis(config.local.dim, config.rank, seed))


METHOD = Method(
    name="dp-fedmf-svd",
    kind="federated",
    paper="baseline of Xue et al. 2026 (priv-fedmf-sub), Table 2; proven form ours",
    model="matrix factorisation",
    summary="dp-fedmf with messages of low rank",
    datasets=DATASETS,
    config=DpFedMfSvdConfig,
    build=build,
    # What follows the noise costs nothing, and a public basis tells nothing.
    guarantee=lambda config: FAMILY.guarantee(config, _SEEDED),
    guarantee_of_run=lambda config, problem: FAMILY.guarantee_of_run(config, problem, _SEEDED),
    rounds=20,
    presets=merged(PAPER_PRESETS, TUNED, {"tuned": {"rank": 4}, "tuned@ml-1m": {"rank": 8}}),
    rounds_are_fixed=True,
    item_parameters=32,
    measured=("ml-100k", "ml-1m"),
    deviations=(
        "The paper does not say where the decomposition happens; here after the noise, so that it costs nothing.",
        "Only messages to the server are shortened; the model comes down whole.",
    ),
)
