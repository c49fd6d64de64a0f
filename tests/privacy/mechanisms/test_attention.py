from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import optimize

from veilrec.core.arrays import Doubles
from veilrec.core.errors import BadInput
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.mechanisms.attention import Normalisation, PaddedAttention, PrivateAttention, decompose, normalise
from veilrec.privacy.mechanisms.base import Calibration
from veilrec.privacy.randomness import SeededSource


def _padded(epsilon: float, delta: float, p: float, calibration: Calibration, **options: Any) -> PaddedAttention:
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


@pytest.mark.parametrize(
    ("epsilon", "delta", "proven", "published"), [(1.0, 1e-6, 3.998930, 3.467618), (10.0, 1e-3, 0.525477, 0.335566)]
)
def test_sigma_with_padding_of_section_1(epsilon: float, delta: float, proven: float, published: float) -> None:
    assert _padded(epsilon, delta, 0.5, "proven").noise.scale == pytest.approx(proven, abs=1e-6)
    assert _padded(epsilon, delta, 0.5, "as-published").noise.scale == pytest.approx(published, abs=1e-6)


def test_sigma_without_padding_of_section_1() -> None:
    build = partial(PrivateAttention, basis=5, clip_norm=1.0, epsilon=1.0, delta=1e-6)
    assert build().noise.scale == pytest.approx(5.974598, abs=1e-6)
    assert build(calibration="as-published").noise.scale == pytest.approx(5.298803, abs=1e-6)


def test_laplace_with_padding_of_section_1() -> None:
    build = partial(_padded, 1.0, 0.0, 0.5, noise="laplace")
    assert build(calibration="proven").noise.scale == pytest.approx(1.342390, abs=1e-6)
    assert build(calibration="as-published").noise.scale == pytest.approx(0.671195, abs=1e-6)


def test_what_the_published_noise_is_worth_section_1() -> None:
    gaussian = PrivateAttention(basis=5, clip_norm=0.4, epsilon=10.0, delta=1e-3, calibration="as-published")
    assert gaussian.delta(10.0) == pytest.approx(0.1513, abs=5e-5)
    assert epsilon_of(gaussian.event(), 1e-3) == pytest.approx(17.859, abs=5e-4)
    laplace = PrivateAttention(
        basis=5, clip_norm=0.4, epsilon=1.0, delta=0.0, noise="laplace", calibration="as-published"
    )
    assert epsilon_of(laplace.event(), 0.0) == pytest.approx(3.146264, abs=1e-6)


def test_softplus_flattens_section_1() -> None:
    one_hot = np.eye(5)[0]
    np.testing.assert_allclose(normalise(0.001 * one_hot, "softplus"), [0.2001, *[0.2] * 4], atol=5e-5)
    np.testing.assert_allclose(normalise(one_hot, "softplus"), [0.3214, *[0.1696] * 4], atol=5e-5)


def test_relu_with_nothing_above_zero_is_uniform() -> None:
    np.testing.assert_array_equal(normalise(np.full((2, 5), -1.0), "relu"), np.full((2, 5), 0.2))


@settings(deadline=None)
@given(arrays(np.float64, (2, 5), elements=st.floats(-1e3, 1e3)), st.sampled_from(["relu", "softplus", "simplex"]))
def test_normalised_attention_is_on_the_simplex(noisy: Doubles, how: Normalisation) -> None:
    result = normalise(noisy, how)
    assert np.isfinite(result).all()
    assert (result >= 0.0).all()
    np.testing.assert_allclose(result.sum(axis=-1), 1.0, rtol=1e-9)


def test_simplex_projection_is_the_nearest_point() -> None:
    noisy = np.random.default_rng(1).normal(size=4)
    found: Any = optimize.minimize(  # type: ignore[call-overload]
        lambda x: ((x - noisy) ** 2).sum(),
        np.full(4, 0.25),
        bounds=[(0.0, 1.0)] * 4,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1.0},
        tol=1e-14,
    )
    np.testing.assert_allclose(normalise(noisy, "simplex"), found.x, atol=1e-5)


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(BadInput, match="softplus"):
        normalise(np.zeros(3), "softmax")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="laplace"):
        PrivateAttention(basis=5, clip_norm=1.0, epsilon=1.0, delta=0.0, noise="uniform")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="delta"):
        PrivateAttention(basis=5, clip_norm=1.0, epsilon=1.0, delta=1e-6, noise="laplace")


@pytest.mark.parametrize("wrong", [{"clip_norm": 0.0}, {"epsilon": -1.0}, {"delta": 1.0}, {"basis": 0}])
def test_bad_parameters_are_refused(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"basis": 5, "clip_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(BadInput, match=next(iter(wrong))):
        PrivateAttention(**right | wrong)


@pytest.mark.parametrize("attention", [[0.5, 0.6, 0.0, 0.0, 0.0], [-0.1, 1.1, 0.0, 0.0, 0.0]])
def test_only_a_softmax_is_attention(attention: list[float]) -> None:
    with pytest.raises(BadInput, match="softmax"):
        PrivateAttention.examples()[0].release(np.array(attention), SeededSource(1))


def test_decomposition_is_a_softmax_of_scaled_products() -> None:
    generator = np.random.default_rng(2)
    user, basis = generator.normal(size=(3, 16)), generator.normal(size=(5, 16))
    expected = np.exp(user @ basis.T / 4.0)
    np.testing.assert_allclose(decompose(user, basis), expected / expected.sum(axis=1, keepdims=True), rtol=1e-12)
    assert np.isfinite(decompose(1e6 * user, basis)).all()


def test_padding_hides_a_click_as_often_as_stated() -> None:
    """With almost no noise the output shows whether the click was masked; 5 standard deviations."""
    mechanism = _padded(30.0, 1e-2, 0.3, "proven")
    click = mechanism.worst_pair()[0]
    source = SeededSource(3)
    shown = sum(mechanism.release(click, source).value[0] > 0.5 for _ in range(2000))
    assert shown / 2000 == pytest.approx(0.7, abs=5.0 * math.sqrt(0.21 / 2000) + 0.01)


def test_absent_clicks_are_pads_and_slots_are_fixed() -> None:
    mechanism = _padded(1.0, 1e-6, 0.5, "proven")
    with pytest.raises(BadInput, match="slots"):
        mechanism.release(np.zeros((2, 5)), SeededSource(4))


@pytest.mark.parametrize("p", [0.0, 1.0, -0.5])
def test_padding_probability_lies_between_0_and_1(p: float) -> None:
    with pytest.raises(BadInput, match="pad_probability"):
        _padded(1.0, 1e-6, p, "proven")


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 0.8])
def test_padded_laplace_profile_by_numeric_integration(epsilon: float) -> None:
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
def test_many_padded_releases_encode_each_mask_once(slots: int) -> None:
    encoded: list[bytes] = []

    def encode(history: Doubles) -> Doubles:
        encoded.append(history.tobytes())
        return history.mean(axis=0)

    mechanism = PaddedAttention(
        encode=encode,
        basis_vectors=np.eye(3),
        pad=np.zeros(3),
        slots=slots,
        clip_norm=0.5,
        epsilon=1.0,
        delta=1e-6,
        pad_probability=0.3,
    )
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


def test_torch_clips_and_projects_as_the_mechanism_does() -> None:
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
