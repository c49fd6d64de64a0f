"""What `veilrec doctor` finds out about this machine."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from veilrec import __version__
from veilrec._memory import machine_memory
from veilrec.data.cache import cache_folder
from veilrec.data.registry import DATASETS
from veilrec.data.spec import whereabouts

# package, what it is for, the extra that brings it ("" = always needed)
PARTS = (
    ("numpy", "arrays", ""),
    ("scipy", "linear algebra and statistics", ""),
    ("numba", "compiled device kernels", ""),
    ("torch", "neural models", ""),
    ("polars", "large files", ""),
    ("safetensors", "checkpoints", ""),
    ("matplotlib", "curves in reports", ""),
    ("tensorboard", "train --log tensorboard", "tensorboard"),
    ("mlflow-skinny", "train --log mlflow", "mlflow"),
    ("pfl", "a peer in bench simulate", "bench"),
    ("flwr", "a peer in bench simulate", "bench"),
)


def diagnose() -> dict[str, Any]:
    """Versions, machine, data sets and problems, ready for JSON."""
    parts = [_part(*entry) for entry in PARTS]
    data = [
        {"name": d.name, "found": _place(whereabouts(d)), "get": d.how_to_get} for d in DATASETS.values() if d.marks
    ]
    return {"veilrec": __version__, "machine": _machine(), "parts": parts, "data": data, "problems": _problems(parts)}


def _part(name: str, use: str, extra: str) -> dict[str, str | None]:
    try:
        found: str | None = version(name)
    except PackageNotFoundError:
        found = None
    get = f"pip install 'veilrec[{extra}]'" if extra else f"pip install {name}"
    return {"name": name, "version": found, "use": use, "extra": extra, "get": get}


def _place(folder: Path | None) -> str | None:
    return str(folder) if folder is not None else None


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _machine() -> dict[str, Any]:
    cache = _existing(cache_folder())
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": os.cpu_count() or 1,
        "threads": os.environ.get("OMP_NUM_THREADS", "not limited"),
        "memory_gb": machine_memory() / 1e9,
        "disk_free_gb": shutil.disk_usage(cache).free / 1e9,
        "cache": str(cache_folder()),
        "cache_writable": os.access(cache, os.W_OK),
    }


def _problems(parts: list[dict[str, str | None]]) -> list[str]:
    machine = _machine()
    problems = [f"{p['name']} is missing: {p['get']}" for p in parts if not p["extra"] and p["version"] is None]
    if not machine["cache_writable"]:
        problems.append(f"the cache folder {machine['cache']} cannot be written: set VEILREC_CACHE to another one")
    if machine["disk_free_gb"] < 1.0:
        problems.append("less than 1 GB of disk is free in the cache folder")
    return problems
