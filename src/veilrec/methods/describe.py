"""What is said of methods: a line each from an index that needs none of them, and everything about one."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from veilrec.errors import known_name
from veilrec.methods.registry import METHODS, PAPERS, all_methods, get, names, paper_of, source_of

if TYPE_CHECKING:
    from veilrec.methods.base import Method

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
    """Write the index anew: `python -m veilrec.methods.describe`, after a method has changed what it says of itself."""
    from veilrec._files import write_text

    write_text(INDEX, make_index())


if __name__ == "__main__":
    main()
