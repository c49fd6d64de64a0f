"""One HTML page about finished runs: results, curves, traffic, guarantees, provenance."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from veilrec.core.errors import BadInput, bad_line, counted
from veilrec.core.files import write_text
from veilrec.methods.registry import get
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.report.html import refuse_foreign, render_template
from veilrec.report.labels import human_bytes, meaning, provenance, spelt
from veilrec.report.person import FITS_NOTE, Person
from veilrec.report.plots import Chart, colour_numbers, inline, over_bytes
from veilrec.runs.checkpoint import read_config, read_result

if TYPE_CHECKING:
    from veilrec.report.demo import ServiceDemo

COUNTS = ("cases", "skipped")  # reported beside the metrics, and not metrics
_MAIN_METRICS = ("auc", "hr@10", "ndcg@10")  # the first of them that a protocol gives


@dataclass(frozen=True)
class EvaluationPoint:
    """One evaluation during a run."""

    round: int
    metrics: Mapping[str, float]
    loss: float | None
    clients: int  # that took part so far, counted again in every round
    down_bytes: int  # so far, all clients together
    up_bytes: int


@dataclass(frozen=True)
class RunSummary:
    """A finished run: its request, learning curve, final metrics, guarantee and traffic."""

    label: str  # what a page calls it: the method, and the folder where two runs have the same method
    folder: str  # its name without what is above it
    method: str
    kind: str  # federated, centralised or baseline
    dataset: str
    data: str  # as it was asked for
    protocol: str
    seed: int
    preset: str
    settings: tuple[str, ...]
    rounds: int
    users: int
    items: int
    rows: int
    metrics: Mapping[str, float]
    baselines: Mapping[str, Mapping[str, float]]
    guarantee: Guarantee
    down_bytes: int
    up_bytes: int
    seconds: float
    split: str  # which part the points were measured on: test or valid
    points: tuple[EvaluationPoint, ...]
    noise: str = "seeded"  # or secure
    config: Mapping[str, Any] = field(default_factory=dict)  # every setting of the method, in groups

    def clients_per_round(self) -> float:
        """Return the mean number of clients in a round."""
        return self.points[-1].clients / max(self.points[-1].round, 1) if self.points else 0.0

    def participation(self) -> str:
        """Say how many clients took part in how many rounds: 300 rounds of 100 clients."""
        clients = self.clients_per_round()
        about = "all " if clients == self.users else "" if clients.is_integer() else "about "
        return f"{counted(self.rounds, 'round')} of {about}{counted(round(clients), 'client')}"

    def bytes_per_participation(self) -> tuple[float, float]:
        """Return the mean bytes that one client receives and sends in one round."""
        times = max(self.points[-1].clients, 1) if self.points else 1
        return self.down_bytes / times, self.up_bytes / times

    def command(self) -> str:
        """Return the command that makes this run again."""
        settings = "".join(f" --set {setting}" for setting in self.settings)
        preset = "" if self.preset == "tuned" else f" --preset {self.preset}"
        noise = "" if self.noise == "seeded" else f" --noise {self.noise}"
        return (
            f"veilrec train {self.method} --data {self.data} --rounds {self.rounds} --seed {self.seed}"
            f" --protocol {self.protocol}{preset}{noise}{settings}"
        )


def main_metric(metrics: Mapping[str, float]) -> str:
    """Choose the metric that curves show: AUC for impressions, HR@10 where held-out items are ranked."""
    names = [name for name in metrics if name not in COUNTS]
    return next((name for name in _MAIN_METRICS if name in names), names[0])


def read_run(folder: Path) -> RunSummary:
    """Read the folder of a finished run."""
    config = read_config(folder)
    result = read_result(folder)
    split, points = _read_points(folder / "metrics.jsonl")
    try:
        known = config | result | result["communication"]
        names = ("method", "dataset", "data", "protocol", "seed", "preset", "rounds", "users", "items", "rows")
        return RunSummary(
            label=result["method"],
            folder=folder.name,
            kind=get(result["method"]).kind,
            settings=tuple(config["settings"]),
            metrics=_numbers(result["metrics"]),
            baselines={name: _numbers(values) for name, values in dict(result["baselines"]).items()},
            guarantee=Guarantee.from_json(result["guarantee"]),
            seconds=float(result["seconds"]),
            split=split,
            points=points,
            noise=config.get("noise", "seeded"),
            config=dict(config.get("config") or {}),
            **{name: known[name] for name in (*names, "down_bytes", "up_bytes")},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{folder} is not a whole run ({type(error).__name__}: {error}): train again into a new folder"
        ) from None


def refuse_other_data(runs: Sequence[RunSummary]) -> None:
    """Refuse runs that one page cannot compare: of different data or protocols."""
    for run in runs:
        for name in ("dataset", "protocol", "users", "items", "rows"):
            ours, first = getattr(run, name), getattr(runs[0], name)
            if ours != first:
                raise BadInput(
                    f"{run.folder} has {name} {ours} and {runs[0].folder} has {first}: one report compares runs of "
                    "the same data and protocol"
                )


def with_own_labels(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Label runs of one method by their folders, so that no two have the same label."""
    counts = Counter(run.method for run in runs)
    return [replace(run, label=f"{run.method} in {run.folder}") if counts[run.method] > 1 else run for run in runs]


def _numbers(metrics: Any) -> dict[str, float]:
    """Convert metrics to numbers; at least one is required."""
    numbers = {name: float(value) for name, value in dict(metrics).items()}
    if not numbers:
        raise ValueError("no metrics")
    return numbers


def _read_points(path: Path) -> tuple[str, tuple[EvaluationPoint, ...]]:
    points, split = [], "test"
    for number, line in enumerate(_lines(path), 1):
        try:
            entry = json.loads(line)
            split = entry["split"]
            points.append(
                EvaluationPoint(
                    round=entry["round"],
                    metrics=_numbers(entry["metrics"]),
                    loss=entry["loss"],
                    clients=entry["clients"],
                    down_bytes=entry["down_bytes"],
                    up_bytes=entry["up_bytes"],
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise bad_line(path, number, f"no evaluation of a run ({error}): train again into a new folder") from None
    return split, tuple(points)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        raise BadInput(f"{path} is missing: the folder is not a whole run; train again into a new folder") from None


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
        fits_note=FITS_NOTE,
        facts=_facts(parts, command),
    )


def scores(runs: Sequence[RunSummary]) -> dict[str, tuple[str, Mapping[str, float]]]:
    """Collect kind and metrics of every method, baselines last; the first run's baselines stand for all."""
    rows = {run.label: (run.kind, run.metrics) for run in runs}
    return rows | {name: ("baseline", values) for name, values in runs[0].baselines.items()}


def _part(part: ReportPart, numbers: Mapping[str, int]) -> dict[str, object]:
    """Compute what the template shows of one dataset."""
    runs, story = part.runs, part.story
    first, metric = runs[0], main_metric(runs[0].metrics)
    names = [metric, *(name for name in _SHOWN if name in first.metrics and name != metric)][:_METRICS]
    bases = _BASELINE_PRIVACY | {run.label: _privacy(run.guarantee) for run in runs}
    rows = [
        [(name, kind), bases.get(name, ""), *_values(values, names)] for name, (kind, values) in scores(runs).items()
    ]
    cases = f"{first.metrics['cases']:,.0f} test cases, " if "cases" in first.metrics else ""
    notes = [f"{cases}protocol {first.protocol}, seed {first.seed}. {meaning(metric)}"]
    notes += [f"{run.label}: {run.guarantee.promise()}." for run in runs if run.guarantee.basis != "none"]
    if story.best_possible:
        rows.append([("best possible", "synthetic data"), "no method", *_values(story.best_possible, names)])
        notes.append(_BEST_NOTE)
    chart = over_bytes(runs, metric, story.best_possible, numbers)
    return {
        "story": story,
        "head": ["method", "privacy", *map(spelt, names)],
        "rows": rows,
        "numbers": range(2, 2 + len(names)),
        "notes": [*notes, *story.notes],
        "curves": chart and _figure(chart),
    }


def _privacy(guarantee: Guarantee) -> str:
    """What a table says of a run's privacy: never that something is proven which its statement does not promise."""
    return "no guarantee as it is" if guarantee.basis == "proven" and not guarantee.holds else guarantee.basis


def _values(metrics: Mapping[str, float], names: Sequence[str]) -> list[str]:
    return [f"{metrics[name]:.4f}" if name in metrics else "" for name in names]


def _figure(chart: Chart) -> dict[str, str]:
    ends = [f"{c.label} ends at {c.y[-1]:.4f}" for c in chart.curves if c.y]
    levels = [f"{label}: {height:.4f}" for label, height in chart.levels.items()]
    svg = Markup(inline(chart))  # noqa: S704  (matplotlib escapes every text of a picture)
    return {"svg": svg, "label": chart.title, "caption": "; ".join(ends + levels) + "."}


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
