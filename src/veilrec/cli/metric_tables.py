"""Tables of `veilrec evaluate`: every metric, and users with little data apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group

_COUNTS = ("cases", "skipped")
_OF_GROUPS = ("auc", "hr@10", "ndcg@10")


def every_metric(title: str, rows: Mapping[str, Mapping[str, float]]) -> Group:
    """A row per metric, a column per method."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("")
    for name in rows:
        table.add_column(name, justify="right")
    for metric in _by_family(next(iter(rows.values()))):
        digits = 0 if metric in _COUNTS else 4
        table.add_row(metric, *(f"{values[metric]:,.{digits}f}" for values in rows.values()))
    return Group(Text(title, style="bold"), table)


def _by_family(names: Iterable[str]) -> list[str]:
    """The same metric at every k together."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.partition("@")[0], []).append(name)
    return [name for family in families.values() for name in family]


def groups_table(method: str, groups: Sequence[Mapping[str, Any]]) -> Group:
    """A row per group of users, with its size; the method's metrics beside those of popularity."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = [name for name in _OF_GROUPS if name in groups[0]["metrics"]]
    table = Table()
    table.add_column("known items")
    for column in ("users", "cases", *shown, *(f"popularity's {name}" for name in shown)):
        table.add_column(column, justify="right")
    for group in groups:
        values = [group[of][name] for of in ("metrics", "popularity") for name in shown]
        sizes = (f"{group['users']:,}", f"{group['cases']:,}")
        table.add_row(group["known_items"], *sizes, *(f"{value:.4f}" for value in values))
    return Group(Text(f"{method} by how much is known of a user", style="bold"), table)
