"""Bugs planted in the objects that train, one at a time: the audit of the plan has to find every one of them.

All seeds are fixed. Each audit fails a sound plan by chance with probability at most 2e-4 (`Check.false_alarm_rate`
adds up to less), so that of the sound plans here one would fail for one seed in 500.
"""

from functools import cache

import pytest

from tests.audit.planted_bugs import BUGS, MF, SOUND, failed_checks, noisy, sound_flips
from veilrec.audit.auditor import audit_claim, select
from veilrec.audit.method import canary, small_problem, tiny_plan
from veilrec.core.csr import Csr
from veilrec.data import synthetic_ratings
from veilrec.methods.base import Problem, configure, promised
from veilrec.methods.registry import get
from veilrec.privacy.mechanisms import responses
from veilrec.privacy.mechanisms.sums import CohortSum


@cache
def few_people():
    used = synthetic_ratings.generate(users=60, items=60, seed=2).interactions
    return Csr(used.offsets, used.items)


def failed(spec, change=lambda plan: plan):
    """The checks that a plan fails, made anew and changed."""
    name, *settings = spec.split()
    method = get(name)
    small = ["size.word_dim=4", "size.heads=2", "size.head_dim=2", "size.attention=2"] if name == "fednewsrec" else []
    config, _ = configure(method, preset="tuned", dataset="", settings=[*settings, *small])
    rounds = 6
    problem = small_problem(method, 40, rounds) if small else Problem(few_people(), 60, 3, rounds)
    plan = change(method.plan(config, problem))
    data, claimed = method.clients(config, problem), promised(method, config, problem)
    return failed_checks(plan, data, problem.train, claimed, 2 if small else 3)


@pytest.mark.parametrize("spec", SOUND)
def test_a_sound_plan_holds(spec):
    assert failed(spec) == set()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_found(bug, monkeypatch):
    bug.plant(monkeypatch)
    assert bug.seen_by in failed(bug.spec, bug.change)


def test_there_are_enough_bugs_and_none_twice():
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 25


def test_lies_half_as_often_fall_in_the_audit_of_the_mechanism_too(monkeypatch):
    sound = [audit_claim(case, effort=1, seed=0) for case in select("randomised-response") if case.kind == "proven"]
    monkeypatch.setattr(responses, "flip_probability", lambda epsilon: sound_flips(epsilon) / 2)
    found = [audit_claim(case, effort=1, seed=0) for case in select("randomised-response") if case.kind == "proven"]
    assert all(verdict.passed for verdict in sound)
    assert all(verdict.verdict == "refuted" for verdict in found)


def sings(*settings):
    """The canary of dp-fedmf, with so large steps that every update has to be clipped."""
    method, settings = get(MF), ("local.item_rate=0.5", *settings)
    plan, problem = tiny_plan(method, settings)
    config, _ = configure(method, preset="tuned", dataset="", settings=settings)
    claimed = promised(method, config, problem)
    return canary(plan, method.clients(config, problem), problem.train, claimed, runs=250)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_canary_sings_when_a_tenth_of_the_noise_is_left(sampling, monkeypatch):
    sound = sings(f"cohort.sampling={sampling}")
    noisy(lambda _, total, noise: noise / 10)(monkeypatch)
    found = sings(f"cohort.sampling={sampling}")
    assert sound.holds
    assert 1.0 < sound.epsilon_lower < 8.0
    assert not found.holds
    assert found.epsilon_lower > 15.0


def test_a_canary_sings_when_the_clip_is_forgotten(monkeypatch):
    monkeypatch.setattr(CohortSum, "bound", lambda self, updates, spec: updates)
    assert not sings().holds
