"""`veilrec evaluate` and `veilrec recommend`: use a saved run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilrec._words import counted
from veilrec.cli.output import Json, metrics_table, print_json

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
    from veilrec.runs.evaluation import evaluate_run

    result = evaluate_run(run, protocol, data)
    if json_output:
        print_json(result)
        return
    from rich.console import Console

    rows = {result["method"]: result["metrics"]} | result["baselines"]
    Console().print(metrics_table(f"{result['method']} on {result['dataset']}, {result['protocol']}", rows))


def recommend(
    run: Run,
    user: Annotated[str | None, typer.Option(help="A user of the training, by the data set's own id.")] = None,
    history: Annotated[str | None, typer.Option(help="Anybody: item ids with commas between, the latest last.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="All users of the training, into the file --out.")] = False,
    out: Annotated[Path | None, typer.Option(help="File for --all: .csv, .parquet or .jsonl.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many items.")] = 10,
    json_output: Json = False,
) -> None:
    """Recommend items that a user has not used yet, from the folder of a run alone: the data may be gone.

    Examples:

        veilrec recommend runs/fedmf-ml-100k-seed1 --user 196

        veilrec recommend runs/fedmf-ml-100k-seed1 --history 50,172,181 -k 5

        veilrec recommend runs/fedmf-ml-100k-seed1 --all --out best.csv

        veilrec recommend runs/nrms-mind-seed0 --history N106403,N71977
    """
    from dataclasses import asdict

    from veilrec.errors import BadInput
    from veilrec.runs.saved import open_model

    if (user is not None) + (history is not None) + everybody != 1:
        raise BadInput("give either --user ID (of the training), --history ID,ID,... (anybody) or --all (every user)")
    if everybody != (out is not None):
        raise BadInput("--all and --out FILE go together: all recommendations are written to the file")
    if out is not None:
        from veilrec.runs.everybody import check_file, write_everybody

        check_file(out)
        rows = write_everybody(open_model(run), out, k)
        print_json({"out": str(out), "rows": rows}) if json_output else typer.echo(f"{counted(rows, 'row')} in {out}")
        return
    model = open_model(run)
    found = model.recommend(_ids(history), k) if user is None else model.recommend_user(user, k)
    if json_output:
        print_json({"user": user, "recommendations": [asdict(best) for best in found]})
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"For {'user ' + escape(user) if user else 'a new user'}")
    for column in ("", "item", "title", "score"):
        table.add_column(column)
    for place, best in enumerate(found, 1):
        table.add_row(str(place), escape(best.item), escape(best.title), f"{best.score:.3f}")
    Console().print(table)


def _ids(history: str | None) -> list[str]:
    return [part.strip() for part in (history or "").split(",") if part.strip()]
