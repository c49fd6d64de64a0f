"""Processes of a federation: commands, over HTTPS; what they load; and that they end with the one that started them."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import yaml

from tests.federation.loopback import free_port, until
from veilrec.federation import federation, processes
from veilrec.federation.client import process
from veilrec.federation.processes import alone_in
from veilrec.federation.running import OURSELVES, Up, live_status

DATA = "synthetic-ratings:users=40,items=200,seed=1"


def veilrec(*words, code=0, timeout=180.0):
    done = subprocess.run([*OURSELVES, *words], capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def told(*words):
    return json.loads(veilrec(*words, "--json").stdout)


def init(folder, method, *more):
    port = str(free_port())
    veilrec("federate", "init", str(folder), "--method", method, "--data", DATA, "--port", port, *more)


def test_a_private_rehearsal_comes_to_the_weights_of_its_simulation(tmp_path):
    folder = tmp_path / "trial"
    init(folder, "dp-fedmf", "--clients", "5", "--rounds", "3", "--rehearsal", "--secagg", "helpers")
    veilrec("federate", "up", str(folder))
    found = told("federate", "rehearse", str(folder))
    assert found["same"]
    assert found["gaps"] == 0
    assert not processes.running(folder)
    result = json.loads((folder / "run" / "result.json").read_text())
    assert result["federation"]["state_sha256"] == found["simulation"]
    assert result["guarantee"]["trust"] == "server sees only noisy sums"
    assert not result["publishable"]
    assert any("rehearsal" in words for words in result["guarantee"]["caveats"])
    status = told("federate", "status", str(folder))
    assert status["run"]["stage"] == "over"
    assert status["ledgers"]["clients"] == 5
    assert status["ledgers"]["protected_messages"] == 5 * 3
    assert status["ledgers"]["largest"]["epsilon"] > status["promised"]["epsilon"]  # counted by another, coarser rule
    shown = veilrec("federate", "status", str(folder)).stderr
    assert f"nothing overspent; promised is: {status['promised']['line']})" in shown
    veilrec("recommend", str(folder / "run"), "--history", "i001,i002", "-k", "3")
    veilrec("privacy", "show", str(folder / "run"))
    done = veilrec("federate", "up", str(folder))
    assert "is over" in done.stderr


@pytest.mark.processes
def test_clients_alone_come_to_the_weights_of_the_simulation(tmp_path):
    folder = tmp_path / "trial"
    alone = ("--secagg", "pairs", "--corrupt", "0.25", "--lost", "0.25", "--round-seconds", "120")
    init(folder, "dp-fedmf", "--clients", "4", "--rounds", "2", "--rehearsal", *alone)
    veilrec("federate", "up", str(folder))
    assert told("federate", "rehearse", str(folder))["same"]
    result = json.loads((folder / "run" / "result.json").read_text())
    assert result["guarantee"]["trust"] == "server sees only noisy sums"
    assert any("of the 3 to 4 clients of a round at most 1" in words for words in result["guarantee"]["caveats"])
    assert not (folder / "helpers").exists()


def test_killed_taken_down_and_up_again_it_goes_on_where_it_was(tmp_path):
    folder = tmp_path / "trial"
    init(folder, "priv-fedmf-sub", "--clients", "5", "--rounds", "120", "--rehearsal")
    begun = told("federate", "up", str(folder), "--detach")
    first = {process.name: process for process in processes.running(folder)}
    assert begun == {"folder": str(folder), "pid": first["up"].pid, "address": federation.read(folder).address}
    until(lambda: (live_status(folder, federation.read(folder)) or {"round": 0})["round"] >= 2)
    os.kill(processes.children(first["clients"].pid)[0], signal.SIGKILL)
    os.kill(first["coordinator"].pid, signal.SIGKILL)
    until(lambda: any(p.name == "coordinator" and p.pid != first["coordinator"].pid for p in processes.running(folder)))
    clients = processes.children(first["clients"].pid)
    os.kill(first["clients"].pid, signal.SIGKILL)
    until(lambda: any(p.name == "clients" and p.pid != first["clients"].pid for p in processes.running(folder)))
    until(lambda: not any(processes.started_at(pid) for pid in clients))
    veilrec("federate", "up", str(folder), code=2)  # it is up already
    bystander = subprocess.Popen(["sleep", "100"])
    try:
        ended = told("federate", "down", str(folder))
        assert {process["name"] for process in ended["ended"]} >= {"up", "coordinator", "clients"}
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
def test_without_privacy_a_run_can_be_evaluated_and_says_what_it_is(tmp_path):
    folder = tmp_path / "trial"
    init(folder, "fedmf", "--clients", "6", "--rounds", "3", "--set", "cohort.size=4")
    result = told("federate", "up", str(folder))["result"]
    assert result["federation"]["messages"] == 3 * 4
    assert result["communication"]["up_bytes"] > 0
    assert told("evaluate", str(folder / "run"))["metrics"] == pytest.approx(result["metrics"])
    done = veilrec("federate", "rehearse", str(folder), code=2)
    assert "no rehearsal" in done.stderr


@pytest.mark.processes
def test_somebody_new_is_invited_while_rounds_are_running_and_takes_part(tmp_path):
    folder, rounds = tmp_path / "trial", 20
    more = ("--clients", "3", "--places", "1", "--rounds", str(rounds), "--round-seconds", "600")
    init(folder, "dp-fedmf", "--set", "cohort.size=0", *more)
    veilrec("federate", "up", str(folder), "--detach")
    made = federation.read(folder)

    def status():
        return live_status(folder, made) or {"round": 0, "clients": {"enrolled": 0}}

    until(lambda: status()["round"] >= 1)
    clients = next(process for process in processes.running(folder) if process.name == "clients")
    someone = processes.children(clients.pid)[0]
    os.kill(someone, signal.SIGSTOP)  # no round goes on without it
    try:
        (tmp_path / "anna.csv").write_text("user,item\nanna,i001\nanna,i002\nanna,i003\nanna,nowhere\n")
        invited = told("federate", "invite", str(folder), "--data", f"csv:{tmp_path / 'anna.csv'}")
        assert (invited["name"], invited["left_out"], invited["free"]) == ("d00003", 1, 0)
        late = subprocess.Popen([*OURSELVES, "federate", "client", invited["folder"]], stderr=subprocess.DEVNULL)
        until(lambda: status()["clients"]["enrolled"] == 4)
    finally:
        os.kill(someone, signal.SIGCONT)
    assert late.wait(120.0) == 0  # it has heard that the federation is over
    until(lambda: (folder / "run").exists() and not processes.running(folder))
    found = told("federate", "status", str(folder))
    assert found["run"]["void"] == 0
    assert found["ledgers"]["clients"] == 4
    assert 3 * rounds < found["run"]["messages"] < 4 * rounds
    assert found["ledgers"]["protected_messages"] == found["run"]["messages"]


@pytest.mark.processes
def test_a_client_that_cannot_start_and_a_helper_that_is_not_here_are_named(tmp_path):
    folder, alone = tmp_path / "two words", ("--trust", "server")
    init(folder, "fedmf", "--clients", "3", "--rounds", "1", "--round-seconds", "2", "--set", "cohort.size=0", *alone)
    content = yaml.safe_load((folder / "federation.yaml").read_text())
    (folder / "federation.yaml").write_text(yaml.safe_dump(content | {"enrol_seconds": 5.0}))
    (folder / "clients" / "d00001" / "key").unlink()
    done = veilrec("federate", "up", str(folder))
    assert "d00001 takes no part any more: " in done.stderr
    assert "there is no key here, and without it nothing of this device can be read; the others go on" in done.stderr
    assert json.loads((folder / "run" / "result.json").read_text())["federation"]["messages"] == 2
    again = tmp_path / "again"
    init(again, "fedmf", "--clients", "2", "--rounds", "1", "--set", "cohort.size=0", *alone)
    for place in (again / "clients").iterdir():
        (place / "key").unlink()
    assert veilrec("federate", "up", str(again), code=2).stderr.count("there is no key here") == 2
    assert not processes.running(again)
    up = Up(folder, (said := list[str]()).append)
    up.made = replace(up.made, helpers=("00", "11"))
    assert up._helpers() == []
    assert [words.partition(" ")[0] for words in said] == ["helper-0", "helper-1"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Nothing to compile, little patience, and the handlers of signals as they were."""
    monkeypatch.setattr(process, "warm", lambda _: None)
    monkeypatch.setattr(process, "_LAST_BREATH_SECONDS", 0.2)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def sleeper(folder, _known, _say, stop):
    (folder / "pid").write_text(str(os.getpid()))
    while not stop.wait(60.0) or (folder / "deaf").exists():
        time.sleep(0.05)
    return False


def clients_in(folder):
    places = [folder / "d00000", folder / "d00001"]
    for place in places:
        place.mkdir()
    return places


def hosted(places):
    host = os.fork()
    if host == 0:
        try:
            process.run_clients(places, None, lambda _: None, sleeper)
        except KeyboardInterrupt:
            os._exit(130)
        os._exit(0)
    until(lambda: all((place / "pid").is_file() and (place / "pid").read_text() for place in places))
    return host, [int((place / "pid").read_text()) for place in places]


def test_a_killed_client_is_started_again_and_all_end_with_a_host_that_was_killed(tmp_path):
    places = clients_in(tmp_path)
    host, clients = hosted(places)
    os.kill(clients[0], signal.SIGKILL)
    until(lambda: (places[0] / "pid").read_text() not in ("", str(clients[0])))  # started again: its lock was free
    clients = [int((place / "pid").read_text()) for place in places]
    assert all(processes.started_at(pid) for pid in clients)
    os.kill(host, signal.SIGKILL)
    os.waitpid(host, 0)
    until(lambda: not any(processes.started_at(pid) for pid in clients))


def test_a_second_process_on_a_client_is_refused(tmp_path):
    places, told = clients_in(tmp_path), tmp_path / "told"
    with alone_in(places[0], "held"):
        assert not process.run_clients(places[:1], None, told.write_text, sleeper)
    refused = f"veilrec: d00000 takes no part any more: {places[0]} is at work in another process"
    assert told.read_text().startswith(refused)


def test_an_interrupted_host_says_so_when_its_clients_have_left(tmp_path):
    places = clients_in(tmp_path)
    (places[1] / "deaf").touch()  # as one that waits for what its coordinator says
    host, clients = hosted(places)
    os.kill(host, signal.SIGINT)
    _, status = os.waitpid(host, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert not any(processes.started_at(pid) for pid in clients)


COUNT = "import sys, {module}; print(*sorted(name for name in sys.modules if name.split('.')[0] == 'veilrec'))"


def loaded_by(module):
    code = COUNT.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_an_aggregation_helper_imports_fewer_than_thirty_of_our_modules():
    found = loaded_by("veilrec.federation.helper")
    assert "veilrec.federation.secagg.helpers" in found
    assert len(found) < 30, found
    packages = {".".join(name.split(".")[:2]) for name in found}
    assert not packages & {f"veilrec.{name}" for name in ("client", "server", "privacy", "methods", "data", "plan")}


def test_a_coordinator_loads_no_recommender_and_no_index():
    found = loaded_by("veilrec.federation.coordinator.process")
    assert "veilrec.serving.process" in found
    assert not [name for name in found if name.startswith(("veilrec.serving.index", "veilrec.serving.app"))]
    assert not {"veilrec.serving.service", "veilrec.serving.answering"} & set(found)
