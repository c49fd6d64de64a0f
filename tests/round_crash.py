"""Programs that abuse a real round, run as `python -m tests.round_crash client|coordinator FOLDER SEED KILLS`.

client: a client answers rounds and dies by SIGKILL at a random line of its code, again and again; prints a JSON line
with what left it, what was charged, and whether its messages are those of a client that nobody killed.
coordinator: the same for a coordinator, from its first round to its last; prints what it acknowledged and lost, and
whether its model and history are those of a coordinator that nobody killed.
"""

import hashlib
import json
import random
import sys
from pathlib import Path

import numpy as np

from tests.killing import killed, lines_of, log_line
from tests.methods.tastes import build, same, small_problem
from veilrec.client import federated as client_module
from veilrec.client.federated import FederatedClient, RoundIsOver
from veilrec.core.files import replacing
from veilrec.core.schema import RoundSpec, whole_model
from veilrec.privacy import ledger, ledger_store
from veilrec.privacy.randomness import noise_of_client
from veilrec.server import coordinator as coordinator_module
from veilrec.server import round_store
from veilrec.server import server as server_state
from veilrec.server.coordinator import Coordinator
from veilrec.simulation.real_clients import SECRET, RealRun, budget_for, put_secret
from veilrec.wire import rounds

CLIENT_FILES = {client_module.__file__, ledger.__file__, ledger_store.__file__, __file__}
COORDINATOR_MODULES = coordinator_module, round_store, server_state
COORDINATOR_FILES = {*(module.__file__ for module in COORDINATOR_MODULES), replacing.__code__.co_filename, __file__}
AT_ONCE = 3  # rounds that a client answers if nobody kills it
ROUNDS = 3  # of the coordinator


class Answering:
    """A client of DP-FedMF as published: its messages have noise of its own."""

    def __init__(self, folder, *, keyed):
        simulated = build("dp-fedmf:as-published", small_problem(4), ("cohort.size=2",), secret=SECRET)
        self.folder, self.plan = folder, simulated.plan
        self.data = simulated.data.take(np.array([1]))
        self.noise = (lambda number: noise_of_client(SECRET, number, 1)) if keyed else None

    def create(self, name):
        given = self.folder / name, self.plan, self.data, [budget_for(self.plan)]
        FederatedClient.create(*given, number=1, draws_seed=5, noise_of_message=self.noise).close()

    def open(self, name):
        return FederatedClient.open(self.folder / name, self.plan, self.data, noise_of_message=self.noise)

    def answer(self, name, first, count=AT_ONCE):
        """What leaves is written down: the round, and a digest of the message."""
        with self.open(name) as client:
            for number in range(first, first + count):
                try:
                    message = client.take_part(broadcast(self.plan, number), number)
                except RoundIsOver:  # it has answered the next one, which nobody got to see
                    continue
                log_line(self.folder / f"{name}.sent", f"{number} {hashlib.sha256(message).hexdigest()}")

    def sent(self, name):
        path = self.folder / f"{name}.sent"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(line.split()[0]), line.split()[1]) for line in lines]

    def charged(self, name):
        with self.open(name) as client:
            return client.spent()[0].messages


def broadcast(plan, number):
    return rounds.encode(RoundSpec(number), whole_model(plan.schema, plan.start, number), plan.schema)


def abuse_client(folder, seed, kills):
    dice = random.Random(seed)  # noqa: S311 - it chooses where to die
    for keyed in (False, True):
        client, name = Answering(folder, keyed=keyed), f"keyed {keyed}"
        client.create(name)
        client.create("warm-up")
        lines = lines_of(lambda: client.answer("warm-up", 0), CLIENT_FILES)  # noqa: B023 - done at once
        deaths = 0
        for _ in range(kills):
            first = max((number for number, _ in client.sent(name)), default=0)  # the last one is asked for again
            deaths += killed(lambda: client.answer(name, first), dice, lines, CLIENT_FILES)  # noqa: B023
        sent = client.sent(name)
        last = max(number for number, _ in sent)
        client.create("unharmed")
        client.answer("unharmed", 0, last + 1)
        result = {
            "keyed": keyed,
            "kills": deaths,
            "rounds": len({number for number, _ in sent}),
            "messages": len(set(sent)),
            "resent": len(sent) - len(set(sent)),
            "charged": client.charged(name),
            "as_unharmed": set(sent) == set(client.sent("unharmed")),
        }
        print(json.dumps(result), flush=True)
        for path in folder.glob("*.sent"):
            path.unlink()
        for used in ("warm-up", "unharmed"):
            for path in (folder / used).iterdir():
                path.unlink()


class Coordinating:
    """A run of Priv-FedMF-Sub: reports choose the items, the sums have noise; its clients' messages are known."""

    def __init__(self, folder):
        simulated = build("priv-fedmf-sub", small_problem(6), ("cohort.size=4",), secret=SECRET)
        self.folder, self.plan = folder, simulated.plan
        self.messages = {}
        unharmed = RealRun(folder / "unharmed", simulated.plan, simulated.data, simulated.seeds)
        self._listen(unharmed.coordinator)
        for _ in range(ROUNDS):
            unharmed.step()
        self.state, self.history = unharmed.coordinator.server_state.state(), unharmed.coordinator.history()
        unharmed.close()

    def _listen(self, server):
        """Keep every message that comes in."""
        receive, receive_report = server.receive, server.receive_report

        def keep(name, message):
            self.messages[f"{server.round_number} {name}"] = message
            return receive(name, message)

        def keep_report(name, message):
            self.messages[f"report {name}"] = message
            return receive_report(name, message)

        server.receive, server.receive_report = keep, keep_report

    def go_on(self, name="run"):
        """From wherever the run stands to its end."""
        with Coordinator(put_secret(self.folder / name), self.plan) as server:
            for number in range(6):
                server.enrol(f"client {number}")
            while server.round_number < ROUNDS:
                self._round(server, self.folder / f"{name}.acknowledged")

    def _round(self, server, log):
        known = set(log.read_text().splitlines()) if log.exists() else set()
        question = server.ask() if server.stage in ("between rounds", "asking") else None
        for client in () if question is None else question.clients:
            self._send(server.receive_report, f"report {client}", known, log)
        _, cohort = server.open_round()
        for client in cohort:
            self._send(server.receive, f"{server.round_number} {client}", known, log)
        server.close_round()

    def _send(self, receive, key, known, log):
        receipt = receive(f"client {key.rsplit(maxsplit=1)[1]}", self.messages[key])
        if key in known and receipt != "known already":
            log_line(log.with_name("lost"), key)
        log_line(log, key)


def abuse_coordinator(folder, seed, kills):
    dice = random.Random(seed)  # noqa: S311 - it chooses where to die
    run = Coordinating(folder)
    lines = lines_of(lambda: run.go_on("warm-up"), COORDINATOR_FILES)
    deaths = 0
    for _ in range(kills):
        deaths += killed(run.go_on, dice, lines // 8, COORDINATOR_FILES)
    run.go_on()
    with Coordinator(folder / "run", run.plan) as server:
        result = {
            "kills": deaths,
            "same_model": same(dict(server.server_state.state()), dict(run.state)),
            "same_history": server.history() == run.history,
            "lost": (folder / "lost").exists(),
            "acknowledged": len(set((folder / "run.acknowledged").read_text().splitlines())) == len(run.messages),
            "models": len(list((folder / "run").glob("model-*"))),
        }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    abuse = {"client": abuse_client, "coordinator": abuse_coordinator}[sys.argv[1]]
    abuse(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
