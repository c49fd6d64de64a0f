"""The processes of clients, and how they answer tasks: in plaintext, or under masks of secure aggregation.

Under masks, what would be sent becomes whole numbers first. Reports before the first round are masked as well where
they trust the server, and so are the gains of held-out validation clients: which sum they go into, and its terms, the
client works out itself; it takes part in no other. Terms name the digest of what everybody acts on: a client learns
from, or compares, these very bytes or nothing, and says so (`Declined`).

What a client does in pairwise secure aggregation:

- Whose key is whose it knows from the list of invitations of the federation. A key that the coordinator names counts if
  the invitation of its place endorses it; who masks with whom, and how few may be added up, comes from the
  federation's file.
- Asked the same again by an RPC, it replies the same; asked something else, it has left the round. A reveal depends on
  the list that was signed, and on nothing else.
- What it enters a round with, and the secrets of others, are in memory alone. That it has entered is on disk before its
  keys leave: a client that was killed never comes back into that round, so it signs no second list and reveals nothing
  of anybody twice. Its vector it sends again, the same bytes, for that is paid for and on disk.
- The ledger is charged, and the vector on disk, in one transaction, before it leaves (`FederatedClient.take_part`).

There is one process for each folder, and beside them one that makes the plan once for all of them. A machine that runs
several clients makes the plan, and compiles what they need, before it splits into one process for each. Until then it
has read nothing of any of them. They end with it: whoever kills it leaves no clients behind that nobody looks after,
and no two processes work on one folder.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from veilrec.client.federated import AnotherRole, FederatedClient
from veilrec.core.arrays import Offsets
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.plan import Plan
from veilrec.core.schema import (
    FIRST_REPORT_SUM,
    ClientUpdates,
    ComparisonSum,
    ReportSum,
    RoundSpec,
    Schema,
    whole_model,
)
from veilrec.federation.client import folder as client_folder
from veilrec.federation.facts import FederationFacts, Summed, largest_content, terms_in, told_once
from veilrec.federation.federation import (
    CA,
    FIRST_VALIDATOR,
    INVITED,
    BadTask,
    Federation,
    FederationTask,
    TaskKind,
    parted,
)
from veilrec.federation.identity import EndorsedKeys, identity_of, read_invitation, read_invited
from veilrec.federation.link import HttpsLink, live
from veilrec.federation.processes import alone_in
from veilrec.federation.secagg.helpers import HelperInvitation, HelperSumClient
from veilrec.federation.secagg.pairs import PairwiseProposal, PairwiseSumClient
from veilrec.federation.secagg.terms import Terms
from veilrec.privacy.events import Event
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.randomness import Source
from veilrec.wire import messages, rounds
from veilrec.wire.signing import SigningKey


class PlaintextAnswers:
    """A client that answers tasks."""

    def __init__(self, client: FederatedClient[Any]) -> None:
        self.client = client

    def answer(self, task: FederationTask, content: bytes) -> bytes:
        """Train, report or validate."""
        if task.kind == "round":
            return self.client.take_part(content, task.number)
        if task.kind == "report":
            return self.client.report(task.number, task.period)
        if task.kind == "validator":
            start, trained = parted(content)
            return self.client.validate(start, trained, task.number)
        raise BadTask(f"a client does not do this: {task.kind}")


class MaskedAnswers(PlaintextAnswers):
    """A client whose updates, and reports that trust the server, leave under masks of secure aggregation."""

    def __init__(self, client: FederatedClient[Any], known: FederationFacts, place: int, identity: SigningKey) -> None:
        super().__init__(client)
        self._plan, self._made, self._place, self._identity = known.plan, known.federation, place, identity

    def answer(self, task: FederationTask, content: bytes) -> bytes:
        """Answer in plaintext, except rounds and masked reports."""
        if task.kind == "round":
            return self._take_part(task.number, *self._unpacked(content))
        reports = self._plan.reports
        if task.kind == "validator" or (
            task.kind == "report" and reports is not None and reports.mechanism.under_masks
        ):
            return self._tell_once(task, *self._unpacked(content))
        return super().answer(task, content)

    def _take_part(self, number: int, broadcast: bytes, given: bytes) -> bytes:
        def masked(updates: ClientUpdates, spec: RoundSpec, view: Schema, source: Source) -> tuple[bytes, Event]:
            values, event = quantised(self._plan, updates, spec, view, source)
            return self._masked(spec, given, broadcast, values), event

        def check(spec: RoundSpec) -> None:
            self._check(spec, given, broadcast)

        return self.client.take_part(broadcast, number, make=masked, check=check)

    def _tell_once(self, task: FederationTask, content: bytes, given: bytes) -> bytes:
        """A report or a gain, under masks."""
        spec = self._told_once(task.number)

        def masked(values: Offsets) -> bytes:
            return self._masked(spec, given, content, values)

        if isinstance(spec, ReportSum):
            return self.client.report(spec.number, task.period, mask=masked)
        start, trained = parted(content)

        def check() -> None:
            self._check(spec, given, content)

        return self.client.validate(start, trained, self._plan.rounds, mask=masked, in_sum=spec.number, check=check)

    def _told_once(self, number: int) -> ReportSum | ComparisonSum:
        """The sum with a number, if what this client tells belongs into it."""
        spec = told_once(number)
        if isinstance(spec, ComparisonSum) != self.client.validates:
            raise AnotherRole("clients that train report, and validation clients compare: nothing is sent")
        return spec

    def _unpacked(self, content: bytes) -> tuple[bytes, bytes]:
        """What everybody acts on, and what is given to the client to mask with."""
        return parted(content)

    def _check(self, spec: Summed, given: bytes, content: bytes) -> None:
        """Refuse a sum that is not the federation's, or not about what came."""
        raise NotImplementedError

    def _masked(self, spec: Summed, given: bytes, content: bytes, values: Offsets) -> bytes:
        raise NotImplementedError


class HelperMaskedAnswers(MaskedAnswers):
    """A client of a federation with helpers; which these are it knows from the federation's file, not from servers."""

    def _unpacked(self, content: bytes) -> tuple[bytes, bytes]:
        invitation, broadcast = parted(content)
        return broadcast, invitation

    def _check(self, spec: Summed, given: bytes, content: bytes) -> None:
        agree(HelperInvitation.decode(given).proposal.terms, self._made, self._plan, spec)
        self._masking(spec).invited(given, content)

    def _masked(self, spec: Summed, given: bytes, content: bytes, values: Offsets) -> bytes:
        self._check(spec, given, content)
        return self._masking(spec).update(given, content, values)

    def _masking(self, spec: Summed) -> HelperSumClient:
        made = self._made
        helpers = [bytes.fromhex(key) for key in made.helpers]
        least = made.least_of(spec.number)
        return HelperSumClient(self._place, self._identity, federation=made.digest, helpers=helpers, least=least)


def agree(terms: Terms, made: Federation, plan: Plan, spec: Summed) -> None:
    """Refuse terms that are not those which this device makes of the federation's file for this very sum."""
    if terms != replace(terms_in(made, plan, spec), content=terms.content, cohort=terms.cohort):
        raise BadInput("the terms are not those of this plan's round: nothing is sent")


def quantised(
    plan: Plan, updates: ClientUpdates, spec: RoundSpec, view: Schema, source: Source
) -> tuple[Offsets, Event]:
    """Quantise an update to fixed-point integers, with this client's part of distributed noise if it adds one."""
    mechanism, fixed_point = plan.mechanism, plan.fixed_point(spec)
    if isinstance(mechanism, DistributedNoiseSum):
        shared = mechanism.share(updates, spec, fixed_point, source)
        return shared.value, shared.event
    released = mechanism.message(updates, spec, source)
    return fixed_point.integers(messages.rounded_update(released.value, view))[0], released.event


@dataclass
class _Round:
    """A round that the client is in: what it masks with, and what it has said on which question."""

    number: int
    pairing: PairwiseSumClient
    said: dict[TaskKind, tuple[bytes, bytes]] = field(default_factory=dict)

    def once(self, kind: TaskKind, asked: bytes, say: Callable[[bytes], bytes]) -> bytes:
        """Reply to an RPC; `PairwiseSumClient` goes one step at a time, and leaves the round if asked otherwise."""
        known = self.said.get(kind)
        if known is not None and (known[0] == asked or kind == "reveal"):
            return known[1]
        answer = say(asked)
        self.said[kind] = (asked, answer)
        return answer

    def advertise(self, proposal: bytes) -> bytes:
        """Keys for this round, and for no other."""
        if PairwiseProposal.decode(proposal).terms.round_number != self.number:
            raise BadInput("the terms are those of another round: nothing is sent")
        return self.pairing.advertise(proposal)


class PairwiseMaskedAnswers(MaskedAnswers):
    """A client of a federation whose clients mask against each other."""

    def __init__(self, client: FederatedClient[Any], known: FederationFacts, place: int, identity: SigningKey) -> None:
        super().__init__(client, known, place, identity)
        made, folder = known.federation, known.folder
        self._woven = made.woven(compared=client.validates)
        invited = read_invited(folder / INVITED, f"{folder} is no folder for secure aggregation", digest=made.invited)
        self._endorsed = EndorsedKeys(made.id, invited)
        self._round: _Round | None = None

    def answer(self, task: FederationTask, content: bytes) -> bytes:
        """Answer in plaintext, except rounds, masked reports and secagg RPCs."""
        if task.kind not in ("advertise", "share", "sign", "reveal"):
            return super().answer(task, content)
        own = self._entered(task.number) if task.kind == "advertise" else self._entered_before(task.number)
        steps: dict[str, Callable[[bytes], bytes]] = {
            "advertise": own.advertise,
            "share": lambda told: self._share(own, told),
            "sign": own.pairing.sign,
            "reveal": own.pairing.reveal,
        }
        return own.once(task.kind, content, steps[task.kind])

    def _entered(self, number: int) -> _Round:
        """The round that is begun; once it was, and is not in memory, the client has left it."""
        if self._round is None or self._round.number != number:
            if number < FIRST_REPORT_SUM:
                self.client.enter(number)
            else:
                terms_in(self._made, self._plan, self._told_once(number))  # refuses what is seen, or asked too often
                self.client.enter_sum(number)
            made = self._made
            pairing = PairwiseSumClient(
                self._place,
                self._identity,
                self._endorsed.keys,
                federation=made.digest,
                neighbourhood=self._woven,
                least=made.least_of(number),
            )
            self._round = _Round(number, pairing)
        return self._round

    def _entered_before(self, number: int) -> _Round:
        if self._round is None or self._round.number != number:
            raise BadTask(f"this device is not in round {number}, or was killed on its way: it has left it for good")
        return self._round

    def _share(self, own: _Round, told: bytes) -> bytes:
        named, group = parted(told)
        self._endorsed.learn(named)
        return own.pairing.share(group)

    def _check(self, spec: Summed, given: bytes, content: bytes) -> None:
        own = self._entered_before(spec.number)
        own.pairing.ready(given, content)
        agree(own.pairing.terms, self._made, self._plan, spec)

    def _masked(self, spec: Summed, given: bytes, content: bytes, values: Offsets) -> bytes:
        self._check(spec, given, content)
        return self._entered_before(spec.number).pairing.mask(given, content, values)


_FIRST_RESTART, _LONGEST_RESTART = 0.5, 30.0  # seconds until a client that was killed is started again
_STEADY_SECONDS = 60.0  # after which a client counts as well
_LAST_BREATH_SECONDS = 5.0  # for a process whose host was killed to be gone from its folder, or that was asked to end


RunClient: TypeAlias = Callable[[Path, FederationFacts, Callable[[str], None], threading.Event], bool]


def run_client(folder: Path, known: FederationFacts, say: Callable[[str], None], stop: threading.Event) -> bool:
    """One client until the federation is over; whether it is."""
    with client_folder.open_client(folder, known) as client:
        invitation, identity = read_invitation(folder), identity_of(folder)
        most = largest_content(known)
        link = HttpsLink(known.federation, known.folder / CA, invitation.client, identity, largest_content=most)
        try:
            answers = answers_of(client, known, client_folder.read_record(folder).place, identity)
            return live(link, answers, say, stop, lambda: link.enrol(invitation))
        finally:
            link.close()


def answers_of(
    client: FederatedClient[Any], known: FederationFacts, place: int, identity: SigningKey
) -> PlaintextAnswers:
    """A client as its federation wants it: under masks, or not."""
    if known.federation.secagg == "none":
        return PlaintextAnswers(client)
    kind = PairwiseMaskedAnswers if known.federation.secagg == "pairs" else HelperMaskedAnswers
    return kind(client, known, place + (FIRST_VALIDATOR if client.validates else 0), identity)


def warm(known: FederationFacts) -> None:
    """Compile the kernels of a client, or read them from the cache, with synthetic data in a temporary folder.

    Not where torch is at work, whose threads do not survive the split into processes.
    """
    if "torch" in sys.modules:
        return
    plan = known.plan
    everybody = known.method.clients(known.config, known.problem)
    some = np.flatnonzero(everybody.rows.lengths() > 0)[:1].astype(np.int64)
    content = rounds.encode(RoundSpec(0), whole_model(plan.schema, plan.start, 0), plan.schema)
    with tempfile.TemporaryDirectory() as place, suppress(VeilrecError):
        client = FederatedClient.create(
            Path(place) / "nobody", plan, everybody.take(some), [known.budget], unprotected=known.federation.unprotected
        )
        with client:
            if plan.reports is not None:
                client.report(0, 0)
            client.take_part(content, 0)


def run_clients(
    folders: Sequence[Path], known: FederationFacts, say: Callable[[str], None], run: RunClient = run_client
) -> bool:
    """A process for each folder, started again if it is killed; whether all came to the end.

    Whoever interrupts it is told so, by KeyboardInterrupt, when all have left.
    """
    host, interrupted = _Host(known, say, run), threading.Event()

    def interrupt(*_: object) -> None:
        interrupted.set()
        host.end()

    signal.signal(signal.SIGTERM, lambda *_: host.end())
    signal.signal(signal.SIGINT, interrupt)
    warm(known)
    for folder in folders:
        host.start(folder)
    is_whole = host.wait()
    if interrupted.is_set():
        raise KeyboardInterrupt
    return is_whole


class _Host:
    """Looks after the processes that it started, and no others."""

    def __init__(self, known: FederationFacts, say: Callable[[str], None], run: RunClient) -> None:
        self._known, self._say, self._run = known, say, run
        self._children: dict[int, tuple[Path, float]] = {}
        self._due: list[tuple[float, Path]] = []
        self._pauses: dict[Path, float] = {}
        self._ending = False
        self._until = 0.0  # when clients that were asked to end are killed
        self._failed = False
        self._ours, self._host = os.pipe()  # nothing is written: it ends when this process does, however it does

    def start(self, folder: Path) -> None:
        child = os.fork()
        if child == 0:
            os.close(self._host)
            threading.Thread(target=_end_with, args=(self._ours,), daemon=True).start()
            os._exit(_life(folder, self._known, self._say, self._run))
        self._children[child] = (folder, time.monotonic())

    def end(self) -> None:
        """Ask every client to stop; one that waits for its coordinator does not hear it, and bears to be killed."""
        if not self._ending:
            self._ending, self._until = True, time.monotonic() + _LAST_BREATH_SECONDS
        number = signal.SIGTERM if time.monotonic() < self._until else signal.SIGKILL
        for child in list(self._children):
            with suppress(ProcessLookupError):
                os.kill(child, number)

    def wait(self) -> bool:
        while self._children or (self._due and not self._ending):
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                child, status = 0, 0
            if child in self._children:
                self._gone(child, status)
            elif not child:
                if self._ending:
                    self.end()  # again: one that was only just started may not have heard it
                self._start_due()
                time.sleep(0.05)
        return not self._failed and not self._ending

    def _gone(self, child: int, status: int) -> None:
        folder, since = self._children.pop(child)
        if not os.WIFSIGNALED(status):
            self._failed |= os.WEXITSTATUS(status) != 0
            return
        if self._ending:
            return
        steady = time.monotonic() - since > _STEADY_SECONDS
        pause = _FIRST_RESTART if steady else self._pauses.get(folder, _FIRST_RESTART)
        self._pauses[folder] = min(2.0 * pause, _LONGEST_RESTART)
        self._say(f"{folder.name} was killed: started again in {pause:g} s")
        self._due.append((time.monotonic() + pause, folder))

    def _start_due(self) -> None:
        now = time.monotonic()
        ready = [folder for when, folder in self._due if when <= now]
        self._due = [(when, folder) for when, folder in self._due if when > now]
        for folder in ready:
            self.start(folder)


def _end_with(pipe: int) -> None:
    """End this process as soon as its host is gone, as a kill would: a client bears that at any point."""
    os.read(pipe, 1)
    os._exit(2)


def _life(folder: Path, known: FederationFacts, say: Callable[[str], None], run: RunClient) -> int:
    """All of one client's process; what goes wrong is one line."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())

    def speak(words: str) -> None:
        say(f"{folder.name}: {words}")

    taken = f"{folder} is at work in another process: one is enough, so leave this one out or end the other"
    try:
        with alone_in(folder, taken, patience=_LAST_BREATH_SECONDS):
            run(folder, known, speak, stop)
    except (VeilrecError, OSError) as error:
        say(f"veilrec: {folder.name} takes no part any more: {error}")
        return 2
    return 0
