"""Padding and sampling: [vec] values of privacy-math.md section 1, and exact enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from veilrec.errors import BadInput
from veilrec.privacy.accounting.amplification import (
    amplified_epsilon,
    base_epsilon,
    padded_clicks_epsilon,
    padded_mu,
    sampled_delta,
)


@pytest.mark.parametrize(
    ("epsilon", "pad", "inner"), [(1, 0.5, 1.489880), (10, 0.5, 10.693124), (1, 0.2, 1.146720), (0.1, 0.9, 0.718673)]
)
def test_what_padding_allows_the_inner_mechanism(epsilon: float, pad: float, inner: float) -> None:
    assert base_epsilon(epsilon, pad_probability=pad) == pytest.approx(inner, abs=5e-7)
    assert amplified_epsilon(inner, rate=1.0 - pad) == pytest.approx(epsilon, abs=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "delta", "pad", "sigma"),
    [(1, 1e-6, 0.5, 3.998930), (1, 1e-6, 0.0, 5.974598), (10, 1e-3, 0.5, 0.525477)],
)
def test_noise_of_padded_attention(epsilon: float, delta: float, pad: float, sigma: float) -> None:
    # Clip 1: the L2 diameter is sqrt(2).
    assert math.sqrt(2.0) / padded_mu(epsilon, delta, pad_probability=pad) == pytest.approx(sigma, abs=1e-6)


def test_laplace_scale_of_padded_attention() -> None:
    assert 2.0 / base_epsilon(1.0, pad_probability=0.5) == pytest.approx(1.342390, abs=5e-7)


@pytest.mark.parametrize("pad", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("clicks", [1, 2, 3])
def test_enumeration_attains_the_bound(pad: float, clicks: int) -> None:
    """A k-ary answer that says which sequence was seen: the worst case of the formula."""
    inner = 1.3
    codes = ("only pads", "a", "b")

    def outputs(click: str) -> dict[str, float]:
        total = dict.fromkeys(codes, 0.0)
        # The mechanism sees either only pads, or that not everything was padded (the worst encoder).
        for seen, chance in (("only pads", pad**clicks), (click, 1.0 - pad**clicks)):
            for code in codes:
                total[code] += chance * (math.exp(inner) if code == seen else 1.0) / (math.exp(inner) + len(codes) - 1)
        return total

    first, second = outputs("a"), outputs("b")
    loss = max(math.log(first[code] / second[code]) for code in codes)
    bound = padded_clicks_epsilon(inner, pad_probability=pad, clicks=clicks)
    assert loss == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize(("mu", "rate"), [(1.0, 0.3), (2.0, 0.01)])
@pytest.mark.parametrize("epsilon", [-1.5, -0.3, -0.005, 0.0, 0.01, 0.5, 2.0])
def test_the_profile_of_a_sample_is_the_hockey_stick_integral(mu: float, rate: float, epsilon: float) -> None:
    x = np.linspace(-12.0, 16.0, 400_001)
    without = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    within = rate * np.exp(-0.5 * (x - mu) ** 2) / math.sqrt(2.0 * math.pi) + (1.0 - rate) * without
    integral = np.trapezoid(np.maximum(within - math.exp(epsilon) * without, 0.0), x)
    assert float(sampled_delta(np.array(epsilon), mu, rate)) == pytest.approx(integral, abs=1e-8)


def test_large_epsilons_do_not_overflow() -> None:
    assert amplified_epsilon(5000.0, rate=0.5) == pytest.approx(5000.0 + math.log(0.5))
    assert amplified_epsilon(1.0, rate=0.0) == 0.0
    assert sampled_delta(np.array([1000.0]), 60.0, 0.1)[0] <= 0.1


@pytest.mark.parametrize("pad", [-0.1, 1.0, math.nan])
def test_an_impossible_padding_is_refused(pad: float) -> None:
    with pytest.raises(BadInput, match="pad_probability"):
        padded_mu(1.0, 1e-6, pad_probability=pad)


def test_padding_almost_everything_leaves_no_room_for_delta() -> None:
    with pytest.raises(BadInput, match="delta_of_the_inner_mechanism"):
        padded_mu(1.0, 0.2, pad_probability=0.9)
