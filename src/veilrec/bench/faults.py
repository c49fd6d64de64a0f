"""`veilrec bench faults`: a real federation is killed, flooded, starved and confused; what it promised has to hold.

Every trial is a rehearsal on made-up people, whose weights are known beforehand: a federation that nobody harmed, with
the same secrets. Coordinators and devices are processes of their own and speak HTTPS; they die by SIGKILL at a random
line of our code, or at a random time.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from veilrec._files import replacing
from veilrec.bench.killing import dying_at, forked
from veilrec.bench.measure import describe_machine
from veilrec.device import device as device_module
from veilrec.errors import VeilrecError, known_name
from veilrec.federate.coordinator import board, conducting, https_door, process, registry
from veilrec.federate.device import folder as device_folder
from veilrec.federate.device import https_link, loop
from veilrec.federate.facts import Known
from veilrec.federate.federation import DEVICES
from veilrec.federate.finishing import Ended, read_end
from veilrec.federate.loopback import (
    basis_of,
    known_in,
    lay_out_in,
    link_of,
    opened,
    run_all,
    run_device,
    run_everybody,
)
from veilrec.federate.tasks import Away, Task, TurnedAway
from veilrec.privacy import ledger, ledger_store
from veilrec.runs.contract_subject import Subject
from veilrec.server import coordinator, round_store, standing
from veilrec.server.http.logs import Log

COORDINATOR_FILES = frozenset(
    module.__file__
    for module in (coordinator, round_store, standing, board, conducting, https_door, process, registry)
    if module.__file__
) | {replacing.__code__.co_filename}
DEVICE_FILES = frozenset(
    module.__file__
    for module in (device_module, ledger, ledger_store, loop, https_link, device_folder)
    if module.__file__
)
_LONG = 600.0  # seconds: no round ends before all messages are there
_PATIENCE = 1200.0  # seconds that a run may take on a machine that is busy otherwise
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


def run(load: Load, say: Say, only: Sequence[str] = ()) -> dict[str, Any]:
    """Every trial, or some; what was found, and whether what is promised held."""
    machine, chosen = describe_machine(), [known_name("task", name, TRIALS) for name in only]
    names = chosen or [name for name in TRIALS if name != "soak" or load.minutes]
    tasks = []
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            began = time.perf_counter()
            done = TRIALS[name](Path(place) / name, load, say)
        tasks.append({"task": name, **done, "seconds": round(time.perf_counter() - began, 1)})
        say(f"{done['name']}: {'holds' if done['holds'] else 'BROKEN'} ({tasks[-1]['seconds']:g} s)")
    return {"load": asdict(load), "machine": machine, "tasks": tasks, "holds": all(task["holds"] for task in tasks)}


# Processes


def _quick_to_come_back() -> None:
    """Devices of trials do not wait for half a minute: thousands of connections break in them."""
    loop._LONGEST_PAUSE, loop._FIRST_PAUSE, loop._DECLINED_PAUSE = 0.1, 0.02, 0.1


@contextmanager
def _child(work: Callable[[], object]) -> Iterator[int]:
    """A process that is ended with this block."""
    pid = forked(lambda: _silent(work))
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _silent(work: Callable[[], object]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    work()


def _die_at(line: int, watched: Collection[str]) -> None:
    """Die at the n-th line of the watched files, in whichever thread."""
    trace = dying_at(line, watched)
    threading.settrace(trace)
    sys.settrace(trace)


def _coordinating(folder: Path, known: Known, log: BinaryIO | None = None) -> None:
    """A coordinator's process, which limits nobody; what it says goes nowhere unless told otherwise."""
    process._LINGER_SECONDS = 0.5
    stream = log or open(os.devnull, "wb")  # noqa: SIM115, PTH123 - for as long as the process lives
    process.coordinate(folder, known, lambda _: None, log=Log(stream), rate=0.0)


def _hosting(folder: Path, known: Known) -> None:
    """All devices of a folder, in threads of one process, until it is over."""
    _quick_to_come_back()
    loop._POLL_SECONDS = 2.0
    run_everybody(folder, known, lambda _: None)


def _died(pid: int) -> bool | None:
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


def _trial(folder: Path, method: str, *settings: str, users: int, rounds: int, **wishes: Any) -> Trial:
    basis = basis_of(Subject(method), *settings, users=users, rounds=rounds)
    base = folder / "base"
    lay_out_in(base, basis, **{"round_seconds": _LONG, **wishes})
    unharmed = folder / "unharmed"
    shutil.copytree(base, unharmed)
    run_all(unharmed)
    ended = read_end(unharmed, known_in(unharmed))
    return Trial(base, ended, sum(report.messages for report in ended.history))


# Trials


def kill_coordinators(folder: Path, load: Load, say: Say) -> dict[str, Any]:
    """Kill -9 of the coordinator at random points: the same weights as without."""
    dice = random.Random(load.seed)  # noqa: S311 - it chooses where to die
    trial = _trial(folder, "priv-fedmf-sub", "cohort.size=4", users=5, rounds=8)
    found = {"kills": 0, "runs": 0, "harmed_runs": 0, "same_weights": 0}
    while found["kills"] < load.coordinator_kills:
        copy = trial.copy(f"run-{found['runs']}")
        known = known_in(copy)
        with _child(lambda: _hosting(copy, known)):  # noqa: B023 - done with in this turn
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


def _killed_until_over(folder: Path, known: Known, dice: random.Random, most: int) -> int:
    """Start a coordinator again and again, each time with a death of its own; how many died."""
    kills = 0
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        line = 0 if kills >= most else dice.choice((dice.randint(1, 400), dice.randint(1, 4000)))
        by_time = kills < most and dice.random() < 0.25

        def life() -> None:
            if line and not by_time:  # noqa: B023 - forked at once
                _die_at(line, COORDINATOR_FILES)  # noqa: B023
            _coordinating(folder, known)

        with _child(life) as pid:
            end = time.monotonic() + (dice.uniform(0.05, 1.0) if by_time else _PATIENCE)
            while (died := _died(pid)) is None and time.monotonic() < end:
                time.sleep(0.005)
        kills += died is not False
        if died is False:
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
        trial = _trial(
            place, "dp-fedmf", "calibration=as-published", "cohort.size=5", users=5, rounds=10, rehearsal=rehearsal
        )
        known = known_in(trial.base)
        with _child(lambda: _coordinating(trial.base, known)) as server:  # noqa: B023 - done with in this turn
            found["kills"] += _dying_devices(trial.base, known, server, dice, load.device_kills - found["kills"])
        ended = read_end(trial.base, known)
        for name, count in _charges(trial.base, known, ended).items():
            found[name] += count
        found["other_weights"] += rehearsal and ended.digest != trial.wanted.digest
        found["runs"] += 1
        shutil.rmtree(place)
        say(f"devices: {found}")
    return {"name": "kill -9 of devices", **found, "holds": not any(found[name] for name in broken)}


def _charges(folder: Path, known: Known, ended: Ended) -> dict[str, int]:
    """Every device is in every round: its ledger has to know of as many messages, and its budget is for no more."""
    under, over, rounds = 0, 0, len(ended.history)
    for place in sorted((folder / DEVICES).iterdir()):
        with opened(place, known) as device:
            under += device.spent()[0].messages < rounds
            over += device.spent()[0].messages > rounds
    twice = sum(report.messages > report.devices for report in ended.history)
    second = sum(report.refused.get("second message", 0) for report in ended.history)
    return {"under_charged": under, "over_charged": over, "counted_twice": twice, "second_messages": second}


def _dying_devices(folder: Path, known: Known, server: int, dice: random.Random, most: int) -> int:
    """A process for every device, each with a death of its own, until the coordinator has all; how many died."""
    places, living, kills = sorted((folder / DEVICES).iterdir()), dict[int, Path](), 0
    until = time.monotonic() + _PATIENCE
    waiting = list(places)
    while time.monotonic() < until:
        for place in waiting:
            line = dice.randint(1, dice.choice((200, 1500))) if kills + len(living) < most else 0
            living[forked(lambda: _silent(lambda: _dying_device(place, known, line)))] = place  # noqa: B023
        waiting = []
        for pid in list(living):
            died = _died(pid)
            if died is None:
                continue
            place = living.pop(pid)
            kills += died
            waiting += [place] if died else []
        if _died_or_gone(server):
            break
        time.sleep(0.003)
    else:
        raise VeilrecError(f"the run in {folder} does not come to its end")
    for pid in living:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return kills


def _died_or_gone(pid: int) -> bool:
    try:
        return _died(pid) is not None
    except ChildProcessError:
        return True


def _dying_device(place: Path, known: Known, line: int) -> None:
    _quick_to_come_back()
    if line:
        _die_at(line, DEVICE_FILES)
    run_device(place, known, lambda _: None, threading.Event(), lambda _, answers: answers)


def flood(folder: Path, load: Load, say: Say) -> dict[str, Any]:
    """Messages again and again, and bytes that are none: nothing of it is counted, and memory stays bounded."""
    dice = random.Random(load.seed + 2)  # noqa: S311 - it makes garbage
    trial = _trial(folder, "fedmf", "cohort.size=3", users=3, rounds=1)
    known = known_in(trial.base)
    with _child(lambda: _coordinating(trial.base, known)) as server:
        names = sorted((trial.base / DEVICES).iterdir())
        links = [_enrolled(place, known) for place in names]
        task, message = _answered(names[0], known, links[0])
        before, peak = _rss_mb(server), _Peak(server)
        receipts = [links[0].send(task, message) for _ in range(load.replays)]
        say(f"{load.replays} replays: {len(receipts)} receipts")
        refused = sum(_garbage(links[1], task, dice, message) for _ in range(load.garbage))
        after = peak.seen()
        for place, link in zip(names[1:], links[1:], strict=True):
            _answered(place, known, link)
        _gone(server)
    ended = read_end(trial.base, known)
    holds = (
        set(receipts) == {"known already"}
        and refused == load.garbage
        and ended.digest == trial.wanted.digest
        and after - before < 64.0
    )
    return {
        "name": "replays and garbage",
        "replays": load.replays,
        "garbage": load.garbage,
        "refused_garbage": refused,
        "counted": sum(report.messages for report in ended.history),
        "rss_before_mb": before,
        "rss_peak_mb": after,
        "holds": holds,
    }


def _enrolled(place: Path, known: Known) -> https_link.HttpsLink:
    link, until = link_of(place, known), time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        try:
            link.enrol(device_folder.read_invitation(place))
        except Away:
            time.sleep(0.05)
        else:
            return link
    raise VeilrecError("the coordinator does not come up")


def _answered(place: Path, known: Known, link: https_link.HttpsLink) -> tuple[Task, bytes]:
    """The first task of a device, done by the book."""
    task = None
    while task is None:
        task = link.poll(5.0)
    with opened(place, known) as device:
        message = device.take_part(link.fetch(task), task.number)
    link.send(task, message)
    return task, message


def _garbage(link: https_link.HttpsLink, task: Task, dice: random.Random, message: bytes) -> bool:
    """Something that is no message of this device; whether it was refused."""
    kind = dice.randrange(5)
    size = dice.randrange(1, 4096)
    content = dice.randbytes(size)
    if kind == 1:  # a message with some bytes changed
        changed = bytearray(message)
        for _ in range(dice.randint(1, 8)):
            changed[dice.randrange(min(len(changed), 64))] = dice.randrange(256)
        content = bytes(changed[: dice.randrange(len(changed))])
    try:
        if kind == 2:  # not signed
            link._request("/v1/answer", content, {}, 1 << 16, 0.0)
        elif kind == 3:  # larger than any message
            link._request("/v1/answer", b"", {"Content-Length": str(1 << 40)}, 1 << 16, 0.0)
        elif kind == 4:  # no enrolment
            link._request("/v1/enrol", content, {}, 1 << 16, 0.0)
        else:
            link.send(task, content)
    except (TurnedAway, Away):
        return True
    return False


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 2**20, 1)


class _Peak:
    """The most memory that a process held while somebody looked."""

    def __init__(self, pid: int) -> None:
        self._pid, self._most, self._over = pid, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.05):
            with suppress(OSError):
                self._most = max(self._most, _rss_mb(self._pid))

    def seen(self) -> float:
        self._over.set()
        self._thread.join()
        return self._most


def lose_devices(folder: Path, load: Load, say: Say) -> dict[str, Any]:
    """30 % of the devices are lost in every round, before and after they have learnt: exact sums, under masks too.

    fedmf draws by the public seed, and has no noise: both federations lose the same devices and learn the same.
    """
    digests, voids = dict[str, str](), dict[str, int]()
    for secagg in ("none", "helpers"):
        basis = basis_of(Subject("fedmf"), "cohort.size=0", users=10, rounds=load.lossy_rounds)
        place = folder / secagg
        lay_out_in(place, basis, secagg=secagg, round_seconds=1.5, minimum_messages=5)
        run_all(place, wrap=lambda name, answers: _Lossy(name, answers, load.seed))
        ended = read_end(place, known_in(place))
        digests[secagg], voids[secagg] = ended.digest, sum(report.void for report in ended.history)
        lost = [report.devices - report.messages for report in ended.history]
        say(f"losses ({secagg}): {lost}, {voids[secagg]} void")
    return {
        "name": "30 % of devices lost in every round",
        "rounds": load.lossy_rounds,
        "lost": sum(lost),
        "void": voids,
        "same_weights_under_masks": digests["none"] == digests["helpers"],
        "holds": digests["none"] == digests["helpers"] and voids["none"] == voids["helpers"] and sum(lost) > 0,
    }


class _Lossy:
    """A device that is lost in some rounds: it never hears of them, or has learnt and then cannot send."""

    def __init__(self, name: str, answers: loop.Answers, seed: int) -> None:
        self._name, self._answers, self._seed = name, answers, seed

    def answer(self, task: Task, content: bytes) -> bytes:
        dice = random.Random(f"{self._seed} {self._name} {task.number}")  # noqa: S311 - it chooses who is lost
        if task.kind == "round" and dice.random() < 0.3:
            if dice.random() < 0.5:
                self._answers.answer(task, content)
            raise Away("lost")
        return self._answers.answer(task, content)


def fill_disk(folder: Path, load: Load, say: Say) -> dict[str, Any]:
    """For two seconds the coordinator can write nothing: what was not kept is asked for again, nothing is lost."""
    trial = _trial(folder, "fedmf", "cohort.size=4", users=5, rounds=6)
    copy = trial.copy("full")
    known = known_in(copy)

    reading, writing = os.pipe()  # a log that no limit on files stops

    def starving() -> None:
        threading.Thread(target=_no_room, args=(0.5, 2.0), daemon=True).start()
        _coordinating(copy, known, os.fdopen(writing, "wb"))

    with _child(starving) as server, _child(lambda: _hosting(copy, known)):
        os.close(writing)
        with os.fdopen(reading, "rb") as log:
            troubles = sum(b"could not be kept" in line or b"the disk refuses" in line for line in log)
        _gone(server)
    ended = read_end(copy, known)
    same = ended.digest == trial.wanted.digest
    say(f"full disk: {troubles} times nothing could be written, {'the same' if same else 'OTHER'} weights")
    found = {"rounds": len(ended.history), "could_not_write": troubles, "same_weights": same}
    return {"name": "disk full", **found, "holds": same and troubles > 0}


def _gone(pid: int) -> None:
    """Wait for the end of a child."""
    until = time.monotonic() + _PATIENCE
    while not _died_or_gone(pid) and time.monotonic() < until:
        time.sleep(0.01)


def _no_room(after: float, seconds: float) -> None:
    """No file can grow for a while: what a disk that is full says, this process hears too."""
    time.sleep(after)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    time.sleep(seconds)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def turn_clocks(folder: Path, load: Load, say: Say) -> dict[str, Any]:
    """The clocks of coordinator and devices jump by years, back and forth: no deadline moves."""
    trial = _trial(folder, "fedmf", "cohort.size=4", users=5, rounds=6)
    copy = trial.copy("turned")
    known = known_in(copy)

    def jumping(work: Callable[[], object], seed: int) -> None:
        dice, real = random.Random(seed), time.time  # noqa: S311 - it sets clocks
        time.time = lambda: real() + dice.choice((-3e8, 0.0, 3e8))
        work()

    with (
        _child(lambda: jumping(lambda: _coordinating(copy, known), 1)) as server,
        _child(lambda: jumping(lambda: _hosting(copy, known), 2)),
    ):
        _gone(server)
    ended = read_end(copy, known)
    same = ended.digest == trial.wanted.digest
    say(f"clocks: {len(ended.history)} rounds, {'the same' if same else 'OTHER'} weights")
    return {"name": "clocks set back and forward", "rounds": len(ended.history), "same_weights": same, "holds": same}


def soak(folder: Path, load: Load, say: Say) -> dict[str, Any]:
    """20 devices join and leave for a long time: memory stays flat, and nothing is counted twice."""
    dice = random.Random(load.seed + 3)  # noqa: S311 - it chooses who leaves
    basis = basis_of(Subject("fedmf"), "cohort.size=10", users=20, rounds=100_000)
    lay_out_in(folder, basis, rehearsal=False, round_seconds=3.0)
    known = known_in(folder)
    places, living, left, samples = sorted((folder / DEVICES).iterdir()), dict[Path, int](), 0, list[float]()
    with _child(lambda: _coordinating(folder, known)) as server:
        end = time.monotonic() + 60.0 * load.minutes
        told = time.monotonic()
        while time.monotonic() < end:
            for place in places:
                if place not in living and dice.random() < 0.3:
                    living[place] = forked(lambda: _silent(lambda: _dying_device(place, known, 0)))  # noqa: B023
                elif place in living and dice.random() < 0.02:
                    os.kill(living[place], dice.choice((signal.SIGKILL, signal.SIGTERM)))
                    os.waitpid(living.pop(place), 0)
                    left += 1
            samples.append(_rss_mb(server))
            if time.monotonic() - told > 60.0:
                told = time.monotonic()
                say(f"soak: {left} left and came back, coordinator {samples[-1]} MB")
            time.sleep(0.5)
        for pid in living.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    with process.open_coordinator(folder, known) as opened_again:
        history = opened_again.history()
    tenth = max(1, len(samples) // 10)
    early, late = max(samples[tenth : 2 * tenth], default=0.0), max(samples[-tenth:], default=0.0)
    twice = sum(report.messages > report.devices for report in history)
    return {
        "name": "soak",
        "minutes": load.minutes,
        "rounds": len(history),
        "void": sum(report.void for report in history),
        "left_and_came_back": left,
        "counted_twice": twice,
        "rss_early_mb": early,
        "rss_late_mb": late,
        "holds": not twice and late < 1.1 * early + 8.0 and len(history) > 0,
    }


TRIALS: dict[str, Callable[[Path, Load, Say], dict[str, Any]]] = {
    "coordinator": kill_coordinators,
    "devices": kill_devices,
    "flood": flood,
    "losses": lose_devices,
    "disk": fill_disk,
    "clocks": turn_clocks,
    "soak": soak,
}
