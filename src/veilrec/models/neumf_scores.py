"""NeuMF without torch: its sizes, its network as the compiled code has it, and its scores.

score(u, i) = w_g . (p_u^g * q_i^g) + w_h . h_L + b,  h_l = relu(W_l h_{l-1} + b_l),  h_0 = [p_u^m ; q_i^m]
(He et al., Neural Collaborative Filtering, 2017: GMF, MLP and their fusion). As h_0 is two vectors end to end,
W_1 h_0 = W_1^u p_u + W_1^i q_i: the user's half is the same for all items, the items' half for all users.
Every matrix is filled up with zeros to whole vectors. What the padding holds stays zero: it meets only zeros, and has
only zeros as its gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec._matrix import aligned, dot, set_rectified_product, whole_blocks, whole_vectors
from veilrec._vector import LANES

ITEMS = "items"
TILE = 128  # examples at a time: few enough that all their activations stay in the second cache
_ZERO = np.float32(0.0)


class Tower(NamedTuple):
    """Where everything lies: for l = 1..L W_l [out, in] (of W_1 the item's half) and b_l, then W_1^u, w_g, w_h, b."""

    gmf: int  # the length of w_g, and where the second half of a row [gmf | mlp] starts
    row: int
    widths: Offsets  # [L + 1]: what layer l gives; widths[0] is the item's half of the input
    layers_at: Offsets  # [L + 1]: where layer l + 1 starts in the network; last, where W_1^u does
    output_at: Offsets  # [4]: where w_g, w_h and b start, and the end of the network
    rows_at: Offsets  # [L + 2]: where a tile holds what layer l gives, in units of TILE
    panels_at: Offsets  # [L + 1]: where the transposed W_l starts among the panels
    places: Offsets  # [flat]: where each weight of the flat network lies


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


def make_tile(tower: Tower) -> Floats:
    """Space for what every layer gives to a tile of examples."""
    return aligned(TILE * int(tower.rows_at[-1]))


def make_panels(tower: Tower) -> Floats:
    """Space for the transposed layers."""
    return aligned(int(tower.panels_at[-1]))


@jit
def layer_weights(tower: Tower, network: Floats, layer: int) -> Floats:
    """W_l [out, in] of layer l >= 1; of the first, the half that meets the item."""
    outputs, inputs, start = tower.widths[layer], tower.widths[layer - 1], tower.layers_at[layer - 1]
    return network[start : start + outputs * inputs].reshape(outputs, inputs)


@jit
def layer_bias(tower: Tower, network: Floats, layer: int) -> Floats:
    """b_l of layer l >= 1."""
    end = tower.layers_at[layer]
    return network[end - tower.widths[layer] : end]


@jit
def user_weights(tower: Tower, network: Floats) -> Floats:
    """W_1^u [out, in]: the half of the first layer that meets the user."""
    return network[tower.layers_at[-1] : tower.output_at[0]].reshape(tower.widths[1], tower.widths[0])


@jit
def output_weights(tower: Tower, network: Floats) -> tuple[Floats, Floats, Floats]:
    """w_g, w_h and b of the output layer."""
    gmf, hidden, bias = tower.output_at[0], tower.output_at[1], tower.output_at[2]
    return network[gmf:hidden], network[hidden:bias], network[bias : bias + 1]


@jit
def layer_rows(tower: Tower, tile: Floats, layer: int, size: int) -> Floats:
    """What layer l gives to the first `size` examples of a tile: [size, width]."""
    start, end = TILE * tower.rows_at[layer], TILE * tower.rows_at[layer + 1]
    return tile[start:end].reshape(TILE, tower.widths[layer])[:size]


@jit
def layer_panel(tower: Tower, panels: Floats, layer: int) -> Floats:
    """The transposed W_l: [in, out]."""
    panel = panels[tower.panels_at[layer - 1] : tower.panels_at[layer]]
    return panel.reshape(tower.widths[layer - 1], tower.widths[layer])


@jit
def fill_panels(tower: Tower, network: Floats, panels: Floats) -> None:
    """Transpose every layer: a product needs the weights of all outputs for one input side by side."""
    for layer in range(1, len(tower.widths)):
        weights, panel = layer_weights(tower, network, layer), layer_panel(tower, panels, layer)
        for first in range(0, len(weights), LANES):  # few enough lines at a time that all stay in the cache
            for i in range(len(panel)):
                for o in range(first, first + LANES):
                    panel[i, o] = weights[o, i]


@jit
def user_half(tower: Tower, network: Floats, user: Floats, out: Floats) -> None:
    """out = W_1^u p_u^m + b_1."""
    bias, weights = layer_bias(tower, network, 1), user_weights(tower, network)
    for o in range(len(out)):
        out[o] = bias[o] + dot(weights[o], user, len(user))


@jit
def finish_forward(tower: Tower, network: Floats, panels: Floats, tile: Floats, size: int) -> None:
    """From what the first layer gives: what every other does. `size` is a whole number of blocks."""
    for layer in range(2, len(tower.widths)):
        below, above = layer_rows(tower, tile, layer - 1, size), layer_rows(tower, tile, layer, size)
        bias = layer_bias(tower, network, layer).reshape(1, tower.widths[layer])
        set_rectified_product(below, layer_panel(tower, panels, layer), bias, above)


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
