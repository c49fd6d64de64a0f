"""Many clients at once give what each gives by itself: no client's clicks touch another's message."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import optimize

from veilrec.core.csr import offsets_of
from veilrec.core.errors import BadInput
from veilrec.privacy.mechanisms.attention import (
    ClickHistories,
    PaddedAttention,
    PrivateAttention,
    Slots,
    decompose,
    normalise,
)
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.privacy.mechanisms.interests import PooledInterest
from veilrec.privacy.randomness import SeededSource


def _padded(epsilon, delta, p, calibration, **options):
    basis = 20.0 * np.eye(5)
    return PaddedAttention(
        encode=lambda history: np.asarray(history.sum(axis=0)),
        basis_vectors=basis,
        pad=basis[4],
        slots=1,
        clip_norm=1.0,
        epsilon=epsilon,
        delta=delta,
        pad_probability=p,
        calibration=calibration,
        **options,
    )


@given(arrays(np.float64, (2, 5), elements=st.floats(-1e3, 1e3)), st.sampled_from(["relu", "softplus", "simplex"]))
def test_normalised_attention_is_on_the_simplex(noisy, how):
    result = normalise(noisy, how)
    assert np.isfinite(result).all()
    assert (result >= 0.0).all()
    np.testing.assert_allclose(result.sum(axis=-1), 1.0, rtol=1e-9)


def test_simplex_projection_is_the_nearest_point_and_decomposition_a_softmax():
    noisy = np.random.default_rng(1).normal(size=4)
    found = optimize.minimize(
        lambda x: ((x - noisy) ** 2).sum(),
        np.full(4, 0.25),
        bounds=[(0.0, 1.0)] * 4,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1.0},
        tol=1e-14,
    )
    np.testing.assert_allclose(normalise(noisy, "simplex"), found.x, atol=1e-5)
    generator = np.random.default_rng(2)
    user, basis = generator.normal(size=(3, 16)), generator.normal(size=(5, 16))
    expected = np.exp(user @ basis.T / 4.0)
    np.testing.assert_allclose(decompose(user, basis), expected / expected.sum(axis=1, keepdims=True), rtol=1e-12)
    assert np.isfinite(decompose(1e6 * user, basis)).all()


def test_padding_hides_a_click_as_often_as_stated():
    """With almost no noise the output shows whether the click was masked; 5 standard deviations."""
    mechanism = _padded(30.0, 1e-2, 0.3, "proven")
    click = mechanism.worst_pair()[0]
    source = SeededSource(3)
    shown = sum(mechanism.release(click, source).value[0] > 0.5 for _ in range(2000))
    assert shown / 2000 == pytest.approx(0.7, abs=5.0 * math.sqrt(0.21 / 2000) + 0.01)


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 0.8])
def test_padded_laplace_profile_by_numeric_integration(epsilon):
    """Joint convexity: max over sets of P - e^eps Q for p N + (1 - p) Lap(0) against p N + (1 - p)
    Lap(shift).

    The bound is attained when the padded output N is where the two overlap least; any N gives at most it.
    """
    mechanism = _padded(1.0, 0.0, 0.5, "proven", noise="laplace")
    x = np.linspace(-60.0, 60.0, 400_001)
    shift = mechanism.sensitivity.value / mechanism.noise.scale
    first, second = (0.5 * np.exp(-np.abs(x - at)) for at in (0.0, shift))
    for between in (0.0, 0.5 * shift, shift):
        pad = 0.5 * np.exp(-np.abs(x - between))
        excess = 0.5 * (pad + first) - math.exp(epsilon) * 0.5 * (pad + second)
        assert np.trapezoid(np.maximum(excess, 0.0), x) <= mechanism.delta(epsilon) + 1e-6
    excess = 0.5 * (second + first) - math.exp(epsilon) * second  # the pad looks like the other click
    assert np.trapezoid(np.maximum(excess, 0.0), x) == pytest.approx(mechanism.delta(epsilon), abs=1e-5)


@pytest.mark.parametrize("slots", [2, 11])
def test_many_padded_releases_encode_each_mask_once(slots):
    encoded = []

    def encode(history):
        encoded.append(history.tobytes())
        return history.mean(axis=0)

    public = {"encode": encode, "basis_vectors": np.eye(3), "pad": np.zeros(3), "slots": slots}
    mechanism = PaddedAttention(clip_norm=0.5, epsilon=1.0, delta=1e-6, pad_probability=0.3, **public)
    history = np.arange(3.0 * slots).reshape(slots, 3) + 1.0
    many = mechanism.release_many(history, 3000, SeededSource(5)).value
    assert len(encoded) == len(set(encoded)) <= 2**slots
    assert len(encoded) == 4 if slots == 2 else len(encoded) > 500
    for seed in range(20):
        one = mechanism.release(history, SeededSource(seed)).value
        np.testing.assert_array_equal(mechanism.release_many(history, 1, SeededSource(seed)).value, one[np.newaxis])
    singles = np.stack([mechanism.release(history, source).value for source in map(SeededSource, range(400))])
    # The same law: means of 3000 and of 400 draws, 5 standard errors apart at most.
    error = 5.0 * mechanism.noise.scale * math.sqrt(1 / 3000 + 1 / 400) + 1e-3
    np.testing.assert_allclose(many.mean(axis=0), singles.mean(axis=0), atol=error)


def test_torch_clips_and_projects_as_the_mechanism_does():
    torch = pytest.importorskip("torch")
    interests = pytest.importorskip("veilrec.models.federated_news")
    generator = np.random.default_rng(4)
    attention = generator.dirichlet(np.full(6, 0.3), 200)
    noisy = attention + generator.normal(0.0, 0.5, attention.shape)
    noisy[0] = -1.0  # ReLU leaves nothing: uniform
    for clip_norm in (0.2, 0.5, 1.0):
        noise = PrivateAttention(basis=6, clip_norm=clip_norm, epsilon=1.0, delta=1e-6).noise
        clipped = interests.clip(torch.from_numpy(attention), clip_norm).numpy()
        bounded = noise.clipped(attention)  # stays below the bound by a margin for rounding in single precision
        assert (bounded <= clipped).all()
        np.testing.assert_allclose(bounded, clipped, rtol=3e-7, atol=0)
    projected = interests.on_simplex(torch.from_numpy(noisy)).numpy()
    np.testing.assert_allclose(projected, normalise(noisy, "relu"), rtol=0, atol=1e-12)


def test_noise_and_normalisation_of_section_1():
    padded = [
        (1.0, 1e-6, "gaussian", 3.998930, 3.467618),
        (10.0, 1e-3, "gaussian", 0.525477, 0.335566),
        (1.0, 0.0, "laplace", 1.342390, 0.671195),
    ]
    for epsilon, delta, noise, proven, published in padded:
        assert _padded(epsilon, delta, 0.5, "proven", noise=noise).noise.scale == pytest.approx(proven, abs=1e-6)
        found = _padded(epsilon, delta, 0.5, "as-published", noise=noise).noise.scale
        assert found == pytest.approx(published, abs=1e-6)
    build = partial(PrivateAttention, basis=5, clip_norm=1.0, epsilon=1.0, delta=1e-6)
    assert build().noise.scale == pytest.approx(5.974598, abs=1e-6)
    assert build(calibration="as-published").noise.scale == pytest.approx(5.298803, abs=1e-6)
    one_hot = np.eye(5)[0]
    np.testing.assert_allclose(normalise(0.001 * one_hot, "softplus"), [0.2001, *[0.2] * 4], atol=5e-5)
    np.testing.assert_allclose(normalise(one_hot, "softplus"), [0.3214, *[0.1696] * 4], atol=5e-5)
    np.testing.assert_array_equal(normalise(np.full((2, 5), -1.0), "relu"), np.full((2, 5), 0.2))


def test_what_makes_no_sense_is_refused():
    right = {"basis": 5, "clip_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
    wrong = [
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"basis": 0}, "basis"),
        ({"noise": "uniform"}, "laplace"),
        ({"noise": "laplace"}, "delta"),
    ]
    for changed, told in wrong:
        with pytest.raises(BadInput, match=told):
            PrivateAttention(**right | changed)
    with pytest.raises(BadInput, match="softplus"):
        normalise(np.zeros(3), "softmax")
    for attention in ([0.5, 0.6, 0.0, 0.0, 0.0], [-0.1, 1.1, 0.0, 0.0, 0.0]):
        with pytest.raises(BadInput, match="softmax"):
            PrivateAttention.examples()[0].release(np.array(attention), SeededSource(1))
    with pytest.raises(BadInput, match="slots"):
        _padded(1.0, 1e-6, 0.5, "proven").release(np.zeros((2, 5)), SeededSource(4))
    for p in (0.0, 1.0, -0.5):
        with pytest.raises(BadInput, match="pad_probability"):
            _padded(1.0, 1e-6, p, "proven")
    long = ClickHistories(np.zeros((1, WIDTH)), np.array([0, 1, 2 + SLOTS]), np.zeros(2 + SLOTS, np.int32))
    with pytest.raises(BadInput, match=f"has {SLOTS + 1} clicks"):
        _pooled().release(long, SeededSource(0))
    for offsets, items in (([0, 2], [0]), ([0, 2, 1, 2], [0, 0]), ([0, 1], [5]), ([0, 1], [-1])):
        with pytest.raises(BadInput, match="offsets|none of the 3"):
            ClickHistories(np.zeros((3, 2)), np.array(offsets), np.array(items, np.int32))
    slots = Slots(np.zeros((2, SLOTS, WIDTH)), np.ones((2, SLOTS), np.bool_))
    with pytest.raises(BadInput, match="encode_many"):
        _padded_slots(encode_many=None).release(slots, SeededSource(0))
    with pytest.raises(BadInput, match="shape"):
        _padded_slots(slots=SLOTS + 1).release(slots, SeededSource(0))
    with pytest.raises(BadInput, match="one history"):
        _padded_slots().release_many(slots, 3, SeededSource(0))
    with pytest.raises(BadInput, match="shape"):
        Slots(np.zeros((2, SLOTS, WIDTH)), np.ones((2, SLOTS + 1), np.bool_))


WIDTH, SLOTS = 6, 9


def _clicks(clients=40):
    generator = np.random.default_rng(3)
    lengths = generator.integers(0, SLOTS + 1, clients)
    lengths[:2] = (0, SLOTS)
    items = generator.integers(0, 30, lengths.sum()).astype(np.int32)
    return ClickHistories(2.0 * generator.normal(size=(30, WIDTH)), offsets_of(lengths), items)


def _pooled(**options):
    right = {"projection": np.eye(4, WIDTH), "clip_norm": 1.0, "slots": SLOTS}
    return PooledInterest(**right | {"epsilon": 1.0, "delta": 1e-6} | options)


def test_pooling_of_many_clients_is_that_of_each_with_noise_of_its_own():
    clicks, mechanism = _clicks(), _pooled()
    together = mechanism.pooled(clicks)
    for client in range(40):
        own = clicks.items[clicks.offsets[client] : clicks.offsets[client + 1]]
        np.testing.assert_array_equal(together[client], mechanism.pooled(clicks.table[own]))
    first = clip_flat(clicks.table, 1.0)[clicks.items[: clicks.offsets[2]]].sum(axis=0)[:4] / SLOTS
    np.testing.assert_allclose(together[1], first, atol=1e-8)
    np.testing.assert_array_equal(together[0], np.zeros(4))
    # 4,000 numbers: the spread is off by 5 standard errors (5.6 %) once in two million runs.
    mechanism = _pooled()
    nobody = ClickHistories(np.zeros((1, WIDTH)), np.zeros(1001, np.int64), np.zeros(0, np.int32))
    noise = mechanism.release(nobody, SeededSource(1)).value
    assert noise.shape == (1000, 4)
    assert len(np.unique(noise, axis=0)) == 1000
    assert noise.std() == pytest.approx(mechanism.sigma, rel=0.056)


def _mean_of_taken(clicks, taken):
    return np.asarray((clicks * taken[..., np.newaxis]).sum(axis=1) / np.maximum(taken.sum(axis=1), 1)[:, np.newaxis])


def _padded_slots(**options):
    right = {
        "encode": lambda history: _mean_of_taken(history[np.newaxis], np.ones((1, len(history)), np.bool_))[0],
        "encode_many": _mean_of_taken,
        "basis_vectors": 5.0 * np.eye(3, WIDTH),
        "pad": np.full(WIDTH, 0.5),
        "slots": SLOTS,
        "clip_norm": 1.0,
        "epsilon": 1.0,
        "delta": 1e-6,
        "pad_probability": 0.4,
    }
    return PaddedAttention(**right | options)


def test_padded_attention_of_many_clients_follows_the_law_of_one():
    """Means of 6,000 and 6,000 draws, 5 standard errors apart at most: once in a million runs and coordinate."""
    history = np.random.default_rng(4).normal(size=(SLOTS, WIDTH)) * 3.0
    mechanism = _padded_slots(epsilon=30.0)
    same = Slots(np.broadcast_to(history, (6000, SLOTS, WIDTH)), np.ones((6000, SLOTS), np.bool_))
    many = mechanism.release(same, SeededSource(5)).value
    one = mechanism.release_many(history, 6000, SeededSource(6)).value
    error = 5.0 * np.sqrt((many.var(axis=0) + one.var(axis=0)) / 6000)
    assert (np.abs(many.mean(axis=0) - one.mean(axis=0)) < error).all()
    np.testing.assert_allclose(many.std(axis=0), one.std(axis=0), rtol=0.06)


def test_a_place_without_a_click_never_becomes_a_pad():
    seen = []

    def encode(clicks, taken):
        seen.append(clicks)
        return _mean_of_taken(clicks, taken)

    vectors, taken = np.full((50, SLOTS, WIDTH), 7.0), np.zeros((50, SLOTS), np.bool_)
    taken[:, :3] = True
    _padded_slots(encode_many=encode, pad_probability=0.9).release(Slots(vectors, taken), SeededSource(7))
    assert (seen[0][:, 3:] == 7.0).all()
    assert (seen[0][:, :3] == 0.5).all(axis=2).mean() > 0.7
