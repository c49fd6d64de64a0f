"""Tables that several commands print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

COUNTS = ("cases", "skipped")


def metrics_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> Table:
    """A row per method, a column per metric."""
    from rich.table import Table

    shown = [name for name in next(iter(rows.values())) if name not in COUNTS]
    table = Table(title=title)
    table.add_column("")
    for name in shown:
        table.add_column(name, justify="right")
    for name, metrics in rows.items():
        table.add_row(name, *(f"{metrics[key]:.4f}" for key in shown))
    return table
