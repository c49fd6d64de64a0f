"""`veilrec doctor`: what is here, what is missing, and how to get it."""

from __future__ import annotations

import typer

from veilrec.cli.output import Json, print_json


def doctor(json_output: Json = False) -> None:
    """Show versions, threads, data sets found, disk space, what is missing and how to get it."""
    from veilrec.report.diagnosis import diagnose

    findings = diagnose()
    if json_output:
        print_json(findings)
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    machine = findings["machine"]
    console.print(
        f"veilrec {findings['veilrec']} on Python {machine['python']}, {machine['cores']} cores, "
        f"{machine['memory_gb']:.0f} GB of memory, {machine['disk_free_gb']:.0f} GB free in the cache folder"
    )
    parts = Table("part", "version", "for", title="Parts")
    for part in findings["parts"]:
        parts.add_row(part["name"], part["version"] or f"missing: {part['get']}", part["use"])
    data = Table("data set", "found", "how to get it", title="Data sets")
    for entry in findings["data"]:
        data.add_row(entry["name"], entry["found"] or "no", "" if entry["found"] else entry["get"])
    console.print(parts)
    console.print(data)
    for problem in findings["problems"]:
        typer.echo(f"problem: {problem}")
