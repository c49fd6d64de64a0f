"""The coordinator as Flower's ServerApp; needs the extra `flower`.

It is the coordinator of `veilrec federate coordinator`, HTTPS and all, with a carrier beside it: devices may come by
way of Flower or by HTTPS, also both in one federation. Flower's run, its state and its strategies decide nothing:
whatever happens to them, the coordinator goes on from its own folder when the app is started again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.federation import federation
from veilrec.federation.coordinator.flower_link import Carrier
from veilrec.federation.coordinator.process import Control, coordinate
from veilrec.federation.facts import FederationFacts, largest_answer
from veilrec.federation.flower_messages import BadFlowerMessage, MessageFields, fields_of, record_of

_TURN_SECONDS = 0.1
_GOODBYE_SECONDS = 10.0  # for nodes to hear that it is over

app = ServerApp()


class GridAdapter:
    """Flower's grid as a post; its own loop would sleep three seconds between looks."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Iterable[int]:
        """List the nodes that are connected now."""
        return list(self._grid.get_node_ids())

    def push(self, outgoing: Sequence[tuple[int, MessageFields, float]]) -> Sequence[str | None]:
        """Send messages."""
        messages = [Message(record_of(fields), node, MessageType.QUERY, ttl=ttl) for node, fields, ttl in outgoing]
        return [name or None for name in self._grid.push_messages(messages)]

    def pull(self, names: Sequence[str]) -> Iterable[tuple[str, MessageFields | None]]:
        """Answers that have come."""
        for reply in self._grid.pull_messages(names):
            try:
                fields: MessageFields | None = fields_of(reply)
            except BadFlowerMessage:
                fields = None
            yield reply.metadata.reply_to_message_id, fields


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """All rounds that are left."""
    folder = Path(str(context.run_config.get("federation", "")))
    carry(folder, FederationFacts(folder, federation.read(folder)), grid)


def carry(folder: Path, known: FederationFacts, grid: Grid) -> None:
    """Run the coordinator of a folder, with Flower's nodes as devices, until the rounds are over."""
    if known.federation.secagg != "none":
        raise BadInput("secure aggregation is not supported over Flower yet: use `veilrec federate up` over HTTPS")
    control, failure = Control(), list[BaseException]()

    def work() -> None:
        try:
            coordinate(folder, known, lambda url: _say(f"coordinating, by Flower and at {url}"), control=control)
        except BaseException as error:
            failure.append(error)
        control.ready.set()

    thread = threading.Thread(target=work, name="coordinator")
    thread.start()
    control.ready.wait()
    if control.driver is not None:
        carrier = Carrier(control.driver, GridAdapter(grid), _say, largest_answer=largest_answer(known))
        until = float("inf")
        while thread.is_alive() and time.monotonic() < until:
            carrier.turn()
            if control.driver.board.over and until == float("inf"):
                until = time.monotonic() + _GOODBYE_SECONDS
            if control.driver.board.over and carrier.everybody_knows:
                break
            time.sleep(_TURN_SECONDS)
        if control.driver.board.over:
            control.stop()
    thread.join()
    if failure:
        raise failure[0] if isinstance(failure[0], VeilrecError) else VeilrecError(str(failure[0]))


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
