"""The picture."""

from __future__ import annotations

from dataclasses import replace

import pytest

from veilrec.report.reproduce import figures
from veilrec.report.reproduce.fednewsrec_paper import laplace_budgets
from veilrec.report.reproduce.summary import Summary


def drawn_as(summary: Summary, **changes) -> Summary:
    return replace(summary, study=replace(summary.study, experiment=replace(summary.study.experiment, **changes)))


@pytest.mark.parametrize("picture", ["points", "rounds"])
def test_pictures_name_every_line_and_are_always_the_same(toy_summary, tmp_path, picture):
    summary = drawn_as(toy_summary, picture=picture, metrics=("hr@10", "ndcg@10"))
    for name in ("a.svg", "b.svg"):
        figures.save(summary, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    for words in ("FedMF (tuned)", "DP-FedMF (tuned, proven)", "popularity", "quick"):
        assert words in text
    assert ("paper" if picture == "points" else "DP-FedMF in the paper") in text


def test_a_curve_along_something_has_a_line_per_family(toy_summary, tmp_path):
    panel = toy_summary.panels[0]
    line = panel.lines[0]
    rows = [
        replace(line.variant.row, label=f"delta {clip}, lambda {at}", at=at) for clip in (1, 2) for at in (1.0, 2.0)
    ]
    lines = tuple(replace(line, variant=replace(line.variant, row=row)) for row in rows)
    summary = replace(drawn_as(toy_summary, picture="along", x_label="lambda"), panels=(replace(panel, lines=lines),))
    figures.save(summary, tmp_path / "along.svg")
    text = (tmp_path / "along.svg").read_text()
    assert text.count("delta 1, tuned") == text.count("delta 2, tuned") == 1


def test_what_needs_no_training_is_drawn_alone(toy_summary, tmp_path):
    bare = replace(toy_summary, panels=(), calculated=laplace_budgets())
    figures.save(bare, tmp_path / "epsilon.svg")
    text = (tmp_path / "epsilon.svg").read_text()
    assert "claimed (one coordinate)" in text
    assert "30 uploads" in text


def test_a_colour_is_a_method_and_a_dash_a_way_to_run_it(toy_summary):
    panel = toy_summary.panels[0]
    figure = figures.draw(drawn_as(toy_summary, picture="rounds", metrics=("hr@10",)))
    drawn = {line.get_label(): line for line in figure.axes[0].get_lines()}
    private = [drawn[line.name] for line in panel.lines if line.variant.row.label == "DP-FedMF"]
    assert len({line.get_color() for line in private}) == 1
    assert [line.get_linestyle() for line in private] == ["--", "-"]  # as published, proven
    assert drawn["FedMF (tuned)"].get_color() != private[0].get_color()
    assert figure.axes[0].get_xscale() == "log"


def test_bytes_are_labelled_as_people_say_them(toy_summary):
    figure = figures.draw(drawn_as(toy_summary, picture="points", metrics=("hr@10", "up_bytes")))
    left, right = figure.axes
    assert right.xaxis.get_major_formatter()(2e6, 0) == "2.0 MB"
    assert [tick.get_text() for tick in left.get_yticklabels()] == [
        line.name for line in toy_summary.panels[0].lines if line.measured
    ]


def test_png_by_the_ending(toy_summary, tmp_path):
    figures.save(toy_summary, tmp_path / "toy.png")
    assert (tmp_path / "toy.png").read_bytes().startswith(b"\x89PNG")
