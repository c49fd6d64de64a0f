"""A catalogue as a file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Floats
from veilrec.errors import BadInput
from veilrec.server.index.blocks import GROUP, WIDTH, Blocks, Labels
from veilrec.server.index.catalogue import Catalogue
from veilrec.server.index.files import open_arrays, write_arrays
from veilrec.server.index.segments import Part, Segment
from veilrec.server.index.state import State
from veilrec.server.index.vectors import Chunk, Vectors

_FORMAT = 1
_BLOCKS = ("values", "maxima", "group_maxima", "rows", "places")
_LABELS = ("codes", "present", "offsets", "places")


def save(catalogue: Catalogue, path: Path, *, vectors: bool = True) -> None:
    """Write a catalogue, merged; without `vectors`, those that it was made of are not written and are given again."""
    state, interests, expiries = catalogue.merged_state()
    part, (given, *later) = state.parts[0], state.vectors.chunks
    arrays: dict[str, NDArray[Any]] = {"alive": part.alive}
    blocks = part.segment.blocks
    arrays |= {f"blocks.{name}": getattr(blocks, name) for name in _BLOCKS}
    for kind, labels in (("category", blocks.category), ("region", blocks.region)):
        if labels is not None:
            arrays |= {f"{kind}.{name}": getattr(labels, name) for name in _LABELS}
    if part.segment.numbers is not None:
        arrays["numbers"] = part.segment.numbers
    if interests is not None:
        arrays["interests"] = interests
    if vectors:
        arrays["vectors"] = given.vectors
    for chunk in later:
        if chunk.count and chunk.prior is not None and chunk.numbers is not None:
            arrays |= {"later.vectors": chunk.vectors, "later.prior": chunk.prior, "later.numbers": chunk.numbers}
    arrays["expiries.times"] = np.array([time for time, _ in expiries], np.float64)
    arrays["expiries.numbers"] = np.array([number for _, number in expiries], np.int64)
    facts = {
        "format": _FORMAT,
        "block": [WIDTH, GROUP],
        "first": part.segment.first,
        "alive": state.alive,
        "next_number": state.next_number,
        "largest": state.largest,
        "version": state.version,
        "given": list(given.vectors.shape),
    }
    write_arrays(path, arrays, facts)


def open_catalogue(path: Path, vectors: Floats | None = None, *, check: bool = False) -> Catalogue:
    """Open what `save` wrote, mapped into memory; `vectors` are those that the catalogue was made of."""
    stored = open_arrays(path, check=check)
    arrays, facts = stored.arrays, stored.facts
    if facts.get("format") != _FORMAT or facts.get("block") != [WIDTH, GROUP]:
        raise BadInput(f"{path} is of another version of veilrec: remove it, and it is built again from the release")
    given = vectors if vectors is not None else arrays.get("vectors")
    if given is None or list(given.shape) != facts["given"]:
        what = "none" if given is None else f"those of shape {given.shape}"
        raise BadInput(f"{path} needs the vectors that it was made of, {facts['given']}, and got {what}: give those")
    values, maxima, group_maxima, rows, places = (arrays[f"blocks.{name}"] for name in _BLOCKS)
    labels = (_labels(arrays, "category"), _labels(arrays, "region"))
    blocks = Blocks(values, maxima, group_maxima, rows, places, *labels)
    alive = arrays["alive"]
    part = Part(Segment(blocks, arrays.get("numbers"), facts["first"]), alive, len(alive))
    chunks = [Chunk(given, None, None, 0, len(given))]
    if "later.vectors" in arrays:
        numbers = arrays["later.numbers"]
        chunks.append(Chunk(arrays["later.vectors"], arrays["later.prior"], numbers, int(numbers[0]), len(numbers)))
    state = State(
        (part,), Vectors(tuple(chunks)), facts["alive"], facts["next_number"], facts["largest"], facts["version"]
    )
    times, expiring = arrays["expiries.times"].tolist(), arrays["expiries.numbers"].tolist()
    return Catalogue(state, arrays.get("interests"), zip(times, expiring, strict=True))


def _labels(arrays: Mapping[str, NDArray[Any]], kind: str) -> Labels | None:
    return Labels(*(arrays[f"{kind}.{name}"] for name in _LABELS)) if f"{kind}.codes" in arrays else None
