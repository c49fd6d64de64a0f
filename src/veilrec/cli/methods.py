"""`veilrec methods`: what can be trained, and what it promises."""

from __future__ import annotations

from veilrec.cli.output import Json, print_json


def methods(json_output: Json = False) -> None:
    """List every method: paper, model, guarantee, data sets, and whether it has been measured."""
    from veilrec.methods.registry import all_methods, describe

    described = [describe(method) for method in all_methods()]
    if json_output:
        print_json({"methods": described})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Train one with: veilrec train NAME --data ml-100k")
    for column in ("name", "kind", "model", "what it does", "privacy", "measured"):
        table.add_column(column)
    for entry in described:
        table.add_row(
            entry["name"], entry["kind"], entry["model"], entry["summary"], entry["guarantee"],
            "yes" if entry["measured"] else "no",
        )  # fmt: skip
    Console().print(table)
