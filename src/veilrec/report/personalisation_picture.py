"""The picture of personalisation: what new people get by how many of their items the model was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from veilrec.errors import BadInput
from veilrec.report.html import refuse_foreign
from veilrec.report.page import Story, write_report
from veilrec.report.plots import Chart, Curve, save
from veilrec.report.run_summary import read_run
from veilrec.report.units import spelt

_ENDINGS = (".svg", ".png")
_SAME = ("dataset", "protocol", "seed")  # or the questions are others


def chart_of(found: Sequence[Mapping[str, Any]], metric: str = "hr@10") -> Chart:
    """A curve for every run, from what `evaluate_run(..., personalisation=True)` found; baselines as levels.

    `inline` makes a part of a page of it, `picture` a file, and `Story` takes it.
    """
    if not found:
        raise BadInput("a picture of personalisation needs at least one run")
    first = found[0]
    for result in found:
        differing = next((name for name in _SAME if result[name] != first[name]), None)
        if differing is not None:
            raise BadInput(
                f"{result['method']} has {differing} {result[differing]} and {first['method']} has {first[differing]}:"
                " one picture compares runs of the same questions"
            )
    labels = _labels([result["method"] for result in found])
    curves = []
    for label, result in zip(labels, found, strict=True):
        points = result["personalisation"]
        curves.append(Curve(label, list(range(len(points))), [point["metrics"][metric] for point in points]))
    points = first["personalisation"]
    return Chart(
        "personalisation",
        f"{spelt(metric)} by what is known of a new person",
        "Items that the device learnt from",
        f"{spelt(metric)}, {first['dataset']}, {first['protocol']}",
        curves,
        {name: values[metric] for name, values in points[-1]["baselines"].items()},
        {label: number for number, label in enumerate(labels)},
        [point["given"] for point in points],
    )


def _labels(methods: Sequence[str]) -> list[str]:
    """A method, with a number where it comes again."""
    seen: Counter[str] = Counter()
    labels = []
    for method in methods:
        seen[method] += 1
        labels.append(method if seen[method] == 1 else f"{method} ({seen[method]})")
    return labels


def check_files(run: Path, plot: Path | None, html: Path | None) -> None:
    """Refuse files that cannot be written, and a run that no page can be about, before any work."""
    if plot is not None and plot.suffix not in _ENDINGS:
        raise BadInput(f"cannot draw to {plot}: give a name that ends in .svg or .png")
    if html is not None:
        refuse_foreign(html)
        read_run(run)


def save_files(result: Mapping[str, Any], run: Path, plot: Path | None, html: Path | None) -> None:
    """Write the picture, and a page on the run that has it."""
    chart = chart_of([result])
    if plot is not None:
        save(chart, plot)
    if html is not None:
        title = f"{result['method']} on {result['dataset']}: people whom it meets after training"
        write_report(html, [read_run(run)], Story(title, personalisation=chart))
