"""What faults are tried on: processes that die when told to, and a federation beside one that nobody harmed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tests.federation.loopback import basis_of, known_in, lay_out_in, run_all, run_device, run_everybody
from tests.killing import dying_at, forked
from veilrec.audit.contract_subject import ContractSubject
from veilrec.client import federated as device_module
from veilrec.core.files import replacing
from veilrec.federation import link
from veilrec.federation.client import folder as device_folder
from veilrec.federation.client import process as client_process
from veilrec.federation.coordinator import aggregation, driver, process, registry
from veilrec.federation.facts import FederationFacts
from veilrec.federation.finishing import Ended, read_end
from veilrec.privacy import ledger, ledger_store
from veilrec.server import coordinator, round_store, secure_reports, server
from veilrec.serving.middleware import Log

COORDINATOR_FILES = frozenset(
    module.__file__
    for module in (coordinator, secure_reports, round_store, server, aggregation, driver, process, registry)
    if module.__file__
) | {replacing.__code__.co_filename}
DEVICE_FILES = frozenset(
    module.__file__
    for module in (device_module, ledger, ledger_store, link, client_process, device_folder)
    if module.__file__
)
LONG = 600.0  # seconds: no round ends before all messages are there
PATIENCE = 1200.0  # seconds that a run may take on a machine that is busy otherwise
Say = Callable[[str], None]


@dataclass(frozen=True)
class Load:
    """How much is done to it."""

    coordinator_kills: int = 200
    device_kills: int = 500
    replays: int = 10_000
    garbage: int = 10_000
    lossy_rounds: int = 12
    minutes: float = 0.0  # of the soak
    seed: int = 7


QUICK = Load(coordinator_kills=12, device_kills=30, replays=500, garbage=500, lossy_rounds=4)


def quick_to_come_back() -> None:
    """Devices of trials do not wait for half a minute: thousands of connections break in them."""
    link._LONGEST_PAUSE, link._FIRST_PAUSE, link._DECLINED_PAUSE = 0.1, 0.02, 0.1


@contextmanager
def child(work: Callable[[], object]) -> Iterator[int]:
    """A process that is ended with this block."""
    pid = forked(lambda: silent(work))
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def silent(work: Callable[[], object]) -> None:
    """Without a word on stderr."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    work()


def die_at(line: int, watched: Collection[str]) -> None:
    """Die at the n-th line of the watched files, in whichever thread."""
    trace = dying_at(line, watched)
    threading.settrace(trace)
    sys.settrace(trace)


def coordinating(folder: Path, known: FederationFacts, log: BinaryIO | None = None) -> None:
    """A coordinator's process, which limits nobody; what it says goes nowhere unless told otherwise."""
    process._LINGER_SECONDS = 0.5
    stream = log or open(os.devnull, "wb")  # noqa: SIM115, PTH123 - for as long as the process lives
    process.coordinate(folder, known, lambda _: None, log=Log(stream), rate=0.0)


def hosting(folder: Path, known: FederationFacts) -> None:
    """All devices of a folder, in threads of one process, until it is over."""
    quick_to_come_back()
    link._POLL_SECONDS = 2.0
    run_everybody(folder, known, lambda _: None)


def was_killed(pid: int) -> bool | None:
    """Whether a child was killed (True) or ended by itself (False); None while it lives."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return None if not found else os.WIFSIGNALED(status)


@dataclass(frozen=True)
class Trial:
    """A federation that is copied, harmed, and compared with one that was not."""

    base: Path
    wanted: Ended
    messages: int

    def copy(self, name: str) -> Path:
        """The federation as it was before its first round."""
        target = self.base.with_name(name)
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(self.base, target)
        return target


def make_trial(folder: Path, method: str, *settings: str, users: int, rounds: int, **wishes: Any) -> Trial:
    """Make a federation, and run a copy of it that nobody harms."""
    basis = basis_of(ContractSubject(method), *settings, users=users, rounds=rounds)
    base = folder / "base"
    lay_out_in(base, basis, **{"round_seconds": LONG, **wishes})
    unharmed = folder / "unharmed"
    shutil.copytree(base, unharmed)
    run_all(unharmed)
    ended = read_end(unharmed, known_in(unharmed))
    return Trial(base, ended, sum(report.messages for report in ended.history))


def died_or_gone(pid: int) -> bool:
    """Whether a child has ended, in whichever way."""
    try:
        return was_killed(pid) is not None
    except ChildProcessError:
        return True


def dying_device(place: Path, known: FederationFacts, line: int) -> None:
    """A device that dies at the n-th line of its own files; 0: that lives."""
    quick_to_come_back()
    if line:
        die_at(line, DEVICE_FILES)
    run_device(place, known, lambda _: None, threading.Event(), lambda _, answers: answers)


def gone(pid: int) -> None:
    """Wait for the end of a child."""
    until = time.monotonic() + PATIENCE
    while not died_or_gone(pid) and time.monotonic() < until:
        time.sleep(0.01)
