"""Optimiser steps of the kernels of networks, eight weights at a time; or no step, and gradients are added up."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from veilrec._arrays import Floats
from veilrec._jit import jit
from veilrec._vector import Vector, load, spread, square_root, store

_ONE = np.float32(1.0)
# States of an optimiser are [slots, 3, width]: the weights of a slot, then Adam's two moments of them.
WEIGHTS, FIRST, SECOND = 0, 1, 2
_BETA_1, _BETA_2 = np.float32(0.9), np.float32(0.999)  # Adam's usual constants
_EPSILON = 1e-8


class Pace(NamedTuple):
    """The corrections of both moments, which all weights share in a step."""

    speed: np.float32  # a factor of the rate
    epsilon: np.float32


@jit
def adam_pace(step: int) -> Pace:
    """The corrections of step 1, 2, ..."""
    correction = np.sqrt(1.0 - float(_BETA_2) ** step)
    speed = correction / (1.0 - float(_BETA_1) ** step)
    return Pace(np.float32(speed), np.float32(_EPSILON * correction))


@jit
def adam(states: Floats, slot: int, q: int, gradient: Vector, rate: np.float32, pace: Pace) -> None:
    """Kingma and Ba 2015, Algorithm 1, for eight weights from number q of a slot on."""
    speed, epsilon = spread(rate * pace.speed), spread(pace.epsilon)
    first = spread(_BETA_1) * load(states, (slot, FIRST, q)) + spread(_ONE - _BETA_1) * gradient
    squared = spread(_ONE - _BETA_2) * gradient * gradient
    second = spread(_BETA_2) * load(states, (slot, SECOND, q)) + squared
    store(states, (slot, FIRST, q), first)
    store(states, (slot, SECOND, q), second)
    weights = load(states, (slot, WEIGHTS, q)) - speed * first / (square_root(second) + epsilon)
    store(states, (slot, WEIGHTS, q), weights)


@jit
def sgd(states: Floats, slot: int, q: int, gradient: Vector, rate: np.float32) -> None:
    """A plain step."""
    place = (slot, WEIGHTS, q)
    store(states, place, load(states, place) - spread(rate) * gradient)


@jit
def gather(states: Floats, slot: int, q: int, gradient: Vector) -> None:
    """Leave the weights; the sum of their gradients grows where Adam has its first moment."""
    place = (slot, FIRST, q)
    store(states, place, load(states, place) + gradient)
