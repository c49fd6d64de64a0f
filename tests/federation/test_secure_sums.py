"""Secure sums over the real service: the weights of the simulation, or a void round, whoever is lost."""

import json
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.federation import loopback
from tests.wire.raising import raises
from veilrec.audit.contract_subject import ContractSubject, distance, same, subjects
from veilrec.cli.federate import status_line
from veilrec.client.federated import FederatedClient
from veilrec.client.veil import VOTES
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.schema import FIRST_REPORT_SUM, ReportSum, RoundSpec, Tensor, whole_model
from veilrec.federation import federation
from veilrec.federation.auditing import audit
from veilrec.federation.client import folder as client_folder
from veilrec.federation.coordinator.aggregation import PairwiseAggregation, SecAggRpc
from veilrec.federation.coordinator.registry import Registry
from veilrec.federation.facts import terms_in, terms_of
from veilrec.federation.federation import CLIENTS, COORDINATOR, BadTask, FederationTask, joined
from veilrec.federation.finishing import read_end
from veilrec.federation.helper import HelperAnswers
from veilrec.federation.identity import Invitation, identity_of, read_invitation
from veilrec.federation.running import status
from veilrec.federation.secagg.helpers import Helper, HelperInvitation, HelperSumClient, MaskRequest
from veilrec.federation.secagg.pairs import BOX_BYTES, SHARE_BYTES, PairwiseProposal, PairwiseSumClient
from veilrec.federation.secagg.terms import MessageReader, RoundKey
from veilrec.server.coordinator import Coordinator, MessageRefused
from veilrec.server.round_store import RunPosition
from veilrec.server.server import ServerState
from veilrec.wire import rounds
from veilrec.wire.signing import BadSignature

pytestmark = pytest.mark.usefixtures("quick")
TRIPS = ("advertise", "share", "round", "sign", "reveal")


def clear(users, rounds):
    return loopback.basis_of(ContractSubject("fedmf"), "cohort.size=0", users=users, rounds=rounds)


@pytest.mark.parametrize("secagg", ["helpers", "pairs"])
@pytest.mark.parametrize("margins", [None, ("privacy.silent=0.3", "privacy.lost=0.4")], ids=["server", "clients"])
def test_secure_sums_are_those_of_the_simulation(secagg, margins, tmp_path):
    noise = () if margins is None else ("privacy.noise=distributed", *margins)
    basis = loopback.basis_of(ContractSubject("dp-fedmf"), "cohort.size=0", *noise, users=5, rounds=2)
    wishes, distributed = {"minimum_messages": 3} if margins is None else {}, margins is not None
    made = loopback.lay_out_in(tmp_path, basis, secagg=secagg, round_seconds=loopback.LONG, **wishes)
    assert made.least == 3
    assert made.guarantee["trust"] == f"server sees only {'noisy ' if distributed else ''}sums"
    told = " ".join(made.guarantee["caveats"])
    assert ("sums before it adds the noise" in told) is not distributed
    loopback.run_all(tmp_path)
    ended = read_end(tmp_path, loopback.known_in(tmp_path))
    assert [report.messages for report in ended.history] == [5, 5]
    assert same(ended.state, dict(loopback.simulated(tmp_path, basis).server_state.state()))
    if secagg == "pairs":
        assert made.neighbourhood == {"clients": 4, "degree": 4, "threshold": 2, "corrupt": 1, "most": 5}
        assert "of the 4 to 5 clients of a round at most 1 may work with the server" in told
        assert distributed or "helpers" not in told
        terms = terms_of(basis.plan, RoundSpec(0), made.digest, made.least)
        shared = 4 + 32 + 4 + 4 * (4 + BOX_BYTES)
        said = 4 + terms.vector_bytes + RoundKey.size(2) + 32 + shared + (8 + 64) + (8 + 4 * (5 + SHARE_BYTES))
        assert [report.up_bytes for report in ended.history] == [5 * said] * 2


# Losses

LOST_3, LOST_4, EVERYWHERE = range(5), range(5, 10), (10,)


def lost(name, kind, number):
    """Of ten clients: three are lost at one trip, then four, then three of ten at every trip of one round."""
    place = int(name[1:])
    if number in EVERYWHERE:
        return place in {(3 * TRIPS.index(kind) + step) % 10 for step in range(3)}
    return kind == TRIPS[number % 5] and place < (3 if number in LOST_3 else 4)


class Lying:
    """A client that puts under its masks what no client can have: nobody sees it, and its check is right."""

    def __init__(self, answers):
        self._answers = answers
        honest = answers._masked
        answers._masked = lambda *asked: honest(*asked[:-1], np.full_like(asked[-1], 1 << 62))

    def answer(self, task, content):
        return self._answers.answer(task, content)


@pytest.mark.parametrize("secagg", ["helpers", "pairs"])
def test_a_client_that_lies_under_its_masks_voids_a_round_and_ends_no_federation(secagg, tmp_path, monkeypatch):
    loopback.lay_out_in(tmp_path, clear(5, 2), secagg=secagg, minimum_messages=3, round_seconds=loopback.LONG)
    start = loopback.answers_of

    def started(client, known, place, key):
        own = start(client, known, place, key)
        return Lying(own) if place == 1 else own

    monkeypatch.setattr(loopback, "answers_of", started)
    loopback.run_all(tmp_path)
    ended = read_end(tmp_path, loopback.known_in(tmp_path))
    assert [(report.messages, report.void) for report in ended.history] == [(5, True)] * 2
    assert [report.refused for report in ended.history] == [{"beyond its bound": 1}] * 2


class Lossy:
    def __init__(self, name, answers):
        self._name, self._answers = name, answers

    def answer(self, task, content):
        answer = self._answers.answer(task, content)
        if task.kind == "round" and lost(self._name, "round", task.number):
            raise VeilrecError("lost")
        return answer


def test_whoever_is_lost_at_whichever_trip_a_round_is_exact_or_void(tmp_path, monkeypatch):
    """30 % lost at one trip: exact. 40 %: void, but at the last one. 30 % at every trip: void. Never another sum."""
    basis, known_sum = clear(10, 11), dict[int, tuple[list[int], np.ndarray]]()
    loopback.lay_out_in(tmp_path, basis, secagg="pairs", round_seconds=loopback.LONG)
    vectors = {}
    mask, total, ask = PairwiseSumClient.mask, PairwiseAggregation.total, SecAggRpc.ask

    def noted(self, boxes, content, values):
        vectors.setdefault(self.terms.round_number, {})[self.number] = values.copy()
        return mask(self, boxes, content, values)

    def summed(self, invitation, messages, cohort):
        got = total(self, invitation, messages, cohort)
        if got is not None:
            who = [int.from_bytes(message[:4], "little") for message in messages]
            known_sum[self._restored(invitation).terms.round_number] = (who, got)
        return got

    def some(self, kind, number, names, **other):
        return ask(self, kind, number, [name for name in names if not lost(name, kind, number)], **other)

    def wanted(self):  # so that nobody waits for the lost
        asked = [f"d{place:05d}" for place in range(10)]
        stay = [name for name in asked if not any(lost(name, kind, self.round_number) for kind in TRIPS[:3])]
        return min(self._store.place.wanted or 10, len(stay))

    monkeypatch.setattr(PairwiseSumClient, "mask", noted)
    monkeypatch.setattr(PairwiseAggregation, "total", summed)
    monkeypatch.setattr(SecAggRpc, "ask", some)
    monkeypatch.setattr(Coordinator, "wanted", property(wanted))
    loopback.run_all(tmp_path, wrap=Lossy)
    ended = read_end(tmp_path, loopback.known_in(tmp_path))
    history = ended.history
    void = [report.void for report in history]
    assert void == [False] * 5 + [True, True, True, True, False] + [True]
    assert [report.messages for report in history if not report.void] == [7, 7, 7, 10, 10, 10]
    # Nobody has paid for a round that was given up before its vectors.
    assert [report.messages for report in history if report.void] == [0, 0, 6, 10, 0]
    assert set(known_sum) == {report.number for report in history if not report.void}
    for number, (who, got) in known_sum.items():
        np.testing.assert_array_equal(got, np.sum([vectors[number][client] for client in who], axis=0))
    server_state = ServerState(basis.plan)
    for number in range(11):  # what these sums alone come to
        server_state.server.open_round(basis.plan.round_planner.next(number, server_state.server.weights, None))
        if number in known_sum:
            server_state.server.add_integers(known_sum[number][1], clients=len(known_sum[number][0]))
            server_state.step()
    assert same(ended.state, server_state.state())


@pytest.mark.parametrize("trip", TRIPS)
def test_a_coordinator_that_is_ended_in_the_middle_of_a_trip_goes_on_to_the_same_weights(trip, tmp_path, monkeypatch):
    basis = clear(4, 2)
    loopback.lay_out_in(tmp_path, basis, secagg="pairs", round_seconds=loopback.LONG)
    known, half, ended, came = loopback.known_in(tmp_path), threading.Event(), threading.Event(), {"asked": 0}
    take, receive = SecAggRpc.take, Coordinator.receive

    def until_half():
        if not ended.is_set():
            if came["asked"] >= 2:
                half.set()
                raise MessageRefused("nothing is open", "the coordinator is about to end")
            came["asked"] += 1

    def taking(self, who, kind, number, content):
        if kind == trip:
            until_half()
        return take(self, who, kind, number, content)

    def receiving(self, client_id, message):
        if trip == "round":
            until_half()
        return receive(self, client_id, message)

    monkeypatch.setattr(SecAggRpc, "take", taking)
    monkeypatch.setattr(Coordinator, "receive", receiving)

    def until_over(_):
        found = half.wait(loopback.LONG)
        ended.set()
        return found

    loopback.run_with_a_restart(tmp_path, known, until_over)
    history = read_end(tmp_path, known).history
    assert [(report.messages, report.void) for report in history] == [(4, False)] * 2
    assert same(read_end(tmp_path, known).state, dict(loopback.simulated(tmp_path, basis).server_state.state()))


def refusal(work):
    try:
        work()
    except MessageRefused as error:
        return str(error)
    return ""


def test_the_coordinator_takes_words_for_the_client_that_says_them_and_one_word_each(tmp_path, monkeypatch):
    """A client speaks as another one, of another round, and says something else a second time: none of it is taken."""
    loopback.lay_out_in(tmp_path, clear(4, 1), secagg="pairs", round_seconds=loopback.LONG)
    told = {}
    take, receive = SecAggRpc.take, Coordinator.receive

    def twice(self, who, kind, number, content):
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

    def of_another(self, client_id, message):
        other = ((int(client_id[1:]) + 1) % 4).to_bytes(4, "little")
        told.setdefault("vector", set()).add(refusal(lambda: receive(self, client_id, other + message[4:])))
        return receive(self, client_id, message)

    monkeypatch.setattr(SecAggRpc, "take", twice)
    monkeypatch.setattr(Coordinator, "receive", of_another)
    loopback.run_all(tmp_path)
    assert [report.messages for report in read_end(tmp_path, loopback.known_in(tmp_path)).history] == [4]
    assert told["forged"] == {"this is said in the name of another client"}
    assert told["round"] == {"this is not asked for now"}
    assert told["second"] == {"something else was said to this already"}
    assert told["vector"] == {"the vector is said to be that of another client"}


def test_no_vector_is_taken_once_the_list_is_told(tmp_path, monkeypatch):
    """A vector that comes while others sign is refused, and is in no sum: its client's key is what they reveal."""
    basis, late = clear(5, 1), dict[str, bytes]()
    loopback.lay_out_in(tmp_path, basis, secagg="pairs", round_seconds=loopback.LONG)
    receive, total, outcome = Coordinator.receive, PairwiseAggregation.total, dict[str, Any]()

    def held_back(self, client_id, message):
        if client_id == "d00002":
            late[client_id] = message
        if client_id == "d00002" or not late:  # the others are asked again
            raise MessageRefused("nothing is open", "held back")
        return receive(self, client_id, message)

    def in_between(self, invitation, messages, cohort):
        outcome["told"] = refusal(lambda: receive(outcome["server"], "d00002", late["d00002"]))
        outcome["messages"] = messages
        return total(self, invitation, messages, cohort)

    def wanted(self):
        outcome["server"] = self
        return 4

    monkeypatch.setattr(Coordinator, "receive", held_back)
    monkeypatch.setattr(PairwiseAggregation, "total", in_between)
    monkeypatch.setattr(Coordinator, "wanted", property(wanted))
    loopback.run_all(tmp_path)
    (report,) = read_end(tmp_path, loopback.known_in(tmp_path)).history
    assert outcome["told"] == "no round is open"
    assert (report.messages, report.void, len(outcome["messages"])) == (4, False, 4)


def test_a_revoked_client_is_left_out_and_nobody_waits_for_it(tmp_path, monkeypatch):
    places = list[RunPosition]()
    opening = Coordinator.open_sum
    monkeypatch.setattr(Coordinator, "open_sum", lambda *args: places.append(opening(*args)) or places[-1])
    loopback.lay_out_in(tmp_path, clear(5, 1), secagg="pairs", round_seconds=loopback.LONG / 3)
    names = sorted(path.name for path in (tmp_path / CLIENTS).iterdir())
    known = loopback.known_in(tmp_path)
    for name in names:
        place, made = tmp_path / CLIENTS / name, known.federation
        key, invitation = loopback.key_of(place, known).public, read_invitation(place)
        with Registry(tmp_path / COORDINATOR) as registry:
            registry.enrol(made.id, name, key, invitation.endorse(made.id, key))
    with Registry(tmp_path / COORDINATOR) as registry:
        registry.revoke(names[2])
    loopback.run_all(tmp_path, names=[name for name in names if name != names[2]])
    assert [place.wanted for place in places] == [4]
    (report,) = read_end(tmp_path, loopback.known_in(tmp_path)).history
    assert (report.clients, report.messages, report.void) == (5, 4, False)


@pytest.mark.parametrize("signs", [False, True])
def test_a_helper_that_is_silent_or_signs_another_answer_voids_only_that_round(signs, tmp_path, monkeypatch):
    loopback.lay_out_in(tmp_path, clear(4, 2), secagg="helpers", round_seconds=2.0)
    answer = Helper.answer

    def lost(self, request):
        if MaskRequest.decode(request).round_number > 0:
            return answer(self, request)
        if not signs:
            raise BadInput("lost")
        said = answer(self, request)
        return said[:-1] + bytes([said[-1] ^ 1])

    monkeypatch.setattr(Helper, "answer", lost)
    loopback.run_all(tmp_path)
    ended = read_end(tmp_path, loopback.known_in(tmp_path))
    assert [report.void for report in ended.history] == [True, False]


def test_a_helper_believes_an_invitation_and_nobody_else(tmp_path):
    loopback.lay_out_in(tmp_path, clear(3, 1), secagg="helpers")
    made, place = federation.read(tmp_path), sorted((tmp_path / CLIENTS).iterdir())[0]
    helping = HelperAnswers(tmp_path / "helpers" / "helper-0", made)
    key = identity_of(place).public

    def told(invitation, place_number=0):
        entry = {"place": place_number, "key": key.hex(), "endorsement": invitation.endorse(made.id, key).hex()}
        return joined(b"", json.dumps([entry]).encode())

    opening = FederationTask("open", 0)
    raises(BadSignature, None, helping.answer, opening, told(Invitation.new(place.name)))  # a name that was made up
    raises(BadTask, "nobody has announced it here", helping.answer, opening, told(read_invitation(place), 99))
    raises(BadTask, "does not do this", helping.answer, FederationTask("round", 0), b"")
    helping.close()


REFUSED = (
    ("dp-fedmf", ("cohort.size=3",), {}, "Poisson sample"),
    ("fednewsrec", ("cohort.size=0",), {}, "needs 2 validation clients, and there are 0"),
    ("dp-fedmf", ("cohort.size=0", "privacy.noise=distributed"), {"minimum_messages": 3}, "how many may be lost"),
    ("dp-fedmf", ("cohort.size=0", "privacy.noise=distributed"), {"secagg": "none"}, "use --trust noisy-sums"),
    ("privrec", ("cohort.size=3",), {"secagg": "pairs"}, "a round has 3 of 5 clients"),
    ("fedmf", ("cohort.size=2",), {"secagg": "pairs"}, "use helpers"),
    ("fedmf", ("cohort.size=4",), {"secagg": "pairs", "minimum_messages": 5}, "--least is 5"),
    ("fedmf", ("cohort.size=4",), {"secagg": "pairs", "lost": 0.6}, "have to stay to the end"),
)


def test_secure_sums_that_would_promise_too_much_are_refused(tmp_path):
    for number, (name, settings, wishes, words) in enumerate(REFUSED):
        basis = loopback.basis_of(subjects(name)[0], *settings, users=5)
        raises(BadInput, words, loopback.lay_out_in, tmp_path / str(number), basis, **{"secagg": "helpers", **wishes})
    whole = loopback.basis_of(ContractSubject("dp-fedmf"), "cohort.size=3", "cohort.sampling=fixed", users=5, rounds=1)
    assert loopback.lay_out_in(tmp_path / "whole", whole, secagg="helpers").least == 3  # needs every one of its clients


def veil(users=5, rounds=2):
    return loopback.basis_of(ContractSubject("veil"), "cohort.size=0", users=users, rounds=rounds)


@pytest.mark.parametrize("secagg", ["helpers", "pairs"])
def test_veil_under_masks_is_the_simulation_bit_for_bit(secagg, tmp_path):
    basis = veil()
    made = loopback.lay_out_in(tmp_path, basis, secagg=secagg, minimum_messages=3, round_seconds=loopback.LONG)
    assert made.guarantee["trust"] == "server sees only sums"
    told = " ".join(made.guarantee["caveats"])
    assert "sees every clipped update" not in told
    assert "sums before it adds the noise" in told
    loopback.run_all(tmp_path)
    known = loopback.known_in(tmp_path)
    ended, wanted = read_end(tmp_path, known), loopback.simulated(tmp_path, basis).server_state
    assert [report.messages for report in ended.history] == [5, 5]
    assert same(ended.state, dict(wanted.state()))
    assert same(ended.weights, dict(wanted.weights))  # popularity and votes among them
    assert ended.weights[VOTES].any()
    assert paid(tmp_path) == [3] * 5
    vectors = 5 * terms_in(made, known.plan, ReportSum()).vector_bytes
    assert vectors < ended.history[0].report_bytes < vectors + 5 * 2_000
    assert ended.history[1].report_bytes == 0


def test_items_of_a_histogram_under_masks_choose_the_rounds_of_the_simulation(tmp_path):
    basis = loopback.basis_of(ContractSubject("priv-fedmf-sub"), "cohort.size=0", users=4, rounds=1)
    loopback.lay_out_in(tmp_path, basis, secagg="helpers", minimum_messages=3, round_seconds=loopback.LONG)
    loopback.run_all(tmp_path)
    wanted, ended = loopback.simulated(tmp_path, basis).server_state, read_end(tmp_path, loopback.known_in(tmp_path))
    assert same(ended.state, dict(wanted.state()))
    assert len(np.unique(wanted.sent)) > 1  # what was reported says which items the round is about


def paid(folder):
    known, counts = loopback.known_in(folder), []
    for place in sorted((folder / CLIENTS).iterdir()):
        with client_folder.open_client(place, known) as client:
            counts.append(client.spent()[0].messages)
    return counts


def test_helpers_that_are_lost_and_a_coordinator_that_is_ended_before_the_sum_is_open(tmp_path, monkeypatch):
    """The list is fixed, no helper answers, the coordinator is ended, a late client comes: the same list it is."""
    basis = veil(users=4, rounds=1)
    made = loopback.lay_out_in(tmp_path, basis, secagg="helpers", minimum_messages=3, round_seconds=2.0)
    federation.write(replace(made, report_seconds=2.0), tmp_path)
    known, ended = loopback.known_in(tmp_path), threading.Event()
    requests, trips = list[bytes](), list[str]()
    answer, report, ask = Helper.answer, FederatedClient.report, SecAggRpc.ask

    def lost(self, request):
        if MaskRequest.decode(request).round_number >= FIRST_REPORT_SUM:
            requests.append(request)
            if not ended.is_set():
                raise BadInput("lost")
        return answer(self, request)

    def late(self, *arguments, **other):
        if self._identity.number == 3 and not requests:
            raise VeilrecError("not yet")
        return report(self, *arguments, **other)

    def noted(self, kind, *arguments, **other):
        trips.append(kind)
        return ask(self, kind, *arguments, **other)

    monkeypatch.setattr(Helper, "answer", lost)
    monkeypatch.setattr(FederatedClient, "report", late)
    monkeypatch.setattr(SecAggRpc, "ask", noted)

    def half(control):
        loopback.until(lambda: trips.count("sum") >= 2)  # the helpers had all the time of a round
        ended.set()
        return control.driver.coordinator.stage == "counting"

    loopback.run_with_a_restart(tmp_path, known, half)
    assert len(requests) > 2
    assert len(set(requests)) == 1
    assert [claim.number for claim in MaskRequest.decode(requests[0]).claims] == [0, 1, 2]
    (history,) = read_end(tmp_path, known).history
    assert (history.messages, history.void) == (4, False)
    assert paid(tmp_path) == [2, 2, 2, 1]  # whoever is not in the list has told nothing


def test_among_clients_alone_a_void_sum_of_reports_is_followed_by_another_and_nobody_pays_twice(tmp_path, monkeypatch):
    """The first sum cannot begin, the second loses its signatures, the third is ended by a restart in its last trip."""
    basis = veil(users=4, rounds=1)
    loopback.lay_out_in(tmp_path, basis, secagg="pairs", round_seconds=loopback.LONG)
    known, half, ended = loopback.known_in(tmp_path), threading.Event(), threading.Event()
    ask, take, asked = SecAggRpc.ask, SecAggRpc.take, list[tuple[str, int]]()

    def lossy(self, kind, number, names, **other):
        attempt = number - FIRST_REPORT_SUM
        asked.append((kind, attempt))
        lost = (attempt, kind) in ((0, "advertise"), (1, "sign"))
        return ask(self, kind, number, sorted(names)[:1] if lost else names, **other)

    def taking(self, who, kind, number, content):
        if (kind, number) == ("reveal", FIRST_REPORT_SUM + 2) and not ended.is_set():
            half.set()
            raise MessageRefused("nothing is open", "the coordinator is about to end")
        return take(self, who, kind, number, content)

    monkeypatch.setattr(SecAggRpc, "ask", lossy)
    monkeypatch.setattr(SecAggRpc, "take", taking)

    def last_trip(_):
        found = half.wait(loopback.LONG)
        ended.set()
        return found

    loopback.run_with_a_restart(tmp_path, known, last_trip)
    ended_run = read_end(tmp_path, known)
    assert [(report.messages, report.void) for report in ended_run.history] == [(4, False)]
    assert same(ended_run.state, dict(loopback.simulated(tmp_path, basis).server_state.state()))
    assert paid(tmp_path) == [2] * 4
    trips = [attempt for kind, attempt in asked if kind == "advertise"]
    assert trips[:3] == [0, 1, 2]
    assert [attempt for kind, attempt in asked if kind == "reveal"][:2] == [2, 2]


@pytest.mark.parametrize(("name", "secagg"), [("privaterec", "helpers"), ("fednewsrec", "pairs")])
def test_gains_of_validation_clients_under_masks_decide_as_in_the_simulation(name, secagg, tmp_path):
    basis = loopback.basis_of(subjects(name)[0], "cohort.size=0", users=16, rounds=1)
    made = loopback.lay_out_in(tmp_path, basis, secagg=secagg, minimum_messages=3, round_seconds=loopback.LONG)
    assert made.validators >= made.least_compared
    wanted = loopback.simulated(tmp_path, basis)
    loopback.run_all(tmp_path)
    known = loopback.known_in(tmp_path)
    ended = read_end(tmp_path, known)
    assert [report.void for report in ended.history] == [False]
    assert ended.selection.validators == wanted.selection.validators == known.plan.model_selection.people
    assert np.isclose(ended.selection.gain, wanted.selection.gain, atol=1e-4)  # of networks
    found = audit(tmp_path)
    assert (found.sums, found.problems) == (2, ())


def test_whoever_acted_on_something_else_is_named_and_its_round_void(tmp_path, monkeypatch):
    """A client that was told something else in round 0: what it signed says so, and the coordinator tells."""
    loopback.lay_out_in(tmp_path, clear(4, 2), secagg="helpers", round_seconds=loopback.LONG)
    known, update = loopback.known_in(tmp_path), HelperSumClient.update

    def elsewhere(self, invitation, content, values):
        sent = update(self, invitation, content, values)
        invited = HelperInvitation.decode(invitation)
        terms = invited.proposal.terms
        if self.number != 2 or terms.round_number:
            return sent
        louder = replace(invited, proposal=replace(invited.proposal, terms=terms.about(b"louder", range(4)))).session
        claim = RoundKey.read(MessageReader(sent))
        signed = RoundKey.signed(claim.public, self.identity, louder, "client", 2)
        return signed.encode() + louder + sent[RoundKey.size() + 32 :]

    monkeypatch.setattr(HelperSumClient, "update", elsewhere)
    loopback.run_all(tmp_path)
    first, second = read_end(tmp_path, known).history
    assert (first.void, first.differing, second.void, second.differing) == (True, ("d00002",), False, ())
    assert first.refused["another digest"] >= 1
    found = status(tmp_path)["run"]
    assert found["differing"] == {"0": ["d00002"]}
    assert "round 0 void: d00002 acted on something else" in status_line(found | {"clients": {"here": 0, "invited": 4}})
    assert audit(tmp_path).problems == ("round 0: d00002 acted on something else than the others",)


def test_among_clients_alone_a_round_of_two_sessions_is_void_and_a_sum_of_reports_goes_on(tmp_path, monkeypatch):
    """Client 2 is told of another list than the others, before the reports and before round 0."""
    basis = veil(users=6, rounds=2)
    loopback.lay_out_in(tmp_path, basis, secagg="pairs", round_seconds=loopback.LONG)
    known, advertise = loopback.known_in(tmp_path), PairwiseSumClient.advertise

    def elsewhere(self, proposal):
        told = PairwiseProposal.decode(proposal)
        if self.number == 2 and told.terms.round_number in (0, FIRST_REPORT_SUM):
            fewer = told.cohort[:-1]
            proposal = PairwiseProposal(told.terms.about(b"louder", fewer), fewer).encode()
        return advertise(self, proposal)

    monkeypatch.setattr(PairwiseSumClient, "advertise", elsewhere)
    federation.write(replace(known.federation, rpc_seconds=3.0), tmp_path)  # it is waited for
    loopback.run_all(tmp_path)
    first, second = read_end(tmp_path, known).history
    assert (first.void, first.differing, second.void, second.messages) == (True, ("d00002",), False, 6)
    found = audit(tmp_path)
    assert found.problems == ("round 0: d00002 acted on something else than the others",)
    assert (found.sums, found.fewest) == (2, 5)  # the reports of five, and round 1


def test_weights_beyond_their_bound_are_declined_by_everybody_and_counted(tmp_path, monkeypatch):
    loopback.lay_out_in(tmp_path, clear(4, 2), secagg="helpers", round_seconds=loopback.LONG)
    honest = Coordinator._broadcast

    def loud(self):
        if self.round_number:
            return honest(self)
        schema = self.plan.schema
        weights = {name: np.full_like(values, 2.0**21) for name, values in self.plan.start.items()}
        return rounds.encode(RoundSpec(0), whole_model(schema, weights, 0), schema)

    monkeypatch.setattr(Coordinator, "_broadcast", loud)
    loopback.run_all(tmp_path)
    first, second = read_end(tmp_path, loopback.known_in(tmp_path)).history
    assert (first.void, first.messages, first.declined) == (True, 0, {"beyond the bound": 4})
    assert (second.void, second.messages, second.declined) == (False, 4, {})
    assert status(tmp_path)["run"]["declined"] == {"beyond the bound": 4}


def test_a_model_that_a_sum_was_not_begun_for_voids_the_round_with_one_line_and_no_charge(tmp_path, monkeypatch):
    """Between the helpers' keys and the clients the model on disk has become another one."""
    basis = loopback.basis_of(ContractSubject("dp-fedmf"), "cohort.size=0", users=4, rounds=2)
    loopback.lay_out_in(tmp_path, basis, secagg="helpers", round_seconds=loopback.LONG)
    opening, opened = Coordinator.open_sum, list[int]()

    def swapped(self):
        place = opening(self)
        if not opened:
            opened.append(self.round_number)
            for values in self._server_state.server.weights.values():
                np.add(values, 1.0, out=values)
        return place

    monkeypatch.setattr(Coordinator, "open_sum", swapped)
    loopback.run_all(tmp_path)
    first, second = read_end(tmp_path, loopback.known_in(tmp_path)).history
    assert (first.void, first.messages, second.messages) == (True, 0, 4)
    assert paid(tmp_path) == [1] * 4


@pytest.mark.parametrize("secagg", ["none", "helpers"])
def test_a_model_beyond_what_clients_learn_from_voids_its_round_and_stays_as_it_was(tmp_path, monkeypatch, secagg):
    """One client may have led it there."""
    loopback.lay_out_in(tmp_path, clear(3, 2), secagg=secagg, round_seconds=loopback.LONG)
    monkeypatch.setattr(Tensor, "largest", 1e-3)
    monkeypatch.setattr("veilrec.client.federated.check_weights", lambda *_: None)  # clients that learn from anything
    loopback.run_all(tmp_path)
    ended, known = read_end(tmp_path, loopback.known_in(tmp_path)), loopback.known_in(tmp_path)
    assert [(report.void, report.refused) for report in ended.history] == [(True, {"beyond its bound": 1})] * 2
    assert all(np.array_equal(ended.weights[name], values) for name, values in known.plan.start.items())


@pytest.mark.parametrize(
    ("name", "secagg", "users"), [("veil", "pairs", 6), ("veil", "helpers", 6), ("dp-fedrec", "helpers", 16)]
)
def test_noise_of_the_clients_in_reports_gains_and_rounds_is_that_of_the_simulation(name, secagg, users, tmp_path):
    """Nobody adds noise but clients: what is opened has it already, in every sum of a run."""
    settings = ("cohort.size=0", "privacy.noise=distributed", "privacy.silent=0.2", "privacy.lost=0.2")
    basis = loopback.basis_of(subjects(name)[0], *settings, users=users, rounds=1)
    made = loopback.lay_out_in(tmp_path, basis, secagg=secagg, round_seconds=loopback.LONG)
    assert made.guarantee["trust"] == "server sees only noisy sums"
    wanted = loopback.simulated(tmp_path, basis)
    loopback.run_all(tmp_path)
    ended = read_end(tmp_path, loopback.known_in(tmp_path))
    assert [report.void for report in ended.history] == [False]
    state = dict(wanted.server_state.state())
    if name == "veil":
        assert same(ended.state, state)
    else:
        assert distance(ended.state, state) <= 1e-4  # of networks
        assert np.isclose(ended.selection.gain, wanted.selection.gain, atol=1e-4)
    assert audit(tmp_path).problems == ()
