"""DP-FedMF with compressed client updates: low rank (SVD) and largest entries (TopK).

DP-FedMF-SVD, as published: the noisy update is cut to its r largest singular values, which is post-processing. proven:
r directions named anew every round by a public seed; choosing them by the update would cost privacy.

DP-FedMF-TopK, as published: the largest entries are sent, chosen in the noisy update (post-processing, as the low rank
is) or in the raw one, which reveals where it is large: no epsilon is finite. The paper does not say which
(`compression.noise`). proven: a round covers the rows that the released model has moved most, and some at random; the
choice is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import PositiveInt

from veilrec.client import mf
from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.core.schema import check_share
from veilrec.methods.base import Problem, described
from veilrec.methods.priv_fedmf_sub.fedmf import DP_FEDMF, FAMILY, DpFedMfConfig
from veilrec.methods.private import LARGEST_ENTRIES, tells_largest
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.compression import LargestEntries, LowRank, NoiseOrder
from veilrec.server.round_specs import MovedRows, SeededDirections

_SEEDED = "The directions of a round come from a public seed."
_RELEASED = "The rows of a round are chosen by the released model."


class DpFedMfSvdConfig(DpFedMfConfig):
    """Settings of DP-FedMF-SVD."""

    rank: PositiveInt = 16  # of a message: r (items + dim + 1) numbers


def dp_fedmf_svd_plan(config: DpFedMfSvdConfig, problem: Problem) -> Plan:
    """Assemble DP-FedMF-SVD."""
    if config.rank > config.local.dim:
        raise BadInput(
            f"rank is {config.rank}, but a table with {config.local.dim} columns has no larger rank: "
            f"give at most {config.local.dim}, for example --set rank={config.local.dim // 2 or 1}"
        )
    if config.calibration == "as-published":
        noisy = FAMILY.noisy(config, FAMILY.schema(config, problem))
        return FAMILY.plan(config, problem, LowRank(noisy, rank=config.rank))
    return FAMILY.proven(
        config, problem, round_planner=SeededDirections(rank=config.rank, public_seed=problem.public_seed)
    )


def dp_fedmf_svd_guarantee(config: DpFedMfSvdConfig) -> Guarantee:
    """Guarantee of DP-FedMF; compression after the noise and public directions cost nothing."""
    return FAMILY.guarantee(config, _SEEDED)


def guarantee_of_run(config: DpFedMfSvdConfig, problem: Problem) -> Guarantee:
    """Guarantee of a DP-FedMF-SVD run; beside the paper's claim, the epsilon that holds."""
    return FAMILY.guarantee_of_run(config, problem, _SEEDED)


DP_FEDMF_SVD = replace(
    DP_FEDMF,
    **described("dp-fedmf-svd"),
    config=DpFedMfSvdConfig,
    plan=dp_fedmf_svd_plan,
    guarantee=dp_fedmf_svd_guarantee,
    guarantee_of_run=guarantee_of_run,
)


@dataclass(frozen=True)
class CompressionSettings:
    """How much of an update is sent."""

    share: float = 0.5  # of the entries (as published), of the rows (proven)

    def __post_init__(self) -> None:
        check_share("compression.share", self.share)


@dataclass(frozen=True)
class TopKSettings(CompressionSettings):
    """How much of an update is sent, and when it is chosen."""

    noise: NoiseOrder = "last"  # as published: before the entries are chosen, or on those that were chosen


class DpFedMfTopKConfig(DpFedMfConfig):
    """Settings of DP-FedMF-TopK."""

    compression: TopKSettings = TopKSettings()


def plan(config: DpFedMfTopKConfig, problem: Problem) -> Plan:
    """Assemble DP-FedMF-TopK."""
    share, seed = config.compression.share, problem.public_seed
    if config.calibration == "as-published":
        noisy = FAMILY.noisy(config, FAMILY.schema(config, problem))
        return FAMILY.plan(config, problem, LargestEntries(noisy, share=share, noise=config.compression.noise))
    start = mf.start_weights(problem.n_items, config.local.dim, config.local.start, seed)[mf.ITEMS]
    return FAMILY.proven(config, problem, round_planner=MovedRows(start, mf.ITEMS, share, seed))


def guarantee(config: DpFedMfTopKConfig) -> Guarantee:
    """Guarantee of DP-FedMF-TopK; as published with noise last, no epsilon is finite."""
    if config.calibration == "as-published" and config.compression.noise == "last":
        return tells_largest(config.privacy, "entries")
    return FAMILY.guarantee(config, _RELEASED)


def topk_guarantee_of_run(config: DpFedMfTopKConfig, problem: Problem) -> Guarantee:
    """Guarantee of a DP-FedMF-TopK run; with noise first, beside the paper's claim the epsilon that holds."""
    if config.calibration == "as-published" and config.compression.noise == "last":
        return guarantee(config)
    return FAMILY.guarantee_of_run(config, problem, _RELEASED)


DP_FEDMF_TOPK = replace(
    DP_FEDMF,
    **described("dp-fedmf-topk"),
    exemptions=LARGEST_ENTRIES,
    config=DpFedMfTopKConfig,
    plan=plan,
    guarantee=guarantee,
    guarantee_of_run=topk_guarantee_of_run,
)
