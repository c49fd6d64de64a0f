"""Every method by name; a method's module is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from veilrec.errors import unknown_name
from veilrec.methods.base import Method, configure, preset_names

METHODS = {
    "fedmf": "veilrec.methods.fedmf",
    "fedmf-lean": "veilrec.methods.fedmf_lean",
    "dp-fedmf": "veilrec.methods.dp_fedmf",
    "dp-fedmf-svd": "veilrec.methods.dp_fedmf_svd",
    "dp-fedmf-topk": "veilrec.methods.dp_fedmf_topk",
    "fedmf-sub-rr": "veilrec.methods.fedmf_sub_rr",
    "fedmf-sub-rr-est": "veilrec.methods.fedmf_sub_rr_est",
    "priv-fedmf-sub": "veilrec.methods.priv_fedmf_sub",
    "fedncf": "veilrec.methods.fedncf",
    "dp-fedncf": "veilrec.methods.dp_fedncf",
    "dp-fedncf-dgc": "veilrec.methods.dp_fedncf_dgc",
    "priv-fedncf-sub": "veilrec.methods.priv_fedncf_sub",
    "priv-fedncf-sub-compress": "veilrec.methods.priv_fedncf_sub_compress",
    "fcf": "veilrec.methods.fcf",
    "popularity": "veilrec.methods.popularity",
    "random": "veilrec.methods.random_scores",
    "mf": "veilrec.methods.mf",
    "ncf": "veilrec.methods.ncf",
    "ease": "veilrec.methods.ease",
    "nrms": "veilrec.methods.nrms",
    "naml": "veilrec.methods.naml",
    "lstur": "veilrec.methods.lstur",
    "lstur-con": "veilrec.methods.lstur_con",
    "npa": "veilrec.methods.npa",
    "ebnr": "veilrec.methods.ebnr",
    "dkn": "veilrec.methods.dkn",
    "dan": "veilrec.methods.dan",
    "fm": "veilrec.methods.fm",
    "dfm": "veilrec.methods.dfm",
    "cennewsrec": "veilrec.methods.cennewsrec",
    "plm-nr": "veilrec.methods.plm_nr",
    "sentence-head": "veilrec.methods.sentence_head",
    "fednewsrec": "veilrec.methods.fednewsrec",
    "fednewsrec-head": "veilrec.methods.fednewsrec_head",
}


def get(name: str) -> Method[Any]:
    """The method of that name."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    method: Method[Any] = import_module(METHODS[name]).METHOD
    return method


def all_methods() -> list[Method[Any]]:
    """Every method, in the order of the table."""
    return [get(name) for name in METHODS]


def describe(method: Method[Any]) -> dict[str, Any]:
    """What `veilrec methods --json` says of a method; the guarantee is that of its default configuration."""
    config, _ = configure(method, preset="tuned", dataset="")
    return {
        "name": method.name,
        "kind": method.kind,
        "paper": method.paper,
        "model": method.model,
        "summary": method.summary,
        "datasets": list(method.datasets),
        "guarantee": method.guarantee(config).line(),
        "measured": bool(method.measured),
        "presets": preset_names(method),
        "rounds": method.rounds,
    }
