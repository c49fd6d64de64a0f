"""What a task gives back, and how it looks as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RIVALS = ("plain_loop", "pfl", "flower", "numba_limit")


@dataclass(frozen=True)
class Result:
    """One task, measured."""

    name: str
    dataset: str  # what was really used
    devices: int  # in a round
    seconds_per_round: float
    peak_rss_mb: float  # of our own part, before any peer is loaded
    rivals: Mapping[str, float] = field(default_factory=dict)  # seconds per round of those that ran
    extra: Mapping[str, float] = field(default_factory=dict)  # further figures of the task
    notes: tuple[str, ...] = ()  # what did not run, and why

    def to_json(self) -> dict[str, Any]:
        """Ratios above 1 say how many times faster we are; null: not run."""
        seconds = {name: self.rivals.get(name) for name in RIVALS}
        return {
            "name": self.name,
            "seconds_per_round": self.seconds_per_round,
            "clients_per_second": round(self.devices / self.seconds_per_round, 1),
            "peak_rss_mb": round(self.peak_rss_mb, 1),
            "ratios": {
                name: None if value is None else round(value / self.seconds_per_round, 3)
                for name, value in seconds.items()
            },
            "dataset": self.dataset,
            "devices_per_round": self.devices,
            "rival_seconds_per_round": seconds,
            **self.extra,
            "notes": list(self.notes),
        }
