"""Tables that several commands print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = ("auc", "mrr", "ndcg@5", "hr@10", "ndcg@10")  # the rest stands in result.json


def metrics_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> Table:
    """A row per method, a column per metric."""
    from rich.table import Table

    shown = [name for name in SHOWN if name in next(iter(rows.values()))]
    table = Table(title=title)
    table.add_column("")
    for name in shown:
        table.add_column(name, justify="right")
    for name, metrics in rows.items():
        table.add_row(name, *(f"{metrics[key]:.4f}" for key in shown))
    return table
