"""Attackers that practise on devices of their own, settle on the way that finds most, and read those of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from veilrec._arrays import Doubles, Floats
from veilrec.simulate.attacks.observed import SEEN, Clicks, Observation, View
from veilrec.simulate.attacks.recovery import Recovery, Usual, of_scores

By = Literal["word-rows", "dense", "sum", "item-rows", "reports", "values"]
Score = Callable[[Observation], Floats]  # of every news that is looked at
_Seen = Mapping[View, Observation]  # of one device


@dataclass(frozen=True)
class Finding:
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


class Reader(Protocol):
    """An attack: practises on the attacker's own devices, settles on how, and reads those that are attacked."""

    view: View

    def practise(self, seen: Observation) -> None:
        """Take in what is seen of one of the attacker's own devices."""

    def settle(self) -> None:
        """Decide how to read, from what was practised."""

    def read(self, seen: Observation) -> None:
        """Take in what is seen of a device that is attacked."""

    def findings(self, targets: Clicks) -> tuple[Finding, ...]:
        """What was found, held against the truth."""


def found_by(
    readers: Sequence[Reader], own: Iterable[_Seen], attacked: Iterable[_Seen], targets: Clicks
) -> tuple[Finding, ...]:
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

    def __init__(self, view: View, by: By, own: Clicks, scores: Mapping[str, Score]) -> None:
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

    def findings(self, targets: Clicks) -> tuple[Finding, ...]:
        """What was found, held against the truth."""
        scores = self._usual.against(np.array(self._read))
        recovery = of_scores(scores, targets.clicked, targets.shown)
        return (Finding(self.view, self._by, self._how, len(scores), recovery),)


class LikeOwn:
    """Where no layer meets news vectors: a news scores by how like the upload is to those of own devices with it."""

    def __init__(self, view: View, by: By, own: Clicks) -> None:
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

    def findings(self, targets: Clicks) -> tuple[Finding, ...]:
        """What was found, held against the truth."""
        own, read = np.array(self._practised), np.array(self._read)
        among_own = own @ own.T
        np.fill_diagonal(among_own, 0.0)  # nobody is told by itself
        clicked = self._own.clicked.astype(np.float64)
        usual = Usual.of(among_own @ clicked, self._own.clicked)
        recovery = of_scores(usual.against(read @ own.T @ clicked), targets.clicked, targets.shown)
        return (Finding(self.view, self._by, "like uploads of own devices that clicked it", len(read), recovery),)


def _flat(seen: Observation) -> Doubles:
    """All that is seen as one vector of length 1."""
    whole = np.concatenate([values.ravel() for values in seen.values()])
    return np.asarray(whole / max(float(np.linalg.norm(whole)), np.finfo(np.float64).tiny))
