"""Where a report comes from: versions, machine and threads, and nothing that names a person or a folder."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from veilrec import __version__

_PARTS = ("numpy", "scipy", "numba", "torch", "matplotlib")


def provenance() -> dict[str, str]:
    """What a reader needs to run the same again, by name."""
    return {
        "veilrec": __version__,
        "Python": platform.python_version(),
        "Libraries": ", ".join(f"{name} {_version(name)}" for name in _PARTS),
        "Machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "Threads": os.environ.get("OMP_NUM_THREADS", "not limited") + " (OMP_NUM_THREADS)",
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
