"""Sums that the coordinator cannot look into: helpers, who come over the same way as devices, take the masks off.

A round that a helper loses is void. Reports before the first round wait for all helpers: their list is fixed, and a
helper that comes back says of it what it would have said.

What helpers say is kept nowhere: asked again about the same round, they say the same. What devices got (`invitation`)
and what they sent is in the coordinator's database, so that a coordinator that was killed goes on with both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

from veilrec._arrays import Offsets
from veilrec.federate.coordinator.board import Asked, Board
from veilrec.federate.coordinator.registry import Registry
from veilrec.federate.coordinator.trips import Trips, keys_of, learners, listed_keys
from veilrec.federate.federation import Federation
from veilrec.federate.secagg.helpers import HelpedSum, Invitation, Proposal, check_claim, read_upload
from veilrec.federate.secagg.terms import Void
from veilrec.federate.sums import ATTEMPTS, Summed, terms_in
from veilrec.federate.tasks import Away, Trip, joined
from veilrec.plan import Plan
from veilrec.updates import FIRST_REPORT_SUM
from veilrec.wire.codec import BadMessage
from veilrec.wire.signing import BadSignature

_decoded = lru_cache(maxsize=2)(Invitation.decode)  # every message of a round is checked by the same one


class HelpedRounds:
    """The coordinator's side of secure sums with helpers, for all rounds and the reports before them."""

    attempts = ATTEMPTS["helpers"]
    waits = True  # whoever has not sent a vector can still do so, however late

    def __init__(
        self, board: Board, registry: Registry, federation: Federation, plan: Plan, say: Callable[[str], None]
    ) -> None:
        self.trips = Trips(board)
        self._registry, self._federation, self._plan, self._say = registry, federation, plan, say
        self._names = [entry.place.device for entry in registry.entries("helper")]
        self._keys = tuple(bytes.fromhex(key) for key in federation.helpers)

    def open(self, about: Summed, cohort: Sequence[str]) -> bytes:
        """Ask every helper for its key of the round; `Away` where one does not come."""
        proposal = Proposal(terms_in(self._federation, self._plan, about), self._keys)
        content = joined(proposal.encode(), listed_keys(learners(self._registry)))
        said = self._ask("open", about.number, content)
        if len(said) < len(self._names):
            raise Away(f"{len(said)} of {len(self._names)} helpers have come: the round waits for all of them")
        try:
            return HelpedSum(proposal, self._registered()).invite(list(said.values()))
        except (Void, BadMessage, BadSignature) as error:
            raise Away(f"a helper's key cannot be used ({error}): asking again") from None

    def senders(self, invitation: bytes, cohort: int) -> int:
        """Everybody."""
        return cohort

    def asked(self, invitation: bytes, broadcast: bytes, cohort: Collection[str]) -> Asked:
        """The invitation and the model, the same for all."""
        return Asked(cohort, joined(invitation, broadcast))

    def crossed(self, invitation: bytes, cohort: int) -> tuple[int, int]:
        """The invitation, to everybody; what helpers say is not counted among devices."""
        return cohort * len(invitation), 0

    def check(self, invitation: bytes, device: int, message: bytes) -> None:
        """Refuse what this device has not signed for this round."""
        proposal = _decoded(invitation).proposal
        claim, _, _ = read_upload(message, proposal.terms)
        if claim.number != device:
            raise BadMessage("the vector is signed as that of another device")
        check_claim(claim, self._registered(), proposal.session)

    def total(self, invitation: bytes, messages: Sequence[bytes]) -> Offsets | None:
        """The exact sum, or None: a helper that is gone, or lies, voids the round."""
        invited, everybody = _decoded(invitation), self._registry.entries("learner")
        number = invited.proposal.terms.round_number
        # Whoever was revoked since has sent a vector that counts.
        adding = HelpedSum(invited.proposal, keys_of(everybody), check_key=invited.check_key)
        try:
            for message in messages:
                adding.receive(message)
            said = self._ask("sum", number, joined(adding.request(), listed_keys(everybody)))
            if len(said) < len(self._names) and (self.trips.stopping or number >= FIRST_REPORT_SUM):
                raise Away(f"{len(said)} of {len(self._names)} helpers have answered: they are asked the same again")
            for answer in said.values():
                adding.receive_answer(answer)
            return adding.finish()
        except (Void, BadMessage, BadSignature) as error:
            self._say(str(error))
            return None

    def _ask(self, kind: Trip, number: int, content: bytes) -> dict[str, bytes]:
        seconds = self._federation.round_seconds
        return self.trips.ask(kind, number, self._names, content=content, seconds=seconds)

    def _registered(self) -> dict[int, bytes]:
        return keys_of(learners(self._registry))
