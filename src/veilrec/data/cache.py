"""What was read once is kept packed, so that the next start maps it instead of parsing it.

An entry is keyed by the contents of the source files and by the code of this room: a changed file or reader
is read anew, and the entry that it replaces goes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from veilrec._files import sha256
from veilrec.data import packed
from veilrec.data.population import Population
from veilrec.errors import BadInput

_log = logging.getLogger("veilrec")
_DIGITS = 16  # of a digest in a folder's name


def cache_folder() -> Path:
    """`$VEILREC_CACHE`, or `~/.cache/veilrec`."""
    chosen = os.environ.get("VEILREC_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "veilrec"


def datasets_folder() -> Path:
    """Where `veilrec data fetch` puts the files that it downloads."""
    return cache_folder() / "datasets"


def remembered(name: str, sources: Sequence[Path], read: Callable[[], Population]) -> Population:
    """The population that `read` makes of the sources: from the cache if it is there, else read and kept."""
    entry = _entry(name, sources)
    if packed.is_packed(entry):
        try:
            return packed.load(entry)
        except BadInput:
            shutil.rmtree(entry, ignore_errors=True)
    population = read()
    try:
        _keep(population, entry)
    except OSError as error:
        _log.warning(
            "the cache %s cannot be written (%s): set VEILREC_CACHE to a folder that can, for faster starts",
            cache_folder(),
            error.strerror or error,
        )
        return population
    return packed.load(entry)


def _keep(population: Population, entry: Path) -> None:
    try:
        packed.save(population, entry)
    except BadInput:
        return  # another process has written the same entry meanwhile
    source, _ = entry.name.rsplit("-", 1)
    for outdated in entry.parent.glob(f"{source}-*"):
        if outdated != entry:
            shutil.rmtree(outdated, ignore_errors=True)


def _entry(name: str, sources: Sequence[Path]) -> Path:
    places = "\n".join("/".join(path.parts[-2:]) for path in sources)
    source = hashlib.sha256(f"{name}\n{places}\n{sha256(sources)}".encode()).hexdigest()
    return cache_folder() / "populations" / f"{name}-{source[:_DIGITS]}-{_code()[:_DIGITS]}"


@cache
def _code() -> str:
    return sha256(sorted(Path(__file__).parent.glob("*.py")))
