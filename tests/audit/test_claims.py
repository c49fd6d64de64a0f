"""Likelihood ratios, and discrete mechanisms output by output (privacy-math.md, sections 1, 3, 6)."""

import math
from itertools import combinations, product

import numpy as np
import pytest

from veilrec.audit import claims
from veilrec.audit.auditor import ALPHA
from veilrec.audit.bounds import epsilon_exact
from veilrec.audit.claims import AttackEffort, Coordinates, Guesses, OutcomeTable, Scores, SupportEvent
from veilrec.privacy.mechanisms.base import Gaussian
from veilrec.privacy.mechanisms.responses import KaryResponse


def delta_exact(first, second, *, epsilon):
    """The smallest delta at epsilon, in the worse direction."""
    factor = math.exp(epsilon)
    there = np.maximum(first - factor * second, 0.0).sum()
    back = np.maximum(second - factor * first, 0.0).sum()
    return float(max(there, back))


def label_permutation(candidates, negatives, beta, *, click):
    """DPL (PrivateRec): the click and k uniform others are shown as a set, and one of them is named as the click.

    Outputs (S, y) in the order of itertools: sets of k + 1, then members.
    """
    sets = 1.0 / math.comb(candidates - 1, negatives)
    top = math.exp(beta)
    return np.array(
        [
            (sets * (top if y == click else 1.0) / (top + negatives)) if click in shown else 0.0
            for shown, y in _shown(candidates, negatives)
        ]
    )


def response_first(candidates, negatives, epsilon, *, click):
    """The sound order: k-ary response names y first, then k others are drawn around it."""
    named = claims.k_ary_response(candidates, epsilon, value=click)
    sets = 1.0 / math.comb(candidates - 1, negatives)
    return np.array([sets * named[y] for _, y in _shown(candidates, negatives)])


def _shown(candidates, negatives):
    return [
        (shown, y)
        for shown, place in product(combinations(range(candidates), negatives + 1), range(negatives + 1))
        for y in (shown[place],)
    ]


def test_epsilon_at_a_delta_inverts_delta():
    first, second = (label_permutation(10, 4, 1.3, click=click) for click in (0, 1))
    for delta in (0.56, 0.58, 0.6, 0.66):
        epsilon = epsilon_exact(first, second, delta=delta)
        assert delta_exact(first, second, epsilon=epsilon) == pytest.approx(delta)
    assert epsilon_exact(first, second, delta=0.9) == 0.0


def test_draws_that_do_not_follow_their_table_and_ratios_of_another_noise_are_noticed():
    mechanism = KaryResponse(categories=5, epsilon=1.0, unit="history")
    wrong = [claims.k_ary_response(5, 1.1, value=value) for value in (0, 1)]
    evidence = OutcomeTable(*wrong, claims.draws_of(mechanism), 100_000).run("toy", 0.0, AttackEffort((0,), 1, ALPHA))
    assert evidence.broken
    assert evidence.lower_bound == 0.0
    mechanism = Gaussian(dimension=2, sensitivity=1.0, epsilon=2.0, delta=1e-3, unit="user", adjacency="replace-one")
    first, second = mechanism.worst_pair()
    for factor, broken in ((1.0, False), (1.2, True)):
        score = claims.gaussian_ratio(first, second, mechanism.sigma * factor)
        attack = Scores(claims.scored(claims.draws_of(mechanism), score), 100_000, "ratio")
        evidence = attack.run("toy", 1e-3, AttackEffort((0,), 1, ALPHA))
        assert evidence.broken == broken
        if not broken:
            assert 1.4 < evidence.lower_bound <= 2.0
    table = np.array([0.5, 0.5, 0.0])
    assert claims.fit_p_value(np.array([0, 1] * 50), table) == 1.0
    assert claims.fit_p_value(np.array([0, 1] * 50 + [2]), table) == 0.0
    assert claims.fit_p_value(np.array([0, 1] * 50 + [3]), table) == 0.0


def coordinate_scores(shared_noise):
    """Thirty coordinates that take 1/30 each; with or without noise of their own."""
    first, second = np.full(30, 1.0), np.zeros(30)

    def draw(side, count, source):
        generator = np.random.default_rng(source.words(4))
        noise = generator.laplace(scale=30.0, size=(count, 1 if shared_noise else 30))
        return claims.laplace_ratios(first, second, 30.0)((first, second)[side] + noise)

    return Coordinates(draw, 40_000)


def test_coordinates_add_up_where_whole_outputs_show_little_and_shared_noise_is_noticed():
    evidence = coordinate_scores(shared_noise=False).run("toy", 0.0, AttackEffort((0,), 1, ALPHA))
    assert 0.7 < evidence.lower_bound <= 1.0
    assert not evidence.broken
    evidence = coordinate_scores(shared_noise=True).run("toy", 0.0, AttackEffort((0,), 1, ALPHA))
    assert evidence.broken
    assert evidence.lower_bound == 0.0
    with pytest.raises(ValueError, match="delta 0"):
        coordinate_scores(shared_noise=True).run("toy", 1e-6, AttackEffort((0,), 1, ALPHA))


def test_tables_of_sections_1_3_and_6():
    for epsilon, kept in ((1.0, 0.4046), (2.0, 0.6488), (3.0, 0.8339), (5.0, 0.9738)):
        first, second = (claims.k_ary_response(5, epsilon, value=value) for value in (0, 1))
        assert first[0] == pytest.approx(kept, abs=5e-5)
        assert epsilon_exact(first, second) == pytest.approx(epsilon)
    for other, changed in (((0, 1, 0, 0), 0), ((1, 1, 0, 0), 1), ((1, 0, 0, 0), 2), ((1, 0, 1, 1), 4)):
        found = epsilon_exact(claims.bit_response((0, 1, 0, 0), 0.7), claims.bit_response(other, 0.7))
        assert found == pytest.approx(0.7 * changed)
    for negatives in (1, 3, 5):
        first, second = (response_first(7, negatives, 1.3, click=click) for click in (0, 1))
        assert (first.sum(), epsilon_exact(first, second)) == (pytest.approx(1.0), pytest.approx(1.3))
    one, two = np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.4, 0.1])  # both directions are looked at
    assert epsilon_exact(one, two) == math.inf
    assert epsilon_exact(one, two, delta=0.1) == pytest.approx(0.0, abs=1e-12)
    zeros, ends, outputs = np.zeros(3), np.array([1.0, 0.0, -1.0]), np.array([[0.0, 3.0, 0.0], [1.0, 3.0, -5.0]])
    assert claims.laplace_ratios(zeros, ends, 2.0)(outputs).tolist() == [[0.5, 0.5], [-0.5, -0.5]]
    assert claims.laplace_ratio(zeros, ends, 2.0)(outputs).tolist() == [1.0, -1.0]


def test_guesses_and_supports():
    guessed = Guesses(lambda bits, source: round(0.9 * bits), 1000).run("toy", 0.0, AttackEffort((0,), 1, 0.05))
    assert guessed.lower_bound == pytest.approx(2.0212, abs=5e-5)
    assert guessed.reach > guessed.lower_bound
    tells = SupportEvent(lambda side, count, source: np.full(count, side == 0), 1000)
    assert tells.run("toy", 0.0, AttackEffort((0,), 1, ALPHA)).no_epsilon  # whatever epsilon is
