"""How far a federation has come: while a helper hangs, when its coordinator does not run, and when all was void."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from functools import partial

import pytest
from typer.testing import CliRunner

from tests.federation import loopback
from veilrec.audit.contract_subject import ContractSubject
from veilrec.cli.federate import Lines, app, status_line
from veilrec.federation.coordinator.process import STATUS, open_coordinator
from veilrec.federation.federation import COORDINATOR, HELPERS
from veilrec.federation.finishing import read_end
from veilrec.federation.making import FederationOptions, make
from veilrec.federation.running import OURSELVES, Up, status


def test_after_a_crash_it_says_what_is_on_disk_and_helpers_are_no_clients(tmp_path):
    loopback.lay_out_in(
        tmp_path, loopback.basis_of(ContractSubject("fedmf"), "cohort.size=0", users=3, rounds=2), secagg="helpers"
    )
    assert status(tmp_path)["run"] == {"round": 0, "rounds": 2, "stage": "not started"}
    known = loopback.known_in(tmp_path)
    with loopback.coordinating(tmp_path, known) as control:
        loopback.run_everybody(tmp_path, known, lambda _: None)
        live = control.driver.status()
    assert live["clients"] == {"invited": 3, "free": 0, "enrolled": 3, "revoked": 0, "here": 3}
    over = status(tmp_path)["run"]
    assert (over["stage"], over["round"], over["seconds_left"]) == ("over", 2, None)

    written = tmp_path / COORDINATOR / STATUS
    written.write_text(json.dumps(live | {"round": 1, "messages": 3, "stage": "open", "seconds_left": 9.2}))
    found = status(tmp_path)["run"]
    assert found["round"] == 2
    assert found["seconds_left"] is None
    assert found["clients"] == live["clients"] | {"here": 0}
    assert found["messages"] == 6
    same = ("federation", "rounds", "void", "down_bytes", "up_bytes", "report_bytes", "refused", "this_round")
    assert all(found[name] == live[name] for name in same)
    written.unlink()
    assert status(tmp_path)["run"] == found

    (tmp_path / COORDINATOR / "coordinator.sqlite").write_text("no database")
    assert status(tmp_path)["run"]["stage"] == "not started"


def test_it_names_who_was_invited_and_has_not_come_and_a_federation_that_is_over_waits_for_nobody(tmp_path):
    loopback.lay_out_in(tmp_path, loopback.basis_of(ContractSubject("fedmf"), "cohort.size=0", users=7, rounds=1))
    known, names = loopback.known_in(tmp_path), [f"d{number:05}" for number in range(7)]
    with loopback.coordinating(tmp_path, known) as control:
        found = control.driver.status()
        assert found["waiting_for"] == names
        assert "waiting for d00000, d00001, d00002, d00003, d00004, 2 more  clients 0/7" in status_line(found)
        loopback.run_everybody(tmp_path, known, lambda _: None, names)
        assert control.driver.status()["waiting_for"] == []
    with closing(sqlite3.connect(tmp_path / COORDINATOR / "registry.sqlite", isolation_level=None)) as registry:
        registry.execute("UPDATE places SET key = NULL")  # nobody will come, and there is nothing to come for
    with loopback.coordinating(tmp_path, known) as control:
        assert control.driver.queue.over or control.driver._wait(lambda: control.driver.queue.over, 5.0)
        assert (control.driver.status()["stage"], control.driver.status()["waiting_for"]) == ("over", [])


def test_it_names_who_was_invited_and_has_not_come_while_a_round_waits_for_them(tmp_path):
    loopback.lay_out_in(tmp_path, loopback.basis_of(ContractSubject("fedmf"), "cohort.size=0", users=3, rounds=1))
    loopback.rewritten(tmp_path, enrol_seconds=0.1)
    with loopback.coordinating(tmp_path, loopback.known_in(tmp_path)) as control:
        loopback.until(lambda: control.driver.queue.kind == "round")
        assert control.driver.status()["waiting_for"] == ["d00000", "d00001", "d00002"]


def test_without_a_terminal_a_line_says_who_else_is_waited_for(capsys):
    status = {
        "round": 0,
        "rounds": 2,
        "void": 0,
        "stage": "open",
        "clients": {"here": 2, "invited": 3},
        "messages": 0,
        "down_bytes": 0,
        "up_bytes": 0,
        "this_round": {"messages": 0, "reports": 0},
    }
    lines = Lines()
    for messages, names in enumerate(([], ["d00002"], ["d00002"], [], ["d00002"], ["helper-1"])):
        lines.show(status | {"messages": messages, "waiting_for": names})
    assert [one.partition("  clients")[0] for one in capsys.readouterr().err.splitlines()] == [
        "round 0/2  open, waiting for d00002",
        "round 0/2  open, waiting for helper-1",
    ]


def test_a_coordinator_that_holds_its_database_and_does_not_answer_is_not_called_stopped(tmp_path):
    loopback.lay_out_in(tmp_path, loopback.basis_of(ContractSubject("fedmf"), "cohort.size=0", users=3, rounds=2))
    with open_coordinator(tmp_path, loopback.known_in(tmp_path)):
        found = status(tmp_path)
    assert found["run"]["stage"] == "not answering"
    assert status_line(found["run"]) == "not answering"
    assert status(tmp_path)["run"]["stage"] == "between rounds"


def test_a_federation_whose_rounds_were_all_void_says_so_and_fails(tmp_path, monkeypatch):
    folder, data = tmp_path / "f", "synthetic-ratings:users=20,items=200,seed=1"
    make(
        folder,
        FederationOptions(method="fedmf", data=data, clients=3, rounds=1, round_seconds=1.0, port=loopback.free_port()),
    )
    loopback.rewritten(folder, minimum_messages=4)
    monkeypatch.setattr(Up, "run", lambda up, _: loopback.run_all(up.folder))
    done = CliRunner().invoke(app, ["up", str(folder), "--json"])
    assert done.exit_code == 1
    assert "Nothing was learnt: every round was void (1 of 1)" in done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["federation"]["void_rounds"] == 1
    assert result["warnings"][0].startswith("Nothing was learnt")
    assert json.loads((folder / "run" / "result.json").read_text())["warnings"] == result["warnings"]
    again = CliRunner().invoke(app, ["up", str(folder), "--json"])
    assert json.loads(again.stdout) == {"folder": str(folder / "run"), "seconds": 0.0, "result": result}


@pytest.mark.parametrize("state", ["opening", "closing"])
def test_status_names_a_helper_that_hangs_and_the_round_ends_when_it_goes_on(state, tmp_path, monkeypatch):
    """SIGSTOP of one helper process while the coordinator waits for it in either secagg RPC of round 1."""
    basis = loopback.basis_of(ContractSubject("fedmf"), "cohort.size=0", users=3, rounds=2)
    loopback.lay_out_in(tmp_path, basis, secagg="helpers", round_seconds=loopback.LONG)
    known, folder = loopback.known_in(tmp_path), tmp_path / HELPERS / "helper-1"
    command = [*OURSELVES, "federate", "helper", str(folder), "--federation", str(tmp_path)]
    helper = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    stopped, rpc = threading.Event(), {"opening": "open", "closing": "sum"}[state]

    work = partial(loopback.run_everybody, tmp_path, known, lambda _: None, helpers=("helper-0",))
    others = threading.Thread(target=work, daemon=True)
    try:
        with loopback.coordinating(tmp_path, known) as control:
            publish = control.driver.queue.publish

            def publishing(kind, number, *arguments, **other):
                if (kind, number) == (rpc, 1) and not stopped.is_set():  # before it can hear what it is asked
                    os.kill(helper.pid, signal.SIGSTOP)
                    stopped.set()
                publish(kind, number, *arguments, **other)

            monkeypatch.setattr(control.driver.queue, "publish", publishing)
            others.start()
            assert stopped.wait(loopback.LONG)
            found = loopback.until(lambda: _answered(tmp_path, ["helper-1"]))
            assert found["up"]
            assert (found["run"]["round"], found["run"]["stage"]) == (1, state)
            assert "round 1/2" in status_line(found["run"])
            assert "waiting for helper-1" in status_line(found["run"])
            os.kill(helper.pid, signal.SIGCONT)
            others.join(loopback.LONG)
            assert helper.wait(loopback.LONG) == 0
    finally:
        if helper.poll() is None:
            helper.kill()
            helper.wait()
    assert [(report.messages, report.void) for report in read_end(tmp_path, known).history] == [(3, False)] * 2


def _answered(folder, waiting):
    """Ask for the status, which takes no longer than two seconds; None until the other helper has answered."""
    began = time.monotonic()
    found = status(folder)
    assert time.monotonic() - began < 2.0
    assert found["run"]["stage"] != "not started"
    return found if found["run"].get("waiting_for") == waiting else None
