"""A Population in a folder: one `.npy` file per array, memory-mapped when it is read, and a manifest.

What was read once is kept so in the cache, and the next start maps it instead of parsing it.

The layout is flat: `users.offsets.npy`, `interactions.items.npy`, `impressions.0.shown.items.npy` and so on.
Names that come from the data (context columns, splits) stand in the manifest and are numbered in file names.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from veilrec.core import features
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.features import Features, Side
from veilrec.core.files import new_folder, sha256, write_json
from veilrec.core.resources import cache_folder
from veilrec.data.population import Impressions, Interactions, ItemTable, Population, Strings

_FORMAT = 2
_MANIFEST = "manifest.json"
_KIND = "veilrec population"
_log = logging.getLogger("veilrec")
_DIGITS = 16  # of a digest in a folder's name

Arrays: TypeAlias = dict[str, NDArray[Any]]
_Part = TypeVar("_Part", Interactions, Impressions, ItemTable)


def save(population: Population, folder: Path, *, replace: bool = False) -> None:
    """Write a population to a folder: whole, or not at all. One that is there is refused, or given up for the new."""
    arrays = _take_apart(population)
    manifest = {
        "kind": _KIND,
        "format": _FORMAT,
        "name": population.name,
        "facts": dict(population.facts),
        "context": list(population.interactions.context),
        "impressions": list(population.impressions),
        "features": None if population.features is None else _listed(population.features),
        "arrays": {name: [str(array.dtype), *array.shape] for name, array in arrays.items()},
    }
    try:
        with new_folder(folder, replace=replace) as part:
            for name, array in arrays.items():
                np.save(part / f"{name}.npy", array, allow_pickle=False)
            write_json(part / _MANIFEST, manifest)
    except OSError as error:
        raise BadInput(f"{folder} cannot be written ({_reason(error)}): make room, or give another place") from None


def _reason(error: OSError) -> str:
    """Return why a file could not be written; numpy reports a full disk as a short write."""
    if error.errno is None and "requested and" in str(error):
        return os.strerror(errno.ENOSPC)
    return error.strerror or str(error)


def is_packed(folder: Path) -> bool:
    """Whether a folder holds a packed population."""
    try:
        return bool(json.loads((folder / _MANIFEST).read_bytes())["kind"] == _KIND)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def load(folder: Path) -> Population:
    """Read a packed population; its arrays stay on disk until they are touched."""
    if not is_packed(folder):
        raise BadInput(f"{folder} is no packed population (no {_MANIFEST}): write one with `veilrec data import`")
    manifest = json.loads((folder / _MANIFEST).read_bytes())
    if manifest["format"] != _FORMAT:
        raise BadInput(
            f"{folder} has format {manifest['format']}, this veilrec reads {_FORMAT}: import the files again"
        )
    arrays = {name: _map_array(folder / f"{name}.npy", stated) for name, stated in manifest["arrays"].items()}
    return _put_together(manifest, arrays)


def _map_array(path: Path, stated: list[Any]) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise BadInput(f"{path} is missing or damaged: import the files again") from None
    if [str(array.dtype), *array.shape] != stated:
        raise BadInput(f"{path} is not what the manifest says it is: import the files again")
    plain: NDArray[Any] = array.view(np.ndarray)  # np.memmap's own class makes every slice slower
    return plain


def _take_apart(population: Population) -> Arrays:
    arrays: Arrays = {}
    log, catalogue, known = population.interactions, population.catalogue, population.features
    values = {name: log.context_values.get(name) for name in log.context}
    for name in ("users", "items", "impressions", "catalogue"):
        value = getattr(population, name)
        _flatten(arrays, name, _numbered(value) if isinstance(value, Mapping) else value)
    _flatten(arrays, "interactions", {**_fields(log), "context_values": _numbered(values)})
    if catalogue is not None and catalogue.entity_vectors is not None:
        _flatten(arrays, "catalogue.entity_names", catalogue.entity_vectors[0])
        arrays["catalogue.entity_vectors"] = catalogue.entity_vectors[1]
    if population.fixed_test is not None:
        arrays["fixed_test.items"], arrays["fixed_test.negatives"] = population.fixed_test
    for name, side in () if known is None else (("users", known.users), ("items", known.items)):
        _flatten(arrays, f"features.{name}", {"codes": side.codes, "numbers": side.numbers})
    return arrays


def _flatten(arrays: Arrays, name: str, value: Any) -> None:
    """Add every array within a value under its dotted name; None adds nothing."""
    if isinstance(value, np.ndarray):
        arrays[name] = value
    elif isinstance(value, Strings):
        arrays |= {f"{name}.offsets": value.offsets, f"{name}.data": value.data}
    elif isinstance(value, Csr):
        arrays |= {f"{name}.offsets": value.offsets, f"{name}.items": value.items}
    elif value is not None:
        for key, inner in (value if isinstance(value, dict) else _fields(value)).items():
            _flatten(arrays, f"{name}.{key}", inner)


def _fields(value: Any) -> dict[str, Any]:
    """Fields of a dataclass; mappings by the numbers of their keys, and without pairs."""
    found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {
        name: _numbered(inner) if isinstance(inner, Mapping) else inner
        for name, inner in found.items()
        if not isinstance(inner, tuple)
    }


def _numbered(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(values.values())}


def _listed(known: Features) -> dict[str, Any]:
    return {"users": known.users.to_json(), "items": known.items.to_json()}


def _put_together(manifest: Mapping[str, Any], arrays: Arrays) -> Population:
    context = {name: f"interactions.context.{number}" for number, name in enumerate(manifest["context"])}
    values = {name: _found(arrays, place.replace("context", "context_values")) for name, place in context.items()}
    names = _found(arrays, "catalogue.entity_names")
    vectors = None if names is None else (names, arrays["catalogue.entity_vectors"])
    has_catalogue, has_test = "catalogue.titles.offsets" in arrays, "fixed_test.items" in arrays
    return Population(
        name=manifest["name"],
        users=_found(arrays, "users"),
        items=_found(arrays, "items"),
        interactions=_built(
            Interactions,
            "interactions",
            arrays,
            context={name: arrays[place] for name, place in context.items()},
            context_values={name: value for name, value in values.items() if value is not None},
        ),
        impressions={
            name: _built(Impressions, f"impressions.{number}", arrays)
            for number, name in enumerate(manifest["impressions"])
        },
        catalogue=_built(ItemTable, "catalogue", arrays, entity_vectors=vectors) if has_catalogue else None,
        facts=manifest["facts"],
        features=_features(manifest["features"], arrays),
        fixed_test=(arrays["fixed_test.items"], arrays["fixed_test.negatives"]) if has_test else None,
    )


def _built(kind: type[_Part], name: str, arrays: Arrays, **known: Any) -> _Part:
    """Build a dataclass from the arrays below a name; a field without arrays keeps its default."""
    others = [field.name for field in dataclasses.fields(kind) if field.name not in known]
    found = {other: _found(arrays, f"{name}.{other}") for other in others}
    return kind(**{other: value for other, value in found.items() if value is not None}, **known)


def _found(arrays: Arrays, name: str) -> Any:
    """Return the array, strings or rows of that name, or None."""
    if f"{name}.data" in arrays:
        return Strings(arrays[f"{name}.offsets"], arrays[f"{name}.data"])
    if f"{name}.items" in arrays:
        return Csr(arrays[f"{name}.offsets"], arrays[f"{name}.items"])
    return arrays.get(name)


def _features(listed: Mapping[str, Any] | None, arrays: Arrays) -> Features | None:
    if listed is None:
        return None
    sides = [
        Side(
            Side.from_json(listed[name]).features, arrays[f"features.{name}.codes"], arrays[f"features.{name}.numbers"]
        )
        for name in ("users", "items")
    ]
    return Features(*sides)


def remembered(name: str, sources: Sequence[Path], read: Callable[[], Population], *, how: str = "") -> Population:
    """The population that `read` makes of the sources: from the cache if it is there, else read and kept.

    An entry is keyed by the contents of the source files, by `how` they are read, and by the code of this package: a
    changed file or reader is read anew, and the entry that it replaces goes.
    """
    entry = _cache_entry(name, sources, how)
    try:
        return load(entry)
    except BadInput:  # not there, or damaged
        shutil.rmtree(entry, ignore_errors=True)
    population = read()
    try:
        save(population, entry)
    except BadInput as error:
        if not is_packed(entry):  # else another process has written the same entry meanwhile
            _log.warning("the cache is not used: %s; or set VEILREC_CACHE, for faster starts", error)
            return population
    _remove_outdated(entry)
    return load(entry)


def _remove_outdated(entry: Path) -> None:
    source, _ = entry.name.rsplit("-", 1)
    for outdated in entry.parent.glob(f"{source}-*"):
        if outdated != entry:
            shutil.rmtree(outdated, ignore_errors=True)


def _cache_entry(name: str, sources: Sequence[Path], how: str) -> Path:
    places = "\n".join("/".join(path.parts[-2:]) for path in sources)
    source = hashlib.sha256(f"{name}\n{places}\n{sha256(sources)}{how}".encode()).hexdigest()
    return cache_folder() / "populations" / f"{name}-{source[:_DIGITS]}-{_digest_of_readers()[:_DIGITS]}"


@cache
def _digest_of_readers() -> str:
    encoders = Path(features.__file__)
    return sha256([*sorted(Path(__file__).parent.glob("*.py")), encoders])
