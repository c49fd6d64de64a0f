"""Which items the sub-model has: from the devices' reports (DP-SUB, priv-fedmf-sub, Algorithm 1, server)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Doubles, Indices, Offsets
from veilrec.errors import BadInput
from veilrec.privacy.mechanisms.bits import estimate_frequency
from veilrec.wire import bits


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """From how many reports an item is in."""

    keep_probability: float = 1.0  # that a bit was told as it is
    estimate: bool = True  # whether to undo the lies (eq. 8); FedMF-Sub-RR does not
    threshold: float | None = None  # None: the mean of the frequencies

    def frequencies(self, counts: Offsets | Doubles, reports: int) -> Doubles:
        """How many of the devices have each item, as far as the reports tell."""
        if not self.estimate:
            return np.clip(np.asarray(counts, np.float64) / max(reports, 1), 0.0, 1.0)
        return estimate_frequency(
            np.asarray(counts, np.float64),
            reports,
            keep_probability=self.keep_probability,
            noise_probability=1.0 - self.keep_probability,
        )

    def rows(self, counts: Offsets | Doubles, reports: int) -> Indices:
        """The items above the threshold; all of them if all are used equally often."""
        frequency = self.frequencies(counts, reports)
        level = float(frequency.mean()) if self.threshold is None else self.threshold
        chosen = np.flatnonzero(frequency > level).astype(np.int32)
        if len(chosen):
            return chosen
        if self.threshold is None:
            return np.arange(len(frequency), dtype=np.int32)
        raise BadInput(
            f"selection.threshold is {self.threshold}: no item is used by so many; the most used one has "
            f"frequency {frequency.max():.4g}, give less than that"
        )


class Ballot:
    """Adds up reports as they come in from real devices; a report is counted and forgotten."""

    def __init__(self, n_items: int, round_number: int) -> None:
        self.counts = np.zeros(n_items, np.int64)
        self.reports = 0
        self._round_number = round_number

    def receive(self, message: bytes) -> None:
        """Check and count one report; a bad one raises and changes nothing."""
        self.counts += bits.decode(message, len(self.counts), self._round_number)
        self.reports += 1
