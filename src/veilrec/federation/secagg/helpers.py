"""Helper-based secure aggregation: a client sends one message, and a few helpers take all masks off together.

    proposal   = server: Proposal(terms, helpers)           what the round is, and which helpers
    key        = helper.open(proposal)                      a key for this round alone, signed
    invitation = server.invite(keys)                        to every device
    upload     = device.upload(invitation, values)          its vector, under a mask for every helper
    request    = server.request()                           whose vectors came, with their signed keys
    answer     = helper.answer(request)                     the sum of its masks on these, once a round
    total      = server.finish()                            exact, or the round is void

Who sees what: the server sees vectors under the masks of all helpers, and the sum. A helper sees who took part, and
no vector. Server and all helpers but one together learn the sum of the devices that the last one was asked for,
and nothing else: one helper who keeps to this suffices. All helpers and the server together see everything.

Devices that drop out cost nothing: whoever's message did not come is not in the request. A helper that does not answer
loses the round. One that answers wrongly is noticed by a check that helpers have no key for (`checksum`), unless it
conspires with a device or with the server; which helper it was the check cannot say, and a device that sends a wrong
check voids the round as well.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from veilrec.core.arrays import Offsets
from veilrec.core.errors import BadInput
from veilrec.federation.secagg.masks import CHECK_KEY_BYTES, MaskStream, RoundKey, agreed_key, check_value, public_half
from veilrec.federation.secagg.terms import MOST_DEVICES, BrokenSum, MessageReader, Terms, TooFew, Void, digest, packed
from veilrec.wire.messages import BadMessage
from veilrec.wire.signing import KEY_BYTES, SIGNATURE_BYTES, SigningKey, check_signature

MOST_HELPERS = 16
ANSWER = b"veilrec helper answer\n"  # what a helper's signature under its answer is for
_CHECK_BYTES = 8
_ONE_WORD = np.dtype("<u8")


@dataclass(frozen=True)
class Proposal:
    """Terms of a round, and the lasting keys of its helpers."""

    terms: Terms
    helpers: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.helpers) <= MOST_HELPERS or len(set(self.helpers)) < len(self.helpers):
            raise BadInput(f"a secure sum has 1 to {MOST_HELPERS} helpers, each with a key of its own")

    @property
    def session(self) -> bytes:
        """Digest that all messages of the round are bound to."""
        return self.terms.session(b"helpers", *self.helpers)

    def encode(self) -> bytes:
        """Encode for the wire."""
        return self.terms.encode() + packed(len(self.helpers)) + b"".join(self.helpers)

    @classmethod
    def read(cls, reader: MessageReader) -> Proposal:
        """Take what `encode` wrote."""
        terms = Terms.read(reader)
        try:
            return cls(terms, tuple(reader.take(KEY_BYTES) for _ in range(reader.count(MOST_HELPERS))))
        except BadInput as error:
            raise BadMessage(str(error)) from None

    @classmethod
    def decode(cls, content: bytes) -> Proposal:
        """Check and read a message."""
        proposal = cls.read(reader := MessageReader(content))
        reader.end()
        return proposal


@dataclass(frozen=True)
class HelperInvitation:
    """What a client needs to take part; helpers do not get the key of the check."""

    proposal: Proposal
    keys: tuple[RoundKey, ...]  # of the helpers, in the proposal's order
    check_key: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Encode for the wire."""
        return self.proposal.encode() + b"".join(key.encode() for key in self.keys) + self.check_key

    @classmethod
    def decode(cls, content: bytes) -> HelperInvitation:
        """Check and read a message; signatures are not looked at yet."""
        proposal = Proposal.read(reader := MessageReader(content))
        keys = tuple(RoundKey.read(reader) for _ in proposal.helpers)
        invitation = cls(proposal, keys, reader.take(CHECK_KEY_BYTES))
        reader.end()
        return invitation

    def check(self) -> None:
        """Refuse keys that are not those of the helpers, each for its own place in this round."""
        for place, (key, helper) in enumerate(zip(self.keys, self.proposal.helpers, strict=True)):
            if key.number != place:
                raise BadMessage(f"the key of helper {place} is given as that of helper {key.number}")
            key.check(helper, self.proposal.session, "helper")


@dataclass(frozen=True)
class MaskRequest:
    """Whose vectors came: what helpers are asked about, devices in the order of their numbers."""

    session: bytes
    round_number: int
    claims: tuple[RoundKey, ...]

    def encode(self) -> bytes:
        """Encode for the wire."""
        claims = b"".join(claim.encode() for claim in self.claims)
        return self.session + packed(self.round_number) + packed(len(self.claims)) + claims

    @classmethod
    def decode(cls, content: bytes) -> MaskRequest:
        """Check and read a message; signatures are not looked at yet."""
        reader = MessageReader(content)
        session, round_number = reader.take(32), reader.count(2**32 - 1)
        request = cls(session, round_number, tuple(RoundKey.read(reader) for _ in range(reader.count(MOST_DEVICES))))
        reader.end()
        numbers = [claim.number for claim in request.claims]
        if any(later <= earlier for earlier, later in pairwise(numbers)):
            raise BadMessage("the devices of a request stand in the order of their numbers, each once")
        return request


class HelperSumClient:
    """A device's side: federation, helpers and how few may be added up it knows from enrolment, not from servers."""

    def __init__(
        self, number: int, identity: SigningKey, *, federation: bytes, helpers: Sequence[bytes], least: int
    ) -> None:
        self.number, self.identity = number, identity
        self.federation, self.helpers, self.least = federation, tuple(helpers), least

    def upload(self, invitation: bytes, values: Offsets) -> bytes:
        """The vector under a mask for every helper; made again it has other masks, so keep it until it has arrived."""
        invited = HelperInvitation.decode(invitation)
        self._agree(invited.proposal)
        invited.check()
        terms, session = invited.proposal.terms, invited.proposal.session
        own = X25519PrivateKey.generate()
        claim = RoundKey.signed(public_half(own), self.identity, session, "device", self.number)
        check, words = check_value(values, invited.check_key), terms.to_words(values)
        for key in invited.keys:
            stream = MaskStream(mask_key(own, key.public, session, key.number, self.number))
            stream.add_to(check)
            stream.add_to(words)
        return b"".join((claim.encode(), check.data, words.data))

    def _agree(self, proposal: Proposal) -> None:
        if proposal.terms.federation != self.federation:
            raise BadInput("the invitation is of another federation: nothing is sent")
        if proposal.helpers != self.helpers:
            raise BadInput("the invitation names other helpers than those that this device knows: nothing is sent")
        if proposal.terms.least < self.least:
            raise BadInput(
                f"the invitation would open the sum of {proposal.terms.least} devices, and this device takes part only "
                f"among {self.least} or more: nothing is sent"
            )


def mask_key(own: X25519PrivateKey, other: bytes, session: bytes, helper: int, device: int) -> bytes:
    """The key of a device's mask for a helper, worked out by either of them."""
    return agreed_key(own, other, b"helper mask", session, packed(helper), packed(device))


class HelperSum:
    """The server's side of one round; the same messages in any order, after a restart too, give the same."""

    def __init__(self, proposal: Proposal, registered: Mapping[int, bytes], *, check_key: bytes | None = None) -> None:
        self.proposal, self._registered = proposal, registered
        self.check_key = os.urandom(CHECK_KEY_BYTES) if check_key is None else check_key
        self._total, self._check = np.zeros(proposal.terms.length, proposal.terms.words), np.zeros(1, _ONE_WORD)
        self._claims: dict[int, RoundKey] = {}
        self._request: bytes | None = None
        self._answered: set[int] = set()

    def invite(self, keys: Sequence[bytes]) -> bytes:
        """Make the invitation to all clients from the helpers' keys; a missing key voids the round."""
        read: dict[int, RoundKey] = {}
        for content in keys:
            key = RoundKey.read(reader := MessageReader(content))
            reader.end()
            read[key.number] = key
        missing = [place for place in range(len(self.proposal.helpers)) if place not in read]
        if missing:
            raise Void(f"no key came from {_named(missing)}: the round cannot begin")
        ordered = tuple(read[place] for place in range(len(self.proposal.helpers)))
        invitation = HelperInvitation(self.proposal, ordered, self.check_key)
        invitation.check()
        return invitation.encode()

    @property
    def arrived(self) -> tuple[int, ...]:
        """The devices whose vectors are in."""
        return tuple(sorted(self._claims))

    def receive(self, upload: bytes) -> int:
        """Add a device's vector up, whatever it is; the number of the device."""
        claim, check, words = read_upload(upload, self.proposal.terms)
        if self._request is not None:
            raise BadMessage("the helpers have been asked already: no vector can be taken in any more")
        if claim.number in self._claims:
            raise BadMessage(f"device {claim.number} has sent a vector already")
        check_claim(claim, self._registered, self.proposal.session)
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
            self._request = MaskRequest(self.proposal.session, self.proposal.terms.round_number, claims).encode()
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
                "the sum does not pass its check: a helper took off other masks than were put on, or a device sent a "
                "wrong check; nothing of the round is used"
            )
        return total


def read_upload(upload: bytes, terms: Terms) -> tuple[RoundKey, np.ndarray, np.ndarray]:
    """Decode an upload: signed key, masked check, masked vector."""
    claim = RoundKey.read(reader := MessageReader(upload))
    check, words = np.frombuffer(reader.take(_CHECK_BYTES), _ONE_WORD), reader.words(terms)
    reader.end()
    return claim, check, words


def check_claim(claim: RoundKey, registered: Mapping[int, bytes], session: bytes) -> None:
    """Refuse a key that no registered device signed for this round."""
    if claim.number not in registered:
        raise BadMessage(f"device {claim.number} is not registered")
    claim.check(registered[claim.number], session, "device")


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
