"""One step of NeuMF on a batch of one device, compiled: forward, gradient and optimiser in one pass.

What makes it fast, apart from being compiled:
- in a batch of one user, examples of the same item have the same score and the same gradient: each distinct
  item is computed once, weighted by how often it occurs. No row is then needed twice in a batch, and it is
  changed as soon as its tile is done;
- the user's half of the first layer is computed once per batch, and its gradient is one outer product;
- an example's activations lie side by side, as its row does, so that nothing is turned round but the weights,
  and products keep a block of their result in registers (see `veilrec._vector`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from veilrec._arrays import Floats, Indices
from veilrec._jit import jit
from veilrec._matrix import (
    add_combination,
    aligned,
    fill,
    set_gated_product,
    set_product,
    set_rectified_product,
    whole_blocks,
)
from veilrec._vector import LANES, Vector, load, spread, store, total, where_positive
from veilrec.device.inner_loops import sigmoids
from veilrec.device.optimisers import WEIGHTS, Pace, adam, adam_pace, gather, sgd
from veilrec.models.neumf_scores import (
    TILE,
    Tower,
    fill_panels,
    finish_forward,
    layer_bias,
    layer_panel,
    layer_rows,
    layer_weights,
    make_panels,
    make_tile,
    output_weights,
    user_half,
    user_weights,
)

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


class Rules(NamedTuple):
    """How a device learns."""

    epochs: int
    negatives: int
    batch: int  # 0 = the whole epoch
    mean: bool  # the loss of a batch is the mean, not the sum, of its examples' losses
    adam: bool
    still: bool  # only the user learns; the gradients of everything else are added up
    user_rate: np.float32
    item_rate: np.float32  # 0 together with network_rate: only the user learns
    network_rate: np.float32
    decay: np.float32


class DeviceState(NamedTuple):
    """What one device changes in a round, as optimisers have it; rows are filled up to whole vectors."""

    user: Floats  # [1, 3, row]
    network: Floats  # [1, 3, network]
    rows: Floats  # [slots, 3, row]: the items that it has met so far in this round


class DistinctItems(NamedTuple):
    """The distinct items of a batch."""

    slots: Indices  # where each lies in DeviceState.rows
    labels: Floats
    counts: Floats  # how many examples each stands for
    errors: Floats  # sigmoid(score) - label, filled in by the step


class StepScratch(NamedTuple):
    """Space that is made once per call."""

    tile: Floats  # what every layer gives; of layer 0, the item's second half
    deltas: Floats  # the same shape: gradients of the same
    gmf_rows: Floats  # [TILE, gmf]: the item's first half
    panels: Floats  # the transposed layers
    zeros: Floats  # [1, widest]
    ones: Floats  # [TILE]
    slopes: Floats  # [TILE]: d loss / d score
    exponents: Indices  # [TILE]
    user_terms: Floats  # [1, widths[1]]: W_1^u p_u + b_1
    gmf_weights: Floats  # [gmf]: w_g * p_u^g
    gmf_sums: Floats  # [gmf]: sum of slope * q_i^g
    user_gradient: Floats  # [row]
    network_gradient: Floats  # [network]


def make_scratch(tower: Tower) -> StepScratch:
    """Space for one call."""
    return StepScratch(
        tile=make_tile(tower),
        deltas=make_tile(tower),
        gmf_rows=aligned(TILE, tower.gmf),
        panels=make_panels(tower),
        zeros=aligned(1, int(tower.widths.max())),
        ones=np.ones(TILE, np.float32),
        slopes=aligned(TILE),
        exponents=np.zeros(TILE, np.int32),
        user_terms=aligned(1, int(tower.widths[1])),
        gmf_weights=aligned(tower.gmf),
        gmf_sums=aligned(tower.gmf),
        user_gradient=aligned(tower.row),
        network_gradient=aligned(int(tower.output_at[-1])),
    )


@jit
def gather_distinct(slots: Indices, labels: Floats, place: Indices, batch: DistinctItems) -> int:
    """Fill the batch with each distinct item once; `place` needs no clearing: every entry is checked."""
    distinct = 0
    for j in range(len(slots)):
        at = place[slots[j]]
        if at < distinct and batch.slots[at] == slots[j]:
            batch.counts[at] += _ONE
        else:
            place[slots[j]] = distinct
            batch.slots[distinct] = slots[j]
            batch.labels[distinct] = labels[j]
            batch.counts[distinct] = _ONE
            distinct += 1
    return distinct


@jit
def loss_of(batch: DistinctItems, distinct: int) -> float:
    """The sum of the batch's losses before its step: -log(1 - |error|) each."""
    total = 0.0
    for j in range(distinct):
        total -= batch.counts[j] * np.log(max(_ONE - abs(batch.errors[j]), np.float32(1e-12)))
    return total


@jit
def learn_batch(
    tower: Tower,
    rules: Rules,
    device: DeviceState,
    batch: DistinctItems,
    distinct: int,
    examples: int,
    step: int,
    scratch: StepScratch,
) -> None:
    """One step of the optimiser."""
    scale = _ONE / np.float32(examples) if rules.mean else _ONE
    pace = adam_pace(step)
    network, user = device.network[0, WEIGHTS], device.user[0, WEIGHTS]
    output, _, _ = output_weights(tower, network)
    fill_panels(tower, network, scratch.panels)
    user_half(tower, network, user[tower.gmf :], scratch.user_terms[0])
    for q in range(tower.gmf):
        scratch.gmf_weights[q] = output[q] * user[q]
    fill(scratch.gmf_sums, _ZERO)
    fill(scratch.network_gradient, _ZERO)
    for begin in range(0, distinct, TILE):
        end = min(begin + TILE, distinct)
        slots, counts, errors = batch.slots[begin:end], batch.counts[begin:end], batch.errors[begin:end]
        _forward(tower, network, device.rows, slots, batch.labels[begin:end], errors, scratch)
        for j in range(end - begin):
            scratch.slopes[j] = scale * counts[j] * errors[j]
        _backward(tower, network, end - begin, scratch)
        if rules.item_rate > _ZERO:
            _move_rows(tower, rules, pace, device.rows, slots, counts, scale, scratch)
    _finish_gradients(tower, network, user, rules.decay * scale * np.float32(examples), scratch)
    _move_whole(rules.adam, False, rules.user_rate, pace, device.user, scratch.user_gradient)
    if rules.network_rate > _ZERO:
        _move_whole(rules.adam, rules.still, rules.network_rate, pace, device.network, scratch.network_gradient)


@jit
def _forward(
    tower: Tower, network: Floats, rows: Floats, slots: Indices, labels: Floats, errors: Floats, scratch: StepScratch
) -> None:
    """Errors sigmoid(score) - label of one tile."""
    size, filled = len(slots), whole_blocks(len(slots))
    inputs, first = layer_rows(tower, scratch.tile, 0, filled), layer_rows(tower, scratch.tile, 1, filled)
    for j in range(size):
        slot = slots[j]
        for q in range(0, tower.gmf, LANES):
            store(scratch.gmf_rows, (j, q), load(rows, (slot, WEIGHTS, q)))
        for q in range(0, inputs.shape[1], LANES):
            store(inputs, (j, q), load(rows, (slot, WEIGHTS, tower.gmf + q)))
    for j in range(size, filled):
        fill(inputs[j], _ZERO)
    set_rectified_product(inputs, layer_panel(tower, scratch.panels, 1), scratch.user_terms, first)
    finish_forward(tower, network, scratch.panels, scratch.tile, filled)
    _, weights, bias = output_weights(tower, network)
    top = layer_rows(tower, scratch.tile, len(tower.widths) - 1, filled)
    for j in range(size):
        sums = load(scratch.gmf_rows, (j, 0)) * load(scratch.gmf_weights, (0,))
        for q in range(LANES, tower.gmf, LANES):
            sums = sums + load(scratch.gmf_rows, (j, q)) * load(scratch.gmf_weights, (q,))
        for q in range(0, len(weights), LANES):
            sums = sums + load(top, (j, q)) * load(weights, (q,))
        errors[j] = total(sums) + bias[0]
    sigmoids(errors, size, scratch.exponents)
    for j in range(size):
        errors[j] -= labels[j]


@jit
def _backward(tower: Tower, network: Floats, size: int, scratch: StepScratch) -> None:
    """Add the tile's share to the gradients of network and user; the items' share stays in `deltas`."""
    filled, deepest = whole_blocks(size), len(tower.widths) - 1
    slopes = scratch.slopes[:filled]
    fill(slopes[size:], _ZERO)
    add_combination(slopes[:size], scratch.gmf_rows, scratch.gmf_sums)
    _, weights, _ = output_weights(tower, network)
    _, weight_gradient, bias_gradient = output_weights(tower, scratch.network_gradient)
    top, deltas = (layer_rows(tower, scratch.tile, deepest, filled), layer_rows(tower, scratch.deltas, deepest, filled))
    add_combination(slopes, top, weight_gradient)
    for j in range(filled):
        bias_gradient[0] += slopes[j]
        for q in range(0, len(weights), LANES):
            delta = spread(slopes[j]) * load(weights, (q,))
            store(deltas, (j, q), where_positive(load(top, (j, q)), delta))
    for layer in range(deepest, 0, -1):
        deltas, below = (
            layer_rows(tower, scratch.deltas, layer, filled),
            layer_rows(tower, scratch.tile, layer - 1, filled),
        )
        add_combination(scratch.ones[:filled], deltas, layer_bias(tower, scratch.network_gradient, layer))
        gradient = layer_weights(tower, scratch.network_gradient, layer)
        set_product(deltas.T, below, gradient, gradient)
        weights_here, below_deltas = (
            layer_weights(tower, network, layer),
            layer_rows(tower, scratch.deltas, layer - 1, filled),
        )
        if layer > 1:
            set_gated_product(deltas, weights_here, scratch.zeros, below, below_deltas)
        else:
            set_product(deltas, weights_here, scratch.zeros, below_deltas)


@jit
def _move_rows(
    tower: Tower,
    rules: Rules,
    pace: Pace,
    rows: Floats,
    slots: Indices,
    counts: Floats,
    scale: np.float32,
    scratch: StepScratch,
) -> None:
    """Move the rows of a tile's items."""
    deltas = layer_rows(tower, scratch.deltas, 0, len(slots))
    for j in range(len(slots)):
        slot, slope = slots[j], spread(scratch.slopes[j])
        decay = spread(rules.decay * scale * counts[j])
        for q in range(0, tower.gmf, LANES):
            gradient = slope * load(scratch.gmf_weights, (q,)) + decay * load(rows, (slot, WEIGHTS, q))
            _move(rules.adam, rules.still, rules.item_rate, pace, rows, slot, q, gradient)
        for q in range(tower.gmf, tower.row, LANES):
            gradient = load(deltas, (j, q - tower.gmf)) + decay * load(rows, (slot, WEIGHTS, q))
            _move(rules.adam, rules.still, rules.item_rate, pace, rows, slot, q, gradient)


@jit
def _finish_gradients(tower: Tower, network: Floats, user: Floats, decay: np.float32, scratch: StepScratch) -> None:
    """What depends on a batch through sums alone: the user, the user's half of W_1, and w_g."""
    output, _, _ = output_weights(tower, network)
    output_gradient, _, _ = output_weights(tower, scratch.network_gradient)
    for q in range(len(user)):
        scratch.user_gradient[q] = decay * user[q]
    for q in range(tower.gmf):
        output_gradient[q] = user[q] * scratch.gmf_sums[q]
        scratch.user_gradient[q] += output[q] * scratch.gmf_sums[q]
    sums = layer_bias(tower, scratch.network_gradient, 1)  # of the first layer's deltas
    gradient = user_weights(tower, scratch.network_gradient)
    for o in range(len(sums)):
        for i in range(gradient.shape[1]):
            gradient[o, i] = sums[o] * user[tower.gmf + i]
    add_combination(sums, user_weights(tower, network), scratch.user_gradient[tower.gmf :])


@jit
def _move_whole(by_adam: bool, still: bool, rate: np.float32, pace: Pace, state: Floats, gradient: Floats) -> None:
    for q in range(0, len(gradient), LANES):
        _move(by_adam, still, rate, pace, state, 0, q, load(gradient, (q,)))


@jit
def _move(
    by_adam: bool, still: bool, rate: np.float32, pace: Pace, states: Floats, slot: int, q: int, gradient: Vector
) -> None:
    if still:
        gather(states, slot, q, gradient)
    elif by_adam:
        adam(states, slot, q, gradient, rate, pace)
    else:
        sgd(states, slot, q, gradient, rate)
