"""A helper's process: another operator's, who sees no vector and adds up masks.

A helper's folder has its own keys, its invitation, and `register.json`: the public halves of the invitations that were
handed to devices. A key that the coordinator names counts only if the invitation of its place vouches for it. Who is
invited later has to be announced to every helper (`admit`): until then it holds up the rounds that name them.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

from veilrec.errors import BadInput
from veilrec.federate import federation
from veilrec.federate.device import folder as device_folder
from veilrec.federate.device.https_link import HttpsLink
from veilrec.federate.device.loop import live
from veilrec.federate.federation import CA, Federation
from veilrec.federate.identity import Invitation, check_endorsement
from veilrec.federate.secagg.helping import Helper
from veilrec.federate.tasks import BadTask, Task, parted
from veilrec.wire.signing import new_key

REGISTER = "register.json"
ANNOUNCEMENT = "announcement"  # in the folder of a device that was invited later: what helpers are told of it
_LARGEST = 1 << 30  # bytes of a list of devices


def name_of(place: int) -> str:
    """What a helper is called."""
    return f"helper-{place}"


def write(folder: Path, invitation: Invitation, invited: dict[int, tuple[str, bytes]]) -> bytes:
    """A folder that is ready to be handed to its operator; the helper's lasting public key.

    `invited` has the name and the public half of the invitation of every device that learns, by its place.
    """
    folder.mkdir(mode=0o700, parents=True)
    device_folder.keep(folder / device_folder.INVITATION, invitation.text())
    _write_register(folder, invited)
    return new_key(folder / device_folder.IDENTITY).public


def _write_register(folder: Path, invited: dict[int, tuple[str, bytes]]) -> None:
    listed = {str(place): [name, public.hex()] for place, (name, public) in invited.items()}
    device_folder.keep(folder / REGISTER, json.dumps(listed) + "\n")


def announcement(name: str, place: int, public: bytes) -> str:
    """Who was invited to a place: the name, the place, and the public half of the invitation."""
    return f"{name}:{place}:{public.hex()}"


def admit(folder: Path, announced: str) -> str:
    """Add somebody who was invited later to a helper's list; the same again is free. Their name."""
    invited = _read_register(folder)
    match = re.fullmatch(r"([^:\s]+):(\d{1,9}):([0-9a-f]{64})", announced.strip())
    if match is None:
        raise BadInput(
            f"{announced.strip()[:60]!r} announces nobody: it looks like d00020:20:64 hexadecimal digits, as `federate"
            " invite` wrote it"
        )
    name, number, entry = match[1], int(match[2]), (match[1], bytes.fromhex(match[3]))
    if invited.get(number, entry) != entry:
        raise BadInput(f"place {number} is that of {invited[number][0]}, with another invitation: nobody is replaced")
    if name in {known for other, (known, _) in invited.items() if other != number}:
        raise BadInput(f"{name} has another place already: a device has one")
    _write_register(folder, {**invited, number: entry})
    return name


class Helping:
    """Answers what a helper is asked."""

    def __init__(self, folder: Path, made: Federation) -> None:
        self._made, self._folder = made, folder
        self._invited = _read_register(folder)
        self._registered: dict[int, bytes] = {}
        identity = device_folder.identity_of(folder)
        if identity.public.hex() not in made.helpers:
            raise BadInput(f"{folder} is no helper of this federation: its key is not in federation.yaml")
        self._helper = Helper(folder, identity, federation=made.digest, registered=self._registered, least=made.least)

    def close(self) -> None:
        """Let go of the journal."""
        self._helper.close()

    def answer(self, task: Task, content: bytes) -> bytes:
        """A key for a round, or the sum of its masks."""
        if task.kind == "open":
            proposal, register = parted(content)
            self._learn(register)
            return self._helper.open(proposal)
        if task.kind == "sum":
            request, register = parted(content)
            self._learn(register, strangers=True)  # somebody may have come after the round was opened
            return self._helper.answer(request)
        raise BadTask(f"a helper does not do this: {task.kind}")

    def _learn(self, register: bytes, *, strangers: bool = False) -> None:
        """Take in the keys that their invitations vouch for; a place has one key, the first.

        Those of strangers, who were not announced here, count for nothing, and hold up the opening of a round.
        """
        try:
            for entry in json.loads(register):
                if strangers and not self._knows(int(entry["place"])):
                    continue
                place, key = int(entry["place"]), bytes.fromhex(entry["key"])
                name, invitation = self._invitation(place)
                check_endorsement(invitation, self._made.id, name, key, bytes.fromhex(entry["endorsement"]))
                if self._registered.setdefault(place, key) != key:
                    raise BadTask(f"the device in place {place} has another key than before")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadTask("the list of devices cannot be read") from None

    def _knows(self, place: int) -> bool:
        """Whether somebody was announced for a place; the list is read again for one that was not in it."""
        if place not in self._invited:
            self._invited = {**_read_register(self._folder), **self._invited}
        return place in self._invited

    def _invitation(self, place: int) -> tuple[str, bytes]:
        """Who was invited to a place."""
        if not self._knows(place):
            raise BadTask(
                f"the coordinator names a device in place {place}, and nobody has announced it here: if it was invited"
                " later, tell this helper with `veilrec federate admit`"
            )
        return self._invited[place]


def _read_register(folder: Path) -> dict[int, tuple[str, bytes]]:
    try:
        listed = json.loads((folder / REGISTER).read_text())
        return {int(place): (str(name), bytes.fromhex(public)) for place, (name, public) in listed.items()}
    except FileNotFoundError:
        raise BadInput(
            f"{folder} is no helper: it has no {REGISTER}; give a folder that `federate init` made"
        ) from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"{folder / REGISTER} cannot be read ({type(error).__name__}): bring back its own") from None


def run_helper(folder: Path, place: Path, say: Callable[[str], None], stop: threading.Event) -> bool:
    """One helper until the federation is over; whether it is."""
    made = federation.read(place)
    helping = Helping(folder, made)
    invitation, identity = device_folder.read_invitation(folder), device_folder.identity_of(folder)
    link = HttpsLink(made, place / CA, invitation.device, identity, largest_content=_LARGEST)
    try:
        return live(link, helping, say, stop, lambda: link.enrol(invitation))
    finally:
        link.close()
        helping.close()
