"""Updates that a device makes of nothing but what it has already told under local noise."""

from __future__ import annotations

import math
from typing import ClassVar, Self

import numpy as np

from veilrec._arrays import Doubles
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.checks import positive, whole
from veilrec.privacy.events import ComposedEvent, Event
from veilrec.privacy.mechanisms.attention import AttentionNoise
from veilrec.privacy.mechanisms.base import Calibration
from veilrec.privacy.mechanisms.bounding import BadUpdate, clip_whole, upload_norms
from veilrec.privacy.mechanisms.responses import Labels
from veilrec.privacy.mechanisms.updates import UpdateMechanism
from veilrec.updates import Round, Schema, Tensor, Uploads


class MadeOfReports(UpdateMechanism):
    """The attention and the label of some impressions are told with noise; the update is computed from these alone.

    So the update costs what they cost, whatever is done with them, and the clip norm only keeps it from harming the
    sum. The unit is a user, whose whole history and every click may change; what the user was shown stays.
    """

    name = "made-of-reports"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)

    def __init__(
        self, *, schema: Schema, attention: AttentionNoise, labels: Labels, samples: int, clip_norm: float
    ) -> None:
        self._set_calibration("proven")
        positive(clip_norm=clip_norm)
        whole(samples=samples)
        self.unit, self.adjacency = "user", "replace-one"
        self.schema, self.attention, self.labels = schema, attention, labels
        self.samples, self.clip_norm = samples, clip_norm
        self.sensitivity = attention.sensitivity
        self.claimed_epsilon, self.claimed_delta = epsilon_of(self.event(), 0.0), 0.0

    def bound(self, uploads: Uploads, about: Round) -> Uploads:
        """Scale down every update that is longer than the bound."""
        return clip_whole(uploads, self.clip_norm)

    def reach(self, tensor: Tensor, about: Round, weight: int = 1) -> float:
        """No number is larger than the whole update."""
        return weight * self.clip_norm

    def check(self, uploads: Uploads, about: Round) -> None:
        """Refuse an update that is longer than the bound: it would harm the sum."""
        norms = upload_norms(uploads)
        if not (norms <= self.clip_norm).all():
            raise BadUpdate(f"an update has norm {norms.max():.6g}: this round takes at most {self.clip_norm:.6g}")

    def event(self) -> Event:
        """An attention vector and a label for every impression of a message."""
        return ComposedEvent(((self.attention.event(), self.samples), (self.labels.event(), self.samples)))

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Any two updates: what they are made of is audited by itself."""
        largest = np.full(self.dimension, self.clip_norm / math.sqrt(self.dimension))
        return largest, -largest

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """None: the noise is that of `attention` and `label-response`, which have theirs."""
        return ()
