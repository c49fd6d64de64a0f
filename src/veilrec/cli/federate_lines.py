"""How far a federation has come, in lines for people."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from veilrec.cli.output import say

_OF_LEDGERS = (
    "an upper bound, in zCDP and as if there were no sampling and no masks, so that it may end above the promise with"
    " nothing overspent; promised is"
)


class Lines:
    """A line whenever a round is over; in a terminal, one that is written over."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, status: Mapping[str, Any]) -> None:
        """Say how far it has come, if that is news."""
        line = status_line(status)
        if not line or line == self._last:
            return
        self._last = line
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
        elif status.get("stage") in ("between rounds", "over", "judged") or not status.get("this_round"):
            say(line)


def status_line(status: Mapping[str, Any]) -> str:
    """How far a federation has come, in one line."""
    from veilrec.report.units import human_bytes

    if "devices" not in status:
        return str(status.get("stage", "not started"))
    here, invited = status["devices"]["here"], status["devices"]["invited"]
    void = f", {status['void']} void" if status["void"] else ""
    down, sent = human_bytes(status["down_bytes"]), human_bytes(status["up_bytes"])
    owing = ", ".join(status.get("waiting_for", ()))
    stage = f"{status['stage']}, waiting for {owing}" if owing else status["stage"]
    return (
        f"round {status['round']}/{status['rounds']}{void}  {stage}  devices {here}/{invited}"
        f"  messages {status['messages']}  down {down}  up {sent}"
    )


def print_status(found: Mapping[str, Any]) -> None:
    """What `veilrec federate status` says in words."""
    state = "up" if found["up"] else "over" if found["finished"] else "down"
    say(f"{found['method']} ({state}) at {found['address']}: {status_line(found['run'])}")
    ledgers = found["ledgers"]
    if ledgers["largest"] is not None:
        most = ledgers["largest"]
        bases = {most["basis"], found["promised"]["basis"]}
        why = f" ({_OF_LEDGERS}: {found['promised']['line']})" if bases == {"proven"} else ""
        say(f"{ledgers['devices']} ledgers here; the one that has spent most: {most['line']}{why}")
    if found["rehearsal"]:
        say("A rehearsal: it protects nobody.")
