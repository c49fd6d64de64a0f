"""Secure sums among devices alone over the real service: the simulation's weights, or a void round, whoever is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.federation.loopback import basis_of, coordinating, known_in, lay_out_in, run_all, run_everybody, simulated
from veilrec.audit.contract_subject import ContractSubject, same
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.schema import RoundSpec
from veilrec.federation.coordinator.aggregation import PairwiseAggregation, SecAggRpc
from veilrec.federation.coordinator.registry import Registry
from veilrec.federation.facts import terms_of, with_distributed_noise
from veilrec.federation.federation import COORDINATOR, DEVICES, FederationTask
from veilrec.federation.finishing import read_end
from veilrec.federation.identity import identity_of, read_invitation
from veilrec.federation.link import Answers
from veilrec.federation.making import Basis
from veilrec.federation.secagg.pairs import BOX_BYTES, SHARE_BYTES, PairwiseSumClient
from veilrec.federation.secagg.terms import RoundKey
from veilrec.privacy.mechanisms.distributed import NoiseShares
from veilrec.server.coordinator import Coordinator, MessageRefused
from veilrec.server.round_store import RunPosition
from veilrec.server.server import ServerState

TRIPS = ("advertise", "share", "round", "sign", "reveal")
LONG = 120.0  # seconds: no trip of these tests ends by its deadline


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilrec.federation.link._DECLINED_PAUSE", 0.1)
    monkeypatch.setattr("veilrec.federation.link._POLL_SECONDS", 1.0)
    monkeypatch.setattr("veilrec.federation.federation.Federation.trip_seconds", LONG)


def clear(users: int, rounds: int) -> Basis:
    return basis_of(ContractSubject("fedmf"), "cohort.size=0", users=users, rounds=rounds)


@pytest.mark.parametrize("wishes", [{}, {"shares": True, "silent": 0.3}], ids=["server's noise", "noise in shares"])
def test_sums_among_devices_alone_are_those_of_the_simulation(wishes: dict[str, object], tmp_path: Path) -> None:
    basis = basis_of(ContractSubject("dp-fedmf"), "cohort.size=0", users=5, rounds=2)
    made = lay_out_in(tmp_path, basis, secagg="pairs", minimum_messages=3, round_seconds=LONG, **wishes)
    assert made.neighbourhood == {"devices": 4, "degree": 4, "threshold": 2, "corrupt": 1, "most": 5}
    assert made.guarantee["trust"] == f"server sees only {'noisy ' if made.shares else ''}sums"
    told = " ".join(made.guarantee["caveats"])
    assert "of the 4 to 5 devices of a round at most 1 may work with the server" in told
    assert ("sums before it adds the noise" in told) is not made.shares
    if made.shares:
        basis = replace(basis, plan=with_distributed_noise(basis.plan, NoiseShares(made.least, made.silent)))
    else:
        assert "helpers" not in told
    run_all(tmp_path)
    ended = read_end(tmp_path, known_in(tmp_path))
    assert [report.messages for report in ended.history] == [5, 5]
    assert same(ended.state, dict(simulated(tmp_path, basis).standing.state()))
    terms = terms_of(basis.plan, RoundSpec(0), made.digest, made.least)
    shared = 4 + 32 + 4 + 4 * (4 + BOX_BYTES)
    said = 4 + terms.vector_bytes + RoundKey.size(2) + shared + (8 + 64) + (8 + 4 * (5 + SHARE_BYTES))
    assert [report.up_bytes for report in ended.history] == [5 * said] * 2


# Losses

LOST_3, LOST_4, EVERYWHERE = range(5), range(5, 10), (10,)


def lost(name: str, kind: str, number: int) -> bool:
    """Of ten devices: three are lost at one trip, then four, then three of ten at every trip of one round."""
    place = int(name[1:])
    if number in EVERYWHERE:
        return place in {(3 * TRIPS.index(kind) + step) % 10 for step in range(3)}
    return kind == TRIPS[number % 5] and place < (3 if number in LOST_3 else 4)


class Lossy:
    """A device that learns, pays, and cannot send what it made."""

    def __init__(self, name: str, answers: Answers) -> None:
        self._name, self._answers = name, answers

    def answer(self, task: FederationTask, content: bytes) -> bytes:
        answer = self._answers.answer(task, content)
        if task.kind == "round" and lost(self._name, "round", task.number):
            raise VeilrecError("lost")
        return answer


def test_whoever_is_lost_at_whichever_trip_a_round_is_exact_or_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 % lost at one trip: exact. 40 %: void, but at the last one. 30 % at every trip: void. Never another sum."""
    basis, known_sum = clear(10, 11), dict[int, tuple[list[int], np.ndarray]]()
    lay_out_in(tmp_path, basis, secagg="pairs", round_seconds=LONG)
    vectors: dict[int, dict[int, np.ndarray]] = {}
    mask, total, ask = PairwiseSumClient.mask, PairwiseAggregation.total, SecAggRpc.ask

    def noted(self: PairwiseSumClient, boxes: bytes, values: np.ndarray) -> bytes:
        vectors.setdefault(self.terms.round_number, {})[self.number] = values.copy()
        return mask(self, boxes, values)

    def summed(self: PairwiseAggregation, invitation: bytes, messages: list[bytes]) -> Any:
        got = total(self, invitation, messages)
        if got is not None:
            who = [int.from_bytes(message[:4], "little") for message in messages]
            known_sum[self._restored(invitation).terms.round_number] = (who, got)
        return got

    def some(self: SecAggRpc, kind: str, number: int, names: Collection[str], **other: Any) -> dict[str, bytes]:
        return ask(self, kind, number, [name for name in names if not lost(name, kind, number)], **other)  # type: ignore[arg-type]

    def is_complete(self: Coordinator) -> bool:
        able = self._store.place.wanted or 10
        asked = [f"d{place:05d}" for place in range(10)]
        stay = [name for name in asked if not any(lost(name, kind, self.round_number) for kind in TRIPS[:3])]
        return len(self.came("messages")) >= min(able, len(stay))

    monkeypatch.setattr(PairwiseSumClient, "mask", noted)
    monkeypatch.setattr(PairwiseAggregation, "total", summed)
    monkeypatch.setattr(SecAggRpc, "ask", some)
    monkeypatch.setattr(Coordinator, "is_complete", property(is_complete))
    run_all(tmp_path, wrap=Lossy)
    ended = read_end(tmp_path, known_in(tmp_path))
    history = ended.history
    void = [report.void for report in history]
    assert void == [False] * 5 + [True, True, True, True, False] + [True]
    assert [report.messages for report in history if not report.void] == [7, 7, 7, 10, 10, 10]
    # Nobody has paid for a round that was given up before its vectors.
    assert [report.messages for report in history if report.void] == [0, 0, 6, 10, 0]
    assert set(known_sum) == {report.number for report in history if not report.void}
    for number, (who, got) in known_sum.items():
        np.testing.assert_array_equal(got, np.sum([vectors[number][device] for device in who], axis=0))
    standing = ServerState(basis.plan)
    for number in range(11):  # what these sums alone come to
        standing.server.open_round(basis.plan.agenda.next(number, standing.server.weights, None))
        if number in known_sum:
            standing.server.add_integers(known_sum[number][1], devices=len(known_sum[number][0]))
            standing.step()
    assert same(ended.state, standing.state())


# Restarts


@pytest.mark.parametrize("trip", TRIPS)
def test_a_coordinator_that_is_ended_in_the_middle_of_a_trip_goes_on_to_the_same_weights(
    trip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    basis = clear(4, 2)
    lay_out_in(tmp_path, basis, secagg="pairs", round_seconds=LONG)
    known, half, ended, said = known_in(tmp_path), threading.Event(), threading.Event(), list[str]()
    came = {"asked": 0}
    take, receive = SecAggRpc.take, Coordinator.receive

    def until_half() -> None:
        if not ended.is_set():
            if came["asked"] >= 2:
                half.set()
                raise MessageRefused("nothing is open", "the coordinator is about to end")
            came["asked"] += 1

    def taking(self: SecAggRpc, who: str, kind: str, number: int, content: bytes) -> Any:
        if kind == trip:
            until_half()
        return take(self, who, kind, number, content)

    def receiving(self: Coordinator, device_id: str, message: bytes) -> Any:
        if trip == "round":
            until_half()
        return receive(self, device_id, message)

    monkeypatch.setattr(SecAggRpc, "take", taking)
    monkeypatch.setattr(Coordinator, "receive", receiving)
    devices = threading.Thread(target=run_everybody, args=(tmp_path, known, said.append), daemon=True)
    with coordinating(tmp_path, known):
        devices.start()
        assert half.wait(LONG)
    with pytest.raises(BadInput, match="is at round 0 of 2"):  # who looks at it changes nothing
        read_end(tmp_path, known)
    ended.set()
    with coordinating(tmp_path, known):
        devices.join(LONG)
    history = read_end(tmp_path, known).history
    assert [(report.messages, report.void) for report in history] == [(4, False)] * 2
    assert same(read_end(tmp_path, known).state, dict(simulated(tmp_path, basis).standing.state()))


def refusal(work: Callable[[], object]) -> str:
    """What somebody is told who is refused; empty where they are not."""
    try:
        work()
    except MessageRefused as error:
        return str(error)
    return ""


def test_the_coordinator_takes_words_for_the_device_that_says_them_and_one_word_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device speaks as another one, of another round, and says something else a second time: none of it is taken."""
    lay_out_in(tmp_path, clear(4, 1), secagg="pairs", round_seconds=LONG)
    told: dict[str, set[str]] = {}
    take, receive = SecAggRpc.take, Coordinator.receive

    def twice(self: SecAggRpc, who: str, kind: str, number: int, content: bytes) -> Any:
        at = 4 if kind == "sign" else 0
        other = ((int(who[1:]) + 1) % 4).to_bytes(4, "little")
        forged = content[:at] + other + content[at + 4 :]
        told.setdefault("forged", set()).add(refusal(lambda: take(self, who, kind, number, forged)))
        told.setdefault("round", set()).add(refusal(lambda: take(self, who, kind, number + 1, content)))
        with self._changed:  # so that the trip is not over in between
            receipt = take(self, who, kind, number, content)
            told.setdefault("second", set()).add(refusal(lambda: take(self, who, kind, number, content + b"!")))
            assert receipt == "known already" or take(self, who, kind, number, content) == "known already"
        return receipt

    def of_another(self: Coordinator, device_id: str, message: bytes) -> Any:
        other = ((int(device_id[1:]) + 1) % 4).to_bytes(4, "little")
        told.setdefault("vector", set()).add(refusal(lambda: receive(self, device_id, other + message[4:])))
        return receive(self, device_id, message)

    monkeypatch.setattr(SecAggRpc, "take", twice)
    monkeypatch.setattr(Coordinator, "receive", of_another)
    run_all(tmp_path)
    assert [report.messages for report in read_end(tmp_path, known_in(tmp_path)).history] == [4]
    assert told["forged"] == {"this is said in the name of another device"}
    assert told["round"] == {"this is not asked for now"}
    assert told["second"] == {"something else was said to this already"}
    assert told["vector"] == {"the vector is said to be that of another device"}


def test_no_vector_is_taken_once_the_list_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector that comes while others sign is refused, and is in no sum: its device's key is what they reveal."""
    basis, late = clear(5, 1), dict[str, bytes]()
    lay_out_in(tmp_path, basis, secagg="pairs", round_seconds=LONG)
    receive, total, outcome = Coordinator.receive, PairwiseAggregation.total, dict[str, Any]()

    def held_back(self: Coordinator, device_id: str, message: bytes) -> Any:
        if device_id == "d00002" and self.stage == "open":
            late[device_id] = message
            raise MessageRefused("nothing is open", "held back")
        return receive(self, device_id, message)

    def in_between(self: PairwiseAggregation, invitation: bytes, messages: list[bytes]) -> Any:
        outcome["told"] = refusal(lambda: receive(outcome["server"], "d00002", late["d00002"]))
        outcome["messages"] = messages
        return total(self, invitation, messages)

    def is_complete(self: Coordinator) -> bool:
        outcome["server"] = self
        return len(self.came("messages")) >= 4 and bool(late)

    monkeypatch.setattr(Coordinator, "receive", held_back)
    monkeypatch.setattr(PairwiseAggregation, "total", in_between)
    monkeypatch.setattr(Coordinator, "is_complete", property(is_complete))
    run_all(tmp_path)
    (report,) = read_end(tmp_path, known_in(tmp_path)).history
    assert outcome["told"] == "no round is open"
    assert (report.messages, report.void, len(outcome["messages"])) == (4, False, 4)


def test_a_revoked_device_is_left_out_and_nobody_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = list[RunPosition]()
    opening = Coordinator.open_sum
    monkeypatch.setattr(Coordinator, "open_sum", lambda *args: places.append(opening(*args)) or places[-1])
    lay_out_in(tmp_path, clear(5, 1), secagg="pairs", round_seconds=LONG / 3)
    names = sorted(path.name for path in (tmp_path / DEVICES).iterdir())
    for name in names:
        place = tmp_path / DEVICES / name
        key, invitation = identity_of(place).public, read_invitation(place)
        with Registry(tmp_path / COORDINATOR) as registry:
            made = known_in(tmp_path).federation
            registry.enrol(made.id, name, key, invitation.endorse(made.id, key))
    with Registry(tmp_path / COORDINATOR) as registry:
        registry.revoke(names[2])
    run_all(tmp_path, names=[name for name in names if name != names[2]])
    assert [place.wanted for place in places] == [4]
    (report,) = read_end(tmp_path, known_in(tmp_path)).history
    assert (report.devices, report.messages, report.void) == (5, 4, False)
