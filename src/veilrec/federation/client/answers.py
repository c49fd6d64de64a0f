"""How a client answers tasks: in plaintext, or under the masks of helper-based or pairwise secure aggregation.

Under masks, what would be sent becomes whole numbers first. Reports before the first round are masked as well where
they trust the server: which sum they go into, and its terms, the client works out itself; it takes part in no other.

What a client does in pairwise secure aggregation:

- Whose key is whose it knows from the list of invitations of the federation. A key that the coordinator names counts if
  the invitation of its place endorses it; who masks with whom, and how few may be added up, comes from the
  federation's file.
- Asked the same again by an RPC, it replies the same; asked something else, it has left the round. A reveal depends on
  the list that was signed, and on nothing else.
- What it enters a round with, and the secrets of others, are in memory alone. That it has entered is on disk before its
  keys leave: a client that was killed never comes back into that round, so it signs no second list and reveals nothing
  of anybody twice. Its vector it sends again, the same bytes, for that is paid for and on disk.
- The ledger is charged, and the vector on disk, in one transaction, before it leaves (`FederatedClient.take_part`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from veilrec.client.federated import FederatedClient
from veilrec.core.arrays import Offsets
from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.core.schema import FIRST_REPORT_SUM, ClientUpdates, RoundSpec, Schema
from veilrec.federation.distributed_noise import Summed, report_sum, terms_in
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import INVITED, Federation
from veilrec.federation.identity import EndorsedKeys, read_invited
from veilrec.federation.secagg.helpers import HelperInvitation, HelperSumClient
from veilrec.federation.secagg.pairs import PairwiseSumClient
from veilrec.federation.secagg.terms import MessageReader, Terms
from veilrec.federation.tasks import BadTask, FederationTask, TaskKind, parted
from veilrec.privacy.events import Event
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.randomness import Source
from veilrec.wire import messages
from veilrec.wire.signing import SigningKey


class PlaintextAnswers:
    """A device that answers tasks."""

    def __init__(self, device: FederatedClient[Any]) -> None:
        self.device = device

    def answer(self, task: FederationTask, content: bytes) -> bytes:
        """Learn, report or judge."""
        if task.kind == "round":
            return self.device.take_part(content, task.number)
        if task.kind == "report":
            return self.device.report(task.number, task.period)
        if task.kind == "judge":
            start, trained = parted(content)
            return self.device.judge(start, trained, task.number)
        raise BadTask(f"a device does not do this: {task.kind}")


class HelperMaskedAnswers(PlaintextAnswers):
    """A device of a federation with helpers; which these are it knows from the federation's file, not from servers."""

    def __init__(
        self, device: FederatedClient[Any], plan: Plan, federation: Federation, place: int, identity: SigningKey
    ) -> None:
        super().__init__(device)
        self._plan, self._made = plan, federation
        self._masking = HelperSumClient(
            place,
            identity,
            federation=federation.digest,
            helpers=[bytes.fromhex(key) for key in federation.helpers],
            least=federation.least,
        )

    def answer(self, task: FederationTask, content: bytes) -> bytes:
        """Answer in plaintext, except rounds and masked reports."""
        if task.kind == "round":
            return self._take_part(task, *parted(content))
        if task.kind == "report" and masks_reports(self._plan):
            invitation, about = parted(content)[0], report_sum(task.number)
            return self.device.report(
                about.number, task.period, mask=lambda values: self._masked(invitation, about, values)
            )
        return super().answer(task, content)

    def _take_part(self, task: FederationTask, invitation: bytes, broadcast: bytes) -> bytes:
        def masked(uploads: ClientUpdates, about: RoundSpec, view: Schema, source: Source) -> tuple[bytes, Event]:
            values, event = quantised(self._plan, uploads, about, view, source)
            return self._masked(invitation, about, values), event

        return self.device.take_part(broadcast, task.number, make=masked)

    def _masked(self, invitation: bytes, about: Summed, values: Offsets) -> bytes:
        agree(HelperInvitation.decode(invitation).proposal.terms, self._made, self._plan, about)
        return self._masking.upload(invitation, values)


def agree(terms: Terms, made: Federation, plan: Plan, about: Summed) -> None:
    """Refuse terms that are not those which this device makes of the federation's file for this very sum."""
    if terms != terms_in(made, plan, about):
        raise BadInput("the terms are not those of this plan's round: nothing is sent")


def masks_reports(plan: Plan) -> bool:
    """Whether what a device reports leaves under masks alone."""
    return plan.reports is not None and plan.reports.mechanism.under_masks


def quantised(
    plan: Plan, uploads: ClientUpdates, about: RoundSpec, view: Schema, source: Source
) -> tuple[Offsets, Event]:
    """Quantise an update to fixed-point integers, with this client's part of distributed noise if it adds one."""
    mechanism, lattice = plan.mechanism, plan.lattice(about)
    if isinstance(mechanism, DistributedNoiseSum):
        shared = mechanism.share(uploads, about, lattice, source)
        return shared.value, shared.event
    released = mechanism.message(uploads, about, source)
    return lattice.integers(messages.rounded_update(released.value, view))[0], released.event


@dataclass
class _Round:
    """A round that the device is in: what it masks with, and what it has said on which question."""

    number: int
    pairing: PairwiseSumClient
    said: dict[TaskKind, tuple[bytes, bytes]] = field(default_factory=dict)

    def once(self, kind: TaskKind, asked: bytes, say: Callable[[bytes], bytes]) -> bytes:
        """Reply to an RPC; `PairwiseSumClient` goes one step at a time, and leaves the round if asked otherwise."""
        known = self.said.get(kind)
        if known is not None and (known[0] == asked or kind == "reveal"):
            return known[1]
        answer = say(asked)
        self.said[kind] = (asked, answer)
        return answer

    def advertise(self, terms: bytes) -> bytes:
        """Keys for this round, and for no other."""
        if Terms.read(MessageReader(terms)).round_number != self.number:
            raise BadInput("the terms are those of another round: nothing is sent")
        return self.pairing.advertise(terms)


class PairwiseMaskedAnswers(PlaintextAnswers):
    """A device of a federation whose devices mask against each other."""

    def __init__(self, device: FederatedClient[Any], known: FederationFacts, place: int, identity: SigningKey) -> None:
        super().__init__(device)
        made = known.federation
        self._plan, self._made, self._place, self._identity = known.plan, made, place, identity
        self._woven = made.woven()
        path = known.folder / INVITED
        self._endorsed = EndorsedKeys(
            made.id, read_invited(path, f"{known.folder} is no folder for secure aggregation", digest=made.invited)
        )
        self._round: _Round | None = None

    def answer(self, task: FederationTask, content: bytes) -> bytes:
        """Answer in plaintext, except rounds, masked reports and secagg RPCs."""
        if task.kind == "round":
            return self._take_part(task.number, content)
        if task.kind == "report" and masks_reports(self._plan):
            about, (_, boxes) = report_sum(task.number), parted(content)
            return self.device.report(about.number, task.period, mask=lambda values: self._masked(about, boxes, values))
        if task.kind not in ("advertise", "share", "sign", "reveal"):
            return super().answer(task, content)
        own = self._entered(task.number) if task.kind == "advertise" else self._entered_before(task.number)
        steps: dict[str, Callable[[bytes], bytes]] = {
            "advertise": own.advertise,
            "share": lambda told: self._share(own, told),
            "sign": own.pairing.sign,
            "reveal": own.pairing.reveal,
        }
        return own.once(task.kind, content, steps[task.kind])

    def _entered(self, number: int) -> _Round:
        """The round that is begun; once it was, and is not in memory, the device has left it."""
        if self._round is None or self._round.number != number:
            self._enter(number)
            made = self._made
            pairing = PairwiseSumClient(
                self._place,
                self._identity,
                self._endorsed.keys,
                federation=made.digest,
                neighbourhood=self._woven,
                least=made.least,
            )
            self._round = _Round(number, pairing)
        return self._round

    def _enter(self, number: int) -> None:
        if number < FIRST_REPORT_SUM:
            self.device.enter(number)
        else:
            terms_in(self._made, self._plan, report_sum(number))  # refuses reports that are not masked, or too often
            self.device.enter_report(number)

    def _entered_before(self, number: int) -> _Round:
        if self._round is None or self._round.number != number:
            raise BadTask(f"this device is not in round {number}, or was killed on its way: it has left it for good")
        return self._round

    def _share(self, own: _Round, told: bytes) -> bytes:
        named, group = parted(told)
        self._endorsed.learn(named)
        return own.pairing.share(group)

    def _take_part(self, number: int, content: bytes) -> bytes:
        broadcast, boxes = parted(content)

        def masked(uploads: ClientUpdates, about: RoundSpec, view: Schema, source: Source) -> tuple[bytes, Event]:
            self._entered_before(number)
            values, event = quantised(self._plan, uploads, about, view, source)
            return self._masked(about, boxes, values), event

        return self.device.take_part(broadcast, number, make=masked)

    def _masked(self, about: Summed, boxes: bytes, values: Offsets) -> bytes:
        own = self._entered_before(about.number)
        agree(own.pairing.terms, self._made, self._plan, about)
        return own.pairing.mask(boxes, values)
