import numpy as np

from tests.wire.raising import raises
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.serving.answering import FromAttention, FromInterest, FromPooled, best_of, marked, scores_in_lists

NEWS = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)


def test_the_best_news_are_those_of_a_full_sort_and_ties_go_to_the_first():
    users = np.random.default_rng(2).normal(size=(30, 4)).astype(np.float32)
    users[0] = 0.0  # everything ties
    for k in (1, 7, 50):
        expected = np.argsort(-(users @ NEWS.T), axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(best_of(users, NEWS, k), expected)
    np.testing.assert_array_equal(marked(np.array([[1, 2]], np.int32), 4), [[False, True, True, False]])
    for k in (0, 51):
        raises(BadInput, "ask for 1 to 50", best_of, NEWS[:1], NEWS, k)


def test_scores_of_lists():
    users, lists = NEWS[:3], Csr(np.array([0, 2, 2, 5]), np.array([4, 1, 0, 2, 3], np.int32))
    scores = scores_in_lists(users, NEWS, np.array([1, 0, 2]), lists)
    np.testing.assert_allclose(scores[:2], NEWS[[4, 1]] @ users[1], atol=1e-5)
    np.testing.assert_allclose(scores[2:], NEWS[[0, 2, 3]] @ users[2], atol=1e-5)


def test_attention_that_is_negative_everywhere_is_read_as_uniform():
    interests = np.eye(4, dtype=np.float32)
    told = np.array([[-1.0, -2.0, -3.0, -4.0], [0.0, 5.0, -9.0, 0.0]], np.float32)
    np.testing.assert_array_equal(FromAttention(interests, "relu").users(told), [[0.25] * 4, [0.0, 1.0, 0.0, 0.0]])
    np.testing.assert_allclose(FromAttention(interests, "simplex").users(told).sum(axis=1), 1.0, rtol=1e-6)


def test_a_told_interest_is_believed_as_far_as_it_is_likely():
    interests = 4.0 * np.eye(4, dtype=np.float32)
    sure, guess = (FromInterest(interests, keep).users(np.array([[2.0]], np.float32))[0] for keep in (1.0, 0.25))
    np.testing.assert_allclose(sure, interests[2])
    np.testing.assert_allclose(guess, 1.0)


def test_pooled_and_clear_parts_are_added_up():
    reads = FromPooled(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([1.0, 1.0]), np.array([0.5, 0.0]))
    together = reads.users(np.array([[1.0, 2.0]], np.float32))
    np.testing.assert_allclose(together, [[1.5, 5.0]])
    np.testing.assert_allclose(reads.users(np.array([[0.25, 2.0, 0.75, 0.0]], np.float32)), together)
