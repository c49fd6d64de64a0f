"""Places that are kept free for devices that come later: when that is sound, and what they are.

A plan is made for a number of devices that is public and fixed: the chance to be drawn, the turns of a tree, what a sum
is divided by. So nobody is ever added to a plan. `init --places N` makes it for N devices more than there are, and an
empty place is a device that never answers; whoever takes it later takes what was planned for. That is sound where a
proof has room for devices that do not answer, and refused elsewhere.
"""

from __future__ import annotations

import numpy as np

from veilrec.device.learner import LocalData
from veilrec.errors import BadInput
from veilrec.federate.coordinator.registry import Role
from veilrec.federate.federation import SecAgg
from veilrec.plan import Plan
from veilrec.privacy.mechanisms.tree import TreeSum

Places = tuple[tuple[int, Role], ...]
"""Free places: the number of the device, and what it will do."""


def check_places(plan: Plan, *, tells_shown: bool, secagg: SecAgg) -> None:
    """Refuse free places where rounds may not have gaps, or where facts would have to know who comes."""
    gaps = plan.cohort.sampling == "poisson" or isinstance(plan.mechanism, TreeSum)
    if plan.mechanism.noise_on == "sum" and not gaps:
        raise BadInput(
            "--places leaves gaps in cohorts, and this method's proof is about whole ones: add --set"
            " cohort.sampling=poisson, or leave out --places"
        )
    if plan.reports is not None and plan.reports.who == "cohort":
        raise BadInput(
            "--places may leave a whole cohort empty, and every round of this method begins with its cohort's reports:"
            " use another method, or leave out --places"
        )
    if tells_shown:
        raise BadInput(
            "--places is not for this method: which news its devices were shown is a public fact, and nobody knows it"
            " of those who come later"
        )
    if secagg == "pairs":
        raise BadInput("--places goes with --secagg helpers or none: pairs are drawn from those who are there")


def places_in(everybody: LocalData, first: int) -> Places:
    """The places from a number on, by what the plan's facts make of them: who has nothing to learn from judges."""
    learns = everybody.rows.lengths() > 0
    return tuple((number, "learner" if learns[number] else "judge") for number in range(first, len(learns)))


def number_of(device: str, everybody: LocalData) -> int:
    """The number that a device's name stands for."""
    digits = device[1:]
    if device[:1] != "d" or not digits.isdecimal() or int(digits) >= len(everybody.rows):
        raise BadInput(f"{device!r} is no device of this federation: a name looks like d00003")
    return int(np.int64(digits))
