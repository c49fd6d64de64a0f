"""A round survives kill -9 of a client or of the coordinator at any point."""

import json
import subprocess
import sys

SEED = 3


def abused(who, folder, kills):
    command = [sys.executable, "-m", "tests.round_crash", who, str(folder), str(SEED), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_killed_client_sends_one_message_a_round_and_has_paid_for_it(tmp_path):
    secure, keyed = abused("client", tmp_path, 20)
    for result in (secure, keyed):
        assert result["kills"] >= 10
        assert result["resent"] >= 3
        assert result["messages"] == result["rounds"]  # never a second one, although every draw of noise is another
        # The last message may be on disk and not have left: it would be the next to go. No other charge is without one.
        assert result["messages"] <= result["charged"] <= result["messages"] + 1
    assert keyed["as_unharmed"]  # and what it keeps went on as if nothing had happened
    assert not secure["as_unharmed"]


def test_a_killed_coordinator_counts_every_message_once_and_ends_with_the_same_model(tmp_path):
    (result,) = abused("coordinator", tmp_path, 24)
    assert result.pop("kills") >= 10
    same = {"same_model": True, "same_history": True}
    assert result == {**same, "lost": False, "acknowledged": True, "models": 1}
