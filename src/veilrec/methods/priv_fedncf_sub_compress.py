"""Priv-FedNCF-Sub-Compress: a sub-model of the items, and sparse updates of the deep layers (Xue et al. 2026, Alg. 3).

As published: DP-SUB chooses the items; item rows and the first two layers are clipped and get Gaussian noise; of the
deeper layers the largest entries are clipped and get noise (eq. 12 to 14); rows are averaged over the devices that sent
them (FedSubAvg, eq. 11). Proven: a histogram on sums chooses the items, a public seed the entries of the deep layers;
one clip over everything, and noise on the sum.
"""

from __future__ import annotations

from typing import Any

from veilrec.device import ncf
from veilrec.device.compress import PublicEntries, SparseDeep
from veilrec.methods.base import Method, Problem
from veilrec.methods.dp_fedmf_topk import CompressionSettings
from veilrec.methods.dp_fedncf import DATASETS, GAUSSIAN, PAPER_PRESETS, TUNED, gaussian
from veilrec.methods.fedncf import make_simulation
from veilrec.methods.priv_fedmf_sub import PAPER_SELECTION, REPORTS, TUNED_SELECTION, promise
from veilrec.methods.priv_fedncf_sub import PrivFedNcfSubConfig
from veilrec.methods.private import as_published, honest, merged, proven, sigma_of_sum
from veilrec.methods.submodel import proven_selection, reported, response
from veilrec.models.neumf_scores import NeumfShape
from veilrec.privacy.events import NonPrivateEvent
from veilrec.privacy.guarantee import Guarantee
from veilrec.simulate.choosers import SeededParts
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
    privacy, selection, share = config.privacy, config.selection, config.compression.share
    deep = deep_tensors(config.local.shape)
    if config.calibration == "as-published":
        mechanism = response(selection, problem.n_items, calibration="as-published", adjacency="replace-one")
        protection = SparseDeep(noisy=gaussian(privacy), share=share, deep=deep)
        return make_simulation(config, problem, protection, chooser=reported(selection, problem, mechanism))
    items, cost = proven_selection(selection, config.cohort, problem, privacy.delta)
    schema, seed = ncf.schema(problem.n_items, config.local.shape), problem.seed
    chooser = SeededParts(schema, seed, kept_share=share, names=deep, rows_from=items)
    masked = PublicEntries(clip_norm=privacy.clip_norm, share=share, names=deep, public_seed=seed)
    sigma = sigma_of_sum(privacy, config.cohort, problem, besides=cost)
    return make_simulation(config, problem, masked, sigma=sigma, chooser=chooser)


def guarantee(config: PrivFedNcfSubCompressConfig) -> Guarantee:
    """User-level over the whole run with the selection in it, or the paper's claim."""
    if config.calibration == "proven":
        seeded = "The entries of the deep layers come from a public seed."
        return promise(config.selection, proven(config.privacy, config.cohort, seeded))
    largest = "Which entries of the deep layers are sent depends on the data, and no noise covers it."
    claim = as_published(config.privacy, GAUSSIAN, REPORTS, largest)
    return honest(claim, NonPrivateEvent(), 1, 0.0, note="which entries are sent is told exactly")


_FED_SUB_AVG: dict[str, Any] = {"paper": {"aggregation": "row-mean", "compression": {"share": 0.1}}}
# A third layer, so that there is a deep one to compress.
_DEEPER: dict[str, Any] = {
    "tuned@ml-100k": {"local": {"layers": (16, 8, 4)}, "compression": {"share": 0.5}},
    "tuned@ml-1m": {"local": {"layers": (16, 8, 4)}, "compression": {"share": 0.5}},
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
    deviations=(
        "The paper does not give the sparsity; here a tenth is sent.",
        "Noise fills every row of the sub-model, so every device counts for every row of it (eq. 11).",
        "The shallow layers are sent whole: DP-SUB chooses items, and a layer has none.",
        "as published: sigma by the textbook formula at epsilon 2 and delta 1e-5; the paper gives none.",
        "Of clipping to C (eq. 13) and then to P (eq. 14) the smaller one remains; both are 1 here.",
    ),
)
