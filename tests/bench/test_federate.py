"""What `veilrec bench federate` and `veilrec bench faults` print, on loads that take no time."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from veilrec.bench import faults, federate
from veilrec.bench.faults import Load
from veilrec.cli.bench import app


def test_faults_hold_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Load(coordinator_kills=2, device_kills=3, replays=20, garbage=20, lossy_rounds=2)
    monkeypatch.setattr(faults, "QUICK", small)
    names = [word for name in ("coordinator", "devices", "flood", "clocks") for word in ("--task", name)]
    done = CliRunner().invoke(app, ["faults", "--quick", "--json", *names])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    coordinator, devices, flood, clocks = report["tasks"]
    assert coordinator["kills"] >= 2
    assert coordinator["same_weights"] == coordinator["runs"]
    assert coordinator["harmed_runs"] >= 1
    assert devices["kills"] >= 3
    told = ("under_charged", "over_charged", "counted_twice", "second_messages")
    assert [devices[name] for name in told] == [0, 0, 0, 0]
    assert flood["refused_garbage"] == 20
    assert flood["counted"] == 3
    assert clocks["same_weights"]
    assert report["holds"]


def test_an_unknown_task_is_one_line() -> None:
    done = CliRunner().invoke(app, ["faults", "--task", "earthquake"])
    assert "unknown task" in str(done.exception)


def test_the_figures_of_a_federation() -> None:
    process = {
        "round_seconds": [9.0, 0.5, 0.7, 0.6],
        "serving_cpu_seconds": 1.0,
        "closing_cpu_seconds": 0.2,
        "messages": 100,
    }
    status = {"process": process, "round": 4, "messages": 100, "down_bytes": 1000, "up_bytes": 500}
    found = federate._figures(status, 20)
    assert found["round_seconds"] == 0.6  # without the first, for which devices wake up
    assert found["message_cpu_ms"] == pytest.approx(8.0)
    assert found["sum_cpu_ms_per_message"] == pytest.approx(2.0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_that_of_a_process() -> None:
    assert federate._pss_mb(os.getpid()) > 10.0
    assert federate._pss_mb(2**30) == 0.0
    assert Path("/proc/self/smaps_rollup").exists()
