"""The processes of devices: one for each folder, and beside them one that makes the plan once for all of them.

A machine that runs several devices makes the plan, and compiles what they need, before it splits into one process for
each. Until then it has read nothing of any of them. They end with it: whoever kills it leaves no devices behind that
nobody looks after, and no two processes work on one folder.
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
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from veilrec.client.federated import FederatedClient
from veilrec.core.errors import VeilrecError
from veilrec.core.schema import RoundSpec, whole_model
from veilrec.federation.client import folder as device_folder
from veilrec.federation.client.answers import HelperMaskedAnswers, PairwiseMaskedAnswers, PlaintextAnswers
from veilrec.federation.facts import FederationFacts, largest_content
from veilrec.federation.federation import CA
from veilrec.federation.identity import identity_of, read_invitation
from veilrec.federation.link import HttpsLink, live
from veilrec.federation.processes import alone_in
from veilrec.wire import rounds
from veilrec.wire.signing import SigningKey

_FIRST_RESTART, _LONGEST_RESTART = 0.5, 30.0  # seconds until a device that was killed is started again
_STEADY_SECONDS = 60.0  # after which a device counts as well
_LAST_BREATH_SECONDS = 5.0  # for a process whose host was killed to be gone from its folder, or that was asked to end


RunDevice: TypeAlias = Callable[[Path, FederationFacts, Callable[[str], None], threading.Event], bool]


def run_device(folder: Path, known: FederationFacts, say: Callable[[str], None], stop: threading.Event) -> bool:
    """One device until the federation is over; whether it is."""
    with device_folder.open_device(folder, known) as device:
        invitation, identity = read_invitation(folder), identity_of(folder)
        most = largest_content(known)
        link = HttpsLink(known.federation, known.folder / CA, invitation.device, identity, largest_content=most)
        try:
            answers = answers_of(device, known, device_folder.read_record(folder).place, identity)
            return live(link, answers, say, stop, lambda: link.enrol(invitation))
        finally:
            link.close()


def answers_of(
    device: FederatedClient[Any], known: FederationFacts, place: int, identity: SigningKey
) -> PlaintextAnswers:
    """A device as its federation wants it: under masks, or not."""
    if known.federation.secagg == "none":
        return PlaintextAnswers(device)
    if known.federation.secagg == "pairs":
        return PairwiseMaskedAnswers(device, known, place, identity)
    return HelperMaskedAnswers(device, known.plan, known.federation, place, identity)


def warm(known: FederationFacts) -> None:
    """Compile, or read from the cache, what a device needs, with made-up data in a folder that is gone after.

    Not where torch is at work, whose threads do not survive the split into processes.
    """
    if "torch" in sys.modules:
        return
    plan = known.plan
    everybody = known.method.devices(known.config, known.problem)
    some = np.flatnonzero(everybody.rows.lengths() > 0)[:1].astype(np.int64)
    content = rounds.encode(RoundSpec(0), whole_model(plan.schema, plan.start, 0), plan.schema)
    with tempfile.TemporaryDirectory() as place, suppress(VeilrecError):
        device = FederatedClient.create(
            Path(place) / "nobody",
            plan,
            everybody.take(some),
            [known.federation.spending()],
            unprotected=known.federation.unprotected,
        )
        with device:
            if plan.reports is not None:
                device.report(0, 0)
            device.take_part(content, 0)


def run_devices(
    folders: Sequence[Path], known: FederationFacts, say: Callable[[str], None], run: RunDevice = run_device
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

    def __init__(self, known: FederationFacts, say: Callable[[str], None], run: RunDevice) -> None:
        self._known, self._say, self._run = known, say, run
        self._children: dict[int, tuple[Path, float]] = {}
        self._due: list[tuple[float, Path]] = []
        self._pauses: dict[Path, float] = {}
        self._ending = False
        self._until = 0.0  # when devices that were asked to end are killed
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
        """Ask every device to stop; one that waits for its coordinator does not hear it, and bears to be killed."""
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
    """End this process as soon as its host is gone, as a kill would: a device bears that at any point."""
    os.read(pipe, 1)
    os._exit(2)


def _life(folder: Path, known: FederationFacts, say: Callable[[str], None], run: RunDevice) -> int:
    """All of one device's process; what goes wrong is one line."""
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
