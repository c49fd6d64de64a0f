"""Parts of both secure aggregation protocols: terms of a round, masks with a check of sums, and the mask graph.

Terms
-----
What everybody of a round has agreed to before the first message. A session is the digest of all of it. Every key, every
signature and every box of a round is bound to its session, so that nothing of one round, one federation or one way of
adding up can be used in another. Terms name the digest of what clients act on, round spec and weights exactly as
they were received, and of the list of clients that may be counted: so whoever acted on something else, whom a server
told something else, is in another session, and no sum opens over two.

Masks
-----
Two sides agree on them, by signed keys, and nobody else can tell them from noise.

Agreement: X25519, then HKDF-SHA256 bound to the session and to both sides. Mask: AES-256 in counter mode under a key
that is used for one vector of one round, added in the ring of 32 or 64 bits. Every word of a mask is uniform and
independent of the others, up to what it takes to break AES-256: a masked vector is as good as noise.

Check: one number more beside every vector, so that a wrong sum is noticed. Server and clients share a key that helpers
do not have. It names two vectors a and b of 64-bit words. A client reads its numbers as a matrix X, row by row, and
sends a' X b modulo 2^64 along, under masks like everything else. The sum of these is a' S b for the sum S of all
matrices: it tells whoever knows S and the key nothing new. That needs one key for all: clients sign a digest of it,
and helpers take masks off only where all have signed the same.

Whoever changes the sum by E and the check by e, without the key, passes if a' E b = e. Take a row of E that is not
zero, and in it the entry that 2 divides least often, v times. With uniform b the row's product is uniform among the
multiples of 2^v; 2 divides it exactly w times with probability 2^-(w - v + 1), and it is 0 with 2^-(64 - v). With
uniform a, a multiple of exactly 2^w takes any value with probability 2^-(64 - w) at most. All together at most

    sum over w = v..63 of 2^-(w - v + 1) 2^-(64 - w), and 2^-(64 - v)  =  (66 - v) / 2 * 2^-(64 - v).

Two sums that fit in q bits differ by less than 2^q, so that v is below q: 2^-28 for q = 32. See `missed`.

Shares of secrets
-----------------
Shamir's: a polynomial over the least prime above 2^256 whose value at 0 is the secret, one value of it for every share.

Mask graph
----------
Who masks with whom in the pairwise protocol: a ring in an order that the session names, everybody with the nearest k of
it. How large k and the threshold t of the shares have to be, among n clients of which at most c are corrupt (they tell
the server all that they hold) and of which g do not answer at the end. The order is that of digests bound to the
session, so that to whoever chose the corrupt and the lost before, neighbours are a random choice: hypergeometric.

- Nobody's secrets open early: fewer than t of a client's neighbours are corrupt, for all clients but with chance
  n P[H(n-1, c, k) >= t].
- The sum stays one: without the corrupt and the lost, the ring holds together. Its remaining clients are connected
  unless two disjoint runs of k/2 places are empty: chance at most n (n-1) / 2 times that of k given places.
- The round succeeds: of every client's neighbours at least t answer, but with chance n P[H(n-1, n-1-g, k) < t].
- No two lists of survivors are signed: each takes more than (n + c) / 2 signatures, and honest clients give one.

A round may begin with any number of clients from `clients` to `most`. The same c is fewer of more, and the same part
of more is found by k given places more often: so the first line is taken at the fewest, times the most, the second at
the most with as large a part missing as at the fewest, and the third at both.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import ceil, comb
from typing import Any, Literal, Self, TypeAlias, TypeVar

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from veilrec.core.arrays import Offsets
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.wire.messages import BadMessage, Declined
from veilrec.wire.signing import KEY_BYTES, SIGNATURE_BYTES, SigningKey, check_signature

FEDERATION_BYTES = 32
MAX_NUMBERS = 1 << 27  # of a vector
MAX_CLIENTS = 1 << 20  # of a round
DIGEST_BYTES = 32
_TERMS = struct.Struct(f"<4s32sIIBI{DIGEST_BYTES}s{DIGEST_BYTES}s")
_MAGIC = b"VRS2"
_NUMBER = struct.Struct("<I")
_OF_NOTHING = bytes(DIGEST_BYTES)  # no content and no list has this digest

Words: TypeAlias = NDArray[np.unsignedinteger[Any]]  # of 32 bits or of 64


class Void(VeilrecError):
    """A round is lost: no sum comes out of it, and nothing of anybody is revealed."""

    exit_code = 1


class TooFew(Void):
    """Fewer clients than the round needs are left."""


class BrokenSum(Void):
    """The sum is not that of the vectors that were sent: a participant deviated from the protocol."""


class MessageReader:
    """Reads a received message from the front; missing or trailing bytes raise `BadMessage`."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = memoryview(content), 0

    def _view(self, count: int) -> memoryview:
        if count < 0 or count > len(self._content) - self._at:
            raise BadMessage(f"the message ends after {len(self._content)} bytes, in the middle of something")
        self._at += count
        return self._content[self._at - count : self._at]

    def take(self, count: int) -> bytes:
        """The next so many bytes."""
        return bytes(self._view(count))

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        """Read the next fields."""
        return form.unpack(self._view(form.size))

    def several(self, form: struct.Struct, most: int) -> Iterator[tuple[Any, ...]]:
        """Read a count, and then as many groups of fields."""
        return form.iter_unpack(self._view(self.count(most) * form.size))

    def count(self, most: int) -> int:
        """A number of things that follow."""
        value = int.from_bytes(self._view(4), "little")
        if value > most:
            raise BadMessage(f"the message announces {value} parts: there can be {most} at most")
        return value

    def words(self, terms: Terms) -> Words:
        """A vector of the round."""
        return np.frombuffer(self._view(terms.vector_bytes), terms.words)

    def end(self) -> None:
        """Check that nothing follows."""
        if self._at != len(self._content):
            raise BadMessage(f"the message goes on for {len(self._content) - self._at} bytes behind its end")


Read = TypeVar("Read")


def whole(content: bytes, read: Callable[[MessageReader], Read]) -> Read:
    """Read a message that has nothing behind its end."""
    value = read(reader := MessageReader(content))
    reader.end()
    return value


class Message:
    """Base of the messages of a round: what `encode` wrote, `read` takes from the front of some bytes."""

    @classmethod
    def read(cls, reader: MessageReader) -> Self:
        """Read a message that others may follow; signatures are not looked at yet."""
        raise NotImplementedError

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Check and read a message; signatures are not looked at yet."""
        return whole(content, cls.read)


@dataclass(frozen=True)
class Terms(Message):
    """A round of a federation: how many numbers are added up, how large, and of how many clients at least."""

    federation: bytes
    round_number: int
    length: int  # numbers in a vector
    width: int  # bits that hold every number of the sum, its sign included; up to 32 they travel as 32, else as 64
    least: int  # clients without which no sum is opened
    content: bytes = _OF_NOTHING  # digest of what clients act on, as they receive it
    cohort: bytes = _OF_NOTHING  # digest of the list of clients that may be counted

    def __post_init__(self) -> None:
        if len(self.federation) != FEDERATION_BYTES:
            raise BadInput(f"the id of a federation has {FEDERATION_BYTES} bytes, and this one {len(self.federation)}")
        if {len(self.content), len(self.cohort)} != {DIGEST_BYTES}:
            raise BadInput(f"the digests of content and cohort have {DIGEST_BYTES} bytes each")
        for name, value, low, high in (
            ("round_number", self.round_number, 0, 2**32 - 1),
            ("length", self.length, 1, MAX_NUMBERS),
            ("width", self.width, 2, 64),
            ("least", self.least, 2, MAX_CLIENTS),
        ):
            if not low <= value <= high:
                raise BadInput(f"{name} of a secure sum is {value}: it lies from {low} to {high}")

    @property
    def words(self) -> np.dtype[np.unsignedinteger[Any]]:
        """Data type of a number on the wire."""
        return np.dtype("<u4") if self.width <= 32 else np.dtype("<u8")

    @property
    def vector_bytes(self) -> int:
        """Size of a vector in bytes."""
        return self.length * self.words.itemsize

    def encode(self) -> bytes:
        """Encode for the wire and for the session digest."""
        sizes = (self.round_number, self.length, self.width, self.least)
        return _TERMS.pack(_MAGIC, self.federation, *sizes, self.content, self.cohort)

    def about(self, content: bytes, cohort: Sequence[int]) -> Terms:
        """Return these terms for what clients act on, and for those who may be counted."""
        return replace(self, content=digest(content), cohort=cohort_digest(cohort))

    def check_content(self, content: bytes) -> None:
        """Refuse to act on other bytes than those that everybody of the sum acts on."""
        if digest(content) != self.content:
            raise Declined("another digest", "what came to be acted on is not what the terms of the sum name")

    @classmethod
    def read(cls, reader: MessageReader) -> Self:
        """Take what `encode` wrote."""
        magic, *fields = reader.unpack(_TERMS)
        if magic != _MAGIC:
            raise BadMessage("these bytes do not begin as the terms of a secure sum do")
        try:
            return cls(*fields)
        except BadInput as error:
            raise BadMessage(str(error)) from None

    def session(self, protocol: bytes, *details: bytes) -> bytes:
        """The digest that everything of the round is bound to."""
        return digest(b"veilrec secure sum", protocol, self.encode(), *details)

    def to_words(self, values: Offsets) -> Words:
        """Whole numbers as they travel; a copy."""
        if values.dtype != np.int64 or values.shape != (self.length,):
            raise BadInput(
                f"the vector has type {values.dtype} and shape {values.shape}: this round adds up {self.length} int64"
            )
        return values.astype(self.words, casting="unsafe")

    def from_words(self, total: Words) -> Offsets:
        """A sum with its sign; one that does not fit the width is refused."""
        signed = total.view("<i4" if self.words.itemsize == 4 else "<i8").astype(np.int64)
        limit = 1 << (self.width - 1)
        if self.width < 64 and (int(signed.max()) >= limit or int(signed.min()) < -limit):
            raise BrokenSum(
                f"the sum has a number beyond {self.width} bits: a client sent too much, a helper answered wrongly, or "
                "the width was chosen too small; nothing of the round is used"
            )
        return signed


def digest(*parts: bytes) -> bytes:
    """SHA-256 of some byte strings, each with its length, so that no two lists of them meet."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "little"))
        sha.update(part)
    return sha.digest()


def packed(count: int) -> bytes:
    """A number of things, or of a client, as `MessageReader.count` takes it."""
    return count.to_bytes(4, "little")


Value = TypeVar("Value")


def encode_numbers(numbers: Sequence[int]) -> bytes:
    """A list of clients, ascending."""
    return packed(len(numbers)) + b"".join(map(packed, numbers))


def read_numbers(reader: MessageReader) -> tuple[int, ...]:
    """Take what `encode_numbers` wrote."""
    return tuple(in_order((number, None) for (number,) in reader.several(_NUMBER, MAX_CLIENTS)))


def in_order(pairs: Iterable[tuple[int, Value]]) -> dict[int, Value]:
    """Map values by number; numbers have to rise, so that there is one encoding."""
    read: dict[int, Value] = {}
    last = -1
    for number, value in pairs:
        if number <= last:
            raise BadMessage(f"client {number} follows client {last}: clients are listed in order, each once")
        last, read[number] = number, value
    return read


def cohort_digest(cohort: Sequence[int]) -> bytes:
    """Digest the list of clients that may be counted in a sum."""
    return digest(b"cohort", encode_numbers(sorted(cohort)))


ROUND_KEY = b"veilrec round key\n"  # what a signature of a round key is for
Role = Literal["helper", "client"]
_BLOCK = 16  # bytes of AES
_PIECE = 1 << 18  # bytes at a time, so that stream and vector stay in the cache
_ZEROS = memoryview(bytes(_PIECE))


@dataclass(frozen=True)
class RoundKey(Message):
    """Public key of a client or helper for one round, signed by its lasting key."""

    number: int  # of the client, or of the helper
    public: bytes
    signature: bytes

    @classmethod
    def signed(cls, public: bytes, identity: SigningKey, session: bytes, role: Role, number: int) -> RoundKey:
        """Sign a round key with the lasting key of its owner."""
        return cls(number, public, identity.sign(ROUND_KEY, _said(session, role, number, public)))

    def check(self, identity: bytes, session: bytes, role: Role) -> None:
        """Refuse one that the lasting key did not sign for this session and role."""
        check_signature(identity, ROUND_KEY, _said(session, role, self.number, self.public), self.signature)

    def encode(self) -> bytes:
        """Encode for the wire."""
        return packed(self.number) + self.public + self.signature

    @classmethod
    def read(cls, reader: MessageReader, keys: int = 1) -> Self:
        """Take what `encode` wrote; some announce several keys at once."""
        number = reader.count(2**32 - 1)
        return cls(number, reader.take(keys * KEY_BYTES), reader.take(SIGNATURE_BYTES))

    @staticmethod
    def size(keys: int = 1) -> int:
        """Size of an encoded key in bytes."""
        return 4 + keys * KEY_BYTES + SIGNATURE_BYTES


def _said(session: bytes, role: Role, number: int, public: bytes) -> bytes:
    return session + role.encode().ljust(8) + packed(number) + public


def public_half(secret: X25519PrivateKey) -> bytes:
    """Public half of a round key."""
    return secret.public_key().public_bytes_raw()


def agreed_key(own: X25519PrivateKey, other: bytes, *about: bytes) -> bytes:
    """A key that only the two sides can work out, of 32 bytes, for the use that `about` names."""
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise BadMessage("a round key is no key to agree by: nothing is masked with it") from None
    return derived_key(shared, *about)


def derived_key(secret: bytes, *about: bytes) -> bytes:
    """HKDF-SHA256: one secret, a key for every use."""
    info = b"".join(len(part).to_bytes(4, "little") + part for part in about)
    return HKDF(hashes.SHA256(), 32, None, info).derive(secret)


class MaskStream:
    """The words of one mask, in order; a key makes one stream, and a stream is used once."""

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK))).encryptor()
        self._buffer = bytearray(_PIECE + _BLOCK - 1)

    def add_to(self, total: Words, *, sign: Literal[1, -1] = 1) -> None:
        """Put the next words on a vector, or take them off, in place."""
        combine = np.add if sign == 1 else np.subtract
        step = _PIECE // total.itemsize
        for start in range(0, len(total), step):
            part = total[start : start + step]
            self._stream.update_into(_ZEROS[: part.nbytes], self._buffer)
            combine(part, np.frombuffer(self._buffer, total.dtype, len(part)), out=part)


CHECK_KEY_BYTES = 32


def missed(width: int) -> float:
    """Upper bound on the chance that a wrong sum of numbers of `width` bits passes the check, made without its key.

    Proof. Let D be the error of the sum, laid out as a matrix, and 2^a the largest power of two that divides all of
    it; a <= v, since |D| < 2^width. With D = 2^a D' and n = 64 - a, it passes if left' D' right = 0 mod 2^n. A row of
    D' has an odd entry, so its product with `right` is uniform: it is divisible by exactly 2^b with chance 2^-(b+1),
    and by 2^n with 2^-n. Given that, left' D' right is uniform over the multiples of 2^c mod 2^n for some c <= b, and
    0 with chance 2^-(n-c) <= 2^-(n-b). Altogether n 2^-(n+1) + 2^-n = (n + 2) / 2 2^-n, which grows with a, to
    (66 - v) / 2 2^-(64 - v).
    """
    v = width - 1
    return (66 - v) / 2 * 2.0 ** -(64 - v)


def check_value(values: Offsets, key: bytes) -> NDArray[np.uint64]:
    """The check of a vector, or of a sum of vectors: one word."""
    columns = math.isqrt(len(values) - 1) + 1
    rows = -(-len(values) // columns)
    factors = np.zeros(rows + columns, np.uint64)
    MaskStream(key).add_to(factors)
    left, right = factors[:rows], factors[rows:]
    words = values.view(np.uint64)
    whole = len(values) // columns
    products = np.zeros(rows, np.uint64)
    products[:whole] = words[: whole * columns].reshape(whole, columns) @ right
    rest = words[whole * columns :]
    if len(rest):
        products[whole] = rest @ right[: len(rest)]
    return np.array([left @ products], "<u8")


PRIME = 2**256 + 297  # the least prime above 2^256: every 32-byte secret is an element
SECRET_BYTES, SHARE_BYTES = 32, 33


def split(secret: bytes, threshold: int, points: Sequence[int]) -> list[bytes]:
    """A share for every point: a random polynomial of degree `threshold` - 1 whose value at 0 is the secret."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= len(points):
        raise BadInput(f"the threshold is {threshold} with {len(points)} shares: it is at least 1 and at most all")
    if len(set(points)) < len(points) or not all(0 < point < PRIME for point in points):
        raise ValueError("the points of shares are distinct and not 0")
    # 40 bytes modulo the prime are uniform to 2^-63.
    coefficients = [int.from_bytes(os.urandom(40), "big") % PRIME for _ in range(threshold - 1)]
    constant = int.from_bytes(secret, "big")
    shares = []
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = (value * point + coefficient) % PRIME
        shares.append(((value * point + constant) % PRIME).to_bytes(SHARE_BYTES, "big"))
    return shares


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret of at least `threshold` shares, by point; what is no secret raises."""
    points = tuple(sorted(shares))[:threshold]
    if len(points) < threshold:
        raise TooFew(f"{len(points)} shares came, and {threshold} are needed: the round is void, nothing is revealed")
    weights = _weights_at_zero(points)
    value = sum(w * int.from_bytes(shares[x], "big") for w, x in zip(weights, points, strict=True)) % PRIME
    if value >> (8 * SECRET_BYTES):
        raise BadMessage("some shares belong to no secret")
    return value.to_bytes(SECRET_BYTES, "big")


@lru_cache(maxsize=4096)
def _weights_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights of the values at these points in the value at 0."""
    weights = []
    for i, x in enumerate(points):
        top = bottom = 1
        for j, other in enumerate(points):
            if j != i:
                top = top * other % PRIME
                bottom = bottom * (other - x) % PRIME
        weights.append(top * pow(bottom, -1, PRIME) % PRIME)
    return tuple(weights)


_ROUNDING = 1e-9  # of a share that is written in decimals
LEAK = 2.0**-40  # chance that anything but the sum opens in a round
FAILURE = 1e-3  # chance that a round with as many lost as planned for has to be given up


@dataclass(frozen=True)
class Neighbourhood:
    """Parameters of the mask graph of a round, known to every client from enrolment."""

    clients: int  # n: that a round begins with, at least
    degree: int  # k: of every client, an even number, or everybody else
    threshold: int  # t: shares that open a secret
    corrupt: int  # c: at most
    most: int = MAX_CLIENTS  # that a round begins with

    def quorum(self, members: int) -> int:
        """Number of signatures under a list of survivors that clients require before they reveal shares."""
        return (members + self.corrupt) // 2 + 1

    def encode(self) -> bytes:
        """Encode for the session digest."""
        return b"".join(packed(part) for part in (self.clients, self.degree, self.threshold, self.corrupt, self.most))


@lru_cache(maxsize=64)
def choose(clients: int, *, corrupt: float, lost: float, most: int | None = None) -> Neighbourhood:
    """The smallest degree, and its smallest threshold, for these shares of corrupt and lost clients.

    Rounds begin with `clients` or more, up to `most`; of the most, that share may be corrupt.
    """
    most = clients if most is None else most
    if not 3 <= clients <= most or not 0.0 <= corrupt < 1.0 or not 0.0 <= lost < 1.0:
        raise BadInput(
            f"{clients} clients, {corrupt} corrupt, {lost} lost: give 3 or more, and shares from 0 to below 1"
        )
    bad = ceil(corrupt * most - _ROUNDING)
    for members in (clients, most):
        gone = _part(lost, members)
        if (members + bad) // 2 + 1 > members - gone:
            raise BadInput(
                f"of {members} clients {bad} may be corrupt and {gone} be lost: more than half of all, and half as many"
                " as the corrupt beyond that, have to stay to the end; plan for fewer, or use helpers"
            )
    missing = -(-(bad + _part(lost, clients)) * most // clients)
    for degree in range(4, clients - 1, 2):
        threshold = _threshold(clients, bad, degree, LEAK / most)
        if threshold is None or comb(most, 2) * comb(missing, degree) / comb(most, degree) > LEAK:
            continue
        if all(most * _left(n, _part(lost, n), degree, threshold) <= FAILURE for n in (clients, most)):
            return Neighbourhood(clients, degree, threshold, bad, most)
    # Everybody next to everybody: nothing is left to chance, and those of the quorum are enough to open secrets.
    return Neighbourhood(clients, most - 1, bad + 1, bad, most)


def _part(share: float, clients: int) -> int:
    return int(share * clients + _ROUNDING)


def _left(clients: int, gone: int, degree: int, threshold: int) -> float:
    """Probability that too few of a client's neighbours answer at the end."""
    here = clients - 1 - gone
    return sum(_exactly(x, clients - 1, here, degree) for x in range(min(threshold, here + 1)))


def _threshold(clients: int, bad: int, degree: int, leak: float) -> int | None:
    """The smallest t with P[corrupt neighbours >= t] <= leak."""
    reach = 0.0
    for count in range(min(degree, bad), -1, -1):
        reach += _exactly(count, clients - 1, bad, degree)
        if reach > leak:
            return count + 1 if count < degree else None
    return 1


def _exactly(count: int, people: int, marked: int, drawn: int) -> float:
    return comb(marked, count) * comb(people - marked, drawn - count) / comb(people, drawn)


def session_of(terms: Terms, neighbourhood: Neighbourhood) -> bytes:
    """Digest that the keys of a round are bound to."""
    return terms.session(b"pairs", neighbourhood.encode())


def ring_of(terms: Terms, neighbourhood: Neighbourhood) -> bytes:
    """Digest that orders the ring, of nothing that the server could vary to choose neighbours."""
    return digest(b"ring", terms.federation, packed(terms.round_number), neighbourhood.encode())


def group_of(session: bytes, members: tuple[int, ...]) -> bytes:
    """Digest that all later messages are bound to, once the members are known."""
    return digest(b"group", session, encode_numbers(members))


def sharing_of(group: bytes, shared: tuple[int, ...]) -> bytes:
    """Digest that masks and signatures are bound to: of the members, and of those whose shares came."""
    return digest(b"shared", group, encode_numbers(shared))


def ring(session: bytes, members: Sequence[int]) -> list[int]:
    """The order of the members on the ring; everybody works out the same."""
    return sorted(members, key=lambda number: digest(b"place", session, packed(number)))


def neighbours(order: Sequence[int], degree: int) -> dict[int, tuple[int, ...]]:
    """Everybody's neighbours on a ring."""
    n, half = len(order), degree // 2
    if degree >= n - 1:
        return {one: tuple(sorted(other for other in order if other != one)) for one in order}
    return {
        one: tuple(sorted(order[(place + step) % n] for step in range(-half, half + 1) if step))
        for place, one in enumerate(order)
    }


def holds_together(order: Sequence[int], degree: int, left: Collection[int]) -> bool:
    """Whether those who are left are one part of the ring, in which everybody is linked to everybody."""
    there = set(left)
    places = [place for place, one in enumerate(order) if one in there]
    if degree >= len(order) - 1 or not places:
        return True
    steps = (later - earlier for earlier, later in pairwise([*places, places[0] + len(order)]))
    return sum(step > degree // 2 for step in steps) < 2
