"""How SASRec ranks on a device: from the history in the order of time, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from veilrec._csr import Csr
from veilrec.device.rankers import Arrays, SettingsAlone
from veilrec.models.sasrec_scores import SasRecScorer


@dataclass(frozen=True)
class SasRecRanker(SettingsAlone):
    """Self-attention over the latest items: a user is a history."""

    kind: ClassVar[str] = "self-attention"

    def model(self, weights: Arrays, private: Arrays, histories: Csr) -> SasRecScorer:
        """Known users are those with a history."""
        return SasRecScorer(weights, histories)
