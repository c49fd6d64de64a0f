"""Every method by name, ours and those of other packages and files; its module is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from veilrec.errors import BadInput, known_name, written_name
from veilrec.methods import outside

if TYPE_CHECKING:
    from veilrec.methods.base import Method

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
    "private-popularity": "ratings.private_popularity:METHOD",
    "private-gram": "ratings.private_gram:METHOD",
    "veil": "veil.method:METHOD",
    "dpals": "ratings.dpals:METHOD",
    "dpals-features": "ratings.dpals_features:METHOD",
    "random": "ratings.baselines:RANDOM",
    "mf": "ratings.mf:METHOD",
    "ncf": "ratings.ncf:METHOD",
    "ease": "ratings.ease:METHOD",
    "markov": "ratings.markov:METHOD",
    "recency-knn": "ratings.recency_knn:METHOD",
    "sasrec": "ratings.sasrec:METHOD",
    "privrec": "meta.privrec:METHOD",
    "privrec-cen": "meta.privrec_cen:METHOD",
    "fofl-self": "meta.fofl_self:METHOD",
    "nn-self": "meta.nn_self:METHOD",
    "dp-privrec": "meta.dp_privrec:METHOD",
    "popularity-head": "meta.popularity_head:METHOD",
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
    "privaterec": "news.privaterec:METHOD",
    "fedrec": "news.fedrec:FEDREC",
    "dp-fedrec": "news.fedrec:DP_FEDREC",
    "centralized": "news.fedrec:CENTRALIZED",
}


# The papers whose tables the methods stand in, and which methods stand in each: how `veilrec methods` groups them.
PAPERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "priv-fedmf-sub": (
        "Xue et al. 2026, communication-efficient federated recommendation with differential privacy",
        (
            "fedmf",
            "dp-fedmf",
            "dp-fedmf-svd",
            "dp-fedmf-topk",
            "fedmf-sub-rr",
            "fedmf-sub-rr-est",
            "priv-fedmf-sub",
            "fedncf",
            "dp-fedncf",
            "dp-fedncf-dgc",
            "priv-fedncf-sub",
            "priv-fedncf-sub-compress",
            "mf",
            "ncf",
        ),
    ),
    "fednewsrec": (
        "Qi et al. 2020, privacy-preserving news recommendation, with its baselines",
        (
            "fednewsrec",
            "cennewsrec",
            "fm",
            "dfm",
            "ebnr",
            "dkn",
            "dan",
            "naml",
            "npa",
            "nrms",
            "lstur",
            "lstur-con",
            "fcf",
        ),
    ),
    "privaterec": (
        "PrivateRec, differentially private training and serving for federated news",
        ("privaterec", "fedrec", "dp-fedrec", "centralized", "plm-nr"),
    ),
    "dp-privrec": (
        "Wang et al. 2021, fast adaptation on devices with differential privacy, with its baselines",
        ("privrec", "privrec-cen", "fofl-self", "nn-self", "dp-privrec"),
    ),
    "ours": (
        "ours, beside the papers",
        (
            "veil",
            "fedmf-lean",
            "sentence-head",
            "fednewsrec-head",
            "private-popularity",
            "popularity-head",
            "private-gram",
        ),
    ),
    "dpals": (
        "Chien et al. 2021, private alternating least squares; with public item features, Curmei et al. 2023",
        ("dpals", "dpals-features"),
    ),
    "references": (
        "what any method is compared with",
        ("popularity", "random", "ease", "markov", "recency-knn", "sasrec"),
    ),
}


def names() -> list[str]:
    """Every name that can be trained: ours, then those of installed packages; nothing is imported."""
    return [*METHODS, *outside.installed(METHODS).found]


def refused() -> list[str]:
    """A line for each method of another package that cannot be used because of its name."""
    return list(outside.installed(METHODS).refused)


def exists(name: str) -> bool:
    """Whether it names a method: one in the list, or a file."""
    return outside.is_file(name) or written_name(name, METHODS) is not None or written_name(name, names()) is not None


def full_name(name: str) -> str:
    """The name as the list writes it; of a file, its whole path and what it is called there."""
    if outside.is_file(name):
        return outside.whole_path(name)
    return written_name(name, METHODS) or known_name("method", name, names(), all_by="veilrec methods")


def source_of(name: str) -> str | None:
    """Where a method of others comes from, for config.yaml; None for ours."""
    if outside.is_file(name):
        return outside.whole_path(name)
    found = outside.installed(METHODS).found if written_name(name, METHODS) is None else {}
    return found[name].package if name in found else None


def short_name(name: str) -> str:
    """What a method calls itself: of a file, which is run for it, the name of the method in it."""
    return get(name).name if outside.is_file(name) else full_name(name)


def code_of(name: str) -> str | None:
    """What changes with the code of a method of others: its package with the version, a digest of its file."""
    return outside.digest(name) if outside.is_file(name) else source_of(name)


def get(name: str) -> Method[Any]:
    """The method of that name, whatever its case; also FILE.py or FILE.py:NAME with one that is not installed."""
    name = full_name(name)
    if outside.is_file(name):
        method = outside.of_file(name)
        if written_name(method.name, METHODS) is not None:
            raise BadInput(f"{name}: {method.name} is the name of a built-in method; give yours another")
        return method
    if name not in METHODS:
        return outside.installed(METHODS).found[name].method()
    module, attribute = METHODS[name].split(":")
    found = getattr(import_module(f"veilrec.methods.{module}"), attribute)
    ours: Method[Any] = found[name] if isinstance(found, dict) else found
    return ours


def all_methods() -> list[Method[Any]]:
    """Every method of ours, in the order of the table."""
    return [get(name) for name in METHODS]


def paper_of(name: str) -> str:
    """The key of the paper in whose table a method of ours stands."""
    return next(key for key, (_, methods) in PAPERS.items() if name in methods)
