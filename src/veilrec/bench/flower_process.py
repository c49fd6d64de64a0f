"""The process in which Flower runs: `python -m veilrec.bench.flower_process WORKLOAD ANSWER ROUNDS`."""

from __future__ import annotations

import sys
from pathlib import Path

from veilrec.bench.flower_apps import simulate

if __name__ == "__main__":
    simulate(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
