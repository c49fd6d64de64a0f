"""Who was there: told where nothing protects or something is broken, and not beyond the ceiling where it holds.

Among 2,000 canaries half of which are there, the AUC of an attack has a standard deviation of 0.013. Thresholds lie
five of them from what is to be expected, so that a test fails by chance less than one time in a million; half the noise
is told from all of it by three, one time in a thousand. Seeds are fixed, and so they do not.
"""

import numpy as np
import pytest

from tests.attacks.subjects import attackable, with_noise, without_clip, without_noise_on
from veilrec.attacks import membership
from veilrec.attacks.membership import MembershipEffort
from veilrec.core.errors import BadInput

MANY = MembershipEffort(canaries=25, trainings=80)  # few at a time: there are 120 items
FIVE_DEVIATIONS = 0.065


def attack(subject, effort=MANY, kind="crafted"):
    found = membership.find_members(
        subject.plan, subject.data, subject.histories, subject.n_items, subject.claimed, effort=effort, kind=kind
    )
    return {one.view: one for one in found}


def votes():
    return attackable("private-popularity", "privacy.epsilon=2", "cohort.size=0")


def test_what_is_proven_stays_below_its_ceiling():
    ceiling = membership.ceiling_of(votes().plan)
    assert ceiling.auc == pytest.approx(0.624, abs=0.001)  # Phi(mu / sqrt 2) of a Gaussian release with mu = 0.448
    for found in attack(votes()).values():
        assert 0.5 < found.auc < ceiling.auc + FIVE_DEVIATIONS
        assert found.epsilon_lower <= 2.0


def test_planted_leaks_are_seen():
    for broken, least in [
        (with_noise(votes(), 0.0), 0.99),
        (with_noise(votes(), 0.5), 0.64),  # the ceiling of the whole noise; three deviations below what is found
        (without_clip(votes()), 0.8),
    ]:
        assert attack(broken)["every round"].auc > least


def test_a_tensor_that_the_noise_leaves_out_is_seen():
    subject = attackable("dpals", "privacy.epsilon=2", "local.dim=4", "cohort.size=0")
    few = MembershipEffort(canaries=20, trainings=9)
    sound, broken = (attack(one, few)["every round"] for one in (subject, without_noise_on(subject, "items")))
    assert sound.auc < 0.85  # 180 canaries: a deviation is 0.043, and the ceiling 0.64
    assert broken.auc > 0.95
    assert broken.epsilon_lower > 2.0


def test_messages_in_the_clear_and_as_published_tell_who_was_there():
    subject = attackable("fedmf", "cohort.size=50", "rounds=20", "local.dim=8")
    # Of 200 canaries an AUC has a deviation of 0.04.
    assert attack(subject, MembershipEffort(canaries=100, trainings=2))["every round"].auc > 0.7
    subject = attackable("dp-fedmf", "calibration=as-published", "cohort.size=20", "rounds=2", "local.dim=8")
    found = attack(subject, MembershipEffort(canaries=100, trainings=1), kind="random")
    assert found["message"].auc > 0.8
    assert set(found) == {"every round", "final model", "message"}


def test_canaries_take_the_place_of_others_and_half_are_there():
    subject = votes()
    generator = np.random.default_rng(1)
    planted, canaries = membership.plant(subject.data, subject.n_items, 40, generator, kind="crafted", doubles=False)
    assert len(planted.rows) == len(subject.data.rows)
    assert canaries.inside.sum() == 20
    others = np.setdiff1d(np.arange(len(planted.rows)), canaries.slots)
    for client in others[:20]:
        np.testing.assert_array_equal(planted.rows.row(int(client)), subject.data.rows.row(int(client)))
    for place, client in enumerate(canaries.slots):
        np.testing.assert_array_equal(planted.rows.row(int(client)), canaries.data.rows.row(place))


def test_scores_are_judged():
    inside = np.arange(400) % 2 == 0
    perfect = membership.judge_scores(
        np.where(inside, 1.0, -1.0), inside, "every round", "crafted", MembershipEffort(400, 1), 1e-6
    )
    assert (perfect.auc, perfect.true_positive_rate) == (1.0, 1.0)
    assert perfect.epsilon_lower > 3.0
    blind = membership.judge_scores(
        np.random.default_rng(0).normal(size=400), inside, "every round", "crafted", MembershipEffort(400, 1), 1e-6
    )
    assert blind.interval[0] < 0.5 < blind.interval[1]
    assert blind.epsilon_lower < 0.5
    assert membership.auc(np.array([1.0, 2.0]), np.array([1.0, 0.0])) == pytest.approx(0.875)
    assert membership.auc_interval(0.5, inside)[0] == pytest.approx(0.443, abs=0.002)
    assert membership.auc_interval(1.0, np.array([True, True, False, False])) == (pytest.approx(0.158, abs=0.001), 1.0)
    # One of a hundred others may pass: the threshold is the last but one of them, 98.
    assert membership.true_positives(np.array([98.5, 98.0, 50.0, 200.0]), np.arange(100.0))[0] == 0.5
    found, low, high = membership.true_positives(np.array([3.0, 0.0]), np.zeros(100))
    assert (found, low < 0.5 < high) == (0.5, True)


def test_what_cannot_be_tried_is_refused():
    for effort, told in [
        (MembershipEffort(1, 1), "1 canaries"),
        (MembershipEffort(10_000, 1), "10000 canaries"),
        (MembershipEffort(10, 0), "--trainings is 0"),
    ]:
        with pytest.raises(BadInput, match=told):
            attack(votes(), effort)
