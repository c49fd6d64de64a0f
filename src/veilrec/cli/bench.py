"""`veilrec bench`: how fast, beside whom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilrec.cli.federate import SecAgg
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


@app.command()
def secagg(
    json_output: Json = False,
    quick: Annotated[bool, typer.Option("--quick", help="60 devices and 20,000 numbers: to try it.")] = False,
) -> None:
    """Measure secure sums: processor time and bytes of a device, a helper and the server, by both protocols.

    500 devices, a million numbers, 30 % of the devices lost on the way; every sum is compared with the open one.
    """
    from veilrec.bench.secagg import QUICK, Load, run

    report = run(QUICK if quick else Load(), lambda line: typer.echo(line, err=True)) | {"quick": quick}
    if json_output:
        print_json(report)
    else:
        _show_sums(report)


@app.command()
def federate(
    json_output: Json = False,
    quick: Annotated[bool, typer.Option("--quick", help="6 devices on made-up data: to try it.")] = False,
    secagg: Annotated[
        SecAgg, typer.Option(help="Secure sums: with two helpers, or pairs, among devices alone.")
    ] = SecAgg.none,
) -> None:
    """Measure a real federation: 20 device processes over HTTPS, 30 rounds of fedmf on ml-100k.

    How long a round takes, and what a message costs the coordinator's processor beside adding it up.
    """
    from dataclasses import replace

    from veilrec.bench.federate import QUICK, Load, run

    load = replace(QUICK if quick else Load(), secagg=secagg.value)
    report = run(load, lambda line: typer.echo(line, err=True)) | {"quick": quick}
    if json_output:
        print_json(report)
        return
    (task,) = report["tasks"]
    typer.echo(
        f"{task['rounds']} rounds of {task['devices']} device processes: median {task['round_seconds']:g} s, slowest "
        f"{task['slowest_round_seconds']:g} s; coordinator {task['message_cpu_ms']:g} ms of processor a message, and "
        f"{task['sum_cpu_ms_per_message']:g} ms to add it up; memory {task['device_pss_mb']:g} MB a device, "
        f"{task['coordinator_pss_mb']:g} MB the coordinator"
    )
    for name in task["missed"]:
        typer.echo(f"missed {name} <= {task['promised'][name]:g}")
    if quick:
        typer.echo("Measured with --quick: not for quoting.")


@app.command()
def faults(
    json_output: Json = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few of everything: to try it.")] = False,
    minutes: Annotated[float, typer.Option(min=0.0, help="Also let devices join and leave for so long.")] = 0.0,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", help="Only this: coordinator, devices, flood, losses, disk, clocks or soak."),
    ] = None,
) -> None:
    """Kill, flood, starve and confuse a real federation, and see whether what is promised holds; exit 1 if not.

    200 kills of the coordinator, 500 of devices, 10,000 replays, 10,000 messages of garbage, 30 % of devices lost,
    a full disk, clocks that jump.
    """
    from dataclasses import replace

    from veilrec.bench.faults import QUICK, Load, run

    load = replace(QUICK if quick else Load(), minutes=minutes)
    report = run(load, lambda line: typer.echo(line, err=True), task or ())
    if json_output:
        print_json(report)
    else:
        for done in report["tasks"]:
            figures = ", ".join(f"{key} {value}" for key, value in done.items() if key not in ("name", "holds", "task"))
            typer.echo(f"{done['name']}: {'holds' if done['holds'] else 'BROKEN'} ({figures})")
    if not report["holds"]:
        raise typer.Exit(1)


def _show_sums(report: dict[str, Any]) -> None:
    load, machine = report["load"], report["machine"]
    typer.echo(
        f"Secure sums of {load['length']:,} numbers, {load['devices']} devices, {load['lost']:.0%} lost, one thread, "
        f"on {machine['cpu']} (load {machine['load_before']} at the start)."
    )
    for task in report["tasks"]:
        helper = f"a helper {task['helper_cpu_s']:g} s, " if "helper_cpu_s" in task else ""
        extra = f", {task['neighbours']} neighbours" if "neighbours" in task else f", {load['helpers']} helpers"
        typer.echo(
            f"{task['name']}{extra}: {'exact' if task['exact'] else 'WRONG'} sum of {task['added_up']}; processor time:"
            f" a device {task['device_cpu_ms']:g} ms, {helper}the server {task['server_cpu_s']:g} s; a device sends "
            f"{task['device_up_bytes']:,} bytes and gets {task['device_down_bytes']:,}"
        )
    noise = report["noise"]
    typer.echo(f"{noise['name']}: processor time: a device {noise['device_cpu_ms']:g} ms to draw its own")
    for task in (*report["tasks"], noise):
        for name in task.get("missed", ()):
            typer.echo(f"{task['name']}: missed {name} <= {task['promised'][name]:g}")
    if report["quick"]:
        typer.echo("Measured with --quick: not for quoting.")


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
