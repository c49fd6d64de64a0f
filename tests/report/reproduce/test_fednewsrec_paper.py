"""FedNewsRec's epsilons: privacy-math.md, section 4."""

from __future__ import annotations

import pytest

from veilrec.errors import BadInput
from veilrec.report.reproduce.fednewsrec_paper import PARAMETERS, UPLOADS, budget, laplace_budgets


def test_the_papers_own_choice():
    found = budget(0.005, 0.015)
    assert PARAMETERS == 2_522_803
    assert UPLOADS == 30
    assert found.claimed == pytest.approx(2 / 3)
    assert found.upload_pure == pytest.approx(1_681_868.67, abs=0.01)
    assert found.upload == pytest.approx(4.59e5, rel=2e-3)
    assert found.training_pure == pytest.approx(5.05e7, rel=2e-3)
    assert found.training == pytest.approx(1.37e7, rel=4e-3)


def test_a_small_block():
    found = budget(0.005, 0.015, parameters=300, uploads=1)
    assert found.upload_pure == pytest.approx(200.0)
    assert 99.80 <= found.upload <= 105.0  # the exact value, and what Renyi accounting may lose
    assert found.training == found.upload


def test_more_noise_and_a_smaller_clip_cost_less():
    assert budget(0.005, 0.02).training < budget(0.005, 0.015).training < budget(0.01, 0.015).training


def test_a_pair_without_noise_is_refused():
    with pytest.raises(BadInput, match="scale"):
        budget(0.005, 0.0)


def test_the_table_and_the_curves_say_the_same():
    calculated = laplace_budgets()
    row = next(row for row in calculated.grids[0].rows if row[:2] == ("0.005", "0.015"))
    assert row[2:4] == ("0.6667", "1,681,869")
    claimed, upload, training = calculated.curves
    assert [len(curve.y) for curve in calculated.curves] == [5, 5, 5]
    assert claimed.y[2] < upload.y[2] < training.y[2]
