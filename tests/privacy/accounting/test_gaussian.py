"""Exact Gaussian profiles, and padding and sampling: [vec] values of privacy-math.md."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilrec.core.errors import BadInput
from veilrec.privacy.accounting import gaussian
from veilrec.privacy.accounting.gaussian import delta_gaussian, mu_for

EPSILONS = st.floats(0.01, 2000.0)
DELTAS = st.floats(-30.0, -0.5).map(lambda exponent: 10.0**exponent)


def test_the_classical_formula_fails_at_epsilon_10_as_section_1_says():
    classical = math.sqrt(2.0 * math.log(1.25 / 1e-3)) / 10.0
    assert classical == pytest.approx(0.377648, abs=5e-7)
    assert delta_gaussian(10.0, 1.0 / classical) == pytest.approx(3.362e-3, abs=5e-7)
    with_diameter = math.sqrt(2.0) / classical
    assert delta_gaussian(10.0, with_diameter) == pytest.approx(0.1513, abs=5e-5)
    assert gaussian.epsilon_gaussian(with_diameter, 1e-3) == pytest.approx(17.859, abs=5e-4)


@settings(max_examples=60)
@given(epsilon=EPSILONS, delta=DELTAS)
def test_the_inverses_keep_what_they_promise_and_waste_nothing(epsilon, delta):
    mu = mu_for(epsilon, delta)
    assert delta_gaussian(epsilon, mu) <= delta
    assert delta_gaussian(epsilon, mu * (1.0 + 1e-9)) > delta
    assert gaussian.epsilon_gaussian(mu, delta) == pytest.approx(epsilon, rel=1e-6)


def test_deltas_are_right_far_out_where_the_naive_formula_is_not():
    # 60-digit arithmetic (mpmath): ncdf(mu/2 - eps/mu) - exp(eps) ncdf(-mu/2 - eps/mu)
    assert delta_gaussian(30.0, 1.0) == pytest.approx(4.7093263180975222e-193, rel=1e-12)
    assert delta_gaussian(800.0, 40.0) == pytest.approx(0.5 - 0.5 * _scaled_tail(40.0), rel=1e-9)


def _scaled_tail(t):
    # exp(t^2 / 2) times the upper tail at t, times 2; asymptotic series, good to 1e-9 at t = 40
    return 2.0 / (t * math.sqrt(2.0 * math.pi)) * (1.0 - t**-2 + 3.0 * t**-4 - 15.0 * t**-6)


@pytest.mark.parametrize(
    ("epsilon", "pad", "inner"), [(1, 0.5, 1.489880), (10, 0.5, 10.693124), (1, 0.2, 1.146720), (0.1, 0.9, 0.718673)]
)
def test_what_padding_allows_the_inner_mechanism(epsilon, pad, inner):
    assert gaussian.base_epsilon(epsilon, pad_probability=pad) == pytest.approx(inner, abs=5e-7)
    assert gaussian.amplified_epsilon(inner, rate=1.0 - pad) == pytest.approx(epsilon, abs=1e-6)


@pytest.mark.parametrize("pad", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("clicks", [1, 2, 3])
def test_enumeration_attains_the_bound(pad, clicks):
    """A k-ary answer that says which sequence was seen: the worst case of the formula."""
    inner = 1.3
    codes = ("only pads", "a", "b")

    def outputs(click):
        total = dict.fromkeys(codes, 0.0)
        # The mechanism sees either only pads, or that not everything was padded (the worst encoder).
        for seen, chance in (("only pads", pad**clicks), (click, 1.0 - pad**clicks)):
            for code in codes:
                total[code] += chance * (math.exp(inner) if code == seen else 1.0) / (math.exp(inner) + len(codes) - 1)
        return total

    first, second = outputs("a"), outputs("b")
    loss = max(math.log(first[code] / second[code]) for code in codes)
    bound = gaussian.amplified_epsilon(inner, rate=1.0 - pad**clicks)
    assert loss == pytest.approx(bound, rel=1e-12)


def test_noise_of_the_notes():
    """Standard deviations for (epsilon, delta) at a sensitivity: sections 1, 6, 7 and 9."""
    root_2 = math.sqrt(2.0)
    vectors = [
        (1, 1e-6, 1.0, 4.224679),
        (10, 1e-3, 1.0, 0.406060),
        (0.5, 1e-3, 1.0, 4.610128),
        (1, 1e-3, 1.0, 2.574657),
        (1, 1e-6, 0.04, 0.168987),  # pooling with a fixed denominator
        (1, 1e-6, root_2, 5.974598),
        (2, 1e-6, 10.0, 22.305),  # a secure histogram
        (2, 1e-5, 2.0 * math.sqrt(42), 25.8428),  # updates add up as the root of their number
        (2, 1e-5, 2.0 * math.sqrt(13), 14.3776),
        (2, 1e-6, root_2 * math.sqrt(30), 17.2772),  # thirty refreshes
        (2, 1e-6, 0.448335, 1.0),  # budgets of a Gaussian ledger
        (4, 1e-6, 0.837859, 1.0),
        (8, 1e-6, 1.531545, 1.0),
    ]
    for epsilon, delta, sensitivity, sigma in vectors:
        assert sensitivity / mu_for(epsilon, delta) == pytest.approx(sigma, rel=2.5e-5, abs=5e-7), (epsilon, delta)


def test_profiles_are_hockey_stick_integrals():
    x = np.linspace(-12.0, 16.0, 400_001)
    density = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    for mu, rate in ((0.3, 1.0), (1.0, 1.0), (4.0, 1.0), (1.0, 0.3), (2.0, 0.01)):
        moved = rate * np.exp(-0.5 * (x - mu) ** 2) / math.sqrt(2.0 * math.pi) + (1.0 - rate) * density
        for epsilon in (-2.0, -0.3, -0.005, 0.0, 0.01, 0.5, 3.0):
            integral = np.trapezoid(np.maximum(moved - math.exp(epsilon) * density, 0.0), x)
            found = delta_gaussian(epsilon, mu) if rate == 1.0 else gaussian.sampled_delta(np.array(epsilon), mu, rate)
            assert float(found) == pytest.approx(integral, abs=1e-8), (mu, rate, epsilon)


def test_limits_and_what_is_refused():
    assert delta_gaussian(1.0, 0.0) == 0.0
    assert delta_gaussian(-1.0, 0.0) == pytest.approx(1.0 - math.exp(-1.0))
    assert delta_gaussian(1.0, math.inf) == 1.0
    assert gaussian.epsilon_gaussian(1e-9, 1e-6) == 0.0
    many = delta_gaussian(np.array([0.0, 1.0, 2.0]), 1.0)
    assert [delta_gaussian(float(e), 1.0) for e in range(3)] == many.tolist()
    assert gaussian.amplified_epsilon(5000.0, rate=0.5) == pytest.approx(5000.0 + math.log(0.5))
    assert gaussian.amplified_epsilon(1.0, rate=0.0) == 0.0
    assert gaussian.sampled_delta(np.array([1000.0]), 60.0, 0.1)[0] <= 0.1
    for epsilon, delta in ((0.0, 1e-6), (-1.0, 1e-6), (math.nan, 1e-6), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(BadInput, match="give a"):
            mu_for(epsilon, delta)
    for delta, pad, told in ((1e-6, -0.1, "pad_"), (1e-6, 1.0, "pad_"), (1e-6, math.nan, "pad_"), (0.2, 0.9, "inner")):
        with pytest.raises(BadInput, match=told):
            gaussian.padded_mu(1.0, delta, pad_probability=pad)
    with pytest.raises(ValueError, match="mu is -1"):
        delta_gaussian(1.0, -1.0)
