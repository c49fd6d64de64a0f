"""NeuMF without torch: where its weights lie, and its scores, compiled.

score(u, i) = w_g . (p_u^g * q_i^g) + w_h . h_L + b,  h_l = relu(W_l h_{l-1} + b_l),  h_0 = [p_u^m ; q_i^m]
(He et al., Neural Collaborative Filtering, 2017: GMF, MLP and their fusion). As h_0 is two vectors end to end,
W_1 h_0 = W_1^u p_u + W_1^i q_i: the user's half is the same for all items, the items' half for all users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec._matrix import add_combination, add_product, aligned, dot, fill

ITEMS = "items"
TILE = 256  # examples at a time: few enough that all their activations stay in the second cache
TILE_STRIDE = TILE + 16  # one cache line more, so that the rows of a tile do not fall on the same sets
STRIDE = 32  # tiles are filled up to a multiple of this: what a vector loop takes in one turn


class Tower(NamedTuple):
    """Where everything lies, for the compiled code."""

    gmf: int
    mlp: int
    widths: Offsets  # [L + 1]: what layer l gives; widths[0] is the item's half of the input
    weights_at: Offsets  # [L + 1]: where layer l + 1 (W, then b) starts in the flat network; last, the output
    rows_at: Offsets  # [L + 2]: the rows of a tile that hold what layer l gives


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

    def tower(self) -> Tower:
        """The layout, for the compiled code."""
        widths = np.array([self.mlp, *self.layers], np.int64)
        inputs = np.array([2 * self.mlp, *self.layers[:-1]], np.int64)
        weights_at = np.concatenate([[0], np.cumsum((inputs + 1) * widths[1:])])
        return Tower(self.gmf, self.mlp, widths, weights_at, np.concatenate([[0], np.cumsum(widths)]))


def make_tile(tower: Tower) -> Floats:
    """Space for what every layer gives to a tile of examples."""
    return aligned(int(tower.rows_at[-1]), TILE_STRIDE)


@jit
def layer_weights(tower: Tower, network: Floats, layer: int) -> Floats:
    """W_l [out, in] of layer l >= 1; of the first, the half that meets the item."""
    outputs = tower.widths[layer]
    skipped = tower.mlp if layer == 1 else 0
    inputs = tower.widths[layer - 1] + skipped
    start = tower.weights_at[layer - 1]
    return network[start : start + outputs * inputs].reshape(outputs, inputs)[:, skipped:]


@jit
def layer_bias(tower: Tower, network: Floats, layer: int) -> Floats:
    """b_l of layer l >= 1."""
    end = tower.weights_at[layer]
    return network[end - tower.widths[layer] : end]


@jit
def layer_rows(tower: Tower, tile: Floats, layer: int) -> Floats:
    """The rows of a tile that hold what layer l gives."""
    return tile[tower.rows_at[layer] : tower.rows_at[layer + 1]]


@jit
def output_weights(tower: Tower, network: Floats) -> tuple[Floats, Floats, Floats]:
    """w_g, w_h and b of the output layer."""
    start = tower.weights_at[-1]
    middle = start + tower.gmf
    return network[start:middle], network[middle:-1], network[-1:]


@jit
def user_half(tower: Tower, network: Floats, user: Floats, out: Floats) -> None:
    """out = W_1^u p_u + b_1."""
    width = 2 * tower.mlp
    bias = layer_bias(tower, network, 1)
    for o in range(tower.widths[1]):
        out[o] = bias[o] + dot(network[o * width : o * width + tower.mlp], user[tower.gmf :], tower.mlp)


@jit
def finish_forward(tower: Tower, network: Floats, tile: Floats, scores: Floats, size: int) -> None:
    """From W_1 h_0 + b_1 in the first layer's rows: every layer's output, and scores = w_h . h_L + b."""
    deepest = len(tower.widths) - 1
    _rectify(layer_rows(tower, tile, 1), size)
    for layer in range(2, deepest + 1):
        below, above = layer_rows(tower, tile, layer - 1), layer_rows(tower, tile, layer)
        bias = layer_bias(tower, network, layer)
        for o in range(len(above)):
            fill(above[o], bias[o], size)
        add_product(layer_weights(tower, network, layer), below, above, size)
        _rectify(above, size)
    _, weights, bias = output_weights(tower, network)
    fill(scores, bias[0], size)
    add_combination(weights, layer_rows(tower, tile, deepest), scores, size)


@jit
def _rectify(rows: Floats, size: int) -> None:
    for o in range(len(rows)):
        row = rows[o]
        for j in range(size):
            row[j] = max(row[j], np.float32(0.0))


class NeumfScores:
    """NeuMF bound to a set of users."""

    def __init__(self, shape: NeumfShape, users: Floats, weights: Mapping[str, Floats]) -> None:
        self.shape = shape
        self.users = users
        self.items = weights[ITEMS]
        self.n_items = len(self.items)
        self._network = shape.flat(weights)
        item_half = weights["layer1.weight"][:, shape.mlp :]  # W_1^i
        self._item_terms: Floats = self.items[:, shape.gmf :] @ item_half.T  # [items, widths[1]]

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
        tower = self.shape.tower()
        _score_lists(
            tower, make_tile(tower), self._network, self.users, rows, self.items, self._item_terms, lists, out
        )
        return out


@jit
def _score_lists(
    tower: Tower,
    tile: Floats,
    network: Floats,
    user_rows: Floats,
    users: Offsets,
    item_rows: Floats,
    item_terms: Floats,
    lists: Indices,  # [T, C], or [1, C] where all users share one list
    out: Floats,
) -> None:
    scores = np.zeros(TILE, np.float32)
    user_terms = np.empty(tower.widths[1], np.float32)
    gmf_weights = np.empty(tower.gmf, np.float32)  # w_g * p_u^g
    weights, _, _ = output_weights(tower, network)
    for case in range(len(users)):
        user = user_rows[users[case]]
        items = lists[case % len(lists)]
        user_half(tower, network, user, user_terms)
        for q in range(tower.gmf):
            gmf_weights[q] = weights[q] * user[q]
        for begin in range(0, len(items), TILE):
            size = min(TILE, len(items) - begin)
            first = layer_rows(tower, tile, 1)
            for j in range(size):
                terms = item_terms[items[begin + j]]
                for o in range(len(terms)):
                    first[o, j] = terms[o] + user_terms[o]
            finish_forward(tower, network, tile, scores, -(-size // STRIDE) * STRIDE)
            for j in range(size):
                gmf = dot(gmf_weights, item_rows[items[begin + j]], tower.gmf)
                out[case, begin + j] = scores[j] + gmf
