"""The client's part of federated collaborative filtering against the paper's equations in numpy."""

import numpy as np

from veilrec.client import fcf
from veilrec.client.local_training import Cohort, OwnItems
from veilrec.core.csr import Csr
from veilrec.core.schema import RoundSpec

SETTINGS = fcf.FcfSettings(dim=6, alpha=3.0, decay=0.7)
N_ITEMS = 25
HISTORIES = Csr(np.array([0, 4, 4, 9]), np.array([3, 24, 0, 7, 1, 2, 3, 5, 8], np.int32))  # the second is empty


def table():
    return fcf.start_weights(N_ITEMS, SETTINGS.dim, 0.5, seed=2)[fcf.ITEMS]


def preferences():
    wanted = np.zeros((3, N_ITEMS))
    wanted[HISTORIES.row_numbers(), HISTORIES.items] = 1.0
    return wanted


def loss(items, user, wanted):
    """The part of the loss that one client knows."""
    confidence = 1.0 + SETTINGS.alpha * wanted
    return float(confidence @ (wanted - items @ user) ** 2)


def learn(clients):
    chosen = np.array(clients)
    cohort = Cohort(chosen, OwnItems(HISTORIES.take(chosen)), {}, 0)
    return fcf.FcfLocalTrainer(SETTINGS).learn(cohort, {fcf.ITEMS: table()}, RoundSpec(0))


def test_user_vectors_solve_the_normal_equations():
    items = table().astype(np.float64)
    users = fcf.solve_users(table(), HISTORIES, SETTINGS)
    for user, wanted in zip(users, preferences(), strict=True):
        confidence = np.diag(1.0 + SETTINGS.alpha * wanted)
        matrix = items.T @ confidence @ items + SETTINGS.decay * np.eye(SETTINGS.dim)
        assert np.allclose(user, np.linalg.solve(matrix, items.T @ confidence @ wanted), rtol=1e-5, atol=1e-7)


def test_uploads_are_the_negative_half_gradient_of_every_item():
    items = table().astype(np.float64)
    learned = learn([0, 1, 2])
    rows = learned.updates.tables[fcf.ITEMS]
    users = fcf.solve_users(table(), HISTORIES, SETTINGS).astype(np.float64)
    step = 1e-5
    for client, wanted in enumerate(preferences()):
        sent = rows.values[rows.offsets[client] : rows.offsets[client + 1]]
        assert rows.index[rows.offsets[client] : rows.offsets[client + 1]].tolist() == list(range(N_ITEMS))
        assert np.isclose(learned.loss[client], loss(items, users[client], wanted) / N_ITEMS, rtol=1e-5)
        for i, q in ((3, 0), (24, 5), (10, 2)):
            above, below = items.copy(), items.copy()
            above[i, q] += step
            below[i, q] -= step
            slope = (loss(above, users[client], wanted) - loss(below, users[client], wanted)) / (2 * step)
            assert np.isclose(sent[i, q], -slope / 2, rtol=1e-4, atol=1e-6)


def test_the_history_can_be_computed_from_what_is_sent():
    """As the guarantee warns: f(u, i) = -(x_u . y_i) x_u for every unused item, and for no other."""
    sent = learn([0]).updates.tables[fcf.ITEMS].values.astype(np.float64)
    direction = sent[0] / np.linalg.norm(sent[0])
    squared_length = np.median(-(sent @ direction) / (table() @ direction))
    unlike_unused = np.abs(sent @ direction + squared_length * (table() @ direction)) > 1e-4
    assert set(np.flatnonzero(unlike_unused)) == set(HISTORIES.row(0).tolist())
