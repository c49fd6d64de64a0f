"""How far a federation has come: who counts as a device, and what is said of a coordinator that does not run."""

from __future__ import annotations

import json
from pathlib import Path

from tests.federation.loopback import basis_of, coordinating, known_in, lay_out_in, run_everybody
from veilrec.audit.contract_subject import ContractSubject
from veilrec.cli.federate import status_line
from veilrec.federation.coordinator.process import STATUS, open_coordinator
from veilrec.federation.federation import COORDINATOR
from veilrec.federation.running import status


def test_after_a_crash_it_says_what_is_on_disk_and_helpers_are_no_devices(tmp_path: Path) -> None:
    lay_out_in(tmp_path, basis_of(ContractSubject("fedmf"), "cohort.size=0", users=3, rounds=2), secagg="helpers")
    assert status(tmp_path)["run"] == {"round": 0, "rounds": 2, "stage": "not started"}
    known = known_in(tmp_path)
    with coordinating(tmp_path, known) as control:
        run_everybody(tmp_path, known, lambda _: None)
        assert control.driver is not None
        live = control.driver.status()
    assert live["devices"] == {"invited": 3, "free": 0, "enrolled": 3, "revoked": 0, "here": 3}
    over = status(tmp_path)["run"]
    assert (over["stage"], over["round"], over["seconds_left"]) == ("over", 2, None)

    written = tmp_path / COORDINATOR / STATUS
    written.write_text(json.dumps(live | {"round": 1, "messages": 3, "stage": "open", "seconds_left": 9.2}))
    found = status(tmp_path)["run"]
    assert found["round"] == 2
    assert found["seconds_left"] is None
    assert found["devices"] == live["devices"] | {"here": 0}
    assert found["messages"] == 6
    same = ("federation", "rounds", "void", "down_bytes", "up_bytes", "report_bytes", "refused", "this_round")
    assert all(found[name] == live[name] for name in same)
    written.unlink()
    assert status(tmp_path)["run"] == found

    (tmp_path / COORDINATOR / "coordinator.sqlite").write_text("no database")
    assert status(tmp_path)["run"]["stage"] == "not started"


def test_a_coordinator_that_holds_its_database_and_does_not_answer_is_not_called_stopped(tmp_path: Path) -> None:
    lay_out_in(tmp_path, basis_of(ContractSubject("fedmf"), "cohort.size=0", users=3, rounds=2))
    with open_coordinator(tmp_path, known_in(tmp_path)):
        found = status(tmp_path)
    assert found["run"]["stage"] == "not answering"
    assert status_line(found["run"]) == "not answering"
    assert status(tmp_path)["run"]["stage"] == "between rounds"
