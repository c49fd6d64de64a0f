"""One connection: what does not end is hung up on."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from veilrec.serving.process import Connection


class Line(asyncio.Transport):
    """A transport that remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.closed, self.writes = b"", False, 0

    def write(self, data: Any) -> None:
        self.sent += data
        self.writes += 1

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def _app(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def _opened() -> tuple[Connection, Line]:
    config = uvicorn.Config(_app, log_config=None, ws="none", access_log=False)
    config.load()
    connection = Connection(config=config, server_state=ServerState(), app_state={})
    line = Line()
    connection.connection_made(line)
    return connection, line


def test_a_request_that_does_not_end_is_hung_up_on() -> None:
    async def go() -> list[bool]:
        closed = []
        for content in (b"", b"GET / HTTP/1.1\r\nHost", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n123"):
            connection, line = await _opened()
            if content:
                connection.data_received(content)
            now = connection.loop.time()
            connection.close_if_slow(now + 10)
            assert not line.closed
            connection.close_if_slow(now + 30)
            closed.append(line.closed)
            connection.connection_lost(None)
        return closed

    assert asyncio.run(go()) == [True, True, True]


def test_one_that_has_ended_is_left_alone() -> None:
    async def go() -> None:
        connection, line = await _opened()
        for _ in range(3):
            connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.sleep(0.01)
        assert line.sent.count(b"200 OK") == 3
        assert line.writes == 3  # head and body at once
        connection.close_if_slow(connection.loop.time() + 1000)
        assert not line.closed
        connection.connection_lost(None)

    asyncio.run(go())


def test_headers_that_come_in_drops_have_a_limit_too() -> None:
    async def go() -> bytes:
        connection, line = await _opened()
        connection.data_received(b"GET / HTTP/1.1\r\n")
        for _ in range(100):
            if not line.closed:
                connection.data_received(b"X: " + b"a" * 500 + b"\r\n")
        connection.connection_lost(None)
        return line.sent

    assert asyncio.run(go()).startswith(b"HTTP/1.1 400")
