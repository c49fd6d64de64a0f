"""Letters between the real coordinator and real clients, by a post that loses, repeats and forges."""

import asyncio
import time
from contextlib import ExitStack

import pytest

from tests.federation.loopback import basis_of, coordinating, known_in, lay_out_in, simulated
from veilrec.audit.contract_subject import same, subjects
from veilrec.federation.client.flower_client import FlowerClient
from veilrec.federation.coordinator.flower_server import Carrier, LinkFilter
from veilrec.federation.coordinator.process import open_coordinator
from veilrec.federation.facts import largest_answer
from veilrec.federation.federation import CLIENTS, FederationTask
from veilrec.federation.finishing import read_end
from veilrec.federation.flower_messages import DECLINED, task_fields
from veilrec.federation.identity import identity_of, sign


class MadeUpPost:
    """Nodes 1, 2, ... are clients of this process; `change` sees every answer on its way."""

    def __init__(self, clients, change):
        self._clients, self._change, self._waiting, self.sent = clients, change, {}, []

    def nodes(self):
        return range(1, len(self._clients) + 1)

    def push(self, letters):
        names = []
        for node, letter, _ in letters:
            names.append(str(len(self.sent)))
            self.sent.append((node, letter))
            self._waiting[names[-1]] = (node, letter)
        return names

    def pull(self, names):
        for name in names:
            if name in self._waiting:
                node, letter = self._waiting.pop(name)
                yield name, self._change(node, self._clients[node - 1].reply(letter))


def unchanged(_node, letter):
    return letter


def federation(folder, rounds=2):
    basis = basis_of(subjects("fedmf")[0], "cohort.size=4", users=6, rounds=rounds)
    lay_out_in(folder, basis)
    return basis


def carry(folder, change, *, is_done=None):
    known, said = known_in(folder), list[str]()
    with ExitStack() as held, coordinating(folder, known) as control:
        places = sorted((folder / CLIENTS).glob("*"))
        clients = [held.enter_context(FlowerClient(place, known, said.append)) for place in places]
        post = MadeUpPost(clients, change)
        carrier = Carrier(control.driver, post, said.append, largest_answer=largest_answer(known))
        until = time.monotonic() + 60.0
        while time.monotonic() < until:
            carrier.turn()
            if (control.driver.queue.over and carrier.everybody_knows) or (is_done is not None and is_done(carrier)):
                break
            time.sleep(0.01)
        else:
            pytest.fail(f"not over after a minute: {said[-5:]}")
    return post


def test_a_lost_answer_is_asked_for_again_and_counts_once(tmp_path, monkeypatch):
    monkeypatch.setattr("veilrec.federation.coordinator.flower_server._AGAIN_SECONDS", 0.05)
    basis = federation(tmp_path / "f")
    wanted = simulated(tmp_path / "f", basis)
    lost = set()

    def lose_the_first(node, letter):
        if "answer" in letter and node not in lost:
            lost.add(node)
            return None
        return letter

    carry(tmp_path / "f", lose_the_first)
    ended = read_end(tmp_path / "f", known_in(tmp_path / "f"))
    assert lost
    assert same(ended.state, dict(wanted.server_state.state()))
    assert [report.messages for report in ended.history] == [4, 4]


def test_a_changed_answer_is_not_taken(tmp_path):
    federation(tmp_path / "f")
    changed = []

    def change(node, letter):
        if "answer" not in letter:
            return letter
        changed.append(node)
        field = ("answer", "signature", "client")[len(changed) % 3]
        value = letter[field]
        other = value[:-1] + b"\x01" + value[-1:] if isinstance(value, bytes) else "d00099"
        return {**letter, field: other}

    carry(tmp_path / "f", change, is_done=lambda _: len(changed) >= 4)
    with open_coordinator(tmp_path / "f", known_in(tmp_path / "f")) as server:
        assert not server.came("messages")


def test_neither_another_key_nor_an_old_hello_makes_a_node_a_client(tmp_path):
    """Whoever saw a client introduce itself cannot do so in its place: the number is another one."""
    federation(tmp_path / "f")
    known, stranger, met = known_in(tmp_path / "f"), identity_of(tmp_path), list[int]()
    place = sorted((tmp_path / "f" / CLIENTS).glob("*"))[0]
    with FlowerClient(place, known, lambda _: None) as client:
        seen = client.reply({"ask": "hello", "nonce": bytes(32)})

    def pretend(node, letter):
        met.append(node)
        client = str(letter["client"])
        forged = sign(stranger, known.federation.id, client, "hello", 0, b"not the nonce")
        return seen if node % 2 else {**letter, "key": stranger.public, "signature": forged}

    post = carry(tmp_path / "f", pretend, is_done=lambda _: len(met) >= 6)
    assert not [letter for _, letter in post.sent if letter["ask"] == "task"]


def test_what_a_client_does_not_understand_is_declined_without_a_word(tmp_path):
    federation(tmp_path / "f")
    place = sorted((tmp_path / "f" / CLIENTS).glob("*"))[0]
    with FlowerClient(place, known_in(tmp_path / "f"), lambda _: None) as client:
        for letter in (
            {},
            {"ask": "run this"},
            {"ask": "hello", "nonce": bytes(33)},
            {"ask": "hello", "nonce": "words"},
            {"ask": "task", "task": "no task", "content": b""},
            {"ask": "task", "task": '{"kind": "sum", "number": 0}', "content": b""},
            task_fields(FederationTask("round", 0, sha256="00", size=1), b"other bytes"),
        ):
            assert client.reply(letter) == DECLINED


PUBLIC_PORT, CAP = 8472, 1000


def asked(path, *, port=PUBLIC_PORT, announced=None, parts=(10,)):
    """What the filter answered, and how many bytes of the body came through it."""
    seen, answers = [], []

    async def link(scope, receive, send):
        while True:
            part = await receive()
            seen.append(len(part.get("body", b"")) if part["type"] == "http.request" else -1)
            if part["type"] == "http.disconnect" or not part.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})

    left = list(parts)

    async def receive():
        size = left.pop(0)
        return {"type": "http.request", "body": bytes(size), "more_body": bool(left)}

    async def send(part):
        answers.append(part)

    headers = [] if announced is None else [(b"content-length", announced)]
    scope = {"type": "http", "path": path, "server": ("127.0.0.1", port), "headers": headers}
    asyncio.run(LinkFilter(link, public_port=PUBLIC_PORT, cap=CAP)(scope, receive, send))
    return answers[0]["status"], seen


def test_the_filter_before_the_link_lets_fleet_routes_and_short_bodies_through():
    assert asked("/v1/fleet/pull-messages", announced=b"10") == (200, [10])
    for path in ("/v1/control/start-run", "/v1/runtime/push", "/", "/v1/fleet", "/V1/FLEET/x"):
        assert asked(path) == (404, [])
    assert asked("/v1/control/start-run", port=8700) == (200, [10])  # the operator, from loopback
    for announced in (b"1001", b"-1", b"1e9", b"9" * 16, b""):
        assert asked("/v1/fleet/push-messages", announced=announced) == (413, [])
    _, seen = asked("/v1/fleet/push-messages", parts=(600, 600, 600))  # one that lies about its length
    assert seen == [600, -1]
