"""Three commands, real processes, over HTTPS: fedmf, a private method, and one whose devices report first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.federation.loopback import free_port, until
from veilrec.federation import federation, processes
from veilrec.federation.running import OURSELVES, Up, live_status

DATA = "synthetic-ratings:users=40,items=200,seed=1"


def veilrec(*words: str, code: int = 0, timeout: float = 180.0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*OURSELVES, *words], capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def told(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(veilrec(*words, "--json").stdout)
    return found


def init(folder: Path, method: str, *more: str) -> None:
    port = str(free_port())
    veilrec("federate", "init", str(folder), "--method", method, "--data", DATA, "--port", port, *more)


def test_a_private_rehearsal_comes_to_the_weights_of_its_simulation(tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    init(folder, "dp-fedmf", "--devices", "5", "--rounds", "3", "--rehearsal", "--secagg", "helpers")
    veilrec("federate", "up", str(folder))
    found = told("federate", "rehearse", str(folder))
    assert found["same"]
    assert found["gaps"] == 0
    assert not processes.running(folder)
    result = json.loads((folder / "run" / "result.json").read_text())
    assert result["federation"]["state_sha256"] == found["simulation"]
    assert result["guarantee"]["trust"] == "server sees only sums"
    assert not result["publishable"]
    assert any("rehearsal" in words for words in result["guarantee"]["caveats"])
    status = told("federate", "status", str(folder))
    assert status["run"]["stage"] == "over"
    assert status["ledgers"]["devices"] == 5
    assert status["ledgers"]["protected_messages"] == 5 * 3
    assert status["ledgers"]["largest"]["epsilon"] > status["promised"]["epsilon"]  # counted by another, coarser rule
    shown = veilrec("federate", "status", str(folder)).stderr
    assert f"nothing overspent; promised is: {status['promised']['line']})" in shown
    veilrec("recommend", str(folder / "run"), "--history", "i001,i002", "-k", "3")
    veilrec("privacy", "show", str(folder / "run"))
    done = veilrec("federate", "up", str(folder))
    assert "is over" in done.stderr


@pytest.mark.processes
def test_devices_alone_come_to_the_weights_of_the_simulation(tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    alone = ("--secagg", "pairs", "--corrupt", "0.25", "--lost", "0.25", "--round-seconds", "120")
    init(folder, "dp-fedmf", "--devices", "4", "--rounds", "2", "--rehearsal", *alone)
    veilrec("federate", "up", str(folder))
    assert told("federate", "rehearse", str(folder))["same"]
    result = json.loads((folder / "run" / "result.json").read_text())
    assert result["guarantee"]["trust"] == "server sees only sums"
    assert any("of the 3 to 4 devices of a round at most 1" in words for words in result["guarantee"]["caveats"])
    assert not (folder / "helpers").exists()


def test_killed_taken_down_and_up_again_it_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    init(folder, "priv-fedmf-sub", "--devices", "5", "--rounds", "40", "--rehearsal")
    begun = told("federate", "up", str(folder), "--detach")
    first = {process.name: process for process in processes.running(folder)}
    assert begun == {"folder": str(folder), "pid": first["up"].pid, "address": federation.read(folder).address}
    until(lambda: (live_status(folder, federation.read(folder)) or {"round": 0})["round"] >= 2)
    os.kill(processes.children(first["devices"].pid)[0], signal.SIGKILL)
    os.kill(first["coordinator"].pid, signal.SIGKILL)
    until(lambda: any(p.name == "coordinator" and p.pid != first["coordinator"].pid for p in processes.running(folder)))
    devices = processes.children(first["devices"].pid)
    os.kill(first["devices"].pid, signal.SIGKILL)
    until(lambda: any(p.name == "devices" and p.pid != first["devices"].pid for p in processes.running(folder)))
    until(lambda: not any(processes.started_at(pid) for pid in devices))
    veilrec("federate", "up", str(folder), code=2)  # it is up already
    bystander = subprocess.Popen(["sleep", "100"])
    try:
        ended = told("federate", "down", str(folder))
        assert {process["name"] for process in ended["ended"]} >= {"up", "coordinator", "devices"}
        assert not any(process.is_alive for process in first.values())
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    if not (folder / "run").exists():
        veilrec("federate", "up", str(folder))
    found = told("federate", "rehearse", str(folder))
    assert found["same"], found
    assert "Nothing was up" in veilrec("federate", "down", str(folder)).stderr


@pytest.mark.processes
def test_without_privacy_a_run_can_be_evaluated_and_says_what_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    init(folder, "fedmf", "--devices", "6", "--rounds", "3", "--set", "cohort.size=4")
    result = told("federate", "up", str(folder))["result"]
    assert result["federation"]["messages"] == 3 * 4
    assert result["communication"]["up_bytes"] > 0
    assert told("evaluate", str(folder / "run"))["metrics"] == pytest.approx(result["metrics"])
    done = veilrec("federate", "rehearse", str(folder), code=2)
    assert "no rehearsal" in done.stderr


@pytest.mark.processes
def test_somebody_new_is_invited_while_rounds_are_running_and_takes_part(tmp_path: Path) -> None:
    folder, rounds = tmp_path / "trial", 20
    more = ("--devices", "3", "--places", "1", "--rounds", str(rounds), "--round-seconds", "600")
    init(folder, "dp-fedmf", "--set", "cohort.size=0", *more)
    veilrec("federate", "up", str(folder), "--detach")
    made = federation.read(folder)

    def status() -> dict[str, Any]:
        return live_status(folder, made) or {"round": 0, "devices": {"enrolled": 0}}

    until(lambda: status()["round"] >= 1)
    devices = next(process for process in processes.running(folder) if process.name == "devices")
    someone = processes.children(devices.pid)[0]
    os.kill(someone, signal.SIGSTOP)  # no round goes on without it
    try:
        (tmp_path / "anna.csv").write_text("user,item\nanna,i001\nanna,i002\nanna,i003\nanna,nowhere\n")
        invited = told("federate", "invite", str(folder), "--data", f"csv:{tmp_path / 'anna.csv'}")
        assert (invited["name"], invited["left_out"], invited["free"]) == ("d00003", 1, 0)
        late = subprocess.Popen([*OURSELVES, "federate", "device", invited["folder"]], stderr=subprocess.DEVNULL)
        until(lambda: status()["devices"]["enrolled"] == 4)
    finally:
        os.kill(someone, signal.SIGCONT)
    assert late.wait(120.0) == 0  # it has heard that the federation is over
    until(lambda: (folder / "run").exists() and not processes.running(folder))
    found = told("federate", "status", str(folder))
    assert found["run"]["void"] == 0
    assert found["ledgers"]["devices"] == 4
    assert 3 * rounds < found["run"]["messages"] < 4 * rounds
    assert found["ledgers"]["protected_messages"] == found["run"]["messages"]


@pytest.mark.processes
def test_a_device_that_cannot_start_and_a_helper_that_is_not_here_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "two words"
    init(folder, "fedmf", "--devices", "3", "--rounds", "1", "--round-seconds", "2", "--set", "cohort.size=0")
    content = yaml.safe_load((folder / "federation.yaml").read_text())
    (folder / "federation.yaml").write_text(yaml.safe_dump(content | {"enrol_seconds": 5.0}))
    (folder / "devices" / "d00001" / "key").unlink()
    done = veilrec("federate", "up", str(folder))
    assert "d00001 takes no part any more: " in done.stderr
    assert "there is no key here, and without it nothing of this device can be read; the others go on" in done.stderr
    assert json.loads((folder / "run" / "result.json").read_text())["federation"]["messages"] == 2
    again = tmp_path / "again"
    init(again, "fedmf", "--devices", "2", "--rounds", "1", "--set", "cohort.size=0")
    for place in (again / "devices").iterdir():
        (place / "key").unlink()
    assert veilrec("federate", "up", str(again), code=2).stderr.count("there is no key here") == 2
    assert not processes.running(again)
    up = Up(folder, (said := list[str]()).append)
    up.made = replace(up.made, helpers=("00", "11"))
    assert up._helpers() == []
    assert [words.partition(" ")[0] for words in said] == ["helper-0", "helper-1"]
