import math

import numpy as np
import pytest

from veilrec.attacks.recovery import Usual, of_flags, of_scores, proportion_interval
from veilrec.attacks.running import QueryNoise, average_queries, best_guess
from veilrec.core.errors import BadInput


def test_flags_are_counted_beside_what_somebody_finds_who_names_popular_news():
    clicked = np.array([[True, True, False, False, False]])
    shown = np.array([[False, False, True, False, False]])
    flagged = np.array([[True, False, True, True, False]])
    found = of_flags(flagged, clicked, shown)
    assert (found.clicks, found.found, found.recall) == (2, 1, 0.5)
    assert found.false_positive_rate == 0.5  # one of the two that are neither clicked nor shown
    generator = np.random.default_rng(3)
    popular = np.arange(100) < 10
    clicked = generator.random((400, 100)) < np.where(popular, 0.5, 0.01)
    flagged = np.tile(popular, (400, 1))  # whoever it is
    found = of_flags(flagged, clicked, np.zeros_like(clicked))
    assert found.recall > 0.8
    assert found.chance == pytest.approx(found.recall)
    assert found.false_positive_rate < 0.06


def test_a_threshold_lets_one_of_a_hundred_pass_and_no_more_where_scores_say_nothing():
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(50, 400))
    clicked = generator.random(scores.shape) < 0.05
    scores[clicked] += 10.0
    found = of_scores(scores, clicked, np.zeros_like(clicked))
    assert found.recall == 1.0
    assert 0.009 < found.false_positive_rate <= 0.01
    # 20,000 clicks found with probability 0.01 each: more than 0.02 of them one time in 10^30.
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(200, 1000))
    clicked = generator.random(scores.shape) < 0.1
    found = of_scores(scores, clicked, np.zeros_like(clicked))
    assert found.recall < 0.02
    assert found.interval[0] < 0.012 and found.chance == pytest.approx(0.01, abs=0.001)


def test_an_interval_is_wider_where_clicks_are_found_or_missed_together():
    clicked = np.ones((40, 10), np.bool_)
    alone = np.zeros_like(clicked)
    alone[:, ::2] = True  # half of every update
    together = np.zeros_like(clicked)
    together[::2] = True  # all of every other update
    narrow, wide = (of_flags(flags, clicked, np.zeros_like(clicked)).interval for flags in (alone, together))
    assert wide[1] - wide[0] > 2.5 * (narrow[1] - narrow[0])
    assert narrow == pytest.approx(proportion_interval(200, 400))


def test_what_is_usual_takes_popularity_out():
    # A score that is higher for popular news and says nothing of anybody finds, against what is usual, no more than
    # chance: 6,000 clicks, so that 0.02 is passed by chance one time in 10^11.
    generator = np.random.default_rng(2)
    popularity = generator.random(300) ** 4
    clicked = generator.random((200, 300)) < 0.5 * popularity
    scores = popularity + 0.1 * generator.normal(size=clicked.shape)
    nobody = np.zeros_like(clicked)
    naive = of_scores(scores[100:], clicked[100:], nobody[100:]).recall
    usual = Usual.of(scores[:100], clicked[:100])
    honest = of_scores(usual.against(scores[100:]), clicked[100:], nobody[100:]).recall
    assert naive > 0.03
    assert honest < 0.02


ONE_HOT = np.eye(5)[np.random.default_rng(0).integers(5, size=2000)]


def curves(**settings):
    asking = QueryNoise(**settings)
    return {(curve.mode, curve.memoised): curve for curve in average_queries(ONE_HOT, asking, counts=(1, 10, 100))}


def test_fresh_noise_averages_out_and_memoised_queries_say_nothing_new():
    found = curves(epsilon=1.0)
    for mode in ("attention", "interest"):
        fresh = [point.found for point in found[mode, False].points]
        assert fresh[0] < fresh[1] < fresh[2]
        assert fresh[2] > 0.95
        same = {(point.found, round(point.error, 12)) for point in found[mode, True].points}
        assert len(same) == 1
    errors = [point.error for point in found["attention", False].points]
    assert errors[0] > errors[1] > errors[2]
    assert [point.epsilon_together for point in found["interest", False].points] == pytest.approx([1.0, 10.0, 100.0])
    assert {point.epsilon_together for point in found["interest", True].points} == {1.0}


def test_one_answer_is_right_as_often_as_its_epsilon_says_and_chance_names_the_most_common():
    # e / (e + 4) of 2,000 clients: further off than 0.05 one time in 10^5.
    first = curves(epsilon=1.0)["interest", False].points[0]
    assert first.found == pytest.approx(math.e / (math.e + 4.0), abs=0.05)
    assert best_guess(np.eye(5)[[1] * 9 + [4]]) == pytest.approx(0.9)


def test_as_published_the_claim_stands_beside_what_holds_and_gaussian_noise_has_a_delta():
    found = curves(epsilon=1.0, calibration="as-published")
    assert set(found) == {("attention", False), ("attention", True)}  # the k-ary response is ours
    claimed = found["attention", False].claimed
    assert (claimed.basis, claimed.epsilon, claimed.unit, claimed.trust) == ("as published", 1.0, "history", "nobody")
    assert claimed.honest_epsilon == pytest.approx(2.0)
    point = curves(epsilon=1.0, delta=1e-6, noise="gaussian")["attention", False].points[0]
    assert point.epsilon_together == pytest.approx(1.0, rel=1e-3)


def test_nonsense_is_refused():
    with pytest.raises(BadInput, match="from 1 on"):
        average_queries(ONE_HOT, QueryNoise(), counts=(0, 1))
    with pytest.raises(BadInput, match="a row for every client"):
        average_queries(np.zeros((0, 5)), QueryNoise())
    with pytest.raises(BadInput, match="epsilon"):
        average_queries(ONE_HOT, QueryNoise(epsilon=-1.0))
