"""Local training of matrix factorisation: sampled negatives, plain SGD, only touched rows.

score(u, i) = p_u . q_i; the loss of an example with label y is -log sigmoid((2y-1) score), or (y - score)^2, plus
decay/2 (|p_u|^2 + |q_i|^2). The user vector p_u never leaves the client; for every touched item row q_i the client
uploads its change, or the negative gradient of the losses at the row that the server sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from veilrec.client.local_training import Cohort, LocalResults, OwnItems
from veilrec.core import rng
from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.errors import BadInput
from veilrec.core.jit import jit
from veilrec.core.schema import ClientUpdates, RoundSpec, Rows, Schema, Tensor
from veilrec.kernels.loops import add_scaled_rows, draw_epoch, mean_logistic_loss, mean_squared_loss, row_dots, sigmoids

ITEMS = "items"
USER = "user"


@dataclass(frozen=True)
class MfSettings:
    """Local learning of matrix factorisation."""

    dim: int = 32  # length of user and item vectors
    start: float = 0.1  # standard deviation of the starting vectors
    epochs: int = 5  # local epochs in a round
    negatives: int = 4  # unused items drawn per used one, afresh every epoch
    batch: int = 1  # examples per SGD step; 0 = the whole epoch
    loss: Literal["logistic", "squared"] = "logistic"  # of one example
    reduction: Literal["sum", "mean"] = "sum"  # of the losses in a batch
    update: Literal["change", "gradient"] = "change"  # gradient: only user vectors learn here, the server has the rate
    user_rate: float = 0.05  # learning rate of user vectors
    item_rate: float = 0.03  # of changes
    decay: float = 0.005  # weight decay of the rows that an example touches

    def __post_init__(self) -> None:
        for name, least in (("dim", 1), ("epochs", 1), ("negatives", 0), ("batch", 0)):
            if getattr(self, name) < least:
                raise BadInput(f"local.{name} is {getattr(self, name)}: it has to be at least {least}")
        for name in ("start", "user_rate", "item_rate", "decay"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise BadInput(f"local.{name} is {getattr(self, name)}: it has to be a number from 0 up")


def schema(n_items: int, dim: int) -> Schema:
    """The public part of the model: one row per item."""
    return Schema((Tensor(ITEMS, (n_items, dim), by_row=True),))


def start_weights(n_items: int, dim: int, start: float, seed: int) -> dict[str, Floats]:
    """The server's first model."""
    rows = np.arange(n_items, dtype=np.int64)
    return {ITEMS: start * rng.normals(seed, rng.MODEL, 0, rows, dim)}


class MfLocalTrainer:
    """Local learning of matrix factorisation for any number of clients."""

    keeps_state = True
    reads = ("items", "order")
    rows = "touched"

    def __init__(self, settings: MfSettings, *, freeze_items: bool = False, clip_epochs: float = 0.0) -> None:
        if clip_epochs > 0.0 and settings.update != "gradient":
            raise BadInput(
                f"local.update is {settings.update}: epochs are clipped by themselves where clients send gradients;"
                " use --set local.update=gradient, or --set published.uploads=round"
            )
        self.settings = settings
        self.clip_epochs = clip_epochs  # L2 norm of each item's gradient of each epoch; 0: not clipped here
        self.freeze_items = freeze_items  # only the user vector learns: how a new user joins a finished model

    def fresh_private_state(self, clients: Offsets, draws_seed: int) -> dict[str, Floats]:
        """User vectors of clients that take part for the first time."""
        s = self.settings
        return {USER: s.start * rng.normals(draws_seed, rng.PRIVATE_STATE, 0, clients, s.dim)}

    def learn(self, cohort: Cohort[OwnItems], model: Mapping[str, Floats], spec: RoundSpec) -> LocalResults:
        """Learn from each client's data."""
        s = self.settings
        table, data = model[ITEMS], cohort.data.rows
        _check_items(data.items, len(table))
        lengths = data.lengths()
        loss = np.zeros(len(lengths), np.float32)
        most = np.minimum(lengths * (1 + s.negatives * s.epochs), len(table))
        offsets = np.zeros(len(data) + 1, np.int64)
        index = np.empty(int(most.sum()), np.int32)
        values = np.empty((len(index), s.dim), np.float32)
        _learn(
            cohort.clients,
            data.offsets,
            data.items,
            cohort.private[USER],
            table,
            s.epochs,
            s.negatives,
            s.batch,
            s.loss == "squared",
            s.reduction == "mean",
            s.update == "gradient",
            np.float32(s.user_rate),
            np.float32(0.0 if self.freeze_items else s.item_rate),
            np.float32(s.decay),
            np.float32(self.clip_epochs),
            cohort.draws_seed,
            spec.number,
            offsets,
            index,
            values,
            loss,
        )
        rows = Rows(offsets, index[: offsets[-1]], values[: offsets[-1]])
        drawn = np.where(lengths < len(table), s.negatives, 0)
        examples = lengths * (1 + drawn) * s.epochs
        return LocalResults(ClientUpdates(spec.number, len(lengths), {ITEMS: rows}, examples=examples), examples, loss)


def _check_items(items: Indices, n_items: int) -> None:
    """Compiled code does not check what it looks up."""
    if len(items) and not 0 <= int(items.min()) <= int(items.max()) < n_items:
        raise BadInput(f"item numbers from {items.min()} to {items.max()}: the model has items 0 to {n_items - 1}")


@jit
def _learn(
    clients: Offsets,
    offsets: Offsets,
    data: Indices,
    users: Floats,
    table: Floats,
    epochs: int,
    negatives: int,
    batch: int,
    squared: bool,
    mean: bool,
    still: bool,
    user_rate: np.float32,
    item_rate: np.float32,
    decay: np.float32,
    clip: np.float32,
    seed: int,
    round_number: int,
    out_offsets: Offsets,
    out_index: Indices,
    out_values: Floats,
    out_loss: Floats,
) -> None:
    n_items, dim = table.shape
    longest = 0
    for client in range(len(clients)):
        longest = max(longest, offsets[client + 1] - offsets[client])
    epoch_size = longest * (1 + negatives)
    own = np.empty(longest, np.int32)
    items = np.empty(epoch_size, np.int32)
    labels = np.empty(epoch_size, np.float32)
    slots = np.empty(epoch_size, np.int32)
    errors = np.empty(epoch_size, np.float32)
    exponents = np.empty(epoch_size, np.int32)
    user_gradient = np.empty(dim, np.float32)
    slot_of = np.full(n_items, -1, np.int32)  # an item's row in out_values; below `first`: not touched yet
    is_own = np.full(n_items, -1, np.int32)
    repeats = np.zeros(n_items, np.int32)
    by_epochs = still and clip > np.float32(0.0)
    of_epoch = np.zeros(
        (n_items if by_epochs else 0, dim), np.float32
    )  # one epoch's gradients, before they are clipped
    used = 0
    for client in range(len(clients)):
        length = offsets[client + 1] - offsets[client]
        drawn = negatives if length < n_items else 0  # a client that owns every item has nothing to draw from
        size = length * (1 + drawn)
        step = size if batch == 0 else batch
        mine = own[:length]
        mine[:] = data[offsets[client] : offsets[client + 1]]
        for j in range(length):
            is_own[mine[j]] = client
        user = users[client]
        first = used
        start = rng.stream(seed, rng.LEARNING, round_number, clients[client])
        counter = 0
        redraw = drawn > 0 or step < size  # else every epoch is the same set, in one batch
        for epoch in range(epochs):
            if redraw or epoch == 0:
                counter = draw_epoch(mine, is_own, client, n_items, drawn, start, counter, items, labels)
                for j in range(size):
                    item = items[j]
                    slot = slot_of[item]
                    if slot < first:
                        slot = np.int32(used)
                        used += 1
                        slot_of[item] = slot
                        out_index[slot] = item
                        for q in range(dim):
                            out_values[slot, q] = np.float32(0.0) if still else table[item, q]
                    slots[j] = slot
            for begin in range(0, size, max(step, 1)):
                end = min(begin + step, size)
                scale = np.float32(1.0 / (end - begin)) if mean else np.float32(1.0)
                if still:
                    _one_gradient(
                        user,
                        table,
                        of_epoch if by_epochs else out_values,
                        items[begin:end],
                        items[begin:end] if by_epochs else slots[begin:end],
                        labels[begin:end],
                        errors[begin:end],
                        exponents,
                        user_gradient,
                        squared,
                        scale,
                        user_rate,
                        decay,
                    )
                elif step == 1:
                    errors[begin] = one_example(
                        user, out_values[slots[begin]], labels[begin], squared, user_rate, item_rate, decay
                    )
                else:
                    _one_batch(
                        user,
                        out_values,
                        items[begin:end],
                        slots[begin:end],
                        labels[begin:end],
                        errors[begin:end],
                        exponents,
                        repeats,
                        user_gradient,
                        squared,
                        user_rate * scale,
                        item_rate * scale,
                        decay,
                    )
            if by_epochs:
                _add_clipped(of_epoch, items[:size], slots[:size], out_values, clip)
        out_loss[client] = mean_squared_loss(errors[:size]) if squared else mean_logistic_loss(errors[:size])
        if not still:
            for slot in range(first, used):
                for q in range(dim):
                    out_values[slot, q] -= table[out_index[slot], q]
        out_offsets[client + 1] = used


@jit
def one_example(
    user: Floats,
    item: Floats,
    label: np.float32,
    squared: bool,
    user_rate: np.float32,
    item_rate: np.float32,
    decay: np.float32,
) -> np.float32:
    """One step of SGD on both vectors; returns the derivative of the loss by the score before it."""
    score = np.float32(0.0)
    for q in range(len(user)):
        score += user[q] * item[q]
    if squared:
        error = np.float32(2.0) * (score - label)
    else:
        error = np.float32(1.0) / (np.float32(1.0) + np.exp(-score)) - label
    for q in range(len(user)):
        p, r = user[q], item[q]
        user[q] = p - user_rate * (error * r + decay * p)
        item[q] = r - item_rate * (error * p + decay * r)
    return np.float32(error)


@jit
def _one_batch(
    user: Floats,
    rows: Floats,
    items: Indices,
    slots: Indices,
    labels: Floats,
    errors: Floats,
    exponents: Indices,
    repeats: Indices,
    user_gradient: Floats,
    squared: bool,
    user_rate: np.float32,
    item_rate: np.float32,
    decay: np.float32,
) -> None:
    size = len(slots)
    row_dots(rows, slots, user, errors)
    _derivatives(errors, labels, exponents, squared)
    for j in range(size):
        repeats[items[j]] += 1  # an item can be drawn twice in a batch
    for q in range(len(user)):
        user_gradient[q] = decay * size * user[q]
    add_scaled_rows(rows, slots, errors, user_gradient)
    for j in range(size):
        row = rows[slots[j]]
        step = -item_rate * errors[j]
        shrink = np.float32(1.0) - np.float32(repeats[items[j]]) * item_rate * decay
        repeats[items[j]] = 0  # the row as it was before the batch decays, once for all repeats
        for q in range(len(user)):
            row[q] = shrink * row[q] + step * user[q]
    for q in range(len(user)):
        user[q] -= user_rate * user_gradient[q]


@jit
def _one_gradient(
    user: Floats,
    table: Floats,
    out: Floats,
    items: Indices,
    slots: Indices,
    labels: Floats,
    errors: Floats,
    exponents: Indices,
    user_gradient: Floats,
    squared: bool,
    scale: np.float32,
    user_rate: np.float32,
    decay: np.float32,
) -> None:
    """One step of the user vector; the items stand still and their negative gradients are added to `out`."""
    size = len(slots)
    row_dots(table, items, user, errors)
    _derivatives(errors, labels, exponents, squared)
    for q in range(len(user)):
        user_gradient[q] = decay * size * user[q]
    add_scaled_rows(table, items, errors, user_gradient)
    for j in range(size):
        row, sent = table[items[j]], out[slots[j]]
        for q in range(len(user)):
            sent[q] -= scale * (errors[j] * user[q] + decay * row[q])
    for q in range(len(user)):
        user[q] -= user_rate * scale * user_gradient[q]


@jit
def _add_clipped(of_epoch: Floats, items: Indices, slots: Indices, out: Floats, clip: np.float32) -> None:
    """Clip an epoch's gradient of each item, add it to what is sent, and begin the next epoch with nothing."""
    for j in range(len(items)):
        row, sent = of_epoch[items[j]], out[slots[j]]
        squares = 0.0
        for q in range(len(row)):
            squares += np.float64(row[q]) ** 2
        if squares == 0.0:  # drawn twice: it has been added
            continue
        scale = np.float32(min(1.0, np.float64(clip) / math.sqrt(squares)))
        for q in range(len(row)):
            sent[q] += scale * row[q]
            row[q] = np.float32(0.0)


@jit
def _derivatives(scores: Floats, labels: Floats, exponents: Indices, squared: bool) -> None:
    """Replace every score by the derivative of its example's loss; `exponents` is scratch space."""
    if squared:
        for j in range(len(labels)):
            scores[j] = np.float32(2.0) * (scores[j] - labels[j])
        return
    sigmoids(scores, len(labels), exponents)
    for j in range(len(labels)):
        scores[j] -= labels[j]
