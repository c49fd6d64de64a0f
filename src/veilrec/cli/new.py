"""`veilrec new`: the beginnings of something of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilrec.cli.output import Json, print_json

app = typer.Typer(no_args_is_help=True, help="Begin something of your own.")


@app.callback()
def new() -> None:
    """Begin something of your own."""


@app.command("method")
def method(
    name: Annotated[str, typer.Argument(help="Of the new method: letters, digits and dashes.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write; it must not be there yet. Default: NAME.")] = None,
    json_output: Json = False,
) -> None:
    """Write a small method that works, outside of veilrec: a package with a test, to change into your own.

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
