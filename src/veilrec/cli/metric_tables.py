"""Tables of `veilrec evaluate`: every metric, users with little data apart, and what hangs on a rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from veilrec._words import counted

if TYPE_CHECKING:
    from rich.console import Group

_COUNTS = ("cases", "skipped")
_OF_GROUPS = ("auc", "hr@10", "ndcg@10")
_OF_NEW_PEOPLE = ("hr@10", "ndcg@10")


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


def personalisation_table(method: str, points: Sequence[Mapping[str, Any]]) -> Group:
    """A row per number of given items; the method beside the baselines, which do not change."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("given")
    whose = ("", *(f"{name}\n" for name in points[0]["baselines"]))  # a line of its own, or 80 columns are too few
    heads = [f"{of}{metric}" for of in whose for metric in _OF_NEW_PEOPLE]
    for column in ("mean", *heads):
        table.add_column(column, justify="right")
    for point in points:
        values = [of[name] for of in (point["metrics"], *point["baselines"].values()) for name in _OF_NEW_PEOPLE]
        table.add_row(point["given"], f"{point['mean_items']:.1f}", *(f"{value:.4f}" for value in values))
    return Group(Text(f"{method} by how many items of a new user it is given", style="bold"), table)


def ties_table(method: str, rules: Sequence[Mapping[str, Any]]) -> Group:
    """A row per metric, a column per rule; the method, then popularity."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in ("", "metric"):
        table.add_column(column)
    for rule in rules:
        table.add_column(rule["ties"], justify="right")
    for of, rows in (
        (method, [r["metrics"] for r in rules]),
        ("popularity", [r["baselines"]["popularity"] for r in rules]),
    ):
        for number, metric in enumerate(_by_family(rows[0])):
            table.add_row("" if number else of, metric, *(f"{row[metric]:.4f}" for row in rows))
    return Group(Text(f"{method} by who wins where scores are equal", style="bold"), table)


def fairness_line(method: str, fairness: Mapping[str, Any]) -> str:
    """The least active fifth of the users beside the rest, in a sentence."""
    metric, users, known = fairness["metric"], fairness["users"], fairness["known_items"]
    return (
        f"{metric} of the least active fifth of the users ({users:.0f} of them, up to {counted(known, 'known item')})"
        f" and of the rest: {method} {_sides(fairness['model'])}; popularity {_sides(fairness['popularity'])}."
    )


def _sides(found: Mapping[str, Any]) -> str:
    error = "" if found["error"] is None else f" ± {found['error']:.4f}"
    return f"{found['least_active']:.4f} and {found['rest']:.4f}, spread {found['spread']:+.4f}{error}"
