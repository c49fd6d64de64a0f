"""A catalogue that a device ranks by itself with `veil`: all that this takes, in few bytes, from a signed release.

Similarities, text vectors, the basis and the items' places have 16 bits a number, codes as many as they need, and
what else was learnt has 32. A device in Python and one in a browser read the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from veilrec._arrays import Floats, Indices
from veilrec._csr import Csr
from veilrec.device.released import one_history
from veilrec.device.veil import Steps
from veilrec.device.veil_history import Reading, Told
from veilrec.device.veil_ranker import Learnt, VeilModel, VeilRanker
from veilrec.models.scores import RestsOn
from veilrec.models.veil_content import ALONE, Content
from veilrec.models.veil_places import Places
from veilrec.wire.releases import BadRelease, Release, whole_numbers

RANKING_FILE = "ranking.safetensors"
RANKS = "veil"
FORMULAS = (1, 2)  # by which scores are made, 2: with two passes of places; a device that does not know them refuses
_CONTENT, _PLACES, _WHITENING = "content.", "places.", "whitening"
_POPULARITY, _WEIGHTS, _MAP = "learnt.popularity", "learnt.weights", "learnt.map"
_HALF = {f"{_CONTENT}{name}" for name in ("tables", "texts", "basis")}
_HALF |= {f"{_PLACES}{field.name}" for field in fields(Places)}
_LONG = {f"{_CONTENT}{name}" for name in ("starts", "widths")}
_LARGEST_HALF = 65_000.0  # that 16 bits hold
_WHOLE = (np.uint8, np.int8, np.uint16, np.int16, np.int32)  # the narrowest that holds all is taken
_NOBODY = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))
_ONE: NDArray[np.int64] = np.zeros(1, np.int64)


def program_of(ranker: VeilRanker) -> dict[str, Any]:
    """What a manifest says of the way of ranking."""
    return {
        "ranks": RANKS,
        "formulas": FORMULAS[ranker.reading.place_passes - 1],
        "reading": asdict(ranker.reading),
        "caution": ranker.caution,
        "draws_seed": ranker.draws_seed,
    }


def packed(ranker: VeilRanker, learnt: Learnt) -> dict[str, NDArray[Any]]:
    """The arrays that go with it."""
    told = learnt.told
    wide = {**ranker.content.arrays(_CONTENT), _WHITENING: ranker.whitening}
    wide |= {_POPULARITY: told.popularity, _WEIGHTS: learnt.weights, _MAP: learnt.map}
    wide |= {_PLACES + field.name: getattr(told.places, field.name) for field in fields(Places)}
    return {name: _narrow(name, values) for name, values in wide.items()}


def _narrow(name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind in "iu":
        low, high = int(values.min(initial=0)), int(values.max(initial=0))
        fits = (kind for kind in _WHOLE if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
        return values.astype(next(fits))
    if name in _HALF:
        return np.asarray(np.clip(values, -_LARGEST_HALF, _LARGEST_HALF), np.float16)
    return values.astype(np.float32)


def unpacked(program: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], n_items: int) -> VeilModel:
    """What ranks, with the numbers as they were released; BadRelease for anything that does not fit together."""
    if program.get("ranks") != RANKS or program.get("formulas") not in FORMULAS:
        raise BadRelease(f"the release ranks in the way {program.get('ranks')!r}, which is not known: update veilrec")
    try:
        wide = {name: _wide(name, arrays[name]) for name in arrays}
        content = Content.from_arrays(wide, _CONTENT)
        places = Places(**{field.name: wide[_PLACES + field.name] for field in fields(Places)})
        reading = TypeAdapter(Reading).validate_python(program["reading"])
        if (
            FORMULAS.index(program["formulas"]) + 1 != reading.place_passes
            or len(places.values.T) % reading.place_passes
        ):
            raise BadRelease("the release has passes of places that are not alike: get it again")
        told = Told.of(wide[_POPULARITY], places, content, reading.place_passes)
        learnt = Learnt(told, wide[_WEIGHTS], wide[_MAP])
        caution, seed = float(program["caution"]), int(program["draws_seed"])
        ranker = VeilRanker(content, reading, wide[_WHITENING], Steps(units={}, shares={}), caution, seed)
        _check(ranker, learnt, n_items)
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        if isinstance(error, BadRelease):
            raise
        raise BadRelease(f"the ranking of the release is not whole ({type(error).__name__}): get it again") from None
    return VeilModel(ranker, learnt, _NOBODY)


def _wide(name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    return values.astype(np.int64 if name in _LONG else np.int32)


def _check(ranker: VeilRanker, learnt: Learnt, n_items: int) -> None:
    """Shapes that belong together, finite numbers, and no number that leads out of a table."""
    content, reading = ranker.content, ranker.reading
    n_tables, n_kernels, places = len(content.widths), len(content.kernels), learnt.told.places
    n_features, directions = reading.features(content), places.values.shape[1]
    width = content.basis.shape[1] + directions
    for values, shape in (
        (content.codes, (n_tables, n_items)),
        (content.starts, (n_tables,)),
        (content.tables, (int((content.widths**2).sum()),)),
        (content.texts, (n_items, content.texts.shape[1])),
        (content.kernels, (n_kernels, 2)),
        (content.scales, (n_kernels,)),
        (content.basis, (n_items, content.basis.shape[1])),
        (ranker.whitening, (n_features, n_features)),
        (learnt.told.popularity, (n_items, 2)),
        (learnt.weights, (n_features,)),
        (learnt.map, (reading.tastes(width), width)),
        *((getattr(places, field.name), (n_items, directions)) for field in fields(places)),
    ):
        whole_numbers(values, *shape)
    similarities = n_tables + (2 if content.texts.shape[1] else 0)
    inside = (
        (content.codes >= 0).all()
        and (content.codes < content.widths[:, np.newaxis]).all()
        and np.array_equal(content.starts, np.cumsum(content.widths**2) - content.widths**2)
        and (content.kernels[:, 0] >= 0).all()
        and (content.kernels >= ALONE).all()
        and (content.kernels < similarities).all()
    )
    if not inside:
        raise BadRelease("the ranking of the release leads out of its tables: get it again")


class ReleasedCatalogue:
    """`veil` on a device: the history is read in its order, and nothing is asked."""

    def __init__(self, release: Release) -> None:
        program = release.manifest["encoder"]
        if program is None:
            raise BadRelease(f"release {release.name} is a catalogue and does not say how it ranks: get it again")
        self.n_items = int(release.manifest["sizes"]["items"])
        self._model = unpacked(program, release.arrays(RANKING_FILE), self.n_items)

    def scores(self, history: Indices) -> Floats:
        """Of every item."""
        found: Floats = self._model.fold_in(one_history(history)).score_all(_ONE)[0]
        return found

    def rests_on(self, history: Indices) -> RestsOn:
        """What a list is made of."""
        return self._model.rests_on(history)
