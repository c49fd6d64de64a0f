"""Local learning of a feature network in compiled code: forward, gradient and step of one client after another.

The embeddings of items are multiplied into the first layer once per step and code, not once per example, of which the
pre-activations are then sums of a few rows. Matrices are multiplied by BLAS. The same code runs without numba, as array
operations of numpy, which is fast enough for the one client that a small install has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from veilrec.core import rng
from veilrec.core.arrays import Bools, Floats, Indices, Offsets
from veilrec.core.jit import jit
from veilrec.kernels.loops import add_scaled, copy, inner_product, mean_logistic_loss, mean_squared_loss
from veilrec.models.feature_net import Net

LOGISTIC, SOFTMAX, SQUARED = 0, 1, 2
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_LARGEST = np.float32(87.0)  # of an exponent in single precision


class Rules(NamedTuple):
    """How a client learns."""

    loss: int  # LOGISTIC, SOFTMAX or SQUARED
    epochs: int
    steps: int  # 0: as many as the epochs have batches
    batch: int  # own items in a step; 0: all of them
    negatives: int  # other items: for each own one, or (SOFTMAX) for all of a step
    mean: bool  # of the losses in a step; otherwise their sum
    rate: np.float32
    needed: np.float32  # n_0: the rate is n / (n + n_0) of that for somebody with n items
    pull: np.float32  # mu, eq. 7
    pull_squared: bool  # mu/2 |theta - theta_0|^2; otherwise mu/2 |theta - theta_0|


class Space(NamedTuple):
    """Scratch space of a client, made once for all of them."""

    table: Floats  # [codes, h_1]: embeddings times the first layer
    back: Floats  # [codes, h_1]: its gradient
    touched: Indices  # [codes]
    is_touched: Bools  # [codes]
    shared: Floats  # [h_1]: what the user adds to every example
    numbers: Floats  # of the items of a step, end to end
    values: Floats  # activations of all layers, end to end
    other: Floats  # gradients of two layers
    theta: Floats  # the weights as they stand
    gradient: Floats


def space_for(net: Net, examples: int, size: int) -> Space:
    """Room for steps of so many examples on a network of so many numbers."""
    n_codes, item_numbers = len(net.item_rows), int(net.widths[0] - net.item_number_row)
    first, hidden = int(net.widths[1]), int(net.widths[1:].sum())
    widest = int(net.widths[1:].max())
    return Space(
        np.zeros((n_codes, first), np.float32),
        np.zeros((n_codes, first), np.float32),
        np.zeros(max(n_codes, 1), np.int32),
        np.zeros(max(n_codes, 1), np.bool_),
        np.zeros(first, np.float32),
        np.zeros(examples * item_numbers, np.float32),
        np.zeros(examples * hidden, np.float32),
        np.zeros(2 * examples * widest, np.float32),
        np.zeros(size, np.float32),
        np.zeros(size, np.float32),
    )


@jit
def _matrix(flat: Floats, start: int, rows: int, columns: int) -> Floats:
    return flat[start : start + rows * columns].reshape(rows, columns)


@jit
def _add_product(vector: Floats, matrix: Floats, out: Floats) -> None:
    """out += vector @ matrix."""
    for i in range(len(vector)):
        add_scaled(out, matrix[i], vector[i])


@jit
def _add_outer(column: Floats, row: Floats, out: Floats) -> None:
    """out += column row^T."""
    for i in range(len(column)):
        add_scaled(out[i], row, column[i])


@jit
def _set_dots(matrix: Floats, vector: Floats, out: Floats) -> None:
    """out += matrix @ vector."""
    for i in range(len(matrix)):
        out[i] += inner_product(matrix[i], vector)


@jit
def _share_of_user(net: Net, theta: Floats, codes: Indices, numbers: Floats, out: Floats) -> None:
    """What a user adds to the first layer, the bias included."""
    e, width = net.embedding, net.widths[1]
    first = _matrix(theta, net.weights[0], net.widths[0], width)
    bias = net.biases[0]
    for q in range(width):
        out[q] = theta[bias + q]
    for code in codes:
        if code >= 0:
            row = net.user_rows[code]
            _add_product(theta[code * e : code * e + e], first[row : row + e], out)
    _add_product(numbers, first[net.user_number_row : net.user_number_row + len(numbers)], out)


@jit
def _touch(net: Net, theta: Floats, item_codes: Indices, items: Indices, space: Space) -> int:
    """Multiply the codes of some items into the first layer; how many there are."""
    e = net.embedding
    first = _matrix(theta, net.weights[0], net.widths[0], net.widths[1])
    count = 0
    for item in items:
        for code in item_codes[item]:
            if code >= 0 and not space.is_touched[code]:
                space.is_touched[code] = True
                space.touched[count] = code
                count += 1
                start, row = net.item_start + code * e, net.item_rows[code]
                for q in range(net.widths[1]):
                    space.table[code, q] = 0.0
                    space.back[code, q] = 0.0
                _add_product(theta[start : start + e], first[row : row + e], space.table[code])
    return count


@jit
def forward(
    net: Net, theta: Floats, item_codes: Indices, item_numbers: Floats, items: Indices, space: Space, scores: Floats
) -> int:
    """Scores of some items without their offsets; the user's share is in the space. The codes stay touched."""
    count = _touch(net, theta, item_codes, items, space)
    size, layers, numbers = len(items), len(net.weights), item_numbers.shape[1]
    width = net.widths[1]
    out = _matrix(space.values, 0, size, width)
    if numbers:
        given = _matrix(space.numbers, 0, size, numbers)
        for j in range(size):
            for q in range(numbers):
                given[j, q] = item_numbers[items[j], q]
        np.dot(given, _matrix(theta, net.weights[0] + net.item_number_row * width, numbers, width), out)
    for j in range(size):
        for q in range(width):
            out[j, q] = space.shared[q] + (out[j, q] if numbers else _ZERO)
        for code in item_codes[items[j]]:
            if code >= 0:
                add_scaled(out[j], space.table[code], _ONE)
    at = 0
    for layer in range(1, layers):
        _activate(out.reshape(-1), net.rectifies)
        at += out.size
        width, bias = net.widths[layer + 1], net.biases[layer]
        after = _matrix(space.values, at, size, width)
        np.dot(out, _matrix(theta, net.weights[layer], net.widths[layer], width), after)
        for j in range(size):
            add_scaled(after[j], theta[bias : bias + width], _ONE)
        out = after
    for j in range(size):
        scores[j] = out[j, 0]
    return count


@jit
def _activate(values: Floats, rectifies: bool) -> None:
    if rectifies:
        for j in range(len(values)):
            values[j] = max(values[j], _ZERO)
    else:
        for j in range(len(values)):
            values[j] = _ONE / (_ONE + np.exp(-values[j]))


@jit
def backward(
    net: Net,
    theta: Floats,
    user_codes: Indices,
    user_numbers: Floats,
    item_codes: Indices,
    item_numbers: Floats,
    items: Indices,
    errors: Floats,
    touched: int,
    space: Space,
    gradient: Floats,
) -> None:
    """Set the gradient of everything, from the derivatives by the scores of a step; nothing stays touched."""
    size, layers, e = len(items), len(net.weights), net.embedding
    for q in range(len(gradient)):
        gradient[q] = 0.0
    half = len(space.other) // 2
    delta = _matrix(space.other, 0, size, 1)
    for j in range(size):
        delta[j, 0] = errors[j]
    at = size * (net.widths[1:].sum() - 1)
    for layer in range(layers - 1, 0, -1):
        inputs, outputs = net.widths[layer], net.widths[layer + 1]
        at -= size * inputs
        before = _matrix(space.values, at, size, inputs)
        np.dot(before.T, delta, _matrix(gradient, net.weights[layer], inputs, outputs))
        _add_rows(delta, gradient[net.biases[layer] : net.biases[layer] + outputs])
        down = _matrix(space.other, half if (layers - layer) % 2 == 1 else 0, size, inputs)
        np.dot(delta, _matrix(theta, net.weights[layer], inputs, outputs).T, down)
        _gate(before.reshape(-1), down.reshape(-1), net.rectifies)
        delta = down
    width, numbers = net.widths[1], item_numbers.shape[1]
    first = _matrix(theta, net.weights[0], net.widths[0], width)
    slope = _matrix(gradient, net.weights[0], net.widths[0], width)
    for j in range(size):
        for code in item_codes[items[j]]:
            if code >= 0:
                add_scaled(space.back[code], delta[j], _ONE)
    if numbers:
        start = net.weights[0] + net.item_number_row * width
        np.dot(_matrix(space.numbers, 0, size, numbers).T, delta, _matrix(gradient, start, numbers, width))
    for k in range(touched):
        code = space.touched[k]
        space.is_touched[code] = False
        start, row = net.item_start + code * e, net.item_rows[code]
        _set_dots(first[row : row + e], space.back[code], gradient[start : start + e])
        _add_outer(theta[start : start + e], space.back[code], slope[row : row + e])
    shared = gradient[net.biases[0] : net.biases[0] + width]
    _add_rows(delta, shared)
    for code in user_codes:
        if code >= 0:
            row = net.user_rows[code]
            _set_dots(first[row : row + e], shared, gradient[code * e : code * e + e])
            _add_outer(theta[code * e : code * e + e], shared, slope[row : row + e])
    _add_outer(user_numbers, shared, slope[net.user_number_row : net.user_number_row + len(user_numbers)])


@jit
def _add_rows(rows: Floats, out: Floats) -> None:
    """out += the sum of the rows."""
    for j in range(len(rows)):
        add_scaled(out, rows[j], _ONE)


@jit
def _gate(values: Floats, slopes: Floats, rectifies: bool) -> None:
    """Times the derivative of the activation, from its value."""
    if rectifies:
        for j in range(len(values)):
            slopes[j] = slopes[j] if values[j] > _ZERO else _ZERO
    else:
        for j in range(len(values)):
            slopes[j] *= values[j] * (_ONE - values[j])


@jit
def clear_touched(space: Space, count: int) -> None:
    """Forget which codes a forward pass touched."""
    for k in range(count):
        space.is_touched[space.touched[k]] = False


@jit
def errors_of(loss: int, scores: Floats, labels: Floats, own: int, outside: int, errors: Floats) -> float:
    """The derivatives of a step's losses by each score, added up; returns the mean loss.

    Of SOFTMAX the first `own` scores are those of own items, and the others stand for all `outside` of them.
    """
    size = len(scores)
    if loss == SOFTMAX:
        return _softmax_errors(scores, own, np.float32(outside / max(size - own, 1)), errors)
    for j in range(size):
        if loss == LOGISTIC:
            errors[j] = _ONE / (_ONE + np.exp(-scores[j])) - labels[j]
        else:
            errors[j] = np.float32(2.0) * (scores[j] - labels[j])
    return float(mean_logistic_loss(errors[:size]) if loss == LOGISTIC else mean_squared_loss(errors[:size]))


@jit
def _softmax_errors(scores: Floats, own: int, weight: np.float32, errors: Floats) -> float:
    """Replace scores by the derivatives of a softmax loss, and return the loss.

    Loops that write do not add up: where the compiler cannot rule out that two arrays overlap it asks at run time, and
    sums would then be in another order from one call to the next.
    """
    size = len(scores)
    if own == size:  # there is no other item to rank below
        for j in range(size):
            errors[j] = _ZERO
        return 0.0
    top = scores[own:].max()
    for j in range(own, size):
        errors[j] = np.exp(scores[j] - top) * weight
    rest, against, total = _ZERO, _ZERO, 0.0
    for j in range(own, size):
        rest += errors[j]
    level = top + np.log(rest)  # of all others together: nothing overflows, however far apart scores are
    for j in range(own):
        errors[j] = np.exp(min(max(level - scores[j], -_LARGEST), _LARGEST))
    for j in range(own):
        against += errors[j] / (_ONE + errors[j])
        total += np.log(_ONE + errors[j])
    for j in range(size):
        errors[j] = -errors[j] / (_ONE + errors[j]) if j < own else errors[j] / rest * against
    return total / max(own, 1)


@jit
def _descend(theta: Floats, start: Floats, gradient: Floats, rate: np.float32, rules: Rules) -> None:
    """theta -= rate (gradient + that of the proximal term, eq. 7)."""
    pull = rules.pull
    if pull > _ZERO and not rules.pull_squared:
        length = _ZERO
        for q in range(len(theta)):
            length += (theta[q] - start[q]) * (theta[q] - start[q])
        # at theta_0 the norm has no gradient: 0 is one of its subgradients
        pull = np.float32(0.5) * pull / np.sqrt(length) if length > _ZERO else _ZERO
    for q in range(len(theta)):
        theta[q] -= rate * (gradient[q] + pull * (theta[q] - start[q]))


@jit
def draw_others(
    count: int, n_items: int, is_own: Indices, stamp: int, stream: np.uint64, counter: int, out: Indices
) -> int:
    """Items that the client does not have; how many words of the stream have been used now."""
    for j in range(count):
        item = np.int32(rng.below(rng.word(stream, counter), n_items))
        counter += 1
        while is_own[item] == stamp:
            item = np.int32(rng.below(rng.word(stream, counter), n_items))
            counter += 1
        out[j] = item
    return counter


@jit
def draw_step(
    rules: Rules,
    own: Indices,
    wanted: Floats,
    at: int,
    batch: int,
    drawn: int,
    is_own: Indices,
    stamp: int,
    stream: np.uint64,
    counter: int,
    items: Indices,
    labels: Floats,
) -> tuple[int, int, int]:
    """What a step learns from: own items from place `at` on, then others; own ones get a new order at place 0.

    Returns how many of them are own, how many there are, and how many words of the stream have been used.
    """
    n = len(own)
    if at == 0:
        for j in range(n):
            pick = j + rng.below(rng.word(stream, counter), n - j)
            counter += 1
            own[j], own[pick] = own[pick], own[j]
            wanted[j], wanted[pick] = wanted[pick], wanted[j]
    here = min(batch, n - at)
    size = here + (drawn if rules.loss == SOFTMAX else here * drawn)
    for j in range(size):
        items[j] = own[at + j] if j < here else 0
        labels[j] = wanted[at + j] if j < here else _ZERO
    counter = draw_others(size - here, len(is_own), is_own, stamp, stream, counter, items[here:size])
    return here, size, counter


@jit
def learn_clients(
    net: Net,
    rules: Rules,
    start: Floats,
    user_codes: Indices,
    user_numbers: Floats,
    item_codes: Indices,
    item_numbers: Floats,
    item_offsets: Floats,
    offsets: Offsets,
    data: Indices,
    targets: Floats,
    clients: Offsets,
    seed: int,
    round_number: int,
    space: Space,
    learnt: Floats,
    loss: Floats,
) -> None:
    """Learn on every client from the same start: `learnt` [n, size] gets the weights at which each arrives.

    `targets` are what own items should score, with SQUARED; every other loss, and every other item, has 1 and 0.
    """
    n_items = len(item_codes)
    is_own = np.full(n_items, -1, np.int32)
    theta, gradient = space.theta, space.gradient
    for client in range(len(clients)):
        begin, end = offsets[client], offsets[client + 1]
        own = data[begin:end].copy()
        wanted = targets[begin:end].copy()
        copy(start, theta)
        n = len(own)
        if n == 0:
            copy(theta, learnt[client])
            continue
        for item in own:
            is_own[item] = client
        outside = 0
        for item in range(n_items):
            outside += is_own[item] != client
        batch = n if rules.batch == 0 else min(rules.batch, n)
        per_epoch = (n + batch - 1) // batch
        steps = rules.steps if rules.steps > 0 else rules.epochs * per_epoch
        drawn = rules.negatives if outside > 0 else 0
        most = batch + (drawn if rules.loss == SOFTMAX else batch * drawn)
        items, labels = np.empty(most, np.int32), np.zeros(most, np.float32)
        scores, errors = np.empty(most, np.float32), np.empty(most, np.float32)
        stream = rng.stream(seed, rng.LEARNING, round_number, clients[client])
        rate = rules.rate * np.float32(n / (n + rules.needed))
        counter, at = 0, 0
        total = 0.0
        for step in range(steps):
            here, size, counter = draw_step(
                rules, own, wanted, at, batch, drawn, is_own, client, stream, counter, items, labels
            )
            at = 0 if at + here == n else at + here
            some = items[:size]
            _share_of_user(net, theta, user_codes[client], user_numbers[client], space.shared)
            touched = forward(net, theta, item_codes, item_numbers, some, space, scores)
            for j in range(size):
                scores[j] += item_offsets[some[j]]
            value = errors_of(rules.loss, scores[:size], labels[:size], here, outside, errors)
            count = here if rules.loss == SOFTMAX else size
            share = np.float32(1.0 / count) if rules.mean else _ONE
            for j in range(size):
                errors[j] *= share
            backward(
                net,
                theta,
                user_codes[client],
                user_numbers[client],
                item_codes,
                item_numbers,
                some,
                errors[:size],
                touched,
                space,
                gradient,
            )
            _descend(theta, start, gradient, rate, rules)
            if step >= steps - per_epoch:
                total += value
        copy(theta, learnt[client])
        loss[client] = total / min(per_epoch, steps)


@jit
def score_clients(
    net: Net,
    learnt: Floats,
    user_codes: Indices,
    user_numbers: Floats,
    item_codes: Indices,
    item_numbers: Floats,
    item_offsets: Floats,
    space: Space,
    scores: Floats,
) -> None:
    """Scores of all items for every client with its own weights: [n, items]."""
    n_items = len(item_codes)
    at_once = len(space.values) // max(net.widths[1:].sum(), 1)
    every, theta = np.arange(n_items).astype(np.int32), space.theta
    for client in range(len(scores)):
        copy(learnt[client], theta)
        _share_of_user(net, theta, user_codes[client], user_numbers[client], space.shared)
        for begin in range(0, n_items, at_once):
            some = every[begin : begin + at_once]
            row = scores[client, begin : begin + len(some)]
            touched = forward(net, theta, item_codes, item_numbers, some, space, row)
            clear_touched(space, touched)
            add_scaled(row, item_offsets[begin : begin + len(some)], _ONE)
