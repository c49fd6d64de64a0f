"""The machine that was measured, in the words of a report."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("veilrec", "numpy", "numba", "torch", "pfl", "flwr", "ray")
_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
ONE_THREAD = dict.fromkeys(_POOLS, "1")


def describe() -> dict[str, object]:
    """Processor, cores, load and versions; null for a package that is not installed."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "threads": 1,
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in _PACKAGES},
    }


def installed(package: str) -> str | None:
    """The version of a package, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
