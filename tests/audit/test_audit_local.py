"""Bugs planted in messages that are made of local reports: the audit of the plan has to find every one of them.

All seeds are fixed. Each audit fails a sound plan by chance with probability at most 2e-4.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from tests.audit.planted_bugs import Bug, failed_checks, other, setting, wrapped
from veilrec.audit.method import canary, small_problem, tiny_plan
from veilrec.audit.plan_local import another
from veilrec.audit.whole_run import REPEATS as ALL_REPEATS
from veilrec.audit.whole_run import WORDS
from veilrec.client import news
from veilrec.client.news_data import one_click_of_some
from veilrec.core.plan import Plan
from veilrec.methods.base import configure, promised
from veilrec.methods.registry import get
from veilrec.privacy.mechanisms.attention import AttentionNoise
from veilrec.privacy.mechanisms.reports import MadeOfReports
from veilrec.privacy.mechanisms.responses import LabelPermutation, LabelPerturbation
from veilrec.privacy.randomness import KeyedSource, noise_of_learning
from veilrec.server.round_specs import CohortSettings
from veilrec.simulation import pieces

Change = Callable[[Plan], Plan]
SETTINGS = (
    "training=reports",
    "size.word_dim=4",
    "size.heads=2",
    "size.head_dim=2",
    "size.attention=2",
    "size.basis=3",
    "size.attention_clip=0.5",
)
TURNS = ("cohort.size=10", "cohort.sampling=cyclic")
SIZE = "mean size of the noise on attention"
BARE = "numbers of attention without noise"
REPEATS = "vectors of noise that repeat each other"
TRUE = "labels that are true"
AMONG = "clicks that are among the candidates"
MOVED = "how far a history moves what it is told as"
CHANGED = "messages that change with more than what was told"
ENCODER = "numbers of the user encoder that a message moves"
COUNT = "impressions that a message tells of"
SPENT = "epsilon of all that a client tells, from the noise that was measured"
OTHER = "what clients learn from"
HOSTILE = "largest norm of an update that is made to be large"
LAPLACE = "distance of that noise from Laplace's"


@cache
def problem():
    return small_problem(get("privaterec"), 40, 6)


def failed(change=lambda plan: plan, settings=()):
    """The checks that a plan fails, made anew and changed."""
    method = get("privaterec")
    config, _ = configure(method, preset="tuned", dataset="", settings=[*SETTINGS, *settings])
    plan = change(method.plan(config, problem()))
    claimed = promised(method, config, problem())
    assert claimed.trust == "nobody"
    return failed_checks(plan, method.clients(config, problem()), problem().train, claimed, 2)


@pytest.mark.parametrize("settings", [(), TURNS, ("privacy.samples=2",), ("size.balance=0.1",)])
def test_a_sound_plan_holds(settings):
    assert failed(settings=settings) == set()


def with_noise(**changed):
    """The trainer with something else in its noise, which the accounting does not hear of."""

    def change(plan):
        trainer = copy.copy(plan.trainer)
        trainer.noise = replace(trainer.noise, **changed)
        return replace(plan, trainer=trainer)

    return change


def without_noise(plan):
    trainer = copy.copy(plan.trainer)
    trainer.noise = None
    return replace(plan, trainer=trainer)


def add(factor):
    """So much of the noise."""

    def planted(sound, self, attention, source):
        clipped = self.clipped(attention)
        return clipped + factor * (sound(self, attention, source) - clipped)

    return wrapped(AttentionNoise, "add", planted)


def gaussian(patch):
    """Another law, of the same mean size."""
    generator = np.random.default_rng(1)

    def planted(self, attention, source):
        return self.clipped(attention) + generator.normal(0.0, self.scale * 1.2534, attention.shape)

    patch.setattr(AttentionNoise, "add", planted)


@partial(wrapped, AttentionNoise, "add")
def one_number_bare(sound, self, attention, source):
    noisy = sound(self, attention, source)
    noisy[..., 0] = self.clipped(attention)[..., 0]
    return noisy


def truthful(share):
    """Labels of which some are told as they are."""

    def planted(sound, self, clicks, items, source):
        told = sound(self, clicks, items, source)
        true = np.random.default_rng(len(clicks)).random(len(clicks)) < share
        told[true, 0] = clicks[true]
        return told

    return wrapped(LabelPerturbation, "release", planted)


@partial(wrapped, LabelPerturbation, "of")
def with_the_click(sound, self, items):
    """The click always among the candidates, as published."""
    if items == 2 + self.negatives:  # what is charged for
        return sound(self, items)
    return LabelPermutation(items=items, negatives=min(self.negatives, items - 1), epsilon=self.epsilon)


# Noise is drawn, and then not used, or the truth beside it.
learn_from_the_truth = wrapped(news._Draws, "released", lambda sound, self, seen: (sound(self, seen), seen)[1])
a_little_of_the_truth = wrapped(news._Draws, "released", lambda sound, self, seen: sound(self, seen) + 0.01 * seen)


def _calibrated_for_a_turn(plan):
    """The noise of a run of one round, in all of them."""
    method = get("privaterec")
    config, _ = configure(method, preset="tuned", dataset="", settings=list(SETTINGS))
    return replace(method.plan(config, replace(problem(), rounds=1)), rounds=plan.rounds, max_participations=1)


@partial(wrapped, news.PrivateNewsLocalTrainer, "ready")
def half_the_noise_in_the_last_round(sound, self, cohort, model, spec):
    if spec.number < 5:
        return sound(self, cohort, model, spec)
    with pytest.MonkeyPatch.context() as patch:
        add(0.5)(patch)
        return sound(self, cohort, model, spec)


def repeated_every_4_rounds(secret, number, client):
    return noise_of_learning(secret, number % 4, client)


BUGS = (
    Bug("noise repeats every 4 rounds", "", WORDS, setting(pieces, "noise_of_learning", repeated_every_4_rounds)),
    Bug(
        "noise repeats every 4 rounds, seen",
        "",
        ALL_REPEATS,
        setting(pieces, "noise_of_learning", repeated_every_4_rounds),
    ),
    Bug("half the noise in the last round", "", SIZE, half_the_noise_in_the_last_round),
    Bug("no noise", "", SIZE, add(0.0)),
    Bug("no noise is bare", "", BARE, add(0.0)),
    Bug("no noise costs everything", "", SPENT, add(0.0)),
    Bug("half the noise", "", SIZE, add(0.5)),
    Bug("a twentieth less noise", "", SIZE, add(0.95)),
    Bug("another law", "", LAPLACE, gaussian),
    Bug("one number without noise", "", BARE, one_number_bare),
    Bug("one noise for all", "", REPEATS, setting(pieces, "noise_of_learning", lambda *_: KeyedSource(bytes(32), 1))),
    Bug("history path not stopped", "", CHANGED, change=with_noise(path="through")),
    Bug("history path reaches the user encoder", "", ENCODER, change=with_noise(path="through")),
    Bug("noise that is not used", "", CHANGED, learn_from_the_truth),
    Bug("a little of the truth beside the noise", "", CHANGED, a_little_of_the_truth),
    Bug("a forgotten clip of attention", "", MOVED, setting(AttentionNoise, "clipped", lambda self, a: a)),
    Bug("a forgotten clip of updates", "", HOSTILE, setting(MadeOfReports, "bound", lambda self, u, spec: u)),
    Bug("labels told truthfully", "", TRUE, truthful(1.0)),
    Bug("a tenth of the labels told truthfully", "", TRUE, truthful(0.1)),
    Bug("the click is always a candidate", "", AMONG, with_the_click),
    Bug("two impressions told, one charged for", "", COUNT, change=with_noise(samples=2)),
    Bug("every click told", "", COUNT, change=with_noise(samples=None)),
    Bug("a trainer without noise", "", OTHER, change=without_noise),
    Bug("fewer turns charged for than are taken", "", SPENT, change=_calibrated_for_a_turn),
    Bug("turns that are no turns", " ".join(TURNS), SPENT, change=other(cohort=CohortSettings(size=0))),
)


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_found(bug, monkeypatch):
    bug.plant(monkeypatch)
    assert bug.seen_by in failed(bug.change, tuple(bug.spec.split()))


def test_a_neighbour_was_shown_the_same_and_did_something_else():
    method = get("privaterec")
    config, _ = configure(method, preset="tuned", dataset="", settings=list(SETTINGS))
    data = method.clients(config, problem())
    other = another(data, 0)
    shown = [
        one_click_of_some(one.rows, np.arange(len(one.rows)), most=1, longest=8, seed=1, number=0)
        for one in (data, other)
    ]
    assert np.array_equal(shown[0].shown.items, shown[1].shown.items)
    assert np.array_equal(shown[0].shown.offsets, shown[1].shown.offsets)
    assert not np.array_equal(shown[0].clicked, shown[1].clicked)
    assert not np.array_equal(shown[0].histories, shown[1].histories)


@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (0.01, False)])
def test_the_canary_refutes_what_has_next_to_no_noise(factor, holds, monkeypatch):
    method = get("privaterec")
    settings = ("training=reports", "privacy.epsilon=1")
    plan, tiny = tiny_plan(method, settings)
    config, _ = configure(method, preset="tuned", dataset="", settings=settings)
    claimed = promised(method, config, tiny)
    add(factor)(monkeypatch)
    found = canary(plan, method.clients(config, tiny), tiny.train, claimed, runs=100)
    assert found.holds == holds
