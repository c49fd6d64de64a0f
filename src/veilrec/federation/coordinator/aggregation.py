"""The coordinator's side of secure aggregation, and the tasks that helpers and clients are given.

`TaskQueue` holds what is asked of whom now; a transport (HTTPS, Flower) reads it. `SecAggRpc` publishes one secagg RPC
there and waits for the replies; nothing of the coordinator is locked meanwhile. Replies are not stored: a peer that is
asked the same again replies the same. `HelperAggregation` and `PairwiseAggregation` are the two protocols, with one
interface (`veilrec.server.secure_reports.SecureSum`):

| protocol | to begin a sum | beside the model | to open it | a peer that is lost |
|---|---|---|---|---|
| helper-based | `open`: a key of every helper | these keys | `sum`: masks of every helper | a helper voids the round |
| pairwise | `advertise`, `share`: keys, shares of clients | sealed shares | `sign`, `reveal` | too few void the round |

What clients got (the invitation) and their masked vectors are in the coordinator's database, so that a coordinator that
was killed goes on with both. Helper-based sums of reports wait for all helpers: the list of clients is fixed, and a
helper that comes back replies for it as before. A pairwise round that is killed

- before its vectors starts again: clients reply as before; if others come than before, those who have shared their
  secrets do not share them twice, too few are left, and the round is void, at no charge to anybody;
- after that asks for the same signatures and the same secrets: a round has one list, and no vector comes after it.

A pairwise sum of reports that is void is followed by another, under a number of its own.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from veilrec.core.arrays import Offsets
from veilrec.core.errors import VeilrecError
from veilrec.core.plan import Plan
from veilrec.core.schema import FIRST_COMPARISON_SUM, FIRST_REPORT_SUM, ComparisonSum, RoundSpec
from veilrec.federation.coordinator.registry import Registry, RegistryEntry
from veilrec.federation.facts import ATTEMPTS, Summed, summed, terms_in
from veilrec.federation.federation import (
    FIRST_VALIDATOR,
    Away,
    Federation,
    FederationTask,
    Receipt,
    RpcKind,
    TaskKind,
    head,
    joined,
)
from veilrec.federation.identity import listed
from veilrec.federation.secagg.helpers import HelperInvitation, HelperSum, Proposal, check_update, read_update
from veilrec.federation.secagg.pairs import PairwiseProposal, PairwiseSum
from veilrec.federation.secagg.terms import MessageReader, Neighbourhood, Terms, Void, digest, packed
from veilrec.federation.secagg.transcripts import HelperTranscript, PairwiseTranscript
from veilrec.server.secure_reports import MessageRefused
from veilrec.wire.messages import BadMessage, OtherDigest
from veilrec.wire.signing import BadSignature

PAIRWISE_RPCS: tuple[RpcKind, ...] = ("advertise", "share", "sign", "reveal")  # and the vectors between them
CheckReply: TypeAlias = Callable[[str, bytes], object]
"""Takes in the reply of a peer, by name; an error refuses it."""

_NOBODY: tuple[str, ...] = ()
_decoded = lru_cache(maxsize=2)(HelperInvitation.decode)  # every message of a round is checked by the same one


@dataclass(frozen=True)
class Broadcast:
    """Who gets a task, the content for all of them, and the part of each that follows it."""

    clients: Collection[str]
    content: bytes
    own: Mapping[str, bytes] | None = None


class TaskQueue:
    """The current task, its content for all and its part for each; who has answered is not asked again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._task: FederationTask | None = None
        self._clients: frozenset[str] = frozenset()
        self._answered: set[str] = set()
        self._content = b""  # what belongs to the task
        self._own: Mapping[str, bytes] = {}  # by client, behind that
        self._digests: dict[str, str] = {}  # of both together
        self._digest = ""  # of what those have who have nothing of their own
        self._until = 0.0
        self.over = False
        self._watchers: list[Callable[[], None]] = []

    def watch(self, notify: Callable[[], None]) -> None:
        """Be told whenever something new is asked, by a call from any thread."""
        self._watchers.append(notify)

    def publish(
        self,
        kind: TaskKind,
        number: int,
        clients: Collection[str],
        *,
        content: bytes = b"",
        own: Mapping[str, bytes] | None = None,
        answered: Collection[str] = (),
        period: int = 0,
        seconds: float,
    ) -> None:
        """Ask these clients; those who have answered before, and died meanwhile or not, are left alone."""
        with self._lock:
            self._task = FederationTask(kind, number, period)
            self._clients, self._answered = frozenset(clients), set(answered)
            digest = hashlib.sha256(content)
            self._content, self._own = content, own or {}
            self._digests = {}
            for who, part in self._own.items():
                behind = digest.copy()
                behind.update(part)
                self._digests[who] = behind.hexdigest()
            self._digest = digest.hexdigest() if content else ""
            self._until = time.monotonic() + seconds
        self._tell()

    def withdraw(self) -> None:
        """Ask nothing of anybody."""
        with self._lock:
            self._task, self._clients, self._content, self._own, self._digests = None, frozenset(), b"", {}, {}
            self._digest = ""

    def end(self) -> None:
        """End the run: every later task is `over`."""
        self.withdraw()
        self.over = True
        self._tell()

    def _tell(self) -> None:
        for notify in self._watchers:
            notify()

    def task_for(self, client: str) -> FederationTask | None:
        """Return the current task of a client or helper; None if it has none."""
        if self.over:
            return FederationTask("over", 0)
        with self._lock:
            if self._task is None or client not in self._clients or client in self._answered:
                return None
            size = len(self._content) + len(self._own.get(client, b""))
            left = max(0.0, self._until - time.monotonic())
            return replace(self._task, sha256=self._digest_for(client), size=size, seconds=round(left, 3))

    def content(self, client: str, digest: str) -> bytes | None:
        """Return the content of a peer's task by its digest; None if there is none."""
        with self._lock:
            if client not in self._clients or not digest or digest != self._digest_for(client):
                return None
            return self._content + self._own.get(client, b"")

    def _digest_for(self, client: str) -> str:
        return self._digests.get(client, self._digest)

    def note(self, client: str, kind: str, number: int) -> None:
        """A client has answered a task, which may not be the one of now any more."""
        with self._lock:
            if self._task is not None and (self._task.kind, self._task.number) == (kind, number):
                self._answered.add(client)

    @property
    def answers(self) -> int:
        """Number of answers to the current task."""
        with self._lock:
            return len(self._answered)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """The names of those who are asked now and have not answered, in order."""
        with self._lock:
            return tuple(sorted(self._clients - self._answered))

    @property
    def kind(self) -> TaskKind | None:
        """The kind of the current task; None while nothing is asked."""
        with self._lock:
            return None if self._task is None else self._task.kind

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline of the current task."""
        return self._until - time.monotonic()


class SecAggRpc:
    """One secagg RPC at a time, to several helpers or clients."""

    def __init__(self, queue: TaskQueue) -> None:
        self._queue = queue
        self._changed = threading.Condition()
        self._asked: tuple[RpcKind, int, frozenset[str], CheckReply] | None = None
        self._came: dict[str, bytes] = {}
        self.stopping = False
        self.down = self.up = 0  # bytes, until somebody sets them to 0

    def stop(self) -> None:
        """End the current wait, and all later ones at once."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def take(self, who: str, kind: str, number: int, content: bytes) -> Receipt:
        """Take in the reply of a peer; `MessageRefused` where it is not asked for, or not its first one."""
        with self._changed:
            if self._asked is None or self._asked[:2] != (kind, number) or who not in self._asked[2]:
                raise MessageRefused("nothing is open", "this is not asked for now")
            known = self._came.get(who)
            if known is not None and known != content:
                raise MessageRefused("second message", "something else was said to this already")
            if known is None:
                try:
                    self._asked[3](who, content)
                except VeilrecError as error:
                    raise MessageRefused("bad bytes", str(error)) from None
                self._came[who] = content
                self.up += len(content)
                if len(self._came) == len(self._asked[2]):
                    self._changed.notify_all()
        self._queue.note(who, kind, number)
        return "taken" if known is None else "known already"

    def ask(
        self,
        kind: RpcKind,
        number: int,
        names: Collection[str],
        *,
        seconds: float,
        content: bytes = b"",
        own: Mapping[str, bytes] | None = None,
        take: CheckReply | None = None,
    ) -> dict[str, bytes]:
        """Send one RPC to these peers; the replies that come in time, by name."""
        until = time.monotonic() + seconds
        with self._changed:
            self._came, self._asked = {}, (kind, number, frozenset(names), take or (lambda _who, _said: None))
            self.down += len(names) * len(content) + sum(map(len, (own or {}).values()))
        self._queue.publish(kind, number, names, content=content, own=own, seconds=seconds)
        with self._changed:
            while len(self._came) < len(names) and not self.stopping and time.monotonic() < until:
                self._changed.wait(0.5)
            self._asked = None
            said = dict(self._came)
        self._queue.withdraw()
        return said


def taking_part(registry: Registry, spec: Summed) -> list[RegistryEntry]:
    """The clients whose messages a sum adds up: those that train, or validation clients, whoever has come or not."""
    return registry.entries("validator" if isinstance(spec, ComparisonSum) else "trainer")


def enrolled(entries: Collection[RegistryEntry]) -> list[RegistryEntry]:
    """Those who have come, and were not revoked."""
    return [entry for entry in entries if entry.key is not None and not entry.revoked]


def keys_of(entries: Collection[RegistryEntry]) -> dict[int, bytes]:
    """Lasting keys, by number."""
    return {entry.member: entry.key for entry in entries if entry.key is not None}


def numbers_of(entries: Collection[RegistryEntry], cohort: Collection[str]) -> list[int]:
    """The numbers of those who may be counted."""
    named = set(cohort)
    return [entry.member for entry in entries if entry.client in named]


def listed_keys(entries: Collection[RegistryEntry]) -> bytes:
    """Lasting keys with their endorsements, encoded for peers that check them."""
    return listed(
        (entry.member, entry.key, entry.endorsement)
        for entry in entries
        if entry.key is not None and entry.endorsement is not None
    )


def _same_content(terms: Terms, broadcast: bytes) -> None:
    """Refuse to hand out another model than the one that a sum was begun for: every client would decline it."""
    if digest(broadcast) != terms.content:
        raise OtherDigest("the model is not the one that this sum was begun for (another copy of the run's files?)")


class HelperAggregation:
    """Helper-based secure aggregation, for all rounds and the reports before them."""

    attempts = ATTEMPTS["helpers"]
    waits = True  # whoever has not sent a vector can still do so, however late

    def __init__(
        self, queue: TaskQueue, registry: Registry, federation: Federation, plan: Plan, say: Callable[[str], None]
    ) -> None:
        self.rpc = SecAggRpc(queue)
        self._registry, self._federation, self._plan, self._say = registry, federation, plan, say
        self.differing = _NOBODY  # that entered another sum than the others; here each message shows it
        self.transcript = b""  # of the last sum that was opened
        self._names = [entry.client for entry in registry.entries("helper")]
        self._keys = tuple(bytes.fromhex(key) for key in federation.helpers)

    def open(self, spec: Summed, cohort: Sequence[str], content: bytes) -> bytes:
        """Ask every helper for its key of the round; `Away` where one does not come."""
        entries = taking_part(self._registry, spec)
        numbers = numbers_of(entries, cohort)
        proposal = Proposal(terms_in(self._federation, self._plan, spec).about(content, numbers), self._keys)
        said = self._ask("open", spec.number, joined(proposal.encode(), listed_keys(enrolled(entries))))
        if len(said) < len(self._names):
            raise Away(f"{len(said)} of {len(self._names)} helpers have come: the round waits for all of them")
        try:
            return HelperSum(proposal, keys_of(enrolled(entries)), numbers).invite(list(said.values()))
        except (Void, BadMessage, BadSignature) as error:
            raise Away(f"a helper's key cannot be used ({error}): asking again") from None

    def senders(self, invitation: bytes, cohort: int) -> int:
        """Number of clients that can send an update: the whole cohort."""
        return cohort

    def asked(self, invitation: bytes, broadcast: bytes, cohort: Collection[str]) -> Broadcast:
        """The invitation and the model, the same for all; `OtherDigest` for a model that it is not about."""
        _same_content(_decoded(invitation).proposal.terms, broadcast)
        return Broadcast(cohort, joined(invitation, broadcast))

    def crossed(self, invitation: bytes, cohort: int) -> tuple[int, int]:
        """The invitation, to everybody; what helpers say is not counted among clients."""
        return cohort * len(invitation), 0

    def check(self, invitation: bytes, client: int, message: bytes) -> None:
        """Refuse what this device has not signed for this round; `OtherDigest` if it acted on something else."""
        invited = _decoded(invitation)
        claim, session, _, _ = read_update(message, invited.proposal.terms)
        entries = self._entries(invited.proposal.terms)
        if not any(entry.number == client and entry.member == claim.number for entry in entries):
            raise BadMessage("the vector is signed as that of another client")
        check_update(claim, session, keys_of(enrolled(entries)), invited.session)

    def _entries(self, terms: Terms) -> list[RegistryEntry]:
        return taking_part(self._registry, summed(terms.round_number))

    def total(self, invitation: bytes, messages: Sequence[bytes], cohort: Sequence[str]) -> Offsets | None:
        """The exact sum, or None: a helper that is gone, or lies, voids the round."""
        invited = _decoded(invitation)
        everybody, number = self._entries(invited.proposal.terms), invited.proposal.terms.round_number
        # Whoever was revoked since has sent a vector that counts.
        numbers = numbers_of(everybody, cohort)
        adding = HelperSum(invited.proposal, keys_of(everybody), numbers, check_key=invited.check_key)
        self.transcript = b""
        try:
            for message in messages:
                adding.receive(message)
            said = self._ask("sum", number, joined(adding.request(), listed_keys(everybody)))
            if len(said) < len(self._names) and (self.rpc.stopping or number >= FIRST_REPORT_SUM):
                raise Away(f"{len(said)} of {len(self._names)} helpers have answered: they are asked the same again")
            for answer in said.values():
                adding.receive_answer(answer)
            total = adding.finish()
        except (Void, BadMessage, BadSignature) as error:
            self._say(str(error))
            return None
        self.transcript = HelperTranscript.of(adding, list(said.values())).encode()
        return total

    def _ask(self, kind: RpcKind, number: int, content: bytes) -> dict[str, bytes]:
        seconds = self._federation.round_seconds
        return self.rpc.ask(kind, number, self._names, content=content, seconds=seconds)


class PairwiseAggregation:
    """Pairwise secure aggregation, for all rounds and the reports before them."""

    attempts = ATTEMPTS["pairs"]
    waits = False  # whoever was killed on the way has left the sum

    def __init__(
        self, queue: TaskQueue, registry: Registry, federation: Federation, plan: Plan, say: Callable[[str], None]
    ) -> None:
        self.rpc = SecAggRpc(queue)
        self._registry, self._federation, self._plan, self._say = registry, federation, plan, say
        self.differing = _NOBODY  # that entered another sum than the others
        self.transcript = b""  # of the last sum that was opened
        entries = [*registry.entries("trainer"), *registry.entries("validator")]
        self._names = {entry.member: entry.client for entry in entries}
        self._places = {entry.client: entry.member for entry in entries}
        self._last: tuple[bytes, PairwiseSum] | None = None

    def open(self, spec: Summed, cohort: Sequence[str], content: bytes) -> bytes | None:
        """Keys and shares of those who come: what the round goes on with; None if they are too few."""
        self.rpc.down = self.rpc.up = 0
        self.differing = _NOBODY
        everybody = taking_part(self._registry, spec)
        numbers, entries = numbers_of(everybody, cohort), enrolled(everybody)
        terms = terms_in(self._federation, self._plan, spec).about(content, numbers)
        adding = PairwiseSum(terms, self._woven(spec.number), keys_of(entries), numbers)
        try:
            here = [entry.client for entry in entries if entry.client in set(cohort)]
            self._ask("advertise", spec.number, here, adding.receive_advert, content=adding.propose())
            if self.differing:
                self._say(f"{', '.join(self.differing)} took part in something else than the others")
                if isinstance(spec, RoundSpec):
                    return None
            groups = self._named(adding.groups())
            known = head(listed_keys([entry for entry in entries if entry.client in groups]))
            self._ask("share", spec.number, groups, adding.receive_shares, content=known, own=groups)
            adding.boxes()
        except Void as error:
            self._say(str(error))
            return None
        kept = adding.kept()
        self._last = (kept, adding)
        return kept

    def senders(self, invitation: bytes, cohort: int) -> int:
        """Number of clients that can send an update: those that have shared their secrets."""
        return len(self._restored(invitation).boxes())

    def asked(self, invitation: bytes, broadcast: bytes, cohort: Collection[str]) -> Broadcast:
        """The model, and for everybody the shares that its neighbours have sealed for it; `OtherDigest` likewise."""
        _same_content(self._restored(invitation).terms, broadcast)
        boxes = self._named(self._restored(invitation).boxes())
        return Broadcast(boxes, head(broadcast), boxes)

    def crossed(self, invitation: bytes, cohort: int) -> tuple[int, int]:
        """Bytes of the RPCs since this process started, and of the shares that travel with the model."""
        boxes = self._restored(invitation).boxes() if invitation else {}
        return self.rpc.down + sum(map(len, boxes.values())), self.rpc.up

    def check(self, invitation: bytes, client: int, message: bytes) -> None:
        """Refuse what is no vector of this device; under masks no more shows."""
        number, _ = self._restored(invitation).check_masked(message)
        if number % FIRST_VALIDATOR != client:
            raise BadMessage("the vector is said to be that of another client")

    def total(self, invitation: bytes, messages: Sequence[bytes], cohort: Sequence[str]) -> Offsets | None:
        """The exact sum, or None: too few who sign or reveal, or secrets that are wrong, void the round."""
        adding = self._restored(invitation).again()
        self.transcript = b""
        number = adding.terms.round_number
        try:
            listed = self._named({adding.receive_masked(message): b"" for message in messages})
            survivors = adding.survivors()
            signed = self._ask("sign", number, listed, adding.receive_signature, content=survivors, at=4)
            self._ask("reveal", number, signed, adding.receive_reveal, content=adding.signatures())
            total = adding.finish()
        except (Void, BadMessage, BadSignature) as error:
            self._say(str(error))
            return None
        self.transcript = PairwiseTranscript.of(adding).encode()
        return total

    def _ask(
        self,
        kind: RpcKind,
        number: int,
        names: Collection[str],
        receive: Callable[[bytes], object],
        *,
        content: bytes,
        own: Mapping[str, bytes] | None = None,
        at: int = 0,
    ) -> dict[str, bytes]:
        """Send one RPC; the client's number stands at byte `at` of a reply, and has to be the sender's own."""

        def take(who: str, said: bytes) -> None:
            if said[at : at + 4] != packed(self._places[who]):
                raise BadMessage("this is said in the name of another client")
            try:
                receive(said)
            except OtherDigest:
                self.differing = tuple(sorted({*self.differing, who}))
                raise

        seconds = self._federation.rpc_seconds
        said = self.rpc.ask(kind, number, names, content=content, own=own, seconds=seconds, take=take)
        if self.rpc.stopping:
            raise Away("stopped in the middle of a secure sum")  # asked again after the next start
        return said

    def _named(self, contents: Mapping[int, bytes]) -> dict[str, bytes]:
        return {self._names[number]: content for number, content in contents.items()}

    def _restored(self, invitation: bytes) -> PairwiseSum:
        """The round before its vectors, to look at; what this process has heard itself it checks once."""
        if self._last is None or self._last[0] != invitation:
            # Whoever was revoked since has said what the others go on with.
            number = PairwiseProposal.read(MessageReader(invitation)).terms.round_number
            registered = keys_of(taking_part(self._registry, summed(number)))
            self._last = (invitation, PairwiseSum.restored(invitation, self._woven(number), registered))
        return self._last[1]

    def _woven(self, number: int) -> Neighbourhood:
        return self._federation.woven(compared=number >= FIRST_COMPARISON_SUM)


SecureAggregation: TypeAlias = HelperAggregation | PairwiseAggregation
