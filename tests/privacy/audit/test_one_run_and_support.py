"""One run, many guesses; and what no noise hides (privacy-math.md, sections 8 and 10)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from veilrec.privacy.audit.one_run import epsilon_from_guesses, p_value
from veilrec.privacy.audit.support import separated


@pytest.mark.parametrize(
    ("correct", "bits", "delta", "epsilon"),
    [(731, 1000, 0.0, 0.8806), (900, 1000, 0.0, 2.0212), (900, 1000, 1e-5, 2.0206), (100, 100, 0.0, 3.4930)],
)
def test_one_run_of_section_10(correct: int, bits: int, delta: float, epsilon: float) -> None:
    found = epsilon_from_guesses(correct, bits, delta=delta, canaries=bits, alpha=0.05)
    assert found == pytest.approx(epsilon, abs=5e-5)


def test_p_value_grows_with_epsilon_and_delta() -> None:
    values = [p_value(900, 1000, epsilon=epsilon, canaries=1000) for epsilon in (1.0, 2.0, 3.0)]
    assert values == sorted(values)
    assert p_value(900, 1000, epsilon=2.0, delta=1e-5, canaries=1000) > values[1]
    assert p_value(0, 10, epsilon=1.0, delta=1e-5, canaries=10) == 1.0


def test_chance_proves_nothing() -> None:
    assert epsilon_from_guesses(500, 1000, canaries=1000, alpha=0.05) == 0.0


def test_support_wants_ten_against_none_beyond_delta() -> None:
    assert separated(10, 0, 1000, delta=0.0, alpha=1e-4)
    assert separated(0, 10, 1000, delta=0.0, alpha=1e-4)
    assert not separated(9, 0, 1000, delta=0.0, alpha=1e-4)
    assert not separated(500, 1, 1000, delta=0.0, alpha=1e-4)
    assert not separated(10, 0, 1000, delta=0.02, alpha=1e-4)


def test_support_is_not_for_likelihoods() -> None:
    # Section 10 says that zero against ten fails whatever epsilon is. That is so for what an output can contain, but
    # not for any event: randomised response at epsilon 10 is sound, and 1000 draws a side show 1000 against 0.
    keep = 1.0 / (1.0 + math.exp(-10.0))
    generator = np.random.default_rng(0)
    hits, others = int(generator.binomial(1000, keep)), int(generator.binomial(1000, 1.0 - keep))
    assert separated(hits, others, 1000, delta=0.0, alpha=1e-4)


@pytest.mark.parametrize(("noise", "rate"), [("laplace", 0.272), ("normal", 0.258)])
def test_float_lattice_of_section_8(noise: str, rate: float) -> None:
    # E = {|y| < 1/2 and y 2^53 is not whole}; four standard errors of 400 000 draws are 0.003.
    generator = np.random.default_rng(1)
    draws = getattr(generator, noise)(size=(2, 400_000))
    outputs = draws + np.array([[0.0], [1.0]])
    event = (np.abs(outputs) < 0.5) & (outputs * 2.0**53 != np.round(outputs * 2.0**53))
    assert event[1].sum() == 0
    assert event[0].mean() == pytest.approx(rate, abs=0.003)
