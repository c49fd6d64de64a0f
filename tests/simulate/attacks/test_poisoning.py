"""Devices that lie: they succeed where nobody checks, and sums and bounds do what they say.

Trainings are drawn from fixed seeds; exposures without an attack are 0 but for noise, so that thresholds of a half are
not passed by chance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.simulate.attacks.subjects import Attackable, attackable
from veilrec._csr import Csr
from veilrec.errors import BadInput
from veilrec.privacy.mechanisms.updates import BadUpdate
from veilrec.simulate.attacks.liars import Liars, Poison, choose_target, lying_data, lying_reports, popular_items
from veilrec.simulate.attacks.poisoning import Defence, PoisonedSimulation, exposure_of, joined, learns_promotion
from veilrec.simulate.attacks.robust import Robust
from veilrec.simulate.simulation import Seeds, Simulation, one_of
from veilrec.updates import Rows, Uploads


def trained(
    subject: Attackable, poison: Poison | None, defence: Defence, liars: int = 15, rounds: int = 10
) -> tuple[float, PoisonedSimulation]:
    """A training, and how many see the target then."""
    generator = np.random.default_rng(0)
    target = choose_target(subject.data, subject.n_items)
    devices = np.sort(generator.permutation(len(subject.data.rows))[:liars])
    who = None
    if poison is not None:
        who = Liars(devices, poison, target, popular_items(subject.data, subject.n_items, target))
    told = subject.data if who is None else lying_data(subject.data, subject.n_items, who, generator)
    training = PoisonedSimulation(subject.plan, told, subject.histories, Seeds.all_from(0), who, defence)
    for number in range(min(rounds, subject.plan.rounds)):
        training.step(number)
    honest = np.setdiff1d(np.arange(len(subject.data.rows)), devices)
    return exposure_of(training.model(), subject.histories, honest, target), training


def open_factors() -> Attackable:
    return attackable("fedmf", "cohort.size=100", "local.dim=8")


def test_without_checks_few_devices_promote_an_item() -> None:
    assert trained(open_factors(), None, "none")[0] < 0.1
    assert trained(open_factors(), "promote", "none")[0] > 0.5


def test_nobody_lies_and_nothing_is_done_is_the_simulation() -> None:
    subject = open_factors()
    _, ours = trained(subject, None, "none", rounds=2)
    plain = Simulation(subject.plan, subject.data, subject.histories, Seeds.all_from(0))
    for number in range(2):
        plain.step(number)
    np.testing.assert_array_equal(ours.server.weights["items"], plain.server.weights["items"])


def test_what_is_boosted_is_refused_by_the_bound() -> None:
    subject = attackable("dp-fedmf", "privacy.epsilon=100", "cohort.size=0", "local.dim=8", "rounds=3")
    _, lied = trained(subject, "boost", "bound", rounds=3)
    assert lied.refused > 0
    _, unchecked = trained(subject, "boost", "none", rounds=3)
    assert unchecked.refused == 0
    (fits,) = [one_of(_some(subject), 0)]
    about = lied.plan.agenda.next(0, subject.plan.start, None)
    subject.plan.mechanism.check(subject.plan.mechanism.bound(fits, about), about)
    rows = fits.tables["items"]
    long = replace(fits, tables={"items": Rows(rows.offsets, rows.index, rows.values * np.float32(1e3))})
    with pytest.raises(BadUpdate):  # the coordinator's own check
        subject.plan.mechanism.check(long, about)


def _some(subject: Attackable) -> Uploads:
    from veilrec.simulate.attacks.witness import updates_of

    place = subject.place()
    (opened,) = place.rounds()
    return updates_of(subject.plan, np.array([0]), subject.data.take(np.array([0])), opened, 0)


def test_promotion_within_the_bound_is_not_refused() -> None:
    subject = attackable("dp-fedmf", "privacy.epsilon=100", "cohort.size=0", "local.dim=8", "rounds=3")
    assert trained(subject, "promote", "bound", rounds=3)[1].refused == 0


@pytest.mark.parametrize("poison", ["flip", "fake-history"])
def test_made_up_histories(poison: Poison) -> None:
    subject = open_factors()
    liars = Liars(np.array([3, 5]), poison, 7, np.arange(8, 40, dtype=np.int32))
    told = lying_data(subject.data, subject.n_items, liars, np.random.default_rng(0))
    for device in liars.devices:
        own, now = subject.data.rows.row(int(device)), told.rows.row(int(device))
        assert not set(own) & set(now) if poison == "flip" else 7 in now
    np.testing.assert_array_equal(told.rows.row(4), subject.data.rows.row(4))


def test_labels_of_impressions_are_swapped() -> None:
    subject = attackable("privaterec", "cohort.size=0", users=100)
    liars = Liars(np.flatnonzero(subject.data.rows.lengths() > 0)[:2], "flip", -1, np.zeros(0, np.int32))
    told = lying_data(subject.data, subject.n_items, liars, np.random.default_rng(0))
    row, was = told.rows.row(int(liars.devices[0])), subject.data.rows.row(int(liars.devices[0]))
    past, clicks, others = (int(n) for n in was[:3])
    shown = slice(3 + past, 3 + past + clicks + others)
    assert sorted(row[shown]) == sorted(was[shown])
    assert row[3 + past] == was[3 + past + clicks]


class _Scored:
    """Eleven items that everybody would get before the last, item 11."""

    n_items = 12

    def score_all(self, users: Any) -> Any:
        return np.tile(np.arange(12.0, 0.0, -1.0, np.float32), (len(users), 1))


def test_exposure_is_among_new_items_of_those_who_do_not_have_the_target() -> None:
    # The first user has two of the items before the target, which so is the tenth new one; the second has one of
    # them and sees it eleventh; the third has the target.
    histories = Csr(np.array([0, 2, 3, 4]), np.array([0, 1, 0, 11], np.int32))
    model: Any = _Scored()
    assert exposure_of(model, histories, np.array([0, 1, 2]), 11) == 0.5


def messages() -> Uploads:
    """Three devices; row 0 is changed by all, row 1 by one."""
    index = np.array([0, 1, 0, 0], np.int32)
    values = np.array([[1.0], [5.0], [2.0], [90.0]], np.float32)
    dense = np.array([[1.0, 0.0], [2.0, 0.0], [60.0, 3.0]], np.float32)
    return Uploads(0, 3, {"t": Rows(np.array([0, 2, 3, 4]), index, values)}, {"d": dense})


@pytest.mark.parametrize(
    ("rule", "row", "cold", "dense"),
    [
        (Robust(0.0), 93.0, 5.0, (63.0, 3.0)),  # the plain sum
        (Robust(0.5), 6.0, 0.0, (6.0, 0.0)),  # three times the median; who says nothing says 0
        (Robust(0.5, "who changed the row"), 6.0, 5.0, (6.0, 0.0)),
        (Robust(0.5, group=3), 93.0, 5.0, (63.0, 3.0)),  # one group of all: what secure aggregation leaves
    ],
)
def test_robust_sums(rule: Robust, row: float, cold: float, dense: tuple[float, float]) -> None:
    robust = rule.messages(messages(), np.random.default_rng(0))
    rows = robust.tables["t"]
    assert float(rows.values[rows.index == 0].sum()) == pytest.approx(row)
    assert float(rows.values[rows.index == 1].sum()) == pytest.approx(cold)
    np.testing.assert_allclose(robust.dense["d"].sum(axis=0), dense, rtol=1e-6)


def test_messages_are_joined() -> None:
    some: Any = messages()
    both = joined(some, replace(one_of(some, 2), tables={}))
    assert both.count == 4
    assert len(np.diff(both.tables["t"].offsets)) == 4
    np.testing.assert_array_equal(both.dense["d"][3], some.dense["d"][2])


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(BadInput, match="trim is 0.7"):
        Robust(0.7)
    subject = open_factors()
    plan = replace(subject.plan, cohort=replace(subject.plan.cohort, drop_out=0.5))
    with pytest.raises(BadInput, match="drop_out"):
        PoisonedSimulation(plan, subject.data, subject.histories, Seeds.all_from(0), None, "none")
