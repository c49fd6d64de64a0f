"""`veilrec demo`: from nothing to a measured federated recommender and a report, in about a minute."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilrec._words import counted
from veilrec.cli.output import Json, metrics_table, print_json, say
from veilrec.report.units import human_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from veilrec.report.demo import Finding, Scenario
    from veilrec.runs.request import Request


class Kind(StrEnum):
    """Which made-up data the demo learns from."""

    ratings = "ratings"
    news = "news"


def demo(
    kind: Annotated[Kind, typer.Option(help="Made-up data: uses of items, or news with impressions.")] = Kind.ratings,
    seed: Annotated[int, typer.Option(min=0, help="Decides the data and every draw.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the runs; a former demo in it is replaced.")] = Path(
        "veilrec-demo"
    ),
    report: Annotated[Path, typer.Option(help="Where to write the report.")] = Path("report.html"),
    json_output: Json = False,
) -> None:
    """Train on made-up data, compare with popularity, chance and centralised methods, and write a report.

    Needs no download and no network. Everything that it does, `veilrec train` does for your own data.

    Examples:

        veilrec demo

        veilrec demo --kind news --seed 3 --report news.html
    """
    from veilrec.report.demo import check_places, choose_scenario, finish

    started = time.perf_counter()
    scenario = choose_scenario(kind.value, seed)
    check_places(scenario, out, report)
    say(f"1. Make up {scenario.what}.")
    for number, (request, aim) in enumerate(zip(scenario.requests, scenario.aims, strict=True), 2):
        say(f"{number}. {aim}")
        _train(request, out / request.method)
    last = len(scenario.requests) + 2
    say(f"{last}. Compare them, recommend to one user, and write the report.")
    finding = finish(scenario, out, report, _command(kind, seed, out, report))
    if json_output:
        print_json(finding.as_json() | {"seconds": round(time.perf_counter() - started, 1)})
    else:
        _show(scenario, finding, report, out)


def _command(kind: Kind, seed: int, out: Path, report: Path) -> str:
    """The command as it would be typed, without what is the default anyway."""
    given = [("--kind", kind.value, "ratings"), ("--seed", str(seed), "0"), ("--out", str(out), "veilrec-demo")]
    given.append(("--report", str(report), "report.html"))
    return " ".join(["veilrec demo", *(f"{name} {value}" for name, value, usual in given if value != usual)])


def _train(request: Request, folder: Path) -> dict[str, Any]:
    from veilrec.cli.progress import following
    from veilrec.methods.registry import get
    from veilrec.runs.request import prepare
    from veilrec.runs.training import train

    prepared = prepare(request)
    unit = "round" if get(request.method).kind == "federated" else "epoch"
    with following(f"   {request.method}", prepared.schedule.rounds, unit=unit) as listener:
        return train(prepared, folder, listeners=(listener,))


def _show(scenario: Scenario, finding: Finding, report: Path, out: Path) -> None:
    from rich.console import Console

    console = Console()
    console.print(metrics_table(f"{scenario.data}, {finding.protocol}, seed {scenario.seed}", finding.scores))
    for metric, value in finding.best_possible.items():
        console.print(f"The data is made up, so the best possible {metric} is known: {value:.4f}.")
    console.print(_recommended(scenario, finding))
    console.print(
        f"{scenario.main}: {counted(finding.rounds, 'round')}, to devices {human_bytes(finding.down_bytes)}, "
        f"from devices {human_bytes(finding.up_bytes)}."
    )
    console.print(f"Privacy: {finding.guarantee.line()}.", *finding.guarantee.caveats, soft_wrap=True)
    console.print(f"Report: {report}. Runs: {out}.", soft_wrap=True, markup=False)
    console.print("Next:", markup=False)
    console.print(f"  veilrec recommend {out / scenario.main} --user {finding.user}", soft_wrap=True, markup=False)
    console.print(f"  veilrec train {scenario.main} --data csv:YOUR-FILE.csv", soft_wrap=True, markup=False)


def _recommended(scenario: Scenario, finding: Finding) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "item", "title", title=f"{scenario.main} recommends to user {escape(finding.user)}")
    for place, (item, title) in enumerate(finding.recommended, 1):
        table.add_row(str(place), escape(item), escape(title))
    return table
