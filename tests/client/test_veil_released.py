"""What a released catalogue is ranked with: the same numbers packed and unpacked, compiled and not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.web.veil_vectors import N_ITEMS, SIDES, made
from veilrec.client.released import one_history, packed, program_of, unpacked
from veilrec.models import veil
from veilrec.models.veil import decays_of


@pytest.mark.parametrize("at_once", [7, 4096])
def test_features_are_the_same_without_a_compiler(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    ranker, _ = made(0, plain=True, directions=3, caution=30.0)
    content, decays = ranker.content, decays_of((1.0, 8.0, 100.0))
    generator = np.random.default_rng(3)
    history = generator.permutation(N_ITEMS)[:30].astype(np.int32)
    ends = np.array([0, 1, 5, 9, 30])
    candidates = generator.integers(0, N_ITEMS, (5, 20)).astype(np.int32)
    compiled = content.features(history, ends, candidates, decays, 9)
    monkeypatch.setattr(veil, "compiles", lambda: False)
    monkeypatch.setattr(veil, "_AT_ONCE", at_once)
    assert np.abs(content.features(history, ends, candidates, decays, 9) - compiled).max() < 1e-5
    assert np.abs(compiled[1:]).min(axis=(0, 1)).max() > 0.0


def test_packing_keeps_what_sixteen_bits_hold_and_the_rest_exactly() -> None:
    ranker, learnt = made(0, plain=True, directions=3, caution=30.0)
    arrays = packed(ranker, learnt)
    assert arrays["content.codes"].dtype == np.uint8 and arrays["content.kernels"].dtype == np.int8
    assert int(arrays["content.widths"].max()) == max(SIDES)
    assert np.array_equal(arrays["learnt.weights"], learnt.weights)
    halves = {"content.basis": ranker.content.basis, "places.values": learnt.told.places.values}
    assert float(np.abs(halves["places.values"]).max()) > 2.0
    for name, values in halves.items():
        assert arrays[name].dtype == np.float16 and np.abs(arrays[name] - values).max() < 2e-3
    again = unpacked(program_of(ranker), arrays, N_ITEMS)
    twice = packed(again._ranker, again._learnt)
    assert all(np.array_equal(values, twice[name]) for name, values in arrays.items())
    history = np.arange(12, dtype=np.int32)
    scores = again.fold_in(one_history(history)).score_all(np.zeros(1, np.int64))[0]
    assert np.isfinite(scores).all() and len(scores) == N_ITEMS
