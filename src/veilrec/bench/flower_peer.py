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
        settings = {
            "FLWR_HOME": home,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_LOG_LEVEL": "ERROR",
            "RAY_TMPDIR": home,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        code, words, complaints = _run([str(question), str(answer), str(rounds + 1)], os.environ | settings)
    if code != 0 or not answer.exists():
        last = (complaints.strip().splitlines() or ["it said nothing"])[-1]
        raise VeilrecError(f"Flower ended with code {code}: {last}")
    return FlowerRun(json.loads(words.strip().splitlines()[-1]), answer)


def _run(arguments: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Code and both streams of the process; one that takes too long is asked to end itself and Ray."""
    with subprocess.Popen(  # noqa: S603  (our own module, no shell)
        [sys.executable, "-m", "veilrec.bench.flower_process", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            words, complaints = process.communicate(timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise VeilrecError(f"Flower was stopped after {_TIMEOUT:g} s") from None
        return process.returncode, words, complaints
