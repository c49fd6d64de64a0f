"""FedMF-Sub-RR-EST: Priv-FedMF-Sub without noise on the updates (ablation of Xue et al. 2026, Figures 10 and 11)."""

from __future__ import annotations

from typing import Any

from veilrec.device.protection import Unprotected
from veilrec.methods.base import Method, Problem
from veilrec.methods.family import DATASETS
from veilrec.methods.fedmf import PRESETS as FEDMF_PRESETS
from veilrec.methods.fedmf import FedMfConfig, make_simulation
from veilrec.methods.private import SIMULATED, merged
from veilrec.methods.submodel import PAPER_SELECTION, SelectionConfig, published_bits, reported
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.simulate.trainer import Trainer


class FedMfSubConfig(SelectionConfig, FedMfConfig):
    """Settings of FedMF-Sub-RR and FedMF-Sub-RR-EST."""


def make(config: FedMfSubConfig, problem: Problem, *, estimate: bool) -> Trainer:
    """FedMF on the items that randomised reports choose, with or without undoing the lies."""
    chooser = reported(config.selection, problem, published_bits(config.selection, problem), estimate=estimate)
    return make_simulation(config, problem, Unprotected(), chooser=chooser)


def build(config: FedMfSubConfig, problem: Problem) -> Trainer:
    """Put the parts together."""
    return make(config, problem, estimate=True)


def guarantee(config: FedMfSubConfig) -> Guarantee:
    """Nothing is promised, because the updates are in the clear."""
    selection = config.selection
    adding_up = " A device draws new reports again and again, whose epsilons add up." if selection.fresh else ""
    return no_guarantee(
        "Updates leave in the clear, and show the items of a user. The reports by themselves: each bit of one report "
        f"is ({selection.epsilon:g}, 0)-DP per click, add-remove, per message, trusting nobody, proven.{adding_up}",
        SIMULATED,
    )


PRESETS: dict[str, Any] = merged(FEDMF_PRESETS, PAPER_SELECTION)

METHOD = Method(
    name="fedmf-sub-rr-est",
    kind="federated",
    paper="ablation of Xue et al. 2026 (priv-fedmf-sub), Figures 10 and 11",
    model="matrix factorisation",
    summary="fedmf on the items that randomised reports choose; updates in the clear",
    datasets=DATASETS,
    config=FedMfSubConfig,
    build=build,
    guarantee=guarantee,
    rounds=200,
    presets=PRESETS,
    item_parameters=32,
    measured=("ml-100k", "ml-1m"),
    deviations=(
        "A device's items outside the sub-model are left out of its learning, and negatives are drawn inside it.",
    ),
)
