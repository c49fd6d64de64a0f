"""`veilrec check`: whether a method keeps the contract that all methods have.

`veilrec new`: the beginnings of something of your own.

`veilrec doctor`: what is here, what is missing, and how to get it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilrec.cli.output import Json, method_names, print_json, say

if TYPE_CHECKING:
    from rich.table import Table

    from veilrec.audit.contract import CheckOutcome


check_app = typer.Typer(no_args_is_help=True, help="Check a custom method against the contract of all methods.")


@check_app.callback()
def check() -> None:
    """Check a custom method against the contract of all methods."""


@check_app.command("method")
def check_method(
    name: Annotated[
        str, typer.Argument(help="A method: by name, FILE.py, or FILE.py:NAME.", autocompletion=method_names)
    ],
    only: Annotated[list[str] | None, typer.Option(help="Only this check; may be repeated.")] = None,
    json_output: Json = False,
) -> None:
    """Run the contract tests on a method; print a line for each check.

    Exit code 1 if anything is broken.

    Examples:

        veilrec check method dp-fedmf

        veilrec check method my-method/src/my_method.py --only cohort --only resume
    """
    from veilrec.audit.contract import CONTRACT, check_method
    from veilrec.core.errors import known_name
    from veilrec.core.resources import require
    from veilrec.methods.registry import get

    require("checking a method", "numba")
    known = [one.name for one in CONTRACT]
    names = [known_name("check", asked, known) for asked in only or ()]
    title = get(name).name
    outcomes = []
    for outcome in check_method(name, names):
        outcomes.append(outcome)
        if json_output:
            say(f"{title}: {outcome.name} {outcome.verdict}")
        else:
            typer.echo(_line(outcome))
    broken = [outcome for outcome in outcomes if outcome.verdict == "broken"]
    if json_output:
        print_json({"method": title, "checks": [o.to_json() for o in outcomes], "holds": not broken})
    else:
        typer.echo(_end(title, outcomes))
    if broken:
        raise typer.Exit(1)


def _line(outcome: CheckOutcome) -> str:
    line = f"{outcome.verdict:15} {outcome.name}: {outcome.check.means}"
    if not outcome.found:
        return line
    found = textwrap.shorten(outcome.found, 400, placeholder=" ..")
    return f"{line}: {found}" if outcome.verdict == "broken" else f"{line} ({found.rstrip('.')})"


def _end(title: str, outcomes: list[CheckOutcome]) -> str:
    broken = sum(outcome.verdict == "broken" for outcome in outcomes)
    missing = sum(outcome.verdict == "not checked" for outcome in outcomes)
    told = f"{title} breaks {broken} of {len(outcomes)}." if broken else f"{title} keeps the contract."
    return f"{told} {missing} could not be checked here." if missing else told


app = typer.Typer(no_args_is_help=True, help="Scaffold a custom method.")


@app.callback()
def new() -> None:
    """Scaffold a custom method."""


@app.command("method")
def method(
    name: Annotated[str, typer.Argument(help="Name of the new method: letters, digits and dashes.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write; it must not be there yet. Default: NAME.")] = None,
    json_output: Json = False,
) -> None:
    """Write a package with a small working method and its test, as a start for a custom method.

    Example:

        veilrec new method my-method --out my-method
    """
    from veilrec.methods.template import write_template

    written = write_template(name, out)
    if json_output:
        print_json({"method": written.name, "folder": str(written.folder), "files": list(written.files)})
        return
    typer.echo(f"{written.name} is in {written.folder}: {', '.join(written.files)}")
    file = written.folder / written.module
    typer.echo(f"Check it:  veilrec check method {file}")
    typer.echo(f"Train it:  veilrec train {file} --data synthetic-ratings")
    typer.echo(f"Keep it:   pip install -e {written.folder}, then veilrec train {written.name}")


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
