"""Server optimisers: SGD, FedAdam and FedYogi on the aggregated update of a round.

The update plays the part of the negative gradient (Reddi et al., Adaptive Federated Optimization, 2021). Symbols: eta
`rate`, beta_1 `momentum`, beta_2 `second_momentum`, tau `caution`, m_t and v_t the first and second moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from veilrec.core.arrays import Floats
from veilrec.core.errors import BadInput, unknown_name


class ServerOptimiser(Protocol):
    """Changes the weights in place; its state survives a restart."""

    def step(self, weights: Mapping[str, Floats], change: Mapping[str, Floats]) -> None:
        """Move the weights by one round."""

    def state(self) -> dict[str, Floats]:
        """Everything that the next step depends on."""

    def load_state(self, state: Mapping[str, Floats]) -> None:
        """Go on from a saved state."""


_LARGEST = 1e12  # whose square, times that of the size of a cohort, is still a number in single precision


@dataclass(frozen=True)
class ServerRate:
    """Settings of the server's step."""

    optimiser: Literal["sgd", "adam", "yogi"] = "sgd"  # what turns the sum of a round into a step
    rate: float = 1.0  # SGD with rate 1 and no momentum is plain averaging (or summing)
    momentum: float = 0.0  # beta_1
    second_momentum: float = 0.99  # beta_2 of FedAdam and FedYogi
    caution: float = 1e-3  # tau: keeps small second moments from giving large steps

    def __post_init__(self) -> None:
        for name in ("rate", "caution"):
            if not 0.0 < getattr(self, name) <= _LARGEST:
                raise BadInput(
                    f"server.{name} is {getattr(self, name)}: it has to be a number above 0 and up to {_LARGEST:g}"
                )
        for name in ("momentum", "second_momentum"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise BadInput(f"server.{name} is {getattr(self, name)}: it has to be from 0 to below 1")


@dataclass(frozen=True)
class Replacing(ServerRate):
    """No optimiser step: the model is the sum of the last round."""


def make_optimiser(settings: ServerRate) -> ServerOptimiser:
    """The optimiser that the settings name."""
    if isinstance(settings, Replacing):
        return Replace()
    if settings.optimiser == "sgd":
        return Sgd(settings)
    if settings.optimiser in ("adam", "yogi"):
        return Adaptive(settings)
    raise unknown_name("server optimiser", settings.optimiser, ("sgd", "adam", "yogi"))


class Sgd:
    """w += rate * m, with m = momentum * m + change."""

    def __init__(self, settings: ServerRate) -> None:
        self.settings = settings
        self._velocity: dict[str, Floats] = {}

    def step(self, weights: Mapping[str, Floats], change: Mapping[str, Floats]) -> None:
        """Move the weights by one round."""
        rate, momentum = np.float32(self.settings.rate), np.float32(self.settings.momentum)
        for name, value in change.items():
            move = value
            if momentum:
                move = self._velocity.get(name, np.float32(0.0)) * momentum + value
                self._velocity[name] = move
            weights[name][...] += move if rate == 1.0 else rate * move

    def state(self) -> dict[str, Floats]:
        """The velocities, when there is momentum."""
        return {f"velocity.{name}": value for name, value in self._velocity.items()}

    def load_state(self, state: Mapping[str, Floats]) -> None:
        """Go on from saved velocities."""
        self._velocity = {name.removeprefix("velocity."): value.copy() for name, value in state.items()}


class Replace:
    """w = change."""

    def step(self, weights: Mapping[str, Floats], change: Mapping[str, Floats]) -> None:
        """Put the sums of a round in the place of those before."""
        for name, value in change.items():
            weights[name][...] = value

    def state(self) -> dict[str, Floats]:
        """Nothing."""
        return {}

    def load_state(self, state: Mapping[str, Floats]) -> None:
        """Nothing is kept."""


class Adaptive:
    """FedAdam and FedYogi (Reddi et al. 2021, Algorithm 2), which differ in the second moment only."""

    def __init__(self, settings: ServerRate) -> None:
        self.settings = settings
        self._first: dict[str, Floats] = {}
        self._second: dict[str, Floats] = {}

    def step(self, weights: Mapping[str, Floats], change: Mapping[str, Floats]) -> None:
        """Move the weights by one round."""
        s = self.settings
        rate, beta1, beta2 = np.float32(s.rate), np.float32(s.momentum), np.float32(s.second_momentum)
        for name, value in change.items():
            square = value * value
            first = self._first.get(name, np.zeros_like(value)) * beta1 + (1 - beta1) * value
            second = self._second.get(name, np.full_like(value, s.caution**2))
            if s.optimiser == "adam":
                second = beta2 * second + (1 - beta2) * square
            else:
                second = second - (1 - beta2) * square * np.sign(second - square)
            self._first[name], self._second[name] = first, second
            weights[name][...] += rate * first / (np.sqrt(second) + np.float32(s.caution))

    def state(self) -> dict[str, Floats]:
        """Both moments."""
        moments = {f"first.{name}": value for name, value in self._first.items()}
        return moments | {f"second.{name}": value for name, value in self._second.items()}

    def load_state(self, state: Mapping[str, Floats]) -> None:
        """Go on from saved moments."""
        self._first, self._second = {}, {}
        for key, value in state.items():
            kind, _, name = key.partition(".")
            (self._first if kind == "first" else self._second)[name] = value.copy()
