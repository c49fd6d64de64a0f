"""Attacks: what they prove, and that they notice draws that do not follow their law."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.audit.auditor import ALPHA
from veilrec.audit.claims import (
    AttackEffort,
    Coordinates,
    Guesses,
    OutcomeTable,
    Scores,
    SupportEvent,
    draws_of,
    fit_p_value,
    gaussian_ratio,
    k_ary_response,
    laplace_ratios,
    scored,
)
from veilrec.privacy.mechanisms.base import Gaussian
from veilrec.privacy.mechanisms.responses import KaryResponse


def test_draws_that_do_not_follow_their_table_are_noticed() -> None:
    mechanism = KaryResponse(categories=5, epsilon=1.0, unit="history")
    wrong = [k_ary_response(5, 1.1, value=value) for value in (0, 1)]
    evidence = OutcomeTable(*wrong, draws_of(mechanism), 100_000).run("toy", 0.0, AttackEffort((0,), 1, ALPHA))
    assert evidence.broken
    assert evidence.lower_bound == 0.0


def test_ratios_of_another_noise_are_noticed() -> None:
    mechanism = Gaussian(dimension=2, sensitivity=1.0, epsilon=2.0, delta=1e-3, unit="user", adjacency="replace-one")
    first, second = mechanism.worst_pair()
    for factor, broken in ((1.0, False), (1.2, True)):
        score = gaussian_ratio(first, second, mechanism.sigma * factor)
        attack = Scores(scored(draws_of(mechanism), score), 100_000, "ratio")
        evidence = attack.run("toy", 1e-3, AttackEffort((0,), 1, ALPHA))
        assert evidence.broken == broken
        if not broken:
            assert 1.4 < evidence.lower_bound <= 2.0


def test_fit_finds_impossible_outputs() -> None:
    table = np.array([0.5, 0.5, 0.0])
    assert fit_p_value(np.array([0, 1] * 50), table) == 1.0
    assert fit_p_value(np.array([0, 1] * 50 + [2]), table) == 0.0
    assert fit_p_value(np.array([0, 1] * 50 + [3]), table) == 0.0


def test_one_run_attack_counts_guesses() -> None:
    attack = Guesses(lambda bits, source: round(0.9 * bits), 1000)
    evidence = attack.run("toy", 0.0, AttackEffort((0,), 1, 0.05))
    assert evidence.lower_bound == pytest.approx(2.0212, abs=5e-5)
    assert evidence.reach > evidence.lower_bound


def test_support_attack_refutes_whatever_epsilon() -> None:
    attack = SupportEvent(lambda side, count, source: np.full(count, side == 0), 1000)
    assert attack.run("toy", 0.0, AttackEffort((0,), 1, ALPHA)).no_epsilon


def coordinate_scores(shared_noise: bool) -> Coordinates:
    """Thirty coordinates that take 1/30 each; with or without noise of their own."""
    first, second = np.full(30, 1.0), np.zeros(30)

    def draw(side, count, source):
        generator = np.random.default_rng(source.words(4))
        noise = generator.laplace(scale=30.0, size=(count, 1 if shared_noise else 30))
        return laplace_ratios(first, second, 30.0)((first, second)[side] + noise)

    return Coordinates(draw, 40_000)


def test_coordinates_add_up_where_whole_outputs_show_little() -> None:
    evidence = coordinate_scores(shared_noise=False).run("toy", 0.0, AttackEffort((0,), 1, ALPHA))
    assert 0.7 < evidence.lower_bound <= 1.0
    assert not evidence.broken


def test_coordinates_with_shared_noise_are_noticed() -> None:
    evidence = coordinate_scores(shared_noise=True).run("toy", 0.0, AttackEffort((0,), 1, ALPHA))
    assert evidence.broken
    assert evidence.lower_bound == 0.0
    with pytest.raises(ValueError, match="delta 0"):
        coordinate_scores(shared_noise=True).run("toy", 1e-6, AttackEffort((0,), 1, ALPHA))
