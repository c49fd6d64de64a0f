"""A Population in a folder: one `.npy` file per array, memory-mapped when it is read, and a manifest.

What was read once is kept so in the cache, and the next start maps it instead of parsing it.

The layout is flat: `users.offsets.npy`, `interactions.items.npy`, `impressions.train.shown.items.npy` and so on.
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
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veilrec.core import features
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.features import Features, Side
from veilrec.core.files import new_folder, sha256, write_json
from veilrec.core.resources import cache_folder
from veilrec.data.population import Impressions, Interactions, ItemTable, Population, Strings

_FORMAT = 6
_MANIFEST = "manifest.json"
_KIND = "veilrec population"
_log = logging.getLogger("veilrec")
_DIGITS = 16  # of a digest in a folder's name

Arrays: TypeAlias = dict[str, NDArray[Any]]


def save(population: Population, folder: Path, *, replace: bool = False, public: bool = False) -> None:
    """Write a population to a folder: whole, or not at all. One that is there is refused, or given up for the new.

    Only its owner can read it, unless it is `public`: one of synthetic people.
    """
    arrays, known = _flatten({}, "", population), population.features
    manifest = {
        "kind": _KIND,
        "format": _FORMAT,
        "name": population.name,
        "facts": dict(population.facts),
        "cut": population.cut,
        "rating_scale": population.rating_scale,
        "unlisted_items": population.unlisted_items,
        "exact": list(population.exact),
        "impressions": list(population.impressions),
        "features": known and {"users": known.users.to_json(), "items": known.items.to_json()},
        "contexts": population.contexts and population.contexts.to_json(),
        "arrays": {name: [str(array.dtype), *array.shape] for name, array in arrays.items()},
    }
    try:
        with new_folder(folder, replace=replace, private=not public) as part:
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


def _flatten(arrays: Arrays, name: str, value: Any) -> Arrays:
    """Add every array within a value under its dotted name; what is no array adds nothing."""
    if isinstance(value, np.ndarray):
        arrays[name] = value
    elif isinstance(value, Strings):
        arrays |= {f"{name}.offsets": value.offsets, f"{name}.data": value.data}
    elif isinstance(value, Mapping | tuple) or dataclasses.is_dataclass(value):
        if isinstance(value, tuple):
            value = dict(enumerate(value))
        elif not isinstance(value, Mapping):
            value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        for key, inner in value.items():
            _flatten(arrays, f"{name}.{key}" if name else str(key), inner)
    return arrays


def _put_together(manifest: Mapping[str, Any], arrays: Arrays) -> Population:
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *above, last = name.split(".")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
        node[last] = array
    listed, found = manifest["features"], {name: _value(node) for name, node in tree.items()}
    if listed is not None:
        sides = {name: _side(side, found["features"][name]) for name, side in listed.items()}
    contexts = manifest["contexts"]
    return Population(
        manifest["name"],
        found["users"],
        found["items"],
        Interactions(**tree["interactions"]),
        {name: Impressions(**found["impressions"][name]) for name in manifest["impressions"]},
        ItemTable(**found["catalogue"]) if "catalogue" in found else None,
        manifest["facts"],
        None if listed is None else Features(**sides),
        found.get("fixed_test"),
        manifest["cut"],
        None if manifest["rating_scale"] is None else tuple(manifest["rating_scale"]),
        manifest["unlisted_items"],
        tuple(manifest["exact"]),
        None if contexts is None else _side(contexts, found["contexts"]),
    )


def _side(listed: list[dict[str, Any]], arrays: Arrays) -> Side:
    return Side(Side.from_json(listed).features, **arrays)


def _value(node: Any) -> Any:
    """Build strings, rows, tuples and dictionaries from the arrays below a name."""
    if not isinstance(node, dict):
        return node
    if "data" in node:
        return Strings(**node)
    if node.keys() == {"offsets", "items"}:
        return Csr(**node)
    parts = {name: _value(inner) for name, inner in node.items()}
    return tuple(parts.values()) if "0" in parts else parts


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
    readers = sorted(path for path in Path(__file__).parent.iterdir() if path.suffix in (".py", ".yaml"))
    return sha256([*readers, encoders])
