"""`veilrec recommend` and `veilrec query`: a list from a run, and a list from a release for one client."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from veilrec.cli.output import Json, PluginMethod, Run, items_table, print_json, say
from veilrec.core.errors import BadInput, counted

if TYPE_CHECKING:
    from veilrec.client.recommender import Recommendations, RecommenderClient


_SEEN = (
    "Item ids on the command line can be read by everybody on this machine, in its list of processes: give a file with"
    " one id a line instead, or - for standard input."
)


def recommend(
    run: Run,
    users: Annotated[
        list[str] | None, typer.Option("--user", help="A user of the training, by the data set's own id.")
    ] = None,
    history: Annotated[
        list[str] | None,
        typer.Option(
            help="The same on the command line, where everybody on this machine can read it: ids with commas between;"
            " '' for somebody new. An id with a comma stands in double quotes, as in CSV. May be repeated."
        ),
    ] = None,
    history_file: Annotated[
        Path | None, typer.Option(help="Anybody, from a file: one id a line, the latest last; - reads standard input.")
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
    method: PluginMethod = None,
    json_output: Json = False,
) -> None:
    """Recommend new items to a user, from the folder of a run alone.

    Examples:

        veilrec recommend runs/fedmf-ml-100k-seed1 --user 196

        veilrec recommend runs/fedmf-ml-100k-seed1 --history-file read.txt -k 5

        printf '50\\n172\\n' | veilrec recommend runs/mine --history-file - --about age=25 --about gender=F

        veilrec recommend runs/mine --history ''

        veilrec recommend runs/fedmf-ml-100k-seed1 --all --out best.csv
    """
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
    if any(text.strip() for text in history or ()):
        say(_SEEN)
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

    whom = "a new user" if user is None else f"user {user}"
    Console().print(items_table(f"For {whom}", [(best.item, best.title, best.score) for best in found]))
    if made_of is not None:
        typer.echo(made_of.said)


def query(
    release: Annotated[Path, typer.Argument(help="Folder of a release.")],
    server: Annotated[
        str | None, typer.Option(help="Address of `veilrec serve`, for the modes that ask; https off this machine.")
    ] = None,
    history: Annotated[
        str | None,
        typer.Option(
            help="What was read, the latest last: a file with one id a line, or - for standard input. Ids with commas"
            " between are taken as well, and can be read by everybody on this machine."
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            help="none-sent: rank here and send nothing; interest, attention, pooled: a private query; plain: the user"
            " vector as it is; nobody: not personal."
        ),
    ] = "none-sent",
    k: Annotated[int, typer.Option("-k", min=1, max=900, help="How many items.")] = 10,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder of the client: history, ledger, key. Without it, the client is forgotten at once."),
    ] = None,
    trust: Annotated[
        str | None, typer.Option(help="Public key that the release must be signed by: a .pub file, or its 64 digits.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            help="What a new client may spend per release: epsilon of a whole history (replace-one, delta 1e-6); twice"
            " that of one click, and four times that in its lifetime."
        ),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Forget the history first; what was spent stays.")] = False,
    ca: Annotated[Path | None, typer.Option(help="Certificate (PEM) that the server is known by.")] = None,
    plaintext: Annotated[
        bool, typer.Option("--insecure-plaintext", help="Allow plaintext http to another machine.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Query as a client: verify the release, charge the ledger, send a private query, rank locally.

    Examples:

        veilrec query releases/news --history read.txt

        veilrec query releases/news --server http://127.0.0.1:8337 --history read.txt --mode interest --state me
    """
    import tempfile

    from veilrec.client.recommender import QueryBudget, ServerLink
    from veilrec.runs.release_model import open_client
    from veilrec.wire.releases import open_release
    from veilrec.wire.signing import read_public

    link = None if server is None else ServerLink(server, ca=ca, plaintext=plaintext)
    opened = open_release(release, trusted=None if trust is None else read_public(trust))
    if not opened.protected:
        say(f"This release is UNPROTECTED: {'; '.join(opened.manifest['why_unprotected'])}.")
    allowance = None if budget is None else QueryBudget(history=budget, click=2.0 * budget)
    with tempfile.TemporaryDirectory(prefix="veilrec-client-") as scratch:
        place = Path(scratch) if state is None else state
        with open_client(place, opened, server=link, allowance=allowance) as client:
            if forget:
                client.forget()
            items = _read_items(history)
            unknown = [item for item in items if client.texts.find(item) is None]
            if unknown:
                say(f"Not in this release, and passed over: {', '.join(unknown[:5])}{' ...' if unknown[5:] else ''}.")
            client.read(*items)
            chosen: Any = mode
            _show(client, client.recommend(k, chosen), json_output)


def _read_items(history: str | None) -> list[str]:
    """Read the ids of a file or of standard input, or those with commas between."""
    if not history:
        return []
    path = Path(history)
    try:
        is_file = history == "-" or path.exists()
    except OSError:  # far too long for a name
        is_file = False
    if is_file:
        from veilrec.runs.saved import read_history_file

        return read_history_file(path)
    say(_SEEN)
    return [item.strip() for item in history.split(",") if item.strip()]


def _show(client: RecommenderClient, answer: Recommendations, json_output: bool) -> None:
    spent = client.spent()
    if json_output:
        print_json(
            {
                "release": client.release.name,
                "version": client.release.version,
                "protected": client.release.protected,
                "mode": answer.mode,
                "ranked_by": answer.ranked_by,
                "sent_bytes": 0 if answer.sent is None else len(answer.sent),
                "sent": None if answer.sent is None else answer.sent.hex(),
                "guarantee": None if answer.guarantee is None else answer.guarantee.to_json(),
                "spent": [report.spent.to_json() | {"remaining": report.remaining} for report in spent],
                "notes": list(answer.notes),
                "items": [asdict(item) for item in answer.items],
            }
        )
        return

    for note in answer.notes:
        say(note)
    title = f"{client.release.name}, {answer.mode}, ranked by the {answer.ranked_by}"
    Console().print(items_table(title, [(item.id, item.title, item.score) for item in answer.items]))
    if answer.sent is None:
        typer.echo("Nothing of the history has left this device.")
        if answer.guarantee is None:  # no query was drawn either
            return
    else:
        promise = answer.guarantee.line() if answer.guarantee is not None else "no privacy guarantee"
        typer.echo(f"Left this device: {len(answer.sent)} bytes, {answer.sent.hex()[:64]}. {promise}.")
    for report in spent:
        left = f"{100 * report.remaining:.0f} % of this release's budget is left"
        typer.echo(f"Spent so far: {report.spent.line()}; {left}.")
