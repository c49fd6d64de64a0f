"""Reports under masks, over the real service: one sum, the simulation's weights, and nobody's votes on the way."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.federation.loopback import (
    LONG,
    basis_of,
    known_in,
    lay_out_in,
    run_all,
    run_with_a_restart,
    simulated,
    until,
)
from veilrec.audit.contract_subject import ContractSubject, same
from veilrec.client.federated import FederatedClient
from veilrec.client.veil import VOTES
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.schema import FIRST_REPORT_SUM, ReportSum
from veilrec.federation import federation
from veilrec.federation.client import folder as device_folder
from veilrec.federation.coordinator.aggregation import SecAggRpc
from veilrec.federation.coordinator.process import Control
from veilrec.federation.facts import terms_in
from veilrec.federation.federation import DEVICES
from veilrec.federation.finishing import read_end
from veilrec.federation.making import Basis
from veilrec.federation.secagg.helpers import Helper, MaskRequest
from veilrec.server.coordinator import MessageRefused

pytestmark = pytest.mark.usefixtures("quick")


def veil(users: int = 5, rounds: int = 2) -> Basis:
    return basis_of(ContractSubject("veil"), "cohort.size=0", users=users, rounds=rounds)


@pytest.mark.parametrize("secagg", ["helpers", "pairs"])
def test_veil_under_masks_is_the_simulation_bit_for_bit(secagg: str, tmp_path: Path) -> None:
    basis = veil()
    made = lay_out_in(tmp_path, basis, secagg=secagg, minimum_messages=3, round_seconds=LONG)
    assert made.guarantee["trust"] == "server sees only sums"
    told = " ".join(made.guarantee["caveats"])
    assert "sees every clipped update" not in told
    assert "sums before it adds the noise" in told
    run_all(tmp_path)
    known = known_in(tmp_path)
    ended, wanted = read_end(tmp_path, known), simulated(tmp_path, basis).standing
    assert [report.messages for report in ended.history] == [5, 5]
    assert same(ended.state, dict(wanted.state()))
    assert same(ended.weights, dict(wanted.weights))  # popularity and votes among them
    assert ended.weights[VOTES].any()
    assert paid(tmp_path) == [3] * 5
    vectors = 5 * terms_in(made, known.plan, ReportSum()).vector_bytes
    assert vectors < ended.history[0].report_bytes < vectors + 5 * 2_000
    assert ended.history[1].report_bytes == 0


def test_items_of_a_histogram_under_masks_choose_the_rounds_of_the_simulation(tmp_path: Path) -> None:
    basis = basis_of(ContractSubject("priv-fedmf-sub"), "cohort.size=0", users=4, rounds=1)
    lay_out_in(tmp_path, basis, secagg="helpers", minimum_messages=3, round_seconds=LONG)
    run_all(tmp_path)
    wanted, ended = simulated(tmp_path, basis).standing, read_end(tmp_path, known_in(tmp_path))
    assert same(ended.state, dict(wanted.state()))
    assert len(np.unique(wanted.sent)) > 1  # what was reported says which items the round is about


def paid(folder: Path) -> list[int]:
    """Messages that every device has paid for."""
    known, counts = known_in(folder), []
    for place in sorted((folder / DEVICES).iterdir()):
        with device_folder.open_device(place, known) as device:
            counts.append(device.spent()[0].messages)
    return counts


def test_helpers_that_are_lost_and_a_coordinator_that_is_ended_before_the_sum_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is fixed, no helper answers, the coordinator is ended, a late device comes: the same list it is."""
    basis = veil(users=4, rounds=1)
    made = lay_out_in(tmp_path, basis, secagg="helpers", minimum_messages=3, round_seconds=2.0)
    federation.write(replace(made, report_seconds=2.0), tmp_path)
    known, ended = known_in(tmp_path), threading.Event()
    requests, trips = list[bytes](), list[str]()
    answer, report, ask = Helper.answer, FederatedClient.report, SecAggRpc.ask

    def lost(self: Helper, request: bytes) -> bytes:
        if MaskRequest.decode(request).round_number >= FIRST_REPORT_SUM:
            requests.append(request)
            if not ended.is_set():
                raise BadInput("lost")
        return answer(self, request)

    def late(self: FederatedClient[Any], *arguments: Any, **other: Any) -> bytes:
        if self._identity.number == 3 and not requests:
            raise VeilrecError("not yet")
        return report(self, *arguments, **other)

    def noted(self: SecAggRpc, kind: Any, *arguments: Any, **other: Any) -> dict[str, bytes]:
        trips.append(kind)
        return ask(self, kind, *arguments, **other)

    monkeypatch.setattr(Helper, "answer", lost)
    monkeypatch.setattr(FederatedClient, "report", late)
    monkeypatch.setattr(SecAggRpc, "ask", noted)

    def half(control: Control) -> bool:
        until(lambda: trips.count("sum") >= 2)  # the helpers had all the time of a round
        ended.set()
        assert control.driver is not None
        return control.driver.coordinator.stage == "counting"

    run_with_a_restart(tmp_path, known, half)
    assert len(requests) > 2
    assert len(set(requests)) == 1
    assert [claim.number for claim in MaskRequest.decode(requests[0]).claims] == [0, 1, 2]
    (history,) = read_end(tmp_path, known).history
    assert (history.messages, history.void) == (4, False)
    assert paid(tmp_path) == [2, 2, 2, 1]  # whoever is not in the list has told nothing


def test_among_devices_alone_a_void_sum_of_reports_is_followed_by_another_and_nobody_pays_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sum cannot begin, the second loses its signatures, the third is ended by a restart in its last trip."""
    basis = veil(users=4, rounds=1)
    lay_out_in(tmp_path, basis, secagg="pairs", round_seconds=LONG)
    known, half, ended = known_in(tmp_path), threading.Event(), threading.Event()
    ask, take, asked = SecAggRpc.ask, SecAggRpc.take, list[tuple[str, int]]()

    def lossy(self: SecAggRpc, kind: Any, number: int, names: Any, **other: Any) -> dict[str, bytes]:
        attempt = number - FIRST_REPORT_SUM
        asked.append((kind, attempt))
        lost = (attempt, kind) in ((0, "advertise"), (1, "sign"))
        return ask(self, kind, number, sorted(names)[:1] if lost else names, **other)

    def taking(self: SecAggRpc, who: str, kind: str, number: int, content: bytes) -> Any:
        if (kind, number) == ("reveal", FIRST_REPORT_SUM + 2) and not ended.is_set():
            half.set()
            raise MessageRefused("nothing is open", "the coordinator is about to end")
        return take(self, who, kind, number, content)

    monkeypatch.setattr(SecAggRpc, "ask", lossy)
    monkeypatch.setattr(SecAggRpc, "take", taking)

    def last_trip(_: Control) -> bool:
        found = half.wait(LONG)
        ended.set()
        return found

    run_with_a_restart(tmp_path, known, last_trip)
    ended_run = read_end(tmp_path, known)
    assert [(report.messages, report.void) for report in ended_run.history] == [(4, False)]
    assert same(ended_run.state, dict(simulated(tmp_path, basis).standing.state()))
    assert paid(tmp_path) == [2] * 4
    trips = [attempt for kind, attempt in asked if kind == "advertise"]
    assert trips[:3] == [0, 1, 2]
    assert [attempt for kind, attempt in asked if kind == "reveal"][:2] == [2, 2]
