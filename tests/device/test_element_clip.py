"""Element-wise clipping and Laplace noise of FedNewsRec (eq. 4, 5)."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.device.element_clip import ElementClip
from veilrec.errors import BadInput
from veilrec.privacy.randomness import SeededSource
from veilrec.updates import Rows, Schema, Tensor, Uploads

SCHEMA = Schema((Tensor("words", (50, 40), by_row=True), Tensor("bias", (30,), by_row=False)))


def uploads(n: int = 2) -> Uploads:
    generator = np.random.default_rng(1)
    rows = Rows(
        np.arange(n + 1) * 3, np.tile(np.arange(3, dtype=np.int32), n), generator.normal(size=(3 * n, 40)).astype("f4")
    )
    return Uploads(0, n, {"words": rows}, {"bias": generator.normal(size=(n, 30)).astype("f4")})


def test_every_entry_is_clipped_on_its_own() -> None:
    given = uploads()
    bounded = ElementClip(clip_value=0.5, scale=0.0).bound(given)
    assert np.array_equal(bounded.tables["words"].values, np.clip(given.tables["words"].values, -0.5, 0.5))
    assert np.array_equal(bounded.dense["bias"], np.clip(given.dense["bias"], -0.5, 0.5))
    assert np.abs(given.dense["bias"]).max() > 0.5  # the updates themselves are left alone


def test_noise_goes_to_every_entry_of_every_row() -> None:
    protection = ElementClip(clip_value=0.5, scale=0.1)
    noisy = protection.perturb(protection.bound(uploads()), SCHEMA, SeededSource(3))
    assert protection.fills_messages
    assert noisy.tables["words"].values.shape == (100, 40)
    assert (noisy.tables["words"].values != 0.0).mean() > 0.99
    quiet = ElementClip(clip_value=0.5, scale=0.0)
    assert not quiet.fills_messages
    assert quiet.noise_of_sum(SCHEMA, 5, np.random.default_rng(0)) == {}


def test_noise_of_a_weighted_sum_has_the_variance_of_its_parts() -> None:
    protection, weights = ElementClip(clip_value=0.5, scale=0.1), np.array([1, 1, 3])
    noise = protection.noise_of_weighted_sum(SCHEMA, weights, np.random.default_rng(2))["words"]
    # Var = sum of w^2 2 scale^2 = 0.22; with 2,000 entries its relative error is below 0.045, so 25 % is 5 of them.
    assert noise.var() == pytest.approx(0.22, rel=0.25)


def test_a_clip_of_zero_is_refused() -> None:
    with pytest.raises(BadInput, match="clip_value"):
        ElementClip(clip_value=0.0, scale=0.1)
