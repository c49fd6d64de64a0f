"""A trained model on disk, without the data that it was trained on.

The folder `model/` of a run holds what may be shared, and only what is named here: the weights, how they rank, ids and
titles of the items, the guarantee. Nothing in it, names and headers included, depends on any user but for the weights,
which the guarantee is about. `private/clients.safetensors` beside it holds what the simulated clients keep.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import save_file

from veilrec.client.rankers import Arrays, Ranker
from veilrec.core.arrays import Bools
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.files import OWNER_ONLY, new_folder, replacing, write_json
from veilrec.core.state import StoredState
from veilrec.data.population import Strings
from veilrec.evaluation.split import Marks
from veilrec.methods.registry import exists, get
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.checkpoint import MODEL, PRIVATE, private_folder, read_config

# Every way of ranking by its kind; its module is imported when it is asked for, since news need torch.
RANKERS = {
    "matrix-factorisation": "veilrec.client.rankers:MfRanker",
    "neumf": "veilrec.client.ncf:NeumfRanker",
    "least-squares": "veilrec.client.rankers:FcfRanker",
    "item-item": "veilrec.client.rankers:EaseRanker",
    "popularity": "veilrec.client.rankers:PopularityRanker",
    "own-history": "veilrec.client.rankers:OwnHistoryRanker",
    "neighbours": "veilrec.client.rankers:NeighbourRanker",
    "self-attention": "veilrec.client.rankers:SasRecRanker",
    "private-least-squares": "veilrec.client.closed_form:PrivateAlsRanker",
    "gram": "veilrec.client.closed_form:GramRanker",
    "random": "veilrec.client.rankers:RandomRanker",
    "veil": "veilrec.client.veil_ranker:VeilRanker",
    "veil-news": "veilrec.methods.veil.news:VeilNewsRanker",
    "features": "veilrec.client.reptile:FeatureRanker",
    "news": "veilrec.methods.news.ranker:NewsRanker",
}
_FORMAT = 1
_RANKER, _TABLES, _WEIGHTS = "ranker.json", "ranker.safetensors", "model.safetensors"
_ITEMS, _GUARANTEE = "items.safetensors", "guarantee.json"
_CLIENTS = "clients.safetensors"
_WEIGHT, _SENT, _STATE, _LEARNT = "weight.", "sent", "state.", "learnt_from."


@dataclass(frozen=True)
class ModelFiles:
    """What the folder `model/` says."""

    method: str
    ranker: Ranker
    weights: Arrays
    sent: Bools | None  # the items that any round was about; None: all
    items: Strings
    titles: Strings | None
    guarantee: Guarantee
    categories: Strings | None = None  # of the items, where the catalogue has some


@dataclass(frozen=True)
class Clients:
    """What the simulated clients of a run keep to themselves; a client is a row."""

    users: Strings  # their ids
    trained_on: Csr  # the items that each learnt from
    used: Csr  # all items that each has ever used: none of them is recommended
    states: Arrays  # [users, ...] each
    learnt_from: Marks | None = None  # the impressions, where there are any
    liked: Csr | None = None  # of what was used, that which may be learnt from; None: all of it


def save_model(folder: Path, model: ModelFiles) -> None:
    """Write the folder `model/` of a run, in place of an older one."""
    kind = model.ranker.kind
    weights = {f"{_WEIGHT}{name}": values for name, values in model.weights.items()}
    if model.sent is not None:
        weights[_SENT] = model.sent
    with new_folder(folder / MODEL, replace=True) as part:
        about = {"format": _FORMAT, "method": model.method, "kind": kind}
        _write(part / _WEIGHTS, weights)
        # ids, titles and categories are public, and the same whoever has used the items
        named = {"ids": model.items, "titles": model.titles, "categories": model.categories}
        _write(part / _ITEMS, {key: v for name, strings in named.items() for key, v in _packed(name, strings).items()})
        tables = model.ranker.tables(model.weights)
        if tables:
            _write(part / _TABLES, tables)
        write_json(part / _GUARANTEE, model.guarantee.to_json())
        write_json(part / _RANKER, about | {"settings": model.ranker.settings()})


def find_model(folder: Path) -> Path:
    """Find the folder of the model of a run; also the given one, if it is a `model/` folder by itself."""
    for place in (folder / MODEL, folder):
        if (place / _RANKER).is_file():
            return place
    read_config(folder)  # refuses what is no run
    raise BadInput(f"{folder} has no model yet: its training is not finished; go on with --resume, or train again")


def load_model(place: Path, method: str | None = None) -> ModelFiles:
    """Read a folder that `save_model` wrote; `method` is the file of an outside method that ranks in its own way."""
    try:
        about = json.loads((place / _RANKER).read_text(encoding="utf-8"))
        if about["format"] != _FORMAT:
            raise BadInput(f"{place} has format {about['format']}, this veilrec reads {_FORMAT}: train again")
        tables = _read(place / _TABLES) if (place / _TABLES).exists() else {}
        stored, items = _read(place / _WEIGHTS), _read(place / _ITEMS)
        guarantee = _guarantee_in(place / _GUARANTEE)
        return ModelFiles(
            method=str(about["method"]),
            ranker=_ranker_of(place, about, method).restored(about["settings"], tables),
            weights=_under(stored, _WEIGHT),
            sent=stored.get(_SENT),
            items=Strings(items["ids.offsets"], items["ids.data"]),
            titles=_unpacked(items, "titles"),
            guarantee=guarantee,
            categories=_unpacked(items, "categories"),
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, ValidationError) as error:
        raise BadInput(f"{place} is no whole model ({_first_line(error)}): train again") from None


@contextmanager
def saved_clients(folder: Path, clients: Clients) -> Iterator[None]:
    """Write what simulated clients keep, for the owner of the run alone; put in its place when all else is."""
    arrays = _packed("users", clients.users) | {f"{_STATE}{name}": v for name, v in clients.states.items()}
    for name, rows in (("trained_on", clients.trained_on), ("used", clients.used), ("liked", clients.liked)):
        if rows is not None:
            arrays |= {f"{name}.offsets": rows.offsets, f"{name}.items": rows.items}
    if clients.learnt_from is not None:
        arrays |= {f"{_LEARNT}{name}": values for name, values in vars(clients.learnt_from).items()}
    with _written(private_folder(folder) / _CLIENTS, arrays, mode=OWNER_ONLY):
        yield


def load_clients(folder: Path) -> Clients:
    """Read what `saved_clients` wrote."""
    path = folder / PRIVATE / _CLIENTS
    if not path.exists():
        raise BadInput(f"{folder} knows no users: {PRIVATE}/{_CLIENTS} is not there; for anybody give --history")
    try:
        stored = _read(path)
        users = Strings(stored["users.offsets"], stored["users.data"])
        trained_on, used = (Csr(stored[f"{n}.offsets"], stored[f"{n}.items"]) for n in ("trained_on", "used"))
        liked = Csr(stored["liked.offsets"], stored["liked.items"]) if "liked.items" in stored else None
        learnt_from = Marks(**marks) if (marks := _under(stored, _LEARNT)) else None
        return Clients(users, trained_on, used, _under(stored, _STATE), learnt_from, liked)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise BadInput(f"{path} is damaged ({_first_line(error)}): train again") from None


def _ranker_of(place: Path, about: Mapping[str, Any], method: str | None) -> type[Ranker]:
    """The way of ranking that a model names: ours, or that of an outside method, whose code no model can name."""
    kind = about["kind"]
    if kind not in RANKERS:
        return _outside_ranker(place, kind, method or str(about["method"]))
    module, _, name = RANKERS[kind].partition(":")
    found: type[Ranker] = getattr(import_module(module), name)
    return found


def load_guarantee(place: Path) -> Guarantee:
    """What a folder that `save_model` wrote promises."""
    try:
        return _guarantee_in(place / _GUARANTEE)
    except (OSError, ValueError) as error:
        raise BadInput(f"{place} is no whole model ({_first_line(error)}): train again") from None


def _guarantee_in(path: Path) -> Guarantee:
    try:
        return Guarantee.from_json(json.loads(path.read_text(encoding="utf-8")))
    except BadInput as error:
        raise BadInput(f"{path} is damaged ({error}): train again") from None


def _outside_ranker(place: Path, kind: str, method: str) -> type[Ranker]:
    if not exists(method):
        raise BadInput(
            f"{place} was made by the method {method}, which ranks in a way of its own ({kind}) and is not installed:"
            " install the package that brings it, or give its file with --method FILE.py"
        )
    brought: dict[str, type[Ranker]] = {ranker.kind: ranker for ranker in get(method).rankers}
    if kind not in brought:
        raise BadInput(
            f"{place} ranks in the way {kind!r}, and {method} brings {', '.join(brought) or 'no ranker'}:"
            " use the version that trained it"
        )
    return brought[kind]


def _write(path: Path, arrays: Arrays) -> None:
    with _written(path, arrays):
        pass


@contextmanager
def _written(path: Path, arrays: Arrays, *, mode: int = 0o644) -> Iterator[None]:
    whole = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    with replacing(path, mode=mode) as part:
        save_file(whole, part)  # without metadata, whose order the library leaves to chance
        yield


def _read(path: Path) -> dict[str, NDArray[Any]]:
    return dict(StoredState(path))


def _under(arrays: Arrays, prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}


def _packed(name: str, strings: Strings | None) -> dict[str, NDArray[Any]]:
    return {} if strings is None else {f"{name}.offsets": strings.offsets, f"{name}.data": strings.data}


def _unpacked(arrays: Arrays, name: str) -> Strings | None:
    return Strings(arrays[f"{name}.offsets"], arrays[f"{name}.data"]) if f"{name}.data" in arrays else None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
