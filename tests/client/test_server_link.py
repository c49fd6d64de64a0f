"""Requests of a client: where they may go, and what of an answer is believed."""

import gzip
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from veilrec.client import recommender
from veilrec.client.recommender import NotConnected, ServerAway, ServerLink
from veilrec.core.errors import BadInput


@pytest.fixture
def serving():
    """A server that gives one reply to everything; its address, and what it was asked."""
    running = []

    def start(reply):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                asked.append((self.path, dict(self.headers), body))
                status, headers, content = reply
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_port}", asked

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


ITEMS = json.dumps({"items": [{"id": "a", "title": "A", "score": 1.5, "category": ""}]}).encode()


def test_a_query_carries_itself_and_nothing_else(serving):
    address, asked = serving((200, {}, ITEMS))
    assert ServerLink(address).best(b"query", 10) == [{"id": "a", "title": "A", "score": 1.5}]
    ((path, headers, body),) = asked
    assert (path, body) == ("/v1/recommend?k=10", b"query")
    allowed = {"host", "user-agent", "accept-encoding", "content-type", "content-length", "connection"}
    assert {name.lower() for name in headers} <= allowed
    assert headers["User-Agent"] == "veilrec"


def test_packed_answers_are_read_and_bombs_are_not(serving, monkeypatch):
    packed = {"Content-Encoding": "gzip"}
    address, _ = serving((200, packed, gzip.compress(ITEMS)))
    assert len(ServerLink(address).best(b"q", 1)) == 1
    monkeypatch.setattr(recommender, "_SOME", 1000)
    bomb, long, cut = gzip.compress(bytes(10_000_000)), bytes(2000), gzip.compress(ITEMS)[:-9]
    for headers, body in ((packed, bomb), ({}, long), (packed, cut)):
        with pytest.raises(ServerAway, match="more than"):
            ServerLink(serving((200, headers, body))[0]).best(b"q", 1)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"items": 3}', b'{"items": [{"id": "a"}]}', b"\xff", b"[" * 100_000])
def test_odd_answers_are_a_server_that_is_away(serving, content):
    address, _ = serving((200, {}, content))
    with pytest.raises(ServerAway):
        ServerLink(address).best(b"q", 1)
    with pytest.raises(ServerAway):
        ServerLink(address).pool()


EVIL = "\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b1m\u202e"


def test_what_a_server_says_does_nothing_to_a_terminal(serving):
    item = {"id": "a", "title": f"{EVIL}A", "score": 1.5}
    (found,) = ServerLink(serving((200, {}, json.dumps({"items": [item]}).encode()))[0]).best(b"q", 1)
    assert found["title"].isprintable() and found["title"].endswith("A")
    for content in (json.dumps({"error": f"{EVIL}\r\nNothing has left"}).encode(), b""):
        with pytest.raises(ServerAway) as away:
            ServerLink(serving((503, {}, content))[0]).best(b"q", 1)
        assert str(away.value).isprintable()
    for score in (b"NaN", b"1e999"):
        with pytest.raises(ServerAway, match="not understood"):
            ServerLink(serving((200, {}, ITEMS.replace(b"1.5", score)))[0]).best(b"q", 1)


def test_a_query_does_not_follow_to_another_place(serving):
    elsewhere, asked = serving((200, {}, ITEMS))
    address, _ = serving((307, {"Location": f"{elsewhere}/v1/recommend"}, b""))
    with pytest.raises(ServerAway, match="307"):
        ServerLink(address).best(b"q", 1)
    assert asked == []


def test_only_a_connection_that_never_was_says_that_nothing_was_sent(serving):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    plain, asked = serving((200, {}, ITEMS))
    for address in (f"http://127.0.0.1:{port}", plain.replace("http:", "https:"), f"{plain}/a b"):
        with pytest.raises(NotConnected, match="cannot be reached"):
            ServerLink(address).best(b"q", 1)
    assert asked == []
    refusing, asked = serving((503, {}, b'{"error": "too many"}'))
    with pytest.raises(ServerAway, match="503.*too many|too many.*503") as refused:
        ServerLink(refusing).best(b"q", 1)
    assert not isinstance(refused.value, NotConnected) and [body for _, _, body in asked] == [b"q"]


@pytest.mark.parametrize("reply", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"])
def test_a_server_that_takes_the_query_and_breaks_off_has_got_it(reply):
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def take():
            there, _ = listening.accept()
            with there:
                while not taken or not taken[-1].endswith(b"query"):
                    taken.append(b"".join([*taken[-1:], there.recv(4096)]))
                there.sendall(reply)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        with pytest.raises(ServerAway) as broken:
            ServerLink(f"http://127.0.0.1:{listening.getsockname()[1]}").best(b"query", 1)
        thread.join(10)
    assert not isinstance(broken.value, NotConnected) and taken[-1].endswith(b"query")


def test_odd_addresses_are_refused_and_plain_text_unless_asked_for():
    told = {
        "not encrypted": "http://news.example.org http://10.0.0.1:80",
        "no address": "ftp://127.0.0.1 127.0.0.1:80 http://me:secret@127.0.0.1 http://127.0.0.1/?q=1",
    }
    for line, addresses in told.items():
        for address in addresses.split():
            with pytest.raises(BadInput, match=line):
                ServerLink(address)
    ServerLink("http://news.example.org", plaintext=True)
    for address in ("https://news.example.org", "http://localhost:1", "http://[::1]:1", "http://127.3.2.1"):
        ServerLink(address)
