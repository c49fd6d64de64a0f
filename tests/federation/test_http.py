"""What a coordinator asks of whom, what it takes in, and what it turns away; nothing of the latter is counted."""

import hashlib
import socket
import sqlite3
import time
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.federation.loopback import coordinating, known_in, link_of, opened, until
from tests.wire.raising import raises
from veilrec.core.errors import BadInput
from veilrec.core.resources import peak_rss_mb
from veilrec.federation import identity
from veilrec.federation.coordinator import process
from veilrec.federation.coordinator.aggregation import TaskQueue
from veilrec.federation.coordinator.registry import Registry
from veilrec.federation.facts import largest_answer
from veilrec.federation.federation import CA, CLIENTS, COORDINATOR, Away, FederationTask, TurnedAway
from veilrec.federation.identity import Invitation, identity_of, read_invitation
from veilrec.federation.link import HttpsLink, client_context
from veilrec.federation.running import live_status
from veilrec.wire.signing import SigningKey


class Open:
    def __init__(self, folder, known, control):
        self.folder, self.known, self.control = folder, known, control
        self.places = sorted((folder / CLIENTS).iterdir())
        for place in self.places:
            opened(place, known).close()
        self.links = [link_of(place, known) for place in self.places]
        for link, place in zip(self.links, self.places, strict=True):
            link.enrol(read_invitation(place))
        self.task = self.asked(0)

    def asked(self, client):
        return self.links[client].poll(10.0)

    def message(self, client):
        with opened(self.places[client], self.known) as made:
            return made.take_part(self.links[client].fetch(self.task), self.task.number)

    @property
    def counted(self):
        return len(self.control.driver.coordinator.came("messages"))


@pytest.fixture
def open_round(made):
    known = known_in(made)
    with coordinating(made, known) as control:
        opening = Open(made, known, control)
        yield opening
        for link in opening.links:
            link.close()


def refused(link, task, content):
    with pytest.raises(TurnedAway) as turned:
        link.send(task, content)
    return turned.value.status


def test_the_same_message_again_has_a_receipt_and_another_one_is_refused(open_round):
    message = open_round.message(0)
    assert open_round.links[0].send(open_round.task, message) == "taken"
    assert [open_round.links[0].send(open_round.task, message) for _ in range(3)] == ["known already"] * 3
    other = open_round.message(1)
    assert refused(open_round.links[0], open_round.task, other) == 409
    assert open_round.counted == 1
    assert open_round.links[0].poll(0.0) is None  # it is asked for nothing more
    assert open_round.links[1].send(open_round.task, message) == "taken"  # counts for the client that signed it
    assert open_round.control.driver.coordinator.came("messages") == tuple(p.name for p in open_round.places[:2])


def test_a_small_content_comes_with_its_task_to_whoever_takes_it_so(open_round, monkeypatch):
    link, task = open_round.links[0], open_round.task
    content = link.fetch(task)
    for largest, body, expected in (
        (task.size, b"0 x with-content", content),
        (task.size, b"0 x", b""),
        (task.size - 1, b"0 x with-content", b""),
    ):
        monkeypatch.setattr(process, "_SENT_ALONG", largest)
        told, _, came = link._signed("/v1/poll", "poll", 0, body, 1 << 20, 0.0).partition(b"\n")
        asked = FederationTask.from_json(told)
        assert asked.sha256 == task.sha256
        assert came == expected


def test_without_the_key_of_a_client_for_this_kind_and_round_nothing_is_taken(open_round):
    link, message, name = open_round.links[0], open_round.message(0), open_round.places[0].name
    known, stranger = open_round.known, SigningKey(Ed25519PrivateKey.generate())
    forged = HttpsLink(known.federation, known.folder / CA, name, stranger, largest_content=1 << 20)
    assert refused(forged, open_round.task, message) == 401
    for path in ("/v1/poll", "/v1/content", "/v1/answer"):
        raises(TurnedAway, None, forged._request, path, b"x", {"X-Veilrec-Number": "0"}, 1 << 16, 0.0)
    headers = {"X-Veilrec-Client": name, "X-Veilrec-Kind": "round", "X-Veilrec-Number": "0"}
    for kind, number in (("report", 0), ("round", 1)):
        signed = identity.sign(identity_of(open_round.places[0]), known.federation.id, name, kind, number, message)
        with pytest.raises(TurnedAway) as turned:
            link._request("/v1/answer", message, headers | {"X-Veilrec-Signature": signed.hex()}, 1 << 16, 0.0)
        assert turned.value.status == 401
    with pytest.raises((TurnedAway, Away)):  # beyond any message: refused before it is read
        link.send(open_round.task, bytes(largest_answer(known) + 1))
    assert open_round.counted == 0
    found = live_status(open_round.folder, known.federation)
    assert found["clients"]["enrolled"] == 3
    (open_round.folder / COORDINATOR / "operator.token").write_text("0" * 64)  # the status is for the operator
    assert live_status(open_round.folder, known.federation) is None


def test_another_round_and_garbage_are_counted_by_reason_and_a_revoked_client_is_turned_away(open_round):
    link, message = open_round.links[0], open_round.message(0)
    for task, content in (
        (FederationTask("round", 5), message),
        (FederationTask("report", 0), message),
        (open_round.task, b"garbage"),
    ):
        assert refused(link, task, content) == 409
    assert open_round.control.driver.coordinator.refused["bad bytes"] == 1
    assert open_round.counted == 0
    with Registry(open_round.folder / COORDINATOR) as registry:
        registry.revoke(open_round.places[0].name)
    assert refused(link, open_round.task, message) == 403
    raises(TurnedAway, "revoked", open_round.links[0].enrol, read_invitation(open_round.places[0]))


def _begun(open_round, headers, count, path="/v1/answer"):
    """Connections that have told the head of a request and one byte of its body."""
    parts, context = urlsplit(open_round.known.federation.address), client_context(open_round.known.folder / CA)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: 100\r\n\r\nx"
    opened = []
    for _ in range(count):
        plain = socket.create_connection((parts.hostname, parts.port), timeout=20)
        opened.append(context.wrap_socket(plain, server_hostname=parts.hostname))
        opened[-1].sendall(head.encode())
    return opened


def _statuses(opened):
    return [int(each.recv(1 << 12).split(b" ")[1]) for each in opened]


def test_strangers_hold_no_place_for_a_body_and_use_up_nobodys_share(open_round, monkeypatch):
    link, place = open_round.links[0], open_round.places[0]
    message = open_round.message(0)
    claimed = {"X-Veilrec-Client": place.name, "X-Veilrec-Kind": "round", "X-Veilrec-Number": "0"}
    claimed |= {"X-Veilrec-Digest": "0" * 64, "X-Veilrec-Signature": "0" * 128}
    opened = _begun(open_round, claimed, 24)
    assert link.send(open_round.task, message) == "taken"
    assert _statuses(opened) == [401] * 24  # without the rest of their bodies
    routes = []
    monkeypatch.setattr(process.RateLimit, "wait", lambda _, who, now: routes.append(who) or 0)
    for path in ("/v1/poll", "/v1/content", "/v1/answer"):
        assert _statuses(_begun(open_round, claimed, 1, path)) == [401]
    assert place.name not in routes  # its share is as it was
    link.poll(0.0)
    assert place.name in routes


@pytest.fixture
def begun(monkeypatch):
    """Answers whose bodies are being read, as they begin."""
    found, made = [], process._Body

    def keep(*arguments):
        found.append(made(*arguments))
        return found[-1]

    monkeypatch.setattr(process, "_Body", keep)
    return found


def test_a_client_sends_one_answer_at_a_time_and_what_it_has_signed(open_round, begun):
    link, place, known = open_round.links[0], open_round.places[0], open_round.known
    body = b"x" * 100
    for sent, status in ((body, 409), (b"y" * 100, 401)):  # 409: no update, and signed
        digest = hashlib.sha256(body).hexdigest()
        signed = identity.sign(identity_of(place), known.federation.id, place.name, "round", 0, body)
        headers = {"X-Veilrec-Client": place.name, "X-Veilrec-Kind": "round", "X-Veilrec-Number": "0"}
        headers |= {"X-Veilrec-Digest": digest, "X-Veilrec-Signature": signed.hex()}
        begun.clear()
        (opened,) = _begun(open_round, headers, 1)
        until(lambda: begun)
        with pytest.raises(Away, match="503"):
            link.send(open_round.task, b"garbage")
        opened.sendall(sent[1:] if sent == body else sent[:-1])
        assert _statuses([opened]) == [status]
    assert link.send(open_round.task, open_round.message(0)) == "taken"


def test_clients_that_only_hold_a_place_for_an_answer_make_room_for_others(open_round, begun, monkeypatch):
    monkeypatch.setattr(process, "_MAX_BODIES", 2)
    monkeypatch.setattr(process, "_GRACE_SECONDS", 600.0)
    link, body, held = open_round.links[0], b"x" * 100, []
    message = open_round.message(0)
    for place in open_round.places[1:]:
        digest, key = hashlib.sha256(body).hexdigest(), identity_of(place)
        signed = identity.sign(key, open_round.known.federation.id, place.name, "round", 0, body)
        headers = {"X-Veilrec-Client": place.name, "X-Veilrec-Kind": "round", "X-Veilrec-Number": "0"}
        signed_headers = headers | {"X-Veilrec-Digest": digest, "X-Veilrec-Signature": signed.hex()}
        held.extend(_begun(open_round, signed_headers, 1))
        until(lambda: len(begun) == len(held))
    with pytest.raises(Away, match="503"):
        link.send(open_round.task, b"garbage")
    monkeypatch.setattr(process, "_GRACE_SECONDS", 0.0)
    assert link.send(open_round.task, message) == "taken"
    assert _statuses(held[:1]) == [503]
    held[1].sendall(body[1:])  # nobody else waits: it is read to its end
    assert _statuses(held[1:]) == [409]


def test_an_enrolment_without_end_is_hung_up_on(open_round):
    before = peak_rss_mb()
    parts, context = urlsplit(open_round.known.federation.address), client_context(open_round.known.folder / CA)
    with (
        socket.create_connection((parts.hostname, parts.port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=parts.hostname) as opened,
        pytest.raises(OSError),
    ):
        opened.sendall(b"POST /v1/enrol HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
        end = time.monotonic() + 15.0  # a goodbye has 5 seconds, in which what comes is thrown away
        while time.monotonic() < end:
            opened.sendall(b"x: y\r\n" * 20_000)
    assert peak_rss_mb() - before < 50
    assert open_round.asked(0).kind == "round"


def test_an_invitation_is_for_one_key(open_round):
    known, place = open_round.known, open_round.places[0]
    invitation = read_invitation(place)
    stranger = SigningKey(Ed25519PrivateKey.generate())
    other = HttpsLink(known.federation, known.folder / CA, place.name, stranger, largest_content=1 << 20)
    raises(TurnedAway, "used already", other.enrol, invitation)
    raises(TurnedAway, "not one of this federation", other.enrol, Invitation.new(place.name))
    assert open_round.links[0].enrol(invitation) == "trainer"  # the same key again: the same answer


def test_too_many_requests_of_a_client_wait(made):
    known = known_in(made)
    with coordinating(made, known, rate=400.0):
        place = sorted((made / CLIENTS).iterdir())[0]
        link = link_of(place, known)
        link.enrol(read_invitation(place))
        with pytest.raises(Away, match="429"):
            for _ in range(200):
                link.poll(0.0)


def test_strangers_behind_the_same_address_use_up_nothing_of_a_client(made):
    known = known_in(made)
    with coordinating(made, known, rate=2.0):
        place = sorted((made / CLIENTS).iterdir())[0]
        link, stranger = link_of(place, known), SigningKey(Ed25519PrivateKey.generate())
        link.enrol(read_invitation(place))
        forged = HttpsLink(known.federation, known.folder / CA, place.name, stranger, largest_content=1 << 20)
        with pytest.raises(Away, match="429"):
            for _ in range(20):
                raises(TurnedAway, "not signed", forged.poll, 0.0)
        assert [link.poll(0.0) for _ in range(10)] == [None] * 10  # nothing is asked yet; in well under a second
        raises(Away, "429", forged.poll, 0.0)
        with Registry(made / COORDINATOR) as registry:
            registry.revoke(place.name)
        raises(Away, "429", link.poll, 0.0)


@pytest.mark.parametrize("harm", ["removed", "emptied", "of nobody"])
def test_a_coordinator_without_its_list_of_clients_asks_and_turns_away_nobody(made, harm):
    path = made / COORDINATOR / "registry.sqlite"
    if harm == "of nobody":
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("DELETE FROM places")
    else:
        for each in path.parent.glob(f"{path.name}*"):
            each.unlink()
        if harm == "emptied":
            path.touch()
    with pytest.raises(BadInput, match="bring back the one that init wrote"), coordinating(made, known_in(made)):
        pass


def test_everybody_gets_what_is_for_all_and_behind_it_their_own():
    queue = TaskQueue()
    queue.publish("share", 3, ["a", "b"], content=b"all", own={"a": b"first"}, seconds=10.0)
    for name, whole in (("a", b"allfirst"), ("b", b"all")):
        task = queue.task_for(name)
        assert (task.kind, task.number, task.size) == ("share", 3, len(whole))
        assert task.sha256 == hashlib.sha256(whole).hexdigest()
        assert queue.content(name, task.sha256) == whole
    others = hashlib.sha256(b"allfirst").hexdigest()
    assert queue.content("b", others) is None
    assert queue.content("c", others) is None
    queue.withdraw()
    assert queue.task_for("a") is None
    assert queue.content("a", others) is None


def test_an_answer_that_is_noted_late_does_not_count_for_the_next_task():
    queue = TaskQueue()
    queue.publish("advertise", 0, ["a"], seconds=10.0)
    queue.publish("share", 0, ["a"], seconds=10.0)
    queue.note("a", "advertise", 0)
    assert queue.task_for("a") is not None
    queue.note("a", "share", 0)
    assert queue.task_for("a") is None
    queue.publish("report", 0, ["a"], seconds=10.0)  # a task without content
    task = queue.task_for("a")
    assert (task.sha256, task.size, queue.content("a", "")) == ("", 0, None)
