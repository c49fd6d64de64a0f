"""The claims of every way of serving, for the audit: the mechanisms that serving makes, of the usual sizes.

Attention with padding is audited with interests so far apart, and a history so short, that one click decides the
attention: no real model comes nearer to what is claimed for all of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from veilrec._arrays import Bools, Doubles
from veilrec.device.ways import Padding, Serving, Sizes, make_mechanism
from veilrec.privacy.audit.attacks import Case
from veilrec.privacy.audit.auditor import case_of

PREFIX = "serving-"
ALL = "serving"  # all of them together
_FAR = 20.0 * np.eye(5)  # scores 400 / sqrt(5) apart
AUDITED = (
    Serving(mode="attention", epsilon=5.0, delta=1e-6),
    Serving(mode="attention", epsilon=1.0),
    Serving(mode="attention", epsilon=1.0, padding=0.5),
    Serving(mode="attention", epsilon=1.0, delta=1e-6, padding=0.5),
    Serving(mode="pooled", epsilon=5.0, delta=1e-6),
    Serving(mode="pooled", epsilon=1.0, delta=1e-6),
    Serving(mode="interest", epsilon=1.0),
    Serving(mode="interest", epsilon=5.0),
    Serving(mode="vector", epsilon=5.0, delta=1e-6),
    Serving(mode="vector", epsilon=1.0),
    Serving(mode="attention", epsilon=1.0, calibration="as-published"),
    Serving(mode="attention", epsilon=10.0, delta=1e-3, calibration="as-published"),
    Serving(mode="attention", epsilon=1.0, padding=0.5, calibration="as-published"),
    Serving(mode="vector", epsilon=1.0, calibration="as-published"),
)
"""What is attacked: every mode with every noise, at an epsilon that attacks can reach, proven and as published."""


def _first(clicks: Doubles, taken: Bools) -> Doubles:
    only: Doubles = clicks[:, 0]
    return only


def sizes_of(serving: Serving) -> Sizes:
    """Of the usual model, or of the one that padding is audited with."""
    if serving.padding:
        return Sizes(slots=1, padding=Padding(_first, _FAR, _FAR[4]))
    return Sizes()


def serving_cases(name: str = ALL) -> tuple[Case, ...]:
    """The claims of all ways of serving, or of one, by `serving-MODE`."""
    cases = [(how, case_of(make_mechanism(how, sizes_of(how)))) for how in AUDITED]
    named = [replace(case, name=PREFIX + how.mode) for how, case in cases]
    return tuple(case for case in named if name in (ALL, case.name))


def serving_names() -> set[str]:
    """What can be asked for."""
    return {ALL, *(PREFIX + how.mode for how in AUDITED)}
