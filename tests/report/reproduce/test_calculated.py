"""What needs no training: the communication paper's totals, and the epsilons of privacy-math.md, sections 1 to 5."""

import math

import pytest

from tests.report.reproduce.toys import EXPERIMENTS, OUT
from veilrec.core.errors import BadInput
from veilrec.data.datasets import find_dataset, whereabouts
from veilrec.privacy.accounting.accountant import DELTAS, FRAPPE_TABLE, MOVIELENS_TABLE
from veilrec.report.reproduce import calculated
from veilrec.report.reproduce.calculated import DIMENSIONS, PADDINGS, attention_noise, calculate, upload_budget
from veilrec.report.reproduce.results import summarise
from veilrec.report.reproduce.study import StudyOptions, make_study
from veilrec.report.reproduce.summary import to_json, to_markdown

SUB_MODELS = {"ml-100k": 535.2, "ml-1m": 1147.8}  # items that DP-SUB chooses on the real data
ROUNDING = 6e-4  # of vectors with four digits, from another grid of losses
TOTALS = {  # method and data: printed, counted, how far off
    ("fedmf", "ml-100k"): ("2154.24", "2154.24", "+0.00 %"),
    ("fedmf", "ml-1m"): ("9487.36", "9487.36", "+0.00 %"),
    ("priv-fedmf-sub", "ml-100k"): ("698.67", "685.06", "-1.95 %"),
    ("priv-fedmf-sub", "ml-1m"): ("2907.85", "2938.37", "+1.05 %"),
    ("dp-fedmf-svd", "ml-1m"): ("4785.93", "4785.92", "-0.00 %"),
    ("dp-fedmf-topk", "ml-1m"): ("4943.68", "4743.68", "-4.05 %"),
    ("fedncf", "ml-100k"): ("10771.20", "10771.20", "+0.00 %"),
    ("fedncf", "ml-1m"): ("47436.80", "47436.80", "+0.00 %"),
    ("priv-fedncf-sub-compress", "ml-1m"): ("4421.20", "14691.84", "+232.30 %"),
}


def counted(experiment):
    """The totals of an experiment by method and data."""
    return {(row[0], row[1]): tuple(row[2:]) for row in calculate(EXPERIMENTS[experiment]).grids[0].rows}


@pytest.fixture(scope="module")
def losses():
    """The epsilons of DP-PrivRec; they take some seconds."""
    return summarise(make_study(EXPERIMENTS["dp-privrec-table3"], StudyOptions(quick=True), OUT), {})


def test_communication_totals(monkeypatch):
    monkeypatch.setattr(calculated, "sub_model_size", SUB_MODELS.__getitem__)
    rows = counted("fedmf-table2") | counted("fedncf-communication")
    assert {key: row[:3] for key, row in rows.items() if key in TOTALS} == TOTALS
    assert "half of 3706 rows of 32" in rows["dp-fedmf-topk", "ml-1m"][3]
    assert {key: row[4] for key, row in rows.items() if row[4] and key[1] == "ml-1m"} == {  # what does not come out
        ("dp-fedmf-topk", "ml-1m"): "61,796 numbers, as of 1931.12 rows of 32 (52.1 % of the rows)",
        ("priv-fedncf-sub-compress", "ml-1m"): "55,265 numbers, as of 345.41 rows of 160 (9.3 % of the rows)",
    }


def test_without_data_no_total_is_invented(no_data):
    rows = counted("fedmf-communication")
    assert rows["fedmf", "ml-1m"][1] == "9487.36"
    assert rows["priv-fedmf-sub", "ml-1m"][1:4] == ("", "", "not counted: ml-1m was not found")


@pytest.mark.parametrize(("dataset", "size"), SUB_MODELS.items())
def test_the_sub_model_of_real_data(dataset, size):
    if whereabouts(find_dataset(dataset)) is None:
        pytest.skip(f"needs {dataset}")
    assert calculated.sub_model_size(dataset) == pytest.approx(size)


def test_fednewsrecs_budgets():
    found = upload_budget(0.005, 0.015)
    assert found.claimed == pytest.approx(2 / 3)
    assert found.upload_pure == pytest.approx(1_681_868.67, abs=0.01)
    assert found.update == pytest.approx(4.59e5, rel=2e-3)
    assert found.training_pure == pytest.approx(5.05e7, rel=2e-3)
    assert found.training == pytest.approx(1.37e7, rel=4e-3)
    small = upload_budget(0.005, 0.015, parameters=300, updates=1)
    assert small.upload_pure == pytest.approx(200.0)
    assert 99.80 <= small.update <= 105.0  # the exact value, and what Renyi accounting may lose
    assert small.training == small.update
    with pytest.raises(BadInput, match="scale"):
        upload_budget(0.005, 0.0)
    tables = calculated.laplace_budgets()
    row = next(row for row in tables.grids[0].rows if row[:2] == ("0.005", "0.015"))
    assert row[2:4] == ("0.6667", "1,681,869")
    assert [curve.y[2] for curve in tables.curves] == [found.claimed, found.update, found.training]


def test_more_padding_needs_less_noise_and_the_more_so_the_smaller_epsilon_is():
    found = attention_noise(1.0, 0.5)  # the published scale is the needed one of the epsilon that holds
    assert attention_noise(found.holds, 0.5).needed == pytest.approx(found.published, rel=1e-6)
    saved = []
    for epsilon in (1.0, 5.0, 10.0):
        scales = [attention_noise(epsilon, p).published for p in PADDINGS]
        assert scales == sorted(scales, reverse=True)
        saved.append(1.0 - scales[PADDINGS.index(0.5)] / scales[0])
    assert saved == sorted(saved, reverse=True)


def test_privaterecs_tables_and_curves():
    made = calculated.padding_noise(), calculated.training_claims(), calculated.embedding_noise()
    for found in made:
        assert all("(replace-one), per message, trusting nobody" in grid.title for grid in found.grids)
    padding, claims, embedding = made
    row = next(row for row in padding.grids[0].rows if row[:2] == ("1", "0.5"))
    assert row[2:] == ("0.6712", "2.336", "1.342", "2.408", "1.011", "2.425")
    curves = {curve.label: curve for curve in padding.curves}
    assert f"{curves['epsilon 1, as published'].y[PADDINGS.index(0.5)]:.4g}" == row[2]
    assert f"{curves['epsilon 1, proven'].y[PADDINGS.index(0.5)]:.4g}" == row[4]
    rows = {row[0]: row for row in claims.grids[0].rows}
    assert rows["1"] == ("1", "2", "2.197", "0.8889", "no finite epsilon")
    assert rows["10"][1:3] == ("20", "10")
    last = next(row for row in embedding.grids[0].rows if row[0] == "user vector, d = 400")
    assert last[1:4] == ("0.2", "200", "4")  # the root of 400 times as much
    assert embedding.curves[1].y == pytest.approx([10.0 * math.sqrt(d) for d in DIMENSIONS], rel=1e-6)


def test_every_step_of_privrecs_tables_is_impossible():
    movielens, frappe = (calculated.impossible_steps(EXPERIMENTS[f"privrec-table{n}"]).grids[0].rows for n in (1, 2))
    for rows in (movielens, frappe):
        assert [row[1] for row in rows] == [*5 * ["3 of 3"], "30 of 30"]
    # nDCG gains .137 less .106, where Hits gain .160 less .123, over log2(7), with half a digit for each of the four
    assert {row[0]: row[2] for row in movielens}["PrivRec"].startswith("@5 to @10: 0.0310, at most 0.0145; @10 to")
    assert "hits fall, @5 to @10: -0.0210" in {row[0]: row[2] for row in frappe}["FCF"]


def test_a_table_that_needs_no_training_trains_nothing(losses):
    table, study = losses.study.experiment, losses.study
    assert not study.trials()
    assert not study.quick  # it is the whole of it
    assert [grid["title"].partition(",")[0] for grid in to_json(losses, "")["tables"]] == ["Table 3", "Table 4"]
    assert "No training." in to_markdown(losses, "", "x.png")
    assert table.sources() == "Table 3, Table 4"
    with pytest.raises(BadInput, match="trains nothing: leave out --data, --method"):
        make_study(table, StudyOptions(data="ml-1m", methods=("privrec",)), OUT)


def test_all_36_epsilons_of_dp_privrec_as_printed_and_as_they_came_about(losses):
    grids, curves = losses.calculated.grids, {curve.label: curve for curve in losses.calculated.curves}
    rows = [row for grid in grids for row in grid.rows]
    assert [row[:3] for row in rows] == [
        (f"{cohort} / {population}", f"{delta:g}", f"{printed:.4f}")
        for (population, cohort), line in (MOVIELENS_TABLE | FRAPPE_TABLE).items()
        for delta, printed in zip(DELTAS, line, strict=True)
    ]
    assert len(rows) == 36
    assert all(float(row[3]) == pytest.approx(float(row[2]), abs=1e-3) for row in rows)
    assert all(float(row[6]) < float(row[4]) < float(row[3]) for row in rows)
    for where, fixed, coin in (  # what holds at a delta of a millionth
        ("5 / 4800", 0.2269, 0.1941),
        ("10 / 4800", 0.4758, 0.4084),
        ("20 / 4800", 0.9925, 0.8492),
        ("30 / 4800", 1.5244, 1.2978),
        ("2 / 760", 0.6099, 0.5234),
        ("8 / 760", 2.6545, 2.2426),
        ("15 / 760", 5.2349, 4.3822),
    ):
        (row,) = (row for row in rows if row[:2] == (where, "1e-06"))
        assert float(row[4]) == pytest.approx(fixed, abs=ROUNDING)
        assert float(row[6]) == pytest.approx(coin, abs=ROUNDING)
        assert row[5] == f"{float(row[2]) / float(row[4]):.1f}"
    assert curves["Movielens, printed (replace-one)"].y == [line[1] for line in MOVIELENS_TABLE.values()]
    assert curves["Frappe, holds (add-remove, Poisson)"].y[-1] == calculated.poisson_epsilon(760, 15, 1e-6)
    for grid in grids:
        assert "per user, whole run of 1000 rounds, trusting the server" in grid.title
        for column in (grid.head[at] for at in (2, 4, 6)):
            assert "replace-one" in column or "add-remove" in column
            assert "as published" in column or "proven" in column
