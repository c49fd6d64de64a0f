"""Sums that the coordinator cannot look into: helpers, who come over the same way as devices, take the masks off.

What helpers say is kept nowhere: asked again about the same round, they say the same. What devices got (`invitation`)
and what they sent is in the coordinator's database, so that a coordinator that was killed goes on with both.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence

from veilrec._arrays import Offsets
from veilrec.federate.coordinator.board import Board
from veilrec.federate.coordinator.registry import Registry
from veilrec.federate.federation import Federation
from veilrec.federate.masking import WIDTH, masks_reports, number_of_round, round_of, terms_of_reports
from veilrec.federate.secagg.helpers import HelpedSum, Invitation, Proposal, check_claim, read_upload
from veilrec.federate.secagg.terms import Terms, Void
from veilrec.federate.shares import terms_of
from veilrec.federate.tasks import Away, Kind, joined
from veilrec.plan import Plan
from veilrec.privacy.mechanisms.shared import SharedSum
from veilrec.updates import Round
from veilrec.wire.codec import BadMessage
from veilrec.wire.signing import BadSignature

_PAUSE_SECONDS = 1.0  # before helpers that could not add up reports are asked again


class HelpedRounds:
    """The coordinator's side of secure sums with helpers, for all rounds."""

    def __init__(
        self, board: Board, registry: Registry, federation: Federation, plan: Plan, say: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._board, self._registry, self._federation, self._say = board, registry, federation, say
        self._names = [entry.place.device for entry in registry.entries("helper")]
        self._keys = tuple(bytes.fromhex(key) for key in federation.helpers)
        self._came: dict[str, bytes] = {}
        self._kind: Kind | None = None
        self._changed = threading.Condition()
        self._stopping = False

    def stop(self) -> None:
        """Wait for nobody any more."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def take(self, helper: str, kind: str, content: bytes) -> None:
        """What a helper says."""
        with self._changed:
            if kind == self._kind:
                self._came[helper] = content
                self._changed.notify_all()

    @property
    def masks_reports(self) -> bool:
        """Whether what devices report is added up like the messages of rounds."""
        return masks_reports(self._plan)

    def open_reports(self) -> bytes:
        """As `open`, for what devices report."""
        return self._open(terms_of_reports(self._plan, self._federation.digest, self._federation.least))

    def open(self, about: Round) -> bytes:
        """Ask every helper for its key of the round; `Away` where one does not come."""
        return self._open(self._terms(about))

    def _open(self, terms: Terms) -> bytes:
        proposal = Proposal(terms, self._keys)
        content = joined(proposal.encode(), self._register())
        said = self._ask("open", terms, content)
        if len(said) < len(self._names):
            raise Away(f"{len(said)} of {len(self._names)} helpers have come: everybody waits for all of them")
        try:
            return HelpedSum(proposal, self._registered()).invite(list(said.values()))
        except (Void, BadMessage, BadSignature) as error:
            raise Away(f"a helper's key cannot be used ({error}): asking again") from None

    def _terms(self, about: Round) -> Terms:
        if isinstance(self._plan.mechanism, SharedSum):
            return terms_of(self._plan, about, self._federation.digest)
        length, number = self._plan.lattice(about).size, number_of_round(self._plan, about.number)
        return Terms(self._federation.digest, number, length, WIDTH, self._federation.least)

    def check(self, invitation: bytes, device: int, message: bytes) -> None:
        """Refuse what this device has not signed for this round."""
        proposal = Invitation.decode(invitation).proposal
        claim, _, _ = read_upload(message, proposal.terms)
        if claim.number != device:
            raise BadMessage("the vector is signed as that of another device")
        check_claim(claim, self._registered(), proposal.session)

    def count(self, invitation: bytes, reports: Sequence[bytes]) -> Offsets:
        """The exact sum of reports; `Away` where it cannot be had yet: no round begins without it."""
        total = self.total(invitation, reports)
        if total is None:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, _PAUSE_SECONDS)
            raise Away("the reports cannot be added up yet: asking the helpers again")
        return total

    def total(self, invitation: bytes, messages: Sequence[bytes]) -> Offsets | None:
        """The exact sum, or None: a helper that is gone, or lies, voids the round."""
        invited = Invitation.decode(invitation)
        adding = HelpedSum(invited.proposal, self._registered(), check_key=invited.check_key)
        try:
            for message in messages:
                adding.receive(message)
            said = self._ask("sum", invited.proposal.terms, adding.request())
            if self._stopping and len(said) < len(self._names):
                raise Away("stopped before all helpers have answered")  # asked again after the next start
            for answer in said.values():
                adding.receive_answer(answer)
            return adding.finish()
        except (Void, BadMessage, BadSignature) as error:
            self._say(str(error))
            return None

    def _ask(self, kind: Kind, terms: Terms, content: bytes) -> dict[str, bytes]:
        seconds, number = self._federation.round_seconds, round_of(self._plan, terms.round_number)
        until = time.monotonic() + seconds
        with self._changed:
            self._came, self._kind = {}, kind
        self._board.publish(kind, number, self._names, content=content, seconds=seconds)
        with self._changed:
            while len(self._came) < len(self._names) and not self._stopping and time.monotonic() < until:
                self._changed.wait(0.5)
            self._kind = None
            said = dict(self._came)
        self._board.withdraw()
        return said

    def _registered(self) -> dict[int, bytes]:
        """The lasting keys of the devices that learn, by their places."""
        entries = self._registry.entries("learner")
        return {entry.place.number: entry.key for entry in entries if entry.key is not None and not entry.revoked}

    def _register(self) -> bytes:
        """The same with what vouches for every key, for helpers, who believe nobody's word."""
        entries = self._registry.entries("learner")
        listed = [
            {"place": entry.place.number, "key": entry.key.hex(), "endorsement": entry.endorsement.hex()}
            for entry in entries
            if entry.key is not None and entry.endorsement is not None and not entry.revoked
        ]
        return json.dumps(listed).encode()
