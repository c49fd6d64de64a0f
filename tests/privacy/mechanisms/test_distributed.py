"""Distributed noise: the bound on sums of rounded Gaussians by enumeration, and the mechanism that rests on it.

What is enumerated is exact up to double precision: there are no false alarms.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.interpolate import BSpline
from scipy.stats import norm

from veilrec.audit.auditor import audit_claim, case_of
from veilrec.core.errors import BadInput
from veilrec.core.schema import RoundSpec, Schema, Tensor, from_vectors
from veilrec.privacy.accounting import Rounds, epsilon_of
from veilrec.privacy.accounting.gaussian import delta_gaussian
from veilrec.privacy.events import ComposedEvent, GaussianEvent, SampledEvent
from veilrec.privacy.ledger import statement
from veilrec.privacy.mechanisms.clipping import update_norms
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.mechanisms.reports import ItemHistogram, VoteReports
from veilrec.privacy.mechanisms.schedules import FARTHEST, AdaptiveSum, ScheduledSum, TreeSum
from veilrec.privacy.mechanisms.shares import (
    FEWEST_UNITS,
    REACH,
    DistributedNoise,
    Shares,
    log_error,
    overflow_chance,
    tau,
)
from veilrec.privacy.mechanisms.sums import CohortSum, GainSum
from veilrec.privacy.randomness import FastSource, SeededSource
from veilrec.privacy.samplers import RELATIVE_ERROR

SCHEMA = Schema((Tensor("rows", (6, 4), by_row=True), Tensor("layer", (5,), by_row=False)))


def rounded(units):
    """The exact masses of a rounded Gaussian on -reach..reach, right relative to themselves in the tails too."""
    reach = math.ceil(14 * units) + 2
    half = np.arange(0, reach + 1)
    upper = norm.sf((half - 0.5) / units) - norm.sf((half + 0.5) / units)
    upper[0] = 2.0 * norm.cdf(0.5 / units) - 1.0
    return np.concatenate([upper[:0:-1], upper])


def summed(shares, units):
    """Of the sum of several, by convolution."""
    masses = one = rounded(units)
    for _ in range(shares - 1):
        masses = np.convolve(masses, one)
    return masses


def ideal(shares, units, reach):
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
def test_sums_of_rounded_gaussians_are_within_tau_of_the_ideal_everywhere(shares, units):
    exact = summed(shares, units)
    middle, reach = len(exact) // 2, int(9 * units * math.sqrt(shares))
    ratio = exact[middle - reach : middle + reach + 1] / ideal(shares, units, reach)
    assert np.abs(ratio - 1.0).max() <= tau(shares, units) + 1e-11  # of doubles


@pytest.mark.parametrize(("shares", "units"), [case for case in GRID if tau(*case) < 0.5])
@pytest.mark.parametrize("moved", [1, 2, 5])
def test_the_claimed_delta_holds_at_every_epsilon_by_enumeration(shares, units, moved):
    masses = np.concatenate([np.zeros(moved), summed(shares, units), np.zeros(moved)])
    here, there = masses[moved:], masses[:-moved]
    mu = moved / (units * math.sqrt(shares))
    error = log_error(shares, units)
    for epsilon in np.concatenate([np.linspace(0.0, 6.0, 60), [8.0, 12.0, 20.0]]):
        really = np.maximum(here - math.exp(epsilon) * there, 0.0).sum()
        shifted = max(epsilon - 2.0 * error, 0.0)
        claimed = math.exp(error) * (delta_gaussian(shifted, mu) + max(2.0 * error - epsilon, 0.0))
        assert really <= claimed + 1e-15


def test_errors_are_those_of_rounding_and_a_claim_that_is_too_bold_would_be_found():
    masses = np.concatenate([np.zeros(1), summed(4, 1.0), np.zeros(1)])
    really = np.maximum(masses[1:] - math.e * masses[:-1], 0.0).sum()
    assert really > delta_gaussian(1.0, 1.0 / math.sqrt(5)) * (1.0 + tau(4, 1.0))
    assert log_error(500, FEWEST_UNITS) == pytest.approx(500 * RELATIVE_ERROR)
    assert tau(1000, 10.0) == 0.0  # below what a double holds
    assert tau(4, 1.0) == pytest.approx((1 + 2 * math.exp(-(math.pi**2))) ** 4 - 1, rel=1e-9)
    with pytest.raises(BadInput, match="too small for a sum of 8"):
        log_error(8, 0.5)


def made(clients=6, silent=0.25, lost=0.0, *, population=20, sampling="poisson", **other):
    people = Rounds(rounds=3, sampling=sampling, population=population, cohort=population)
    inner = CohortSum(
        **{"schema": SCHEMA, "clip_norm": 1.0, "noise_multiplier": 1.5, "taking_part": people, "delta": 1e-6} | other
    )
    return DistributedNoiseSum(inner, DistributedNoise(clients, silent, lost))


def test_as_few_shares_as_are_counted_on_have_all_the_noise_and_cost_without_chance():
    mechanism = made()
    assert mechanism.distributed_noise.honest == 5
    fixed_point = mechanism.fixed_point(RoundSpec(0), clients=20)
    for name, scale in mechanism.scales(fixed_point, RoundSpec(0)).items():
        variance = 5 * (scale.units * fixed_point.steps[name]) ** 2
        assert mechanism.inner.sigma**2 <= variance <= 1.001 * mechanism.inner.sigma**2
        assert scale.units >= FEWEST_UNITS
    inner = replace(made().taking_part, cohort=4)
    mechanism = made(clients=3, silent=0.0, taking_part=inner)
    assert isinstance(mechanism.inner.event(), SampledEvent)
    assert mechanism.event() == GaussianEvent(1.0 / 1.5)
    assert mechanism.events(3) == ((GaussianEvent(1.0 / 1.5), 3),)
    scheduled = DistributedNoiseSum(ScheduledSum.examples()[1], DistributedNoise(4))
    assert scheduled.events(1) == scheduled.events(2)[:1]  # whoever is in one round is taken to be in the costliest
    costs = [epsilon_of(ComposedEvent(((event, 1),)), 1e-6) for event, _ in scheduled.events(2)]
    assert costs[0] > costs[1]
    assert scheduled.event_in(RoundSpec(1)) == scheduled.events(2)[1][0]


def test_a_client_shares_its_clipped_update_and_its_noise():
    mechanism, spec = made(), RoundSpec(0)
    fixed_point = mechanism.fixed_point(spec, clients=20)
    updates = from_vectors(np.full((1, mechanism.dimension), 7.0), SCHEMA)
    released = mechanism.share(updates, spec, fixed_point, SeededSource(1))
    assert released.event == mechanism.event()
    noise = mechanism.noise(fixed_point, spec, SeededSource(1))
    clipped = released.value - noise
    numbers = np.concatenate([fixed_point.numbers(clipped[fixed_point.places[t.name]], t.name) for t in SCHEMA.tensors])
    assert 0.999 < np.linalg.norm(numbers) <= 1.0
    np.testing.assert_array_equal(clipped, fixed_point.integers(mechanism.bound(updates, spec))[0])
    assert update_norms(mechanism.bound(updates, spec)) <= 1.0
    with pytest.raises(BadInput, match="2 updates: a client shares its own"):
        mechanism.share(from_vectors(np.ones((2, mechanism.dimension)), SCHEMA), spec, fixed_point, SeededSource(0))


def test_shares_add_up_have_the_spread_that_is_said_and_lie_on_what_the_round_covers():
    # 4,000 shares of 29 numbers: their spread is within 5 standard deviations of that of a spread, 1 in 2 million.
    mechanism, spec = made(), RoundSpec(0)
    fixed_point = mechanism.fixed_point(spec, clients=20)
    units = mechanism.scales(fixed_point, spec)["rows"].units
    drawn = np.stack([mechanism.noise(fixed_point, spec, SeededSource(2, i)) for i in range(4000)]) / units
    assert abs(drawn.std() - 1.0) < 5.0 / math.sqrt(2 * drawn.size)
    bounded = mechanism.bound(from_vectors(np.eye(3, mechanism.dimension), SCHEMA), spec)
    total = mechanism.shared(bounded, spec, fixed_point, [SeededSource(2, i) for i in range(3)])
    expected = fixed_point.integers(bounded).sum(axis=0)
    expected += sum(mechanism.noise(fixed_point, spec, SeededSource(2, i)) for i in range(3))
    np.testing.assert_array_equal(total, expected)
    mechanism, spec = made(), RoundSpec(2, shares={"layer": 0.5}, public_seed=3)
    fixed_point = mechanism.fixed_point(spec, clients=20)
    entries = spec.entries("layer", 5)
    outside = np.setdiff1d(np.arange(5), entries)
    noise = mechanism.noise(fixed_point, spec, SeededSource(0))[fixed_point.places["layer"]]
    fast = mechanism.total_of_shares(fixed_point, spec, 4, FastSource(0, one_generator=True))["layer"]
    for drawn in (noise, fast):
        assert (drawn[outside] == 0).all()
        assert (drawn[entries] != 0).all()


@pytest.mark.parametrize(("population", "ring"), [(20, 32), (5_000, 32), (200_000, 64), (2**23, 64)])
def test_the_ring_is_the_smaller_one_that_leaves_shares_enough_units(population, ring):
    mechanism, spec = made(clients=6, population=population), RoundSpec(0)
    fixed_point = mechanism.fixed_point(spec, clients=population)
    assert fixed_point.ring == ring == mechanism.fixed_point(spec, clients=population, ring=64).ring
    assert min(scale.units for scale in mechanism.scales(fixed_point, spec).values()) >= FEWEST_UNITS
    # No sum leaves its width: every client at its bound, and 16 standard deviations of noise from each.
    width = mechanism.width(fixed_point, spec)
    for tensor in SCHEMA.tensors:
        largest = population * mechanism.reach(tensor, spec) / fixed_point.steps[tensor.name]
        assert largest < 2 ** (width - 1) <= 2 ** (ring - 1)
        assert largest <= population * fixed_point.most
    assert overflow_chance(6, 10**9) < 1e-300


def test_what_cannot_be_shared_is_refused():
    for inner in (TreeSum.examples()[0], made()):
        with pytest.raises(BadInput, match=f"noise of {inner.name} cannot be added in shares"):
            DistributedNoiseSum(inner, DistributedNoise(3))
    with pytest.raises(BadInput, match="20 people at most"):
        made(clients=21)
    with pytest.raises(BadInput, match="silent is 1"):
        DistributedNoise(5, 1.0)
    with pytest.raises(BadInput, match="lost is -0.1"):
        DistributedNoise(5, lost=-0.1)
    with pytest.raises(BadInput, match="together they are below 1"):
        DistributedNoise(5, 0.6, 0.4)
    with pytest.raises(BadInput, match="clients"):
        DistributedNoise(0)
    mechanism = made()
    updates = from_vectors(np.ones((1, mechanism.dimension)), SCHEMA)
    for leave in (mechanism.message, mechanism.perturb):
        with pytest.raises(BadInput, match="under masks and no plain message"):
            leave(updates, RoundSpec(0), SeededSource(0))
    with pytest.raises(BadInput, match="no lattice has room for both"):
        made(noise_multiplier=1e-17).fixed_point(RoundSpec(0), clients=20)
    for options in ({"weighs_examples": True}, {"counts_rows": True}):
        with pytest.raises(BadInput, match="have no noise"):
            mechanism.fixed_point(RoundSpec(0), clients=20, **options)
    with pytest.raises(BadInput, match="give a row for each of 20"):
        mechanism.release(np.zeros((21, mechanism.dimension)), SeededSource(0))


class HalfTheShares(DistributedNoiseSum):
    """Bug: every client adds half the variance."""

    def share_sigma(self, name, spec):
        return super().share_sigma(name, spec) / math.sqrt(2.0)


class CountsEverybody(DistributedNoiseSum):
    """Bug: the noise is spread over all who may come, and fewer do."""

    def share_sigma(self, name, spec):
        return self.inner.sigma_in(name, spec) / math.sqrt(self.max_people)


@pytest.mark.parametrize("bug", [HalfTheShares, CountsEverybody])
def test_the_audit_refutes_shares_that_are_too_small(bug):
    sound = DistributedNoiseSum.examples()[0]
    assert audit_claim(case_of(sound), effort=1, seed=0).passed
    flawed = bug(sound.inner, sound.distributed_noise)
    verdict = audit_claim(case_of(flawed), effort=1, seed=0)
    assert verdict.lower_bound > flawed.claimed_epsilon


def test_margins_are_of_all_clients_of_a_sum_and_whoever_is_left_carries_the_noise():
    """By the worst case: all who may be missing are honest."""
    noise = DistributedNoise(10, silent=0.3, lost=0.2)
    assert (noise.least, noise.honest) == (8, 5)
    assert noise.surplus == pytest.approx(math.sqrt(2.0))
    assert DistributedNoise(1, silent=0.9).honest == 1
    mechanism = made(10, 0.3, 0.2)
    assert mechanism.sigma == pytest.approx(mechanism.inner.sigma * math.sqrt(2.0))
    assert mechanism.facts()["share_sigma"] * math.sqrt(5) == pytest.approx(mechanism.inner.sigma)
    assert (mechanism.facts()["least"], mechanism.facts()["honest"]) == (8, 5)


def test_statements_differ_where_others_carry_the_noise():
    """Runs, clients and coordinators hold plans for the same by their statements."""

    def votes(carried):
        return VoteReports(length=3, epsilon=1.0, delta=1e-6, adjacency="add-remove", carried=carried)

    some = (None, DistributedNoise(10), DistributedNoise(10, silent=0.1), DistributedNoise(10, lost=0.1))
    assert len({statement(votes(carried)) for carried in some}) == 4
    assert len({statement(made(10, silent)) for silent in (0.0, 0.1, 0.2)}) == 3
    assert statement(votes(None)) == statement(votes(None))


def test_adaptive_noise_follows_the_clip_norm_and_steps_are_the_same_for_all_clients():
    mechanism = DistributedNoiseSum(AdaptiveSum.examples()[1], DistributedNoise(4, silent=0.25))
    inner, first = mechanism.inner, mechanism.fixed_point(RoundSpec(0, clip_norm=1.0), clients=10)
    sigmas = {}
    for clip_norm in (1.0 / FARTHEST, 0.3, 1.0, 7.0, FARTHEST):
        spec = RoundSpec(0, clip_norm=clip_norm)
        fixed_point = mechanism.fixed_point(spec, clients=10)
        assert fixed_point.steps["bound"] == first.steps["bound"]
        assert mechanism.share_sigma("bound", spec) == inner.count_standard_deviation / math.sqrt(3)
        sigmas[clip_norm] = mechanism.share_sigma("rows", spec)
        assert sigmas[clip_norm] == pytest.approx(clip_norm * inner.sigma / math.sqrt(3))
        for name, scale in mechanism.scales(fixed_point, spec).items():
            assert scale.units >= FEWEST_UNITS
            drawn = mechanism.noise(fixed_point, spec, SeededSource(1))[fixed_point.places[name]]
            assert np.abs(drawn).max() <= REACH * scale.units
        # All of a bounded update and of its noise fits, and the update comes back to within the steps.
        updates = from_vectors(np.full((1, mechanism.dimension), 1e3), mechanism.schema)
        whole = fixed_point.integers(mechanism.bound(updates, spec))[0]
        got = np.concatenate([fixed_point.numbers(whole[fixed_point.places[n]], n) for n in ("rows", "layer")])
        assert clip_norm * (1.0 - 1e-3) <= np.linalg.norm(got) <= clip_norm
        assert fixed_point.numbers(whole[fixed_point.places["bound"]], "bound") == -0.5
    with pytest.raises(BadInput, match="bounds from"):
        mechanism.fixed_point(RoundSpec(0, clip_norm=2.0 * FARTHEST), clients=10)


CARRIED = DistributedNoise(40, silent=0.1, lost=0.15)  # 34 at least, of whom 30 add noise
TOLD_ONCE = {
    "votes": VoteReports(length=30, epsilon=1.0, delta=1e-6, adjacency="add-remove", carried=CARRIED),
    "many votes": VoteReports(length=30, epsilon=300.0, delta=1e-6, adjacency="replace-one", carried=CARRIED),
    "few votes": VoteReports(length=30, epsilon=0.01, delta=1e-6, adjacency="add-remove", carried=CARRIED),
    "histogram": ItemHistogram(
        length=30, max_items=5, epsilon=1.0, delta=1e-6, adjacency="add-remove", carried=CARRIED
    ),
    "gains": GainSum(clip=0.1, epsilon=1.0, delta=1e-6, adjacency="add-remove", carried=CARRIED),
    "tiny gains": GainSum(clip=1e-5, epsilon=8.0, delta=1e-6, adjacency="replace-one", carried=CARRIED),
}


def _largest(mechanism):
    """What one client tells at most, and what it is."""
    if isinstance(mechanism, GainSum):
        return 1e9, np.array([mechanism.clip])
    own = np.zeros(30, np.bool_)
    own[3] = True
    return own, own.astype(np.float64)


@pytest.mark.parametrize("name", TOLD_ONCE)
def test_reports_and_gains_have_shares_of_the_noise_that_the_proof_asks_for(name):
    """2,000 shares: their spread is within 5 standard deviations of that of a spread, 1 in 2 million."""
    mechanism, (told, exact) = TOLD_ONCE[name], _largest(TOLD_ONCE[name])
    shares = mechanism.shares
    assert mechanism.trust == "server sees only noisy sums"
    assert mechanism.delta(mechanism.claimed_epsilon) <= mechanism.claimed_delta * (1.0 + 1e-9)
    variance = CARRIED.honest * (shares.scale.units * shares.step) ** 2
    assert shares.sigma**2 <= variance <= 1.002 * shares.sigma**2
    assert shares.scale.units >= FEWEST_UNITS
    assert mechanism.sigma == pytest.approx(shares.sigma * math.sqrt(40 / 30))
    quiet = [mechanism.empty(SeededSource(5, client)) for client in range(2000)]
    noise = np.concatenate(quiet) / shares.scale.units
    assert abs(noise.std() - 1.0) < 5.0 / math.sqrt(2 * noise.size)
    # The same source gives the same share, so that the difference is what was told, cut towards zero.
    own = (mechanism.masked(told, SeededSource(5, 0)) - quiet[0]) * shares.step
    assert np.all(np.abs(own) <= exact)
    np.testing.assert_allclose(own, exact, rtol=2.0**-11)
    total = mechanism.masked(told, SeededSource(5, 0)) + sum(quiet[1:40])
    np.testing.assert_array_equal(mechanism.opened(total, 40, SeededSource(1)), total * shares.step)
    with pytest.raises(BadInput, match="a sum of 33 clients has too little noise"):
        mechanism.opened(total, 33, SeededSource(1))
    with pytest.raises(BadInput, match="from under masks"):
        mechanism.protect(total, SeededSource(1))
    # Nothing that 40 clients at their bounds send leaves the width of the sum.
    most = 40 * (np.abs(exact).max() / shares.step + REACH * shares.scale.units)
    assert most < 2 ** (mechanism.masked_width(40) - 1) <= 2**63


@pytest.mark.parametrize("name", TOLD_ONCE)
def test_the_fast_noise_of_simulated_reports_is_that_of_all_shares_that_came(name):
    mechanism = TOLD_ONCE[name]
    nothing = np.zeros(mechanism.masked_length, np.int64)
    drawn = np.concatenate([mechanism.simulated(nothing, 40, FastSource(seed)) for seed in range(3000)])
    assert abs(drawn.std() / mechanism.sigma - 1.0) < 5.0 / math.sqrt(2 * drawn.size) + 1e-3


def test_with_noise_of_the_server_clients_add_none_and_sums_are_the_same_numbers():
    votes = VoteReports(length=30, epsilon=1.0, delta=1e-6, adjacency="add-remove")
    gains = GainSum(clip=0.1, epsilon=1.0, delta=1e-6, adjacency="add-remove")
    for mechanism in (votes, gains):
        told, exact = _largest(mechanism)
        masked = mechanism.masked(told, SeededSource(1))
        np.testing.assert_allclose(masked * mechanism.step, exact, rtol=1e-7)
        assert (mechanism.empty(SeededSource(1)) == 0).all()
        opened = mechanism.opened(masked, 1, SeededSource(2))
        np.testing.assert_array_equal(opened, mechanism.protect(masked, SeededSource(2)))
    assert votes.masked_width(100) == (100 * 2**24).bit_length() + 1
    with pytest.raises(BadInput, match="there are 64"):
        votes.masked_width(2**40)


def test_a_lattice_has_room_for_what_is_told_whatever_the_noise():
    """Of a share 2^15 units at least; of the largest number, 2^12 at least."""
    for sigma in (1e-6, 0.3, 1.0, 50.0, 1e5):
        shares = Shares(DistributedNoise(50), sigma, 1.0)
        assert shares.scale.units >= 2**15
        assert shares.step <= 2.0**-12
        assert math.log2(shares.step) == int(math.log2(shares.step))
        assert shares.scale.units * shares.step * math.sqrt(50) == pytest.approx(sigma, rel=2.0**-11)
    with pytest.raises(BadInput, match="cannot be drawn"):
        _ = Shares(DistributedNoise(50), 1e9, 1.0).scale
