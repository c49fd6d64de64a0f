"""A plan whose server would add the noise, as one whose devices add it in shares, and what is promised then."""

from __future__ import annotations

import math
from dataclasses import replace

from veilrec.errors import BadInput
from veilrec.federate.secagg.terms import Terms
from veilrec.plan import Plan
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.guarantee import TRUSTS, Guarantee
from veilrec.privacy.mechanisms.shared import SharedSum, Shares, overflow_chance
from veilrec.privacy.mechanisms.updates import CohortSum
from veilrec.updates import Round

_ADDED_UP = ("sum", "mean")
_WIDTH = 64  # bits of a sum, as in rounds whose messages are seen


def with_shares(plan: Plan, shares: Shares) -> Plan:
    """The same plan with the same noise, added by the devices; a round with fewer than `shares.least` is void."""
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
    return replace(plan, mechanism=SharedSum(mechanism, shares))


def terms_of(plan: Plan, about: Round, federation: bytes, least: int | None = None) -> Terms:
    """What a round is to secure sums; `least`: devices, where the plan's own noise does not say how many."""
    lattice = plan.lattice(about)
    if least is not None and not isinstance(plan.mechanism, SharedSum):
        return Terms(federation, about.number, lattice.size, _WIDTH, least)
    mechanism = _shared(plan)
    return Terms(federation, about.number, lattice.size, mechanism.width(lattice, about), mechanism.shares.least)


def guarantee_of(plan: Plan, delta: float) -> Guarantee:
    """What a run of a plan with noise in shares promises whoever takes part, the server being one of the attackers."""
    mechanism = _shared(plan)
    turns = plan.rounds if plan.most_turns is None else plan.most_turns
    error = turns * mechanism.draws_error
    epsilon = epsilon_of(plan.event(), delta * math.exp(-error)) + 2.0 * error
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
        event=plan.event(),
    )


def _caveats(plan: Plan, mechanism: SharedSum, turns: int) -> tuple[str, ...]:
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


def _shared(plan: Plan) -> SharedSum:
    if not isinstance(plan.mechanism, SharedSum):
        raise BadInput(f"the noise of the plan's {plan.mechanism.name} is not in shares: use with_shares first")
    return plan.mechanism
