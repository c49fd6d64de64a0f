"""Every mechanism states everything, its statement agrees with its event, and bad input costs nothing."""

import ast
import inspect
import itertools
import math
from dataclasses import is_dataclass

import numpy as np
import pytest
from scipy import stats

from veilrec.core.errors import BadInput
from veilrec.privacy import mechanisms as registry
from veilrec.privacy.accounting.accountant import delta_of
from veilrec.privacy.accounting.gaussian import delta_gaussian
from veilrec.privacy.events import GaussianEvent, NonPrivateEvent, repeated
from veilrec.privacy.mechanisms import MECHANISMS, base, instances, mechanism_class
from veilrec.privacy.mechanisms.attention import PaddedAttention, PrivateAttention
from veilrec.privacy.mechanisms.base import Gaussian, Laplace
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.privacy.mechanisms.interests import PooledInterest
from veilrec.privacy.randomness import SecureSource, SeededSource
from veilrec.privacy.samplers import UNITS

INSTANCES = instances()
MANY_AT_ONCE = [mechanism for mechanism in INSTANCES if mechanism.name != "cohort-sum"]
every = pytest.mark.parametrize("mechanism", INSTANCES, ids=lambda m: f"{m.name}-{m.calibration}")


class _NoSource:
    """A source that must not be touched."""

    protects = True

    def words(self, count):
        raise AssertionError(f"{count} words were drawn")


@every
def test_states_everything_and_claims_what_holds_if_it_is_proven(mechanism):
    base.require_complete(mechanism)
    assert mechanism.calibration in type(mechanism).calibrations
    assert MECHANISMS[mechanism.name].endswith(type(mechanism).__name__)
    assert mechanism.sensitivity.value > 0.0
    assert mechanism.claimed_epsilon > 0.0
    assert 0.0 <= mechanism.claimed_delta < 1.0
    honest = mechanism.delta(mechanism.claimed_epsilon)
    if mechanism.calibration == "proven":
        assert honest <= mechanism.claimed_delta * (1.0 + 1e-9)
    else:
        assert honest > 2.0 * mechanism.claimed_delta  # every published flaw that we keep is a real one
    if mechanism.calibration == "proven":
        assert mechanism.delta(0.95 * mechanism.claimed_epsilon) > mechanism.claimed_delta


@every
def test_event_accounts_for_the_whole_profile_but_for_the_sampler(mechanism):
    if isinstance(mechanism.event(), NonPrivateEvent):
        assert mechanism.delta(50.0) > 0.5
        return
    for share in (0.0, 0.3, 0.7, 1.0):
        epsilon = share * mechanism.claimed_epsilon
        accounted = delta_of(mechanism.event(), epsilon)
        assert mechanism.delta(epsilon) <= accounted * (1.0 + 1e-6) + 1e-12


def _before_noise(mechanism, value):
    """What the mechanism adds its noise to."""
    if isinstance(mechanism, PaddedAttention):
        return clip_flat(mechanism.attention(value), mechanism.noise.clip_norm)
    if isinstance(mechanism, PrivateAttention):
        return clip_flat(value, mechanism.noise.clip_norm)
    if isinstance(mechanism, PooledInterest):
        return mechanism.pooled(value)
    if mechanism.name == "interest-response":
        return value.argmax()
    if mechanism.name == "shared-sum":
        return _before_noise(mechanism.inner, value)
    if mechanism.name == "adaptive-sum":
        value = value[:, :-1]  # the sensitivity is that of the updates
    if mechanism.name in ("cohort-sum", "adaptive-sum", "scheduled-sum", "tree-sum"):
        return clip_flat(value, mechanism.clip_norm).sum(axis=0)
    if mechanism.name == "gain-sum":
        return mechanism.total(value.ravel()) * mechanism.step
    return value


@every
def test_worst_pair_is_as_far_apart_as_allowed(mechanism):
    first, second = (np.asarray(_before_noise(mechanism, value)) for value in mechanism.worst_pair())
    stated = mechanism.sensitivity
    if stated.norm == "changed entries":
        assert (first != second).sum() == stated.value
    elif mechanism.name == "top-k-update":
        assert np.linalg.norm(first - second) <= stated.value  # it is the support that gives it away
    else:
        apart = np.linalg.norm((first.astype(np.float64) - second).ravel(), 1 if stated.norm == "L1" else 2)
        assert stated.value * (1.0 - 1e-6) <= apart <= stated.value * (1.0 + 1e-9)


@every
def test_releases_finite_values_that_the_seed_decides(mechanism):
    for value in mechanism.worst_pair():
        released = mechanism.release(value, SecureSource())
        assert released.event == mechanism.event()
        assert all(np.isfinite(np.asarray(part, np.float64)).all() for part in _parts(released.value))
    value = mechanism.worst_pair()[0]

    def run(seed):
        source = SeededSource(seed)
        return repr([mechanism.release(value, source).value for _ in range(40)])

    assert run(1) == run(1) != run(2)


def _parts(value):
    return list(vars(value).values()) if is_dataclass(value) else [value]


@pytest.mark.parametrize("mechanism", MANY_AT_ONCE, ids=lambda m: f"{m.name}-{m.calibration}")
def test_many_releases_at_once_are_releases(mechanism):
    for side, seed in itertools.product((0, 1), range(20)):  # enough for every mask and cohort of these small cases
        value = mechanism.worst_pair()[side]
        one = mechanism.release(value, SeededSource(seed))
        many = mechanism.release_many(value, 1, SeededSource(seed))
        for alone, batch in zip(_parts(one.value), _parts(many.value), strict=True):
            np.testing.assert_array_equal(np.asarray(alone)[np.newaxis], batch)
        assert many.event == repeated(one.event, 1)
    together = mechanism.release_many(value, 40, SeededSource(1))
    assert together.event == repeated(mechanism.event(), 40)
    assert any(len(np.unique(part, axis=0)) > 1 for part in _parts(together.value))  # not one draw 40 times
    assert all(len(part) == 40 for part in _parts(together.value))


@every
def test_bad_input_draws_nothing(mechanism):
    value = np.asarray(mechanism.worst_pair()[0])
    bad = [np.full(value.shape, np.nan), "nonsense", np.full(value.shape, np.inf)]
    if value.ndim:
        bad += [value[..., :-1], np.zeros(()), np.concatenate((value, value), axis=-1)]
    else:
        bad += [np.array(-1), np.array(10**6), np.array(0.5)]
    for wrong in bad:
        with pytest.raises(BadInput) as caught:
            mechanism.release(wrong, _NoSource())
        assert "\n" not in str(caught.value)


def test_the_registry_is_complete_and_lazy_and_refuses_what_leaves_its_sensitivity_out():
    assert {mechanism.name for mechanism in INSTANCES} == set(MECHANISMS)
    with pytest.raises(BadInput, match="laplace"):
        mechanism_class("laplas")
    imported = [n.module or "" for n in ast.parse(inspect.getsource(registry)).body if isinstance(n, ast.ImportFrom)]
    assert not any(module.startswith("veilrec.privacy") for module in imported)
    mechanism = mechanism_class("laplace").examples()[0]
    del mechanism.sensitivity
    with pytest.raises(BadInput, match="sensitivity"):
        mechanism.release(mechanism.worst_pair, _NoSource())


def _gaussian(epsilon=1.0, delta=1e-6, dimension=5, sensitivity=1.0, calibration="proven"):
    terms = {"unit": "user", "adjacency": "replace-one", "calibration": calibration}
    return Gaussian(dimension=dimension, sensitivity=sensitivity, epsilon=epsilon, delta=delta, **terms)


def test_scales_of_section_1_and_of_model_sized_vectors():
    large, small = _gaussian(dimension=2_500_000), _gaussian(dimension=1)
    assert 1.0 < large.sigma / small.sigma < 1.01
    assert large.delta(1.0) <= 1e-6
    assert base.classical_sigma(10.0, 1e-3, 1.0) == pytest.approx(0.377648, abs=5e-7)
    assert _gaussian(10.0, 1e-3, calibration="as-published").delta(10.0) == pytest.approx(3.362e-3, rel=1e-3)
    assert 4.0 < _laplace(0.5).scale == pytest.approx(4.0, rel=1e-4)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (40.0, 1e-6), (8.0, 1e-18)])
def test_the_sampler_adds_to_epsilon_and_scales_delta(epsilon, delta):
    draws = 10**9
    left, ideal = base.left_by_sampler(epsilon, delta, draws)
    assert 0.0 < epsilon - left == pytest.approx(2.0 * draws * 2.0**-48, rel=1e-6)
    assert ideal == pytest.approx(delta, rel=1e-5)  # no tail is missing, so nothing is added that e^epsilon multiplies
    event = GaussianEvent(base.lattice_mu(epsilon, delta, draws))
    assert base.lattice_delta(event, epsilon, draws) == pytest.approx(delta, rel=1e-6)
    assert base.lattice_delta(event, 0.0, draws) >= delta_gaussian(0.0, event.mu) + 2.0 * draws * 2.0**-48


def test_noise_has_its_size_and_lies_on_the_lattice():
    mechanism = _gaussian(dimension=50_000)
    noise = mechanism.release(np.zeros(50_000), SeededSource(1)).value / mechanism.sigma
    assert stats.kstest(noise, "norm").pvalue > 1e-6  # false alarm for one seed in a million
    mechanism = _laplace(dimension=50_000)
    noisy = mechanism.release(np.full(50_000, math.pi), SeededSource(1)).value
    grid = mechanism.scale / UNITS
    np.testing.assert_array_equal(np.rint(noisy / grid) * grid, noisy)
    assert stats.kstest((noisy - math.pi) / mechanism.scale, "laplace").pvalue > 1e-6  # one seed in a million


def _laplace(epsilon=1.0, dimension=5, sensitivity=2.0):
    return Laplace(dimension=dimension, sensitivity=sensitivity, epsilon=epsilon, unit="user", adjacency="replace-one")


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.8, 0.2), (0.4, 0.3, 0.3)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 0.7])
def test_one_coordinate_is_the_worst_pair(shares, epsilon):
    """Monte Carlo of the exact profile when the distance is spread; 5 standard errors: one seed in a million."""
    generator = np.random.default_rng(1)
    x = generator.laplace(size=(200_000, len(shares)))
    loss = (np.abs(x - np.array(shares)) - np.abs(x)).sum(axis=1)
    excess = np.maximum(-np.expm1(epsilon - loss), 0.0)
    spread = excess.mean() + 5.0 * excess.std() / math.sqrt(len(x))
    assert spread < -math.expm1((epsilon - 1.0) / 2.0)  # the profile of one coordinate with the whole distance


def test_bad_parameters_are_refused():
    gaussian = [
        *({"epsilon": epsilon} for epsilon in (0.0, -1.0, math.nan)),
        *({"delta": delta} for delta in (0.0, 1.0)),
        {"calibration": "guessed"},
        {"epsilon": 1e-9, "dimension": 2_500_000, "delta": 1e-9},
    ]
    for make, wrongs in ((_gaussian, gaussian), (_laplace, [{"epsilon": 0.0}, {"epsilon": 1e-9}])):
        for wrong in (*wrongs, {"sensitivity": 0.0}, {"dimension": 0}):
            with pytest.raises(BadInput):
                make(**wrong)
