"""From `NAME`, `NAME:PATH` or `NAME:key=value,...` to a Population: where the files lie, and reading them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, get_args, get_type_hints

from veilrec.data.cache import datasets_folder, remembered
from veilrec.data.registry import DATASETS, Dataset, find_dataset
from veilrec.errors import BadInput, unknown_name

if TYPE_CHECKING:
    from veilrec.data.population import Population


_LARGEST = 2**63 - 1  # compiled code takes no larger whole number


@dataclass(frozen=True)
class Spec:
    """What the user asked for: a data set, and either a path or options."""

    dataset: Dataset
    path: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def parse(spec: str) -> Spec:
    """Take a specification apart; only the first colon counts, so that `csv:C:\\logs\\clicks.csv` works."""
    name, colon, rest = spec.strip().partition(":")
    if spec and name not in DATASETS and Path(spec).expanduser().exists():
        raise BadInput(f"{spec!r} is a path without a data set's name: write NAME:{spec}, for instance csv:{spec}")
    dataset = find_dataset(name)
    if colon and not rest:
        alone = "" if dataset.kind == "own file" else f"{name} or "
        raise BadInput(f"nothing follows the colon in {spec!r}: write {alone}{name}:{_what_may_follow(dataset)}")
    if dataset.kind == "made up":
        return Spec(dataset, options=_options(spec, rest))
    if dataset.kind == "own file" and not rest:
        raise BadInput(f"{name} needs a path: write {name}:PATH")
    return Spec(dataset, Path(rest).expanduser() if rest else None)


def load(spec: str, *, options: Mapping[str, str] | None = None) -> Population:
    """Read or make up the data set that a specification names; `options` override those in it."""
    asked = parse(spec)
    chosen = {**asked.options, **(options or {})}
    if asked.dataset.kind == "made up":
        generate = _reader(asked.dataset)
        return generate(**_typed(generate, chosen))
    if chosen:
        raise BadInput(f"{asked.dataset.name} takes no options, got {', '.join(chosen)}: leave them out")
    if asked.dataset.kind == "own file":
        return _load_own(asked)
    return _load_published(asked.dataset, locate(asked))


def locate(asked: Spec) -> Path:
    """The folder with a published data set's files: the path given, `$VEILREC_DATA/NAME`, or the cache's."""
    dataset = asked.dataset
    if asked.path is not None:
        if not asked.path.is_dir():
            problem = "is a file, not a folder" if asked.path.exists() else "is not there"
            raise BadInput(f"{asked.path} {problem}: {_expected(dataset)}")
        return _folder_within(asked.path, dataset)
    for place in _places(dataset):
        if place.is_dir():
            return _folder_within(place, dataset)
    looked = " or ".join(str(place) for place in _places(dataset))
    unset = "" if os.environ.get("VEILREC_DATA") else " (VEILREC_DATA is not set)"
    raise BadInput(f"{dataset.name} was not found in {looked}{unset}: {_expected(dataset)}")


def whereabouts(dataset: Dataset) -> Path | None:
    """Where a published data set's files lie, or None."""
    if not dataset.marks:
        return None
    try:
        return locate(Spec(dataset))
    except BadInput:
        return None


def _places(dataset: Dataset) -> list[Path]:
    data = os.environ.get("VEILREC_DATA")
    chosen = [Path(data).expanduser() / dataset.name] if data else []
    return [*chosen, datasets_folder() / dataset.name]


def _load_own(asked: Spec) -> Population:
    path, name = asked.path, asked.dataset.name
    if path is None or not path.exists():
        raise BadInput(f"{path} is not there: give the path of a file, or of a folder from `veilrec data import`")
    if path.is_dir():
        from veilrec.data import packed

        return packed.load(path)
    return remembered(name, [path], lambda: _reader(asked.dataset)(path))


def _load_published(dataset: Dataset, folder: Path) -> Population:
    sources = _matches(folder, dataset.files)
    return remembered(dataset.name, sources, lambda: _reader(dataset)(folder))


def _reader(dataset: Dataset) -> Callable[..., Population]:
    module = import_module(f"veilrec.data.{dataset.module}")
    reader: Callable[..., Population] = getattr(module, dataset.function)
    return reader


def _folder_within(folder: Path, dataset: Dataset) -> Path:
    """The folder itself or the one folder in it that holds the data set's files."""
    for mark in dataset.marks:
        if _matches(folder, (mark,)):
            return folder
        inside = [child for child in sorted(folder.iterdir()) if child.is_dir() and _matches(child, (mark,))]
        if len(inside) > 1:
            names = ", ".join(child.name for child in inside)
            raise BadInput(f"{folder} holds several folders with {mark} ({names}): give the path of one of them")
        if inside:
            return inside[0]
    raise BadInput(f"no {dataset.marks[0]} (or {dataset.marks[0]}.gz) in {folder}: {_expected(dataset)}")


def _matches(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    found = {path for pattern in patterns for end in ("", ".gz") for path in folder.glob(pattern + end)}
    return sorted(path for path in found if path.is_file())


def _expected(dataset: Dataset) -> str:
    return (
        f"expected is a folder with {dataset.marks[0]} (plain or .gz), given as {dataset.name}:PATH "
        f"or put in $VEILREC_DATA/{dataset.name} or {datasets_folder() / dataset.name}; get it with "
        f"{dataset.how_to_get}"
    )


def _what_may_follow(dataset: Dataset) -> str:
    return "users=1000,seed=1" if dataset.kind == "made up" else "PATH"


def _typed(generate: Callable[..., Population], options: Mapping[str, str]) -> dict[str, int | float]:
    """The options as the numbers that the generator's parameters ask for."""
    hints = {name: hint for name, hint in get_type_hints(generate).items() if name != "return"}
    typed: dict[str, int | float] = {}
    for key, value in options.items():
        if key not in hints:
            raise unknown_name("option", key, hints)
        number = float if float in (get_args(hints[key]) or (hints[key],)) else int
        try:
            typed[key] = number(value)
        except ValueError:
            wanted = "a number" if number is float else "a whole number"
            raise BadInput(f"option {key}={value} is not {wanted}: write for instance {key}=100") from None
        if abs(typed[key]) > _LARGEST:
            raise BadInput(f"option {key}={value} is too large: write for instance {key}=100")
    return typed


def _options(spec: str, text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise BadInput(f"{part!r} in {spec!r} is no option: write key=value, separated by commas")
        if key in options:
            raise BadInput(f"option {key!r} stands twice in {spec!r}: give it once")
        options[key] = value
    return options
