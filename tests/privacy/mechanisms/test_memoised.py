from __future__ import annotations

import numpy as np
import pytest

from veilrec.core.arrays import Bools
from veilrec.core.errors import BadInput
from veilrec.privacy.mechanisms.interests import FREE, Memoised, MemoryAnswerStore
from veilrec.privacy.mechanisms.responses import RandomisedResponse
from veilrec.privacy.randomness import SeededSource

LENGTH = 200


def _memoised(store: MemoryAnswerStore, key: str = "items") -> Memoised[Bools]:
    return Memoised(RandomisedResponse(length=LENGTH, epsilon=1.0, change="one bit"), store, key=key)


def test_one_draw_per_period_whatever_happens_to_the_data() -> None:
    memoised, source = _memoised(MemoryAnswerStore()), SeededSource(1)
    first = memoised.release(np.zeros(LENGTH, np.bool_), source, period=3)
    again = memoised.release(np.ones(LENGTH, np.bool_), source, period=3)
    assert first.event == memoised.mechanism.event()
    assert again.event == FREE
    np.testing.assert_array_equal(first.value, again.value)


def test_a_new_period_redraws_every_bit_and_is_charged() -> None:
    memoised, source = _memoised(MemoryAnswerStore()), SeededSource(2)
    value = np.zeros(LENGTH, np.bool_)
    first = memoised.release(value, source, period=1)
    second = memoised.release(value, source, period=2)
    assert second.event == first.event
    assert (first.value != second.value).any()


def test_the_answer_survives_in_the_store() -> None:
    store, source = MemoryAnswerStore(), SeededSource(3)
    first = _memoised(store).release(np.ones(LENGTH, np.bool_), source, period=1)
    after_restart = _memoised(store).release(np.ones(LENGTH, np.bool_), source, period=1)
    np.testing.assert_array_equal(first.value, after_restart.value)
    assert after_restart.value.dtype == np.bool_


def test_another_question_is_drawn_and_charged_by_itself() -> None:
    store, source, value = MemoryAnswerStore(), SeededSource(4), np.zeros(LENGTH, np.bool_)
    _memoised(store, "model 1").release(value, source, period=1)
    assert _memoised(store, "model 2").release(value, source, period=1).event != FREE


def test_a_clock_that_goes_back_gets_nothing() -> None:
    memoised, source = _memoised(MemoryAnswerStore()), SeededSource(5)
    memoised.release(np.zeros(LENGTH, np.bool_), source, period=5)
    with pytest.raises(BadInput, match="clock"):
        memoised.release(np.zeros(LENGTH, np.bool_), source, period=4)


def test_bad_input_stores_nothing() -> None:
    store = MemoryAnswerStore()
    with pytest.raises(BadInput):
        _memoised(store).release(np.zeros(3, np.bool_), SeededSource(6), period=1)
    assert store.load("items") is None


@pytest.mark.parametrize("stored", [b"", b"{}\n", b'{"dtype": "<f8", "shape": [3]}\n\x00'])
def test_a_damaged_answer_is_not_redrawn(stored: bytes) -> None:
    store = MemoryAnswerStore()
    store.save("items", 1, stored)
    with pytest.raises(BadInput, match="stored answer"):
        _memoised(store).release(np.zeros(LENGTH, np.bool_), SeededSource(7), period=1)
