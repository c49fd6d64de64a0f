"""PrivateRec's noise and its epsilons: privacy-math.md, sections 1 and 3."""

from __future__ import annotations

import math

import pytest

from veilrec.report.reproduce.privaterec_budgets import (
    DIMENSIONS,
    PADDINGS,
    attention,
    embedding_noise,
    padding_noise,
    training_claims,
)


@pytest.mark.parametrize(
    ("epsilon", "noise", "published", "needed"),
    [(1.0, "laplace", 0.671195, 1.342390), (10.0, "gaussian", 0.335566, 0.525477)],
)
def test_noise_with_half_of_the_clicks_padded(epsilon, noise, published, needed):
    found = attention(epsilon, 0.5, noise=noise)
    assert found.published == pytest.approx(published, rel=1e-5)
    assert found.needed == pytest.approx(needed, rel=1e-4)
    assert found.holds > epsilon


def test_without_padding_the_published_laplace_noise_is_worth_half():
    found = attention(10.0, 0.0)
    assert (found.published, found.holds) == (pytest.approx(0.1), pytest.approx(20.0))
    assert attention(10.0, 0.0, noise="gaussian").holds == pytest.approx(17.859, abs=2e-3)


def test_what_holds_is_what_the_noise_is_needed_for():
    """The published scale is the needed one of the epsilon that holds."""
    found = attention(1.0, 0.5)
    assert attention(found.holds, 0.5).needed == pytest.approx(found.published, rel=1e-6)


def test_more_padding_needs_less_noise_and_the_more_so_the_smaller_epsilon_is():
    for epsilon in (1.0, 5.0, 10.0):
        scales = [attention(epsilon, p).published for p in PADDINGS]
        assert scales == sorted(scales, reverse=True)
    saved = [1.0 - attention(e, 0.5).published / attention(e, 0.0).published for e in (1.0, 5.0, 10.0)]
    assert saved == sorted(saved, reverse=True)


def test_the_table_and_the_curves_say_the_same():
    calculated = padding_noise()
    (table,) = calculated.grids
    row = next(row for row in table.rows if row[:2] == ("1", "0.5"))
    assert row[2:] == ("0.6712", "2.336", "1.342", "2.408", "1.011", "2.425")
    curves = {curve.label: curve for curve in calculated.curves}
    assert f"{curves['epsilon 1, as published'].y[PADDINGS.index(0.5)]:.4g}" == row[2]
    assert f"{curves['epsilon 1, proven'].y[PADDINGS.index(0.5)]:.4g}" == row[4]


def test_no_table_has_an_epsilon_without_its_terms():
    for calculated in (padding_noise(), training_claims(), embedding_noise()):
        for grid in calculated.grids:
            assert "(replace-one), per message, trusting nobody" in grid.title
        assert calculated.curves


def test_a_message_of_training():
    rows = {row[0]: row for row in training_claims().grids[0].rows}
    assert rows["1"] == ("1", "2", "2.197", "0.8889", "no finite epsilon")
    assert rows["10"][1:3] == ("20", "10")


def test_noise_on_a_user_vector_is_worth_less_the_longer_it_is():
    (table,) = embedding_noise().grids
    last = next(row for row in table.rows if row[0] == "user vector, d = 400")
    assert last[1:4] == ("0.2", "200", "4")  # the root of 400 times as much
    holds = embedding_noise().curves[1]
    assert holds.y == pytest.approx([10.0 * math.sqrt(d) for d in DIMENSIONS], rel=1e-6)
