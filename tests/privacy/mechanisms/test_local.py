"""Noise on every message: what is cut, what is added, what it costs, and that sums of noise may be drawn at once."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from veilrec.core.errors import BadInput
from veilrec.core.schema import ClientUpdates, RoundSpec, Rows, Schema, Tensor, to_vectors
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.events import NonPrivateEvent
from veilrec.privacy.mechanisms.local import ElementwiseLaplace, RowwiseLaplace, UpdateNoise
from veilrec.privacy.randomness import FastSource, SeededSource
from veilrec.privacy.samplers import UNITS

FEDNEWSREC_PARAMETERS = 920_801 + 1_602_002
FALSE_ALARM = 1e-4  # of each test of a distribution
SCHEMA = Schema((Tensor("items", (8, 3), True), Tensor("layer", (2, 5), False)))
TABLE = Schema((Tensor("items", (8, 3), True),))
ABOUT = RoundSpec(3)


def table(rows, width):
    return Schema((Tensor("items", (rows, width), True),))


def layer(size):
    return Schema((Tensor("layer", (size,), False),))


def updates(n=4, seed=0, size=1.0, *, dense=True):
    generator = np.random.default_rng(seed)
    index = np.concatenate([generator.choice(8, 2, replace=False) for _ in range(n)]).astype(np.int32)
    values = size * generator.standard_normal((2 * n, 3)).astype(np.float32)
    layers = {"layer": size * generator.standard_normal((n, 2, 5)).astype(np.float32)} if dense else {}
    return ClientUpdates(3, n, {"items": Rows(np.arange(n + 1) * 2, index, values)}, layers)


def gaussian(schema=SCHEMA, **options):
    return UpdateNoise(schema=schema, **{"clip_norm": 0.7, "epsilon": 2.0, "delta": 1e-5} | options)


def by_row(schema=TABLE, **options):
    return RowwiseLaplace(schema=schema, **{"clip_norm": 0.5, "epsilon": 2.0} | options)


def by_entry(scale, clip_value=0.5):
    return ElementwiseLaplace.published(schema=SCHEMA, clip_value=clip_value, scale=scale)


def test_fednewsrec_of_section_4_and_rowwise_laplace_of_section_7():
    assert FEDNEWSREC_PARAMETERS == 2_522_803
    published = ElementwiseLaplace.published(schema=layer(FEDNEWSREC_PARAMETERS), clip_value=0.005, scale=0.015)
    assert published.claimed_epsilon == pytest.approx(2.0 / 3.0)
    assert epsilon_of(published.event(), 0.0) == pytest.approx(1_681_868.67, rel=1e-8)
    ratio = 2.0 * 0.005 / published.scale
    assert ratio * math.sqrt(FEDNEWSREC_PARAMETERS) == pytest.approx(1058.889, abs=5e-4)
    assert ratio + math.exp(-ratio) - 1.0 == pytest.approx(0.180084, abs=5e-7)  # nats per coordinate
    block = ElementwiseLaplace.published(schema=layer(300), clip_value=0.005, scale=0.015)
    assert epsilon_of(block.event(), 0.0) == pytest.approx(200.0)
    assert epsilon_of(block.event(), 1e-6) == pytest.approx(99.80, abs=0.02)
    for published_sensitivity, factor in [(2.0, 5.656854), (1.0, 11.313708)]:
        published = by_row(table(1, 32), clip_norm=1.0, epsilon=0.4, calibration="as-published")
        claimed_per_row = epsilon_of(published.event(), 0.0) / 0.4
        assert claimed_per_row * 2.0 / published_sensitivity == pytest.approx(factor, abs=1e-6)


def test_a_bound_on_every_row_or_entry_that_none_exceeds():
    sent = updates(n=500, size=3.0, dense=False)
    given_rows = sent.tables["items"].values.copy()
    rows = by_row().bound(sent, ABOUT).tables["items"].values
    lengths = np.linalg.norm(given_rows.astype(np.float64), axis=1, keepdims=True)
    assert np.allclose(rows, given_rows * np.minimum(1.0, 0.5 / lengths), rtol=1e-5)
    assert np.linalg.norm(rows.astype(np.float64), axis=1).max() <= 0.5
    assert np.array_equal(sent.tables["items"].values, given_rows)  # the sender's own copy was left alone
    sent = updates()
    bounded = by_entry(0.0).bound(sent, ABOUT)
    assert np.array_equal(bounded.tables["items"].values, np.clip(sent.tables["items"].values, -0.5, 0.5))
    assert np.array_equal(bounded.dense["layer"], np.clip(sent.dense["layer"], -0.5, 0.5))
    assert np.abs(sent.dense["layer"]).max() > 0.5


@pytest.mark.parametrize("mechanism", [gaussian(TABLE), by_row(), by_entry(0.1)])
def test_what_is_not_finite_never_passes_the_bound(mechanism):
    sent = updates(dense=False)
    sent.tables["items"].values[3, 1] = np.nan
    with pytest.raises(BadInput, match="NaN or infinite"):
        mechanism.bound(sent, ABOUT)


@pytest.mark.parametrize("mechanism", [gaussian(), by_entry(0.1)])
@pytest.mark.parametrize("source", [SeededSource(3), FastSource(3)])
def test_noise_fills_every_entry_of_every_row(mechanism, source):
    sent = mechanism.message(updates(), ABOUT, source)
    assert mechanism.fills_messages
    assert np.all(to_vectors(sent.value, SCHEMA) != 0.0)
    assert np.array_equal(np.diff(sent.value.tables["items"].offsets), np.full(4, 8))
    assert sent.event == mechanism.event()


def test_without_noise_nothing_is_filled_and_nothing_claimed():
    quiet = by_entry(0.0)
    assert not quiet.fills_messages
    assert quiet.noise_on == "nothing"
    assert quiet.event() == NonPrivateEvent()
    assert quiet.noise_of_messages(SCHEMA, np.ones(5), np.random.default_rng(0)) == {}
    bounded = quiet.bound(updates(), ABOUT)
    assert quiet.perturb(bounded, ABOUT, SeededSource(0)) is bounded


@pytest.mark.parametrize(
    "mechanism", [gaussian(table(2000, 10), clip_norm=0.3), by_row(table(2000, 10), calibration="as-published")]
)
@pytest.mark.parametrize("source", [SeededSource(2), FastSource(2)])
def test_noise_of_the_sum_is_the_sum_of_the_noise(mechanism, source):
    """Two-sample Kolmogorov-Smirnov, 20,000 draws each: fails by chance once in 10,000 runs."""
    nothing = Rows(np.zeros(6, np.int64), np.zeros(0, np.int32), np.zeros((0, 10), np.float32))
    each = mechanism.perturb(ClientUpdates(0, 5, {"items": nothing}), ABOUT, source)
    summed = each.tables["items"].values.reshape(5, -1).sum(axis=0)
    generator = np.random.default_rng(3)
    at_once = mechanism.noise_of_messages(mechanism.schema, np.ones(5), generator)["items"].ravel()
    assert stats.ks_2samp(summed, at_once).pvalue > FALSE_ALARM
    one_less = mechanism.noise_of_messages(mechanism.schema, np.ones(4), generator)["items"].ravel()
    assert stats.ks_2samp(summed, one_less).pvalue < FALSE_ALARM


def test_noise_of_a_weighted_sum_has_the_variance_of_its_parts():
    mechanism = ElementwiseLaplace.published(schema=table(50, 40), clip_value=0.5, scale=0.1)
    noise = mechanism.noise_of_messages(mechanism.schema, np.array([1, 1, 3]), np.random.default_rng(2))["items"]
    # Var = sum of w^2 2 scale^2 = 0.22; with 2,000 entries its relative error is below 0.045, so 25 % is 5 of them.
    assert noise.var() == pytest.approx(0.22, rel=0.25)


@settings(max_examples=50)
@given(arrays(np.float64, (2, 6), elements=st.floats(-1e12, 1e12)), st.floats(1e-3, 1e3), st.integers(0, 2**32))
def test_messages_are_finite_and_on_the_lattice(update, clip, seed):
    mechanisms = (
        gaussian(layer(6), clip_norm=clip),
        ElementwiseLaplace(schema=layer(6), clip_value=clip, epsilon=1.0),
        by_row(table(2, 3), clip_norm=clip),
    )
    for mechanism in mechanisms:
        noisy = mechanism.release(update, SeededSource(seed)).value
        grid = mechanism.scale / UNITS
        assert np.isfinite(noisy).all()
        assert np.array_equal((np.rint(noisy / grid) * grid).astype(np.float32), noisy.astype(np.float32))


@pytest.mark.parametrize("wrong", [{"clip_norm": 0.0}, {"epsilon": 0.0}, {"epsilon": math.inf}])
def test_bad_settings_are_refused(wrong):
    for make in (gaussian, by_row):
        with pytest.raises(BadInput, match=next(iter(wrong))):
            make(**wrong)
    with pytest.raises(BadInput, match="clip_value"):
        by_entry(0.1, clip_value=0.0)
