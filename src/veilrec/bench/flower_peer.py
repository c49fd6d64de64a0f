"""The same round in Flower's simulation: a ClientApp that keeps the user's vector, and federated averaging.

Flower starts Ray, talks to both standard streams and reads its settings from the environment, so it gets a
process of its own (`flower_process`). Only the time between the ends of consecutive aggregations counts:
starting Ray, importing torch in its actor and registering the nodes lie before the first of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from veilrec.bench.workload import Workload
from veilrec.errors import VeilrecError

_TIMEOUT = 600.0  # seconds, for all rounds of a run


class FlowerRun(NamedTuple):
    """What a run of Flower gave."""

    seconds: list[float]  # of every round but the first
    answer: Path  # the last model, as npz


def run_flower(workload: Workload, rounds: int, folder: Path) -> FlowerRun:
    """Run 1 + `rounds` rounds in a fresh process; the first one does not count."""
    question, answer = folder / "workload.npz", folder / "answer.npz"
    workload.save(question)
    # Ray makes unix sockets below its folder, whose paths must stay short.
    with tempfile.TemporaryDirectory(prefix="vr-") as home:
        environment = os.environ | {
            "FLWR_HOME": home,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_LOG_LEVEL": "ERROR",
            "RAY_TMPDIR": home,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
        command = [
            sys.executable,
            "-m",
            "veilrec.bench.flower_process",
            str(question),
            str(answer),
            str(rounds + 1),
        ]
        try:
            done = subprocess.run(  # noqa: S603  (our own module, no shell)
                command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            raise VeilrecError(f"Flower took more than {_TIMEOUT:.0f} s for {rounds + 1} rounds") from None
    if done.returncode != 0 or not answer.exists():
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise VeilrecError(f"Flower ended with code {done.returncode}: {last}")
    seconds: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return FlowerRun(seconds, answer)
