"""NeuMF without torch: its sizes, and its scores, compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec._matrix import aligned, dot, whole_blocks, whole_vectors
from veilrec.models.neumf_tower import (
    TILE,
    Tower,
    fill_panels,
    finish_forward,
    layer_rows,
    make_panels,
    make_tile,
    output_weights,
    user_half,
)

ITEMS = "items"
_ZERO = np.float32(0.0)


@dataclass(frozen=True)
class NeumfShape:
    """The sizes of a NeuMF: an item has a row [gmf | mlp], and so has a user."""

    gmf: int
    mlp: int
    layers: tuple[int, ...]  # widths of the hidden layers

    @property
    def row(self) -> int:
        """Length of an item's row and of a user's vector."""
        return self.gmf + self.mlp

    def network(self) -> dict[str, tuple[int, ...]]:
        """The dense tensors, in the order in which they lie in the flat network."""
        shapes: dict[str, tuple[int, ...]] = {}
        below = 2 * self.mlp  # [user | item]
        for number, width in enumerate(self.layers, start=1):
            shapes[f"layer{number}.weight"] = (width, below)
            shapes[f"layer{number}.bias"] = (width,)
            below = width
        return shapes | {"output.weight": (self.gmf + below,), "output.bias": (1,)}

    def flat(self, weights: Mapping[str, Floats]) -> Floats:
        """The dense tensors end to end."""
        return np.concatenate([weights[name].ravel() for name in self.network()]).astype(np.float32)

    def named(self, flat: Floats) -> dict[str, Floats]:
        """The dense tensors of flat networks [n, size], each [n, *shape]."""
        tensors, start = {}, 0
        for name, shape in self.network().items():
            size = int(np.prod(shape))
            tensors[name] = flat[:, start : start + size].reshape(len(flat), *shape)
            start += size
        return tensors

    def filled_rows(self, rows: Floats) -> Floats:
        """Rows [n, row] with each half filled up to whole vectors; the same ones if they are so already."""
        places, width = self._row_places()
        if width == self.row:
            return rows
        filled = np.zeros((len(rows), width), np.float32)
        filled[:, places] = rows
        return filled

    def bare_rows(self, filled: Floats) -> Floats:
        """The opposite."""
        places, width = self._row_places()
        return filled if width == self.row else filled[:, places]

    def _row_places(self) -> tuple[Offsets, int]:
        """Where the entries of a row lie in one that is filled up, and the length of that."""
        mlp_at = whole_vectors(self.gmf)
        places = np.concatenate([np.arange(self.gmf), mlp_at + np.arange(self.mlp)])
        return places, mlp_at + whole_vectors(self.mlp)

    def tower(self) -> Tower:
        """The layout, for the compiled code."""
        widths = np.array([whole_vectors(width) for width in (self.mlp, *self.layers)], np.int64)
        matrices = widths[:-1] * widths[1:]
        layers_at = _starts(matrices + widths[1:])
        parts = [widths[0] * widths[1], whole_vectors(self.gmf), widths[-1], whole_vectors(1)]
        output_at = (layers_at[-1] + _starts(np.array(parts)))[1:]
        places = self._places(widths, layers_at, output_at)
        return Tower(
            whole_vectors(self.gmf),
            self._row_places()[1],
            widths,
            layers_at,
            output_at,
            _starts(widths),
            _starts(matrices),
            places,
        )

    def _places(self, widths: Offsets, layers_at: Offsets, output_at: Offsets) -> Offsets:
        """Where the weights of the flat network lie in the one that is filled up."""
        parts = []
        for layer, outputs in enumerate(self.layers, start=1):
            stride = int(widths[layer - 1])
            rows = stride * np.arange(outputs)[:, np.newaxis]
            inputs = np.arange(self.mlp if layer == 1 else self.layers[layer - 2])
            weights = layers_at[layer - 1] + rows + inputs
            if layer == 1:
                weights = np.concatenate([layers_at[-1] + rows + inputs, weights], axis=1)  # [user | item]
            parts += [weights.ravel(), layers_at[layer] - widths[layer] + np.arange(outputs)]
        gmf, hidden, bias = output_at[:3]
        parts += [gmf + np.arange(self.gmf), hidden + np.arange(self.layers[-1]), bias + np.arange(1)]
        return np.concatenate(parts).astype(np.int64)


def _starts(sizes: Offsets) -> Offsets:
    """Where parts of these sizes start, end to end, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


class NeumfScores:
    """NeuMF bound to a set of users."""

    def __init__(self, shape: NeumfShape, users: Floats, weights: Mapping[str, Floats]) -> None:
        self.shape = shape
        items = weights[ITEMS]
        self.n_items = len(items)
        self._users, self._items = shape.filled_rows(users), shape.filled_rows(items)
        self._tower = shape.tower()
        self._network = aligned(int(self._tower.output_at[-1]))
        self._network[self._tower.places] = shape.flat(weights)
        item_half = weights["layer1.weight"][:, shape.mlp :]  # W_1^i
        self._item_terms: Floats = items[:, shape.gmf :] @ item_half.T  # [items, layers[0]]

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        everything = np.arange(self.n_items, dtype=np.int32)[np.newaxis]
        return self._score(users, everything, np.empty((len(users), self.n_items), np.float32))

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        lists = np.ascontiguousarray(items, dtype=np.int32)
        return self._score(users, lists, np.empty(items.shape, np.float32))

    def _score(self, users: Offsets, lists: Indices, out: Floats) -> Floats:
        rows = np.ascontiguousarray(users, dtype=np.int64)
        tower = self._tower
        _score_lists(
            tower,
            make_tile(tower),
            make_panels(tower),
            self._network,
            self._users,
            rows,
            self._items,
            self._item_terms,
            lists,
            out,
        )
        return out


@jit
def _score_lists(
    tower: Tower,
    tile: Floats,
    panels: Floats,
    network: Floats,
    user_rows: Floats,
    users: Offsets,
    item_rows: Floats,
    item_terms: Floats,
    lists: Indices,  # [T, C], or [1, C] where all users share one list
    out: Floats,
) -> None:
    user_terms = np.empty(tower.widths[1], np.float32)
    gmf_weights = np.empty(tower.gmf, np.float32)  # w_g * p_u^g
    weights, top_weights, bias = output_weights(tower, network)
    deepest = len(tower.widths) - 1
    fill_panels(tower, network, panels)
    for case in range(len(users)):
        user = user_rows[users[case]]
        items = lists[case % len(lists)]
        user_half(tower, network, user[tower.gmf :], user_terms)
        for q in range(tower.gmf):
            gmf_weights[q] = weights[q] * user[q]
        for begin in range(0, len(items), TILE):
            size = min(TILE, len(items) - begin)
            first = layer_rows(tower, tile, 1, size)
            for j in range(size):
                terms = item_terms[items[begin + j]]
                for o in range(len(terms)):
                    value = terms[o] + user_terms[o]
                    first[j, o] = value if value > _ZERO else _ZERO
            finish_forward(tower, network, panels, tile, whole_blocks(size))
            top = layer_rows(tower, tile, deepest, size)
            for j in range(size):
                gmf = dot(gmf_weights, item_rows[items[begin + j]], tower.gmf)
                out[case, begin + j] = gmf + dot(top[j], top_weights, len(top_weights)) + bias[0]
