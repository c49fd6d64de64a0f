"""What faults are tried on: processes that die when told to, beside a federation that nobody harmed; and kill -9."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from tests.federation.loopback import basis_of, known_in, lay_out_in, opened, run_all, run_device, run_everybody
from tests.killing import dying_at, forked
from veilrec.audit.contract_subject import ContractSubject
from veilrec.client import federated as device_module
from veilrec.core.errors import VeilrecError
from veilrec.core.files import replacing
from veilrec.federation import link
from veilrec.federation.client import folder as device_folder
from veilrec.federation.client import process as client_process
from veilrec.federation.coordinator import aggregation, driver, process, registry
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import DEVICES
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


def kill_coordinators(folder: Path, load: Load, say: Say) -> dict[str, Any]:
    """Kill -9 of the coordinator at random points: the same weights as without."""
    dice = random.Random(load.seed)  # noqa: S311 - it chooses where to die
    trial = make_trial(folder, "priv-fedmf-sub", "cohort.size=4", users=5, rounds=8)
    found = {"kills": 0, "runs": 0, "harmed_runs": 0, "same_weights": 0}
    while found["kills"] < load.coordinator_kills:
        copy = trial.copy(f"run-{found['runs']}")
        known = known_in(copy)
        with child(lambda: hosting(copy, known)):  # noqa: B023 - done with in this turn
            kills = _killed_until_over(copy, known, dice, load.coordinator_kills - found["kills"])
        ended = read_end(copy, known)
        found["kills"] += kills
        found["runs"] += 1
        found["harmed_runs"] += kills > 0
        found["same_weights"] += ended.digest == trial.wanted.digest and ended.history == _without_refusals(
            ended, trial
        )
        shutil.rmtree(copy)
        say(f"coordinator: {found}")
    return {"name": "kill -9 of the coordinator", **found, "holds": found["same_weights"] == found["runs"]}


def _without_refusals(ended: Ended, trial: Trial) -> tuple[round_store.RoundReport, ...]:
    """The rounds as they should be; what was refused on the way (late, or again) may differ."""
    pairs = zip(trial.wanted.history, ended.history, strict=False)
    return tuple(replace(wanted, refused=found.refused) for wanted, found in pairs)


def _killed_until_over(folder: Path, known: FederationFacts, dice: random.Random, most: int) -> int:
    """Start a coordinator again and again, each time with a death of its own; how many died."""
    kills = 0
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        line = 0 if kills >= most else dice.choice((dice.randint(1, 400), dice.randint(1, 4000)))
        by_time = kills < most and dice.random() < 0.25

        def life() -> None:
            if line and not by_time:  # noqa: B023 - forked at once
                die_at(line, COORDINATOR_FILES)  # noqa: B023
            coordinating(folder, known)

        with child(life) as pid:
            end = time.monotonic() + (dice.uniform(0.05, 1.0) if by_time else PATIENCE)
            while (dead := was_killed(pid)) is None and time.monotonic() < end:
                time.sleep(0.005)
        kills += dead is not False
        if dead is False:
            return kills
    raise VeilrecError(f"the run in {folder} does not come to its end")


def kill_devices(folder: Path, load: Load, say: Say) -> dict[str, Any]:
    """Kill -9 of devices at random points: charged once, counted once, and the same weights."""
    dice = random.Random(load.seed + 1)  # noqa: S311 - it chooses where to die
    broken = ("under_charged", "over_charged", "counted_twice", "second_messages", "other_weights")
    found = {"kills": 0, "runs": 0, **dict.fromkeys(broken, 0)}
    while found["kills"] < load.device_kills:
        rehearsal = found["runs"] % 2 == 0  # with noise of their own, a message that was made again would be another
        place = folder / f"run-{found['runs']}"
        trial = make_trial(
            place, "dp-fedmf", "calibration=as-published", "cohort.size=5", users=5, rounds=10, rehearsal=rehearsal
        )
        known = known_in(trial.base)
        with child(lambda: coordinating(trial.base, known)) as server:  # noqa: B023 - done with in this turn
            found["kills"] += _dying_devices(trial.base, known, server, dice, load.device_kills - found["kills"])
        ended = read_end(trial.base, known)
        for name, count in _charges(trial.base, known, ended).items():
            found[name] += count
        found["other_weights"] += rehearsal and ended.digest != trial.wanted.digest
        found["runs"] += 1
        shutil.rmtree(place)
        say(f"devices: {found}")
    return {"name": "kill -9 of devices", **found, "holds": not any(found[name] for name in broken)}


def _charges(folder: Path, known: FederationFacts, ended: Ended) -> dict[str, int]:
    """Every device is in every round: its ledger has to know of as many messages, and its budget is for no more."""
    under, over, rounds = 0, 0, len(ended.history)
    for place in sorted((folder / DEVICES).iterdir()):
        with opened(place, known) as device:
            under += device.spent()[0].messages < rounds
            over += device.spent()[0].messages > rounds
    twice = sum(report.messages > report.devices for report in ended.history)
    second = sum(report.refused.get("second message", 0) for report in ended.history)
    return {"under_charged": under, "over_charged": over, "counted_twice": twice, "second_messages": second}


def _dying_devices(folder: Path, known: FederationFacts, server: int, dice: random.Random, most: int) -> int:
    """A process for every device, each with a death of its own, until the coordinator has all; how many died."""
    places, living, kills = sorted((folder / DEVICES).iterdir()), dict[int, Path](), 0
    until = time.monotonic() + PATIENCE
    waiting = list(places)
    while time.monotonic() < until:
        for place in waiting:
            line = dice.randint(1, dice.choice((200, 1500))) if kills + len(living) < most else 0
            living[forked(lambda: silent(lambda: dying_device(place, known, line)))] = place  # noqa: B023
        waiting = []
        for pid in list(living):
            dead = was_killed(pid)
            if dead is None:
                continue
            place = living.pop(pid)
            kills += dead
            waiting += [place] if dead else []
        if died_or_gone(server):
            break
        time.sleep(0.003)
    else:
        raise VeilrecError(f"the run in {folder} does not come to its end")
    for pid in living:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return kills
