"""Attacks that must succeed where nothing protects, must fail where something does, and notice a planted leak."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from tests.attacks.subjects import attackable
from veilrec.attacks.rows import explains, recover_clicks, share_in_rows, titles_in
from veilrec.core.errors import BadInput

SMALL = ("size.word_dim=8", "size.heads=2", "size.head_dim=4", "size.attention=4", "cohort.size=0")


def subject(method, *settings):
    made = attackable(method, *SMALL, *settings, users=200)
    return made.plan, made.data


def attack(method, *settings, updates=60, rounds=1):
    plan, data = subject(method, *settings)
    return recover_clicks(plan, data, plan.start, updates=updates, rounds=rounds)


def test_rows_of_words_tell_every_clicked_news():
    flags, ranked, dense = attack("fednewsrec", "calibration=none")
    assert (flags.view, flags.by, ranked.by, dense.by) == ("message", "word-rows", "word-rows", "dense")
    assert flags.recovery.recall > 0.99
    assert flags.recovery.recall > 2.0 * flags.recovery.false_positive_rate
    assert ranked.recovery.recall > 0.1
    assert ranked.recovery.false_positive_rate <= 0.01


def test_noise_that_holds_leaves_chance_and_a_planted_leak_is_seen():
    # Some 800 clicks are found with probability 0.01 each, clicks of one client together: more than 0.05 of them by
    # chance less than one time in a million, even if there were only a fifth as many.
    plan, data = subject("fednewsrec", "calibration=proven")
    protected, *of_server = recover_clicks(plan, data, plan.start, updates=60)
    assert (protected.view, protected.by) == ("sum", "sum")
    assert protected.recovery.recall < 0.05
    assert of_server[0].view == "update"
    assert of_server[0].recovery.recall > 0.99  # the server is trusted, and that is said
    without_noise = copy(plan.mechanism)
    without_noise.sigma = 1e-9
    planted = recover_clicks(replace(plan, mechanism=without_noise), data, plan.start, updates=60)[0]
    assert planted.recovery.recall > 0.1
    assert planted.recovery.interval[0] > 0.05


def test_noise_of_messages_averages_out_over_rounds():
    settings = ("calibration=as-published", "privacy.clip_value=0.1", "privacy.scale=0.0003")
    once, often = (attack("fednewsrec", *settings, updates=30, rounds=rounds)[0] for rounds in (1, 8))
    assert once.by == often.by == "word-rows"
    assert often.recovery.recall > once.recovery.recall + 0.02


def test_noise_on_attention_does_not_hide_the_history_padding_does_in_part_and_reports_do():
    settings = ("calibration=as-published", "privacy.epsilon=1")
    plain = attack("privaterec", *settings, updates=25)[0]
    padded = attack("privaterec", *settings, "privacy.pad_probability=0.5", updates=25)[0]
    assert plain.recovery.recall > 0.8
    assert padded.recovery.recall < plain.recovery.recall
    assert plain.recovery.recall > 2.0 * plain.recovery.chance
    findings = attack(
        "privaterec", "training=reports", "cohort.sampling=cyclic", "cohort.size=50", "calibration=proven", updates=25
    )
    assert {finding.view for finding in findings} == {"message"}
    flags = findings[0]
    # Titles made of words of what was shown are flagged, clicked or not.
    assert flags.recovery.recall <= flags.recovery.false_positive_rate + 0.05


def test_counts_below_one_and_methods_without_titles_are_refused():
    for updates, rounds in ((0, 1), (-1, 1), (1, 0)):
        with pytest.raises(BadInput, match="at least 1"):
            attack("fednewsrec", "calibration=none", updates=updates, rounds=rounds)
    ratings = attackable("dp-fedmf", "cohort.size=0", users=40)
    with pytest.raises(BadInput, match="reads no titles"):
        recover_clicks(ratings.plan, ratings.data, ratings.plan.start, updates=5)


def test_titles_whose_words_are_all_there_and_words_that_one_title_alone_brings():
    titles = np.array([[1, 2, 0], [2, 3, 4], [0, 0, 0], [4, 0, 0]])
    rows = np.array([[False, True, True, False, False], [False, False, False, False, True]])
    assert titles_in(rows, titles).tolist() == [[True, False, False, False], [False, False, False, True]]
    titles = np.array([[1, 2, 3], [2, 3, 0], [3, 4, 0], [5, 0, 0]])
    flagged = np.array([True, True, False, True])
    shown = np.array([False, False, False, True])
    scores = explains(flagged, shown, titles)
    assert scores[:2].tolist() == [2.0, 1.0]  # word 1 alone, words 2 and 3 shared
    assert np.isneginf(scores[2:]).all()
    assert np.isneginf(explains(np.zeros(4, np.bool_), shown, titles)).all()


def test_vectors_that_went_into_a_layer_lie_in_the_rows_of_its_gradient():
    generator = np.random.default_rng(0)
    went_in, others = generator.normal(size=(5, 16)), generator.normal(size=(50, 16))
    gradient = generator.normal(size=(12, 5)) @ went_in
    both = np.concatenate([went_in, others])
    unit = (both / np.linalg.norm(both, axis=1, keepdims=True)).astype(np.float32)
    shares = share_in_rows(gradient, unit, 1e-10)
    assert shares[:5].min() > 0.999
    assert shares[5:].max() < 0.95
    assert share_in_rows(np.zeros((3, 16)), unit, 1.0).tolist() == [0.0] * 55
