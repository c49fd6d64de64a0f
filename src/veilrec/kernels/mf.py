"""Matrix factorisation where an epoch is one step on all of a device's own items: no row is ever copied or moved.

Step k changes a row by q_i <- s q_i - r e_ik p_k, with the user vector p_k and the errors e_ik before the step, the
item rate r, and the shrinkage s = 1 - r decay. So after k steps

    q_i = s^k q_i0 + sum over m < k of w_mk e_im p_m,   w_mk = -r s^(k-1-m),

and scores, gradients and the change of the row follow from the rows that the server sent, the errors and the few user
vectors on the way.
"""

from __future__ import annotations

import numpy as np

from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.jit import jit
from veilrec.kernels.loops import add_scaled, add_scaled_rows, inner_product, mean_logistic_loss, row_dots, sigmoids

_ONE = np.float32(1.0)
_TOGETHER = 5  # epochs whose changes are added up in one pass; fewer are filled up with zeros


@jit
def learn_full_batches(
    offsets: Offsets,
    data: Indices,
    users: Floats,
    table: Floats,
    epochs: int,
    mean: bool,
    user_rate: np.float32,
    item_rate: np.float32,
    decay: np.float32,
    out_values: Floats,
    out_loss: Floats,
) -> None:
    """Every device's epochs on its own items, which are distinct; users are changed in place."""
    longest = 0
    for device in range(len(users)):
        longest = max(longest, offsets[device + 1] - offsets[device])
    padded = max(epochs, _TOGETHER)
    errors = np.zeros((padded, longest), np.float32)
    exponents = np.empty(longest, np.int32)
    path = np.zeros((padded, table.shape[1]), np.float32)  # the user vectors p_m
    weights = np.empty(epochs, np.float32)  # w_mk
    gradient = np.empty(table.shape[1], np.float32)
    for device in range(len(users)):
        begin, end = offsets[device], offsets[device + 1]
        size = end - begin
        if size == 0:
            continue
        items = data[begin:end]
        scale = np.float32(1.0 / size) if mean else _ONE
        step = item_rate * scale
        shrink = _ONE - step * decay
        kept = _ONE  # s^k
        for epoch in range(epochs):
            _one_step(
                items,
                users[device],
                table,
                errors,
                exponents,
                path,
                weights,
                gradient,
                epoch,
                kept,
                user_rate * scale,
                decay,
            )
            for earlier in range(epoch):
                weights[earlier] *= shrink
            weights[epoch] = -step
            kept *= shrink
        _write_changes(items, table, kept - _ONE, errors, path, weights, out_values[begin:end])
        out_loss[device] = mean_logistic_loss(errors[epochs - 1, :size])


@jit
def _one_step(
    items: Indices,
    user: Floats,
    table: Floats,
    errors: Floats,
    exponents: Indices,
    path: Floats,
    weights: Floats,
    gradient: Floats,
    epoch: int,
    kept: np.float32,
    user_rate: np.float32,
    decay: np.float32,
) -> None:
    """Note the user vector and the errors of an epoch, and move the user vector."""
    size = len(items)
    error = errors[epoch, :size]  # contiguous, unlike a slice of all epochs
    row_dots(table, items, user, error)
    for j in range(size):
        error[j] *= kept
    for m in range(epoch):
        add_scaled(error, errors[m, :size], weights[m] * inner_product(path[m], user))
    sigmoids(error, size, exponents)
    for j in range(size):
        error[j] -= _ONE  # every label is 1
    gradient[:] = np.float32(0.0)
    add_scaled_rows(table, items, error, gradient)
    for q in range(len(user)):
        path[epoch, q] = user[q]
        gradient[q] = kept * gradient[q] + decay * size * user[q]
    for m in range(epoch):
        add_scaled(gradient, path[m], weights[m] * inner_product(error, errors[m, :size]))
    add_scaled(user, gradient, -user_rate)


@jit
def _write_changes(
    items: Indices, table: Floats, shrunk: np.float32, errors: Floats, path: Floats, weights: Floats, out: Floats
) -> None:
    """out[i] = (s^K - 1) q_i0 + sum over m of w_mK e_im p_m, in one pass for the usual five epochs."""
    for m in range(len(weights)):
        path[m] *= weights[m]
    dim = table.shape[1]
    for i in range(len(items)):
        item = np.uint64(items[i])
        a, b, c, d, e = errors[0, i], errors[1, i], errors[2, i], errors[3, i], errors[4, i]
        for q in range(dim):
            near = shrunk * table[item, q] + a * path[0, q] + b * path[1, q]
            out[i, q] = near + c * path[2, q] + d * path[3, q] + e * path[4, q]
    for m in range(_TOGETHER, len(weights)):
        for i in range(len(items)):
            add_scaled(out[i], path[m], errors[m, i])
