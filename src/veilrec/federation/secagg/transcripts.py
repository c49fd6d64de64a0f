"""Transcripts of secure sums: what is needed to check later who was counted, and that all had signed the same.

A transcript holds what was said around the vectors, and no vector: terms with the digests of what clients acted on and
of the list of those who may be counted, that list, the claims or adverts of clients with their signatures, and either
the digests of the helpers' answers with their signatures, or the signatures of clients under the list of survivors.
`problems` names what does not hold, one line each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self, TypeAlias

from veilrec.core.errors import VeilrecError
from veilrec.federation.secagg.helpers import (
    ANSWER,
    HelperSum,
    MaskRequest,
    Proposal,
    check_claim,
    read_answer,
    signed_session,
)
from veilrec.federation.secagg.pairs import (
    KEYS,
    SURVIVORS,
    PairwiseProposal,
    PairwiseSum,
    encode_parts,
    read_signatures,
)
from veilrec.federation.secagg.terms import (
    DIGEST_BYTES,
    MAX_CLIENTS,
    Message,
    MessageReader,
    Neighbourhood,
    RoundKey,
    Terms,
    cohort_digest,
    digest,
    encode_numbers,
    group_of,
    packed,
    read_numbers,
    session_of,
    sharing_of,
)
from veilrec.wire.messages import BadMessage
from veilrec.wire.signing import SIGNATURE_BYTES, check_signature

_HELPERS, _PAIRS = b"VRTh", b"VRTp"
_ANSWER = struct.Struct(f"<I{SIGNATURE_BYTES}s{DIGEST_BYTES}s")


@dataclass(frozen=True)
class Known:
    """What whoever checks transcripts knows by itself: from the federation's file and the endorsed keys of clients."""

    federation: bytes
    registered: Mapping[int, bytes]
    least: Callable[[int], int]
    helpers: tuple[bytes, ...]
    woven: Callable[[int], Neighbourhood]


class SignedAnswer(NamedTuple):
    """A helper's answer without its masks."""

    place: int
    signature: bytes
    body: bytes  # digest of it


@dataclass(frozen=True)
class HelperTranscript(Message):
    """A sum that helpers have opened."""

    proposal: Proposal
    request: MaskRequest
    answers: tuple[SignedAnswer, ...]

    @classmethod
    def of(cls, adding: HelperSum, answers: Sequence[bytes]) -> Self:
        """Make the transcript of a sum from the answers of its helpers."""
        request, said = adding.request(), []
        for answer in answers:
            place, body = read_answer(answer, adding.proposal, request)
            said.append(SignedAnswer(place, answer[4 + DIGEST_BYTES :][:SIGNATURE_BYTES], digest(body)))
        return cls(adding.proposal, MaskRequest.decode(request), tuple(sorted(said)))

    @property
    def terms(self) -> Terms:
        """Terms of the sum."""
        return self.proposal.terms

    @property
    def counted(self) -> tuple[int, ...]:
        """The clients in the sum."""
        return tuple(claim.number for claim in self.request.claims)

    def encode(self) -> bytes:
        """Encode for the coordinator's folder."""
        answers = b"".join(_ANSWER.pack(*answer) for answer in self.answers)
        return _HELPERS + self.proposal.encode() + self.request.encode() + packed(len(self.answers)) + answers

    @classmethod
    def read(cls, reader: MessageReader) -> Self:
        """Take what `encode` wrote, behind its first bytes."""
        proposal, request = Proposal.read(reader), MaskRequest.read(reader)
        answers = tuple(SignedAnswer(*fields) for fields in reader.several(_ANSWER, MAX_CLIENTS))
        return cls(proposal, request, answers)

    def problems(self, known: Known) -> Iterator[str]:
        """What does not hold."""
        proposal, request = self.proposal, self.request
        session = signed_session(proposal, request.check)
        yield from _of_terms(self.terms, request.cohort, self.counted, known)
        if proposal.helpers != known.helpers:
            yield "its helpers are not those of the federation"
        if request.session != session:
            yield "the helpers were asked about another digest than that of its terms"
        yield from _of_keys(self.counted, known)
        for claim in request.claims:
            if _fails(lambda claim=claim: check_claim(claim, known.registered, session)):  # type: ignore[misc]
                yield f"client {claim.number} has not signed the digest of this sum"
        about = digest(request.encode())
        for place, helper in enumerate(proposal.helpers):
            said = [answer for answer in self.answers if answer.place == place]
            signed = proposal.session + about + (said[0].body if said else b"")
            if len(said) != 1 or _fails(lambda: check_signature(helper, ANSWER, signed, said[0].signature)):  # noqa: B023
                yield f"helper {place} has not signed an answer for this list"


@dataclass(frozen=True)
class PairwiseTranscript(Message):
    """A sum that clients have opened among themselves."""

    proposal: PairwiseProposal
    adverts: tuple[RoundKey, ...]
    shared: tuple[int, ...]  # whose shares came, for whom the vectors were masked
    survivors: tuple[int, ...]
    signatures: Mapping[int, bytes]

    @classmethod
    def of(cls, adding: PairwiseSum) -> Self:
        """Make the transcript of a sum that was opened."""
        return cls(PairwiseProposal(adding.terms, adding.cohort), *adding.signed_by_clients())

    @property
    def terms(self) -> Terms:
        """Terms of the sum."""
        return self.proposal.terms

    @property
    def counted(self) -> tuple[int, ...]:
        """The clients in the sum."""
        return self.survivors

    def encode(self) -> bytes:
        """Encode for the coordinator's folder."""
        adverts = packed(len(self.adverts)) + b"".join(advert.encode() for advert in self.adverts)
        signed = encode_numbers(self.shared) + encode_numbers(self.survivors) + encode_parts(self.signatures)
        return _PAIRS + self.proposal.encode() + adverts + signed

    @classmethod
    def read(cls, reader: MessageReader) -> Self:
        """Take what `encode` wrote, behind its first bytes."""
        proposal = PairwiseProposal.read(reader)
        adverts = tuple(RoundKey.read(reader, KEYS) for _ in range(reader.count(MAX_CLIENTS)))
        return cls(proposal, adverts, read_numbers(reader), read_numbers(reader), read_signatures(reader))

    def problems(self, known: Known) -> Iterator[str]:
        """What does not hold."""
        woven = known.woven(self.terms.round_number)
        session, members = session_of(self.terms, woven), tuple(advert.number for advert in self.adverts)
        yield from _of_terms(self.terms, self.proposal.cohort, self.counted, known)
        listed = (self.survivors, self.shared, members, self.proposal.cohort)
        if any(not set(few) <= set(more) for few, more in pairwise(listed)) or len(members) < woven.clients:
            yield f"{len(members)} clients entered it: too few, or not those who may be counted"
        yield from _of_keys(members, known)
        for advert in self.adverts:
            key = known.registered.get(advert.number, bytes(32))
            if _fails(lambda: advert.check(key, session, "client")):  # noqa: B023
                yield f"client {advert.number} has not signed the digest of this sum"
        sharing = sharing_of(group_of(session, members), self.shared)
        told = digest(b"survivors", sharing, encode_numbers(self.survivors))
        signers = set(self.signatures) & set(self.survivors)
        for number, signature in self.signatures.items():
            key = known.registered.get(number, bytes(32))
            if number not in self.survivors or _fails(lambda: check_signature(key, SURVIVORS, told, signature)):  # noqa: B023
                signers.discard(number)
                yield f"client {number} has not signed its list"
        if len(signers) < woven.quorum(len(members)):
            yield f"{len(signers)} clients have signed its list, and {woven.quorum(len(members))} have to"


Transcript: TypeAlias = HelperTranscript | PairwiseTranscript


def decode_transcript(content: bytes) -> Transcript:
    """Read a transcript; anything odd raises `BadMessage`."""
    reader = MessageReader(content)
    magic = reader.take(len(_HELPERS))
    if magic not in (_HELPERS, _PAIRS):
        raise BadMessage("these bytes are no transcript of a secure sum")
    found: Transcript = HelperTranscript.read(reader) if magic == _HELPERS else PairwiseTranscript.read(reader)
    reader.end()
    return found


def _of_terms(terms: Terms, cohort: Sequence[int], counted: Sequence[int], known: Known) -> Iterator[str]:
    least = known.least(terms.round_number)
    if terms.federation != known.federation:
        yield "its terms are of another federation, or of another federation.yaml"
    if min(terms.least, len(counted)) < least:
        yield f"it is over {len(counted)} clients, and its terms open sums of {terms.least}: {least} are needed"
    if cohort_digest(cohort) != terms.cohort:
        yield "its list of clients is not the one whose digest was signed"
    if not set(counted) <= set(cohort):
        yield "clients are counted who are not on its list"


def _of_keys(numbers: Sequence[int], known: Known) -> Iterator[str]:
    strangers = sorted(set(numbers) - set(known.registered))
    if strangers:
        yield f"clients {', '.join(map(str, strangers))} have no key that an invitation endorses"
    keys = [known.registered[number] for number in numbers if number in known.registered]
    if len(set(keys)) < len(keys):
        yield "two of its clients are one: they have the same lasting key"


def _fails(check: Callable[[], object]) -> bool:
    try:
        check()
    except VeilrecError:
        return True
    return False
