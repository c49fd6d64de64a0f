"""DP-FedNCF-DGC: DP-FedNCF with deep gradient compression (Lin et al. 2018) of everything that is sent.

As published: the largest entries of what has accumulated are clipped and get Gaussian noise, which tells where they
lie: no epsilon is finite. Proven: a public seed names the entries of the network and the rows of the items anew every
round; what it leaves out accumulates on the device; one clip, and noise on the sum.
"""

from __future__ import annotations

from veilrec.device.dgc import DgcLearner, DgcSettings
from veilrec.device.ncf import NcfLearner
from veilrec.methods.base import Method, Problem
from veilrec.methods.private import LARGEST_ENTRIES, merged, tells_largest
from veilrec.methods.ratings.dp_fedncf import FAMILY, PAPER_PRESETS, PRIVATE_NCF_TRIAL, SIGMA, TUNED, DpFedNcfConfig
from veilrec.methods.ratings.family import DATASETS
from veilrec.methods.ratings.fedncf import AS_PRINTED
from veilrec.plan import Plan
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.compressed import SentEntries
from veilrec.server.agenda import SeededParts

PAPER: dict[str, dict[str, float]] = {}  # Figures 12 to 14 draw it, the text gives no number


class DpFedNcfDgcConfig(DpFedNcfConfig):
    """Settings of DP-FedNCF-DGC."""

    dgc: DgcSettings = DgcSettings()


def plan(config: DpFedNcfDgcConfig, problem: Problem) -> Plan:
    """Put the parts together."""
    schema, share = FAMILY.schema(config, problem), config.dgc.share
    learner = DgcLearner(NcfLearner(config.local), config.dgc, schema)
    if config.calibration == "as-published":
        sent = SentEntries(FAMILY.noisy(config, schema), share=share)
        return FAMILY.plan(config, problem, sent, learner=learner)
    agenda = SeededParts(
        schema=schema,
        public_seed=problem.public_seed,
        row_share=share,
        entry_share=share,
        names=tuple(tensor.name for tensor in schema.dense),
    )
    return FAMILY.proven(config, problem, agenda=agenda, learner=learner)


def guarantee(config: DpFedNcfDgcConfig) -> Guarantee:
    """The paper's claim has nothing behind it; ours is that of DP-FedNCF."""
    if config.calibration == "as-published":
        return tells_largest(config.privacy, "entries")
    return FAMILY.guarantee(config, "The parts of a round come from a public seed.")


METHOD = Method(
    name="dp-fedncf-dgc",
    kind="federated",
    trial=PRIVATE_NCF_TRIAL,
    published=PAPER,
    exemptions=LARGEST_ENTRIES,
    paper="baseline of Xue et al. 2026 (priv-fedmf-sub), after Lin et al., Deep Gradient Compression, 2018; proven form"
    " ours",
    model="NeuMF",
    summary="dp-fedncf that sends a part now and keeps the rest for later",
    datasets=DATASETS,
    config=DpFedNcfDgcConfig,
    plan=plan,
    guarantee=guarantee,
    rounds=20,
    presets=merged(PAPER_PRESETS, TUNED, {"tuned": {"dgc": {"share": 0.7}}}),
    rounds_are_fixed=True,
    item_parameters=160,
    measured=("ml-100k", "ml-1m"),
    deviations=(
        *AS_PRINTED,
        SIGMA,
        "The paper gives neither sparsity nor momentum; here 0.1 and 0.5.",
        "Item rows are cut but not accumulated: a device touches other rows in every round.",
        "No warm-up of the sparsity: a device takes part too seldom for it.",
    ),
)
