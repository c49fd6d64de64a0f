"""Helper-based secure aggregation: a client sends one message, and a few helpers take all masks off together.

    proposal   = server: Proposal(terms, helpers)           what the round is, and which helpers
    key        = helper.open(proposal)                      a key for this round alone, signed
    invitation = server.invite(keys)                        to every client
    upload     = client.update(invitation, values)          its vector, under a mask for every helper
    request    = server.request()                           whose vectors came, with their signed keys
    answer     = helper.answer(request)                     the sum of its masks on these, once a round
    total      = server.finish()                            exact, or the round is void

Who sees what: the server sees vectors under the masks of all helpers, and the sum. A helper sees who took part, and
no vector. Server and all helpers but one together learn the sum of the clients that the last one was asked for,
and nothing else: one helper who keeps to this suffices. All helpers and the server together see everything.

Clients that drop out cost nothing: whoever's message did not come is not in the request. A helper that does not answer
loses the round. One that answers wrongly is noticed by a check that helpers have no key for (`terms.check_value`),
unless it conspires with a client or with the server; which helper it was the check cannot say, and a client that sends
a wrong check voids the round as well.

What one honest helper promises to every client
- It answers a round only for clients that are registered, each once, with the keys that they signed for this very
  round, and for as many as the round's terms say and it asks for itself.
- What they signed names what they acted on: the session is the digest of the terms, of round spec and weights as they
  came, of the list of clients that may be counted, and of the helpers. The helper gets that list, and counts nobody
  who is not on it. A key of a helper is for one session a round, so that nobody masks for another one.
- With it they signed a digest of the check's key: all who are counted have the same one. Checks under two keys would
  add up to more than the sum tells, and be read as what a single client sent.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from veilrec.core.arrays import Offsets
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import Closing, transaction
from veilrec.core.schema import place_of_sum
from veilrec.federation.secagg.terms import (
    CHECK_KEY_BYTES,
    DIGEST_BYTES,
    MAX_CLIENTS,
    BrokenSum,
    MaskStream,
    Message,
    MessageReader,
    RoundKey,
    Terms,
    TooFew,
    Void,
    agreed_key,
    check_value,
    cohort_digest,
    digest,
    encode_numbers,
    packed,
    public_half,
    read_numbers,
)
from veilrec.wire.messages import BadMessage, OtherDigest
from veilrec.wire.signing import KEY_BYTES, SIGNATURE_BYTES, SigningKey, check_signature

MAX_HELPERS = 16
ANSWER = b"veilrec helper answer\n"  # what a helper's signature under its answer is for
_CHECK_BYTES = 8
_ONE_WORD = np.dtype("<u8")


@dataclass(frozen=True)
class Proposal(Message):
    """Terms of a round, and the lasting keys of its helpers."""

    terms: Terms
    helpers: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.helpers) <= MAX_HELPERS or len(set(self.helpers)) < len(self.helpers):
            raise BadInput(f"a secure sum has 1 to {MAX_HELPERS} helpers, each with a key of its own")

    @property
    def session(self) -> bytes:
        """Digest that all messages of the round are bound to."""
        return self.terms.session(b"helpers", *self.helpers)

    def encode(self) -> bytes:
        """Encode for the wire."""
        return self.terms.encode() + packed(len(self.helpers)) + b"".join(self.helpers)

    @classmethod
    def read(cls, reader: MessageReader) -> Self:
        """Take what `encode` wrote."""
        terms = Terms.read(reader)
        try:
            return cls(terms, tuple(reader.take(KEY_BYTES) for _ in range(reader.count(MAX_HELPERS))))
        except BadInput as error:
            raise BadMessage(str(error)) from None


@dataclass(frozen=True)
class HelperInvitation(Message):
    """What a client needs to take part; helpers get a digest of the check's key, and not the key."""

    proposal: Proposal
    keys: tuple[RoundKey, ...]  # of the helpers, in the proposal's order
    check_key: bytes = field(repr=False)

    @property
    def session(self) -> bytes:
        """What clients sign: the proposal's session, and the check's key, which is the same for all of them."""
        return signed_session(self.proposal, check_digest(self.check_key))

    def encode(self) -> bytes:
        """Encode for the wire."""
        return self.proposal.encode() + b"".join(key.encode() for key in self.keys) + self.check_key

    @classmethod
    def read(cls, reader: MessageReader) -> Self:
        """Take what `encode` wrote."""
        proposal = Proposal.read(reader)
        return cls(proposal, tuple(RoundKey.read(reader) for _ in proposal.helpers), reader.take(CHECK_KEY_BYTES))

    def check(self) -> None:
        """Refuse keys that are not those of the helpers, each for its own place in this round."""
        for place, (key, helper) in enumerate(zip(self.keys, self.proposal.helpers, strict=True)):
            if key.number != place:
                raise BadMessage(f"the key of helper {place} is given as that of helper {key.number}")
            key.check(helper, self.proposal.session, "helper")


def check_digest(key: bytes) -> bytes:
    """Digest of the check's key, which tells nothing of it."""
    return digest(b"check key", key)


def signed_session(proposal: Proposal, check: bytes) -> bytes:
    """What the clients of a sum sign, by the digest of the check's key that all of them have."""
    return digest(b"signed session", proposal.session, check)


@dataclass(frozen=True)
class MaskRequest(Message):
    """Whose vectors came: what helpers are asked about, clients in the order of their numbers."""

    session: bytes  # the one digest that all of them have signed
    check: bytes  # digest of the check's key, which is part of it
    round_number: int
    cohort: tuple[int, ...]  # the clients that may be counted
    claims: tuple[RoundKey, ...]

    def encode(self) -> bytes:
        """Encode for the wire."""
        claims = b"".join(claim.encode() for claim in self.claims)
        head = self.session + self.check + packed(self.round_number) + encode_numbers(self.cohort)
        return head + packed(len(self.claims)) + claims

    @classmethod
    def read(cls, reader: MessageReader) -> Self:
        """Take what `encode` wrote."""
        session, check = reader.take(DIGEST_BYTES), reader.take(DIGEST_BYTES)
        round_number, cohort = reader.count(2**32 - 1), read_numbers(reader)
        claims = tuple(RoundKey.read(reader) for _ in range(reader.count(MAX_CLIENTS)))
        request = cls(session, check, round_number, cohort, claims)
        numbers = [claim.number for claim in request.claims]
        if any(later <= earlier for earlier, later in pairwise(numbers)):
            raise BadMessage("the clients of a request stand in the order of their numbers, each once")
        return request


class HelperSumClient:
    """A client's side: federation, helpers and how few may be added up it knows from enrolment, not from servers."""

    def __init__(
        self, number: int, identity: SigningKey, *, federation: bytes, helpers: Sequence[bytes], least: int
    ) -> None:
        self.number, self.identity = number, identity
        self.federation, self.helpers, self.least = federation, tuple(helpers), least

    def invited(self, invitation: bytes, content: bytes) -> HelperInvitation:
        """Check an invitation, and that it is for these bytes to act on."""
        invited = HelperInvitation.decode(invitation)
        self._agree(invited.proposal)
        invited.proposal.terms.check_content(content)
        invited.check()
        return invited

    def update(self, invitation: bytes, content: bytes, values: Offsets) -> bytes:
        """The vector under a mask for every helper; made again it has other masks, so keep it until it has arrived.

        `content` is what the client has acted on, as it came.
        """
        invited = self.invited(invitation, content)
        terms, session = invited.proposal.terms, invited.proposal.session
        own = X25519PrivateKey.generate()
        claim = RoundKey.signed(public_half(own), self.identity, invited.session, "client", self.number)
        check, words = check_value(values, invited.check_key), terms.to_words(values)
        for key in invited.keys:
            stream = MaskStream(mask_key(own, key.public, session, key.number, self.number))
            stream.add_to(check)
            stream.add_to(words)
        return b"".join((claim.encode(), invited.session, check.data, words.data))

    def _agree(self, proposal: Proposal) -> None:
        if proposal.terms.federation != self.federation:
            raise BadInput("the invitation is of another federation: nothing is sent")
        if proposal.helpers != self.helpers:
            raise BadInput("the invitation names other helpers than those that this device knows: nothing is sent")
        if proposal.terms.least < self.least:
            raise BadInput(
                f"the invitation would open the sum of {proposal.terms.least} clients, and this device takes part only "
                f"among {self.least} or more: nothing is sent"
            )


def mask_key(own: X25519PrivateKey, other: bytes, session: bytes, helper: int, client: int) -> bytes:
    """The key of a client's mask for a helper, worked out by either of them."""
    return agreed_key(own, other, b"helper mask", session, packed(helper), packed(client))


class HelperSum:
    """The server's side of one round; the same messages in any order, after a restart too, give the same."""

    def __init__(
        self,
        proposal: Proposal,
        registered: Mapping[int, bytes],
        cohort: Sequence[int],
        *,
        check_key: bytes | None = None,
    ) -> None:
        self.proposal, self._registered, self.cohort = proposal, registered, tuple(sorted(cohort))
        self.check_key = os.urandom(CHECK_KEY_BYTES) if check_key is None else check_key
        self._session = signed_session(proposal, check_digest(self.check_key))
        self._total, self._check = np.zeros(proposal.terms.length, proposal.terms.words), np.zeros(1, _ONE_WORD)
        self._claims: dict[int, RoundKey] = {}
        self._request: bytes | None = None
        self._answered: set[int] = set()

    def invite(self, keys: Sequence[bytes]) -> bytes:
        """Make the invitation to all clients from the helpers' keys; a missing key voids the round."""
        read = {key.number: key for key in map(RoundKey.decode, keys)}
        missing = [place for place in range(len(self.proposal.helpers)) if place not in read]
        if missing:
            raise Void(f"no key came from {_named(missing)}: the round cannot begin")
        ordered = tuple(read[place] for place in range(len(self.proposal.helpers)))
        invitation = HelperInvitation(self.proposal, ordered, self.check_key)
        invitation.check()
        return invitation.encode()

    @property
    def arrived(self) -> tuple[int, ...]:
        """The clients whose vectors are in."""
        return tuple(sorted(self._claims))

    def receive(self, update: bytes) -> int:
        """Add a client's vector up, whatever it is; the number of the client."""
        claim, session, check, words = read_update(update, self.proposal.terms)
        if self._request is not None:
            raise BadMessage("the helpers have been asked already: no vector can be taken in any more")
        if claim.number in self._claims:
            raise BadMessage(f"client {claim.number} has sent a vector already")
        check_update(claim, session, self._registered, self._session)
        if claim.number not in self.cohort:
            raise BadMessage(f"client {claim.number} is not in the cohort of this sum")
        self._claims[claim.number] = claim
        self._total += words
        self._check += check
        return claim.number

    def request(self) -> bytes:
        """Make the request to all helpers; from then on no vector is taken in."""
        least = self.proposal.terms.least
        if len(self._claims) < least:
            raise TooFew(
                f"{len(self._claims)} vectors came, and sums of {least} at least are opened: the round is void"
            )
        if self._request is None:
            claims = tuple(self._claims[number] for number in self.arrived)
            check, number = check_digest(self.check_key), self.proposal.terms.round_number
            self._request = MaskRequest(self._session, check, number, self.cohort, claims).encode()
        return self._request

    def receive_answer(self, answer: bytes) -> int:
        """Take the masks of a helper off; its place."""
        if self._request is None:
            raise BadMessage("no helper has been asked yet")
        place, body = read_answer(answer, self.proposal, self._request)
        if place in self._answered:
            raise BadMessage(f"helper {place} has answered already")
        self._check -= np.frombuffer(body[:_CHECK_BYTES], _ONE_WORD)
        self._total -= np.frombuffer(body, self.proposal.terms.words, offset=_CHECK_BYTES)
        self._answered.add(place)
        return place

    def finish(self) -> Offsets:
        """The exact sum of the vectors that came, or `Void`."""
        missing = sorted(set(range(len(self.proposal.helpers))) - self._answered)
        if missing:
            raise Void(f"no answer came from {_named(missing)}: the round is void, and nothing of anybody is revealed")
        total = self.proposal.terms.from_words(self._total)
        if check_value(total, self.check_key) != self._check:
            raise BrokenSum(
                "the sum does not pass its check: a helper took off other masks than were put on, or a client sent a "
                "wrong check; nothing of the round is used"
            )
        return total


def read_update(update: bytes, terms: Terms) -> tuple[RoundKey, bytes, np.ndarray, np.ndarray]:
    """Decode an update: signed key, the session that it is signed for, masked check, masked vector."""
    claim = RoundKey.read(reader := MessageReader(update))
    session = reader.take(DIGEST_BYTES)
    check, words = np.frombuffer(reader.take(_CHECK_BYTES), _ONE_WORD), reader.words(terms)
    reader.end()
    return claim, session, check, words


def check_update(claim: RoundKey, said: bytes, registered: Mapping[int, bytes], session: bytes) -> None:
    """Refuse an update of another session; `OtherDigest` if its client has signed that it acted on something else."""
    check_claim(claim, registered, said)
    if said != session:
        raise OtherDigest(f"client {claim.number} has acted on something else than what this sum is about")


def check_claim(claim: RoundKey, registered: Mapping[int, bytes], session: bytes) -> None:
    """Refuse a key that no registered client signed for this round."""
    if claim.number not in registered:
        raise BadMessage(f"client {claim.number} is not registered")
    claim.check(registered[claim.number], session, "client")


def signed_answer(place: int, request: bytes, body: bytes, identity: SigningKey, session: bytes) -> bytes:
    """A helper's sum of masks, with its name under it."""
    about = digest(request)
    return packed(place) + about + identity.sign(ANSWER, session + about + digest(body)) + body


def read_answer(answer: bytes, proposal: Proposal, request: bytes) -> tuple[int, bytes]:
    """Which helper answered, and the masked check and vector that it takes off."""
    reader = MessageReader(answer)
    place, about, signature = reader.count(2**32 - 1), reader.take(32), reader.take(SIGNATURE_BYTES)
    body = reader.take(_CHECK_BYTES + proposal.terms.vector_bytes)
    reader.end()
    if place >= len(proposal.helpers):
        raise BadMessage(f"an answer comes from helper {place}: there are {len(proposal.helpers)}")
    if about != digest(request):
        raise BadMessage(f"helper {place} has answered another request")
    check_signature(proposal.helpers[place], ANSWER, proposal.session + about + digest(body), signature)
    return place, body


def _named(places: Sequence[int]) -> str:
    return f"helper{'s' if len(places) > 1 else ''} {', '.join(map(str, places))}"


JOURNAL = "helper.sqlite"  # in a helper's folder
MAX_OPEN = 16  # rounds that have a key and no answer yet
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
    """A request that a helper refuses; nothing was revealed."""


class Helper(Closing):
    """One helper, in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        identity: SigningKey,
        *,
        federation: bytes,
        registered: Mapping[int, bytes],
        least: Callable[[int], int],
    ) -> None:
        """Open a helper's folder; `least` says of the number of a sum how few clients it may be over."""
        self.identity, self.federation, self.least = identity, federation, least
        self._registered = registered
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._journal = _Journal(folder / JOURNAL)

    def close(self) -> None:
        """Close the journal."""
        self._journal.database.close()

    def open(self, proposal: bytes) -> bytes:
        """A signed key for a round; the same one again for the same proposal."""
        asked = Proposal.decode(proposal)
        place, number = self._place(asked), asked.terms.round_number
        order = place_of_sum(number)
        with transaction(self._journal.database):
            known = self._journal.round(order)
            if known is None:
                self._refuse_late(order)
                known = _Round(proposal, X25519PrivateKey.generate().private_bytes_raw())
                self._journal.database.execute("INSERT INTO rounds VALUES (?, ?, ?, ?)", (order, *known))
        if known.proposal != proposal:
            raise HelperRefusal(f"round {number} was opened with other terms: a round has one proposal")
        secret = self._secret(number, known)
        return RoundKey.signed(public_half(secret), self.identity, asked.session, "helper", place).encode()

    def _place(self, asked: Proposal) -> int:
        if asked.terms.federation != self.federation:
            raise HelperRefusal("the proposal is of another federation")
        if asked.terms.least < (least := self.least(asked.terms.round_number)):
            raise HelperRefusal(f"the proposal opens sums of {asked.terms.least} clients: this helper asks for {least}")
        if self.identity.public not in asked.helpers:
            raise HelperRefusal("the proposal does not name this helper")
        return asked.helpers.index(self.identity.public)

    def _refuse_late(self, order: int) -> None:
        last, unanswered = self._journal.progress()
        if last is not None and order <= last:
            raise HelperRefusal(f"round {order} is over: round {last} has been answered")
        if unanswered >= MAX_OPEN:
            raise HelperRefusal(f"{unanswered} rounds are open: answer or leave them first, by answering a later one")

    def answer(self, request: bytes) -> bytes:
        """The sum of this helper's masks on the vectors of some clients; a round has one such list."""
        asked = MaskRequest.decode(request)
        number = asked.round_number
        order = place_of_sum(number)
        with transaction(self._journal.database):
            known = self._journal.round(order)
            if known is None:
                raise HelperRefusal(f"round {number} was never opened")
            proposal = Proposal.decode(known.proposal)
            secret = self._secret(number, known)
            self._check(asked, proposal)
            if known.request not in (None, digest(request)):
                raise HelperRefusal(
                    f"round {number} has been answered for another list of clients: a round has one answer"
                )
            self._journal.settle(order, digest(request))
        self._journal.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # nothing that was deleted stays in the log
        place = proposal.helpers.index(self.identity.public)
        return signed_answer(place, request, _masks(asked, proposal, secret, place), self.identity, proposal.session)

    def _secret(self, number: int, known: _Round) -> X25519PrivateKey:
        if known.secret is None:
            raise HelperRefusal(f"round {number} is over: its key is gone")
        return X25519PrivateKey.from_private_bytes(known.secret)

    def _check(self, asked: MaskRequest, proposal: Proposal) -> None:
        if asked.session != signed_session(proposal, asked.check):
            raise HelperRefusal(f"the request is of another session than round {asked.round_number}")
        if len(asked.claims) < proposal.terms.least:
            raise HelperRefusal(
                f"the request names {len(asked.claims)} clients: {proposal.terms.least} at least are needed"
            )
        if cohort_digest(asked.cohort) != proposal.terms.cohort:
            raise HelperRefusal("the request has another list of clients than the one whose digest all have signed")
        cohort = frozenset(asked.cohort)
        for claim in asked.claims:
            if claim.number not in cohort:
                raise HelperRefusal(f"client {claim.number} is not on the list of those who may be counted")
        for claim in asked.claims:
            check_claim(claim, self._registered, asked.session)
        if len({self._registered[claim.number] for claim in asked.claims}) < len(asked.claims):
            raise HelperRefusal("two clients of the request are one: they have the same lasting key")


def _masks(asked: MaskRequest, proposal: Proposal, secret: X25519PrivateKey, place: int) -> bytes:
    terms = proposal.terms
    total, check = np.zeros(terms.length, terms.words), np.zeros(1, "<u8")
    for claim in asked.claims:
        stream = MaskStream(mask_key(secret, claim.public, proposal.session, place, claim.number))
        stream.add_to(check)
        stream.add_to(total)
    return check.tobytes() + total.tobytes()


class _Round(NamedTuple):
    """What a helper has on disk of a round: its proposal, its key until it is over, and the list it answered."""

    proposal: bytes
    secret: bytes | None
    request: bytes | None = None


class _Journal:
    """SQLite, synced at every commit; one process at a time has it. Sums are numbered by their order."""

    def __init__(self, path: Path) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self.database = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            for setting in _SETTINGS:
                self.database.execute(setting)
            self.database.execute("BEGIN EXCLUSIVE")
            self.database.execute(_ROUNDS)
            self.database.execute(f"PRAGMA application_id={_APPLICATION}")
            self.database.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            self.database.close()
            raise BadInput(f"{path} cannot be used ({error}): is another helper running on it?") from None

    def round(self, number: int) -> _Round | None:
        query = "SELECT proposal, secret, request FROM rounds WHERE number = ?"
        row = self.database.execute(query, (number,)).fetchone()
        return None if row is None else _Round(*row)

    def progress(self) -> tuple[int | None, int]:
        """The last round that was answered (None: none), and how many have a key and no answer."""
        (last,) = self.database.execute("SELECT max(number) FROM rounds WHERE request IS NOT NULL").fetchone()
        (waiting,) = self.database.execute(
            "SELECT count(*) FROM rounds WHERE request IS NULL AND secret IS NOT NULL"
        ).fetchone()
        return last, int(waiting)

    def settle(self, number: int, request: bytes) -> None:
        """Write down what is about to be answered, and forget the keys of all rounds before."""
        self.database.execute("UPDATE rounds SET request = ? WHERE number = ?", (request, number))
        self.database.execute("UPDATE rounds SET secret = NULL WHERE number < ?", (number,))
