"""The items' half of private least squares: messages have one length, and exact sums give the exact solution."""

from dataclasses import replace

import numpy as np
import pytest

from veilrec.audit.contract_subject import histories_of
from veilrec.models.private_als import AlsSums

N_ITEMS, DIM = 7, 3
SUMS = AlsSums(
    dim=DIM, whole=0.2, gramians=0.3, norm=2.0, unobserved=0.1, ridge=0.5, exponent=-0.5, floor=0.1, people=5.0
)
PEOPLE = histories_of([[0, 1, 2], [1, 3], [6], [2, 5, 4, 0], [1, 2]])
POPULARITY = np.array([[1.0], [2.0], [3.0], [0.5], [0.0], [-1.0], [1.0]], np.float32)


def vectors():
    drawn = np.random.default_rng(2).standard_normal((len(PEOPLE), DIM))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def summed(sums, people, users):
    squares, told = sums.messages(users, sums.item_weights(POPULARITY, people), people.row_numbers())
    rows = np.zeros((N_ITEMS, sums.width), np.float32)
    np.add.at(rows, people.items, told)
    return squares.sum(0), rows


@pytest.mark.parametrize("gramians", [0.0, 0.3])
def test_every_message_is_as_long_as_the_bound(gramians):
    sums = replace(SUMS, gramians=gramians)
    owners = PEOPLE.row_numbers()
    squares, told = sums.messages(vectors(), sums.item_weights(POPULARITY, PEOPLE), owners)
    lengths = (squares**2).sum((1, 2)) + np.bincount(owners, (told**2).sum(1))
    assert np.allclose(np.sqrt(lengths), 2.0, rtol=1e-5)


def test_rare_items_weigh_more_below_zero_and_all_alike_at_zero():
    weights = SUMS.item_weights(POPULARITY, PEOPLE)[:3]  # items of 1, 2 and 3 votes
    assert weights.tolist() == sorted(weights, reverse=True)
    assert weights == pytest.approx(np.array([1, 2**-0.5, 3**-0.5]) / np.sqrt(1 + 1 / 2 + 1 / 3))
    assert replace(SUMS, exponent=0.0).item_weights(POPULARITY, PEOPLE)[:3] == pytest.approx(3**-0.5)


def test_exact_sums_give_the_solution_of_least_squares():
    users, weights = vectors(), SUMS.item_weights(POPULARITY, PEOPLE)
    found = SUMS.solve(POPULARITY, *summed(SUMS, PEOPLE, users))
    owners = PEOPLE.row_numbers()
    for item in range(N_ITEMS):
        own = PEOPLE.items == item
        u, c = users[owners[own]], weights[own]
        matrix = 0.1 * users.T @ users + (u.T * c) @ u + 0.5 * np.eye(DIM)
        assert np.allclose(found[item], np.linalg.solve(matrix, u.T @ c), atol=1e-5)


def test_without_matrices_of_items_their_users_are_like_everybody():
    sums = replace(SUMS, gramians=0.0, exponent=0.0)
    users = vectors()
    gram, rows = summed(sums, PEOPLE, users)
    found = sums.solve(POPULARITY, gram, rows)
    right = rows / sums.lengths[2]
    for item in range(N_ITEMS):
        share = 0.1 + max(float(POPULARITY[item, 0]), 0.0) / 5.0
        matrix = share * users.T @ users + 0.5 * np.eye(DIM)
        assert np.allclose(found[item], np.linalg.solve(matrix, right[item]), atol=1e-5)


@pytest.mark.parametrize("gramians", [0.0, 0.3])
def test_noise_never_makes_a_solution_explode(gramians):
    """Whatever the noise, no matrix has an eigenvalue below the ridge."""
    sums = replace(SUMS, gramians=gramians)
    generator = np.random.default_rng(1)
    rows = (100.0 * generator.standard_normal((N_ITEMS, sums.width))).astype(np.float32)
    gram = (100.0 * generator.standard_normal((DIM, DIM))).astype(np.float32)
    found = np.linalg.norm(sums.solve(POPULARITY, gram, rows), axis=1)
    limit = np.linalg.norm(rows[:, :DIM], axis=1) / sums.lengths[2] / sums.ridge
    assert (found <= limit * (1 + 1e-5)).all()


def test_features_of_nothing_new_change_little_and_good_ones_say_what_sums_cannot():
    """Items of two kinds, whose vectors are the same but for noise: what many items say together is nearer."""
    generator = np.random.default_rng(6)
    n_items, dim = 400, 4
    sums = replace(SUMS, dim=dim, gramians=0.0, exponent=0.0, unobserved=1.0, ridge=20.0, people=100.0)
    kinds = generator.integers(0, 2, n_items)
    truth = np.where(kinds == 0, 1.0, -1.0)[:, np.newaxis] * np.array([1.0, 2.0, -1.0, 0.5])
    gram = (sums.lengths[0] * 10.0 * np.eye(dim)).astype(np.float32)
    noisy = 10.0 * truth + 20.0 * generator.standard_normal((n_items, dim))
    rows = (sums.lengths[2] * noisy).astype(np.float32)
    popularity = np.full((n_items, 1), 0.1, np.float32)
    features = (kinds - kinds.mean()).astype(np.float32).reshape(-1, 1)
    plain, drawn, nothing = (
        sums.solve(popularity, gram, rows, known) for known in (None, features, np.zeros_like(features))
    )

    def error(found):
        return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))

    assert error(drawn) < 0.7 * error(plain) and abs(error(nothing) - error(plain)) < 0.1
