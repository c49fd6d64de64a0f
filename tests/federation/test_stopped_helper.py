"""Status of a federation whose aggregation helper hangs: it answers at once, names the helper, and the round ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from veilrec.audit.contract_subject import ContractSubject
from veilrec.cli.federate import status_line
from veilrec.federation.federation import HELPERS
from veilrec.federation.finishing import read_end
from veilrec.federation.loopback import basis_of, coordinating, known_in, lay_out_in, run_everybody
from veilrec.federation.running import OURSELVES, status

LONG = 120.0  # seconds: nothing in this test ends by its deadline


def until(done: Callable[[], Any]) -> Any:
    """Poll until something holds."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        if found := done():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


@pytest.mark.parametrize("state", ["opening", "closing"])
def test_status_names_a_helper_that_hangs_and_the_round_ends_when_it_goes_on(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP of one helper process while the coordinator waits for it in either secagg RPC of round 1."""
    basis = basis_of(ContractSubject("fedmf"), "cohort.size=0", users=3, rounds=2)
    lay_out_in(tmp_path, basis, secagg="helpers", round_seconds=LONG)
    known, folder = known_in(tmp_path), tmp_path / HELPERS / "helper-1"
    command = [*OURSELVES, "federate", "helper", str(folder), "--federation", str(tmp_path)]
    helper = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    stopped = threading.Event()

    def stop_before(kind: str, number: int) -> None:
        """Freeze the helper before it can hear what it is asked."""
        if (kind, number) == ({"opening": "open", "closing": "sum"}[state], 1) and not stopped.is_set():
            os.kill(helper.pid, signal.SIGSTOP)
            stopped.set()

    others = threading.Thread(target=_everybody_else, args=(tmp_path, known), daemon=True)
    try:
        with coordinating(tmp_path, known) as control:
            assert control.driver is not None
            publish = control.driver.board.publish

            def publishing(kind: Any, number: int, *arguments: Any, **other: Any) -> None:
                stop_before(kind, number)
                publish(kind, number, *arguments, **other)

            monkeypatch.setattr(control.driver.board, "publish", publishing)
            others.start()
            assert stopped.wait(LONG)
            found = until(lambda: _answered(tmp_path, ["helper-1"]))
            assert found["up"]
            assert (found["run"]["round"], found["run"]["stage"]) == (1, state)
            assert "round 1/2" in status_line(found["run"])
            assert "waiting for helper-1" in status_line(found["run"])
            os.kill(helper.pid, signal.SIGCONT)
            others.join(LONG)
            assert helper.wait(LONG) == 0
    finally:
        if helper.poll() is None:
            helper.kill()
            helper.wait()
    assert [(report.messages, report.void) for report in read_end(tmp_path, known).history] == [(3, False)] * 2


def _answered(folder: Path, waiting: list[str]) -> dict[str, Any] | None:
    """Ask for the status, which takes no longer than two seconds; None until the other helper has answered."""
    began = time.monotonic()
    found = status(folder)
    assert time.monotonic() - began < 2.0
    assert found["run"]["stage"] != "not started"
    return found if found["run"].get("waiting_for") == waiting else None


def _everybody_else(folder: Path, known: Any) -> None:
    run_everybody(folder, known, lambda _: None, helpers=("helper-0",))
