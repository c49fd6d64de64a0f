"""Whose key is whose, for those who believe nobody's word: a key counts if the invitation of its place vouches for it.

Whoever has to know the lasting keys of devices (a helper, and in secure sums among devices alone every device) has the
public halves of the invitations in a file. The coordinator names keys, each with what the invitation said of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from veilrec.errors import BadInput
from veilrec.federate.identity import check_endorsement
from veilrec.federate.tasks import BadTask

Invited = dict[int, tuple[str, bytes]]
"""The name of a device, and the public half of its invitation, by its place."""


def invited_text(invited: Invited) -> str:
    """As it is handed to those who check."""
    return json.dumps({str(place): [name, public.hex()] for place, (name, public) in invited.items()}) + "\n"


def digest_of(text: str) -> str:
    """Of such a file."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_invited(path: Path, whose: str, *, digest: str | None = None) -> Invited:
    """What `invited_text` wrote; `digest`: refused unless it is that very list."""
    try:
        text = path.read_text()
        listed = json.loads(text)
        invited = {int(place): (str(name), bytes.fromhex(public)) for place, (name, public) in listed.items()}
    except FileNotFoundError:
        raise BadInput(f"{whose}: it has no {path.name}; use what `federate init` made") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} cannot be read ({type(error).__name__}): bring back its own") from None
    if digest is not None and digest_of(text) != digest:
        raise BadInput(f"{path} is not that of this federation: copy it again from where init wrote it")
    return invited


def listed(keys: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Places, keys and what vouches for them, as a coordinator names them."""
    entries = [{"place": place, "key": key.hex(), "endorsement": endorsement.hex()} for place, key, endorsement in keys]
    return json.dumps(entries).encode()


class Vouched:
    """The lasting keys of devices, by place, that their invitations have vouched for.

    `again` reads the list of invitations once more, where somebody may be added to it.
    """

    def __init__(self, federation: str, invited: Invited, again: Callable[[], Invited] | None = None) -> None:
        self._federation, self._invited, self._again = federation, invited, again
        self.keys: dict[int, bytes] = {}

    def learn(self, named: bytes, *, strangers: bool = False) -> None:
        """Take in what a coordinator names, if it is vouched for; a place has one key, the first.

        Those of strangers, whose places are in no list here, are refused, or count for nothing.
        """
        try:
            for entry in json.loads(named):
                place, key = int(entry["place"]), bytes.fromhex(entry["key"])
                if self.keys.get(place) == key or (strangers and not self._knows(place)):
                    continue
                name, invitation = self._invitation(place)
                check_endorsement(invitation, self._federation, name, key, bytes.fromhex(entry["endorsement"]))
                if self.keys.setdefault(place, key) != key:
                    raise BadTask(f"the device in place {place} has another key than before")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadTask("the list of devices cannot be read") from None

    def _knows(self, place: int) -> bool:
        """Whether somebody was invited to a place; the list is read again for one that was not in it."""
        if place not in self._invited and self._again is not None:
            self._invited = {**self._again(), **self._invited}
        return place in self._invited

    def _invitation(self, place: int) -> tuple[str, bytes]:
        """Who was invited to a place."""
        if not self._knows(place):
            raise BadTask(
                f"the coordinator names a device in place {place}, and nobody has announced it here: if it was invited"
                " later, tell this helper with `veilrec federate admit`"
            )
        return self._invited[place]
