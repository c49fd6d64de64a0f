"""Registry of methods: built-in ones (methods.yaml), plugins of installed packages, and files.

A method's module is imported when the method is requested. `veilrec methods` lists all of them without importing any:
it reads an index that is derived from the methods and cached under a digest of this package's source, so that a change
of any file makes a new one.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml

from veilrec.core.errors import BadInput, known_name, written_name
from veilrec.core.resources import cache_folder
from veilrec.methods import plugins

if TYPE_CHECKING:
    from veilrec.methods.base import Method


T = TypeVar("T")
_LISTED: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("methods.yaml").read_text("utf-8"))
PAPERS: dict[str, str] = {key: group["title"] for key, group in _LISTED.items()}
STATED: dict[str, dict[str, Any]] = {}  # of every built-in method, what the file says of it
for _group in _LISTED.values():
    STATED |= _group["methods"]
METHODS: dict[str, str] = {name: about["where"] for name, about in STATED.items()}


def names() -> list[str]:
    """Names of built-in methods, then of plugins, without importing any."""
    return [*METHODS, *plugins.installed(METHODS).found]


def refused() -> list[str]:
    """Describe each plugin that cannot be used because of its name, one line each."""
    return list(plugins.installed(METHODS).refused)


def exists(name: str) -> bool:
    """Whether a name is that of a built-in method, a plugin or a file."""
    return plugins.is_file(name) or written_name(name, METHODS) is not None or written_name(name, names()) is not None


def full_name(name: str) -> str:
    """Canonical spelling of a method's name; for a file, its absolute path and the attribute in it."""
    if plugins.is_file(name):
        return plugins.whole_path(name)
    return written_name(name, METHODS) or known_name("method", name, names(), all_by="veilrec methods")


def source_of(name: str) -> str | None:
    """Origin of a plugin, for config.yaml: package with version, or file; None for a built-in method."""
    if plugins.is_file(name):
        return plugins.whole_path(name)
    found = plugins.installed(METHODS).found if written_name(name, METHODS) is None else {}
    return found[name].package if name in found else None


def short_name(name: str) -> str:
    """Name for tables and plots; a file is run to read the name of the method in it."""
    return get(name).name if plugins.is_file(name) else full_name(name)


def code_of(name: str) -> str | None:
    """Identify the code of a plugin: its package with version, or a digest of its file; None for a built-in method."""
    return plugins.digest(name) if plugins.is_file(name) else source_of(name)


def get(name: str) -> Method[Any]:
    """Load a method by its name, in any case, or from FILE.py or FILE.py:NAME."""
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
    """Load every built-in method, in the order of the registry."""
    return [get(name) for name in METHODS]


def paper_of(name: str) -> str:
    """Key in PAPERS of the group of a built-in method."""
    return next(key for key, group in _LISTED.items() if name in group["methods"])


_COMMENT = re.compile(r"^ {4}(\w+): [^#\n]*  # (.+?) *$", re.MULTILINE)


def describe(method: Method[Any]) -> dict[str, Any]:
    """Summarise a method for `veilrec methods --json`; the guarantee is that of its default configuration."""
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
    """Describe the built-in methods that match the filters, by paper; without filters, also name the plugins.

    `paper` is a key of PAPERS, or any words of a method's own citation.
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
    """Descriptions of the built-in methods, grouped by paper; cached, because making them imports every method."""
    return cached("index", lambda: [describe(method) for method in all_methods()])


def cached(name: str, derive: Callable[[], T]) -> T:
    """What is derived from the built-in methods, ready for JSON: kept until a file of this package changes."""
    digest, folder = _source_digest(), cache_folder() / "methods"
    path = folder / f"{digest}-{name}.json"
    try:
        found: T = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        from veilrec.core.files import write_text

        found = derive()
        with suppress(OSError):  # a cache that cannot be written costs some seconds each time
            folder.mkdir(parents=True, exist_ok=True)
            for outdated in folder.glob("*.json"):
                if not outdated.name.startswith(digest):
                    outdated.unlink(missing_ok=True)
            write_text(path, json.dumps(found, ensure_ascii=False))
    return found


def _source_digest() -> str:
    """Digest of path, size and time of change of every module of the package."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted([*package.rglob("*.py"), *package.glob("methods/**/*.yaml")]):
        about = path.stat()
        digest.update(f"{path}:{about.st_size}:{about.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


def everything(name: str) -> dict[str, Any]:
    """Describe one method in full: settings with defaults and meanings, presets, deviations, published numbers."""
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
    """Describe every setting that --set accepts: default, value in preset tuned, choices, meaning."""
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
        hints = get_type_hints(kind)
        return [(field.name, hints[field.name]) for field in fields(kind) if field.default is not MISSING or field.init]
    return [(name, info.annotation) for name, info in kind.model_fields.items()]


def _comments(kind: type[Any]) -> dict[str, str]:
    """Trailing comments of the fields of a class and its bases, by field."""
    found: dict[str, str] = {}
    for parent in reversed(kind.__mro__):
        try:
            source = inspect.getsource(parent)
        except (OSError, TypeError):
            continue
        found |= dict(_COMMENT.findall(source))
    return found
