"""What a device of veil sends, and what its list depends on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from veilrec.audit.contract_subject import histories_of
from veilrec.client.local_training import Cohort
from veilrec.client.veil import (
    CLIPS,
    FURTHER,
    MAP,
    PLACES,
    POPULARITY,
    WEIGHTS,
    HistoryReader,
    OwnHistory,
    Reading,
    Steps,
    VeilLocalTrainer,
    places_of,
    seen,
    share_of_places,
)
from veilrec.core.arrays import Floats
from veilrec.core.csr import Csr
from veilrec.core.schema import RoundSpec
from veilrec.models.veil import ALONE, Content, placed
from veilrec.privacy.mechanisms.clipping import upload_norms

N_ITEMS = 12
READING = Reading(recency=(1.0, 5.0), taste_recency=(3.0,), popularity_recency=(2.0,), targets=6, negatives=3)
STEPS = Steps(
    units={WEIGHTS: 0.5, MAP: 2.0, PLACES: 1.5}, shares={WEIGHTS: 0.5, MAP: 0.5, PLACES: 1.0}, noise={PLACES: 0.3}
)
HISTORIES = histories_of([[0, 3, 6, 9, 1, 4, 7, 10], [2, 5, 8, 11, 0], [1, 2], []])
EVERYTHING = RoundSpec(0)


def content() -> Content:
    generator = np.random.default_rng(3)
    return Content(
        codes=(np.arange(N_ITEMS, dtype=np.int32) % 3)[np.newaxis],
        tables=np.eye(3, dtype=np.float32).ravel(),
        starts=np.array([0]),
        widths=np.array([3]),
        texts=np.zeros((N_ITEMS, 0), np.float32),
        kernels=np.array([[0, ALONE]], np.int32),
        scales=np.array([2.0], np.float32),
        basis=generator.standard_normal((N_ITEMS, 2)).astype(np.float32),
    )


def model(seed: int = 0) -> dict[str, Floats]:
    generator = np.random.default_rng(seed)
    shapes = {POPULARITY: (N_ITEMS, 2), WEIGHTS: (6,), MAP: (4, 3), PLACES: (N_ITEMS, 1)}
    return {name: (0.3 * generator.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def learner(names: tuple[str, ...] = (WEIGHTS, MAP, PLACES)) -> VeilLocalTrainer:
    return VeilLocalTrainer(content(), READING, np.eye(6, dtype=np.float32), STEPS, names)


def cohort(rows: Csr = HISTORIES, devices: tuple[int, ...] = (0, 1, 2, 3)) -> Cohort[OwnHistory]:
    return Cohort(np.array(devices), OwnHistory(rows), {}, 7)


@pytest.mark.parametrize("name", [WEIGHTS, MAP])
def test_the_gradient_is_that_of_the_loss(name: str) -> None:
    made, start = learner(), model()
    told = STEPS.told(start, content())
    read = HistoryReader(READING, content(), 7).examples_of_all(OwnHistory(HISTORIES), np.arange(4), told)
    gradients, loss = made._gradients(read, start, (WEIGHTS, MAP))
    direction = np.random.default_rng(1).standard_normal(start[name].shape).astype(np.float32)
    step = 1e-2

    def after(sign: float) -> Floats:
        moved = start[name] + np.float32(sign * step / STEPS.units[name]) * direction
        return made._gradients(read, start | {name: moved}, ())[1]

    slope = (after(1.0) - after(-1.0)) / (2 * step)
    expected = -(gradients[name] * direction).reshape(4, -1).sum(axis=1)
    assert slope[:2] == pytest.approx(expected[:2], rel=2e-2, abs=2e-3)
    assert not loss[2:].any()
    assert not gradients[name][2:].any()  # too short a history says nothing


def test_a_place_is_that_of_what_came_before() -> None:
    """The sums of everybody's messages are votes times mean places; the first item of a history has none."""
    history, basis = HISTORIES.row(0), content().basis[:, 0]
    sent = learner().learn(cohort(), model(), RoundSpec(0, tensors=(PLACES,), clip_norm=CLIPS[PLACES])).uploads
    decay = np.exp(-1.0 / READING.place_recency)
    scale = 2.0 / basis.std()
    expected = np.zeros(N_ITEMS)
    for place in range(1, len(history)):
        weights = decay ** np.arange(place)[::-1]
        expected[history[place]] = scale * (weights @ basis[history[:place]]) / weights.sum() / np.sqrt(len(history))
    length = np.linalg.norm(expected)
    expected *= min(1.0, CLIPS[PLACES] / length)
    assert sent.dense[PLACES][0, :, 0] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert not sent.dense[PLACES][3].any()  # nobody who has nothing


TWICE = replace(
    STEPS,
    units={**STEPS.units, FURTHER: 0.8},
    shares={**STEPS.shares, FURTHER: 1.0},
    noise={**STEPS.noise, FURTHER: 0.2},
)


def in_two_passes() -> tuple[VeilLocalTrainer, dict[str, Floats]]:
    generator = np.random.default_rng(8)
    further = (0.3 * generator.standard_normal((N_ITEMS, 1))).astype(np.float32)
    reading = replace(READING, place_passes=2)
    names = (WEIGHTS, MAP, PLACES, FURTHER)
    return VeilLocalTrainer(content(), reading, np.eye(6, dtype=np.float32), TWICE, names), model() | {
        FURTHER: further,
        MAP: (0.3 * generator.standard_normal((5, 4))).astype(np.float32),
    }


def test_a_second_pass_is_among_what_the_first_said() -> None:
    made, start = in_two_passes()
    history, first = HISTORIES.row(0), STEPS.told(model(), content()).places.values
    asked = RoundSpec(1, tensors=(FURTHER,), clip_norm=CLIPS[FURTHER])
    sent = made.learn(cohort(), start | {FURTHER: 0.0 * start[FURTHER]}, asked).uploads
    assert set(sent.dense) == {FURTHER}
    places = places_of(READING, first * np.float32(2.0) / first.std(axis=0), history)
    expected = np.zeros(N_ITEMS)
    expected[history] = share_of_places(places) * places[:, 0]
    assert sent.dense[FURTHER][0, :, 0] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    # Before the first pass there is nothing to lie among.
    unknown = start | {name: 0.0 * start[name] for name in (PLACES, FURTHER)}
    assert not made.learn(cohort(), unknown, asked).uploads.dense[FURTHER].any()


def test_of_both_passes_a_device_takes_its_own_part_away() -> None:
    made, start = in_two_passes()
    told = TWICE.told(start, content())
    first = STEPS.told(model(), content()).places.values
    assert np.array_equal(told.places.values[:, :1], first)
    # Content and the first pass predict the second.
    uses, known = np.exp(start[POPULARITY][:, 0].astype(np.float64)), np.column_stack([content().basis, first])
    again = placed(np.float32(0.8) * start[FURTHER], 0.2, uses, known)
    assert told.places.values[:, 1:] == pytest.approx(again.values, rel=1e-5)
    examples = HistoryReader(made.reading, content(), 7).made(HISTORIES.row(0), 0)
    item, end = int(examples.candidates[0, 0]), int(examples.ends[0])
    others = told.basis[examples.candidates[0, 1]] - seen(made.reading, told, examples).beside[0, 0]
    for place, among in enumerate(told.among):
        own = places_of(made.reading, among, examples.history)
        gain, expected = told.places.gains[item, place], told.places.expected[item, place]
        taken = told.basis[item, 2 + place] - others[2 + place]
        assert taken == pytest.approx(0.5 * gain * share_of_places(own) * (own[end, 0] - expected), rel=1e-4)
        assert abs(taken) > 1e-4


def test_parts_of_a_message_share_the_bound() -> None:
    about = RoundSpec(0, clip_norm=0.25, tensors=(WEIGHTS, MAP))
    sent = learner().learn(cohort(), model(), about).uploads
    assert set(sent.dense) == {WEIGHTS, MAP}
    norms = upload_norms(sent)
    assert (norms <= 0.25).all()
    for name in (WEIGHTS, MAP):
        length = np.linalg.norm(sent.dense[name].reshape(4, -1), axis=1)
        assert (length <= 0.25 * np.sqrt(0.5)).all()
    assert set(learner().learn(cohort(), model(), RoundSpec(0, tensors=(PLACES,))).uploads.dense) == {PLACES}
    assert CLIPS[MAP] < CLIPS[WEIGHTS]


def test_what_is_remembered_is_what_would_be_worked_out_again() -> None:
    data = OwnHistory(HISTORIES)
    first = learner().learn(Cohort(np.arange(4), data, {}, 7), model(), EVERYTHING).uploads
    again = learner().learn(Cohort(np.arange(4), data, {}, 7), model(), EVERYTHING).uploads
    # Other places alone: tastes and rows are worked out anew.
    elsewhere = model() | {PLACES: model(1)[PLACES]}
    told_again = learner().learn(Cohort(np.arange(4), data, {}, 7), elsewhere, EVERYTHING).uploads
    told_first = learner().learn(cohort(), elsewhere, EVERYTHING).uploads
    assert np.array_equal(told_again.dense[MAP], told_first.dense[MAP])
    other = learner().learn(Cohort(np.arange(4), data, {}, 7), model(1), EVERYTHING).uploads
    fresh = learner().learn(cohort(), model(1), EVERYTHING).uploads
    # The same memory with another history in its place: nothing of the old one is used.
    swapped = OwnHistory(HISTORIES.take(np.array([1, 0, 2, 3])), data.remembered)
    replaced = learner().learn(Cohort(np.arange(4), swapped, {}, 7), model(), EVERYTHING).uploads
    for name in first.dense:
        assert np.array_equal(first.dense[name], again.dense[name])
        assert np.array_equal(other.dense[name], fresh.dense[name])
        assert not np.array_equal(replaced.dense[name], first.dense[name])


def test_items_beside_a_target_were_not_used() -> None:
    examples = HistoryReader(READING, content(), 7).made(HISTORIES.row(0), 0)
    assert examples.candidates[:, 0].tolist() == [10, 7, 4, 1]  # the latest, those with four items before them
    assert not np.isin(examples.candidates[:, 1:], HISTORIES.row(0)).any()
    everything = HistoryReader(READING, content(), 7).made(np.arange(N_ITEMS, dtype=np.int32), 0)
    assert everything.candidates.shape == (6, 4)  # nothing is left to draw, and drawing ends
