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
from typing import TYPE_CHECKING

from veilrec._files import sha256
from veilrec.errors import BadInput

if TYPE_CHECKING:
    from veilrec.data.population import Population

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
    from veilrec.data import packed

    entry = _entry(name, sources)
    try:
        return packed.load(entry)
    except BadInput:  # not there, or damaged
        shutil.rmtree(entry, ignore_errors=True)
    population = read()
    try:
        packed.save(population, entry)
    except (OSError, BadInput) as error:
        if not packed.is_packed(entry):  # else another process has written the same entry meanwhile
            _warn(error)
            return population
    _remove_outdated(entry)
    return packed.load(entry)


def _warn(error: Exception) -> None:
    reason = error.strerror if isinstance(error, OSError) else error
    advice = "set VEILREC_CACHE to a folder that can, for faster starts"
    _log.warning("the cache %s cannot be written (%s): %s", cache_folder(), reason, advice)


def _remove_outdated(entry: Path) -> None:
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
