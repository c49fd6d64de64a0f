"""Scorers in numpy and compiled against torch and the equations."""

import math

import numpy as np
import pytest
import torch

from veilrec.audit.contract_subject import histories_of
from veilrec.models.baseline_networks import NeuMF, SasRec
from veilrec.models.scores import FactorScores, NeumfScores, NeumfShape, SasRecScorer, blocks_of, user_vector


def test_scores_are_dot_products():
    generator = np.random.default_rng(0)
    users = generator.standard_normal((7, 33)).astype(np.float32)
    items = generator.standard_normal((11, 33)).astype(np.float32)
    model = FactorScores(users, items)
    expected = users.astype(np.float64) @ items.astype(np.float64).T
    chosen = np.array([4, 0, 4])
    assert model.n_items == 11 and np.allclose(model.score_all(chosen), expected[chosen], rtol=1e-5, atol=1e-5)
    candidates = generator.integers(0, 11, (3, 5)).astype(np.int32)
    some = model.score_some(chosen, candidates)
    assert some.shape == (3, 5)
    assert np.allclose(some, expected[chosen[:, np.newaxis], candidates], rtol=1e-5, atol=1e-5)


SMALL = NeumfShape(gmf=3, mlp=2, layers=(4, 5))


def net(shape, n_users=6, n_items=300):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return NeuMF(n_users, n_items, shape)


def scores_of(model):
    public = {name: tensor.detach().numpy() for name, tensor in model.public().items()}
    return NeumfScores(model.shape, model.users.weight.detach().numpy(), public)


def test_forward_is_the_equation():
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
def test_compiled_scores_are_those_of_torch(shape):
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


def test_flat_and_named_are_inverse():
    public = {name: tensor.detach().numpy() for name, tensor in net(SMALL).public().items()}
    flat = SMALL.flat(public)
    named = SMALL.named(np.stack([flat, 2 * flat]))
    assert list(named) == list(SMALL.network()) == [name for name in public if name != "items"]
    for name, values in named.items():
        np.testing.assert_array_equal(values, np.stack([public[name], 2 * public[name]]))
    assert SMALL.layout().size == len(flat)


N_ITEMS, LONGEST = 20, 6


@pytest.fixture
def net_sasrec():
    net_sasrec = SasRec(N_ITEMS, dim=8, blocks=2, longest=LONGEST, dropout=0.5)
    generator = torch.Generator().manual_seed(4)
    net_sasrec.start(generator)
    with torch.no_grad():
        for parameter in net_sasrec.parameters():  # norms and biases start neutral, and would hide mistakes
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return net_sasrec


def arrays(net_sasrec):
    return {name: values.detach().numpy() for name, values in net_sasrec.named_parameters()}


@pytest.mark.parametrize("length", [1, 2, 5, LONGEST, 9])
def test_numpy_gives_what_torch_gives(net_sasrec, length):
    history = np.random.default_rng(length).integers(0, N_ITEMS, length).astype(np.int32)
    with torch.no_grad():
        wanted = net_sasrec(torch.from_numpy(history[None, -LONGEST:]).long())[0, -1].numpy()
    found = user_vector(arrays(net_sasrec), history)
    assert found.dtype == np.float32 and np.allclose(found, wanted, atol=1e-5)
    scores = SasRecScorer(arrays(net_sasrec), histories_of([history.tolist()])).score_all(np.zeros(1, np.int64))
    assert np.allclose(scores[0], net_sasrec.items.detach().numpy() @ wanted, atol=1e-4)


def test_padding_changes_nothing(net_sasrec):
    items = torch.tensor([[3, 1, 7]])
    padded = torch.tensor([[-1, -1, -1, 3, 1, 7]])
    with torch.no_grad():
        assert torch.allclose(net_sasrec(items)[0], net_sasrec(padded)[0, 3:], atol=1e-5)


def test_no_position_sees_what_comes_later(net_sasrec):
    with torch.no_grad():
        first, second = net_sasrec(torch.tensor([[3, 1, 7, 2]])), net_sasrec(torch.tensor([[3, 1, 9, 0]]))
    assert torch.allclose(first[0, :2], second[0, :2], atol=1e-6)
    assert not torch.allclose(first[0, 2], second[0, 2], atol=1e-2)


def test_the_order_matters_and_nothing_gives_the_bias(net_sasrec):
    weights = arrays(net_sasrec)
    one, other = (user_vector(weights, np.array(own, np.int32)) for own in ([3, 1, 7], [7, 1, 3]))
    assert not np.allclose(one, other, atol=1e-2)
    assert np.array_equal(user_vector(weights, np.zeros(0, np.int32)), weights["norm.bias"])
    assert blocks_of(weights) == 2


def test_dropout_is_for_training_and_keeps_the_mean(net_sasrec):
    ones = torch.ones(20_000)
    assert torch.equal(net_sasrec.dropout(ones), ones)
    net_sasrec.dropout.generator = torch.Generator().manual_seed(1)
    dropped = net_sasrec.dropout(ones)
    assert set(dropped.tolist()) == {0.0, 2.0}
    assert abs(float(dropped.mean()) - 1.0) < 5 / math.sqrt(20_000)  # five standard errors
