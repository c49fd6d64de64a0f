"""Priv-FedMF-Sub: matrix factorisation on a sub-model chosen by private reports (Xue et al. 2026, Algorithms 1 and 2).

| paper | here |
|---|---|
| epsilon of randomised response (eq. 7) | `selection.epsilon` |
| estimated frequency (eq. 8) | `ReportThreshold.frequencies` |
| threshold p (Algorithm 1) | `selection.threshold`; None: the mean frequency (section 6.4) |
| loss, lambda and mu (eq. 9) | `local.loss`, `local.decay` |
| clipped row with Laplace noise (eq. 10) | `MfFamily.noisy` |
| clip norm C, epsilon_2 | `privacy.clip_norm`, `privacy.epsilon` |

as-published: randomised bits of every user, drawn anew every round, choose the items above the mean frequency; rows are
clipped and get Laplace noise on the client. proven: one noisy histogram chooses the items, one clip bounds a user's
whole update, the sum of a round gets Gaussian noise, and accounting composes both.

FedMF-Sub-RR and FedMF-Sub-RR-EST (ablations): no noise on updates, without and with the unbiased estimate of eq. 8.
The estimate is linear, so with the threshold at the mean it changes the choice only where it is cut at 0: the mean of
the estimates is then a little higher, and a few items fewer pass (Figures 10 and 11).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from veilrec.core.plan import Plan
from veilrec.methods.base import LearningTrial, Method, Problem, read_presets
from veilrec.methods.priv_fedmf_sub.common import DATASETS, DEVIATIONS, OnPart, SelectionSettings, published_selection
from veilrec.methods.priv_fedmf_sub.fedmf import (
    AS_PRINTED,
    DP_FEDMF,
    FAMILY,
    ONE_MESSAGE,
    DpFedMfConfig,
    FedMfConfig,
    mf_plan,
    schema_of,
)
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.privacy.mechanisms.sums import NoNoise

PAPER = {  # Table 2, Figure 9
    "ml-100k": {"paper_params": 698.67e6},
    "ml-1m": {"hr@10": 0.435, "ndcg@10": 0.274, "paper_params": 2907.85e6},
}


class PrivFedMfSubConfig(DpFedMfConfig):
    """Settings of Priv-FedMF-Sub."""

    selection: SelectionSettings = SelectionSettings()


ON_PART = OnPart(FAMILY)


METHOD = replace(
    DP_FEDMF,
    name="priv-fedmf-sub",
    published=PAPER,
    paper="Xue et al., Communication-efficient Federated Recommendation Method with Differential Privacy, 2026,"
    " Algorithms 1 and 2; proven form ours",
    summary="dp-fedmf on the items that noisy reports choose: a third of the bytes, both ways",
    config=PrivFedMfSubConfig,
    plan=ON_PART.build,
    guarantee=ON_PART.guarantee,
    guarantee_of_run=ON_PART.guarantee_of_run,
    presets=read_presets("priv-fedmf-sub"),
    deviations=(
        *AS_PRINTED,
        ONE_MESSAGE,
        *DEVIATIONS,
        "The paper does not split its epsilon of 2; here bits and rows take 2 each, which gives its number of items.",
    ),
)


class FedMfSubConfig(FedMfConfig):
    """Settings of FedMF-Sub-RR and FedMF-Sub-RR-EST."""

    selection: SelectionSettings = SelectionSettings()


def fedmf_sub_plan(config: FedMfSubConfig, problem: Problem, *, estimate: bool) -> Plan:
    """Assemble FedMF on the items that randomised reports name, with or without the unbiased estimate of eq. 8."""
    chosen = published_selection(config.selection, problem, estimate=estimate)
    mechanism = NoNoise(schema_of(config, problem))
    return mf_plan(config, problem, mechanism, round_planner=chosen.round_planner, reports=chosen.reports)


def guarantee(config: FedMfSubConfig) -> Guarantee:
    """No guarantee: client updates are sent in plaintext."""
    selection = config.selection
    adding_up = " A client draws new reports again and again, whose epsilons add up." if selection.fresh else ""
    return no_guarantee(
        "Updates leave in plaintext, and show the items of a user. The reports by themselves: each bit of one report "
        f"is ({selection.epsilon:g}, 0)-DP per click, add-remove, per message, trusting nobody, proven.{adding_up}"
    )


_TRIAL = LearningTrial(times_popularity=1.4)  # a part of the items is never learnt

FEDMF_SUB_RR: Method[Any] = Method(
    name="fedmf-sub-rr",
    kind="federated",
    private_relative="priv-fedmf-sub",
    trial=_TRIAL,
    paper="ablation of Xue et al. 2026 (priv-fedmf-sub), Figures 10 and 11",
    model="matrix factorisation",
    summary="fedmf on the items that randomised reports name, lies and all; updates in plaintext",
    datasets=DATASETS,
    config=FedMfSubConfig,
    plan=partial(fedmf_sub_plan, estimate=False),
    guarantee=guarantee,
    rounds=200,
    presets=read_presets("fedmf-sub-rr"),
    item_parameters=32,
    measured=("ml-100k", "ml-1m"),
    deviations=(*AS_PRINTED, *DEVIATIONS),
)

FEDMF_SUB_RR_EST = replace(
    FEDMF_SUB_RR,
    name="fedmf-sub-rr-est",
    summary="fedmf on the items that randomised reports choose; updates in plaintext",
    plan=partial(fedmf_sub_plan, estimate=True),
)
