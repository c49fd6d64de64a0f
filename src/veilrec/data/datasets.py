"""Every data set that veilrec knows, and the way from its name to a Population.

`DATASETS` (datasets.yaml) says what a set is, whose it is, which files it has, and who reads it. `load` takes `NAME`,
`NAME:PATH` or `NAME:key=value,...`, finds the files and reads them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

import yaml
from pydantic import TypeAdapter

from veilrec.core.errors import BadInput, known_name, unknown_name, written_name
from veilrec.core.resources import cache_folder

if TYPE_CHECKING:
    from veilrec.data.delimited import CsvOptions
    from veilrec.data.population import Population

Kind = Literal["ratings", "news", "own file", "synthetic"]
_LARGEST_OPTION = 2**63 - 1  # compiled code takes no larger whole number


@dataclass(frozen=True)
class Archive:
    """What is downloaded for a data set, and how we know that it is the right one."""

    file: str
    addresses: tuple[str, ...]  # folders that hold the file: the official one, then mirrors
    md5: str | None = None  # as the publisher gives it
    sha256_inside: Mapping[str, str] = field(default_factory=dict)  # of unpacked files


@dataclass(frozen=True)
class Dataset:
    """One data set, as `veilrec data list` shows it."""

    name: str
    title: str
    kind: Kind
    reader: str  # module:function of veilrec.data, imported when the set is read; gives a Population
    licence: str
    how_to_get: str
    files: tuple[str, ...] = ()  # official names that the reader uses, plain or with .gz; may be globs
    marks: tuple[str, ...] = ()  # one of these makes a folder the data set's; the first is tried first
    archive: Archive | None = None  # None: it cannot be fetched by a program


_LISTED = yaml.safe_load(Path(__file__).with_name("datasets.yaml").read_text("utf-8"))
DATASETS: Mapping[str, Dataset] = {
    name: TypeAdapter(Dataset).validate_python({"name": name, **about}) for name, about in _LISTED.items()
}
SYNTHETIC = ("synthetic-news", "synthetic-ratings")  # data of nobody


def find_dataset(name: str) -> Dataset:
    """The data set of that name."""
    return DATASETS[known_name("data set", name, DATASETS)]


def full_spec(spec: str) -> str:
    """Normalise the name of the data set in a specification to its spelling in `DATASETS`."""
    name, colon, rest = spec.strip().partition(":")
    return f"{written_name(name, DATASETS) or name}{colon}{rest}"


def short_name(spec: str) -> str:
    """What a data set is called in the names of folders: an own log as its file or folder."""
    name, _, rest = full_spec(spec).partition(":")
    own = name in DATASETS and DATASETS[name].kind == "own file" and rest
    return re.sub(r"[^\w.-]+", "-", named_after(Path(rest).expanduser(), name)) if own else name


@dataclass(frozen=True)
class Spec:
    """What the user asked for: a data set, and either a path or options."""

    dataset: Dataset
    path: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def parse(spec: str) -> Spec:
    """Take a specification apart; only the first colon counts, so that `csv:C:\\logs\\clicks.csv` works."""
    name, colon, rest = spec.strip().partition(":")
    if spec and written_name(name, DATASETS) is None and Path(spec).expanduser().exists():
        raise BadInput(f"{spec!r} is a path without a data set's name: write NAME:{spec}, for instance csv:{spec}")
    dataset = find_dataset(name)
    name = dataset.name
    if colon and not rest:
        alone = "" if dataset.kind == "own file" else f"{name} or "
        follows = "users=1000,seed=1" if dataset.kind == "synthetic" else "PATH"
        raise BadInput(f"nothing follows the colon in {spec!r}: write {alone}{name}:{follows}")
    if dataset.kind == "synthetic":
        return Spec(dataset, options=_split_options(spec, rest))
    if dataset.kind == "own file" and not rest:
        raise BadInput(f"{name} needs a path: write {name}:PATH")
    return Spec(dataset, Path(rest).expanduser() if rest else None)


def load(
    spec: str, *, options: Mapping[str, str] | None = None, csv: CsvOptions | None = None, cut: int | None = None
) -> Population:
    """Read or generate the data set that a specification names.

    `options` override its own, `csv` is for csv:FILE, and `cut` for a file of your own: the public moment to cut it at.
    """
    asked = parse(spec)
    if csv is not None and (asked.dataset.name != "csv" or (asked.path is not None and asked.path.is_dir())):
        raise BadInput(
            f"options for columns, times and encodings are for csv:FILE, not for {spec}: leave them out"
            + (" (what was imported is read as it is)" if asked.dataset.name == "csv" else "")
        )
    if cut is not None and (asked.dataset.kind != "own file" or (asked.path is not None and asked.path.is_dir())):
        raise BadInput(f"--cut is for a file of your own, and {spec} has its cut: leave it out")
    chosen = {**asked.options, **(options or {})}
    if asked.dataset.kind == "synthetic":
        generate = _reader(asked.dataset)
        return generate(**_typed_options(generate, chosen))
    if chosen:
        raise BadInput(f"{asked.dataset.name} takes no options, got {', '.join(chosen)}: leave them out")
    if asked.dataset.kind == "own file":
        return _load_own(asked, csv, cut)
    from veilrec.data.packed import remembered

    folder = locate(asked)
    sources = _matches(folder, asked.dataset.files)
    return remembered(asked.dataset.name, sources, lambda: _reader(asked.dataset)(folder))


def locate(asked: Spec) -> Path:
    """The folder with a published data set's files: the path given, `$VEILREC_DATA/NAME`, or the cache's."""
    dataset = asked.dataset
    if asked.path is not None:
        if not asked.path.is_dir():
            problem = "is a file, not a folder" if asked.path.exists() else "is not there"
            raise BadInput(f"{asked.path} {problem}: {_what_is_expected(dataset)}")
        return _folder_within(asked.path, dataset)
    for place in _places(dataset):
        if place.is_dir():
            return _folder_within(place, dataset)
    looked = " or ".join(str(place) for place in _places(dataset))
    unset = "" if os.environ.get("VEILREC_DATA") else " (VEILREC_DATA is not set)"
    raise BadInput(f"{dataset.name} was not found in {looked}{unset}: {_what_is_expected(dataset)}")


def whereabouts(dataset: Dataset) -> Path | None:
    """Where a published data set's files lie, or None."""
    if not dataset.marks:
        return None
    try:
        return locate(Spec(dataset))
    except BadInput:
        return None


def datasets_folder() -> Path:
    """Where `veilrec data fetch` puts the files that it downloads."""
    return cache_folder() / "datasets"


def _places(dataset: Dataset) -> list[Path]:
    data = os.environ.get("VEILREC_DATA")
    chosen = [Path(data).expanduser() / dataset.name] if data else []
    return [*chosen, datasets_folder() / dataset.name]


def _load_own(asked: Spec, csv: CsvOptions | None, cut: int | None) -> Population:
    path, name = asked.path, asked.dataset.name
    if path is None or not path.exists():
        raise BadInput(f"{path} is not there: give the path of a file, or of a folder from `veilrec data import`")
    from veilrec.data import packed
    from veilrec.data.own_features import beside, read_schema

    if path.is_dir():
        population = packed.load(path)
        right = "impressions" if population.impressions else "csv"
        if right != name:
            held = "impressions" if population.impressions else "uses of items, and no impressions"
            raise BadInput(f"{path} holds {held}: write {right}:{path}")
    else:
        read = _reader(asked.dataset)
        how: dict[str, Any] = {"cut": cut} if csv is None else {"cut": cut, "options": csv}
        schema = beside(path) if name == "csv" else None
        sources = [path, *([] if schema is None else read_schema(schema).sources)]
        if len(sources) > 1:
            how["features"] = sources[1]
        population = packed.remembered(name, sources, lambda: read(path, **how), how=f"{csv} {cut}")
    return replace(population, name=named_after(path, name)) if population.name == name else population


def named_after(path: Path, otherwise: str) -> str:
    """What an own log is called in reports: as its file or folder, unless a published data set is called so."""
    name = path.resolve().name
    for ending in (".gz", ".csv", ".tsv", ".txt", ".jsonl", ".json", ".parquet"):
        name = name.removesuffix(ending)
    return otherwise if not name or written_name(name, DATASETS) else name


def _reader(dataset: Dataset) -> Callable[..., Population]:
    module, _, function = dataset.reader.partition(":")
    reader: Callable[..., Population] = getattr(import_module(f"veilrec.data.{module}"), function)
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
    raise BadInput(f"no {dataset.marks[0]} (or {dataset.marks[0]}.gz) in {folder}: {_what_is_expected(dataset)}")


def _matches(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    found = {path for pattern in patterns for end in ("", ".gz") for path in folder.glob(pattern + end)}
    return sorted(path for path in found if path.is_file())


def _what_is_expected(dataset: Dataset) -> str:
    return (
        f"expected is a folder with {dataset.marks[0]} (plain or .gz), given as {dataset.name}:PATH "
        f"or put in $VEILREC_DATA/{dataset.name} or {datasets_folder() / dataset.name}; get it with "
        f"{dataset.how_to_get}"
    )


def _typed_options(generate: Callable[..., Population], options: Mapping[str, str]) -> dict[str, int | float]:
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
        if abs(typed[key]) > _LARGEST_OPTION:
            raise BadInput(f"option {key}={value} is too large: write for instance {key}=100")
    return typed


def _split_options(spec: str, text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise BadInput(f"{part!r} in {spec!r} is no option: write key=value, separated by commas")
        if key in options:
            raise BadInput(f"option {key!r} stands twice in {spec!r}: give it once")
        options[key] = value
    return options
