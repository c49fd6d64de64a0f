"""How much of what it looked for an attack has found, and what would be found by chance.

Attackers that practise on devices of their own, settle on the way that finds most, and read those of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np
from scipy.special import betaincinv

from veilrec.attacks.subjects import SEEN, Observation, ObservedClicks, View
from veilrec.core.arrays import Bools, Doubles, Floats, Offsets

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


By = Literal["word-rows", "dense", "sum", "item-rows", "reports", "values"]
Score = Callable[[Observation], Floats]  # of every news that is looked at
_Seen = Mapping[View, Observation]  # of one device


@dataclass(frozen=True)
class AttackFinding:
    """What one attack found in what one adversary sees."""

    view: View
    by: By
    how: str  # which rows or layer gave it away
    uploads: int
    recovery: Recovery

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        about = {"by": self.by, "view": self.view, "seen": SEEN[self.view], "how": self.how, "uploads": self.uploads}
        return about | self.recovery.to_json()


class TrainedAttack(Protocol):
    """An attack: practises on the attacker's own devices, settles on how, and reads those that are attacked."""

    view: View

    def practise(self, seen: Observation) -> None:
        """Take in what is seen of one of the attacker's own devices."""

    def settle(self) -> None:
        """Decide how to read, from what was practised."""

    def read(self, seen: Observation) -> None:
        """Take in what is seen of a device that is attacked."""

    def findings(self, targets: ObservedClicks) -> tuple[AttackFinding, ...]:
        """What was found, held against the truth."""


def found_by(
    readers: Sequence[TrainedAttack], own: Iterable[_Seen], attacked: Iterable[_Seen], targets: ObservedClicks
) -> tuple[AttackFinding, ...]:
    """What readers find in what is seen of those attacked, each in its view, after practising on the own devices."""
    for seen in own:
        for reader in readers:
            reader.practise(seen[reader.view])
    for reader in readers:
        reader.settle()
    for seen in attacked:
        for reader in readers:
            reader.read(seen[reader.view])
    return tuple(finding for reader in readers for finding in reader.findings(targets))


class BestScore:
    """Of several scores the one that finds most on the attacker's own devices."""

    def __init__(self, view: View, by: By, own: ObservedClicks, scores: Mapping[str, Score]) -> None:
        self.view, self._by, self._own, self._scores = view, by, own, scores
        self._practised: list[list[Floats]] = []
        self._read: list[Floats] = []

    def practise(self, seen: Observation) -> None:
        """Take in what is seen of one of the attacker's own devices."""
        self._practised.append([score(seen) for score in self._scores.values()])

    def settle(self) -> None:
        """Decide how to read, from what was practised."""
        best = -1.0
        for at, (name, score) in enumerate(self._scores.items()):
            values = np.array([practised[at] for practised in self._practised])
            usual = Usual.of(values, self._own.clicked)
            recall = of_scores(usual.against(values), self._own.clicked, self._own.shown).recall
            if recall > best:
                best, self._how, self._score, self._usual = recall, name, score, usual
        self._practised.clear()

    def read(self, seen: Observation) -> None:
        """Take in what is seen of a device that is attacked."""
        self._read.append(self._score(seen))

    def findings(self, targets: ObservedClicks) -> tuple[AttackFinding, ...]:
        """What was found, held against the truth."""
        scores = self._usual.against(np.array(self._read))
        recovery = of_scores(scores, targets.clicked, targets.shown)
        return (AttackFinding(self.view, self._by, self._how, len(scores), recovery),)


class LikeOwn:
    """Where no layer meets news vectors: a news scores by how like the upload is to those of own devices with it."""

    def __init__(self, view: View, by: By, own: ObservedClicks) -> None:
        self.view, self._by, self._own = view, by, own
        self._practised: list[Doubles] = []
        self._read: list[Doubles] = []

    def practise(self, seen: Observation) -> None:
        """Take in what is seen of one of the attacker's own devices."""
        self._practised.append(_flat(seen))

    def settle(self) -> None:
        """Decide how to read, from what was practised."""
        return

    def read(self, seen: Observation) -> None:
        """Take in what is seen of a device that is attacked."""
        self._read.append(_flat(seen))

    def findings(self, targets: ObservedClicks) -> tuple[AttackFinding, ...]:
        """What was found, held against the truth."""
        own, read = np.array(self._practised), np.array(self._read)
        among_own = own @ own.T
        np.fill_diagonal(among_own, 0.0)  # nobody is told by itself
        clicked = self._own.clicked.astype(np.float64)
        usual = Usual.of(among_own @ clicked, self._own.clicked)
        recovery = of_scores(usual.against(read @ own.T @ clicked), targets.clicked, targets.shown)
        return (AttackFinding(self.view, self._by, "like uploads of own devices that clicked it", len(read), recovery),)


def _flat(seen: Observation) -> Doubles:
    """All that is seen as one vector of length 1."""
    whole = np.concatenate([values.ravel() for values in seen.values()])
    return np.asarray(whole / max(float(np.linalg.norm(whole)), np.finfo(np.float64).tiny))
