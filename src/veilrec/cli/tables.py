"""Tables that several commands print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group

SHOWN = ("auc", "mrr", "ndcg@5", "hr@10", "ndcg@10")  # the rest stands in result.json


def metrics_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> Group:
    """A row per method, a column per metric; the title may be wider than the table."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = [name for name in SHOWN if name in next(iter(rows.values()))]
    table = Table()
    table.add_column("")
    for name in shown:
        table.add_column(name, justify="right")
    for name, metrics in rows.items():
        table.add_row(name, *(f"{metrics[key]:.4f}" for key in shown))
    return Group(Text(title, style="bold"), table)
