"""Priv-FedNCF-Sub-Compress: a sub-model of the items, and sparse updates of the deep layers (Xue et al. 2026, Alg. 3).

As published: DP-SUB chooses the items; item rows and the first two layers are clipped and get Gaussian noise; of the
deeper layers the largest entries are clipped and get noise (eq. 12 to 14); rows are averaged over the devices that sent
them (FedSubAvg, eq. 11). Proven: a histogram on sums chooses the items, a public seed the entries of the deep layers;
one clip over everything, and noise on the sum.
"""

from __future__ import annotations

from typing import Any

from veilrec.device.compress import PublicEntries, SparseDeep
from veilrec.methods.base import Method, Problem
from veilrec.methods.dp_fedmf_topk import CompressionSettings
from veilrec.methods.dp_fedncf import FAMILY, PAPER_PRESETS, TUNED
from veilrec.methods.family import DATASETS
from veilrec.methods.priv_fedmf_sub import TUNED_SELECTION
from veilrec.methods.priv_fedncf_sub import ON_PART, PrivFedNcfSubConfig
from veilrec.methods.private import merged, tells_largest
from veilrec.methods.submodel import PAPER_SELECTION, REPORTS
from veilrec.models.neumf_scores import NeumfShape
from veilrec.privacy.guarantee import Guarantee
from veilrec.simulate.choosers import Chooser, SeededParts
from veilrec.simulate.trainer import Trainer

PAPER = {"ml-100k": {"paper_params": 4200.0e6}, "ml-1m": {"paper_params": 4421.2e6}}  # Figure 14
SHALLOW_LAYERS = 2  # section 5.2.1: the embedding and the one or two layers that follow


class PrivFedNcfSubCompressConfig(PrivFedNcfSubConfig):
    """Settings of Priv-FedNCF-Sub-Compress."""

    compression: CompressionSettings = CompressionSettings(share=0.1)


def deep_tensors(shape: NeumfShape) -> tuple[str, ...]:
    """Everything behind the shallow layers, the output layer included."""
    shallow = tuple(f"layer{number}." for number in range(1, SHALLOW_LAYERS + 1))
    return tuple(name for name in shape.network() if not name.startswith(shallow))


def build(config: PrivFedNcfSubCompressConfig, problem: Problem) -> Trainer:
    """Put the parts together."""
    privacy, share = config.privacy, config.compression.share
    deep = deep_tensors(config.local.shape)
    if config.calibration == "as-published":
        return ON_PART.published(config, problem, SparseDeep(noisy=FAMILY.noisy(privacy), share=share, deep=deep))

    def with_entries(items: Chooser) -> Chooser:
        schema = FAMILY.schema(config, problem)
        return SeededParts(schema, problem.seed, kept_share=share, names=deep, rows_from=items)

    masked = PublicEntries(clip_norm=privacy.clip_norm, share=share, names=deep, public_seed=problem.seed)
    return ON_PART.proven(config, problem, masked, with_entries)


def guarantee(config: PrivFedNcfSubCompressConfig) -> Guarantee:
    """User-level over the whole run with the selection in it, or the paper's claim."""
    if config.calibration == "as-published":
        return tells_largest(config.privacy, "entries of the deep layers", FAMILY.flaw, REPORTS)
    return ON_PART.guarantee(config, "The entries of the deep layers come from a public seed.")


_FED_SUB_AVG: dict[str, Any] = {"paper": {"aggregation": "row-mean", "compression": {"share": 0.1}}}
# A third layer, so that there is a deep one to compress.
_DEEPER: dict[str, Any] = {
    "tuned": {"local": {"layers": (16, 8, 4)}, "compression": {"share": 0.5}},
    "tuned@ml-1m": {"local": {"layers": (16, 8, 4)}},
}

METHOD = Method(
    name="priv-fedncf-sub-compress",
    kind="federated",
    paper="Xue et al., Communication-efficient Federated Recommendation Method with Differential Privacy, 2026,"
    " Algorithm 3; proven form ours",
    model="NeuMF",
    summary="dp-fedncf on the items that noisy reports choose, with sparse updates of the deep layers",
    datasets=DATASETS,
    config=PrivFedNcfSubCompressConfig,
    build=build,
    guarantee=guarantee,
    rounds=20,
    presets=merged(PAPER_PRESETS, PAPER_SELECTION, _FED_SUB_AVG, TUNED, TUNED_SELECTION, _DEEPER),
    rounds_are_fixed=True,
    item_parameters=160,
    measured=("ml-100k", "ml-1m"),
    deviations=(
        "The paper does not give the sparsity; here a tenth is sent.",
        "Noise fills every row of the sub-model, so every device counts for every row of it (eq. 11).",
        "The shallow layers are sent whole: DP-SUB chooses items, and a layer has none.",
        "as published: sigma by the textbook formula at epsilon 2 and delta 1e-5; the paper gives none.",
        "Of clipping to C (eq. 13) and then to P (eq. 14) the smaller one remains; both are 1 here.",
    ),
)
