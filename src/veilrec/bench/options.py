"""What the user of the benchmark can choose."""

from __future__ import annotations

from dataclasses import dataclass

from veilrec.bench.timing import Plan


@dataclass(frozen=True)
class Options:
    """How long to measure, and against whom."""

    repeats: int = 7
    quick: bool = False  # fewer and smaller measurements: to see that it works, not to quote
    peers: bool = True  # also run pfl and Flower where they are installed

    @property
    def plan(self) -> Plan:
        """How the contenders of a round take turns."""
        return Plan(self.repeats, rounds=1, laps=3) if self.quick else Plan(self.repeats)
