"""The command line: thin; every command imports what it needs when it runs, so that help is instant."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from veilrec import __version__
from veilrec.cli import audit, bench, data, demo, doctor, methods, privacy, recommend, reproduce, train
from veilrec.errors import VeilrecError

app = typer.Typer(
    name="veilrec",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Recommenders that learn from people without watching them.\n\n"
        "Start with `veilrec demo`: it trains on embedded data and writes a report in under two minutes. "
        "Then `veilrec data list`, `veilrec methods`, and `veilrec train fedmf --data ml-100k`."
    ),
)
app.command("demo")(demo.demo)
app.add_typer(data.app, name="data")
app.command("methods")(methods.methods)
app.command("train")(train.train)
app.command("evaluate")(recommend.evaluate)
app.command("recommend")(recommend.recommend)
app.add_typer(privacy.app, name="privacy")
app.command("audit")(audit.audit)
app.command("reproduce")(reproduce.reproduce)
app.add_typer(bench.app, name="bench")
app.command("doctor")(doctor.doctor)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"veilrec {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Hold the options that come before a command."""


def run() -> None:
    """Entry point: errors of ours become one line and exit code 2, never a traceback."""
    try:
        app()
    except VeilrecError as error:
        from veilrec.simulate.run import Interrupted

        typer.echo(f"veilrec: {error}", err=True)
        sys.exit(130 if isinstance(error, Interrupted) else 2)
    except KeyboardInterrupt:
        typer.echo("veilrec: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
