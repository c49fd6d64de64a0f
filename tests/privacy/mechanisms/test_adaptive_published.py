"""DP-PrivRec, Algorithm 2, line by line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from veilrec.core.schema import BOUND, RoundSpec, Schema, Tensor, from_vectors, with_bound
from veilrec.privacy.accounting import Rounds
from veilrec.privacy.events import SampledEvent
from veilrec.privacy.mechanisms.clipping import BadUpdate, upload_norms
from veilrec.privacy.mechanisms.schedules import PublishedAdaptiveSum, without_count
from veilrec.privacy.mechanisms.sums import to_vectors
from veilrec.privacy.randomness import SeededSource

SCHEMA = with_bound(Schema((Tensor("rows", (2, 2), by_row=True), Tensor("layer", (2,), by_row=False))))
PEOPLE = Rounds(rounds=1000, sampling="fixed", population=4800, cohort=30)


def published(**options: Any) -> PublishedAdaptiveSum:
    right: dict[str, Any] = {
        "schema": SCHEMA,
        "clip_norm": 2.0,
        "noise_multiplier": 1.0,
        "count_share": 0.7,
        "server_rate": 1.0,
        "taking_part": PEOPLE,
        "delta": 1e-6,
    }
    return PublishedAdaptiveSum(**right | options)


def bounded(clip_norm: float, *norms: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    vectors = np.zeros((len(norms), 7))
    vectors[:, 0] = norms
    sent = published().bound(from_vectors(vectors, SCHEMA), RoundSpec(0, clip_norm=clip_norm))
    return to_vectors(sent, SCHEMA)[:, 0], sent.dense[BOUND].ravel(), upload_norms(without_count(sent))


def test_the_count_after_clipping_is_always_one() -> None:
    values, counts, _ = bounded(2.0, 0.0, 1.0, 2.0, 50.0)
    assert values == pytest.approx([0.0, 1.0, 2.0, 2.0], rel=1e-6)
    assert counts.tolist() == [1.0, 1.0, 1.0, 1.0]


def test_a_bound_below_nothing_turns_updates_round() -> None:
    values, counts, norms = bounded(-3.0, 0.0, 1.0, 50.0)
    assert values == pytest.approx([0.0, -3.0, -3.0], rel=1e-6)  # min(1, S / norm), as printed
    assert counts.tolist() == [0.0, 0.0, 0.0]
    assert norms.max() <= 3.0 * (1.0 + 1e-6)


@pytest.mark.parametrize("rate", [1.0, 2.0])
def test_the_noise_of_lines_8_to_10(rate: float) -> None:
    mechanism, z, h, cohort = published(server_rate=rate), 1.0, 0.7, 30
    for bound in (2.0, 0.5, -0.5):
        about = RoundSpec(0, clip_norm=bound)
        on_the_model = mechanism.sigma_in("layer", about) * rate / cohort
        assert on_the_model == pytest.approx(2.0 * abs(bound) * z / cohort * math.sqrt(1.0 / (1.0 - h)))
        assert mechanism.sigma_in(BOUND, about) / cohort == pytest.approx(2.0 * z / cohort * math.sqrt(1.0 / h))


@pytest.mark.parametrize("rate", [1.0, 2.0])
def test_a_round_is_one_release_with_the_noise_divided_by_the_rate(rate: float) -> None:
    event = published(server_rate=rate).event()
    assert isinstance(event, SampledEvent)
    # z_1 = z / sqrt(1 - h) / alpha_3; the count moves by 1 and has noise 2 z / sqrt(h)
    assert event.mu == pytest.approx(math.sqrt(0.3 * rate**2 + 0.7 / 4.0), rel=1e-5)
    assert (event.rate, event.sampling) == (30 / 4800, "fixed")


def test_at_a_bound_of_nothing_only_the_count_has_noise() -> None:
    sums = {"rows": np.zeros((2, 2)), "layer": np.zeros(2), BOUND: np.zeros(1)}
    published().protect(sums, RoundSpec(0, clip_norm=0.0), SeededSource(1))
    assert not sums["rows"].any()
    assert sums[BOUND].any()


@pytest.mark.parametrize(("count", "length"), [(0.5, 1.0), (2.0, 1.0), (1.0, 3.0)])
def test_what_no_device_sends_is_refused(count: float, length: float) -> None:
    vectors = np.zeros((1, 7))
    vectors[0, 0] = length
    sent = from_vectors(vectors, SCHEMA)
    sent.dense[BOUND][...] = count
    with pytest.raises(BadUpdate):
        published().check(sent, RoundSpec(0))
    vectors[0, 0] = 1.0
    right = published().bound(from_vectors(vectors, SCHEMA), RoundSpec(0))
    published().check(right, RoundSpec(0))
