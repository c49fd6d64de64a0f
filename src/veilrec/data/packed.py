"""A Population in a folder: one `.npy` file per array, memory-mapped when it is read, and a manifest.

What was read once is kept so in the cache, and the next start maps it instead of parsing it.

The layout is flat: `users.offsets.npy`, `interactions.items.npy`, `impressions.0.shown.items.npy` and so on.
Names that come from the data (context columns, splits) stand in the manifest and are numbered in file names.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veilrec import features
from veilrec._csr import Csr
from veilrec._files import cache_folder, new_folder, sha256, write_json
from veilrec.data.population import Impressions, Interactions, ItemTable, Population, Strings
from veilrec.errors import BadInput
from veilrec.features import Features, Side

_FORMAT = 2
_MANIFEST = "manifest.json"
_KIND = "veilrec population"
_log = logging.getLogger("veilrec")
_DIGITS = 16  # of a digest in a folder's name

Arrays: TypeAlias = dict[str, NDArray[Any]]


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
    """Why a file could not be written; numpy tells of a full disk by what it could not write."""
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
    log = population.interactions
    arrays: Arrays = {"interactions.offsets": log.offsets, "interactions.items": log.items}
    _add_strings(arrays, "users", population.users)
    _add_strings(arrays, "items", population.items)
    _add(arrays, "interactions.ratings", log.ratings)
    _add(arrays, "interactions.times", log.times)
    for number, (name, codes) in enumerate(log.context.items()):
        arrays[f"interactions.context.{number}"] = codes
        _add_strings(arrays, f"interactions.context_values.{number}", log.context_values.get(name))
    for number, split in enumerate(population.impressions.values()):
        _add_impressions(arrays, f"impressions.{number}", split)
    if population.catalogue is not None:
        _add_catalogue(arrays, population.catalogue)
    if population.fixed_test is not None:
        arrays["fixed_test.items"], arrays["fixed_test.negatives"] = population.fixed_test
    if population.features is not None:
        _add_side(arrays, "features.users", population.features.users)
        _add_side(arrays, "features.items", population.features.items)
    return arrays


def _listed(known: Features) -> dict[str, Any]:
    return {"users": known.users.to_json(), "items": known.items.to_json()}


def _add_side(arrays: Arrays, name: str, side: Side) -> None:
    arrays[f"{name}.codes"] = side.codes
    arrays[f"{name}.numbers"] = side.numbers


def _add(arrays: Arrays, name: str, array: NDArray[Any] | None) -> None:
    if array is not None:
        arrays[name] = array


def _add_strings(arrays: Arrays, name: str, strings: Strings | None) -> None:
    if strings is not None:
        arrays[f"{name}.offsets"] = strings.offsets
        arrays[f"{name}.data"] = strings.data


def _add_csr(arrays: Arrays, name: str, rows: Csr) -> None:
    arrays[f"{name}.offsets"] = rows.offsets
    arrays[f"{name}.items"] = rows.items


def _add_impressions(arrays: Arrays, prefix: str, split: Impressions) -> None:
    arrays[f"{prefix}.users"] = split.users
    arrays[f"{prefix}.times"] = split.times
    _add_csr(arrays, f"{prefix}.shown", split.shown)
    arrays[f"{prefix}.clicked"] = split.clicked
    _add_csr(arrays, f"{prefix}.histories", split.histories)
    arrays[f"{prefix}.history_of"] = split.history_of
    _add(arrays, f"{prefix}.oracle", split.oracle)


def _add_catalogue(arrays: Arrays, catalogue: ItemTable) -> None:
    for column in ("titles", "categories", "subcategories", "abstracts", "entities"):
        _add_strings(arrays, f"catalogue.{column}", getattr(catalogue, column))
    if catalogue.entity_vectors is not None:
        names, vectors = catalogue.entity_vectors
        _add_strings(arrays, "catalogue.entity_names", names)
        arrays["catalogue.entity_vectors"] = vectors


def _put_together(manifest: Mapping[str, Any], arrays: Arrays) -> Population:
    context, context_values = {}, {}
    for number, name in enumerate(manifest["context"]):
        context[name] = arrays[f"interactions.context.{number}"]
        values = _strings(arrays, f"interactions.context_values.{number}")
        if values is not None:
            context_values[name] = values
    fixed_test = None
    if "fixed_test.items" in arrays:
        fixed_test = (arrays["fixed_test.items"], arrays["fixed_test.negatives"])
    return Population(
        name=manifest["name"],
        users=_needed_strings(arrays, "users"),
        items=_needed_strings(arrays, "items"),
        interactions=Interactions(
            arrays["interactions.offsets"],
            arrays["interactions.items"],
            arrays.get("interactions.ratings"),
            arrays.get("interactions.times"),
            context,
            context_values,
        ),
        impressions={
            name: _impressions(arrays, f"impressions.{number}") for number, name in enumerate(manifest["impressions"])
        },
        catalogue=_catalogue(arrays),
        facts=manifest["facts"],
        features=_features(manifest["features"], arrays),
        fixed_test=fixed_test,
    )


def _features(listed: Mapping[str, Any] | None, arrays: Arrays) -> Features | None:
    if listed is None:
        return None
    sides = {
        name: Side(
            Side.from_json(listed[name]).features, arrays[f"features.{name}.codes"], arrays[f"features.{name}.numbers"]
        )
        for name in ("users", "items")
    }
    return Features(sides["users"], sides["items"])


def _needed_strings(arrays: Arrays, name: str) -> Strings:
    return Strings(arrays[f"{name}.offsets"], arrays[f"{name}.data"])


def _strings(arrays: Arrays, name: str) -> Strings | None:
    return _needed_strings(arrays, name) if f"{name}.offsets" in arrays else None


def _csr(arrays: Arrays, name: str) -> Csr:
    return Csr(arrays[f"{name}.offsets"], arrays[f"{name}.items"])


def _impressions(arrays: Arrays, prefix: str) -> Impressions:
    return Impressions(
        users=arrays[f"{prefix}.users"],
        times=arrays[f"{prefix}.times"],
        shown=_csr(arrays, f"{prefix}.shown"),
        clicked=arrays[f"{prefix}.clicked"],
        histories=_csr(arrays, f"{prefix}.histories"),
        history_of=arrays[f"{prefix}.history_of"],
        oracle=arrays.get(f"{prefix}.oracle"),
    )


def _catalogue(arrays: Arrays) -> ItemTable | None:
    if "catalogue.titles.offsets" not in arrays:
        return None
    names = _strings(arrays, "catalogue.entity_names")
    return ItemTable(
        titles=_needed_strings(arrays, "catalogue.titles"),
        categories=_needed_strings(arrays, "catalogue.categories"),
        subcategories=_strings(arrays, "catalogue.subcategories"),
        abstracts=_strings(arrays, "catalogue.abstracts"),
        entities=_strings(arrays, "catalogue.entities"),
        entity_vectors=None if names is None else (names, arrays["catalogue.entity_vectors"]),
    )


def remembered(name: str, sources: Sequence[Path], read: Callable[[], Population], *, how: str = "") -> Population:
    """The population that `read` makes of the sources: from the cache if it is there, else read and kept.

    An entry is keyed by the contents of the source files, by `how` they are read, and by the code of this room: a
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
