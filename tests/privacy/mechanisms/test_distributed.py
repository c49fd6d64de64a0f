"""Noise in shares: the bound on sums of rounded Gaussians by enumeration, and the mechanism that rests on it.

What is enumerated is exact up to double precision: there are no false alarms.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.interpolate import BSpline
from scipy.stats import norm

from veilrec.audit.auditor import case_of, judge
from veilrec.core.arrays import Doubles
from veilrec.core.errors import BadInput
from veilrec.core.schema import RoundSpec, Schema, Tensor, from_vectors
from veilrec.privacy.accounting import Rounds, epsilon_of
from veilrec.privacy.accounting.gaussian import delta_gaussian
from veilrec.privacy.events import ComposedEvent, GaussianEvent, SampledEvent
from veilrec.privacy.mechanisms.clipping import upload_norms
from veilrec.privacy.mechanisms.distributed import (
    FEWEST_UNITS,
    DistributedNoiseSum,
    NoiseShares,
    log_error,
    overflow_chance,
    tau,
)
from veilrec.privacy.mechanisms.schedules import AdaptiveSum, ScheduledSum, TreeSum
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.privacy.randomness import SeededSource
from veilrec.privacy.samplers import RELATIVE_ERROR

SCHEMA = Schema((Tensor("rows", (6, 4), by_row=True), Tensor("layer", (5,), by_row=False)))


def rounded(units: float) -> Doubles:
    """The exact masses of a rounded Gaussian on -reach..reach, right relative to themselves in the tails too."""
    reach = math.ceil(14 * units) + 2
    half = np.arange(0, reach + 1)
    upper = norm.sf((half - 0.5) / units) - norm.sf((half + 0.5) / units)
    upper[0] = 2.0 * norm.cdf(0.5 / units) - 1.0
    return np.concatenate([upper[:0:-1], upper])


def summed(shares: int, units: float) -> Doubles:
    """Of the sum of several, by convolution."""
    masses = one = rounded(units)
    for _ in range(shares - 1):
        masses = np.convolve(masses, one)
    return masses


def ideal(shares: int, units: float, reach: int) -> Doubles:
    """P[round(T + W) = x] of a Gaussian T of all the variance and W of n - 1 uniforms: a Gaussian by a spline of n."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    spline = BSpline.basis_element(np.arange(shares + 1) - shares / 2)
    starts = np.arange(shares) - shares / 2
    places = (starts[:, np.newaxis] + (nodes + 1.0) / 2.0).reshape(-1)
    mass = np.tile(weights / 2.0, shares) * spline(places)
    x = np.arange(-reach, reach + 1)[:, np.newaxis]
    return np.asarray((norm.pdf(x - places, scale=units * math.sqrt(shares)) * mass).sum(axis=1))


GRID = [(shares, units) for shares in (1, 2, 3, 8) for units in (0.9, 1.0, 1.4, 2.0)]


@pytest.mark.parametrize(("shares", "units"), GRID)
def test_sums_of_rounded_gaussians_are_within_tau_of_the_ideal_everywhere(shares: int, units: float) -> None:
    exact = summed(shares, units)
    middle, reach = len(exact) // 2, int(9 * units * math.sqrt(shares))
    ratio = exact[middle - reach : middle + reach + 1] / ideal(shares, units, reach)
    assert np.abs(ratio - 1.0).max() <= tau(shares, units) + 1e-11  # of doubles


@pytest.mark.parametrize(("shares", "units"), [case for case in GRID if tau(*case) < 0.5])
@pytest.mark.parametrize("moved", [1, 2, 5])
def test_the_claimed_delta_holds_at_every_epsilon_by_enumeration(shares: int, units: float, moved: int) -> None:
    masses = np.concatenate([np.zeros(moved), summed(shares, units), np.zeros(moved)])
    here, there = masses[moved:], masses[:-moved]
    mu = moved / (units * math.sqrt(shares))
    error = log_error(shares, units)
    for epsilon in np.concatenate([np.linspace(0.0, 6.0, 60), [8.0, 12.0, 20.0]]):
        really = np.maximum(here - math.exp(epsilon) * there, 0.0).sum()
        shifted = max(epsilon - 2.0 * error, 0.0)
        claimed = math.exp(error) * (delta_gaussian(shifted, mu) + max(2.0 * error - epsilon, 0.0))
        assert really <= claimed + 1e-15


def test_enumeration_would_find_a_claim_that_is_too_bold() -> None:
    """The noise of one share more than there are is refuted by the same sums."""
    masses = np.concatenate([np.zeros(1), summed(4, 1.0), np.zeros(1)])
    really = np.maximum(masses[1:] - math.e * masses[:-1], 0.0).sum()
    assert really > delta_gaussian(1.0, 1.0 / math.sqrt(5)) * (1.0 + tau(4, 1.0))


def test_errors_are_those_of_rounding_and_of_every_draw() -> None:
    assert log_error(500, FEWEST_UNITS) == pytest.approx(500 * RELATIVE_ERROR)
    assert tau(1000, 10.0) == 0.0  # below what a double holds
    assert tau(4, 1.0) == pytest.approx((1 + 2 * math.exp(-(math.pi**2))) ** 4 - 1, rel=1e-9)
    with pytest.raises(BadInput, match="too small for a sum of 8"):
        log_error(8, 0.5)


def made(least: int = 6, silent: float = 0.25, *, population: int = 20, sampling: Any = "poisson", **other: Any) -> Any:
    people = Rounds(rounds=3, sampling=sampling, population=population, cohort=population)
    inner = CohortSum(
        **{"schema": SCHEMA, "clip_norm": 1.0, "noise_multiplier": 1.5, "taking_part": people, "delta": 1e-6} | other
    )
    return DistributedNoiseSum(inner, NoiseShares(least, silent))


def test_as_few_shares_as_are_counted_on_have_all_the_noise() -> None:
    mechanism = made()
    assert mechanism.shares.honest == 5
    lattice = mechanism.lattice(RoundSpec(0), devices=20)
    for name, scale in mechanism.scales(lattice, RoundSpec(0)).items():
        variance = 5 * (scale.units * lattice.steps[name]) ** 2
        assert mechanism.inner.sigma**2 <= variance <= 1.001 * mechanism.inner.sigma**2
        assert scale.units >= FEWEST_UNITS


def test_a_round_costs_whoever_is_known_to_be_in_it_without_chance() -> None:
    inner = replace(made().taking_part, cohort=4)
    mechanism = made(least=3, silent=0.0, taking_part=inner)
    assert isinstance(mechanism.inner.event(), SampledEvent)
    assert mechanism.event() == GaussianEvent(1.0 / 1.5)
    assert mechanism.events(3) == ((GaussianEvent(1.0 / 1.5), 3),)
    scheduled = DistributedNoiseSum(ScheduledSum.examples()[1], NoiseShares(4))
    costs = [epsilon_of(ComposedEvent(((event, 1),)), 1e-6) for event, _ in scheduled.events(2)]
    assert costs[0] > costs[1]
    assert scheduled.event_in(RoundSpec(1)) == scheduled.events(2)[1][0]


def test_a_device_shares_its_clipped_update_and_its_noise() -> None:
    mechanism, about = made(), RoundSpec(0)
    lattice = mechanism.lattice(about, devices=20)
    uploads = from_vectors(np.full((1, mechanism.dimension), 7.0), SCHEMA)
    released = mechanism.share(uploads, about, lattice, SeededSource(1))
    assert released.event == mechanism.event()
    noise = mechanism.noise(lattice, about, SeededSource(1))
    clipped = released.value - noise
    numbers = np.concatenate([lattice.numbers(clipped[lattice.places[t.name]], t.name) for t in SCHEMA.tensors])
    assert 0.999 < np.linalg.norm(numbers) <= 1.0
    np.testing.assert_array_equal(clipped, lattice.integers(mechanism.bound(uploads, about))[0])
    assert upload_norms(mechanism.bound(uploads, about)) <= 1.0
    with pytest.raises(BadInput, match="2 updates: a device shares its own"):
        mechanism.share(from_vectors(np.ones((2, mechanism.dimension)), SCHEMA), about, lattice, SeededSource(0))


def test_shares_add_up_and_have_the_spread_that_is_said() -> None:
    """4,000 shares of 29 numbers: their spread is within 5 standard deviations of that of a spread, 1 in 2 million."""
    mechanism, about = made(), RoundSpec(0)
    lattice = mechanism.lattice(about, devices=20)
    units = mechanism.scales(lattice, about)["rows"].units
    drawn = np.stack([mechanism.noise(lattice, about, SeededSource(2, i)) for i in range(4000)]) / units
    assert abs(drawn.std() - 1.0) < 5.0 / math.sqrt(2 * drawn.size)
    bounded = mechanism.bound(from_vectors(np.eye(3, mechanism.dimension), SCHEMA), about)
    total = mechanism.shared(bounded, about, lattice, [SeededSource(2, i) for i in range(3)])
    expected = lattice.integers(bounded).sum(axis=0)
    expected += sum(mechanism.noise(lattice, about, SeededSource(2, i)) for i in range(3))
    np.testing.assert_array_equal(total, expected)


def test_noise_lies_on_what_the_round_is_about_and_nowhere_else() -> None:
    from veilrec.privacy.randomness import FastSource

    mechanism, about = made(), RoundSpec(2, shares={"layer": 0.5}, public_seed=3)
    lattice = mechanism.lattice(about, devices=20)
    entries = about.entries("layer", 5)
    assert entries is not None
    outside = np.setdiff1d(np.arange(5), entries)
    noise = mechanism.noise(lattice, about, SeededSource(0))[lattice.places["layer"]]
    fast = mechanism.noise_of_shares(lattice, about, 4, FastSource(0, one_generator=True))["layer"]
    for drawn in (noise, fast):
        assert (drawn[outside] == 0).all()
        assert (drawn[entries] != 0).all()


@pytest.mark.parametrize(("population", "ring"), [(20, 32), (5_000, 32), (200_000, 64), (2**23, 64)])
def test_the_ring_is_the_smaller_one_that_leaves_shares_enough_units(population: int, ring: int) -> None:
    mechanism, about = made(least=6, population=population), RoundSpec(0)
    lattice = mechanism.lattice(about, devices=population)
    assert lattice.ring == ring == mechanism.lattice(about, devices=population, ring=64).ring
    assert min(scale.units for scale in mechanism.scales(lattice, about).values()) >= FEWEST_UNITS
    # No sum leaves its width: every device at its bound, and 16 standard deviations of noise from each.
    width = mechanism.width(lattice, about)
    for tensor in SCHEMA.tensors:
        largest = population * mechanism.reach(tensor, about) / lattice.steps[tensor.name]
        assert largest < 2 ** (width - 1) <= 2 ** (ring - 1)
        assert largest <= population * lattice.most
    assert overflow_chance(6, 10**9) < 1e-300


def test_what_cannot_be_shared_is_refused() -> None:
    for inner in (AdaptiveSum.examples()[0], TreeSum.examples()[0]):
        with pytest.raises(BadInput, match=f"noise of {inner.name} cannot be added in shares"):
            DistributedNoiseSum(inner, NoiseShares(3))
    with pytest.raises(BadInput, match="20 people at most"):
        made(least=21)
    with pytest.raises(BadInput, match="silent is 1"):
        NoiseShares(5, 1.0)
    with pytest.raises(BadInput, match="least"):
        NoiseShares(0)
    mechanism = made()
    uploads = from_vectors(np.ones((1, mechanism.dimension)), SCHEMA)
    for leave in (mechanism.message, mechanism.perturb):
        with pytest.raises(BadInput, match="under masks and no plain message"):
            leave(uploads, RoundSpec(0), SeededSource(0))
    with pytest.raises(BadInput, match="no lattice has room for both"):
        made(noise_multiplier=1e-17).lattice(RoundSpec(0), devices=20)
    for options in ({"weighs_examples": True}, {"counts_rows": True}):
        with pytest.raises(BadInput, match="have no noise"):
            mechanism.lattice(RoundSpec(0), devices=20, **options)
    with pytest.raises(BadInput, match="give a row for each of 6 to 20"):
        mechanism.release(np.zeros((5, mechanism.dimension)), SeededSource(0))


class HalfTheShares(DistributedNoiseSum):
    """Bug: every device adds half the variance."""

    def share_sigma(self, name: str, about: RoundSpec) -> float:
        return super().share_sigma(name, about) / math.sqrt(2.0)


class CountsEverybody(DistributedNoiseSum):
    """Bug: the noise is spread over all who may come, and fewer do."""

    def share_sigma(self, name: str, about: RoundSpec) -> float:
        return self.inner.sigma_in(name, about) / math.sqrt(self.most_people)


@pytest.mark.parametrize("bug", [HalfTheShares, CountsEverybody])
def test_the_audit_refutes_shares_that_are_too_small(bug: type[DistributedNoiseSum]) -> None:
    sound = DistributedNoiseSum.examples()[0]
    assert judge(case_of(sound), effort=1, seed=0).passed
    flawed = bug(sound.inner, sound.shares)
    verdict = judge(case_of(flawed), effort=1, seed=0)
    assert verdict.lower_bound > flawed.claimed_epsilon
