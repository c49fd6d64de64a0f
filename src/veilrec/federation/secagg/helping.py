"""A helper: makes a key for every round, and gives the sum of its masks for one list of devices, once.

What one honest helper promises to every device
- It answers a round only for devices that are registered, each once, with the keys that they signed for this very
  round, and for as many as the round's terms say and it asks for itself.
- It answers one list a round. What it is about to answer is on disk before it answers, so that no crash and no second
  process makes it answer another one; asked again for the same list, it gives the same answer.
- Its key for a round is made for that round. Once a later round was answered it is gone, and with it what could ever
  open a recorded message.
- A sum of reports is a round like any other, before all of those that learn (`place_of_sum`).

It sees no vector, and needs no trust beyond this. A copy of its folder that is put back after an answer breaks the
promise.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import transaction
from veilrec.core.schema import place_of_sum
from veilrec.federation.secagg.helpers import MaskRequest, Proposal, check_claim, mask_key, signed_answer
from veilrec.federation.secagg.masks import MaskStream, RoundKey, public_half
from veilrec.federation.secagg.terms import digest
from veilrec.wire.signing import SigningKey

MOST_OPEN = 16  # rounds that have a key and no answer yet
_APPLICATION = 0x76656968
_SETTINGS = (
    "PRAGMA locking_mode=EXCLUSIVE",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA fullfsync=ON",
    "PRAGMA secure_delete=ON",
)
_ROUNDS = (
    "CREATE TABLE IF NOT EXISTS rounds (number INTEGER PRIMARY KEY, proposal BLOB NOT NULL, secret BLOB, request BLOB)"
)


class HelperRefusal(VeilrecError):
    """Something that a helper does not do, whoever asks; nothing was revealed."""


class Helper:
    """One helper, in a folder of its own."""

    def __init__(
        self, folder: Path, identity: SigningKey, *, federation: bytes, registered: Mapping[int, bytes], least: int
    ) -> None:
        self.identity, self.federation, self.least = identity, federation, least
        self._registered = registered
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._journal = _Journal(folder / "helper.sqlite")

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def __enter__(self) -> Helper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self, proposal: bytes) -> bytes:
        """A signed key for a round; the same one again for the same proposal."""
        asked = Proposal.decode(proposal)
        place, number = self._place(asked), asked.terms.round_number
        order = place_of_sum(number)
        with self._journal.transaction():
            known = self._journal.round(order)
            if known is None:
                self._refuse_late(order)
                known = _Round(proposal, X25519PrivateKey.generate().private_bytes_raw(), None)
                self._journal.add(order, known)
        if known.proposal != proposal:
            raise HelperRefusal(f"round {number} was opened with other terms: a round has one proposal")
        secret = self._secret(number, known)
        return RoundKey.signed(public_half(secret), self.identity, asked.session, "helper", place).encode()

    def _place(self, asked: Proposal) -> int:
        if asked.terms.federation != self.federation:
            raise HelperRefusal("the proposal is of another federation")
        if asked.terms.least < self.least:
            raise HelperRefusal(
                f"the proposal opens sums of {asked.terms.least} devices: this helper asks for {self.least}"
            )
        if self.identity.public not in asked.helpers:
            raise HelperRefusal("the proposal does not name this helper")
        return asked.helpers.index(self.identity.public)

    def _refuse_late(self, order: int) -> None:
        last, unanswered = self._journal.standing()
        if last is not None and order <= last:
            raise HelperRefusal(f"round {order} is over: round {last} has been answered")
        if unanswered >= MOST_OPEN:
            raise HelperRefusal(f"{unanswered} rounds are open: answer or leave them first, by answering a later one")

    def answer(self, request: bytes) -> bytes:
        """The sum of this helper's masks on the vectors of some devices; a round has one such list."""
        asked = MaskRequest.decode(request)
        number = asked.round_number
        order = place_of_sum(number)
        with self._journal.transaction():
            known = self._journal.round(order)
            if known is None:
                raise HelperRefusal(f"round {number} was never opened")
            proposal = Proposal.decode(known.proposal)
            secret = self._secret(number, known)
            self._check(asked, proposal)
            if known.request not in (None, digest(request)):
                raise HelperRefusal(
                    f"round {number} has been answered for another list of devices: a round has one answer"
                )
            self._journal.settle(order, digest(request))
        self._journal.forget()
        place = proposal.helpers.index(self.identity.public)
        return signed_answer(place, request, _masks(asked, proposal, secret, place), self.identity, proposal.session)

    def _secret(self, number: int, known: _Round) -> X25519PrivateKey:
        if known.secret is None:
            raise HelperRefusal(f"round {number} is over: its key is gone")
        return X25519PrivateKey.from_private_bytes(known.secret)

    def _check(self, asked: MaskRequest, proposal: Proposal) -> None:
        if asked.session != proposal.session:
            raise HelperRefusal(f"the request is of another session than round {asked.round_number}")
        if len(asked.claims) < proposal.terms.least:
            raise HelperRefusal(
                f"the request names {len(asked.claims)} devices: {proposal.terms.least} at least are needed"
            )
        for claim in asked.claims:
            check_claim(claim, self._registered, asked.session)
        if len({self._registered[claim.number] for claim in asked.claims}) < len(asked.claims):
            raise HelperRefusal("two devices of the request are one: they have the same lasting key")


def _masks(asked: MaskRequest, proposal: Proposal, secret: X25519PrivateKey, place: int) -> bytes:
    terms = proposal.terms
    total, check = np.zeros(terms.length, terms.words), np.zeros(1, "<u8")
    for claim in asked.claims:
        stream = MaskStream(mask_key(secret, claim.public, proposal.session, place, claim.number))
        stream.add_to(check)
        stream.add_to(total)
    return check.tobytes() + total.tobytes()


class _Round:
    """What a helper has on disk of a round: its proposal, its key until it is over, and the list it answered."""

    def __init__(self, proposal: bytes, secret: bytes | None, request: bytes | None) -> None:
        self.proposal, self.secret, self.request = proposal, secret, request


class _Journal:
    """SQLite, synced at every commit; one process at a time has it. Sums are numbered by their order."""

    def __init__(self, path: Path) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self._database = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            for setting in _SETTINGS:
                self._database.execute(setting)
            self._database.execute("BEGIN EXCLUSIVE")
            self._database.execute(_ROUNDS)
            self._database.execute(f"PRAGMA application_id={_APPLICATION}")
            self._database.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            self._database.close()
            raise BadInput(f"{path} cannot be used ({error}): is another helper running on it?") from None

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with transaction(self._database):
            yield

    def round(self, number: int) -> _Round | None:
        row = self._database.execute(
            "SELECT proposal, secret, request FROM rounds WHERE number = ?", (number,)
        ).fetchone()
        return None if row is None else _Round(*row)

    def add(self, number: int, known: _Round) -> None:
        self._database.execute("INSERT INTO rounds VALUES (?, ?, ?, NULL)", (number, known.proposal, known.secret))

    def standing(self) -> tuple[int | None, int]:
        """The last round that was answered (None: none), and how many have a key and no answer."""
        (last,) = self._database.execute("SELECT max(number) FROM rounds WHERE request IS NOT NULL").fetchone()
        (waiting,) = self._database.execute(
            "SELECT count(*) FROM rounds WHERE request IS NULL AND secret IS NOT NULL"
        ).fetchone()
        return last, int(waiting)

    def settle(self, number: int, request: bytes) -> None:
        """Write down what is about to be answered, and forget the keys of all rounds before."""
        self._database.execute("UPDATE rounds SET request = ? WHERE number = ?", (request, number))
        self._database.execute("UPDATE rounds SET secret = NULL WHERE number < ?", (number,))

    def forget(self) -> None:
        """Let nothing that was deleted stay in the log of writes."""
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
