"""Flower's SuperLink with its public routes filtered: `python -m veilrec.federation.coordinator.flower_door ARGUMENTS`.

A SuperLink as it comes must not be exposed: whoever can reach it and knows its certificate can start a run, which runs
code on the server, and a body is read before anybody is asked who sends it. With this filter the public socket has the
Fleet routes that nodes need and no others, with a cap on bodies that holds before anything is parsed; everything else
is on loopback. Arguments are those of `flower-superlink`; the public socket and the cap come from the environment.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from veilrec.core.errors import BadInput
from veilrec.serving.requests import Receive, Scope, Send

PUBLIC, CAP = "VEILREC_LINK_PUBLIC", "VEILREC_LINK_CAP"
_FLEET = "/v1/fleet/"


class LinkFilter:
    """Lets Fleet requests through on the public socket, and bodies up to a cap on any."""

    def __init__(self, app: Any, *, public_port: int, cap: int) -> None:
        self._app, self._public_port, self._cap = app, public_port, cap

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["server"][1] == self._public_port and not scope["path"].startswith(_FLEET):
            await _refuse(send, 404)
            return
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        if any(not value.isdigit() or len(value) > 15 or int(value) > self._cap for value in lengths):
            await _refuse(send, 413)
            return
        read = 0

        async def counted() -> Any:
            nonlocal read
            part = await receive()
            read += len(part.get("body", b""))
            return {"type": "http.disconnect"} if read > self._cap else part

        await self._app(scope, counted, send)


async def _refuse(send: Send, status: int) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def listen(host: str, port: int) -> socket.socket:
    """A socket that is taken already is one line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
    except OSError as error:
        opened.close()
        raise BadInput(f"{host}:{port} cannot be listened at ({error.strerror}): choose another port") from None
    opened.listen(512)
    return opened


def main() -> None:
    """The link, at its own address and at the public one."""
    import uvicorn
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    config = _parse_superlink_lifespan_config()
    host, _, port = os.environ[PUBLIC].rpartition(":")
    app = LinkFilter(create_app(config, SuperLinkLifespan), public_port=int(port), cap=int(os.environ[CAP]))
    settings = uvicorn.Config(
        app,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        access_log=False,
        log_level="warning",
        workers=1,
    )
    uvicorn.Server(settings).run(sockets=[listen(config.host, int(config.port)), listen(host, int(port))])


if __name__ == "__main__":
    main()
