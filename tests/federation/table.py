"""All devices of a federation in one place, without a network: what they say, whoever asks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.federation.loopback import known_in
from veilrec.client.federated import FederatedClient
from veilrec.federation.client import folder as device_folder
from veilrec.federation.client.process import answers_of
from veilrec.federation.federation import DEVICES, HELPERS, FederationTask, TaskKind, joined
from veilrec.federation.helper import HelperAnswers
from veilrec.federation.identity import identity_of, listed, read_invitation
from veilrec.federation.secagg.pairs import PairwiseSum

AT_TABLE = 5  # devices


class Table:
    """The devices of a federation, its helpers if it has any, and what a coordinator would know."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.known = folder, known_in(folder)
        self.made, self.plan = self.known.federation, self.known.plan
        self.folders = sorted((folder / DEVICES).iterdir())
        self.keys = {place: identity_of(path).public for place, path in enumerate(self.folders)}
        self.opened: dict[int, FederatedClient[Any]] = {}
        self.devices = {place: self.start(place) for place in range(AT_TABLE)}
        self.helpers = [HelperAnswers(path, self.made) for path in sorted((folder / HELPERS).glob("*"))]

    def start(self, place: int) -> Any:
        """The process of a device; killed before, if it was there."""
        if place in self.opened:
            self.opened[place].close()
        path = self.folders[place]
        self.opened[place] = device_folder.open_device(path, self.known)
        return answers_of(self.opened[place], self.known, place, identity_of(path))

    def named(self) -> bytes:
        """What the coordinator says of keys."""
        invitations = [read_invitation(path) for path in self.folders]
        return listed((p, key, invitations[p].endorse(self.made.id, key)) for p, key in self.keys.items())

    def ask(self, place: int, kind: TaskKind, content: bytes, number: int = 0) -> bytes:
        return bytes(self.devices[place].answer(FederationTask(kind, number), content))

    def paid(self) -> list[int]:
        """Messages that each device has paid for."""
        return [device.spent()[0].messages for device in self.opened.values()]

    def advertised(self, adding: PairwiseSum) -> dict[int, bytes]:
        """Every device announces its keys: the groups."""
        for place in self.devices:
            adding.receive_advert(self.ask(place, "advertise", adding.propose(), adding.terms.round_number))
        return adding.groups()

    def shared(self, adding: PairwiseSum, groups: dict[int, bytes], first: bytes) -> dict[int, bytes]:
        """Every device shares its secrets; what each gets beside the first content."""
        for place, group in groups.items():
            answer = self.ask(place, "share", joined(self.named(), group), adding.terms.round_number)
            adding.receive_shares(answer)
        return {place: joined(first, boxes) for place, boxes in adding.boxes().items()}

    def close(self) -> None:
        for part in (*self.opened.values(), *self.helpers):
            part.close()


def table_of(base: Path, folder: Path, kind: type[Table] = Table) -> Iterator[Any]:
    """The table of a copy of a federation."""
    shutil.copytree(base, folder)
    made = kind(folder)
    yield made
    made.close()
