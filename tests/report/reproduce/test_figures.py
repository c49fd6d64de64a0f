"""The picture."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.cli.running import says
from veilrec.report.reproduce import figures
from veilrec.report.reproduce.calculated import laplace_budgets


def drawn_as(summary, **changes):
    return replace(summary, study=replace(summary.study, experiment=replace(summary.study.experiment, **changes)))


@pytest.mark.parametrize("picture", ["points", "rounds"])
def test_pictures_name_every_line_and_are_always_the_same(toy_summary, tmp_path, picture):
    summary = drawn_as(toy_summary, picture=picture, metrics=("hr@10", "ndcg@10"))
    for name in ("a.svg", "b.svg"):
        figures.save(summary, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    says(text, "FedMF (tuned)", "DP-FedMF (tuned, proven)", "popularity", "quick, 3 rounds, not for quoting")
    assert ("paper" if picture == "points" else "DP-FedMF in the paper") in text


def along(summary, places, **changes):
    """The first panel as a curve: its first line again at every place, by label."""
    panel = summary.panels[0]
    rows = [replace(panel.lines[0].variant.row, label=label, at=at) for label, at in places.items()]
    lines = tuple(replace(panel.lines[0], variant=replace(panel.lines[0].variant, row=row)) for row in rows)
    return replace(drawn_as(summary, picture="along", **changes), panels=(replace(panel, lines=lines),))


def test_a_colour_is_a_method_and_a_dash_a_way_to_run_it(toy_summary):
    panel = toy_summary.panels[0]
    figure = figures.draw(drawn_as(toy_summary, picture="rounds", metrics=("hr@10",)))
    drawn = {line.get_label(): line for line in figure.axes[0].get_lines()}
    private = [drawn[line.name] for line in panel.lines if line.variant.row.label == "DP-FedMF"]
    assert len({line.get_color() for line in private}) == 1
    assert [line.get_linestyle() for line in private] == ["--", "-"]  # as published, proven
    assert drawn["FedMF (tuned)"].get_color() != private[0].get_color()
    assert figure.axes[0].get_xscale() == "log"
    figure.canvas.draw()
    ticks = [tick.get_text() for tick in figure.axes[0].get_xticklabels(which="both")]
    assert {"1", "2"} <= set(ticks) and all(float(tick) > 0.0 for tick in ticks)  # numbers, no formulas


def test_bytes_are_labelled_as_people_say_them_and_many_metrics_take_a_second_row(toy_summary):
    figure = figures.draw(drawn_as(toy_summary, picture="points", metrics=("hr@10", "up_bytes")))
    left, right = figure.axes
    assert right.xaxis.get_major_formatter()(2e6, 0) == "2.0 MB"
    names = [tick.get_text() for tick in left.get_yticklabels()]
    assert names == [line.name for line in toy_summary.panels[0].lines if line.measured]
    many = ("hr@5", "ndcg@5", "hr@10", "ndcg@10", "up_bytes", "down_bytes")
    assert [len(part.axes) for part in figures.draw(drawn_as(toy_summary, metrics=many)).subfigs] == [3, 3]


def test_what_is_calculated_makes_no_gap_between_the_other_columns(toy_summary):
    metrics = ("hr@10", "ndcg@10", "up_bytes")
    summary = replace(drawn_as(toy_summary, picture="rounds", metrics=metrics), calculated=laplace_budgets())
    figure = figures.draw(summary)
    figure.canvas.draw()
    boxes = [axes.get_window_extent() for axes in figure.axes]
    gaps = [right.x0 - left.x1 for left, right in pairwise(boxes[:3])]
    assert max(gaps) - min(gaps) < 30  # pixels: labels differ a little
    names = [tick.get_window_extent() for tick in figure.axes[3].get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(names))
    assert figures.draw(replace(summary, panels=())).axes[0].get_ylabel() == summary.calculated.y_label  # it alone


def test_a_curve_has_a_line_per_family_and_ticks_where_something_was_measured(toy_summary):
    for places, scale in (((0.005, 0.015, 0.025), "linear"), ((100.0, 300.0, 10000.0), "log")):
        axes = figures.draw(along(toy_summary, {f"{at:g}": at for at in places}, metrics=("hr@10",))).axes[0]
        assert axes.get_xscale() == scale
        assert [tick.get_text() for tick in axes.get_xticklabels()] == [f"{at:g}" for at in places]
    families = {f"delta {clip}, lambda {at}": at for clip in (1, 2) for at in (1.0, 2.0)}
    drawn = figures.draw(along(toy_summary, families, metrics=("hr@10",))).axes[0]
    assert {"delta 1, tuned", "delta 2, tuned"} < set(drawn.get_legend_handles_labels()[1])


def test_numbers_of_other_data_are_said_to_be(toy_summary):
    panel = toy_summary.panels[0]
    same = replace(toy_summary, panels=(replace(panel, data=panel.panel.data),))
    other = replace(toy_summary, panels=(replace(panel, data="frappe"),))
    for picture in ("points", "rounds"):
        drawn = [figures.draw(drawn_as(summary, picture=picture)).axes[0] for summary in (same, other)]
        labels = [" ".join(axes.get_legend_handles_labels()[1]) for axes in drawn]
        assert "paper" in labels[0] and "other data" not in labels[0]
        assert f"paper (on {panel.panel.published_on}: other data)" in labels[1]


def test_a_curve_keeps_its_colour_where_a_metric_lacks_another_one(toy_summary):
    summary = along(toy_summary, {"one, d 1": 1.0, "two, d 1": 1.0}, metrics=("hr@10", "skew"))
    first, second = summary.panels[0].lines
    second = replace(second, measured={**second.measured, "skew": second.measured["hr@10"]})
    figure = figures.draw(replace(summary, panels=(replace(summary.panels[0], lines=(first, second)),)))
    curves = [[curve for curve in axes.containers if hasattr(curve, "lines")] for axes in figure.axes[:2]]
    colours = [{curve.get_label(): curve.lines[0].get_color() for curve in some} for some in curves]
    assert set(colours[0]) == {"one, tuned", "two, tuned"}
    assert colours[1] == {"two, tuned": colours[0]["two, tuned"]}
