"""A helper's process: another operator's, who sees no vector and adds up masks.

A helper's folder has its own keys, its invitation, and `register.json`: the public halves of the invitations that were
handed to clients. A key that the coordinator names counts only if the invitation of its place endorses it. Who is
invited later has to be announced to every helper (`admit`): until then it holds up the rounds that name them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

from veilrec.core.errors import BadInput
from veilrec.federation import federation, identity
from veilrec.federation.federation import CA, BadTask, Federation, FederationTask, parted
from veilrec.federation.link import HttpsLink, live
from veilrec.federation.secagg.helpers import Helper
from veilrec.wire.signing import new_key

REGISTER = "register.json"
ANNOUNCEMENT = "announcement"  # in the folder of a client that was invited later: what helpers are told of it
_LARGEST = 1 << 30  # bytes of a list of clients


def name_of(place: int) -> str:
    """Name of the helper with a number."""
    return f"helper-{place}"


def write(folder: Path, invitation: identity.Invitation, invited: identity.InvitationList) -> bytes:
    """A folder that is ready to be handed to its operator; the helper's lasting public key."""
    folder.mkdir(mode=0o700, parents=True)
    identity.keep(folder / identity.INVITATION, invitation.text())
    identity.keep(folder / REGISTER, identity.invited_text(invited))
    return new_key(folder / identity.IDENTITY).public


def announcement(name: str, place: int, public: bytes) -> str:
    """Encode who was invited to a place: name, place, and public half of the invitation."""
    return f"{name}:{place}:{public.hex()}"


def admit(folder: Path, announced: str) -> str:
    """Add a client that was invited later to a helper's list, and return its name; repeating it changes nothing."""
    invited = register(folder)
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
        raise BadInput(f"{name} has another place already: a client has one")
    identity.keep(folder / REGISTER, identity.invited_text({**invited, number: entry}))
    return name


class HelperAnswers:
    """Answers the secagg RPCs of a coordinator."""

    def __init__(self, folder: Path, made: Federation) -> None:
        identity.read_invitation(folder).check(made)
        self._endorsed = identity.EndorsedKeys(made.id, register(folder), again=lambda: register(folder))
        key = identity.identity_of(folder)
        if key.public.hex() not in made.helpers:
            raise BadInput(f"{folder} is no helper of this federation: its key is not in federation.yaml")
        self._helper = Helper(folder, key, federation=made.digest, registered=self._endorsed.keys, least=made.least_of)

    def close(self) -> None:
        """Let go of the journal."""
        self._helper.close()

    def answer(self, task: FederationTask, content: bytes) -> bytes:
        """A key for a round, or the sum of its masks."""
        if task.kind not in ("open", "sum"):
            raise BadTask(f"a helper does not do this: {task.kind}")
        asked, register = parted(content)
        # With both: whoever has come since may be in the list, and keys are in memory.
        self._endorsed.learn(register, strangers=task.kind == "sum")
        return self._helper.open(asked) if task.kind == "open" else self._helper.answer(asked)


def register(folder: Path) -> identity.InvitationList:
    """The invitations that a helper was told of."""
    return identity.read_invited(folder / REGISTER, f"{folder} is no helper")


def run_helper(folder: Path, place: Path, say: Callable[[str], None], stop: threading.Event) -> bool:
    """Run a helper until the federation is over, or `stop` is set; whether it is over."""
    if not (folder / REGISTER).is_file():
        raise BadInput(f"{folder} is no helper: it has no {REGISTER}; give a folder below helpers/ of a federation")
    made = federation.read(place)
    helping = HelperAnswers(folder, made)
    invitation, key = identity.read_invitation(folder), identity.identity_of(folder)
    link = HttpsLink(made, place / CA, invitation.client, key, largest_content=_LARGEST)
    try:
        return live(link, helping, say, stop, lambda: link.enrol(invitation))
    finally:
        link.close()
        helping.close()
