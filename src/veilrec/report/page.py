"""One page about one or several runs: a file of its own that opens from disk and loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from veilrec._files import write_text
from veilrec._words import counted
from veilrec.errors import BadInput
from veilrec.privacy.guarantee import Guarantee
from veilrec.report.html import Markup, document, markup, refuse_foreign, section, table, tag
from veilrec.report.machine import provenance
from veilrec.report.plots import Chart, charts, inline
from veilrec.report.run_summary import RunSummary, main_metric, refuse_other_data, with_own_labels
from veilrec.report.units import human_bytes, meaning

_BEST_NOTE = "Best possible: a ranking by the very probabilities that the data was drawn from, on a sample of users."
_TRAFFIC_HEAD = ("method", "rounds", "to devices", "from devices", "to one, a round", "from one, a round", "seconds")
_TRAFFIC_NOTE = (
    "The length of the encoded messages: all devices and rounds together, and the mean of one device in one"
    " round. Seconds are the simulation's. A centralised method gets everybody's data before it starts."
)
_SHOWN = ("hr@10", "ndcg@10", "hr@5", "ndcg@5", "auc", "mrr")


@dataclass(frozen=True)
class Example:
    """What one user had, and what a method recommends to that user: (item id, title), best first."""

    method: str
    user: str
    history: Sequence[tuple[str, str]]
    recommended: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Story:
    """What a page says beside the runs."""

    title: str
    summary: str = ""
    command: str = ""
    best_possible: Mapping[str, float] = field(default_factory=dict)  # metric -> value, where data is made up
    examples: Sequence[Example] = ()
    notes: Sequence[str] = ()


def write_report(path: Path, runs: Sequence[RunSummary], story: Story) -> None:
    """Write the page; a file that is no report of ours is never replaced."""
    refuse_foreign(path)
    write_text(path, render(runs, story))


def render(runs: Sequence[RunSummary], story: Story) -> str:
    """The page as text."""
    if not runs:
        raise BadInput("a report needs at least one run")
    refuse_other_data(runs)
    runs = with_own_labels(runs)
    metric = main_metric(runs[0].metrics)
    return document(
        story.title,
        [
            *([tag("p", story.summary, class_="lead")] if story.summary else []),
            _results(runs, metric, story),
            _curves(charts(runs, metric, story.best_possible)),
            *([_examples(story.examples)] if story.examples else []),
            _traffic(runs),
            _privacy(runs),
            _making(runs, story),
        ],
    )


def scores(runs: Sequence[RunSummary]) -> dict[str, tuple[str, Mapping[str, float]]]:
    """Every method with its kind and its metrics, baselines last; the first run's baselines stand for all."""
    rows = {run.label: (run.kind, run.metrics) for run in runs}
    return rows | {name: ("baseline", values) for name, values in runs[0].baselines.items()}


def _results(runs: Sequence[RunSummary], metric: str, story: Story) -> Markup:
    others = [name for name in _SHOWN if name in runs[0].metrics and name != metric]
    names = [metric, *others]
    rows = [
        [name, kind, *(f"{values[n]:.4f}" if n in values else "" for n in names)]
        for name, (kind, values) in scores(runs).items()
    ]
    notes = []
    if story.best_possible:
        best = story.best_possible
        notes.append(_BEST_NOTE)
        rows.append(["best possible", "made-up data", *(f"{best[n]:.4f}" if n in best else "" for n in names)])
    first = runs[0]
    cases = f"{first.metrics['cases']:,.0f} test cases, " if "cases" in first.metrics else ""
    return section(
        "How good are the recommendations?",
        table(["method", "kind", *names], rows, numbers=range(2, 2 + len(names))),
        tag("p", f"{cases}protocol {first.protocol}, seed {first.seed}. {meaning(metric)}", class_="note"),
        *(tag("p", note, class_="note") for note in (*story.notes, *notes)),
    )


def _curves(drawn: Sequence[Chart]) -> Markup:
    figures = [
        tag("figure", Markup(inline(chart)), tag("figcaption", _caption(chart)), aria_label=chart.title)
        for chart in drawn
    ]
    return section("How did it learn?", *figures) if figures else Markup("")


def _caption(chart: Chart) -> str:
    ends = [f"{c.label} ends at {c.y[-1]:.4f}" for c in chart.curves if c.y]
    levels = [f"{label}: {height:.4f}" for label, height in chart.levels.items()]
    return "; ".join(ends + levels) + "."


def _examples(examples: Sequence[Example]) -> Markup:
    return section(
        "What does one user get?",
        *(
            tag(
                "div",
                tag("div", tag("h3", f"User {e.user} has"), _items(e.history)),
                tag("div", tag("h3", f"{e.method} recommends"), _items(e.recommended)),
                class_="columns",
            )
            for e in examples
        ),
    )


def _items(items: Sequence[tuple[str, str]]) -> Markup:
    return tag("ol", *(tag("li", tag("code", item), " ", title) for item, title in items))


def _traffic(runs: Sequence[RunSummary]) -> Markup:
    federated = [run for run in runs if run.kind == "federated"]
    if not federated:
        return Markup("")
    rows = []
    for run in federated:
        sizes = (run.down_bytes, run.up_bytes, *run.bytes_of_one_visit())
        rows.append([run.label, f"{run.rounds:,}", *(human_bytes(size) for size in sizes), f"{run.seconds:.1f}"])
    return section(
        "What crossed the network?",
        table(_TRAFFIC_HEAD, rows, numbers=range(1, len(_TRAFFIC_HEAD))),
        tag("p", _TRAFFIC_NOTE, class_="note"),
    )


def _privacy(runs: Sequence[RunSummary]) -> Markup:
    statements = [
        tag("dt", run.label, ": ", tag("strong", run.guarantee.line()))
        + tag("dd", *(tag("p", words) for words in _about(run.guarantee)))
        for run in runs
    ]
    return section("What is protected?", tag("dl", *(Markup(statement) for statement in statements)))


def _about(guarantee: Guarantee) -> list[str]:
    """What belongs to a guarantee; where a paper promised too much, what the honest number counts."""
    note = [f"The honest number: {guarantee.honest_note}."] if guarantee.honest_note else []
    return [*note, *guarantee.caveats]


def _sizes(run: RunSummary) -> str:
    return f"{counted(run.users, 'user')}, {counted(run.items, 'item')}, {counted(run.rows, 'row')}"


def _making(runs: Sequence[RunSummary], story: Story) -> Markup:
    first = runs[0]
    rows = [
        *([("Command", tag("code", story.command))] if story.command else []),
        ("Data", f"{first.data}: {_sizes(first)}"),
        ("Protocol, seed", f"{first.protocol}, {first.seed}"),
        *provenance().items(),
        *((f"{run.label}, {run.seconds:.1f} s", tag("code", run.command())) for run in runs),
    ]
    return section("How was it made?", tag("dl", *(_pair(*row) for row in rows), class_="facts"))


def _pair(name: object, value: object) -> Markup:
    return Markup(tag("dt", name) + tag("dd", markup(value)))
