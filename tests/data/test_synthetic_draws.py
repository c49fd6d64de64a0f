import numpy as np

from veilrec.core.jit import jit
from veilrec.data import synthetic_draws as draws


@jit
def _sample(seed, stream, index, uniforms, normals):
    state = np.empty(1, np.uint64)
    draws.start(state, seed, stream, index)
    for position in range(len(uniforms)):
        uniforms[position] = draws.uniform(state)
        normals[position] = draws.normal(state)


def sample(seed, stream, index, size=20_000):
    uniforms, normals = np.empty(size), np.empty(size)
    _sample(seed, stream, index, uniforms, normals)
    return uniforms, normals


def test_distributions():
    # Fixed seeds; with fresh ones each bound is five standard errors: one false alarm in two million runs.
    uniforms, normals = sample(1, 2, 3)
    size = len(uniforms)
    assert abs(uniforms.mean() - 0.5) < 5 * np.sqrt(1 / 12 / size)
    assert abs(normals.mean()) < 5 / np.sqrt(size)
    assert abs(normals.var() - 1) < 5 * np.sqrt(2 / size)
    counts = np.histogram(uniforms, 10, (0, 1))[0]
    assert np.abs(counts - size / 10).max() < 5 * np.sqrt(size * 0.09)
    assert abs(np.corrcoef(uniforms[1:], uniforms[:-1])[0, 1]) < 5 / np.sqrt(size)


def test_streams_depend_on_every_part_of_their_key():
    base = sample(1, 2, 3)[0]
    np.testing.assert_array_equal(base, sample(1, 2, 3)[0])
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3), (0, 0, 0)):
        # Five standard errors, as above.
        assert abs(np.corrcoef(base, sample(*other)[0])[0, 1]) < 5 / np.sqrt(len(base))


def test_rising_numbers_fill_the_interval_and_lengths_keep_their_bounds_and_mean():
    state, out = np.array([7], np.uint64), np.empty(1000)
    draws.rising(state, 1000, out)
    assert (np.diff(out) > 0).all()
    assert out[0] > 0 and out[-1] < 1
    # The Kolmogorov-Smirnov distance exceeds 1.95 / sqrt(n) once in a thousand runs; the state is fixed.
    assert np.abs(out - (np.arange(1000) + 0.5) / 1000).max() < 1.95 / np.sqrt(1000)
    state = np.array([7], np.uint64)
    lengths = np.array([draws.lognormal_length(state, 30.0, 0.8, 5, 600) for _ in range(5000)])
    assert lengths.min() >= 5 and lengths.max() <= 600
    # The standard deviation of a length is about 28: five standard errors are 2.
    assert abs(lengths.mean() - 30) < 2
