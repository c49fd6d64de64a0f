"""The runs of a row: its presets, its calibrations, its seeds; and why some of them cannot be."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from veilrec import __version__
from veilrec.data.spec import load
from veilrec.errors import BadInput
from veilrec.methods.base import Method, configure, preset_names
from veilrec.methods.registry import METHODS, get
from veilrec.report.reproduce.experiment import Quick, Row
from veilrec.runs.training import Request, absolute

_QUICK_POINTS = 5  # of a quick curve


@dataclass(frozen=True)
class Trial:
    """One run and its folder, whose name says what is in it and changes with every setting."""

    request: Request
    folder: Path


@dataclass(frozen=True)
class Variant:
    """A row in one preset and one calibration; no trials where it cannot be run, and then why."""

    row: Row
    preset: str
    calibration: str | None
    trials: tuple[Trial, ...] = ()
    problem: str = ""

    @property
    def how(self) -> str:
        """Preset and calibration in words."""
        return ", ".join(filter(None, (self.preset, self.calibration)))


@dataclass(frozen=True)
class Conditions:
    """What all rows of a panel are run under."""

    data: str
    protocol: str
    seeds: tuple[int, ...]
    presets: tuple[str, ...]  # only these
    calibrations: tuple[str, ...]  # only these, of methods that have them
    quick: Quick | None  # None: at full length
    runs: Path  # folder of all runs


def variants_of(row: Row, conditions: Conditions) -> list[Variant]:
    """Every way in which a row is run."""
    presets = [preset for preset in row.presets if preset in conditions.presets]
    if conditions.quick is not None and "tuned" in presets:
        presets = ["tuned"]
    if row.method not in METHODS:
        problem = f"not available: this version has no method {row.method}"
        return [Variant(row, preset, None, problem=problem) for preset in presets[-1:]]
    method = get(row.method)
    has_them = "calibration" in method.config.model_fields
    calibrations = [c for c in row.calibrations if c in conditions.calibrations] if has_them else [None]
    return [
        _variant(method, row, preset, calibration, conditions) for preset in presets for calibration in calibrations
    ]


def _variant(method: Method[Any], row: Row, preset: str, calibration: str | None, conditions: Conditions) -> Variant:
    if preset not in preset_names(method):
        problem = f"not available: {method.name} has no preset {preset}"
        return Variant(row, preset, calibration, problem=problem)
    try:
        settings = _settings(method, row, preset, calibration, conditions)
        trials = [_trial(method, preset, settings, seed, conditions) for seed in conditions.seeds]
    except BadInput as error:
        return Variant(row, preset, calibration, problem=f"not available: {error}")
    return Variant(row, preset, calibration, tuple(trials))


def _settings(
    method: Method[Any], row: Row, preset: str, calibration: str | None, conditions: Conditions
) -> tuple[str, ...]:
    settings = row.settings
    if conditions.quick is not None and method.kind == "federated":
        settings = (*conditions.quick.settings, *settings)
    if row.share is not None:
        settings = (*settings, f"cohort.size={max(1, round(row.share * _learners(conditions.data)))}")
    if (preset, calibration) == ("tuned", "as-published"):
        settings = (*settings, *row.tuned_as_published)
    return settings if calibration is None else (*settings, f"calibration={calibration}")


@lru_cache(maxsize=4)
def _learners(data: str) -> int:
    """How many users have anything to learn from."""
    population = load(data)
    train = population.impressions.get("train")
    return population.n_users if train is None else len(np.unique(train.users))


def _trial(method: Method[Any], preset: str, settings: tuple[str, ...], seed: int, conditions: Conditions) -> Trial:
    dataset, quick = conditions.data.partition(":")[0], conditions.quick
    config, rounds = configure(method, preset=preset, dataset=dataset, settings=settings)
    every = None
    if quick is not None:
        rounds = quick.rounds if method.kind == "federated" else quick.epochs
        every = max(1, rounds // _QUICK_POINTS)
    request = Request(
        method.name, conditions.data, seed, conditions.protocol, preset, settings, rounds, evaluate_every=every
    )
    decisive = [
        __version__,
        method.name,
        absolute(conditions.data),
        conditions.protocol,
        preset,
        settings,
        rounds,
        every,
        config.model_dump(mode="json"),
    ]
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:8]
    return Trial(request, conditions.runs / f"{method.name}-{dataset}-{preset}-{digest}-seed{seed}")
