"""Fault injection: a real federation is killed, flooded, starved and confused; what it promises has to hold.

    python -m tests.federation.faults [--quick] [--task NAME] [--minutes 30] [--json]  # exit code 1 if a promise breaks

200 kills of the coordinator, 500 of devices, 10,000 replays, 10,000 messages of garbage, 30 % of devices lost, a full
disk, clocks that jump. Every trial is a rehearsal on synthetic data, whose weights are known beforehand: a federation
that nobody harmed, with the same secrets. Coordinators and devices are processes of their own and speak HTTPS; they die
by SIGKILL at a random line of our code, or at a random time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.federation.harmed import (
    PATIENCE,
    QUICK,
    Load,
    Say,
    Trial,
    child,
    coordinating,
    dying_device,
    gone,
    hosting,
    kill_coordinators,
    kill_devices,
    make_trial,
    silent,
)
from tests.federation.loopback import basis_of, known_in, lay_out_in, link_of, opened, run_all
from tests.killing import forked
from veilrec.audit.contract_subject import ContractSubject
from veilrec.core.errors import VeilrecError, known_name
from veilrec.federation.coordinator import process
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import DEVICES, Away, FederationTask, TurnedAway
from veilrec.federation.finishing import read_end
from veilrec.federation.identity import read_invitation
from veilrec.federation.link import Answers, HttpsLink


def run(load: Load, say: Say, only: Sequence[str] = ()) -> dict[str, Any]:
    """Every trial, or some; what was found, and whether what is promised held."""
    chosen = [known_name("task", name, TRIALS) for name in only]
    names = chosen or [name for name in TRIALS if name != "soak" or load.minutes]
    tasks = []
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            began = time.perf_counter()
            done = TRIALS[name](Path(place) / name, load, say)
        tasks.append({"task": name, **done, "seconds": round(time.perf_counter() - began, 1)})
        say(f"{done['name']}: {'holds' if done['holds'] else 'BROKEN'} ({tasks[-1]['seconds']:g} s)")
    return {"load": asdict(load), "tasks": tasks, "holds": all(task["holds"] for task in tasks)}


def flood(folder: Path, load: Load, say: Say) -> dict[str, Any]:
    """Messages again and again, and bytes that are none: nothing of it is counted, and memory stays bounded."""
    dice = random.Random(load.seed + 2)  # noqa: S311 - it makes garbage
    trial = make_trial(folder, "fedmf", "cohort.size=3", users=3, rounds=1)
    known = known_in(trial.base)
    with child(lambda: coordinating(trial.base, known)) as server:
        names = sorted((trial.base / DEVICES).iterdir())
        links = [_enrolled(place, known) for place in names]
        task, message = _answered(names[0], known, links[0])
        before = _rss_mb(server)
        receipts = [links[0].send(task, message) for _ in range(load.replays)]
        say(f"{load.replays} replays: {len(receipts)} receipts")
        refused = sum(_garbage(links[1], task, dice, message) for _ in range(load.garbage))
        after = _rss_mb(server, "VmHWM")
        for place, link in zip(names[1:], links[1:], strict=True):
            _answered(place, known, link)
        gone(server)
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


def _enrolled(place: Path, known: FederationFacts) -> HttpsLink:
    link, until = link_of(place, known), time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            link.enrol(read_invitation(place))
        except Away:
            time.sleep(0.05)
        else:
            return link
    raise VeilrecError("the coordinator does not come up")


def _answered(place: Path, known: FederationFacts, link: HttpsLink) -> tuple[FederationTask, bytes]:
    """The first task of a device, done by the book."""
    task = None
    while task is None:
        task = link.poll(5.0)
    with opened(place, known) as device:
        message = device.take_part(link.fetch(task), task.number)
    link.send(task, message)
    return task, message


def _garbage(link: HttpsLink, task: FederationTask, dice: random.Random, message: bytes) -> bool:
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


def _rss_mb(pid: int, which: str = "VmRSS") -> float:
    """Memory of a process now, or at most so far (VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(which))


def lose_devices(folder: Path, load: Load, say: Say) -> dict[str, Any]:
    """30 % of the devices are lost in every round, before and after they have learnt: exact sums, under masks too.

    fedmf draws by the public seed, and has no noise: both federations lose the same devices and learn the same.
    """
    digests, voids = dict[str, str](), dict[str, int]()
    for secagg in ("none", "helpers"):
        basis = basis_of(ContractSubject("fedmf"), "cohort.size=0", users=10, rounds=load.lossy_rounds)
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

    def __init__(self, name: str, answers: Answers, seed: int) -> None:
        self._name, self._answers, self._seed = name, answers, seed

    def answer(self, task: FederationTask, content: bytes) -> bytes:
        dice = random.Random(f"{self._seed} {self._name} {task.number}")  # noqa: S311 - it chooses who is lost
        if task.kind == "round" and dice.random() < 0.3:
            if dice.random() < 0.5:
                self._answers.answer(task, content)
            raise Away("lost")
        return self._answers.answer(task, content)


def fill_disk(folder: Path, load: Load, say: Say) -> dict[str, Any]:
    """For two seconds the coordinator can write nothing: what was not kept is asked for again, nothing is lost."""
    trial = make_trial(folder, "fedmf", "cohort.size=4", users=5, rounds=60)  # so many that the disk fills in between
    copy = trial.copy("full")
    known = known_in(copy)

    reading, writing = os.pipe()  # a log that no limit on files stops

    def starving() -> None:
        threading.Thread(target=_no_room, args=(0.5, 2.0), daemon=True).start()
        coordinating(copy, known, os.fdopen(writing, "wb"))

    with child(starving) as server, child(lambda: hosting(copy, known)):
        os.close(writing)
        with os.fdopen(reading, "rb") as log:
            troubles = sum(b"could not be kept" in line or b"the disk refuses" in line for line in log)
        gone(server)
    found = _compared(copy, known, trial, say)
    return {"name": "disk full", **found, "could_not_write": troubles, "holds": found["holds"] and troubles > 0}


def _no_room(after: float, seconds: float) -> None:
    """No file can grow for a while: what a disk that is full says, this process hears too."""
    time.sleep(after)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    time.sleep(seconds)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def turn_clocks(folder: Path, load: Load, say: Say) -> dict[str, Any]:
    """The clocks of coordinator and devices jump by years, back and forth: no deadline moves."""
    trial = make_trial(folder, "fedmf", "cohort.size=4", users=5, rounds=6)
    known = known_in(copy := trial.copy("turned"))

    def jumping(work: Callable[[Path, FederationFacts], object], seed: int) -> None:
        dice, real = random.Random(seed), time.time  # noqa: S311 - it sets clocks
        time.time = lambda: real() + dice.choice((-3e8, 0.0, 3e8))
        work(copy, known)

    with child(lambda: jumping(coordinating, 1)) as server, child(lambda: jumping(hosting, 2)):
        gone(server)
    return {"name": "clocks set back and forward", **_compared(copy, known, trial, say)}


def _compared(folder: Path, known: FederationFacts, trial: Trial, say: Say) -> dict[str, Any]:
    """Whether a federation that was harmed came to the weights of the one that was not."""
    ended = read_end(folder, known)
    same = ended.digest == trial.wanted.digest
    say(f"{folder.name}: {len(ended.history)} rounds, {'the same' if same else 'OTHER'} weights")
    return {"rounds": len(ended.history), "same_weights": same, "holds": same}


def soak(folder: Path, load: Load, say: Say) -> dict[str, Any]:
    """20 devices join and leave for a long time: memory stays flat, and nothing is counted twice."""
    dice = random.Random(load.seed + 3)  # noqa: S311 - it chooses who leaves
    basis = basis_of(ContractSubject("fedmf"), "cohort.size=10", users=20, rounds=100_000)
    lay_out_in(folder, basis, rehearsal=False, round_seconds=3.0)
    known = known_in(folder)
    places, living, left, samples = sorted((folder / DEVICES).iterdir()), dict[Path, int](), 0, list[float]()
    with child(lambda: coordinating(folder, known)) as server:
        end = time.monotonic() + 60.0 * load.minutes
        told = time.monotonic()
        while time.monotonic() < end:
            for place in places:
                if place not in living and dice.random() < 0.3:
                    living[place] = forked(lambda: silent(lambda: dying_device(place, known, 0)))  # noqa: B023
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


def main() -> int:
    """Run the trials that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few of everything: to try it")
    parser.add_argument("--minutes", type=float, default=0.0, help="also let devices join and leave for so long")
    parser.add_argument("--task", action="append", default=[], choices=list(TRIALS), help="only this")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    given = parser.parse_args()
    load = replace(QUICK if given.quick else Load(), minutes=given.minutes)
    report = run(load, lambda line: print(line, file=sys.stderr, flush=True), given.task)
    if given.json:
        print(json.dumps(report, indent=2))
    else:
        for done in report["tasks"]:
            figures = ", ".join(f"{key} {value}" for key, value in done.items() if key not in ("name", "holds", "task"))
            print(f"{done['name']}: {'holds' if done['holds'] else 'BROKEN'} ({figures})")
    return 0 if report["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
