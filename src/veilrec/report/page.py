"""One page about runs of one data set or several: a file of its own that opens from disk and loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from veilrec._files import write_text
from veilrec._words import counted
from veilrec.errors import BadInput
from veilrec.privacy.guarantee import no_guarantee
from veilrec.report.html import Markup, document, join, markup, refuse_foreign, section, table, tag
from veilrec.report.machine import provenance
from veilrec.report.person import OVERLAP_NOTE, Item, Listed, Person
from veilrec.report.plots import Chart, colour_numbers, inline, over_bytes
from veilrec.report.run_summary import RunSummary, main_metric, refuse_other_data, with_own_labels
from veilrec.report.units import human_bytes, meaning, spelt

_BEST_NOTE = "Best possible: a ranking by the very probabilities that the data was drawn from, on a sample of users."
_TRAFFIC_HEAD = ("method", "to devices", "from devices", "seconds")
_TRAFFIC_NOTE = (
    "The length of the encoded messages: all devices and rounds together, and below it the mean of one device in one"
    " round. Seconds are the simulation's. A centralised method gets everybody's data before it starts."
)
_FITS_NOTE = (
    "Bold: of the categories that this person has most of. The person is the first with ten items or more, chosen by no"
    " result."
)
_NEW_PEOPLE = "How soon does it know somebody new?"
_BASELINE_PRIVACY = {"popularity": no_guarantee().basis, "random": "needs none"}  # random looks at nobody's data
_METRICS = 2  # that a phone has room for; the rest stands in result.json
_SHOWN = ("hr@10", "ndcg@10", "auc", "mrr")


@dataclass(frozen=True)
class Story:
    """What a page, or a part of it, says beside the runs."""

    title: str
    summary: str = ""
    command: str = ""
    best_possible: Mapping[str, float] = field(default_factory=dict)  # metric -> value, where data is made up
    person: Person | None = None
    notes: Sequence[str] = ()
    personalisation: Chart | None = None  # of `personalisation_picture.chart_of`


@dataclass(frozen=True)
class Part:
    """Runs that are compared with each other, and their story."""

    runs: Sequence[RunSummary]
    story: Story


def write_report(path: Path, runs: Sequence[RunSummary], story: Story) -> None:
    """Write a page on runs of one data set; a file that is no report of ours is never replaced."""
    refuse_foreign(path)
    write_text(path, render(runs, story))


def render(runs: Sequence[RunSummary], story: Story) -> str:
    """The page on runs of one data set as text."""
    return render_parts(story.title, [Part(runs, story)], command=story.command)


def render_parts(
    title: str, parts: Sequence[Part], *, summary: str = "", command: str = "", more: Sequence[Markup] = ()
) -> str:
    """A page on several data sets as text; `more` are sections behind the results."""
    if not parts or not all(part.runs for part in parts):
        raise BadInput("a report needs at least one run")
    for part in parts:
        refuse_other_data(part.runs)
    parts = [Part(with_own_labels(part.runs), part.story) for part in parts]
    runs = [run for part in parts for run in part.runs]
    numbers = colour_numbers(runs)
    alone = len(parts) == 1
    return document(
        title,
        [
            *([tag("p", summary, class_="lead")] if summary else []),
            *(join(_about_part(part, numbers, 2)) if alone else _under_heading(part, numbers) for part in parts),
            *more,
            _traffic(runs),
            _privacy(runs),
            _making(parts, command),
        ],
    )


def _under_heading(part: Part, numbers: Mapping[str, int]) -> Markup:
    return section(part.story.title, *_about_part(part, numbers, 3))


def _about_part(part: Part, numbers: Mapping[str, int], level: int) -> list[Markup]:
    runs, story = part.runs, part.story
    metric = main_metric(runs[0].metrics)
    chart = over_bytes(runs, metric, story.best_possible, numbers)
    return [
        *([tag("p", story.summary, class_="lead")] if story.summary else []),
        _results(runs, metric, story, level),
        *([_curves("How did it learn?", chart, level)] if chart else []),
        *([_curves(_NEW_PEOPLE, story.personalisation, level)] if story.personalisation else []),
        *([_person(story.person, level)] if story.person else []),
    ]


def scores(runs: Sequence[RunSummary]) -> dict[str, tuple[str, Mapping[str, float]]]:
    """Every method with its kind and its metrics, baselines last; the first run's baselines stand for all."""
    rows = {run.label: (run.kind, run.metrics) for run in runs}
    return rows | {name: ("baseline", values) for name, values in runs[0].baselines.items()}


def _results(runs: Sequence[RunSummary], metric: str, story: Story, level: int) -> Markup:
    names = [metric, *(name for name in _SHOWN if name in runs[0].metrics and name != metric)][:_METRICS]
    bases = _BASELINE_PRIVACY | {run.label: run.guarantee.basis for run in runs}
    rows: list[list[object]] = [
        [_two_lines(name, kind), bases.get(name, ""), *(f"{values[n]:.4f}" if n in values else "" for n in names)]
        for name, (kind, values) in scores(runs).items()
    ]
    notes = [f"{run.label}: {run.guarantee.line()}." for run in runs if run.guarantee.basis != "none"]
    if story.best_possible:
        best = story.best_possible
        notes.append(_BEST_NOTE)
        rows.append(
            [
                _two_lines("best possible", "made-up data"),
                "no method",
                *(f"{best[n]:.4f}" if n in best else "" for n in names),
            ]
        )
    first = runs[0]
    cases = f"{first.metrics['cases']:,.0f} test cases, " if "cases" in first.metrics else ""
    return section(
        "How good are the recommendations?",
        table(["method", "privacy", *map(spelt, names)], rows, numbers=range(2, 2 + len(names))),
        tag("p", f"{cases}protocol {first.protocol}, seed {first.seed}. {meaning(metric)}", class_="note"),
        *(tag("p", note, class_="note") for note in (*notes, *story.notes)),
        level=level,
    )


def _two_lines(name: str, below: str) -> Markup:
    return Markup(markup(name) + tag("span", below, class_="small"))


def _curves(title: str, chart: Chart, level: int) -> Markup:
    figure = tag("figure", Markup(inline(chart)), tag("figcaption", _caption(chart)), aria_label=chart.title)
    return section(title, figure, level=level)


def _caption(chart: Chart) -> str:
    ends = [f"{c.label} ends at {c.y[-1]:.4f}" for c in chart.curves if c.y]
    levels = [f"{label}: {height:.4f}" for label, height in chart.levels.items()]
    return "; ".join(ends + levels) + "."


def _person(person: Person, level: int) -> Markup:
    most = ", ".join(f"{name} ({count})" for name, count in person.favourites.items())
    lists = [
        tag(
            "div",
            tag("h4", f"{own.method} recommends", tag("span", own.guarantee.line(), class_="small")),
            _items(own.items, own.fits),
            tag("p", _fitting(own, next(iter(person.favourites))), class_="note"),
        )
        for own in person.lists
    ]
    return section(
        "What does one person get?",
        tag("p", f"{person.user} has {counted(person.used, 'item')}, most of them of: {most}."),
        table(person.fit_head(), person.fit_rows(), numbers=range(1, 5)),
        tag("p", OVERLAP_NOTE, class_="note"),
        tag("div", tag("div", tag("h4", f"{person.user} had lately"), _items(person.latest)), *lists, class_="columns"),
        tag("p", _FITS_NOTE, class_="note"),
        level=level,
    )


def _fitting(own: Listed, main: str) -> str:
    count = len(own.items)
    return f"{own.fit.main:.0f} of {count} of {main}, {sum(own.fits)} of {count} in bold; overlap {own.fit.overlap:.0%}"


def _items(items: Sequence[Item], fits: Sequence[bool] = ()) -> Markup:
    marks = [*fits, *[False] * (len(items) - len(fits))]
    return tag(
        "ol",
        *(
            tag("li", item.named(), **({"class_": "fits"} if fit else {}))
            for item, fit in zip(items, marks, strict=True)
        ),
    )


def _traffic(runs: Sequence[RunSummary]) -> Markup:
    federated = [run for run in runs if run.kind == "federated"]
    if not federated:
        return Markup("")
    rows = []
    for run in federated:
        down, up = (f"{human_bytes(size)} each" for size in run.bytes_of_one_visit())
        rows.append(
            [
                _two_lines(run.label, run.visits()),
                _two_lines(human_bytes(run.down_bytes), down),
                _two_lines(human_bytes(run.up_bytes), up),
                f"{run.seconds:.1f}",
            ]
        )
    return section(
        "What crossed the network?",
        table(_TRAFFIC_HEAD, rows, numbers=range(1, len(_TRAFFIC_HEAD))),
        tag("p", _TRAFFIC_NOTE, class_="note"),
    )


def _privacy(runs: Sequence[RunSummary]) -> Markup:
    statements = [
        tag("dt", run.label, ": ", tag("strong", run.guarantee.line()))
        + tag("dd", *(tag("p", words) for words in run.guarantee.remarks()))
        for run in runs
    ]
    return section("What is protected?", tag("dl", *(Markup(statement) for statement in statements)))


def _sizes(run: RunSummary) -> str:
    return f"{counted(run.users, 'user')}, {counted(run.items, 'item')}, {counted(run.rows, 'row')}"


def _making(parts: Sequence[Part], command: str) -> Markup:
    rows: list[tuple[object, object]] = [("Command", tag("code", command))] if command else []
    for part in parts:
        first = part.runs[0]
        rows.append(("Data", f"{first.data}: {_sizes(first)}; protocol {first.protocol}, seed {first.seed}"))
        rows += [(f"{run.label}, {run.seconds:.1f} s", tag("code", run.command())) for run in part.runs]
    rows += provenance().items()
    return section("How was it made?", tag("dl", *(_pair(*row) for row in rows), class_="facts"))


def _pair(name: object, value: object) -> Markup:
    return Markup(tag("dt", name) + tag("dd", markup(value)))
