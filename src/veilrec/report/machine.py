"""Software and hardware of this machine, for reports and `veilrec doctor`."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from veilrec._version import __version__
from veilrec.core.resources import cache_folder, machine_memory
from veilrec.data.datasets import DATASETS, whereabouts

_NAMED = ("numpy", "scipy", "numba", "torch", "matplotlib")  # in every report
# package, what it is for, the extra that brings it ("" = always needed)
_PARTS = (
    ("numpy", "arrays", ""),
    ("scipy", "linear algebra and statistics", ""),
    ("cryptography", "secure noise, signatures", ""),
    ("safetensors", "checkpoints", ""),
    ("jinja2", "HTML pages", ""),
    ("numba", "compiled kernels", "train"),
    ("torch", "neural models", "train"),
    ("polars", "large files", "train"),
    ("dp-accounting", "privacy accounting", "train"),
    ("matplotlib", "curves in reports", "report"),
    ("starlette", "serve", "serve"),
    ("uvicorn", "serve", "serve"),
    ("msgspec", "serve", "serve"),
    ("optuna", "tune", "tune"),
    ("tensorboard", "train --log tensorboard", "tensorboard"),
    ("mlflow-skinny", "train --log mlflow", "mlflow"),
    ("mkdocs", "these pages as a site: make site", "docs"),
    ("pfl", "a peer in benchmarks/simulate.py", "bench"),
    ("flwr", "a peer in benchmarks/simulate.py", "bench"),
    ("faiss-cpu", "a peer in benchmarks/serve.py", "bench"),
    ("hnswlib", "a peer in benchmarks/serve.py", "bench"),
)


def installed(package: str) -> str | None:
    """Return the version of a package, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def provenance() -> dict[str, str]:
    """Describe software and machine for a report, without names of people or folders."""
    return {
        "veilrec": __version__,
        "Python": platform.python_version(),
        "Libraries": ", ".join(f"{name} {installed(name) or 'not installed'}" for name in _NAMED),
        "Machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "Threads": os.environ.get("OMP_NUM_THREADS", "not limited") + " (OMP_NUM_THREADS)",
    }


def diagnose() -> dict[str, Any]:
    """Collect versions, machine, datasets and problems for `veilrec doctor`, ready for JSON."""
    parts = [_part(*entry) for entry in _PARTS]
    data = [
        {"name": d.name, "found": _place(whereabouts(d)), "get": d.how_to_get} for d in DATASETS.values() if d.marks
    ]
    return {"veilrec": __version__, "machine": _machine(), "parts": parts, "data": data, "problems": _problems(parts)}


def _part(name: str, use: str, extra: str) -> dict[str, str | None]:
    get = f"pip install 'veilrec[{extra}]'" if extra else f"pip install {name}"
    return {"name": name, "version": installed(name), "use": use, "extra": extra, "get": get}


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
