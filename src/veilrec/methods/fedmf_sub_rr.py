"""FedMF-Sub-RR: the same without estimation: the lies stay in (ablation of Xue et al. 2026, Figures 10 and 11).

Undoing the lies is a straight line, so with the threshold at the mean it changes the choice only where it is cut at
0: the mean of the estimates is a little higher then, and a few items fewer pass.
"""

from __future__ import annotations

from veilrec.methods.base import Method, Problem
from veilrec.methods.family import DATASETS
from veilrec.methods.fedmf_sub_rr_est import PRESETS, FedMfSubConfig, guarantee, make
from veilrec.simulate.trainer import Trainer


def build(config: FedMfSubConfig, problem: Problem) -> Trainer:
    """Put the parts together."""
    return make(config, problem, estimate=False)


METHOD = Method(
    name="fedmf-sub-rr",
    kind="federated",
    paper="ablation of Xue et al. 2026 (priv-fedmf-sub), Figures 10 and 11",
    model="matrix factorisation",
    summary="fedmf on the items that randomised reports name, lies and all; updates in the clear",
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
