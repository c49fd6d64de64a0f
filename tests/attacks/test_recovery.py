from __future__ import annotations

import numpy as np
import pytest

from veilrec.attacks.recovery import Usual, of_flags, of_scores, proportion_interval


def test_flags_are_counted_and_what_was_shown_does_not_count() -> None:
    clicked = np.array([[True, True, False, False, False]])
    shown = np.array([[False, False, True, False, False]])
    flagged = np.array([[True, False, True, True, False]])
    found = of_flags(flagged, clicked, shown)
    assert (found.clicks, found.found, found.recall) == (2, 1, 0.5)
    assert found.false_positive_rate == 0.5  # one of the two that are neither clicked nor shown


def test_chance_is_what_somebody_finds_who_names_popular_news() -> None:
    generator = np.random.default_rng(3)
    popular = np.arange(100) < 10
    clicked = generator.random((400, 100)) < np.where(popular, 0.5, 0.01)
    flagged = np.tile(popular, (400, 1))  # whoever it is
    found = of_flags(flagged, clicked, np.zeros_like(clicked))
    assert found.recall > 0.8
    assert found.chance == pytest.approx(found.recall)
    assert found.false_positive_rate < 0.06


def test_a_threshold_lets_one_of_a_hundred_pass() -> None:
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(50, 400))
    clicked = generator.random(scores.shape) < 0.05
    scores[clicked] += 10.0
    found = of_scores(scores, clicked, np.zeros_like(clicked))
    assert found.recall == 1.0
    assert 0.009 < found.false_positive_rate <= 0.01


def test_scores_that_say_nothing_find_what_chance_finds() -> None:
    # 20,000 clicks found with probability 0.01 each: more than 0.02 of them one time in 10^30.
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(200, 1000))
    clicked = generator.random(scores.shape) < 0.1
    found = of_scores(scores, clicked, np.zeros_like(clicked))
    assert found.recall < 0.02
    assert found.interval[0] < 0.012 and found.chance == pytest.approx(0.01, abs=0.001)


def test_scores_that_are_all_the_same_find_nothing() -> None:
    clicked = np.eye(4, dtype=np.bool_)
    found = of_scores(np.ones((4, 4)), clicked, np.zeros_like(clicked))
    assert (found.recall, found.false_positive_rate) == (0.0, 0.0)


def test_an_interval_is_wider_where_clicks_are_found_or_missed_together() -> None:
    clicked = np.ones((40, 10), np.bool_)
    alone = np.zeros_like(clicked)
    alone[:, ::2] = True  # half of every upload
    together = np.zeros_like(clicked)
    together[::2] = True  # all of every other upload
    narrow, wide = (of_flags(flags, clicked, np.zeros_like(clicked)).interval for flags in (alone, together))
    assert wide[1] - wide[0] > 2.5 * (narrow[1] - narrow[0])
    assert narrow == pytest.approx(proportion_interval(200, 400))


def test_clopper_and_pearson() -> None:
    assert proportion_interval(0, 10) == (0.0, pytest.approx(1.0 - 0.025**0.1))
    assert proportion_interval(10, 10) == (pytest.approx(0.025**0.1), 1.0)


def test_what_is_usual_takes_popularity_out() -> None:
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
