"""`veilrec bench`: how fast, beside whom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilrec.cli.output import Json, print_json

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="Measure speed and memory beside other software, in one run.")

_RIVALS = {"plain_loop": "plain loop", "pfl": "pfl", "flower": "Flower", "numba_limit": "kernel alone"}
_FIGURES = (
    "total_seconds",
    "ratio_to_10k",
    "hr@10",
    "ratio_to_frugal_loop",
    "ratio_to_batched_torch",
    "milliseconds_of_a_device",
    "impressions_per_second",
)


@app.callback()
def bench() -> None:
    """Each kind of measurement is a command of its own."""


@app.command()
def simulate(
    json_output: Json = False,
    task: Annotated[
        list[str] | None, typer.Option("--task", help="Only this task; give it several times for several.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Turns of every contender; the median counts.")] = 7,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller and shorter: to try it, not to quote.")] = False,
    peers: Annotated[bool, typer.Option(help="Also run pfl and Flower where they are installed.")] = True,
) -> None:
    """Time rounds of the simulator beside a plain torch loop, pfl, Flower, and its own kernel.

    Every task runs in a fresh process with one thread; the contenders take turns and do the same work.
    Seconds are medians per round; compiling and starting up do not count, for anybody.
    """
    from veilrec.bench.measure import Options
    from veilrec.bench.simulate import run

    report = run(task or (), Options(repeats, quick, peers), lambda line: typer.echo(line, err=True))
    if json_output:
        print_json(report)
    else:
        _show(report)


@app.command()
def http(
    json_output: Json = False,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller and shorter: to try it, not to quote.")] = False,
    release: Annotated[
        Path | None, typer.Option(help="Folder of a release to serve; without it, one of made-up items.")
    ] = None,
) -> None:
    """Measure `veilrec serve`: requests per second of its processor time, and how long they take under load.

    The server has a process of its own; 200 connections ask for 30 seconds, each as soon as it was answered.
    """
    from veilrec.bench.http import QUICK, Load, run

    report = run(QUICK if quick else Load(), lambda line: typer.echo(line, err=True), release=release) | {
        "quick": quick
    }
    if json_output:
        print_json(report)
        return
    (task,) = report["tasks"]
    typer.echo(
        f"{task['requests']:,} requests over {task['connections']} connections, {task['errors']} errors: "
        f"{task['requests_per_cpu_second']:,} per second of the server's processor time, "
        f"{task['requests_per_second']:,} per second; median {task['p50_ms']:g} ms, p99 {task['p99_ms']:g} ms; "
        f"before that, {task['pool_cpu_seconds']:g} s of it for the pool"
    )
    for name in task["missed"]:
        typer.echo(f"missed {name} {task['promised'][name]:g}")
    if quick:
        typer.echo("Measured with --quick: not for quoting.")


@app.command()
def serve(
    json_output: Json = False,
    quick: Annotated[bool, typer.Option("--quick", help="65,000 items and a shorter training: to try it.")] = False,
    items: Annotated[int | None, typer.Option(help="Items of the catalogue; 1,000,000 unless --quick.")] = None,
    peers: Annotated[bool, typer.Option(help="Also run faiss and hnswlib where they are installed.")] = True,
) -> None:
    """Time exact top-10 queries of the index beside scans of everything and a graph, on vectors of a trained model.

    One process, one thread, by turns; every answer is compared with that of numpy. Also the index's bad cases.
    """
    from veilrec.bench.serve import MILLION, QUICK, Options, run

    options = Options(items if items is not None else QUICK if quick else MILLION, quick, peers)
    report = run(options, lambda line: typer.echo(line, err=True))
    if json_output:
        print_json(report)
    else:
        _show_serving(report)


def _show_serving(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console, machine = Console(), report["machine"]
    typer.echo(
        f"Exact top 10 of {report['items']:,} items, one thread, on {machine['cpu']} (load {machine['load_before']} at"
        f" the start). Items: {report['source']}."
    )
    table = Table("task", *(("median us", "99 % us", "mismatches", "memory MB", "build s")))
    for task in report["tasks"]:
        cells = (task[name] for name in ("median_us", "p99_us", "mismatches", "memory_mb", "build_s"))
        table.add_row(task["name"], *("" if cell is None else f"{cell:,}" for cell in cells))
    console.print(table)
    for task in report["tasks"]:
        for name, ratio in task["ratios"].items():
            recall = task.get("recall", {}).get(name)
            kept = "" if recall is None else f" at a recall of {recall}"
            typer.echo(f"{task['name']}: {_times(ratio)} as fast as {name}{kept}")
        if "share" in task:
            typer.echo(f"{task['name']}: {task['items']:,} items, {task['share']:.1%}, in {task['build_cpu_s']} CPU s")
        for words in task["missed"]:
            typer.echo(f"{task['name']}: missed {words}")
    for note in report["notes"]:
        typer.echo(note)
    if report["quick"]:
        typer.echo("Measured with --quick: not for quoting.")


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console()
    machine = report["machine"]
    console.print(
        f"Median wall-clock time of a round, one thread, the same work for all contenders in a task, "
        f"on {machine['cpu']} (load {machine['load_before']} at the start)."
    )
    console.print(_table(report["tasks"]))
    for result in report["tasks"]:
        typer.echo(f"{result['name']}: {_in_words(result)}")
        for note in result["notes"]:
            typer.echo(f"{result['name']}: {note}")
        for name in result["missed"]:
            typer.echo(f"{result['name']}: missed {name} {result['promised'][name]}")
    if report["quick"]:
        typer.echo("Measured with --quick: not for quoting.")


def _table(results: list[dict[str, Any]]) -> Table:
    """A block of rows per task: ours, then every rival that ran."""
    from rich.table import Table

    table = Table()
    table.add_column("task", no_wrap=True)
    table.add_column("contender", no_wrap=True)
    table.add_column("per round", justify="right")
    table.add_column("we are faster", justify="right")
    for result in results:
        table.add_row(result["name"], "veilrec", _time(result["seconds_per_round"]), "")
        for name, title in _RIVALS.items():
            seconds = result["rival_seconds_per_round"][name]
            if seconds is not None:
                table.add_row("", title, _time(seconds), _times(result["ratios"][name]))
        table.add_section()
    return table


def _in_words(result: dict[str, Any]) -> str:
    figures = [f"{name} {result[name]:g}" for name in _FIGURES if name in result]
    speed, memory = f"{result['clients_per_second']:,.0f} devices/s", f"{result['peak_rss_mb']:,.0f} MB"
    return ", ".join([f"data {result['dataset']}", speed, memory, *figures])


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} x" if ratio >= 10 else f"{ratio:.2f} x"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"
