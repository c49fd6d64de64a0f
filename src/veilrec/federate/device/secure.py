"""A device whose messages travel under masks: what it would send becomes whole numbers, and these are masked.

So do its reports before the first round, where they trust the server: which sum they go into, and its terms, the device
works out itself, and it takes part in no other.
"""

from __future__ import annotations

from typing import Any

from veilrec._arrays import Offsets
from veilrec.device.device import Device
from veilrec.errors import BadInput
from veilrec.federate.device.loop import OfDevice
from veilrec.federate.federation import Federation
from veilrec.federate.secagg.helpers import HelpedDevice, Invitation
from veilrec.federate.secagg.terms import Terms
from veilrec.federate.sums import Summed, report_sum, terms_in
from veilrec.federate.tasks import Task, parted
from veilrec.plan import Plan
from veilrec.privacy.events import Event
from veilrec.privacy.mechanisms.shared import SharedSum
from veilrec.privacy.randomness import Source
from veilrec.updates import Round, Schema, Uploads
from veilrec.wire import codec
from veilrec.wire.signing import SigningKey


class OfHelpedDevice(OfDevice):
    """A device of a federation with helpers; which these are it knows from the federation's file, not from servers."""

    def __init__(
        self, device: Device[Any], plan: Plan, federation: Federation, place: int, identity: SigningKey
    ) -> None:
        super().__init__(device)
        self._plan, self._made = plan, federation
        self._masking = HelpedDevice(
            place,
            identity,
            federation=federation.digest,
            helpers=[bytes.fromhex(key) for key in federation.helpers],
            least=federation.least,
        )

    def answer(self, task: Task, content: bytes) -> bytes:
        """As any device, but for the messages of rounds, and for reports that the server must not see."""
        if task.kind == "round":
            return self._take_part(task, *parted(content))
        if task.kind == "report" and hides_reports(self._plan):
            invitation, about = parted(content)[0], report_sum(task.number)
            return self.device.report(
                about.number, task.period, mask=lambda values: self._masked(invitation, about, values)
            )
        return super().answer(task, content)

    def _take_part(self, task: Task, invitation: bytes, broadcast: bytes) -> bytes:
        def masked(uploads: Uploads, about: Round, view: Schema, source: Source) -> tuple[bytes, Event]:
            values, event = whole_numbers(self._plan, uploads, about, view, source)
            return self._masked(invitation, about, values), event

        return self.device.take_part(broadcast, task.number, make=masked)

    def _masked(self, invitation: bytes, about: Summed, values: Offsets) -> bytes:
        agree(Invitation.decode(invitation).proposal.terms, self._made, self._plan, about)
        return self._masking.upload(invitation, values)


def agree(terms: Terms, made: Federation, plan: Plan, about: Summed) -> None:
    """Refuse terms that are not those which this device makes of the federation's file for this very sum."""
    if terms != terms_in(made, plan, about):
        raise BadInput("the terms are not those of this plan's round: nothing is sent")


def hides_reports(plan: Plan) -> bool:
    """Whether what a device reports leaves under masks alone."""
    return plan.reports is not None and plan.reports.mechanism.under_masks


def whole_numbers(plan: Plan, uploads: Uploads, about: Round, view: Schema, source: Source) -> tuple[Offsets, Event]:
    """What is added up, with the device's share of the noise where it adds one."""
    mechanism, lattice = plan.mechanism, plan.lattice(about)
    if isinstance(mechanism, SharedSum):
        shared = mechanism.share(uploads, about, lattice, source)
        return shared.value, shared.event
    released = mechanism.message(uploads, about, source)
    return lattice.integers(codec.rounded(released.value, view))[0], released.event
