from __future__ import annotations

import pytest

from veilrec.report.charts import BEST_POSSIBLE, charts
from veilrec.report.runs import RunSummary


def test_the_charts_show_rounds_bytes_and_loss_between_what_is_compared(runs: list[RunSummary]) -> None:
    rounds, sent, loss = charts(runs, "hr@10", {"hr@10": 0.9})
    assert [curve.label for curve in rounds.curves] == ["fedmf"]
    assert rounds.curves[0].x == [2, 4]
    assert rounds.levels == {
        "mf (centralised)": runs[1].metrics["hr@10"],
        "popularity": runs[0].baselines["popularity"]["hr@10"],
        "random": runs[0].baselines["random"]["hr@10"],
        BEST_POSSIBLE: 0.9,
    }
    total = runs[0].down_bytes + runs[0].up_bytes
    assert sent.curves[0].x[-1] == pytest.approx(total / 1e6)
    assert "MB" in sent.x_label
    assert {curve.label for curve in loss.curves} == {"fedmf", "mf"}


def test_every_label_has_one_colour_of_its_own(runs: list[RunSummary]) -> None:
    colours = charts(runs, "hr@10", {})[0].colours
    assert colours["mf"] == colours["mf (centralised)"]
    distinct = {colours[name] for name in ("fedmf", "mf", "popularity", "random", BEST_POSSIBLE)}
    assert len(distinct) == 5


def test_without_a_federated_run_there_is_only_the_loss(runs: list[RunSummary]) -> None:
    assert [chart.name for chart in charts(runs[1:], "hr@10", {})] == ["loss"]
