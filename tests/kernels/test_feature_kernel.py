"""The feature kernel against autograd of torch, with the same draws; and the same bits however clients are grouped."""

import numpy as np
import pytest

from tests.kernels.feature_reference import N_ITEMS, ROUND, Reference, World, assert_same_change, world
from veilrec.client.reptile import MetaLocalTrainer, MetaSettings
from veilrec.core.schema import RoundSpec
from veilrec.kernels import feature_net as kernel

# Sums of a hundred products in single precision; the largest that was seen is 4e-6.
GRADIENT = 2e-5
LEARNT = 1e-4  # after many steps, each of which goes on from the last one's rounding
LOSSES = ("logistic", "softmax", "rating")


def of_loss(loss, **other):
    return MetaSettings(**{"loss": loss, "batch": 5, "negatives": 9 if loss == "softmax" else 3, **other})


def compare(made, tolerance):
    learnt, losses = made.learnt()
    assert np.isfinite(losses).all()
    for place in range(len(made.data.rows)):
        assert_same_change(learnt[place], Reference(made, place).learnt(), made.start, tolerance)


@pytest.mark.parametrize("hidden", [(), (5,), (6, 4), (4, 6, 3), (5, 4, 6, 3)], ids=len)
@pytest.mark.parametrize("embedding", [0, 3])
@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_is_the_gradient_of_autograd(loss, activation, embedding, hidden):
    local = of_loss(loss, steps=1, batch=0, rate=1.0)
    compare(world(local, activation=activation, embedding=embedding, hidden=hidden), GRADIENT)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("loss", LOSSES)
def test_epochs_arrive_where_autograd_does(loss, reduction):
    compare(world(of_loss(loss, epochs=3, rate=0.02, reduction=reduction, needed=4.0)), LEARNT)


@pytest.mark.parametrize("term", ["squared", "norm"])
@pytest.mark.parametrize("proximal", [0.05, 3.0])
def test_the_proximal_term_is_that_of_autograd(term, proximal):
    local = of_loss("logistic", steps=6, rate=0.05, proximal=proximal, proximal_term=term)
    held = world(local)
    compare(held, LEARNT)
    free = held.with_local(proximal=0.0).learnt()[0]
    moved = [np.linalg.norm(learnt - held.start) for learnt in (held.learnt()[0], free)]
    assert moved[0] < moved[1]


@pytest.mark.parametrize("about_people", [True, False])
@pytest.mark.parametrize("popularity", [True, False])
def test_without_people_and_without_popularity(about_people, popularity):
    local = of_loss("softmax", steps=4, rate=0.1)
    compare(world(local, about_people=about_people, popularity=popularity), LEARNT)


def test_sampled_others_stand_for_all_of_them():
    """Every other item drawn once, or each of them twice: the loss and its slopes by own items are the same."""
    generator = np.random.default_rng(4)
    own, others = (generator.normal(0.0, 2.0, n).astype(np.float32) for n in (3, 11))
    outcomes = []
    for times in (1, 2):
        scores = np.concatenate([own, *[others] * times])
        errors = np.empty(len(scores), np.float32)
        loss = kernel.errors_of(kernel.SOFTMAX, scores, np.zeros_like(scores), 3, 11, errors)
        outcomes.append((loss, errors[:3].copy(), errors[3:].reshape(times, 11).sum(axis=0)))
    for once, twice in zip(*outcomes, strict=True):
        np.testing.assert_allclose(twice, once, rtol=1e-5)
    whole = np.log(np.exp(own[:, None]) + np.exp(others).sum())[:, 0] - own
    assert outcomes[0][0] == pytest.approx(whole.mean(), rel=1e-5)
    none, room = np.zeros(2, np.float32), np.empty(2, np.float32)
    half = kernel.errors_of(kernel.SOFTMAX, none, none, 1, 7, room)
    assert half == pytest.approx(np.log(8.0), rel=1e-6), "one sampled item stands for seven"


@pytest.mark.parametrize("apart", [50.0, 150.0, 1e4, 1e30])
def test_scores_far_apart_give_a_softmax_without_nan(apart):
    scores = np.array([apart, 0.0, -apart, 1.0, 2.0, apart / 2], np.float32)
    errors = np.empty(6, np.float32)
    loss = kernel.errors_of(kernel.SOFTMAX, scores, np.zeros(6, np.float32), 3, 30, errors)
    assert np.isfinite(loss)
    np.testing.assert_allclose(errors[:3], [0.0, -1.0, -1.0], atol=1e-6)
    np.testing.assert_allclose(errors[3:], [0.0, 0.0, 2.0], atol=1e-6)


def fifty(loss):
    lengths = tuple(np.random.default_rng(8).integers(0, 20, 50).tolist())
    return world(of_loss(loss, epochs=2, rate=0.1, proximal=0.1), lengths=lengths)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_cohort_of_fifty_is_fifty_of_one_bit_for_bit(loss):
    made = fifty(loss)
    trainer = MetaLocalTrainer(made.adapter)
    together = trainer.learn(made.cohort(), made.weights, RoundSpec(ROUND))
    for place in range(50):
        alone = trainer.learn(made.cohort(place), made.weights, RoundSpec(ROUND))
        assert alone.loss[0] == together.loss[place] and alone.examples[0] == together.examples[place]
        for name, values in together.updates.dense.items():
            np.testing.assert_array_equal(alone.updates.dense[name][0], values[place], err_msg=name)


def moved_by(count):
    """Scratch space that begins so many numbers later than an allocation."""
    sound = kernel.space_for

    def elsewhere(*arguments):
        return kernel.Space(*(shifted(values, count) for values in sound(*arguments)))

    return elsewhere


def shifted(values, count):
    room = np.zeros(values.size + 16, values.dtype)
    part = room[count : count + values.size].reshape(values.shape)
    part[...] = values
    return part


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("hidden", [(), (33, 17)])
def test_the_same_bits_wherever_memory_lies(loss, hidden, monkeypatch):
    local = of_loss(loss, steps=7, rate=0.1, proximal=0.1, proximal_term="norm")
    made = world(local, hidden=hidden, embedding=5)
    outcomes = []
    for count in (0, 1, 2, 3, 5, 8):
        monkeypatch.setattr("veilrec.client.reptile.kernel.space_for", moved_by(count))
        weights = {name: shifted(values, count) for name, values in made.weights.items()}
        learnt, losses = World(made.adapter, made.data, weights).learnt()
        scores = made.adapter.score(learnt, made.adapter.inputs.of_items(weights), made.data.people)
        outcomes.append((learnt, losses, scores))
        monkeypatch.undo()
    for other in outcomes[1:]:
        for here, there in zip(outcomes[0], other, strict=True):
            np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("loss", LOSSES)
def test_clients_with_no_item_one_item_and_all_items(loss):
    made = world(of_loss(loss, epochs=2, rate=0.1), lengths=(0, 1, 10, 9), n_items=10)
    learnt, losses = made.learnt()
    np.testing.assert_array_equal(learnt[0], made.start)
    assert losses[0] == 0.0 and np.isfinite(learnt).all() and np.isfinite(losses).all()
    compare(made, LEARNT)
    everything = learnt[2] - made.start
    assert everything.any() == (loss != "softmax"), "all items of the catalogue have nobody to be ranked above"


def test_scores_are_those_of_autograd():
    made = world(of_loss("logistic", epochs=1), hidden=(6, 4))
    learnt, _ = made.learnt()
    scores = made.adapter.score(learnt, made.adapter.inputs.of_items(made.weights), made.data.people)
    for place in range(3):
        reference = Reference(made, place)
        wanted = reference.scores(reference.start.new_tensor(learnt[place]), np.arange(N_ITEMS)).numpy()
        np.testing.assert_allclose(scores[place], wanted, rtol=1e-5, atol=1e-5)


def test_a_client_that_diverges_has_no_loss():
    made = world(of_loss("rating", epochs=40, rate=1e20))
    learnt, losses = made.learnt()
    assert not np.isfinite(learnt).all(axis=1).any() and np.isnan(losses).all()
