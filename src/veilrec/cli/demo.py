"""`veilrec demo`: from nothing to measured federated recommenders, one of them private, and a report."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console, Group

from veilrec.cli.output import Json, following, metrics_table, print_json, say, text_table
from veilrec.report.labels import human_bytes

if TYPE_CHECKING:
    from veilrec.report.demo import DemoFinding, ServiceDemo
    from veilrec.report.person import Person
    from veilrec.runs.request import RunRequest


_WORDS = 4  # of a title, in a terminal
_ADDRESS = "http://127.0.0.1:8337"  # where `veilrec serve` listens unless told otherwise


def demo(
    kind: Annotated[
        Literal["all", "ratings", "news"],
        typer.Option(case_sensitive=False, help="Synthetic data: films, news with impressions, or both."),
    ] = "all",
    seed: Annotated[
        int, typer.Option(min=0, help="Decides the data and every draw, but for noise that protects: that is secret.")
    ] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the runs; a former demo in it is replaced.")] = Path(
        "veilrec-demo"
    ),
    report: Annotated[Path, typer.Option(help="Where to write the report.")] = Path("report.html"),
    json_output: Json = False,
) -> None:
    """Run the whole workflow on synthetic data: train, compare, audit, release, serve, query privately, write a report.

    Needs no download and no network; the server that it starts listens on this machine only and is stopped again.
    Everything that it does, `veilrec train`, `audit`, `release`, `serve` and `query` do for your own data.

    Examples:

        veilrec demo

        veilrec demo --kind news --seed 3 --report news.html
    """
    from veilrec.report.demo import check_places, choose_scenarios, find, keep, workshop

    started = time.perf_counter()
    scenarios = choose_scenarios(kind, seed)
    check_places(out, report)
    findings = []
    with workshop(out) as work:
        for scenario in scenarios:
            say(f"Generate {scenario.what}.")
            for training in scenario.trainings:
                say(training.aim)
                _train(training.request, work / training.folder)
            say("Compare them, and recommend to one person.")
            findings.append(find(scenario, work))
        services = [
            (_serve(one, work, seed), shlex.join([typed_name(), "serve", str(out / one.scenario.release)]))
            for one in findings
            if one.scenario.serves
        ]
        made = keep(findings, work, out, report, _command(kind, seed, out, report), services)
    if json_output:
        print_json(made | {"seconds": round(time.perf_counter() - started, 1)})
    else:
        _show(findings, report, out, services)


def _serve(finding: DemoFinding, work: Path, seed: int) -> ServiceDemo:
    """Audit, release and serve the run that may be published, and query it as a client."""
    from veilrec.report.demo import (
        ServiceDemo,
        audit_plan,
        categories_of,
        history_of,
        query_all,
        serve_release,
        sign_release,
    )

    method, audit = str(finding.scenario.serves), None
    if finding.scenario.audits:
        say(f"Audit {method}: attack the very plan that was trained.")
        audit = audit_plan(method, seed)
    say(f"Release {method}: all that a client needs, and the guarantee, signed.")
    release = sign_release(work / method, work / finding.scenario.release)
    history, categories = history_of(finding, work), categories_of(finding)
    if release.family == "catalogue":
        say("Rank it on one person's device, without a query.")
        return ServiceDemo(audit, release, history, query_all(release, None, history, categories))
    say("Serve it, and query as one person's client in every serving mode.")
    with serve_release(release.folder) as address:
        results = query_all(release, address, history, categories)
    return ServiceDemo(audit, release, history, results)


def _command(kind: str, seed: int, out: Path, report: Path) -> str:
    """Spell the command as it would be typed, without defaults."""
    given = [("--kind", kind, "all"), ("--seed", str(seed), "0"), ("--out", str(out), "veilrec-demo")]
    given.append(("--report", str(report), "report.html"))
    words = [word for name, value, usual in given if value != usual for word in (name, value)]
    return shlex.join(["veilrec", "demo", *words])


def typed_name() -> str:
    """Return how this command was called, veilrec or a path to it, so that what is printed can be pasted."""
    called = Path(sys.argv[0])
    on_path = shutil.which("veilrec")
    if called.stem != "veilrec" or (on_path and Path(on_path).absolute() == called.absolute()):
        return "veilrec"
    return shlex.quote(str(called))


def _train(request: RunRequest, folder: Path) -> None:
    from veilrec.methods.registry import get
    from veilrec.runs.request import prepare
    from veilrec.runs.training import train

    prepared = prepare(request)
    unit = "round" if get(request.method).kind == "federated" else "epoch"
    with following(f"   {request.method}", prepared.schedule.rounds, unit=unit) as listener:
        train(prepared, folder, listeners=(listener,))


def _show(findings: list[DemoFinding], report: Path, out: Path, services: list[tuple[ServiceDemo, str]]) -> None:
    console = Console()
    for finding in findings:
        _show_part(console, finding)
    for service, _ in services:
        _show_service(console, service)
    console.print("All runs were simulated: nothing was hidden from whoever ran them.", markup=False)
    console.print(f"Report: {report}. Runs: {out}.", soft_wrap=True, markup=False)
    console.print("Next:", markup=False)
    first, name = findings[0], typed_name()
    private = next((run for run in first.runs if run.guarantee.basis != "none"), first.runs[0])
    for step in (
        ["recommend", str(out / first.runs[0].folder), "--user", first.person.user],
        ["privacy", "show", str(out / private.folder)],
        ["train", first.runs[0].method, "--data", "csv:YOUR-FILE.csv"],
    ):
        console.print(f"  {name} {shlex.join(step)}", soft_wrap=True, markup=False)
    for _, command in services:
        console.print(f"  {command}", soft_wrap=True, markup=False)
    if services:
        console.print(
            f"The last one keeps the service running (so does `make serve`): open {_ADDRESS}.",
            soft_wrap=True,
            markup=False,
        )


def _show_service(console: Console, service: ServiceDemo) -> None:
    if service.audit is not None:
        verdict = "holds" if service.audit["holds"] else "DOES NOT HOLD"
        console.print(
            f"Audit of {service.audit['method']}: {len(service.audit['checks'])} checks, {verdict}.", markup=False
        )
    console.print(f"Released: {service.release.line()}. {service.release.guarantee.promise()}.", markup=False)
    rows = []
    for one in service.results:
        answer = one.answer
        promise = "nothing is sent" if answer.guarantee is None else answer.guarantee.line()
        rows.append((one.mode, str(one.sent_bytes), promise, f"{one.same} of {len(answer.items)}"))
    head = ("serving mode", "bytes sent", "guarantee of the query", "as on the device")
    console.print(text_table(head, rows, f"One client, {service.release.method}", left=range(4)))


def _show_part(console: Console, finding: DemoFinding) -> None:
    scenario, runs = finding.scenario, finding.runs
    console.print(metrics_table(f"{scenario.title}: {scenario.data}, {runs[0].protocol}", finding.scores))
    for metric, value in finding.best_possible.items():
        console.print(f"The data is synthetic, so the best possible {metric} is known: {value:.4f}.")
    for run in runs:
        sent = (
            f"{run.participation()}, to clients {human_bytes(run.down_bytes)},"
            f" from clients {human_bytes(run.up_bytes)}; "
            if run.kind == "federated"
            else "all data in one place; "
        )
        console.print(f"{run.label}: {sent}{run.guarantee.promise()}.", markup=False)
    _show_person(console, finding.person)


def _show_person(console: Console, person: Person) -> None:
    most = ", ".join(f"{name} ({count})" for name, count in person.favourites.items())
    lately = "; ".join(item.named(_WORDS) for item in person.latest[:3])
    console.print(f"{person.user} has {person.used} items, most of: {most}. Lately: {lately}.", markup=False)
    console.print(_recommended(person))
    fitting = ", ".join(f"{own.method} {sum(own.fits)} of {len(own.items)}" for own in person.lists)
    console.print(f"Items of these favourite categories: {fitting}.", markup=False)
    console.print()


def _recommended(person: Person) -> Group:
    """Show what the first two methods recommend to the person, side by side."""
    lists = person.lists[:2]
    rows = []
    for place in range(max(len(own.items) for own in lists)):
        cells = [
            f"{'* ' if own.fits[place] else ''}{own.items[place].named(_WORDS)}" if place < len(own.items) else ""
            for own in lists
        ]
        rows.append([str(place + 1), *cells])
    return text_table(["", *(f"{own.method} recommends (* favourite)" for own in lists)], rows, left=range(3))
