"""The curve of personalisation: for one run or several, as a file and in a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from veilrec.core.errors import BadInput
from veilrec.report.page import RunSummary, Story, check_personalisation_files, render
from veilrec.report.plots import inline, personalisation_chart, save


def result(method: str, values: Sequence[float], **other: object) -> dict[str, Any]:
    levels = {"popularity": {"hr@10": 0.2, "ndcg@10": 0.1}, "random": {"hr@10": 0.01, "ndcg@10": 0.005}}
    points = [
        {"given": given, "metrics": {"hr@10": value, "ndcg@10": value / 2}, "baselines": levels}
        for given, value in zip(("0", "5", "half"), values, strict=True)
    ]
    about = {"method": method, "dataset": "ml-1m", "protocol": "holdout-users", "seed": 0, "personalisation": points}
    return about | other


def test_a_curve_a_run_over_what_was_given_and_baselines_as_levels() -> None:
    chart = personalisation_chart(
        [result("fedmf", (0.1, 0.3, 0.4)), result("ease", (0.0, 0.2, 0.5)), result("ease", (0, 0, 0))]
    )
    assert [(curve.label, list(curve.x), list(curve.y)) for curve in chart.curves] == [
        ("fedmf", [0, 1, 2], [0.1, 0.3, 0.4]),
        ("ease", [0, 1, 2], [0.0, 0.2, 0.5]),
        ("ease (2)", [0, 1, 2], [0, 0, 0]),
    ]
    assert chart.ticks == ["0", "5", "half"]
    assert chart.levels == {"popularity": 0.2, "random": 0.01}
    assert personalisation_chart([result("fedmf", (0.1, 0.3, 0.4))], "ndcg@10").levels["popularity"] == 0.1


def test_the_places_on_the_axis_have_their_names(tmp_path: Path) -> None:
    chart = personalisation_chart([result("fedmf", (0.1, 0.3, 0.4))])
    words = [text for text in ET.fromstring(inline(chart)).itertext() if text.strip()]  # noqa: S314
    assert {"0", "5", "half", "fedmf", "popularity", "random"} <= {word.strip() for word in words}
    for name, start in (("curve.svg", b"<?xml"), ("curve.png", b"\x89PNG")):
        save(chart, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)


def test_a_page_shows_it_and_only_if_it_is_there(runs: list[RunSummary]) -> None:
    page = render(runs, Story("A page", personalisation=personalisation_chart([result("fedmf", (0.1, 0.3, 0.4))])))
    assert "How soon does it know a new user?" in page
    assert "fedmf ends at 0.4000; popularity: 0.2000; random: 0.0100." in page
    assert "How soon" not in render(runs, Story("A page"))


@pytest.mark.parametrize("other", [{"seed": 1}, {"dataset": "frappe"}, {"protocol": "holdout-users-liked"}])
def test_runs_that_were_asked_other_questions_are_refused(other: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=f"ease has {next(iter(other))} .*: one plot compares runs of the same"):
        personalisation_chart([result("fedmf", (0.1, 0.3, 0.4)), result("ease", (0.1, 0.3, 0.4), **other)])
    with pytest.raises(BadInput, match="at least one run"):
        personalisation_chart([])


def test_files_are_checked_before_the_work(tmp_path: Path, run_folders: dict[str, Path]) -> None:
    run = run_folders["mf"]
    check_personalisation_files(run, tmp_path / "a.svg", tmp_path / "a.html")
    with pytest.raises(BadInput, match="ends in .svg or .png"):
        check_personalisation_files(run, tmp_path / "a.pdf", None)
    (tmp_path / "own.html").write_text("mine")
    with pytest.raises(BadInput, match="is no report of veilrec"):
        check_personalisation_files(run, None, tmp_path / "own.html")
    with pytest.raises(BadInput, match=r"config\.yaml"):
        check_personalisation_files(tmp_path, None, tmp_path / "a.html")
