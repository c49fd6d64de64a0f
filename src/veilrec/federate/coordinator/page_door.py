"""The door of a coordinator for one web page beside it: browsers ask whether a page may come, and are told which one.

A browser lets a page read answers of another server only where that server names the page (CORS). Nothing else depends
on it: whoever is not a browser does not ask, and every request is signed by a device, whatever page it is from.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from veilrec.server.http.door import Door
from veilrec.server.http.receiving import Headers, Message, Receive, Scope, Send, header

PATHS = ("/v1/enrol", "/v1/poll", "/v1/content", "/v1/answer")
HEADERS = ("content-type", "x-veilrec-device", "x-veilrec-kind", "x-veilrec-number", "x-veilrec-signature")
_REMEMBERED_SECONDS = 3600
_OF_ORIGIN = (b"vary", b"origin")  # what is said depends on who asks


class PageDoor(Door):
    """A door that lets the pages of one origin read what devices are answered, and no other page."""

    page: bytes = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request: as at any door, and answers for devices say which page may read them."""
        if scope["type"] != "http" or scope["path"] not in PATHS:
            await super().__call__(scope, receive, send)
            return
        own: Headers = [_OF_ORIGIN]
        if header(scope, b"origin") == self.page:
            own.append((b"access-control-allow-origin", self.page))

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *own]
            await send(message)

        await super().__call__(scope, receive, telling)


def asking() -> list[Route]:
    """What browsers ask before a page may send: the same answer to all, which only the page of the door may read."""
    return [Route(path, _permission, methods=["OPTIONS"]) for path in PATHS]


async def _permission(request: Request) -> Response:
    told = {
        "access-control-allow-methods": "POST",
        "access-control-allow-headers": ", ".join(HEADERS),
        "access-control-max-age": str(_REMEMBERED_SECONDS),
    }
    return Response(status_code=204, headers=told)
