"""MAML's meta-gradient against autograd through the steps of one device at a time, in doubles."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kernels.feature_reference import ROUND, Reference, World, world
from veilrec.client.maml import MamlExamples, MamlLocalTrainer
from veilrec.client.reptile import Loss, MetaSettings
from veilrec.core.schema import RoundSpec
from veilrec.models.feature_net import Activation

CLOSE = 1e-4  # of the largest entry: products of single-precision numbers through several steps


def of_loss(loss: Loss, steps: int = 1) -> MetaSettings:
    negatives = 8 if loss == "softmax" else 3
    return MetaSettings(loss=loss, steps=steps, batch=0, negatives=negatives, rate=0.3, needed=2.0)


def part(examples: MamlExamples, place: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Items, labels, and how many are the device's own."""
    items = examples.items[place][examples.inside[place]]
    own = int(examples.own[place].sum())
    return items, (np.arange(len(items)) < own).astype(np.float32), own


def explicit(made: World, place: int, support: MamlExamples, query: MamlExamples) -> np.ndarray:
    """Minus the gradient of the query loss by the start, with a graph through every step."""
    device, local = Reference(made, place), made.adapter.local
    n = len(device.own)
    start = device.start.clone().requires_grad_()
    flat = start
    for _ in range(local.steps):
        (slope,) = torch.autograd.grad(device.loss(flat, *part(support, place)), flat, create_graph=True)
        flat = flat - local.rate * n / (n + local.needed) * slope
    (meta,) = torch.autograd.grad(device.loss(flat, *part(query, place)), start)
    return -meta.numpy()


def learnt(made: World) -> tuple[dict[str, np.ndarray], np.ndarray, tuple[MamlExamples, MamlExamples]]:
    learner, cohort = MamlLocalTrainer(made.adapter), made.cohort()
    learned = learner.learn(cohort, made.weights, RoundSpec(ROUND))
    return dict(learned.uploads.dense), learned.loss, learner._halves(cohort, ROUND)


@pytest.mark.parametrize("embedding", [0, 3])
@pytest.mark.parametrize(("hidden", "activation"), [((), "relu"), ((5, 4), "sigmoid"), ((6,), "relu")])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_the_meta_gradient_goes_through_all_steps(
    loss: Loss, steps: int, hidden: tuple[int, ...], activation: Activation, embedding: int
) -> None:
    made = world(of_loss(loss, steps), embedding=embedding, hidden=hidden, activation=activation)
    dense, _, halves = learnt(made)
    for place in range(3):
        wanted = made.adapter.net.named(explicit(made, place, *halves))
        largest = max(np.abs(values).max() for values in wanted.values())
        for name, values in wanted.items():
            np.testing.assert_allclose(dense[name][place], values, rtol=0, atol=CLOSE * largest, err_msg=name)


def test_it_is_more_than_the_gradient_at_the_adapted_weights() -> None:
    """First-order MAML would leave the Hessian out."""
    made = world(of_loss("logistic", 3), hidden=(5, 4), activation="sigmoid")
    dense, _, (support, query) = learnt(made)
    device, local = Reference(made, 2), made.adapter.local
    flat = device.start
    for _ in range(local.steps):
        at = flat.clone().requires_grad_()
        (slope,) = torch.autograd.grad(device.loss(at, *part(support, 2)), at)
        flat = flat - local.rate * 12 / 14 * slope
    at = flat.clone().requires_grad_()
    (first_order,) = torch.autograd.grad(device.loss(at, *part(query, 2)), at)
    got = np.concatenate([values[2].reshape(-1) for values in dense.values()])
    assert np.abs(got + first_order.numpy()).max() > 0.02 * np.abs(got).max()


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_halves_part_the_own_items_and_others_are_nobodys(loss: Loss) -> None:
    made = world(of_loss(loss), lengths=(7, 1, 12, 0))
    _, _, (support, query) = learnt(made)
    for place, n in enumerate((7, 1, 12, 0)):
        own = made.data.rows.row(place).tolist()
        (first, _, a), (second, _, b) = part(support, place), part(query, place)
        halves = [*first[:a], *second[:b]]
        assert sorted(halves) == (own * 2 if n == 1 else own)
        assert abs(a - b) <= 1
        assert not set(own) & {*first[a:].tolist(), *second[b:].tolist()}


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_devices_with_no_item_one_item_and_all_items(loss: Loss) -> None:
    made = world(of_loss(loss, 2), lengths=(0, 1, 10, 4), n_items=10)
    dense, losses, _ = learnt(made)
    assert np.isfinite(losses).all()
    for name, values in dense.items():
        assert np.isfinite(values).all(), name
        assert not values[0].any(), name
    if loss == "softmax":
        assert not any(values[2].any() for values in dense.values()), "nobody is left to be ranked below"
