"""Local training of federated collaborative filtering: solve the user vector, upload every item's gradient.

Ammad-ud-din et al. 2019, with preference p_ui = 1 for a used item and 0 for any other, confidence
c_ui = 1 + alpha p_ui, and item vectors Y:

    x_u = (Y^T C_u Y + decay I)^-1 Y^T C_u p_u        solved on the client, never stored
    f(u, i) = c_ui (p_ui - x_u . y_i) x_u             uploaded for every item i

    paper   here
    Y       model["items"]
    x_u     solve_users
    f       the rows of FcfLocalTrainer's update
    lambda  FcfSettings.decay
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveInt

from veilrec.client.local_training import Cohort, LocalResults, OwnItems
from veilrec.core import rng
from veilrec.core.arrays import Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.jit import jit
from veilrec.core.schema import ClientUpdates, RoundSpec, Rows, Schema, Tensor

ITEMS = "items"
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


@dataclass(frozen=True)
class FcfSettings:
    """What a client solves."""

    dim: PositiveInt = 32  # length of user and item vectors
    alpha: NotNegative = 4.0  # a used item counts 1 + alpha times as much as another
    decay: Positive = 10.0  # lambda of the user's ridge regression


def schema(n_items: int, dim: int) -> Schema:
    """The public part of the model: one row per item."""
    return Schema((Tensor(ITEMS, (n_items, dim), by_row=True),))


def start_weights(n_items: int, dim: int, start: float, seed: int) -> dict[str, Floats]:
    """The server's first model."""
    rows = np.arange(n_items, dtype=np.int64)
    return {ITEMS: start * rng.normals(seed, rng.MODEL, 0, rows, dim)}


def solve_users(table: Floats, histories: Csr, settings: FcfSettings) -> Floats:
    """x_u for every row of the histories: [users, dim]."""
    users = np.empty((len(histories), settings.dim), np.float32)
    _solve_all(table, histories.offsets, histories.items, settings.alpha, settings.decay, users)
    return users


class FcfLocalTrainer:
    """Local learning of federated collaborative filtering: draws nothing, keeps nothing."""

    keeps_state = False
    reads = ("items",)
    rows = "all"

    def __init__(self, settings: FcfSettings) -> None:
        self.settings = settings

    def fresh_private_state(self, clients: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing: the user's vector follows from the history and the model."""
        return {}

    def learn(self, cohort: Cohort[OwnItems], model: Mapping[str, Floats], spec: RoundSpec) -> LocalResults:
        """Solve each client's vector and give the negative half gradient of its loss for every item."""
        table, data = model[ITEMS], cohort.data.rows
        n_items, n = len(table), len(data)
        users = solve_users(table, data, self.settings)
        values = np.empty((n * n_items, self.settings.dim), np.float32)
        loss = np.empty(n, np.float32)
        _gradients(table, users, data.offsets, data.items, self.settings.alpha, values, loss)
        offsets = np.arange(n + 1, dtype=np.int64) * n_items
        index = np.tile(np.arange(n_items, dtype=np.int32), n)
        examples = np.full(n, n_items, np.int64)
        rows = Rows(offsets, index, values)
        return LocalResults(ClientUpdates(spec.number, n, {ITEMS: rows}, examples=examples), examples, loss)


@jit
def _solve_all(  # type: ignore[no-untyped-def]
    table: Floats, offsets: Offsets, items: Indices, alpha, decay, users: Floats
) -> None:
    """Double precision, because the equations of a long history are badly conditioned."""
    n_items, dim = table.shape
    # Y^T C_u Y + decay I = (Y^T Y + decay I) + alpha Y_u^T Y_u: only the second part differs between users.
    shared = decay * np.eye(dim)
    _add_outer_products(table, np.arange(n_items, dtype=np.int32), 1.0, shared)
    right = np.empty(dim)
    for user in range(len(users)):
        own = items[offsets[user] : offsets[user + 1]]
        matrix = shared.copy()
        _add_outer_products(table, own, alpha, matrix)
        right[:] = 0.0
        for item in own:
            for a in range(dim):
                right[a] += (1.0 + alpha) * table[item, a]
        _solve_in_place(matrix, right)
        for a in range(dim):
            users[user, a] = right[a]


@jit
def _add_outer_products(rows: Floats, index: Indices, scale, matrix: Doubles) -> None:  # type: ignore[no-untyped-def]
    """matrix += scale * sum of y y^T over the chosen rows y, two rows at a time."""
    dim = len(matrix)
    first, second = np.empty(dim), np.empty(dim)
    for j in range(0, len(index), 2):
        for a in range(dim):
            first[a] = rows[index[j], a]
            second[a] = rows[index[j + 1], a] if j + 1 < len(index) else 0.0
        for a in range(dim):
            left, right = scale * first[a], scale * second[a]
            for b in range(dim):
                matrix[a, b] += left * first[b] + right * second[b]


@jit
def _solve_in_place(matrix: Doubles, right: Doubles) -> None:
    """Cholesky: `right` becomes the solution; the lower triangle of the matrix is read, and is lost."""
    dim = len(right)
    for a in range(dim):
        for b in range(a + 1):
            value = matrix[a, b]
            for k in range(b):
                value -= matrix[a, k] * matrix[b, k]
            matrix[a, b] = np.sqrt(value) if a == b else value / matrix[b, b]
    for a in range(dim):
        for k in range(a):
            right[a] -= matrix[a, k] * right[k]
        right[a] /= matrix[a, a]
    for a in range(dim - 1, -1, -1):
        for k in range(a + 1, dim):
            right[a] -= matrix[k, a] * right[k]
        right[a] /= matrix[a, a]


@jit
def _gradients(
    table: Floats, users: Floats, offsets: Offsets, items: Indices, alpha: float, values: Floats, loss: Floats
) -> None:
    n_items, dim = table.shape
    weights = np.empty(n_items, np.float32)  # c_ui (p_ui - x_u . y_i)
    for client in range(len(users)):
        user = users[client]
        total = np.float64(0.0)
        for i in range(n_items):
            score = np.float32(0.0)
            for q in range(dim):
                score += user[q] * table[i, q]
            weights[i] = -score
            total += score * score
        for entry in range(offsets[client], offsets[client + 1]):
            item = items[entry]
            score = -weights[item]
            error = np.float32(1.0) - score
            weights[item] = np.float32(1.0 + alpha) * error
            total += (1.0 + alpha) * error * error - score * score
        for i in range(n_items):
            for q in range(dim):
                values[client * n_items + i, q] = weights[i] * user[q]
        loss[client] = total / n_items
