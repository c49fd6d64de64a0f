"""What commands share: where words go, the table of metrics, and the names that the shell completes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Group

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")]
_COLUMNS = ("auc", "mrr", "ndcg@5", "hr@10", "ndcg@10")  # the rest stands in result.json


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


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
    from veilrec.methods.registry import METHODS

    return [name for name in METHODS if name.startswith(typed)]


def data_names(typed: str) -> list[str]:
    """Data sets, likewise."""
    from veilrec.data.datasets import DATASETS

    return [name for name in DATASETS if name.startswith(typed)]


def protocol_names(typed: str) -> list[str]:
    """Ways to evaluate, likewise."""
    from veilrec.evaluate.protocols import PROTOCOLS

    return [name for name in PROTOCOLS if name.startswith(typed)]
