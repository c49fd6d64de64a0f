"""Kill -9 of coordinators and of devices, again and again, at random lines and times."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.federation.harmed import (
    COORDINATOR_FILES,
    PATIENCE,
    Load,
    Say,
    Trial,
    child,
    coordinating,
    die_at,
    died_or_gone,
    dying_device,
    hosting,
    make_trial,
    silent,
    was_killed,
)
from tests.killing import forked
from veilrec.core.errors import VeilrecError
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import DEVICES
from veilrec.federation.finishing import Ended, read_end
from veilrec.federation.loopback import known_in, opened
from veilrec.server import round_store


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
