"""A client's way to its coordinator: answers that break off, servers that say odd things, and a client that goes on."""

import hashlib
import json
import ssl
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.wire.raising import raises
from veilrec.federation import identity
from veilrec.federation.federation import Away, BadTask, Federation, FederationTask, TurnedAway
from veilrec.federation.link import HttpsLink, live
from veilrec.wire.signing import SigningKey


class Server(HTTPServer):
    said: list[tuple[int, int, bytes]]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self):
        status, length, body = self.server.said.pop(0)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def saying(tmp_path):
    identity.make_certificates(tmp_path / "ca", tmp_path / "cert", tmp_path / "key", hosts=(), federation="f")
    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    named = dict.fromkeys(("method", "dataset", "protocol", "plan", "facts"), "")
    counted = dict.fromkeys(("rounds", "seed", "clients", "validators"), 1)
    address = f"https://127.0.0.1:{server.server_address[1]}"
    made = Federation(id="f", address=address, config={}, unprotected=True, budget={}, guarantee={}, **named, **counted)
    key = SigningKey(Ed25519PrivateKey.generate())
    yield server, HttpsLink(made, tmp_path / "ca", "d", key, largest_content=100)
    server.shutdown()


TASK = json.dumps(asdict(FederationTask("round", 3, sha256="00", size=5))).encode()


def test_odd_answers_are_told_from_refusals(saying):
    server, link = saying
    server.said = [(200, len(TASK), TASK[:10]), (200, len(TASK), TASK)]
    raises(Away, "IncompleteRead", link.poll, 0.0)  # an answer that breaks off is none
    assert link.poll(0.0) == FederationTask("round", 3, sha256="00", size=5)
    for status, body, error in (
        (200, b"[1]", BadTask),
        (200, b'{"kind": "dance", "number": 1}', BadTask),
        (200, b'{"kind": "round", "number": -1}', BadTask),
        (503, b"{}", Away),
        (429, b"{}", Away),
        (403, b'{"error": "no"}', TurnedAway),
        (200, b" " * (1 << 17), BadTask),
    ):
        server.said = [(status, len(body), body)]
        raises(error, None, link.poll, 0.0)


def test_a_content_is_the_one_that_its_task_names_and_no_larger_than_the_plan(saying):
    server, link = saying
    server.said = [(200, 5, b"other")]
    raises(Away, "not what was announced", link.fetch, FederationTask("round", 3, sha256="00", size=5))
    raises(BadTask, "at most 100", link.fetch, FederationTask("round", 3, sha256="00", size=101))
    assert link.fetch(FederationTask("report", 3)) == b""
    content = b"two\nlines"  # a small one comes with its task
    task = FederationTask("round", 3, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    told = json.dumps(asdict(task)).encode()
    server.said = [(200, len(told) + 10, told + b"\n" + content)]
    assert link.poll(0.0) == task
    assert link.fetch(task) == content
    assert server.said == []
    other = told + b"\n" + content[::-1]
    server.said = [(200, len(other), other), (200, len(content), content)]
    assert link.poll(0.0) == task
    assert link.fetch(task) == content  # asked for by itself
    assert server.said == []


def test_a_client_goes_on_after_whatever_is_said(saying):
    server, link = saying
    over = json.dumps(asdict(FederationTask("over", 0))).encode()
    server.said = [(200, 3, b"[1]"), (200, 20, b"{"), (503, 2, b"{}"), (200, 4, b"null"), (200, len(over), over)]
    said = []
    assert live(link, None, said.append, threading.Event(), lambda: None)
    assert len(said) == 4
    assert server.said == []
