"""`veilrec federate invite`, `bring` and `admit`: somebody new takes a place that was kept free."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilrec.cli.output import Json, print_json, say


def invite(
    folder: Annotated[Path, typer.Argument(help="Folder of a federation that has free places.")],
    data: Annotated[
        str | None, typer.Option(help="NAME or NAME:PATH to take the person's data from; otherwise the user brings it.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Of the data, where it has several.")] = None,
    json_output: Json = False,
) -> None:
    """Hand out a free place, also while rounds are running: makes the folder that a new device starts with.

    Example:

        veilrec federate invite trial --data csv:anna.csv
    """
    from veilrec.data.datasets import load
    from veilrec.errors import BadInput
    from veilrec.federate import federation
    from veilrec.federate.facts import FederationFacts
    from veilrec.federate.joining import invite as hand_out

    made = federation.read(folder)
    if user is not None and data is None:
        raise BadInput(f"--user {user} is somebody of a data set: add --data")
    invited = hand_out(folder, FederationFacts(folder, made), None if data is None else load(data), user)
    unheard = [name for name in (f"helper-{n}" for n in range(len(made.helpers))) if name not in invited.told]
    if json_output:
        told = {name: getattr(invited, name) for name in ("name", "role", "announcement", "free")}
        left_out = None if invited.brought is None else invited.brought.left_out
        print_json({**told, "folder": str(invited.folder), "left_out": left_out, "helpers_to_tell": unheard})
        return
    say(f"{invited.folder} is for one new user ({invited.role}); {invited.free} places are left")
    if invited.brought is None:
        say("It has no data yet: its user brings it with `veilrec federate bring`")
    elif invited.brought.left_out:
        say(f"{invited.brought.left_out} items are left out: this federation does not know them")
    for name in unheard if invited.role == "learner" else ():
        say(f"Before it starts, on the host of {name}: `veilrec federate admit {name} {invited.announcement}`")


def bring(
    folder: Annotated[Path, typer.Argument(help="Folder of a device that `veilrec federate invite` made.")],
    data: Annotated[str, typer.Option(help="NAME or NAME:PATH, such as csv:own.csv.")],
    user: Annotated[str | None, typer.Option(help="Of the data, where it has several.")] = None,
    federation_folder: Annotated[
        Path | None,
        typer.Option("--federation", help="Where federation.yaml, facts and ca.pem lie; usually two folders above."),
    ] = None,
) -> None:
    """Put your own data into the folder of your device, sealed; it is read here, and nobody else sees it."""
    from veilrec.data.datasets import load
    from veilrec.federate import federation
    from veilrec.federate.facts import FederationFacts
    from veilrec.federate.joining import bring as put

    place = federation_folder or folder.resolve().parent.parent
    brought = put(folder, FederationFacts(place, federation.read(place)), load(data), user)
    left_out = f"; {brought.left_out} items are left out: this federation does not know them"
    say(f"{folder} has its data{left_out if brought.left_out else ''}")


def admit(
    folder: Annotated[Path, typer.Argument(help="Folder of a helper.")],
    announcement: Annotated[str, typer.Argument(help="What `veilrec federate invite` said of the new device.")],
) -> None:
    """Tell a helper of somebody who was invited later; its operator decides whether to."""
    from veilrec.federate.helper import admit as add

    say(f"{add(folder, announcement)} may take part in secure sums")
