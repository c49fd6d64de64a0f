"""Every method by name, ours and those of other packages and files; its module is imported when it is asked for.

What is said of methods: a line each from an index that needs none of them, and everything about one.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from veilrec.core.errors import BadInput, known_name, written_name
from veilrec.methods import plugins

if TYPE_CHECKING:
    from veilrec.methods.base import Method


METHODS = {
    "fedmf": "priv_fedmf_sub.fedmf:FEDMF",
    "fedmf-lean": "priv_fedmf_sub.fedmf:FEDMF_LEAN",
    "dp-fedmf": "priv_fedmf_sub.fedmf:DP_FEDMF",
    "dp-fedmf-svd": "priv_fedmf_sub.compression:DP_FEDMF_SVD",
    "dp-fedmf-topk": "priv_fedmf_sub.compression:DP_FEDMF_TOPK",
    "fedmf-sub-rr": "priv_fedmf_sub.priv_fedmf_sub:FEDMF_SUB_RR",
    "fedmf-sub-rr-est": "priv_fedmf_sub.priv_fedmf_sub:FEDMF_SUB_RR_EST",
    "priv-fedmf-sub": "priv_fedmf_sub.priv_fedmf_sub:METHOD",
    "fedncf": "priv_fedmf_sub.fedncf:FEDNCF",
    "dp-fedncf": "priv_fedmf_sub.fedncf:DP_FEDNCF",
    "dp-fedncf-dgc": "priv_fedmf_sub.fedncf:DP_FEDNCF_DGC",
    "priv-fedncf-sub": "priv_fedmf_sub.priv_fedncf_sub:PRIV_FEDNCF_SUB",
    "priv-fedncf-sub-compress": "priv_fedmf_sub.priv_fedncf_sub:PRIV_FEDNCF_SUB_COMPRESS",
    "fcf": "references.fcf:METHOD",
    "popularity": "references.popularity:POPULARITY",
    "private-popularity": "references.popularity:METHOD",
    "private-gram": "references.item_item:PRIVATE_GRAM",
    "veil": "veil.method:METHOD",
    "dpals": "references.dpals:DPALS",
    "dpals-features": "references.dpals:DPALS_FEATURES",
    "random": "references.popularity:RANDOM",
    "mf": "references.mf:METHOD",
    "ncf": "references.ncf:METHOD",
    "ease": "references.item_item:EASE",
    "markov": "references.item_item:MARKOV",
    "recency-knn": "references.item_item:RECENCY_KNN",
    "sasrec": "references.sasrec:METHOD",
    "privrec": "privrec.privrec:METHOD",
    "privrec-cen": "privrec.baselines:PRIVREC_CEN",
    "fofl-self": "privrec.baselines:FOFL_SELF",
    "nn-self": "privrec.baselines:NN_SELF",
    "dp-privrec": "privrec.dp_privrec:METHOD",
    "popularity-head": "privrec.baselines:POPULARITY_HEAD",
    "nrms": "fednewsrec.baselines:METHODS",
    "naml": "fednewsrec.baselines:METHODS",
    "lstur": "fednewsrec.baselines:METHODS",
    "lstur-con": "fednewsrec.baselines:METHODS",
    "npa": "fednewsrec.baselines:METHODS",
    "ebnr": "fednewsrec.baselines:METHODS",
    "dkn": "fednewsrec.baselines:METHODS",
    "dan": "fednewsrec.baselines:METHODS",
    "fm": "fednewsrec.baselines:METHODS",
    "dfm": "fednewsrec.baselines:METHODS",
    "cennewsrec": "fednewsrec.baselines:METHODS",
    "plm-nr": "fednewsrec.baselines:METHODS",
    "sentence-head": "fednewsrec.baselines:METHODS",
    "fednewsrec": "fednewsrec.fednewsrec:FEDNEWSREC_METHOD",
    "fednewsrec-head": "fednewsrec.fednewsrec:FEDNEWSREC_HEAD",
    "privaterec": "privaterec.privaterec:METHOD",
    "fedrec": "privaterec.baselines:FEDREC",
    "dp-fedrec": "privaterec.baselines:DP_FEDREC",
    "centralized": "privaterec.baselines:CENTRALIZED",
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
    return [*METHODS, *plugins.installed(METHODS).found]


def refused() -> list[str]:
    """A line for each method of another package that cannot be used because of its name."""
    return list(plugins.installed(METHODS).refused)


def exists(name: str) -> bool:
    """Whether it names a method: one in the list, or a file."""
    return plugins.is_file(name) or written_name(name, METHODS) is not None or written_name(name, names()) is not None


def full_name(name: str) -> str:
    """The name as the list writes it; of a file, its whole path and what it is called there."""
    if plugins.is_file(name):
        return plugins.whole_path(name)
    return written_name(name, METHODS) or known_name("method", name, names(), all_by="veilrec methods")


def source_of(name: str) -> str | None:
    """Where a method of others comes from, for config.yaml; None for ours."""
    if plugins.is_file(name):
        return plugins.whole_path(name)
    found = plugins.installed(METHODS).found if written_name(name, METHODS) is None else {}
    return found[name].package if name in found else None


def short_name(name: str) -> str:
    """What a method calls itself: of a file, which is run for it, the name of the method in it."""
    return get(name).name if plugins.is_file(name) else full_name(name)


def code_of(name: str) -> str | None:
    """What changes with the code of a method of others: its package with the version, a digest of its file."""
    return plugins.digest(name) if plugins.is_file(name) else source_of(name)


def get(name: str) -> Method[Any]:
    """The method of that name, whatever its case; also FILE.py or FILE.py:NAME with one that is not installed."""
    name = full_name(name)
    if plugins.is_file(name):
        method = plugins.of_file(name)
        if written_name(method.name, METHODS) is not None:
            raise BadInput(f"{name}: {method.name} is the name of a built-in method; give yours another")
        return method
    if name not in METHODS:
        return plugins.installed(METHODS).found[name].method()
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


INDEX = Path(__file__).with_name("index.json")
_COMMENT = re.compile(r"^ {4}(\w+): [^#\n]*  # (.+?) *$", re.MULTILINE)


def describe(method: Method[Any]) -> dict[str, Any]:
    """What `veilrec methods --json` says of a method; the guarantee is that of its default configuration."""
    from veilrec.methods.base import configure, preset_names

    config, _ = configure(method, preset="tuned", dataset="")
    guarantee = method.guarantee(config)
    return {
        "name": method.name,
        "kind": method.kind,
        "group": paper_of(method.name) if method.name in METHODS else "others",
        "paper": method.paper,
        "model": method.model,
        "summary": method.summary,
        "datasets": list(method.datasets),
        "private": guarantee.basis == "proven",
        "guarantee": guarantee.line(),
        "measured": list(method.measured),
        "presets": preset_names(method),
        "rounds": method.rounds,
    }


def listed(*, private: bool = False, data: str | None = None, paper: str | None = None) -> list[dict[str, Any]]:
    """Every method of ours that is asked for, by paper; and the names of those of other packages, not imported.

    A paper is named by its key, or by any words of a method's own paper.
    """
    entries = read_index()
    if private:
        entries = [entry for entry in entries if entry["private"]]
    if data is not None:
        from veilrec.data.datasets import DATASETS

        name = known_name("data set", data.partition(":")[0], DATASETS)
        entries = [entry for entry in entries if name in entry["datasets"]]
    if paper is not None:
        entries = _of_paper(entries, paper)
    others = [] if private or data or paper else [name for name in names() if name not in METHODS]
    return entries + [{"name": name, "group": "others", "package": source_of(name)} for name in others]


def _of_paper(entries: list[dict[str, Any]], paper: str) -> list[dict[str, Any]]:
    words = paper.casefold()
    chosen = [entry for entry in entries if entry["group"] == words]
    chosen = chosen or [entry for entry in entries if words in entry["paper"].casefold()]
    if not chosen and not any(words in entry["paper"].casefold() for entry in read_index()):
        known_name("paper", words, PAPERS)
    return chosen


def read_index() -> list[dict[str, Any]]:
    """The index, in the order of the papers."""
    entries: list[dict[str, Any]] = json.loads(INDEX.read_text(encoding="utf-8"))
    return entries


def make_index() -> str:
    """What the index has to say: a line a method."""
    described = {method.name: describe(method) for method in all_methods()}
    ordered = [name for _, methods in PAPERS.values() for name in methods]
    lines = (json.dumps(described[name], ensure_ascii=False) for name in ordered)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def everything(name: str) -> dict[str, Any]:
    """All about one method: settings with defaults and meanings, presets, deviations, the paper's numbers."""
    from veilrec.methods.base import configure

    method = get(name)
    config, rounds = configure(method, preset="tuned", dataset="")
    return describe(method) | {
        "tuned_rounds": rounds,
        "source": source_of(name),
        "settings": list(settings_of(method)),
        "preset_settings": {preset: dict(values) for preset, values in method.presets.items()},
        "deviations": list(method.deviations),
        "guarantee_in_full": method.guarantee(config).to_json(),
        "private_relative": method.private_relative,
        "published": dict(method.published),
        "exemptions": [asdict(exemption) for exemption in method.exemptions],
    }


def settings_of(method: Method[Any]) -> Iterator[dict[str, Any]]:
    """Every setting that --set accepts: its default, what preset tuned makes of it, what it may be, what it is."""
    from veilrec.methods.base import configure, leaves

    config, _ = configure(method, preset="tuned", dataset="")
    tuned = dict(leaves(config.model_dump(mode="json")))
    for found in _fields_of(method.config, method.config().model_dump(mode="json"), ""):
        yield found | {"tuned": tuned.get(found["name"], found["default"])}


def _fields_of(kind: type[Any], values: Mapping[str, Any], prefix: str) -> Iterator[dict[str, Any]]:
    comments = _comments(kind)
    for name, annotation in _annotations(kind):
        value = values.get(name)
        if isinstance(value, Mapping) and isinstance(annotation, type):
            yield from _fields_of(annotation, value, f"{prefix}{name}.")
        else:
            choices = list(get_args(annotation)) if get_origin(annotation) is Literal else []
            yield {"name": prefix + name, "default": value, "choices": choices, "about": comments.get(name, "")}


def _annotations(kind: type[Any]) -> list[tuple[str, Any]]:
    if is_dataclass(kind):
        from typing import get_type_hints

        hints = get_type_hints(kind)
        return [(field.name, hints[field.name]) for field in fields(kind) if field.default is not MISSING or field.init]
    return [(name, info.annotation) for name, info in kind.model_fields.items()]


def _comments(kind: type[Any]) -> dict[str, str]:
    """The comments behind the fields of a class and of those that it extends."""
    found: dict[str, str] = {}
    for parent in reversed(kind.__mro__):
        try:
            source = inspect.getsource(parent)
        except (OSError, TypeError):
            continue
        found |= dict(_COMMENT.findall(source))
    return found


def main() -> None:
    """Write the index anew: `python -m veilrec.methods.registry`, after a method has changed what it says of itself."""
    from veilrec.core.files import write_text

    write_text(INDEX, make_index())


if __name__ == "__main__":
    main()
