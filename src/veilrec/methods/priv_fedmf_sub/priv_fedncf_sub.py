"""Priv-FedNCF-Sub-Compress: a sub-model of the items, and sparse updates of the deep layers (Xue et al. 2026, Alg. 3).

Priv-FedNCF-Sub is its ablation with the network whole (Figures 15 and 16).

As published: DP-SUB chooses the items; item rows and the first two layers are clipped and get Gaussian noise; of the
deeper layers the largest entries are clipped and get noise (eq. 12 to 14); rows are averaged over the clients that sent
them (FedSubAvg, eq. 11). Proven: a histogram on sums chooses the items, a public seed the entries of the deep layers;
one clip over everything, and noise on the sum.
"""

from __future__ import annotations

from dataclasses import replace

from veilrec.core.plan import Plan
from veilrec.methods.base import Problem, described
from veilrec.methods.priv_fedmf_sub.common import REPORTS, OnPart, SelectionSettings
from veilrec.methods.priv_fedmf_sub.compression import CompressionSettings
from veilrec.methods.priv_fedmf_sub.fedncf import DP_FEDNCF, FAMILY, DpFedNcfConfig, deep_tensors
from veilrec.methods.private import LARGEST_ENTRIES, tells_largest
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.compression import SparseDeep
from veilrec.server.round_specs import RoundPlanner, SeededParts


class PrivFedNcfSubConfig(DpFedNcfConfig):
    """Settings of Priv-FedNCF-Sub."""

    selection: SelectionSettings = SelectionSettings()


class PrivFedNcfSubCompressConfig(DpFedNcfConfig):
    """Settings of Priv-FedNCF-Sub-Compress."""

    selection: SelectionSettings = SelectionSettings()
    compression: CompressionSettings = CompressionSettings(share=0.1)


class Compressed(OnPart):
    """On a part of the items, and of the deep layers."""

    def round_planner(self, config: PrivFedNcfSubCompressConfig, problem: Problem, items: RoundPlanner) -> RoundPlanner:
        """A public seed names the entries of the deep layers."""
        return SeededParts(
            schema=FAMILY.schema(config, problem),
            public_seed=problem.public_seed,
            entry_share=config.compression.share,
            names=deep_tensors(config.local.shape),
            rows_from=items,
        )


ON_PART, COMPRESSED = OnPart(FAMILY), Compressed(FAMILY)


def plan(config: PrivFedNcfSubCompressConfig, problem: Problem) -> Plan:
    """Put the parts together."""
    if config.calibration == "proven":
        return COMPRESSED.proven(config, problem)
    noisy = FAMILY.noisy(config, FAMILY.schema(config, problem))
    deep = deep_tensors(config.local.shape)
    return COMPRESSED.published(config, problem, SparseDeep(noisy, share=config.compression.share, deep=deep))


def guarantee(config: PrivFedNcfSubCompressConfig) -> Guarantee:
    """User-level over the whole run with the selection in it, or the paper's claim."""
    if config.calibration == "as-published":
        return tells_largest(config.privacy, "entries of the deep layers", FAMILY.flaws(config), REPORTS)
    return COMPRESSED.guarantee(config, "The entries of the deep layers come from a public seed.")


PRIV_FEDNCF_SUB = replace(
    DP_FEDNCF,
    **described("priv-fedncf-sub"),
    config=PrivFedNcfSubConfig,
    plan=ON_PART.build,
    guarantee=ON_PART.guarantee,
    guarantee_of_run=ON_PART.guarantee_of_run,
)


PRIV_FEDNCF_SUB_COMPRESS = replace(
    DP_FEDNCF,
    **described("priv-fedncf-sub-compress"),
    exemptions=LARGEST_ENTRIES,
    config=PrivFedNcfSubCompressConfig,
    plan=plan,
    guarantee=guarantee,
    guarantee_of_run=None,
)
