"""The command line: thin; every command imports what it needs when it runs, so that help is instant."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer.core import TyperGroup

from veilrec._extras import missing_part
from veilrec._version import __version__
from veilrec.cli import audit, bench, data, demo, doctor, methods, privacy, recommend, reproduce, train
from veilrec.errors import VeilrecError

INTERRUPTED = 130  # exit code after Ctrl-C

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
    """Entry point: what the user can put right becomes one line and exit code 2, never a traceback."""
    try:
        app()
    except SystemExit as leaving:
        if leaving.code == INTERRUPTED:  # typer turns Ctrl-C into this code without a word
            typer.echo("veilrec: interrupted", err=True)
        raise
    except ModuleNotFoundError as error:
        missing = missing_part(_command(), error)
        if missing is None:
            raise
        typer.echo(str(missing), err=True)
        sys.exit(missing.exit_code)
    except VeilrecError as error:
        typer.echo(f"veilrec: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        typer.echo(f"veilrec: {_file_trouble(error)}", err=True)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        typer.echo("veilrec: not enough memory: take less data, a smaller model or a smaller cohort", err=True)
        sys.exit(2)


def _command() -> str:
    """The command that was typed, without its arguments: veilrec data import."""
    names, group = ["veilrec"], typer.main.get_command(app)
    for word in sys.argv[1:]:
        if not isinstance(group, TyperGroup) or word not in group.commands:
            break
        names.append(word)
        group = group.commands[word]
    return " ".join(names)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory has run out; torch says so in words alone."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def _file_trouble(error: OSError) -> str:
    if error.filename is None:
        return f"{error.strerror or error}: check the files and folders that were given"
    return f"{error.filename} cannot be used ({error.strerror}): give a place that can be read and written"
