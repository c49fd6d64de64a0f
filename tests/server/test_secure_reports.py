"""Reports that a coordinator does not see, and the states of a round: what a kill leaves, and what a wait holds."""

import threading

import numpy as np
import pytest

from tests.server.test_coordinator import CLIENTS, plan_of, refusal, start
from tests.wire.raising import raises
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.schema import FIRST_REPORT_SUM, ComparisonSum, ReportSum, RoundSpec, place_of_sum
from veilrec.privacy.randomness import noise_of_histogram
from veilrec.server.coordinator import Coordinator, MessageRefused
from veilrec.server.round_store import RoundState, RunPosition
from veilrec.simulation.real_clients import SECRET
from veilrec.wire import messages as bits
from veilrec.wire.messages import BadMessage


class Killed(BaseException):
    """The process is gone: whatever was not on disk is lost."""


def kill(*_):
    raise Killed


class Adding:
    """Sums of what is not masked at all, in the place of a protocol; who was asked what is noted."""

    waits = True
    differing, transcript = (), b"transcript"

    def __init__(self, length, attempts=1):
        self.length, self.attempts = length, attempts
        self.opened, self.asked = [], []
        self.begins = self.adds_up = True
        self.before = self.after = lambda: None

    def open(self, spec, cohort, content):
        self.opened.append(spec)
        return f"sum {spec.number} of {len(cohort)}, opening {len(self.opened)}".encode() if self.begins else None

    def senders(self, invitation, cohort):
        return cohort

    def crossed(self, invitation, cohort):
        return cohort * len(invitation), 7

    def check(self, invitation, client, message):
        if len(message) != 8 * (1 + self.length) or int.from_bytes(message[:8], "little") != client:
            raise BadMessage("not a vector of this device")

    def total(self, invitation, messages, cohort):
        self.asked.append((invitation, list(messages)))
        self.before()
        if not self.adds_up:
            return None
        total = sum((np.frombuffer(m, "<i8")[1:] for m in messages), np.zeros(self.length, np.int64))
        self.after()
        return np.asarray(total)


def votes():
    return plan_of("dpals", "cohort.size=0")


def told(client):
    own = np.zeros(votes().reports.mechanism.length, np.bool_)
    own[: 2 + client] = True
    return own


def vector(client):
    return client.to_bytes(8, "little") + votes().reports.mechanism.weigh(told(client)).astype("<i8").tobytes()


def hidden(folder, *, least=CLIENTS, **options):
    secure = Adding(votes().reports.mechanism.length, **options)
    return start(folder, votes(), minimum_reports=least, minimum_messages=1, secure=secure), secure


def again_in(folder, secure, least=CLIENTS):
    return Coordinator(folder, votes(), minimum_reports=least, minimum_messages=1, secure=secure)


def answered(server, clients=CLIENTS):
    assert server.ask() is not None
    for client in range(clients):
        assert server.receive_report(f"client {client}", vector(client)) == "taken"


def wanted(clients=CLIENTS):
    mechanism = votes().reports.mechanism
    counts = np.sum([mechanism.weigh(told(client)) for client in range(clients)], axis=0)
    return mechanism.protect(counts, noise_of_histogram(SECRET, 0))


def test_the_tally_is_that_of_reports_that_are_seen(tmp_path):
    server, secure = hidden(tmp_path / "hidden")
    answered(server)
    assert server.count_reports()
    seen = start(tmp_path / "seen", votes(), minimum_reports=CLIENTS)
    seen.ask()
    for client in range(CLIENTS):
        seen.receive_report(f"client {client}", bits.encode_report(told(client), 0))
    seen.open_round()
    tallies = [one._store.tally() for one in (server, seen)]
    np.testing.assert_array_equal(tallies[0].counts, tallies[1].counts)
    np.testing.assert_array_equal(tallies[0].counts, wanted())
    assert tallies[0].reports == tallies[1].reports == CLIENTS
    assert server.ask() is None  # one tally serves the whole run
    assert server.open_round()[1] == seen.open_round()[1]
    assert secure.opened == [ReportSum(0), RoundSpec(0)]
    report = server.close_round()
    assert report.report_bytes == CLIENTS * len(vector(0)) + 7
    assert [len(messages) for _, messages in secure.asked] == [CLIENTS]


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_between_fixing_the_list_and_the_tally_it_asks_for_the_same_list(when, tmp_path):
    server, secure = hidden(tmp_path, least=3)
    answered(server, 3)

    setattr(secure, when, kill)
    raises(Killed, None, server.count_reports)
    server.close()
    setattr(secure, when, lambda: None)
    with again_in(tmp_path, secure, 3) as again:
        assert again.stage == "counting"
        with pytest.raises(MessageRefused, match="no reports are asked for"):  # a late one would make it another list
            again.receive_report("client 3", vector(3))
        raises(BadInput, "round 0 is counting", again.ask)
        assert again.count_reports()
        tally = again._store.tally()
        np.testing.assert_array_equal(tally.counts, wanted(3))
        assert tally.reports == CLIENTS  # of whom 3 have reported
    assert secure.asked[0] == secure.asked[1]
    assert len(secure.asked[0][1]) == 3


def test_killed_while_clients_are_asked_it_goes_on_with_the_same_invitation(tmp_path):
    server, secure = hidden(tmp_path)
    question = server.ask()
    assert question is not None and question.invitation
    server.receive_report("client 0", vector(0))
    server.close()
    with again_in(tmp_path, secure) as again:
        assert again.ask() == question
        assert secure.opened == [ReportSum(0)]
        assert again.came("reports") == ("client 0",)
        assert again.receive_report("client 0", vector(0)) == "known already"


def test_what_is_no_answer_of_the_client_is_refused(tmp_path):
    server, _ = hidden(tmp_path)
    good = vector(0)
    raises(MessageRefused, "no reports are asked for", server.receive_report, "client 0", good)
    server.ask()
    server.receive_report("client 0", good)
    cases = [
        ("second message", "client 0", good[:-1] + bytes([good[-1] ^ 1])),
        ("bad bytes", "client 1", good),  # in the name of another
        ("bad bytes", "client 1", vector(1)[:-8]),
        ("bad bytes", "client 1", bits.encode_report(told(1), 0)),  # nothing is read that is not masked
        ("not enrolled", "stranger", good),
    ]
    for reason, client, message in cases:
        assert refusal(server.receive_report, client, message) == reason
    assert server.came("reports") == ("client 0",)


def test_too_few_are_waited_for_and_a_sum_of_another_length_is_no_tally(tmp_path):
    server, secure = hidden(tmp_path)
    answered(server, CLIENTS - 1)
    raises(BadInput, "3 clients have reported: a secure sum waits for 4", server.count_reports)
    raises(BadInput, "call count_reports first", server.open_round)
    assert (server.stage, secure.asked) == ("asking", [])
    server.receive_report("client 3", vector(3))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(secure, "total", lambda *_: np.zeros(3, np.int64))
        raises(VeilrecError, "shape", server.count_reports)
    assert server._store.tally() is None
    assert server.count_reports()
    server.open_round()
    raises(BadInput, "round 0 is open", server.count_reports)


def test_a_sum_that_cannot_be_had_released_nothing_and_the_next_has_a_number_of_its_own(tmp_path):
    server, secure = hidden(tmp_path, attempts=3)
    secure.begins = False
    question = server.ask()
    assert question is not None and question.invitation == b""
    assert (server.stage, server.report_number) == ("asking", FIRST_REPORT_SUM + 1)
    secure.begins, secure.adds_up = True, False
    answered(server)
    assert not server.count_reports()
    assert server._store.tally() is None
    assert (server.stage, server.came("reports"), server.report_number) == ("asking", (), FIRST_REPORT_SUM + 2)
    server.close()
    with again_in(tmp_path, secure) as again:
        answered(again)
        raises(VeilrecError, "3 times at most: make the federation anew", again.count_reports)
        assert again.stage == "counting"
        secure.adds_up = True
        assert again.count_reports()
        assert secure.opened == [ReportSum(0), ReportSum(1), ReportSum(2)]
        np.testing.assert_array_equal(again._store.tally().counts, wanted())
        again.open_round()
        assert again.close_round().report_bytes == 2 * CLIENTS * len(vector(0)) + 3 * 7


def unlocked(server):
    """Fail if a lock or a transaction of the coordinator is held: another thread looks at it meanwhile."""
    assert not server._store._database.in_transaction
    looked = threading.Event()

    def look():
        server.history()
        server.came("messages")
        looked.set()

    threading.Thread(target=look, daemon=True).start()
    assert looked.wait(5.0)


def watched(secure, name, before):
    work = getattr(secure, name)

    def waiting(*arguments):
        before()
        return work(*arguments)

    setattr(secure, name, waiting)


def test_every_wait_for_others_is_in_its_own_state_without_a_lock_or_a_transaction(tmp_path):
    states = []
    server, secure = hidden(tmp_path)

    def look():
        states.append(server.stage)
        unlocked(server)
        raises(MessageRefused, "no reports are asked for", server.receive_report, "client 0", vector(0))

    watched(secure, "open", look)
    watched(secure, "total", look)
    answered(server)
    assert server.count_reports()
    server.open_round()
    assert server.stage is RoundState.OPEN
    server.close_round()  # void, because nothing came: there is no sum to open
    assert states == [RoundState.REPORTING, RoundState.SUMMING_REPORTS, RoundState.OPENING]
    assert server.stage is RoundState.IDLE


def test_killed_while_a_secure_sum_is_begun_it_begins_the_same_round_again(tmp_path):
    server, secure = hidden(tmp_path)
    answered(server)
    assert server.count_reports()
    server.begin_round()
    assert server.stage is RoundState.OPENING
    cohort, began = server._store.cohort(), secure.open

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(secure, "open", kill)
        raises(Killed, None, server.open_sum)
    server.close()
    assert secure.open == began
    with again_in(tmp_path, secure) as again:
        assert (again.stage, again.round_number) == (RoundState.OPENING, 0)
        assert again.open_round()[1] == cohort
        assert again.stage is RoundState.OPEN
    assert secure.opened[1] == secure.opened[-1]


def test_states_and_numbers_are_those_of_earlier_databases():
    numbers = [*(ReportSum(attempt).number for attempt in range(3)), 0, 1, FIRST_REPORT_SUM - 1]
    numbers += [ComparisonSum(attempt).number for attempt in range(3)]
    assert min(numbers[:3]) >= FIRST_REPORT_SUM  # sums of reports have numbers of their own, and come before all rounds
    order = [place_of_sum(number) for number in numbers]
    assert order == sorted(set(order))
    found = [state.value for state in RoundState]
    assert found == ["between rounds", "asking", "counting", "opening", "open", "closing", "comparing", "judged"]
    assert RunPosition.from_json('{"number": 3, "stage": "closing"}') == RunPosition(3, RoundState.CLOSING)
    steps = [RunPosition(0, state).steps for state in RoundState]
    assert steps == [0, 0, 0, 1, 1, 2, 0, 1]
