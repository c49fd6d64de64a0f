"""A coordinator that deviates from the protocol, against the clients and helpers of a real federation, in one process.

The federation is made by `federate init`; its clients are opened from their own folders, and answer bytes by the code
that answers them over a network. What the coordinator sends is made here, and may be anything: another model for every
client, other terms, another cohort, a round that is over, keys of its own. Whatever a client or helper raises is a
refusal, and is recorded with its reason. Nothing is retried, and nothing of a client is looked at but its answers.

All clients draw their noise from one secret (a rehearsal), so that a seed gives the same findings again; masks and keys
are the machine's own, and cancel in every sum that opens.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from veilrec.client.federated import FederatedClient
from veilrec.core.arrays import Floats, Offsets
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import Closing
from veilrec.core.schema import ReportSum, RoundSpec, part_of_model, place_of_sum, whole_model
from veilrec.federation.client import folder as client_folder
from veilrec.federation.client.process import HelperMaskedAnswers, MaskedAnswers, PairwiseMaskedAnswers
from veilrec.federation.facts import FederationFacts, Summed, terms_in
from veilrec.federation.federation import CLIENTS, HELPERS, FederationTask, TaskKind, joined, parted
from veilrec.federation.helper import HelperAnswers
from veilrec.federation.identity import Invitation, identity_of, listed, read_invitation
from veilrec.federation.secagg.helpers import (
    Helper,
    HelperSum,
    MaskRequest,
    Proposal,
    mask_key,
    read_answer,
    read_update,
    signed_answer,
)
from veilrec.federation.secagg.pairs import PairwiseProposal, PairwiseSum, decode_advert
from veilrec.federation.secagg.terms import MaskStream, RoundKey, Terms, Words
from veilrec.wire import rounds
from veilrec.wire.messages import OtherDigest
from veilrec.wire.signing import SigningKey

Model: TypeAlias = Mapping[str, Floats]
_CHECK_KEY = bytes(32)  # the same in every sum, so that messages of one pass the check of another
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class Refusal:
    """Something that a client, a helper or the protocol itself did not do, and why."""

    by: str
    why: str


@dataclass
class HostileSum:
    """What came of one sum that a hostile coordinator asked for."""

    total: Offsets | None = None
    updates: dict[int, bytes] = field(default_factory=dict)  # what clients sent, under masks
    refusals: list[Refusal] = field(default_factory=list)

    def tried(self, by: str, action: Callable[P, T], *given: P.args, **named: P.kwargs) -> T | None:
        """What an action gives, or None where it is refused."""
        try:
            return action(*given, **named)
        except VeilrecError as error:
            self.refusals.append(Refusal(by, str(error)))
            return None


class _Silent:
    """Clients of the coordinator: they follow the protocol, and send zeros without noise, so that a sum holds nothing
    of them. A client that tells the coordinator its update and noise comes to the same: they are subtracted."""

    def _masked(self, spec: Summed, given: bytes, content: bytes, values: Offsets) -> bytes:
        return super()._masked(spec, given, content, np.zeros_like(values))  # type: ignore[misc,no-any-return]


class SilentHelperAnswers(_Silent, HelperMaskedAnswers):
    """A client of the coordinator in helper-based sums."""


class SilentPairwiseAnswers(_Silent, PairwiseMaskedAnswers):
    """A client of the coordinator in sums among clients alone."""


_KINDS: Mapping[tuple[str, bool], type[MaskedAnswers]] = {
    ("helpers", False): HelperMaskedAnswers,
    ("helpers", True): SilentHelperAnswers,
    ("pairs", False): PairwiseMaskedAnswers,
    ("pairs", True): SilentPairwiseAnswers,
}


class CorruptHelper:
    """A helper whose operator works against the clients: it lies, and gives its masks away."""

    def __init__(self, helper: HelperAnswers) -> None:
        self._inner = helper
        self._helper: Helper = helper._helper
        self.leaves_out: int | None = None  # the client whose mask is missing in its next answer

    def close(self) -> None:
        """Close the helper."""
        self._inner.close()

    def answer(self, task: FederationTask, content: bytes) -> bytes:
        """Answer as a helper does, or with the masks of all but one client."""
        answer = self._inner.answer(task, content)
        if task.kind != "sum" or self.leaves_out is None:
            return answer
        request = parted(content)[0]
        proposal = self._proposal(task.number)
        place, body = read_answer(answer, proposal, request)
        (claim,) = (claim for claim in MaskRequest.decode(request).claims if claim.number == self.leaves_out)
        check = np.frombuffer(body[:8], "<u8").copy()
        words = np.frombuffer(body, proposal.terms.words, offset=8).copy()
        self._mask(proposal, claim, place, check, words, -1)
        return signed_answer(place, request, check.tobytes() + words.tobytes(), self._helper.identity, proposal.session)

    def unmasked(self, update: bytes, number: int, words: Words | None = None) -> Words:
        """Take this helper's mask off the vector of a client, which others may have taken theirs off before."""
        proposal = self._proposal(number)
        claim, _, check, masked = read_update(update, proposal.terms)
        left = masked.copy() if words is None else words
        place = proposal.helpers.index(self._helper.identity.public)
        self._mask(proposal, claim, place, check.copy(), left, -1)
        return left

    def _proposal(self, number: int) -> Proposal:
        known = self._helper._journal.round(place_of_sum(number))
        if known is None or known.secret is None:
            raise BadInput(f"round {number} has no key any more")
        self._secret = X25519PrivateKey.from_private_bytes(known.secret)
        return Proposal.decode(known.proposal)

    def _mask(
        self, proposal: Proposal, claim: RoundKey, place: int, check: Words, words: Words, sign: Literal[1, -1]
    ) -> None:
        stream = MaskStream(mask_key(self._secret, claim.public, proposal.session, place, claim.number))
        stream.add_to(check, sign=sign)
        stream.add_to(words, sign=sign)


class HostileCoordinator(Closing):
    """A copy of a federation whose clients have never taken part, and the coordinator that attacks it."""

    def __init__(self, known: FederationFacts, folder: Path, *, seed: int = 0) -> None:
        shutil.copytree(known.folder, folder)
        self.folder, self.known = folder, known
        self.made, self.plan = known.federation, known.plan
        self.opened: dict[int, FederatedClient[Any]] = {}
        self.clients: dict[int, MaskedAnswers] = {}
        self._identities: dict[int, SigningKey] = {}
        self._own: dict[int, tuple[bytes, bytes]] = {}  # keys and their endorsements
        self._keys: dict[int, tuple[bytes, bytes]] = {}  # as the coordinator names them
        self.helpers: list[HelperAnswers | CorruptHelper] = []
        try:
            for path in sorted((folder / CLIENTS).iterdir()):
                self._open(path, seed)
            self.helpers = [HelperAnswers(path, self.made) for path in sorted((folder / HELPERS).glob("*"))]
        except VeilrecError:
            self.close()
            raise

    def _open(self, path: Path, seed: int) -> None:
        """Open one client; those that only validate are left out."""
        about = json.loads((path / client_folder.ABOUT).read_text())
        about["shared"] = sha256(f"noise of an attack {seed}".encode()).hexdigest()
        (path / client_folder.ABOUT).write_text(json.dumps(about) + "\n")
        client = client_folder.open_client(path, self.known)
        if not client.data.rows.lengths()[0]:
            client.close()
            return
        place, identity, invitation = about["place"], identity_of(path), read_invitation(path)
        self.opened[place], self._identities[place] = client, identity
        self.clients[place] = _KINDS[self.made.secagg, False](client, self.known, place, identity)
        self._own[place] = self._keys[place] = identity.public, invitation.endorse(self.made.id, identity.public)

    def close(self) -> None:
        """Close clients and helpers."""
        for part in (*self.opened.values(), *self.helpers):
            part.close()

    @property
    def keys(self) -> dict[int, bytes]:
        """The lasting keys of all clients, by place."""
        return {place: key for place, (key, _) in self._keys.items()}

    def control(self, places: Collection[int]) -> None:
        """Have these clients send nothing of their own, and all others what they send."""
        for place, client in self.opened.items():
            kind = _KINDS[self.made.secagg, place in places]
            if type(self.clients[place]) is not kind or self._keys[place] != self._own[place]:
                self.clients[place] = kind(client, self.known, place, self._identities[place])
        self._keys = dict(self._own)

    def make_up(self, places: Collection[int]) -> None:
        """Put clients of the coordinator's own in these places, with keys that it endorses itself."""
        for place in places:
            invitation = Invitation.new(client_folder.name_of(place))
            identity = Invitation.new(client_folder.name_of(place)).key
            kind = _KINDS[self.made.secagg, True]
            self.clients[place] = kind(self.opened[place], self.known, place, identity)
            self._keys[place] = identity.public, invitation.endorse(self.made.id, identity.public)

    def named(self) -> bytes:
        """What the coordinator says of keys."""
        return listed((place, key, endorsement) for place, (key, endorsement) in sorted(self._keys.items()))

    def spec(self, number: int) -> RoundSpec:
        """A round of the plan, about all items where reports would choose some."""
        return self.plan.round_planner.next(number, self.plan.start, None)

    def broadcast(self, spec: RoundSpec, weights: Model) -> bytes:
        """Encode a model for the clients of a round."""
        schema = self.plan.schema
        if spec.rows is None:
            return rounds.encode(spec, whole_model(schema, weights, spec.number), schema)
        return rounds.encode(spec, part_of_model(schema, weights, spec.rows, spec.number), schema)

    def ask(self, place: int, kind: TaskKind, content: bytes, number: int) -> bytes:
        """A client's answer to some bytes."""
        return self.clients[place].answer(FederationTask(kind, number), content)

    def sum_of(
        self,
        spec: Summed,
        contents: Mapping[int, bytes],
        *,
        counted: Collection[int] | None = None,
        least: int = 0,
        own_terms: bool = False,
    ) -> HostileSum:
        """Ask for one sum, with a content for every client.

        Args:
            spec: What the sum is over.
            contents: What each client gets to act on; most of them the same.
            counted: Of whom a sum is opened; None: of all that came.
            least: Stands in the terms in the place of the federation's, unless it is 0.
            own_terms: Whether who gets another content than most is also told terms that fit it.
        """
        kind: TaskKind = "report" if isinstance(spec, ReportSum) else "round"
        common = Counter(contents.values()).most_common(1)[0][0]
        if self.made.secagg == "helpers":
            return self._helper_sum(spec, kind, contents, common, counted, least, own_terms)
        return self._pairwise_sum(spec, kind, contents, common, counted, least, own_terms)

    def _terms(self, spec: Summed, content: bytes, cohort: Collection[int], least: int) -> Terms:
        expected = terms_in(self.made, self.plan, ReportSum() if isinstance(spec, ReportSum) else spec)
        terms = replace(expected.about(content, sorted(cohort)), round_number=spec.number)
        return terms if not least else replace(terms, least=least)

    # Helpers

    def _helper_sum(
        self,
        spec: Summed,
        kind: TaskKind,
        contents: Mapping[int, bytes],
        common: bytes,
        counted: Collection[int] | None,
        least: int,
        own_terms: bool,
    ) -> HostileSum:
        found = HostileSum()
        begun = {}
        for content in dict.fromkeys((common, *(contents.values() if own_terms else ()))):
            opened = self._invitation(self._terms(spec, content, contents, least), sorted(contents), found)
            if opened is not None:
                begun[content] = opened
        if common not in begun:
            return found
        adding, _ = begun[common]
        for place, content in contents.items():
            given = joined(begun.get(content, begun[common])[1], content)
            answer = found.tried("client", self.ask, place, kind, given, spec.number)
            if answer is not None and (counted is None or place in counted):
                found.updates[place] = answer
                found.tried("protocol", adding.receive, answer)
        request = found.tried("protocol", adding.request)
        if request is None:
            return found
        task, asked = FederationTask("sum", spec.number), joined(request, self.named())
        for place, one in enumerate(self.helpers):
            answer = found.tried(f"helper {place}", one.answer, task, asked)
            if answer is None:
                return found
            found.tried("protocol", adding.receive_answer, answer)
        found.total = found.tried("protocol", adding.finish)
        return found

    def _invitation(self, terms: Terms, cohort: list[int], found: HostileSum) -> tuple[HelperSum, bytes] | None:
        """Ask all helpers for their keys of a sum; None if one refuses."""
        proposal = Proposal(terms, tuple(map(bytes.fromhex, self.made.helpers)))
        adding = HelperSum(proposal, self.keys, cohort, check_key=_CHECK_KEY)
        asked = joined(proposal.encode(), self.named())
        task = FederationTask("open", terms.round_number)
        said = [found.tried(f"helper {place}", one.answer, task, asked) for place, one in enumerate(self.helpers)]
        keys = [key for key in said if key is not None]
        invitation = found.tried("protocol", adding.invite, keys) if len(keys) == len(said) else None
        return None if invitation is None else (adding, invitation)

    # Pairs

    def _pairwise_sum(
        self,
        spec: Summed,
        kind: TaskKind,
        contents: Mapping[int, bytes],
        common: bytes,
        counted: Collection[int] | None,
        least: int,
        own_terms: bool,
    ) -> HostileSum:
        found, number, cohort = HostileSum(), spec.number, sorted(contents)
        woven = self.made.woven()
        adding = PairwiseSum(self._terms(spec, common, cohort, least), woven, self.keys, cohort)

        def each(kind: TaskKind, asked: Mapping[int, bytes], take: Callable[[bytes], int]) -> list[int]:
            took = []
            for place, content in asked.items():
                answer = found.tried("client", self.ask, place, kind, content, number)
                if answer is not None and found.tried("protocol", take, answer) is not None:
                    took.append(place)
            return took

        def forced(advert: bytes) -> int:
            """Take a key in that is signed for other terms: clients have to notice that themselves."""
            try:
                return adding.receive_advert(advert)
            except OtherDigest:
                key, _ = decode_advert(advert)
                adding._adverts[key.number] = key
                return key.number

        proposals = dict.fromkeys(contents, adding.propose())
        for place, content in contents.items():
            if own_terms and content != common:
                proposals[place] = PairwiseProposal(self._terms(spec, content, cohort, least), tuple(cohort)).encode()
        each("advertise", proposals, forced)
        groups = found.tried("protocol", adding.groups)
        if groups is None:
            return found
        each("share", {p: joined(self.named(), group) for p, group in groups.items()}, adding.receive_shares)
        boxes = found.tried("protocol", adding.boxes)
        if boxes is None:
            return found
        sent = {place: joined(contents[place], box) for place, box in boxes.items()}
        inside = {place: content for place, content in sent.items() if counted is None or place in counted}
        members = each(kind, inside, adding.receive_masked)
        survivors = found.tried("protocol", adding.survivors)
        if survivors is None:
            return found
        each("sign", dict.fromkeys(members, survivors), adding.receive_signature)
        signatures = found.tried("protocol", adding.signatures)
        if signatures is None:
            return found
        each("reveal", dict.fromkeys(members, signatures), adding.receive_reveal)
        found.total = found.tried("protocol", adding.finish)
        return found
