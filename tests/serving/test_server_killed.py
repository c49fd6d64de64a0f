"""The whole server, killed while items come in: what it acknowledged is visible when it is back."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.serving.processes import Running, running
from tests.serving.toys import TOKEN, write_release

KILLS = 6
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def _visible(server: Running) -> set[str]:
    body = json.loads(server.ask("POST", "/v1/recommend", {"k": 1000})[2])
    return {item["id"] for item in body["items"]} - {f"n{number}" for number in range(40)}


@pytest.mark.slow
def test_what_was_acknowledged_is_visible_after_kill_9(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    folder = write_release(tmp_path / "release")
    dice = random.Random(3)  # noqa: S311 - it chooses when to kill
    acknowledged: set[str] = set()
    maybe: set[str] = set()
    number = 0
    for _ in range(KILLS + 1):
        with running(folder, tmp_path / "log", "--admin-token-file", str(token), "--rate", "0") as server:
            found = _visible(server)
            assert acknowledged <= found <= acknowledged | maybe
            acknowledged, maybe = found, set()
            killer = threading.Timer(dice.uniform(0.1, 0.5), os.kill, (server.process.pid, signal.SIGKILL))
            killer.start()
            end = time.monotonic() + 30
            while time.monotonic() < end and len(acknowledged) < 900:
                name, number = f"item {number}", number + 1
                maybe = {name}
                try:
                    status, _, _ = server.ask("PUT", f"/v1/items/item%20{number - 1}", {"title": name}, BEARER)
                except (OSError, HTTPException):
                    break
                assert status == 201
                acknowledged.add(name)
            killer.join()
    assert len(acknowledged) > KILLS
