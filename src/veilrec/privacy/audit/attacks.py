"""Claims, and ways to attack them: each draws what it needs under both inputs of a worst-case pair and says what that
proves.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from veilrec._arrays import Bools, Doubles, Offsets
from veilrec.privacy.audit.bounds import (
    calibration_p_value,
    epsilon_exact,
    epsilon_from_coordinates,
    epsilon_from_counts,
    epsilon_from_gaussian_scores,
    epsilon_from_guesses,
    epsilon_from_ratios,
    epsilon_from_sampled_scores,
    epsilon_from_scores,
    independence_p_value,
    reach,
    separated,
)
from veilrec.privacy.events import SampledEvent
from veilrec.privacy.guarantee import Adjacency, Basis, Scope, Trust, Unit
from veilrec.privacy.randomness import SeededSource, Source

T = TypeVar("T", bound=np.generic)
Side: TypeAlias = Literal[0, 1]
"""Which input of the pair."""
Draw: TypeAlias = Callable[[Side, int, Source], Any]
"""Draws so many outputs under one input."""
Kind = Literal["proven", "known-bad", "planted"]
Outcome = Literal["holds", "refuted"]
Method = Literal["counts", "Gaussian", "hockey stick", "enumeration", "support", "one run", "coordinates"]

_CHUNK = 50_000  # draws at a time, so that wide outputs stay small in memory


@dataclass(frozen=True)
class Allowance:
    """What one attack may use: its seed, how many times its own number of draws, and its share of false alarms."""

    seed: tuple[int, ...]
    effort: int
    alpha: float

    def source(self, name: str, side: Side) -> SeededSource:
        """A stream of its own for every attack and side."""
        return SeededSource(*self.seed, zlib.crc32(name.encode()), side)


@dataclass(frozen=True)
class Evidence:
    """What an attack has proven."""

    lower_bound: float
    method: Method
    reach: float  # what it proves of an event that happens half the time or never
    no_epsilon: bool = False  # the outputs show something that no epsilon allows
    broken: bool = False  # the draws do not follow the law that the attack builds on


class Attack(ABC):
    """One test of one claim."""

    @abstractmethod
    def run(self, name: str, delta: float, allowance: Allowance) -> Evidence:
        """Attack, and report the bound on epsilon at delta."""


@dataclass(frozen=True)
class Scores(Attack):
    """A number per output, high for the first input; `law` says what is known of it.

    any: nothing, so thresholds are counted; gaussian: the noise in it is Gaussian; ratio: it is the log-likelihood
    ratio of the stated law, which is put on trial before it is believed.
    """

    draw: Callable[[Side, int, Source], Doubles]
    draws: int
    law: Literal["any", "gaussian", "ratio"] = "any"
    sampled: SampledEvent | None = None  # where the person is part of the message only by chance

    def run(self, name: str, delta: float, allowance: Allowance) -> Evidence:
        """Score draws of both inputs."""
        count = self.draws * allowance.effort
        first, second = _both_sides(self.draw, count, name, allowance)
        if self.law == "gaussian":
            return Evidence(self._gaussian(first, second, delta, allowance.alpha), "Gaussian", math.inf)
        if self.law == "ratio":
            believed = calibration_p_value(first, second) > allowance.alpha
            bound = epsilon_from_ratios(first, delta=delta, alpha=allowance.alpha) if believed else 0.0
            return Evidence(bound, "hockey stick", math.inf, broken=not believed)
        bound = epsilon_from_scores(first, second, delta=delta, alpha=allowance.alpha)
        return Evidence(bound, "counts", reach(count // 2, alpha=allowance.alpha, delta=delta))

    def _gaussian(self, first: Doubles, second: Doubles, delta: float, alpha: float) -> float:
        if self.sampled is None:
            return epsilon_from_gaussian_scores(first, second, delta=delta, alpha=alpha)
        return epsilon_from_sampled_scores(first, second, event=self.sampled, delta=delta, alpha=alpha)


@dataclass(frozen=True)
class Coordinates(Attack):
    """A score for each of several coordinates with noise of their own, `[n, k]`; for claims of delta 0."""

    draw: Callable[[Side, int, Source], Doubles]
    draws: int

    def run(self, name: str, delta: float, allowance: Allowance) -> Evidence:
        """Score every coordinate of draws of both inputs."""
        if delta != 0.0:
            raise ValueError(f"delta is {delta}: this attack is on claims of delta 0")
        count = self.draws * allowance.effort
        first, second = _both_sides(self.draw, count, name, allowance)
        most = first.shape[1] * reach(first.size // 2, alpha=allowance.alpha)
        if min(independence_p_value(scores) for scores in (first, second)) <= allowance.alpha / 2:
            return Evidence(0.0, "coordinates", most, broken=True)
        return Evidence(epsilon_from_coordinates(first, second, alpha=allowance.alpha), "coordinates", most)


@dataclass(frozen=True)
class SupportEvent(Attack):
    """Something about the support of the output: what is there, not how likely it is."""

    draw: Callable[[Side, int, Source], Bools]
    draws: int

    def run(self, name: str, delta: float, allowance: Allowance) -> Evidence:
        """Count the event on both sides; the likelier side is chosen on the first halves."""
        count = self.draws * allowance.effort
        first, second = _both_sides(self.draw, count, name, allowance)
        half = count // 2
        if first[:half].sum() < second[:half].sum():
            first, second = second, first
        hits, others = int(first[half:].sum()), int(second[half:].sum())
        trials = count - half
        bound = epsilon_from_counts(hits, trials, others, trials, delta=delta, alpha=allowance.alpha)
        return Evidence(
            bound,
            "support",
            reach(trials, alpha=allowance.alpha, delta=delta),
            no_epsilon=separated(hits, others, trials, delta=delta, alpha=allowance.alpha),
        )


@dataclass(frozen=True)
class Table(Attack):
    """All outputs of a discrete mechanism with their probabilities, and draws that must follow them."""

    first: Doubles
    second: Doubles
    draw: Callable[[Side, int, Source], Offsets]  # -> numbers of outputs, in the order of the tables
    draws: int

    def run(self, name: str, delta: float, allowance: Allowance) -> Evidence:
        """Exact, if the code draws from the tables (chi-square); otherwise nothing is proven."""
        count = self.draws * allowance.effort
        drawn = _both_sides(self.draw, count, name, allowance)
        fits = (fit_p_value(*pair) for pair in zip(drawn, (self.first, self.second), strict=True))
        if min(fits) <= allowance.alpha / 2:
            return Evidence(0.0, "enumeration", math.inf, broken=True)
        exact = epsilon_exact(self.first, self.second, delta=delta)
        # Exact but for rounding: 1e-9 is not a refutation.
        return Evidence(exact * (1.0 - 1e-9), "enumeration", math.inf, no_epsilon=exact == math.inf)


@dataclass(frozen=True)
class Guesses(Attack):
    """One output made of many independent bits; each is guessed from it."""

    correct: Callable[[int, Source], int]  # (number of bits, source) -> how many guesses were right
    bits: int

    def run(self, name: str, delta: float, allowance: Allowance) -> Evidence:
        """Guess every bit."""
        bits = self.bits * allowance.effort
        right = self.correct(bits, allowance.source(name, 0))
        bound = epsilon_from_guesses(right, bits, delta=delta, canaries=bits, alpha=allowance.alpha)
        most = epsilon_from_guesses(bits, bits, delta=delta, canaries=bits, alpha=allowance.alpha)
        return Evidence(bound, "one run", most)


def fit_p_value(drawn: Offsets, table: Doubles) -> float:
    """How surprising draws are if they follow a table of probabilities (chi-square, rare outputs together)."""
    seen = np.bincount(drawn, minlength=len(table)).astype(np.float64)
    if len(seen) > len(table) or seen[table == 0.0].any():
        return 0.0
    expected = table * len(drawn)
    rare = expected < 5.0
    seen = np.append(seen[~rare], seen[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    kept = expected > 0.0
    statistic = float(np.sum((seen[kept] - expected[kept]) ** 2 / expected[kept]))
    return float(chdtrc(max(1, int(kept.sum()) - 1), statistic))


def _both_sides(
    draw: Callable[[Side, int, Source], NDArray[T]], count: int, name: str, allowance: Allowance
) -> tuple[NDArray[T], NDArray[T]]:
    return (_chunked(draw, 0, count, allowance.source(name, 0)), _chunked(draw, 1, count, allowance.source(name, 1)))


def _chunked(draw: Callable[[Side, int, Source], NDArray[T]], side: Side, count: int, source: Source) -> NDArray[T]:
    sizes = [_CHUNK] * (count // _CHUNK) + ([count % _CHUNK] if count % _CHUNK else [])
    return np.concatenate([draw(side, size, source) for size in sizes])


@dataclass(frozen=True)
class Case:
    """What is claimed of one release, and how it is attacked."""

    name: str
    kind: Kind
    calibration: Literal["proven", "as-published", "planted"]
    unit: Unit
    adjacency: Adjacency
    claimed_epsilon: float
    delta: float
    attacks: tuple[Attack, ...]
    scope: Scope = "per message"
    trust: Trust = "nobody"
    size: str = ""  # of the instance that is attacked
    why: str = ""  # what is wrong with a known-bad or planted one

    @property
    def key(self) -> str:
        """What tells it from all other cases."""
        claim = f"{self.claimed_epsilon} {self.delta} {self.unit} {self.adjacency}"
        return f"{self.name} {self.calibration} {self.size} {claim}"

    @property
    def basis(self) -> Basis:
        """What the claim rests on; that of a planted bug rests on nothing."""
        bases: dict[str, Basis] = {"proven": "proven", "as-published": "as published", "planted": "none"}
        return bases[self.calibration]

    @property
    def expected(self) -> Outcome:
        """What an audit that works says of it."""
        return "holds" if self.kind == "proven" else "refuted"
