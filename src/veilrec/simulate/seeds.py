"""What a simulation draws from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Seeds:
    """What a simulation draws from. None of them is the public seed, which is part of a plan.

    With a secret, cohorts, reports and noise are streams of a cipher that only its holder can draw: the same again
    after a restart, so that no round is ever released with two noises. Without, everybody can, and nobody is protected.
    """

    draws: int  # of what devices draw locally: negatives, orders, starting vectors
    cohorts: int  # of who takes part, is reached, and drops out
    noise: int
    secret: bytes | None = None

    @classmethod
    def all_from(cls, seed: int, secret: bytes | None = None) -> Seeds:
        """The seeds of a run that was asked for with one number."""
        return cls(seed, seed, seed, secret)
