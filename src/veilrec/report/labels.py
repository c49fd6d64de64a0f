"""Readable names of metrics, byte counts and durations, and the software that made a report."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from veilrec._version import __version__

_MEANINGS = {
    "hr": "the share of held-out items that stand among the first {k}",
    "ndcg": "1 when what the user wanted stands first, less the further down it stands, 0 below place {k}",
    "auc": "the chance that a clicked item is ranked above one that was shown and not clicked; 0.5 is chance",
    "mrr": "the mean of one over the place of each clicked item",
}
_SPELT = {"hr": "HR", "ndcg": "nDCG", "auc": "AUC", "mrr": "MRR", "recall": "Recall", "precision": "Precision"}
_NAMED = ("numpy", "scipy", "numba", "torch", "matplotlib")  # in every report


def spelt(metric: str) -> str:
    """Spell a metric's name as papers do: nDCG@10."""
    base, at, cutoff = metric.partition("@")
    return _SPELT.get(base, base) + at + cutoff


def meaning(metric: str) -> str:
    """Explain a metric in one sentence; empty for an unknown one."""
    base, _, cutoff = metric.partition("@")
    return f"{spelt(metric)} is {_MEANINGS[base].format(k=cutoff)}." if base in _MEANINGS else ""


def human_seconds(count: float) -> str:
    """Format a duration in seconds: 45 s, 12 min, 3.5 h."""
    if count < 100:
        return f"{count:.0f} s"
    return f"{count / 60:.0f} min" if count < 6000 else f"{count / 3600:.1f} h"


def human_bytes(count: float) -> str:
    """Format a number of bytes: 2.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def byte_scale(largest: float) -> tuple[float, str]:
    """Choose the divisor and unit that give a byte axis short numbers."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= size:
            return size, unit
    return 1.0, "bytes"


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
