"""Sums that the coordinator cannot look into, among devices alone: it carries their secrets from one to the other.

A round has five trips: devices announce keys, share their secrets, send their vectors under masks, sign the list of
those whose vectors came, and reveal what takes the masks off. The vectors are messages like any other, on disk before
they are acknowledged. What was said before them is kept with the round when it opens (`PairSum.kept`); what comes after
them hangs on nothing but the vectors that are on disk. So a coordinator that is killed

- before the vectors asks from the beginning: devices say again what they said, and if others come than before, those
  who have shared their secrets already do not do so twice; too few are left, and the round is void;
- after that asks for the same signatures and the same secrets: a round has one list, and no vector comes after it.

Too few at any trip void the round, before the vectors without a charge to anybody. Reports before the first round are
such a round too; one that is void is followed by another, under a number of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from veilrec._arrays import Offsets
from veilrec.federate.coordinator.board import Asked, Board
from veilrec.federate.coordinator.registry import Registry
from veilrec.federate.coordinator.trips import Trips, keys_of, learners, listed_keys
from veilrec.federate.federation import Federation
from veilrec.federate.secagg.pairs import PairSum
from veilrec.federate.secagg.terms import Void, packed
from veilrec.federate.sums import ATTEMPTS, Summed, terms_in
from veilrec.federate.tasks import Away, Trip, head
from veilrec.plan import Plan
from veilrec.wire.codec import BadMessage
from veilrec.wire.signing import BadSignature

PAIRED_TRIPS: tuple[Trip, ...] = ("advertise", "share", "sign", "reveal")  # and the vectors between them


class PairedRounds:
    """The coordinator's side of secure sums among devices alone, for all rounds and the reports before them."""

    attempts = ATTEMPTS["pairs"]
    waits = False  # whoever was killed on the way has left the sum

    def __init__(
        self, board: Board, registry: Registry, federation: Federation, plan: Plan, say: Callable[[str], None]
    ) -> None:
        self.trips = Trips(board)
        self._registry, self._federation, self._plan, self._say = registry, federation, plan, say
        self._woven = federation.woven()
        entries = registry.entries("learner")
        self._names = {entry.place.number: entry.place.device for entry in entries}
        self._places = {entry.place.device: entry.place.number for entry in entries}
        self._last: tuple[bytes, PairSum] | None = None

    def open(self, about: Summed, cohort: Sequence[str]) -> bytes | None:
        """Keys and shares of those who come: what the round goes on with; None if they are too few."""
        self.trips.down = self.trips.up = 0
        entries = learners(self._registry)
        adding = PairSum(terms_in(self._federation, self._plan, about), self._woven, keys_of(entries))
        try:
            here = [entry.place.device for entry in entries if entry.place.device in set(cohort)]
            self._ask("advertise", about.number, here, adding.receive_advert, content=adding.propose())
            groups = self._named(adding.groups())
            known = head(listed_keys([entry for entry in entries if entry.place.device in groups]))
            self._ask("share", about.number, groups, adding.receive_shares, content=known, own=groups)
            adding.boxes()
        except Void as error:
            self._say(str(error))
            return None
        kept = adding.kept()
        self._last = (kept, adding)
        return kept

    def senders(self, invitation: bytes, cohort: int) -> int:
        """Those who have shared their secrets."""
        return len(self._restored(invitation).boxes())

    def asked(self, invitation: bytes, broadcast: bytes, cohort: Collection[str]) -> Asked:
        """The model, and for everybody the shares that its neighbours have sealed for it."""
        boxes = self._named(self._restored(invitation).boxes())
        return Asked(boxes, head(broadcast), boxes)

    def crossed(self, invitation: bytes, cohort: int) -> tuple[int, int]:
        """The small trips, since this process started, and the shares that travel with the model."""
        boxes = self._restored(invitation).boxes() if invitation else {}
        return self.trips.down + sum(map(len, boxes.values())), self.trips.up

    def check(self, invitation: bytes, device: int, message: bytes) -> None:
        """Refuse what is no vector of this device; under masks no more shows."""
        number, _ = self._restored(invitation).check_masked(message)
        if number != device:
            raise BadMessage("the vector is said to be that of another device")

    def total(self, invitation: bytes, messages: Sequence[bytes]) -> Offsets | None:
        """The exact sum, or None: too few who sign or reveal, or secrets that are wrong, void the round."""
        adding = self._restored(invitation).again()
        number = adding.terms.round_number
        try:
            listed = self._named({adding.receive_masked(message): b"" for message in messages})
            survivors = adding.survivors()
            signed = self._ask("sign", number, listed, adding.receive_signature, content=survivors, at=4)
            self._ask("reveal", number, signed, adding.receive_reveal, content=adding.signatures())
            return adding.finish()
        except (Void, BadMessage, BadSignature) as error:
            self._say(str(error))
            return None

    def _ask(
        self,
        kind: Trip,
        number: int,
        names: Collection[str],
        receive: Callable[[bytes], object],
        *,
        content: bytes,
        own: Mapping[str, bytes] | None = None,
        at: int = 0,
    ) -> dict[str, bytes]:
        """One trip; at byte `at` of what a device says stands its number, which is taken from nobody's word."""

        def take(who: str, said: bytes) -> None:
            if said[at : at + 4] != packed(self._places[who]):
                raise BadMessage("this is said in the name of another device")
            receive(said)

        seconds = self._federation.trip_seconds
        said = self.trips.ask(kind, number, names, content=content, own=own, seconds=seconds, take=take)
        if self.trips.stopping:
            raise Away("stopped in the middle of a secure sum")  # asked again after the next start
        return said

    def _named(self, contents: Mapping[int, bytes]) -> dict[str, bytes]:
        return {self._names[number]: content for number, content in contents.items()}

    def _restored(self, invitation: bytes) -> PairSum:
        """The round before its vectors, to look at; what this process has heard itself it checks once."""
        if self._last is None or self._last[0] != invitation:
            # Whoever was revoked since has said what the others go on with.
            registered = keys_of(self._registry.entries("learner"))
            self._last = (invitation, PairSum.restored(invitation, self._woven, registered))
        return self._last[1]
