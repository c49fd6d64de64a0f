"""NeuMF on the device, compiled: forward, gradient and optimiser in one pass over a batch.

What makes it fast, apart from being compiled:
- in a batch of one user, examples of the same item have the same score and the same gradient: each distinct
  item is computed once, weighted by how often it occurs. No row is then needed twice in a batch, and it is
  changed as soon as its tile is done;
- the user's half of the first layer is computed once per batch, and its gradient is one outer product;
- activations lie feature by feature in tiles that stay in the first cache (see `veilrec._matrix`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from veilrec import _draws
from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec._matrix import add_combination, add_correlation, add_product, aligned, dot, fill
from veilrec.device.numerics import add_scaled_rows, row_dots, sigmoids
from veilrec.device.sampling import draw_epoch
from veilrec.models.neumf_scores import (
    STRIDE,
    TILE,
    Tower,
    finish_forward,
    layer_bias,
    layer_rows,
    layer_weights,
    make_tile,
    output_weights,
    user_half,
)

BETA_1 = np.float32(0.9)  # Adam's usual constants
BETA_2 = np.float32(0.999)
EPSILON = np.float32(1e-8)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


class Rules(NamedTuple):
    """How a device learns."""

    epochs: int
    negatives: int
    batch: int  # 0 = the whole epoch
    mean: bool  # the loss of a batch is the mean, not the sum, of its examples' losses
    adam: bool
    user_rate: np.float32
    item_rate: np.float32  # 0 together with network_rate: only the user learns
    network_rate: np.float32
    decay: np.float32


class Device(NamedTuple):
    """What one device changes in a round: the weights, and Adam's moments of each."""

    user: Floats  # [row]
    network: Floats  # flat
    rows: Floats  # [slots, row]: the items that it has met so far in this round
    user_moments: Floats  # [2, row]
    network_moments: Floats  # [2, flat]
    row_moments: Floats  # [slots, 2, row]


class Batch(NamedTuple):
    """The distinct items of a batch."""

    slots: Indices  # where each lies in Device.rows
    labels: Floats
    counts: Floats  # how many examples each stands for
    errors: Floats  # sigmoid(score) - label, filled in by the step


class Scratch(NamedTuple):
    """Space that is made once per call."""

    tile: Floats  # [rows_at[-1], TILE_STRIDE]: what every layer gives
    deltas: Floats  # the same shape: gradients of the same
    scores: Floats  # [TILE]
    gmf_scores: Floats  # [TILE]
    exponents: Indices  # [TILE]
    user_terms: Floats  # [widths[1]]: W_1^u p_u + b_1
    gmf_weights: Floats  # [gmf]: w_g * p_u^g
    gmf_sums: Floats  # [gmf]: sum of error * q_i^g
    row_gradient: Floats  # [row]
    user_gradient: Floats  # [row]
    network_gradient: Floats  # flat


def make_scratch(tower: Tower, network_size: int) -> Scratch:
    """Space for one call."""
    row = tower.gmf + tower.mlp
    return Scratch(
        tile=make_tile(tower),
        deltas=make_tile(tower),
        scores=aligned(TILE),
        gmf_scores=aligned(TILE),
        exponents=np.zeros(TILE, np.int32),
        user_terms=aligned(int(tower.widths[1])),
        gmf_weights=aligned(tower.gmf),
        gmf_sums=aligned(tower.gmf),
        row_gradient=aligned(row),
        user_gradient=aligned(row),
        network_gradient=aligned(network_size),
    )


@jit
def learn_cohort(
    tower: Tower,
    rules: Rules,
    scratch: Scratch,
    seed: int,
    round_number: int,
    devices: Offsets,
    offsets: Offsets,
    data: Indices,
    users: Floats,
    table: Floats,
    network: Floats,
    out_offsets: Offsets,
    out_index: Indices,
    out_rows: Floats,
    out_networks: Floats,
    out_loss: Floats,
) -> None:
    """Let every device learn; `users` change in place, the others' changes go to `out_*`."""
    n_items, width = table.shape
    longest = 0
    for device in range(len(devices)):
        longest = max(longest, offsets[device + 1] - offsets[device])
    most = longest * (1 + rules.negatives)
    items, slots = np.empty(most, np.int32), np.empty(most, np.int32)
    labels = np.empty(most, np.float32)
    counts, errors, distinct_labels = np.empty((3, most), np.float32)
    batch = Batch(np.empty(most, np.int32), distinct_labels, counts, errors)
    own = np.empty(longest, np.int32)
    is_own = np.full(n_items, -1, np.int32)
    slot_of = np.full(n_items, -1, np.int32)  # an item's row in out_rows; below `first`: not met yet
    met_at_most = min(longest * (1 + rules.negatives * rules.epochs), n_items)
    place = np.zeros(met_at_most, np.int32)
    row_moments = np.empty((met_at_most if rules.adam else 0, 2, width), np.float32)
    user_moments = np.zeros((2, width), np.float32)
    network_moments = np.zeros((2, len(network)), np.float32)
    used = 0
    for device in range(len(devices)):
        mine = own[: offsets[device + 1] - offsets[device]]
        for j in range(len(mine)):
            mine[j] = data[offsets[device] + j]
            is_own[mine[j]] = device
        drawn = rules.negatives if len(mine) < n_items else 0  # who owns every item has nothing to draw from
        size = len(mine) * (1 + drawn)
        step = size if rules.batch == 0 else rules.batch
        first = used
        learned = out_networks[device]
        for q in range(len(network)):
            learned[q] = network[q]
        user_moments[:] = _ZERO
        network_moments[:] = _ZERO
        state = Device(users[device], learned, out_rows[first:], user_moments, network_moments, row_moments)
        start = _draws.stream(seed, _draws.LEARNING, round_number, devices[device])
        counter = 0
        steps_done = 0
        for _ in range(rules.epochs):
            counter = draw_epoch(mine, is_own, device, n_items, drawn, start, counter, items, labels)
            for j in range(size):
                if slot_of[items[j]] < first:
                    slot_of[items[j]] = used
                    out_index[used] = items[j]
                    for q in range(width):
                        out_rows[used, q] = table[items[j], q]
                    if rules.adam:
                        row_moments[used - first] = _ZERO
                    used += 1
                slots[j] = slot_of[items[j]] - first
            loss = 0.0
            for begin in range(0, size, max(step, 1)):
                end = min(begin + step, size)
                distinct = _gather_distinct(slots[begin:end], labels[begin:end], place, batch)
                steps_done += 1
                _learn_batch(tower, rules, state, batch, distinct, end - begin, steps_done, scratch)
                loss += _loss(batch, distinct)
            out_loss[device] = loss / max(size, 1)
        for slot in range(first, used):
            original = table[out_index[slot]]
            for q in range(width):
                out_rows[slot, q] -= original[q]
        for q in range(len(network)):
            learned[q] -= network[q]
        out_offsets[device + 1] = used


@jit
def _gather_distinct(slots: Indices, labels: Floats, place: Indices, batch: Batch) -> int:
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
def _learn_batch(
    tower: Tower,
    rules: Rules,
    device: Device,
    batch: Batch,
    distinct: int,
    examples: int,
    step: int,
    scratch: Scratch,
) -> None:
    """One step of the optimiser."""
    scale = _ONE / np.float32(examples) if rules.mean else _ONE
    output, _, _ = output_weights(tower, device.network)
    user_half(tower, device.network, device.user, scratch.user_terms)
    for q in range(tower.gmf):
        scratch.gmf_weights[q] = output[q] * device.user[q]
    fill(scratch.gmf_sums, _ZERO, tower.gmf)
    fill(scratch.network_gradient, _ZERO, len(scratch.network_gradient))
    for begin in range(0, distinct, TILE):
        end = min(begin + TILE, distinct)
        slots, errors = batch.slots[begin:end], batch.errors[begin:end]
        _forward(tower, device, slots, batch.labels[begin:end], errors, scratch)
        for j in range(end - begin):
            scratch.scores[j] = scale * batch.counts[begin + j] * errors[j]
        _backward(tower, device, slots, scratch)
        if rules.item_rate > _ZERO:
            _step_rows(tower, rules, device, slots, batch.counts[begin:end], scale, step, scratch)
    _finish_gradients(tower, device, rules.decay * scale * np.float32(examples), scratch)
    _move(rules, rules.user_rate, step, device.user, device.user_moments, scratch.user_gradient)
    if rules.network_rate > _ZERO:
        gradient, moments = scratch.network_gradient, device.network_moments
        _move(rules, rules.network_rate, step, device.network, moments, gradient)


@jit
def _forward(
    tower: Tower, device: Device, slots: Indices, labels: Floats, errors: Floats, scratch: Scratch
) -> None:
    """Errors sigmoid(score) - label of one tile."""
    size = len(slots)
    filled = -(-size // STRIDE) * STRIDE
    inputs, first = layer_rows(tower, scratch.tile, 0), layer_rows(tower, scratch.tile, 1)
    for j in range(size):
        row = device.rows[slots[j]]
        for i in range(tower.mlp):
            inputs[i, j] = row[tower.gmf + i]
    for i in range(tower.mlp):
        inputs[i, size:filled] = _ZERO
    for o in range(len(first)):
        fill(first[o], scratch.user_terms[o], filled)
    add_product(layer_weights(tower, device.network, 1), inputs, first, filled)
    finish_forward(tower, device.network, scratch.tile, scratch.scores, filled)
    row_dots(device.rows, slots, scratch.gmf_weights, scratch.gmf_scores)
    for j in range(size):
        errors[j] = scratch.scores[j] + scratch.gmf_scores[j]
    sigmoids(errors, size, scratch.exponents)
    for j in range(size):
        errors[j] -= labels[j]


@jit
def _backward(tower: Tower, device: Device, slots: Indices, scratch: Scratch) -> None:
    """Add the tile's share to the gradients of network and user; the items' share stays in `deltas`.

    On entry `scores` holds d loss / d score.
    """
    size = len(slots)
    filled = -(-size // STRIDE) * STRIDE
    errors = scratch.scores
    errors[size:filled] = _ZERO
    add_scaled_rows(device.rows, slots, errors[:size], scratch.gmf_sums)
    deepest = len(tower.widths) - 1
    _, weights, _ = output_weights(tower, device.network)
    _, weight_gradient, bias_gradient = output_weights(tower, scratch.network_gradient)
    top, top_deltas = layer_rows(tower, scratch.tile, deepest), layer_rows(tower, scratch.deltas, deepest)
    for o in range(len(top)):
        weight_gradient[o] += dot(top[o], errors, filled)
        for j in range(filled):
            top_deltas[o, j] = weights[o] * errors[j]
    for j in range(size):
        bias_gradient[0] += errors[j]
    for layer in range(deepest, 0, -1):
        above, deltas = layer_rows(tower, scratch.tile, layer), layer_rows(tower, scratch.deltas, layer)
        gradient = layer_bias(tower, scratch.network_gradient, layer)
        for o in range(len(above)):
            gradient[o] += _cut_and_sum(deltas[o], above[o], filled)
        below = layer_rows(tower, scratch.tile, layer - 1)
        add_correlation(deltas, below, layer_weights(tower, scratch.network_gradient, layer), filled)
        below_deltas = layer_rows(tower, scratch.deltas, layer - 1)
        for i in range(len(below_deltas)):
            fill(below_deltas[i], _ZERO, filled)
        add_product(layer_weights(tower, device.network, layer).T, deltas, below_deltas, filled)


@jit
def _cut_and_sum(deltas: Floats, outputs: Floats, size: int) -> np.float32:
    """Set deltas to zero where the rectifier was shut, and add the rest up."""
    total = _ZERO
    for j in range(size):
        kept = deltas[j] if outputs[j] > _ZERO else _ZERO
        deltas[j] = kept
        total += kept
    return total


@jit
def _step_rows(
    tower: Tower,
    rules: Rules,
    device: Device,
    slots: Indices,
    counts: Floats,
    scale: np.float32,
    step: int,
    scratch: Scratch,
) -> None:
    """Move the rows of a tile's items."""
    inputs = layer_rows(tower, scratch.deltas, 0)
    gradient = scratch.row_gradient
    for j in range(len(slots)):
        row = device.rows[slots[j]]
        error = scratch.scores[j]
        decay = rules.decay * scale * counts[j]
        for q in range(tower.gmf):
            gradient[q] = error * scratch.gmf_weights[q]
        for i in range(tower.mlp):
            gradient[tower.gmf + i] = inputs[i, j]
        for q in range(len(row)):
            gradient[q] += decay * row[q]
        if rules.adam:
            _adam(rules.item_rate, step, row, device.row_moments[slots[j]], gradient)
        else:
            _sgd(rules.item_rate, row, gradient)


@jit
def _finish_gradients(tower: Tower, device: Device, decay: np.float32, scratch: Scratch) -> None:
    """What depends on a batch through sums alone: the user, the user's half of W_1, and w_g."""
    gmf, mlp, user = tower.gmf, tower.mlp, device.user
    output, _, _ = output_weights(tower, device.network)
    output_gradient, _, _ = output_weights(tower, scratch.network_gradient)
    for q in range(len(user)):
        scratch.user_gradient[q] = decay * user[q]
    for q in range(gmf):
        output_gradient[q] = user[q] * scratch.gmf_sums[q]
        scratch.user_gradient[q] += output[q] * scratch.gmf_sums[q]
    sums = layer_bias(tower, scratch.network_gradient, 1)  # of the first layer's deltas
    for o in range(tower.widths[1]):
        start = 2 * mlp * o
        gradient = scratch.network_gradient[start : start + mlp]
        for i in range(mlp):
            gradient[i] = sums[o] * user[gmf + i]
    outputs, width = tower.widths[1], 2 * mlp
    weights = device.network[: outputs * width].reshape(outputs, width)
    add_combination(sums, weights, scratch.user_gradient[gmf:], mlp)


@jit
def _move(
    rules: Rules, rate: np.float32, step: int, weights: Floats, moments: Floats, gradient: Floats
) -> None:
    if rules.adam:
        _adam(rate, step, weights, moments, gradient)
    else:
        _sgd(rate, weights, gradient)


@jit
def _sgd(rate: np.float32, weights: Floats, gradient: Floats) -> None:
    for q in range(len(weights)):
        weights[q] -= rate * gradient[q]


@jit
def _adam(rate: np.float32, step: int, weights: Floats, moments: Floats, gradient: Floats) -> None:
    """Kingma and Ba 2015, Algorithm 1, with the corrections of both moments drawn into rate and epsilon."""
    correction = np.float32(np.sqrt(1.0 - float(BETA_2) ** step))
    speed = np.float32(rate * correction / (1.0 - float(BETA_1) ** step))
    epsilon = EPSILON * correction
    first, second = moments[0], moments[1]
    for q in range(len(weights)):
        g = gradient[q]
        first[q] = BETA_1 * first[q] + (_ONE - BETA_1) * g
        second[q] = BETA_2 * second[q] + (_ONE - BETA_2) * g * g
        weights[q] -= speed * first[q] / (np.sqrt(second[q]) + epsilon)


@jit
def _loss(batch: Batch, distinct: int) -> float:
    """The sum of the batch's losses before its step: -log(1 - |error|) each."""
    total = 0.0
    for j in range(distinct):
        total -= batch.counts[j] * np.log(max(_ONE - abs(batch.errors[j]), np.float32(1e-12)))
    return total
