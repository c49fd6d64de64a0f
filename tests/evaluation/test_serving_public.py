import numpy as np
import pytest

from tests.evaluation.served import DIM, NEWS, SUBJECTS, MeanModel
from veilrec.client.queries import PooledInput
from veilrec.evaluation.serving import expected_users, groups_of, made_up_histories, pooled_space, public_interests


def test_groups_are_found_and_the_same_seed_finds_the_same():
    model = MeanModel()
    (centres, group), again = (groups_of(model.news.astype(np.float64), SUBJECTS, seed=3) for _ in range(2))
    assert len(np.unique(group * SUBJECTS + model.subject)) == SUBJECTS  # each group is one subject
    np.testing.assert_array_equal(centres, again[0])
    centres, group = groups_of(np.ones((5, 3)), 4, seed=1)  # vectors that are all the same
    np.testing.assert_array_equal(centres, np.ones((4, 3)))
    assert set(group) == {0}
    assert len(groups_of(np.eye(4), 4, seed=1)[0]) == 4


def test_made_up_readers_read_what_there_is_and_prefer_a_few_subjects():
    model = MeanModel()
    histories = made_up_histories(model.news, 10, seed=1)
    assert histories.items.min() >= 0
    assert histories.items.max() < NEWS
    assert (histories.lengths().min(), histories.lengths().max()) == (2, 10)
    long = np.flatnonzero(histories.lengths() == 10)
    shares = np.array([np.bincount(model.subject[histories.row(row)], minlength=SUBJECTS).max() for row in long])
    assert shares.mean() > 5.5  # of 10; readers without taste have 4 to 5 of one of four subjects
    np.testing.assert_array_equal(histories.items, made_up_histories(model.news, 10, seed=1).items)
    assert made_up_histories(model.news[:1], 1, seed=1).items.max() == 0


def test_public_interests_are_the_subjects():
    model = MeanModel()
    interests = public_interests(model, model.news, 8, seed=1)
    assert interests.shape == (8, DIM)
    assert set(interests[:, :SUBJECTS].argmax(axis=1)) == set(range(SUBJECTS))


def test_pooled_space_keeps_within_its_clip_norm():
    space = pooled_space(MeanModel().news, 4)
    norms = np.linalg.norm(space.table, axis=1)
    assert norms.max() <= space.clip_norm
    assert np.mean(norms > 0.999 * space.clip_norm) == pytest.approx(0.5, abs=0.1)
    assert pooled_space(np.ones((3, 2), np.float32), 2).clip_norm == 1.0  # news that do not differ


def test_the_guess_is_good_without_noise_and_cautious_with_much():
    model = MeanModel()
    pooled = PooledInput(pooled_space(model.news, DIM).table, model.longest)
    histories = made_up_histories(model.news, 10, seed=9)
    told = pooled.inputs(histories).sums(pooled.table) / pooled.slots
    truth = model.users(histories)
    near = expected_users(model, model.news, pooled, 1e-6, seed=0).users(told.astype(np.float32))
    far = expected_users(model, model.news, pooled, 1e3, seed=0).users(told.astype(np.float32))
    spread = ((truth - truth.mean(axis=0)) ** 2).sum()
    assert ((truth - near) ** 2).sum() < 0.35 * spread
    assert ((far - far.mean(axis=0)) ** 2).sum() < 1e-6 * spread
