"""Clients and a coordinator that exchange bytes in one process, with the secrets of a simulation: both must agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from veilrec.client.federated import FederatedClient
from veilrec.client.local_training import LocalData
from veilrec.core.errors import VeilrecError
from veilrec.core.plan import Plan
from veilrec.core.schema import RoundSpec, whole_model
from veilrec.privacy.budget import budget_for
from veilrec.privacy.randomness import noise_of_client, noise_of_comparison, noise_of_learning, noise_of_report
from veilrec.server import round_store
from veilrec.server.coordinator import Coordinator
from veilrec.server.round_store import RoundReport
from veilrec.server.server import SelectionOutcome, selection_of
from veilrec.simulation.simulation import Seeds
from veilrec.wire import rounds

SECRET = bytes(range(32))


def put_secret(folder: Path, secret: bytes = SECRET) -> Path:
    """Make a folder whose coordinator draws from this secret; one that has a secret keeps it."""
    if not (folder / "secret").exists():
        round_store.put_secret(folder, secret)
    return folder


class RealRun:
    """Rounds of a simulation run by federated clients and a coordinator."""

    def __init__(self, folder: Path, plan: Plan, data: LocalData, seeds: Seeds, **options: Any) -> None:
        if seeds.secret is None:
            raise ValueError("real clients draw their noise from a secret: give the simulation one")
        self.folder, self.plan, self.data, self.seeds = folder, plan, data, seeds
        self.coordinator = Coordinator(put_secret(folder / "server", seeds.secret), plan, **options)
        self.clients: dict[str, FederatedClient[Any]] = {}
        for place, number in enumerate(np.flatnonzero(data.rows.lengths() > 0)):  # who has something to learn from
            if self.coordinator.enrol(f"client {number}") != place:
                raise VeilrecError(f"the coordinator gave client {number} a place of another")

    def client(self, name: str) -> FederatedClient[Any]:
        """Return the client of that name, created on first use."""
        if name not in self.clients:
            number, secret = int(name.split()[1]), self.seeds.secret or b""
            self.clients[name] = FederatedClient.create(
                self.folder / name,
                self.plan,
                self.data.take(np.array([number])),
                [budget_for(self.plan)],
                number=number,
                draws_seed=self.seeds.draws,
                unprotected=True,
                noise_of_message=lambda spec: noise_of_client(secret, spec, number),
                noise_of_report=lambda period: noise_of_report(secret, period, number),
                noise_of_learning=lambda spec: noise_of_learning(secret, spec, number),
            )
        return self.clients[name]

    def step(self) -> RoundReport:
        """Run one round, including the reports before it."""
        question = self.coordinator.ask()
        if question is not None:
            for name in question.clients:
                report = self.client(name).report(question.round_number, question.period)
                _taken(self.coordinator.receive_report(name, report), f"the report of {name}")
        broadcast, cohort = self.coordinator.open_round()
        number = self.coordinator.round_number
        for name in reversed(cohort):  # the order in which messages come changes nothing
            message = self.client(name).take_part(broadcast, number)
            _taken(self.coordinator.receive(name, message), f"the message of {name}")
        return self.coordinator.close_round()

    def compare(self) -> SelectionOutcome | None:
        """Run private model selection after the last round; None without validation clients."""
        comparison, schema, secret = self.plan.model_selection, self.plan.schema, self.seeds.secret
        if comparison is None or secret is None:
            return None
        number, server_state = self.coordinator.round_number, self.coordinator.server_state
        spec = RoundSpec(number)
        start, trained = (
            rounds.encode(spec, whole_model(schema, weights, number), schema)
            for weights in ({**self.plan.start, **server_state.known}, server_state.weights)
        )
        validators = comparison.validator.clients(self.data).tolist()
        told = [self.client(f"client {validator}").validate(start, trained, number) for validator in validators]
        return selection_of(told, comparison, noise_of_comparison(secret))

    def close(self) -> None:
        """Close all files."""
        self.coordinator.close()
        for client in self.clients.values():
            client.close()


def _taken(answer: str, what: str) -> None:
    if answer != "taken":
        raise VeilrecError(f"the coordinator did not take {what}: {answer}")
