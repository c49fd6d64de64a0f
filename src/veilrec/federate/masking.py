"""What of a plan travels under masks, and the number by which secure sums know it.

Every secure sum of a federation has a number of its own, in the order in which they are opened: helpers answer one list
of devices for each, and none before the last. Where reports are masked, too, theirs is the first.
"""

from __future__ import annotations

from veilrec.federate.secagg.terms import Terms
from veilrec.plan import Plan

WIDTH = 64  # bits of a sum, as in rounds whose messages are seen
_OF_REPORTS = 0


def masks_reports(plan: Plan) -> bool:
    """Whether reports would tell the server something of somebody: they are added up under masks then."""
    return plan.reports is not None and plan.reports.mechanism.trust != "nobody"


def number_of_round(plan: Plan, number: int) -> int:
    """The secure sum of a round."""
    return number + masks_reports(plan)


def round_of(plan: Plan, number: int) -> int:
    """The round that a secure sum is of, or comes before."""
    return max(number - masks_reports(plan), 0)


def terms_of_reports(plan: Plan, federation: bytes, least: int) -> Terms:
    """What the sum of all reports is to secure sums: a whole number for every item."""
    if plan.reports is None:
        raise ValueError("this plan asks for no reports")
    return Terms(federation, _OF_REPORTS, plan.reports.mechanism.length, WIDTH, least)
