"""One HTML page about runs on one or several datasets: results, curves, traffic, guarantees, provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from veilrec.core.errors import BadInput, counted
from veilrec.core.files import write_text
from veilrec.privacy.guarantee import no_guarantee
from veilrec.report.html import refuse_foreign, render_template
from veilrec.report.machine import provenance
from veilrec.report.person import FITS_NOTE, OVERLAP_NOTE, Person
from veilrec.report.plots import PLOT_ENDINGS, Chart, colour_numbers, inline, over_bytes, personalisation_chart, save
from veilrec.report.run_summary import RunSummary, main_metric, read_run, refuse_other_data, with_own_labels
from veilrec.report.units import human_bytes, meaning, spelt

if TYPE_CHECKING:
    from veilrec.report.demo_service import ServiceDemo

_BEST_NOTE = "Best possible: a ranking by the very probabilities that the data was drawn from, on a sample of users."
_TRAFFIC_NOTE = (
    "Length of the encoded messages: the total over all clients and rounds, and below it the mean of one client in one"
    " round. Seconds are the simulation's. A centralised method has everybody's data before it starts."
)
_BASELINE_PRIVACY = {"popularity": no_guarantee().basis, "random": "needs none"}  # random reads nobody's data
_METRICS = 2  # that a phone has room for; the rest stands in result.json
_SHOWN = ("hr@10", "ndcg@10", "auc", "mrr")


@dataclass(frozen=True)
class Story:
    """Texts and extras of a page, or of one dataset on it, beside the runs."""

    title: str
    summary: str = ""
    command: str = ""
    best_possible: Mapping[str, float] = field(default_factory=dict)  # metric -> value, where data is synthetic
    person: Person | None = None
    notes: Sequence[str] = ()
    personalisation: Chart | None = None  # of `personalisation_chart`


@dataclass(frozen=True)
class ReportPart:
    """Runs on one dataset that are compared with each other, and their story."""

    runs: Sequence[RunSummary]
    story: Story


def write_report(path: Path, runs: Sequence[RunSummary], story: Story) -> None:
    """Write a page on runs of one dataset; never replace a file that is no page of veilrec."""
    refuse_foreign(path)
    write_text(path, render(runs, story))


def render(runs: Sequence[RunSummary], story: Story) -> str:
    """Render a page on runs of one dataset."""
    return render_parts(story.title, [ReportPart(runs, story)], command=story.command)


def render_parts(
    title: str,
    parts: Sequence[ReportPart],
    *,
    summary: str = "",
    command: str = "",
    services: Sequence[tuple[ServiceDemo, str]] = (),
) -> str:
    """Render a page on several datasets.

    Args:
        title: heading of the page.
        parts: a dataset each.
        summary: first paragraph.
        command: the command that makes the page.
        services: served releases, each with the command that serves it.
    """
    if not parts or not all(part.runs for part in parts):
        raise BadInput("a report needs at least one run")
    for part in parts:
        refuse_other_data(part.runs)
    parts = [ReportPart(with_own_labels(part.runs), part.story) for part in parts]
    runs = [run for part in parts for run in part.runs]
    numbers = colour_numbers(runs)
    return render_template(
        "report",
        title=title,
        summary=summary,
        parts=[_part(part, numbers) for part in parts],
        services=services,
        runs=runs,
        traffic=[_traffic(run) for run in runs if run.kind == "federated"],
        traffic_note=_TRAFFIC_NOTE,
        overlap_note=OVERLAP_NOTE,
        fits_note=FITS_NOTE,
        facts=_facts(parts, command),
    )


def scores(runs: Sequence[RunSummary]) -> dict[str, tuple[str, Mapping[str, float]]]:
    """Collect kind and metrics of every method, baselines last; the first run's baselines stand for all."""
    rows = {run.label: (run.kind, run.metrics) for run in runs}
    return rows | {name: ("baseline", values) for name, values in runs[0].baselines.items()}


def check_personalisation_files(run: Path, plot: Path | None, html: Path | None) -> None:
    """Refuse files that cannot be written, and a run that no page can be about, before the evaluation."""
    if plot is not None and plot.suffix not in PLOT_ENDINGS:
        raise BadInput(f"cannot draw to {plot}: give a name that ends in .svg or .png")
    if html is not None:
        refuse_foreign(html)
        read_run(run)


def save_personalisation(result: Mapping[str, Any], run: Path, plot: Path | None, html: Path | None) -> None:
    """Write the personalisation curve of an evaluated run, and a page on the run that shows it."""
    chart = personalisation_chart([result])
    if plot is not None:
        save(chart, plot)
    if html is not None:
        title = f"{result['method']} on {result['dataset']}: users who join after training"
        write_report(html, [read_run(run)], Story(title, personalisation=chart))


def _part(part: ReportPart, numbers: Mapping[str, int]) -> dict[str, object]:
    """Compute what the template shows of one dataset."""
    runs, story = part.runs, part.story
    first, metric = runs[0], main_metric(runs[0].metrics)
    names = [metric, *(name for name in _SHOWN if name in first.metrics and name != metric)][:_METRICS]
    bases = _BASELINE_PRIVACY | {run.label: run.guarantee.basis for run in runs}
    rows = [
        [(name, kind), bases.get(name, ""), *_values(values, names)] for name, (kind, values) in scores(runs).items()
    ]
    cases = f"{first.metrics['cases']:,.0f} test cases, " if "cases" in first.metrics else ""
    notes = [f"{cases}protocol {first.protocol}, seed {first.seed}. {meaning(metric)}"]
    notes += [f"{run.label}: {run.guarantee.line()}." for run in runs if run.guarantee.basis != "none"]
    if story.best_possible:
        rows.append([("best possible", "synthetic data"), "no method", *_values(story.best_possible, names)])
        notes.append(_BEST_NOTE)
    charts = {
        "How did it learn?": over_bytes(runs, metric, story.best_possible, numbers),
        "How soon does it know a new user?": story.personalisation,
    }
    return {
        "story": story,
        "head": ["method", "privacy", *map(spelt, names)],
        "rows": rows,
        "numbers": range(2, 2 + len(names)),
        "notes": [*notes, *story.notes],
        "charts": [_figure(heading, chart) for heading, chart in charts.items() if chart],
    }


def _values(metrics: Mapping[str, float], names: Sequence[str]) -> list[str]:
    return [f"{metrics[name]:.4f}" if name in metrics else "" for name in names]


def _figure(heading: str, chart: Chart) -> dict[str, str]:
    ends = [f"{c.label} ends at {c.y[-1]:.4f}" for c in chart.curves if c.y]
    levels = [f"{label}: {height:.4f}" for label, height in chart.levels.items()]
    svg = Markup(inline(chart))  # noqa: S704  (matplotlib escapes every text of a picture)
    return {"heading": heading, "svg": svg, "label": chart.title, "caption": "; ".join(ends + levels) + "."}


def _traffic(run: RunSummary) -> list[object]:
    down, up = (f"{human_bytes(size)} each" for size in run.bytes_per_participation())
    return [
        (run.label, run.participation()),
        (human_bytes(run.down_bytes), down),
        (human_bytes(run.up_bytes), up),
        f"{run.seconds:.1f}",
    ]


def _facts(parts: Sequence[ReportPart], command: str) -> list[tuple[str, str, bool]]:
    """List what is needed to make the page again: name, value, and whether the value is a command."""
    facts = [("Command", command, True)] if command else []
    for part in parts:
        first = part.runs[0]
        sizes = f"{counted(first.users, 'user')}, {counted(first.items, 'item')}, {counted(first.rows, 'row')}"
        facts.append(("Data", f"{first.data}: {sizes}; protocol {first.protocol}, seed {first.seed}", False))
        facts += [(f"{run.label}, {run.seconds:.1f} s", run.command(), True) for run in part.runs]
    return facts + [(name, value, False) for name, value in provenance().items()]
