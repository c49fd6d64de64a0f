"""`veilrec evaluate` and `veilrec recommend`: use a saved run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilrec.cli.output import Json, print_json

Run = Annotated[Path, typer.Argument(help="Folder of a run of `veilrec train`.")]


def evaluate(
    run: Run,
    protocol: Annotated[
        str | None, typer.Option(help="Another protocol than the run's; its test items must not have been trained on.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Another data set, for methods that read titles: its dev part, or all of one part."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Measure a saved run again, beside popularity and chance; also on news that it has never seen.

    Examples:

        veilrec evaluate runs/fedmf-ml-100k-seed1 --protocol loo-full

        veilrec evaluate runs/nrms-mind-seed0 --data mind:another-week
    """
    from veilrec.runs.use import evaluate_run

    result = evaluate_run(run, protocol, data)
    if json_output:
        print_json(result)
        return
    from rich.console import Console

    from veilrec.cli.tables import metrics_table

    rows = {result["method"]: result["metrics"]} | result["baselines"]
    Console().print(metrics_table(f"{result['method']} on {result['dataset']}, {result['protocol']}", rows))


def recommend(
    run: Run,
    user: Annotated[str | None, typer.Option(help="A user of the data set, by the data set's own id.")] = None,
    history: Annotated[
        str | None, typer.Option(help="A new user: item ids, separated by commas, the latest last.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many items.")] = 10,
    json_output: Json = False,
) -> None:
    """Recommend items that a user has not used yet.

    Examples:

        veilrec recommend runs/fedmf-ml-100k-seed1 --user 196

        veilrec recommend runs/fedmf-ml-100k-seed1 --history 50,172,181 -k 5

        veilrec recommend runs/nrms-mind-seed0 --history N106403,N71977
    """
    from veilrec.errors import BadInput
    from veilrec.runs.training import open_run
    from veilrec.runs.use import recommend_known, recommend_new

    if (user is None) == (history is None):
        raise BadInput("give either --user ID (a user of the data) or --history ID,ID,... (a new user)")
    prepared, _ = open_run(run)
    found = recommend_known(prepared, user, k) if user is not None else recommend_new(prepared, _ids(history), k)
    if json_output:
        print_json({"user": user, "recommendations": found})
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"For {'user ' + escape(user) if user else 'a new user'}")
    for column in ("", "item", "title", "score"):
        table.add_column(column)
    for place, entry in enumerate(found, 1):
        table.add_row(str(place), escape(entry["item"]), escape(entry["title"]), f"{entry['score']:.3f}")
    Console().print(table)


def _ids(history: str | None) -> list[str]:
    return [part.strip() for part in (history or "").split(",") if part.strip()]
