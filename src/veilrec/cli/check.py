"""`veilrec check`: whether a method keeps the contract that all methods have."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from veilrec.cli.output import Json, method_names, print_json, say

if TYPE_CHECKING:
    from veilrec.runs.contract import Outcome

app = typer.Typer(no_args_is_help=True, help="Check what you have written.")


@app.callback()
def check() -> None:
    """Check what you have written."""


@app.command("method")
def method(
    name: Annotated[
        str, typer.Argument(help="A method: by name, FILE.py, or FILE.py:NAME.", autocompletion=method_names)
    ],
    only: Annotated[list[str] | None, typer.Option(help="Only this check; may be repeated.")] = None,
    json_output: Json = False,
) -> None:
    """Run the contract on a method: a line for each thing that it owes, and whether it keeps it.

    Exit code 1 if anything is broken.

    Examples:

        veilrec check method dp-fedmf

        veilrec check method my-method/src/my_method.py --only cohort --only resume
    """
    from veilrec._extras import require
    from veilrec.errors import known_name
    from veilrec.methods.registry import get
    from veilrec.runs.contract import CONTRACT, check_method

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


def _line(outcome: Outcome) -> str:
    line = f"{outcome.verdict:15} {outcome.name}: {outcome.check.means}"
    if not outcome.found:
        return line
    found = textwrap.shorten(outcome.found, 400, placeholder=" ..")
    return f"{line}: {found}" if outcome.verdict == "broken" else f"{line} ({found.rstrip('.')})"


def _end(title: str, outcomes: list[Outcome]) -> str:
    broken = sum(outcome.verdict == "broken" for outcome in outcomes)
    missing = sum(outcome.verdict == "not checked" for outcome in outcomes)
    told = f"{title} breaks {broken} of {len(outcomes)}." if broken else f"{title} keeps the contract."
    return f"{told} {missing} could not be checked here." if missing else told
