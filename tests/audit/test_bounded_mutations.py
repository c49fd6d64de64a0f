"""Bugs planted in bounds that are learnt and in trees of noise: the audit of the plan has to find every one of them.

All seeds are fixed. Each audit fails a sound plan by chance with probability at most 2e-4 (`Check.false_alarm_rate`
adds up to less), so that of the six sound plans here one would fail for one seed in 800.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.audit.bounded_plans import PUBLISHED, adaptive_plan, data, people, promise, published_plan_of, tree_plan
from tests.audit.planted_bugs import (
    CHARGED,
    NORM,
    PAST,
    REPEATS,
    SPREAD,
    TOLD,
    Bug,
    failed_checks,
    from_round,
    no_noise_on,
    other,
    setting,
    wrapped,
)
from veilrec.audit import whole_run
from veilrec.audit.method import canary
from veilrec.audit.plan import audit_plan
from veilrec.audit.plan_sums import BY_ROUND, COUNT, NODE, NODES
from veilrec.core.schema import BOUND, RoundSpec
from veilrec.methods.privrec.dp_privrec import published_guarantee
from veilrec.privacy.mechanisms import schedules
from veilrec.privacy.mechanisms.clipping import clip_whole
from veilrec.privacy.mechanisms.schedules import AdaptiveSum, PublishedAdaptiveSum, TreeSum
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.server.server import Server

PLANS = {
    "poisson": adaptive_plan,
    "fixed": lambda: adaptive_plan("fixed"),
    "everybody": lambda: adaptive_plan(size=0),
    "tree": tree_plan,
    "tree whose cohorts do not divide the people": lambda: tree_plan(9),
    "tree of one round": lambda: tree_plan(60, rounds=3),
}
WITHIN = "what updates within and beyond a bound count for"
FROM_COUNT = "rounds whose bound is not from the protected count"
ONE_MESSAGE = "how far one message moves the count"
MISSING = "a message whose count is 1"
ACCOUNTED, IN_A_TREE = "rounds of a client that are accounted for", "rounds of a client in one tree"
PUBLISHED_EPSILON = "epsilon of the run, from the noise that was measured"


def failed(spec, change=lambda plan: plan):
    """The checks that a plan fails, made anew and changed."""
    plan = change(PLANS[spec]())
    return failed_checks(plan, data(), people(), promise(plan), min(plan.rounds, 8 if "tree" in spec else 3))


def sigma(factor):
    return wrapped(AdaptiveSum, "sigma_in", lambda sound, self, name, spec: factor(name) * sound(self, name, spec))


first_sigma = wrapped(
    AdaptiveSum, "sigma_in", lambda sound, self, name, spec: sound(self, name, replace(spec, clip_norm=self.clip_norm))
)
counted_after_clipping = wrapped(
    AdaptiveSum, "bound", lambda sound, self, sent, spec: sound(self, sound(self, sent, spec), spec)
)


def twice_the_first(self, updates, spec):
    return clip_whole(updates, 2.0 * self.clip_norm)


def the_one_before(number, steps):
    """Every round takes back the noise of the one before it: what is left of all of them is one."""
    return (number - 1,) if number % steps else ()


@partial(wrapped, AdaptiveSum, "bound")
def whole_counts(sound, self, updates, spec):
    """One up or nothing, with noise for a half."""
    bounded = sound(self, updates, spec)
    return replace(bounded, dense={**bounded.dense, BOUND: bounded.dense[BOUND] + np.float32(0.5)})


def noise_for_the_last_round(patch):
    sound, last = CohortSum.protect, {"about": RoundSpec(0)}

    def planted(self, sums, spec, source):
        before, last["about"] = last["about"], spec
        sound(self, sums, replace(spec, clip_norm=before.clip_norm), source)

    patch.setattr(AdaptiveSum, "protect", planted)


def bound_from_the_bare_count(patch, first=0):
    """Adaptive clipping by the exact count, from a round on."""
    sound, noisy = Server.protect, Server._next_bound

    def protect(self, source):
        self.bare = float(self._aggregator.sums[BOUND][0])
        sound(self, source)

    def next_bound(self):
        if self.spec.number < first:
            return noisy(self)
        return {BOUND: self.plan.clipping_rule.next(float(self.weights[BOUND][0]), self.bare)}

    patch.setattr(Server, "protect", protect)
    patch.setattr(Server, "_next_bound", next_bound)


@partial(wrapped, schedules, "adaptive_clipping_noise")
def split_for_somebody_added(sound, noise, deviation, adjacency):
    """Somebody who is replaced moves the count by 1, and the split takes it for a half."""
    return sound(noise, deviation, adjacency="add-remove")


@partial(wrapped, schedules, "adaptive_clipping_noise")
def count_for_nothing(sound, noise, *of, **how):
    """The count is released beside updates that have no more noise for it."""
    return replace(sound(noise, *of, **how), update_noise_multiplier=noise)


def without_the_count(sound, sums, *of):
    sound({name: sums[name] for name in sums if name != BOUND}, *of)


none_in_round_11 = wrapped(
    TreeSum,
    "protect",
    lambda sound, self, sums, spec, source: sound(self, {} if spec.number == 11 else sums, spec, source),
)


class _Levels:
    """Noise by the level of a node instead of by the node."""

    protects = True

    def __init__(self, source, steps, number):
        place = number % steps + 1
        self._source, self._steps = source.of(place & -place), steps

    def words(self, count):
        return self._source.words(count)

    def of(self, number):
        return _Levels(self._source, self._steps, number)


@partial(wrapped, TreeSum, "protect")
def nodes_of_a_level_alike(sound, self, sums, spec, source):
    sound(self, sums, spec, _Levels(source, self.steps, spec.number))


@partial(wrapped, TreeSum, "protect")
def the_same_tree_again(sound, self, sums, spec, source):
    place = spec.number % self.steps
    sound(self, sums, replace(spec, number=place), source.of(place))


def a_node_without_noise(patch):
    """The round that ends a node of four takes the others' noise back and adds none."""
    sound = schedules.lattice_gaussian
    protect, empty = TreeSum.protect, {"next": False}

    def planted(self, sums, spec, source):
        for name in sums:
            empty["next"] = spec.number % self.steps == 3
            protect(self, {name: sums[name]}, spec, source)

    def draw(source, count):
        drawn = sound(source, count)
        skipped, empty["next"] = empty["next"], False
        return 0 * drawn if skipped else drawn

    patch.setattr(TreeSum, "protect", planted)
    patch.setattr(schedules, "lattice_gaussian", draw)


without_levels = setting(TreeSum, "event", lambda self: schedules.TreeEvent(self.noise_multiplier, 1))


def longer_trees(plan):
    plan.mechanism.steps *= 2
    return plan


BUGS = (
    Bug("no noise on the count", "poisson", COUNT, no_noise_on(BOUND)),
    Bug("no noise on the count from round 4 on", "poisson", whole_run.COUNT, from_round(4, without_the_count)),
    Bug("bare counts from round 4 on", "poisson", whole_run.STRAYED, partial(bound_from_the_bare_count, first=4)),
    Bug("no noise in the last round of a tree", "tree", whole_run.REPEATS, none_in_round_11),
    Bug("half the noise on the count", "fixed", COUNT, sigma(lambda name: 0.5 if name == BOUND else 1.0)),
    Bug("half the noise on updates", "poisson", SPREAD, sigma(lambda name: 1.0 if name == BOUND else 0.5)),
    Bug("noise for the bound of the last round", "poisson", BY_ROUND, noise_for_the_last_round),
    Bug("noise for the bound of the first round", "everybody", BY_ROUND, first_sigma),
    Bug("the count after clipping", "poisson", WITHIN, counted_after_clipping),
    Bug("the bound from the bare count", "poisson", FROM_COUNT, bound_from_the_bare_count),
    Bug("the bound from the bare count, past the noise", "everybody", PAST, bound_from_the_bare_count),
    Bug("the clip forgotten", "poisson", NORM, setting(CohortSum, "bound", lambda self, sent, spec: sent)),
    Bug("clipped to twice the first bound", "poisson", NORM, setting(CohortSum, "bound", twice_the_first)),
    Bug("a message counts one up", "poisson", ONE_MESSAGE, whole_counts),
    Bug("the count of somebody replaced as if added", "fixed", TOLD, split_for_somebody_added),
    Bug("the count costs nothing", "poisson", TOLD, count_for_nothing),
    Bug("the server takes any count", "poisson", MISSING, setting(AdaptiveSum, "check", lambda *_: None)),
    Bug("nodes of a level share their noise", "tree", NODES, nodes_of_a_level_alike),
    Bug("nodes of a level share their noise, in a run", "tree", REPEATS, nodes_of_a_level_alike),
    Bug("every tree has the noise of the first", "tree", NODES, the_same_tree_again),
    Bug("a node without noise", "tree", NODE, a_node_without_noise),
    Bug("noise is taken back too early", "tree", NODES, setting(schedules, "taken_back", the_one_before)),
    Bug("trees longer than a cycle", "tree", IN_A_TREE, change=longer_trees),
    Bug("one round is charged", "tree", ACCOUNTED, change=other(max_participations=1)),
    Bug("half the noise of a tree", "tree", NODE, setting(TreeSum, "sigma_in", lambda self, *_: self.sigma / 2.0)),
    Bug("a tree without levels in the account", "tree", CHARGED, without_levels),
)


@pytest.mark.parametrize("spec", PLANS)
def test_a_sound_plan_holds(spec):
    assert failed(spec) == set()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_found(bug, monkeypatch):
    bug.plant(monkeypatch)
    assert bug.seen_by in failed(bug.spec, bug.change)


@pytest.mark.parametrize("rate", [1.0, 2.0])
def test_the_printed_form_costs_what_its_statement_says_and_less_noise_more(rate, monkeypatch):
    plan = published_plan_of(rate)
    stated = published_guarantee(plan, PUBLISHED, clients=60)
    checks = audit_plan(plan, data(), people(), stated, rounds=3)
    assert all(check.holds for check in checks)
    sound = PublishedAdaptiveSum.sigma_in
    monkeypatch.setattr(PublishedAdaptiveSum, "sigma_in", lambda self, name, spec: 0.9 * sound(self, name, spec))
    checks = audit_plan(plan, data(), people(), stated, rounds=3)
    assert PUBLISHED_EPSILON in {check.name for check in checks if not check.holds}


def sings(plan):
    return canary(plan, data(12), people(12), promise(plan), runs=250)


@pytest.mark.parametrize(
    "make",
    [lambda: adaptive_plan(size=0, users=12, rounds=3), lambda: tree_plan(3, users=12, rounds=4)],
    ids=["adaptive", "tree"],
)
def test_a_canary_sings_when_a_fifth_of_the_noise_is_left(make, monkeypatch):
    sound = sings(make())
    assert sound.holds
    assert 1.0 < sound.epsilon_lower < 8.0
    for kind in (AdaptiveSum, TreeSum):
        right = kind.sigma_in
        monkeypatch.setattr(kind, "sigma_in", lambda self, name, spec, right=right: 0.2 * right(self, name, spec))
    assert not sings(make()).holds
