"""The process: addresses, signals, TLS, and how it ends."""

import asyncio
import json
import signal
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
import uvicorn
from uvicorn.server import ServerState

from tests.serving.processes import refused, running
from tests.serving.toys import KEY, TOKEN, write_release
from veilrec.core.errors import BadInput
from veilrec.federation.identity import make_certificates
from veilrec.serving.app import read_token
from veilrec.serving.connections import Connection
from veilrec.serving.process import ListenAddress


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return write_release(tmp_path_factory.mktemp("served") / "release", protected=False)


def test_it_serves_takes_a_new_version_and_ends(tmp_path):
    folder = write_release(tmp_path / "release", protected=False)
    with running(folder, tmp_path / "log", "--trust", KEY.public.hex()) as server:
        text = (tmp_path / "log").read_text()
        assert f"Serving toy version 1 at {server.address}" in text
        assert "UNPROTECTED: it is a toy" in text
        assert server.ask("POST", "/v1/recommend", {"interest": 1})[0] == 200
        write_release(folder, version=2)
        asked = threading.Event()
        versions, errors = set(), []

        def go_on_asking():
            while not asked.is_set():
                status, _, body = server.ask("POST", "/v1/recommend", {"interest": 1})
                versions.add(json.loads(body)["release"]["version"]) if status == 200 else errors.append(status)

        asker = threading.Thread(target=go_on_asking)
        asker.start()
        server.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 30
        while 2 not in versions and time.monotonic() < end:
            time.sleep(0.05)
        asked.set()
        asker.join()
        assert 2 in versions and errors == []
        assert server.stop() == 0


def test_what_runs_is_finished_and_new_ones_are_refused(release, tmp_path):
    with running(release, tmp_path / "log") as server:
        body = b'{"interest": 1}'
        with socket.create_connection(server.place, timeout=20) as opened:
            head = b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            opened.sendall(head + body[:4])
            time.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.6)
            with pytest.raises(OSError):
                socket.create_connection(server.place, timeout=5).close()
            opened.sendall(body[4:])
            assert server.rest(opened).startswith(b"HTTP/1.1 200")
        assert server.process.wait(timeout=30) == 0


def test_what_cannot_be_served_is_one_line(release, tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    cases = [
        ((str(release), "--port", str(taken.getsockname()[1])), "in use"),
        ((str(tmp_path / "nothing"),), "no release"),
        ((str(release), "--host", "0.0.0.0"), "--insecure-plaintext"),  # noqa: S104
        ((str(release), "--admin-token-file", str(token)), "chmod 600"),
        ((str(release), "--trust", "00" * 32), "trusted key"),
        ((str(release), "--tls-cert", str(token)), "both"),
    ]
    for options, part in cases:
        code, said = refused(*(options if "--port" in options else (*options, "--port", "0")))
        *warnings, line = said.splitlines()
        assert (code, part in line) == (2, True), said
        assert len(warnings) == (part == "in use"), said  # the release is unprotected
    taken.close()


def test_addresses():
    for host in ("127.0.0.1", "::1", "localhost", "127.3.2.1"):
        ListenAddress(host).check()
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org", ""):  # noqa: S104
        with pytest.raises(BadInput, match="insecure-plaintext"):
            ListenAddress(host).check()
        ListenAddress(host, insecure=True).check()
    with pytest.raises(BadInput, match="no address"):
        ListenAddress("no such host.invalid").listen()
    with pytest.raises(BadInput, match="no certificate"):
        ListenAddress(certificate=Path(__file__), key=Path(__file__)).tls()
    try:
        opened = ListenAddress("::1", 0).listen()
    except BadInput:
        pytest.skip("this machine has no IPv6")
    assert ListenAddress("::1", 0).url(opened).startswith("http://[::1]:")
    opened.close()


def test_a_token_is_long_enough_and_nobody_elses(tmp_path):
    path = tmp_path / "token"
    with pytest.raises(BadInput, match="cannot be read"):
        read_token(path)
    for content, mode, part in (
        (b"0123456789abcdef", 0o640, "chmod 600"),
        (b"0123456789abcdef", 0o604, "chmod 600"),
        (b"0123456789abcde\n", 0o600, "too short"),
        (b"0123456789 abcdef", 0o600, "odd letters"),
        (b"", 0o600, "too short"),
    ):
        path.write_bytes(content)
        path.chmod(mode)
        with pytest.raises(BadInput, match=part):
            read_token(path)
    path.write_bytes(b"0123456789abcdef\n")
    assert read_token(path) == b"0123456789abcdef"


def test_tls(release, tmp_path):
    authority, certificate, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    make_certificates(authority, certificate, key, hosts=("localhost",), federation="0" * 32)
    options = ("--host", "localhost", "--tls-cert", str(certificate), "--tls-key", str(key))
    with running(release, tmp_path / "log", *options) as server:
        assert server.address.startswith("https://localhost:")
        context = ssl.create_default_context(cafile=authority)
        with (
            socket.create_connection(server.place, timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as opened,
        ):
            assert opened.version() in ("TLSv1.2", "TLSv1.3")
            opened.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert server.rest(opened).startswith(b"HTTP/1.1 200")
        assert server.stop(signal.SIGINT) == 0  # Ctrl-C is an end like any other
        assert "Traceback" not in (tmp_path / "log").read_text()


class Line(asyncio.Transport):
    """A transport that remembers."""

    def __init__(self):
        super().__init__()
        self.sent, self.closed, self.writes = b"", False, 0

    def write(self, data):
        self.sent += data
        self.writes += 1

    def close(self):
        self.closed = True

    abort = close

    def is_closing(self):
        return self.closed

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        pass

    resume_reading = pause_reading


async def _app(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def _opened():
    config = uvicorn.Config(_app, log_config=None, ws="none", access_log=False)
    config.load()
    connection = Connection(config=config, server_state=ServerState(), app_state={})
    line = Line()
    connection.connection_made(line)
    return connection, line


def test_a_connection_is_hung_up_on_where_its_request_does_not_end_or_its_headers_do_not():
    async def go():
        for content in (b"", b"GET / HTTP/1.1\r\nHost", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n123"):
            connection, line = await _opened()
            if content:
                connection.data_received(content)
            now = connection.loop.time()
            connection.close_if_slow(now + 10)
            assert not line.closed
            connection.close_if_slow(now + 30)
            assert line.closed
            connection.connection_lost(None)
        connection, line = await _opened()
        for _ in range(3):
            connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.sleep(0.01)
        assert line.sent.count(b"200 OK") == 3
        assert line.writes == 3  # head and body at once
        connection.close_if_slow(connection.loop.time() + 1000)
        assert not line.closed  # its requests have ended
        connection.data_received(b"GET / HTTP/1.1\r\n")
        line.sent = b""
        for _ in range(100):  # headers that come in drops have a limit too
            if not line.closed:
                connection.data_received(b"X: " + b"a" * 500 + b"\r\n")
        assert line.sent.startswith(b"HTTP/1.1 400")
        connection.connection_lost(None)

    asyncio.run(go())
