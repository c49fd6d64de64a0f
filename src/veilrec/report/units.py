"""Readable metric names, byte counts and durations."""

from __future__ import annotations

_MEANINGS = {
    "hr": "the share of held-out items that stand among the first {k}",
    "ndcg": "1 when what the user wanted stands first, less the further down it stands, 0 below place {k}",
    "auc": "the chance that a clicked item is ranked above one that was shown and not clicked; 0.5 is chance",
    "mrr": "the mean of one over the place of each clicked item",
}
_SPELT = {"hr": "HR", "ndcg": "nDCG", "auc": "AUC", "mrr": "MRR", "recall": "Recall", "precision": "Precision"}


def spelt(metric: str) -> str:
    """Spell a metric's name as papers do: nDCG@10."""
    base, at, cutoff = metric.partition("@")
    return _SPELT.get(base, base) + at + cutoff


def meaning(metric: str) -> str:
    """Explain a metric in one sentence; empty for an unknown one."""
    base, _, cutoff = metric.partition("@")
    return f"{spelt(metric)} is {_MEANINGS[base].format(k=cutoff)}." if base in _MEANINGS else ""


def human_bytes(count: float) -> str:
    """Format a number of bytes: 2.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(count: float) -> str:
    """Format a duration in seconds: 45 s, 12 min, 3.5 h."""
    if count < 100:
        return f"{count:.0f} s"
    return f"{count / 60:.0f} min" if count < 6000 else f"{count / 3600:.1f} h"


def byte_scale(largest: float) -> tuple[float, str]:
    """Choose the divisor and unit that give a byte axis short numbers."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= size:
            return size, unit
    return 1.0, "bytes"
