"""Rounds that are about some tensors only, on the wire."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.core.schema import RoundSpec, Schema, Tensor, whole_model
from veilrec.wire import rounds
from veilrec.wire.messages import BadMessage

SCHEMA = Schema(
    (
        Tensor("known", (2,), by_row=False, learnt=False),
        Tensor("first", (3,), by_row=False),
        Tensor("second", (2,), by_row=False),
    )
)
MODEL = whole_model(SCHEMA, {tensor.name: np.ones(tensor.shape, np.float32) for tensor in SCHEMA.tensors}, 4)


@pytest.mark.parametrize("tensors", [None, ("first",), ("first", "second")])
def test_a_round_comes_back_as_it_left(tensors: tuple[str, ...] | None) -> None:
    about = RoundSpec(4, clip_norm=0.5, tensors=tensors)
    sent = rounds.encode(about, MODEL, SCHEMA)
    back, _ = rounds.decode(sent, SCHEMA, 4)
    assert (back.tensors, back.clip_norm, back.number) == (tensors, 0.5, 4)
    assert [tensor.name for tensor in back.view(SCHEMA).tensors] == list(tensors or ("first", "second"))
    assert rounds.size(about, SCHEMA) < len(sent)


@pytest.mark.parametrize("numbers", [(), (0,), (2, 1), (1, 1), (3,), (0, 1)])
def test_tensors_that_no_answer_can_be_about_are_refused(numbers: tuple[int, ...]) -> None:
    sent = rounds.encode(RoundSpec(4, tensors=("first",)), MODEL, SCHEMA)
    head, rest = sent[:5], sent[7:]
    with pytest.raises(BadMessage):
        rounds.decode(head + bytes([len(numbers), *numbers]) + rest, SCHEMA, 4)


def test_a_round_that_ends_early_is_refused() -> None:
    sent = rounds.encode(RoundSpec(4, tensors=("first",)), MODEL, SCHEMA)
    for length in range(5, 8):
        with pytest.raises(BadMessage):
            rounds.decode(sent[:length], SCHEMA, 4)
