"""Ranking by a feature network: adapted on the device, saved and restored, for people known and strange."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kernels.feature_reference import World, histories, some_features, world
from veilrec.client.reptile import FeatureRanker, MetaSettings
from veilrec.core.csr import Csr

LOCAL = MetaSettings(loss="softmax", steps=4, batch=0, negatives=8, rate=0.2)
EVERYBODY = np.arange(3)


def made(local: MetaSettings = LOCAL, *, popularity: bool = True) -> tuple[FeatureRanker, World]:
    w = world(local, popularity=popularity)
    return FeatureRanker(w.adapter.inputs, (6, 4), "relu", local, 9), w


def kept(w: World) -> Mapping[str, NDArray[Any]]:
    return w.data.kept


def test_a_list_depends_on_history_and_features_and_on_nobody_else() -> None:
    ranker, w = made()
    model = ranker.model(w.weights, kept(w), w.data.rows)
    every = model.score_all(EVERYBODY)
    for user in range(3):
        place = np.array([user])
        alone = ranker.model(
            w.weights, {name: values[place] for name, values in kept(w).items()}, w.data.rows.take(place)
        )
        np.testing.assert_array_equal(alone.score_all(np.zeros(1, np.int64))[0], every[user])
        known = model.fold_in_people(w.data.rows.take(place), w.data.people.take(place))
        np.testing.assert_array_equal(known.score_all(np.zeros(1, np.int64))[0], every[user])


def test_what_is_known_of_people_changes_their_scores_and_strangers_are_unknown() -> None:
    ranker, w = made()
    model = ranker.model(w.weights, kept(w), w.data.rows)
    one = histories((5,))
    people = [model.people.encoded([about]) for about in ({"group": "a"}, {"group": "b"}, {"age": 0.9}, {})]
    scores = [model.fold_in_people(one, side).score_all(np.zeros(1, np.int64)) for side in people]
    stranger = model.fold_in(one).score_all(np.zeros(1, np.int64))
    np.testing.assert_array_equal(scores[3], stranger)
    for known in scores[:3]:
        assert not np.array_equal(known, stranger)
    assert not np.array_equal(scores[0], scores[1])
    never_seen = model.fold_in_people(one, model.people.encoded([{"group": "zzz", "age": "inf"}]))
    np.testing.assert_array_equal(never_seen.score_all(np.zeros(1, np.int64)), stranger)


def test_more_is_known_of_people_than_the_model_reads() -> None:
    w = world(LOCAL, about_people=False)
    model = FeatureRanker(w.adapter.inputs, (6, 4), "relu", LOCAL, 9).model(w.weights, {}, w.data.rows)
    known = model.fold_in_people(histories((5,)), some_features(1).users)
    np.testing.assert_array_equal(
        known.score_all(np.zeros(1, np.int64)), model.fold_in(histories((5,))).score_all(np.zeros(1, np.int64))
    )


def test_no_history_is_the_model_as_it_is() -> None:
    ranker, w = made()
    model = ranker.model(w.weights, {}, Csr(np.zeros(2, np.int64), np.zeros(0, np.int32)))
    np.testing.assert_array_equal(model.adapted(np.zeros(1, np.int64))[0], w.start)
