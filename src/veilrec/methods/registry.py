"""Every method by name; a method's module is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from veilrec.errors import unknown_name
from veilrec.methods.base import Method, configure, preset_names

METHODS = {
    "fedmf": "ratings.fedmf:METHOD",
    "fedmf-lean": "ratings.fedmf_lean:METHOD",
    "dp-fedmf": "ratings.dp_fedmf:METHOD",
    "dp-fedmf-svd": "ratings.dp_fedmf_svd:METHOD",
    "dp-fedmf-topk": "ratings.dp_fedmf_topk:METHOD",
    "fedmf-sub-rr": "ratings.fedmf_sub_rr:FEDMF_SUB_RR",
    "fedmf-sub-rr-est": "ratings.fedmf_sub_rr:FEDMF_SUB_RR_EST",
    "priv-fedmf-sub": "ratings.priv_fedmf_sub:METHOD",
    "fedncf": "ratings.fedncf:METHOD",
    "dp-fedncf": "ratings.dp_fedncf:METHOD",
    "dp-fedncf-dgc": "ratings.dp_fedncf_dgc:METHOD",
    "priv-fedncf-sub": "ratings.priv_fedncf_sub:PRIV_FEDNCF_SUB",
    "priv-fedncf-sub-compress": "ratings.priv_fedncf_sub:PRIV_FEDNCF_SUB_COMPRESS",
    "fcf": "ratings.fcf:METHOD",
    "popularity": "ratings.baselines:POPULARITY",
    "random": "ratings.baselines:RANDOM",
    "mf": "ratings.mf:METHOD",
    "ncf": "ratings.ncf:METHOD",
    "ease": "ratings.ease:METHOD",
    "nrms": "news.centralised:METHODS",
    "naml": "news.centralised:METHODS",
    "lstur": "news.centralised:METHODS",
    "lstur-con": "news.centralised:METHODS",
    "npa": "news.centralised:METHODS",
    "ebnr": "news.centralised:METHODS",
    "dkn": "news.centralised:METHODS",
    "dan": "news.centralised:METHODS",
    "fm": "news.centralised:METHODS",
    "dfm": "news.centralised:METHODS",
    "cennewsrec": "news.centralised:METHODS",
    "plm-nr": "news.centralised:METHODS",
    "sentence-head": "news.centralised:METHODS",
    "fednewsrec": "news.fednewsrec:FEDNEWSREC_METHOD",
    "fednewsrec-head": "news.fednewsrec:FEDNEWSREC_HEAD",
}


def get(name: str) -> Method[Any]:
    """The method of that name."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    module, attribute = METHODS[name].split(":")
    found = getattr(import_module(f"veilrec.methods.{module}"), attribute)
    method: Method[Any] = found[name] if isinstance(found, dict) else found
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
