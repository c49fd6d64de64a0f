"""A round in Flower's simulation: a ClientApp that keeps the user's vector, and federated averaging.

It has a process of its own, whose actor imports this module by name, so that no data travels with the code.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from _plain_loop import ClientModule, Examples, examples_of, learn, make_module
from _workload import Workload, read_workload, save_arrays
from veilrec.core.arrays import Floats
from veilrec.core.errors import VeilrecError

_OWN = "own"  # the record of a node's context that holds the client's own parameters


class _Actor:
    """What an actor keeps between messages: the data of all clients, and one module."""

    def __init__(self, path: str) -> None:
        torch.set_num_threads(1)
        self.workload: Workload = read_workload(Path(path))
        self.examples: list[Examples] = examples_of(self.workload)
        self.module: ClientModule = make_module(self.workload.local)


_actor = cache(_Actor)


def _train(path: str, message: Any, context: Any) -> Message:
    """One client: load the model and the own parameters, learn, keep the own, send the rest."""
    actor = _actor(path)
    client = int(context.node_config["partition-id"])
    parameters = dict(actor.module.named_parameters())
    own = {name: actor.workload.private[name][client] for name in actor.module.private}
    if _OWN in context.state:
        own = _arrays(context.state[_OWN])
    received = _arrays(message.content["arrays"])
    with torch.no_grad():
        for name, values in (received | own).items():
            parameters[name].copy_(torch.tensor(values))
    learn(actor.module, actor.examples[client])
    context.state[_OWN] = _record({name: parameters[name].detach().numpy() for name in own})
    reply = RecordDict(
        {
            "arrays": _record({name: parameters[name].detach().numpy() for name in received}),
            "metrics": MetricRecord({"num-examples": 1}),  # everybody weighs the same
        }
    )
    return Message(content=reply, reply_to=message)


def _record(arrays: Mapping[str, Floats]) -> ArrayRecord:
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


def _arrays(record: Any) -> dict[str, Floats]:
    return {name: values.numpy() for name, values in record.items()}


def _timed_averaging(users: int, cohort: int, ends: list[float]) -> Any:
    """Federated averaging that notes when each aggregation ends; a failed client fails the benchmark."""
    strategy: Any = FedAvg(
        fraction_train=cohort / users, min_train_nodes=cohort, min_available_nodes=users, fraction_evaluate=0.0
    )
    aggregate = strategy.aggregate_train

    def timed(server_round: int, replies: Iterable[Any]) -> Any:
        answers = list(replies)
        failed = [answer.error.reason for answer in answers if answer.has_error()]
        if failed or len(answers) != cohort:
            raise VeilrecError(f"{len(answers)} of {cohort} clients answered, {len(failed)} failed: {failed[:1]}")
        result = aggregate(server_round, answers)
        ends.append(time.perf_counter())
        return result

    strategy.aggregate_train = timed
    return strategy


def simulate(path: Path, answer: Path, rounds: int) -> None:
    """Run the rounds; write the last model, and print the seconds of all rounds but the first."""
    workload = read_workload(path)
    users = len(workload.train)
    ends: list[float] = []
    strategy = _timed_averaging(users, workload.cohort, ends)

    def serve(grid: Any, context: Any) -> None:
        del context
        result = strategy.start(grid=grid, initial_arrays=_record(workload.public), num_rounds=rounds)
        save_arrays(answer, _arrays(result.arrays))

    server, client = ServerApp(), ClientApp()
    server.main()(serve)
    client.train()(partial(_train, str(path)))
    one_cpu: Any = {
        "init_args": {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    try:
        run_simulation(server, client, num_supernodes=users, backend_config=one_cpu)
    finally:
        ray.shutdown()
    sys.stdout.write("\n" + json.dumps(np.diff(ends).tolist()) + "\n")


def main() -> None:
    """What Flower's process does with its arguments: WORKLOAD ANSWER ROUNDS."""
    workload, answer, rounds = sys.argv[1:]
    simulate(Path(workload), Path(answer), int(rounds))
