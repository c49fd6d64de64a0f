"""One object bounds updates, makes messages, puts noise on sums and says what it costs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from veilrec.core.errors import BadInput
from veilrec.core.schema import ClientUpdates, Factors, RoundSpec, Rows, Schema, Tensor, public_basis, to_vectors
from veilrec.privacy.accounting import Rounds
from veilrec.privacy.mechanisms.clipping import BadUpdate, update_norms
from veilrec.privacy.mechanisms.sums import CohortSum, GainSum
from veilrec.privacy.randomness import FastSource, KeyedSource, SeededSource
from veilrec.privacy.samplers import UNITS

SCHEMA = Schema((Tensor("items", (12, 4), True), Tensor("near", (3, 4), False), Tensor("far", (5, 6), False)))
SIZE = 12 * 4 + 3 * 4 + 5 * 6
ABOUT = RoundSpec(5)
TEN = Rounds(rounds=1, sampling="fixed", population=10, cohort=3)


def cohort_sum(schema=SCHEMA, **options):
    right = {"clip_norm": 1.0, "noise_multiplier": 1.0, "taking_part": TEN, "delta": 1e-3}
    return CohortSum(schema=schema, **right | options)


def of_four(**options):
    return cohort_sum(Schema((Tensor("layer", (4,), False),)), **options)


def updates(schema=SCHEMA, n=3, seed=0, size=1.0):
    generator = np.random.default_rng(seed)
    index = np.concatenate([generator.choice(12, 7, replace=False) for _ in range(n)]).astype(np.int32)
    values = size * generator.standard_normal((7 * n, 4)).astype(np.float32)
    dense = {t.name: size * generator.standard_normal((n, *t.shape)).astype(np.float32) for t in schema.dense}
    return ClientUpdates(5, n, {"items": Rows(np.arange(n + 1) * 7, index, values)}, dense)


def test_one_bound_over_all_that_a_client_sends_which_a_round_may_tighten():
    sent = updates(size=3.0)
    bounded = cohort_sum(clip_norm=0.7).bound(sent, ABOUT)
    assert np.all(update_norms(sent) > 0.7)
    assert np.all(update_norms(bounded) <= 0.7)
    assert np.allclose(update_norms(bounded), 0.7, rtol=1e-5)
    small = updates(size=0.01)
    assert np.array_equal(to_vectors(cohort_sum().bound(small, ABOUT), SCHEMA), to_vectors(small, SCHEMA))
    bounded = cohort_sum().bound(updates(), replace(ABOUT, clip_norm=0.25))
    assert np.allclose(update_norms(bounded), 0.25, rtol=1e-5)
    assert np.all(update_norms(cohort_sum().bound(updates(), replace(ABOUT, clip_norm=50.0))) <= 1.0)


def test_entries_and_directions_of_a_message_are_those_of_the_round():
    spec = replace(ABOUT, public_seed=8, shares={"far": 0.3})
    one, other = (cohort_sum().bound(updates(seed=seed), spec) for seed in (1, 2))
    assert np.array_equal(one.entries["far"].index, other.entries["far"].index)
    expected = spec.entries("far", 30)
    assert one.entries["far"].index[:9].tolist() == expected.tolist()
    assert set(one.dense) == {"near"}
    spec = replace(ABOUT, public_seed=8, rank=2)
    wide, tight = cohort_sum(clip_norm=100.0), cohort_sum(clip_norm=0.5)
    sent = updates()
    basis = public_basis(4, 2, 8, 5)
    tables = to_vectors(sent, SCHEMA)[:, :48].reshape(3, 12, 4)
    assert np.allclose(wide.bound(sent, spec).factors["items"].product(), tables @ basis @ basis.T, atol=1e-4)
    assert np.all(update_norms(tight.bound(sent, spec)) <= 0.5)
    assert tight.counted_parameters(SCHEMA["items"], spec) == 2 * (12 + 4 + 1)
    assert tight.counted_parameters(SCHEMA["items"], ABOUT) == 48


def test_a_client_within_its_bounds_is_never_refused_and_what_none_can_have_sent_is():
    mechanism = cohort_sum(clip_norm=0.5)
    rounds = (ABOUT, replace(ABOUT, shares={"far": 0.3}), replace(ABOUT, rank=2), replace(ABOUT, clip_norm=0.1))
    for spec in rounds:
        for seed in range(20):
            mechanism.check(mechanism.bound(updates(seed=seed), spec), spec)
    mechanism = cohort_sum(clip_norm=0.5)
    with pytest.raises(BadUpdate, match="takes at most 0.5"):
        mechanism.check(updates(), ABOUT)
    small = updates(size=1e-3)
    with pytest.raises(BadUpdate, match="entries of far that the round is not about"):
        mechanism.check(small, replace(ABOUT, shares={"far": 0.3}))
    elsewhere = Rows(np.array([0, 1]), np.array([_outside(8)], np.int32), np.full((1, 1), 1e-3, np.float32))
    with pytest.raises(BadUpdate, match="entries of far"):
        mechanism.check(
            ClientUpdates(5, 1, entries={"far": elsewhere}), replace(ABOUT, public_seed=8, shares={"far": 0.3})
        )
    with pytest.raises(BadUpdate, match="directions of items"):
        mechanism.check(ClientUpdates(5, 3, small.tables), replace(ABOUT, rank=2))
    turned = Factors(np.ones((1, 12, 2), "f4") * 1e-3, np.ones((1, 2), "f4"), np.eye(4, dtype="f4")[None, :2])
    with pytest.raises(BadUpdate, match="directions of items"):
        mechanism.check(ClientUpdates(5, 1, factors={"items": turned}), replace(ABOUT, rank=2))


def _outside(seed):
    entries = RoundSpec(5, public_seed=seed, shares={"far": 0.3}).entries("far", 30)
    return int(np.setdiff1d(np.arange(30), entries)[0])


@pytest.mark.parametrize("source", [SeededSource(3), FastSource(3), FastSource(3, one_generator=True)])
def test_noise_goes_to_everything_that_the_round_is_about_and_to_nothing_else(source):
    """Each of two tensors of 20,000 numbers: fails by chance once in 500,000 runs."""
    schema = Schema((Tensor("items", (200, 100), True), Tensor("layer", (200, 100), False)))
    mechanism = cohort_sum(schema, clip_norm=2.0, noise_multiplier=1.5)
    assert mechanism.sigma == pytest.approx(1.5 * 4.0, rel=1e-3)  # replace-one: twice the clip norm
    spec = RoundSpec(0, shares={"layer": 0.5})
    sums = {tensor.name: np.zeros(tensor.shape) for tensor in schema.tensors}
    mechanism.protect(sums, spec, source)
    entries = spec.entries("layer", 20_000)
    layer = sums["layer"].ravel()
    assert np.all(np.delete(layer, entries) == 0.0)
    for noise in (sums["items"].ravel(), layer[entries]):
        assert np.all(noise != 0.0)
        assert stats.kstest(noise / mechanism.sigma, "norm").pvalue > 1e-6


def test_noise_on_sums_lies_on_its_lattice_and_fast_noise_does_not():
    mechanism = of_four()
    grid = mechanism.sigma / UNITS
    total = mechanism.release(np.full((10, 4), 0.1), SeededSource(1)).value
    assert np.array_equal(np.rint(total / grid) * grid, total)
    fast = mechanism.release(np.full((10, 4), 0.1), FastSource(1)).value
    assert not np.array_equal(np.rint(fast / grid) * grid, fast)


def test_fixed_cohorts_have_their_size_and_everybody_the_same_chance_and_its_own_clip():
    everybody = Rounds(rounds=1, population=3, cohort=3)
    mechanism = of_four(noise_multiplier=1e-3, taking_part=everybody)
    updates = np.array([[100.0, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, -7.0, 0]])
    total = mechanism.release(updates, SeededSource(1)).value
    np.testing.assert_allclose(total, [1.0, 0.5, -1.0, 0.0], atol=0.02)
    updates = np.zeros((10, 4))
    updates[:, 0] = 0.5
    updates[0, 1] = 0.5
    sums = of_four(noise_multiplier=1e-6).release_many(updates, 3000, SeededSource(2)).value
    np.testing.assert_allclose(sums[:, 0], 1.5, atol=1e-3)
    # 5 standard deviations: one seed in a million
    assert (sums[:, 1] > 0.25).mean() == pytest.approx(0.3, abs=5.0 * math.sqrt(0.21 / 3000))


def test_poisson_cohorts_are_binomial():
    mechanism = of_four(noise_multiplier=1e-6, taking_part=replace(TEN, sampling="poisson"))
    value = np.tile([0.5, 0.0, 0.0, 0.0], (10, 1))
    sizes = np.rint(2.0 * mechanism.release_many(value, 3000, SeededSource(3)).value[:, 0]).astype(int)
    expected = stats.binom.pmf(np.arange(8), 10, 0.3)
    counts = np.append(np.bincount(sizes, minlength=11)[:8], (sizes > 7).sum())
    assert stats.chisquare(counts, np.append(expected, 1.0 - expected.sum()) * 3000).pvalue > 1e-6


def test_a_click_moves_a_whole_update_into_another():
    poisson = replace(TEN, sampling="poisson")
    assert of_four(taking_part=poisson).sensitivity.value == 1.0
    click = of_four(taking_part=replace(poisson, unit="click"))
    assert click.sensitivity.value == 2.0
    first, second = click.worst_pair()
    assert np.linalg.norm(first.sum(axis=0) - second.sum(axis=0)) == pytest.approx(2.0)


def test_bad_settings_gains_and_updates_are_refused():
    with pytest.raises(BadInput, match="longer than the noise covers"):
        cohort_sum(SCHEMA.coded("int8"))
    with pytest.raises(BadInput, match="fixed-size"):
        of_four().release(np.zeros((9, 4)), SeededSource(5))
    with pytest.raises(BadInput, match="one row per person"):
        of_four().release(np.zeros((11, 4)), SeededSource(5))
    for name, value in (("clip", 0.0), ("epsilon", -1.0), ("delta", 0.0), ("clip", math.nan)):
        with pytest.raises(BadInput, match=name):
            gains(**{name: value})
    for name in ("clip_norm", "noise_multiplier", "delta"):
        with pytest.raises(BadInput, match=name):
            of_four(**{name: 0.0})
    with pytest.raises(BadInput, match="validators"):
        gains().threshold(0)
    with pytest.raises(BadInput, match="shape"):
        gains().total(np.zeros((2, 2)))
    gains().check(0.1)
    for said in (0.1001, math.nan, -1.0):
        with pytest.raises(BadUpdate, match="at most"):
            gains().check(said)
    for bad in (np.nan, np.inf):
        sent = updates()
        sent.dense["near"][1, 0, 0] = bad
        with pytest.raises(BadInput, match="1 updates have NaN or infinite"):
            cohort_sum().bound(sent, ABOUT)
    mechanism = cohort_sum(Schema((Tensor("matrix", (3, 3), by_row=False),)))
    huge, ones = np.full((1, 3, 1), 1e30, np.float32), np.ones((1, 1), np.float32)
    with pytest.raises(BadUpdate, match="NaN or infinite"):  # of factors that are finite
        mechanism.check(
            ClientUpdates(0, 1, factors={"matrix": Factors(huge, ones, huge.reshape(1, 1, 3))}), RoundSpec(0)
        )


@pytest.mark.parametrize("size", [1e-3, 0.9, 1.0, 3.0, 1e6])
def test_products_are_clipped_with_everything_else(size):
    """A matrix of rank one and a table: their norm together is bounded, and their direction stays."""
    schema = Schema((Tensor("rows", (3, 2), by_row=True), Tensor("matrix", (40, 40), by_row=False)))
    mechanism = CohortSum(
        schema=schema, clip_norm=1.0, noise_multiplier=1.0, taking_part=Rounds(rounds=1, population=4), delta=1e-6
    )
    generator = np.random.default_rng(3)
    left, right = (generator.normal(size=(4, 40)).astype(np.float32) for _ in range(2))
    factors = Factors(left[:, :, np.newaxis], np.full((4, 1), size, np.float32), right[:, np.newaxis, :])
    rows = Rows(np.arange(5), np.zeros(4, np.int32), np.full((4, 2), size, np.float32))
    sent = ClientUpdates(0, 4, {"rows": rows}, factors={"matrix": factors})
    bounded = mechanism.bound(sent, RoundSpec(0))
    mechanism.check(bounded, RoundSpec(0))
    before, after = to_vectors(sent, schema), to_vectors(bounded, schema)
    lengths = np.linalg.norm(before, axis=1)
    assert np.linalg.norm(after, axis=1) == pytest.approx(np.minimum(lengths, 1.0), rel=1e-4)
    assert np.linalg.norm(after, axis=1).max() <= 1.0
    assert np.allclose(after / np.linalg.norm(after, axis=1, keepdims=True), before / lengths[:, np.newaxis], atol=1e-6)
    assert np.array_equal(sent.factors["matrix"].scales, np.full((4, 1), size, np.float32))


def gains(**changes):
    settings = {"clip": 0.1, "epsilon": 2.0, "delta": 1e-6, "adjacency": "add-remove"} | changes
    return GainSum(**settings)


def test_no_validator_counts_more_than_the_clip_whatever_the_order():
    for said in [5.0, -5.0, math.inf, -math.inf, math.nan, 1e300]:
        assert abs(gains().total(np.array([said]))[0] * gains().step) <= 0.1
    told = np.random.default_rng(1).uniform(-0.2, 0.2, 1000)
    assert gains().total(told) == gains().total(told[::-1])


@pytest.mark.parametrize("source", [FastSource(1), KeyedSource(b"a secret of thirty-two bytes or so", 1)])
def test_noise_has_its_size(source):
    """Of 4,000 draws the standard deviation errs by 1.1 per cent; beyond 6 per cent once in 10^7."""
    drawn = gains().release_many(np.full((50, 1), 0.02), 4000, source).value
    assert drawn.std() == pytest.approx(gains().sigma, rel=0.06)
    assert drawn.mean() == pytest.approx(1.0, abs=6 * gains().sigma / math.sqrt(4000))


def test_chance_alone_seldom_exceeds_the_threshold():
    """Models that are equally good: gains of +-clip at random. 1 in 40 on one side; 2,000 trials err by 0.0035."""
    mechanism, generator = gains(), np.random.default_rng(2)
    validators, wrong = 200, 0
    for trial in range(2000):
        told = generator.choice([-0.1, 0.1], (validators, 1))
        mean = mechanism.release(told, FastSource(3, trial)).value[0] / validators
        wrong += mean > mechanism.threshold(validators)
    assert wrong / 2000 < 0.04
