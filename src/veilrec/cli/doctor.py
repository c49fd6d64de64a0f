"""`veilrec doctor`: what is here, what is missing, and how to get it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer

from veilrec.cli.output import Json, print_json

if TYPE_CHECKING:
    from rich.table import Table


def doctor(json_output: Json = False) -> None:
    """Show versions, threads, data sets found, disk space, what is missing and how to get it."""
    from veilrec.report.machine import diagnose

    findings = diagnose()
    if json_output:
        print_json(findings)
        return
    from rich.console import Console

    console = Console()
    machine = findings["machine"]
    console.print(
        f"veilrec {findings['veilrec']} on Python {machine['python']}, {machine['cores']} cores "
        f"(OMP_NUM_THREADS: {machine['threads']}), {machine['memory_gb']:.0f} GB of memory, "
        f"{machine['disk_free_gb']:.0f} GB free in the cache folder {machine['cache']}",
        markup=False,
    )
    parts = [(part["name"], part["version"] or f"missing: {part['get']}", part["use"]) for part in findings["parts"]]
    console.print(_table("Parts", ("part", "version", "for"), parts))
    data = [(entry["name"], entry["found"] or f"no; to get it: {entry['get']}") for entry in findings["data"]]
    console.print(_table("Data sets", ("data set", "found"), data))
    for problem in findings["problems"]:
        typer.echo(f"problem: {problem}")


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Cells are plain text, so that `veilrec[bench]` keeps its brackets, and are folded, never cut off."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title)
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
