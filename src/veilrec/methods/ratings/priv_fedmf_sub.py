"""Priv-FedMF-Sub: matrix factorisation on a sub-model that noisy reports choose (Xue et al. 2026, Algorithms 1, 2).

As published: randomised bits of every user, drawn anew every round, choose the items above the mean frequency; rows
are clipped and get Laplace noise on the device. Proven: one noisy histogram on sums chooses the items, one clip bounds
a user's whole update, the sum of a round gets Gaussian noise, and accounting composes both.
"""

from __future__ import annotations

from typing import Any

from veilrec.methods.base import Method
from veilrec.methods.private import PRIVATE_TRIAL, merged
from veilrec.methods.ratings.dp_fedmf import FAMILY, ONE_MESSAGE, PAPER_PRESETS, TUNED, DpFedMfConfig
from veilrec.methods.ratings.family import DATASETS
from veilrec.methods.ratings.fedmf import AS_PRINTED
from veilrec.methods.ratings.submodel import DEVIATIONS, PAPER_SELECTION, OnPart, SelectionSettings

PAPER = {  # Table 2, Figure 9
    "ml-100k": {"paper_params": 698.67e6},
    "ml-1m": {"hr@10": 0.435, "ndcg@10": 0.274, "paper_params": 2907.85e6},
}


class PrivFedMfSubConfig(DpFedMfConfig):
    """Settings of Priv-FedMF-Sub."""

    selection: SelectionSettings = SelectionSettings()


ON_PART = OnPart(FAMILY)

# Chosen on the validation item of seed 1, as the rest of "tuned".
TUNED_SELECTION: dict[str, Any] = {
    "tuned@ml-100k": {"selection": {"threshold": 0.03}},
    "tuned@ml-1m": {"selection": {"threshold": 0.03}},
}

METHOD = Method(
    name="priv-fedmf-sub",
    kind="federated",
    trial=PRIVATE_TRIAL,
    published=PAPER,
    paper="Xue et al., Communication-efficient Federated Recommendation Method with Differential Privacy, 2026,"
    " Algorithms 1 and 2; proven form ours",
    model="matrix factorisation",
    summary="dp-fedmf on the items that noisy reports choose: a third of the bytes, both ways",
    datasets=DATASETS,
    config=PrivFedMfSubConfig,
    plan=ON_PART.build,
    guarantee=ON_PART.guarantee,
    guarantee_of_run=ON_PART.guarantee_of_run,
    rounds=20,
    presets=merged(PAPER_PRESETS, PAPER_SELECTION, TUNED, TUNED_SELECTION),
    rounds_are_fixed=True,
    item_parameters=32,
    measured=("ml-100k", "ml-1m"),
    deviations=(
        *AS_PRINTED,
        ONE_MESSAGE,
        *DEVIATIONS,
        "The paper does not split its epsilon of 2; here bits and rows take 2 each, which gives its number of items.",
    ),
)
