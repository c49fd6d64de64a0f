"""Bugs of rounds, streams, cohorts and time, planted one at a time: the audit has to find every one of them.

The plans have as many rounds as the bugs need; real clients train in the first three of them only.
"""

from functools import cache

import pytest

from tests.audit.planted_bugs import (
    GRAM,
    HEAD,
    LONG_CLICK,
    LONG_FIXED,
    LONG_NCF,
    LONG_POISSON,
    OVER_TIME,
    failed_checks,
)
from tests.audit.test_mutations import few_people
from veilrec.audit.method import small_problem
from veilrec.methods.base import Problem, configure, promised
from veilrec.methods.registry import get

SMALL = ("size.word_dim=4", "size.heads=2", "size.head_dim=2", "size.attention=2")


@cache
def problem_of(name, rounds):
    return small_problem(get(name), 40, rounds) if name == "fednewsrec-head" else Problem(few_people(), 60, 3, rounds)


def failed(spec):
    name, *settings = spec.split()
    method = get(name)
    small = SMALL if name == "fednewsrec-head" else ()
    config, rounds = configure(method, preset="tuned", dataset="", settings=[*settings, *small])
    problem = problem_of(name, rounds)
    plan, claimed = method.plan(config, problem), promised(method, config, problem)
    return failed_checks(plan, method.clients(config, problem), problem.train, claimed, 2)


@pytest.mark.parametrize("spec", [LONG_POISSON, LONG_FIXED, LONG_NCF, LONG_CLICK, GRAM, HEAD])
def test_a_sound_plan_of_many_rounds_holds(spec):
    assert failed(spec) == set()


@pytest.mark.parametrize("bug", OVER_TIME, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_found(bug, monkeypatch):
    bug.plant(monkeypatch)
    assert bug.seen_by in failed(bug.spec)
