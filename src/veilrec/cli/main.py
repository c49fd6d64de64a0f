"""Command line entry point. Every command imports what it needs when it runs, so that `--help` is instant."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from veilrec._version import __version__
from veilrec.cli import (
    attack,
    audit,
    compare,
    data,
    demo,
    evaluate,
    federate,
    methods,
    privacy,
    recommend,
    release,
    reproduce,
    train,
)
from veilrec.cli.output import open_streams, say
from veilrec.core.errors import VeilrecError, file_trouble
from veilrec.core.resources import missing_part

INTERRUPTED = 130  # exit code after Ctrl-C

app = typer.Typer(
    name="veilrec",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Federated recommendation with differential privacy.\n\n"
        "Start with `veilrec demo`: it trains on synthetic data and writes a report, in about two minutes the first "
        "time, when kernels are compiled, and in about one minute after that.\n\n"
        "Then list datasets and methods with `veilrec data list` and `veilrec methods`, and train on real data with "
        "`veilrec train fedmf --data ml-100k`."
    ),
)
_COMMANDS: dict[str, dict[str, Any]] = {
    "Get started": {"demo": demo.demo, "doctor": methods.doctor, "data": data.app, "methods": methods.methods},
    "Experiment": {
        "train": train.train,
        "compare": compare.compare,
        "tune": compare.tune,
        "evaluate": evaluate.evaluate,
        "recommend": recommend.recommend,
        "reproduce": reproduce.reproduce,
    },
    "Privacy": {"privacy": privacy.app, "audit": audit.audit, "attack": attack.app},
    "Deploy": {"release": release.app, "serve": release.serve, "query": recommend.query, "federate": federate.app},
    "Extend": {"new": methods.app, "check": methods.check_app},
}
for _panel, _group in _COMMANDS.items():
    for _name, _command in _group.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)


# Former names, said when a command with one of them is refused: commands and options by the command they belong to.
_UPDATES = {"--uploads": "--updates"}
_RENAMED: dict[str, dict[str, str]] = {
    "veilrec": {"bench": "a script: python benchmarks/simulate.py, serve.py, serve_http.py, secagg.py or federate.py"},
    "veilrec audit": {"--shares": "--distributed-noise"},
    "veilrec federate": {"device": "client"},
    "veilrec federate init": {"--devices": "--clients", "--shares": "--trust noisy-sums"},
    **{f"veilrec attack {name}": _UPDATES for name in ("gradient-rows", "row-support", "inversion")},
}
_RENAMED_SETTINGS = {
    "judges.share": "validators.share",
    "judges.clip": "validators.clip",
    "local.upload": "local.update",
    "selection.most_items": "selection.max_items",
    "cohort.sampling=turns": "cohort.sampling=cyclic",
    "privacy.noise=laplace": "privacy.law=laplace",
    "privacy.noise=gaussian": "privacy.law=gaussian",
}


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
    open_streams()
    code = _attempt()
    for word in sys.argv[1:] if code == 2 else ():
        for name in {word, word.partition("=")[0]}:
            _say_new_name(name)
    try:
        sys.stdout.flush()
    except OSError as error:  # the disk that it goes to is full, or nobody reads it any more
        if not isinstance(error, BrokenPipeError):
            _say(file_trouble(error))
        code = code or 2
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python says it again on leaving
    sys.exit(code)


def _say_new_name(word: str) -> None:
    new = _RENAMED_SETTINGS.get(word)
    if new is None and any(word in names for names in _RENAMED.values()):
        new = _RENAMED.get(_typed_command(), {}).get(word)
    if new is not None:
        _say(f"{word} is now {new}")


def _attempt() -> int | str | None:
    try:
        app()
    except SystemExit as leaving:
        if leaving.code == INTERRUPTED:  # typer turns Ctrl-C into this code without a word
            _say("interrupted")
        return leaving.code
    except VeilrecError as error:
        _say(str(error))
        return error.exit_code
    except ModuleNotFoundError as error:
        missing = missing_part(_typed_command(), error)
        if missing is None:
            raise
        say(str(missing))
        return missing.exit_code
    except OSError as error:
        _say(file_trouble(error))
        return 2
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        _say("not enough memory: take less data, a smaller model or a smaller cohort")
        return 2
    return 0


def _say(line: str) -> None:
    say(f"veilrec: {line}")


def _typed_command() -> str:
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
