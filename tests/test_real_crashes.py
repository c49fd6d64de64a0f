"""A round survives kill -9 of a client or of the coordinator at any point."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SEED = 3


def abused(who: str, folder: Path, kills: int) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.round_crash", who, str(folder), str(SEED), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_killed_client_sends_one_message_a_round_and_has_paid_for_it(tmp_path: Path) -> None:
    secure, keyed = abused("client", tmp_path, 20)
    for result in (secure, keyed):
        assert result["kills"] >= 10
        assert result["resent"] >= 3
        assert result["messages"] == result["rounds"]  # never a second one, although every draw of noise is another
        # The last message may be on disk and not have left: it would be the next to go. No other charge is without one.
        assert result["messages"] <= result["charged"] <= result["messages"] + 1
    assert keyed["as_unharmed"]  # and what it keeps went on as if nothing had happened
    assert not secure["as_unharmed"]


def test_a_killed_coordinator_counts_every_message_once_and_ends_with_the_same_model(tmp_path: Path) -> None:
    (result,) = abused("coordinator", tmp_path, 24)
    assert result["kills"] >= 10
    assert result["same_model"]
    assert result["same_history"]
    assert not result["lost"]
    assert result["acknowledged"]
    assert result["models"] == 1
