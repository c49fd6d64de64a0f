"""The terms of every secure sum of a federation: of the updates of a round, and of what everybody reports before.

Reports are added up under masks where the server is trusted with them (`ItemReports.under_masks`): whole numbers from
0 to `largest`, of n devices. Their sum lies from 0 to n * largest, so that the bits of that number and one more for the
sign hold it, and no sum of honest devices wraps around or is refused for its width.
"""

from __future__ import annotations

from typing import TypeAlias

from veilrec._words import counted
from veilrec.errors import BadInput
from veilrec.federate.federation import Federation
from veilrec.federate.secagg.terms import Terms
from veilrec.federate.shares import terms_of
from veilrec.plan import Plan
from veilrec.updates import FIRST_REPORT_SUM, ReportSum, Round

Summed: TypeAlias = Round | ReportSum
_MOST_WIDTH = 64

ATTEMPTS = {"helpers": 1, "pairs": 64}
"""Sums of reports that a device takes part in, at most: a server that has seen two learns how they differ.

Helpers can be asked about the same list for ever, so that one is enough. Devices that were killed on the way have left
a sum among devices alone for good; it is begun anew, under a number of its own.
"""


def width_for(devices: int, largest: int) -> int:
    """Bits of a sum of so many numbers from 0 to `largest`, its sign included."""
    width = (devices * largest).bit_length() + 1
    if width > _MOST_WIDTH:
        raise BadInput(f"{devices} devices with numbers up to {largest} need {width} bits: there are {_MOST_WIDTH}")
    return width


def terms_in(made: Federation, plan: Plan, about: Summed) -> Terms:
    """What a sum is to everybody: server and devices work it out by themselves, from the federation's file."""
    if isinstance(about, Round):
        if about.number >= FIRST_REPORT_SUM:
            raise BadInput(f"round {about.number} has the number of a sum of reports: rounds have smaller ones")
        return terms_of(plan, about, made.digest, made.least)
    reports, attempts = plan.reports, ATTEMPTS.get(made.secagg, 0)
    if reports is None or not reports.mechanism.under_masks:
        raise BadInput("this plan has no reports that are added up under masks: nothing is sent")
    if about.attempt >= attempts:
        raise BadInput(
            f"reports are added up {counted(attempts, 'time')} at most, and this is time {about.attempt + 1}"
        )
    mechanism = reports.mechanism
    width = width_for(made.devices, mechanism.largest)
    return Terms(made.digest, about.number, mechanism.length, width, made.least)


def report_sum(number: int) -> ReportSum:
    """The sum of reports that has this number; a round's is refused."""
    if number < FIRST_REPORT_SUM:
        raise BadInput(f"number {number} is that of a round, and no sum of reports has it: nothing is sent")
    return ReportSum(number - FIRST_REPORT_SUM)
