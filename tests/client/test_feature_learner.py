"""Settings of local learning, what devices send, and how many examples they count."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.feature_reference import ROUND, world
from veilrec.client.reptile import Adapter, MetaLocalTrainer, MetaSettings, schema
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
def test_examples_are_counted_as_drawn_and_at_most_a_step_of_each_epoch_more(local: MetaSettings) -> None:
    made = world(local, lengths=(0, 1, 7, 10, 12), n_items=30)
    learned = MetaLocalTrainer(made.adapter).learn(made.cohort(), made.weights, RoundSpec(ROUND))
    for place in range(5):
        own = made.data.rows.row(place)
        drawn = list(made.adapter.drawn(own, 30, device=10 + place, seed=7)) if len(own) else []
        told, counted = sum(len(step.items) for step in drawn), int(learned.examples[place])
        assert told <= counted
        assert len(drawn) == local.steps_of(np.array([len(own)]))[0]
        epochs = 1 if local.steps else local.epochs
        assert counted - told <= epochs * local.most_in_a_step(np.array([len(own)]))


def test_the_update_is_what_has_changed_and_messages_fit_the_schema() -> None:
    made = world(MetaSettings(epochs=2, batch=4), popularity=False)
    uploads = MetaLocalTrainer(made.adapter).learn(made.cohort(), made.weights, RoundSpec(ROUND)).uploads
    learnt, _ = made.learnt()
    together = np.stack([made.adapter.net.flat({n: v[k] for n, v in uploads.dense.items()}) for k in range(3)])
    np.testing.assert_array_equal(together, learnt - made.start)
    layout = schema(made.adapter.net)
    sizes = messages.sizes(uploads, layout)
    for device in range(3):
        message = messages.encode_update(uploads, layout, device)
        assert len(message) == sizes[device]
        for name, values in messages.decode_update(message, layout, ROUND).dense.items():
            np.testing.assert_array_equal(values[0], uploads.dense[name][device])


def test_the_model_that_was_sent_is_not_changed() -> None:
    made = world(MetaSettings(epochs=2))
    before = {name: values.copy() for name, values in made.weights.items()}
    MetaLocalTrainer(made.adapter).learn(made.cohort(), made.weights, RoundSpec(ROUND))
    for name, values in before.items():
        np.testing.assert_array_equal(made.weights[name], values)


def test_an_item_that_the_model_does_not_know_is_refused() -> None:
    made = world(MetaSettings())
    made.data.rows.items[-1] = 40
    with pytest.raises(BadInput, match="a device has item 40: the model knows 40"):
        made.learnt()


def test_nobody_at_all_learns_nothing() -> None:
    made = world(MetaSettings(), lengths=())
    assert isinstance(made.adapter, Adapter)
    learnt, losses = made.learnt()
    assert learnt.shape == (0, made.adapter.net.size)
    assert losses.shape == (0,)
