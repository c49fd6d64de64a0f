"""Distributed noise, and the terms of every secure sum of a federation.

With distributed noise clients add the noise that the server would add, each a part, so that nobody sees a sum without.

A secure sum is over the updates of a round, or over what everybody reports before the first one. Reports are summed
under masks where the server is trusted with them (`ItemReports.under_masks`): whole numbers from 0 to `largest`, of n
clients. Their sum lies from 0 to n * largest, so that the bits of that number and one more for the sign hold it, and no
sum of honest clients wraps around or is refused for its width.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeAlias

from veilrec.core.errors import BadInput, counted
from veilrec.core.plan import Plan
from veilrec.core.schema import FIRST_REPORT_SUM, ReportSum, RoundSpec
from veilrec.federation.federation import Federation
from veilrec.federation.secagg.terms import Terms
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.events import training_event
from veilrec.privacy.guarantee import TRUSTS, Guarantee
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum, NoiseShares, overflow_chance
from veilrec.privacy.mechanisms.sums import CohortSum

_ADDED_UP = ("sum", "mean")
_WIDTH = 64  # bits of a sum, as in rounds whose messages are seen


def with_distributed_noise(plan: Plan, shares: NoiseShares) -> Plan:
    """Move a plan's noise from the server to its clients; a round with fewer than `shares.least` of them is void."""
    mechanism = plan.mechanism
    if not isinstance(mechanism, CohortSum):
        raise BadInput(f"the plan's {mechanism.name} puts no noise on a sum: there is none to be added in shares")
    if plan.aggregation not in _ADDED_UP:
        raise BadInput(
            f"the plan adds up by {plan.aggregation}, which needs numbers that have no noise: use "
            f"{' or '.join(_ADDED_UP)}"
        )
    if shares.least > plan.most_devices:
        raise BadInput(f"least is {shares.least}: a round of this plan has {plan.most_devices} devices at most")
    return replace(plan, mechanism=DistributedNoiseSum(mechanism, shares))


def terms_of(plan: Plan, about: RoundSpec, federation: bytes, least: int | None = None) -> Terms:
    """Terms of the secure sum of a round; `least`: devices, where the plan's own noise does not say how many."""
    lattice = plan.lattice(about)
    if least is not None and not isinstance(plan.mechanism, DistributedNoiseSum):
        return Terms(federation, about.number, lattice.size, _WIDTH, least)
    mechanism = _shared(plan)
    return Terms(federation, about.number, lattice.size, mechanism.width(lattice, about), mechanism.shares.least)


def guarantee_of(plan: Plan, delta: float) -> Guarantee:
    """Guarantee of a plan with distributed noise, for everybody who takes part, the server being an attacker."""
    mechanism = _shared(plan)
    turns = plan.rounds if plan.most_turns is None else plan.most_turns
    error = turns * mechanism.draws_error
    epsilon = epsilon_of(training_event(plan), delta * math.exp(-error)) + 2.0 * error
    others = [part.mechanism.trust for part in (plan.reports, plan.comparison) if part is not None]
    trust = max((mechanism.trust, *others), key=TRUSTS.index)
    return Guarantee(
        basis="proven",
        unit=mechanism.unit,
        adjacency=mechanism.adjacency,
        epsilon=epsilon,
        delta=delta,
        scope="whole run",
        trust=trust,
        caveats=_caveats(plan, mechanism, turns),
        event=training_event(plan),
    )


def _caveats(plan: Plan, mechanism: DistributedNoiseSum, turns: int) -> tuple[str, ...]:
    shares = mechanism.shares
    chance = overflow_chance(shares.least, mechanism.dimension)
    told: tuple[str, ...] = (
        f"The noise is that of {shares.honest} devices: it is enough as long as at most "
        f"{shares.least - shares.honest} of any {shares.least} devices of a round add none, or tell the server theirs.",
        "It takes secure sums that hold: with helpers, one of them has to refuse to work with the server; among "
        "devices alone, no more may be corrupt than was planned for.",
        f"Server and helpers see who takes part, so that nothing is won by sampling: {turns} rounds are counted for "
        "everybody.",
        "Devices are taken at their word: one that adds no noise harms the others' privacy, one that does not clip "
        "harms the model.",
        f"A sum that its noise carries beyond its width voids a round, with a chance of {chance:.1g} at most.",
    )
    if mechanism.adjacency == "add-remove":
        told = (*told, "Hidden is what somebody sent, not that they took part: an update, or nothing in its place.")
    if plan.reports is not None or plan.comparison is not None:
        told = (*told, "Reports and judges' gains go as before, by themselves: see their own statements.")
    return told


def _shared(plan: Plan) -> DistributedNoiseSum:
    if not isinstance(plan.mechanism, DistributedNoiseSum):
        raise BadInput(f"the noise of the plan's {plan.mechanism.name} is not in shares: use with_shares first")
    return plan.mechanism


Summed: TypeAlias = RoundSpec | ReportSum
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
    """Work out the terms of a secure sum from the federation's file, as server and clients each do."""
    if isinstance(about, RoundSpec):
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
