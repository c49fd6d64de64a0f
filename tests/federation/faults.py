"""Fault injection: a real federation is killed, flooded, starved and confused; what it promises has to hold.

    python -m tests.federation.faults [--quick] [--task NAME] [--minutes 30] [--json]  # exit code 1 if a promise breaks

200 kills of the coordinator, 500 of clients, 100 of coordinator, helpers and clients under masks with noise of the
clients in sums, 10,000 replays, 10,000 messages of garbage, 30 % of clients lost, a full
disk, clocks that jump. Every trial is a rehearsal on synthetic data, whose weights are known beforehand: a federation
that nobody harmed, with the same secrets. Coordinators and clients are processes of their own and speak HTTPS; they die
by SIGKILL at a random line of our code, or at a random time.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.clock import Clock
from tests.federation import loopback
from tests.killing import dying_at, forked
from veilrec.audit.contract_subject import ContractSubject
from veilrec.client import federated as client_module
from veilrec.core.errors import VeilrecError, known_name
from veilrec.core.files import replacing
from veilrec.federation import helper, identity, link
from veilrec.federation.auditing import audit
from veilrec.federation.client import folder as client_folder
from veilrec.federation.client import process as client_process
from veilrec.federation.coordinator import aggregation, driver, process, registry
from veilrec.federation.federation import CLIENTS, HELPERS, Away, TurnedAway
from veilrec.federation.finishing import Ended, read_end
from veilrec.federation.identity import read_invitation
from veilrec.federation.running import OURSELVES
from veilrec.federation.secagg import helpers as masks
from veilrec.privacy import ledger, ledger_store
from veilrec.server import coordinator, round_store, secure_reports, server
from veilrec.serving.middleware import Log

_COORDINATOR = (coordinator, secure_reports, round_store, server, aggregation, driver, process, registry)
COORDINATOR_FILES = frozenset(module.__file__ for module in _COORDINATOR) | {replacing.__code__.co_filename}
_CLIENT = (client_module, ledger, ledger_store, link, client_process, client_folder)
CLIENT_FILES = frozenset(module.__file__ for module in _CLIENT)
HELPER_FILES = frozenset(module.__file__ for module in (helper, masks, identity, link))
LONG = 600.0  # seconds: no round ends before all messages are there
PATIENCE = 1200.0  # seconds that a run may take on a machine that is busy otherwise


@dataclass(frozen=True)
class Load:
    coordinator_kills: int = 200
    client_kills: int = 500
    masked_kills: int = 100  # of coordinator, helpers and clients in turn
    replays: int = 10_000
    garbage: int = 10_000
    lossy_rounds: int = 12
    minutes: float = 0.0  # of the soak
    seed: int = 7


QUICK = Load(coordinator_kills=12, client_kills=30, masked_kills=12, replays=500, garbage=500, lossy_rounds=4)


def quick_to_come_back():
    """Clients of trials do not wait for half a minute: thousands of connections break in them."""
    link._LONGEST_PAUSE, link._FIRST_PAUSE, link._DECLINED_PAUSE = 0.1, 0.02, 0.1


@contextmanager
def child(work):
    pid = forked(lambda: silent(work))
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def silent(work):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    work()


def die_at(line, watched):
    trace = dying_at(line, watched)
    threading.settrace(trace)
    sys.settrace(trace)


def coordinating(folder, known, log=None):
    """A coordinator's process, which limits nobody; what it says goes nowhere unless told otherwise."""
    process._LINGER_SECONDS = 0.5
    stream = log or open(os.devnull, "wb")  # noqa: SIM115, PTH123 - for as long as the process lives
    process.coordinate(folder, known, lambda _: None, log=Log(stream), rate=0.0)


def hosting(folder, known):
    quick_to_come_back()
    link._POLL_SECONDS = 2.0
    loopback.run_everybody(folder, known, lambda _: None)


def was_killed(pid):
    """Whether a child was killed (True) or ended by itself (False); None while it lives."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return None if not found else os.WIFSIGNALED(status)


@dataclass(frozen=True)
class Trial:
    """A federation that is copied, harmed, and compared with one that was not."""

    base: Path
    wanted: Ended
    messages: int

    def copy(self, name):
        target = self.base.with_name(name)
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(self.base, target)
        return target


def make_trial(folder, method, *settings, users, rounds, **wishes):
    """Make a federation, and run a copy of it that nobody harms."""
    basis = loopback.basis_of(ContractSubject(method), *settings, users=users, rounds=rounds)
    base = folder / "base"
    loopback.lay_out_in(base, basis, **{"round_seconds": LONG, **wishes})
    unharmed = folder / "unharmed"
    shutil.copytree(base, unharmed)
    loopback.run_all(unharmed)
    ended = read_end(unharmed, loopback.known_in(unharmed))
    return Trial(base, ended, sum(report.messages for report in ended.history))


def died_or_gone(pid):
    try:
        return was_killed(pid) is not None
    except ChildProcessError:
        return True


def dying_client(place, known, line):
    quick_to_come_back()
    if line:
        die_at(line, CLIENT_FILES)
    loopback.run_client(place, known, lambda _: None, threading.Event(), lambda _, answers: answers)


def gone(pid):
    until = time.monotonic() + PATIENCE
    while not died_or_gone(pid) and time.monotonic() < until:
        time.sleep(0.01)


def kill_coordinators(folder, load, say):
    """Kill -9 of the coordinator at random points: the same weights as without."""
    dice = random.Random(load.seed)  # noqa: S311 - it chooses where to die
    trial = make_trial(folder, "priv-fedmf-sub", "cohort.size=4", users=5, rounds=8)
    found = {"kills": 0, "runs": 0, "harmed_runs": 0, "same_weights": 0}
    while found["kills"] < load.coordinator_kills:
        copy = trial.copy(f"run-{found['runs']}")
        known = loopback.known_in(copy)
        with child(lambda: hosting(copy, known)):  # noqa: B023 - done with in this turn
            kills = _killed_until_over(copy, known, dice, load.coordinator_kills - found["kills"])
        ended = read_end(copy, known)
        found["kills"] += kills
        found["runs"] += 1
        found["harmed_runs"] += kills > 0
        found["same_weights"] += ended.digest == trial.wanted.digest and ended.history == _not_refused(ended, trial)
        shutil.rmtree(copy)
        say(f"coordinator: {found}")
    return {"name": "kill -9 of the coordinator", **found, "holds": found["same_weights"] == found["runs"]}


def _not_refused(ended, trial):
    """The rounds as they should be; what was refused on the way (late, or again) may differ."""
    pairs = zip(trial.wanted.history, ended.history, strict=False)
    return tuple(replace(wanted, refused=found.refused) for wanted, found in pairs)


def _killed_until_over(folder, known, dice, most):
    """Start a coordinator again and again, each time with a death of its own; how many died."""
    kills = 0
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        line = 0 if kills >= most else dice.choice((dice.randint(1, 400), dice.randint(1, 4000)))
        by_time = kills < most and dice.random() < 0.25

        def life():
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


def kill_clients(folder, load, say):
    """Kill -9 of clients at random points: charged once, counted once, and the same weights."""
    dice = random.Random(load.seed + 1)  # noqa: S311 - it chooses where to die
    broken = ("under_charged", "over_charged", "counted_twice", "second_messages", "other_weights")
    found = {"kills": 0, "runs": 0, **dict.fromkeys(broken, 0)}
    while found["kills"] < load.client_kills:
        rehearsal = found["runs"] % 2 == 0  # with noise of their own, a message that was made again would be another
        place, settings = folder / f"run-{found['runs']}", ("calibration=as-published", "cohort.size=5")
        trial = make_trial(place, "dp-fedmf", *settings, users=5, rounds=10, rehearsal=rehearsal)
        known = loopback.known_in(trial.base)
        with child(lambda: coordinating(trial.base, known)) as server:  # noqa: B023 - done with in this turn
            found["kills"] += _dying_clients(trial.base, known, server, dice, load.client_kills - found["kills"])
        ended = read_end(trial.base, known)
        for name, count in _charges(trial.base, known, ended).items():
            found[name] += count
        found["other_weights"] += rehearsal and ended.digest != trial.wanted.digest
        found["runs"] += 1
        shutil.rmtree(place)
        say(f"clients: {found}")
    return {"name": "kill -9 of clients", **found, "holds": not any(found[name] for name in broken)}


def _charges(folder, known, ended, *, more=0):
    """Every client is in every round: its ledger has to know of as many messages (and reports), and of no more."""
    under, over, rounds = 0, 0, len(ended.history) + more
    for place in sorted((folder / CLIENTS).iterdir()):
        with loopback.opened(place, known) as client:
            under += client.spent()[0].messages < rounds
            over += client.spent()[0].messages > rounds
    twice = sum(report.messages > report.clients for report in ended.history)
    second = sum(report.refused.get("second message", 0) for report in ended.history)
    return {"under_charged": under, "over_charged": over, "counted_twice": twice, "second_messages": second}


def _dying_clients(folder, known, server, dice, most):
    """A process for every client, each with a death of its own, until the coordinator has all; how many died."""
    places, living, kills = sorted((folder / CLIENTS).iterdir()), dict[int, Path](), 0
    until = time.monotonic() + PATIENCE
    waiting = list(places)
    while time.monotonic() < until:
        for place in waiting:
            line = dice.randint(1, dice.choice((200, 1500))) if kills + len(living) < most else 0
            living[forked(lambda: silent(lambda: dying_client(place, known, line)))] = place  # noqa: B023
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
    _end(living)
    return kills


def dying_helper(place, folder, line):
    quick_to_come_back()
    link._POLL_SECONDS = 2.0
    if line:
        die_at(line, HELPER_FILES)
    helper.run_helper(place, folder, lambda _: None, threading.Event())


def dying_coordinator(folder, known, line):
    if line:
        die_at(line, COORDINATOR_FILES)
    coordinating(folder, known)


_DEATHS = 12  # of one run under masks


def kill_under_masks(folder, load, say):
    """Kill -9 of everybody, masks on and noise in parts: the same weights (or void rounds), and all is paid for."""
    dice = random.Random(load.seed + 4)  # noqa: S311 - it chooses where to die
    broken = ("under_charged", "over_charged", "counted_twice", "second_messages", "other_weights", "audit_problems")
    kills = dict.fromkeys(("coordinator", "helper", "client"), 0)
    found = {"runs": 0, "void": 0, **dict.fromkeys(broken, 0)}
    while sum(kills.values()) < load.masked_kills:
        settings = ("cohort.size=0", "privacy.noise=distributed", "privacy.lost=0.2")
        method = ("dp-fedmf", "priv-fedmf-sub")[found["runs"] % 2]  # the second has reports, with noise of their own
        place = folder / f"run-{found['runs']}"
        trial = make_trial(place, method, *settings, users=5, rounds=8, secagg="helpers")
        known = loopback.known_in(trial.base)
        reports = known.plan.reports is not None
        most = min(load.masked_kills, sum(kills.values()) + _DEATHS)
        _parties_die(trial.base, known, dice, kills, most)
        ended = read_end(trial.base, known)
        void = sum(report.void for report in ended.history)
        for name, count in _charges(trial.base, known, ended, more=reports).items():
            found[name] += count
        found["void"] += void
        found["other_weights"] += not void and ended.digest != trial.wanted.digest
        found["audit_problems"] += len(audit(trial.base).problems)
        found["runs"] += 1
        shutil.rmtree(place)
        say(f"under masks: {kills} {found}")
    killed = {f"{who}_kills": count for who, count in kills.items()}
    return {"name": "kill -9 under masks", **killed, **found, "holds": not any(found[name] for name in broken)}


def _parties_die(folder, known, dice, kills, most):
    """Start every party, each with a death of its own, again and again until the coordinator has all."""
    parties = [
        ("coordinator", lambda line: dying_coordinator(folder, known, line)),
        *(
            ("helper", lambda line, at=at: dying_helper(at, folder, line))
            for at in sorted((folder / HELPERS).iterdir())
        ),
        *(("client", lambda line, at=at: dying_client(at, known, line)) for at in sorted((folder / CLIENTS).iterdir())),
    ]
    living, waiting = dict[int, tuple](), parties
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        for who, life in waiting:
            may_die = sum(kills.values()) < most and kills[who] <= most // 3
            line = dice.randint(1, dice.choice((200, 2000, 8000))) if may_die else 0
            living[forked(lambda: silent(lambda: life(line)))] = (who, life)  # noqa: B023 - forked at once
        waiting = []
        for pid in list(living):
            dead = was_killed(pid)
            if dead is None:
                continue
            who, life = living.pop(pid)
            kills[who] += dead
            waiting += [(who, life)] if dead else []
            if who == "coordinator" and not dead:
                _end(living)
                return
        time.sleep(0.003)
    _end(living)
    raise VeilrecError(f"the run in {folder} does not come to its end")


def _end(living):
    """Kill the processes that are left when a run is over."""
    for pid in living:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def run(load, say, only=()):
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


def flood(folder, load, say):
    """Messages again and again, and bytes that are none: nothing of it is counted, and memory stays bounded."""
    dice = random.Random(load.seed + 2)  # noqa: S311 - it makes garbage
    trial = make_trial(folder, "fedmf", "cohort.size=3", users=3, rounds=1)
    known = loopback.known_in(trial.base)
    with child(lambda: coordinating(trial.base, known)) as server:
        names = sorted((trial.base / CLIENTS).iterdir())
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


def _enrolled(place, known):
    link, until = loopback.link_of(place, known), time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            link.enrol(read_invitation(place))
        except Away:
            time.sleep(0.05)
        else:
            return link
    raise VeilrecError("the coordinator does not come up")


def _answered(place, known, link):
    task = None
    while task is None:
        task = link.poll(5.0)
    with loopback.opened(place, known) as client:
        message = client.take_part(link.fetch(task), task.number)
    link.send(task, message)
    return task, message


def _garbage(link, task, dice, message):
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


def _rss_mb(pid, which="VmRSS"):
    """Memory of a process now, or at most so far (VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(which))


def lose_clients(folder, load, say):
    """30 % of the clients are lost in every round, before and after they have learnt: exact sums, under masks too.

    fedmf draws by the public seed, and has no noise: both federations lose the same devices and learn the same.
    """
    digests, voids = dict[str, str](), dict[str, int]()
    for secagg in ("none", "helpers"):
        basis = loopback.basis_of(ContractSubject("fedmf"), "cohort.size=0", users=10, rounds=load.lossy_rounds)
        place = folder / secagg
        loopback.lay_out_in(place, basis, secagg=secagg, round_seconds=1.5, minimum_messages=5)
        loopback.run_all(place, wrap=lambda name, answers: _Lossy(name, answers, load.seed))
        ended = read_end(place, loopback.known_in(place))
        digests[secagg], voids[secagg] = ended.digest, sum(report.void for report in ended.history)
        lost = [report.clients - report.messages for report in ended.history]
        say(f"losses ({secagg}): {lost}, {voids[secagg]} void")
    return {
        "name": "30 % of clients lost in every round",
        "rounds": load.lossy_rounds,
        "lost": sum(lost),
        "void": voids,
        "same_weights_under_masks": digests["none"] == digests["helpers"],
        "holds": digests["none"] == digests["helpers"] and voids["none"] == voids["helpers"] and sum(lost) > 0,
    }


class _Lossy:
    """A client that is lost in some rounds: it never hears of them, or has learnt and then cannot send."""

    def __init__(self, name, answers, seed):
        self._name, self._answers, self._seed = name, answers, seed

    def answer(self, task, content):
        dice = random.Random(f"{self._seed} {self._name} {task.number}")  # noqa: S311 - it chooses who is lost
        if task.kind == "round" and dice.random() < 0.3:
            if dice.random() < 0.5:
                self._answers.answer(task, content)
            raise Away("lost")
        return self._answers.answer(task, content)


def fill_disk(folder, load, say):
    """For two seconds the coordinator can write nothing: what was not kept is asked for again, nothing is lost."""
    trial = make_trial(folder, "fedmf", "cohort.size=4", users=5, rounds=60)  # so many that the disk fills in between
    copy = trial.copy("full")
    known = loopback.known_in(copy)

    reading, writing = os.pipe()  # a log that no limit on files stops

    def starving():
        threading.Thread(target=_no_room, args=(0.5, 2.0), daemon=True).start()
        coordinating(copy, known, os.fdopen(writing, "wb"))

    with child(starving) as server, child(lambda: hosting(copy, known)):
        os.close(writing)
        with os.fdopen(reading, "rb") as log:
            troubles = sum(b"could not be kept" in line or b"the disk refuses" in line for line in log)
        gone(server)
    found = _compared(copy, known, trial, say)
    return {"name": "disk full", **found, "could_not_write": troubles, "holds": found["holds"] and troubles > 0}


def _no_room(after, seconds):
    """No file can grow for a while: what a disk that is full says, this process hears too."""
    time.sleep(after)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    time.sleep(seconds)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def turn_clocks(folder, load, say):
    """The clocks of coordinator and clients jump by years, back and forth: no deadline moves."""
    trial = make_trial(folder, "fedmf", "cohort.size=4", users=5, rounds=6)
    known = loopback.known_in(copy := trial.copy("turned"))

    clock, dice = Clock(folder / "clock"), random.Random(1)  # noqa: S311 - it sets clocks
    clients = sorted(map(str, (copy / CLIENTS).iterdir()))
    commands = (("coordinator", str(copy)), ("client", *clients, "--federation", str(copy)))
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen([*OURSELVES, "federate", *command], env=clock.environment, stderr=subprocess.DEVNULL)
            )
            for command in commands
        ]
        while all(process.poll() is None for process in started):
            clock.turn(dice.choice((-300_000_000, 0, 0, 0, 300_000_000)))  # certificates begin after the first
            time.sleep(0.3)
    return {"name": "clocks set back and forward", **_compared(copy, known, trial, say)}


def _compared(folder, known, trial, say):
    ended = read_end(folder, known)
    same = ended.digest == trial.wanted.digest
    say(f"{folder.name}: {len(ended.history)} rounds, {'the same' if same else 'OTHER'} weights")
    return {"rounds": len(ended.history), "same_weights": same, "holds": same}


def soak(folder, load, say):
    """20 clients join and leave for a long time: memory stays flat, and nothing is counted twice."""
    dice = random.Random(load.seed + 3)  # noqa: S311 - it chooses who leaves
    basis = loopback.basis_of(ContractSubject("fedmf"), "cohort.size=10", users=20, rounds=100_000)
    loopback.lay_out_in(folder, basis, rehearsal=False, round_seconds=3.0)
    known = loopback.known_in(folder)
    places, living, left, samples = sorted((folder / CLIENTS).iterdir()), dict[Path, int](), 0, list[float]()
    with child(lambda: coordinating(folder, known)) as server:
        end = time.monotonic() + 60.0 * load.minutes
        told = time.monotonic()
        while time.monotonic() < end:
            for place in places:
                if place not in living and dice.random() < 0.3:
                    living[place] = forked(lambda: silent(lambda: dying_client(place, known, 0)))  # noqa: B023
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
    twice = sum(report.messages > report.clients for report in history)
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


TRIALS = {
    "coordinator": kill_coordinators,
    "clients": kill_clients,
    "masks": kill_under_masks,
    "flood": flood,
    "losses": lose_clients,
    "disk": fill_disk,
    "clocks": turn_clocks,
    "soak": soak,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few of everything: to try it")
    parser.add_argument("--minutes", type=float, default=0.0, help="also let clients join and leave for so long")
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
