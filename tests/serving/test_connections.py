"""What one connection, or one address, can make a server hold; and bytes that nobody should send, at random."""

import asyncio
import random
import socket
import ssl
import time
from contextlib import ExitStack, suppress

import pytest

from tests.serving.processes import running
from tests.serving.test_running import _opened
from tests.serving.toys import write_release
from veilrec.federation.identity import make_certificates
from veilrec.serving.connections import Places

MB = 1 << 20
EACH = 20
CHUNKED = b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("connections")
    options = ("--rate", "0", "--connections", str(EACH))
    with running(write_release(folder / "release", items=5000, dim=40), folder / "log", *options) as opened:
        yield opened
        assert opened.process.poll() is None
        assert 500 not in [line.get("status") for line in opened.log()]
        assert "Traceback" not in opened.log_file.read_text()


def from_address(server, address, path="/readyz", timeout=10):
    """The status that somebody else gets."""
    with socket.create_connection(server.place, timeout=timeout, source_address=(address, 0)) as opened:
        opened.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
        return int(opened.recv(1 << 16).split(b" ")[1])


def flood(server, start, more, *, most=48 * MB):
    """Send without end; how many bytes went before the server hung up."""
    sent = 0
    with socket.create_connection(server.place, timeout=20) as opened, suppress(OSError):
        opened.sendall(start)
        while sent < most:
            opened.sendall(more)
            sent += len(more)
    return sent


def test_what_is_no_body_is_bounded_wherever_it_comes(server):
    before = server.memory()
    endless = {
        "trailers": (CHUNKED + b"0\r\n", b"".join(b"x%d: y\r\n" % number for number in range(2000))),
        "one trailer": (CHUNKED + b"0\r\nx: ", b"y" * 20_000),
        "trailers after a body": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"x: y\r\n" * 3000),
        "an extension of a chunk": (CHUNKED + b"1;x=", b"y" * 20_000),
        "the size of a chunk": (CHUNKED, b"0" * 20_000),
        "headers behind a request": (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n", b"x: y\r\n" * 3000),
        "requests": (b"", b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n" * 5000),
    }
    for name, (start, more) in endless.items():
        assert flood(server, start, more) < 40 * MB, name  # what the sockets of both sides take is in it
        assert server.memory() - before < 20 * MB, name
    assert server.ask("POST", "/v1/recommend", {"interest": 1})[0] == 200


def test_a_trailer_is_no_header_of_the_request():
    async def go():
        connection, line = await _opened()
        connection.data_received(CHUNKED + b"2\r\n{}\r\n0\r\n")
        scope = connection.cycle.scope
        connection.data_received(b"X-Veilrec-Client: d00001\r\nAuthorization: Bearer x\r\n\r\n")
        await asyncio.sleep(0.01)
        assert [name for name, _ in scope["headers"]] == [b"host", b"transfer-encoding"]
        assert line.sent.startswith(b"HTTP/1.1 200")
        for _ in range(40):  # those that wait behind a request that is not answered yet
            if not line.closed:
                connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert line.closed and len(connection.pipeline) <= 16

    asyncio.run(go())


def test_whoever_takes_nothing_of_an_answer_is_hung_up_on():
    async def go(rate):
        connection, line = await _opened()
        connection.began = None
        connection.transport.written, now = 1_000_000, connection.loop.time()
        line.get_write_buffer_size = lambda: max(0, 900_000 - int(rate * (clock - now)))
        for clock in (now + second for second in range(45)):
            connection.close_if_slow(clock)
        return line.closed

    assert asyncio.run(go(1.0))
    assert asyncio.run(go(1000.0))
    assert not asyncio.run(go(2000.0))
    assert not asyncio.run(go(1e6))


def test_places_are_counted_for_each_address_and_given_back():
    places = Places(5, 2)
    assert [places.take(who) for who in "aaabbcd"] == [True, True, False, True, True, True, False]
    places.leave("a")
    assert places.take("d") and not places.take("a")
    for who in "abbcd":
        places.leave(who)
    assert (places.total, places.refused, len(places._taken)) == (0, 3, 0)
    assert all(Places(5, 0).take("a") for _ in range(5))


def test_one_address_that_reads_slowly_takes_no_place_of_another(server):
    server.wait_until("/v1/pool")
    with ExitStack() as stack:
        for _ in range(3 * EACH):
            opened = stack.enter_context(socket.socket())
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            opened.connect(server.place)
            opened.sendall(b"GET /v1/pool HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.5)
        with pytest.raises((OSError, IndexError)):
            from_address(server, "127.0.0.1")
        assert [from_address(server, "127.0.0.2") for _ in range(5)] == [200] * 5
    time.sleep(0.5)
    assert from_address(server, "127.0.0.1") == 200  # its places are free again
    assert any("no place for" in line.get("event", "") for line in server.log())


def test_whoever_says_nothing_in_a_handshake_takes_a_place_of_its_own(tmp_path):
    authority, certificate, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    make_certificates(authority, certificate, key, hosts=("localhost",), federation="0" * 32)
    options = ("--host", "localhost", "--tls-cert", str(certificate), "--tls-key", str(key), "--connections", "4")
    context = ssl.create_default_context(cafile=authority)

    def hello(source):
        with (
            socket.create_connection(server.place, timeout=20, source_address=(source, 0)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as opened,
        ):
            opened.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            return opened.recv(100).startswith(b"HTTP/1.1 200")

    with running(write_release(tmp_path / "release"), tmp_path / "log", *options) as server, ExitStack() as stack:
        assert all(hello("127.0.0.1") for _ in range(10))
        silent = [stack.enter_context(socket.create_connection(server.place)) for _ in range(4)]
        silent[0].sendall(b"\x16\x03\x01")
        time.sleep(0.2)
        with pytest.raises(OSError):
            hello("127.0.0.1")
        assert hello("127.0.0.2")
        time.sleep(11)  # a handshake has 10 seconds
        assert hello("127.0.0.1")
        assert "Traceback" not in (tmp_path / "log").read_text()


PIECES = (
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    CHUNKED,
    b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v1/recommend HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Content-Length: 3\r\n",
    b"Expect: 100-continue\r\n",
    b"Upgrade: websocket\r\nConnection: upgrade\r\n",
    b"2\r\n{}\r\n",
    b"ffffffffffffffff\r\n",
    b"5;name=value\r\n",
    b"0\r\nTrailer: x\r\n\r\n",
    b"0\r\n\r\n",
    b"\r\n",
    b"X: " + b"a" * 5000 + b"\r\n",
    b"HTTP/1.0\r\n",
    b"\x00\xff\x16\x03\x01",
    b" ",
)


def test_bytes_at_random_leave_a_server_that_answers(server):
    draws, before = random.Random(26), server.memory()  # noqa: S311
    for number in range(250):
        content = b"".join(draws.choices(PIECES, k=draws.randint(1, 12)))
        for _ in range(draws.choice((0, 0, 1, 5))):
            at = draws.randrange(len(content) + 1)
            content = content[:at] + draws.randbytes(draws.randint(0, 8)) + content[at + draws.randint(0, 8) :]
        with socket.create_connection(server.place, timeout=20) as opened, suppress(OSError):
            for start in range(0, len(content), step := draws.choice((1 << 16, 1 << 16, 700))):
                opened.sendall(content[start : start + step])
            how = draws.randrange(3)
            if how:
                opened.shutdown(socket.SHUT_WR)  # half closed: answers may still come
            if how == 2:
                opened.settimeout(0.05)
                opened.recv(1 << 16)
        if number % 50 == 0:
            assert server.ask("GET", "/healthz")[0] == 200
    assert server.ask("POST", "/v1/recommend", {"interest": 1})[0] == 200
    assert server.memory() - before < 20 * MB
