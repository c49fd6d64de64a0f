"""A client's way to its coordinator: answers that break off, servers that say odd things, and a client that goes on."""

import hashlib
import json
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.clock import Clock
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
    server.context = context
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


OVER = json.dumps(asdict(FederationTask("over", 0))).encode()


def until(done, seconds=60.0):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_client_outlives_a_wrong_certificate_and_says_once_what_is_wrong(saying, tmp_path, quick):
    """For some seconds somebody else answers, or the coordinator has a certificate of another authority."""
    server, link = saying
    other = tmp_path / "other"
    other.mkdir()
    identity.make_certificates(other / "ca", other / "cert", other / "key", hosts=(), federation="g")
    server.context.load_cert_chain(other / "cert", other / "key")
    server.said = [(200, len(OVER), OVER)]
    said, tried, ended = [], [], []

    def enrol():
        tried.append(None)
        link.poll(0.0) if len(tried) < 4 else None

    thread = threading.Thread(target=lambda: ended.append(live(link, None, said.append, threading.Event(), enrol)))
    thread.start()
    until(lambda: len(tried) > 2)
    assert thread.is_alive() and len(said) == 1 and "check its certificate, ca.pem here, and the clock" in said[0]
    server.context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    thread.join(60.0)
    assert ended == [True] and said[1:] == ["the federation is over"]


def test_a_client_that_its_coordinator_has_forgotten_enrols_again_and_once(saying, quick):
    server, link = saying
    enrolled, said, unknown = [], [], (401, 2, b"{}")
    server.said = [unknown, (200, 4, b"null"), unknown, (200, len(OVER), OVER)]
    assert live(link, None, said.append, threading.Event(), lambda: enrolled.append(None))
    assert len(enrolled) == 3 and len(said) == 3  # twice forgotten, by an older list of clients; then it was over
    server.said = [unknown, unknown]
    with pytest.raises(TurnedAway):  # not by its list: by the signature, say
        live(link, None, said.append, threading.Event(), lambda: None)


_CLIENT = """
import sys, threading
from pathlib import Path
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from veilrec.federation.federation import Federation
from veilrec.federation.link import HttpsLink, live
from veilrec.wire.signing import SigningKey

names = dict.fromkeys(("method", "dataset", "protocol", "plan", "facts"), "")
counts = dict.fromkeys(("rounds", "seed", "clients", "validators"), 1)
made = Federation(id="f", address=sys.argv[1], config={}, unprotected=True, budget={}, guarantee={}, **names, **counts)
link = HttpsLink(made, Path(sys.argv[2]), "d", SigningKey(Ed25519PrivateKey.generate()), largest_content=100)
say = lambda words: print(words, flush=True)
sys.exit(0 if live(link, None, say, threading.Event(), lambda: None) else 1)
"""


@pytest.mark.parametrize("jump", [-330_000_000, 1_200_000_000], ids=["back to 2016", "on to 2064"])
def test_a_client_outlives_a_clock_that_jumps_out_of_the_certificates_years(saying, tmp_path, jump):
    server, link = saying
    clock = Clock(tmp_path / "clock")
    clock.turn(jump)
    server.said = [(200, len(OVER), OVER)]
    command = [sys.executable, "-c", _CLIENT, link._federation.address, str(tmp_path / "ca")]
    log = tmp_path / "log"
    with log.open("w") as out, subprocess.Popen(command, env=clock.environment, stdout=out, stderr=out) as client:
        until(lambda: log.read_text().count("\n") == 1 or client.poll() is not None)
        time.sleep(3.0)  # it tries again, and says nothing
        assert client.poll() is None, log.read_text()
        assert "the clock" in log.read_text() and log.read_text().count("\n") == 1
        clock.turn(0)
        assert client.wait(60.0) == 0
    assert log.read_text().endswith("the federation is over\n")
