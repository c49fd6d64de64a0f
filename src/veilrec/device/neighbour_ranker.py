"""How neighbours of items rank on a device: from the history in the order of time, and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from veilrec._csr import Csr
from veilrec.device.rankers import Arrays, SettingsAlone
from veilrec.models.neighbours import Neighbours, NeighbourScorer


@dataclass(frozen=True)
class NeighbourRanker(SettingsAlone):
    """Neighbours of the latest items, the newest first: a user is a history."""

    kind: ClassVar[str] = "neighbours"
    decay: float  # of what an item counts, for each that was used after it
    latest: int  # items of a history, at most

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> NeighbourScorer:
        """Known users are those with a history."""
        rows = Csr(weights["offsets"], weights["items"])
        neighbours = Neighbours(rows, weights["values"], weights["rest"], weights["popularity"])
        return NeighbourScorer(neighbours, histories, decay=self.decay, latest=self.latest)


def arrays_of(neighbours: Neighbours) -> Arrays:
    """What a model is saved as."""
    return {
        "offsets": neighbours.rows.offsets,
        "items": neighbours.rows.items,
        "values": neighbours.values,
        "rest": neighbours.rest,
        "popularity": neighbours.popularity,
    }
