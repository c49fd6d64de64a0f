"""User encoder of a release in numpy: a small program of layers that turns a history into a user vector.

A program is a tree of layers over the matrix of the latest clicks, oldest first. Python and browser clients interpret
the same program; the ONNX file of a release is exported from the same network and checked against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Doubles
from veilrec.wire.releases import BadRelease

Program = Mapping[str, Any]
Arrays = Mapping[str, NDArray[Any]]
_SMALLEST = 1e-12
_DEEPEST = 16  # layers inside of each other


class UserEncoder:
    """A program with its weights; a user vector of any history, also of an empty one."""

    def __init__(self, program: Program, weights: Arrays) -> None:
        self.dim, self.longest = int(program["dim"]), int(program["longest"])
        self._user, self._empty = program["user"], program["empty"]
        self._weights = {name: np.asarray(values, np.float64) for name, values in weights.items()}
        _check(self._user, 0)
        if self._empty is not None and self._empty not in self._weights:
            raise BadRelease(f"the encoder of the release names a tensor {self._empty!r}, and there is none")

    def user(self, clicks: Doubles) -> Doubles:
        """[clicks, dim], oldest first -> [dim]; only the latest ones count."""
        recent = np.asarray(clicks, np.float64)[-self.longest :].reshape(-1, self.dim)
        if self._empty is not None and not len(recent):
            vector = self._weights[self._empty]
        else:
            vector = self._of(self._user, recent)
        if vector.shape != (self.dim,):
            raise BadRelease(f"the encoder of the release gives {vector.shape} and not {self.dim} numbers")
        return vector

    def _of(self, layer: Program, history: Doubles) -> Doubles:
        return _LAYERS[layer["op"]](self, layer, history)

    def _weight(self, name: str) -> Doubles:
        if name not in self._weights:
            raise BadRelease(f"the encoder of the release names a tensor {name!r}, and there is none")
        return self._weights[name]

    def _history(self, layer: Program, history: Doubles) -> Doubles:
        return history

    def _latest(self, layer: Program, history: Doubles) -> Doubles:
        return self._of(layer["of"], history)[-int(layer["count"]) :]

    def _self_attention(self, layer: Program, history: Doubles) -> Doubles:
        values = self._of(layer["of"], history)
        heads, projections = int(layer["heads"]), self._weight(f"{layer['weights']}.projections.weight")
        width = len(projections) // (3 * heads)
        projected = (values @ projections.T).reshape(len(values), 3, heads, width).transpose(1, 2, 0, 3)
        queries, keys, content = projected  # [heads, clicks, width] each
        mixed = _softmax(queries @ keys.transpose(0, 2, 1) / np.sqrt(width)) @ content
        return np.asarray(mixed.transpose(1, 0, 2).reshape(len(values), heads * width))

    def _attend(self, layer: Program, history: Doubles) -> Doubles:
        values, name = self._of(layer["of"], history), layer["weights"]
        hidden = np.tanh(values @ self._weight(f"{name}.hidden.weight").T + self._weight(f"{name}.hidden.bias"))
        weights = _softmax(hidden @ self._weight(f"{name}.query.weight")[0])
        return np.asarray(weights @ values)

    def _gru(self, layer: Program, history: Doubles) -> Doubles:
        values, name = self._of(layer["of"], history), layer["weights"]
        steps = values @ self._weight(f"{name}.inputs.weight").T + self._weight(f"{name}.inputs.bias")
        recurrent, bias = self._weight(f"{name}.recurrent.weight"), self._weight(f"{name}.recurrent.bias")
        size = recurrent.shape[1]
        state = self._of(layer["start"], history) if layer.get("start") else np.zeros(size)
        for step in steps:
            old = recurrent @ state + bias
            reset, update = _sigmoid(step[: 2 * size] + old[: 2 * size]).reshape(2, size)
            new = np.tanh(step[2 * size :] + reset * old[2 * size :])
            state = new + update * (state - new)
        return state

    def _linear(self, layer: Program, history: Doubles) -> Doubles:
        value, name = self._of(layer["of"], history), layer["weights"]
        return np.asarray(self._weight(f"{name}.weight") @ value + self._weight(f"{name}.bias"))

    def _concat(self, layer: Program, history: Doubles) -> Doubles:
        return np.concatenate([self._of(part, history) for part in layer["of"]])

    def _stack(self, layer: Program, history: Doubles) -> Doubles:
        return np.stack([self._of(part, history) for part in layer["of"]])

    def _scale(self, layer: Program, history: Doubles) -> Doubles:
        return np.asarray(self._of(layer["of"], history) * self._weight(layer["weights"])[0])

    def _public_head(self, layer: Program, history: Doubles) -> Doubles:
        parts = [int(part) for part in layer["parts"]]
        mean = history[:, : sum(parts)].sum(axis=0) / max(1, len(history))
        sentence = mean[: parts[0]]
        direction = sentence / max(float(np.linalg.norm(sentence)), _SMALLEST)
        personal = np.concatenate((direction, mean[parts[0] :])) * np.repeat(self._weight("scales"), parts)
        return np.concatenate((personal, self._weight("taste")))


_Layer = Callable[[UserEncoder, Program, Doubles], Doubles]
_LAYERS: dict[str, _Layer] = {
    "history": UserEncoder._history,
    "latest": UserEncoder._latest,
    "self-attention": UserEncoder._self_attention,
    "attend": UserEncoder._attend,
    "gru": UserEncoder._gru,
    "linear": UserEncoder._linear,
    "concat": UserEncoder._concat,
    "stack": UserEncoder._stack,
    "scale": UserEncoder._scale,
    "public-head": UserEncoder._public_head,
}


def _check(layer: Any, depth: int) -> None:
    """Refuse a program that this client does not understand, before anything is encoded with it."""
    if depth > _DEEPEST or not isinstance(layer, Mapping) or layer.get("op") not in _LAYERS:
        raise BadRelease("the encoder of the release has a layer that this veilrec does not know: update it")
    inner = layer.get("of", ())
    for part in (*(inner if isinstance(inner, list | tuple) else [inner]), *filter(None, [layer.get("start")])):
        _check(part, depth + 1)


def _softmax(scores: Doubles) -> Doubles:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _sigmoid(values: Doubles) -> Doubles:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)))
