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
from veilrec.methods.base import Method, Problem, described
from veilrec.methods.priv_fedmf_sub.common import DATASETS, OnPart, SelectionSettings, published_selection
from veilrec.methods.priv_fedmf_sub.fedmf import DP_FEDMF, FAMILY, DpFedMfConfig, FedMfConfig, mf_plan, schema_of
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.privacy.mechanisms.sums import NoNoise


class PrivFedMfSubConfig(DpFedMfConfig):
    """Settings of Priv-FedMF-Sub."""

    selection: SelectionSettings = SelectionSettings()


ON_PART = OnPart(FAMILY)


METHOD = replace(
    DP_FEDMF,
    **described("priv-fedmf-sub"),
    config=PrivFedMfSubConfig,
    plan=ON_PART.build,
    guarantee=ON_PART.guarantee,
    guarantee_of_run=ON_PART.guarantee_of_run,
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
        "In plaintext, updates show the items of a user.",
        "The reports by themselves: each bit of one report "
        f"is ({selection.epsilon:g}, 0)-DP per click, add-remove, per message, trusting nobody, proven.{adding_up}",
    )


FEDMF_SUB_RR: Method[Any] = Method(
    **described("fedmf-sub-rr"),
    datasets=DATASETS,
    config=FedMfSubConfig,
    plan=partial(fedmf_sub_plan, estimate=False),
    guarantee=guarantee,
)

FEDMF_SUB_RR_EST = replace(FEDMF_SUB_RR, **described("fedmf-sub-rr-est"), plan=partial(fedmf_sub_plan, estimate=True))
