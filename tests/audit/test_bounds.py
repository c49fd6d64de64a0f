"""Counts, thresholds, Gaussian scores and log-likelihood ratios against known truths (privacy-math.md, section 10)."""

import math

import numpy as np
import pytest

from veilrec.audit import bounds
from veilrec.privacy.accounting.gaussian import delta_gaussian, epsilon_gaussian

ALPHA = 1e-4  # how often a bound below is wrong; with the fixed seeds it is right or wrong for good


def test_counts_of_section_10_and_what_proves_nothing():
    assert bounds.epsilon_from_counts(50, 100, 0, 100, delta=0.5, alpha=0.01) == 0.0
    without = bounds.epsilon_from_counts(50, 100, 0, 100, delta=0.0, alpha=0.01)
    assert 0.0 < bounds.epsilon_from_counts(50, 100, 0, 100, delta=0.1, alpha=0.01) < without
    assert bounds.at_least(90, 100, 0.005) == pytest.approx(0.798046, abs=5e-7)
    assert bounds.at_most(10, 100, 0.005) == pytest.approx(0.201954, abs=5e-7)
    assert bounds.epsilon_from_counts(90, 100, 10, 100, delta=0.0, alpha=0.01) == pytest.approx(1.374129, abs=5e-7)
    for power, most in ((3, 4.46), (4, 6.82), (5, 9.14), (6, 11.45)):
        assert bounds.reach(10**power, alpha=0.01) == pytest.approx(most, abs=0.005)
    assert (bounds.at_least(0, 50, 0.01), bounds.at_most(50, 50, 0.01)) == (0.0, 1.0)
    # Nobody of 50: (1 - p)^50 = alpha; all of 50: p^50 = alpha.
    assert bounds.at_most(0, 50, 0.01) == pytest.approx(1.0 - 0.01 ** (1 / 50))
    assert bounds.at_least(50, 50, 0.01) == pytest.approx(0.01 ** (1 / 50))
    same = np.ones(1000)
    assert bounds.epsilon_from_scores(same, same, delta=0.0, alpha=ALPHA) == 0.0
    assert bounds.epsilon_from_guesses(500, 1000, canaries=1000, alpha=0.05) == 0.0
    assert bounds.mu_from_errors(100, 100, 0, 100, alpha=ALPHA) == 0.0
    assert bounds.mu_from_errors(60, 100, 60, 100, alpha=ALPHA) == 0.0
    assert bounds.bernstein(np.zeros(100), alpha=ALPHA) == 0.0
    assert 0.29 < bounds.bernstein(np.full(10_000, 0.3), alpha=ALPHA) < 0.3


def test_bounds_are_wrong_as_rarely_as_they_say():
    # 2000 audits of randomised response at exactly epsilon, alpha = 0.05: at most 5 % may pass it; more than 134
    # of 2000 would happen with probability below 1e-3 if the rate were 5 %.
    generator = np.random.default_rng(1)
    epsilon, trials = 1.0, 500
    keep = 1.0 / (1.0 + math.exp(-epsilon))
    wrong = sum(
        bounds.epsilon_from_counts(
            int(generator.binomial(trials, keep)),
            trials,
            int(generator.binomial(trials, 1.0 - keep)),
            trials,
            delta=0.0,
            alpha=0.05,
        )
        > epsilon
        for _ in range(2000)
    )
    assert wrong <= 134


def laplace_scores(epsilon, count, seed):
    """Log-likelihood ratios of Laplace noise on 1 and on 0, under both."""
    generator = np.random.default_rng(seed)
    outputs = np.array([[1.0], [0.0]]) + generator.laplace(scale=1.0 / epsilon, size=(2, count))
    ratios = epsilon * (np.abs(outputs) - np.abs(outputs - 1.0))
    # Half of all ratios are epsilon or -epsilon. Unrounded, their last digits differ between the inputs, because
    # this is floating-point noise, and the threshold then proves an epsilon of 5.
    return np.round(ratios[0], 9), np.round(ratios[1], 9)


def test_threshold_comes_near_and_finds_the_direction_that_counts():
    first, second = laplace_scores(1.0, 100_000, seed=2)
    assert 0.9 < bounds.epsilon_from_scores(first, second, delta=0.0, alpha=ALPHA) <= 1.0
    # An event of probability 0.01 under the second input and 0 under the first: only one direction proves anything.
    generator = np.random.default_rng(3)
    first = np.zeros(20_000)
    second = np.where(generator.random(20_000) < 0.01, -1.0, 0.0)
    event = bounds.best_threshold(first[:10_000], second[:10_000], delta=0.0, alpha=ALPHA)
    assert not event.first_is_likelier
    assert bounds.epsilon_from_scores(first, second, delta=0.0, alpha=ALPHA) > 1.5
    assert bounds.epsilon_from_scores(-second, -first, delta=0.0, alpha=ALPHA) > 1.5


def gaussian_scores(mu, count, seed):
    generator = np.random.default_rng(seed)
    return generator.normal(mu, 1.0, count), generator.normal(0.0, 1.0, count)


@pytest.mark.parametrize("mu", [0.25, 1.0, 2.6, 3.5])
def test_gaussian_bound_is_near_and_below(mu):
    first, second = gaussian_scores(mu, 200_000, seed=4)
    truth = epsilon_gaussian(mu, 1e-6)
    assert 0.9 * truth < bounds.epsilon_from_gaussian_scores(first, second, delta=1e-6, alpha=ALPHA) <= truth


def test_hockey_stick_of_a_gaussian_and_of_another_noise():
    mu = 2.0
    first, second = gaussian_scores(mu, 100_000, seed=6)
    ratios, others = mu * first - mu**2 / 2, mu * second - mu**2 / 2
    assert bounds.calibration_p_value(ratios, others) > 1e-3
    for epsilon in (0.0, 1.0, 3.0):
        truth = delta_gaussian(epsilon, mu)
        assert 0.9 * truth < bounds.delta_from_ratios(ratios, epsilon=epsilon, alpha=ALPHA) <= truth
    truth = epsilon_gaussian(mu, 1e-3)
    assert 0.8 * truth < bounds.epsilon_from_ratios(ratios, delta=1e-3, alpha=ALPHA) <= truth
    # The stated noise is twice what is drawn: the ratios are too small by 4, and the trial notices.
    first, second = gaussian_scores(1.0, 50_000, seed=8)
    assert bounds.calibration_p_value((first - 0.5) / 4, (second - 0.5) / 4) < 1e-12
    assert bounds.calibration_p_value(first - 0.5, second - 0.5) > 1e-3


@pytest.mark.parametrize(
    ("correct", "bits", "delta", "epsilon"),
    [(731, 1000, 0.0, 0.8806), (900, 1000, 0.0, 2.0212), (900, 1000, 1e-5, 2.0206), (100, 100, 0.0, 3.4930)],
)
def test_one_run_of_section_10(correct, bits, delta, epsilon):
    found = bounds.epsilon_from_guesses(correct, bits, delta=delta, canaries=bits, alpha=0.05)
    assert found == pytest.approx(epsilon, abs=5e-5)


def test_p_values_grow_and_support_wants_ten_against_none_beyond_delta():
    values = [bounds.guesses_p_value(900, 1000, epsilon=epsilon, canaries=1000) for epsilon in (1.0, 2.0, 3.0)]
    assert values == sorted(values)
    assert bounds.guesses_p_value(900, 1000, epsilon=2.0, delta=1e-5, canaries=1000) > values[1]
    assert bounds.guesses_p_value(0, 10, epsilon=1.0, delta=1e-5, canaries=10) == 1.0
    assert bounds.separated(10, 0, 1000, delta=0.0, alpha=1e-4)
    assert bounds.separated(0, 10, 1000, delta=0.0, alpha=1e-4)
    assert not bounds.separated(9, 0, 1000, delta=0.0, alpha=1e-4)
    assert not bounds.separated(500, 1, 1000, delta=0.0, alpha=1e-4)
    assert not bounds.separated(10, 0, 1000, delta=0.02, alpha=1e-4)
