"""Pairwise secure aggregation: every two neighbours mask against each other (Bonawitz et al. 2017).

    advert     = client.advertise(terms)        two keys for this round, signed
    shares     = client.share(group)            its secrets, in sealed shares for its neighbours
    masked     = client.mask(boxes, values)     its vector under its own mask and one with every neighbour
    signature  = client.sign(survivors)         under the one list of those whose vectors came
    reveal     = client.reveal(signatures)      shares of seeds of survivors, shares of keys of the others

Masks of two neighbours cancel in the sum. A client that is gone leaves its masks with its neighbours behind: they are
taken off with its key, which its neighbours have in shares. A client that stayed has a mask of its own as well, of a
seed that is in shares too: so its vector stays hidden even if its key were opened because it was only late. Whoever
held both would see the vector. So a client opens one or the other of every neighbour, by one list, and only once a
quorum has signed that list, each client one list a round: `terms` says why there cannot be two.

Beside its boxes a client is told whose shares came, a quorum at least; masks and signatures are for this very list, and
masks for two lists do not cancel. Else a server could hand boxes on within small parts, and open a sum of each. Whoever
masked for another list than the signed one stays hidden by an honest signer on it, whose key nobody reveals: two
quorums have one in common. Nor is a list taken that leaves a sparse ring in parts.

Four messages to the server, one for the signatures, no helper. Neighbours and thresholds come from `terms`. The server
learns the sum of those in the list, also if it lies about who is there. Keys and signatures are bound to the digest of
what everybody acts on, and of the list of those who may take part: whoever was told something else has no neighbour's
key and no quorum's signature that it believes, and reveals nothing. A server that picks whom to leave out by the
order of the ring, knowing who is corrupt, is beyond what is shown, unless everybody is next to everybody. No wrong
sum is taken for a right one: secrets that are not what their owners committed to void the round.

First come the messages as bytes, where odd bytes raise `BadMessage`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from veilrec.core.arrays import Offsets
from veilrec.core.errors import BadInput
from veilrec.federation.secagg.terms import (
    DIGEST_BYTES,
    MAX_CLIENTS,
    SECRET_BYTES,
    SHARE_BYTES,
    BrokenSum,
    MaskStream,
    Message,
    MessageReader,
    Neighbourhood,
    RoundKey,
    Terms,
    TooFew,
    Words,
    agreed_key,
    cohort_digest,
    combine,
    derived_key,
    digest,
    encode_numbers,
    group_of,
    holds_together,
    in_order,
    neighbours,
    packed,
    public_half,
    read_numbers,
    ring,
    ring_of,
    session_of,
    sharing_of,
    split,
    whole,
)
from veilrec.wire.messages import BadMessage, OtherDigest
from veilrec.wire.signing import KEY_BYTES, SIGNATURE_BYTES, SigningKey, check_signature

KEYS = 2  # that a client announces: one for boxes, one for masks
BOX_BYTES = 2 * SHARE_BYTES + 16  # a share of each secret, sealed
COMMITMENT_BYTES = 32
SecretKind = Literal["seed", "key"]
_KINDS: tuple[SecretKind, ...] = ("seed", "key")
_MAX_NUMBER = 2**32 - 1
_BOX, _SIGNATURE, _SHARE = (  # the number of a client, and what belongs to it
    struct.Struct(form) for form in (f"<I{BOX_BYTES}s", f"<I{SIGNATURE_BYTES}s", f"<IB{SHARE_BYTES}s")
)


def decode_advert(content: bytes) -> tuple[RoundKey, bytes]:
    """A client's two keys for the round, and the session that they are signed for."""
    return whole(content, lambda reader: (RoundKey.read(reader, KEYS), reader.take(DIGEST_BYTES)))


@dataclass(frozen=True)
class PairwiseProposal(Message):
    """Terms of a round, and the clients that may take part in it."""

    terms: Terms
    cohort: tuple[int, ...]

    def encode(self) -> bytes:
        """Encode for the wire."""
        return self.terms.encode() + encode_numbers(self.cohort)

    @classmethod
    def read(cls, reader: MessageReader) -> Self:
        """Take what `encode` wrote; a list that the terms do not name is refused."""
        proposal = cls(Terms.read(reader), read_numbers(reader))
        if cohort_digest(proposal.cohort) != proposal.terms.cohort:
            raise BadMessage("the list of clients is not the one that the terms name")
        return proposal


@dataclass(frozen=True)
class Group(Message):
    """The members of a round, and the keys of one client's neighbours."""

    members: tuple[int, ...]
    adverts: tuple[RoundKey, ...]

    def encode(self) -> bytes:
        """Encode for the wire."""
        adverts = b"".join(advert.encode() for advert in self.adverts)
        return encode_numbers(self.members) + packed(len(self.adverts)) + adverts

    @classmethod
    def read(cls, reader: MessageReader) -> Self:
        """Take what `encode` wrote."""
        members = read_numbers(reader)
        return cls(members, tuple(RoundKey.read(reader, KEYS) for _ in range(reader.count(MAX_CLIENTS))))


@dataclass(frozen=True)
class SealedShares(Message):
    """A client's secrets in shares, one sealed box for every neighbour, and what its seed has to be."""

    number: int
    commitment: bytes
    boxes: Mapping[int, bytes]  # by neighbour

    def encode(self) -> bytes:
        """Encode for the wire."""
        return packed(self.number) + self.commitment + encode_parts(self.boxes)

    @classmethod
    def read(cls, reader: MessageReader) -> Self:
        """Take what `encode` wrote."""
        return cls(reader.count(_MAX_NUMBER), reader.take(COMMITMENT_BYTES), read_boxes(reader))


def encode_parts(parts: Mapping[int, bytes]) -> bytes:
    """Encode sealed boxes by the client that they are for, or from, or signatures under one list by client."""
    return packed(len(parts)) + b"".join(packed(number) + parts[number] for number in sorted(parts))


def read_boxes(reader: MessageReader) -> dict[int, bytes]:
    """Take the boxes that `encode_parts` wrote."""
    return in_order(reader.several(_BOX, MAX_CLIENTS))


def encode_masked(number: int, words: Words) -> bytes:
    """A client's vector under all of its masks."""
    return packed(number) + words.tobytes()


def decode_masked(content: bytes, terms: Terms) -> tuple[int, Words]:
    """Check and read a masked vector."""
    return whole(content, lambda reader: (reader.count(_MAX_NUMBER), reader.words(terms)))


def read_signatures(reader: MessageReader) -> dict[int, bytes]:
    """Take signatures under one list; whether they are any good is not looked at yet."""
    return in_order(reader.several(_SIGNATURE, MAX_CLIENTS))


def decode_signatures(content: bytes) -> dict[int, bytes]:
    """Check and read signatures under one list."""
    return whole(content, read_signatures)


@dataclass(frozen=True)
class Reveal(Message):
    """The shares that a client gives up: of the seeds of those who are in the sum, of the keys of the others."""

    number: int
    shares: Mapping[int, tuple[SecretKind, bytes]]  # by the neighbour whose secret it is

    def encode(self) -> bytes:
        """Encode for the wire."""
        parts = (
            packed(owner) + bytes([_KINDS.index(kind)]) + share for owner, (kind, share) in sorted(self.shares.items())
        )
        return packed(self.number) + packed(len(self.shares)) + b"".join(parts)

    @classmethod
    def read(cls, reader: MessageReader) -> Self:
        """Take what `encode` wrote."""
        number = reader.count(_MAX_NUMBER)
        shares = in_order((owner, _share(*told)) for owner, *told in reader.several(_SHARE, MAX_CLIENTS))
        return cls(number, shares)


def _share(kind: int, share: bytes) -> tuple[SecretKind, bytes]:
    if kind >= len(_KINDS):
        raise BadMessage(f"a share is of kind {kind}: there are seeds (0) and keys (1)")
    return _KINDS[kind], share


SURVIVORS = b"veilrec survivors\n"  # what a signature under a list is for


def _commitment(group: bytes, number: int, seed: bytes) -> bytes:
    return digest(b"seed", group, packed(number), seed)


def _own_mask(seed: bytes, sharing: bytes) -> MaskStream:
    return MaskStream(derived_key(seed, b"own mask", sharing))


def _add_pair_mask(
    words: Words, own: X25519PrivateKey, number: int, other: int, other_key: bytes, sharing: bytes
) -> None:
    """The mask of two neighbours: the one with the smaller number adds it, the other takes it off."""
    low, high = sorted((number, other))
    stream = MaskStream(agreed_key(own, other_key, b"pair mask", sharing, packed(low), packed(high)))
    stream.add_to(words, sign=1 if number == low else -1)


class PairwiseSumClient:
    """A client's side of one round; every step is taken once, in order, and a step that fails ends the round for it."""

    def __init__(
        self,
        number: int,
        identity: SigningKey,
        registered: Mapping[int, bytes],
        *,
        federation: bytes,
        neighbourhood: Neighbourhood,
        least: int,
    ) -> None:
        self.number, self.identity, self._registered = number, identity, registered
        self.federation, self.neighbourhood, self.least = federation, neighbourhood, least
        self._step = 0
        self._boxes = b""  # that have been opened

    def _next(self, step: int) -> None:
        if step != self._step + 1:
            self._step = -1
            raise BadInput(f"step {step} of a secure sum does not follow on what this device did: it leaves the round")
        self._step = -1  # until this one is through

    def advertise(self, proposal: bytes) -> bytes:
        """Two keys for the round, if its terms are those that the client takes part under."""
        self._next(1)
        proposed = PairwiseProposal.decode(proposal)
        self.terms, self._cohort = proposed.terms, frozenset(proposed.cohort)
        if self.number not in self._cohort:
            raise BadInput("the round is for others than this device: nothing is sent")
        if self.terms.federation != self.federation:
            raise BadInput("the round is of another federation: nothing is sent")
        if self.terms.least < self.least:
            raise BadInput(
                f"the round would open the sum of {self.terms.least} clients, and this device takes part only among "
                f"{self.least} or more: nothing is sent"
            )
        self._session = session_of(self.terms, self.neighbourhood)
        self._box_key, self._mask_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        public = public_half(self._box_key) + public_half(self._mask_key)
        self._step = 1
        return RoundKey.signed(public, self.identity, self._session, "client", self.number).encode() + self._session

    def share(self, group: bytes) -> bytes:
        """Seed and key in shares for the neighbours, whose signed keys are checked first."""
        self._next(2)
        told = Group.decode(group)
        self._check_group(told)
        self._keys = {advert.number: advert.public for advert in told.adverts}
        self._seed = os.urandom(SECRET_BYTES)
        around = sorted(self._keys)
        points, threshold = [number + 1 for number in around], self.neighbourhood.threshold
        seeds = split(self._seed, threshold, points)
        keys = split(self._mask_key.private_bytes_raw(), threshold, points)
        boxes = {
            other: self._box(other).encrypt(_nonce(self.number), seed + key, self._group)
            for other, seed, key in zip(around, seeds, keys, strict=True)
        }
        self._step = 2
        return SealedShares(self.number, _commitment(self._group, self.number, self._seed), boxes).encode()

    def _check_group(self, told: Group) -> None:
        self._members = told.members
        count, planned = len(told.members), self.neighbourhood.clients
        if count < planned or self.number not in told.members:
            raise TooFew(f"{count} clients take part, this one or not: the round was planned for {planned} with it")
        if len(told.members) > self.neighbourhood.most:
            raise BadMessage(f"{len(told.members)} clients take part: {self.neighbourhood.most} at most can")
        if not set(told.members) <= self._cohort:
            raise BadMessage("somebody who is not in the cohort of this round is said to take part")
        if not set(told.members) <= set(self._registered):
            raise BadMessage("somebody who is not registered is said to take part")
        if len({self._registered[number] for number in told.members}) < len(told.members):
            raise BadMessage("two of those who are said to take part are one: they have the same lasting key")
        self._ring = ring(ring_of(self.terms, self.neighbourhood), told.members)
        around = neighbours(self._ring, self.neighbourhood.degree)[self.number]
        if tuple(advert.number for advert in told.adverts) != around:
            raise BadMessage("the neighbours of this device are not those that the session names")
        for advert in told.adverts:
            advert.check(self._registered[advert.number], self._session, "client")
        self._group = group_of(self._session, told.members)

    def _box(self, other: int) -> ChaCha20Poly1305:
        low, high = sorted((self.number, other))
        key = agreed_key(self._box_key, self._keys[other][:KEY_BYTES], b"box", self._group, packed(low), packed(high))
        return ChaCha20Poly1305(key)

    def ready(self, boxes: bytes, content: bytes) -> None:
        """Open the neighbours' boxes, before anything is learnt from `content` for a sum that it could not be in."""
        if self._step != 2:
            self._next(3)
        self.terms.check_content(content)
        if boxes == self._boxes:
            return
        self._step = -1  # until they are open
        self._shared, sealed = whole(boxes, lambda reader: (read_numbers(reader), read_boxes(reader)))
        self._check_shared(sealed)
        self._held = {other: self._opened(other, box) for other, box in sealed.items()}
        needed = self.neighbourhood.threshold
        if len(self._held) < needed:
            raise TooFew(f"{len(self._held)} neighbours sent shares: {needed} at least are needed")
        self._boxes, self._step = boxes, 2

    def mask(self, boxes: bytes, content: bytes, values: Offsets) -> bytes:
        """The vector under the client's own mask, and one with every neighbour whose shares came."""
        self.ready(boxes, content)
        self._next(3)
        words = self.terms.to_words(values)
        self._sharing = sharing_of(self._group, self._shared)
        _own_mask(self._seed, self._sharing).add_to(words)
        for other in self._held:
            _add_pair_mask(words, self._mask_key, self.number, other, self._keys[other][KEY_BYTES:], self._sharing)
        self._step = 3
        return encode_masked(self.number, words)

    def _check_shared(self, sealed: Mapping[int, bytes]) -> None:
        """Refuse a list of sharers that is too short for a sum, or has other neighbours than the boxes that came."""
        needed = max(self.terms.least, self.neighbourhood.quorum(len(self._members)))
        if len(self._shared) < needed:
            raise TooFew(f"{len(self._shared)} clients are said to have shared secrets: {needed} at least have to")
        if self.number not in self._shared or not set(self._shared) <= set(self._members):
            raise BadMessage("those who are said to have shared their secrets are not members, or not this device")
        if set(sealed) != set(self._keys) & set(self._shared):
            raise BadMessage("the boxes are not the shares of neighbours that are said to have come")
        self._check_ring(self._shared)

    def _check_ring(self, left: Sequence[int]) -> None:
        """Refuse lists that leave the ring in parts, of each of which a sum would open."""
        if not holds_together(self._ring, self.neighbourhood.degree, left):
            raise TooFew("too many neighbours of each other are left out: the others would not be one sum")

    def _opened(self, other: int, box: bytes) -> tuple[bytes, bytes]:
        try:
            shares = self._box(other).decrypt(_nonce(other), box, self._group)
        except InvalidTag:
            raise BadMessage(f"the box from client {other} does not open: it is of another round, or changed") from None
        return shares[:SHARE_BYTES], shares[SHARE_BYTES:]

    def sign(self, survivors: bytes) -> bytes:
        """The client's name under the list of those whose vectors came: it signs one list."""
        self._next(4)
        self._survivors = whole(survivors, read_numbers)
        if len(self._survivors) < self.terms.least:
            raise TooFew(f"{len(self._survivors)} vectors came: sums of {self.terms.least} at least are opened")
        if self.number not in self._survivors or not set(self._survivors) <= set(self._shared):
            raise BadMessage("the list of survivors leaves this device out, or names somebody who took no part")
        self._check_ring(self._survivors)
        self._list = digest(b"survivors", self._sharing, survivors)
        self._step = 4
        return encode_parts({self.number: self.identity.sign(SURVIVORS, self._list)})

    def reveal(self, signatures: bytes) -> bytes:
        """A share of the seed of every neighbour in the list, and of the key of every other one."""
        self._next(5)
        signed, quorum = decode_signatures(signatures), self.neighbourhood.quorum(len(self._members))
        if not set(signed) <= set(self._survivors) or len(signed) < quorum:
            raise TooFew(f"{len(signed)} clients have signed the list: {quorum} of those in it are needed")
        for number, signature in signed.items():
            check_signature(self._registered[number], SURVIVORS, self._list, signature)
        alive = set(self._survivors)
        shares: dict[int, tuple[SecretKind, bytes]] = {
            other: ("seed", seed) if other in alive else ("key", key) for other, (seed, key) in self._held.items()
        }
        return Reveal(self.number, shares).encode()


def _nonce(sender: int) -> bytes:
    return packed(sender) + bytes(8)  # two neighbours have a key of their own, for one box each way


class PairwiseSum:
    """The server's side of one round: passes on, adds up, and takes off the masks that are left."""

    def __init__(
        self, terms: Terms, neighbourhood: Neighbourhood, registered: Mapping[int, bytes], cohort: Sequence[int]
    ) -> None:
        self.terms, self.neighbourhood, self._registered = terms, neighbourhood, registered
        self.cohort = tuple(sorted(cohort))
        self._session = session_of(terms, neighbourhood)
        self._adverts: dict[int, RoundKey] = {}
        self._shares: dict[int, SealedShares] = {}
        self._arrived: set[int] = set()
        self._signed: dict[int, bytes] = {}
        self._reveals: dict[int, Reveal] = {}
        self._total = np.zeros(terms.length, terms.words)
        self._members: tuple[int, ...] = ()
        self._around: dict[int, tuple[int, ...]] = {}
        self._shared: tuple[int, ...] | None = None
        self._boxes: dict[int, bytes] = {}
        self._survivors: tuple[int, ...] | None = None

    def propose(self) -> bytes:
        """Encode terms and cohort for every client."""
        return PairwiseProposal(self.terms, self.cohort).encode()

    def receive_advert(self, content: bytes) -> int:
        """Take a client's keys in."""
        advert, session = decode_advert(content)
        if self._members or advert.number in self._adverts:
            raise BadMessage(f"client {advert.number} comes too late, or a second time")
        if advert.number not in self._registered:
            raise BadMessage(f"client {advert.number} is not registered")
        if advert.number not in self.cohort:
            raise BadMessage(f"client {advert.number} is not in the cohort of this round")
        advert.check(self._registered[advert.number], session, "client")
        if session != self._session:
            raise OtherDigest(f"client {advert.number} enters another round than this one")
        self._adverts[advert.number] = advert
        return advert.number

    def groups(self) -> dict[int, bytes]:
        """Fix the members, and encode for each of them its neighbours' keys."""
        if len(self._adverts) < self.neighbourhood.clients:
            raise TooFew(f"{len(self._adverts)} clients came: the round was planned for {self.neighbourhood.clients}")
        self._members = tuple(sorted(self._adverts))
        self._group = group_of(self._session, self._members)
        order = ring(ring_of(self.terms, self.neighbourhood), self._members)
        self._around = neighbours(order, self.neighbourhood.degree)
        return {
            number: Group(self._members, tuple(self._adverts[other] for other in self._around[number])).encode()
            for number in self._members
        }

    def receive_shares(self, content: bytes) -> int:
        """Take a client's boxes in, to be passed on."""
        shares = SealedShares.decode(content)
        if self._shared is not None or shares.number in self._shares:
            raise BadMessage(f"the shares of client {shares.number} come too late, or a second time")
        if tuple(shares.boxes) != self._around.get(shares.number, ()):
            raise BadMessage(f"client {shares.number} has boxes for others than its neighbours")
        self._shares[shares.number] = shares
        return shares.number

    def boxes(self) -> dict[int, bytes]:
        """Fix who sends a vector, and encode for each of them the boxes of its neighbours."""
        needed = max(self.terms.least, self.neighbourhood.quorum(len(self._members)))
        if len(self._shares) < needed:
            raise TooFew(f"{len(self._shares)} clients have shared their secrets, and {needed} have to stay to the end")
        if self._shared is None:
            self._shared = tuple(sorted(self._shares))
            self._sharing, named = sharing_of(self._group, self._shared), encode_numbers(self._shared)
            for one in self._shared:
                around = (other for other in self._around[one] if other in self._shares)
                self._boxes[one] = named + encode_parts({other: self._shares[other].boxes[one] for other in around})
        return self._boxes

    def kept(self) -> bytes:
        """Encode all messages before the vectors, so that a server that was killed can go on."""
        adverts = b"".join(self._adverts[number].encode() for number in self._members)
        shares = b"".join(self._shares[number].encode() for number in self._shared or ())
        parts = (packed(len(self._members)), adverts, packed(len(self._shared or ())), shares)
        return self.propose() + b"".join(parts)

    @classmethod
    def restored(cls, content: bytes, neighbourhood: Neighbourhood, registered: Mapping[int, bytes]) -> PairwiseSum:
        """Restore a round from what `kept` wrote, before its first vector."""
        proposed = PairwiseProposal.read(reader := MessageReader(content))
        made = cls(proposed.terms, neighbourhood, registered, proposed.cohort)
        for _ in range(reader.count(MAX_CLIENTS)):
            made.receive_advert(RoundKey.read(reader, KEYS).encode() + made._session)
        made.groups()
        for _ in range(reader.count(MAX_CLIENTS)):
            made.receive_shares(SealedShares.read(reader).encode())
        reader.end()
        made.boxes()
        return made

    def again(self) -> PairwiseSum:
        """Copy the round as it was before its first vector, without checking its messages again."""
        made = copy(self)
        made._arrived, made._signed, made._reveals, made._survivors = set(), {}, {}, None
        made._total = np.zeros_like(self._total)
        return made

    def check_masked(self, content: bytes) -> tuple[int, Words]:
        """Whose vector this is, and the vector; one that cannot be added up is refused."""
        number, words = decode_masked(content, self.terms)
        if self._survivors is not None or number in self._arrived or number not in (self._shared or ()):
            raise BadMessage(f"the vector of client {number} comes too late, a second time, or without shares")
        return number, words

    def receive_masked(self, content: bytes) -> int:
        """Add a masked vector up."""
        number, words = self.check_masked(content)
        self._arrived.add(number)
        self._total += words
        return number

    def survivors(self) -> bytes:
        """To everybody whose vector came; no vector is taken in any more."""
        if len(self._arrived) < self.terms.least:
            raise TooFew(f"{len(self._arrived)} vectors came, and sums of {self.terms.least} at least are opened")
        self._survivors = tuple(sorted(self._arrived))
        self._list = digest(b"survivors", self._sharing, encode_numbers(self._survivors))
        return encode_numbers(self._survivors)

    def receive_signature(self, content: bytes) -> int:
        """Take a client's signature under the list in."""
        signed = decode_signatures(content)
        if len(signed) != 1:
            raise BadMessage(f"a client signs once, and this message has {len(signed)} signatures")
        ((number, signature),) = signed.items()
        if number not in (self._survivors or ()):
            raise BadMessage(f"client {number} is not in the list")
        check_signature(self._registered[number], SURVIVORS, self._list, signature)
        self._signed[number] = signature
        return number

    def signatures(self) -> bytes:
        """To everybody who signed: a quorum, and no more than that."""
        quorum = self.neighbourhood.quorum(len(self._members))
        if len(self._signed) < quorum:
            raise TooFew(f"{len(self._signed)} clients signed the list, and {quorum} are needed: the round is void")
        return encode_parts({number: self._signed[number] for number in sorted(self._signed)[:quorum]})

    def signed_by_clients(self) -> tuple[tuple[RoundKey, ...], tuple[int, ...], tuple[int, ...], dict[int, bytes]]:
        """The adverts of all members, those whose shares came, the survivors, and the signatures under their list."""
        adverts = tuple(self._adverts[number] for number in self._members)
        return adverts, self._shared or (), self._survivors or (), dict(sorted(self._signed.items()))

    def receive_reveal(self, content: bytes) -> int:
        """Take the shares that a client gives up in."""
        reveal = Reveal.decode(content)
        if reveal.number not in self._signed or reveal.number in self._reveals:
            raise BadMessage(f"client {reveal.number} reveals a second time, or has not signed the list")
        if not set(reveal.shares) <= set(self._around[reveal.number]):
            raise BadMessage(f"client {reveal.number} reveals shares of others than its neighbours")
        self._reveals[reveal.number] = reveal
        return reveal.number

    def finish(self) -> Offsets:
        """The exact sum of the vectors that came, or `Void`."""
        total = self._total.copy()
        for number in self._survivors or ():
            seed = self._secret(number, "seed")
            if _commitment(self._group, number, seed) != self._shares[number].commitment:
                raise BrokenSum(f"the shares of client {number}'s seed are wrong: the round is void")
            _own_mask(seed, self._sharing).add_to(total, sign=-1)
        for number in self._shared or ():
            if number not in self._arrived:
                self._take_off(total, number)
        return self.terms.from_words(total)

    def _take_off(self, total: Words, number: int) -> None:
        """The masks that a client which is gone has with those who stayed."""
        left = [other for other in self._around[number] if other in self._arrived]
        if not left:
            return
        key = X25519PrivateKey.from_private_bytes(self._secret(number, "key"))
        if public_half(key) != self._adverts[number].public[KEY_BYTES:]:
            raise BrokenSum(f"the shares of client {number}'s key are wrong: the round is void")
        for other in left:
            other_key = self._adverts[other].public[KEY_BYTES:]
            _add_pair_mask(total, key, number, other, other_key, self._sharing)

    def _secret(self, owner: int, kind: SecretKind) -> bytes:
        shares = {
            sender + 1: reveal.shares[owner][1]
            for sender, reveal in self._reveals.items()
            if owner in reveal.shares and reveal.shares[owner][0] == kind
        }
        try:
            return combine(shares, self.neighbourhood.threshold)
        except BadMessage:
            raise BrokenSum(f"the shares of client {owner}'s {kind} are wrong: the round is void") from None
