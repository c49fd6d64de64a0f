"""Bugs planted in plans, votes, reports and clients: `veilrec audit METHOD` has to find every one of them.

What a plan is made of is no matter of chance; every other audit here fails a sound plan by chance with probability at
most 2e-4 (see `tests.audit.planted_bugs`), and all seeds are fixed.
"""

from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.audit.bounded_plans import adaptive_plan, data, people, promise
from tests.audit.planted_bugs import CLICK, FEW, GRAM, MF, SUB, failed_checks, setting, wrapped
from tests.audit.test_mutations import failed
from veilrec.audit import method as audits
from veilrec.audit.auditor import audit_claim, case_of
from veilrec.audit.contract import public_facts
from veilrec.audit.contract_subject import ContractBroken, ContractSubject
from veilrec.audit.method import audit_method
from veilrec.client import validation
from veilrec.client.local_training import OwnItems
from veilrec.client.rankers import PopularityRanker
from veilrec.core import rng
from veilrec.core.csr import Csr
from veilrec.core.features import Feature, Features, Side
from veilrec.core.schema import RoundSpec
from veilrec.methods.fednewsrec import fednewsrec
from veilrec.methods.news import federated
from veilrec.methods.public import difference
from veilrec.methods.registry import get
from veilrec.privacy.mechanisms import interests
from veilrec.privacy.mechanisms import reports as report_mechanisms
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.privacy.mechanisms.interests import PooledInterest
from veilrec.privacy.mechanisms.reports import ItemHistogram, VoteReports
from veilrec.privacy.mechanisms.schedules import AdaptiveSum
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.privacy.randomness import KeyedSource
from veilrec.runs.request import RunRequest, prepare
from veilrec.simulation import simulation

FACTS = "what the plan is made of beside public facts"
OTHERS = "what a client's data or role tells of another client"
VEIL = "veil features.items=[]"
NEWS = "fednewsrec size.word_dim=4 size.heads=2 size.head_dim=2 size.attention=2"
POPULAR = "private-popularity"
FEATURES = "dp-privrec features.users=null model.embedding=2 model.hidden=[3]"


def uses(problem):
    return np.bincount(problem.train.items, minlength=problem.n_items)


def mean(problem):
    return len(problem.train.items) / int((problem.train.lengths() > 0).sum())


def longest(problem):
    return int(problem.train.lengths().max())


def given(name, value):
    """A setting that follows from the data."""

    def make(plan, config, problem):
        part, _, field = name.partition(".")
        found = replace(getattr(config, part), **{field: value(problem)}) if field else value(problem)
        return plan(config.model_copy(update={part: found}), problem)

    return make


def part(name, change):
    """A part of the plan that follows from the data, and from the sound one."""
    return lambda plan, config, problem: replace(
        made := plan(config, problem), **{name: change(getattr(made, name), problem)}
    )


def inside(name, field, value):
    """A field of such a part."""

    def change(sound, problem):
        changed = copy(sound)
        object.__setattr__(changed, field, value(problem))
        return changed

    return part(name, change)


@dataclass(frozen=True)
class CountingRanker(PopularityRanker):
    """A ranker whose settings say how often items are used."""

    interactions: int = 0


class TellingRanker(PopularityRanker):
    """A ranker that saves exact counts beside the weights."""

    def tables(self, weights):
        return {"exact": self.exact}


@dataclass(frozen=True)
class PopularRounds:
    """Rounds about the items that are really used most."""

    rows: Any
    leaves_out = True

    def next(self, number, weights, tally):
        return RoundSpec(number, self.rows)


def popular_half(problem):
    return np.sort(np.argsort(-uses(problem), kind="stable")[: problem.n_items // 2]).astype(np.int32)


def counts_as_feature(plan, config, problem):
    """A column of the log: how often every item is used."""
    items, counts = problem.features.items, uses(problem).astype(np.float32)
    column = (counts / counts.max()).reshape(-1, 1)
    side = Side((*items.features, Feature("popular", "number")), items.codes, np.hstack([items.numbers, column]))
    return plan(config, replace(problem, features=Features(problem.features.users, side)))


def first_from_counts(start, problem):
    return {name: values + uses(problem)[:, np.newaxis].astype(np.float32) for name, values in start.items()}


def weigher(problem):
    counts = uses(problem)
    return lambda items: 1.0 / counts[items]


def slower_if_somebody_has_everything(server, problem):
    return replace(server, rate=server.rate / (2.0 if longest(problem) > 0.9 * problem.n_items else 1.0))


# Where each bug is, the part of the plan that is named, and how the plan is made of the sound way of making it.
DATA_BUGS = {
    "uses in a ranker's settings": (POPULAR, "ranker", part("ranker", lambda _, p: CountingRanker("", mean(p)))),
    "exact counts in a ranker's tables": (POPULAR, "ranker", inside("ranker", "exact", uses)),
    "a seed made of data": (MF, "draws_seed", inside("ranker", "draws_seed", lambda p: int(p.train.items.sum()))),
    "K of private-gram": (GRAM, "schema", given("items", lambda p: len(np.unique(p.train.items)) // 3)),
    "share of votes of private-gram": (GRAM, "floor", given("votes", lambda p: uses(p).max() / 1e3)),
    "ridge of dpals": ("dpals", "start", given("ridge", mean)),
    "exponent of dpals": ("dpals", "exponent", given("exponent", lambda p: -1.0 / mean(p))),
    "first bound of dp-privrec": (FEATURES, "bound", given("privacy.clip_norm", lambda p: 1.0 / mean(p))),
    "a feature of exact counts": ("dpals-features", "features", counts_as_feature),
    "a feature of exact counts in a network": (FEATURES, "numbers", counts_as_feature),
    "exact counts in veil's prior": (VEIL, "content", inside("from_reports", "content", uses)),
    "coordinates of veil from counts": (VEIL, "whitening", inside("ranker", "whitening", uses)),
    "caution of veil from histories": (VEIL, "caution", inside("ranker", "caution", mean)),
    "a rate by how much people use": (MF, "server", given("server.rate", lambda p: 1.0 / mean(p))),
    "local epochs by the longest history": (MF, "epochs", given("local.epochs", lambda p: 1 + longest(p) // 20)),
    "first weights from counts": (MF, "start", part("start", first_from_counts)),
    "rounds about popular items": (MF, "round", part("round_planner", lambda _, p: PopularRounds(popular_half(p)))),
    "a trainer's function that knows counts": (MF, "weigh", inside("trainer", "weigh", weigher)),
    "a trainer's partial that knows counts": (MF, "weigh", inside("trainer", "weigh", lambda p: partial(max, uses(p)))),
    "where the longest history is": (MF, "most", inside("trainer", "most", lambda p: int(p.train.lengths().argmax()))),
    "as many rounds as uses": (MF, "rounds", lambda plan, c, p: plan(c, replace(p, rounds=1 + int(mean(p)) // 4))),
    "cohorts by how much people use": (MF, "plan", given("cohort.size", lambda p: int(mean(p)))),
    "noise for those who use much": (MF, "sigma", inside("mechanism", "sigma", lambda p: 1.0 / longest(p))),
    "a rate that tells of an extreme": (MF, "server", part("server", slower_if_somebody_has_everything)),
    "items of a sub-model": (SUB, "max_items", given("selection.max_items", longest)),
    "the threshold of a sub-model": (SUB, "threshold", given("selection.threshold", lambda p: mean(p) / 1e3)),
    "how much of a history is read": (NEWS, "history", given("history", lambda p: 1 + longest(p))),
}


def quick_audit(monkeypatch, spec, *, plan=None, clients=None):
    """The failed checks of `veilrec audit`, without those of rounds, with another way of making the plan."""
    name, *settings = spec.split()
    sound = get(name)
    parts = {"plan": sound.plan if plan is None else partial(plan, sound.plan), "clients": clients or sound.clients}
    monkeypatch.setattr(audits, "get", lambda _: replace(sound, **parts))
    monkeypatch.setattr(audits, "audit_plan", lambda *of, **how: ())
    monkeypatch.setattr(audits, "canary", lambda *of, **how: None)
    monkeypatch.setattr(audits, "QUICK", replace(audits.QUICK, users=40))
    return {
        check.name: check.measured
        for check in audit_method(name, quick=True, settings=settings).checks
        if not check.holds
    }


@pytest.mark.parametrize("spec", sorted({spec for spec, *_ in DATA_BUGS.values()}))
def test_a_sound_plan_is_made_of_public_facts(spec, monkeypatch):
    assert quick_audit(monkeypatch, spec) == {}


@pytest.mark.parametrize("bug", DATA_BUGS)
def test_a_plan_that_is_made_of_data_is_found(bug, monkeypatch):
    spec, where, make = DATA_BUGS[bug]
    assert where in quick_audit(monkeypatch, spec, plan=make)[FACTS]


def test_words_of_news_that_were_shown_are_no_public_facts(monkeypatch):
    sound = federated.read_news
    monkeypatch.setattr(fednewsrec, "read_news", lambda *of, **how: sound(*of, **{**how, "whole_catalogue": False}))
    assert "schema" in quick_audit(monkeypatch, NEWS)[FACTS]


def longest_judge(logs, share, public_seed, numbers=None):
    """Who has the longest logs validates."""
    judges = logs.lengths() > np.quantile(logs.lengths(), 1.0 - share)
    return validation.OwnImpressions(validation._only(logs, ~judges), validation._only(logs, judges))


def most_clicks_judge(sound, self, data):
    """Of the validation clients, those with the longer logs."""
    clients = sound(self, data)
    lengths = data.active_validation.lengths()[clients]
    return clients[lengths >= np.median(lengths)]


def popular_first(config, problem):
    """Histories in the order of what everybody uses."""
    train, counts = problem.train, uses(problem)
    return OwnItems(Csr(train.offsets, train.items[np.lexsort((-counts[train.items], train.row_numbers()))]))


def without_rare(config, problem):
    """Items that one person alone has are nobody's."""
    common = (uses(problem) > 1)[problem.train.items]
    lengths = np.bincount(problem.train.row_numbers()[common], minlength=len(problem.train))
    return OwnItems(Csr(np.concatenate([[0], np.cumsum(lengths)]), problem.train.items[common]))


ROLES = {
    "who judges depends on the length of logs": (NEWS, setting(federated, "parted", longest_judge), None),
    "judges are those who click most": (NEWS, wrapped(validation.NewsValidator, "clients", most_clicks_judge), None),
    "histories are in the order of popularity": (MF, lambda patch: None, popular_first),
    "clients leave out what they alone have": (MF, lambda patch: None, without_rare),
}


@pytest.mark.parametrize("bug", ROLES)
def test_a_clients_data_and_role_have_nothing_of_anothers(bug, monkeypatch):
    spec, plant, clients = ROLES[bug]
    plant(monkeypatch)
    assert quick_audit(monkeypatch, spec, clients=clients)[OTHERS].startswith("clients.")


def lies_of(key):
    """Real clients whose lies have another key than (period, client)."""
    return setting(simulation, "noise_of_report", lambda *of: KeyedSource(of[0], rng.REPORT, *key(*of[1:])))


def fast_lies_of(key):
    """The same of simulated clients without a secret."""
    sound = report_mechanisms._count_randomised
    return setting(report_mechanisms, "_count_randomised", lambda a, b, clients, *of: sound(a, b, key(clients), *of))


def half_the_coins(patch):
    """Every other lie of two neighbours is the same."""

    class Half(KeyedSource):
        def words(self, count):
            return np.where(np.arange(count) % 2, self.other.words(count), super().words(count))

    def source(secret, period, client):
        made = Half(secret, rng.REPORT, period, client)
        made.other = KeyedSource(secret, rng.REPORT, period, 10_000 + client // 2)
        return made

    patch.setattr(simulation, "noise_of_report", source)


def unvoted(kind):
    """No noise on items that nobody has."""
    return wrapped(kind, "protect", lambda sound, self, counts, source: sound(self, counts, source) * (counts > 0))


def follows(kind):
    """A client that clips to whatever the server asks for."""
    return setting(kind, "_clip_norm", lambda self, spec: spec.clip_norm or self.clip_norm)


SAME, TOGETHER = "variance of how many lie about an item", "how often two reports lie about the same item"
NO_NOISE, FOLLOWED = "counts without noise", "norm of an update where the server asks for a larger bound"
ROUND_BUGS = {
    "all reports lie at the same places": (CLICK, SAME, lies_of(lambda period, client: (period,))),
    "two reports lie at the same places": (CLICK, TOGETHER, lies_of(lambda period, client: (period, client // 2))),
    "reports far apart lie at the same places": (CLICK, SAME, lies_of(lambda period, client: (period, client % 7))),
    "simulated reports lie at the same places": (CLICK, SAME, fast_lies_of(np.zeros_like)),
    "half of the lies of two reports are the same": (CLICK, TOGETHER, half_the_coins),
    "items that nobody voted for get no noise": (GRAM, NO_NOISE, unvoted(VoteReports)),
    "items that nobody has get no noise": (SUB, NO_NOISE, unvoted(ItemHistogram)),
    "a client takes the server's larger bound": (FEW, FOLLOWED, follows(CohortSum)),
    "a client takes the server's larger bound of votes": (GRAM, FOLLOWED, follows(CohortSum)),
}


@pytest.mark.parametrize("bug", ROUND_BUGS)
def test_a_bug_in_votes_reports_and_bounds_is_found(bug, monkeypatch):
    spec, seen_by, plant = ROUND_BUGS[bug]
    plant(monkeypatch)
    assert seen_by in failed(spec)


def test_a_client_that_follows_a_learnt_bound_anywhere_is_found(monkeypatch):
    follows(AdaptiveSum)(monkeypatch)
    plan = adaptive_plan()
    assert FOLLOWED in failed_checks(plan, data(), people(), promise(plan), 2)


def test_clipping_the_sum_of_clicks_instead_of_each_is_found(monkeypatch):
    (sound, _) = PooledInterest.examples()
    assert audit_claim(case_of(sound), effort=1, seed=0).passed

    def pooled(self, history):
        return clip_flat((history @ self.projection.T).sum(axis=0), self.slots * self.clip_norm) / self.slots

    monkeypatch.setattr(interests.PooledInterest, "pooled", pooled)
    assert all(audit_claim(case_of(bad), effort=1, seed=0).verdict == "refuted" for bad in PooledInterest.examples())


def test_the_contract_refuses_a_plan_of_data_and_nothing_made_of_it_is_published(monkeypatch):
    sound = get(POPULAR)
    bad = replace(sound, plan=partial(DATA_BUGS["uses in a ranker's settings"][-1], sound.plan))
    request = RunRequest(POPULAR, "synthetic-ratings:users=60,items=50", protocol="loo-full", noise="secure")
    assert prepare(request).obstacle() is None
    monkeypatch.setattr("veilrec.audit.contract_subject.get", lambda name: bad)
    with pytest.raises(ContractBroken, match=r"plan.ranker.interactions"):
        public_facts(ContractSubject(POPULAR))
    monkeypatch.setattr("veilrec.runs.request.get", lambda name: bad)
    prepared = prepare(request)
    assert "plans with more than public facts" in prepared.obstacle()
    assert any("Not to be published" in words for words in prepared.guarantee().remarks())


def test_a_difference_is_named_wherever_it_hides():
    def closed(value):
        return lambda: value

    pairs = (
        ({"a": [1, (2.0, None)]}, {"a": [1, (3.0, None)]}, "plan.a.1.0: 2.0 and 3.0"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "plan: ['a', 'b'] and ['b', 'a']"),
        (np.zeros(2, np.float32), np.zeros(2), "plan: [0. 0.] and [0. 0.]"),
        (np.array([0.0]), np.array([-0.0]), "plan: [0.] and [-0.]"),
        (closed(1), closed(2), "plan.value: 1 and 2"),
        (partial(max, 1), partial(max, 2), "plan.args.0: 1 and 2"),
        (PopularRounds(np.arange(2)), PopularRounds(np.arange(3)), "plan.rows: [0 1] and [0 1 2]"),
        (1, True, "plan: int and bool"),
    )
    for first, second, told in pairs:
        assert difference(first, second, "plan") == told
        assert difference(first, first, "plan") is None
    assert difference(float("nan"), float("nan"), "plan") is None
    circle: list[Any] = []
    circle.append(circle)
    other: list[Any] = []
    other.append(other)
    assert difference(circle, other, "plan") is None
