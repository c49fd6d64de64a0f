"""The made-up population of the contract, and methods built on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from veilrec.audit.contract_subject import COHORT, ITEMS, SEED, ContractSubject, copied, same
from veilrec.methods.base import Problem
from veilrec.methods.registry import METHODS, get
from veilrec.simulation.simulation import Trainer

__all__ = ["COHORT", "ITEMS", "ON_RATINGS", "SEED", "build", "same", "saved_state", "small_problem"]
ON_RATINGS = [name for name in METHODS if "synthetic-ratings" in get(name).datasets]  # the others need news


def small_problem(users: int = 60, seed: int = SEED) -> Problem:
    """A few devices, so that a handful of rounds visits most of them more than once."""
    return ContractSubject("fedmf").problem(users=users, seed=seed)


def build(name: str, problem: Problem, settings: Sequence[str] = (), *, secret: bytes | None = None) -> Trainer:
    """Of a method, or of `method:calibration`."""
    name, _, calibration = name.partition(":")
    return ContractSubject(name, calibration or None).build(problem, *settings, secret=secret)


def saved_state(trainer: Trainer) -> dict[str, Any]:
    """A copy that later steps do not change."""
    return copied(trainer.state())
