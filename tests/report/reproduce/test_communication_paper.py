"""The communication paper's totals, printed beside what its way of counting gives."""

from __future__ import annotations

import pytest

from veilrec.data.datasets import find_dataset, whereabouts
from veilrec.report.reproduce import communication_paper
from veilrec.report.reproduce.communication_paper import mf_counts, ncf_counts

SUB_MODELS = {"ml-100k": 535.2, "ml-1m": 1145.4}  # items that DP-SUB chooses on the real data


def printed_rows(calculated) -> dict[tuple[str, str], tuple[str, ...]]:
    return {(row[0], row[1]): tuple(row[2:]) for row in calculated.grids[0].rows}


@pytest.fixture
def real_sub_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communication_paper, "_sub_model", SUB_MODELS.__getitem__)


def test_matrix_factorisation(real_sub_models):
    rows = printed_rows(mf_counts())
    assert rows["fedmf", "ml-100k"][:3] == ("2154.24", "2154.24", "+0.00 %")
    assert rows["fedmf", "ml-1m"][:3] == ("9487.36", "9487.36", "+0.00 %")
    assert rows["priv-fedmf-sub", "ml-100k"][:3] == ("698.67", "685.06", "-1.95 %")
    assert rows["priv-fedmf-sub", "ml-1m"][:3] == ("2907.85", "2932.22", "+0.84 %")
    assert rows["dp-fedmf-svd", "ml-1m"][:3] == ("4785.93", "4785.92", "-0.00 %")
    printed, counted, _, how, needed = rows["dp-fedmf-topk", "ml-1m"]
    assert (printed, counted) == ("4943.68", "4743.68")
    assert "half of 3706 rows of 32" in how
    assert needed.startswith("61,796 numbers")


def test_neural_collaborative_filtering(real_sub_models):
    rows = printed_rows(ncf_counts())
    assert rows["fedncf", "ml-100k"][:2] == ("10771.20", "10771.20")
    assert rows["fedncf", "ml-1m"][:2] == ("47436.80", "47436.80")
    printed, counted, _, _, needed = rows["priv-fedncf-sub-compress", "ml-1m"]
    assert (printed, counted) == ("4421.20", "14661.12")
    assert needed == "55,265 numbers, as of 345.41 rows of 160 (9.3 % of the rows)"


def test_only_totals_that_do_not_come_out_are_explained(real_sub_models):
    told = printed_rows(mf_counts()) | printed_rows(ncf_counts())
    assert {key for key, row in told.items() if row[4]} == {
        ("dp-fedmf-topk", "ml-1m"),
        ("priv-fedncf-sub-compress", "ml-100k"),
        ("priv-fedncf-sub-compress", "ml-1m"),
    }


def test_without_data_nothing_is_invented(no_data):
    rows = printed_rows(mf_counts())
    assert rows["fedmf", "ml-1m"][1] == "9487.36"
    assert rows["priv-fedmf-sub", "ml-1m"][1:4] == ("", "", "not counted: ml-1m was not found")


@pytest.mark.parametrize("dataset", ["ml-100k", "ml-1m"])
def test_the_sub_model_of_real_data(dataset):
    if whereabouts(find_dataset(dataset)) is None:
        pytest.skip(f"needs {dataset}")
    assert communication_paper._sub_model(dataset) == pytest.approx(SUB_MODELS[dataset])
