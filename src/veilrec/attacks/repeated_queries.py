"""What n noisy queries of one device reveal of its interests.

Noise that is drawn afresh for every query averages out; a query that is memoised is the same again, and says nothing
new. The mechanisms are those that devices ask with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from veilrec.attacks.recovery import proportion_interval
from veilrec.core.arrays import Doubles
from veilrec.core.errors import BadInput
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import repeated
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.attention import Noise, Normalisation, PrivateAttention, normalise
from veilrec.privacy.mechanisms.base import Calibration, Mechanism
from veilrec.privacy.mechanisms.interests import InterestResponse, Memoised, MemoryAnswerStore
from veilrec.privacy.randomness import SeededSource

Mode = Literal["attention", "interest"]
COUNTS = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True, kw_only=True)
class QueryNoise:
    """How devices ask: the noise on their attention, and what is made of it."""

    epsilon: float = 1.0
    delta: float = 0.0
    clip_norm: float = 1.0
    noise: Noise = "laplace"
    calibration: Calibration = "proven"

    @property
    def normalisation(self) -> Normalisation:
        """As published a device sends SoftPlus, divided by its sum; proven, whoever gets it takes the nearest point."""
        return "softplus" if self.calibration == "as-published" else "simplex"


@dataclass(frozen=True)
class QueryPoint:
    """What is known after n queries of a device, over all devices."""

    queries: int
    found: float  # share of devices whose strongest interest is the one that the attacker names
    interval: tuple[float, float]
    error: float  # half the L1 distance between the attention and what the attacker takes it for, on average
    epsilon_together: float | None  # of all these queries, else in the terms of the claim; None: none is finite


@dataclass(frozen=True)
class RecoveryCurve:
    """One way of asking, over the number of queries."""

    mode: Mode
    memoised: bool
    claimed: Guarantee
    points: tuple[QueryPoint, ...]

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        points = [asdict(point) | {"interval": list(point.interval)} for point in self.points]
        claimed = self.claimed.to_json()
        return {"mode": self.mode, "memoised": self.memoised, "claimed": claimed, "points": points}


def average_queries(
    attention: Doubles, asking: QueryNoise, *, counts: Sequence[int] = COUNTS, seed: int = 0
) -> tuple[RecoveryCurve, ...]:
    """Attack devices with these attention vectors [devices, B], by each mode, with fresh noise and with memoised."""
    if attention.ndim != 2 or not len(attention):
        raise BadInput(f"attention has shape {attention.shape}: give a row for every device")
    if not counts or min(counts) < 1:
        raise BadInput(f"queries are {list(counts)}: give whole numbers from 1 on")
    counts = sorted(set(counts))
    basis = attention.shape[1]
    curves = []
    noisy: Mechanism[Doubles, Any] = PrivateAttention(
        basis=basis,
        clip_norm=asking.clip_norm,
        epsilon=asking.epsilon,
        delta=asking.delta,
        noise=asking.noise,
        calibration=asking.calibration,
    )
    kary = InterestResponse(basis=basis, epsilon=asking.epsilon) if asking.calibration == "proven" else None
    for mode, mechanism in (("attention", noisy), ("interest", kary)):
        if mechanism is None:
            continue
        for memoised in (False, True):
            answers = _asked(mechanism, attention, counts[-1], memoised=memoised, seed=seed)
            guesses = _of_attention(answers, asking) if mode == "attention" else _of_answers(answers, basis)
            points = tuple(
                _point(n, guesses(n), attention, mechanism, memoised=memoised, delta=asking.delta) for n in counts
            )
            curves.append(RecoveryCurve(mode, memoised, _claim(mechanism), points))  # type: ignore[arg-type]
    return tuple(curves)


def best_guess(attention: Doubles) -> float:
    """How often somebody is right who gets no query, and names the interest that is the strongest of most devices."""
    return float(np.bincount(attention.argmax(axis=1)).max() / len(attention))


def _asked(mechanism: Mechanism[Doubles, Any], attention: Doubles, count: int, *, memoised: bool, seed: int) -> Any:
    """What the attacker gets of every device, query by query: [queries, devices, ...]."""
    source = SeededSource(seed)
    if not memoised:
        return np.array([mechanism.release(attention, source).value for _ in range(count)])
    device = Memoised(mechanism, MemoryAnswerStore(), key="an attack")
    return np.array([device.release(attention, source, period=0).value for _ in range(count)])


def _of_attention(answers: Doubles, asking: QueryNoise) -> Any:
    if asking.normalisation == "simplex":
        return lambda n: normalise(answers[:n].mean(axis=0), "simplex")
    return lambda n: normalise(answers[:n], asking.normalisation).mean(axis=0)


def _of_answers(answers: Any, basis: int) -> Any:
    """The interest that was named most often, and nothing else; of equals the one that was named first."""

    def guess(n: int) -> Doubles:
        counts = (answers[:n, :, np.newaxis] == np.arange(basis)).sum(axis=0).astype(np.float64)
        counts[np.arange(len(counts)), answers[0]] += 0.5
        return np.asarray(np.eye(basis)[counts.argmax(axis=1)])

    return guess


def _point(
    n: int, guess: Doubles, attention: Doubles, mechanism: Mechanism[Doubles, Any], *, memoised: bool, delta: float
) -> QueryPoint:
    hits = int(np.count_nonzero(guess.argmax(axis=1) == attention.argmax(axis=1)))
    devices = len(attention)
    interval = proportion_interval(hits, devices)
    error = float(np.abs(guess - attention).sum(axis=1).mean() / 2.0)
    cost = epsilon_of(repeated(mechanism.event(), 1 if memoised else n), delta)
    return QueryPoint(n, hits / devices, interval, error, round(cost, 9) if np.isfinite(cost) else None)


def _claim(mechanism: Mechanism[Doubles, Any]) -> Guarantee:
    proven = mechanism.calibration == "proven"
    epsilon, delta = mechanism.claimed_epsilon, mechanism.claimed_delta
    honest = None if proven else epsilon_of(mechanism.event(), delta)
    known = honest is not None and np.isfinite(honest)
    return Guarantee(
        basis="proven" if proven else "as published",
        unit=mechanism.unit,
        adjacency=mechanism.adjacency,
        epsilon=epsilon,
        delta=delta,
        scope="per message",
        trust="nobody",
        honest_epsilon=honest if known else None,
        honest_delta=delta if known else None,
    )
