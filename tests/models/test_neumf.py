"""NeuMF in torch against its equations, and the compiled scores against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from veilrec.models.baseline_networks import NeuMF
from veilrec.models.scores import NeumfScores, NeumfShape

SMALL = NeumfShape(gmf=3, mlp=2, layers=(4, 5))


def net(shape: NeumfShape, n_users: int = 6, n_items: int = 300) -> NeuMF:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return NeuMF(n_users, n_items, shape)


def scores_of(model: NeuMF) -> NeumfScores:
    public = {name: tensor.detach().numpy() for name, tensor in model.public().items()}
    return NeumfScores(model.shape, model.users.weight.detach().numpy(), public)


def test_forward_is_the_equation() -> None:
    model = net(SMALL)
    weights = {name: tensor.detach().numpy().astype(np.float64) for name, tensor in model.public().items()}
    user = model.users.weight[4].detach().numpy().astype(np.float64)
    item = weights["items"][7]
    hidden = np.concatenate([user[3:], item[3:]])
    for number in (1, 2):
        hidden = np.maximum(weights[f"layer{number}.weight"] @ hidden + weights[f"layer{number}.bias"], 0.0)
    expected = weights["output.weight"] @ np.concatenate([user[:3] * item[:3], hidden])
    got = model(torch.tensor([4]), torch.tensor([7]))
    assert got.item() == pytest.approx(expected + weights["output.bias"][0], rel=1e-5)


@pytest.mark.parametrize("shape", [SMALL, NeumfShape(32, 32, (32, 16, 8)), NeumfShape(1, 1, (1,))])
def test_compiled_scores_are_those_of_torch(shape: NeumfShape) -> None:
    model = net(shape)
    users = torch.tensor([5, 0, 5])
    with torch.no_grad():
        expected = torch.stack([model(torch.full((300,), int(u)), torch.arange(300)) for u in users]).numpy()
    scorer = scores_of(model)
    got = scorer.score_all(users.numpy())
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    some = np.array([[3, 299], [0, 0], [128, 127]], np.int32)
    np.testing.assert_allclose(
        scorer.score_some(users.numpy(), some), np.take_along_axis(expected, some.astype(np.int64), 1), atol=1e-5
    )


def test_flat_and_named_are_inverse() -> None:
    public = {name: tensor.detach().numpy() for name, tensor in net(SMALL).public().items()}
    flat = SMALL.flat(public)
    named = SMALL.named(np.stack([flat, 2 * flat]))
    assert list(named) == list(SMALL.network()) == [name for name in public if name != "items"]
    for name, values in named.items():
        np.testing.assert_array_equal(values, np.stack([public[name], 2 * public[name]]))
    assert SMALL.layout().size == len(flat)


def test_no_users_and_no_items_to_score() -> None:
    scorer = scores_of(net(SMALL))
    assert scorer.score_all(np.empty(0, np.int64)).shape == (0, 300)
    assert scorer.score_some(np.array([1]), np.empty((1, 0), np.int32)).shape == (1, 0)
