"""SASRec: numpy ranks as torch does, nothing looks ahead, and padding tells nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from veilrec.audit.contract_subject import histories_of
from veilrec.models.baseline_networks import SasRec
from veilrec.models.scores import SasRecScorer, blocks_of, user_vector

N_ITEMS, LONGEST = 20, 6


@pytest.fixture
def net() -> SasRec:
    net = SasRec(N_ITEMS, dim=8, blocks=2, longest=LONGEST, dropout=0.5)
    generator = torch.Generator().manual_seed(4)
    net.start(generator)
    with torch.no_grad():
        for parameter in net.parameters():  # norms and biases start neutral, and would hide mistakes
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return net


def arrays(net: SasRec) -> dict[str, np.ndarray]:
    return {name: values.detach().numpy() for name, values in net.named_parameters()}


@pytest.mark.parametrize("length", [1, 2, 5, LONGEST, 9])
def test_numpy_gives_what_torch_gives(net: SasRec, length: int) -> None:
    history = np.random.default_rng(length).integers(0, N_ITEMS, length).astype(np.int32)
    with torch.no_grad():
        wanted = net(torch.from_numpy(history[None, -LONGEST:]).long())[0, -1].numpy()
    found = user_vector(arrays(net), history)
    assert found.dtype == np.float32
    assert np.allclose(found, wanted, atol=1e-5)
    scores = SasRecScorer(arrays(net), histories_of([history.tolist()])).score_all(np.zeros(1, np.int64))
    assert np.allclose(scores[0], net.items.detach().numpy() @ wanted, atol=1e-4)


def test_padding_changes_nothing(net: SasRec) -> None:
    items = torch.tensor([[3, 1, 7]])
    padded = torch.tensor([[-1, -1, -1, 3, 1, 7]])
    with torch.no_grad():
        assert torch.allclose(net(items)[0], net(padded)[0, 3:], atol=1e-5)


def test_no_position_sees_what_comes_later(net: SasRec) -> None:
    with torch.no_grad():
        first, second = net(torch.tensor([[3, 1, 7, 2]])), net(torch.tensor([[3, 1, 9, 0]]))
    assert torch.allclose(first[0, :2], second[0, :2], atol=1e-6)
    assert not torch.allclose(first[0, 2], second[0, 2], atol=1e-2)


def test_the_order_matters_and_nothing_gives_the_bias(net: SasRec) -> None:
    weights = arrays(net)
    one, other = (user_vector(weights, np.array(own, np.int32)) for own in ([3, 1, 7], [7, 1, 3]))
    assert not np.allclose(one, other, atol=1e-2)
    assert np.array_equal(user_vector(weights, np.zeros(0, np.int32)), weights["norm.bias"])
    assert blocks_of(weights) == 2


def test_dropout_is_for_training_and_keeps_the_mean(net: SasRec) -> None:
    ones = torch.ones(20_000)
    assert torch.equal(net.dropout(ones), ones)
    net.dropout.generator = torch.Generator().manual_seed(1)
    dropped = net.dropout(ones)
    assert set(dropped.tolist()) == {0.0, 2.0}
    assert abs(float(dropped.mean()) - 1.0) < 5 / math.sqrt(20_000)  # five standard errors
