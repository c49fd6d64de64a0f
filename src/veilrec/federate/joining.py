"""Somebody new takes a free place: the operator hands it out, helpers hear of it, the user brings their own data.

The order of it. The folder of the device is written whole; then its invitation stands in the coordinator's list; then
in those of helpers. A crash in between leaves a folder whose invitation nobody knows, which a later `invite` names, or
a helper that has not heard: it holds up rounds until it has, and tells why.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from veilrec._files import new_folder
from veilrec.data.population import Population
from veilrec.errors import BadInput
from veilrec.federate import federation, helper
from veilrec.federate.coordinator.registry import Registry, Role
from veilrec.federate.device import folder as device_folder
from veilrec.federate.device import local_data
from veilrec.federate.facts import Known
from veilrec.federate.federation import COORDINATOR, DEVICES, HELPERS
from veilrec.federate.identity import Invitation
from veilrec.federate.own_data import OwnData, own_data
from veilrec.federate.places import number_of
from veilrec.privacy.ledger import Ledger
from veilrec.privacy.seal import Seal, key_in


@dataclass(frozen=True)
class Invited:
    """Somebody who may come now."""

    name: str
    role: Role
    folder: Path
    brought: OwnData | None  # None: the user brings it
    announcement: str  # for helpers: whoever has this place has that invitation
    told: tuple[str, ...]  # helpers of this machine, who have heard
    free: int  # places that are left


def invite(folder: Path, known: Known, people: Population | None = None, user: str | None = None) -> Invited:
    """Hand out the next free place, with a person's data in its folder, or none for the user to bring."""
    made = federation.read(folder)
    if made.rehearsal:
        raise BadInput(f"{folder} is a rehearsal, whose people are all there from the start: nobody is invited to it")
    with Registry(folder / COORDINATOR) as registry:
        return take_place(folder, known, registry, people, user)


def take_place(
    folder: Path,
    known: Known,
    registry: Registry,
    people: Population | None,
    user: str | None,
    shared: bytes | None = None,
) -> Invited:
    """The same with a list that is open; `shared` is the secret of a rehearsal."""
    free = sorted((entry for entry in registry.entries() if entry.free), key=lambda entry: entry.place.device)
    if not free:
        raise BadInput(
            f"{folder} has no free place: the noise of its plan was chosen for those that it has; make a federation"
            " with `federate init --places`"
        )
    name, place = free[0].place.device, free[0].place
    number = number_of(name, known.method.devices(known.config, known.problem))
    brought = None if people is None else own_data(known, number, people, user)
    invitation, target = Invitation.new(name), folder / DEVICES / name
    if target.exists():
        raise BadInput(f"{target} is there, and nobody was invited to it (a crash?): remove it and invite again")
    target.parent.mkdir(mode=0o700, exist_ok=True)
    data = None if brought is None else brought.data
    with new_folder(target) as part:
        device_folder.write(part, data, invitation, number=number, place=place.number, shared=shared)
        announcement = helper.announcement(name, place.number, invitation.public)
        device_folder.keep(part / helper.ANNOUNCEMENT, announcement + "\n")
    target.chmod(0o700)
    registry.hand_out(name, invitation.public)
    helpers = sorted((folder / HELPERS).glob("*")) if place.role == "learner" else []
    for each in helpers:
        helper.admit(each, announcement)
    told = tuple(each.name for each in helpers)
    return Invited(name, place.role, target, brought, announcement, told, len(free) - 1)


def bring(folder: Path, known: Known, people: Population, user: str | None = None) -> OwnData:
    """Put a user's own data into the folder of their device, before it first takes part."""
    about = device_folder.read_about(folder)
    if Ledger.was_made(folder / device_folder.LEDGER) or (folder / local_data.DATA).exists():
        raise BadInput(f"{folder} has data already: what a device has learnt from stays what it learns from")
    brought = own_data(known, about.number, people, user)
    local_data.write(folder, brought.data, Seal(key_in(folder / device_folder.KEY)))
    return brought
