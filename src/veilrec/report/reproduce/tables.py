"""Every table and figure by name."""

from __future__ import annotations

from collections.abc import Mapping

from veilrec.errors import unknown_name
from veilrec.report.reproduce import communication_paper as communication
from veilrec.report.reproduce import fednewsrec_paper as news
from veilrec.report.reproduce.experiment import Experiment
from veilrec.report.reproduce.own_figures import DP_FEDMF_CURVE, FEDMF_LEAN

EXPERIMENTS: Mapping[str, Experiment] = {
    "fedmf-table2": communication.FEDMF_TABLE2,
    "fedmf-accuracy": communication.FEDMF_ACCURACY,
    "fedmf-communication": communication.FEDMF_COMMUNICATION,
    "fedmf-ablation": communication.FEDMF_ABLATION,
    "fedncf-accuracy": communication.FEDNCF_ACCURACY,
    "fedncf-communication": communication.FEDNCF_COMMUNICATION,
    "fedncf-ablation": communication.FEDNCF_ABLATION,
    "fedmf-lean": FEDMF_LEAN,
    "dp-fedmf-curve": DP_FEDMF_CURVE,
    "fednewsrec-table2": news.FEDNEWSREC_TABLE2,
    "fednewsrec-fig4": news.FEDNEWSREC_FIG4,
    "fednewsrec-fig5": news.FEDNEWSREC_FIG5,
    "fednewsrec-fig6": news.FEDNEWSREC_FIG6,
    "fednewsrec-fig7": news.FEDNEWSREC_FIG7,
}


def experiment(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise unknown_name("table or figure", name, EXPERIMENTS)
    return EXPERIMENTS[name]
