"""Reports under masks, over the real service: one sum, the simulation's weights, and nobody's votes on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from veilrec.federate.finishing import read_end
from veilrec.federate.loopback import basis_of, known_in, lay_out_in, run_all, simulated
from veilrec.federate.making import Basis
from veilrec.runs.contract_subject import Subject, same

LONG = 120.0  # seconds: no trip of these tests ends by its deadline


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilrec.federate.device.loop._DECLINED_PAUSE", 0.1)
    monkeypatch.setattr("veilrec.federate.device.loop._POLL_SECONDS", 1.0)
    monkeypatch.setattr("veilrec.federate.federation.Federation.trip_seconds", LONG)


def veil(users: int = 5, rounds: int = 2) -> Basis:
    return basis_of(Subject("veil"), "cohort.size=0", users=users, rounds=rounds)


@pytest.mark.parametrize("secagg", ["helpers", "pairs"])
def test_veil_under_masks_is_the_simulation_bit_for_bit(secagg: str, tmp_path: Path) -> None:
    basis = veil()
    made = lay_out_in(tmp_path, basis, secagg=secagg, minimum_messages=3, round_seconds=LONG)
    assert made.guarantee["trust"] == "server sees only sums"
    run_all(tmp_path)
    ended = read_end(tmp_path, known_in(tmp_path))
    assert [report.messages for report in ended.history] == [5, 5]
    assert same(ended.state, dict(simulated(tmp_path, basis).standing.state()))
