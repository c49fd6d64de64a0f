"""`veilrec audit METHOD --shares`: audit a plan with distributed noise, as a federation runs it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from veilrec.errors import BadInput
from veilrec.federate.distributed_noise import guarantee_of, terms_of, with_distributed_noise
from veilrec.federate.making import least_of_shares
from veilrec.methods.audit import FULL, QUICK, MethodAudit, fitting, small_problem, tiny_plan
from veilrec.methods.base import configure, promised
from veilrec.methods.private import devices_with_data
from veilrec.methods.registry import get
from veilrec.plan import Plan
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.shared import Shares
from veilrec.simulate.audit_shares import share_canary, share_checks
from veilrec.simulate.checks import Check, at_least

_FEDERATION = bytes(32)


def audit_with_shares(
    name: str, *, quick: bool, silent: float = 0.0, seed: int = 0, settings: Sequence[str] = (), data: str | None = None
) -> MethodAudit:
    """Attack what devices put under masks, for as few of them as a sum of that plan needs."""
    started = time.perf_counter()
    method, effort = get(name), QUICK if quick else FULL
    if method.plan is None:
        raise BadInput(f"{method.name} learns where all data is, and sends no messages: audit a federated method")
    config, rounds = configure(method, preset="tuned", dataset="", settings=settings)
    problem = small_problem(method, effort.users, rounds, data)
    config = fitting(config, devices_with_data(problem))
    plan = method.plan(config, problem)
    least = least_of_shares(plan)
    shared, guarantee = _turned(plan, promised(method, config, problem), Shares(least, silent), method.name)
    checks = share_checks(shared, guarantee, least=least, silent=silent, devices=devices_with_data(problem), seed=seed)
    few, tiny = tiny_plan(method, settings, data)
    people = devices_with_data(tiny)
    claimed = promised(method, config, tiny)
    small, claim = _turned(few, claimed, Shares(people, silent), method.name)
    runs = effort.runs // (1 if tiny.news is None else 2)
    found = share_canary(small, claim, least=people, silent=silent, runs=runs, seed=seed)
    label = f"{method.name} with noise in shares" + ("" if data is None else f" on {data}")
    checks = (*checks, _opened(shared, least))
    return MethodAudit(label, guarantee, checks, found, time.perf_counter() - started)


def _turned(plan: Plan, guarantee: Guarantee, shares: Shares, name: str) -> tuple[Plan, Guarantee]:
    if guarantee.basis != "proven" or guarantee.delta is None:
        raise BadInput(f"--shares is for methods that prove something, and {name} does not: leave it out")
    turned = replace(with_distributed_noise(plan, shares), comparison=None)
    return turned, guarantee_of(turned, guarantee.delta)


def _opened(plan: Plan, least: int) -> Check:
    """Encode the terms of a round as helpers get them."""
    terms = terms_of(plan, plan.agenda.next(0, plan.start, None), _FEDERATION)
    return at_least("devices without which helpers open no sum", terms.least, least)
