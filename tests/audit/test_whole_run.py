"""Bugs of rounds, streams, cohorts and time, planted one at a time: the audit has to find every one of them.

The plans have as many rounds as the bugs need; real clients train in the first three of them only.
"""

from dataclasses import replace
from functools import cache

import pytest

from tests.audit.planted_bugs import (
    GRAM,
    HEAD,
    LONG_CLICK,
    LONG_FIXED,
    LONG_NCF,
    LONG_POISSON,
    LONG_ROWS,
    OVER_TIME,
    SAME,
    failed_checks,
)
from tests.audit.test_mutations import few_people
from veilrec.audit import whole_run
from veilrec.audit.method import audit_method, small_problem
from veilrec.audit.whole_run import ROUNDS, WARM_NOISE, WARM_WORDS
from veilrec.methods.base import Problem, configure, promised
from veilrec.methods.registry import get
from veilrec.runs import request, warm_start
from veilrec.runs.warm_start import WarmStart

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


@pytest.mark.parametrize("spec", [LONG_POISSON, LONG_FIXED, LONG_NCF, LONG_CLICK, LONG_ROWS, GRAM, HEAD])
def test_a_sound_plan_of_many_rounds_holds(spec):
    assert failed(spec) == set()


@pytest.mark.parametrize("bug", OVER_TIME, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_found(bug, monkeypatch):
    bug.plant(monkeypatch)
    assert bug.seen_by in failed(bug.spec)


def test_a_warm_start_draws_nothing_that_the_earlier_run_drew(monkeypatch):
    def failed_method():
        found = audit_method("private-popularity", quick=True)
        return {check.name for check in found.checks if not check.holds}, found.covered

    sound, covered = failed_method()
    assert not sound
    assert covered.startswith("1 of 1 were looked at; 3 streams of noise in 3 pairs; first words of 6 streams")
    with monkeypatch.context() as planted:
        planted.setattr(request, "new_secret", lambda: SAME)
        planted.setattr(warm_start, "kept_secret", lambda folder: None)  # which would refuse it
        assert failed_method()[0] == {WARM_WORDS, WARM_NOISE}
    monkeypatch.setattr(WarmStart, "seed", lambda self, seed: seed)
    assert failed_method()[0] == {WARM_NOISE}


def test_an_audit_of_fewer_rounds_than_the_plan_has_fails(monkeypatch):
    sound = whole_run.run
    monkeypatch.setattr(whole_run, "run", lambda plan, *of, **how: sound(replace(plan, rounds=8), *of, **how))
    assert ROUNDS in failed(LONG_POISSON)
