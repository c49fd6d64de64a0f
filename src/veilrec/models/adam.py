"""The moments of torch's Adam as named arrays, so that a training can stop and go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def moments_of(optimiser: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The moments and the step count of every parameter that has moved."""
    return {
        f"adam.{name}.{key}": value
        for name, parameter in parameters.items()
        for key, value in optimiser.state[parameter].items()
    }


def load_moments(
    optimiser: torch.optim.Optimizer, parameters: Mapping[str, Tensor], state: Mapping[str, NDArray[Any]]
) -> None:
    """Go on from them."""
    optimiser.state.clear()
    for name, parameter in parameters.items():
        prefix = f"adam.{name}."
        saved = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        if saved:
            optimiser.state[parameter] = {key: torch.tensor(value) for key, value in saved.items()}
