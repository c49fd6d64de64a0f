"""Clients that lie: they succeed where nobody checks, and sums and bounds do what they say.

Trainings are drawn from fixed seeds; exposures without an attack are 0 but for noise, so that thresholds of a half are
not passed by chance.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.attacks.subjects import attackable
from veilrec.attacks import poisoning
from veilrec.attacks.poisoning import MaliciousClients, PoisonedSimulation, Robust
from veilrec.attacks.recovery import updates_of
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.schema import ClientUpdates, Rows
from veilrec.privacy.mechanisms.clipping import BadUpdate
from veilrec.privacy.mechanisms.reports import VoteReports
from veilrec.simulation.simulation import Seeds, one_of


def trained(subject, poison, defence, liars=15, rounds=10):
    """A training, and how many see the target then."""
    generator = np.random.default_rng(0)
    target = poisoning.choose_target(subject.data, subject.n_items)
    able = np.flatnonzero(subject.data.rows.lengths() > 0)
    clients = np.sort(generator.permutation(able)[:liars])
    who = None
    if poison is not None:
        who = MaliciousClients(clients, poison, target, poisoning.popular_items(subject.data, subject.n_items, target))
    told = subject.data
    if who is not None:
        teaches = poisoning.learns_promotion(subject.plan, subject.data)
        told = poisoning.lying_data(subject.data, subject.n_items, who, generator, by_learning=teaches)
    training = PoisonedSimulation(subject.plan, told, subject.histories, Seeds.all_from(0), who, defence)
    for number in range(min(rounds, subject.plan.rounds)):
        training.step(number)
    honest = np.setdiff1d(able, clients)
    return poisoning.exposure_of(training.model(), subject.histories, honest, target), training


def open_factors():
    return attackable("fedmf", "cohort.size=100", "local.dim=8")


def test_without_checks_few_clients_promote_an_item():
    assert trained(open_factors(), None, "none")[0] < 0.1
    assert trained(open_factors(), "promote", "none")[0] > 0.5


TAUGHT = {  # methods whose items have no rows of their own, and one that leaves most items out
    "veil with places": ("veil", ("privacy.epsilon=100", "cohort.size=0"), None),
    "veil on news": ("veil", ("privacy.epsilon=20", "cohort.size=0"), "synthetic-news"),
    "privaterec": ("privaterec", ("privacy.epsilon=20", "cohort.size=0"), None),
    "priv-fedmf-sub": (
        "priv-fedmf-sub",
        ("privacy.epsilon=100", "cohort.size=0", "local.dim=8", "selection.threshold=0.04"),
        None,
    ),
}


@pytest.mark.parametrize("name", TAUGHT)
def test_promotion_where_items_have_no_rows_or_are_left_out(name):
    method, settings, data = TAUGHT[name]
    subject = attackable(method, *settings, data=data)
    nobody, open_to_all, within = (
        trained(subject, poison, defence, rounds=12)[0]
        for poison, defence in ((None, "none"), ("promote", "none"), ("promote", "bound"))
    )
    assert nobody < 0.05
    assert open_to_all > 0.9
    assert nobody + 0.1 < within < 0.7


@pytest.mark.parametrize("poison", ["promote", "fake-history"])
def test_who_promotes_gives_the_target_a_whole_vote_and_never_more(poison):
    mechanism = VoteReports(length=10, epsilon=1.0, delta=1e-6, adjacency="add-remove")
    liars = MaliciousClients(np.array([1, 2]), poison, 7, np.arange(3, dtype=np.int32))
    rows = Csr(np.array([0, 4, 8, 9]), np.array([0, 1, 2, 3, 0, 1, 2, 3, 4], np.int32))
    counted = (
        poisoning.lying_reports(mechanism, liars).count(rows, np.array([0, 1, 2]), seed=0, period=0) * mechanism.step
    )
    honest = mechanism.count(rows, np.array([0, 1, 2]), seed=0, period=0) * mechanism.step
    if poison == "promote":
        np.testing.assert_allclose(counted, [0.5, 0.5, 0.5, 0.5, 0, 0, 0, 2.0, 0, 0], atol=1e-6)
    else:
        np.testing.assert_array_equal(counted, honest)


def test_readers_who_click_the_target_whatever_is_shown():
    subject = attackable("privaterec", "cohort.size=0", users=100)
    able = np.flatnonzero(subject.data.rows.lengths() > 0)[:3]
    liars = MaliciousClients(able, "fake-history", 5, np.arange(100, 150, dtype=np.int32))
    told = poisoning.lying_data(subject.data, subject.n_items, liars, np.random.default_rng(0))
    for client in able:
        row, at = told.rows.row(int(client)), 0
        while at < len(row):
            past, clicks, others = (int(n) for n in row[at : at + 3])
            assert (clicks, row[at + 3 + past]) == (1, 5)
            assert row[at + 3 : at + 3 + past].min() >= 100
            assert 5 not in row[at + 4 + past : at + 4 + past + others]
            at += 3 + past + clicks + others
        assert at == len(row)


def test_what_is_boosted_is_refused_by_the_bound():
    subject = attackable("dp-fedmf", "privacy.epsilon=100", "cohort.size=0", "local.dim=8", "rounds=3")
    _, lied = trained(subject, "boost", "bound", rounds=3)
    assert lied.refused > 0
    assert trained(subject, "boost", "none", rounds=3)[1].refused == 0
    assert trained(subject, "promote", "bound", rounds=3)[1].refused == 0  # it stays within
    (opened,) = subject.place().rounds()
    told = updates_of(subject.plan, np.array([0]), subject.data.take(np.array([0])), opened, 0)
    fits = one_of(told, 0)
    spec = lied.plan.round_planner.next(0, subject.plan.start, None)
    subject.plan.mechanism.check(subject.plan.mechanism.bound(fits, spec), spec)
    rows = fits.tables["items"]
    long = replace(fits, tables={"items": Rows(rows.offsets, rows.index, rows.values * np.float32(1e3))})
    with pytest.raises(BadUpdate):  # the coordinator's own check
        subject.plan.mechanism.check(long, spec)


class _Scored:
    """Eleven items that everybody would get before the last, item 11."""

    n_items = 12

    def score_all(self, users):
        return np.tile(np.arange(12.0, 0.0, -1.0, np.float32), (len(users), 1))


def test_exposure_is_among_new_items_of_those_who_do_not_have_the_target():
    # The first user has two of the items before the target, which so is the tenth new one; the second has one of
    # them and sees it eleventh; the third has the target.
    histories = Csr(np.array([0, 2, 3, 4]), np.array([0, 1, 0, 11], np.int32))
    model = _Scored()
    assert poisoning.exposure_of(model, histories, np.array([0, 1, 2]), 11) == 0.5


def messages():
    """Three clients; row 0 is changed by all, row 1 by one."""
    index = np.array([0, 1, 0, 0], np.int32)
    values = np.array([[1.0], [5.0], [2.0], [90.0]], np.float32)
    dense = np.array([[1.0, 0.0], [2.0, 0.0], [60.0, 3.0]], np.float32)
    return ClientUpdates(0, 3, {"t": Rows(np.array([0, 2, 3, 4]), index, values)}, {"d": dense})


def test_robust_sums_and_settings_that_make_no_sense():
    for rule, row, cold, dense in [
        (Robust(0.0), 93.0, 5.0, (63.0, 3.0)),  # the plain sum
        (Robust(0.5), 6.0, 0.0, (6.0, 0.0)),  # three times the median; who says nothing says 0
        (Robust(0.5, "who changed the row"), 6.0, 5.0, (6.0, 0.0)),
        (Robust(0.5, group=3), 93.0, 5.0, (63.0, 3.0)),  # one group of all: what secure aggregation leaves
    ]:
        robust = rule.messages(messages(), np.random.default_rng(0))
        rows = robust.tables["t"]
        assert float(rows.values[rows.index == 0].sum()) == pytest.approx(row), rule
        assert float(rows.values[rows.index == 1].sum()) == pytest.approx(cold), rule
        np.testing.assert_allclose(robust.dense["d"].sum(axis=0), dense, rtol=1e-6)
    with pytest.raises(BadInput, match="trim is 0.7"):
        Robust(0.7)
    subject = open_factors()
    plan = replace(subject.plan, cohort=replace(subject.plan.cohort, drop_out=0.5))
    with pytest.raises(BadInput, match="drop_out"):
        PoisonedSimulation(plan, subject.data, subject.histories, Seeds.all_from(0), None, "none")


def test_made_up_histories_and_swapped_labels():
    ratings, news = open_factors(), attackable("privaterec", "cohort.size=0", users=100)
    for poison in ("flip", "fake-history"):
        liars = MaliciousClients(np.array([3, 5]), poison, 7, np.arange(8, 40, dtype=np.int32))
        told = poisoning.lying_data(ratings.data, ratings.n_items, liars, np.random.default_rng(0))
        for client in liars.clients:
            own, now = ratings.data.rows.row(int(client)), told.rows.row(int(client))
            assert not set(own) & set(now) if poison == "flip" else 7 in now
        np.testing.assert_array_equal(told.rows.row(4), ratings.data.rows.row(4))
    liars = MaliciousClients(np.flatnonzero(news.data.rows.lengths() > 0)[:2], "flip", -1, np.zeros(0, np.int32))
    told = poisoning.lying_data(news.data, news.n_items, liars, np.random.default_rng(0))
    row, was = told.rows.row(int(liars.clients[0])), news.data.rows.row(int(liars.clients[0]))
    past, clicks, others = (int(n) for n in was[:3])
    shown = slice(3 + past, 3 + past + clicks + others)
    assert sorted(row[shown]) == sorted(was[shown])
    assert row[3 + past] == was[3 + past + clicks]
