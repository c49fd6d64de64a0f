"""Local learning of a feature network in compiled code: forward, gradient and step of one device after another.

The embeddings of items are multiplied into the first layer once per step and code, not once per example, of which the
pre-activations are then sums of a few rows. Matrices are multiplied by BLAS. The same code runs without numba, as array
operations of numpy, which is fast enough for the one device that a small install has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from veilrec import _draws
from veilrec._arrays import Bools, Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec.models.feature_net import Net

LOGISTIC, SOFTMAX, SQUARED = 0, 1, 2
_ONE = np.float32(1.0)
_SMALLEST = np.float32(1e-12)


class Rules(NamedTuple):
    """How a device learns."""

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
    """Scratch space of a device, made once for all of them."""

    table: Floats  # [codes, h_1]: embeddings times the first layer
    back: Floats  # [codes, h_1]: its gradient
    touched: Indices  # [codes]
    is_touched: Bools  # [codes]
    shared: Floats  # [h_1]: what the user adds to every example
    numbers: Floats  # of the items of a step, end to end
    values: Floats  # activations of all layers, end to end
    other: Floats  # gradients of two layers


def space_for(net: Net, examples: int) -> Space:
    """Room for steps of so many examples."""
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
    )


@jit
def _matrix(flat: Floats, start: int, rows: int, columns: int) -> Floats:
    return flat[start : start + rows * columns].reshape(rows, columns)


@jit
def _share_of_user(net: Net, theta: Floats, codes: Indices, numbers: Floats, out: Floats) -> None:
    """What a user adds to the first layer, the bias included."""
    e, width = net.embedding, net.widths[1]
    first = _matrix(theta, net.weights[0], net.widths[0], width)
    out[:] = theta[net.biases[0] : net.biases[0] + width]
    for code in codes:
        if code >= 0:
            row = net.user_rows[code]
            out += np.dot(theta[code * e : code * e + e], first[row : row + e])
    for j in range(len(numbers)):
        out += numbers[j] * first[net.user_number_row + j]


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
                space.table[code] = np.dot(theta[start : start + e], first[row : row + e])
                space.back[code] = 0.0
    return count


@jit
def forward(
    net: Net, theta: Floats, item_codes: Indices, item_numbers: Floats, items: Indices, space: Space, scores: Floats
) -> int:
    """Scores of some items without their offsets; the user's share is in the space. The codes stay touched."""
    count = _touch(net, theta, item_codes, items, space)
    size, layers = len(items), len(net.weights)
    width = net.widths[1]
    first = _matrix(theta, net.weights[0], net.widths[0], width)
    out = _matrix(space.values, 0, size, width)
    for j in range(size):
        row = out[j]
        row[:] = space.shared
        for code in item_codes[items[j]]:
            if code >= 0:
                row += space.table[code]
    if item_numbers.shape[1]:
        given = _matrix(space.numbers, 0, size, item_numbers.shape[1])
        for j in range(size):
            given[j] = item_numbers[items[j]]
        out += np.dot(given, first[net.item_number_row :])
    at = 0
    for layer in range(1, layers):
        _activate(out, net.rectifies)
        at += out.size
        width = net.widths[layer + 1]
        weight = _matrix(theta, net.weights[layer], net.widths[layer], width)
        after = _matrix(space.values, at, size, width)
        np.dot(out, weight, after)
        after += theta[net.biases[layer] : net.biases[layer] + width]
        out = after
    scores[:size] = out.reshape(-1)
    return count


@jit
def _activate(values: Floats, rectifies: bool) -> None:
    flat = values.reshape(-1)
    if rectifies:
        flat[:] = np.maximum(flat, np.float32(0.0))
    else:
        flat[:] = _ONE / (_ONE + np.exp(-flat))


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
    gradient[:] = 0.0
    half = len(space.other) // 2
    delta = _matrix(space.other, 0, size, 1)
    delta[:, 0] = errors
    at = size * (net.widths[1:].sum() - 1)
    for layer in range(layers - 1, 0, -1):
        inputs, outputs = net.widths[layer], net.widths[layer + 1]
        at -= size * inputs
        before = _matrix(space.values, at, size, inputs)
        weight = _matrix(theta, net.weights[layer], inputs, outputs)
        _matrix(gradient, net.weights[layer], inputs, outputs)[:] = np.dot(before.T, delta)
        gradient[net.biases[layer] : net.biases[layer] + outputs] = delta.sum(axis=0)
        place = half if (layers - layer) % 2 == 1 else 0
        down = _matrix(space.other, place, size, inputs)
        np.dot(delta, np.ascontiguousarray(weight.T), down)
        if net.rectifies:
            down[:] = np.where(before > 0.0, down, np.float32(0.0))
        else:
            down *= before * (_ONE - before)
        delta = down
    width = net.widths[1]
    first = _matrix(theta, net.weights[0], net.widths[0], width)
    slope = _matrix(gradient, net.weights[0], net.widths[0], width)
    for j in range(size):
        for code in item_codes[items[j]]:
            if code >= 0:
                space.back[code] += delta[j]
    if item_numbers.shape[1]:
        given = _matrix(space.numbers, 0, size, item_numbers.shape[1])
        slope[net.item_number_row :] = np.dot(given.T, delta)
    for k in range(touched):
        code = space.touched[k]
        space.is_touched[code] = False
        start, row = net.item_start + code * e, net.item_rows[code]
        gradient[start : start + e] = np.dot(first[row : row + e], space.back[code])
        slope[row : row + e] += theta[start : start + e].reshape(e, 1) * space.back[code]
    shared = delta.sum(axis=0)
    gradient[net.biases[0] : net.biases[0] + width] = shared
    for code in user_codes:
        if code >= 0:
            row = net.user_rows[code]
            gradient[code * e : code * e + e] += np.dot(first[row : row + e], shared)
            slope[row : row + e] += theta[code * e : code * e + e].reshape(e, 1) * shared
    for j in range(len(user_numbers)):
        slope[net.user_number_row + j] += user_numbers[j] * shared


@jit
def clear_touched(space: Space, count: int) -> None:
    """Forget which codes a forward pass touched."""
    for k in range(count):
        space.is_touched[space.touched[k]] = False


@jit
def errors_of(loss: int, scores: Floats, labels: Floats, own: int, outside: int, mean: bool, errors: Floats) -> float:
    """The derivative of a step's loss by each score; returns the mean loss.

    Of SOFTMAX the first `own` scores are those of own items, and the others stand for all `outside` of them.
    """
    size = len(scores)
    total = 0.0
    if loss == SOFTMAX:
        top = scores.max()
        rivals = np.exp(scores[own:] - top) * np.float32(outside / max(size - own, 1))
        rest = rivals.sum()
        against = np.float32(0.0)
        for j in range(own):
            mine = np.exp(scores[j] - top)
            chance = mine / (mine + rest)
            total -= np.log(max(chance, _SMALLEST))
            errors[j] = chance - _ONE
            against += _ONE / (mine + rest)
        errors[own:size] = rivals * against
        count = own
    elif loss == LOGISTIC:
        chances = _ONE / (_ONE + np.exp(-scores))
        errors[:size] = chances - labels
        total = -np.log(np.maximum(_ONE - np.abs(errors[:size]), _SMALLEST)).sum()
        count = size
    else:
        errors[:size] = np.float32(2.0) * (scores - labels)
        total = 0.25 * (errors[:size] * errors[:size]).sum()
        count = size
    if mean:
        errors[:size] *= np.float32(1.0 / max(count, 1))
    return total / max(count, 1)


@jit
def _descend(theta: Floats, start: Floats, gradient: Floats, rate: np.float32, rules: Rules) -> None:
    """theta -= rate (gradient + that of the proximal term, eq. 7)."""
    if rules.pull > 0.0:
        moved = theta - start
        if rules.pull_squared:
            gradient += rules.pull * moved
        else:
            length = np.sqrt(np.dot(moved, moved))
            if length > 0.0:  # at theta_0 the norm has no gradient: 0 is one of its subgradients
                gradient += np.float32(0.5) * rules.pull / length * moved
    theta -= rate * gradient


@jit
def draw_others(
    count: int, n_items: int, is_own: Indices, stamp: int, stream: np.uint64, counter: int, out: Indices
) -> int:
    """Items that the device does not have; how many words of the stream have been used now."""
    for j in range(count):
        item = np.int32(_draws.below(_draws.word(stream, counter), n_items))
        counter += 1
        while is_own[item] == stamp:
            item = np.int32(_draws.below(_draws.word(stream, counter), n_items))
            counter += 1
        out[j] = item
    return counter


@jit
def learn_devices(
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
    devices: Offsets,
    seed: int,
    round_number: int,
    space: Space,
    learnt: Floats,
    loss: Floats,
) -> None:
    """Learn on every device from the same start: `learnt` [n, size] gets the weights at which each arrives.

    `targets` are what own items should score, with SQUARED; every other loss, and every other item, has 1 and 0.
    """
    n_items = len(item_codes)
    is_own = np.full(n_items, -1, np.int32)
    gradient = np.empty(len(start), np.float32)
    for device in range(len(devices)):
        begin, end = offsets[device], offsets[device + 1]
        own = data[begin:end].copy()
        wanted = targets[begin:end].copy()
        theta = learnt[device]
        theta[:] = start
        n = len(own)
        if n == 0:
            continue
        for item in own:
            is_own[item] = device
        outside = 0
        for item in range(n_items):
            outside += is_own[item] != device
        batch = n if rules.batch == 0 else min(rules.batch, n)
        per_epoch = (n + batch - 1) // batch
        steps = rules.steps if rules.steps > 0 else rules.epochs * per_epoch
        drawn = rules.negatives if outside > 0 else 0
        most = batch + (drawn if rules.loss == SOFTMAX else batch * drawn)
        items, labels = np.empty(most, np.int32), np.zeros(most, np.float32)
        scores, errors = np.empty(most, np.float32), np.empty(most, np.float32)
        stream = _draws.stream(seed, _draws.LEARNING, round_number, devices[device])
        rate = rules.rate * np.float32(n / (n + rules.needed))
        counter, at = 0, 0
        total = 0.0
        for step in range(steps):
            if at == 0:
                for j in range(n):  # a new order
                    pick = j + _draws.below(_draws.word(stream, counter), n - j)
                    counter += 1
                    own[j], own[pick] = own[pick], own[j]
                    wanted[j], wanted[pick] = wanted[pick], wanted[j]
            here = min(batch, n - at)
            others = drawn if rules.loss == SOFTMAX else here * drawn
            size = here + others
            items[:here] = own[at : at + here]
            labels[:here] = wanted[at : at + here]
            labels[here:size] = 0.0
            counter = draw_others(others, n_items, is_own, device, stream, counter, items[here:size])
            at = 0 if at + here == n else at + here
            some = items[:size]
            _share_of_user(net, theta, user_codes[device], user_numbers[device], space.shared)
            touched = forward(net, theta, item_codes, item_numbers, some, space, scores)
            for j in range(size):
                scores[j] += item_offsets[some[j]]
            value = errors_of(rules.loss, scores[:size], labels[:size], here, outside, rules.mean, errors)
            backward(
                net,
                theta,
                user_codes[device],
                user_numbers[device],
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
        loss[device] = total / min(per_epoch, steps)


@jit
def score_devices(
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
    """Scores of all items for every device with its own weights: [n, items]."""
    n_items = len(item_codes)
    at_once = len(space.values) // max(net.widths[1:].sum(), 1)
    every = np.arange(n_items).astype(np.int32)
    for device in range(len(scores)):
        theta = learnt[device]
        _share_of_user(net, theta, user_codes[device], user_numbers[device], space.shared)
        for begin in range(0, n_items, at_once):
            some = every[begin : begin + at_once]
            row = scores[device, begin : begin + len(some)]
            touched = forward(net, theta, item_codes, item_numbers, some, space, row)
            clear_touched(space, touched)
            row += item_offsets[begin : begin + len(some)]
