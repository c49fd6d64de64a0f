"""How much of what it looked for an attack has found, and what would be found by chance."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import betaincinv

from veilrec._arrays import Bools, Doubles, Floats, Offsets

FALSE_POSITIVES = 0.01  # that an attack with scores may make
CONFIDENCE = 0.95  # of intervals


@dataclass(frozen=True)
class Recovery:
    """Of the clicked news that an attack looked for, how many it found; and how many others it took for clicked."""

    clicks: int
    found: int
    recall: float
    interval: tuple[float, float]  # of the recall, clicks of one upload being found or missed together
    false_positive_rate: float  # of the news that were not clicked
    chance: float  # recall of somebody who names every news as often, and does not look at the upload

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self) | {"interval": list(self.interval), "confidence": CONFIDENCE}


def of_flags(flagged: Bools, clicked: Bools, known: Bools) -> Recovery:
    """Of news that were flagged, [uploads, news] each; what is known anyway does not count."""
    found, clicks = (flagged & clicked).sum(axis=1), clicked.sum(axis=1)
    hits, total = int(found.sum()), int(clicks.sum())
    others = ~clicked & ~known
    of_news, of_others = (flagged & others).sum(axis=0), others.sum(axis=0)
    wrong = of_news / np.maximum(of_others, 1)  # of every news, by those who did not click it
    chance = float((wrong * clicked.sum(axis=0)).sum()) / max(1, total)
    rate = int(of_news.sum()) / max(1, int(of_others.sum()))
    return Recovery(total, hits, hits / max(1, total), _interval(found, clicks), rate, chance)


def of_scores(scores: Floats | Doubles, clicked: Bools, known: Bools) -> Recovery:
    """Of news by their scores, with the threshold that one of a hundred of the others passes at most."""
    others = scores[~clicked & ~known]
    allowed = int(FALSE_POSITIVES * len(others))
    threshold = np.partition(others, len(others) - 1 - allowed)[len(others) - 1 - allowed] if len(others) else np.inf
    return of_flags(scores > threshold, clicked, known)


def _interval(found: Offsets, clicks: Offsets) -> tuple[float, float]:
    """Clopper-Pearson, for fewer clicks where uploads differ more than independent clicks would make them.

    The number of clicks is divided by the design effect: the variance of the recall between uploads over that of as
    many independent clicks.
    """
    total = float(clicks.sum())
    if total == 0.0:
        return 0.0, 1.0
    recall = float(found.sum()) / total
    effect = 1.0
    if 0.0 < recall < 1.0 and len(clicks) > 1:
        spread = float(((found - recall * clicks) ** 2).sum()) * len(clicks) / (len(clicks) - 1)
        effect = max(1.0, spread / (recall * (1.0 - recall) * total))
    return proportion_interval(recall * total / effect, total / effect)


def proportion_interval(hits: float, trials: float) -> tuple[float, float]:
    """Clopper-Pearson."""
    alpha = (1.0 - CONFIDENCE) / 2
    low = float(betaincinv(hits, trials - hits + 1.0, alpha)) if hits > 0.0 else 0.0
    high = float(betaincinv(hits + 1.0, trials - hits, 1.0 - alpha)) if hits < trials else 1.0
    return low, high


@dataclass(frozen=True)
class Usual:
    """What the score of every news is when nobody has clicked it, from uploads of the attacker's own devices.

    Popular news, long titles and common words score high for everybody; measured against what is usual for a news, a
    score says something of one user, and an attack that learns nothing finds what chance finds.
    """

    mean: Doubles  # [news]
    spread: Doubles

    @classmethod
    def of(cls, scores: Floats | Doubles, clicked: Bools) -> Usual:
        """From scores [uploads, news] of devices whose clicks the attacker knows."""
        others = ~clicked
        count = np.maximum(others.sum(axis=0), 1)
        mean = np.where(others, scores, 0.0).sum(axis=0, dtype=np.float64) / count
        square = np.where(others, (scores - mean) ** 2, 0.0).sum(axis=0, dtype=np.float64) / count
        spread = np.sqrt(square)
        typical = float(np.median(spread))
        # A news whose score hardly ever moves would pass any threshold at the first touch.
        return cls(mean, np.maximum(spread, typical / 3.0 if typical > 0.0 else 1.0))

    def against(self, scores: Floats | Doubles) -> Doubles:
        """How unusual scores are."""
        unusual: Doubles = (scores - self.mean) / self.spread
        return unusual
