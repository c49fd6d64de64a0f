"""Compiled user models give what the tape gives: the tape itself is checked against autograd on single devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.kernels.test_news_gradients_of_models import (
    NEWS,
    SHAPE,
    SIZES,
    WITH_BASIS,
    N,
    examples,
    news,
    noisy_examples,
    weights_of,
)
from veilrec.client.news_data import NONE, ClickExamples, own_news
from veilrec.core.arrays import Floats
from veilrec.kernels import news_users
from veilrec.kernels.news_gradients import differentiation, pairs_of
from veilrec.kernels.news_texts import BIAS, WEIGHT
from veilrec.kernels.news_users import COMPILED, CompiledUsers
from veilrec.kernels.tape import TapedUsers
from veilrec.methods.news.prepare import make_model
from veilrec.models.news_model import NewsModel

PLAIN = ["nrms", "naml", "plm-nr"]
Found = tuple[dict[str, Floats], Floats, Floats]


def model(name: str, balance: float = 0.0) -> NewsModel:
    return make_model(name, replace(SIZES, balance=balance), SHAPE, torch.Generator().manual_seed(2))


def both(made: NewsModel, every: ClickExamples, n: int, frozen: frozenset[str] = frozenset()) -> tuple[Found, Found]:
    """Compiled, and on the tape."""
    own = own_news(every, n)
    distinct, pairs = pairs_of(own)
    vectors = np.random.default_rng(4).normal(0.0, 1.0, (NEWS, made.dim)).astype(np.float32)[distinct]
    users = ("clicks.", "newcomer", "basis", "pad", "shares")
    weights = {name: value for name, value in weights_of(made, frozen).items() if name.startswith(users)}
    assert isinstance(made, COMPILED)
    compiled, taped = (way.each(weights, vectors, own, pairs) for way in (CompiledUsers(made), TapedUsers(made)))
    assert compiled[0].keys() == taped[0].keys() == weights.keys()
    return compiled, taped


def assert_same(compiled: Found, taped: Found) -> None:
    for name, value in taped[0].items():
        assert np.allclose(compiled[0][name], value, atol=1e-6, rtol=1e-5), name
    for mine, other in zip(compiled[1:], taped[1:], strict=True):
        assert np.allclose(mine, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", PLAIN + WITH_BASIS)
def test_gradients_are_those_of_the_tape(name: str) -> None:
    compiled, taped = both(model(name), examples(), N)
    assert_same(compiled, taped)
    assert all(value.any() for part, value in compiled[0].items() if part != "pad")


@pytest.mark.parametrize("name", WITH_BASIS)
@pytest.mark.parametrize("balance", [0.0, 0.7])
@pytest.mark.parametrize("released", [False, True])
def test_so_are_those_of_padded_clicks_noise_and_balance(name: str, balance: float, released: bool) -> None:
    every = replace(noisy_examples(), padded=None) if released else noisy_examples()
    compiled, taped = both(model(name, balance), every, N)
    assert_same(compiled, taped)
    assert compiled[0]["pad"].any() != released


@pytest.mark.parametrize("name", ["nrms", "interest-naml"])
@pytest.mark.parametrize("most", [1, 20])
def test_devices_that_are_done_in_runs_give_the_same(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    every = noisy_examples() if name in WITH_BASIS else examples()
    whole, _ = both(model(name), every, N)
    monkeypatch.setattr(news_users, "_MOST_SQUARES", most)
    assert_same(both(model(name), every, N)[0], whole)


@pytest.mark.parametrize("name", ["nrms", "naml", "interest-nrms"])
def test_what_is_frozen_has_no_gradient_and_is_used_as_it_is(name: str) -> None:
    every = noisy_examples() if name in WITH_BASIS else examples()
    layer = "clicks.attention.hidden" if name != "naml" else "clicks.hidden"
    frozen = frozenset({f"{layer}.weight", "pad", "newcomer"})
    (whole, *rest), _ = both(model(name), every, N)
    (some, *same), _ = both(model(name), every, N, frozen)
    assert some.keys() == whole.keys() - frozen
    assert_same((some, same[0], same[1]), ({part: whole[part] for part in some}, rest[0], rest[1]))


@pytest.mark.parametrize("name", PLAIN)
def test_a_device_without_examples_has_no_gradient(name: str) -> None:
    every = examples()
    later = replace(every, device=every.device + (every.device > 0))  # nobody is device 1
    compiled, taped = both(model(name), later, N + 2)
    assert_same(compiled, taped)
    for device in (1, N + 1):
        assert not any(value[device].any() for value in compiled[0].values())


@pytest.mark.parametrize("name", PLAIN)
def test_a_history_that_no_example_has_counts_nothing(name: str) -> None:
    every = examples()
    unused = np.full((1, every.histories.shape[1]), NONE, np.int32)
    unused[0, :2] = 3, 4
    more = replace(every, histories=np.concatenate([every.histories, unused]))
    whole, fewer = both(model(name), more, N), both(model(name), every, N)
    for part, value in fewer[0][0].items():
        assert np.allclose(whole[0][0][part], value, atol=1e-6), part


@pytest.mark.parametrize("frozen", [WEIGHT, BIAS])
def test_a_frozen_half_of_the_sentence_layer_has_no_gradient(frozen: str) -> None:
    made = model("plm-nr")
    every, found = (
        differentiation(made, news(), names).each(weights_of(made, names), examples(), N).dense
        for names in (frozenset[str](), frozenset({frozen}))
    )
    assert found.keys() == every.keys() - {frozen}
    for name, value in found.items():
        assert np.allclose(value, every[name], atol=1e-6), name
