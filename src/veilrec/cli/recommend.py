"""`veilrec recommend`: lists of a saved run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilrec.cli.output import Json, OutsideMethod, Run, print_json, say
from veilrec.core.errors import counted


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
    about: Annotated[
        list[str] | None,
        typer.Option(
            help="What else is known of somebody, as NAME=VALUE, for a method that reads features; may be repeated."
        ),
    ] = None,
    everybody: Annotated[bool, typer.Option("--all", help="All users of the training, into the file --out.")] = False,
    out: Annotated[Path | None, typer.Option(help="File for --all: .csv, .parquet or .jsonl.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many items.")] = 10,
    method: OutsideMethod = None,
    json_output: Json = False,
) -> None:
    """Recommend new items to a user, from the folder of a run alone.

    Examples:

        veilrec recommend runs/fedmf-ml-100k-seed1 --user 196

        veilrec recommend runs/fedmf-ml-100k-seed1 --history 50,172,181 -k 5

        veilrec recommend runs/mine --history 50,172 --about age=25 --about gender=F

        veilrec recommend runs/mine --history 'film-7,"Tea, milk and sugar"'

        veilrec recommend runs/fedmf-ml-100k-seed1 --all --out best.csv

        veilrec recommend runs/nrms-mind-seed0 --history N106403,N71977
    """
    from dataclasses import asdict

    from veilrec.core.errors import BadInput
    from veilrec.runs.saved import about_history, about_people, open_model, read_about, read_history, read_history_file

    if users is not None and len(users) > 1:
        raise BadInput(f"--user is given {len(users)} times: ask for one user at a time, or for everybody with --all")
    user = users[0] if users else None
    from_history = history is not None or history_file is not None
    if about and not from_history:
        raise BadInput("--about is for somebody new: give --history ID,ID,... with it, or --history '' for none")
    if (user is not None) + from_history + everybody != 1 or (history is not None and history_file is not None):
        raise BadInput(
            "give either --user ID (of the training), --history ID,ID,... or --history-file FILE (anybody), or --all"
            " (every user)"
        )
    if everybody != (out is not None):
        raise BadInput("--all and --out FILE go together: all recommendations are written to the file")
    if out is not None:
        from veilrec.core.files import refuse_existing
        from veilrec.runs.export import check_file, write_everybody

        check_file(out)
        refuse_existing(out)
        rows = write_everybody(open_model(run, method), out, k)
        print_json({"out": str(out), "rows": rows}) if json_output else typer.echo(f"{counted(rows, 'row')} in {out}")
        return
    model = open_model(run, method)
    if user is not None:
        found, told, made_of = model.recommend_user(user, k), {}, model.rests_on_user(user)
    else:
        items = read_history(history or (), model.knows) if history_file is None else read_history_file(history_file)
        known, unknown = model.split_history(items)
        said = read_about(about or ())
        found, told = model.recommend(known, k, said), {"history": known, "unknown_items": unknown}
        made_of = model.rests_on(known)
        notes = about_people(model.people, said) if said else ()
        for note in (*about_history(known, unknown, found, says_more=made_of is not None), *notes):
            say(note)
    if json_output:
        print_json(
            {
                "user": user,
                **told,
                **({"about": read_about(about)} if about else {}),
                **({} if made_of is None else {"rests_on": made_of.as_json()}),
                "recommendations": [asdict(best) for best in found],
            }
        )
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
    if made_of is not None:
        typer.echo(made_of.said)
