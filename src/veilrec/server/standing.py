"""Where a run stands: the server, the model that ranks, and which items any round was about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Bools, Floats
from veilrec.server.agenda import Agenda, Tally, TensorsOfReports
from veilrec.server.server import Server
from veilrec.updates import Schema

_SERVER, _AVERAGE, _SENT = "server.", "average.", "sent"


class ServerPart(Protocol):
    """What a plan says to the server's side."""

    @property
    def schema(self) -> Schema:
        """Of the model."""

    @property
    def start(self) -> Mapping[str, Floats]:
        """The first model."""

    @property
    def agenda(self) -> Agenda:
        """What each round is about."""

    @property
    def from_reports(self) -> TensorsOfReports | None:
        """What reports say of the model itself."""

    @property
    def averaging(self) -> float:
        """Of the model that ranks, over the last rounds."""

    def make_server(self) -> Server:
        """A server with the first model."""


class Standing:
    """All that a run has come to; simulated and real ones move it in the same way, a round at a time."""

    def __init__(self, plan: ServerPart) -> None:
        self.server = plan.make_server()
        self._from_reports = plan.from_reports
        # The model that ranks may be a running mean of the server's: averages = averaging * averages + ...
        self.averaging = np.float32(plan.averaging)
        self.averages = {n: value.copy() for n, value in plan.start.items()} if plan.averaging else {}
        # How often each item was part of what a round was about, where rounds are about parts.
        leaves_out = plan.agenda.leaves_out
        self.sent = np.zeros(plan.schema.tables[0].shape[0], np.int64) if leaves_out else None

    def take_in(self, tally: Tally | None) -> None:
        """Fill the tensors that come from reports, once these are known; the same again changes nothing."""
        if tally is None or self._from_reports is None:
            return
        self.server.fill(self._from_reports.tensors(tally))
        for name, values in self.known.items() if self.averages else ():
            self.averages[name][...] = values

    @property
    def known(self) -> dict[str, Floats]:
        """The tensors that no answer is about."""
        return {t.name: self.server.weights[t.name] for t in self.server.schema.tensors if not t.learnt}

    def step(self) -> None:
        """End the server's round, and follow it."""
        rows = self.server.about.rows
        if self.sent is not None:
            self.sent[slice(None) if rows is None else rows] += 1
        self.server.step()
        for name, weights in self.server.weights.items() if self.averages else ():
            self.averages[name] += (np.float32(1.0) - self.averaging) * (weights - self.averages[name])

    @property
    def weights(self) -> Mapping[str, Floats]:
        """Of the model that ranks."""
        return self.averages or self.server.weights

    @property
    def sent_items(self) -> Bools | None:
        """The items that any round was about; None: all."""
        return None if self.sent is None or self.sent.all() else self.sent > 0

    def state(self) -> dict[str, NDArray[Any]]:
        """All of it, for a checkpoint between rounds."""
        sent = {} if self.sent is None else {_SENT: self.sent}
        averages = {_AVERAGE + name: values for name, values in self.averages.items()}
        return {_SERVER + name: values for name, values in self.server.state().items()} | sent | averages

    def load_state(self, state: Mapping[str, NDArray[Any]], rounds_done: int) -> None:
        """Go on from a checkpoint."""
        server = {name.removeprefix(_SERVER): state[name] for name in state if name.startswith(_SERVER)}
        self.server.load_state(server, rounds_done)
        if self.sent is not None:
            self.sent[...] = state[_SENT]
        for name in self.averages:
            self.averages[name][...] = state[_AVERAGE + name]
