"""Measure a real federation: 20 client processes over HTTPS, 30 rounds of fedmf on ml-100k.

    python benchmarks/federate.py [--quick] [--secagg none|helpers|pairs]

How long a round takes, and what a message costs the coordinator's processor beside adding it up.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.federation.loopback import free_port

from _measure import Report, Say, describe_machine, options_of, script
from veilrec.federation import processes
from veilrec.federation.coordinator.process import last_status
from veilrec.federation.making import FederationOptions, make
from veilrec.federation.running import Up

PROMISED_ROUND_SECONDS = 3.0
PROMISED_MESSAGE_MS = 5.0  # of the coordinator's processor, beside what adding up costs


@dataclass(frozen=True)
class Load:
    """What is measured."""

    method: str = "fedmf"
    data: str = "ml-100k"
    clients: int = 20
    rounds: int = 30
    secagg: str = "none"


QUICK = Load(data="synthetic-ratings:users=60,items=200,seed=1", clients=6, rounds=4)


def run(load: Load, say: Say) -> dict[str, Any]:
    """A federation from init to its end."""
    machine = describe_machine()
    with tempfile.TemporaryDirectory() as place:
        folder, began = Path(place) / "federation", time.perf_counter()
        wishes = FederationOptions(
            method=load.method,
            data=load.data,
            clients=load.clients,
            rounds=load.rounds,
            secagg=load.secagg,  # type: ignore[arg-type]
            port=free_port(),
        )
        made = make(folder, wishes).federation
        init_seconds = time.perf_counter() - began
        say(f"{made.clients} clients of {load.method} on {load.data}: made in {init_seconds:.1f} s")
        memory = _Memory(folder)
        began = time.perf_counter()
        Up(folder, say).run(memory.look)
        up_seconds = time.perf_counter() - began
        status = last_status(folder)
    task = _figures(status, made.clients) | {
        "init_seconds": round(init_seconds, 2),
        "up_seconds": round(up_seconds, 2),
        "client_pss_mb": memory.client_mb,
        "coordinator_pss_mb": memory.coordinator_mb,
    }
    promised = {"round_seconds": PROMISED_ROUND_SECONDS, "message_cpu_ms": PROMISED_MESSAGE_MS}
    missed = [name for name, most in promised.items() if task[name] > most]
    return {"load": asdict(load), "machine": machine, "tasks": [task | {"promised": promised, "missed": missed}]}


def _figures(status: Mapping[str, Any], clients: int) -> dict[str, Any]:
    own, seconds = status["process"], status["process"]["round_seconds"][1:]  # the first one waits for clients to wake
    serving = own["serving_cpu_seconds"] - own["closing_cpu_seconds"]
    return {
        "name": "federation",
        "clients": clients,
        "rounds": status["round"],
        "messages": own["messages"],
        "round_seconds": round(statistics.median(seconds), 3),
        "slowest_round_seconds": max(seconds),
        "message_cpu_ms": round(1000.0 * serving / max(own["messages"], 1), 3),
        "sum_cpu_ms_per_message": round(1000.0 * own["closing_cpu_seconds"] / max(own["messages"], 1), 3),
        "down_bytes_per_message": status["down_bytes"] // max(status["messages"], 1),
        "up_bytes_per_message": status["up_bytes"] // max(status["messages"], 1),
    }


class _Memory:
    """What the processes hold, each page counted by how many share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.client_mb = self.coordinator_mb = 0.0

    def look(self, _: Mapping[str, Any]) -> None:
        """While they run."""
        for process in processes.running(self._folder):
            if process.name == "coordinator":
                self.coordinator_mb = max(self.coordinator_mb, _pss_mb(process.pid))
            elif process.name == "clients":
                own = [_pss_mb(pid) for pid in processes.children(process.pid)]
                self.client_mb = max(self.client_mb, round(statistics.mean(own), 1) if own else 0.0)


def _pss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    found = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
    return round(found[0] / 1024.0, 1) if found else 0.0


def show(report: Report) -> None:
    """Print one line, and missed targets."""
    (task,) = report["tasks"]
    print(
        f"{task['rounds']} rounds of {task['clients']} client processes: median {task['round_seconds']:g} s, slowest "
        f"{task['slowest_round_seconds']:g} s; coordinator {task['message_cpu_ms']:g} ms of processor a message, and "
        f"{task['sum_cpu_ms_per_message']:g} ms to add it up; memory {task['client_pss_mb']:g} MB a client, "
        f"{task['coordinator_pss_mb']:g} MB the coordinator"
    )
    for name in task["missed"]:
        print(f"missed {name} <= {task['promised'][name]:g}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; the exit code."""
    parser = options_of(__doc__)
    parser.add_argument(
        "--secagg", choices=["none", "helpers", "pairs"], default="none", help="secure aggregation protocol"
    )

    def measure(given: argparse.Namespace, say: Say) -> Report:
        return run(replace(QUICK if given.quick else Load(), secagg=given.secagg), say)

    return script(parser, measure, show, arguments)


if __name__ == "__main__":
    sys.exit(main())
