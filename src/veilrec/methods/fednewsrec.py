"""FedNewsRec: news recommendation learnt on devices (Qi et al. 2020).

A round: every device of the cohort sends the gradient of its loss (eq. 2, 3); the server averages the gradients by the
number of clicks (eq. 6) and steps (eq. 7). As published, a device clips its gradient entry by entry and adds Laplace
noise (eq. 4, 5). Proven: the whole update of a user is clipped, all weigh the same, and the sum gets Gaussian noise.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from veilrec.device.protection import Protection, Unprotected, WholeUpdateClip
from veilrec.methods.base import Config, Method, Problem
from veilrec.methods.news_common import (
    DATASETS,
    FEDNEWSREC,
    PAPER_SIZES,
    Count,
    NotNegative,
    Positive,
    SizeConfig,
    TextConfig,
    news_of,
)
from veilrec.privacy.accounting import Rounds, noise_multiplier_for
from veilrec.privacy.checks import probability
from veilrec.privacy.guarantee import Adjacency, Guarantee, no_guarantee
from veilrec.server.aggregate import Aggregation
from veilrec.server.optimise import ServerRate
from veilrec.simulate.cohort import CohortSettings
from veilrec.simulate.trainer import Trainer

# Table 2: (AUC, MRR, nDCG@5, nDCG@10) in per cent
PAPER = {"msn-news": (64.65, 30.60, 33.03, 38.77), "adressa": (69.91, 35.55, 33.74, 41.47)}

Calibration = Literal["none", "as-published", "proven"]


class NewsPrivacy(Config):
    """What is promised, and what is cut off to keep the promise."""

    epsilon: Positive = 8.0  # proven: of a user, over the whole run
    delta: Positive = 1e-6
    clip_norm: Positive = 0.1  # proven: of a user's whole update of a round
    clip_value: Positive = 0.005  # as published: delta of eq. 4, of every entry
    scale: NotNegative = 0.015  # as published: lambda of eq. 5

    @model_validator(mode="after")
    def _check(self) -> NewsPrivacy:
        probability(delta=self.delta)
        return self


class FedNewsConfig(Config):
    """Settings of FedNewsRec."""

    calibration: Calibration = "none"
    network: Literal["fednewsrec", "fednewsrec-long", "fednewsrec-short"] = "fednewsrec"
    size: SizeConfig = SizeConfig(dropout=0.0)
    text: TextConfig = TextConfig()
    negatives: Count = 4  # H of eq. 3
    history: Count = 50  # the latest clicks that a user is known by
    cohort: CohortSettings = CohortSettings(size=200)
    aggregation: Aggregation = "weighted-mean"  # eq. 6; proven: all weigh the same
    server: ServerRate = ServerRate(optimiser="adam", rate=0.003, momentum=0.9, caution=1e-5)
    privacy: NewsPrivacy = NewsPrivacy()
    popular_words: Count = Field(default=1)


def build(config: FedNewsConfig, problem: Problem) -> Trainer:
    """Put the parts together; noise is chosen before the first round."""
    raise NotImplementedError
