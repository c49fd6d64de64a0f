"""Bugs planted in dp-privrec and popularity-head: the audit of the plan or the contract has to find every one of them.

All seeds are fixed. Each audit fails a sound plan by chance with probability at most 2e-4 (`Check.false_alarm_rate`
adds up to less), so that of the five sound plans here one would fail for one seed in 1,000.
"""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from tests.audit.planted_bugs import (
    BARE,
    COUNTS,
    DELTA,
    HOSTILE,
    NORM,
    PAST,
    REPORTS,
    SPREAD,
    VOTED,
    Bug,
    a_vote_for_every_item,
    by_tensor,
    exact_votes,
    failed_checks,
    free,
    no_noise_on,
    noisy,
    one_by_one,
    own_account,
    setting,
    without_reports,
    wrapped,
)
from veilrec.audit.contract import holds_no_user_data
from veilrec.audit.contract_subject import ContractBroken, ContractSubject
from veilrec.audit.method import canary, tiny_config, tiny_plan
from veilrec.client.reptile import MetaLocalTrainer
from veilrec.core.csr import Csr
from veilrec.core.errors import VeilrecError
from veilrec.data import synthetic_ratings
from veilrec.methods.base import Problem, configure, promised
from veilrec.methods.privrec import common, dp_privrec
from veilrec.methods.registry import get
from veilrec.models.feature_net import POPULARITY, Inputs
from veilrec.privacy.mechanisms import sums as sums_module
from veilrec.privacy.mechanisms.clipping import clip_whole
from veilrec.privacy.mechanisms.reports import VoteReports
from veilrec.simulation.simulation import Seeds, Simulation

ROUNDS, ITEMS = 6, 60
# All tensors that the method can have, in a network that learns in milliseconds.
SMALL = (
    "features.users=null model.embedding=2 model.hidden=[3] model.start_at_zero=false local.steps=3 local.negatives=8"
)
POISSON = f"dp-privrec cohort.size=20 {SMALL}"
FIXED = f"dp-privrec cohort.size=20 cohort.sampling=fixed {SMALL}"
TURNS = f"dp-privrec cohort.size=10 cohort.sampling=cyclic {SMALL}"
WITHOUT_VOTES = f"{POISSON} model.popularity=false"
HEAD = "popularity-head local.steps=3 local.negatives=8"
PEOPLE = "users.embedding"


@cache
def people():
    made_up = synthetic_ratings.generate(users=60, items=ITEMS, seed=2)
    return Csr(made_up.interactions.offsets, made_up.interactions.items), made_up.features


def parts_of(spec):
    name, *settings = spec.split()
    method = get(name)
    config, rounds = configure(method, preset="tuned", dataset="", settings=settings)
    train, features = people()
    return method, config, Problem(train, ITEMS, 3, min(rounds, ROUNDS), features=features)


def failed(spec, change=lambda plan: plan):
    """The checks that a plan fails, made anew and changed."""
    method, config, problem = parts_of(spec)
    plan = change(method.plan(config, problem))
    claimed, data = promised(method, config, problem), method.clients(config, problem)
    return failed_checks(plan, data, problem.train, claimed, min(plan.rounds, 6 if "cyclic" in spec else 3))


def all_but(name):
    """Everything is clipped, and one tensor left as it was."""

    def clip(updates, clip_norm):
        kept = clip_whole(updates, clip_norm)
        return replace(kept, dense={**kept.dense, name: updates.dense[name].copy()})

    return clip


@partial(wrapped, Simulation, "_open_round")
def bare_votes_in_the_model(sound, self, number, clients):
    """The reports are protected, and the tensor is filled without them."""
    sent = sound(self, number, clients)
    mechanism, everybody = self.plan.reports.mechanism, np.arange(len(self.data.rows))
    votes = mechanism.count(self.data.rows, everybody, seed=0, period=0) * mechanism.step
    self.server.fill({POPULARITY: votes.astype(np.float32).reshape(-1, 1)})
    return sent


def somebodys_weights_in_the_model(name):
    """What the first client adapts is released as if it were the model's."""

    def planted(sound, self, number):
        told = sound(self, number)
        model = self.plan.ranker.model(self.server.weights, self.data.kept, self.data.rows)
        adapted = model.adapted(np.zeros(1, np.int64))
        adapter = self.plan.ranker.adapter
        self.server.weights[name][...] = adapter.net.named(adapted)[name][0]
        return told

    return wrapped(Simulation, "step", planted)


BUGS = (
    Bug(
        "a tensor left out of the clip", POISSON, HOSTILE, setting(sums_module, "clip_whole", all_but("layer1.weight"))
    ),
    Bug("people's vectors left out of the clip", FIXED, HOSTILE, setting(sums_module, "clip_whole", all_but(PEOPLE))),
    Bug("a tensor left out of the clip of turns", TURNS, HOSTILE, setting(sums_module, "clip_whole", all_but(PEOPLE))),
    Bug("clipped tensor by tensor", WITHOUT_VOTES, HOSTILE, setting(sums_module, "clip_whole", by_tensor)),
    Bug("people's vectors without noise", POISSON, BARE, no_noise_on(PEOPLE)),
    Bug("the last bias without noise", WITHOUT_VOTES, BARE, no_noise_on("layer2.bias")),
    Bug("votes that are not charged", POISSON, REPORTS, own_account, without_reports),
    Bug("votes that fixed cohorts are not charged for", FIXED, REPORTS, own_account, without_reports),
    Bug("votes that the budget does not count", POISSON, DELTA, wrapped(dp_privrec, "private_votes", free)),
    Bug("votes without noise", POISSON, COUNTS, setting(VoteReports, "protect", exact_votes)),
    Bug("more than one vote a person", POISSON, VOTED, a_vote_for_every_item),
    Bug("the model knows the votes without their noise", POISSON, PAST, bare_votes_in_the_model),
    Bug("the model knows the votes without their noise, in cyclic order", TURNS, PAST, bare_votes_in_the_model),
    Bug("adapted weights in the model", POISSON, PAST, somebodys_weights_in_the_model("layer1.weight")),
    Bug("an adapted head in the model", HEAD, PAST, somebodys_weights_in_the_model("layer1.weight")),
    Bug("votes for the head that are cut one by one", HEAD, NORM, setting(sums_module, "clip_whole", one_by_one)),
    Bug("half the noise on votes for the head", HEAD, SPREAD, noisy(lambda _, total, noise: noise / 2)),
)


@pytest.mark.parametrize("spec", [POISSON, FIXED, TURNS, WITHOUT_VOTES, HEAD])
def test_a_sound_plan_holds(spec):
    assert failed(spec) == set()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_found(bug, monkeypatch):
    bug.plant(monkeypatch)
    assert bug.seen_by in failed(bug.spec, bug.change)


def sings(name, *settings):
    method, settings = get(name), ("privacy.epsilon=8", *settings)
    plan, problem = tiny_plan(method, settings)
    config = tiny_config(method, settings)
    claimed = promised(method, config, problem)
    return canary(plan, method.clients(config, problem), problem.train, claimed, runs=400)


@pytest.mark.parametrize("spec", ["dp-privrec model.popularity=false", "popularity-head"])
def test_a_canary_sings_when_a_tenth_of_the_noise_is_left(spec, monkeypatch):
    sound = sings(*spec.split())
    noisy(lambda _, total, noise: noise / 10)(monkeypatch)
    assert sound.holds
    assert sound.epsilon_lower > 1.0
    assert not sings(*spec.split()).holds


@pytest.mark.parametrize("sampling", ["fixed", "cyclic"])
def test_a_canary_sings_when_votes_have_a_tenth_of_their_noise(sampling, monkeypatch):
    sound, protect = sings("dp-privrec", f"cohort.sampling={sampling}"), VoteReports.protect

    def quieter(self, counts, source):
        votes = counts * self.step
        return votes + (protect(self, counts, source) - votes) / 10

    monkeypatch.setattr(VoteReports, "protect", quieter)
    assert sound.holds
    assert sound.epsilon_lower > 1.0
    assert not sings("dp-privrec", f"cohort.sampling={sampling}").holds


@pytest.mark.parametrize("tensor", ["features.codes", "features.numbers"])
def test_a_message_with_somebodys_features_is_refused(tensor, monkeypatch):
    sound = MetaLocalTrainer.learn

    def planted(self, cohort, model, spec):
        learned = sound(self, cohort, model, spec)
        kept = cohort.data.kept[tensor].astype(np.float32)
        return replace(learned, updates=replace(learned.updates, dense={**learned.updates.dense, tensor: kept}))

    method, config, problem = parts_of(WITHOUT_VOTES)
    simulation = Simulation(
        method.plan(config, problem), method.clients(config, problem), problem.train, Seeds.all_from(1)
    )
    simulation.step(0)
    monkeypatch.setattr(MetaLocalTrainer, "learn", planted)
    with pytest.raises((VeilrecError, KeyError), match=tensor):
        simulation.step(1)


@pytest.mark.parametrize("name", ["dp-privrec", "privrec"])
def test_a_plan_that_holds_peoples_features_breaks_the_contract(name, monkeypatch):
    subject = ContractSubject(name, settings=("features.users=null",))
    holds_no_user_data(subject)

    def planted(people, items, embedding, popularity):
        return Inputs(people_of["all"], items, embedding, popularity)

    people_of = {}
    sound = common.parts

    def parts(config, problem, features, **options):
        people_of["all"] = features.users
        return sound(config, problem, features, **options)

    monkeypatch.setattr(common, "Inputs", planted)
    monkeypatch.setattr(common, "parts", parts)
    with pytest.raises(ContractBroken, match="a row for every person"):
        holds_no_user_data(subject)
