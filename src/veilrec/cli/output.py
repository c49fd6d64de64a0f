"""What commands share: where words go, the table of metrics, and the names that the shell completes."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Group

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")]
Run = Annotated[Path, typer.Argument(help="Folder of a run of `veilrec train`.")]
OutsideMethod = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py", help="The file of the method that trained the run, if it ranks in its own way. It is run."
    ),
]
_COLUMNS = ("auc", "mrr", "ndcg@5", "hr@10", "ndcg@10")  # the rest stands in result.json
_SPELT = {"≥": ">=", "±": "+/-", "…": "...", "█": "#", "▏": "|"}  # the signs that we print ourselves


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output: JSON is UTF-8, so any other output gets ASCII with escapes."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    is_utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    if not is_utf8 or any("\ud800" <= sign <= "\udfff" for sign in text):  # a file name may hold bytes of no letter
        text = json.dumps(value, indent=2)
    sys.stdout.write(text + "\n")


def open_streams() -> None:
    """From now on nothing that is printed can fail for its letters: what a terminal cannot show is spelt or is a `?`.

    What whoever started us has closed is open to nowhere.
    """
    codecs.register_error("veilrec", _spelt)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="veilrec")


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SPELT.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


def say(text: str) -> None:
    """One line on standard error, at once."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def metrics_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> Group:
    """A row per method, a column per metric; the title may be wider than the table."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = [name for name in _COLUMNS if name in next(iter(rows.values()))]
    table = Table()
    table.add_column("")
    for name in shown:
        table.add_column(name, justify="right")
    for name, metrics in rows.items():
        table.add_row(name, *(f"{metrics[key]:.4f}" for key in shown))
    return Group(Text(title, style="bold"), table)


def method_names(typed: str) -> list[str]:
    """Methods to train that start with what was typed, for the shell to complete."""
    from veilrec.methods.registry import names

    return [name for name in names() if name.startswith(typed.lower())]


def data_names(typed: str) -> list[str]:
    """Data sets, likewise."""
    from veilrec.data.datasets import DATASETS

    return [name for name in DATASETS if name.startswith(typed)]


def protocol_names(typed: str) -> list[str]:
    """Ways to evaluate, likewise."""
    from veilrec.evaluate.protocols import PROTOCOLS

    return [name for name in PROTOCOLS if name.startswith(typed)]
