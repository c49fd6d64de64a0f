"""Which model a run keeps: the trained one where people who only judge gain by it, and the start elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from veilrec._arrays import Doubles
from veilrec.privacy.mechanisms.gains import GainSum
from veilrec.privacy.randomness import Source
from veilrec.wire import gains


@dataclass(frozen=True)
class Verdict:
    """What came of the last comparison: covered by noise but for the number of judges, which is public."""

    kept: Literal["start", "trained"]
    gain: float  # noisy mean of the clipped gains
    threshold: float  # that it had to exceed
    judges: int  # how many, which is public

    def to_json(self) -> dict[str, Any]:
        """For result.json."""
        return asdict(self)

    def line(self) -> str:
        """For whoever trained."""
        if self.judges == 0:
            return "Nobody was left to judge what was learnt, and the start is kept: it takes more people."
        kept = "the trained model" if self.kept == "trained" else "the start"
        compared = "more than" if self.kept == "trained" else "not more than"
        return (
            f"{self.judges:,} devices that never learnt compared the trained model with the start, and {kept} is kept:"
            f" the noisy mean of their gains, each clipped, is {self.gain:.4f}, {compared} the {self.threshold:.4f}"
            " that noise and chance explain."
        )

    def state(self) -> Doubles:
        """For a checkpoint."""
        return np.array([self.kept == "trained", self.gain, self.threshold, self.judges], np.float64)

    @classmethod
    def restored(cls, state: Doubles) -> Verdict:
        """From a checkpoint."""
        trained, gain, threshold, judges = state.tolist()
        return cls("trained" if trained else "start", gain, threshold, int(judges))


def verdict_of(messages: Iterable[bytes], mechanism: GainSum, noise: Source) -> Verdict:
    """What came of all that judges sent, one message each; a bad one raises, and nothing is drawn."""
    told = [gains.decode(message) for message in messages]
    for gain in told:
        mechanism.check(gain)
    noisy = mechanism.protect(np.array([mechanism.total(np.array(told, np.float64))]), noise)
    return decide(float(noisy[0]), len(told), mechanism)


def decide(noisy_sum: float, judges: int, mechanism: GainSum) -> Verdict:
    """The trained model only where its noisy mean gain exceeds what noise and chance explain; without judges never."""
    if judges == 0:
        return Verdict("start", 0.0, mechanism.clip, 0)
    gain, threshold = noisy_sum / judges, mechanism.threshold(judges)
    return Verdict("trained" if gain > threshold else "start", gain, threshold, judges)
