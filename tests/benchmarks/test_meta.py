"""Meta-learning: all contenders learn the same, and the tasks say who is how much faster."""

import numpy as np
import pytest

import _meta as meta
from _measure import Options
from _meta import SAME, Clients
from veilrec.core.errors import VeilrecError

SMALL = Options(repeats=1, quick=True, peers=False)


@pytest.mark.parametrize(("embedding", "hidden"), [(4, (6, 3)), (8, (8, 8, 8, 8)), (3, ())])
def test_loop_and_bmm_arrive_at_our_weights(embedding, hidden):
    """With sigmoids: a ReLU whose input is 0 but for rounding is on in one and off in the other."""
    clients = Clients(embedding, hidden, 6, n_items=90, own=37, activation="sigmoid")
    assert clients.apart(2).max() <= SAME
    assert (np.abs(clients.ours(2) - clients.start).max(axis=1) > 1e-3).all(), "nothing was learnt"


def test_everybody_learns_from_the_examples_that_the_kernel_draws():
    clients = Clients(4, (6,), 3, n_items=90, own=37)
    steps = [list(clients.adapter.drawn(clients.own.row(d), 90, client=d, seed=1)) for d in range(3)]
    for client, drawn in enumerate(steps):
        assert [len(step.items) for step in drawn] == [80, 80, 25] * 5
        own = set(clients.own.row(client).tolist())
        for epoch in range(5):
            seen = [item for step in drawn[3 * epoch : 3 * epoch + 3] for item in step.items[: step.own].tolist()]
            assert sorted(seen) == sorted(own)
        assert not own & {item for step in drawn for item in step.items[step.own :].tolist()}
        assert all(step.labels.sum() == step.own for step in drawn)


def test_contenders_that_learn_something_else_are_not_measured(monkeypatch):
    monkeypatch.setattr(meta.Clients, "batched", lambda self, number: 1.01 * self.ours(number))
    with pytest.raises(VeilrecError, match="learn the same on 0% of the clients"):
        meta.small("reptile", SMALL)
