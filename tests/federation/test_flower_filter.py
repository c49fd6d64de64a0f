"""The filter before Flower's link: Fleet routes only in public, and a cap on bodies before anything is parsed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from veilrec.federation.coordinator.flower_server import LinkFilter

PUBLIC_PORT, CAP = 8472, 1000


def asked(path: str, *, port: int = PUBLIC_PORT, announced: bytes | None = None, parts: tuple[int, ...] = (10,)) -> Any:
    """What the filter answered, and how many bytes of the body came through it."""
    seen, answers = [], []

    async def link(scope: Any, receive: Any, send: Any) -> None:
        while True:
            part = await receive()
            seen.append(len(part.get("body", b"")) if part["type"] == "http.request" else -1)
            if part["type"] == "http.disconnect" or not part.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})

    left = list(parts)

    async def receive() -> Any:
        size = left.pop(0)
        return {"type": "http.request", "body": bytes(size), "more_body": bool(left)}

    async def send(part: Any) -> None:
        answers.append(part)

    headers = [] if announced is None else [(b"content-length", announced)]
    scope = {"type": "http", "path": path, "server": ("127.0.0.1", port), "headers": headers}
    asyncio.run(LinkFilter(link, public_port=PUBLIC_PORT, cap=CAP)(scope, receive, send))
    return answers[0]["status"], seen


def test_nodes_get_through() -> None:
    assert asked("/v1/fleet/pull-messages", announced=b"10") == (200, [10])


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/runtime/push", "/", "/v1/fleet", "/V1/FLEET/x"])
def test_nothing_else_is_public(path: str) -> None:
    assert asked(path) == (404, [])


def test_the_operator_reaches_everything_from_loopback() -> None:
    assert asked("/v1/control/start-run", port=8700) == (200, [10])


@pytest.mark.parametrize("announced", [b"1001", b"-1", b"1e9", b"9" * 16, b""])
def test_a_body_that_is_too_long_is_not_read(announced: bytes) -> None:
    assert asked("/v1/fleet/push-messages", announced=announced) == (413, [])


def test_a_body_that_lies_about_its_length_is_cut_off() -> None:
    _, seen = asked("/v1/fleet/push-messages", parts=(600, 600, 600))
    assert seen == [600, -1]
