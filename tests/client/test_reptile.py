"""Reptile and MAML over feature networks: local training, meta-gradients, and ranking on the client."""

import numpy as np
import pytest
import torch

from tests.kernels.feature_reference import ROUND, Reference, histories, some_features, world
from veilrec.client.maml import MamlLocalTrainer
from veilrec.client.reptile import FeatureRanker, MetaLocalTrainer, MetaSettings, schema
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.schema import RoundSpec
from veilrec.wire import messages


@pytest.mark.parametrize(
    "local",
    [
        MetaSettings(epochs=3, batch=5, negatives=2),
        MetaSettings(steps=4, batch=0, negatives=2),
        MetaSettings(loss="softmax", epochs=2, batch=5, negatives=6),
    ],
)
def test_examples_are_counted_as_drawn_and_at_most_a_step_of_each_epoch_more(local):
    made = world(local, lengths=(0, 1, 7, 10, 12), n_items=30)
    learned = MetaLocalTrainer(made.adapter).learn(made.cohort(), made.weights, RoundSpec(ROUND))
    for place in range(5):
        own = made.data.rows.row(place)
        drawn = list(made.adapter.drawn(own, 30, client=10 + place, seed=7)) if len(own) else []
        told, counted = sum(len(step.items) for step in drawn), int(learned.examples[place])
        assert told <= counted and len(drawn) == local.steps_of(np.array([len(own)]))[0]
        epochs = 1 if local.steps else local.epochs
        assert counted - told <= epochs * local.max_in_a_step(np.array([len(own)]))


def test_the_update_is_what_has_changed_and_messages_fit_the_schema():
    made = world(MetaSettings(epochs=2, batch=4), popularity=False)
    updates = MetaLocalTrainer(made.adapter).learn(made.cohort(), made.weights, RoundSpec(ROUND)).updates
    learnt, _ = made.learnt()
    together = np.stack([made.adapter.net.flat({n: v[k] for n, v in updates.dense.items()}) for k in range(3)])
    np.testing.assert_array_equal(together, learnt - made.start)
    layout = schema(made.adapter.net)
    sizes = messages.sizes(updates, layout)
    for client in range(3):
        message = messages.encode_update(updates, layout, client)
        assert len(message) == sizes[client]
        for name, values in messages.decode_update(message, layout, ROUND).dense.items():
            np.testing.assert_array_equal(values[0], updates.dense[name][client])


def test_an_item_that_the_model_does_not_know_is_refused():
    made = world(MetaSettings())
    made.data.rows.items[-1] = 40
    with pytest.raises(BadInput, match="a client has item 40: the model knows 40"):
        made.learnt()


def test_nobody_at_all_learns_nothing():
    made = world(MetaSettings(), lengths=())
    learnt, losses = made.learnt()
    assert learnt.shape == (0, made.adapter.net.size) and losses.shape == (0,)


LOCAL = MetaSettings(loss="softmax", steps=4, batch=0, negatives=8, rate=0.2)
EVERYBODY = np.arange(3)


def made():
    w = world(LOCAL)
    return FeatureRanker(w.adapter.inputs, (6, 4), "relu", LOCAL, 9), w


def test_a_list_depends_on_history_and_features_and_on_nobody_else():
    ranker, w = made()
    model = ranker.model(w.weights, w.data.kept, w.data.rows)
    every = model.score_all(EVERYBODY)
    for user in range(3):
        place = np.array([user])
        alone = ranker.model(
            w.weights, {name: values[place] for name, values in w.data.kept.items()}, w.data.rows.take(place)
        )
        np.testing.assert_array_equal(alone.score_all(np.zeros(1, np.int64))[0], every[user])
        known = model.fold_in_people(w.data.rows.take(place), w.data.people.take(place))
        np.testing.assert_array_equal(known.score_all(np.zeros(1, np.int64))[0], every[user])


def test_what_is_known_of_people_changes_their_scores_and_strangers_are_unknown():
    ranker, w = made()
    model = ranker.model(w.weights, w.data.kept, w.data.rows)
    one = histories((5,))
    people = [model.people.encoded([spec]) for spec in ({"group": "a"}, {"group": "b"}, {"age": 0.9}, {})]
    scores = [model.fold_in_people(one, side).score_all(np.zeros(1, np.int64)) for side in people]
    stranger = model.fold_in(one).score_all(np.zeros(1, np.int64))
    np.testing.assert_array_equal(scores[3], stranger)
    for known in scores[:3]:
        assert not np.array_equal(known, stranger)
    assert not np.array_equal(scores[0], scores[1])
    never_seen = model.fold_in_people(one, model.people.encoded([{"group": "zzz", "age": "inf"}]))
    np.testing.assert_array_equal(never_seen.score_all(np.zeros(1, np.int64)), stranger)


def test_more_is_known_of_people_than_the_model_reads():
    w = world(LOCAL, about_people=False)
    model = FeatureRanker(w.adapter.inputs, (6, 4), "relu", LOCAL, 9).model(w.weights, {}, w.data.rows)
    known = model.fold_in_people(histories((5,)), some_features(1).users)
    np.testing.assert_array_equal(
        known.score_all(np.zeros(1, np.int64)), model.fold_in(histories((5,))).score_all(np.zeros(1, np.int64))
    )


def test_no_history_is_the_model_as_it_is():
    ranker, w = made()
    model = ranker.model(w.weights, {}, Csr(np.zeros(2, np.int64), np.zeros(0, np.int32)))
    np.testing.assert_array_equal(model.adapted(np.zeros(1, np.int64))[0], w.start)


CLOSE = 1e-4  # of the largest entry: products of single-precision numbers through several steps


def of_loss(loss, steps=1):
    negatives = 8 if loss == "softmax" else 3
    return MetaSettings(loss=loss, steps=steps, batch=0, negatives=negatives, rate=0.3, needed=2.0)


def part(examples, place):
    """Items, labels, and how many are the client's own."""
    items = examples.items[place][examples.inside[place]]
    own = int(examples.own[place].sum())
    return items, (np.arange(len(items)) < own).astype(np.float32), own


def explicit(made, place, support, query):
    """Minus the gradient of the query loss by the start, with a graph through every step."""
    client, local = Reference(made, place), made.adapter.local
    n = len(client.own)
    start = client.start.clone().requires_grad_()
    flat = start
    for _ in range(local.steps):
        (slope,) = torch.autograd.grad(client.loss(flat, *part(support, place)), flat, create_graph=True)
        flat = flat - local.rate * n / (n + local.needed) * slope
    (meta,) = torch.autograd.grad(client.loss(flat, *part(query, place)), start)
    return -meta.numpy()


def learnt(made):
    trainer, cohort = MamlLocalTrainer(made.adapter), made.cohort()
    learned = trainer.learn(cohort, made.weights, RoundSpec(ROUND))
    return dict(learned.updates.dense), learned.loss, trainer._halves(cohort, ROUND)


@pytest.mark.parametrize("embedding", [0, 3])
@pytest.mark.parametrize(("hidden", "activation"), [((), "relu"), ((5, 4), "sigmoid"), ((6,), "relu")])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_the_meta_gradient_goes_through_all_steps(loss, steps, hidden, activation, embedding):
    made = world(of_loss(loss, steps), embedding=embedding, hidden=hidden, activation=activation)
    dense, _, halves = learnt(made)
    for place in range(3):
        wanted = made.adapter.net.named(explicit(made, place, *halves))
        largest = max(np.abs(values).max() for values in wanted.values())
        for name, values in wanted.items():
            np.testing.assert_allclose(dense[name][place], values, rtol=0, atol=CLOSE * largest, err_msg=name)


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_halves_part_the_own_items_and_others_are_nobodys(loss):
    made = world(of_loss(loss), lengths=(7, 1, 12, 0))
    _, _, (support, query) = learnt(made)
    for place, n in enumerate((7, 1, 12, 0)):
        own = made.data.rows.row(place).tolist()
        (first, _, a), (second, _, b) = part(support, place), part(query, place)
        halves = [*first[:a], *second[:b]]
        assert sorted(halves) == (own * 2 if n == 1 else own) and abs(a - b) <= 1
        assert not set(own) & {*first[a:].tolist(), *second[b:].tolist()}


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_clients_with_no_item_one_item_and_all_items(loss):
    made = world(of_loss(loss, 2), lengths=(0, 1, 10, 4), n_items=10)
    dense, losses, _ = learnt(made)
    assert np.isfinite(losses).all()
    for name, values in dense.items():
        assert np.isfinite(values).all(), name
        assert not values[0].any(), name
    if loss == "softmax":
        assert not any(values[2].any() for values in dense.values()), "nobody is left to be ranked below"
