"""A device whose messages travel under masks: what it would send becomes whole numbers, and these are masked."""

from __future__ import annotations

from typing import Any

from veilrec._arrays import Bools, Offsets
from veilrec.device.device import Device
from veilrec.federate.device.loop import OfDevice
from veilrec.federate.federation import Federation
from veilrec.federate.masking import masks_reports
from veilrec.federate.secagg.helpers import HelpedDevice
from veilrec.federate.tasks import BadTask, Task, parted
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
        self._plan = plan
        self._masking = HelpedDevice(
            place,
            identity,
            federation=federation.digest,
            helpers=[bytes.fromhex(key) for key in federation.helpers],
            least=federation.least,
        )

    def answer(self, task: Task, content: bytes) -> bytes:
        """As any device, but for the messages of rounds, and for reports that would tell the server something."""
        if task.kind == "report" and masks_reports(self._plan):
            return self.device.report(task.number, task.period, make=lambda told: self._masked_report(content, told))
        if task.kind != "round":
            return super().answer(task, content)
        invitation, broadcast = parted(content)

        def masked(uploads: Uploads, about: Round, view: Schema, source: Source) -> tuple[bytes, Event]:
            values, event = self._whole_numbers(uploads, about, view, source)
            return self._masking.upload(invitation, values), event

        return self.device.take_part(broadcast, task.number, make=masked)

    def _masked_report(self, invitation: bytes, told: Bools) -> bytes:
        """What a server would make of the report is made here, and masked."""
        if self._plan.reports is None:
            raise BadTask("this plan asks devices for no reports")
        return self._masking.upload(invitation, self._plan.reports.mechanism.weigh(told))

    def _whole_numbers(self, uploads: Uploads, about: Round, view: Schema, source: Source) -> tuple[Offsets, Event]:
        """What is added up, with the device's share of the noise where it adds one."""
        mechanism, lattice = self._plan.mechanism, self._plan.lattice(about)
        if isinstance(mechanism, SharedSum):
            shared = mechanism.share(uploads, about, lattice, source)
            return shared.value, shared.event
        released = mechanism.message(uploads, about, source)
        return lattice.integers(codec.rounded(released.value, view))[0], released.event
