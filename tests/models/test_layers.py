"""Each layer against a second, plain implementation with loops; and padding, which must not matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veilrec.models.news_model import (
    AdditiveAttention,
    Dropout,
    Gru,
    PersonalAttention,
    SelfAttention,
    WordCnn,
    masked_mean,
    masked_softmax,
)

Array = NDArray[np.float64]
N, LENGTH, DIM = 4, 6, 5
LENGTHS = (6, 3, 1, 0)


@pytest.fixture
def values() -> Tensor:
    return torch.randn(N, LENGTH, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def mask() -> Tensor:
    return torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]


def started(layer: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    return layer.double()


def weights(layer: nn.Module) -> dict[str, Array]:
    return {name: p.detach().numpy() for name, p in layer.named_parameters()}


def softmax(scores: list[float]) -> Array:
    exponents = np.exp(np.array(scores) - max(scores))
    return exponents / exponents.sum()


def assert_same(found: Tensor, wanted: Array) -> None:
    assert np.allclose(found.detach().numpy(), wanted, atol=1e-12)


def test_additive_attention(values: Tensor, mask: Tensor) -> None:
    layer = started(AdditiveAttention(DIM, 3))
    w = weights(layer)
    wanted = np.zeros((N, DIM))
    for row, length in enumerate(LENGTHS):
        x = values[row, :length].numpy()
        if length:
            scores = [float(w["query.weight"][0] @ np.tanh(w["hidden.weight"] @ v + w["hidden.bias"])) for v in x]
            wanted[row] = sum(a * v for a, v in zip(softmax(scores), x, strict=True))
    assert_same(layer(values, mask), wanted)


def test_personal_attention(values: Tensor, mask: Tensor) -> None:
    layer = started(PersonalAttention(DIM, 3))
    w = weights(layer)
    queries = torch.arange(N * 3, dtype=torch.float64).view(N, 3) / 5
    wanted = np.zeros((N, DIM))
    for row, length in enumerate(LENGTHS):
        x = values[row, :length].numpy()
        if length:
            scores = [float(queries[row].numpy() @ np.tanh(w["keys.weight"] @ v + w["keys.bias"])) for v in x]
            wanted[row] = sum(a * v for a, v in zip(softmax(scores), x, strict=True))
    assert_same(layer(values, mask, queries), wanted)


def test_self_attention(values: Tensor, mask: Tensor) -> None:
    heads, width = 2, 3
    layer = started(SelfAttention(DIM, heads, width))
    w = weights(layer)["projections.weight"].reshape(3, heads, width, DIM)
    wanted = np.zeros((N, LENGTH, heads * width))
    for row, length in enumerate(LENGTHS):
        x = values[row, :length].numpy()
        for head in range(heads):
            queries, keys, content = (x @ w[part, head].T for part in range(3))
            for place in range(length):
                attention = softmax([float(queries[place] @ key) / width**0.5 for key in keys])
                wanted[row, place, head * width : (head + 1) * width] = attention @ content
    assert_same(layer(values, mask), wanted)


def test_word_cnn(values: Tensor, mask: Tensor) -> None:
    layer = started(WordCnn(DIM, 4, window=3))
    w = weights(layer)
    kernel = w["kernel.weight"].reshape(4, 3, DIM)
    wanted = np.zeros((N, LENGTH, 4))
    for row, length in enumerate(LENGTHS):
        for place in range(length):
            total = w["kernel.bias"].copy()
            for shift in range(3):
                at = place + shift - 1
                if 0 <= at < length:
                    total += kernel[:, shift] @ values[row, at].numpy()
            wanted[row, place] = np.maximum(total, 0.0)
    assert_same(layer(values, mask), wanted)


def test_gru_is_that_of_torch_up_to_the_end_of_each_sequence(values: Tensor, mask: Tensor) -> None:
    layer = started(Gru(DIM, 4))
    theirs = nn.GRU(DIM, 4, batch_first=True).double()
    with torch.no_grad():
        for mine, name in (("inputs", "ih"), ("recurrent", "hh")):
            getattr(theirs, f"weight_{name}_l0").copy_(layer.get_parameter(f"{mine}.weight"))
            getattr(theirs, f"bias_{name}_l0").copy_(layer.get_parameter(f"{mine}.bias"))
    start = torch.full((N, 4), 0.3, dtype=torch.float64)
    wanted = start.unsqueeze(1).repeat(1, LENGTH, 1)  # without a step the state stays
    for row, length in enumerate(LENGTHS):
        if length:
            states, _ = theirs(values[row : row + 1, :length], start[None, row : row + 1])
            wanted[row, :length], wanted[row, length:] = states[0], states[0, -1]
    assert_same(layer(values, mask, start), wanted.detach().numpy())


LAYERS = {
    "additive": lambda: AdditiveAttention(DIM, 3),
    "self": lambda: SelfAttention(DIM, 2, 3),
    "cnn": lambda: WordCnn(DIM, 4),
    "gru": lambda: Gru(DIM, 4),
}


@pytest.mark.parametrize("name", LAYERS)
def test_what_lies_in_the_padding_does_not_matter(name: str, values: Tensor, mask: Tensor) -> None:
    layer = started(LAYERS[name]())
    other = torch.where(mask[..., None], values, torch.full_like(values, 99.0))
    assert torch.equal(layer(values, mask), layer(other, mask))


def test_masked_softmax_and_mean_of_nothing_are_zero() -> None:
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    assert masked_softmax(torch.ones(1, 3), nothing).tolist() == [[0.0, 0.0, 0.0]]
    assert masked_mean(torch.ones(1, 3, 2), nothing).tolist() == [[0.0, 0.0]]
    some = torch.tensor([[True, True, False]])
    assert masked_mean(torch.tensor([[[1.0], [3.0], [100.0]]]), some).tolist() == [[2.0]]


def test_dropout_draws_from_its_generator_only() -> None:
    layer = Dropout(0.5)
    ones = torch.ones(100, 100)
    assert torch.equal(layer(ones), ones)
    state = torch.get_rng_state()
    drawn = []
    for _ in range(2):
        layer.generator = torch.Generator().manual_seed(3)
        drawn.append(layer(ones))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(drawn[0], drawn[1])
    # 10,000 fair coins: the mean is off by 0.05 (5 standard errors of 2 * 0.005) once in a million runs.
    assert abs(float(drawn[0].mean()) - 1.0) < 0.05
