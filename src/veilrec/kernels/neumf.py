"""Local training of NeuMF, compiled: one client after another, in as many threads as there are.

A step computes forward pass, gradient and optimiser together. Matrices are multiplied by BLAS. Two observations make
it cheaper than a generic network:
- all examples of a client share one user vector: examples of the same item have the same score and the same gradient,
  so each distinct item of a batch is computed once, weighted by how often it occurs;
- W_1 [p_u; q_i] = W_1^u p_u + W_1^i q_i: the user's half is computed once per batch.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from veilrec.core import resources, rng
from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.jit import jit
from veilrec.kernels.loops import add_scaled, copy, draw_epoch, inner_product, sigmoids
from veilrec.models.scores import NeumfLayout, layer_bias, matrix_at, set_layer

_TILE = 256  # examples at a time: their activations stay in the cache, and BLAS starts no threads for 32 x 32
_WEIGHTS, _FIRST, _SECOND = 0, 1, 2  # optimiser state is [3, size]: weights, then Adam's two moments of them
_BETA_1, _BETA_2 = np.float32(0.9), np.float32(0.999)  # Adam's usual constants
_EPSILON = 1e-8
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class NcfRules(NamedTuple):
    """How a client trains NeuMF."""

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


class NcfInputs(NamedTuple):
    """What clients train on."""

    seed: int
    round_number: int
    clients: Offsets  # [n]
    offsets: Offsets  # [n + 1]: where each one's items start in `items`
    items: Indices
    table: Floats  # [items, row]
    network: Floats  # flat


class NcfChanges(NamedTuple):
    """What clients learn; all but `users` are differences to what the server sent, or negative gradients."""

    users: Floats  # [n, row]: before, and afterwards
    offsets: Offsets  # [n + 1]: where each one's rows start in `items` and `rows`
    items: Indices
    rows: Floats
    networks: Floats  # [n, flat]
    loss: Floats  # [n]: the mean of the last epoch


def space_for(most: Offsets, users: Floats, network_size: int) -> NcfChanges:
    """Allocate the result of clients that change at most so many rows each."""
    clients, rows = len(most), int(most.sum())
    return NcfChanges(
        users=users,
        offsets=np.zeros(clients + 1, np.int64),
        items=np.empty(rows, np.int32),
        rows=np.empty((rows, users.shape[1]), np.float32),
        networks=np.empty((clients, network_size), np.float32),
        loss=np.zeros(clients, np.float32),
    )


def train_in_threads(layout: NeumfLayout, rules: NcfRules, given: NcfInputs, most: Offsets, learnt: NcfChanges) -> None:
    """Train every client, by as many threads as there are; the outcome is the same for any number of them."""
    parts = resources.even_parts(np.diff(given.offsets), resources.available())
    starts = np.concatenate([[0], np.cumsum(most)])
    spaces = [_part(learnt, first, end, starts) for first, end in parts]
    resources.run_all(
        [
            partial(_train_clients, layout, rules, _clients(given, first, end), _make_scratch(layout), space)
            for (first, end), space in zip(parts, spaces, strict=True)
        ]
    )
    used = 0
    for (first, end), space in zip(parts, spaces, strict=True):
        count = int(space.offsets[-1])
        learnt.offsets[first : end + 1] = used + space.offsets
        if used < starts[first]:  # close the gap that an earlier part left
            learnt.items[used : used + count] = space.items[:count]
            learnt.rows[used : used + count] = space.rows[:count]
        used += count


def _clients(given: NcfInputs, first: int, end: int) -> NcfInputs:
    return given._replace(clients=given.clients[first:end], offsets=given.offsets[first : end + 1])


def _part(learnt: NcfChanges, first: int, end: int, starts: Offsets) -> NcfChanges:
    rows = slice(starts[first], starts[end])
    return NcfChanges(
        users=learnt.users[first:end],
        offsets=np.zeros(end - first + 1, np.int64),
        items=learnt.items[rows],
        rows=learnt.rows[rows],
        networks=learnt.networks[first:end],
        loss=learnt.loss[first:end],
    )


class _Scratch(NamedTuple):
    """Space of a thread for the passes of a tile."""

    values: Floats  # activations of all layers; of layer 0, the items' second halves
    deltas: Floats  # their gradients, in the same places
    gmf_rows: Floats  # the items' first halves
    scores: Floats  # [_TILE]
    slopes: Floats  # [_TILE]: d loss / d score
    exponents: Indices  # [_TILE]
    user_terms: Floats  # [widths[1]]: W_1^u p_u + b_1
    gmf_weights: Floats  # [gmf]: w_g * p_u^g
    gmf_sums: Floats  # [gmf]: sum of slope * q_i^g
    ones: Floats  # [_TILE]
    product: Floats  # the gradient of one matrix or vector from one tile
    row_gradient: Floats  # [row]
    gradient: Floats  # [network]


def _make_scratch(layout: NeumfLayout) -> _Scratch:
    widths, gmf = layout.widths, layout.gmf
    row, all_layers = gmf + int(widths[0]), _TILE * int(widths.sum())
    return _Scratch(
        values=np.zeros(all_layers, np.float32),
        deltas=np.zeros(all_layers, np.float32),
        gmf_rows=np.zeros(_TILE * gmf, np.float32),
        scores=np.zeros(_TILE, np.float32),
        slopes=np.zeros(_TILE, np.float32),
        exponents=np.zeros(_TILE, np.int32),
        user_terms=np.zeros(int(widths[1]), np.float32),
        gmf_weights=np.zeros(gmf, np.float32),
        gmf_sums=np.zeros(gmf, np.float32),
        ones=np.ones(_TILE, np.float32),
        product=np.zeros(max(row, int((widths[1:] * widths[:-1]).max())), np.float32),
        row_gradient=np.zeros(row, np.float32),
        gradient=np.zeros(layout.size, np.float32),
    )


class _EpochSpace(NamedTuple):
    """Space of a thread for the examples of an epoch and the distinct items of a batch."""

    own: Indices  # the client's items
    is_own: Indices  # [items]: the last client that has it
    items: Indices
    labels: Floats
    slots: Indices  # where an example's item lies in the client's rows
    slot_of: Indices  # [items]: its place in NcfChanges.rows; before the client's own rows: not met yet
    place: Indices  # [slots]: where a batch has it, if it does
    batch_slots: Indices
    batch_labels: Floats
    batch_counts: Floats  # how many examples each stands for
    batch_errors: Floats  # sigmoid(score) - label


@jit
def _train_clients(
    layout: NeumfLayout, rules: NcfRules, given: NcfInputs, scratch: _Scratch, learnt: NcfChanges
) -> None:
    """Train the clients of one thread, one after another."""
    n_items, row = given.table.shape
    longest = 0
    for client in range(len(given.clients)):
        longest = max(longest, given.offsets[client + 1] - given.offsets[client])
    most = longest * (1 + rules.negatives)
    met_at_most = min(longest * (1 + rules.negatives * rules.epochs), n_items)
    space = _EpochSpace(
        np.empty(longest, np.int32),
        np.full(n_items, -1, np.int32),
        np.empty(most, np.int32),
        np.empty(most, np.float32),
        np.empty(most, np.int32),
        np.full(n_items, -1, np.int32),
        np.zeros(met_at_most, np.int32),
        np.empty(most, np.int32),
        np.empty(most, np.float32),
        np.empty(most, np.float32),
        np.empty(most, np.float32),
    )
    user, network = np.zeros((3, row), np.float32), np.zeros((3, layout.size), np.float32)
    rows = np.empty((met_at_most, 3, row), np.float32)
    learnt.offsets[0] = 0
    for client in range(len(given.clients)):
        _start_from(user, learnt.users[client])
        _start_from(network, given.network)
        _train_client(layout, rules, given, client, space, user, network, rows, scratch, learnt)
        copy(user[_WEIGHTS], learnt.users[client])
        _set_change(rules.still, network, given.network, learnt.networks[client])
        first = learnt.offsets[client]
        for place in range(first, learnt.offsets[client + 1]):
            _set_change(rules.still, rows[place - first], given.table[learnt.items[place]], learnt.rows[place])


@jit
def _start_from(state: Floats, weights: Floats) -> None:
    """Set the weights, and no moments."""
    for q in range(len(weights)):
        state[_WEIGHTS, q] = weights[q]
        state[_FIRST, q] = _ZERO
        state[_SECOND, q] = _ZERO


@jit
def _set_change(still: bool, state: Floats, start: Floats, out: Floats) -> None:
    """Set what is sent: the change of the weights, or their negative gradient."""
    for q in range(len(out)):
        out[q] = -state[_FIRST, q] if still else state[_WEIGHTS, q] - start[q]


@jit
def _train_client(
    layout: NeumfLayout,
    rules: NcfRules,
    given: NcfInputs,
    client: int,
    space: _EpochSpace,
    user: Floats,
    network: Floats,
    rows: Floats,
    scratch: _Scratch,
    learnt: NcfChanges,
) -> None:
    """All epochs of one client."""
    n_items = len(given.table)
    own = space.own[: given.offsets[client + 1] - given.offsets[client]]
    for j in range(len(own)):
        own[j] = given.items[given.offsets[client] + j]
        space.is_own[own[j]] = client
    drawn = rules.negatives if len(own) < n_items else 0  # who owns every item has nothing to draw from
    size = len(own) * (1 + drawn)
    step_size = size if rules.batch == 0 else rules.batch
    items, labels = space.items[:size], space.labels[:size]
    stream = rng.stream(given.seed, rng.LEARNING, given.round_number, given.clients[client])
    first = used = learnt.offsets[client]
    counter = steps = 0
    for epoch in range(rules.epochs):
        counter = draw_epoch(own, space.is_own, client, n_items, drawn, stream, counter, items, labels)
        for j in range(size):  # an item that was not met before gets the next slot
            item = items[j]
            if space.slot_of[item] < first:
                space.slot_of[item] = used
                learnt.items[used] = item
                _start_from(rows[used - first], given.table[item])
                used += 1
            space.slots[j] = space.slot_of[item] - first
        loss = 0.0
        for begin in range(0, size, max(step_size, 1)):
            end = min(begin + step_size, size)
            distinct = _gather_distinct(space, begin, end)
            steps += 1
            _train_batch(layout, rules, space, distinct, end - begin, steps, user, network, rows, scratch)
            if epoch == rules.epochs - 1:
                loss += _loss_of(space, distinct)
        learnt.loss[client] = loss / max(size, 1)
    learnt.offsets[client + 1] = used


@jit
def _gather_distinct(space: _EpochSpace, begin: int, end: int) -> int:
    """Fill the batch with each distinct item once; `place` needs no clearing: every entry is checked."""
    distinct = 0
    for j in range(begin, end):
        slot = space.slots[j]
        at = space.place[slot]
        if at < distinct and space.batch_slots[at] == slot:
            space.batch_counts[at] += _ONE
        else:
            space.place[slot] = distinct
            space.batch_slots[distinct] = slot
            space.batch_labels[distinct] = space.labels[j]
            space.batch_counts[distinct] = _ONE
            distinct += 1
    return distinct


@jit
def _loss_of(space: _EpochSpace, distinct: int) -> float:
    """The sum of the batch's losses before its step: -log(1 - |error|) each."""
    total = 0.0
    for j in range(distinct):
        total -= space.batch_counts[j] * np.log(max(_ONE - abs(space.batch_errors[j]), np.float32(1e-12)))
    return total


@jit
def _train_batch(
    layout: NeumfLayout,
    rules: NcfRules,
    space: _EpochSpace,
    distinct: int,
    examples: int,
    step: int,
    user: Floats,
    network: Floats,
    rows: Floats,
    scratch: _Scratch,
) -> None:
    """One step of the optimiser."""
    scale = _ONE / np.float32(examples) if rules.mean else _ONE
    # Adam's corrections of both moments, which all weights share in a step (Kingma and Ba 2015, end of section 2)
    correction = np.sqrt(1.0 - float(_BETA_2) ** step)
    speed, epsilon = np.float32(correction / (1.0 - float(_BETA_1) ** step)), np.float32(_EPSILON * correction)
    gmf, mlp, first = layout.gmf, layout.widths[0], layout.widths[1]
    weights, vector = network[_WEIGHTS], user[_WEIGHTS]
    of_user = matrix_at(weights, 0, first, mlp)
    bias = layer_bias(layout, weights, 1)
    for o in range(first):
        scratch.user_terms[o] = bias[o] + inner_product(of_user[o], vector[gmf:])
    for q in range(gmf):
        scratch.gmf_weights[q] = weights[layout.output_at + q] * vector[q]
        scratch.gmf_sums[q] = _ZERO
    for q in range(layout.size):
        scratch.gradient[q] = _ZERO
    for begin in range(0, distinct, _TILE):
        end = min(begin + _TILE, distinct)
        size, slots, errors = end - begin, space.batch_slots[begin:end], space.batch_errors[begin:end]
        _forward(layout, weights, rows, slots, scratch)
        for j in range(size):
            errors[j] = scratch.scores[j] - space.batch_labels[begin + j]
            scratch.slopes[j] = scale * space.batch_counts[begin + j] * errors[j]
        _backward(layout, weights, size, scratch)
        if rules.item_rate > _ZERO:
            deltas, gradient = matrix_at(scratch.deltas, 0, size, mlp), scratch.row_gradient
            for j in range(size):
                state, slope = rows[slots[j]], scratch.slopes[j]
                decay = rules.decay * scale * space.batch_counts[begin + j]
                for q in range(gmf):
                    gradient[q] = slope * scratch.gmf_weights[q] + decay * state[_WEIGHTS, q]
                for q in range(mlp):
                    gradient[gmf + q] = deltas[j, q] + decay * state[_WEIGHTS, gmf + q]
                _move(rules.adam, rules.still, state, gradient, rules.item_rate, speed, epsilon)
    _finish_gradients(layout, weights, vector, rules.decay * scale * np.float32(examples), scratch)
    _move(rules.adam, False, user, scratch.row_gradient, rules.user_rate, speed, epsilon)
    if rules.network_rate > _ZERO:
        _move(rules.adam, rules.still, network, scratch.gradient, rules.network_rate, speed, epsilon)


@jit
def _forward(layout: NeumfLayout, weights: Floats, rows: Floats, slots: Indices, scratch: _Scratch) -> None:
    """Set the probabilities sigmoid(score) of one tile."""
    size, gmf, widths = len(slots), layout.gmf, layout.widths
    gmf_rows, values = matrix_at(scratch.gmf_rows, 0, size, gmf), matrix_at(scratch.values, 0, size, widths[0])
    for j in range(size):
        row = rows[slots[j], _WEIGHTS]
        copy(row[:gmf], gmf_rows[j])
        copy(row[gmf:], values[j])
    at = _TILE * widths[0]
    for layer in range(1, len(widths)):
        above = matrix_at(scratch.values, at, size, widths[layer])
        bias = scratch.user_terms if layer == 1 else layer_bias(layout, weights, layer)
        set_layer(layout, weights, layer, values, bias, above)
        values, at = above, at + _TILE * widths[layer]
    start = layout.output_at + gmf
    scores, top = scratch.scores[:size], scratch.slopes[:size]
    np.dot(gmf_rows, scratch.gmf_weights, scores)
    np.dot(values, weights[start : start + widths[-1]], top)
    for j in range(size):
        scores[j] += top[j] + weights[layout.size - 1]
    sigmoids(scores, size, scratch.exponents)


@jit
def _backward(layout: NeumfLayout, weights: Floats, size: int, scratch: _Scratch) -> None:
    """Add the tile's share to the gradients of network and user; the items' share stays in `deltas`."""
    gmf, widths, slopes, gradient = layout.gmf, layout.widths, scratch.slopes[:size], scratch.gradient
    at = _TILE * (widths.sum() - widths[-1])
    start = layout.output_at + gmf
    top, deltas = matrix_at(scratch.values, at, size, widths[-1]), matrix_at(scratch.deltas, at, size, widths[-1])
    for j in range(size):
        for q in range(widths[-1]):
            deltas[j, q] = slopes[j] * weights[start + q] if top[j, q] > _ZERO else _ZERO
    _add_product(slopes, matrix_at(scratch.gmf_rows, 0, size, gmf), scratch.product, scratch.gmf_sums)
    _add_product(slopes, top, scratch.product, gradient[start : start + widths[-1]])
    gradient[layout.size - 1] += slopes.sum()
    for layer in range(len(widths) - 1, 0, -1):
        inputs, outputs, start = widths[layer - 1], widths[layer], layout.weights_at[layer - 1]
        at -= _TILE * inputs
        below, down = matrix_at(scratch.values, at, size, inputs), matrix_at(scratch.deltas, at, size, inputs)
        end = start + outputs * inputs
        np.dot(deltas.T, below, matrix_at(scratch.product, 0, outputs, inputs))
        add_scaled(gradient[start:end], scratch.product, _ONE)
        _add_product(scratch.ones[:size], deltas, scratch.product, gradient[end : end + outputs])
        np.dot(deltas, matrix_at(weights, start, outputs, inputs), down)
        if layer > 1:
            gates, slopes = below.reshape(-1), down.reshape(-1)
            for q in range(len(slopes)):
                slopes[q] = slopes[q] if gates[q] > _ZERO else _ZERO
        deltas = down


@jit
def _add_product(vector: Floats, matrix: Floats, product: Floats, out: Floats) -> None:
    """out += vector @ matrix."""
    np.dot(vector, matrix, product[: len(out)])
    add_scaled(out, product, _ONE)


@jit
def _finish_gradients(layout: NeumfLayout, weights: Floats, user: Floats, decay: np.float32, scratch: _Scratch) -> None:
    """Set what depends on a batch through sums alone: the gradients of the user, of W_1^u and of w_g."""
    gmf, mlp, first, output = layout.gmf, layout.widths[0], layout.widths[1], layout.output_at
    gradient, of_user = scratch.gradient, scratch.row_gradient
    for q in range(gmf):
        gradient[output + q] = user[q] * scratch.gmf_sums[q]
        of_user[q] = decay * user[q] + weights[output + q] * scratch.gmf_sums[q]
    for q in range(mlp):
        of_user[gmf + q] = decay * user[gmf + q]
    matrix, slopes = matrix_at(weights, 0, first, mlp), matrix_at(gradient, 0, first, mlp)
    sums = layer_bias(layout, gradient, 1)  # of the first layer's deltas
    for o in range(first):
        add_scaled(of_user[gmf:], matrix[o], sums[o])
        add_scaled(slopes[o], user[gmf:], sums[o])


@jit
def _move(
    adam: bool, still: bool, state: Floats, gradient: Floats, rate: np.float32, speed: np.float32, epsilon: np.float32
) -> None:
    """One step of the optimiser for weights [3, size]; `still` adds the gradient up where Adam has its first moment."""
    weights, first, second = state[_WEIGHTS], state[_FIRST], state[_SECOND]
    if still:
        add_scaled(first, gradient, _ONE)
    elif adam:  # Kingma and Ba 2015, Algorithm 1
        rate = rate * speed
        for q in range(len(gradient)):
            slope = gradient[q]
            first[q] = _BETA_1 * first[q] + (_ONE - _BETA_1) * slope
            second[q] = _BETA_2 * second[q] + (_ONE - _BETA_2) * slope * slope
            weights[q] -= rate * first[q] / (np.sqrt(second[q]) + epsilon)
    else:
        add_scaled(weights, gradient, -rate)
