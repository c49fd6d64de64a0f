import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from veilrec.core.errors import BadInput
from veilrec.privacy.mechanisms import clipping

OFFSETS = np.array([0, 2, 2, 5])  # three clients; the second has no rows


def _client_vectors(values, dense):
    return [
        np.concatenate((values[OFFSETS[i] : OFFSETS[i + 1]].ravel(), dense[i].ravel())).astype(np.float64)
        for i in range(3)
    ]


_entries = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


@given(
    arrays(np.float32, (5, 4), elements=_entries),
    arrays(np.float32, (3, 2, 3), elements=_entries),
    st.floats(1e-2, 1e3),
)
def test_no_client_exceeds_the_bound_and_directions_stay(values, dense, clip_norm):
    before = _client_vectors(values, dense)
    clipped_values, clipped_dense = values.copy(), dense.copy()
    norms = clipping.clip_clients([(OFFSETS, clipped_values)], [clipped_dense], clip_norm)
    for old, new, norm in zip(before, _client_vectors(clipped_values, clipped_dense), norms, strict=True):
        assert norm == pytest.approx(np.linalg.norm(old), rel=1e-6)
        assert np.linalg.norm(new) <= clip_norm
        expected = old * min(1.0, clip_norm / max(norm, 1e-300))
        np.testing.assert_allclose(new, expected, rtol=1e-5, atol=1e-30)


def test_rows_are_clipped_each_by_itself():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], np.float32)
    np.testing.assert_allclose(clipping.clip_rows(rows, 1.0), [5.0, 0.5, 0.0], rtol=1e-6)
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], rtol=1e-6)


def test_the_published_split_and_what_is_refused():
    values = np.ones((5, 4), np.float32)
    values[4, 1] = np.nan
    before = values.copy()
    with pytest.raises(BadInput, match="NaN"):
        clipping.clip_clients([(OFFSETS, values)], (), 0.1)
    np.testing.assert_array_equal(values, before)
    with pytest.raises(BadInput, match="clip_norm"):
        clipping.clip_clients([(OFFSETS, values)], (), 0.0)
    with pytest.raises(BadInput, match="rows"):
        clipping.clip_clients([(np.array([0, 3]), values)], (), 1.0)
    with pytest.raises(BadInput, match="clients"):
        clipping.client_norms([(OFFSETS, np.ones((5, 4), np.float32))], [np.ones((2, 3))])
    update, quantile = clipping.published_noise_split(1.0, 0.7)
    assert (update, quantile) == (pytest.approx(1.825742, abs=5e-7), pytest.approx(1.195229, abs=5e-7))
    assert update**-2 + quantile**-2 == pytest.approx(1.0)
    with pytest.raises(BadInput, match="clip_norm"):
        clipping.next_clip_norm(0.0, noisy_unclipped_fraction=0.5, quantile=0.5)
    with pytest.raises(BadInput, match="quantile"):
        clipping.next_clip_norm(1.0, noisy_unclipped_fraction=0.5, quantile=1.0)
    with pytest.raises(BadInput, match="quantile_share"):
        clipping.published_noise_split(1.0, 0.0)


def test_published_bound_falls_to_zero_section_5():
    # Clipped first, every norm is at most S, so beta = 1 whatever the updates are.
    updates, bound, rounds = np.random.default_rng(4).normal(size=(20, 8)), 40.0, 0
    while bound > 1e-9:
        clipped = clipping.clip_flat(updates, bound)
        norms = clipping.client_norms((), [clipped])
        assert int((norms <= bound).sum()) == 20
        bound = clipping.published_next_clip_norm(bound, noisy_unclipped_fraction=1.0, quantile=0.9, learning_rate=1.0)
        rounds += 1
    assert rounds == 400


@pytest.mark.parametrize("start", [1e-3, 1e3])
def test_geometric_bound_finds_the_quantile_and_stays_positive_section_5(start):
    generator = np.random.default_rng(5)
    bound = start
    for _ in range(700):
        norms = generator.lognormal(size=500)
        noisy = int((norms <= bound).sum()) / 500 + generator.normal(scale=0.02)
        bound = clipping.next_clip_norm(bound, noisy_unclipped_fraction=noisy, quantile=0.9)
        assert bound > 0.0
    assert bound == pytest.approx(math.exp(1.2816), rel=0.15)  # the 0.9 quantile of the norms
