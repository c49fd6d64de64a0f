"""Reports that the server must not see: they are added up under masks, and one sum of them is opened.

1. A sum is opened: what devices get for it (the invitation) is on disk before anybody gets it.
2. Devices answer; what they send is on disk before it is acknowledged.
3. The list of those whose answers came is fixed: the stage `counting`, on disk before anybody is asked to open the sum,
   because whoever opens it answers one list for good. From then on no answer is taken.
4. The sum is opened, gets the noise of its period, and becomes the tally, in one transaction that forgets the answers.

Killed anywhere a coordinator goes on at the same step: with the same invitation, the same list, and so the same sum and
the same noise. A sum that cannot be had any more released nothing, and no noise was used: devices are asked anew
under another number, as often as `SecureSum.attempts` says, and the noise of a period is still used once. What a
device tells is the same, and it has paid for the one release that comes of it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from veilrec.core.arrays import Doubles, Offsets
from veilrec.core.errors import VeilrecError, counted
from veilrec.core.schema import ReportSum
from veilrec.privacy.mechanisms.reports import ItemReports
from veilrec.privacy.randomness import Source
from veilrec.server.coordinator_parts import SecureSum
from veilrec.server.round_store import RoundState, RoundStore, RunPosition


class SecureReports:
    """The sum of a run's reports, in a coordinator's store.

    `lock` is the coordinator's; it is held for a transition, and never while others are waited for.
    """

    def __init__(self, store: RoundStore, secure: SecureSum, mechanism: ItemReports, lock: threading.RLock) -> None:
        self._store, self._secure, self._mechanism, self._lock = store, secure, mechanism, lock

    @property
    def about(self) -> ReportSum:
        """The sum that devices are asked for."""
        return ReportSum(self._store.place.attempt)

    @property
    def invitation(self) -> bytes:
        """Invitation that clients get for the sum; empty before it is begun."""
        return self._store.invitation() or b""

    def open(self, devices: Sequence[str]) -> None:
        """Begin a sum unless one has begun; one that cannot begin leaves no invitation, and the next is another."""
        with self._lock:
            if self.invitation:
                return
            about = self.about
        made = self._secure.open(about, devices)  # a network wait: nothing is held
        with self._lock:
            if made is None:
                self._give_up(devices)
                return
            with self._store.transaction():
                self._store.set_invitation(made)

    def check(self, device: int, message: bytes) -> None:
        """Refuse what is no answer of this device; under masks no more shows."""
        self._secure.check(self.invitation, device, message)

    def fix(self) -> None:
        """No answer is taken from now on."""
        store = self._store
        place = replace(store.place, stage=RoundState.SUMMING_REPORTS)
        with store.transaction():
            store.move(place)
        store.place = place

    def count(self, devices: Sequence[str], noise: Source) -> bool:
        """Open the sum of those in the list and keep it with its noise; False: it cannot be had, and is begun anew."""
        with self._lock:
            invitation, messages = self.invitation, list(self._store.contents("reports"))
        total = self._secure.total(invitation, messages)  # a network wait: nothing is held
        with self._lock:
            if total is None:
                self._give_up(devices)
                return False
            self._release(self._mechanism.protect(self._checked(total), noise), devices)
            return True

    def _checked(self, total: Offsets) -> Offsets:
        if total.shape != (self._mechanism.length,):
            raise VeilrecError(f"a sum of reports has shape {total.shape}: there are {self._mechanism.length} items")
        return total

    def _release(self, counts: Doubles, devices: Sequence[str]) -> None:
        store = self._store
        came, _ = store.amount("reports")
        place = replace(self._crossed(devices), stage=RoundState.REPORTING)
        with store.transaction():
            store.set_tally(counts, came)
            store.empty("reports")
            store.set_invitation(b"")
            store.move(place)
        store.place = place

    def _give_up(self, devices: Sequence[str]) -> None:
        store, attempt = self._store, self.about.attempt + 1
        if attempt >= self._secure.attempts:
            most = counted(self._secure.attempts, "time")
            raise VeilrecError(
                f"what devices report cannot be added up, and they tell it {most} at most: make the federation anew"
            )
        place = replace(self._crossed(devices), stage=RoundState.REPORTING, attempt=attempt)
        with store.transaction():
            store.empty("reports")
            store.set_invitation(b"")
            store.move(place)
        store.place = place

    def _crossed(self, devices: Sequence[str]) -> RunPosition:
        """The place with what this sum has cost the network."""
        place, (_, size) = self._store.place, self._store.amount("reports")
        told, said = self._secure.crossed(self.invitation, len(devices))
        return replace(place, report_bytes=place.report_bytes + size + said, told_bytes=place.told_bytes + told)
