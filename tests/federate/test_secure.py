"""Secure sums over the real service: the weights of the open ones, and void rounds where a helper is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from veilrec._arrays import Offsets
from veilrec.errors import BadInput
from veilrec.federate import federation
from veilrec.federate.coordinator.conducting import Conductor
from veilrec.federate.coordinator.helped import HelpedRounds
from veilrec.federate.device import folder as device_folder
from veilrec.federate.federation import DEVICES
from veilrec.federate.finishing import read_end
from veilrec.federate.helper import Helping
from veilrec.federate.identity import Invitation
from veilrec.federate.loopback import basis_of, known_in, lay_out_in, run_all, simulated
from veilrec.federate.making import Basis
from veilrec.federate.secagg.helping import Helper
from veilrec.federate.shares import with_shares
from veilrec.federate.tasks import Away, BadTask, Task, joined
from veilrec.plan import Comparison
from veilrec.privacy.mechanisms.gains import GainSum
from veilrec.privacy.mechanisms.shared import Shares
from veilrec.runs.contract_subject import Subject, same
from veilrec.server.coordinator import Coordinator, Refused
from veilrec.updates import Round
from veilrec.wire.codec import BadMessage
from veilrec.wire.signing import BadSignature


def private(*settings: str) -> Basis:
    return basis_of(Subject("dp-fedmf"), "cohort.size=0", *settings, users=5, rounds=2)


@pytest.mark.parametrize("wishes", [{}, {"shares": True, "silent": 0.3}], ids=["server's noise", "noise in shares"])
def test_sums_under_masks_are_those_of_the_simulation(wishes: dict[str, object], tmp_path: Path) -> None:
    basis = private()
    made = lay_out_in(tmp_path, basis, secagg="helpers", minimum_messages=3, **wishes)
    assert made.guarantee["trust"] == "server sees only sums"
    if made.shares:
        basis = replace(basis, plan=with_shares(basis.plan, Shares(made.least, made.silent)))
    run_all(tmp_path)
    ended = read_end(tmp_path, known_in(tmp_path))
    assert [report.messages for report in ended.history] == [5, 5]
    assert same(ended.state, dict(simulated(tmp_path, basis).standing.state()))


def voting(users: int = 5) -> Basis:
    """A method whose devices tell which items they have before the first round."""
    return basis_of(Subject("veil"), "cohort.size=0", "people=1000", "privacy.epsilon=8", users=users, rounds=3)


def counting() -> Basis:
    """A method whose devices tell some of their items, drawn by chance, before the first round."""
    return basis_of(Subject("priv-fedmf-sub"), "cohort.size=0", users=5, rounds=3)


@pytest.mark.parametrize("basis_of_reports", [voting, counting])
def test_reports_are_added_up_under_masks_as_well(
    basis_of_reports: Callable[[], Basis], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    basis = basis_of_reports()
    made = lay_out_in(tmp_path, basis, secagg="helpers", minimum_messages=3)
    assert made.guarantee["trust"] == "server sees only sums"
    came: list[bytes] = []
    receive = Coordinator.receive_report

    def seen(self: Coordinator, device: str, message: bytes) -> object:
        came.append(message)
        return receive(self, device, message)

    monkeypatch.setattr(Coordinator, "receive_report", seen)
    run_all(tmp_path)
    ended = read_end(tmp_path, known_in(tmp_path))
    assert [report.messages for report in ended.history] == [5, 5, 5]
    assert same(ended.state, dict(simulated(tmp_path, basis).standing.state()))
    votes = [np.frombuffer(message[-8 * basis.problem.n_items :], "<u8") for message in came]
    assert len(votes) == 5
    for vote in votes:  # in the open nine of ten words are 0, and none is beyond a vote; one in 2^24 would be by chance
        assert vote.min() > 2**24


def test_reports_wait_for_helpers_and_nobody_is_added_to_a_list_that_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    basis = voting(users=4)
    lay_out_in(tmp_path, basis, secagg="helpers")
    answer, lists = Helper.answer, list[bytes]()

    def odd(self: Helper, request: bytes) -> bytes:
        said = answer(self, request)
        if int.from_bytes(request[32:36], "little") > 0:
            return said
        lists.append(request)
        return said[:-1] + bytes([said[-1] ^ 1]) if len(stages) < 2 else said

    count, stages = HelpedRounds.count, list[tuple[str, bool]]()

    def watched(self: HelpedRounds, invitation: bytes, reports: Sequence[bytes]) -> Offsets:
        stages.append((self.coordinator.stage, self.coordinator.ask().closed))  # type: ignore[attr-defined]
        with pytest.raises(Refused, match="no reports are asked for"):
            self.coordinator.receive_report("d00000", b"late")  # type: ignore[attr-defined]
        return count(self, invitation, reports)

    begin = Conductor.__init__

    def known(self: Conductor, coordinator: Coordinator, *rest: Any, **named: Any) -> None:
        begin(self, coordinator, *rest, **named)
        self.secure.coordinator = coordinator  # type: ignore[union-attr]

    monkeypatch.setattr(Helper, "answer", odd)
    monkeypatch.setattr(HelpedRounds, "count", watched)
    monkeypatch.setattr(Conductor, "__init__", known)
    run_all(tmp_path)
    assert len(set(lists)) == 1 and stages == [("asking", True)] * 2
    ended = read_end(tmp_path, known_in(tmp_path))
    assert [report.messages for report in ended.history] == [4, 4, 4]
    assert same(ended.state, dict(simulated(tmp_path, basis).standing.state()))


def test_what_masks_do_not_cover_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="noise of rounds, and the server adds that of vote-reports"):
        lay_out_in(tmp_path, voting(), secagg="helpers", shares=True)
    basis = counting()
    assert basis.plan.reports is not None
    often = replace(basis.plan, reports=replace(basis.plan.reports, fresh=True))
    with pytest.raises(BadInput, match="before every round"):
        lay_out_in(tmp_path, replace(basis, plan=often), secagg="helpers")
    judged = replace(basis.plan, comparison=Comparison(judge=Mock(), mechanism=GainSum.examples()[0]))
    with pytest.raises(BadInput, match="what judges tell beside them"):
        lay_out_in(tmp_path, replace(basis, plan=judged), secagg="helpers")


def test_a_helper_that_does_not_answer_voids_the_round_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    basis = basis_of(Subject("fedmf"), "cohort.size=0", users=4, rounds=2)
    lay_out_in(tmp_path, basis, secagg="helpers", round_seconds=2.0)
    answer = Helper.answer

    def lost(self: Helper, request: bytes) -> bytes:
        if int.from_bytes(request[32:36], "little") == 0:
            raise BadInput("lost")
        return answer(self, request)

    monkeypatch.setattr(Helper, "answer", lost)
    monkeypatch.setattr("veilrec.federate.device.loop._DECLINED_PAUSE", 0.2)
    run_all(tmp_path)
    ended = read_end(tmp_path, known_in(tmp_path))
    assert [report.void for report in ended.history] == [True, False]


def test_a_helper_believes_an_invitation_and_nobody_else(tmp_path: Path) -> None:
    lay_out_in(tmp_path, basis_of(Subject("fedmf"), "cohort.size=0", users=3, rounds=1), secagg="helpers")
    made, place = federation.read(tmp_path), sorted((tmp_path / DEVICES).iterdir())[0]
    helping = Helping(tmp_path / "helpers" / "helper-0", made)
    key = device_folder.identity_of(place).public

    def told(invitation: Invitation, place_number: int = 0) -> bytes:
        entry = {"place": place_number, "key": key.hex(), "endorsement": invitation.endorse(made.id, key).hex()}
        return joined(b"", json.dumps([entry]).encode())

    with pytest.raises(BadSignature):  # the coordinator made somebody up
        helping.answer(Task("open", 0), told(Invitation.new(place.name)))
    with pytest.raises(BadTask, match="cannot be read"):
        helping.answer(Task("open", 0), told(device_folder.read_invitation(place), 99))
    with pytest.raises(BadTask, match="does not do this"):
        helping.answer(Task("round", 0), b"")
    helping.close()


@pytest.mark.parametrize(
    ("name", "settings", "wishes", "words"),
    [
        ("dp-fedmf", ("cohort.size=3",), {}, "Poisson sample"),
        ("priv-fedmf-sub", ("cohort.size=3",), {}, "one by one"),
        ("fedmf", ("cohort.size=3",), {"shares": True}, "prove something"),
        ("fedmf", ("cohort.size=3",), {"shares": True, "secagg": "none"}, "--secagg helpers"),
        ("fedmf", ("cohort.size=3",), {"secagg": "pairs"}, "use --secagg helpers"),
    ],
)
def test_secure_sums_that_would_promise_too_much_are_refused(
    name: str, settings: tuple[str, ...], wishes: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=words):
        lay_out_in(tmp_path, basis_of(Subject(name), *settings, users=5), **{"secagg": "helpers", **wishes})


def test_a_fixed_cohort_under_masks_needs_every_one_of_its_devices(tmp_path: Path) -> None:
    basis = basis_of(Subject("dp-fedmf"), "cohort.size=3", "cohort.sampling=fixed", users=5, rounds=1)
    assert lay_out_in(tmp_path, basis, secagg="helpers").least == 3
    shutil.rmtree(tmp_path)


class Waiting:
    """Adds up reports for a coordinator, once it is allowed to."""

    masks_reports = True

    def __init__(self, length: int) -> None:
        self.ready, self._length, self.lists = False, length, list[tuple[bytes, ...]]()

    def open_reports(self) -> bytes:
        return b"the invitation"

    def open(self, about: Round) -> bytes:
        return b"the next one"

    def check(self, invitation: bytes, device: int, message: bytes) -> None:
        if (invitation, message[:1]) != (b"the invitation", b"%d" % device):
            raise BadMessage("this is no message of this device")

    def count(self, invitation: bytes, reports: Sequence[bytes]) -> Offsets:
        self.lists.append((invitation, *reports))
        if not self.ready:
            raise Away("not yet")
        return np.arange(self._length) << 40  # far above the noise

    def total(self, invitation: bytes, messages: Sequence[bytes]) -> Offsets | None:
        return None


def test_a_coordinator_that_was_killed_asks_for_the_same_list_of_reports(tmp_path: Path) -> None:
    basis = voting(users=3)
    waiting = Waiting(basis.problem.n_items)

    def coordinator() -> Coordinator:
        return Coordinator(tmp_path, basis.plan, minimum_reports=2, secure=waiting)

    with coordinator() as server:
        for device in ("a", "b", "c"):
            server.enrol(device)
        question = server.ask()
        assert question is not None and not question.closed and server.invitation == b"the invitation"
        with pytest.raises(Refused, match="no message of this device"):
            server.receive_report("a", b"1 of another")
        server.receive_report("a", b"0 masked")
        with pytest.raises(BadInput, match="needs 2"):
            server.open_round()
        server.receive_report("c", b"2 masked")
        with pytest.raises(Away):
            server.open_round()
    with coordinator() as server:  # in another process
        again = server.ask()
        assert again is not None and again.closed
        with pytest.raises(Refused, match="no reports are asked for"):
            server.receive_report("b", b"1 masked")
        waiting.ready = True
        server.open_round()
        assert server.invitation == b"the next one" and server.stage == "open"
        votes = server.standing.weights["votes"][:, 0]
    assert set(waiting.lists) == {(b"the invitation", b"0 masked", b"2 masked")}
    assert np.corrcoef(votes, np.arange(len(votes)))[0, 1] > 0.99
