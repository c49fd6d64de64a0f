"""Compiled optimisers against torch's."""

from __future__ import annotations

import numpy as np
import torch

from veilrec._jit import jit
from veilrec._vector import LANES, load
from veilrec.device.optimisers import WEIGHTS, adam, adam_pace, sgd

STEPS, SLOT, RATE = 4, 1, 0.01


@jit
def _step(states, gradient, by_adam, step):
    for q in range(0, len(gradient), LANES):
        if by_adam:
            adam(states, SLOT, q, load(gradient, (q,)), np.float32(RATE), adam_pace(step))
        else:
            sgd(states, SLOT, q, load(gradient, (q,)), np.float32(RATE))


def _compare(by_adam, optimiser_of):
    generator = np.random.default_rng(1)
    start = generator.normal(size=2 * LANES).astype(np.float32)
    states = np.zeros((3, 3, 2 * LANES), np.float32)
    states[SLOT, WEIGHTS] = start
    expected = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimiser = optimiser_of([expected])
    for step in range(1, STEPS + 1):
        gradient = generator.normal(size=2 * LANES).astype(np.float32)
        expected.grad = torch.tensor(gradient, dtype=torch.float64)
        optimiser.step()
        _step(states, gradient, by_adam, step)
    change = expected.detach().numpy() - start
    np.testing.assert_allclose(states[SLOT, WEIGHTS] - start, change, rtol=1e-4, atol=1e-6)
    assert not states[[0, 2]].any(), "another slot moved"


def test_adam_is_that_of_torch():
    _compare(True, lambda weights: torch.optim.Adam(weights, lr=RATE))


def test_sgd_is_that_of_torch():
    _compare(False, lambda weights: torch.optim.SGD(weights, lr=RATE))
