"""What nobody should send, over real sockets: refused soon, and without memory."""

import socket
import time

import pytest

from tests.serving.processes import running
from tests.serving.toys import TOKEN, write_release

SOON = 2.0  # seconds: a sanity bound for a busy machine; the promise is 50 ms, and the median is tested
MB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory, token_file):
    folder = tmp_path_factory.mktemp("hostile")
    options = ("--rate", "0", "--admin-token-file", token_file)
    with running(write_release(folder / "release"), folder / "log", *options) as opened:
        yield opened
        assert opened.process.poll() is None  # it has survived all of it
        statuses = [line.get("status", 0) for line in opened.log()]
        assert 500 not in statuses


def _post(body, head=b""):
    start = b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return start + head + b"Content-Length: %d\r\n\r\n" % len(body) + body


BODIES = (
    b'{"alpha": [NaN, 0.5, 0.5]}',
    b'{"alpha": [' + b"0.1," * 15000 + b"0.1]}",
    b'{"alpha": ' + b"[" * 60000,
    b'{"alpha":' * 6000,
    b'{"region": "\xc3\x28\xff"}',
    b'{"k": ' + b"9" * 60000 + b"}",
    b"\x00" * 60000,
)
NO_HTTP = (
    b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
    b"GET / HTTP/9.9\r\n\r\n",
    b"NOTHING\r\n\r\n",
    b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}   ",
    b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
)


def test_odd_bodies_are_refused_soon_and_what_is_not_http(server):
    for body in BODIES:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            assert server.send(_post(body)).startswith(b"HTTP/1.1 400")
            times.append(time.perf_counter() - start)
        assert sorted(times)[2] < SOON
    for content in NO_HTTP:
        answer = server.send(content)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400"), answer[:80]
    for path in ("/web/../../../etc/passwd", "/web/%2e%2e/%2e%2e/etc/passwd", "/v1/release/files/../manifest.sig"):
        assert server.ask("GET", path)[0] == 404


def test_forty_megabytes_are_not_read(server):
    before = server.memory()
    large = b"[" * (40 * MB)
    chunks = b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" * 1
    chunked = chunks + (b"x" * 65536 + b"\r\n10000\r\n") * 600
    secret = b"Authorization: Bearer %s\r\n" % TOKEN.encode()
    put = b"PUT /v1/items/x HTTP/1.1\r\nHost: x\r\n" + secret + b"Content-Length: %d\r\n\r\n" % len(large) + large
    for content in (_post(large), chunked, put):
        start = time.perf_counter()
        answer = server.send(content)
        assert answer.startswith(b"HTTP/1.1 413"), answer[:100]
        assert b"connection: close" in answer.lower()
        assert time.perf_counter() - start < SOON
    assert server.memory() - before < 30 * MB


def test_large_headers_are_refused(server):
    before = server.memory()
    lines = [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Large: " + b"a" * (40 * MB),
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X-Many: a\r\n" * 3000 + b"\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 200 + b"\r\n",
        b"GET /" + b"a" * (10 * MB) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
    for content in lines:
        assert server.send(content).startswith(b"HTTP/1.1 400")
    assert server.memory() - before < 30 * MB


def test_many_half_open_connections_stop_nobody(server):
    opened = []
    try:
        for _ in range(200):
            each = socket.create_connection(server.place, timeout=20)
            each.sendall(b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            opened.append(each)
        assert server.ask("POST", "/v1/recommend", {"interest": 1})[0] == 200
    finally:
        for each in opened:
            each.close()
    assert server.ask("GET", "/healthz")[0] == 200
