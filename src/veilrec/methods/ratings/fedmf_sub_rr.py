"""Priv-FedMF-Sub without noise on the updates, with and without undoing the lies (ablations of Xue et al. 2026).

Undoing the lies is a straight line, so with the threshold at the mean it changes the choice only where it is cut at
0: the mean of the estimates is a little higher then, and a few items fewer pass (Figures 10 and 11).
"""

from __future__ import annotations

from typing import Any

from veilrec.methods.base import Method, Problem, Trial
from veilrec.methods.private import SIMULATED, merged
from veilrec.methods.ratings.family import DATASETS
from veilrec.methods.ratings.fedmf import AS_PRINTED, FedMfConfig, mf_plan, schema_of
from veilrec.methods.ratings.fedmf import PRESETS as FEDMF_PRESETS
from veilrec.methods.ratings.submodel import DEVIATIONS, PAPER_SELECTION, SelectionSettings, published_selection
from veilrec.plan import Plan
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.privacy.mechanisms.updates import InTheClear


class FedMfSubConfig(FedMfConfig):
    """Settings of FedMF-Sub-RR and FedMF-Sub-RR-EST."""

    selection: SelectionSettings = SelectionSettings()


def plan_with_lies(config: FedMfSubConfig, problem: Problem) -> Plan:
    """FedMF on the items that randomised reports name, lies and all."""
    return _plan(config, problem, estimate=False)


def plan_without_lies(config: FedMfSubConfig, problem: Problem) -> Plan:
    """FedMF on the items that randomised reports choose once the lies are undone."""
    return _plan(config, problem, estimate=True)


def _plan(config: FedMfSubConfig, problem: Problem, *, estimate: bool) -> Plan:
    chosen = published_selection(config.selection, problem, estimate=estimate)
    mechanism = InTheClear(schema_of(config, problem))
    return mf_plan(config, problem, mechanism, agenda=chosen.agenda, reports=chosen.reports)


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

_TRIAL = Trial(times_popularity=1.4)  # a part of the items is never learnt

FEDMF_SUB_RR = Method(
    name="fedmf-sub-rr",
    kind="federated",
    private_relative="priv-fedmf-sub",
    trial=_TRIAL,
    paper="ablation of Xue et al. 2026 (priv-fedmf-sub), Figures 10 and 11",
    model="matrix factorisation",
    summary="fedmf on the items that randomised reports name, lies and all; updates in the clear",
    datasets=DATASETS,
    config=FedMfSubConfig,
    plan=plan_with_lies,
    guarantee=guarantee,
    rounds=200,
    presets=PRESETS,
    item_parameters=32,
    measured=("ml-100k", "ml-1m"),
    deviations=(*AS_PRINTED, *DEVIATIONS),
)

FEDMF_SUB_RR_EST = Method(
    name="fedmf-sub-rr-est",
    kind="federated",
    private_relative="priv-fedmf-sub",
    trial=_TRIAL,
    paper="ablation of Xue et al. 2026 (priv-fedmf-sub), Figures 10 and 11",
    model="matrix factorisation",
    summary="fedmf on the items that randomised reports choose; updates in the clear",
    datasets=DATASETS,
    config=FedMfSubConfig,
    plan=plan_without_lies,
    guarantee=guarantee,
    rounds=200,
    presets=PRESETS,
    item_parameters=32,
    measured=("ml-100k", "ml-1m"),
    deviations=(*AS_PRINTED, *DEVIATIONS),
)
