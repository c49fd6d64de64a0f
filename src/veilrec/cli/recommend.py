"""`veilrec evaluate` and `veilrec recommend`: use a saved run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from veilrec._words import counted
from veilrec.cli.output import Json, metrics_table, print_json, say


class Shown(StrEnum):
    """Which metrics are measured and shown."""

    main = "main"
    all = "all"


Run = Annotated[Path, typer.Argument(help="Folder of a run of `veilrec train`.")]
OutsideMethod = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py", help="The file of the method that trained the run, if it ranks in its own way. It is run."
    ),
]


def evaluate(
    run: Run,
    protocol: Annotated[
        str | None, typer.Option(help="Another protocol than the run's; its test items must not have been trained on.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Another data set, for methods that read titles: its dev part, or all of one part."),
    ] = None,
    metrics: Annotated[
        Shown,
        typer.Option(
            case_sensitive=False,
            help="all: also recall, precision, MRR, MAP; coverage, Gini, novelty, diversity of lists.",
        ),
    ] = Shown.main,
    per_user: Annotated[
        Path | None, typer.Option(help="Write every metric of every test case to this file: .csv or .parquet.")
    ] = None,
    method: OutsideMethod = None,
    json_output: Json = False,
) -> None:
    """Measure a saved run again, beside popularity and chance; also on news that it has never seen.

    Users of whom little is known are shown apart.

    Examples:

        veilrec evaluate runs/fedmf-ml-100k-seed1 --protocol loo-full

        veilrec evaluate runs/fedmf-ml-100k-seed1 --metrics all --per-user users.csv

        veilrec evaluate runs/nrms-mind-seed0 --data mind:another-week
    """
    from veilrec.runs.evaluation import evaluate_run

    result = evaluate_run(run, protocol, data, metrics=metrics.value, per_user=per_user, method=method)
    if json_output:
        print_json(result)
        return
    from rich.console import Console

    from veilrec.cli.metric_tables import every_metric, groups_table

    rows = {result["method"]: result["metrics"]} | result["baselines"]
    title, console = f"{result['method']} on {result['dataset']}, {result['protocol']}", Console()
    console.print((every_metric if metrics is Shown.all else metrics_table)(title, rows))
    console.print(groups_table(result["method"], result["groups"]))
    for warning in result["warnings"]:
        console.print(warning)
    if per_user is not None:
        cases = counted(int(result["metrics"]["cases"]), "case")
        console.print(f"{cases} in {per_user}", soft_wrap=True)


def recommend(
    run: Run,
    users: Annotated[
        list[str] | None, typer.Option("--user", help="A user of the training, by the data set's own id.")
    ] = None,
    history: Annotated[
        list[str] | None,
        typer.Option(
            help="Anybody: item ids with commas between, the latest last; '' for somebody new. An id with a comma"
            " stands in double quotes, as in CSV. May be repeated."
        ),
    ] = None,
    history_file: Annotated[
        Path | None, typer.Option(help="The same from a file: one id a line, as it is; - reads standard input.")
    ] = None,
    everybody: Annotated[bool, typer.Option("--all", help="All users of the training, into the file --out.")] = False,
    out: Annotated[Path | None, typer.Option(help="File for --all: .csv, .parquet or .jsonl.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many items.")] = 10,
    method: OutsideMethod = None,
    json_output: Json = False,
) -> None:
    """Recommend items that a user has not used yet, from the folder of a run alone: the data may be gone.

    Examples:

        veilrec recommend runs/fedmf-ml-100k-seed1 --user 196

        veilrec recommend runs/fedmf-ml-100k-seed1 --history 50,172,181 -k 5

        veilrec recommend runs/mine --history 'film-7,"Tea, milk and sugar"'

        veilrec recommend runs/fedmf-ml-100k-seed1 --all --out best.csv

        veilrec recommend runs/nrms-mind-seed0 --history N106403,N71977
    """
    from dataclasses import asdict

    from veilrec.errors import BadInput
    from veilrec.runs.histories import about_history, read_history, read_history_file
    from veilrec.runs.saved import open_model

    if users is not None and len(users) > 1:
        raise BadInput(f"--user is given {len(users)} times: ask for one user at a time, or for everybody with --all")
    user = users[0] if users else None
    from_history = history is not None or history_file is not None
    if (user is not None) + from_history + everybody != 1 or (history is not None and history_file is not None):
        raise BadInput(
            "give either --user ID (of the training), --history ID,ID,... or --history-file FILE (anybody), or --all"
            " (every user)"
        )
    if everybody != (out is not None):
        raise BadInput("--all and --out FILE go together: all recommendations are written to the file")
    if out is not None:
        from veilrec._files import refuse_existing
        from veilrec.runs.everybody import check_file, write_everybody

        check_file(out)
        refuse_existing(out)
        rows = write_everybody(open_model(run, method), out, k)
        print_json({"out": str(out), "rows": rows}) if json_output else typer.echo(f"{counted(rows, 'row')} in {out}")
        return
    model = open_model(run, method)
    if user is not None:
        found, told = model.recommend_user(user, k), {}
    else:
        items = read_history(history or (), model.knows) if history_file is None else read_history_file(history_file)
        known, unknown = model.split_history(items)
        found, told = model.recommend(known, k), {"history": known, "unknown_items": unknown}
        for note in about_history(known, unknown, found):
            say(note)
    if json_output:
        print_json({"user": user, **told, "recommendations": [asdict(best) for best in found]})
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
