"""`veilrec methods`: what can be trained, and what it promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from veilrec.cli.output import Json, print_json

if TYPE_CHECKING:
    from rich.text import Text


def methods(json_output: Json = False) -> None:
    """List every method: paper, model, guarantee, data sets, and whether it has been measured."""
    from veilrec.methods.registry import all_methods, describe

    described = [describe(method) for method in all_methods()]
    if json_output:
        print_json({"methods": described})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_lines=True)
    table.add_column("name", no_wrap=True)
    table.add_column("what it does, what it is, and what a run with its defaults promises")
    for entry in described:
        table.add_row(entry["name"], _about(entry))
    console = Console()
    console.print(table)
    console.print("Train one with: veilrec train NAME --data ml-100k", soft_wrap=True)


def _about(entry: dict[str, Any]) -> Text:
    """Whole sentences instead of narrow columns: an epsilon is never cut off from its terms."""
    from rich.text import Text

    known = "results in docs/results.md" if entry["measured"] else "not measured yet"
    lines = (entry["summary"], f"{entry['kind']}, {entry['model']}; {known}", f"privacy: {entry['guarantee']}")
    return Text("\n".join(lines))
