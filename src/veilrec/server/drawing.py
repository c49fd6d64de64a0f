"""Who takes part in a real round: drawn from the coordinator's secret, and only as the plan's noise allows it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from veilrec._arrays import Offsets
from veilrec.errors import BadInput
from veilrec.privacy.mechanisms.tree import TreeSum
from veilrec.privacy.mechanisms.updates import CohortSum
from veilrec.server.cohorts import CohortSampler
from veilrec.server.coordinator_parts import CoordinatorPart


def draw_cohort(
    plan: CoordinatorPart, round_number: int, enrolled: int, secret: bytes, over_selection: float
) -> Offsets:
    """The devices of a round, out of so many that are enrolled; refused where the noise was not chosen for it."""
    # How many cannot be reached, and how many drop out, is for simulations: here it happens.
    settings = replace(plan.cohort, available=1.0, drop_out=0.0)
    if over_selection > 1.0:
        drawn = math.ceil(settings.among(enrolled) * over_selection)
        settings = replace(settings, size=min(enrolled, drawn))
    mechanism = plan.mechanism
    by_turns = isinstance(mechanism, TreeSum)
    if isinstance(mechanism, CohortSum) and (mechanism.taking_part.rate < 1.0 or by_turns):
        planned = mechanism.taking_part.population
        if enrolled < planned:
            raise BadInput(
                f"{enrolled} devices are enrolled, and the noise was chosen for cohorts out of {planned}: it would "
                "protect less; enrol more, or plan for fewer"
            )
    if isinstance(mechanism, TreeSum):  # whoever enrols later would move the turns of the others
        enrolled = mechanism.taking_part.population
    devices = CohortSampler(settings, np.arange(enrolled), 0, secret=secret).draw(round_number)
    if isinstance(mechanism, CohortSum) and len(devices) > mechanism.taking_part.population:
        raise BadInput(
            f"round {round_number} would have {len(devices)} devices, and the noise was chosen for "
            f"{mechanism.taking_part.population} at most: plan for more"
        )
    return devices


def over_selection_obstacle(plan: CoordinatorPart) -> str | None:
    """Why a round may not take the first messages of more devices than it needs; None where it may."""
    if plan.mechanism.noise_on == "sum":
        return "the proof is about who was drawn, not about who was first to answer"
    if plan.cohort.sampling != "fixed":
        return f"devices take part by {plan.cohort.sampling}, which says who they are"
    return None
