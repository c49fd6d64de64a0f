"""A model on somebody's own device: adapted once to a history, kept in a file that only the owner reads, asked often.

What is adapted, the history and what is known of its owner are personal and never part of anything that is shared: no
mechanism covers them, because they do not leave.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save

from veilrec._arrays import Floats
from veilrec._csr import Csr
from veilrec._files import write_bytes
from veilrec._state import StoredState
from veilrec.device.feature_ranker import FeatureModel
from veilrec.errors import BadInput
from veilrec.features import CODES, NUMBERS, Side
from veilrec.runs.saved import Recommendation, SavedModel, best_of

_WEIGHTS, _HISTORY, _MODEL = "weights", "history", "model"
_OWNER_ONLY = 0o600


@dataclass(frozen=True)
class PersonalModel:
    """Weights that a device has adapted to its owner."""

    model: SavedModel
    history: tuple[str, ...]  # that it was adapted to, by the ids of items that the model knows
    people: Side  # a row: what is known of the owner
    weights: Floats

    def recommend(self, k: int = 10) -> list[Recommendation]:
        """The best items that are not in the history; nothing is learnt any more."""
        feature_model = _adapts(self.model)
        used = self.model.indices(self.history)
        scores = feature_model.scored(self.weights[np.newaxis], self.people)[0]
        return self.model.named(best_of(scores, used, k))

    def save(self, path: str | Path) -> None:
        """Into a file that only its owner can read; whole, or not at all."""
        arrays = {_WEIGHTS: self.weights, _HISTORY: self.model.indices(self.history), **self.people.kept()}
        whole = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
        write_bytes(Path(path), save(whole, {_MODEL: _digest(self.model)}), mode=_OWNER_ONLY)


def adapted(model: SavedModel, history: Sequence[str], about: Mapping[str, str | float] | None = None) -> PersonalModel:
    """Adapt a model to somebody, in milliseconds; items that it does not know are passed over."""
    feature_model = _adapts(model)
    known, _ = model.split_history(history)
    people = model.people.encoded([dict(about or {})])
    used = model.indices(known)
    own = Csr(np.array([0, len(used)], np.int64), used)
    weights = feature_model.fold_in_people(own, people).adapted(np.zeros(1, np.int64))[0]
    return PersonalModel(model, tuple(known), people, weights)


def open_personal(path: str | Path, model: SavedModel) -> PersonalModel:
    """Read what `save` wrote; one that was adapted from another model is refused."""
    feature_model = _adapts(model)
    try:
        stored = StoredState(Path(path))
        made_for = stored.metadata.get(_MODEL)
        weights, used = np.array(stored[_WEIGHTS]), np.array(stored[_HISTORY])
        people = Side(feature_model.people.features, np.array(stored[CODES]), np.array(stored[NUMBERS]))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise BadInput(f"{path} cannot be read ({type(error).__name__}): adapt the model again") from None
    if made_for != _digest(model):
        raise BadInput(f"{path} was adapted from another model: adapt this one, with the history that the device has")
    return PersonalModel(model, tuple(model.items[int(item)] for item in used), people, weights)


def _adapts(model: SavedModel) -> FeatureModel:
    found = model.for_anybody
    if not isinstance(found, FeatureModel):
        raise BadInput(
            f"{model.method} has no weights that adapt to somebody: use recommend, or a method such as privrec,"
            " dp-privrec or popularity-head"
        )
    return found


def _digest(model: SavedModel) -> str:
    """Of all that an adapted model depends on."""
    digest = hashlib.sha256(json.dumps(model.parts.ranker.settings(), sort_keys=True).encode())
    for name in sorted(model.parts.weights):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(model.parts.weights[name]).tobytes())
    return digest.hexdigest()
