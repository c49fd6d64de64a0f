"""NeuMF's network as the compiled code has it: every matrix filled up with zeros to whole vectors.

score(u, i) = w_g . (p_u^g * q_i^g) + w_h . h_L + b,  h_l = relu(W_l h_{l-1} + b_l),  h_0 = [p_u^m ; q_i^m]
(He et al., Neural Collaborative Filtering, 2017: GMF, MLP and their fusion). As h_0 is two vectors end to end,
W_1 h_0 = W_1^u p_u + W_1^i q_i: the user's half is the same for all items, the items' half for all users.
What the padding holds stays zero: it meets only zeros, and has only zeros as its gradient.
"""

from __future__ import annotations

from typing import NamedTuple

from veilrec._arrays import Floats, Offsets
from veilrec._jit import jit
from veilrec._matrix import aligned, dot, set_rectified_product
from veilrec._vector import LANES

TILE = 128  # examples at a time: few enough that all their activations stay in the second cache


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
