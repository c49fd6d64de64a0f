"""Fault injection on a small load; the whole of it is `python -m tests.federation.faults`."""

from __future__ import annotations

import pytest

from tests.federation.faults import run
from tests.federation.harmed import Load


@pytest.mark.processes
def test_a_federation_survives_kills_floods_and_clocks() -> None:
    small = Load(coordinator_kills=2, device_kills=3, replays=20, garbage=20, lossy_rounds=2)
    report = run(small, print, ("coordinator", "devices", "flood", "clocks"))
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
