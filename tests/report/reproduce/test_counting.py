"""The communication paper's totals (section 6.4) from its rows, widths, devices and rounds."""

from __future__ import annotations

import pytest

from veilrec.report.reproduce.counting import MF_1M, MF_100K, NCF_1M, NCF_100K, mf_counts, ncf_counts


def test_whole_models():
    assert MF_100K.total() == pytest.approx(2154.24)
    assert MF_1M.total() == pytest.approx(9487.36)
    assert NCF_100K.total() == pytest.approx(10771.2)
    assert NCF_1M.total() == pytest.approx(47436.8)


def test_sub_models_are_a_third_of_the_items():
    assert MF_100K.mean_rows(698.67) == pytest.approx(545.84, abs=0.005)
    assert MF_1M.mean_rows(2907.85) == pytest.approx(1135.88, abs=0.005)


def test_what_does_not_fit_is_said():
    told = {row[0]: row[3] for row in mf_counts().grids[0].rows} | {
        row[0]: row[3] for row in ncf_counts().grids[0].rows
    }
    assert "4743.68" in told["4943.68"]
    assert "2500 numbers a message" in told["4943.68"]
    assert "= 4785.92" in told["4785.93"]
    assert "345.41 of 3706" in told["4421.2"]
    assert "14539.2" in told["4421.2"]
    assert NCF_1M.total(MF_1M.mean_rows(2907.846)) == pytest.approx(5 * 2907.846)


@pytest.mark.parametrize("extra", [mf_counts, ncf_counts])
def test_products_that_are_printed_are_right(extra):
    for printed, _, _, words in extra().grids[0].rows:
        product, equals, value = words.rpartition(" = ")
        if equals:
            assert float(value) == pytest.approx(float(printed), abs=0.011), product
