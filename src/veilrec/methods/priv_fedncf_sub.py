"""Priv-FedNCF-Sub: NCF on a sub-model that noisy reports choose, the network whole (ablation of Xue et al. 2026)."""

from __future__ import annotations

from veilrec.device.protection import WholeUpdateClip
from veilrec.methods.base import Method, Problem
from veilrec.methods.dp_fedncf import (
    DATASETS,
    GAUSSIAN,
    PAPER_PRESETS,
    TUNED,
    DpFedNcfConfig,
    gaussian,
    gaussian_event,
)
from veilrec.methods.fedncf import make_simulation
from veilrec.methods.priv_fedmf_sub import PAPER_SELECTION, REPORTS, promise
from veilrec.methods.private import as_published, honest, merged, participations, proven, sigma_of_sum
from veilrec.methods.submodel import SelectionSettings, proven_selection, reported, response, run_of
from veilrec.privacy.events import ComposedEvent
from veilrec.privacy.guarantee import Guarantee
from veilrec.simulate.trainer import Trainer

PAPER: dict[str, dict[str, float]] = {}  # Figures 15 and 16 draw it, the text gives no number


class PrivFedNcfSubConfig(DpFedNcfConfig):
    """Settings of Priv-FedNCF-Sub."""

    selection: SelectionSettings = SelectionSettings()


def build(config: PrivFedNcfSubConfig, problem: Problem) -> Trainer:
    """Put the parts together."""
    privacy, selection = config.privacy, config.selection
    if config.calibration == "as-published":
        mechanism = response(selection, problem.n_items, calibration="as-published", adjacency="replace-one")
        return make_simulation(
            config, problem, gaussian(privacy), chooser=reported(selection, problem, mechanism)
        )
    chooser, cost = proven_selection(selection, config.cohort, problem, privacy.delta)
    sigma = sigma_of_sum(privacy, config.cohort, problem, besides=cost)
    protection = WholeUpdateClip(clip_norm=privacy.clip_norm)
    return make_simulation(config, problem, protection, sigma=sigma, chooser=chooser)


def guarantee(config: PrivFedNcfSubConfig) -> Guarantee:
    """User-level over the whole run with the selection in it, or the paper's claim."""
    if config.calibration == "as-published":
        return as_published(config.privacy, GAUSSIAN, REPORTS)
    return promise(config.selection, proven(config.privacy, config.cohort))


def guarantee_of_run(config: PrivFedNcfSubConfig, problem: Problem) -> Guarantee:
    """The same, with the honest value beside a claim: a report and an update."""
    if config.calibration == "proven":
        return guarantee(config)
    bits = response(config.selection, problem.n_items, calibration="as-published", adjacency="replace-one")
    update = gaussian_event(config.privacy)
    message = ComposedEvent(((bits.event(), 1), (update, 1)))
    note = f"of one report on {problem.n_items} items and one update"
    times = participations(config.cohort, problem)
    run = run_of(config.selection, problem, report=bits.event(), update=update, times=times)
    return honest(guarantee(config), message, times, config.privacy.delta, note=note, run=run)


METHOD = Method(
    name="priv-fedncf-sub",
    kind="federated",
    paper="ablation of Xue et al. 2026 (priv-fedmf-sub), Figures 15 and 16; proven form ours",
    model="NeuMF",
    summary="dp-fedncf on the items that noisy reports choose",
    datasets=DATASETS,
    config=PrivFedNcfSubConfig,
    build=build,
    guarantee=guarantee,
    guarantee_of_run=guarantee_of_run,
    rounds=20,
    presets=merged(PAPER_PRESETS, PAPER_SELECTION, TUNED),
    rounds_are_fixed=True,
    item_parameters=160,
    deviations=(
        "The layers of the network are sent whole: DP-SUB chooses items, and a layer has none.",
        "as published: sigma by the textbook formula at epsilon 2 and delta 1e-5; the paper gives none.",
    ),
)
