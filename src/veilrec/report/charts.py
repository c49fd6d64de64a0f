"""Which curves a report shows: quality over rounds, quality over bytes, loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from veilrec.report.plots import Chart, Curve
from veilrec.report.runs import Point, RunSummary
from veilrec.report.units import byte_scale, spelt

BEST_POSSIBLE = "best possible"
_PARTS = {"test": "test part", "valid": "validation part"}


def charts(runs: Sequence[RunSummary], metric: str, best_possible: Mapping[str, float]) -> list[Chart]:
    """All charts that these runs have points for."""
    colours = _colours(runs)
    learning = [run for run in runs if run.kind == "federated" and run.points]
    drawn = []
    if learning:
        drawn = [
            over_rounds(runs, metric, best_possible, colours),
            _over_bytes(learning, metric, _levels(runs, metric, best_possible), colours),
        ]
    with_loss = [run for run in runs if sum(point.loss is not None for point in run.points) > 1]
    return [*drawn, _losses(with_loss, colours)] if with_loss else drawn


def over_rounds(
    runs: Sequence[RunSummary],
    metric: str,
    best_possible: Mapping[str, float],
    colours: Mapping[str, int] | None = None,
) -> Chart:
    """The metric of each federated method after each round, between what it is compared with."""
    learning = [run for run in runs if run.kind == "federated" and run.points]
    return Chart(
        "rounds",
        f"{spelt(metric)} over rounds",
        "Round",
        _y_label(learning, metric),
        [Curve(run.label, [p.round for p in run.points], _values(run.points, metric)) for run in learning],
        _levels(runs, metric, best_possible),
        colours or _colours(runs),
    )


def _over_bytes(
    runs: Sequence[RunSummary], metric: str, levels: Mapping[str, float], colours: Mapping[str, int]
) -> Chart:
    size, unit = byte_scale(max(_sent(run.points[-1]) for run in runs))
    curves = [Curve(run.label, [_sent(p) / size for p in run.points], _values(run.points, metric)) for run in runs]
    return Chart(
        "bytes",
        f"{spelt(metric)} over bytes",
        f"Sent so far, both ways, all devices together ({unit})",
        _y_label(runs, metric),
        curves,
        levels,
        colours,
    )


def _losses(runs: Sequence[RunSummary], colours: Mapping[str, int]) -> Chart:
    curves = []
    for run in runs:
        known = [(100 * p.round / run.rounds, p.loss) for p in run.points if p.loss is not None]
        curves.append(Curve(run.label, [at for at, _ in known], [loss for _, loss in known]))
    return Chart(
        "loss",
        "Training loss",
        "Share of all rounds or epochs (%)",
        "Mean loss per example (nats)",
        curves,
        {},
        colours,
    )


def _levels(runs: Sequence[RunSummary], metric: str, best_possible: Mapping[str, float]) -> dict[str, float]:
    levels = {f"{run.label} (centralised)": run.metrics[metric] for run in runs if run.kind == "centralised"}
    levels |= {name: values[metric] for name, values in runs[0].baselines.items()}
    return levels | ({BEST_POSSIBLE: best_possible[metric]} if metric in best_possible else {})


def _colours(runs: Sequence[RunSummary]) -> dict[str, int]:
    """A number for every label, so that a method has one colour in all charts."""
    labels: dict[str, int] = {}
    for run in runs:
        labels[f"{run.label} (centralised)"] = labels[run.label] = len(set(labels.values()))
    for name in (*runs[0].baselines, BEST_POSSIBLE):
        labels[name] = len(set(labels.values()))
    return labels


def _values(points: Sequence[Point], metric: str) -> list[float]:
    return [point.metrics[metric] for point in points]


def _sent(point: Point) -> int:
    return point.down_bytes + point.up_bytes


def _y_label(runs: Sequence[RunSummary], metric: str) -> str:
    part = runs[0].split if runs else "test"
    return f"{spelt(metric)} on the {_PARTS.get(part, part)}"
